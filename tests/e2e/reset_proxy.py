#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that resets connections with what is on its way in them.

reset_proxy.py TARGET SEED FLAG    prints its address; while the file FLAG exists, all connections
                                   are reset every 200 to 600 ms, at random
"""
import os
import random
import select
import socket
import struct
import sys
import time

LINGER_NONE = struct.pack("ii", 1, 0)  # close() sends a reset, and drops what was not sent


def address(text):
    host, port = text.rsplit(":", 1)
    return host.strip("[]"), int(port)


class Proxy:
    def __init__(self, target):
        self.target = target
        self.peer = {}  # socket -> the other one
        self.pending = {}  # socket -> bytes that it has to take
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.n_resets = 0

    def accept(self):
        near, _ = self.listener.accept()
        try:
            far = socket.create_connection(self.target)
        except OSError:
            near.close()
            return
        for a, b in (near, far), (far, near):
            a.setblocking(False)
            a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer[a] = b
            self.pending[a] = b""

    def drop(self, sock, reset):
        for s in sock, self.peer.get(sock):
            if s in self.peer:
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
                s.close()
                del self.peer[s], self.pending[s]

    def reset_all(self):
        self.n_resets += 1
        for sock in list(self.peer):
            self.drop(sock, True)

    def pass_on(self, sock):
        """Read only what the other side has room for, so that a slow side is felt."""
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.pending[self.peer[sock]] += data
        else:
            self.drop(sock, False)

    def flush(self, sock):
        try:
            self.pending[sock] = self.pending[sock][sock.send(self.pending[sock]):]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(sock, False)

    def run_once(self, timeout):
        readers = [s for s in self.peer if not self.pending[self.peer[s]]]
        writers = [s for s in self.peer if self.pending[s]]
        readable, writable, _ = select.select([self.listener] + readers, writers, [], timeout)
        for sock in writable:
            if sock in self.peer:
                self.flush(sock)
        for sock in readable:
            if sock is self.listener:
                self.accept()
            elif sock in self.peer:
                self.pass_on(sock)


def main():
    target, seed, flag = sys.argv[1:]
    dice = random.Random(int(seed))
    proxy = Proxy(address(target))
    print("127.0.0.1:%d" % proxy.listener.getsockname()[1], flush=True)
    due = None
    while os.getppid() != 1:
        if not os.path.exists(flag):
            due = None
        elif due is None or time.monotonic() >= due:
            if due is not None:
                proxy.reset_all()
                print("reset", proxy.n_resets, flush=True)
            due = time.monotonic() + dice.uniform(0.2, 0.6)
        proxy.run_once(0.02)


main()
