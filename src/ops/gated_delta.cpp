#include "ops/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/lanes.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/delta_schedule.h"
#include "ops/norm.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

/// Rows in the layout that DeltaView::stash describes, and q [n, key_heads * key_dim] apart: a replay needs no q.
class DeltaRows {
  public:
    /// rows: the stash, or other memory of that shape. keeps_inputs: rows.inputs() are wanted.
    DeltaRows(const DeltaView& view, float* rows, float* q, bool keeps_inputs = true)
        : rows_(rows),
          q_(q),
          stride_(view.stash_floats()),
          keys_(view.key_heads * view.key_dim),
          channels_(view.channels()),
          heads_(view.value_heads),
          keeps_inputs_(keeps_inputs) {}

    bool keeps_inputs() const { return keeps_inputs_; }
    float* q(int64_t row) const { return q_ + row * keys_; }
    float* inputs(int64_t row) const { return rows_ + row * stride_; }
    float* k(int64_t row) const { return inputs(row) + channels_; }
    float* v(int64_t row) const { return k(row) + keys_; }
    /// e^g of each value head, then beta.
    float* decay(int64_t row) const { return v(row) + channels_ - 2 * keys_; }
    float* beta(int64_t row) const { return decay(row) + heads_; }

  private:
    float *rows_, *q_;
    int64_t stride_, keys_, channels_, heads_;
    bool keeps_inputs_;
};

void check_matrix(const Tensor& t, int64_t rows, int64_t cols) {
    RT_ASSERT(t.dtype == DType::f32 && t.rank == 2 && t.rows() == rows && t.shape[1] == cols);
}

void check_view(const DeltaView& view) {
    RT_ASSERT(view.state_dtype == DType::f32 && view.key_heads > 0 && view.value_heads % view.key_heads == 0);
    RT_ASSERT(view.conv_width > 0 && view.conv != nullptr && view.state != nullptr);
}

void check_delta_input(const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode) {
    check_view(view);
    const int64_t n = batch.rows();
    check_matrix(in.qkv, n, view.channels());
    check_matrix(in.z, n, view.value_heads * view.value_dim);
    check_matrix(in.a, n, view.value_heads);
    check_matrix(in.b, n, view.value_heads);
    RT_ASSERT(std::ssize(in.conv) == view.conv_floats() && std::ssize(in.norm.weight) == view.value_dim);
    RT_ASSERT(std::ssize(in.decay) == view.value_heads && std::ssize(in.dt_bias) == view.value_heads);
    if (mode == DeltaMode::stash) RT_ASSERT(view.stash != nullptr && view.stash_rows >= n);
    else RT_ASSERT(batch.parent.empty());
    if (mode == DeltaMode::follow)
        RT_ASSERT(view.stash != nullptr && view.stash_rows >= 2 * n && n == batch.sequences());
}

/// The convolution's inputs of one row's path: its own, its ancestors', then the slot's.
class Inputs {
  public:
    Inputs(const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, int64_t row) : taps_(view.conv_width) {
        const auto s = static_cast<size_t>(batch.row_sequence[static_cast<size_t>(row)]);
        const float* slot = view.conv + batch.state_slot[s] * view.conv_floats();
        int64_t at = row, position = batch.positions[static_cast<size_t>(row)];
        for (size_t i = taps_.size(); i-- > 0; --position) {
            if (position >= batch.committed[s]) {
                taps_[i] = in.qkv.row(at);
                at = !batch.parent.empty() ? batch.parent[static_cast<size_t>(at)] : at - 1;
            } else {
                taps_[i] = position < 0 ? nullptr : slot + view.conv_column(position) * view.channels();
            }
        }
    }
    /// silu(convolution) of channel e: taps from the oldest to the newest.
    float operator()(const float* weights, int64_t e) const {
        float sum = 0;
        for (size_t i = 0; i < taps_.size(); ++i)
            if (taps_[i] != nullptr) sum += weights[e * std::ssize(taps_) + static_cast<int64_t>(i)] * taps_[i][e];
        return sum / (1.0f + std::exp(-sum));
    }

  private:
    std::vector<const float*> taps_;  // oldest first; null before position 0
};

/// x <- x / sqrt(|x|^2 + 1e-6) * scale.
void normalise(float* x, int64_t d, float scale) {
    const float squares = lane_sum<float>(d, [x](int64_t i) { return x[i] * x[i]; });
    const float factor = 1.0f / std::sqrt(squares + 1e-6f) * scale;
    for (int64_t i = 0; i < d; ++i) x[i] *= factor;
}

/// Everything of a row that does not depend on the state: the parts of key head `part`, or of value head part - Hk.
void prepare(const GatedDeltaInput& in, const DeltaView& view, const Inputs& inputs, int64_t row, int64_t part,
             const DeltaRows& rows) {
    const int64_t dk = view.key_dim, dv = view.value_dim, keys = view.key_heads * dk;
    const float* weights = in.conv.data();
    const auto convolve = [&](int64_t channel, int64_t count, float* to) {
        for (int64_t i = 0; i < count; ++i) to[i] = inputs(weights, channel + i);
        if (rows.keeps_inputs()) std::copy_n(in.qkv.row(row) + channel, count, rows.inputs(row) + channel);
    };
    if (part < view.key_heads) {
        float *q = rows.q(row) + part * dk, *k = rows.k(row) + part * dk;
        convolve(part * dk, dk, q);
        convolve(keys + part * dk, dk, k);
        normalise(q, dk, 1.0f / std::sqrt(static_cast<float>(dk)));
        normalise(k, dk, 1.0f);
        return;
    }
    const int64_t h = part - view.key_heads;
    convolve(2 * keys + h * dv, dv, rows.v(row) + h * dv);
    const float t = in.a.row(row)[h] + in.dt_bias[static_cast<size_t>(h)];
    const float softplus = std::max(t, 0.0f) + std::log1p(std::exp(-std::abs(t)));
    rows.decay(row)[h] = std::exp(softplus * in.decay[static_cast<size_t>(h)]);
    rows.beta(row)[h] = 1.0f / (1.0f + std::exp(-in.b.row(row)[h]));
}

/// One value head's view of a row.
struct HeadRow {
    const float* q;
    const float* k;
    const float* v;
    float decay, beta;
};

/// One step for columns [begin, begin + 4 * kRegisters) of the state; kOutput: o is wanted.
template <int kRegisters, bool kOutput>
void step_columns(const HeadRow& row, float kq, float* state, int64_t begin, int64_t dk, int64_t dv, float* o) {
    Float4 p[kRegisters] = {}, s[kRegisters] = {};
    float* const first = state + begin;
    for (int64_t i = 0; i < dk; ++i)
#pragma GCC unroll 4
        for (int64_t c = 0; c < kRegisters; ++c) {
            const Float4 x = load4(first + i * dv + 4 * c);
            p[c] += x * row.k[i];
            if constexpr (kOutput) s[c] += x * row.q[i];
        }
    for (int64_t c = 0; c < kRegisters; ++c) {
        p[c] = (load4(row.v + begin + 4 * c) - p[c] * row.decay) * row.beta;
        if constexpr (kOutput) store4(o + begin + 4 * c, s[c] * row.decay + p[c] * kq);
    }
    for (int64_t i = 0; i < dk; ++i)
#pragma GCC unroll 4
        for (int64_t c = 0; c < kRegisters; ++c) {
            float* at = first + i * dv + 4 * c;
            store4(at, load4(at) * row.decay + p[c] * row.k[i]);
        }
}

/// S <- e^g S + k d^T, o = S^T q: see the header. state [dk, dv]; o [dv].
template <bool kOutput>
void step(const HeadRow& row, float* state, int64_t dk, int64_t dv, float* o) {
    const float kq = kOutput ? lane_sum<float>(dk, [&row](int64_t i) { return row.k[i] * row.q[i]; }) : 0;
    int64_t j = 0;
    for (; j + 16 <= dv; j += 16) step_columns<4, kOutput>(row, kq, state, j, dk, dv, o);
    for (; j + 4 <= dv; j += 4) step_columns<1, kOutput>(row, kq, state, j, dk, dv, o);
    for (; j < dv; ++j) {
        float p = 0, s = 0;
        for (int64_t i = 0; i < dk; ++i) {
            p += state[i * dv + j] * row.k[i];
            if constexpr (kOutput) s += state[i * dv + j] * row.q[i];
        }
        const float d = (row.v[j] - p * row.decay) * row.beta;
        if constexpr (kOutput) o[j] = s * row.decay + d * kq;
        for (int64_t i = 0; i < dk; ++i) state[i * dv + j] = state[i * dv + j] * row.decay + d * row.k[i];
    }
}

/// S of a value head as a sequence with `committed` tokens has it.
void load_state(const float* slot, int64_t count, int32_t committed, float* to) {
    if (committed == 0) std::fill_n(to, count, 0.0f);
    else std::copy_n(slot, count, to);
}

/// One value head of one sequence, in one pass over its rows.
class Scan {
  public:
    Scan(const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, const DeltaRows& rows, Tensor& out)
        : in_(in), view_(view), batch_(batch), rows_(rows), out_(out) {}

    void run(int64_t sequence, int64_t h, DeltaMode mode) {
        const auto s = static_cast<size_t>(sequence);
        first_ = batch_.row_begin[s];
        n_ = batch_.row_begin[s + 1] - first_;
        const int64_t count = view_.key_dim * view_.value_dim;
        auto* slot = static_cast<float*>(view_.state) + batch_.state_slot[s] * view_.state_elements() + h * count;
        if (mode == DeltaMode::update) {
            if (batch_.committed[s] == 0) std::fill_n(slot, count, 0.0f);
            for (int64_t i = 0; i < n_; ++i) visit(first_ + i, h, slot);
            return;
        }
        plan();
        state_.resize(static_cast<size_t>(count));
        kept_.resize(static_cast<size_t>(delta_slots(n_) * count));
        load_state(slot, count, batch_.committed[s], state_.data());
        if (saves_root_) std::copy_n(state_.data(), count, kept_.data());
        for (const DeltaVisit& visit_now : visits_) {
            if (visit_now.load >= 0) std::copy_n(kept_.data() + visit_now.load * count, count, state_.data());
            visit(first_ + visit_now.node, h, state_.data());
            if (visit_now.save >= 0) std::copy_n(state_.data(), count, kept_.data() + visit_now.save * count);
        }
    }

  private:
    void visit(int64_t row, int64_t h, float* state) {
        const int64_t dk = view_.key_dim, dv = view_.value_dim, key = view_.key_head(h);
        float* y = out_.row(row) + h * dv;
        const HeadRow head{rows_.q(row) + key * dk, rows_.k(row) + key * dk, rows_.v(row) + h * dv, rows_.decay(row)[h],
                           rows_.beta(row)[h]};
        step<true>(head, state, dk, dv, y);
        rms_norm_row(y, in_.norm.weight.data(), dv, in_.norm.eps, y);
        const float* z = in_.z.row(row) + h * dv;
        for (int64_t j = 0; j < dv; ++j) y[j] *= z[j] / (1.0f + std::exp(-z[j]));
    }

    void plan() {
        const auto n = static_cast<int32_t>(n_);
        visits_.assign(static_cast<size_t>(n), {});
        if (batch_.parent.empty()) {
            saves_root_ = false;
            for (int32_t i = 0; i < n; ++i) visits_[static_cast<size_t>(i)].node = i;
            return;
        }
        RT_ASSERT(n < 32768);
        const auto parent = [this](int32_t i) {
            const int32_t p = batch_.parent[static_cast<size_t>(first_ + i)];
            return p < 0 ? -1 : p - static_cast<int32_t>(first_);
        };
        const auto add = [](int32_t* to, int32_t x) { *to += x; };
        const auto max = [](int32_t* to, int32_t x) { *to = std::max(*to, x); };
        const auto entries = static_cast<size_t>(n) + 1;
        numbers_.resize(4 * entries);
        int32_t* const at = numbers_.data();
        const DeltaSchedule<decltype(parent)> schedule{
            parent, n, at, at + entries, at + 2 * entries, at + 3 * entries, visits_.data()};
        for (int32_t i = 0; i <= n; ++i) schedule.begin(i);
        for (int32_t i = 0; i < n; ++i) schedule.count(i, add);
        for (int32_t i = 0; i < n; ++i) schedule.choose(i, max);
        for (int32_t i = 0; i < n; ++i) schedule.arrange(i);
        for (int32_t i = 0; i < n; ++i) schedule.place(i);
        saves_root_ = schedule.saves_root();
    }

    const GatedDeltaInput& in_;
    const DeltaView& view_;
    const Batch& batch_;
    const DeltaRows& rows_;
    Tensor& out_;
    int64_t first_ = 0, n_ = 0;
    bool saves_root_ = false;
    std::vector<int32_t> numbers_;
    std::vector<DeltaVisit> visits_;
    std::vector<float> state_, kept_;
};

/// Channels [begin, end) of the slot's convolution inputs, `count` rows later. input(i): the channels of the i-th. The
/// first rows of a sequence leave zeros for the positions behind them, so that slots of equal sequences are equal.
template <class Input>
void advance_conv(const DeltaView& view, int32_t slot, int64_t committed, int64_t count, int64_t begin, int64_t end,
                  const Input& input) {
    float* conv = view.conv + slot * view.conv_floats();
    if (committed == 0 && count > 0)
        for (int64_t column = count; column < view.conv_width; ++column)
            std::fill(conv + column * view.channels() + begin, conv + column * view.channels() + end, 0.0f);
    for (int64_t i = std::max<int64_t>(0, count - view.conv_width); i < count; ++i) {
        const float* u = input(i);
        std::copy(u + begin, u + end, conv + view.conv_column(committed + i) * view.channels() + begin);
    }
}

/// The channels whose inputs value head h of `heads` copies: an even share.
struct Share {
    int64_t begin, end;
};
Share share(const DeltaView& view, int64_t h) {
    return {h * view.channels() / view.value_heads, (h + 1) * view.channels() / view.value_heads};
}

/// One value head of one sequence of one layer: the kept rows, from the stash.
void replay(const DeltaView& view, const DeltaPaths& paths, int64_t sequence, int64_t h) {
    const auto s = static_cast<size_t>(sequence);
    const int64_t dk = view.key_dim, dv = view.value_dim, key = view.key_head(h);
    const int32_t* path = paths.rows.data() + sequence * paths.most;
    const int32_t slot = paths.state_slot[s], committed = paths.committed[s];
    const DeltaRows rows(view, view.stash, nullptr);
    float* state = static_cast<float*>(view.state) + slot * view.state_elements() + h * dk * dv;
    if (committed == 0 && paths.count[s] > 0) std::fill_n(state, dk * dv, 0.0f);
    for (int64_t i = 0; i < paths.count[s]; ++i) {
        const int64_t r = path[i];
        RT_ASSERT(r >= 0 && r < view.stash_rows);
        step<false>({nullptr, rows.k(r) + key * dk, rows.v(r) + h * dv, rows.decay(r)[h], rows.beta(r)[h]}, state, dk,
                    dv, nullptr);
    }
    const auto [begin, end] = share(view, h);
    advance_conv(view, slot, committed, paths.count[s], begin, end, [&](int64_t i) { return rows.inputs(path[i]); });
}

/// Commits what is stashed of the positions that the slots do not hold.
void catch_up(Context& ctx, const DeltaView& view, const Batch& batch, std::span<const int32_t> held) {
    std::vector<int32_t> count, rows;
    for (size_t s = 0; s < held.size(); ++s) {
        count.push_back(batch.committed[s] - held[s]);
        RT_ASSERT(count.back() == 0 || count.back() == 1);
        rows.push_back(static_cast<int32_t>(delta_follow_row(static_cast<int64_t>(s), held[s])));
    }
    gated_delta_commit(ctx, {&view, 1}, {batch.state_slot, held, count, rows, 1});
}

}  // namespace

Tensor gated_delta(Context& ctx, const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode,
                   std::span<const int32_t> held) {
    check_delta_input(in, view, batch, mode);
    RT_ASSERT(std::ssize(held) == (mode == DeltaMode::follow ? batch.sequences() : 0));
    const OpScope told = announce_delta(ctx, "gated_delta", view, batch, mode);
    if (ctx.gpu != nullptr) return cuda::gated_delta(ctx, in, view, batch, mode, held);
    const bool follow = mode == DeltaMode::follow;
    if (follow) catch_up(ctx, view, batch, held);
    const int64_t n = batch.rows(), dk = view.key_dim, dv = view.value_dim;
    Tensor out = ctx.alloc(DType::f32, {n, view.value_heads * dv});
    const ArenaScope scope(*ctx.arena);
    const Tensor q = ctx.alloc(DType::f32, {n, view.key_heads * dk});
    const bool stash = mode == DeltaMode::stash;
    const DeltaRows rows(view, stash ? view.stash : ctx.alloc(DType::f32, {n, view.stash_floats()}).row(0), q.row(0),
                         mode != DeltaMode::update);
    const int64_t parts = view.key_heads + view.value_heads;
    parallel_rows(ctx, n * parts, (dk + dv) * (view.conv_width + 16), [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
            prepare(in, view, Inputs(in, view, batch, i / parts), i / parts, i % parts, rows);
    });
    const int64_t items = batch.sequences() * view.value_heads;
    const int64_t cost = 2 * n / std::max<int64_t>(1, batch.sequences()) * dk * dv;
    parallel_rows(ctx, items, cost, [&](int64_t begin, int64_t end, int) {
        Scan scan(in, view, batch, rows, out);
        for (int64_t i = begin; i < end; ++i) {
            const int64_t sequence = i / view.value_heads, h = i % view.value_heads;
            const auto s = static_cast<size_t>(sequence);
            scan.run(sequence, h, mode);
            if (mode != DeltaMode::update) continue;
            const int64_t first = batch.row_begin[s];
            const auto [from, to] = share(view, h);
            advance_conv(view, batch.state_slot[s], batch.committed[s], batch.row_begin[s + 1] - first, from, to,
                         [&](int64_t j) { return in.qkv.row(first + j); });
        }
    });
    for (int64_t r = 0; r < n && follow; ++r)
        std::copy_n(rows.inputs(r), view.stash_floats(),
                    view.stash + delta_follow_row(r, batch.committed[static_cast<size_t>(r)]) * view.stash_floats());
    return out;
}

bool delta_follows(const Gpu* gpu, const DeltaView& view) { return gpu == nullptr || cuda::delta_follows(view); }

int64_t delta_chunk_bytes(const DeltaView& view) {
    // 16 chunks: k and q of 64 rows as pairs of bf16, in rows of 136; two triangles of 64 rows of 72, and three
    // vectors.
    return !view.by_chunks ? 0 : 16 * (view.key_heads * 4 * 64 * 136 * 2 + view.value_heads * (4 * 64 * 72 * 2 + 768));
}

void gated_delta_commit(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths) {
    const auto sequences = std::ssize(paths.count);
    RT_ASSERT(std::ssize(paths.state_slot) == sequences && std::ssize(paths.committed) == sequences);
    RT_ASSERT(std::ssize(paths.rows) == sequences * paths.most);
    int64_t heads = 0;
    for (const DeltaView& view : layers) {
        check_view(view);
        RT_ASSERT(view.stash != nullptr);
        heads = std::max(heads, view.value_heads);
    }
    if (layers.empty() || sequences == 0) return;
    if (ctx.gpu != nullptr) return cuda::gated_delta_commit(ctx, layers, paths);
    const int64_t per_layer = sequences * heads;
    const int64_t cost = layers.front().key_dim * layers.front().value_dim * 2;
    parallel_rows(ctx, std::ssize(layers) * per_layer, cost, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            const DeltaView& view = layers[static_cast<size_t>(i / per_layer)];
            const int64_t h = i % heads;
            if (h < view.value_heads) replay(view, paths, i % per_layer / heads, h);
        }
    });
}

}  // namespace riptide::ops
