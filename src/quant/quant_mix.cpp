#include "quant/quant_mix.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <numeric>

#include "base/error.h"
#include "quant/codec.h"

namespace riptide {

namespace {

struct Mix {
    std::string_view name;
    DType base;
    DType head;           // of output.weight
    DType more;           // of the sensitive tensors in some layers; == base: none
    bool half_of_layers;  // more: true in quant_mix_more_bits layers, false in the first few
    uint32_t file_type;   // GGUF's general.file_type
};

constexpr Mix kMixes[] = {
    {"f32", DType::f32, DType::f32, DType::f32, false, 0},
    {"f16", DType::f16, DType::f16, DType::f16, false, 1},
    {"bf16", DType::bf16, DType::bf16, DType::bf16, false, 32},
    {"q8_0", DType::q8_0, DType::q8_0, DType::q8_0, false, 7},
    {"q6_k", DType::q6_k, DType::q6_k, DType::q6_k, false, 18},
    {"q5_k_m", DType::q5_k, DType::q6_k, DType::q6_k, true, 17},
    {"q5_k_s", DType::q5_k, DType::q6_k, DType::q5_k, false, 16},
    {"q4_k_m", DType::q4_k, DType::q6_k, DType::q6_k, true, 15},
    {"q4_k_s", DType::q4_k, DType::q6_k, DType::q5_k, false, 14},
    {"q4_0", DType::q4_0, DType::q6_k, DType::q4_0, false, 2},
    // From here on there is no quantiser: for random weights alone.
    {"q2_k", DType::q2_k, DType::q6_k, DType::q2_k, false, 10},
    {"q3_k", DType::q3_k, DType::q6_k, DType::q3_k, false, 11},
    {"iq1_s", DType::iq1_s, DType::q6_k, DType::iq1_s, false, 24},
    {"iq1_m", DType::iq1_m, DType::q6_k, DType::iq1_m, false, 31},
    {"iq2_xxs", DType::iq2_xxs, DType::q6_k, DType::iq2_xxs, false, 19},
    {"iq2_xs", DType::iq2_xs, DType::q6_k, DType::iq2_xs, false, 20},
    {"iq2_s", DType::iq2_s, DType::q6_k, DType::iq2_s, false, 28},
    {"iq3_xxs", DType::iq3_xxs, DType::q6_k, DType::iq3_xxs, false, 23},
    {"iq3_s", DType::iq3_s, DType::q6_k, DType::iq3_s, false, 26},
    {"iq4_xs", DType::iq4_xs, DType::q6_k, DType::iq4_xs, false, 30},
    {"tq1_0", DType::tq1_0, DType::q6_k, DType::tq1_0, false, 36},
    {"mixed", DType::q2_k, DType::q6_k, DType::q2_k, false, 10},
};

/// Of `mixed`, one after the other, as files have them whose makers chose a type for each tensor.
constexpr DType kMixed[] = {DType::iq1_s,   DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s,
                            DType::iq3_xxs, DType::iq3_s, DType::q2_k,    DType::q3_k,   DType::iq4_xs,
                            DType::iq4_nl,  DType::q4_k,  DType::q5_k,    DType::q6_k,   DType::q8_0};

bool writable(const Mix& mix) { return can_quantize(mix.base); }

const Mix& find_mix(std::string_view name, bool random = true) {
    std::string lower(name);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (lower == "q4_k" || lower == "q5_k") lower += "_m";
    for (const Mix& mix : kMixes)
        if (mix.name == lower) return mix;
    fail(ErrorKind::usage, "unknown quantisation mix {}: expected one of {}", name, quant_mix_names(random));
}

/// "ffn_down" of "blk.7.ffn_down.weight", "output" of "output.weight"; empty unless the name ends in ".weight".
std::string_view weight_part(std::string_view name) {
    constexpr std::string_view kSuffix = ".weight";
    if (!name.ends_with(kSuffix)) return {};
    name.remove_suffix(kSuffix.size());
    const size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

bool stays_f32(std::string_view part, std::span<const int64_t> shape) {
    return part.empty() || shape.size() < 2 || part == "ffn_gate_inp" || part == "ffn_gate_inp_shexp" ||
           part == "ssm_alpha" || part == "ssm_beta" || part.ends_with("_norm") ||
           part.find("conv1d") != std::string_view::npos;
}

bool is_down(std::string_view part) {
    return part == "ffn_down" || part == "ffn_down_exps" || part == "ffn_down_shexp";
}

DType choose(const Mix& mix, std::string_view part, int64_t layer, int64_t layers, bool tied_head) {
    if (part == "output" || (part == "token_embd" && tied_head)) return mix.head;
    if (mix.name == "mixed") {
        const auto first = static_cast<size_t>(std::accumulate(part.begin(), part.end(), layer + 1));
        return kMixed[first % std::size(kMixed)];
    }
    if (layer < 0 || (part != "attn_v" && !is_down(part))) return mix.base;
    if (mix.half_of_layers) return quant_mix_more_bits(layer, layers) ? mix.more : mix.base;
    return layer < (is_down(part) ? layers / 8 : 4) ? mix.more : mix.base;
}

}  // namespace

std::string quant_mix_names(bool random) {
    std::string names;
    for (const Mix& mix : kMixes)
        if (random || writable(mix)) names += (names.empty() ? "" : ", ") + std::string(mix.name);
    return names;
}

std::string_view quant_mix_name(std::string_view name) { return find_mix(name).name; }

void check_mix_writable(std::string_view name) {
    RT_CHECK(writable(find_mix(name, false)), ErrorKind::usage,
             "there is no quantiser for {}, only random weights (riptide synth): expected one of {}", name,
             quant_mix_names());
}

bool quant_mix_more_bits(int64_t layer, int64_t layers) {
    const int64_t eighth = layers / 8;
    return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

DType quant_mix_asks(std::string_view mix_name, std::string_view name, std::span<const int64_t> shape, int64_t layer,
                     int64_t layers, bool tied_head) {
    const Mix& mix = find_mix(mix_name);
    RT_ASSERT(!shape.empty());
    const std::string_view part = weight_part(name);
    return stays_f32(part, shape) ? DType::f32 : choose(mix, part, layer, layers, tied_head);
}

DType quant_mix_fit(DType type, int64_t cols) {
    if (cols % dtype_info(type).block_elements == 0) return type;
    switch (type) {
        case DType::q4_k:
            return quant_mix_fit(DType::q5_0, cols);
        case DType::q5_k:
            return quant_mix_fit(DType::q5_1, cols);
        case DType::q6_k:
            return quant_mix_fit(DType::q8_0, cols);
        default:
            return DType::f16;
    }
}

DType quant_mix_type(std::string_view mix, std::string_view name, std::span<const int64_t> shape, int64_t layer,
                     int64_t layers, bool tied_head) {
    return quant_mix_fit(quant_mix_asks(mix, name, shape, layer, layers, tied_head), shape.back());
}

uint32_t quant_mix_file_type(std::string_view mix) { return find_mix(mix).file_type; }

}  // namespace riptide
