// What models ask of matrix products.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/cuda/linear/plan.h"
#include "quant/planes.h"

namespace riptide::ops::cuda {

/// A weight as it lies on a GPU, from an address of its own on; nothing is there.
inline Weight plan_weight(DType type, int64_t rows, int64_t cols) {
    static uintptr_t next = uintptr_t{1} << 32;
    const auto take = [&](int64_t bytes) {
        const uintptr_t at = next;
        next += static_cast<uintptr_t>((bytes + 255) / 256 * 256);
        return reinterpret_cast<const void*>(at);
    };
    Weight w;
    w.dtype = type;
    w.rows = rows;
    w.cols = cols;
    const bool eight = type == DType::planes_int8 || type == DType::f8_e4m3;
    w.row_bytes = is_planes(type) && !eight ? cols / 2 : eight ? cols : type == DType::f32 ? 4 * cols : 2 * cols;
    w.data = take(rows * w.row_bytes);
    if (type == DType::planes_q5_k || type == DType::planes_q6_k) w.high = take(rows * cols / 4);
    if (is_planes(type) || type == DType::f8_e4m3) w.scales = take(rows * cols / 8);
    if (type == DType::planes_int8 || type == DType::planes_int4) w.scale_dtype = DType::f16, w.scale_cols = 32;
    if (type == DType::f8_e4m3) w.scale_rows = w.scale_cols = 128;
    return w;
}

/// Types of weights, by the names of files' types.
struct NamedType {
    const char* name;
    DType type;
};
inline constexpr NamedType kPlanTypes[] = {
    {"q4_k", DType::planes_q4_k}, {"q5_k", DType::planes_q5_k}, {"q6_k", DType::planes_q6_k},
    {"q8_0", DType::planes_int8}, {"q4_0", DType::planes_int4}, {"bf16", DType::bf16},
    {"f16", DType::f16},          {"f32", DType::f32},          {"fp8", DType::f8_e4m3},
};

/// A group of products with one x. floats: rows of f32 matrices beside.
struct PlanOp {
    const char* name;
    int64_t cols;
    std::vector<int64_t> rows;
    std::vector<int64_t> floats = {};
    bool normed = true;
};
struct PlanModel {
    const char* name;
    std::vector<PlanOp> groups;
    int64_t hidden, ff;  // of dense SwiGLU layers
};
inline const std::vector<PlanModel>& plan_models() {
    static const std::vector<PlanModel> models = {
        {"laguna-xs.2",
         {{"q, k, v, g", 2048, {6144, 1024, 1024, 48}},
          {"o", 6144, {2048}, {}, false},
          {"q, k, v, g of windows", 2048, {8192, 1024, 1024, 64}},
          {"o of windows", 8192, {2048}, {}, false},
          {"head", 2048, {100352}}},
         2048,
         8192},
        {"qwen3.5-27b",
         {{"q, k, v", 5120, {12288, 1024, 1024}},
          {"o", 6144, {5120}, {}, false},
          {"qkv, z, b, a of gated delta", 5120, {10240, 6144}, {48, 48}},
          {"head", 5120, {248320}}},
         5120,
         17408},
        {"qwen3.5-0.8b",
         {{"q, k, v", 1024, {4096, 512, 512}},
          {"o", 2048, {1024}, {}, false},
          {"qkv, z, b, a of gated delta", 1024, {6144, 2048}, {16, 16}},
          {"head", 1024, {248320}}},
         1024,
         3584},
    };
    return models;
}

}  // namespace riptide::ops::cuda
