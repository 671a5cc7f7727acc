#include "ops/cpu/moe_parts.h"

#include <algorithm>

#include "ops/cpu/lanes.h"
#include "ops/elementwise.h"
#include "quant/planes.h"

namespace riptide::ops {

namespace {

std::byte* int8_memory(Context& ctx, int64_t width, int64_t pairs) {
    return static_cast<std::byte*>(ctx.arena->allocate(pairs * Int8Row::bytes(width)));
}
float* f32_memory(Context& ctx, int64_t width, int64_t pairs) {
    return static_cast<float*>(ctx.arena->allocate(pairs * width * int64_t{sizeof(float)}));
}

}  // namespace

HiddenRows HiddenRows::both(Context& ctx, int64_t width, int64_t pairs) {
    return {f32_memory(ctx, width, pairs), int8_memory(ctx, width, pairs), width};
}

void HiddenRows::want(Context& ctx, const Weight& down, int64_t pairs) {
    width = down.cols;
    if (!uses_int8_activations(down.dtype)) f32 = f32 != nullptr ? f32 : f32_memory(ctx, width, pairs);
    else int8 = int8 != nullptr ? int8 : int8_memory(ctx, width, pairs);
}

void gate_up(const DotKernels& kernels, const ExpertPlan& plan, const ExpertBlock& block, const DotInput& x,
             int64_t first, int64_t last, const HiddenRows& hidden, void* scratch, float* values) {
    const int64_t count = last - first, n = block.end - block.begin, width = hidden.width;
    float *gate = values, *up = values + n * count;
    DotTask task;
    task.row_begin = first;
    task.row_end = last;
    task.n = n;
    task.y_stride = count;
    task.scratch = scratch;
    for (const auto& [w, y] : {std::pair{block.expert.gate, gate}, std::pair{block.expert.up, up}}) {
        x.set(task, *w);
        if (plan.pair_row != nullptr) task.x_index = plan.pair_row + block.begin;
        else task.x = static_cast<const std::byte*>(task.x) + block.begin * task.x_stride;
        task.y = y;
        if (n == 1 && w == block.expert.gate) fetch_streams(*block.expert.up, first, last);
        else if (n == 1 && last < width) fetch_streams(*block.expert.gate, last, std::min(width, 2 * last - first));
        kernels.dot(task);
    }
    swiglu_ref<float>(gate, up, n * count, gate);
    const bool want_int8 = uses_int8_activations(block.expert.down->dtype);
    for (int64_t i = 0; i < n; ++i) {
        const float* row = gate + i * count;
        if (want_int8)
            kernels.quantize(row, first, last, width, hidden.int8 + (block.begin + i) * Int8Row::bytes(width));
        else std::copy_n(row, count, hidden.f32 + (block.begin + i) * width + first);
    }
}

void down_block(const DotKernels& kernels, const DotInput& hidden, const ExpertBlock& block, int64_t first,
                int64_t last, float* y, int64_t y_stride, void* scratch) {
    DotTask task;
    hidden.set(task, *block.expert.down);
    task.x = static_cast<const std::byte*>(task.x) + block.begin * task.x_stride;
    task.row_begin = first;
    task.row_end = last;
    task.n = block.end - block.begin;
    task.y = y;
    task.y_stride = y_stride;
    task.scratch = scratch;
    kernels.dot(task);
}

void combine(const Routing& routing, const ExpertPlan& plan, const float* products, int64_t stride, int64_t first,
             int64_t last, Tensor& y) {
    const int64_t count = last - first, k = routing.top_k;
    for (int64_t r = 0; r < y.rows(); ++r) {
        float* out = y.row(r) + first;
        for (int64_t j = 0; j < k; ++j) {
            const float weight = routing.weights.row(r)[j];
            const float* d = products + plan.pair_of[r * k + j] * stride;
            if (j == 0)
                map4(
                    count, out, [=](int64_t i) { return load4(d + i) * weight; },
                    [=](int64_t i) { return weight * d[i]; });
            else
                map4(
                    count, out, [=](int64_t i) { return load4(out + i) + load4(d + i) * weight; },
                    [=](int64_t i) { return out[i] + weight * d[i]; });
        }
        if (plan.first_shared < 0) continue;
        const float* d = products + (plan.first_shared + r) * stride;
        add_row(out, d, count);
    }
}

void check_expert(const SharedExpert& e, int64_t hidden_size, int64_t width, int64_t out) {
    for (const Weight* w : {e.gate, e.up, e.down})
        RT_CHECK(has_dot(w->dtype) || is_planes(w->dtype), "no matrix product for weights of type {}",
                 dtype_name(w->dtype));
    RT_CHECK(e.gate->cols == hidden_size && e.up->cols == hidden_size && e.gate->rows == width && e.up->rows == width &&
                 e.down->cols == width && e.down->rows == out,
             "feed-forward weights of shapes gate [{}, {}], up [{}, {}], down [{}, {}] do not fit rows of {} values",
             e.gate->rows, e.gate->cols, e.up->rows, e.up->cols, e.down->rows, e.down->cols, hidden_size);
}

void check_routing(int64_t num_experts, int64_t top_k, std::span<const float> bias) {
    RT_CHECK(top_k >= 1 && top_k <= num_experts, "top_k is {}, expected 1 to {} experts", top_k, num_experts);
    RT_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == num_experts,
             "the routing bias has {} values, expected one for each of {} experts", bias.size(), num_experts);
}

}  // namespace riptide::ops
