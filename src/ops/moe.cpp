#include "ops/moe.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "ops/cuda.h"
#include "ops/elementwise.h"
#include "ops/lanes.h"
#include "ops/norm.h"
#include "ops/op_cost.h"
#include "ops/parallel.h"
#include "quant/planes.h"

namespace riptide::ops {

namespace {

constexpr int64_t kBlockPairs = 256;  // rows of one unit of work: their activations stay in the L2 cache

constexpr int64_t kFewPairs = 32;  // up to here reading weights is what takes time

using Expert = SharedExpert;

/// The routed experts, numbered from 0, and behind them the shared one, if there is one.
class Experts {
  public:
    Experts(const ExpertWeights* routed, const Expert& shared) : routed_(routed), shared_(shared) {}

    int64_t routed() const { return routed_ == nullptr ? 0 : static_cast<int64_t>(routed_->gate.size()); }
    bool has_shared() const { return shared_.gate != nullptr; }
    Expert operator[](int64_t e) const {
        const auto i = static_cast<size_t>(e);
        return e == routed() ? shared_ : Expert{&routed_->gate[i], &routed_->up[i], &routed_->down[i]};
    }

  private:
    const ExpertWeights* routed_;
    Expert shared_;
};

/// A pair is a row that uses an expert. Pairs are sorted by expert; a block is a run of pairs of one expert.
struct Block {
    Expert expert;
    int64_t begin, end;
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

void add_blocks(Plan& plan, const Expert& expert, int64_t begin, int64_t end) {
    for (; begin < end; begin += kBlockPairs) {
        plan.blocks.push_back({expert, begin, std::min(end, begin + kBlockPairs)});
        plan.largest = std::max(plan.largest, plan.blocks.back().end - begin);
    }
}

/// Sorts the (row, rank) pairs by expert, then row: a counting sort into arena arrays. The pairs of a shared expert
/// come last.
Plan make_plan(Context& ctx, const Routing& routing, const Experts& weights) {
    const int64_t n = routing.experts.rows(), k = routing.top_k, num_experts = weights.routed();
    const bool shared = weights.has_shared();
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
        if (count > 0) add_blocks(plan, weights[e], begin, begin + count);
        begin += count;
        count = begin - count;  // from here on: the next free pair of expert e
    }
    if (shared) {
        plan.first_shared = n * k;
        add_blocks(plan, weights[num_experts], n * k, n * k + n);
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
    Hidden(Context& ctx, const DotKernels& kernels, const Plan& plan)
        : kernels_(kernels), plan_(plan), width_(plan.blocks.front().expert.gate->rows) {
        bool want_f32 = false, want_int8 = false;
        for (const Block& b : plan.blocks) (uses_int8_activations(b.expert.down->dtype) ? want_int8 : want_f32) = true;
        if (want_f32) f32_ = static_cast<float*>(ctx.arena->allocate(plan.pairs * width_ * int64_t{sizeof(float)}));
        if (want_int8) int8_ = static_cast<std::byte*>(ctx.arena->allocate(plan.pairs * Int8Row::bytes(width_)));
    }

    void compute(Context& ctx, const DotInput& x) {
        const ArenaScope scope(*ctx.arena);
        unit_width_ = plan_.pairs >= 64 * static_cast<int64_t>(plan_.blocks.size()) ? 64 : 32;
        const int64_t per_block = (width_ + unit_width_ - 1) / unit_width_;
        int64_t scratch_bytes = 0;
        for (const Block& b : plan_.blocks)
            scratch_bytes =
                std::max({scratch_bytes, dot_scratch_bytes(*b.expert.gate), dot_scratch_bytes(*b.expert.up)});
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
        const int64_t last = std::min(width_, first + unit_width_), count = last - first;
        DotTask task;
        task.row_begin = first;
        task.row_end = last;
        task.n = block.end - block.begin;
        task.y_stride = count;
        task.scratch = scratch;
        for (const auto& [w, y] : {std::pair{block.expert.gate, gate}, std::pair{block.expert.up, up}}) {
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
    int64_t width_;
    int64_t unit_width_ = 32;
    float* f32_ = nullptr;
    std::byte* int8_ = nullptr;
};

/// Rows [first, last) of W_down times the hidden values of one block, to y (value of pair block.begin, row first).
void down_block(const DotKernels& kernels, const DotInput& hidden, const Block& block, int64_t first, int64_t last,
                float* y, int64_t y_stride, void* scratch) {
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

void check_expert(const Expert& e, int64_t hidden_size, int64_t width, int64_t out) {
    for (const Weight* w : {e.gate, e.up, e.down})
        RT_CHECK(has_dot(w->dtype) || is_planes(w->dtype), "no matrix product for weights of type {}",
                 dtype_name(w->dtype));
    RT_CHECK(e.gate->cols == hidden_size && e.up->cols == hidden_size && e.gate->rows == width && e.up->rows == width &&
                 e.down->cols == width && e.down->rows == out,
             "feed-forward weights of shapes gate [{}, {}], up [{}, {}], down [{}, {}] do not fit rows of {} values",
             e.gate->rows, e.gate->cols, e.up->rows, e.up->cols, e.down->rows, e.down->cols, hidden_size);
}

struct DownMemory {
    std::byte* base;
    int64_t scratch_bytes, thread_bytes;
};
/// For each thread: kernel scratch, then `values` floats.
DownMemory down_memory(Context& ctx, const Plan& plan, int64_t values) {
    int64_t scratch = 0;
    for (const Block& b : plan.blocks) scratch = std::max(scratch, dot_scratch_bytes(*b.expert.down));
    const int64_t bytes = scratch + (values + 15) / 16 * 16 * int64_t{sizeof(float)};
    return {static_cast<std::byte*>(ctx.arena->allocate(bytes * thread_count(ctx))), scratch, bytes};
}

bool want_int8(const Plan& plan) {
    return std::any_of(plan.blocks.begin(), plan.blocks.end(), [](const Block& b) {
        return uses_int8_activations(b.expert.gate->dtype) || uses_int8_activations(b.expert.up->dtype);
    });
}

/// y[r, first..last) = sum over ranks of weight * product, rank after rank, then the shared expert's product. The
/// products of pair p are at products + p * stride, that of row `first` first.
void combine(const Routing& routing, const Plan& plan, const float* products, int64_t stride, int64_t first,
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
        map4(
            count, out, [=](int64_t i) { return load4(out + i) + load4(d + i); },
            [=](int64_t i) { return out[i] + d[i]; });
    }
}

/// The down projections of many pairs: a unit is 32 rows of all experts, whose products stay in the L2 cache.
void down_by_rows(Context& ctx, const DotKernels& kernels, const Plan& plan, const DotInput& input,
                  const Routing& routing, Tensor& y) {
    constexpr int64_t kStep = 32;
    const int64_t out = y.shape[1];
    const DownMemory memory = down_memory(ctx, plan, plan.pairs * kStep);
    run_units(ctx, (out + kStep - 1) / kStep, [&](int64_t unit, int thread) {
        const int64_t first = unit * kStep, last = std::min(out, first + kStep), count = last - first;
        std::byte* scratch = memory.base + thread * memory.thread_bytes;
        auto* products = reinterpret_cast<float*>(scratch + memory.scratch_bytes);
        for (const Block& block : plan.blocks)
            down_block(kernels, input, block, first, last, products + block.begin * count, count, scratch);
        combine(routing, plan, products, count, first, last, y);
    });
}

/// Those of few pairs, bound by reading weights: a unit is some rows of one expert, and units in order are one run of
/// memory for each expert, because rows of a few hundred bytes here and there come at half the speed. Whoever ends the
/// last product of a range of rows adds them up.
void down_by_experts(Context& ctx, const DotKernels& kernels, const Plan& plan, const DotInput& input,
                     const Routing& routing, Tensor& y) {
    constexpr int64_t kStep = 64;
    struct alignas(64) Arrived {
        std::atomic<int64_t> blocks{0};
    };
    const int64_t out = y.shape[1], ranges = (out + kStep - 1) / kStep,
                  blocks = static_cast<int64_t>(plan.blocks.size());
    const DownMemory memory = down_memory(ctx, plan, 0);
    auto* products = static_cast<float*>(ctx.arena->allocate(plan.pairs * out * int64_t{sizeof(float)}));
    auto* arrived = static_cast<Arrived*>(ctx.arena->allocate(ranges * int64_t{sizeof(Arrived)}));
    std::uninitialized_default_construct_n(arrived, ranges);
    run_units(ctx, blocks * ranges, [&](int64_t unit, int thread) {
        const Block& block = plan.blocks[static_cast<size_t>(unit / ranges)];
        const int64_t first = unit % ranges * kStep, last = std::min(out, first + kStep);
        down_block(kernels, input, block, first, last, products + block.begin * out + first, out,
                   memory.base + thread * memory.thread_bytes);
        if (arrived[unit % ranges].blocks.fetch_add(1, std::memory_order_acq_rel) + 1 == blocks)
            combine(routing, plan, products + first, out, first, last, y);
    });
}

/// Rows of w_down in one unit of a dense layer: few rows of x make units so light that more of them balance better.
int64_t down_rows(const Plan& plan) { return plan.pairs <= kFewPairs ? 16 : 32; }

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
    RT_CHECK(!weights.gate.empty(), "a feed-forward layer without experts");
    const int64_t width = weights.gate[0].rows, out = weights.down[0].rows;
    if (shared.gate != nullptr && shared.gate->rows != width) {
        Tensor sum = moe_swiglu(ctx, x, routing, weights);
        const ArenaScope scope(*ctx.arena);
        add(ctx, sum, swiglu_ffn(ctx, x, *shared.gate, *shared.up, *shared.down));
        return sum;
    }
    Tensor y = ctx.alloc(DType::f32, {x.rows(), out});
    if (x.rows() == 0) return y;

    const ArenaScope scope(*ctx.arena);
    const DotKernels& kernels = dot_kernels();
    const Plan plan = make_plan(ctx, routing, {&weights, shared});
    for (const Block& block : plan.blocks) check_expert(block.expert, x.shape[1], width, out);
    Hidden hidden(ctx, kernels, plan);
    hidden.compute(ctx, dot_input(ctx, kernels, x, want_int8(plan)));
    if (plan.pairs <= kFewPairs) down_by_experts(ctx, kernels, plan, hidden.as_input(), routing, y);
    else down_by_rows(ctx, kernels, plan, hidden.as_input(), routing, y);
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
    result.routing = route_sigmoid(ctx, result.logits, router.bias, router.top_k, router.scale, router.normalize);
    if (ctx.reroute) reroute(ctx, result.logits, router, result.routing);
    result.y = moe_swiglu(ctx, h, result.routing, weights, shared);
    add(ctx, x, result.y);
    return result;
}

Tensor swiglu_ffn(Context& ctx, const Tensor& x, const Weight& w_gate, const Weight& w_up, const Weight& w_down) {
    const Expert expert = {&w_gate, &w_up, &w_down};
    check_expert(expert, x.shape[1], w_gate.rows, w_down.rows);
    if (ctx.gpu != nullptr) return cuda::swiglu_ffn(ctx, x, w_gate, w_up, w_down);
    Tensor y = ctx.alloc(DType::f32, {x.rows(), w_down.rows});
    if (x.rows() == 0) return y;

    const ArenaScope scope(*ctx.arena);
    const DotKernels& kernels = dot_kernels();
    Plan plan;
    plan.pairs = x.rows();
    add_blocks(plan, expert, 0, x.rows());
    Hidden hidden(ctx, kernels, plan);
    hidden.compute(ctx, dot_input(ctx, kernels, x, want_int8(plan)));
    const DotInput input = hidden.as_input();
    const DownMemory memory = down_memory(ctx, plan, 0);
    const int64_t step = down_rows(plan), per_block = (w_down.rows + step - 1) / step;
    run_units(ctx, per_block * static_cast<int64_t>(plan.blocks.size()), [&](int64_t unit, int thread) {
        const Block& block = plan.blocks[static_cast<size_t>(unit / per_block)];
        const int64_t first = unit % per_block * step;
        down_block(kernels, input, block, first, std::min(w_down.rows, first + step), y.row(block.begin) + first,
                   w_down.rows, memory.base + thread * memory.thread_bytes);
    });
    return y;
}

}  // namespace riptide::ops
