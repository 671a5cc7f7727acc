"""A byte-level BPE tokenizer in the shape of Laguna's: its special ids 0-69 at their real places, its pre-tokenizer.

    python3 python/tiny/make_tokenizer.py --out FOLDER                  # from the demo model's own training text
    python3 python/tiny/make_tokenizer.py --text FILE... --vocab 2048 --out FOLDER

Writes tokenizer.json and tokenizer_config.json. Ids: 70 special tokens, 256 bytes, then merges.
"""
import argparse
import json
import pathlib

NAMED = ["UNK", "CODE_START", "EOS", "CODE_END", "META_START", "META_END", "FIM_MIDDLE", "FIM_SUFFIX", "SEP", "PAD", "CLS",
         "FIM_START", "MASK"]
MARKS = ["|\u25ca|", "\u3008|", "|\u3009", "\u3008|/", "/|\u3009", "<think>", "</think>"]
TURNS = ["<assistant>", "</assistant>", "<tool_call>", "</tool_call>"]


def _bracket(name):
    return f"\u3008|{name}|\u3009"


SPECIALS = ([_bracket(n) for n in NAMED] + MARKS + [_bracket(f"SPECIAL_{i}") for i in (1, 2, 3)] + TURNS
            + [_bracket(f"SPECIAL_{i}") for i in range(8, 51)])
NOT_SPECIAL = {18, 19, 23, 24, 25, 26}      # matched as one id in text, but kept by skip_special_tokens
EOS, EOS_TEXT, PAD, THINK, THINK_END, ASSISTANT, ASSISTANT_END = 2, SPECIALS[2], 9, 18, 19, 23, 24
assert len(SPECIALS) == 70 and SPECIALS[24] == "</assistant>" and SPECIALS[18] == "<think>"

LINE_BREAKS = r"(?:\r?\n)+(?!\r?\n)"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def build(texts, vocab_size):
    """Trains on an iterator of strings; the result is what tokenizer.json says, reloaded."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LINE_BREAKS), behavior="merged_with_next"),
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS_TEXT}:0 $A:0", pair=f"{EOS_TEXT}:0 $A:0 {EOS_TEXT}:1 $B:1", special_tokens=[(EOS_TEXT, EOS)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer.train_from_iterator(texts, trainer)
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] = token["id"] not in NOT_SPECIAL
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if tokenizer.get_vocab_size() != vocab_size:
        raise SystemExit(f"vocabulary has {tokenizer.get_vocab_size()} entries, wanted {vocab_size}: too little text")
    for index, text in enumerate(SPECIALS):
        if tokenizer.token_to_id(text) != index:
            raise SystemExit(f"special token {text} has id {tokenizer.token_to_id(text)}, wanted {index}")
    return tokenizer


def config():
    """tokenizer_config.json: what transformers needs beside tokenizer.json."""
    decoder = {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                        "special": i not in NOT_SPECIAL} for i, text in enumerate(SPECIALS)}
    return {"added_tokens_decoder": decoder, "bos_token": EOS_TEXT, "eos_token": EOS_TEXT, "pad_token": _bracket("PAD"),
            "unk_token": _bracket("UNK"), "sep_token": _bracket("SEP"), "cls_token": _bracket("CLS"),
            "mask_token": _bracket("MASK"), "eot_token": "</assistant>", "eot_token_id": ASSISTANT_END,
            "clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}


def save(tokenizer, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config(), indent=1, ensure_ascii=False) + "\n",
                                                  encoding="utf-8")


def training_text(code_bytes=45_000_000, conversations=7000):
    """The text the demo model's vocabulary is made from: a sample of the code corpus and generated conversations."""
    import random
    import re

    import chat
    import corpus
    import snippets
    import tasks
    import tool_chats
    import tools
    rng = random.Random(11)
    paths, used = corpus.file_list()[0], 0
    rng.shuffle(paths)
    for path in paths:
        text = None if corpus.is_held_out(path) else corpus.read(path)
        if text is not None:
            used += len(text)
            yield text
        if used > code_bytes:
            break
    pools = tools.Pools()
    cut = re.compile("|".join(re.escape(s) for s in SPECIALS))
    for i in range(conversations):
        made = (tool_chats.tool_chat(rng, pools) if i % 7 < 4 else tasks.question_chat(rng) if i % 7 < 6
                else snippets.snippet_chat(rng))
        yield from (t for t in cut.split(chat.render(made["messages"], made["tools"], made["thinking"])) if t)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="*", help="files to train on; default: the code corpus and generated conversations")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    texts = training_text()
    if args.text:
        texts = (pathlib.Path(p).read_text(encoding="utf-8", errors="ignore") for p in args.text)
    save(build(texts, args.vocab), args.out)


if __name__ == "__main__":
    main()
