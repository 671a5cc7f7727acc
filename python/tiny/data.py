"""Prepares the training data: tokenises the code corpus, then fills rows of packed documents as fast as the cores allow.

    python3 python/tiny/data.py prepare --tokenizer tokenizer.json --out FOLDER      # code.bin, val.bin, functions.pkl, ...
    python3 python/tiny/data.py rows --tokenizer tokenizer.json --out FOLDER --count N --workers 12
    python3 python/tiny/data.py sample --tokenizer tokenizer.json --out FOLDER       # prints a few documents

A row holds LENGTH tokens of whole documents (code fills the rest). Three arrays of the same shape: tokens (u16), weight
(u8: above 0 where the NEXT token of the same document is to be learned: assistant text up to </assistant>, and all code),
position (u16: place within its document, so 0 starts a document).
"""
import argparse
import bisect
import collections
import json
import multiprocessing
import pathlib
import pickle
import random
import time

import corpus
import chat
import make_tokenizer
import snippets
import tasks
import tool_chats
import tools
import values
import words

LENGTH = 8192
SHARES = {"code": 0.38, "tool": 0.33, "needle": 0.12, "question": 0.09, "function": 0.08}     # of all tokens
WEIGHTS = {"code": 1, "tool": 4, "needle": 8, "question": 3, "function": 2}                   # of each learned token
BOS, THINK, THINK_END = make_tokenizer.EOS, make_tokenizer.THINK, make_tokenizer.THINK_END
ASSISTANT, ASSISTANT_END = make_tokenizer.ASSISTANT, make_tokenizer.ASSISTANT_END


def load_tokenizer(path):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(path))


def _prepare_part(job):
    """One share of the files -> [(digest, held out, token array, functions, word counts)]."""
    import numpy
    tokenizer_path, paths = job
    tokenizer = load_tokenizer(tokenizer_path)
    out, seen = [], set()
    for index, path in enumerate(paths):
        text = corpus.read(path)
        if text is None:
            continue
        key = corpus.digest(text)
        if key in seen:
            continue
        seen.add(key)
        ids = numpy.array([BOS] + tokenizer.encode(text, add_special_tokens=False).ids, dtype=numpy.uint16)
        small = len(text) < 60_000 and "tests" not in path
        out.append((key, corpus.is_held_out(path), ids, corpus.functions(text) if small and index % 2 == 0 else [],
                    corpus.word_counts(text) if index % 8 == 0 else {}))
    return out


def prepare(tokenizer_path, out, workers):
    """Writes code.bin (u16), code_index.npy (start offsets), val.bin, functions.pkl, words.json, sources.json."""
    import numpy
    out.mkdir(parents=True, exist_ok=True)
    paths, report = corpus.file_list()
    random.Random(0).shuffle(paths)
    parts = [paths[i::workers * 4] for i in range(workers * 4)]
    seen, code, val, functions, counts = set(), [], [], [], collections.Counter()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for part in pool.imap_unordered(_prepare_part, [(str(tokenizer_path), p) for p in parts]):
            for key, held, ids, found, seen_words in part:
                if key in seen:
                    continue
                seen.add(key)
                (val if held else code).append(ids)
                if not held:
                    functions += found
                    counts.update(seen_words)
    code.sort(key=lambda a: (len(a), a[:64].tobytes()))       # imap order varies; this does not
    functions = sorted(set(functions))
    numpy.concatenate(code).tofile(out / "code.bin")
    numpy.save(out / "code_index.npy", numpy.cumsum([0] + [len(c) for c in code]))
    with open(out / "val.pkl", "wb") as file:
        pickle.dump(sorted(val, key=lambda a: (len(a), a[:64].tobytes())), file)
    with open(out / "functions.pkl", "wb") as file:
        pickle.dump(functions, file)
    (out / "words.json").write_text(json.dumps(words.corpus_words(counts)))
    summary = dict(files=len(paths), documents=len(code), held_out=len(val), tokens=int(sum(map(len, code))),
                   held_out_tokens=int(sum(map(len, val))), functions=len(functions), packages=report)
    (out / "sources.json").write_text(json.dumps(summary, indent=1))
    print({k: v for k, v in summary.items() if k != "packages"}, flush=True)


def learn_mask(ids, weight):
    """`weight` for every token that the assistant writes: after <think> or </think> of a turn's opening, up to </assistant>."""
    mask, state = bytearray(len(ids)), 0
    for i, token in enumerate(ids):
        if state == 2:
            mask[i] = weight
            if token == ASSISTANT_END:
                state = 0
        elif token == ASSISTANT:
            state = 1
        elif state == 1 and token in (THINK, THINK_END):
            state = 2
    return mask


def text_filler(rng, pools, size):
    """Lines of words without meaning, about `size` characters."""
    lines, total = [], 0
    form = rng.randrange(3)
    while total < size:
        if form == 0:
            line = " ".join(rng.choice(pools.nouns) for _ in range(rng.randint(4, 14))).capitalize() + "."
        elif form == 1:
            line = f"{rng.choice(pools.nouns)}_{rng.choice(pools.nouns)} = {values.integer(rng)}"
        else:
            first, second = rng.choice(pools.adjectives), rng.choice(pools.adjectives)
            line = f"The {first} {rng.choice(pools.nouns)} of {values.surname(rng)} is {second}."
        lines.append(line)
        total += len(line)
    return lines


class Source:
    """Draws documents. One per worker; everything follows from the seed."""

    def __init__(self, folder, tokenizer_path, seed, evaluation=False):
        import numpy
        self.rng = random.Random(seed)
        self.tokenizer = load_tokenizer(tokenizer_path)
        self.code = numpy.memmap(folder / "code.bin", dtype=numpy.uint16, mode="r")
        self.index = numpy.load(folder / "code_index.npy")
        with open(folder / "functions.pkl", "rb") as file:
            self.functions = pickle.load(file)
        self.extra_words = json.loads((folder / "words.json").read_text())
        self.pools = tools.Pools(self.extra_words, evaluation)

    def code_piece(self, length):
        """At most `length` tokens from one file: BOS and a stretch of it (half of the time its beginning)."""
        at = self.rng.randrange(int(self.index[-1]))
        doc = bisect.bisect_right(self.index, at) - 1
        start, end = int(self.index[doc]), int(self.index[doc + 1])
        begin = start if self.rng.random() < 0.4 or end - start <= length else max(start, min(at, end - length))
        piece = self.code[begin:min(end, begin + length)].tolist()
        if piece[0] != BOS:
            piece = [BOS] + piece[:length - 1]
        return piece

    def function_file(self):
        """A file of a few functions, so that a bare `def name(...)` after BOS is nothing new."""
        rng = self.rng
        sources = [rng.choice(snippets.ALL)[2] if rng.random() < 0.4 else rng.choice(self.functions)[2]
                   for _ in range(rng.randint(1, 6))]
        return [BOS] + self.tokenizer.encode("\n\n\n".join(sources) + "\n", add_special_tokens=False).ids

    def code_lines(self, tokens):
        """About `tokens` tokens of code as text lines, for a needle to hide in."""
        lines, left = [], tokens
        while left > 20:
            piece = self.code_piece(min(left, 4000))[1:]
            lines += self.tokenizer.decode(piece, skip_special_tokens=False).split("\n")
            left -= len(piece) + 1
        return lines

    def needle(self, budget, depth=None, facts=None):
        """A needle conversation of about `budget` tokens."""
        if self.rng.random() < 0.6 or budget > 5000:
            filler = self.code_lines(max(60, budget - 160))
        else:
            filler = text_filler(self.rng, self.pools, budget * 3)
        return tasks.needle_chat(self.rng, self.pools, filler, depth, facts)

    def conversation(self, kind):
        rng = self.rng
        if kind == "tool":
            return tool_chats.tool_chat(rng, self.pools)
        if kind == "question":
            return tasks.question_chat(rng)
        if kind == "function":
            return snippets.snippet_chat(rng) if rng.random() < 0.2 else tasks.function_chat(rng, self.functions)
        return self.needle(int(200 * (7600 / 200) ** (rng.random() ** 1.3)))

    def encode(self, made):
        text = chat.render(made["messages"], made["tools"], made["thinking"])
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def document(self, kind):
        """(ids, mask): mask above 0 on tokens to learn."""
        if kind == "code" and self.rng.random() < 0.06:
            ids = self.function_file()
            return ids, bytearray(b"\x01") * len(ids)
        if kind == "code":
            length = self.rng.choice([1024, 2048, 2048, 2048, LENGTH])
            ids = self.code_piece(length)
            return ids, bytearray(b"\x01") * len(ids)
        for _ in range(20):
            ids = self.encode(self.conversation(kind))
            if len(ids) <= LENGTH - 64:
                return ids, learn_mask(ids, WEIGHTS[kind])
        raise RuntimeError(f"no {kind} document fits {LENGTH} tokens")


class Packer:
    """Rows of whole documents. Kinds are drawn so that their token counts approach SHARES."""

    def __init__(self, source):
        self.source, self.counts, self.waiting = source, collections.Counter(), []

    def next_kind(self):
        total = sum(self.counts.values()) + 1
        return max(SHARES, key=lambda k: SHARES[k] - self.counts[k] / total + 1e-3 * self.source.rng.random())

    def row(self):
        tokens, weight, position = [], bytearray(), []

        def put(ids, mask):
            tokens.extend(ids)
            weight.extend(mask[1:] + b"\x00")
            position.extend(range(len(ids)))

        for document in [d for d in self.waiting]:
            if len(tokens) + len(document[0]) <= LENGTH:
                put(*document)
                self.waiting.remove(document)
        while len(tokens) < LENGTH - 32:
            space = LENGTH - len(tokens)
            kind = self.next_kind()
            ids, mask = self.source.document(kind)
            self.counts[kind] += len(ids)
            if len(ids) > space:
                if kind == "code":
                    ids, mask = ids[:space], mask[:space]
                elif len(self.waiting) < 6:
                    self.waiting.append((ids, mask))
                    continue
                else:
                    self.counts[kind] -= len(ids)
                    ids = self.source.code_piece(space)
                    mask = bytearray(b"\x01") * len(ids)
            put(ids, mask)
        pad = LENGTH - len(tokens)
        tokens.extend([make_tokenizer.PAD] * pad)
        weight.extend(bytes(pad))
        position.extend(range(pad))
        return tokens, weight, position


def open_rows(folder, count, mode):
    """The shared row arrays: (tokens, weight, position)."""
    import numpy
    shape = (count, LENGTH)
    return (numpy.memmap(folder / "tokens.bin", dtype=numpy.uint16, mode=mode, shape=shape),
            numpy.memmap(folder / "weight.bin", dtype=numpy.uint8, mode=mode, shape=shape),
            numpy.memmap(folder / "position.bin", dtype=numpy.uint16, mode=mode, shape=shape))


def _fill(folder, tokenizer_path, count, worker, workers, seed):
    import numpy
    arrays = open_rows(folder, count, "r+")
    done = numpy.memmap(folder / "done.bin", dtype=numpy.int64, mode="r+", shape=(workers,))
    packer = Packer(Source(folder, tokenizer_path, seed * 1000 + worker))
    for slot in range(worker, count, workers):
        tokens, weight, position = packer.row()
        arrays[0][slot], arrays[1][slot] = tokens, numpy.frombuffer(bytes(weight), dtype=numpy.uint8)
        arrays[2][slot] = position
        done[worker] += 1


def rows(tokenizer_path, folder, count, workers, seed):
    """Fills `count` rows with `workers` processes; worker w makes rows w, w + workers, ... and counts them in done.bin."""
    import numpy
    open_rows(folder, count, "w+")
    numpy.memmap(folder / "done.bin", dtype=numpy.int64, mode="w+", shape=(workers,)).flush()
    (folder / "rows.json").write_text(json.dumps(dict(count=count, workers=workers, length=LENGTH)))
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_fill, args=(folder, tokenizer_path, count, w, workers, seed)) for w in range(workers)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def sample(tokenizer_path, folder):
    packer = Packer(Source(folder, tokenizer_path, 99))
    started, lengths, learned = time.time(), collections.Counter(), 0
    for _ in range(20):
        learned += sum(x > 0 for x in packer.row()[1])
    print(f"{20 * LENGTH / (time.time() - started):.0f} tokens/s in one process, {learned / 20 / LENGTH:.2f} of them learned, "
          f"{ {k: round(v / sum(packer.counts.values()), 3) for k, v in packer.counts.items()} }")
    source = packer.source
    for kind in SHARES:
        total = learned = 0
        for _ in range(40):
            ids, mask = source.document(kind)
            total, learned = total + len(ids), learned + sum(m > 0 for m in mask)
        print(f"--- {kind}: mean length {total / 40:.0f}, learned {learned / total:.2f}")
        if kind in ("tool", "question", "function"):
            ids, mask = source.document(kind)
            shown = [i if m else None for i, m in zip(ids, mask)]
            print(source.tokenizer.decode(ids, skip_special_tokens=False)[-700:])
            print(">>> learned:", repr(source.tokenizer.decode([i for i in shown if i is not None], skip_special_tokens=False)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "rows", "sample"])
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.what == "prepare":
        prepare(args.tokenizer, args.out, args.workers)
    elif args.what == "rows":
        rows(args.tokenizer, args.out, args.count, args.workers, args.seed)
    else:
        sample(args.tokenizer, args.out)


if __name__ == "__main__":
    main()
