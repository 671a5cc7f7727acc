"""Muon for the matrices inside the layers, Adam for the rest, and a stand-in for Q4_K rounding."""
import torch

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def orthogonal(g, steps=5):
    """Newton-Schulz iteration on a stack of matrices: nearly the closest orthogonal ones (Muon, K. Jordan 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, orthogonalised per matrix; stacked tensors count as one matrix per entry. Equal shapes share a batch."""

    def __init__(self, params, momentum=0.95, decay=0.05):
        self.momentum, self.decay, self.groups = momentum, decay, {}
        for p in params:
            self.groups.setdefault(p.shape[-2:], []).append(p)
        self.buffers = {shape: torch.zeros(sum(p.numel() // (shape[0] * shape[1]) for p in ps), *shape, device=ps[0].device)
                        for shape, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, lr):
        for shape, params in self.groups.items():
            grad = torch.cat([p.grad.view(-1, *shape) for p in params])
            buffer = self.buffers[shape]
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp_(buffer, self.momentum)).float().contiguous()
            update *= max(1.0, shape[0] / shape[1]) ** 0.5
            parts = update.split([p.numel() // (shape[0] * shape[1]) for p in params])
            torch._foreach_mul_(params, 1 - lr * self.decay)
            torch._foreach_add_(params, [u.view_as(p) for u, p in zip(parts, params)], alpha=-lr)


class Optimizer:
    """lr_scale multiplies every rate; the router's selection bias follows the loads instead of a gradient."""

    RATES = {"embed": 0.006, "head": 0.002, "other": 0.002}

    def __init__(self, w, muon_lr=0.02, bias_rate=2e-3):
        self.w, self.muon_lr, self.bias_rate = w, muon_lr, bias_rate
        self.trained = {n: t.requires_grad_(True) for n, t in w.items() if not n.endswith("bias")}
        self.muon = Muon([t for n, t in self.trained.items() if n.split(".")[-1] in MATRICES])
        groups = {"embed": [w["embed"]], "head": [w["head"]],
                  "other": [t for n, t in self.trained.items() if n.split(".")[-1] not in MATRICES + ("embed", "head")]}
        self.adam = torch.optim.AdamW([dict(params=p, lr=self.RATES[n], base=self.RATES[n]) for n, p in groups.items()],
                                      betas=(0.9, 0.97), eps=1e-8, weight_decay=0.0, fused=True)

    def zero_grad(self):
        for t in self.trained.values():
            t.grad = None

    @torch.no_grad()
    def step(self, lr_scale, loads):
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * lr_scale
        self.adam.step()
        self.muon.step(self.muon_lr * lr_scale)
        for layer, load in enumerate(loads, start=1):
            self.w[f"{layer}.bias"] -= self.bias_rate * lr_scale * torch.sign(load - load.mean())


def fake_q4k(t):
    """Rounds a [..., cols] tensor as Q4_K would: 4-bit values in groups of 32, 6-bit scales and minima per 256."""
    shape = t.shape
    g = t.reshape(-1, 8, 32)
    low = g.amin(-1, keepdim=True).clamp(max=0)
    scale = (g.amax(-1, keepdim=True) - low).clamp_min(1e-8) / 15
    top_scale = scale.amax(1, keepdim=True) / 63
    top_low = (-low).amax(1, keepdim=True).clamp_min(1e-8) / 63
    scale = (scale / top_scale).round().clamp_min(1) * top_scale
    low = -((-low) / top_low).round() * top_low
    return (((g - low) / scale).round().clamp(0, 15) * scale + low).reshape(shape)


QUANTISED = MATRICES + ("g", "embed")


class FakeQuant:
    """with FakeQuant(w): the forward and backward see rounded weights; the exact ones return afterwards (straight-through)."""

    def __init__(self, w):
        self.tensors = [t for n, t in w.items() if n.split(".")[-1] in QUANTISED]

    @torch.no_grad()
    def __enter__(self):
        self.kept = [t.detach().clone() for t in self.tensors]
        for t in self.tensors:
            t.data.copy_(fake_q4k(t.detach()))

    @torch.no_grad()
    def __exit__(self, *_):
        for t, kept in zip(self.tensors, self.kept):
            t.data.copy_(kept)
