// Which type each tensor of a GGUF file gets, for `riptide quantize` and `riptide synth`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace riptide {

/// The mixes, separated by commas: f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q4_k_m, q4_k_s, q4_0, iq4_nl, iq4_xs,
/// q3_k_m, iq3_m, iq3_s, q2_k, iq3_xxs, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s, mxfp4, tq2_0, tq1_0. `random`: and those
/// that only random weights can have: q3_k in one type; mixed, which has fifteen.
std::string quant_mix_names(bool random = false);

/// The name of that list for `name`: in lower case, and q4_k_m, q5_k_m for q4_k, q5_k (as in llama.cpp). Throws Error
/// (usage) for an unknown one.
std::string_view quant_mix_name(std::string_view name);

/// Throws Error (usage) for a mix that only random weights can have, or an unknown one.
void check_mix_writable(std::string_view name);

/// Whether layer i of n belongs to the half of the layers that the _M mixes store in more bits: the first and the last
/// eighth and every third in between, i < n/8 or i >= 7n/8 or (i - n/8) % 3 == 2 in integer division.
bool quant_mix_more_bits(int64_t layer, int64_t layers);

/// The type of GGUF tensor `name` of row-major `shape` under `mix` (any case). layer: its layer, or -1.
/// tied_head: the file has no output.weight, so that token_embd.weight is the head as well and gets the head's type.
///   vectors, norms, routers (ffn_gate_inp), convolutions, all that is not a .weight   f32
///   the head                                       q6_k in mixes below q8_0, q5_k in iq3_xxs and iq2_s to iq1_s
///   what kPromotions (quant_mix.cpp) lists: token_embd; attn_v, ffn_down*, attn_output in all or in the first layers,
///   or in those of quant_mix_more_bits             as listed
///   everything else                                the type that names the mix
/// made to fit its rows as quant_mix_fit does.
/// Throws Error (usage) naming the known mixes for an unknown one. Source: the rules of llama.cpp's quantize tool, as
/// found in the published Q4_K_M files of Laguna; below four bits those for models with grouped queries; iq2_xs to
/// tq1_0 are our own, by analogy with iq2_s, and share with its files no more than the type that names them.
DType quant_mix_type(std::string_view mix, std::string_view name, std::span<const int64_t> shape, int64_t layer,
                     int64_t layers, bool tied_head = false);

/// The same, whatever the width of its rows.
DType quant_mix_asks(std::string_view mix, std::string_view name, std::span<const int64_t> shape, int64_t layer,
                     int64_t layers, bool tied_head = false);

/// `type` if rows of `cols` values are whole blocks of it. Rows that are not whole super-blocks of 256: q4_k -> q5_0,
/// q5_k -> q5_1, q6_k -> q8_0, smaller ones -> iq4_nl; not whole blocks of 32: f16.
DType quant_mix_fit(DType type, int64_t cols);

/// The value of GGUF's general.file_type for a mix. Throws like quant_mix_type.
uint32_t quant_mix_file_type(std::string_view mix);

}  // namespace riptide
