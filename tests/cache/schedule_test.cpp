// Random schedules over several sequences with one law: what each sequence reads is what a plain vector of its tokens
// says.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "cache/batch_builder.h"
#include "tests/cache/fake_forward.h"

namespace riptide {
namespace {

using Ints = std::vector<int32_t>;

struct Live {
    SequenceState state;
    Ints tokens;  // the plain model
};

/// As a prefix cache keeps it: pages with a reference of its own, and the bounded state.
struct Kept {
    SavedState saved;
    Ints pages;
    Ints tokens;
};

/// Rows fed to one sequence in a step.
struct Fed {
    size_t sequence;
    Ints tokens, parents;
};

class Schedule {
  public:
    Schedule(std::span<const StateSpec> specs, const KvCacheOptions& options, uint64_t seed)
        : cache_(specs, options), rng_(seed) {}
    ~Schedule() {
        live_.clear();
        while (!kept_.empty()) drop(0);
        EXPECT_EQ(cache_.pool().free_count(), cache_.pool().size());
        EXPECT_EQ(cache_.free_slots(), cache_.options().max_sequences);
    }

    void operate() {
        switch (pick(16)) {
            case 0:
                open();
                break;
            case 1:
                close();
                break;
            case 2:
                truncate();
                break;
            case 3:
                fork();
                break;
            case 4:
                keep();
                break;
            case 5:
                resume();
                break;
            case 6:
                go_back();
                break;
            case 7:
                if (!kept_.empty() && pick(2) == 0) drop(pick(kept_.size()));
                break;
            default:
                step();
                break;
        }
        check_counts();
    }

    int64_t steps = 0, refused = 0, trees = 0, longest = 0, resumed = 0, refused_truncations = 0;

  private:
    size_t pick(size_t n) { return static_cast<size_t>(rng_() % n); }

    void open() {
        if (cache_.free_slots() > 0) live_.push_back({SequenceState(cache_), {}});
    }
    void close() {
        if (!live_.empty() && pick(2) == 0) live_.erase(live_.begin() + static_cast<ptrdiff_t>(pick(live_.size())));
    }
    void truncate() {
        if (live_.empty()) return;
        Live& s = live_[pick(live_.size())];
        const size_t back = pick(4) == 0 ? pick(s.tokens.size() + 1) : std::min(s.tokens.size(), pick(12));
        const auto length = static_cast<int64_t>(s.tokens.size() - back);
        if (s.state.can_truncate(length)) {
            s.state.truncate(length);
            s.tokens.resize(static_cast<size_t>(length));
        } else {
            ++refused_truncations;
            EXPECT_THROW(s.state.truncate(length), Error);
        }
    }
    void fork() {
        if (live_.empty() || cache_.free_slots() == 0) return;
        const Live& s = live_[pick(live_.size())];
        Live copy{s.state.fork(), s.tokens};
        live_.push_back(std::move(copy));
    }
    void keep() {
        if (live_.empty() || kept_.size() >= 6) return;
        const Live& s = live_[pick(live_.size())];
        kept_.push_back({s.state.save(), {s.state.pages().begin(), s.state.pages().end()}, s.tokens});
        for (const int32_t page : kept_.back().pages) cache_.pool().retain(page);
    }
    void drop(size_t i) {
        for (const int32_t page : kept_[i].pages) cache_.pool().release(page);
        kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(i));
    }
    /// A new sequence from something kept.
    void resume() {
        if (kept_.empty() || cache_.free_slots() == 0) return;
        const Kept& kept = kept_[pick(kept_.size())];
        Live s{SequenceState(cache_), kept.tokens};
        s.state.restore(kept.saved, kept.pages);
        live_.push_back(std::move(s));
        ++resumed;
    }
    /// A sequence returns to its own past.
    void go_back() {
        for (Live& s : live_)
            for (const Kept& kept : kept_) {
                const bool past = kept.tokens.size() <= s.tokens.size() &&
                                  std::equal(kept.tokens.begin(), kept.tokens.end(), s.tokens.begin());
                if (!past || pick(3) != 0) continue;
                s.state.restore(kept.saved);
                s.tokens = kept.tokens;
                ++resumed;
                return;
            }
    }

    Fed invent(size_t sequence, size_t most) {
        Fed fed{sequence, {}, {}};
        const size_t rows = 1 + pick(most);
        const bool tree = pick(2) == 0;
        for (size_t i = 0; i < rows; ++i) {
            fed.tokens.push_back(static_cast<int32_t>(pick(1 << 20)));
            if (tree)
                fed.parents.push_back(pick(2) == 0 ? static_cast<int32_t>(i) - 1
                                                   : static_cast<int32_t>(pick(i + 1)) - 1);
        }
        return fed;
    }

    static int32_t parent_of(const Fed& fed, int32_t row) {
        return fed.parents.empty() ? row - 1 : fed.parents[static_cast<size_t>(row)];
    }

    static Ints path_to(const Fed& fed, int32_t row) {
        Ints path;
        for (; row >= 0; row = parent_of(fed, row)) path.push_back(row);
        return {path.rbegin(), path.rend()};
    }

    void step() {
        std::vector<Fed> feeds;
        for (size_t i = 0; i < live_.size(); ++i) {
            if (pick(3) == 0) continue;
            Fed fed = invent(i, static_cast<size_t>(cache_.options().max_step_rows));
            SequenceState& state = live_[i].state;
            const int32_t needed = state.pages_needed(static_cast<int64_t>(fed.tokens.size())),
                          free = cache_.pool().free_count();
            if (state.try_reserve(static_cast<int64_t>(fed.tokens.size()))) {
                EXPECT_EQ(cache_.pool().free_count(), free - needed);
                trees += !fed.parents.empty();
                feeds.push_back(std::move(fed));
            } else {
                ++refused;
                EXPECT_GT(needed, free);
                EXPECT_EQ(cache_.pool().free_count(), free);
            }
        }
        std::shuffle(feeds.begin(), feeds.end(), rng_);
        std::vector<StepRows> rows;
        for (const Fed& fed : feeds)
            rows.push_back({.sequence = &live_[fed.sequence].state, .tokens = fed.tokens, .parents = fed.parents});
        const Batch& batch = builder_.build(rows);
        fake_append(cache_.views(), batch);
        for (size_t f = 0; f < feeds.size(); ++f) check_rows(batch, feeds[f], batch.row_begin[f]);
        for (const Fed& fed : feeds) settle(fed);
        steps += !feeds.empty();
    }

    /// Every row of every layer reads its own past.
    void check_rows(const Batch& batch, const Fed& fed, int32_t first) {
        for (int32_t row = 0; row < static_cast<int32_t>(fed.tokens.size()); ++row) {
            Ints expected = live_[fed.sequence].tokens;
            for (const int32_t i : path_to(fed, row)) expected.push_back(fed.tokens[static_cast<size_t>(i)]);
            for (const KvView& view : cache_.views()) {
                if (view.num_kv_heads == 0) continue;
                const size_t seen =
                    view.window > 0 ? std::min(expected.size(), static_cast<size_t>(view.window)) : expected.size();
                ASSERT_EQ(fake_read(view, batch, first + row),
                          Ints(expected.end() - static_cast<ptrdiff_t>(seen), expected.end()))
                    << "row " << row << " window " << view.window << " committed " << live_[fed.sequence].tokens.size();
            }
        }
    }

    /// Accepts part of a path.
    void settle(const Fed& fed) {
        Live& s = live_[fed.sequence];
        Ints path = path_to(fed, static_cast<int32_t>(pick(fed.tokens.size())));
        path.resize(pick(path.size() + 1));
        if (fed.parents.empty() && pick(2) == 0) s.state.commit_prefix(static_cast<int64_t>(path.size()));
        else s.state.commit(path);
        for (const int32_t i : path) s.tokens.push_back(fed.tokens[static_cast<size_t>(i)]);
        longest = std::max(longest, s.state.length());
    }

    void check_counts() {
        for (const Live& s : live_) {
            ASSERT_EQ(s.state.length(), static_cast<int64_t>(s.tokens.size()));
            ASSERT_EQ(static_cast<int32_t>(s.state.pages().size()),
                      cache_.has_pages() ? cache_.pages_for(s.state.length()) : 0);
        }
    }

    KvCache cache_;
    std::mt19937_64 rng_;
    std::vector<Live> live_;
    std::vector<Kept> kept_;
    BatchBuilder builder_;
};

StateSpec small_paged() { return {StateSpec::Kind::paged, 2, 2, 0}; }
StateSpec small_window(int32_t w) { return {StateSpec::Kind::window, 1, 2, w}; }

void run(const std::vector<StateSpec>& specs, int32_t pages, uint64_t seeds) {
    int64_t steps = 0, refused = 0, trees = 0, longest = 0, resumed = 0, truncations = 0;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed);
        Schedule schedule(specs,
                          {.k_dtype = DType::f32,
                           .v_dtype = DType::f32,
                           .page_rows = 4,
                           .pages = pages,
                           .max_sequences = 5,
                           .max_step_rows = 12},
                          seed);
        for (int i = 0; i < 600 && !::testing::Test::HasFatalFailure(); ++i) schedule.operate();
        steps += schedule.steps;
        refused += schedule.refused;
        trees += schedule.trees;
        longest = std::max(longest, schedule.longest);
        resumed += schedule.resumed;
        truncations += schedule.refused_truncations;
        if (::testing::Test::HasFailure()) return;
    }
    // The schedules must have met what they are about.
    EXPECT_GT(steps, 1000);
    EXPECT_GT(trees, 1000);
    EXPECT_GT(resumed, 100);
    EXPECT_GT(longest, 90);
    const bool has_pages = specs[0].kind == StateSpec::Kind::paged,
               has_windows = specs.back().kind == StateSpec::Kind::window;
    EXPECT_GT(refused, has_pages ? 50 : -1);
    EXPECT_GT(truncations, has_windows ? 10 : -1);
}

TEST(schedule, full_and_window_layers_read_what_a_plain_vector_says) {
    run({small_paged(), small_window(9), StateSpec{}, small_paged(), small_window(33)}, 90, 60);
}
TEST(schedule, full_layers_alone) { run({small_paged()}, 70, 40); }
TEST(schedule, window_layers_alone) { run({small_window(1), small_window(2), small_window(60)}, 0, 40); }

}  // namespace
}  // namespace riptide
