// The parts of CPU mixtures of experts, whichever way their work is cut. Internal to ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/moe.h"
#include "quant/dot.h"

namespace riptide::ops {

/// A pair is a row that uses an expert. Pairs of one expert follow each other; a block is a run of them.
struct ExpertBlock {
    SharedExpert expert;
    int64_t begin, end;
};

struct ExpertPlan {
    std::vector<ExpertBlock> blocks;
    const int32_t* pair_row = nullptr;  // row of each pair; nullptr: pair i is row i
    const int32_t* pair_of = nullptr;   // pair of (row, rank)
    int64_t first_shared = -1;          // the shared expert's pair of row 0, those of other rows behind it; -1: none
    int64_t pairs = 0;
    int64_t largest = 0;  // pairs of the largest block
};

/// silu(Wg x) * (Wu x) of every pair, in the forms that the down projections want.
struct HiddenRows {
    float* f32 = nullptr;
    std::byte* int8 = nullptr;
    int64_t width = 0;

    /// Memory for `pairs` rows in both forms.
    static HiddenRows both(Context& ctx, int64_t width, int64_t pairs);
    /// In the form that `down` wants, if it is not there yet.
    void want(Context& ctx, const Weight& down, int64_t pairs);
    DotInput as_input() const { return {f32, int8, width}; }
};

/// Hidden values [first, last) of a block's pairs; first is a multiple of 32. scratch: dot_scratch_bytes of both
/// matrices; values: 2 * pairs * (last - first) floats.
void gate_up(const DotKernels& kernels, const ExpertPlan& plan, const ExpertBlock& block, const DotInput& x,
             int64_t first, int64_t last, const HiddenRows& hidden, void* scratch, float* values);

/// Rows [first, last) of W_down times the hidden values of a block, to y (value of pair block.begin, row first).
void down_block(const DotKernels& kernels, const DotInput& hidden, const ExpertBlock& block, int64_t first,
                int64_t last, float* y, int64_t y_stride, void* scratch);

/// y[r, first..last) = sum over ranks of weight * product, rank after rank, then the shared expert's product. The
/// products of pair p are at products + p * stride, that of row `first` first.
void combine(const Routing& routing, const ExpertPlan& plan, const float* products, int64_t stride, int64_t first,
             int64_t last, Tensor& y);

void check_expert(const SharedExpert& e, int64_t hidden_size, int64_t width, int64_t out);
void check_routing(int64_t num_experts, int64_t top_k, std::span<const float> bias);

/// Whether reading weights is what takes time: then moe_few() is the way.
inline bool few_pairs(int64_t pairs) { return pairs <= 32; }

/// What moe_few() does beside the experts.
struct FewSteps {
    const Router* router = nullptr;  // the routing is made of h first; nullptr: it is given
    Tensor logits;                   // f32 [n, E], if there is a router
    Tensor* residual = nullptr;      // y is added to it
};

/// y = moe_swiglu(h, routing) for few pairs, in one parallel region. REQUIRES n > 0, an expert of one width for all.
void moe_few(Context& ctx, const Tensor& h, const FewSteps& steps, Routing& routing, const ExpertWeights& weights,
             const SharedExpert& shared, Tensor& y);

}  // namespace riptide::ops
