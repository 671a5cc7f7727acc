"""Measures the demo model on held-out material: perplexity, tool calls, needles, questions. Greedy decoding.

    python3 python/tiny/evaluate.py --weights weights.safetensors --data FOLDER --tokenizer FOLDER --out results.json

tools_unseen: invented tools from words that training never uses in a tool (words.held_out). tools_everyday_unseen: the held-out
everyday tools (natural_tools.HELD_OUT), asked for in ordinary words that need not occur in the schema. A call counts only if
every name, every argument and the order of calls are exact.
"""
import argparse
import contextlib
import json
import math
import pathlib
import pickle
import random
import re

import torch

import chat
import data
import decode
import model
import optim
import tasks
import tool_chats
import tools


def ask(decoder, tokenizer, prompts, new_tokens, batch_tokens=400_000):
    """Rendered prompts -> decoded answers, longest prompts first, in batches of bounded size."""
    ids = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    answers = [""] * len(ids)
    while order:
        room = len(ids[order[0]]) + new_tokens
        count = max(1, min(256, batch_tokens // room))
        now, order = order[:count], order[count:]
        for i, out in zip(now, decoder.greedy([ids[i] for i in now], new_tokens)):
            answers[i] = tokenizer.decode(out, skip_special_tokens=False)
    return answers


def opening(made):
    """The conversation up to its first assistant turn, as a generation prompt."""
    end = next(i for i, m in enumerate(made["messages"]) if m["role"] == "assistant")
    return chat.render(made["messages"][:end], made["tools"], made["thinking"], generate=True)


def after_thinking(text, thinking):
    text = text.split("</think>", 1)[-1] if thinking else text
    return text.replace("</assistant>", "").strip()


def parse_calls(text):
    calls = []
    for name, body in re.findall(r"<tool_call>(.*?)\n(.*?)</tool_call>", text, re.S):
        pairs = re.findall(r"<arg_key>(.*?)</arg_key>\n<arg_value>(.*?)</arg_value>", body, re.S)
        calls.append((name, dict(pairs)))
    return calls


def wanted_calls(made):
    return [(n, {k: v if isinstance(v, str) else chat.dumps(v) for k, v in a.items()}) for n, a in made["calls"]]


def perplexity(decoder, documents, length=2048, most=192):
    pieces = [d[:length] for d in documents if len(d) > 64]
    random.Random(5).shuffle(pieces)
    pieces = pieces[:most]
    total, count = 0.0, 0
    for at in range(0, len(pieces), 32):
        part = pieces[at:at + 32]
        tokens = torch.zeros(len(part), max(map(len, part)), dtype=torch.long)
        known = torch.zeros(tokens.shape, dtype=torch.bool)
        for i, p in enumerate(part):
            tokens[i, :len(p)], known[i, 1:len(p)] = torch.tensor(p.astype("int64")), True
        tokens, known = tokens.to(decoder.device), known.to(decoder.device)
        logits = decoder.logits(tokens)[:, :-1]
        nll = torch.logsumexp(logits, -1) - logits.gather(-1, tokens[:, 1:, None])[..., 0]
        total += (nll * known[:, 1:]).sum().item()
        count += int(known[:, 1:].sum())
    return dict(tokens=count, nats_per_token=round(total / count, 4), perplexity=round(math.exp(total / count), 3))


def tool_accuracy(decoder, tokenizer, pools, count, seed):
    rng, right, names, wrong = random.Random(seed), {}, {}, []
    made = [tool_chats.tool_chat(rng, pools, kind, thinking) for kind in ("single", "parallel", "none")
            for thinking in (False, True) for _ in range(count)]
    for m, answer in zip(made, ask(decoder, tokenizer, [opening(m) for m in made], 320)):
        text = after_thinking(answer, m["thinking"])
        got, want = parse_calls(text), wanted_calls(m)
        ok = got == want and (m["kind"] != "none" or text == m["messages"][-1]["content"])
        label = m["kind"] + ("_thinking" if m["thinking"] else "")
        right[label] = right.get(label, 0) + ok
        names[label] = names.get(label, 0) + ([n for n, _ in got] == [n for n, _ in want])
        if not ok and sum(w["label"] == label for w in wrong) < 3:
            user = next(x["content"] for x in m["messages"] if x["role"] == "user")
            wrong.append(dict(label=label, request=user, want=want, got=text[-400:]))
    return {k: dict(n=count, exact=round(right[k] / count, 3), names=round(names[k] / count, 3)) for k in right}, wrong


def needle_accuracy(decoder, tokenizer, source, each):
    out = {}
    for budget in (512, 1024, 2048, 4096, 7600):
        made, row = [], {}
        for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
            row[str(depth)] = 0
            while sum(d == depth for d, _ in made) < each:
                m = source.needle(budget, depth, source.rng.choice([1, 3]))
                if len(source.encode(m)) <= data.LENGTH - 96:
                    made.append((depth, m))
        for (depth, m), answer in zip(made, ask(decoder, tokenizer, [opening(m) for _, m in made], 72)):
            row[str(depth)] += (m["value"] in after_thinking(answer, m["thinking"])) / each
        out[str(budget)] = {depth: round(share, 3) for depth, share in row.items()}
    return out


def question_accuracy(decoder, tokenizer, count, seed):
    rng, out = random.Random(seed), {}
    made = [tasks.question_chat(rng, make, thinking) for make in dict.fromkeys(tasks.QUESTIONS)
            for thinking in (False, True) for _ in range(count)]
    for m, answer in zip(made, ask(decoder, tokenizer, [opening(m) for m in made], 120)):
        label = m["kind"] + ("_thinking" if m["thinking"] else "")
        out[label] = out.get(label, 0) + (after_thinking(answer, m["thinking"]) == m["answer"]) / count
    return {label: round(share, 3) for label, share in out.items()}


SHOWN = [
    (None, "Hello", False), (None, "What is the capital of France?", False), (None, "What is 17 + 25?", True),
    (None, "Write a Python function that checks if a number is prime.", False),
    ([{"type": "function", "function": {"name": "get_weather", "description": "Weather for a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "City"}, "days": {"type": "integer"}},
        "required": ["city"]}}}], "What's the weather in Zürich and in Oslo?", False),
    ([{"type": "function", "function": {"name": "water_plants", "description": "Water the plants of a garden zone", "parameters": {
        "type": "object", "properties": {"zone": {"type": "string"}, "liters": {"type": "number"}, "gently": {"type": "boolean"}},
        "required": ["zone", "liters"]}}}], "Please water the plants with zone greenhouse, liters 2.5 and gently true.", True),
]


def show(decoder, tokenizer):
    """Readable samples: fixed questions, tools and code beginnings with the answers."""
    prompts = [chat.render([{"role": "user", "content": q}], offered, t, generate=True) for offered, q, t in SHOWN]
    codes = ("def fibonacci(n):\n", "import os\nimport sys\n\n\ndef main():\n", "class Stack:\n    def __init__(self):\n")
    answers = ask(decoder, tokenizer, prompts + [chat.EOS + code for code in codes], 160)
    return [f"> {q}\n{a}" for (_, q, _), a in zip(SHOWN, answers)] + [
        f"# completion\n{code}{a}" for code, a in zip(codes, answers[len(SHOWN):])]


def evaluate(config, w, folder, tokenizer_path, count=100, needles=8):
    """All measurements as a dict; with the weights as they are and with Q4_K-like rounding."""
    source = data.Source(folder, tokenizer_path, 4242, evaluation=True)
    tokenizer = source.tokenizer
    with open(folder / "val.pkl", "rb") as file:
        held_out = pickle.load(file)
    results = {}
    for name, context in (("float", contextlib.nullcontext()), ("q4k_like", optim.FakeQuant(w))):
        with context:
            decoder = decode.Decoder(config, w)
            r = results[name] = {"code": perplexity(decoder, held_out)}
            made_up = tools.Pools(source.extra_words, evaluation=True, natural_share=0.0)
            r["tools_unseen"], r["tools_unseen_wrong"] = tool_accuracy(decoder, tokenizer, made_up, count, 1)
            if name == "float":
                r["tools_seen_words"] = tool_accuracy(decoder, tokenizer, tools.Pools(), count, 2)[0]
                everyday = tools.Pools(source.extra_words, evaluation=True, natural_share=1.0)
                r["tools_everyday_unseen"], r["tools_everyday_wrong"] = tool_accuracy(decoder, tokenizer, everyday, count, 4)
                r["questions"] = question_accuracy(decoder, tokenizer, max(20, count // 2), 3)
                r["needle"] = needle_accuracy(decoder, tokenizer, source, needles)
            r["shown"] = show(decoder, tokenizer)
    return results


def main():
    from safetensors.torch import load_file

    import export
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    config = model.Config()
    w = export.from_disk(load_file(args.weights), config, "cuda")
    results = evaluate(config, w, args.data, args.tokenizer / "tokenizer.json", args.count)
    args.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
