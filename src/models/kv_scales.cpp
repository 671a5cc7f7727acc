#include "models/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

/// What kv_cache_scheme says, if it is not what e4m3 is: scales for 4 bits or for int8 mean another range.
std::string other_scheme(const Checkpoint& checkpoint) {
    const json::value* config = checkpoint.metadata().if_contains("config");
    if (config == nullptr) return {};
    boost::system::error_code missing;
    const std::pair<std::string, json::value> expected[] = {{"num_bits", 8}, {"type", "float"}};
    for (const auto& [key, wanted] : expected) {
        const auto* found = config->find_pointer("/quantization_config/kv_cache_scheme/" + key, missing);
        if (found != nullptr && *found != wanted) return fmt::format("{} {}", key, json::serialize(*found));
    }
    return {};
}

/// The least power of two that is not below x. REQUIRES x > 0, finite.
float power_above(float x) {
    int exponent = 0;
    const float mantissa = std::frexp(x, &exponent);  // x = mantissa 2^exponent, 1/2 <= mantissa < 1
    return std::ldexp(1.0f, mantissa == 0.5f ? exponent - 1 : exponent);
}

}  // namespace

KvScales::KvScales(const Checkpoint& checkpoint, const ModelOptions& options) : k_(options.fp8_k), v_(options.fp8_v) {
    if (k_ || v_) refused_ = other_scheme(checkpoint);
}

float KvScales::read(WeightLoader& bind, const KvScaleNames& names, char part) {
    TensorNames wanted;
    for (const std::string& attention : names.attention)
        for (const char* form :
             {"{0}.{1}_scale", "{0}.{1}_proj.{1}_scale", "{0}.attn.{1}_scale", "{0}.{1}_proj.output_scale"})
            wanted.hf.push_back(fmt::format(fmt::runtime(form), attention, part));
    if (!bind.has(wanted)) return 1;
    ++found_[part == 'v'];
    if (!refused_.empty()) return 1;
    const std::vector<float> scales = bind.scales(wanted, names.kv_heads);
    return power_above(*std::max_element(scales.begin(), scales.end()));
}

KvScale KvScales::next(WeightLoader& bind, const KvScaleNames& names) {
    KvScale scale;
    if (k_) scale.k = read(bind, names, 'k');
    if (v_) scale.v = read(bind, names, 'v');
    for (const TensorNames* matrix : {&names.v_proj, &names.o_proj}) {
        if (scale.v == 1 || bind.dtype_of(*matrix) != DType::f16) continue;
        if (halves_++ == 0) half_ = matrix == &names.v_proj ? "v_proj" : "o_proj";
        scale.v = 1;
    }
    ++layers_;
    return scale;
}

std::string KvScales::text() const {
    if (found_[0] == 0 && found_[1] == 0) return {};
    if (!refused_.empty())
        return fmt::format("the checkpoint's K/V scales are not used: its kv_cache_scheme has {}, not 8-bit floats",
                           refused_);
    std::string text;
    if (k_) text = fmt::format("K in {}{}", found_[0], v_ ? ", " : "");
    if (v_) text += fmt::format("V in {}", found_[1] - halves_);
    text += fmt::format(" of {} layers", layers_);
    if (halves_ > 0)
        text += fmt::format("; not V in {} {}, where {} is f16", halves_, halves_ == 1 ? "layer" : "layers", half_);
    return fmt::format("the checkpoint's K/V scales, rounded up to powers of two: {}", text);
}

}  // namespace riptide
