#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An independent safetensors reader and writer, from the text of the format alone.

    safetensors_ref.py write PATH     write the file that test_safetensors.c expects
    safetensors_ref.py check PATH     check the file that test_safetensors.c wrote
"""
import json
import struct
import sys

TENSORS = [
    # name, dtype, shape, struct code, values
    ("w.double", "F64", [2], "d", [1.5, -2.25]),
    ("model.embed_tokens.weight", "F32", [2, 3], "f", [0.0, 1.0, 2.0, 3.0, 4.0, -5.5]),
    ("scalar", "F32", [], "f", [7.0]),
    ("empty", "F32", [0, 4], "f", []),
    ("tokens \u00e9\"", "U16", [3], "H", [1, 2, 65535]),
    ("half", "BF16", [1, 2], "H", [0x3F80, 0xC000]),
    ("flags", "U8", [5], "B", [1, 2, 3, 4, 5]),
]
METADATA = {"format": "pt", "step": "12"}


def write(path):
    header, data = {"__metadata__": METADATA}, b""
    for name, dtype, shape, code, values in TENSORS:
        raw = struct.pack("<%d%s" % (len(values), code), *values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


def check(path):
    with open(path, "rb") as file:
        whole = file.read()
    (n,) = struct.unpack("<Q", whole[:8])
    assert (8 + n) % 8 == 0, "data is not aligned"
    assert whole[8:9] == b"{", "the header must begin with {"

    def no_duplicates(pairs):
        assert len(pairs) == len(dict(pairs)), "name twice"
        return dict(pairs)

    header = json.loads(whole[8:8 + n].decode("utf-8"), object_pairs_hook=no_duplicates)
    data, end = whole[8 + n:], 0
    assert header.pop("__metadata__") == METADATA
    assert sorted(header) == sorted(t[0] for t in TENSORS)
    for entry in sorted(header.values(), key=lambda e: e["data_offsets"]):
        assert entry["data_offsets"][0] == end, "hole or overlap"
        end = entry["data_offsets"][1]
    assert end == len(data)
    for name, dtype, shape, code, values in TENSORS:
        entry = header[name]
        assert entry["dtype"] == dtype and entry["shape"] == shape, name
        begin, stop = entry["data_offsets"]
        size = struct.calcsize(code)
        assert begin % size == 0, name + " is not aligned to its elements"
        assert list(struct.unpack("<%d%s" % (len(values), code), data[begin:stop])) == values, name


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](sys.argv[2])
