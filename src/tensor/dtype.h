// Element and block types of weights, activations and caches.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace riptide {

/// How numbers are stored. Block types pack `block_elements` consecutive values of a row into `block_bytes`.
/// The names are the field's: GGUF types as ggml spells them in lower case, `f8_e4m3` the OCP E4M3FN format.
/// `i4_pack` and `i8_pack` are compressed-tensors' offset-binary integers packed in int32 words, `f4_pack` its E2M1 pairs;
/// their scales lie in separate planes (see Weight).
enum class DType : uint8_t {
    f32, f16, bf16, f64, f8_e4m3, i8, i16, i32, i64, u8, boolean,
    q4_0, q4_1, q5_0, q5_1, q8_0,
    q2_k, q3_k, q4_k, q5_k, q6_k,
    iq4_nl, iq4_xs, mxfp4, nvfp4, tq2_0,
    iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, tq1_0,
    tq3_0,
    i4_pack, i8_pack, f4_pack,
    // Weights as the CPU's products read blocks of grids: never in a file. See quant/int8_block.h.
    int8_16, int8_32,
    // Weights as GPU kernels read them, made by WeightStore: never in a file. See quant/planes.h.
    planes_q4_k, planes_q5_k, planes_q6_k, planes_q2_k, planes_int8, planes_int4, planes_levels,
    count
};

struct DTypeInfo {
    const char* name;
    int64_t block_elements;
    int64_t block_bytes;
    int gguf_type;               // ggml type id, or -1 if GGUF cannot hold it
    const char* safetensors;     // safetensors spelling, or "" if it cannot hold it
};

const DTypeInfo& dtype_info(DType type);
inline const char* dtype_name(DType type) { return dtype_info(type).name; }

/// Bytes of one row of `elements` values. Throws Error if `elements` is not a whole number of blocks or overflows.
int64_t row_bytes(DType type, int64_t elements);

std::optional<DType> dtype_from_name(std::string_view name);        // "q4_k", any case
std::optional<DType> dtype_from_gguf(uint32_t gguf_type);
std::optional<DType> dtype_from_safetensors(std::string_view name);  // "BF16"

}  // namespace riptide
