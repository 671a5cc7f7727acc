// Rotary embedding as checkpoints describe it.
#pragma once

#include <cstdint>
#include <string_view>

#include "io/hf_config.h"
#include "ops/rope.h"

namespace riptide {

/// One kind of layer's rotary embedding. factor == 0: no YaRN, and the fields after it mean nothing.
struct RopeConfig {
    double theta = 0;
    int64_t rotary_dim = 0;
    double factor = 0;
    double original_context = 0;
    double beta_fast = 0;
    double beta_slow = 0;
    /// What cos and sin are multiplied by: the final value.
    double magnitude = 1;

    bool yarn() const { return factor > 0; }
};

/// 0.1 ln(factor) + 1: YaRN's magnitude where a checkpoint does not say otherwise.
double yarn_magnitude(double factor);

/// From the object of transformers that holds rope_type, rope_theta and so on. attention_factor is the final magnitude;
/// without it the magnitude is yarn_magnitude(factor). `partial` holds unless the object has partial_rotary_factor. A
/// missing rope_type means "default"; other types than that and "yarn" are errors. Source: transformers,
/// modeling_rope_utils.py, _compute_yarn_parameters.
RopeConfig rope_from_hf(const ConfigReader& parameters, int64_t head_dim, double partial);

/// From config.json: rope_parameters (transformers 5), or rope_theta and rope_scaling, which hold the same. Where theta
/// stands in both places it must be the same.
RopeConfig rope_of_model(const ConfigReader& config, int64_t head_dim, double partial);

/// From GGUF's rope.freq_base and rope.scaling.* keys. `keys` has the architecture's prefix ("laguna.").
/// Magnitude: yarn_magnitude(factor) * rope.scaling.attn_factor (1 if absent), except that an attn_factor which already
/// equals yarn_magnitude(factor) within 1e-3 is final: converters of another school store it so.
/// Without rope.scaling.yarn_beta_fast and yarn_beta_slow: 32 and 1. rope.scaling.yarn_attn_factor is not read, as no
/// engine that these files were made for reads it; nor is yarn_ext_factor, which must mean 1 but is stored as the
/// factor by one early converter.
RopeConfig rope_from_gguf(const ConfigReader& keys, int64_t rotary_dim);

/// Throws Error naming `what` if a field is out of range.
void check_rope(const RopeConfig& rope, int64_t head_dim, std::string_view what);

ops::Rope make_rope(const RopeConfig& config);

}  // namespace riptide
