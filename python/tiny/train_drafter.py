"""Trains the demo model's DFlash drafter on the demo model's own answers, and measures it on prompts that were held out.

    python3 python/tiny/train_drafter.py --target models/demo/laguna-demo.gguf --out work/drafter [--seconds 330]
    python3 python/tiny/train_drafter.py --target models/demo/laguna-demo.gguf --out work/smoke --smoke      # every stage, briefly

Needs one GPU and the packages torch, numpy, tokenizers and safetensors; no network. Prompts come from this folder's
generators and from Python files that are installed here; answers from the target, half of them greedy and half at
temperature 0.7. The schedule follows the clock. Writes OUT/model.safetensors and OUT/config.json (z-lab's dialect, bf16)
and OUT/report.json; `riptide quantize OUT drafter.gguf --type q8_0` makes the file that riptide ships.
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
import torch.nn.functional as F

import chat
import corpus
import decode
import draft_model
import gguf_model
import make_tokenizer
import model
import snippets
import tasks
import tool_chats
import tools

STOPS = (2, 24)
KINDS = ("code", "chat", "tools")
TOKENIZER = None          # of the worker processes
FILES = None              # {held out: [paths]}


# ---- prompts ----------------------------------------------------------------------------------------------------------


def opening(made):
    """The conversation up to its first assistant turn, as a generation prompt."""
    end = next(i for i, m in enumerate(made["messages"]) if m["role"] == "assistant")
    return chat.render(made["messages"][:end], made["tools"], made["thinking"], generate=True)


def code_prompts(rng, held_out, count):
    """Beginnings and middles of Python files, 24 to 384 tokens, with BOS."""
    out, paths = [], FILES[held_out]
    for _ in range(20 * count):
        if len(out) >= count or not paths:
            break
        text = corpus.read(rng.choice(paths))
        if text is None:
            continue
        ids = TOKENIZER.encode(text[:60_000], add_special_tokens=False).ids
        for _ in range(4):
            size = int(24 * 16 ** rng.random())
            start = 0 if rng.random() < 0.4 else rng.randrange(max(1, len(ids) - size))
            if len(ids) >= size and len(out) < count:
                out.append([make_tokenizer.EOS] + ids[start:start + size])
    return out


def make_prompts(job):
    """(kind, seed, count, held out) -> [ids]."""
    kind, seed, count, held_out = job
    rng, out = random.Random(seed), []
    if kind == "code":
        return code_prompts(rng, held_out, count)
    pools = tools.Pools(evaluation=held_out)
    functions = [f for path in rng.sample(FILES[held_out], min(60, len(FILES[held_out])))
                 for f in corpus.functions(corpus.read(path) or "")] if kind == "chat" else []
    while len(out) < count:
        if kind == "tools":
            made = tool_chats.tool_chat(rng, pools)
        elif rng.random() < 0.6:
            made = tasks.question_chat(rng)
        elif functions and rng.random() < 0.7:
            made = tasks.function_chat(rng, functions)
        else:
            made = snippets.snippet_chat(rng)
        ids = TOKENIZER.encode(opening(made), add_special_tokens=False).ids
        if len(ids) <= 1200:
            out.append(ids)
    return out


def all_prompts(tokenizer, counts, held_out, seed, workers):
    """{kind: [ids]}. Forks: call it before anything touches the GPU."""
    global TOKENIZER, FILES
    TOKENIZER = tokenizer
    if FILES is None:
        paths = corpus.file_list()[0]
        FILES = {True: [p for p in paths if corpus.is_held_out(p)], False: [p for p in paths if not corpus.is_held_out(p)]}
    out = {}
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for kind in KINDS:
            each = -(-counts[kind] // workers)
            parts = pool.map(make_prompts, [(kind, seed * 1000 + KINDS.index(kind) * 100 + i, each, held_out)
                                            for i in range(workers)], chunksize=1)
            out[kind] = [ids for part in parts for ids in part][:counts[kind]]
    return out


# ---- the target -------------------------------------------------------------------------------------------------------


class Target(decode.Decoder):
    """The target with batched sampling, and with its residual stream behind some layers laid aside."""

    taps, taken = (), None

    def _layers(self, h, position, attend):
        c, taken = self.config, {}
        for i, p in enumerate(self.layers):
            kind = "full" if c.full(i) else "window"
            x = model.rms(h, p["input_norm"], c.eps).to(self.dtype)
            q, k, v = model.project(x, p, *self._turn(kind, position), c.head_dim, c.eps)
            h = model.gated_output(h, x, attend(i, kind, q, k, v), p)
            h, _ = model.ffn(h, p, c.eps, c.top_k, c.routed_scale, self.dtype)
            if i in self.taps:
                taken[i] = h.to(self.dtype)
        self.taken = torch.cat([taken[i] for i in self.taps], -1) if self.taps else None
        return h

    def features(self, tokens):
        """[B, n] -> [B, n, taps * hidden]."""
        self.forward(tokens)
        return self.taken

    def pick(self, logits, temperature, rng):
        if temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=rng)[:, 0]

    @torch.no_grad()
    def answer(self, prompts, new_tokens, temperature, rng):
        """Lists of ids -> lists of new ids, each up to and including its first stop."""
        c, count = self.config, len(prompts)
        self.taps = ()
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        longest = int(lengths.max())
        room = -(-(longest + new_tokens) // 64) * 64
        tokens = torch.zeros(count, longest, dtype=torch.long)
        for i, p in enumerate(prompts):
            tokens[i, :len(p)] = torch.tensor(p)
        cache = [tuple(torch.zeros(count, c.kv_heads, room, c.head_dim, dtype=self.dtype, device=self.device)
                       for _ in range(2)) for _ in c.heads]
        h = self.forward(tokens.to(self.device), cache)
        row, key = torch.arange(count, device=self.device), torch.arange(room, device=self.device)[None]
        current = self.pick(self._logits(h[row, lengths - 1]), temperature, rng)
        out, done, stop = [current], torch.zeros(count, dtype=torch.bool, device=self.device), torch.tensor(STOPS, device=self.device)
        for step in range(new_tokens - 1):
            done |= torch.isin(current, stop)
            if step % 16 == 0 and bool(done.all()):
                break
            at = lengths + step
            gap = at[:, None] - key
            seen = {"full": gap >= 0, "window": (gap >= 0) & (gap < c.window)}

            def attend(i, kind, q, k, v):
                cache[i][0][row, :, at], cache[i][1][row, :, at] = k[:, :, 0], v[:, :, 0]
                grouped = q.reshape(count, c.kv_heads, -1, c.head_dim)           # the query heads of a KV head as rows
                mask = seen[kind][:, None, None].expand(-1, 1, grouped.shape[2], -1)
                o = F.scaled_dot_product_attention(grouped, cache[i][0], cache[i][1], attn_mask=mask)
                return o.reshape(count, -1, 1, c.head_dim)

            h = self._layers(F.embedding(current[:, None], self.w["embed"]).float(), at[:, None], attend)
            current = self.pick(self._logits(h[:, 0]), temperature, rng)
            out.append(current)
        results = []
        for ids in torch.stack(out, 1).tolist():
            end = next((i for i, t in enumerate(ids) if t in STOPS), len(ids) - 1)
            results.append(ids[:end + 1])
        return results


def batches_by_length(items, length, most_tokens, most_items):
    """Lists of indices of items of similar length, each of at most most_tokens padded tokens."""
    order, out = sorted(range(len(items)), key=lambda i: length(items[i])), []
    for i in order:
        if out and len(out[-1]) < most_items and (len(out[-1]) + 1) * length(items[i]) <= most_tokens:
            out[-1].append(i)
        else:
            out.append([i])
    return out


def answers(target, prompts, new_tokens, temperatures, rng, until, most_items):
    """[(kind, ids, prompt length)] in the random order of batches, as many as there is time for."""
    flat = [(kind, ids) for kind in KINDS for ids in prompts[kind]]
    groups, out = batches_by_length(flat, lambda x: len(x[1]) + new_tokens, 600_000, most_items), []
    random.Random(3).shuffle(groups)
    for number, group in enumerate(groups):
        made = target.answer([flat[i][1] for i in group], new_tokens, temperatures[number % len(temperatures)], rng)
        out += [(flat[i][0], flat[i][1] + new, len(flat[i][1])) for i, new in zip(group, made) if len(new) >= 4]
        if time.time() > until:
            break
    return out


class Store:
    """Sequences of one set: ids, where their answers begin, and all features one after the other."""

    def __init__(self, target, made, taps, limit):
        self.kind = [kind for kind, _, _ in made]
        self.ids = [ids[:limit] for _, ids, _ in made]
        self.begin = [begin for _, _, begin in made]
        self.start = numpy.concatenate([[0], numpy.cumsum([len(ids) for ids in self.ids])])
        target.taps = taps
        device, width = target.device, len(taps) * target.config.hidden
        self.features = torch.empty(int(self.start[-1]), width, dtype=target.dtype, device=device)
        self.tokens = torch.empty(int(self.start[-1]), dtype=torch.long, device=device)
        for group in batches_by_length(self.ids, len, 200_000, 512):
            longest = max(len(self.ids[i]) for i in group)
            tokens = torch.zeros(len(group), longest, dtype=torch.long)
            for row, i in enumerate(group):
                tokens[row, :len(self.ids[i])] = torch.tensor(self.ids[i])
            taken = target.features(tokens.to(device))
            for row, i in enumerate(group):
                place = slice(int(self.start[i]), int(self.start[i + 1]))
                self.features[place] = taken[row, :len(self.ids[i])]
                self.tokens[place] = torch.tensor(self.ids[i], device=device)

    def gather(self, group):
        """(features [B, S, width], tokens [B, S], lengths) of some sequences; beyond the end: the last token again."""
        device = self.tokens.device
        start = torch.tensor(self.start[group], device=device)
        size = torch.tensor([len(self.ids[i]) for i in group], device=device)
        place = torch.minimum(torch.arange(int(size.max()), device=device)[None], size[:, None] - 1) + start[:, None]
        return self.features[place], self.tokens[place], size


# ---- training ---------------------------------------------------------------------------------------------------------


def labels_of(tokens, size, anchors, block):
    """(label of every slot, whether there is one), [B, blocks, block]: the token at the anchor's position + slot."""
    at = anchors[:, :, None] + torch.arange(block, device=anchors.device)
    known = (at < size[:, None, None]) & (torch.arange(block, device=anchors.device) > 0)
    at = torch.minimum(at, size[:, None, None] - 1)
    return tokens.gather(1, at.flatten(1)).view(at.shape), known


def draw_anchors(begin, size, blocks, rng):
    """Uniform over the answer but its last token, which nothing follows. [B, blocks]"""
    spread = (size - 1 - begin).clamp(min=1)
    return begin[:, None] + (torch.rand(len(begin), blocks, device=begin.device, generator=rng) * spread[:, None]).long()


def loss_of(logits, labels, known, progress, gamma=4.0, alpha=0.5):
    """Cross entropy of the slots. The first half weighs slots by exp(-(j - 1) / gamma), then D-PACE: the weight of slot j
    is the sum over i >= j of the products of (1 - alpha) p + alpha up to i."""
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, labels[..., None])[..., 0]
    if progress < 0.5:
        slot = torch.arange(nll.shape[-1], device=nll.device)
        weight = torch.exp(-(slot - 1).float() / gamma) * known
    else:
        sure = torch.where(known, (1 - alpha) * torch.exp(-nll.detach()) + alpha, torch.zeros_like(nll))
        prefix = torch.cumprod(sure[..., 1:], -1)
        weight = F.pad(prefix.flip(-1).cumsum(-1).flip(-1), (1, 0)) * known
    return (nll * weight).sum() / weight.sum().clamp(min=1e-6)


def train(drafter, store, args, started, until, rng, log):
    names = list(drafter.w)
    for t in drafter.w.values():
        t.requires_grad_(True)
    matrices = [drafter.w[n] for n in names if drafter.w[n].dim() == 2]
    vectors = [drafter.w[n] for n in names if drafter.w[n].dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95))
    groups = batches_by_length(store.ids, len, args.batch_tokens, 96)
    begin = torch.tensor(store.begin, device=store.tokens.device)
    order, step, sums, shuffle = [], 0, [], random.Random(5)
    born = time.time()
    while True:
        progress = (time.time() - born) / max(1e-3, until - born)
        if progress >= 1 or (args.steps and step >= args.steps):
            break
        if not order:
            order = list(range(len(groups)))
            shuffle.shuffle(order)
        group = groups[order.pop()]
        features, tokens, size = store.gather(group)
        anchors = draw_anchors(begin[group], size, args.blocks, rng)
        states = drafter(features, tokens.gather(1, anchors), anchors)
        labels, known = labels_of(tokens, size, anchors, drafter.c.block)
        logits = drafter.logits(states[:, :, 1:])
        zero = torch.zeros_like(logits[:, :, :1])
        loss = loss_of(torch.cat([zero, logits], 2), labels, known, progress)
        scale = min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        for part in optimizer.param_groups:
            part["lr"] = args.lr * scale
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(matrices + vectors, 1.0)
        optimizer.step()
        right = ((logits.argmax(-1) == labels[:, :, 1:]) & known[:, :, 1:]).float()
        sums.append((loss.detach(), 1 + torch.cumprod(right, -1).sum(-1).mean()))
        step += 1
        if step % args.log_every == 0:
            log(f"step {step} loss {sum(x.item() for x, _ in sums) / len(sums):.4f} "
                f"AL {sum(x.item() for _, x in sums) / len(sums):.3f} progress {progress:.3f}")
            if not math.isfinite(sums[-1][0].item()):
                raise SystemExit("the loss is not finite")
            sums = []
    return dict(steps=step, seconds=round(time.time() - born, 1))


# ---- measuring --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def accepted(drafter, store, i, mask_id=None, blocks=64):
    """For every anchor of sequence i's answer: leading drafts that are the target's own tokens, [anchors]; and which slots
    were right with a token to be compared with, [anchors, block - 1] twice."""
    features, tokens, size = store.gather([i])
    counts, right_all, known_all = [], [], []
    for first in range(store.begin[i], int(size) - 1, blocks):
        anchors = torch.arange(first, min(first + blocks, int(size) - 1), device=tokens.device)[None]
        states = drafter(features, tokens.gather(1, anchors), anchors, mask_id)
        labels, known = labels_of(tokens, size, anchors, drafter.c.block)
        right = (drafter.logits(states[:, :, 1:]).argmax(-1) == labels[:, :, 1:]) & known[:, :, 1:]
        counts.append(torch.cumprod(right.long(), -1).sum(-1)[0])
        right_all.append(right[0])
        known_all.append(known[0, :, 1:])
    return torch.cat(counts).tolist(), torch.cat(right_all), torch.cat(known_all)


def measure(drafter, store, mask_id=None):
    """{kind: acceptance length of greedy rounds, share of anchors whose first j drafts are all accepted}."""
    out = {}
    for kind in KINDS + ("all",):
        tokens = rounds = sequences = 0
        good, total = 0, 0
        for i in range(len(store.ids)):
            if kind not in (store.kind[i], "all") or len(store.ids[i]) - store.begin[i] < 3:
                continue
            counts, right, known = accepted(drafter, store, i, mask_id)
            sequences += 1
            at = 0
            while at < len(counts):                     # a round: the accepted drafts and the target's own next token
                rounds += 1
                tokens += counts[at] + 1
                at += counts[at] + 1
            good = good + torch.cumprod(right.long(), -1).sum(0)
            total = total + known.sum(0)
        if sequences:
            out[kind] = dict(sequences=sequences, tokens=tokens, acceptance_length=round(tokens / rounds, 3),
                             accepted_up_to_slot=[round(x, 4) for x in (good / total.clamp(min=1)).tolist()])
    return out


@torch.no_grad()
def leak(drafter, store):
    """Largest difference between a block's states alone and beside 31 others: they must not see each other."""
    i = max(range(len(store.ids)), key=lambda n: len(store.ids[n]) - store.begin[n])
    features, tokens, size = store.gather([i])
    last = int(size) - 2
    anchors = torch.linspace(store.begin[i], max(store.begin[i], last), 32, device=tokens.device).long()[None]
    together = drafter(features, tokens.gather(1, anchors), anchors)
    alone = drafter(features, tokens.gather(1, anchors[:, 5:6]), anchors[:, 5:6])
    future = features.clone()
    future[:, int(anchors[0, 5]):] += 3.0
    blind = drafter(future, tokens.gather(1, anchors[:, 5:6]), anchors[:, 5:6])
    return (together[:, 5:6] - alone).abs().max().item(), (blind - alone).abs().max().item()


# ---- all of it --------------------------------------------------------------------------------------------------------


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--prompts", type=int, default=24000)
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--blocks", type=int, default=32, help="anchors drawn of a sequence in a step")
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=0, help="at most; 0: as many as there is time for")
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--taps", type=int, nargs="+", default=[1, 4, 7])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="all stages within half a minute")
    args = parser.parse_args()
    if args.smoke:
        args.seconds, args.prompts, args.new_tokens, args.steps, args.log_every = 30, 48, 24, 6, 2
        args.workers, args.blocks, args.batch_tokens = 2, 8, 4096
    return args


def main():
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.time()

    def log(text):
        print(f"[{time.time() - started:6.1f}] {text}", flush=True)

    metadata, tensors = gguf_model.read(args.target)
    tokenizer = gguf_model.tokenizer(metadata)
    if tokenizer.decode(tokenizer.encode("def f(x):\n    return x\n", add_special_tokens=False).ids) != "def f(x):\n    return x\n":
        raise SystemExit("the tokenizer does not give its text back")
    shares = {"code": 0.4, "chat": 0.25, "tools": 0.35}
    counts = {kind: int(args.prompts * share) for kind, share in shares.items()}
    prompts = all_prompts(tokenizer, counts, False, args.seed, args.workers)
    held = all_prompts(tokenizer, {kind: 4 if args.smoke else 64 for kind in KINDS}, True, 900 + args.seed, args.workers)
    log("prompts: " + ", ".join(f"{k} {len(v)} (mean {sum(map(len, v)) / max(1, len(v)):.0f} tokens)" for k, v in prompts.items()))

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(args.seed)
    rng = torch.Generator(device=device).manual_seed(args.seed)
    config, draft_config = model.Config(), draft_model.DraftConfig(taps=tuple(args.taps))
    w = gguf_model.weights(metadata, tensors, config, device)
    target = Target(config, w, dtype)
    made = answers(target, prompts, args.new_tokens, (0, 0.7), rng, started + 0.3 * args.seconds, 1024)
    asked = answers(target, held, args.new_tokens, (0,), rng, started + args.seconds, 64)
    log(f"answers: {len(made)} with {sum(len(ids) - b for _, ids, b in made)} tokens; held out {len(asked)}")
    for kind in KINDS:
        shown = next((ids[b:] for k, ids, b in asked if k == kind), [])
        log(f"{kind}: {tokenizer.decode(shown, skip_special_tokens=False)[:160]!r}")
    store, test = (Store(target, x, draft_config.taps, 1536) for x in (made, asked))
    log(f"features: {store.features.shape[0]} tokens, {store.features.numel() * store.features.element_size() / 2**30:.1f} GiB")

    weights = draft_model.init(draft_config, config.hidden, device, args.seed)
    drafter = draft_model.Drafter(draft_config, weights, w["embed"], w["head"], dtype)
    log(f"drafter: {sum(t.numel() for t in weights.values()) / 1e6:.2f}M parameters, {vars(args)}")
    trained = train(drafter, store, args, started, started + 0.88 * args.seconds, rng, log)
    log(f"trained: {trained}")

    with torch.no_grad():
        saved = {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in weights.items()}
        for name, t in saved.items():                  # measure what is written
            weights[name] = t.float().to(device)
        drafter.w = weights
        beside, future = leak(drafter, test)
        log(f"a block beside others differs by {beside:.2e}; with another future by {future:.2e}")
        if not (beside < 0.1 and future < 0.1):
            raise SystemExit("blocks see each other, or the future")
        report = dict(measured=measure(drafter, test), wrong_mask=measure(drafter, test, mask_id=11).get("all"),
                      training=trained, sequences=len(made), answer_tokens=sum(len(ids) - b for _, ids, b in made),
                      parameters=sum(t.numel() for t in weights.values()),
                      arguments={k: str(v) for k, v in vars(args).items()})
    from safetensors.torch import save_file
    save_file(saved, args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(draft_model.hf_config(draft_config, config), indent=1) + "\n")
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    for kind, numbers in report["measured"].items():
        log(f"{kind}: AL {numbers['acceptance_length']} over {numbers['tokens']} tokens, slots {numbers['accepted_up_to_slot']}")
    log(f"with a wrong mask token: AL {(report['wrong_mask'] or {}).get('acceptance_length')}")


if __name__ == "__main__":
    main()
