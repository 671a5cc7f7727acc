#include "apps/bench/bench_draft.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/speculation/device_rounds.h"
#include "ops/topk.h"

namespace riptide::apps {

namespace {

using Measured = DraftRounds::Measured;

/// One sequence of the model and what the drafter knows of it, at some depth.
class Rounds {
  public:
    Rounds(Session& session, std::unique_ptr<Checkpoint> checkpoint, int64_t deepest)
        : cache_(session.model().state_specs(), options(session, deepest), session.gpu(), threads(session)),
          runner_(session.model(), cache_, threads(session)),
          ids_(made_up_tokens(deepest + 1, session.model().info().vocab_size)),
          drafter_(std::make_shared<DflashDrafter>(std::move(checkpoint),
                                                   DraftTarget{.model = &session.model(),
                                                               .gpu = session.gpu(),
                                                               .threads = threads(session),
                                                               .context = deepest + DflashDrafter::kAheadRows,
                                                               .chunk_rows = kChunk})),
          rounds_(session.model(), cache_, runner_.context(), drafter_, deepest + DflashDrafter::kAheadRows),
          state_(cache_) {}

    DflashDrafter& drafter() { return *drafter_; }
    Context& context() { return runner_.context(); }

    /// Feeds both up to the depth, which may only rise.
    void advance(int64_t depth) {
        runner_.capture(drafter_->capture_layers());
        drafter_->begin(kSequence, std::span(ids_).first(static_cast<size_t>(depth)));
        while (state_.length() < depth && !interrupted()) {
            const int64_t at = state_.length(), rows = std::min<int64_t>(kChunk, depth - at);
            const auto tokens = std::span(ids_).subspan(static_cast<size_t>(at), static_cast<size_t>(rows));
            const StepItem item{&state_, tokens, {}, StepRows::Logits::none, {}};
            runner_.step(std::span(&item, 1), Family::prefill);
            state_.commit_prefix(rows);
            drafter_->feed(kSequence, at, runner_.captured(), {});
        }
    }

    /// `count` rounds of so many rows, each stretch of them from the same place; returns seconds.
    double run(int64_t rows, int64_t count, Measured how) {
        SequenceState& drafted = *drafter_->state(kSequence);
        const int64_t room = DflashDrafter::kAheadRows, most = room / rows;
        const DraftRounds::Draws draws{0, [this](const Tensor& logits, std::span<const int32_t>) {
                                           return ops::most_likely(runner_.context(), logits);
                                       }};
        const auto plan = plan_of(rows);
        double seconds = 0;  // of rounds alone
        for (int64_t done = 0; done < count && !interrupted();) {
            RT_CHECK(state_.try_reserve(room) && drafted.try_reserve(room + drafter_->model().block_size()),
                     ErrorKind::unavailable, "no room for {} more tokens", room);
            const SpareState before(cache_.delta(), state_.slot());
            rounds_.begin(state_, drafted, ids_[static_cast<size_t>(state_.length())], draws);
            const int64_t stretch = std::min(most, count - done);
            const auto start = std::chrono::steady_clock::now();
            for (int64_t launched = 0, taken = 0; taken < stretch;) {
                for (; launched < stretch && rounds_.pending() < DraftRounds::kMostPending; ++launched)
                    rounds_.launch(plan, how);
                rounds_.next();
                ++taken;
            }
            done += stretch;
            rounds_.end();
            seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            drafted.commit_prefix(0);
            state_.commit_prefix(0);
            before.restore(state_.slot());
        }
        return seconds;
    }

  private:
    static constexpr int64_t kChunk = 512;
    static constexpr uint64_t kSequence = 0;

    static ThreadPool* threads(Session& session) { return session.runner().context().threads; }
    static ops::DraftPlan plan_of(int64_t rows) {
        const auto n = static_cast<int32_t>(rows);
        return {.rows = n, .chain = n - 1, .slots = n - 1, .choices = 1};
    }
    static KvCacheOptions options(const Session& session, int64_t deepest) {
        KvCacheOptions o;
        o.k_dtype = session.options().k_dtype;
        o.v_dtype = session.options().v_dtype;
        o.page_rows = session.options().page_rows;
        o.pages = static_cast<int32_t>((deepest + DflashDrafter::kAheadRows) / o.page_rows + 1);
        o.max_sequences = 1;
        o.max_step_rows = kChunk;
        return o;
    }

    KvCache cache_;
    Runner runner_;
    std::vector<int32_t> ids_;
    std::shared_ptr<DflashDrafter> drafter_;
    DraftRounds rounds_;
    SequenceState state_;
};

/// Ops of rounds with the drafter, less those of rounds without.
void profile(Rounds& rounds, int64_t n, DraftRow& row) {
    constexpr int64_t kRounds = 8;
    const auto observe = [&](Measured how) {
        OpProfile profile(rounds.context(), OpProfile::Mode::time);
        profile.start(row.depth);
        rounds.run(n, kRounds, how);
        return profile.lines();
    };
    const std::vector<OpProfile::Line> without = observe(Measured::without);
    for (OpProfile::Line line : observe(Measured::with_drafter)) {
        for (const OpProfile::Line& other : without)
            if (other.op == line.op && other.shape == line.shape) {
                line.calls -= other.calls;
                line.seconds -= other.seconds;
                line.weight_bytes -= other.weight_bytes;
            }
        if (line.calls == 0 && line.seconds < 1e-6 * kRounds) continue;
        line.calls /= kRounds;
        line.seconds /= kRounds;
        line.weight_bytes /= kRounds;
        row.ops_seconds += line.seconds;
        row.ops.push_back(std::move(line));
    }
}

double median(const std::vector<double>& sorted) { return sorted.empty() ? 0 : sorted[sorted.size() / 2]; }

DraftRow measure_rounds(Rounds& rounds, const BenchOptions& o, int64_t depth, int64_t n) {
    DraftRow row{.depth = depth, .rows = n};
    for (int i = -1; i < o.repeat && !interrupted(); ++i)
        for (const Measured how : {Measured::with_drafter, Measured::without}) {
            const int64_t count = i < 0 ? 4 : o.gen;  // warm-up first
            const double seconds = rounds.run(n, count, how) / static_cast<double>(count);
            if (i >= 0 && !interrupted()) (how == Measured::with_drafter ? row.with : row.without).push_back(seconds);
        }
    std::ranges::sort(row.with);
    std::ranges::sort(row.without);
    if (o.profile && !interrupted()) profile(rounds, n, row);
    return row;
}

}  // namespace

double DraftRow::drafting() const { return median(with) - median(without); }

std::unique_ptr<Checkpoint> open_drafter(const std::string& name, const std::string& random_target, int threads) {
    const std::string prefix = "random:";
    if (name.starts_with(prefix)) return random_drafter(name.substr(prefix.size()), threads);
    if (name == "random") return random_drafter(random_target.substr(0, random_target.find(':')), threads);
    const SpeculationOptions options = drafted_by(name);
    return options.open ? options.open() : open_checkpoint(options.drafter);
}

DraftBench bench_draft(Session& session, const BenchOptions& o, std::unique_ptr<Checkpoint> drafter,
                       const std::vector<int64_t>& depths, const std::vector<int64_t>& rows) {
    std::vector<int64_t> ascending;
    for (const int64_t depth : depths) ascending.push_back(std::max<int64_t>(1, depth));
    std::ranges::sort(ascending);
    RT_CHECK(ascending.back() + DflashDrafter::kAheadRows < session.context_length(), ErrorKind::usage,
             "--depth {}: the context holds {} tokens", ascending.back(), session.context_length());
    Rounds rounds(session, std::move(drafter), ascending.back());
    const Dflash& model = rounds.drafter().model();
    DraftBench bench{model.info().name, model.block_size(), model.info().bytes_per_token, {}};
    for (const int64_t depth : ascending) {
        rounds.advance(depth);
        std::vector<int64_t> fitting;
        for (const int64_t n : rows)
            if (n > 1 && !interrupted()) fitting.push_back(std::min(n, model.config().drafts() + 1));
        fitting.erase(std::unique(fitting.begin(), fitting.end()), fitting.end());
        for (const int64_t n : fitting)
            if (!interrupted()) bench.rows.push_back(measure_rounds(rounds, o, depth, n));
    }
    return bench;
}

void print_draft(const DraftBench& bench) {
    tell("{} · blocks of {} rows · {} of weights a block\n{:<26} {:>12} {:>12} {:>12} {:>8}\n", bench.name, bench.block,
         human_bytes(bench.bytes), "", "drafter", "round", "without it", "spread");
    for (const DraftRow& row : bench.rows) {
        if (row.without.empty()) continue;
        tell("{:<26} {:>9.1f} us {:>9.1f} us {:>9.1f} us {:>7.1f}%\n",
             fmt::format("draft, check {} at {}", row.rows, row.depth), 1e6 * row.drafting(), 1e6 * median(row.with),
             1e6 * median(row.without), 100 * (row.with.back() - row.with.front()) / median(row.with));
        for (const OpProfile::Line& line : row.ops)
            tell("  {:<18} {:<34} {:>5} {:>9.1f} us {:>6.1f}% {:>9.1f} GB/s\n", line.op, line.shape, line.calls,
                 1e6 * line.seconds, 100 * line.seconds / row.ops_seconds, line.weight_bytes / line.seconds * 1e-9);
        if (!row.ops.empty()) tell("  all of them, one after the other: {:.1f} us\n", 1e6 * row.ops_seconds);
    }
    std::fflush(stdout);
}

json::object draft_json(const DraftBench& bench) {
    json::array rows;
    for (const DraftRow& row : bench.rows)
        rows.push_back({{"depth", row.depth},
                        {"rows", row.rows},
                        {"drafter_seconds", row.drafting()},
                        {"round_seconds", json::value_from(row.with)},
                        {"without_seconds", json::value_from(row.without)}});
    return {{"name", bench.name}, {"block", bench.block}, {"bytes", bench.bytes}, {"rows", rows}};
}

}  // namespace riptide::apps
