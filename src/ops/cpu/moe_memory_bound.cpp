// A mixture of experts for few rows on the CPU, bound by reading weights: one parallel region, in which threads wait
// for each other's results only where they need them.
//
// The work has four phases: the router's rows; the shared expert's gate and up rows; those of the routed experts; the
// down rows of all experts. In each, every thread has a share of units that follow each other in memory (rows of a few
// hundred bytes here and there come at half the speed; single units in turn cost a tenth), then helps others. It goes
// on to the next phase when all units have been claimed, not when they are done: a unit waits for those that it needs,
// which threads that run have claimed, so that nobody waits for ever. Whoever ends the router's last unit chooses the
// experts while others are at the shared one. With three regions instead, 16 threads of a Xeon: 280 us of a token
// passed while one thread chose experts, and at the end of a region (of any op) the caller waited for 6 us on average.
// In one region a sparse layer takes 158 us there, 118 GB/s of weights while threads are busy.
#include <algorithm>
#include <atomic>
#include <memory>

#include "base/error.h"
#include "ops/cpu/moe_parts.h"
#include "ops/elementwise.h"

namespace riptide::ops {

namespace {

constexpr int64_t kPhases = 4;
constexpr int64_t kRouterRows = 8;
constexpr int64_t kSharedRows = 32;  // one unit for each of 16 threads
// Kernels read a unit as two streams, and a stream wants to be long. 16 threads of a Xeon took 84 GB/s in down matrices
// (64 rows a unit, streams of 9 KB in q4_k), 93 in gate and up (32 rows, 18 KB), 98 in the output projection (37 KB).
// These were different matrices, no experiment with the length alone. Two threads of a Zen 4 EPYC, gate and down rows a
// unit: 32 and 64 22 GB/s, 64 and 128 26. Long units leave threads without work at the end.
constexpr int64_t kGateRows = 64;
constexpr int64_t kDownRows = 128;

struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
};

Counter* counters(Context& ctx, int64_t n) {
    auto* all = static_cast<Counter*>(ctx.arena->allocate(n * int64_t{sizeof(Counter)}));
    std::uninitialized_default_construct_n(all, n);
    return all;
}

int64_t units_of(int64_t rows, int64_t step) { return (rows + step - 1) / step; }

class FewRows {
  public:
    FewRows(Context& ctx, const Tensor& h, const FewSteps& steps, Routing& routing, const ExpertWeights& weights,
            const SharedExpert& shared, Tensor& y)
        : h_(h), steps_(steps), routing_(routing), weights_(weights), shared_(shared), y_(y) {
        const int64_t n = h.rows(), k = routing.top_k, most_blocks = n * k + 1;
        width_ = weights.gate[0].rows;
        plan_.first_shared = shared.gate != nullptr ? n * k : -1;
        plan_.pairs = n * k + (shared.gate != nullptr ? n : 0);
        plan_.largest = n * k;  // a row may name an expert more than once
        plan_.blocks.reserve(static_cast<size_t>(most_blocks));
        pair_row_ = static_cast<int32_t*>(ctx.arena->allocate(plan_.pairs * int64_t{sizeof(int32_t)}));
        pair_of_ = static_cast<int32_t*>(ctx.arena->allocate(n * k * int64_t{sizeof(int32_t)}));
        plan_.pair_row = pair_row_;
        plan_.pair_of = pair_of_;

        if (steps.router != nullptr) router_units_ = units_of(steps.router->w->rows, kRouterRows);
        shared_units_ = shared.gate != nullptr ? units_of(width_, kSharedRows) : 0;
        gate_units_ = units_of(width_, kGateRows);
        ranges_ = units_of(y.shape[1], kDownRows);
        hidden_done_ = counters(ctx, most_blocks);
        range_done_ = counters(ctx, ranges_);
        hidden_ = HiddenRows::both(ctx, width_, plan_.pairs);
        products_ = static_cast<float*>(ctx.arena->allocate(plan_.pairs * y.shape[1] * int64_t{sizeof(float)}));
        add_shared();
        if (steps.router == nullptr) add_routed();
        find_scratch();
        threads_ = ctx.threads == nullptr ? 1 : ctx.threads->size();
        claims_ = counters(ctx, kPhases * threads_);
        thread_memory_ = static_cast<std::byte*>(ctx.arena->allocate(threads_ * thread_bytes_));
        input_ = dot_input(ctx, kernels_, h, true);
    }

    /// Claims and runs units until none is left.
    void work(int thread) {
        std::byte* scratch = thread_memory_ + thread * thread_bytes_;
        const int64_t shared = shared_.gate != nullptr ? 1 : 0;  // its block is the first
        try {
            run_phase(0, router_units_, thread, [&](int64_t u) { return router_unit(u, scratch), true; });
            run_phase(1, shared_units_, thread,
                      [&](int64_t u) { return gate_unit(0, u * kSharedRows, kSharedRows, scratch), true; });
            if (!wait_for(routed_, 1)) return;
            const auto blocks = static_cast<int64_t>(plan_.blocks.size());
            run_phase(2, (blocks - shared) * gate_units_, thread, [&](int64_t u) {
                return gate_unit(shared + u / gate_units_, u % gate_units_ * kGateRows, kGateRows, scratch), true;
            });
            run_phase(3, blocks * ranges_, thread, [&](int64_t u) {
                const int64_t b = u / ranges_;
                if (!wait_for(hidden_done_[b], b < shared ? shared_units_ : gate_units_)) return false;
                return down_unit(b, u % ranges_, scratch), true;
            });
        } catch (...) {
            failed_.store(true, std::memory_order_relaxed);
            throw;
        }
    }

  private:
    /// Claims and runs units of a phase until all are claimed or `unit` says false.
    template <class Unit>
    void run_phase(int64_t phase, int64_t units, int thread, const Unit& unit) {
        const int64_t each = units / threads_, more = units % threads_;  // the first `more` shares have one more
        for (int64_t i = 0; i < threads_; ++i) {
            const int64_t owner = (thread + i) % threads_, count = each + (owner < more ? 1 : 0);
            const int64_t first = owner * each + std::min(owner, more);
            std::atomic<int64_t>& claims = claims_[phase * threads_ + owner].value;
            while (claims.load(std::memory_order_relaxed) < count) {
                const int64_t k = claims.fetch_add(1, std::memory_order_relaxed);
                if (k < count && !unit(first + k)) return;
            }
        }
    }

    bool wait_for(const Counter& counter, int64_t value) const {
        for (int64_t tries = 0; counter.value.load(std::memory_order_acquire) != value; ++tries) {
            if (failed_.load(std::memory_order_relaxed)) return false;
            spin_pause(tries);
        }
        return true;
    }

    void router_unit(int64_t unit, std::byte* scratch) {
        const Router& router = *steps_.router;
        DotTask task;
        input_.set(task, *router.w);
        task.row_begin = unit * kRouterRows;
        task.row_end = std::min(router.w->rows, task.row_begin + kRouterRows);
        task.n = h_.rows();
        task.y = const_cast<float*>(steps_.logits.row(0)) + task.row_begin;
        task.y_stride = router.w->rows;
        task.scratch = scratch;
        kernels_.dot(task);
        if (router_done_.value.fetch_add(1, std::memory_order_acq_rel) + 1 < router_units_) return;
        for (int64_t r = 0; r < h_.rows(); ++r)
            route_sigmoid_ref<float>(steps_.logits.row(r), router.bias.empty() ? nullptr : router.bias.data(),
                                     router.w->rows, router.top_k, router.scale, router.normalize,
                                     routing_.experts.row<int32_t>(r), routing_.weights.row(r));
        add_routed();
    }

    void gate_unit(int64_t block, int64_t first, int64_t count, std::byte* scratch) {
        const int64_t last = std::min(width_, first + count);
        gate_up(kernels_, plan_, plan_.blocks[static_cast<size_t>(block)], input_, first, last, hidden_, scratch,
                reinterpret_cast<float*>(scratch + scratch_bytes_));
        hidden_done_[block].value.fetch_add(1, std::memory_order_acq_rel);
    }

    void down_unit(int64_t b, int64_t range, std::byte* scratch) {
        const ExpertBlock& block = plan_.blocks[static_cast<size_t>(b)];
        const int64_t out = y_.shape[1], first = range * kDownRows, last = std::min(out, first + kDownRows);
        if (block.end - block.begin == 1 && last < out)
            fetch_streams(*block.expert.down, last, std::min(out, last + kDownRows));
        down_block(kernels_, hidden_.as_input(), block, first, last, products_ + block.begin * out + first, out,
                   scratch);
        const auto blocks = static_cast<int64_t>(plan_.blocks.size());
        if (range_done_[range].value.fetch_add(1, std::memory_order_acq_rel) + 1 < blocks) return;
        combine(routing_, plan_, products_ + first, out, first, last, y_);
        if (steps_.residual == nullptr) return;
        for (int64_t r = 0; r < y_.rows(); ++r)
            add_row(steps_.residual->row(r) + first, y_.row(r) + first, last - first);
    }

    /// Block 0 and the last pairs are the shared expert's.
    void add_shared() {
        if (shared_.gate == nullptr) return;
        check_expert(shared_, h_.shape[1], width_, y_.shape[1]);
        plan_.blocks.push_back({shared_, plan_.first_shared, plan_.pairs});
        for (int64_t r = 0; r < h_.rows(); ++r) pair_row_[plan_.first_shared + r] = static_cast<int32_t>(r);
    }

    /// A block for each expert of the routing, in the order in which they first appear.
    void add_routed() {
        const auto* experts = routing_.experts.row<int32_t>(0);
        const int64_t k = routing_.top_k, count = h_.rows() * k;
        int32_t pair = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (std::find(experts, experts + i, experts[i]) != experts + i) continue;
            const auto e = static_cast<size_t>(experts[i]);
            RT_ASSERT(experts[i] >= 0 && e < weights_.gate.size());
            const SharedExpert expert{&weights_.gate[e], &weights_.up[e], &weights_.down[e]};
            check_expert(expert, h_.shape[1], width_, y_.shape[1]);
            const int64_t begin = pair;
            for (int64_t j = i; j < count; ++j) {
                if (experts[j] != experts[i]) continue;
                pair_row_[pair] = static_cast<int32_t>(j / k);
                pair_of_[j] = pair++;
            }
            plan_.blocks.push_back({expert, begin, pair});
        }
        routed_.value.store(1, std::memory_order_release);
    }

    /// Kernel scratch depends on the columns alone, so that one expert speaks for all.
    void find_scratch() {
        const auto need = [this](const Weight& w) { scratch_bytes_ = std::max(scratch_bytes_, dot_scratch_bytes(w)); };
        need(weights_.gate[0]);
        need(weights_.down[0]);
        if (steps_.router != nullptr) need(*steps_.router->w);
        thread_bytes_ = scratch_bytes_ + 2 * plan_.largest * kGateRows * int64_t{sizeof(float)};
    }

    const Tensor& h_;
    const FewSteps& steps_;
    Routing& routing_;
    const ExpertWeights& weights_;
    const SharedExpert shared_;
    Tensor& y_;
    const DotKernels& kernels_ = dot_kernels();
    DotInput input_;
    ExpertPlan plan_;
    int32_t *pair_row_, *pair_of_;
    HiddenRows hidden_;
    float* products_;
    std::byte* thread_memory_;
    int64_t width_, router_units_ = 0, shared_units_, gate_units_, ranges_, scratch_bytes_ = 0, thread_bytes_ = 0;

    int64_t threads_;
    Counter router_done_, routed_;
    Counter* claims_;       // units of each thread's share, phase after phase
    Counter* hidden_done_;  // gate units of each block
    Counter* range_done_;   // down units of each range of rows
    alignas(64) std::atomic<bool> failed_{false};
};

}  // namespace

void moe_few(Context& ctx, const Tensor& h, const FewSteps& steps, Routing& routing, const ExpertWeights& weights,
             const SharedExpert& shared, Tensor& y) {
    if (steps.router != nullptr) {
        const Weight& w = *steps.router->w;
        RT_CHECK(has_dot(w.dtype), "no matrix product for weights of type {}", dtype_name(w.dtype));
        RT_CHECK(w.cols == h.shape[1], "a weight of shape [{}, {}] cannot multiply rows of {} values", w.rows, w.cols,
                 h.shape[1]);
        RT_CHECK(w.rows == static_cast<int64_t>(weights.gate.size()), "a router of {} rows for {} experts", w.rows,
                 weights.gate.size());
        check_routing(w.rows, steps.router->top_k, steps.router->bias);
    }
    const ArenaScope scope(*ctx.arena);
    FewRows rows(ctx, h, steps, routing, weights, shared, y);
    if (ctx.threads == nullptr) return rows.work(0);
    ctx.threads->parallel_for(ctx.threads->size(), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) rows.work(thread);
    });
}

}  // namespace riptide::ops
