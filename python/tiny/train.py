"""Trains the demo model and writes its Hugging Face folder, its log and its measurements.

    python3 python/tiny/make_tokenizer.py --out work/tokenizer
    python3 python/tiny/train.py --tokenizer work/tokenizer --work work/data --out work/out --seconds 900

Needs one GPU with about 60 GB free and a dozen cores. data.py runs beside it and fills rows while this compiles. The
learning rate follows the clock, so the schedule always ends with the time that was given: constant, then linear to zero;
the last part also rounds the weights as Q4_K would (straight-through), so that quantising costs less.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy
import torch

import data
import evaluate
import export
import model
import optim


class Rows:
    """Reads rows that data.py fills, in order; takes an old row again only when the next one is not there yet."""

    def __init__(self, folder, count, workers):
        self.arrays = data.open_rows(folder, count, "r")
        self.done = numpy.memmap(folder / "done.bin", dtype=numpy.int64, mode="r", shape=(workers,))
        self.workers, self.count, self.next, self.repeated = workers, count, 0, 0
        self.rng = numpy.random.default_rng(0)

    def ready(self, slot):
        return slot < self.count and self.done[slot % self.workers] > slot // self.workers

    def batch(self, size):
        slots = []
        for _ in range(size):
            if self.ready(self.next):
                slots.append(self.next)
                self.next += 1
            else:
                slots.append(int(self.rng.integers(self.next)))
                self.repeated += 1
        tokens, weight, position = (a[slots] for a in self.arrays)
        return (torch.from_numpy(tokens.astype(numpy.int64)).pin_memory().cuda(non_blocking=True),
                torch.from_numpy(weight.astype(numpy.float32)).pin_memory().cuda(non_blocking=True),
                torch.from_numpy(position.astype(numpy.int64)).pin_memory().cuda(non_blocking=True))


def start_data(args):
    """data.py as a child: the corpus (unless prepared), then rows."""
    here = pathlib.Path(__file__).parent / "data.py"
    base = [sys.executable, str(here)]
    tail = ["--tokenizer", str(args.tokenizer / "tokenizer.json"), "--out", str(args.work), "--workers", str(args.workers)]
    script = " && ".join([" ".join(base + ["prepare"] + tail), " ".join(base + ["rows"] + tail + [
        "--count", str(args.rows), "--seed", str(args.seed)])])
    return subprocess.Popen(["bash", "-c", script], start_new_session=True)


def warm_up(trainer, w, args):
    """Compiles on a made-up batch, forward and backward, so that the clock starts with everything ready."""
    tokens = torch.randint(70, 8000, (args.batch, data.LENGTH), device="cuda")
    weight = torch.ones(args.batch, data.LENGTH, device="cuda")
    position = torch.arange(data.LENGTH, device="cuda").remainder(3000)[None].expand(args.batch, -1).contiguous()
    for _ in range(2):
        total, count, _ = trainer.loss(w, tokens, weight, position)
        (total / count).backward()
    for t in w.values():
        t.grad = None
    torch.cuda.synchronize()


def lr_scale(progress, step, args):
    rise = min(1.0, (step + 1) / 80)
    fall = 1.0 if progress < args.decay_from else max(0.0, (1 - progress) / (1 - args.decay_from))
    return rise * fall * args.lr


def save(w, config, args, name="weights.safetensors"):
    from safetensors.torch import save_file
    save_file(export.to_disk(w, config), args.out / (name + ".part"))
    (args.out / (name + ".part")).rename(args.out / name)


def train(args, config, w, trainer, rows, log):
    optimizer = optim.Optimizer(w, muon_lr=args.muon_lr)
    started = last = saved = time.time()
    step, sums, seen = 0, [], 0
    while True:
        progress = (time.time() - started) / args.seconds
        if progress >= 1 or (args.steps and step >= args.steps):
            break
        batch = rows.batch(args.batch)
        optimizer.zero_grad()
        rounding = optim.FakeQuant(w) if progress > args.quant_from else None
        if rounding:
            rounding.__enter__()
        total, count, loads = trainer.loss(w, *batch)
        (total / count).backward()
        if rounding:
            rounding.__exit__()
        optimizer.step(lr_scale(progress, step, args), loads)
        sums.append((total.detach(), count))
        step, seen = step + 1, seen + args.batch * data.LENGTH
        if step % 50 == 0:
            loss = sum(t.item() for t, _ in sums) / sum(c.item() for _, c in sums)
            now = time.time()
            spread = max((load.max() / load.mean()).item() for load in loads)
            mean = sum(c.item() for _, c in sums) / 50 / args.batch / data.LENGTH
            log(f"step {step} loss {loss:.4f} {seen / 1e6:.0f}M tokens, "
                f"{50 * args.batch * data.LENGTH / (now - last) / 1e6:.3f}M/s, progress {progress:.3f}, "
                f"rows made {int(rows.done.sum())}, repeated {rows.repeated}, worst load {spread:.2f}, mean weight {mean:.2f}, "
                f"memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
            sums, last = [], now
            if now - saved > args.save_every:
                save(w, config, args)
                saved = now
    torch.cuda.synchronize()
    return dict(steps=step, tokens=seen, seconds=round(time.time() - started, 1), rows_repeated=rows.repeated)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for data, best in memory")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=900, help="training time without preparation")
    parser.add_argument("--until", type=float, default=1e9, help="end training this long after the start of this program")
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps, for a smoke test")
    parser.add_argument("--batch", type=int, default=16, help="rows of 8192 tokens a step")
    parser.add_argument("--rows", type=int, default=100_000, help="rows that data.py makes")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--decay-from", type=float, default=0.4)
    parser.add_argument("--quant-from", type=float, default=0.85)
    parser.add_argument("--save-every", type=float, default=100)
    parser.add_argument("--init", type=pathlib.Path, help="continue from these weights")
    parser.add_argument("--count", type=int, default=100, help="evaluation cases per kind")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    born = time.time()
    lines = open(args.out / "train.log", "a", buffering=1)

    def log(text):
        print(f"[{time.time() - born:6.1f}] {text}", flush=True)
        lines.write(f"[{time.time() - born:6.1f}] {text}\n")

    child = start_data(args)
    torch.manual_seed(args.seed)
    config = model.Config()
    w = model.init(config, "cuda", args.seed)
    if args.init:
        from safetensors.torch import load_file
        w = export.from_disk(load_file(args.init), config, "cuda")
    for name, t in w.items():
        t.requires_grad_(not name.endswith("bias"))
    log(f"{sum(t.numel() for t in w.values()) / 1e6:.2f}M parameters, {vars(args)}")
    trainer = model.Trainer(config, args.batch, data.LENGTH, "cuda")
    warm_up(trainer, w, args)
    log("compiled")
    while not (args.work / "rows.json").exists():
        if child.poll() not in (None, 0):
            raise SystemExit("data.py failed")
        time.sleep(0.2)
    rows = Rows(args.work, args.rows, args.workers)
    while int(rows.done.min()) < 4:
        time.sleep(0.2)
    log("first rows are there")
    args.seconds = min(args.seconds, args.until - (time.time() - born))
    report = train(args, config, w, trainer, rows, log)
    log(f"trained: {report}")
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    with torch.no_grad():
        tensors = export.to_disk(w, config)
        export.write_folder(tensors, config, args.tokenizer, args.out / "hf")
        w = export.from_disk(tensors, config, "cuda")
        results = evaluate.evaluate(config, w, args.work, args.tokenizer / "tokenizer.json", args.count)
    results["training"] = report
    results["arguments"] = {k: str(v) for k, v in vars(args).items()}
    (args.out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    log(f"evaluated: {json.dumps({k: v for k, v in results['float'].items() if k != 'shown' and not k.endswith('wrong')})}")
    log("q4k_like: " + json.dumps({k: results["q4k_like"][k] for k in ("code", "tools_unseen")}))
    for text in results["float"]["shown"]:
        log(text)


if __name__ == "__main__":
    main()
