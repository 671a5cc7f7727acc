#!/usr/bin/env python3
"""Inputs of kv_quality.sh for the demo model: text.py (windows of code) and needles.json (facts hidden in code).

    python3 scripts/kv_inputs.py --riptide build/cpu/riptide --out FOLDER --texts 8 --windows 3

A text holds five facts, at depths 0, 1/4, 1/2, 3/4 and 1, in the forms of python/tiny/tasks.py; each is asked for in a chat of
its own that begins with the whole text, so that an engine which keeps K/V computes the text once.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python" / "tiny"))
import chat  # noqa: E402
import tasks  # noqa: E402
import values  # noqa: E402

WINDOW, BUDGET, DEPTHS = 8192, 7600, (0.0, 0.25, 0.5, 0.75, 1.0)


def tokens(riptide, text, work):
    """How many tokens a text is."""
    path = work / "count.txt"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([riptide, "tokenize", "--text", str(path), "--json"], check=True, capture_output=True)
    return len(json.loads(done.stdout)["tokens"])


def code_lines():
    """The repository's Python, without word lists."""
    files = sorted(p for folder in ("python", "tools") for p in (ROOT / folder).rglob("*.py") if p.name != "words.py")
    return [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def make_text(rng, lines, per_token):
    """(text, [(question, answer)]): about BUDGET tokens of code from a random place, with a fact at each depth."""
    room, begin = round((BUDGET - 250) * per_token), rng.randrange(len(lines))
    filler, used = [], 0
    while used < room:
        line = lines[(begin + len(filler)) % len(lines)]
        filler.append(line)
        used += len(line) + 1
    noun = rng.choice(["code", "number", "key", "password", "color", "address", "version", "owner"])
    names = []
    while len(names) < len(DEPTHS):
        name = rng.choice([values.invented, values.surname])(rng)
        if name not in names:
            names.append(name)
    form = rng.choice(tasks.FACT_FORMS)
    known = {name: tasks.needle_value(rng) for name in names}
    for depth, name in sorted(zip(DEPTHS, names), reverse=True):  # from the end, so that places stay
        value = known[name]
        filler.insert(round(depth * len(filler)), form.format(noun=noun, key=name, value=value, quoted=repr(value)))
    ask = rng.choice(["What is the {} of {}?", "Which {} does {} have?", "Tell me the {} of {}."])
    return "\n".join(filler), [(ask.format(noun, name), known[name]) for name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--riptide", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    lines = code_lines()
    whole = "\n".join(lines) + "\n"
    per_token = len(whole) / tokens(args.riptide, whole, args.out)
    size = min(len(whole), round(args.windows * WINDOW * per_token))
    for _ in range(3):  # towards the wanted number of tokens, a little below
        size = min(len(whole), round(size * 0.999 * args.windows * (WINDOW - 1) / tokens(args.riptide, whole[:size], args.out)))
    (args.out / "text.py").write_text(whole[:size], encoding="utf-8")
    rng, needles, longest = random.Random(args.seed), [], 0
    for _ in range(args.texts):
        text, questions = make_text(rng, lines, per_token)
        size = tokens(args.riptide, text, args.out)
        longest = max(longest, size)
        if size > WINDOW - 250:
            sys.exit(f"kv_inputs.py: a text of {size} tokens leaves no room for question and answer")
        for question, answer in questions:
            prompt = chat.render([{"role": "user", "content": f"{text}\n\n{question}"}], None, False, generate=True)
            needles.append({"prompt": prompt, "answer": answer})
    (args.out / "needles.json").write_text(json.dumps(needles, ensure_ascii=False), encoding="utf-8")
    print(f"{len(needles)} questions in {args.texts} texts of up to {longest} tokens, seed {args.seed}", file=sys.stderr)


if __name__ == "__main__":
    main()
