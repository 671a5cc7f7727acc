"""The demo model in PyTorch: Laguna's forward pass written for training on packed rows.

Weights live in a flat dict {name: float32 tensor}. Experts and the shared expert of a layer are stacked ([experts + 1,
...], the shared one last) and all of them are computed for every row; the router's weights, zero for experts that were not
chosen, make the result the sparse one. At this size that is faster than gathering rows.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int = 8192
    hidden: int = 256
    heads: tuple = (6, 4, 4, 4, 6, 4, 4, 4, 6)
    period: int = 4                     # layer i attends fully where i % period == 0, else in a window
    kv_heads: int = 2
    head_dim: int = 128
    window: int = 256
    dense: int = 512                    # width of the dense FFN of layer 0
    experts: int = 4
    top_k: int = 2
    expert: int = 256                   # width of each expert and of the shared expert
    routed_scale: float = 2.5
    eps: float = 1e-6
    context: int = 8192
    full_theta: float = 500000.0
    full_rotary: int = 64
    yarn_factor: float = 4.0
    yarn_original: int = 2048
    beta_fast: float = 64.0
    beta_slow: float = 1.0
    window_theta: float = 10000.0

    def full(self, layer):
        return layer % self.period == 0

    @property
    def attention_factor(self):
        return 0.1 * math.log(self.yarn_factor) + 1.0


def init(config, device, seed):
    """Fresh weights. Output projections start at zero, so every layer starts as the identity."""
    rng = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape, std=None):
        return torch.randn(*shape, generator=rng, device=device) * (std or 0.6 / math.sqrt(shape[-1]))

    c, w = config, {}
    w["embed"] = normal(c.vocab_size, c.hidden, std=0.1)
    w["head"] = torch.zeros(c.vocab_size, c.hidden, device=device)
    w["norm"] = torch.ones(c.hidden, device=device)
    for i, heads in enumerate(c.heads):
        p = f"{i}."
        w[p + "input_norm"] = torch.ones(c.hidden, device=device)
        w[p + "post_norm"] = torch.ones(c.hidden, device=device)
        w[p + "q_norm"] = torch.ones(c.head_dim, device=device)
        w[p + "k_norm"] = torch.ones(c.head_dim, device=device)
        w[p + "q"] = normal(heads * c.head_dim, c.hidden)
        w[p + "k"] = normal(c.kv_heads * c.head_dim, c.hidden)
        w[p + "v"] = normal(c.kv_heads * c.head_dim, c.hidden)
        w[p + "o"] = torch.zeros(c.hidden, heads * c.head_dim, device=device)
        w[p + "g"] = normal(heads, c.hidden, std=0.01)
        stack = (1, c.dense) if i == 0 else (c.experts + 1, c.expert)
        w[p + "gate"] = normal(stack[0], stack[1], c.hidden)
        w[p + "up"] = normal(stack[0], stack[1], c.hidden)
        w[p + "down"] = torch.zeros(stack[0], c.hidden, stack[1], device=device)
        if i > 0:
            w[p + "router"] = normal(c.experts, c.hidden, std=0.02)
            w[p + "bias"] = torch.zeros(c.experts, device=device)      # moved by load, not by gradient
    return w


def layer_weights(w, layer):
    prefix = f"{layer}."
    return {name[len(prefix):]: t for name, t in w.items() if name.startswith(prefix)}


def rope_tables(config, device):
    """(cos, sin) of [context, rotary/2] for full and for window layers, float32, the YaRN magnitude applied."""
    c = config
    at = torch.arange(c.context, device=device, dtype=torch.float32)[:, None]

    def powers(theta, dim):
        return theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)

    def correction(rotations):
        return c.full_rotary * math.log(c.yarn_original / (rotations * 2 * math.pi)) / (2 * math.log(c.full_theta))

    low = max(math.floor(correction(c.beta_fast)), 0)
    high = min(math.ceil(correction(c.beta_slow)), c.full_rotary - 1)
    ramp = ((torch.arange(c.full_rotary // 2, device=device, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    full = powers(c.full_theta, c.full_rotary)
    full = (1.0 / (c.yarn_factor * full)) * ramp + (1.0 / full) * (1 - ramp)
    window = 1.0 / powers(c.window_theta, c.head_dim)
    m = c.attention_factor
    return {"full": ((at * full).cos() * m, (at * full).sin() * m), "window": ((at * window).cos(), (at * window).sin())}


def rms(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    """x [B, n, heads, d]; pairs (j, j + r/2) of the first r dimensions; cos, sin [B, n, r/2]."""
    half = cos.shape[-1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def project(x, p, cos, sin, head_dim, eps):
    """Normed input [B, n, hidden] -> q, k, v as [B, heads, n, d] in x's dtype."""
    batch, n, _ = x.shape
    dtype = x.dtype
    q = F.linear(x, p["q"].to(dtype)).view(batch, n, -1, head_dim)
    k = F.linear(x, p["k"].to(dtype)).view(batch, n, -1, head_dim)
    v = F.linear(x, p["v"].to(dtype)).view(batch, n, -1, head_dim)
    q = rotate(rms(q, p["q_norm"], eps), cos, sin).to(dtype)
    k = rotate(rms(k, p["k_norm"], eps), cos, sin).to(dtype)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def gated_output(h, x, o, p):
    """h + Wo (o * softplus(Wg x)); o is [B, heads, n, d]."""
    gate = F.softplus(F.linear(x, p["g"].to(x.dtype)).float())
    o = (o.transpose(1, 2).float() * gate[..., None]).to(x.dtype).flatten(2)
    return h + F.linear(o, p["o"].to(x.dtype)).float()


def route(y, p, top_k, scale):
    """(weights [.., experts] with zeros for experts not chosen, rows per expert)."""
    score = torch.sigmoid(F.linear(y, p["router"].to(y.dtype)).float())
    biased = score + p["bias"]
    mine, other = biased[..., :, None], biased[..., None, :]
    index = torch.arange(biased.shape[-1], device=y.device)
    ahead = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
    chosen = (ahead.sum(-1) < top_k).float()
    picked = score * chosen
    weights = picked / picked.sum(-1, keepdim=True) * scale
    return weights, chosen.detach().flatten(0, -2).sum(0)


def ffn(h, p, config_eps, top_k, scale, dtype):
    """h + FFN(norm(h)); dense where there is no router. Returns (h, rows per expert or None)."""
    y = rms(h, p["post_norm"], config_eps).to(dtype)
    gate = F.linear(y, p["gate"].to(dtype).flatten(0, 1))
    up = F.linear(y, p["up"].to(dtype).flatten(0, 1))
    act = F.silu(gate.float()) * up.float()
    load = None
    if "router" in p:
        weights, load = route(y, p, top_k, scale)
        weights = torch.cat([weights, torch.ones_like(weights[..., :1])], dim=-1)
        act = (act.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None]).flatten(-2)
    down = p["down"].to(dtype).permute(1, 0, 2).flatten(1, 2)
    return h + F.linear(act.to(dtype), down).float(), load


def block(h, p, cos, sin, mask, head_dim, eps, top_k, scale):
    """One layer in bf16 with a float32 residual, attention through flex_attention."""
    x = rms(h, p["input_norm"], eps).to(torch.bfloat16)
    q, k, v = project(x, p, cos, sin, head_dim, eps)
    o = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    h = gated_output(h, x, o, p)
    return ffn(h, p, eps, top_k, scale, torch.bfloat16)


def head_loss(h, norm, head, targets, weight, eps):
    """Sum of weighted cross entropies, and the sum of weights."""
    x = rms(h, norm, eps).to(torch.bfloat16)
    logits = F.linear(x, head.to(torch.bfloat16)).float()
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]
    return (nll * weight).sum(), weight.sum()


class Masks:
    """Block masks of packed rows. The document ids live in one buffer, so the mask functions never change identity."""

    def __init__(self, rows, length, window, device):
        self.doc = torch.zeros(rows, length, dtype=torch.int32, device=device)
        self.window, self.blocks, self.length = window, length // BLOCK, length
        doc = self.doc

        def full(b, _h, q, k):
            return (k <= q) & (doc[b, q] == doc[b, k])

        def window_mask(b, _h, q, k):
            return (k <= q) & (q - k < window) & (doc[b, q] == doc[b, k])

        self.functions = {"full": full, "window": window_mask}

    def build(self, position):
        """{full, window: BlockMask} of rows whose documents start where position is 0."""
        self.doc.copy_((position == 0).cumsum(1))
        blocks = self.doc.view(-1, self.blocks, BLOCK)
        first, last = blocks[..., 0], blocks[..., -1]
        at = torch.arange(self.blocks, device=self.doc.device)
        gap = at[:, None] - at[None, :]                              # query block - key block
        meets = (last[:, None, :] >= first[:, :, None]) & (gap >= 0)
        whole = (first == last)
        same = whole[:, :, None] & whole[:, None, :] & (first[:, :, None] == first[:, None, :]) & (gap > 0)
        near = (gap - 1) * BLOCK + 1 < self.window                   # smallest distance in the block pair
        inside = gap * BLOCK + BLOCK - 1 < self.window               # largest distance
        return {"full": self._mask("full", meets & ~same, same),
                "window": self._mask("window", meets & near & ~(same & inside), same & inside)}

    def _mask(self, kind, partial, complete):
        def ordered(m):
            m = m[:, None]
            order = torch.argsort(m.to(torch.int32), dim=-1, descending=True, stable=True)
            return m.sum(-1).to(torch.int32), order.to(torch.int32)

        return BlockMask.from_kv_blocks(*ordered(partial), *ordered(complete), BLOCK_SIZE=BLOCK,
                                        mask_mod=self.functions[kind], seq_lengths=(self.length, self.length))


class Trainer:
    """The compiled training forward: loss of packed rows."""

    def __init__(self, config, rows, length, device, compiled=True):
        self.config = config
        self.tables = rope_tables(config, device)
        self.masks = Masks(rows, length, config.window, device)
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.block, self.head = wrap(block), wrap(head_loss)

    def loss(self, w, tokens, weight, position):
        """(summed loss, summed weight, [rows per expert] of each sparse layer)."""
        c = self.config
        masks = self.masks.build(position)
        turn = {kind: (cos[position], sin[position]) for kind, (cos, sin) in self.tables.items()}
        targets = torch.roll(tokens, -1, 1)
        h = F.embedding(tokens, w["embed"])
        loads = []
        for i in range(len(c.heads)):
            kind = "full" if c.full(i) else "window"
            h, load = self.block(h, layer_weights(w, i), *turn[kind], masks[kind], c.head_dim, c.eps, c.top_k, c.routed_scale)
            if load is not None:
                loads.append(load)
        total, count = self.head(h, w["norm"], w["head"], targets, weight, c.eps)
        return total, count, loads
