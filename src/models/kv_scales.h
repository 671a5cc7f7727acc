// The scales that checkpoints bring for an FP8 K/V cache, folded into weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/binder.h"
#include "models/model.h"

namespace riptide {

/// Of one layer: the cache holds k / KvScale::k and v / KvScale::v. Powers of two.
struct KvScale {
    float k = 1, v = 1;
};

/// Where a layer's scales may stand, and what they are folded into.
struct KvScaleNames {
    std::vector<std::string> attention;  // "model.layers.3.self_attn"
    int64_t kv_heads = 0;                // one value, or one for each of these
    TensorNames v_proj, o_proj;          // matrices that the binder has
};

/// e4m3 holds magnitudes from 2^-6 to 448 with three bits behind the point. What a checkpoint was calibrated to lies in
/// that range once it is divided by the layer's scale. Both sides of the cache are linear, so weights can do it:
///   K / s   k_norm's weight / s (the rotation that follows keeps it), q_norm's weight * s: q . k is what it was
///   V / s   v_proj / s, o_proj * s: what lies between, the softmax's sum and the gate, is linear in V
/// s is the scale rounded up to a power of two, the largest of the heads where each has its own: so the factors are
/// exact in floats, nothing that fitted is cut off, and the rest is nothing to e4m3's relative steps. With a cache in
/// F32 no bit of a logit would change.
///
/// Names, below the attention's: k_scale, k_proj.k_scale, attn.k_scale, k_proj.output_scale. Not thread-safe.
class KvScales {
  public:
    /// Nothing counts unless the options say that K or V is FP8, or if the config's kv_cache_scheme is for other codes.
    KvScales(const Checkpoint& checkpoint, const ModelOptions& options);

    /// Of the next layer; 1 where it has none or where it does not count. V is left alone where v_proj or o_proj is
    /// f16, in which a power of two may cost bits. Throws Error that names the tensor unless its values are floats from
    /// 2^-64 to 2^64, one or kv_heads of them.
    KvScale next(WeightLoader& bind, const KvScaleNames& names);

    /// What was used and what was not, in a sentence; empty if there was nothing to use.
    std::string text() const;

  private:
    float read(WeightLoader& bind, const KvScaleNames& names, char part);

    bool k_ = false, v_ = false;
    std::string refused_;  // kv_cache_scheme, if it is another one
    std::string half_;     // which matrix, of the first layer where f16 kept V as it is
    int64_t layers_ = 0;
    int64_t found_[2] = {};  // of them with a scale for K, for V
    int64_t halves_ = 0;     // whose V is left alone
};

}  // namespace riptide
