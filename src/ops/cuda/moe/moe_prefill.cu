// Mixture of experts for many rows: rows sorted by expert, one grouped product for gate and up, one for down.
//
// FLOPs: 6 n (top_k + shared) d ff: 0.93 T for 16384 rows of d 2048, ff 512, 8 + 1 experts: 1.3 ms at 700 T/s. Bytes:
// the planes of the experts that have rows (0.56 to 0.82 a weight, 805 M weights a layer: 0.11 ms), decoded in the
// product (grouped_gemm_dequant_sm90.cu); other types are expanded first (2 + 2 bytes a weight more: 0.8 ms). The moves
// of sort_and_combine.cu. Bound by arithmetic from some 4096 rows on, by decoding and memory at 512.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/linear/gemm/fp8_sm90.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "ops/cuda/moe/plan.h"

namespace riptide::ops::cuda::prefill {

namespace {

/// The experts' matrices of one kind, and the shared expert's if it joins their product.
struct Kind {
    const std::vector<Weight>* each;
    const Weight* shared;
    int which;  // RowOrder::swiglu
};

int64_t distance(const std::vector<Weight>& each) {
    if (each.size() < 2) return 0;
    return static_cast<const char*>(each[1].data) - static_cast<const char*>(each[0].data);
}

/// Expands experts [begin, end) of one kind to b, rows_each rows apart. Expert `E` is the shared one.
void expand_kind(const Gpu& gpu, const Kind& kind, RowOrder order, const GroupPlan& plan, int begin, int end,
                 uint16_t* b, int64_t k, int64_t rows_each) {
    const auto experts = static_cast<int>(kind.each->size());
    const Weight& first = kind.each->front();
    Expansion job;
    job.w = first;
    job.rows = static_cast<int>(first.rows);
    job.b = b;
    job.k = static_cast<int>(k);
    job.order = order;
    job.which = kind.which;
    job.expert_stride = distance(*kind.each);
    job.expert_rows = rows_each;
    job.expert_begin = begin;
    job.experts = std::min(end, experts) - begin;
    job.row_first = plan.row_first;
    if (job.experts > 0) expand(gpu, job);
    if (end <= experts) return;
    Expansion shared;
    shared.w = *kind.shared;
    shared.rows = static_cast<int>(kind.shared->rows);
    shared.b = b + (experts - begin) * rows_each * k;
    shared.k = static_cast<int>(k);
    shared.order = order;
    shared.which = kind.which;
    expand(gpu, shared);
}

/// The products of experts [begin, end) with their slots from expanded weights, as many experts at a time as the
/// scratch holds.
template <class Out>
void expanded_products(Context& ctx, std::span<const Kind> kinds, RowOrder order, GemmProblem problem, const Out& out) {
    const ArenaScope scope(*ctx.arena);
    const int experts = problem.expert_end - problem.expert_begin;
    const int64_t rows_each = problem.n, bytes = 2 * rows_each * problem.k;
    const auto most = static_cast<int>(std::clamp<int64_t>(kScratchBytes / bytes, 1, experts));
    const int groups = ceil_div(experts, most), step = ceil_div(experts, groups), all = problem.expert_end;
    auto* b = static_cast<uint16_t*>(ctx.arena->allocate(step * bytes));
    problem.b = b;
    for (int begin = problem.expert_begin; begin < all; begin += step) {
        const int end = std::min(all, begin + step);
        for (const Kind& kind : kinds)
            expand_kind(*ctx.gpu, kind, order, problem.plan, begin, end, b, problem.k, rows_each);
        problem.expert_begin = begin;
        problem.expert_end = end;
        gemm(*ctx.gpu, problem, out);
    }
}

bool same_planes(const Weight& a, const Weight& b) {
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && a.scale == b.scale;
}

/// The product of all experts (`experts` of them, the shared one included) with their slots.
template <class Out>
void expert_products(Context& ctx, std::span<const Kind> kinds, RowOrder order, const GroupPlan& plan, int experts,
                     const uint16_t* a, int64_t slots, int64_t k, moe::Experts kernel, const Out& out) {
    const Weight& first = kinds[0].each->front();
    const auto routed = static_cast<int>(kinds[0].each->size());
    DecodingProblem job;
    GemmProblem& problem = job.gemm;
    problem.a = a;
    problem.rows = static_cast<int>(slots);
    problem.n = static_cast<int>(scratch_rows(order, first.rows));
    problem.k = static_cast<int>(k);
    problem.plan = plan;
    problem.expert_end = experts;
    bool decode_shared = experts > routed;
    for (size_t i = 0; i < kinds.size(); ++i) {
        const Weight& w = kinds[i].each->front();
        job.first[i] = &w;
        job.stride[i] = distance(*kinds[i].each);
        job.shared[i] = kinds[i].shared;
        decode_shared = decode_shared && same_planes(*kinds[i].shared, first);
    }
    if (kernel == moe::Experts::bf16_sm90 || kernel == moe::Experts::bf16_sm80)
        return expanded_products(ctx, kinds, order, problem, out);
    if (!decode_shared) {
        job.shared[0] = job.shared[1] = nullptr;
        problem.expert_end = routed;
    }
    gemm_decoding(*ctx.gpu, job, out);
    if (problem.expert_end == experts) return;
    problem.expert_begin = routed;
    problem.expert_end = experts;
    expanded_products(ctx, kinds, order, problem, out);
}

/// result = the shared expert alone, of any width. a: bf16 [n, k].
void shared_product(Context& ctx, const uint16_t* a, int64_t n, int64_t k, const SharedExpert& shared,
                    const Tensor& result) {
    const ArenaScope scope(*ctx.arena);
    const int64_t width = round_up(shared.gate->rows, 64);
    auto* act = static_cast<uint16_t*>(ctx.arena->allocate(2 * n * width));
    multiply_swiglu(ctx, a, n, k, *shared.gate, *shared.up, act);
    multiply(ctx, act, n, width, {&shared.down, 1}, {&result, 1}, nullptr);
}

void check_experts(const ExpertWeights& w, const SharedExpert& shared, int64_t d) {
    RT_ASSERT(!w.gate.empty() && w.up.size() == w.gate.size() && w.down.size() == w.gate.size());
    const auto same = [](const std::vector<Weight>& each) {
        const char* base = static_cast<const char*>(each[0].data);
        for (size_t e = 0; e < each.size(); ++e) {
            RT_ASSERT(each[e].data == base + static_cast<int64_t>(e) * distance(each));
            RT_CHECK(each[e].dtype == each[0].dtype && each[e].rows == each[0].rows && each[e].cols == each[0].cols,
                     "expert {} is {} [{}, {}], expert 0 is {} [{}, {}]", e, dtype_name(each[e].dtype), each[e].rows,
                     each[e].cols, dtype_name(each[0].dtype), each[0].rows, each[0].cols);
        }
    };
    same(w.gate), same(w.up), same(w.down);
    const int64_t ff = w.gate[0].rows;
    RT_CHECK(
        w.gate[0].cols == d && w.up[0].cols == d && w.up[0].rows == ff && w.down[0].cols == ff && w.down[0].rows == d,
        "experts of shapes [{}, {}], [{}, {}], [{}, {}] for rows of {} values", ff, w.gate[0].cols, w.up[0].rows,
        w.up[0].cols, w.down[0].rows, w.down[0].cols, d);
    if (shared.gate == nullptr) return;
    const int64_t wide = shared.gate->rows;
    RT_CHECK(shared.gate->cols == d && shared.up->cols == d && shared.up->rows == wide && shared.down->cols == wide &&
                 shared.down->rows == d,
             "a shared expert of width {} does not fit rows of {} values", wide, d);
}

/// Memory of a layer: slots (top_k for each row, then the rows themselves) of k bf16 values. First the inputs of the
/// experts; when gate and up are done, their results.
struct Slots {
    uint16_t* data;
    int64_t k;
    int64_t sorted;  // how many belong to the routed experts
    uint16_t* rows() const { return data + sorted * k; }
};

Slots alloc_slots(Context& ctx, int64_t n, int64_t top_k, int64_t d) {
    const int64_t k = round_up(d, 64), sorted = n * top_k;
    return {static_cast<uint16_t*>(ctx.arena->allocate(2 * (sorted + n) * k)), k, sorted};
}

/// y, x: as combine(). The bf16 rows of h are in slots.rows(). share: logits of the shared expert's, or null.
void run_experts(Context& ctx, const moe::Choice& choice, const Slots& slots, const Routing& routing,
                 const ExpertWeights& w, const SharedExpert& shared, const float* share, const Tensor& y, Tensor* x) {
    const int64_t n = y.rows(), ff = w.gate[0].rows;
    const bool has_shared = shared.gate != nullptr, joined = has_shared && shared.gate->rows == ff;
    const auto experts = static_cast<int>(w.gate.size());
    const SortedRouting sorted = sort_routing(ctx, routing, experts, joined);
    spread_rows(*ctx.gpu, slots.rows(), sorted.slot_of, n, routing.top_k, slots.k, slots.data);

    ExpertResults results = {slots.data, slots.k};
    results.share = share;
    if (joined) {
        results.shared = slots.rows();
    } else if (has_shared) {
        const Tensor result = ctx.alloc(DType::f32, {n, y.shape[1]});
        shared_product(ctx, slots.rows(), n, slots.k, shared, result);
        results.shared_f32 = result.row(0);
    }
    const int all = experts + (joined ? 1 : 0);
    const int64_t used = slots.sorted + (joined ? n : 0), width = round_up(ff, 64);
    auto* act = static_cast<uint16_t*>(ctx.arena->allocate(2 * used * width));
    const Kind first[] = {{&w.gate, shared.gate, 0}, {&w.up, shared.up, 1}};
    expert_products(ctx, first, RowOrder::swiglu, sorted.plan, all, slots.data, used, slots.k, choice.up,
                    OutSwiglu{act, static_cast<int>(ff), width});
    const Kind second[] = {{&w.down, shared.down, 0}};
    expert_products(ctx, second, RowOrder::f32, sorted.plan, all, act, used, width, choice.down,
                    OutBf16{slots.data, slots.k});
    combine(*ctx.gpu, results, sorted.slot_of, routing, y, x);
}

void check_rows(const Tensor& x) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous());
    RT_CHECK(x.rows() <= INT32_MAX / 64, "a step of {} rows is too long", x.rows());
}

}  // namespace

Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    check_rows(x);
    check_experts(weights, shared, x.shape[1]);
    RT_ASSERT(routing.experts.contiguous() && routing.weights.contiguous() && routing.experts.rows() == x.rows());
    const Tensor y = ctx.alloc(DType::f32, {x.rows(), x.shape[1]});
    if (x.rows() == 0) return y;
    const ArenaScope scope(*ctx.arena);
    const moe::Choice choice = moe::choose({.family = Family::prefill,
                                            .rows = x.rows(),
                                            .top_k = routing.top_k,
                                            .experts = &weights,
                                            .shared = shared,
                                            .chip = chip_of(*ctx.gpu)});
    if (choice.up == moe::Experts::fp8_sm90) {
        const Fp8Slots slots = alloc_fp8_slots(ctx, x.rows(), routing.top_k, x.shape[1]);
        to_fp8(*ctx.gpu, x, nullptr, 0, slots.rows, nullptr);
        fp8_experts(ctx, slots, routing, weights, shared, nullptr, y, nullptr);
        return y;
    }
    const Slots slots = alloc_slots(ctx, x.rows(), routing.top_k, x.shape[1]);
    to_bf16(*ctx.gpu, x, nullptr, 0, slots.rows(), slots.k, nullptr);
    run_experts(ctx, choice, slots, routing, weights, shared, nullptr, y, nullptr);
    return y;
}

MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared) {
    check_rows(x);
    const int64_t n = x.rows(), d = x.shape[1];
    check_experts(weights, shared, d);
    RT_ASSERT(static_cast<int64_t>(norm.weight.size()) == d);
    RT_CHECK(router.w->cols == d && router.w->rows == static_cast<int64_t>(weights.gate.size()),
             "a router of shape [{}, {}] for {} experts and rows of {} values", router.w->rows, router.w->cols,
             weights.gate.size(), d);
    MoeResult result;
    result.y = ctx.alloc(DType::f32, {n, d});
    result.logits = ctx.alloc(DType::f32, {n, router.w->rows});
    result.routing = alloc_routing(ctx, n, router.top_k);
    if (n == 0) return result;
    const ArenaScope scope(*ctx.arena);
    float* h = result.y.row(0);  // until the sum comes there
    float* const share = shared.share == nullptr ? nullptr : static_cast<float*>(ctx.arena->allocate(4 * n));
    const auto choose = [&]() -> const Routing& {
        if (share != nullptr) share_logits(*ctx.gpu, *shared.share, h, n, share);
        router_logits(ctx, *router.w, h, n, result.logits);
        route(ctx, result.logits, router, result.routing);
        return result.routing;
    };
    x.int8 = nullptr;
    const moe::Choice choice = moe::choose({.family = Family::prefill,
                                            .rows = n,
                                            .router = router.w,
                                            .top_k = router.top_k,
                                            .experts = &weights,
                                            .shared = shared,
                                            .chip = chip_of(*ctx.gpu)});
    if (choice.up == moe::Experts::fp8_sm90) {
        const Fp8Slots slots = alloc_fp8_slots(ctx, n, router.top_k, d);
        to_fp8(*ctx.gpu, x, norm.weight.data(), norm.eps, slots.rows, h);
        fp8_experts(ctx, slots, choose(), weights, shared, share, result.y, &x);
    } else {
        const Slots slots = alloc_slots(ctx, n, router.top_k, d);
        to_bf16(*ctx.gpu, x, norm.weight.data(), norm.eps, slots.rows(), slots.k, h);
        run_experts(ctx, choice, slots, choose(), weights, shared, share, result.y, &x);
    }
    return result;
}

}  // namespace riptide::ops::cuda::prefill
