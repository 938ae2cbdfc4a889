#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Says hello to a gateway as a stranger would, from doc/protocol.md alone, and prints the answer.

usage: hello.py [--proto N] [--frame N] [--role R] (--unix PATH | --tls HOST:PORT TLS-DIR) KEY=VALUE..."""
import argparse, binascii, ctypes, socket, ssl, struct

parser = argparse.ArgumentParser()
parser.add_argument("--proto", type=int, default=2)
parser.add_argument("--frame", type=int, default=1)
parser.add_argument("--role", default="site")
parser.add_argument("--unix")
parser.add_argument("--tls", nargs=2)
parser.add_argument("fields", nargs="*")
args = parser.parse_args()


def pack(v):
    if isinstance(v, dict):
        return bytes([0x80 | len(v)]) + b"".join(pack(k) + pack(x) for k, x in v.items())
    if isinstance(v, int):
        return b"\xd3" + struct.pack(">q", v)
    raw = v.encode()
    return b"\xd9" + bytes([len(raw)]) + raw


body = {"proto": args.proto, "role": args.role, "version": "9.9", "stream": 0, "streams": 4,
        "chunk": 262144, "instance": "00000000000000ab", "session": "00000000000000cd"}
body.update(f.split("=", 1) for f in args.fields)
payload = pack({"t": "hello", "b": body})
header = bytearray(64)
header[:6] = b"HDT1" + bytes([args.frame, 1])
header[48:52] = struct.pack("<I", len(payload))
xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
xxh3.restype, xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
header[56:64] = struct.pack("<Q", xxh3(payload, len(payload)))
# CRC-16 of the other 62 bytes: polynomial 0x1021, from 0xffff.
header[20:22] = struct.pack("<H", binascii.crc_hqx(bytes(header[:20] + header[22:]), 0xffff))
if args.unix:
    s = socket.socket(socket.AF_UNIX)
    s.connect(args.unix)
else:
    (host, port), folder = args.tls[0].rsplit(":", 1), args.tls[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder + "/ca.pem")
    context.load_cert_chain(folder + "/cert.pem", folder + "/key.pem")
    s = context.wrap_socket(socket.create_connection((host, int(port)), 10))
s.settimeout(10)
answer = b""
try:
    s.sendall(bytes(header) + payload)
    while len(answer) < 64 or len(answer) < 64 + struct.unpack("<I", answer[48:52])[0]:
        more = s.recv(65536)
        if not more:
            break
        answer += more
except OSError as e:
    print(f"({e})")
print("".join(chr(c) if 32 <= c < 127 else " " for c in answer[64:]))
