#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/moe_parts.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

constexpr int64_t kBlockPairs = 256;  // rows of one unit of work: their activations stay in the L2 cache

using Expert = SharedExpert;
using Block = ExpertBlock;
using Plan = ExpertPlan;

/// The routed experts, numbered from 0, and behind them the shared one, if there is one.
class Experts {
  public:
    Experts(const ExpertWeights& routed, const Expert& shared) : routed_(routed), shared_(shared) {}

    int64_t routed() const { return static_cast<int64_t>(routed_.gate.size()); }
    bool has_shared() const { return shared_.gate != nullptr; }
    Expert operator[](int64_t e) const {
        const auto i = static_cast<size_t>(e);
        return e == routed() ? shared_ : Expert{&routed_.gate[i], &routed_.up[i], &routed_.down[i]};
    }

  private:
    const ExpertWeights& routed_;
    const Expert& shared_;
};

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

/// The hidden values of every pair, in one parallel region; a unit makes 32 or 64 values of one block of pairs, so that
/// it can quantise them on the spot.
HiddenRows hidden_rows(Context& ctx, const DotKernels& kernels, const Plan& plan, const DotInput& x) {
    HiddenRows hidden;
    int64_t scratch_bytes = 0;
    for (const Block& b : plan.blocks) {
        hidden.want(ctx, *b.expert.down, plan.pairs);
        scratch_bytes = std::max({scratch_bytes, dot_scratch_bytes(*b.expert.gate), dot_scratch_bytes(*b.expert.up)});
    }
    const ArenaScope scope(*ctx.arena);
    const int64_t step = plan.pairs >= 64 * static_cast<int64_t>(plan.blocks.size()) ? 64 : 32;
    const int64_t per_block = (hidden.width + step - 1) / step;
    const int64_t thread_bytes = scratch_bytes + 2 * plan.largest * step * int64_t{sizeof(float)};
    auto* memory = static_cast<std::byte*>(ctx.arena->allocate(thread_bytes * thread_count(ctx)));
    run_units(ctx, per_block * static_cast<int64_t>(plan.blocks.size()), [&](int64_t unit, int thread) {
        std::byte* scratch = memory + thread * thread_bytes;
        const int64_t first = unit % per_block * step;
        gate_up(kernels, plan, plan.blocks[static_cast<size_t>(unit / per_block)], x, first,
                std::min(hidden.width, first + step), hidden, scratch,
                reinterpret_cast<float*>(scratch + scratch_bytes));
    });
    return hidden;
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

/// Rows of w_down in one unit of a dense layer: few rows of x make units so light that more of them balance better.
int64_t down_rows(const Plan& plan) { return few_pairs(plan.pairs) ? 16 : 32; }

}  // namespace

namespace {

/// The experts with the largest keys, by rank.
template <class Acc, class Key>
void choose_experts(int64_t num_experts, int64_t top_k, const Key& key_of, int32_t* experts) {
    std::vector<Acc> keys(static_cast<size_t>(top_k));
    int64_t found = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
        Acc key = key_of(e);
        if (std::isnan(key)) key = -std::numeric_limits<Acc>::infinity();
        if (found == top_k && !(key > keys.back())) continue;
        int64_t at = found < top_k ? found++ : top_k - 1;
        for (; at > 0 && key > keys[static_cast<size_t>(at - 1)]; --at) {
            keys[static_cast<size_t>(at)] = keys[static_cast<size_t>(at - 1)];
            experts[at] = experts[at - 1];
        }
        keys[static_cast<size_t>(at)] = key;
        experts[at] = static_cast<int32_t>(e);
    }
}

template <class Acc>
Acc sigmoid(float logit) {
    return Acc{1} / (Acc{1} + std::exp(-Acc{logit}));
}

/// Weights of experts that have been chosen: all exp(l - m), divided by their sum.
template <class Acc>
void softmax_weights(const float* logits, int64_t top_k, const int32_t* experts, Acc* weights) {
    float most = logits[experts[0]];
    for (int64_t j = 1; j < top_k; ++j) most = std::max(most, logits[experts[j]]);
    Acc sum = 0;
    for (int64_t j = 0; j < top_k; ++j) sum += weights[j] = std::exp(Acc{logits[experts[j]]} - Acc{most});
    for (int64_t j = 0; j < top_k; ++j) weights[j] /= sum;
}

}  // namespace

template <class Acc>
void route_sigmoid_ref(const float* logits, const float* bias, int64_t num_experts, int64_t top_k, float scale,
                       bool normalize, int32_t* experts, Acc* weights) {
    const auto key = [&](int64_t e) {
        const Acc s = sigmoid<Acc>(logits[e]);
        return bias == nullptr ? s : s + Acc{bias[e]};
    };
    choose_experts<Acc>(num_experts, top_k, key, experts);
    for (int64_t j = 0; j < top_k; ++j) weights[j] = sigmoid<Acc>(logits[experts[j]]);
    Acc sum = 0;
    for (int64_t j = 0; j < top_k; ++j) sum += weights[j];
    for (int64_t j = 0; j < top_k; ++j) weights[j] = (normalize ? weights[j] / sum : weights[j]) * Acc{scale};
}
template void route_sigmoid_ref<float>(const float*, const float*, int64_t, int64_t, float, bool, int32_t*, float*);
template void route_sigmoid_ref<double>(const float*, const float*, int64_t, int64_t, float, bool, int32_t*, double*);

template <class Acc>
void route_softmax_ref(const float* logits, int64_t num_experts, int64_t top_k, int32_t* experts, Acc* weights) {
    choose_experts<float>(
        num_experts, top_k, [&](int64_t e) { return logits[e]; }, experts);
    softmax_weights(logits, top_k, experts, weights);
}
template void route_softmax_ref<float>(const float*, int64_t, int64_t, int32_t*, float*);
template void route_softmax_ref<double>(const float*, int64_t, int64_t, int32_t*, double*);

Routing route_sigmoid(Context& ctx, const Tensor& logits, std::span<const float> bias, int64_t top_k, float scale,
                      bool normalize) {
    RT_ASSERT(logits.dtype == DType::f32 && logits.rank == 2 && logits.contiguous());
    const int64_t n = logits.rows(), num_experts = logits.shape[1];
    check_routing(num_experts, top_k, bias);
    if (ctx.gpu != nullptr) return cuda::route_sigmoid(ctx, logits, bias, top_k, scale, normalize);
    Routing routing{top_k, ctx.alloc(DType::i32, {n, top_k}), ctx.alloc(DType::f32, {n, top_k})};
    parallel_rows(ctx, n, 16 * num_experts, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r)
            route_sigmoid_ref<float>(logits.row(r), bias.empty() ? nullptr : bias.data(), num_experts, top_k, scale,
                                     normalize, routing.experts.row<int32_t>(r), routing.weights.row(r));
    });
    return routing;
}

Routing route_softmax(Context& ctx, const Tensor& logits, int64_t top_k) {
    RT_ASSERT(logits.dtype == DType::f32 && logits.rank == 2 && logits.contiguous());
    const int64_t n = logits.rows(), num_experts = logits.shape[1];
    check_routing(num_experts, top_k, {});
    const OpScope told = announce(ctx, "route_softmax", n);
    if (ctx.gpu != nullptr) return cuda::route_softmax(ctx, logits, top_k);
    Routing routing{top_k, ctx.alloc(DType::i32, {n, top_k}), ctx.alloc(DType::f32, {n, top_k})};
    for (int64_t r = 0; r < n; ++r)
        route_softmax_ref<float>(logits.row(r), num_experts, top_k, routing.experts.row<int32_t>(r),
                                 routing.weights.row(r));
    if (ctx.reroute) {
        ctx.reroute(routing.experts);
        for (int64_t r = 0; r < n; ++r)
            softmax_weights(logits.row(r), top_k, routing.experts.row<int32_t>(r), routing.weights.row(r));
    }
    return routing;
}

namespace {

/// Shows ctx.on_input what each expert's matrices multiply: computes them once more, one expert after the other.
void show_expert_inputs(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                        const SharedExpert& shared) {
    const int64_t pairs = x.rows() * routing.top_k;
    const auto* experts = routing.experts.row<int32_t>(0);
    for (size_t e = 0; e < weights.gate.size(); ++e) {
        const ArenaScope scope(*ctx.arena);
        const int64_t count = std::count(experts, experts + pairs, static_cast<int32_t>(e));
        if (count == 0) continue;
        Tensor rows = ctx.alloc(DType::f32, {count, x.shape[1]});
        int64_t next = 0;
        for (int64_t i = 0; i < pairs; ++i)
            if (experts[i] == static_cast<int32_t>(e))
                std::copy_n(x.row(i / routing.top_k), x.shape[1], rows.row(next++));
        swiglu_ffn(ctx, rows, weights.gate[e], weights.up[e], weights.down[e]);
    }
    const ArenaScope scope(*ctx.arena);
    if (shared.gate != nullptr) swiglu_ffn(ctx, x, *shared.gate, *shared.up, *shared.down);
}

}  // namespace

Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    RT_ASSERT(weights.gate.size() == weights.up.size() && weights.gate.size() == weights.down.size());
    RT_ASSERT(routing.experts.rows() == x.rows() && routing.weights.rows() == x.rows());
    RT_CHECK(!weights.gate.empty(), "a feed-forward layer without experts");
    const OpScope told = announce_experts(ctx, "moe_swiglu", x.rows(), {.top_k = routing.top_k}, weights, shared);
    const int64_t width = weights.gate[0].rows, out = weights.down[0].rows;
    const int64_t pairs = x.rows() * (routing.top_k + (shared.gate != nullptr ? 1 : 0));
    if (shared.share != nullptr || (ctx.gpu == nullptr && shared.gate != nullptr && shared.gate->rows != width)) {
        Tensor sum = moe_swiglu(ctx, x, routing, weights);
        const ArenaScope scope(*ctx.arena);
        Tensor term = swiglu_ffn(ctx, x, *shared.gate, *shared.up, *shared.down);
        if (shared.share != nullptr) mul_sigmoid(ctx, term, matmul(ctx, *shared.share, x), 1);
        add(ctx, sum, term);
        return sum;
    }
    if (ctx.gpu != nullptr) return cuda::moe_swiglu(ctx, x, routing, weights, shared);
    if (ctx.on_input) show_expert_inputs(ctx, x, routing, weights, shared);
    Tensor y = ctx.alloc(DType::f32, {x.rows(), out});
    if (x.rows() == 0) return y;
    if (few_pairs(pairs)) {
        Routing given = routing;
        moe_few(ctx, x, {}, given, weights, shared, y);
        return y;
    }

    const ArenaScope scope(*ctx.arena);
    const DotKernels& kernels = dot_kernels();
    const Plan plan = make_plan(ctx, routing, {weights, shared});
    for (const Block& block : plan.blocks) check_expert(block.expert, x.shape[1], width, out);
    const HiddenRows hidden = hidden_rows(ctx, kernels, plan, dot_input(ctx, kernels, x, want_int8(plan)));
    down_by_rows(ctx, kernels, plan, hidden.as_input(), routing, y);
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
    RT_ASSERT(x.routed.router == nullptr || x.routed.router == router.w);
    RT_CHECK(!weights.gate.empty(), "a feed-forward layer without experts");
    RT_ASSERT(!router.softmax || (router.bias.empty() && router.normalize && router.scale == 1));
    const OpScope told = announce_experts(ctx, "moe_add", x.rows(), router, weights, shared, x.routed.product);
    if (ctx.gpu != nullptr) {
        MoeResult result = cuda::moe_add(ctx, x, norm, router, weights, shared);
        x.routed = {};
        return result;
    }
    x.routed = {};
    const Tensor h = rms_norm(ctx, x, norm.weight, norm.eps);
    MoeResult result;
    const int64_t n = x.rows(), pairs = n * (router.top_k + (shared.gate != nullptr ? 1 : 0));
    if (n > 0 && !ctx.reroute && !ctx.on_input && few_pairs(pairs) && !weights.gate.empty() && !router.softmax &&
        (shared.gate == nullptr || (shared.gate->rows == weights.gate[0].rows && shared.share == nullptr))) {
        result.logits = ctx.alloc(DType::f32, {n, router.w->rows});
        result.routing = {router.top_k, ctx.alloc(DType::i32, {n, router.top_k}),
                          ctx.alloc(DType::f32, {n, router.top_k})};
        result.y = ctx.alloc(DType::f32, {n, weights.down[0].rows});
        moe_few(ctx, h, {&router, result.logits, &x}, result.routing, weights, shared, result.y);
        return result;
    }
    result.logits = matmul(ctx, *router.w, h);
    if (router.softmax) {
        result.routing = route_softmax(ctx, result.logits, router.top_k);
    } else {
        result.routing = route_sigmoid(ctx, result.logits, router.bias, router.top_k, router.scale, router.normalize);
        if (ctx.reroute) reroute(ctx, result.logits, router, result.routing);
    }
    result.y = moe_swiglu(ctx, h, result.routing, weights, shared);
    add(ctx, x, result.y);
    return result;
}

Tensor swiglu_ffn(Context& ctx, const Tensor& x, const Weight& w_gate, const Weight& w_up, const Weight& w_down) {
    const Expert expert = {&w_gate, &w_up, &w_down};
    check_expert(expert, x.shape[1], w_gate.rows, w_down.rows);
    const Weight* const all[] = {&w_gate, &w_up, &w_down};
    const OpScope told = announce(ctx, "swiglu_ffn", x.rows(), all);
    if (ctx.gpu != nullptr) return cuda::swiglu_ffn(ctx, x, w_gate, w_up, w_down);
    if (ctx.on_input) {  // where the hidden rows are seen as well
        const Weight* const pair[] = {&w_gate, &w_up};
        const std::vector<Tensor> h = matmul_group(ctx, pair, x);
        return matmul(ctx, w_down, swiglu(ctx, h[0], h[1]));
    }
    Tensor y = ctx.alloc(DType::f32, {x.rows(), w_down.rows});
    if (x.rows() == 0) return y;

    const ArenaScope scope(*ctx.arena);
    const DotKernels& kernels = dot_kernels();
    Plan plan;
    plan.pairs = x.rows();
    add_blocks(plan, expert, 0, x.rows());
    const DotInput input = hidden_rows(ctx, kernels, plan, dot_input(ctx, kernels, x, want_int8(plan))).as_input();
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
