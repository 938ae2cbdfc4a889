#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Listens like a gateway and does not answer, or stops in the middle of an answer.

usage: mute_gateway.py (unix:PATH | tcp) (mute | half | full)
mute accepts and says nothing; half sends 20 bytes of a record and nothing more; full (tcp) has a
queue of connections that is full, so that a SYN is not answered, as by a host that is not there.
Prints the address that it listens on."""
import socket, sys, time

where, mode = sys.argv[1:]
if where == "tcp":
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
else:
    s = socket.socket(socket.AF_UNIX)
    s.bind(where[5:])
s.listen(0 if mode == "full" else 64)
held = []
if mode == "full":
    for _ in range(4):
        c = socket.socket()
        c.setblocking(False)
        c.connect_ex(s.getsockname())
        held.append(c)
    time.sleep(0.2)  # the kernel queues them
print("tls:127.0.0.1:%d" % s.getsockname()[1] if where == "tcp" else where, flush=True)
while mode == "full":
    time.sleep(3600)
while True:
    c, _ = s.accept()
    held.append(c)
    if mode == "half":
        c.sendall(b"HDT1" + bytes([1, 1]) + bytes(14))
