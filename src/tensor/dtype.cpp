#include "tensor/dtype.h"

#include <array>
#include <cctype>

#include "base/checked.h"

namespace riptide {

namespace {

constexpr std::array<DTypeInfo, static_cast<size_t>(DType::count)> kInfo = {{
    {"f32", 1, 4, 0, "F32"},       {"f16", 1, 2, 1, "F16"},      {"bf16", 1, 2, 30, "BF16"},
    {"f64", 1, 8, 28, "F64"},      {"f8_e4m3", 1, 1, -1, "F8_E4M3"}, {"i8", 1, 1, 24, "I8"},
    {"i16", 1, 2, 25, "I16"},      {"i32", 1, 4, 26, "I32"},     {"i64", 1, 8, 27, "I64"},
    {"u8", 1, 1, -1, "U8"},        {"bool", 1, 1, -1, "BOOL"},
    {"q4_0", 32, 18, 2, ""},       {"q4_1", 32, 20, 3, ""},      {"q5_0", 32, 22, 6, ""},
    {"q5_1", 32, 24, 7, ""},       {"q8_0", 32, 34, 8, ""},
    {"q2_k", 256, 84, 10, ""},     {"q3_k", 256, 110, 11, ""},   {"q4_k", 256, 144, 12, ""},
    {"q5_k", 256, 176, 13, ""},    {"q6_k", 256, 210, 14, ""},
    {"iq4_nl", 32, 18, 20, ""},    {"iq4_xs", 256, 136, 23, ""}, {"mxfp4", 32, 17, 39, ""},
    {"nvfp4", 64, 36, 40, ""},     {"tq2_0", 256, 66, 35, ""},
    {"iq1_s", 256, 50, 19, ""},    {"iq1_m", 256, 56, 29, ""},   {"iq2_xxs", 256, 66, 16, ""},
    {"iq2_xs", 256, 74, 17, ""},   {"iq2_s", 256, 82, 22, ""},   {"iq3_xxs", 256, 98, 18, ""},
    {"iq3_s", 256, 110, 21, ""},   {"tq1_0", 256, 54, 34, ""},
    {"tq3_0", 32, 14, -1, ""},
    {"i4_pack", 8, 4, -1, ""},     {"i8_pack", 4, 4, -1, ""},    {"f4_pack", 2, 1, -1, ""},
    {"int8_16", 256, 320, -1, ""}, {"int8_32", 256, 288, -1, ""},
    {"planes_q4_k", 256, 128, -1, ""}, {"planes_q5_k", 256, 128, -1, ""}, {"planes_q6_k", 256, 128, -1, ""},
    {"planes_q2_k", 256, 64, -1, ""},  {"planes_int8", 32, 32, -1, ""},   {"planes_int4", 32, 16, -1, ""},   {"planes_levels", 32, 16, -1, ""},
}};

}  // namespace

const DTypeInfo& dtype_info(DType type) {
    RT_ASSERT(type < DType::count);
    return kInfo[static_cast<size_t>(type)];
}

int64_t row_bytes(DType type, int64_t elements) {
    const DTypeInfo& info = dtype_info(type);
    RT_CHECK(elements >= 0 && elements % info.block_elements == 0,
             "a row of {} values cannot be {}: its blocks hold {} values", elements, info.name, info.block_elements);
    return checked_mul(elements / info.block_elements, info.block_bytes, "row");
}

std::optional<DType> dtype_from_name(std::string_view name) {
    for (size_t i = 0; i < kInfo.size(); ++i) {
        const std::string_view known = kInfo[i].name;
        bool equal = known.size() == name.size();
        for (size_t j = 0; equal && j < name.size(); ++j)
            equal = std::tolower(static_cast<unsigned char>(name[j])) == known[j];
        if (equal) return static_cast<DType>(i);
    }
    return std::nullopt;
}

std::optional<DType> dtype_from_gguf(uint32_t gguf_type) {
    for (size_t i = 0; i < kInfo.size(); ++i)
        if (kInfo[i].gguf_type >= 0 && static_cast<uint32_t>(kInfo[i].gguf_type) == gguf_type) return static_cast<DType>(i);
    return std::nullopt;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
    if (name.empty()) return std::nullopt;
    for (size_t i = 0; i < kInfo.size(); ++i)
        if (name == kInfo[i].safetensors) return static_cast<DType>(i);
    return std::nullopt;
}

}  // namespace riptide
