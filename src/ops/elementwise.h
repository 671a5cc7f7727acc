// Sums, gates and activations, element by element.
#pragma once

#include <cstdint>

#include "tensor/context.h"

namespace riptide::ops {

/// x <- x + y. x, y f32 of one shape; y may be x. Each element is rounded once.
void add(Context& ctx, Tensor& x, const Tensor& y);

/// z = silu(gate) * up, silu(t) = t / (1 + exp(-t)). gate, up f32 [n, m]; z f32 [n, m], fresh.
/// The product may exceed the range of f16 in late layers of Laguna: it stays f32.
/// Source: transformers, LagunaMLP.
Tensor swiglu(Context& ctx, const Tensor& gate, const Tensor& up);

/// o <- o * softplus(g), softplus(t) = max(t, 0) + log1p(exp(-|t|)).
/// o f32 [n, heads * d]. g f32 [n, heads] scales each head, g [n, heads * d] each element.
/// Source: transformers, LagunaAttention (gating "per-head" and "per-element").
void mul_softplus(Context& ctx, Tensor& o, const Tensor& g, int64_t heads);

/// o <- o * sigmoid(g), sigmoid(t) = 1 / (1 + exp(-t)). Shapes as for mul_softplus.
/// Source: transformers, Qwen3_5Attention (per element), Qwen3_5MoeSparseMoeBlock (one gate for a row).
void mul_sigmoid(Context& ctx, Tensor& o, const Tensor& g, int64_t heads);

/// Heads that lie beside their gates, taken apart: x f32 [n, heads * 2 d], for each head d values and then d gates ->
/// both f32 [n, heads * d], fresh. Exact. Source: transformers, Qwen3_5Attention (q_proj).
struct HeadsAndGates {
    Tensor heads, gates;
};
HeadsAndGates split_gates(Context& ctx, const Tensor& x, int64_t heads);

/// x[i] += y[i] for i in [0, n): the bits of add.
void add_row(float* x, const float* y, int64_t n);

/// y[i] *= softplus(g[i / repeat]) for i in [0, n): the bits of mul_softplus.
void mul_softplus_row(float* y, const float* g, int64_t n, int64_t repeat);

/// The formulas over plain arrays, in Acc. Acc = float is what the ops above compute; double judges.
template <class Acc>
void swiglu_ref(const float* gate, const float* up, int64_t n, Acc* z);
/// y = o * softplus(g); `repeat` consecutive elements of o share one g. n counts elements of o.
template <class Acc>
void mul_softplus_ref(const float* o, const float* g, int64_t n, int64_t repeat, Acc* y);
/// y = o * sigmoid(g), likewise.
template <class Acc>
void mul_sigmoid_ref(const float* o, const float* g, int64_t n, int64_t repeat, Acc* y);

}  // namespace riptide::ops
