"""Trains the demo scorer: a small Qwen3 whose attention finds what a question is about, in the demo target's kinds of text.

    python3 python/tiny/train_scorer.py --out work/scorer [--seconds 195]
    python3 python/tiny/train_scorer.py --out work/smoke --smoke          # every stage, briefly, on the CPU too

Needs one GPU and the packages torch, numpy, tokenizers and safetensors; no network. It learns the language of code and
conversations, answers to questions about long texts, and, from the same questions, that unrotated attention of the last
layers (what src/models/scorer.h scores with) goes from the question to every place that answers it. The schedule follows
the clock. Writes OUT/model.safetensors (bf16), config.json, tokenizer.json and report.json;
`riptide quantize OUT scorer.gguf --type q8_0` makes the file that riptide ships.
"""
import argparse
import json
import math
import multiprocessing
import pathlib
import random
import time

import numpy
import torch

import lookups
import optim
import scorer_data
import scorer_model

CHUNK = 32                           # tokens that are kept or dropped together when measuring
KEEPS = (0.05, 0.1, 0.2, 0.3)
AUXILIARY = {-1: 1.0, -2: 0.5}       # layers whose attention is trained to find evidence, and how much each counts


class Rows:
    """Reads rows that scorer_data fills, in order; takes an old row again only when the next one is not there yet."""

    def __init__(self, folder, count, length, workers, device):
        self.arrays = scorer_data.open_rows(folder, count, length, "r")
        self.done = scorer_data.open_done(folder, workers, "r")
        self.workers, self.count, self.device, self.next, self.repeated = workers, count, device, 0, 0
        self.rng = numpy.random.default_rng(0)

    def ready(self, slot):
        return slot < self.count and self.done[slot % self.workers] > slot // self.workers

    def batch(self, size):
        """(tokens, weight, marks) on the device."""
        slots = []
        for _ in range(size):
            if self.ready(self.next):
                slots.append(self.next)
                self.next += 1
            else:
                slots.append(int(self.rng.integers(max(1, self.next))))
                self.repeated += 1
        tokens, weight, marks = (a[slots] for a in self.arrays)
        return (torch.from_numpy(tokens.astype(numpy.int64)).to(self.device),
                torch.from_numpy(weight.astype(numpy.float32)).to(self.device),
                torch.from_numpy(marks.astype(numpy.int64)).to(self.device))


class Optimizer:
    """Muon for the matrices inside the layers, Adam for the rest."""

    def __init__(self, w, muon_lr):
        self.w, self.muon_lr = w, muon_lr
        for t in w.values():
            t.requires_grad_(True)
        self.muon = optim.Muon([t for n, t in w.items() if n.split(".")[-1] in scorer_model.MATRICES])
        rest = [t for n, t in w.items() if n.split(".")[-1] not in scorer_model.MATRICES and n != "embed"]
        self.adam = torch.optim.AdamW([dict(params=[w["embed"]], lr=0.004, base=0.004), dict(params=rest, lr=0.002, base=0.002)],
                                      betas=(0.9, 0.97), eps=1e-8, weight_decay=0.0)

    @torch.no_grad()
    def step(self, scale):
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        self.muon.step(self.muon_lr * scale)
        for t in self.w.values():
            t.grad = None


def window_rows(begin, end, count):
    """`count` rows spread over [begin, end), [..., count]."""
    part = (torch.arange(count, device=begin.device) + 0.5) / count
    return begin[..., None] + ((end - begin)[..., None] * part).long()


def evidence_loss(found, marks, rows):
    """Mean over layers of AUXILIARY and over places that answer of -ln(their share of the attention)."""
    valid = marks[..., 1] > marks[..., 0]                                               # [B, W]
    asked = window_rows(marks[..., 0], torch.maximum(marks[..., 1], marks[..., 0] + 1), rows)
    keys = torch.stack([marks[..., 2], torch.maximum(marks[..., 3], marks[..., 2] + 1)], -1)
    spans = marks[..., 4:].view(*marks.shape[:2], -1, 2)
    there = (spans[..., 1] > spans[..., 0]) & valid[..., None]                          # [B, W, E]
    share = there.float() / (there.float().sum(-1, keepdim=True).clamp(min=1) * valid.sum().clamp(min=1))
    total = 0.0
    for layer, factor in AUXILIARY.items():
        mass = scorer_model.span_mass(scorer_model.attention_mass(*found[layer], asked, keys), spans)
        total = total - factor * (torch.log(mass.clamp(min=0) + 1e-6) * share).sum()
    return total / sum(AUXILIARY.values())


def train(scorer, w, rows, args, until, log):
    optimizer, born, sums, step, last = Optimizer(w, args.muon_lr), time.time(), [], 0, time.time()
    while True:
        progress = (time.time() - born) / max(1e-3, until - born)
        if progress >= 1 or (args.steps and step >= args.steps):
            break
        tokens, weight, marks = rows.batch(args.batch)
        h, found = scorer.states(w, tokens)
        nll, count = scorer.loss(w, h, tokens, weight)
        finding = evidence_loss(found, marks, args.window_rows)
        (nll / count.clamp(min=1) + args.auxiliary * finding).backward()
        scale = min(1.0, (step + 1) / 80) * (1.0 if progress < 0.4 else max(0.0, (1 - progress) / 0.6))
        optimizer.step(scale)
        sums.append((nll.detach() / count.clamp(min=1), finding.detach()))
        step += 1
        if step % args.log_every == 0:
            loss, aux = (sum(x[i].item() for x in sums) / len(sums) for i in (0, 1))
            now = time.time()
            log(f"step {step} loss {loss:.4f} evidence {aux:.4f} progress {progress:.3f} "
                f"{len(sums) * args.batch * args.length / (now - last) / 1e6:.3f}M tokens/s, "
                f"rows made {int(rows.done.sum())}, repeated {rows.repeated}")
            if not math.isfinite(loss + aux):
                raise SystemExit("the loss is not finite")
            sums, last = [], now
    return dict(steps=step, tokens=step * args.batch * args.length, seconds=round(time.time() - born, 1),
                rows_repeated=rows.repeated)


def warm_up(scorer, w, args, device):
    """Compiles, forward and backward, on made-up tokens; the weights stay."""
    tokens = torch.randint(0, 1000, (args.batch, args.length), device=device)
    marks = torch.zeros(args.batch, scorer_data.ASKED, 4 + 2 * scorer_data.SPANS, dtype=torch.long, device=device)
    marks[..., 0], marks[..., 1], marks[..., 3], marks[..., 5] = 100, 120, 100, 10
    for _ in range(2):
        for t in w.values():
            t.requires_grad_(True)
        h, found = scorer.states(w, tokens)
        nll, count = scorer.loss(w, h, tokens, torch.ones(args.batch, args.length, device=device))
        (nll / count + evidence_loss(found, marks, args.window_rows)).backward()
        for t in w.values():
            t.grad = None


# ---- measuring ----------------------------------------------------------------------------------------------------------


def windows_of(asked):
    """{name: (begin, end)}: what may ask."""
    begin, end = asked["question"]
    tail = asked["tail"]
    return {"question": (begin, end), "question to end": (begin, tail), "last 8": (tail - 8, tail)}


def kept_share(mass, evidence, keep):
    """Share of the evidence's tokens in the best `keep` of all chunks of CHUNK tokens."""
    size = -(-len(mass) // CHUNK)
    chunks = torch.nn.functional.pad(mass, (0, size * CHUNK - len(mass))).view(size, CHUNK).sum(-1)
    best = set(chunks.topk(max(1, int(size * keep))).indices.tolist())
    inside = [i // CHUNK in best for begin, end in evidence for i in range(begin, end)]
    return sum(inside) / len(inside)


def rank_of(mass, evidence):
    """The worst over the evidence of the best rank of one of its chunks, 0 the first."""
    size = -(-len(mass) // CHUNK)
    chunks = torch.nn.functional.pad(mass, (0, size * CHUNK - len(mass))).view(size, CHUNK).sum(-1)
    place = {chunk: i for i, chunk in enumerate(chunks.argsort(descending=True).tolist())}
    return max(min(place[i // CHUNK] for i in range(begin, end)) for begin, end in evidence)


@torch.no_grad()
def measure(scorer, w, maker, lengths, count, ratio, device):
    """[one line for each document, window and choice of layers]."""
    layers = {"last": [-1], "last 2": [-1, -2], "all": list(range(scorer.c.layers))}
    out = []
    for length in lengths:
        for kind in dict.fromkeys(lookups.HIDDEN):
            made = 0
            for _ in range(4 * count):
                ids, asked = maker.lookup(int(max(150, length - 250) * ratio), 1, [kind])
                if made == count:
                    break
                if not asked or len(ids) > scorer.tables[0].shape[0] or asked[0]["question"][0] < 64:
                    continue
                made += 1
                _, found = scorer.states(w, torch.tensor([ids], device=device))
                a = asked[0]
                keys = torch.tensor([[[0, a["question"][0]]]], device=device)
                for name, (begin, end) in windows_of(a).items():
                    asking = torch.arange(begin, end, device=device)[None, None]
                    masses = [scorer_model.attention_mass(q, k, asking, keys)[0, 0, :a["question"][0]].cpu() for q, k in found]
                    for chosen, numbers in layers.items():
                        mass = sum(masses[i] for i in numbers) / len(numbers)
                        out.append(dict(kind=kind.__name__, length=length, tokens=len(ids), window=name, layers=chosen,
                                        mass=sum(mass[b:e].sum().item() for b, e in a["evidence"]),
                                        rank=rank_of(mass, a["evidence"]),
                                        chunks=-(-len(mass) // CHUNK),
                                        kept={str(k): kept_share(mass, a["evidence"], k) for k in KEEPS}))
    return out


def summary(lines, keys):
    """{values of keys: means of the lines that share them}."""
    groups = {}
    for line in lines:
        groups.setdefault(" | ".join(str(line[k]) for k in keys), []).append(line)
    return {name: dict(cases=len(part), mass=round(sum(x["mass"] for x in part) / len(part), 4),
                       median_rank=sorted(x["rank"] for x in part)[len(part) // 2],
                       first=round(sum(x["rank"] == 0 for x in part) / len(part), 3),
                       **{f"kept at {k}": round(sum(x["kept"][str(k)] for x in part) / len(part), 3) for k in KEEPS},
                       **{f"whole at {k}": round(sum(x["kept"][str(k)] == 1 for x in part) / len(part), 3) for k in KEEPS})
            for name, part in groups.items()}


@torch.no_grad()
def code_loss(scorer, w, maker, count, device):
    """Nats a token of held-out code, and characters a token."""
    total = tokens = chars = 0
    for _ in range(count):
        text = maker.code(6000)
        ids = torch.tensor([maker.encode(text)[0][:scorer.tables[0].shape[0]]], device=device)
        h, _ = scorer.states(w, ids)
        weight = torch.ones_like(ids, dtype=torch.float32)
        weight[0, -1] = 0
        nll, n = scorer.loss(w, h, ids, weight)
        total, tokens, chars = total + nll.item(), tokens + n.item(), chars + len(text)
    return dict(nats_a_token=round(total / tokens, 4), characters_a_token=round(chars / tokens, 3), tokens=int(tokens))


# ---- all of it ----------------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, help="folder for rows, best in memory; left out: OUT/work")
    parser.add_argument("--seconds", type=float, default=195, help="all together")
    parser.add_argument("--measure-seconds", type=float, default=28, help="of them, kept for measuring")
    parser.add_argument("--files", type=int, default=9000, help="Python files to read")
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--length", type=int, default=scorer_model.Config.context, help="of a row")
    parser.add_argument("--batch", type=int, default=6, help="rows a step")
    parser.add_argument("--window-rows", type=int, default=16)
    parser.add_argument("--auxiliary", type=float, default=1.0, help="weight of the loss that asks for evidence")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=6, help="processes that make rows")
    parser.add_argument("--steps", type=int, default=0, help="at most; 0: as many as there is time for")
    parser.add_argument("--count", type=int, default=10, help="measured documents of a kind and length")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--smoke", action="store_true", help="all stages in a minute")
    args = parser.parse_args()
    if args.smoke:
        args.files, args.rows, args.length, args.batch, args.steps, args.count, args.log_every = 60, 8, 1024, 2, 3, 1, 1
        args.seconds, args.workers, args.eager = 600, 2, True
    return args


def main():
    args, started = parse(), time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    work = args.work or args.out / "work"

    def log(text):
        print(f"[{time.time() - started:6.1f}] {text}", flush=True)

    config = scorer_model.Config()
    corpora = scorer_data.read_corpus(args.files, 2 * args.workers)
    (texts, functions), (held_texts, held_functions) = corpora[False], corpora[True]
    log(f"corpus: {len(texts)} files, {sum(map(len, texts)) / 1e6:.1f}M characters, {len(functions)} functions; "
        f"held out {len(held_texts)} files")
    random.Random(args.seed).shuffle(texts)
    path = args.out / "tokenizer.json"
    child = multiprocessing.get_context("fork").Process(target=scorer_data.build_tokenizer, args=(
        scorer_data.tokenizer_text(texts, 10_000_000, 3000 if not args.smoke else 300), config.vocab_size, args.out))
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit("no tokenizer was made")
    log("tokenizer made")
    children = scorer_data.start(work, path, texts, functions, config.vocab_size, args.rows, args.length, args.workers, args.seed)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(args.seed)
    w = scorer_model.init(config, device, args.seed)
    log(f"{sum(t.numel() for t in w.values()) / 1e6:.2f}M parameters, {vars(args)}")
    scorer = scorer_model.Scorer(config, args.length, device, dtype, not args.eager)
    warm_up(scorer, w, args, device)
    log("compiled")
    rows = Rows(work, args.rows, args.length, args.workers, device)
    while int(rows.done.min()) < 2:
        if not all(c.is_alive() or c.exitcode == 0 for c in children):
            raise SystemExit("a process that makes rows has failed")
        time.sleep(0.2)
    log(f"first rows are there: {int(rows.done.sum())}")
    trained = train(scorer, w, rows, args, started + args.seconds - args.measure_seconds, log)
    log(f"trained: {trained}")
    for child in children:
        child.terminate()

    with torch.no_grad():
        from safetensors.torch import save_file
        save_file(scorer_model.to_disk(w, config), args.out / "model.safetensors", metadata={"format": "pt"})
        facts = scorer_model.hf_config(config, scorer_data.eot(config.vocab_size))
        (args.out / "config.json").write_text(json.dumps(facts, indent=1) + "\n")
        log("saved")
        w = {name: t.detach().to(torch.bfloat16).float() for name, t in w.items()}          # measure what is written
        scorer = scorer_model.Scorer(config, args.length, device, dtype, False)
        maker = scorer_data.Maker(path, held_texts, held_functions, config.vocab_size, 77, evaluation=True)
        code = code_loss(scorer, w, maker, 2 if args.smoke else 40, device)
        log(f"held-out code: {code}")
        lengths = [512] if args.smoke else [512, 1024, 2048, 4096, 8192]
        lines = measure(scorer, w, maker, lengths, args.count, 0.95 * code["characters_a_token"], device)
    report = dict(code=code, by_length=summary(lines, ("layers", "window", "length")),
                  by_kind=summary(lines, ("layers", "window", "kind")),
                  training=trained, parameters=sum(t.numel() for t in w.values()), chunk=CHUNK,
                  arguments={k: str(v) for k, v in vars(args).items()})
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    for part in ("by_length", "by_kind"):
        for name, numbers in report[part].items():
            if name.startswith("last | "):
                log(f"{name}: {numbers}")


if __name__ == "__main__":
    main()
