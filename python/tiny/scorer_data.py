"""Rows of tokens for the scorer, and its tokenizer: byte-level BPE with Qwen2's pre-tokenizer, so unlike the target's.

A row is CONTEXT tokens of whole documents with <|endoftext|> between them: code, the target's other conversations, and most
of all texts with questions (lookups.py). Three arrays: tokens (u16), weight (u8, above 0 where the NEXT token is to be
learned) and marks (i32), one line for each question of the row: the window that asks, the tokens to choose from, and up to
SPANS places that answer.
"""
import bisect
import json
import multiprocessing
import os
import pathlib
import random

import chat
import corpus
import lookups
import make_tokenizer
import snippets
import tasks
import tool_chats
import tools

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ASKED, SPANS = 12, 6                         # questions of a row, places of an answer
SHARES = {"lookup": 0.6, "code": 0.25, "chat": 0.15}
WEIGHTS = {"answer": 6, "code": 1, "chat": 1}


def eot(vocab_size):
    return vocab_size - len(SPECIALS)


# ---- the tokenizer ------------------------------------------------------------------------------------------------------


def tokenizer_text(texts, most_code, conversations):
    rng, used = random.Random(17), 0
    for text in texts:
        used += len(text)
        yield text
        if used > most_code:
            break
    pools = tools.Pools()
    for i in range(conversations):
        yield conversation(rng, pools, [])
        yield "\n".join(lookups.made_lines(rng, pools, 600))


def build_tokenizer(texts, vocab_size, folder):
    """Trains and writes tokenizer.json and tokenizer_config.json. Ids: 256 bytes, merges, then SPECIALS, as Qwen has them."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(make_tokenizer.WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=eot(vocab_size), show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(texts, trainer)
    made.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    if made.token_to_id(SPECIALS[0]) != eot(vocab_size) or made.get_vocab_size() != vocab_size:
        raise SystemExit(f"the vocabulary has {made.get_vocab_size()} entries, wanted {vocab_size}: too little text")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(made.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0], "pad_token": SPECIALS[0], "bos_token": None,
         "unk_token": None, "add_bos_token": False, "clean_up_tokenization_spaces": False}, indent=1) + "\n", encoding="utf-8")


# ---- documents ----------------------------------------------------------------------------------------------------------


def conversation(rng, pools, functions):
    """The text of one of the target's other conversations."""
    form = rng.random()
    if form < 0.5:
        made = tool_chats.tool_chat(rng, pools)
    elif form < 0.75 or not functions:
        made = tasks.question_chat(rng)
    else:
        made = snippets.snippet_chat(rng) if rng.random() < 0.3 else tasks.function_chat(rng, functions)
    return chat.render(made["messages"], made["tools"], made["thinking"])


def read_file(job):
    """(text or None, functions) of one path."""
    path, want_functions = job
    text = corpus.read(path)
    return text, corpus.functions(text) if text is not None and want_functions and len(text) < 60_000 else []


def read_corpus(count, workers):
    """{held out: (texts, functions)} of about `count` files."""
    paths = corpus.file_list()[0]
    random.Random(0).shuffle(paths)
    held = [p for p in paths if corpus.is_held_out(p)]
    paths, out = [p for p in paths if not corpus.is_held_out(p)][:count], {}
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for key, chosen in ((False, paths), (True, held)):
            read = pool.map(read_file, [(p, i % 3 == 0) for i, p in enumerate(chosen)], chunksize=32)
            texts = list(dict.fromkeys(t for t, _ in read if t is not None))
            out[key] = (texts, sorted({f for _, found in read for f in found}))
    return out


class Maker:
    """Draws documents. Everything follows from the seed."""

    def __init__(self, tokenizer_path, texts, functions, vocab_size, seed, evaluation=False):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.texts, self.functions, self.eot = texts, functions, eot(vocab_size)
        self.rng, self.pools = random.Random(seed), tools.Pools((), evaluation)

    def code(self, size):
        """A stretch of one file, about `size` characters, from the beginning of a line."""
        text = self.rng.choice(self.texts)
        if len(text) <= size or self.rng.random() < 0.3:
            return text[:size]
        start = text.rfind("\n", 0, self.rng.randrange(len(text) - size) + 1) + 1
        return text[start:start + size]

    def filler(self, size):
        if self.rng.random() < 0.5:
            return lookups.made_lines(self.rng, self.pools, size)
        lines, left = [], size
        while left > 0:
            piece = self.code(min(left, 20_000))
            lines += piece.split("\n")
            left -= len(piece) + 1
        return lines

    def encode(self, text):
        """(ids, where each token starts in text)."""
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, [o[0] for o in encoded.offsets]

    def lookup(self, size, questions=None, kinds=None):
        """A document with questions, its haystack about `size` characters: (ids, [question]), all places in tokens."""
        made = lookups.document(self.rng, self.pools, self.functions, self.filler(size), questions, kinds)
        ids, starts = self.encode(made["text"])

        def tokens(span):
            begin, end = span
            return max(0, bisect.bisect_right(starts, begin) - 1), bisect.bisect_left(starts, end)

        asked = [dict(kind=a["kind"], question=tokens(a["question"]), answer=tokens(a["answer"]),
                      tail=bisect.bisect_left(starts, a["tail"]), evidence=[tokens(s) for s in a["evidence"]])
                 for a in made["asked"]]
        return ids, asked


def window(rng, asked):
    """The rows that ask, drawn: the question and what ends the prompt, the question alone, or the last tokens."""
    begin, end = asked["question"]
    form = rng.random()
    if form < 0.5:
        return begin, asked["tail"]
    return (begin, end) if form < 0.75 else (max(begin, asked["tail"] - rng.randint(8, 40)), asked["tail"])


class Packer:
    """Rows of `length` tokens."""

    def __init__(self, maker, length):
        self.maker, self.length, self.counts = maker, length, dict.fromkeys(SHARES, 1)
        self.sizes = [2200, 1000]            # characters asked for, tokens that came: how long a haystack may be

    def document(self, kind, space):
        """(ids, weights, [mark]) of at most `space` tokens, or None if it came out too long."""
        m, rng = self.maker, self.maker.rng
        if kind == "code":
            ids = m.encode(m.code(int(min(space, rng.choice([1500, 3000, 6000])) * 2.5)))[0][:space]
            return ids, [WEIGHTS["code"]] * len(ids), []
        if kind == "chat":
            ids = m.encode(conversation(rng, m.pools, m.functions))[0]
            return (ids, [WEIGHTS["chat"]] * len(ids), []) if len(ids) <= space else None
        size = 200 * (max(space, 400) / 200) ** (rng.random() ** 0.7)
        chars = int(max(100, size - 250) * 0.95 * self.sizes[0] / self.sizes[1])
        ids, asked = m.lookup(chars)
        self.sizes = [self.sizes[0] + chars, self.sizes[1] + max(1, len(ids) - 250)]
        if len(ids) > space:
            return None
        weights = [0] * len(ids)
        marks = []
        for a in asked:
            begin, end = a["answer"]
            weights[begin:end] = [WEIGHTS["answer"]] * (end - begin)
            if len(a["evidence"]) <= SPANS and a["tail"] > a["question"][0] > 0:
                marks.append((*window(rng, a), 0, a["question"][0], *(x for span in a["evidence"] for x in span)))
        return ids, weights, marks

    def row(self):
        """(tokens, weight, marks)."""
        tokens, weight, marks, misses = [], [], [], 0
        while len(tokens) < self.length - 64:
            total = sum(self.counts.values())
            kind = max(SHARES, key=lambda k: SHARES[k] - self.counts[k] / total)
            space = self.length - len(tokens) - 1
            made = self.document("code" if misses > 3 else kind, space)
            misses = misses + 1 if made is None else 0
            if made is None:
                continue
            ids, learned, found = made
            self.counts[kind] += len(ids)
            marks += [[at + len(tokens) for at in mark] for mark in found]
            tokens += ids + [self.maker.eot]
            weight += learned[1:] + [0, 0]
        pad = self.length - len(tokens)
        self.maker.rng.shuffle(marks)
        lines = [mark + [0] * (4 + 2 * SPANS - len(mark)) for mark in marks[:ASKED]]
        lines += [[0] * (4 + 2 * SPANS)] * (ASKED - len(lines))
        return tokens + [self.maker.eot] * pad, weight + [0] * pad, lines


# ---- rows in files, filled by processes beside the training ---------------------------------------------------------------


def open_rows(folder, count, length, mode):
    import numpy
    return (numpy.memmap(folder / "tokens.bin", dtype=numpy.uint16, mode=mode, shape=(count, length)),
            numpy.memmap(folder / "weight.bin", dtype=numpy.uint8, mode=mode, shape=(count, length)),
            numpy.memmap(folder / "marks.bin", dtype=numpy.int32, mode=mode, shape=(count, ASKED, 4 + 2 * SPANS)))


def open_done(folder, workers, mode):
    import numpy
    return numpy.memmap(folder / "done.bin", dtype=numpy.int64, mode=mode, shape=(workers,))


def fill(folder, tokenizer_path, texts, functions, vocab_size, count, length, worker, workers, seed):
    import numpy
    os.nice(10)                              # torch.compile and the training go first
    arrays, done = open_rows(folder, count, length, "r+"), open_done(folder, workers, "r+")
    packer = Packer(Maker(tokenizer_path, texts, functions, vocab_size, seed * 1000 + worker), length)
    for slot in range(worker, count, workers):
        for array, made in zip(arrays, packer.row()):
            array[slot] = numpy.array(made)
        done[worker] += 1


def start(folder, tokenizer_path, texts, functions, vocab_size, count, length, workers, seed):
    """The processes that fill the rows: worker w makes rows w, w + workers, ... and counts them in done.bin."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    open_rows(folder, count, length, "w+")
    open_done(folder, workers, "w+").flush()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=fill, daemon=True, args=(
        folder, tokenizer_path, texts, functions, vocab_size, count, length, w, workers, seed)) for w in range(workers)]
    for child in children:
        child.start()
    return children
