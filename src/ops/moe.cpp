#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cuda.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/op_cost.h"
#include "ops/parallel.h"
#include "quant/planes.h"

namespace riptide::ops {

namespace {

constexpr int64_t kBlockPairs = 256;  // rows of one unit of work: their activations stay in the L2 cache

using Expert = SharedExpert;

/// A pair is a row that uses an expert. Pairs are sorted by expert; a block is a run of pairs of one expert.
struct Block {
    int64_t expert, begin, end;
};
struct Plan {
    std::vector<Block> blocks;
    const int32_t* pair_row = nullptr;  // row of each pair; nullptr: pair i is row i
    const int32_t* pair_of = nullptr;   // pair of (row, rank)
    int64_t first_shared = -1;          // the shared expert's pair of row 0, those of other rows behind it; -1: none
    int64_t pairs = 0;
    int64_t largest = 0;  // pairs of the largest block
};

int thread_count(const Context& ctx) { return ctx.threads == nullptr ? 1 : ctx.threads->size(); }

void run_units(Context& ctx, int64_t units, const std::function<void(int64_t, int)>& unit) {
    const auto run = [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) unit(i, thread);
    };
    if (thread_count(ctx) == 1) run(0, units, 0);
    else ctx.threads->parallel_for(units, 1, run);
}

void add_blocks(Plan& plan, int64_t expert, int64_t begin, int64_t end) {
    for (; begin < end; begin += kBlockPairs) {
        plan.blocks.push_back({expert, begin, std::min(end, begin + kBlockPairs)});
        plan.largest = std::max(plan.largest, plan.blocks.back().end - begin);
    }
}

/// Sorts the (row, rank) pairs by expert, then row: a counting sort into arena arrays. The pairs of a shared expert,
/// number num_experts, come last.
Plan make_plan(Context& ctx, const Routing& routing, int64_t num_experts, bool shared) {
    const int64_t n = routing.experts.rows(), k = routing.top_k;
    const auto* experts = routing.experts.row<int32_t>(0);
    std::vector<int64_t> end(static_cast<size_t>(num_experts), 0);
    for (int64_t i = 0; i < n * k; ++i) {
        RT_ASSERT(experts[i] >= 0 && experts[i] < num_experts);
        ++end[static_cast<size_t>(experts[i])];
    }
    Plan plan;
    plan.pairs = n * k + (shared ? n : 0);
    int64_t begin = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
        int64_t& count = end[static_cast<size_t>(e)];
        add_blocks(plan, e, begin, begin + count);
        begin += count;
        count = begin - count;  // from here on: the next free pair of expert e
    }
    if (shared) {
        plan.first_shared = n * k;
        add_blocks(plan, num_experts, n * k, n * k + n);
    }
    auto* pair_row = static_cast<int32_t*>(ctx.arena->allocate(plan.pairs * int64_t{sizeof(int32_t)}));
    auto* pair_of = static_cast<int32_t*>(ctx.arena->allocate(n * k * int64_t{sizeof(int32_t)}));
    for (int64_t i = 0; i < n * k; ++i) {
        const int64_t pair = end[static_cast<size_t>(experts[i])]++;
        pair_row[pair] = static_cast<int32_t>(i / k);
        pair_of[i] = static_cast<int32_t>(pair);
    }
    for (int64_t pair = n * k; pair < plan.pairs; ++pair) pair_row[pair] = static_cast<int32_t>(pair - n * k);
    plan.pair_row = pair_row;
    plan.pair_of = pair_of;
    return plan;
}

/// silu(Wg x) * (Wu x) of every pair, in the forms that the down projections want. One parallel region; a unit makes 32
/// or 64 values of one block of pairs, so that it can quantise them on the spot.
class Hidden {
  public:
    Hidden(Context& ctx, const DotKernels& kernels, const Plan& plan, const std::vector<Expert>& experts)
        : kernels_(kernels), plan_(plan), experts_(experts), width_(experts.front().gate->rows) {
        bool want_f32 = false, want_int8 = false;
        for (const Expert& e : experts) (uses_int8_activations(e.down->dtype) ? want_int8 : want_f32) = true;
        if (want_f32) f32_ = static_cast<float*>(ctx.arena->allocate(plan.pairs * width_ * int64_t{sizeof(float)}));
        if (want_int8) int8_ = static_cast<std::byte*>(ctx.arena->allocate(plan.pairs * Int8Row::bytes(width_)));
    }

    void compute(Context& ctx, const DotInput& x) {
        const ArenaScope scope(*ctx.arena);
        unit_width_ = plan_.pairs >= 64 * static_cast<int64_t>(plan_.blocks.size()) ? 64 : 32;
        const int64_t per_block = (width_ + unit_width_ - 1) / unit_width_;
        int64_t scratch_bytes = 0;
        for (const Expert& e : experts_)
            scratch_bytes = std::max({scratch_bytes, dot_scratch_bytes(*e.gate), dot_scratch_bytes(*e.up)});
        const int64_t values = plan_.largest * unit_width_;
        const int64_t thread_bytes = scratch_bytes + 2 * values * int64_t{sizeof(float)};
        auto* memory = static_cast<std::byte*>(ctx.arena->allocate(thread_bytes * thread_count(ctx)));
        run_units(ctx, per_block * static_cast<int64_t>(plan_.blocks.size()), [&](int64_t unit, int thread) {
            std::byte* scratch = memory + thread * thread_bytes;
            auto* gate = reinterpret_cast<float*>(scratch + scratch_bytes);
            unit_of(plan_.blocks[static_cast<size_t>(unit / per_block)], unit % per_block * unit_width_, x, scratch,
                    gate, gate + values);
        });
    }

    DotInput as_input() const { return {f32_, int8_, width_}; }

  private:
    void unit_of(const Block& block, int64_t first, const DotInput& x, void* scratch, float* gate, float* up) const {
        const Expert& expert = experts_[static_cast<size_t>(block.expert)];
        const int64_t last = std::min(width_, first + unit_width_), count = last - first;
        DotTask task;
        task.row_begin = first;
        task.row_end = last;
        task.n = block.end - block.begin;
        task.y_stride = count;
        task.scratch = scratch;
        for (const auto& [w, y] : {std::pair{expert.gate, gate}, std::pair{expert.up, up}}) {
            x.set(task, *w);
            set_rows(task, block);
            task.y = y;
            kernels_.dot(task);
        }
        swiglu_ref<float>(gate, up, task.n * count, gate);
        for (int64_t i = 0; i < task.n; ++i) {
            const float* values = gate + i * count;
            if (f32_ != nullptr) std::copy_n(values, count, f32_ + (block.begin + i) * width_ + first);
            if (int8_ != nullptr)
                kernels_.quantize(values, first, last, width_, int8_ + (block.begin + i) * Int8Row::bytes(width_));
        }
    }

    void set_rows(DotTask& task, const Block& block) const {
        if (plan_.pair_row != nullptr) task.x_index = plan_.pair_row + block.begin;
        else task.x = static_cast<const std::byte*>(task.x) + block.begin * task.x_stride;
    }

    const DotKernels& kernels_;
    const Plan& plan_;
    const std::vector<Expert>& experts_;
    int64_t width_;
    int64_t unit_width_ = 32;
    float* f32_ = nullptr;
    std::byte* int8_ = nullptr;
};

/// Rows [first, last) of W_down times the hidden values of one block, to y (value of pair block.begin, row first).
void down_block(const DotKernels& kernels, const DotInput& hidden, const Expert& expert, const Block& block,
                int64_t first, int64_t last, float* y, int64_t y_stride, void* scratch) {
    DotTask task;
    hidden.set(task, *expert.down);
    task.x = static_cast<const std::byte*>(task.x) + block.begin * task.x_stride;
    task.row_begin = first;
    task.row_end = last;
    task.n = block.end - block.begin;
    task.y = y;
    task.y_stride = y_stride;
    task.scratch = scratch;
    kernels.dot(task);
}

void check_experts(const std::vector<Expert>& experts, int64_t hidden_size) {
    RT_CHECK(!experts.empty(), "a feed-forward layer without experts");
    const int64_t width = experts.front().gate->rows, out = experts.front().down->rows;
    for (const Expert& e : experts) {
        for (const Weight* w : {e.gate, e.up, e.down})
            RT_CHECK(has_dot(w->dtype) || is_planes(w->dtype), "no matrix product for weights of type {}", dtype_name(w->dtype));
        RT_CHECK(
            e.gate->cols == hidden_size && e.up->cols == hidden_size && e.gate->rows == width && e.up->rows == width &&
                e.down->cols == width && e.down->rows == out,
            "feed-forward weights of shapes gate [{}, {}], up [{}, {}], down [{}, {}] do not fit rows of {} values",
            e.gate->rows, e.gate->cols, e.up->rows, e.up->cols, e.down->rows, e.down->cols, hidden_size);
    }
}

struct DownMemory {
    std::byte* base;
    int64_t scratch_bytes, thread_bytes;
};
/// For each thread: kernel scratch, then `values` floats.
DownMemory down_memory(Context& ctx, const std::vector<Expert>& experts, int64_t values) {
    int64_t scratch = 0;
    for (const Expert& e : experts) scratch = std::max(scratch, dot_scratch_bytes(*e.down));
    const int64_t bytes = scratch + (values + 15) / 16 * 16 * int64_t{sizeof(float)};
    return {static_cast<std::byte*>(ctx.arena->allocate(bytes * thread_count(ctx))), scratch, bytes};
}

bool want_int8(const std::vector<Expert>& experts) {
    return std::any_of(experts.begin(), experts.end(), [](const Expert& e) {
        return uses_int8_activations(e.gate->dtype) || uses_int8_activations(e.up->dtype);
    });
}

/// y[r, first..last) = sum over ranks of weight * products[pair], rank after rank, then the shared expert's product.
void combine(const Routing& routing, const Plan& plan, const float* products, int64_t first, int64_t last, Tensor& y) {
    const int64_t count = last - first, k = routing.top_k;
    for (int64_t r = 0; r < y.rows(); ++r) {
        float* out = y.row(r) + first;
        for (int64_t j = 0; j < k; ++j) {
            const float weight = routing.weights.row(r)[j];
            const float* d = products + plan.pair_of[r * k + j] * count;
            if (j == 0)
                for (int64_t i = 0; i < count; ++i) out[i] = weight * d[i];
            else
                for (int64_t i = 0; i < count; ++i) out[i] += weight * d[i];
        }
        if (plan.first_shared < 0) continue;
        const float* d = products + (plan.first_shared + r) * count;
        for (int64_t i = 0; i < count; ++i) out[i] += d[i];
    }
}

/// Rows of w_down in one unit: few rows of x make units so light that more of them balance better.
int64_t down_rows(const Plan& plan) { return plan.pairs <= 32 ? 16 : 32; }

}  // namespace

template <class Acc>
void route_sigmoid_ref(const float* logits, const float* bias, int64_t num_experts, int64_t top_k, float scale,
                       bool normalize, int32_t* experts, Acc* weights) {
    std::vector<Acc> keys(static_cast<size_t>(top_k));
    int64_t found = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
        const Acc s = Acc{1} / (Acc{1} + std::exp(-Acc{logits[e]}));
        Acc key = bias == nullptr ? s : s + Acc{bias[e]};
        if (std::isnan(key)) key = -std::numeric_limits<Acc>::infinity();
        if (found == top_k && !(key > keys.back())) continue;
        int64_t at = found < top_k ? found++ : top_k - 1;
        for (; at > 0 && key > keys[static_cast<size_t>(at - 1)]; --at) {
            keys[static_cast<size_t>(at)] = keys[static_cast<size_t>(at - 1)];
            experts[at] = experts[at - 1];
            weights[at] = weights[at - 1];
        }
        keys[static_cast<size_t>(at)] = key;
        experts[at] = static_cast<int32_t>(e);
        weights[at] = s;
    }
    Acc sum = 0;
    for (int64_t j = 0; j < top_k; ++j) sum += weights[j];
    for (int64_t j = 0; j < top_k; ++j) weights[j] = (normalize ? weights[j] / sum : weights[j]) * Acc{scale};
}
template void route_sigmoid_ref<float>(const float*, const float*, int64_t, int64_t, float, bool, int32_t*, float*);
template void route_sigmoid_ref<double>(const float*, const float*, int64_t, int64_t, float, bool, int32_t*, double*);

Routing route_sigmoid(Context& ctx, const Tensor& logits, std::span<const float> bias, int64_t top_k, float scale,
                      bool normalize) {
    RT_ASSERT(logits.dtype == DType::f32 && logits.rank == 2 && logits.contiguous());
    const int64_t n = logits.rows(), num_experts = logits.shape[1];
    RT_CHECK(top_k >= 1 && top_k <= num_experts, "top_k is {}, expected 1 to {} experts", top_k, num_experts);
    RT_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == num_experts,
             "the routing bias has {} values, expected one for each of {} experts", bias.size(), num_experts);
    if (ctx.gpu != nullptr) return cuda::route_sigmoid(ctx, logits, bias, top_k, scale, normalize);
    Routing routing{top_k, ctx.alloc(DType::i32, {n, top_k}), ctx.alloc(DType::f32, {n, top_k})};
    parallel_rows(ctx, n, 16 * num_experts, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r)
            route_sigmoid_ref<float>(logits.row(r), bias.empty() ? nullptr : bias.data(), num_experts, top_k, scale,
                                     normalize, routing.experts.row<int32_t>(r), routing.weights.row(r));
    });
    return routing;
}

Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    RT_ASSERT(weights.gate.size() == weights.up.size() && weights.gate.size() == weights.down.size());
    RT_ASSERT(routing.experts.rows() == x.rows() && routing.weights.rows() == x.rows());
    if (ctx.gpu != nullptr) return cuda::moe_swiglu(ctx, x, routing, weights, shared);
    std::vector<Expert> experts;
    experts.reserve(weights.gate.size() + 1);
    for (size_t e = 0; e < weights.gate.size(); ++e)
        experts.push_back({&weights.gate[e], &weights.up[e], &weights.down[e]});
    const auto num_experts = static_cast<int64_t>(experts.size());
    if (shared.gate != nullptr && num_experts > 0 && shared.gate->rows != experts.front().gate->rows) {
        Tensor sum = moe_swiglu(ctx, x, routing, weights);
        const ArenaScope scope(*ctx.arena);
        add(ctx, sum, swiglu_ffn(ctx, x, *shared.gate, *shared.up, *shared.down));
        return sum;
    }
    if (shared.gate != nullptr) experts.push_back(shared);
    check_experts(experts, x.shape[1]);
    const int64_t out = experts.front().down->rows;
    Tensor y = ctx.alloc(DType::f32, {x.rows(), out});
    if (x.rows() == 0) return y;

    const ArenaScope scope(*ctx.arena);
    const DotKernels& kernels = dot_kernels();
    const Plan plan = make_plan(ctx, routing, num_experts, shared.gate != nullptr);
    Hidden hidden(ctx, kernels, plan, experts);
    hidden.compute(ctx, dot_input(ctx, kernels, x, want_int8(experts)));
    const DotInput input = hidden.as_input();
    const int64_t step = down_rows(plan);
    const DownMemory memory = down_memory(ctx, experts, plan.pairs * step);
    run_units(ctx, (out + step - 1) / step, [&](int64_t unit, int thread) {
        const int64_t first = unit * step, last = std::min(out, first + step), count = last - first;
        std::byte* scratch = memory.base + thread * memory.thread_bytes;
        auto* products = reinterpret_cast<float*>(scratch + memory.scratch_bytes);
        for (const Block& block : plan.blocks)
            down_block(kernels, input, experts[static_cast<size_t>(block.expert)], block, first, last,
                       products + block.begin * count, count, scratch);
        combine(routing, plan, products, first, last, y);
    });
    return y;
}

namespace {

/// Gives the experts that ctx.reroute writes the weights that these experts have.
void reroute(Context& ctx, const Tensor& logits, const Router& router, Routing& routing) {
    ctx.reroute(routing.experts);
    for (int64_t r = 0; r < logits.rows(); ++r) {
        const int32_t* const experts = routing.experts.row<int32_t>(r);
        float* const weights = routing.weights.row(r);
        float sum = 0;
        for (int64_t j = 0; j < router.top_k; ++j) {
            weights[j] = 1.0f / (1.0f + std::exp(-logits.row(r)[experts[j]]));
            sum += weights[j];
        }
        for (int64_t j = 0; j < router.top_k; ++j)
            weights[j] = (router.normalize ? weights[j] / sum : weights[j]) * router.scale;
    }
}

}  // namespace

MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    announce_experts(ctx, "moe_add", x.rows(), router, weights, shared);
    if (ctx.gpu != nullptr) return cuda::moe_add(ctx, x, norm, router, weights, shared);
    const Tensor h = rms_norm(ctx, x, norm.weight, norm.eps);
    MoeResult result;
    result.logits = matmul(ctx, *router.w, h);
    result.routing =
        route_sigmoid(ctx, result.logits, router.bias, router.top_k, router.scale, router.normalize);
    if (ctx.reroute) reroute(ctx, result.logits, router, result.routing);
    result.y = moe_swiglu(ctx, h, result.routing, weights, shared);
    add(ctx, x, result.y);
    return result;
}

Tensor swiglu_ffn(Context& ctx, const Tensor& x, const Weight& w_gate, const Weight& w_up, const Weight& w_down) {
    const std::vector<Expert> experts = {{&w_gate, &w_up, &w_down}};
    check_experts(experts, x.shape[1]);
    if (ctx.gpu != nullptr) return cuda::swiglu_ffn(ctx, x, w_gate, w_up, w_down);
    Tensor y = ctx.alloc(DType::f32, {x.rows(), w_down.rows});
    if (x.rows() == 0) return y;

    const ArenaScope scope(*ctx.arena);
    const DotKernels& kernels = dot_kernels();
    Plan plan;
    plan.pairs = x.rows();
    add_blocks(plan, 0, 0, x.rows());
    Hidden hidden(ctx, kernels, plan, experts);
    hidden.compute(ctx, dot_input(ctx, kernels, x, want_int8(experts)));
    const DotInput input = hidden.as_input();
    const DownMemory memory = down_memory(ctx, experts, 0);
    const int64_t step = down_rows(plan), per_block = (w_down.rows + step - 1) / step;
    run_units(ctx, per_block * static_cast<int64_t>(plan.blocks.size()), [&](int64_t unit, int thread) {
        const Block& block = plan.blocks[static_cast<size_t>(unit / per_block)];
        const int64_t first = unit % per_block * step;
        down_block(kernels, input, experts.front(), block, first, std::min(w_down.rows, first + step),
                   y.row(block.begin) + first, w_down.rows, memory.base + thread * memory.thread_bytes);
    });
    return y;
}

}  // namespace riptide::ops
