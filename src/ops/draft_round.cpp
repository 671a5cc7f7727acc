#include "ops/draft_round.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <queue>

#include "ops/cuda/backend.h"
#include "ops/op_cost.h"

namespace riptide::ops {

void begin_round(Context& ctx, const RoundState& s) {
    const OpScope told = announce(ctx, "begin_round", 1);
    RT_ASSERT(s.line_rows <= kMostRoundRows);
    if (ctx.gpu != nullptr) return cuda::begin_round(ctx, s);
    *s.committed = *s.length;
    *s.behind = *s.length - *s.origin;
    for (int32_t i = 0; i < s.line_rows; ++i) s.line[i] = *s.length + i;
    s.block_tokens[0] = s.rows.tokens[0] = *s.token;
    s.rows.positions[0] = *s.length;
    s.rows.parents[0] = -1;
    s.rows.logprobs[0] = 0;
    *s.rows.count = 1;
}

Tensor choice_logprobs(Context& ctx, const TopK& best) {
    const OpScope told = announce(ctx, "choice_logprobs", best.values.rows());
    RT_ASSERT(best.values.dtype == DType::f32 && best.values.contiguous() && best.k >= 1 && best.k <= 32);
    if (ctx.gpu != nullptr) return cuda::choice_logprobs(ctx, best);
    Tensor out = ctx.alloc(DType::f32, {best.values.rows(), best.k});
    for (int64_t r = 0; r < out.rows(); ++r) {
        const float* const values = best.values.row(r);
        double sum = 0;
        for (int64_t c = 0; c < best.k; ++c) sum += std::exp(double{values[c]} - double{values[0]});
        for (int64_t c = 0; c < best.k; ++c)
            out.row(r)[c] = static_cast<float>(double{values[c]} - double{values[0]} - std::log(sum));
    }
    return out;
}

namespace {

/// A prefix that is no row yet, but whose parent is one.
struct Prefix {
    double logprob, before;  // of the whole way; of the parent's
    int64_t slot, choice;
    int32_t parent;
    int64_t found;  // how many were found before it
};

/// Whether b goes before a.
struct Later {
    bool operator()(const Prefix& a, const Prefix& b) const {
        if (a.logprob != b.logprob) return a.logprob < b.logprob;
        return a.slot != b.slot ? a.slot > b.slot : a.found > b.found;
    }
};

class Builder {
  public:
    Builder(std::span<const int32_t> indices, std::span<const float> logprobs, int64_t slots, int64_t k,
            std::span<const int32_t> words, const DraftPlan& plan, const DraftRows& rows)
        : indices_(indices),
          logprobs_(logprobs),
          slots_(std::min<int64_t>(slots, plan.slots)),
          k_(k),
          words_(words),
          plan_(plan),
          rows_(rows) {}

    int32_t build() {
        double way = 0;
        int32_t parent = 0;
        for (int64_t s = 0; s < std::min<int64_t>(plan_.chain, slots_) && used_ < plan_.rows && has(s, 0); ++s) {
            find(s, 1, parent, way);
            way += double{logprob(s, 0)};
            parent = add(s, 0, parent);
        }
        find(used_ - 1, 0, parent, way);
        while (used_ < plan_.rows && !open_.empty()) {
            const Prefix best = open_.top();
            open_.pop();
            const int32_t row = add(best.slot, best.choice, best.parent);
            find(best.slot, best.choice + 1, best.parent, best.before);
            find(best.slot + 1, 0, row, best.logprob);
        }
        return used_;
    }

  private:
    float logprob(int64_t slot, int64_t choice) const { return logprobs_[static_cast<size_t>(slot * k_ + choice)]; }
    bool has(int64_t slot, int64_t choice) const {
        return slot < slots_ && choice < plan_.choices &&
               logprob(slot, choice) > -std::numeric_limits<float>::infinity();  // nor NaN
    }
    void find(int64_t slot, int64_t choice, int32_t parent, double before) {
        if (has(slot, choice))
            open_.push({before + double{logprob(slot, choice)}, before, slot, choice, parent, found_++});
    }
    int32_t add(int64_t slot, int64_t choice, int32_t parent) {
        const int32_t word = indices_[static_cast<size_t>(slot * k_ + choice)];
        rows_.tokens[used_] = words_.empty() ? word : words_[static_cast<size_t>(word)];
        rows_.positions[used_] = rows_.positions[0] + static_cast<int32_t>(slot) + 1;
        rows_.parents[used_] = parent;
        rows_.logprobs[used_] = logprob(slot, choice);
        return used_++;
    }

    std::span<const int32_t> indices_;
    std::span<const float> logprobs_;
    int64_t slots_, k_;
    std::span<const int32_t> words_;
    const DraftPlan& plan_;
    const DraftRows& rows_;
    std::priority_queue<Prefix, std::vector<Prefix>, Later> open_;
    int64_t found_ = 0;
    int32_t used_ = 1;
};

}  // namespace

void draft_rows_ref(std::span<const int32_t> indices, std::span<const float> logprobs, int64_t slots, int64_t k,
                    std::span<const int32_t> words, const DraftPlan& plan, const DraftRows& rows) {
    RT_ASSERT(plan.rows >= 1 && plan.choices <= k && std::ssize(indices) == slots * k);
    rows.parents[0] = -1;
    rows.logprobs[0] = 0;
    *rows.count = Builder(indices, logprobs, slots, k, words, plan, rows).build();
    for (int32_t i = *rows.count; i < plan.rows; ++i) {
        rows.tokens[i] = rows.parents[i] = 0;
        rows.positions[i] = rows.positions[0] + 1;
        rows.logprobs[i] = -std::numeric_limits<float>::infinity();
    }
}

void draft_rows(Context& ctx, const Tensor& indices, const Tensor& logprobs, std::span<const int32_t> words,
                const DraftPlan& plan, const DraftRows& rows) {
    const OpScope told = announce(ctx, "draft_rows", plan.rows);
    RT_ASSERT(indices.dtype == DType::i32 && indices.rank == 2 && indices.contiguous() && logprobs.contiguous());
    RT_ASSERT(logprobs.dtype == DType::f32 && logprobs.shape == indices.shape && indices.shape[0] < kMostRoundRows);
    RT_ASSERT(plan.rows >= 1 && plan.rows <= kMostRoundRows && plan.choices <= indices.shape[1]);
    if (ctx.gpu != nullptr) return cuda::draft_rows(ctx, indices, logprobs, words, plan, rows);
    const auto count = static_cast<size_t>(indices.elements());
    draft_rows_ref({indices.row<int32_t>(0), count}, {logprobs.row(0), count}, indices.shape[0], indices.shape[1],
                   words, plan, rows);
}

void accept_rows(Context& ctx, const Tensor& drawn, const RoundState& s, const RoundRing& ring) {
    const auto n = static_cast<int32_t>(drawn.rows());
    const OpScope told = announce(ctx, "accept_rows", n);
    RT_ASSERT(drawn.dtype == DType::i32 && drawn.rank == 1 && n >= 1 && n <= kMostRoundRows);
    if (ctx.gpu != nullptr) return cuda::accept_rows(ctx, drawn, s, ring);
    const int32_t* const next = drawn.row<int32_t>(0);
    const int32_t used = std::min(n, *s.rows.count);
    std::fill_n(s.path, kMostRoundRows, 0);
    int32_t kept = 0, last = 0;
    for (int32_t row = 0; row < used;) {
        s.path[kept++] = last = row;
        int32_t child = row + 1;
        while (child < used && (next[row] < 0 || s.rows.parents[child] != row || s.rows.tokens[child] != next[row]))
            ++child;
        row = child;
    }
    *s.kept = kept;
    *s.length += kept;
    *s.token = std::max(next[last], 0);
    const int64_t step = *ring.step;
    for (int32_t i = 0; i < n; ++i) {
        uint64_t* const words = ring.entries + step % ring.size * RoundRing::kEntryWords + i * RoundRing::kWords;
        const auto tag = static_cast<uint64_t>(step + 1) << 32;
        words[0] = tag | static_cast<uint32_t>(next[i]);
        words[1] = tag | static_cast<uint32_t>(s.rows.tokens[i]);
        words[2] = tag | static_cast<uint32_t>((s.rows.parents[i] + 1) | kept << 8 | used << 16);
        words[3] = tag | std::bit_cast<uint32_t>(s.rows.logprobs[i]);
    }
    *ring.step = step + 1;
}

void store_rows(Context& ctx, const Tensor& x, const int32_t* at, Tensor& out) {
    const OpScope told = announce(ctx, "store_rows", x.rows());
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous() && out.dtype == DType::f32 && out.contiguous());
    RT_ASSERT(x.shape[1] == out.shape[1]);
    if (ctx.gpu != nullptr) return cuda::store_rows(ctx, x, at, out);
    RT_ASSERT(*at >= 0 && *at + x.rows() <= out.rows());
    std::copy_n(x.row(0), x.elements(), out.row(*at));
}

}  // namespace riptide::ops
