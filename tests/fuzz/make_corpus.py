#!/usr/bin/env python3
"""Writes the seed files of fuzz_gguf, fuzz_safetensors and the targets that make their inputs out of choices into
corpus/ beside this script. Standard library only.

The seeds of files are small valid files that hold every value type, tensor type and shape between them, and the known ways to be
wrong: each one byte-sized step from a valid file, so that the fuzzer starts on both sides of every check. Choices are
bytes of a generator, more and more of them: what they mean is the targets' affair."""
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).resolve().parent / "corpus"
MAX = 2**64 - 1

# id -> (values in a block, bytes of a block)
GGUF_TENSORS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
                11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 24: (1, 1),
                25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2), 35: (256, 66), 39: (32, 17), 40: (64, 36)}
PACK = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}


def text(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def value(kind, v):
    return text(v) if kind == 8 else struct.pack(PACK[kind], v)


def key_value(key, kind, v):
    return text(key) + struct.pack("<I", kind) + value(kind, v)


def key_array(key, kind, vs, count=None):
    return text(key) + struct.pack("<IIQ", 9, kind, len(vs) if count is None else count) + b"".join(value(kind, v) for v in vs)


def gguf(kvs=(), tensors=(), version=3, align=32, n_tensors=None, n_kvs=None, cut=0, tail=b"", magic=b"GGUF"):
    """tensors: (name, dims fastest first, type id[, offset])"""
    out = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                              len(kvs) if n_kvs is None else n_kvs) + b"".join(kvs)
    offset, data = 0, b""
    for t in tensors:
        name, dims, kind = t[:3]
        block, size = GGUF_TENSORS.get(kind, (1, 4))
        n = size * max(1, dims[0] // block if dims else 1)
        for d in dims[1:]:
            n *= d
        n = n if 0 < n < 65536 else 64
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, t[3] if len(t) > 3 else offset)
        data += bytes(i % 251 for i in range(n)) + b"\0" * (-n % align)
        offset += n + (-n % align)
    out += b"\0" * (-len(out) % align) + data + tail
    return out[:len(out) - cut]


def gguf_seeds():
    arch = key_value("general.architecture", 8, "laguna")
    scalars = [key_value(f"k{kind}", kind, 1) for kind in PACK] + [arch]
    arrays = [key_array(f"a{kind}", kind, [0, 1, 1]) for kind in PACK] + [key_array("words", 8, ["", "a", "\u00e9\u0120"]),
                                                                          key_array("none", 8, [])]
    one = ("w", [8, 2], 0)
    yield "empty_header", gguf()
    yield "v2", gguf([arch], [one], version=2)
    yield "scalars", gguf(scalars)
    yield "arrays", gguf(arrays)
    yield "every_tensor_type", gguf([arch], [(f"t{kind}", [GGUF_TENSORS[kind][0] * 2, 1 + i % 2], kind)
                                             for i, kind in enumerate(GGUF_TENSORS)])
    yield "four_dims", gguf([arch], [("a", [4, 3, 2, 1], 0), ("b", [32, 1, 1, 2], 2), one])
    yield "align_8", gguf([key_value("general.alignment", 4, 8)], [one, ("v", [3], 0)], align=8)
    yield "align_64", gguf([key_value("general.alignment", 4, 64)], [one, ("v", [3], 0)], align=64)
    yield "vocabulary", gguf([arch, key_value("tokenizer.ggml.model", 8, "gpt2"),
                              key_array("tokenizer.ggml.tokens", 8, [f"tok{i}" for i in range(40)]),
                              key_array("tokenizer.ggml.token_type", 5, [1] * 40),
                              key_array("tokenizer.ggml.merges", 8, ["t o", "to k"])])
    yield "split", gguf([arch, key_value("split.no", 2, 0), key_value("split.count", 2, 3), key_value("split.tensors.count", 5, 3)], [one])
    for name, n in (("max", MAX), ("half", 2**63), ("big", 2**40), ("minus", 2**63 - 1)):
        yield f"tensors_{name}", gguf([arch], [one], n_tensors=n)
        yield f"kvs_{name}", gguf([arch], [one], n_kvs=n)
        yield f"array_{name}", gguf([key_array("a", 0, [1], n)], [one])
        yield f"dim_{name}", gguf([arch], [("w", [n, 2], 0)])
        yield f"offset_{name}", gguf([arch], [("w", [8, 2], 0, n)])
    yield "string_max", gguf([text("k") + struct.pack("<IQ", 8, MAX)], [one])
    yield "nested_array", gguf([text("k") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1)])
    yield "dims_0", gguf([arch], [("w", [], 0)])
    yield "dims_5", gguf([arch], [("w", [1, 1, 1, 1, 1], 0)])
    yield "dim_zero", gguf([arch], [("w", [0, 2], 0)])
    yield "product", gguf([arch], [("w", [2**32, 2**32], 0)])
    yield "removed_type", gguf([arch], [("w", [32], 31)])
    yield "half_block", gguf([arch], [("w", [33], 2)])
    yield "overlap", gguf([arch], [one, ("v", [8, 2], 0, 32)])
    yield "gap", gguf([arch], [one, ("v", [8, 2], 0, 128)], tail=b"\0" * 64)
    yield "unaligned", gguf([arch], [one, ("v", [8, 2], 0, 65)])
    yield "twice", gguf([arch, arch], [one])
    yield "tensor_twice", gguf([arch], [one, one])
    yield "align_3", gguf([key_value("general.alignment", 4, 3)], [one])
    yield "align_big", gguf([key_value("general.alignment", 4, 2**31)], [one])
    yield "cut", gguf([arch], [one], cut=1)
    yield "tail", gguf([arch], [one], tail=b"\0" * 32)
    yield "bad_bool", gguf([text("k") + struct.pack("<IB", 7, 2)])
    yield "v1", gguf([arch], version=1)
    yield "v4", gguf([arch], version=4)
    yield "big_endian", gguf([arch], version=0x03000000)
    yield "lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    yield "html", b"<!DOCTYPE html><html></html>"


def safetensors(entries, data=b"", metadata=None, pad=True, length=None, raw=None):
    head = {} if metadata is None else {"__metadata__": metadata}
    head.update(entries)
    header = raw if raw is not None else json.dumps(head, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8) if pad else b""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "F8_E4M3": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "U8": 1, "BOOL": 1}
    every, at = {}, 0
    for dtype, size in sizes.items():
        every["t." + dtype] = entry(dtype, [2, 3], at, at + 6 * size)
        at += 6 * size
    w = entry("F32", [2, 2], 0, 16)
    yield "none", safetensors({})
    yield "every_type", safetensors(every, bytes(at), {"format": "pt"})
    yield "scalar", safetensors({"s": entry("F32", [], 0, 4)}, bytes(4))
    yield "out_of_order", safetensors({"b": entry("F32", [2], 8, 16), "a": entry("F32", [2], 0, 8)}, bytes(16))
    yield "spaces", safetensors({}, bytes(16), raw=json.dumps({"w": w}, indent=3).encode())
    yield "escapes", safetensors({}, bytes(16), raw=b'{"w\\u0041\\"":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}')
    yield "gap", safetensors({"w": entry("F32", [2], 8, 16)}, bytes(16))
    yield "overlap", safetensors({"w": w, "v": entry("F32", [2, 2], 8, 24)}, bytes(24))
    yield "size", safetensors({"w": entry("F32", [3, 2], 0, 16)}, bytes(16))
    yield "huge_shape", safetensors({"w": entry("F32", [2**62, 2**62], 0, 16)}, bytes(16))
    yield "huge_offset", safetensors({"w": entry("F32", [2, 2], 2**63 - 16, 2**63 - 1)}, bytes(16))
    yield "minus", safetensors({"w": entry("F32", [-2, -2], 0, 16)}, bytes(16))
    yield "zero", safetensors({"w": entry("F32", [0], 0, 0)})
    yield "twice", safetensors({}, bytes(16), raw=(b'{"w":%s,"w":%s}' % ((json.dumps(w).encode(),) * 2)))
    yield "twice_escaped", safetensors({}, bytes(16), raw=(b'{"w":%s,"\\u0077":%s}' % ((json.dumps(w).encode(),) * 2)))
    yield "cut", safetensors({"w": w}, bytes(15))
    yield "tail", safetensors({"w": w}, bytes(17))
    yield "length_max", safetensors({"w": w}, bytes(16), length=MAX)
    yield "length_long", safetensors({"w": w}, bytes(16), length=4000)
    yield "nested", safetensors({}, raw=b'{"w":' + b"[" * 300 + b"]" * 300 + b"}")
    yield "array", safetensors({}, raw=b"{\"w\":[1,2]}")
    yield "bad_utf8", safetensors({}, raw=b'{"\xff":1}')
    yield "metadata_number", safetensors({"w": w}, bytes(16), {"format": 1})
    yield "pickle", b"PK\x03\x04archive/data.pkl"


def choices_seeds():
    for i in range(16):
        yield f"choices_{i}", random.Random(i).randbytes(8 * i)


def main():
    chosen = [(name, choices_seeds()) for name in ("schema", "tool_arguments", "history")]
    for name, seeds in [("gguf", gguf_seeds()), ("safetensors", safetensors_seeds())] + chosen:
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in seeds:
            (folder / seed).write_bytes(data)


if __name__ == "__main__":
    main()
