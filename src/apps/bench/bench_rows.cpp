#include "apps/bench/bench_rows.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "apps/support/terminal.h"
#include "base/error.h"
#include "ops/topk.h"

namespace riptide::apps {

namespace {

constexpr int64_t kProfiledSteps = 8;

/// One repeat: its rate and, if asked for, energy.
class Stretch {
  public:
    explicit Stretch(const BenchOptions& o)
        : energy_(o.energy), joules_(energy_ != nullptr ? energy_->joules() : 0), start_(Clock::now()) {}
    void end(int64_t tokens, BenchRow& row) const {
        const auto count = static_cast<double>(tokens);
        row.rates.push_back(count / std::chrono::duration<double>(Clock::now() - start_).count());
        if (energy_ != nullptr) row.joules.push_back((energy_->joules() - joules_) / count);
    }

  private:
    using Clock = std::chrono::steady_clock;
    const GpuEnergy* energy_;
    double joules_;
    Clock::time_point start_;
};

void sort_repeats(BenchRow& row) {
    std::sort(row.rates.begin(), row.rates.end());
    std::sort(row.joules.begin(), row.joules.end());
}

/// Takes bytes, flops and (if timed) ops of a profile over `passes` prompts or steps.
void take(const OpProfile& profile, int64_t passes, bool timed, BenchRow& row) {
    if (passes == 0) return;
    const auto share = 1 / static_cast<double>(passes);
    const OpProfile::Line total = profile.total();
    row.bytes = share * total.bytes();
    row.flops = share * total.flops;
    if (!timed) return;
    row.ops = profile.lines();
    row.ops_seconds = share * total.seconds;
    for (OpProfile::Line& line : row.ops) {
        line.seconds *= share;
        line.weight_bytes *= share;
        line.kv_bytes *= share;
        line.flops *= share;
        line.calls /= passes;
    }
}

/// Counts what a step in the middle of a repeat reads and computes, and times a few at its beginning if asked to. At
/// most 1 + kProfiledSteps steps.
template <class Steps>
void observe_decode(Context& context, const BenchOptions& o, int64_t depth, int64_t sequences, const Steps& run,
                    BenchRow& row) {
    BenchRow middle;
    {
        OpProfile count(context, OpProfile::Mode::count);
        count.start(depth + o.gen / 2, sequences);
        run(1);
        take(count, count.steps(), false, middle);
    }
    if (o.profile && !interrupted()) {
        OpProfile profile(context, OpProfile::Mode::time);
        profile.start(depth + 1, sequences);
        run(kProfiledSteps);
        take(profile, profile.steps(), true, row);
    }
    row.bytes = middle.bytes;
    row.flops = middle.flops;
}

/// Different experts that a sparse layer chooses in a step, mean of the layers; 0: there is none.
template <class Steps>
double count_experts(Context& context, const Steps& run) {
    double sum = 0;
    int layers = 0;
    context.tap = [&](std::string_view name, int, const Tensor& value) {
        if (name != "router_experts") return;
        const auto* const first = value.row<int32_t>(0);
        sum += static_cast<double>(std::set<int32_t>(first, first + value.elements()).size());
        ++layers;
    };
    run(1);
    context.tap = nullptr;
    return layers > 0 ? sum / layers : 0;
}

/// Feeds made-up tokens behind the session's and finds the most likely next ones.
void decode(Session& session, std::span<const int32_t> forced, int64_t steps) {
    if (session.gpu() != nullptr) {
        session.decode_ahead(
            forced.back(), steps, [](int32_t) { return !interrupted(); }, forced);
        return;
    }
    for (int64_t t = 0; t < steps && !interrupted(); ++t)
        ops::argmax(session.decode(forced[static_cast<size_t>(t % std::ssize(forced))]));
}

/// Sequences that decode together.
class Together {
  public:
    Together(Session& session, int64_t depth, int64_t gen, int64_t sequences)
        : vocab_(session.model().info().vocab_size),
          cache_(session.model().state_specs(), options(session, depth + gen, sequences), session.gpu(),
                 session.runner().context().threads),
          runner_(session.model(), cache_, session.runner().context().threads) {
        for (int64_t s = 0; s < sequences; ++s) {
            ids_.push_back(made_up_tokens(depth + gen, vocab_, s));
            states_.emplace_back(cache_);
            for (int64_t at = 0; at < depth && !interrupted();) {
                const int64_t rows = std::min(kChunk, depth - at);
                const StepItem item{&states_.back(),
                                    std::span(ids_.back()).subspan(static_cast<size_t>(at), static_cast<size_t>(rows)),
                                    {},
                                    StepRows::Logits::none,
                                    {}};
                runner_.step(std::span(&item, 1), Family::prefill);
                states_.back().commit_prefix(rows);
                at += rows;
            }
            if (cache_.delta().any()) saved_.push_back(states_.back().save());
        }
    }
    Runner& runner() { return runner_; }
    void decode(int64_t steps) {
        std::vector<int32_t> drawn(states_.size());
        for (int64_t t = 0; t < steps && !interrupted(); ++t) {
            std::vector<StepItem> items;
            for (size_t s = 0; s < states_.size(); ++s)
                items.push_back({&states_[s], std::span(ids_[s]).subspan(static_cast<size_t>(states_[s].length()), 1)});
            const Tensor logits = runner_.step(items);
            const Tensor best = ops::most_likely(runner_.context(), logits);
            if (Gpu* gpu = runner_.context().gpu)
                gpu->to_host(drawn.data(), best.data, std::ssize(drawn) * int64_t{sizeof(int32_t)});
            for (SequenceState& state : states_) state.commit_prefix(1);
        }
    }
    /// Steps of some rows of the first sequence, which are dropped again.
    void verify(int64_t rows, int64_t steps) {
        SequenceState& state = states_.front();
        const StepItem item{
            &state,
            std::span(ids_.front()).subspan(static_cast<size_t>(state.length()), static_cast<size_t>(rows)),
            {},
            StepRows::Logits::all,
            {}};
        std::vector<int32_t> drawn(static_cast<size_t>(rows));
        Tensor best;
        for (int64_t t = 0; t < steps && !interrupted(); ++t) {
            best = ops::most_likely(runner_.context(), runner_.step(std::span(&item, 1)));
            state.commit_prefix(0);
        }
        if (Gpu* gpu = runner_.context().gpu; gpu != nullptr && best.data != nullptr)
            gpu->to_host(drawn.data(), best.data, rows * int64_t{sizeof(int32_t)});
    }
    void rewind(int64_t depth) {
        for (size_t s = 0; s < states_.size(); ++s) {
            if (saved_.empty()) states_[s].truncate(depth);
            else states_[s].restore(saved_[s]);  // recurrent state cannot be truncated
        }
    }

    static constexpr int64_t kChunk = 512;

  private:
    static KvCacheOptions options(const Session& session, int64_t tokens, int64_t sequences) {
        KvCacheOptions o;
        o.k_dtype = session.options().k_dtype;
        o.v_dtype = session.options().v_dtype;
        o.page_rows = session.options().page_rows;
        o.pages = static_cast<int32_t>(sequences * ((tokens + o.page_rows - 1) / o.page_rows));
        o.max_sequences = static_cast<int32_t>(sequences);
        o.max_step_rows = kChunk;
        return o;
    }

    int64_t vocab_;
    KvCache cache_;
    Runner runner_;
    std::vector<SequenceState> states_;
    std::vector<SavedState> saved_;  // with recurrent state: at the depth
    std::vector<std::vector<int32_t>> ids_;
};

}  // namespace

std::vector<int32_t> made_up_tokens(int64_t count, int64_t vocab_size, int64_t list) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    const int64_t first = vocab_size > 512 ? 256 : 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t mixed = static_cast<uint64_t>(list * 0x40000000 + i + 1) * 0x9E3779B97F4A7C15u;
        ids[static_cast<size_t>(i)] = static_cast<int32_t>(
            first + static_cast<int64_t>((mixed >> 33) % static_cast<uint64_t>(vocab_size - first)));
    }
    return ids;
}

std::string BenchRow::name() const {
    if (kind == Kind::prefill) return fmt::format("prefill {}", tokens);
    if (kind == Kind::verify) return fmt::format("verify {} at {}", rows, depth);
    return sequences == 1 ? fmt::format("decode at {}", depth) : fmt::format("decode {} x at {}", sequences, depth);
}

double BenchRow::median() const { return rates.empty() ? 0 : rates[rates.size() / 2]; }

double BenchRow::joules_each() const { return joules.empty() ? 0 : joules[joules.size() / 2]; }

double BenchRow::spread() const { return median() == 0 ? 0 : (rates.back() - rates.front()) / median(); }

double BenchRow::seconds() const {
    if (median() == 0) return 0;
    return static_cast<double>(kind == Kind::prefill ? tokens : sequences * rows) / median();
}

BenchRow bench_prefill(Session& session, const BenchOptions& o, int64_t prompt) {
    const std::vector<int32_t> ids = made_up_tokens(prompt, session.model().info().vocab_size);
    BenchRow row{.kind = BenchRow::Kind::prefill, .tokens = prompt};
    Progress progress(row.name(), "tok");
    const auto prefill = [&](std::span<const int32_t> tokens) {
        session.clear();
        return !session
                    .prefill(
                        tokens, [&](int64_t done, int64_t total) { progress.update(done, total); }, &interrupted())
                    .empty();
    };
    // Warm-up: on a GPU the whole prompt, on the CPU its beginning.
    const bool on_gpu = session.gpu() != nullptr;
    std::optional<OpProfile> count(std::in_place, session.runner().context(), OpProfile::Mode::count);
    if (on_gpu) {
        prefill(ids);
        take(*count, 1, false, row);
        count.reset();
    } else {
        prefill(std::span(ids).first(std::min<size_t>(ids.size(), 64)));
    }
    for (int i = 0; i < o.repeat && !interrupted(); ++i) {
        if (count) count->start(0);
        const Stretch stretch(o);
        if (!prefill(ids)) break;
        stretch.end(prompt, row);
        if (count) take(*count, 1, false, row);
    }
    sort_repeats(row);
    count.reset();
    if (!o.profile || interrupted()) return row;
    OpProfile profile(session.runner().context(), OpProfile::Mode::time);
    if (prefill(ids)) take(profile, 1, true, row);
    return row;
}

BenchRow bench_decode(Session& session, const BenchOptions& o, int64_t wanted) {
    const int64_t room = session.context_length() - std::max(o.gen, kProfiledSteps) - 1;
    RT_CHECK(room >= 1, ErrorKind::usage, "--gen {}: the context holds {} tokens", o.gen, session.context_length());
    const int64_t depth = std::clamp<int64_t>(wanted, 1, room);
    const std::vector<int32_t> ids = made_up_tokens(depth + GpuDecoder::kForced, session.model().info().vocab_size);
    const auto prompt = std::span(ids).first(static_cast<size_t>(depth));
    const auto forced = std::span(ids).subspan(prompt.size());
    BenchRow row{.kind = BenchRow::Kind::decode, .depth = depth, .tokens = o.gen};
    Progress progress(row.name(), "tok");
    // What an earlier repeat left is cut off where the rings allow it, else computed again.
    const auto rewind = [&] {
        return !session
                    .prefill(
                        prompt, [&](int64_t done, int64_t total) { progress.update(done, total); }, &interrupted())
                    .empty();
    };
    for (int i = -1; i < o.repeat && !interrupted(); ++i) {
        if (!rewind()) break;
        const int64_t steps = i < 0 ? std::min<int64_t>(o.gen, 16) : o.gen;  // warm-up first
        const Stretch stretch(o);
        decode(session, forced, steps);
        if (i >= 0 && !interrupted()) stretch.end(steps, row);
    }
    sort_repeats(row);
    if (interrupted() || !rewind()) return row;
    observe_decode(
        session.runner().context(), o, depth, 1, [&](int64_t steps) { decode(session, forced, steps); }, row);
    return row;
}

BenchRow bench_verify(Session& session, const BenchOptions& o, int64_t depth, int64_t rows) {
    RT_CHECK(o.gen <= Together::kChunk, ErrorKind::usage, "--gen {}: with --verify-rows at most {}", o.gen,
             Together::kChunk);
    BenchRow row{.kind = BenchRow::Kind::verify, .depth = depth, .rows = rows, .tokens = o.gen * rows};
    Together one(session, depth, rows, 1);
    for (int i = -1; i < o.repeat && !interrupted(); ++i) {
        const int64_t steps = i < 0 ? std::min<int64_t>(o.gen, 16) : o.gen;
        const Stretch stretch(o);
        one.verify(rows, steps);
        if (i >= 0 && !interrupted()) stretch.end(steps * rows, row);
    }
    sort_repeats(row);
    if (interrupted()) return row;
    row.experts = count_experts(one.runner().context(), [&](int64_t steps) { one.verify(rows, steps); });
    BenchOptions at_depth = o;
    at_depth.gen = 0;  // every step is in the same place
    observe_decode(
        one.runner().context(), at_depth, depth, 1, [&](int64_t steps) { one.verify(rows, steps); }, row);
    return row;
}

BenchRow bench_batch(Session& session, const BenchOptions& o, int64_t depth, int64_t sequences) {
    RT_CHECK(o.gen <= Together::kChunk, ErrorKind::usage, "--gen {}: with --batch at most {}", o.gen, Together::kChunk);
    BenchRow row{.kind = BenchRow::Kind::decode, .depth = depth, .sequences = sequences, .tokens = o.gen * sequences};
    Together batch(session, depth, std::max(o.gen, 1 + kProfiledSteps), sequences);
    for (int i = -1; i < o.repeat && !interrupted(); ++i) {
        const int64_t steps = i < 0 ? std::min<int64_t>(o.gen, 16) : o.gen;
        const Stretch stretch(o);
        batch.decode(steps);
        if (i >= 0 && !interrupted()) stretch.end(steps * sequences, row);
        batch.rewind(depth);
    }
    sort_repeats(row);
    if (interrupted()) return row;
    observe_decode(
        batch.runner().context(), o, depth, sequences, [&](int64_t steps) { batch.decode(steps); }, row);
    return row;
}

}  // namespace riptide::apps
