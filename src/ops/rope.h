// Rotary position embedding, plain and YaRN.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "tensor/context.h"

namespace riptide::ops {

/// What a layer rotates by. inv_freq has rotary_dim / 2 entries in radians per position; cos and sin are multiplied by
/// `magnitude`; the dimensions from rotary_dim on are left alone.
struct Rope {
    std::vector<float> inv_freq;
    float magnitude = 1;
    int64_t rotary_dim = 0;
};

/// inv_freq[i] = theta^(-2i / rotary_dim). REQUIRES rotary_dim even and positive.
Rope make_rope(double theta, int64_t rotary_dim);

/// YaRN: with corr(beta) = rotary_dim * ln(original_context / (beta * 2 pi)) / (2 ln theta),
/// low = max(floor(corr(beta_fast)), 0), high = min(ceil(corr(beta_slow)), rotary_dim - 1),
/// ramp(i) = clamp((i - low) / max(0.001, high - low), 0, 1):
/// inv_freq[i] = theta^(-2i / rotary_dim) * (ramp(i) / factor + 1 - ramp(i)).
/// Roundings to f32 happen where transformers has them. `magnitude` is final: the caller applies the checkpoint's rule.
/// Source: Peng et al. 2023 (arXiv 2309.00071); transformers, modeling_rope_utils.py, _compute_yarn_parameters.
Rope make_yarn_rope(double theta, int64_t rotary_dim, double factor, double original_context, double beta_fast,
                    double beta_slow, double magnitude);

/// Rotates in place. x f32 [n, heads, d], positions [n]. With h = rotary_dim / 2 and j < h:
/// (x[j], x[j + h]) <- (x[j] c - x[j + h] s, x[j + h] c + x[j] s), c = magnitude * cos(a), s = magnitude * sin(a),
/// a = f32(position) * inv_freq[j], all in f32.
/// REQUIRES rotary_dim <= d. Row-exact. Source: transformers, apply_rotary_pos_emb (rotate_half pairing).
void rope(Context& ctx, Tensor& x, std::span<const int32_t> positions, const Rope& rope);

/// Batch::rotary_position of all rows: `positions` itself where nothing was left out, else memory of ctx.arena. CPU.
std::span<const int32_t> rotary_positions(Context& ctx, const Batch& batch);

/// cos and sin for rotate_heads(), rope.rotary_dim floats for each row: made once for a step and kept in ctx. Valid
/// until the next call.
const float* rope_table(Context& ctx, std::span<const int32_t> positions, const Rope& rope);
/// y = x rotated: [heads, d] of one row, given its part of the table. y may be x. The bits of rope. Thread-safe.
void rotate_heads(const float* x, int64_t heads, int64_t d, int64_t rotary_dim, const float* table, float* y);

/// The rotation over plain arrays, with products and sums in Acc and the angle in f32. Acc = float is what rope
/// computes.
template <class Acc>
void rope_ref(const float* x, int64_t rows, int64_t heads, int64_t d, const int32_t* positions, const Rope& rope,
              Acc* y);

}  // namespace riptide::ops
