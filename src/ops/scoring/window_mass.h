// How much attention the rows of a question pay to each token of a prompt. For scorers.
#pragma once

#include <cstdint>

#include "tensor/context.h"

namespace riptide::ops {

/// Columns of a row of stored keys: head_dim rounded up to 16, zeros behind it.
inline int64_t score_key_columns(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
/// What keys are stored as: f16 on a GPU (saturating), else f32.
inline DType score_key_dtype(const Gpu* gpu) { return gpu != nullptr ? DType::f16 : DType::f32; }

/// keys[first + r] <- k[r] for all rows. k f32 [n, Hkv, d]; keys [capacity, Hkv, score_key_columns(d)] of
/// score_key_dtype(), contiguous. Exact but for f16's rounding.
void store_score_keys(Context& ctx, const Tensor& k, int64_t first, Tensor& keys);

/// mass[j] += sum_t sum_h p_th(j),   p_th = softmax_j(softmax_scale * q[t, h] . keys[j, h / (H / Hkv)])
/// for the rows t = begin .. begin + q.rows() - 1 of a window, over all keys j in [0, n) but those behind t in the
/// window: causal within the window, both ways elsewhere. q f32 [rows, H, d]; keys as store_score_keys left them, n <=
/// capacity rows of them valid; mass f32 [n]. REQUIRES begin + q.rows() <= n. Determinism: bits are a function of the
/// arguments, not of threads. Error: scores round q and keys to f16 on a GPU; sums of f32 in order of t and h. Cost:
/// twice 2 * rows * H * n * d FLOPs, keys read twice.
void add_window_mass(Context& ctx, const Tensor& q, const Tensor& keys, int64_t begin, int64_t n, float softmax_scale,
                     Tensor& mass);

/// The formula over plain arrays of d columns, in Acc: the judge. mass [n] is overwritten.
template <class Acc>
void window_mass_ref(const float* q, int64_t rows, int64_t heads, const float* keys, int64_t kv_heads, int64_t d,
                     int64_t begin, int64_t n, float softmax_scale, Acc* mass);

}  // namespace riptide::ops
