// Whether kernels of moe/ fit on a chip, for the plan and the launchers alike. Without CUDA.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/shared/row_formats.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::decode {

/// Sparse layers that experts_row1_sm90.cu, experts_rows8.cu and experts_grouped_sm80.cu are made for.
struct SparseShape512 {
    static constexpr int kHidden = 2048, kFf = 512, kExperts = 256, kTopK = 8;
    static constexpr int kGroupRows = 8;  // that experts_grouped_sm80.cu multiplies at once
    static constexpr int kRows8 = 8;      // that experts_rows8.cu takes in a launch
};

/// experts_row1_sm90.cu: the shared memory of gate and up, of experts and of the shared one.
std::optional<int64_t> fit_row1(const Chip& chip, RowFormat experts, RowFormat shared);

/// Formats of gate and up, of down; of the shared expert's (without one: the same).
struct LayerFormats {
    RowFormat up, down, shared_up, shared_down;

    /// Q4_K, and Q6_K for down: kernels are made for them.
    bool q4_k_m() const {
        return up == RowFormat::q4_k && shared_up == up && shared_down == down &&
               (down == RowFormat::q4_k || down == RowFormat::q6_k);
    }
};
LayerFormats formats_of(const ExpertWeights& experts, const SharedExpert& shared);

/// experts_rows8.cu: pairs of a task of gate and up, the most units of a CTA, tasks of down that a warp has at a time,
/// bytes of tasks, and shared memory.
struct RowsFit {
    int pairs = 2;
    int64_t up_ctas = 0, units = 0, up_task = 0, up_shared = 0, down_tasks = 0, down_task = 0, down_shared = 0;
};
std::optional<RowsFit> fit_rows8(const Chip& chip, int64_t n, int64_t top_k, const LayerFormats& formats);

/// experts_grouped_sm80.cu: bytes of the lists of groups, and how both kernels divide their memory.
int64_t group_list_bytes(int64_t n, int64_t top_k);
struct GroupFit {
    TilePlan up, down;
};
std::optional<GroupFit> fit_groups(const Chip& chip, int64_t n, int64_t top_k, DType up, DType down);

/// experts_float.cu: CTAs and shared memory of both kernels. duos: pairs of rows of gate and up of an expert, and of
/// the shared one or 0; outputs: rows of down that a CTA has at once.
constexpr int kFloatSlots = 9;  // experts of a row at most
/// Rows of down that a CTA has at once; 0: there is no kernel.
constexpr int float_down_outputs(DType type, int64_t cols) {
    return cols != 512                                 ? 0
           : type == DType::f8_e4m3                    ? kFloatWarps
           : type == DType::bf16 || type == DType::f16 ? kFloatWarps / 2
                                                       : 0;
}
struct FloatExpertsFit {
    int64_t up_ctas = 0, most_duos = 0, up_shared = 0, down_ctas = 0, down_shared = 0;
};
std::optional<FloatExpertsFit> fit_float_experts(const Chip& chip, int64_t cols, ActKind kind, int64_t n, int64_t top_k,
                                                 int64_t duos, int64_t shared_duos, int64_t ff, int64_t rows,
                                                 int64_t outputs);

}  // namespace riptide::ops::cuda::decode
