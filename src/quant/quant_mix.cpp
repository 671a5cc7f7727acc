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
    uint32_t file_type;        // GGUF's general.file_type
    DType head = DType::q6_k;  // of output.weight
};

constexpr Mix kMixes[] = {
    {"f32", DType::f32, 0, DType::f32},
    {"f16", DType::f16, 1, DType::f16},
    {"bf16", DType::bf16, 32, DType::bf16},
    {"q8_0", DType::q8_0, 7, DType::q8_0},
    {"q6_k", DType::q6_k, 18},
    {"q5_k_m", DType::q5_k, 17},
    {"q5_k_s", DType::q5_k, 16},
    {"q4_k_m", DType::q4_k, 15},
    {"q4_k_s", DType::q4_k, 14},
    {"q4_0", DType::q4_0, 2},
    {"iq4_nl", DType::iq4_nl, 25},
    {"iq4_xs", DType::iq4_xs, 30},
    {"q3_k_m", DType::q3_k, 12},
    {"iq3_m", DType::iq3_s, 27},
    {"iq3_s", DType::iq3_s, 26},
    {"q2_k", DType::q2_k, 10},
    {"iq3_xxs", DType::iq3_xxs, 23, DType::q5_k},
    {"iq2_s", DType::iq2_s, 28, DType::q5_k},
    {"iq2_xs", DType::iq2_xs, 20, DType::q5_k},
    {"iq2_xxs", DType::iq2_xxs, 19, DType::q5_k},
    {"iq1_m", DType::iq1_m, 31, DType::q5_k},
    {"iq1_s", DType::iq1_s, 24, DType::q5_k},
    {"mxfp4", DType::mxfp4, 38},
    {"tq2_0", DType::tq2_0, 37},
    {"tq1_0", DType::tq1_0, 36},
    // From here on there is no such file: for random weights alone.
    {"q3_k", DType::q3_k, 11},
    {"mixed", DType::q2_k, 10},
};
constexpr std::string_view kFirstRandom = "q3_k";

/// Which layers.
enum class Layers { all, first_two, first_four, first_sixteenth, first_eighth, half };

/// A part of a layer that a mix gives another type than its base. The first that fits counts.
struct Promotion {
    std::string_view mix, part;  // ffn_down: and its _exps and _shexp
    Layers layers;
    DType type;
};

constexpr Promotion kPromotions[] = {
    {"q5_k_m", "attn_v", Layers::half, DType::q6_k},
    {"q5_k_m", "ffn_down", Layers::half, DType::q6_k},
    {"q4_k_m", "attn_v", Layers::half, DType::q6_k},
    {"q4_k_m", "ffn_down", Layers::half, DType::q6_k},
    {"q4_k_s", "attn_v", Layers::first_four, DType::q5_k},
    {"q4_k_s", "ffn_down", Layers::first_eighth, DType::q5_k},
    {"iq4_nl", "attn_v", Layers::all, DType::q5_k},
    {"iq4_nl", "ffn_down", Layers::first_eighth, DType::q5_k},
    {"iq4_xs", "attn_v", Layers::all, DType::q5_k},
    {"iq4_xs", "ffn_down", Layers::first_eighth, DType::q5_k},
    {"q3_k_m", "attn_v", Layers::first_two, DType::q5_k},
    {"q3_k_m", "attn_v", Layers::all, DType::q4_k},
    {"q3_k_m", "ffn_down", Layers::first_sixteenth, DType::q5_k},
    {"q3_k_m", "ffn_down", Layers::all, DType::q4_k},
    {"q3_k_m", "attn_output", Layers::all, DType::q4_k},
    {"iq3_m", "attn_v", Layers::all, DType::q4_k},
    {"iq3_m", "ffn_down", Layers::first_eighth, DType::q4_k},
    {"iq3_m", "attn_output", Layers::all, DType::q4_k},
    {"iq3_s", "attn_v", Layers::all, DType::q4_k},
    {"q2_k", "attn_v", Layers::all, DType::q4_k},
    {"q2_k", "ffn_down", Layers::all, DType::q3_k},
    {"q2_k", "attn_output", Layers::all, DType::q3_k},
    {"iq2_s", "attn_v", Layers::all, DType::q4_k},
    {"iq2_s", "ffn_down", Layers::first_eighth, DType::iq3_s},
    {"iq2_s", "attn_output", Layers::all, DType::iq3_s},
    {"iq2_s", "token_embd", Layers::all, DType::iq3_s},
    {"iq3_xxs", "attn_v", Layers::all, DType::q4_k},
    {"iq3_xxs", "ffn_down", Layers::first_eighth, DType::q4_k},
    {"iq3_xxs", "attn_output", Layers::all, DType::iq3_s},
    {"iq3_xxs", "token_embd", Layers::all, DType::iq3_s},
    {"iq2_xs", "attn_v", Layers::all, DType::q4_k},
    {"iq2_xs", "ffn_down", Layers::first_eighth, DType::iq3_xxs},
    {"iq2_xs", "attn_output", Layers::all, DType::iq3_xxs},
    {"iq2_xs", "token_embd", Layers::all, DType::iq3_xxs},
    {"iq2_xxs", "attn_v", Layers::all, DType::q4_k},
    {"iq2_xxs", "ffn_down", Layers::first_eighth, DType::iq2_s},
    {"iq2_xxs", "attn_output", Layers::all, DType::iq2_s},
    {"iq2_xxs", "token_embd", Layers::all, DType::iq3_xxs},
    {"iq1_m", "attn_v", Layers::all, DType::q4_k},
    {"iq1_m", "ffn_down", Layers::first_eighth, DType::iq2_xs},
    {"iq1_m", "attn_output", Layers::all, DType::iq2_xs},
    {"iq1_m", "token_embd", Layers::all, DType::iq2_s},
    {"iq1_s", "attn_v", Layers::all, DType::q4_k},
    {"iq1_s", "ffn_down", Layers::first_eighth, DType::iq2_xxs},
    {"iq1_s", "attn_output", Layers::all, DType::iq2_xxs},
    {"iq1_s", "token_embd", Layers::all, DType::iq2_s},
    {"tq2_0", "token_embd", Layers::all, DType::q4_k},
    {"tq1_0", "token_embd", Layers::all, DType::q4_k},
};

/// Of `mixed`, one after the other, as files have them whose makers chose a type for each tensor.
constexpr DType kMixed[] = {DType::iq1_s,   DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s,
                            DType::iq3_xxs, DType::iq3_s, DType::q2_k,    DType::q3_k,   DType::iq4_xs,
                            DType::iq4_nl,  DType::q4_k,  DType::q5_k,    DType::q6_k,   DType::q8_0};

bool writable(const Mix& mix) {
    for (const Mix& other : kMixes) {
        if (other.name == kFirstRandom) break;
        if (other.name == mix.name) return true;
    }
    return false;
}

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

bool covers(Layers layers, int64_t layer, int64_t count) {
    switch (layers) {
        case Layers::all:
            return true;
        case Layers::first_two:
            return layer < 2;
        case Layers::first_four:
            return layer < 4;
        case Layers::first_sixteenth:
            return layer < count / 16;
        case Layers::first_eighth:
            return layer < count / 8;
        default:
            return quant_mix_more_bits(layer, count);
    }
}

DType choose(const Mix& mix, std::string_view part, int64_t layer, int64_t layers, bool tied_head) {
    if (part == "output" || (part == "token_embd" && tied_head)) return mix.head;
    if (mix.name == "mixed") {
        const auto first = static_cast<size_t>(std::accumulate(part.begin(), part.end(), layer + 1));
        return kMixed[first % std::size(kMixed)];
    }
    if (part == "ffn_down_exps" || part == "ffn_down_shexp") part = "ffn_down";
    if (layer < 0 && part != "token_embd") return mix.base;
    for (const Promotion& p : kPromotions)
        if (p.mix == mix.name && p.part == part && covers(p.layers, layer, layers)) return p.type;
    return mix.base;
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
             "there are only random weights of {} (riptide synth): expected one of {}", name, quant_mix_names());
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
        case DType::q2_k:
        case DType::q3_k:
        case DType::iq1_s:
        case DType::iq1_m:
        case DType::iq2_xxs:
        case DType::iq2_xs:
        case DType::iq2_s:
        case DType::iq3_xxs:
        case DType::iq3_s:
        case DType::iq4_xs:
        case DType::tq1_0:
        case DType::tq2_0:
            return quant_mix_fit(DType::iq4_nl, cols);
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
