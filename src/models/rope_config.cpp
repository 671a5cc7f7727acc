#include "models/rope_config.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

double yarn_magnitude(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

namespace {

constexpr double kBetaFast = 32, kBetaSlow = 1;  // of transformers and llama.cpp where a checkpoint does not say

/// Zero would mean that there is no YaRN.
double yarn_factor(const ConfigReader& from, const char* key) {
    const double factor = from.get<double>(key);
    RT_CHECK(std::isfinite(factor) && factor >= 1, "{} is {}, expected at least 1", from.name_of(key), factor);
    return factor;
}

void read_hf_yarn(const ConfigReader& parameters, RopeConfig& rope) {
    rope.factor = yarn_factor(parameters, "factor");
    rope.original_context = parameters.get<double>("original_max_position_embeddings");
    rope.beta_fast = parameters.get_or<double>("beta_fast", kBetaFast);
    rope.beta_slow = parameters.get_or<double>("beta_slow", kBetaSlow);
    RT_CHECK(parameters.get_or<bool>("truncate", true), "{} is false, which is not supported",
             parameters.name_of("truncate"));
    const auto attention_factor = parameters.find<double>("attention_factor");
    RT_CHECK(attention_factor || (!parameters.has("mscale") && !parameters.has("mscale_all_dim")),
             "{} is not supported without attention_factor", parameters.name_of("mscale"));
    rope.magnitude = attention_factor.value_or(yarn_magnitude(rope.factor));
}

/// rope.scaling.yarn_X, or rope.scaling.X in older files; llama.cpp's converter writes neither unless config.json has
/// it.
double yarn_key(const ConfigReader& keys, const std::string& name, double otherwise) {
    return keys.get_or<double>("rope.scaling.yarn_" + name, keys.get_or<double>("rope.scaling." + name, otherwise));
}

/// What transformers puts beside theta.
RopeConfig rope_with(double theta, const ConfigReader& parameters, int64_t head_dim, double partial) {
    RopeConfig rope;
    rope.theta = theta;
    const double part = parameters.get_or<double>("partial_rotary_factor", partial);
    RT_CHECK(part > 0 && part <= 1, "{} is {}, expected more than 0 and at most 1",
             parameters.name_of("partial_rotary_factor"), part);
    rope.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * part);
    const std::string type =
        parameters.get_or<std::string>("rope_type", parameters.get_or<std::string>("type", "default"));
    if (type == "yarn") read_hf_yarn(parameters, rope);
    else
        RT_CHECK(type == "default", "{} is \"{}\"; supported are default and yarn", parameters.name_of("rope_type"),
                 type);
    return rope;
}

}  // namespace

RopeConfig rope_from_hf(const ConfigReader& parameters, int64_t head_dim, double partial) {
    return rope_with(parameters.get<double>("rope_theta"), parameters, head_dim, partial);
}

RopeConfig rope_of_model(const ConfigReader& c, int64_t head_dim, double partial) {
    const bool nested = c.has("rope_parameters");
    const std::optional<double> beside = nested ? c.find<double>("rope_theta") : c.get<double>("rope_theta");
    const json::object none;
    const ConfigReader parameters = nested                  ? c.child("rope_parameters")
                                    : c.has("rope_scaling") ? c.child("rope_scaling")
                                                            : ConfigReader(none, "config.json");
    const double theta = beside && !parameters.has("rope_theta") ? *beside : parameters.get<double>("rope_theta");
    RT_CHECK(!beside || theta == *beside, "{} and {} differ", c.name_of("rope_theta"),
             parameters.name_of("rope_theta"));
    return rope_with(theta, parameters, head_dim, partial);
}

RopeConfig rope_from_gguf(const ConfigReader& keys, int64_t rotary_dim) {
    RopeConfig rope;
    rope.theta = keys.get<double>("rope.freq_base");
    rope.rotary_dim = rotary_dim;
    const std::string type = keys.get_or<std::string>("rope.scaling.type", "none");
    if (type == "yarn") {
        rope.factor = yarn_factor(keys, "rope.scaling.factor");
        rope.original_context = keys.get<double>("rope.scaling.original_context_length");
        rope.beta_fast = yarn_key(keys, "beta_fast", kBetaFast);
        rope.beta_slow = yarn_key(keys, "beta_slow", kBetaSlow);
        const double derived = yarn_magnitude(rope.factor);
        const double stored = keys.get_or<double>("rope.scaling.attn_factor", 1);
        rope.magnitude = std::abs(stored - derived) <= 1e-3 ? stored : derived * stored;
        return rope;
    }
    // "linear" with factor 1 is how some converters spell "no scaling"; a factor without a type is linear.
    const bool linear = type == "linear" || !keys.has("rope.scaling.type");
    const double factor = keys.get_or<double>("rope.scaling.factor", keys.get_or<double>("rope.scale_linear", 1));
    const bool plain = linear ? factor == 1 : type == "none" || type == "default" || type.empty();
    RT_CHECK(plain, "{} is \"{}\" with factor {}; supported are none and yarn", keys.name_of("rope.scaling.type"), type,
             factor);
    return rope;
}

void check_rope(const RopeConfig& rope, int64_t head_dim, std::string_view what) {
    RT_CHECK(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0 && rope.rotary_dim <= head_dim,
             "{}: {} of {} dimensions rotate, expected an even number from 2 to {}", what, rope.rotary_dim, head_dim,
             head_dim);
    RT_CHECK(std::isfinite(rope.theta) && rope.theta > 1, "{}: theta is {}, expected more than 1", what, rope.theta);
    RT_CHECK(std::isfinite(rope.magnitude) && rope.magnitude > 0,
             "{}: the magnitude (attention factor) is {}, expected a positive number", what, rope.magnitude);
    RT_CHECK(rope.factor == 0 || (std::isfinite(rope.factor) && rope.factor >= 1),
             "{}: the YaRN factor is {}, expected at least 1", what, rope.factor);
    if (!rope.yarn()) return;
    RT_CHECK(rope.original_context >= 1 && rope.original_context < 1e9,
             "{}: YaRN's original context is {}, expected at least 1", what, rope.original_context);
    RT_CHECK(rope.beta_slow > 0 && rope.beta_fast > rope.beta_slow && rope.beta_fast < 1e9,
             "{}: YaRN's beta_fast is {} and beta_slow {}, expected beta_fast > beta_slow > 0", what, rope.beta_fast,
             rope.beta_slow);
}

ops::Rope make_rope(const RopeConfig& c) {
    if (!c.yarn()) return ops::make_rope(c.theta, c.rotary_dim);
    return ops::make_yarn_rope(c.theta, c.rotary_dim, c.factor, c.original_context, c.beta_fast, c.beta_slow,
                               c.magnitude);
}

}  // namespace riptide
