"""The demo drafter in PyTorch: DFlash for training, all blocks of a sequence at once.

A block is [anchor, MASK, ..., MASK]; slot j predicts the token at the anchor's position + j. It sees the target's hidden
states of all positions before the anchor, through keys and values made of them, and itself; a window layer sees `window`
positions and is causal within the block.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class DraftConfig:
    taps: tuple = (1, 4, 7)             # target layers whose outputs are read, 0-based
    block: int = 8
    mask_id: int = 12
    layers: tuple = ("full", "window", "full")
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    inner: int = 768
    window: int = 256
    theta: float = 100000.0
    eps: float = 1e-6
    context: int = 8192


def hf_config(c, target):
    """config.json in z-lab's dialect. target: model.Config."""
    kinds = ["full_attention" if kind == "full" else "sliding_attention" for kind in c.layers]
    return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": c.block, "hidden_size": target.hidden,
            "dflash_config": {"mask_token_id": c.mask_id, "target_layer_ids": list(c.taps)},
            "num_target_layers": len(target.heads), "num_hidden_layers": len(c.layers), "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim, "intermediate_size": c.inner, "hidden_act": "silu",
            "max_position_embeddings": c.context, "rms_norm_eps": c.eps, "rope_theta": c.theta, "rope_scaling": None,
            "attention_bias": False, "layer_types": kinds, "sliding_window": c.window, "use_sliding_window": True,
            "vocab_size": target.vocab_size, "tie_word_embeddings": False, "dtype": "bfloat16"}


def init(c, hidden, device, seed):
    """Fresh weights under z-lab's names. Output projections start at zero, so every layer starts as the identity."""
    rng = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, device=device) / math.sqrt(shape[-1])

    def ones(size):
        return torch.ones(size, device=device)

    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    w = {"fc.weight": normal(hidden, len(c.taps) * hidden), "hidden_norm.weight": ones(hidden), "norm.weight": ones(hidden)}
    for i in range(len(c.layers)):
        p = f"layers.{i}."
        w |= {p + "input_layernorm.weight": ones(hidden), p + "post_attention_layernorm.weight": ones(hidden),
              p + "self_attn.q_norm.weight": ones(c.head_dim), p + "self_attn.k_norm.weight": ones(c.head_dim),
              p + "self_attn.q_proj.weight": normal(q, hidden), p + "self_attn.k_proj.weight": normal(kv, hidden),
              p + "self_attn.v_proj.weight": normal(kv, hidden),
              p + "self_attn.o_proj.weight": torch.zeros(hidden, q, device=device),
              p + "mlp.gate_proj.weight": normal(c.inner, hidden), p + "mlp.up_proj.weight": normal(c.inner, hidden),
              p + "mlp.down_proj.weight": torch.zeros(hidden, c.inner, device=device)}
    return w


def rms(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, position, theta):
    """x [B, n, heads, d], position [B, n]; pairs (j, j + d/2)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position[:, :, None, None].float() * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Drafter:
    """embed, head: the target's, frozen. dtype: of the products."""

    def __init__(self, config, w, embed, head, dtype):
        self.c, self.w, self.dtype = config, w, dtype
        self.embed, self.head = embed.float(), head.to(dtype)

    def linear(self, x, name):
        return F.linear(x.to(self.dtype), self.w[name].to(self.dtype))

    def masks(self, anchors, length):
        """{kind: what each row of each block sees, [B, 1, blocks * block, length + blocks * block]}."""
        c, (batch, blocks) = self.c, anchors.shape
        slot = torch.arange(c.block, device=anchors.device)
        key = torch.arange(length, device=anchors.device)
        at = anchors[:, :, None] + slot                                                        # [B, blocks, block]
        before = (key < anchors[:, :, None, None]).expand(-1, -1, c.block, -1)                 # strictly: [B, blocks, block, S]
        near = key > at[..., None] - c.window
        number = torch.arange(blocks * c.block, device=anchors.device)
        same = number[:, None] // c.block == number[None] // c.block
        past = same & (number[None] <= number[:, None])
        out = {}
        for kind, context, inside in (("full", before, same), ("window", before & near, past)):
            context = context.reshape(batch, blocks * c.block, length)
            out[kind] = torch.cat([context, inside.expand(batch, -1, -1)], 2)[:, None]
        return out

    def __call__(self, features, tokens, anchors, mask_id=None):
        """features [B, S, taps * hidden], tokens [B, blocks] at the anchors, anchors [B, blocks] positions ->
        states before the head, [B, blocks, block, hidden]."""
        c, w = self.c, self.w
        batch, blocks = anchors.shape
        length, rows = features.shape[1], anchors.shape[1] * c.block
        ids = torch.full((batch, blocks, c.block), c.mask_id if mask_id is None else mask_id, device=anchors.device)
        ids[:, :, 0] = tokens
        x = F.embedding(ids.reshape(batch, rows), self.embed)
        slot = torch.arange(c.block, device=anchors.device)
        at = (anchors[:, :, None] + slot).reshape(batch, rows)
        everywhere = torch.cat([torch.arange(length, device=at.device).expand(batch, -1), at], 1)
        masks = self.masks(anchors, length)
        context = rms(self.linear(features, "fc.weight"), w["hidden_norm.weight"], c.eps)
        for i, kind in enumerate(c.layers):
            p = f"layers.{i}."
            h = rms(x, w[p + "input_layernorm.weight"], c.eps)
            both = torch.cat([context, h], 1)
            q = self.linear(h, p + "self_attn.q_proj.weight").view(batch, rows, c.heads, c.head_dim)
            k = self.linear(both, p + "self_attn.k_proj.weight").view(batch, length + rows, c.kv_heads, c.head_dim)
            v = self.linear(both, p + "self_attn.v_proj.weight").view(batch, length + rows, c.kv_heads, c.head_dim)
            q = rotate(rms(q, w[p + "self_attn.q_norm.weight"], c.eps), at, c.theta).to(self.dtype).transpose(1, 2)
            k = rotate(rms(k, w[p + "self_attn.k_norm.weight"], c.eps), everywhere, c.theta).to(self.dtype).transpose(1, 2)
            groups = c.heads // c.kv_heads
            o = F.scaled_dot_product_attention(q, k.repeat_interleave(groups, 1),
                                               v.transpose(1, 2).repeat_interleave(groups, 1), attn_mask=masks[kind])
            x = x + self.linear(o.transpose(1, 2).reshape(batch, rows, -1), p + "self_attn.o_proj.weight").float()
            h = rms(x, w[p + "post_attention_layernorm.weight"], c.eps)
            inner = F.silu(self.linear(h, p + "mlp.gate_proj.weight").float()) * self.linear(h, p + "mlp.up_proj.weight").float()
            x = x + self.linear(inner, p + "mlp.down_proj.weight").float()
        return rms(x, w["norm.weight"], c.eps).view(batch, blocks, c.block, -1)

    def logits(self, states):
        return F.linear(states.to(self.dtype), self.head).float()
