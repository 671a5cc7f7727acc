"""The demo scorer in PyTorch: a small Qwen3, and how well a window of its tokens finds what it asks for.

Weights live in a flat dict {name: float32 tensor}. The score of a token is what src/models/scorer.h says: attention of the
window's rows with queries and keys that are not rotated, mean over heads and rows.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F

MATRICES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
VECTORS = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm", "q_norm": "self_attn.q_norm",
           "k_norm": "self_attn.k_norm"}


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int = 4096
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    inner: int = 640
    theta: float = 1000000.0
    eps: float = 1e-6
    context: int = 10240


def init(c, device, seed):
    """Fresh weights; embedding and head are one. Output projections start at zero, so every layer starts as the identity."""
    rng = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape, std=None):
        return torch.randn(*shape, generator=rng, device=device) * (std or 0.6 / math.sqrt(shape[-1]))

    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    w = {"embed": normal(c.vocab_size, c.hidden, std=0.03), "norm": torch.ones(c.hidden, device=device)}
    for i in range(c.layers):
        p = f"{i}."
        w |= {p + "input_norm": torch.ones(c.hidden, device=device), p + "post_norm": torch.ones(c.hidden, device=device),
              p + "q_norm": torch.ones(c.head_dim, device=device), p + "k_norm": torch.ones(c.head_dim, device=device),
              p + "q": normal(q, c.hidden), p + "k": normal(kv, c.hidden), p + "v": normal(kv, c.hidden),
              p + "o": torch.zeros(c.hidden, q, device=device), p + "gate": normal(c.inner, c.hidden),
              p + "up": normal(c.inner, c.hidden), p + "down": torch.zeros(c.hidden, c.inner, device=device)}
    return w


def layer_weights(w, layer):
    prefix = f"{layer}."
    return {name[len(prefix):]: t for name, t in w.items() if name.startswith(prefix)}


def rope_tables(c, length, device):
    """cos, sin [length, head_dim / 2] in float32."""
    half = c.head_dim // 2
    frequency = c.theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rms(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    """x [B, n, heads, d], cos, sin [n, d / 2]; pairs (j, j + d / 2)."""
    a, b = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def block(h, p, cos, sin, head_dim, eps, dtype):
    """One layer. h [B, n, hidden] float32 -> (h, queries [B, n, heads, d], keys [B, n, kv heads, d]), both normed and not
    rotated, in dtype."""
    batch, n, _ = h.shape
    x = rms(h, p["input_norm"], eps).to(dtype)
    q = rms(F.linear(x, p["q"].to(dtype)).view(batch, n, -1, head_dim), p["q_norm"], eps)
    k = rms(F.linear(x, p["k"].to(dtype)).view(batch, n, -1, head_dim), p["k_norm"], eps)
    v = F.linear(x, p["v"].to(dtype)).view(batch, n, -1, head_dim)
    groups = q.shape[2] // k.shape[2]
    o = F.scaled_dot_product_attention(rotate(q, cos, sin).to(dtype).transpose(1, 2),
                                       rotate(k, cos, sin).to(dtype).repeat_interleave(groups, 2).transpose(1, 2),
                                       v.repeat_interleave(groups, 2).transpose(1, 2), is_causal=True)
    h = h + F.linear(o.transpose(1, 2).reshape(batch, n, -1), p["o"].to(dtype)).float()
    y = rms(h, p["post_norm"], eps).to(dtype)
    inner = F.silu(F.linear(y, p["gate"].to(dtype)).float()) * F.linear(y, p["up"].to(dtype)).float()
    return h + F.linear(inner.to(dtype), p["down"].to(dtype)).float(), q.to(dtype), k.to(dtype)


def head_loss(h, norm, embed, targets, weight, eps, dtype):
    """Sum of weighted cross entropies, and the sum of weights."""
    logits = F.linear(rms(h, norm, eps).to(dtype), embed.to(dtype)).float()
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]
    return (nll * weight).sum(), weight.sum()


def attention_mass(q, k, rows, keys):
    """q [B, n, heads, d], k [B, n, kv heads, d]; rows [B, W, Q]: the rows of each window; keys [B, W, 2]: each window's tokens
    to choose from -> [B, W, n], each window's mean over heads and rows of softmax(q k / sqrt d) over its tokens, float32."""
    batch, n, heads, d = q.shape
    windows, count = rows.shape[1:]
    kv = k.shape[2]
    at = rows.reshape(batch, -1, 1, 1).expand(-1, -1, heads, d)
    asked = q.gather(1, at).view(batch, windows * count, kv, heads // kv, d).permute(0, 2, 3, 1, 4)     # [B, kv, G, W Q, d]
    score = torch.matmul(asked.reshape(batch, kv, -1, d), k.permute(0, 2, 3, 1)).float() / math.sqrt(d)
    score = score.view(batch, heads, windows, count, n)
    token = torch.arange(n, device=q.device)
    seen = (token >= keys[..., :1]) & (token < keys[..., 1:])                                           # [B, W, n]
    score = score.masked_fill(~seen[:, None, :, None], float("-inf"))
    return torch.softmax(score, -1).mean((1, 3))


def span_mass(mass, spans):
    """mass [B, W, n], spans [B, W, E, 2] -> the sum inside of each span, [B, W, E]."""
    total = F.pad(mass.cumsum(-1), (1, 0))
    return total.gather(-1, spans[..., 1]) - total.gather(-1, spans[..., 0])


class Scorer:
    """Forward over whole rows, positions from 0. compiled: through torch.compile."""

    def __init__(self, config, length, device, dtype, compiled):
        self.c, self.dtype = config, dtype
        self.tables = rope_tables(config, length, device)
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.block, self.head = wrap(block), wrap(head_loss)

    def states(self, w, tokens):
        """[B, n] -> (residual stream behind the last layer, [(queries, keys) of every layer])."""
        cos, sin = (t[:tokens.shape[1]] for t in self.tables)
        h, found = F.embedding(tokens, w["embed"]), []
        for i in range(self.c.layers):
            h, q, k = self.block(h, layer_weights(w, i), cos, sin, self.c.head_dim, self.c.eps, self.dtype)
            found.append((q, k))
        return h, found

    def loss(self, w, h, tokens, weight):
        """Next-token loss: (sum, sum of weights)."""
        return self.head(h, w["norm"], w["embed"], torch.roll(tokens, -1, 1), weight, self.c.eps, self.dtype)


def to_disk(w, c):
    """{name of the Qwen3 releases: tensor}, bf16."""
    out = {"model.embed_tokens.weight": w["embed"], "model.norm.weight": w["norm"]}
    for i in range(c.layers):
        for names in (MATRICES, VECTORS):
            for short, name in names.items():
                out[f"model.layers.{i}.{name}.weight"] = w[f"{i}.{short}"]
    return {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in out.items()}


def hf_config(c, eos):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": c.vocab_size, "hidden_size": c.hidden,
            "intermediate_size": c.inner, "num_hidden_layers": c.layers, "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim, "max_position_embeddings": c.context,
            "rms_norm_eps": c.eps, "rope_theta": c.theta, "rope_scaling": None, "attention_bias": False, "hidden_act": "silu",
            "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None,
            "layer_types": ["full_attention"] * c.layers, "eos_token_id": eos, "bos_token_id": None, "dtype": "bfloat16"}
