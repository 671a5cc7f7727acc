#include "apps/convert/packed_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

/// One side of a scheme, in the order and with the keys that compressed-tensors writes.
struct Rounding {
    const char *block, *dynamic, *group, *bits, *observer, *scales, *strategy;
};

std::string rounding_text(const Rounding& r) {
    return fmt::format(R"({{
          "actorder": null,
          "block_structure": {},
          "dynamic": {},
          "group_size": {},
          "num_bits": {},
          "observer": {},
          "observer_kwargs": {{}},
          "scale_dtype": {},
          "strategy": "{}",
          "symmetric": true,
          "type": "float",
          "zp_dtype": null
        }})",
                       r.block, r.dynamic, r.group, r.bits, r.observer, r.scales, r.strategy);
}

constexpr Rounding kFp8Weights = {"[128, 128]", "false", "null", "8", "\"memoryless_minmax\"", "null", "block"};
constexpr Rounding kFp8Inputs = {"null", "true", "128", "8", "null", "null", "group"};
constexpr Rounding kNvfp4Weights = {
    "null", "false", "16", "4", "\"memoryless_minmax\"", "\"torch.float8_e4m3fn\"", "tensor_group"};

/// "model.layers.7.self_attn.q_proj" -> "self_attn.q_proj"; "" without a layer.
std::string within_layer(const std::string& module) {
    constexpr std::string_view kLayers = "layers.";
    const size_t at = module.find(kLayers);
    const size_t end = at == std::string::npos ? at : module.find('.', at + kLayers.size());
    return end == std::string::npos ? "" : module.substr(end + 1);
}

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '.' ? std::string("\\.") : std::string(1, c);
    return out;
}

/// What "ignore" says of the modules that stay: by name, or as one expression where no layer has such a one rounded.
std::set<std::string> ignored_modules(const std::set<std::string>& packed, const std::set<std::string>& kept) {
    std::set<std::string> rounded, out;
    for (const std::string& module : packed) rounded.insert(within_layer(module));
    for (const std::string& module : kept) {
        const std::string inside = within_layer(module);
        if (inside.empty() || rounded.contains(inside)) out.insert(module);
        else out.insert("re:.*\\." + escaped(inside) + "$");
    }
    return out;
}

/// `text` unless it has "quantization_config": null, which says that nothing is quantised; then, written anew without.
std::string without_null(const std::string& text) {
    json::object members = parse_json(text, "config.json").as_object();
    const json::value* found = members.if_contains("quantization_config");
    if (found == nullptr || !found->is_null()) return text;
    members.stable_erase("quantization_config");
    return json::serialize(members);
}

}  // namespace

std::string packed_config(const std::string& config, PackedType type, const PackedPlan& plan) {
    const bool fp8 = type == PackedType::fp8;
    const char* const form = fp8 ? "float-quantized" : "nvfp4-pack-quantized";
    std::vector<std::string> ignore;
    for (const std::string& module : ignored_modules(plan.packed, plan.kept))
        ignore.push_back("\n      " + json::serialize(json::string(module)));
    const std::string added = fmt::format(R"(,
  "quantization_config": {{
    "config_groups": {{
      "group_0": {{
        "format": "{0}",
        "input_activations": {1},
        "output_activations": null,
        "targets": ["Linear"],
        "weights": {2}
      }}
    }},
    "format": "{0}",
    "global_compression_ratio": null,
    "ignore": [{3}
    ],
    "kv_cache_scheme": null,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "sparsity_config": {{}},
    "transform_config": {{}},
    "version": "0.14.1"
  }}
}}
)",
                                          form, fp8 ? rounding_text(kFp8Inputs) : "null",
                                          rounding_text(fp8 ? kFp8Weights : kNvfp4Weights), fmt::join(ignore, ","));
    const std::string text = without_null(config);
    const size_t brace = text.rfind('}');
    const size_t last = text.find_last_not_of(" \t\r\n", brace - 1);
    return text.substr(0, last + 1) + added;
}

}  // namespace riptide::apps
