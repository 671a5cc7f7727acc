// A mixture of experts for few rows on the CPU, bound by reading weights: one parallel region, in which threads wait for
// each other's results only where they need them.
//
// Units of work have an order: the router's rows; the shared expert's gate and up rows; those of the routed experts;
// the down rows of all experts. Threads claim them in this order from one counter. Whoever ends the router's last unit
// chooses the experts while others are at the shared one. A unit that needs an earlier one waits for it: it has been
// claimed, by a thread that runs, so that nobody waits for ever. Units of an expert lie in one run of memory, because
// rows of a few hundred bytes here and there come at half the speed.
// Before (three regions; 16 threads of a Xeon, 39 layers): 280 us of a token passed while one thread chose experts, and
// each region's end left threads without work for 6 us.
#include <algorithm>
#include <atomic>
#include <memory>

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/moe_parts.h"

namespace riptide::ops {

namespace {

constexpr int64_t kRouterRows = 8;
constexpr int64_t kGateRows = 32;
constexpr int64_t kDownRows = 64;

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
        plan_.largest = n;
        plan_.blocks.reserve(static_cast<size_t>(most_blocks));
        pair_row_ = static_cast<int32_t*>(ctx.arena->allocate(plan_.pairs * int64_t{sizeof(int32_t)}));
        pair_of_ = static_cast<int32_t*>(ctx.arena->allocate(n * k * int64_t{sizeof(int32_t)}));
        plan_.pair_row = pair_row_;
        plan_.pair_of = pair_of_;

        if (steps.router != nullptr) router_units_ = units_of(steps.router->w->rows, kRouterRows);
        gate_units_ = units_of(width_, kGateRows);
        ranges_ = units_of(y.shape[1], kDownRows);
        hidden_done_ = counters(ctx, most_blocks);
        range_done_ = counters(ctx, ranges_);
        hidden_ = HiddenRows::both(ctx, width_, plan_.pairs);
        products_ = static_cast<float*>(ctx.arena->allocate(plan_.pairs * y.shape[1] * int64_t{sizeof(float)}));
        add_shared();
        if (steps.router == nullptr) add_routed();
        find_scratch();
        const int threads = ctx.threads == nullptr ? 1 : ctx.threads->size();
        thread_memory_ = static_cast<std::byte*>(ctx.arena->allocate(threads * thread_bytes_));
        input_ = dot_input(ctx, kernels_, h, true);
    }

    /// Claims and runs units until none is left.
    void work(int thread) {
        std::byte* scratch = thread_memory_ + thread * thread_bytes_;
        try {
            while (run_unit(next_.value.fetch_add(1, std::memory_order_relaxed), scratch)) {
            }
        } catch (...) {
            failed_.store(true, std::memory_order_relaxed);
            throw;
        }
    }

  private:
    /// False: there is no such unit, or another one failed.
    bool run_unit(int64_t unit, std::byte* scratch) {
        if (unit < router_units_) return router_unit(unit, scratch), true;
        unit -= router_units_;
        const int64_t shared_blocks = shared_.gate != nullptr ? 1 : 0;
        if (unit < shared_blocks * gate_units_) return gate_unit(0, unit, scratch), true;
        unit -= shared_blocks * gate_units_;
        if (!wait_for(routed_, 1)) return false;
        const int64_t blocks = static_cast<int64_t>(plan_.blocks.size()), routed = blocks - shared_blocks;
        if (unit < routed * gate_units_)
            return gate_unit(shared_blocks + unit / gate_units_, unit % gate_units_, scratch), true;
        unit -= routed * gate_units_;
        if (unit >= blocks * ranges_ || !wait_for(hidden_done_[unit / ranges_], gate_units_)) return false;
        return down_unit(unit / ranges_, unit % ranges_, scratch), true;
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

    void gate_unit(int64_t block, int64_t unit, std::byte* scratch) {
        const int64_t first = unit * kGateRows, last = std::min(width_, first + kGateRows);
        gate_up(kernels_, plan_, plan_.blocks[static_cast<size_t>(block)], input_, first, last, hidden_, scratch,
                reinterpret_cast<float*>(scratch + scratch_bytes_));
        hidden_done_[block].value.fetch_add(1, std::memory_order_acq_rel);
    }

    void down_unit(int64_t b, int64_t range, std::byte* scratch) {
        const ExpertBlock& block = plan_.blocks[static_cast<size_t>(b)];
        const int64_t out = y_.shape[1], first = range * kDownRows, last = std::min(out, first + kDownRows);
        down_block(kernels_, hidden_.as_input(), block, first, last, products_ + block.begin * out + first, out,
                   scratch);
        const auto blocks = static_cast<int64_t>(plan_.blocks.size());
        if (range_done_[range].value.fetch_add(1, std::memory_order_acq_rel) + 1 < blocks) return;
        combine(routing_, plan_, products_ + first, out, first, last, y_);
        if (steps_.residual == nullptr) return;
        for (int64_t r = 0; r < y_.rows(); ++r) add_row(steps_.residual->row(r) + first, y_.row(r) + first, last - first);
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
        const auto need = [this](const Weight& w) {
            scratch_bytes_ = std::max(scratch_bytes_, dot_scratch_bytes(w));
        };
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
    int64_t width_, router_units_ = 0, gate_units_, ranges_, scratch_bytes_ = 0, thread_bytes_ = 0;

    Counter next_, router_done_, routed_;
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
