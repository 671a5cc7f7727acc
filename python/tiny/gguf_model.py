"""Reads the demo model from its GGUF file: weights as float32 in model.py's names, and the tokenizer."""
import math
import struct

import numpy
import torch

import make_tokenizer

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    """Little-endian values, one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            element, count = self.number("I"), self.number("Q")
            return [self.value(element) for _ in range(count)]
        return self.number(SCALARS[kind])


def halves(raw):
    return raw.copy().view("<f2").astype(numpy.float32)


def q8_0(raw):
    """[blocks, 34] -> [blocks, 32]: a scale, then 32 signed bytes."""
    return halves(raw[:, :2]) * raw[:, 2:].copy().view(numpy.int8).astype(numpy.float32)


def q4_k(raw):
    """[blocks, 144] -> [blocks, 256]: d, dmin, eight 6-bit scales and minima, nibbles; value = d s q - dmin m."""
    d, dmin = halves(raw[:, 0:2]), halves(raw[:, 2:4])
    s, q = raw[:, 4:16], raw[:, 16:144].reshape(-1, 4, 32)
    scale = numpy.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | (s[:, 0:4] >> 6 << 4)], 1).astype(numpy.float32)
    least = numpy.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | (s[:, 4:8] >> 6 << 4)], 1).astype(numpy.float32)
    codes = numpy.stack([q & 15, q >> 4], 2).reshape(-1, 8, 32).astype(numpy.float32)
    return ((d * scale)[:, :, None] * codes - (dmin * least)[:, :, None]).reshape(-1, 256)


def q6_k(raw):
    """[blocks, 210] -> [blocks, 256]: low nibbles, high pairs of bits, 16 signed scales, d; value = d s (q - 32)."""
    low, high = raw[:, 0:128].reshape(-1, 2, 2, 32), raw[:, 128:192].reshape(-1, 2, 32)
    scale = raw[:, 192:208].copy().view(numpy.int8).astype(numpy.float32)
    parts = [(low[:, :, i % 2] & 15 if i < 2 else low[:, :, i % 2] >> 4) | ((high >> 2 * i & 3) << 4) for i in range(4)]
    codes = numpy.stack(parts, 2).astype(numpy.float32).reshape(-1, 16, 16) - 32
    return (codes * (halves(raw[:, 208:210]) * scale)[:, :, None]).reshape(-1, 256)


TYPES = {0: (1, 4, lambda raw: raw.copy().view("<f4")), 1: (1, 2, halves), 8: (32, 34, q8_0), 12: (256, 144, q4_k),
         14: (256, 210, q6_k)}


def read(path):
    """(metadata, {name: float32 tensor, outermost dimension first})."""
    data = numpy.fromfile(path, dtype=numpy.uint8)
    r = Reader(memoryview(data))
    if bytes(data[:4]) != b"GGUF":
        raise SystemExit(f"{path} is not a GGUF file")
    r.at = 4
    if r.number("I") != 3:
        raise SystemExit(f"{path}: expected GGUF version 3")
    tensors, keys = r.number("Q"), r.number("Q")
    metadata = {}
    for _ in range(keys):
        name = r.text()
        metadata[name] = r.value(r.number("I"))
    table = []
    for _ in range(tensors):
        name = r.text()
        shape = [r.number("Q") for _ in range(r.number("I"))][::-1]
        kind, offset = r.number("I"), r.number("Q")
        table.append((name, shape, kind, offset))
    alignment = metadata.get("general.alignment", 32)
    start = (r.at + alignment - 1) // alignment * alignment
    out = {}
    for name, shape, kind, offset in table:
        elements, size, decode = TYPES[kind]
        blocks = math.prod(shape) // elements
        raw = data[start + offset:start + offset + blocks * size].reshape(blocks, size)
        out[name] = torch.from_numpy(numpy.ascontiguousarray(decode(raw), dtype=numpy.float32).reshape(shape))
    return metadata, out


PARTS = {"input_norm": "attn_norm", "post_norm": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "q": "attn_q",
         "k": "attn_k", "v": "attn_v", "o": "attn_output", "g": "attn_gate"}


def weights(metadata, tensors, config, device):
    """model.py's dict of the target. Stops if the file is not of that shape."""
    wanted = {"laguna.block_count": len(config.heads), "laguna.attention.head_count": list(config.heads),
              "laguna.embedding_length": config.hidden, "laguna.vocab_size": config.vocab_size,
              "laguna.attention.sliding_window": config.window, "laguna.expert_count": config.experts}
    for key, value in wanted.items():
        if metadata.get(key) != value:
            raise SystemExit(f"{key} is {metadata.get(key)}, expected {value}: model.Config describes another model")
    t = {name: x.to(device) for name, x in tensors.items()}
    w = {"embed": t["token_embd.weight"], "head": t["output.weight"], "norm": t["output_norm.weight"]}
    for i in range(len(config.heads)):
        base, p = f"blk.{i}.", f"{i}."
        for name, stored in PARTS.items():
            w[p + name] = t[f"{base}{stored}.weight"]
        for part in ("gate", "up", "down"):
            if i == 0:
                w[p + part] = t[f"{base}ffn_{part}.weight"][None]
            else:
                w[p + part] = torch.cat([t[f"{base}ffn_{part}_exps.weight"], t[f"{base}ffn_{part}_shexp.weight"][None]])
        if i > 0:
            w[p + "router"], w[p + "bias"] = t[base + "ffn_gate_inp.weight"], t[base + "exp_probs_b.bias"]
    return w


def tokenizer(metadata):
    """The tokenizers.Tokenizer that make_tokenizer.build made, from the file's tokens and merges."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(make_tokenizer.LINE_BREAKS), behavior="merged_with_next"),
        pre_tokenizers.Split(Regex(make_tokenizer.WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    for index, text in enumerate(make_tokenizer.SPECIALS):
        special = index not in make_tokenizer.NOT_SPECIAL
        (made.add_special_tokens if special else made.add_tokens)([AddedToken(text, special=special, normalized=False)])
        if made.token_to_id(text) != index:
            raise SystemExit(f"special token {text} has id {made.token_to_id(text)}, expected {index}")
    if made.get_vocab_size() != len(tokens):
        raise SystemExit(f"the tokenizer has {made.get_vocab_size()} words, the file {len(tokens)}")
    return made
