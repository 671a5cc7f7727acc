// A cache with its tiers, an engine that computes a known row for each token, and conversations to run on them.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>

#include "cache/batch_builder.h"
#include "cache/prefix_cache.h"
#include "tests/test_device.h"

namespace riptide {

using TokenIds = std::vector<int32_t>;

const std::vector<StateSpec> kBoth{
    {StateSpec::Kind::paged, 2, 2, 0}, {StateSpec::Kind::window, 1, 2, 5}, {StateSpec::Kind::paged, 1, 2, 0}};
constexpr int32_t kPageRows = 4;

inline KvCacheOptions cache_options(int32_t pages, int32_t sequences = 4) {
    return {.k_dtype = DType::f32,
            .v_dtype = DType::f32,
            .page_rows = kPageRows,
            .pages = pages,
            .max_sequences = sequences,
            .max_step_rows = 16};
}

/// K and V of a token: what it is, where it stands, and for whom it was computed.
struct Row {
    float k[2], v[2];
    bool operator==(const Row&) const = default;
};
inline Row row_of(int32_t token, int64_t position, int32_t user, int64_t head) {
    return {{static_cast<float>(token), static_cast<float>(position)},
            {static_cast<float>(user), static_cast<float>(head)}};
}

/// The K/V of a cache where the host can see it: itself, or a copy of a GPU's memory.
class HostViews {
  public:
    explicit HostViews(const KvCache& cache)
        : gpu_(cache.gpu()), device_(cache.views()), views_(device_.begin(), device_.end()) {
        if (gpu_ == nullptr) return;
        const KvCacheOptions& o = cache.options();
        for (KvView& view : views_) {
            const int64_t slots =
                view.window > 0 ? int64_t{o.max_sequences} * view.ring_rows : int64_t{o.pages} * o.page_rows;
            view.k = fetch(view.k, slots * view.k_slot_bytes);
            view.v = fetch(view.v, slots * view.v_slot_bytes);
        }
    }
    std::span<const KvView> views() const { return views_; }
    /// Puts what was changed where it belongs.
    void write_back() {
        for (size_t i = 0; i < copies_.size(); ++i) {
            const KvView& view = device_[i / 2];
            if (copies_[i].empty()) continue;
            gpu_->to_device(i % 2 == 0 ? view.k : view.v, copies_[i].data(), std::ssize(copies_[i]));
        }
    }

  private:
    void* fetch(const void* from, int64_t bytes) {
        copies_.emplace_back(static_cast<size_t>(bytes));
        if (bytes > 0) gpu_->to_host(copies_.back().data(), from, bytes);
        return copies_.back().data();
    }
    Gpu* gpu_;
    std::span<const KvView> device_;
    std::vector<KvView> views_;
    std::vector<std::vector<char>> copies_;  // K and V of each layer
};

inline void append(const KvCache& cache, const Batch& batch, int32_t user) {
    HostViews host(cache);
    for (const KvView& view : host.views())
        for (int64_t r = 0; r < batch.rows(); ++r) {
            const auto i = static_cast<size_t>(r);
            const int64_t slot = view.slot(batch, batch.row_sequence[i], batch.storage_index(r));
            for (int64_t h = 0; h < view.num_kv_heads; ++h) {
                const Row row = row_of(batch.tokens[i], batch.positions[i], user, h);
                std::memcpy(const_cast<char*>(view.k_row(slot, h)), row.k, sizeof row.k);
                std::memcpy(const_cast<char*>(view.v_row(slot, h)), row.v, sizeof row.v);
            }
        }
    host.write_back();
}

/// Number of rows, in all layers, that are not what computing the sequence directly gives.
inline int64_t wrong_rows(const SequenceState& s, std::span<const int32_t> tokens, int32_t user) {
    const HostViews host(s.cache());
    int64_t wrong = 0;
    for (const KvView& view : host.views())
        for (int64_t i = view.window > 0 ? std::max<int64_t>(0, s.length() - (view.window - 1)) : 0; i < s.length();
             ++i) {
            const int64_t slot =
                view.window > 0
                    ? int64_t{s.slot()} * view.ring_rows + i % view.ring_rows
                    : int64_t{s.pages()[static_cast<size_t>(i / view.page_rows)]} * view.page_rows + i % view.page_rows;
            for (int64_t h = 0; h < view.num_kv_heads; ++h) {
                Row row;
                std::memcpy(row.k, view.k_row(slot, h), sizeof row.k);
                std::memcpy(row.v, view.v_row(slot, h), sizeof row.v);
                wrong += row != row_of(tokens[static_cast<size_t>(i)], i, user, h);
            }
        }
    return wrong;
}

struct Conversation {
    int32_t user = 0;
    uint64_t session = 0;
    TokenIds tokens;
    std::vector<int64_t> ends;
};

inline Digest weights_called(uint8_t name) {
    Digest digest;
    digest.fill(name);
    return digest;
}
inline PrefixSalt salt_of(int32_t user) { return {"", "template", "user " + std::to_string(user)}; }

/// A cache with its tiers, and the work of an engine on it.
struct World {
    std::unique_ptr<KvCache> kv;
    std::unique_ptr<HostStore> host;
    std::unique_ptr<DiskStore> disk;
    std::unique_ptr<PrefixCache> cache;
    int64_t every;  // tokens from checkpoint to checkpoint

    explicit World(int32_t pages, PrefixCacheOptions options = {.checkpoint_every = 16}, int64_t host_bytes = 0,
                   const std::string& folder = "", int64_t disk_bytes = 0, int32_t sequences = 4,
                   std::vector<StateSpec> specs = kBoth)
        : every(options.checkpoint_every) {
        kv = std::make_unique<KvCache>(specs, cache_options(pages, sequences), test_gpu());
        if (host_bytes > 0) host = std::make_unique<HostStore>(host_bytes);
        if (disk_bytes > 0) disk = std::make_unique<DiskStore>(folder, disk_bytes);
        cache = std::make_unique<PrefixCache>(*kv, options, host.get(), disk.get());
    }

    bool feed(SequenceState& s, std::span<const int32_t> tokens, int32_t user, bool side = false) {
        BatchBuilder builder;
        for (size_t begin = 0; begin < tokens.size(); begin += 8) {
            const auto part = tokens.subspan(begin, std::min<size_t>(8, tokens.size() - begin));
            const auto n = static_cast<int64_t>(part.size());
            if (!s.try_reserve(n) && !(cache->make_room(s.pages_needed(n), side) && s.try_reserve(n))) return false;
            const StepRows step{.sequence = &s, .tokens = part};
            append(*kv, builder.build({&step, 1}), user);
            s.commit_prefix(n);
        }
        return true;
    }

    /// Where to publish next: at a message's end or a multiple of `every`.
    int64_t next_boundary(int64_t from, std::span<const int64_t> message_ends) const {
        const int64_t multiple = (from / every + 1) * every;
        const auto end = std::upper_bound(message_ends.begin(), message_ends.end(), from);
        return end == message_ends.end() ? multiple : std::min(multiple, *end);
    }

    /// Attaches, checks every byte, computes the rest, publishing at each boundary. False when it ran out of room.
    bool run(const Conversation& c, SequenceState& s, PrefixMatch* match = nullptr, bool side = false) {
        const PrefixSalt salt = salt_of(c.user);
        const PrefixRequest request{salt, c.tokens, c.ends, c.session, side};
        const PrefixMatch got = cache->attach(request, s);
        if (match != nullptr) *match = got;
        EXPECT_EQ(got.cached, s.length());
        EXPECT_LT(got.cached, static_cast<int64_t>(c.tokens.size()));
        EXPECT_EQ(wrong_rows(s, c.tokens, c.user), 0);
        const auto end = static_cast<int64_t>(c.tokens.size());
        while (s.length() < end) {
            const int64_t to = std::min(end, next_boundary(s.length(), c.ends));
            if (!feed(
                    s,
                    std::span(c.tokens).subspan(static_cast<size_t>(s.length()), static_cast<size_t>(to - s.length())),
                    c.user, side))
                return false;
            const bool message = std::binary_search(c.ends.begin(), c.ends.end(), to);
            const bool system = message && to == c.ends[0];
            cache->publish(request, s,
                           system                 ? PrefixCache::Mark::pinned
                           : message || to == end ? PrefixCache::Mark::message
                                                  : PrefixCache::Mark::interval);
        }
        EXPECT_EQ(wrong_rows(s, c.tokens, c.user), 0);
        return true;
    }

    /// Runs it to the end and lets the sequence go.
    PrefixMatch turn(const Conversation& c, bool side = false) {
        SequenceState s(*kv);
        PrefixMatch match;
        run(c, s, &match, side);
        return match;
    }

    /// Every reference to every page is accounted for.
    void expect_exact(const std::vector<std::unique_ptr<SequenceState>>& running = {}) const {
        const PagePool& pool = kv->pool();
        std::map<int32_t, int32_t> users;
        for (const auto& s : running)
            for (const int32_t page : s->pages()) ++users[page];
        ASSERT_EQ(pool.used_count(), std::ssize(users));
        int32_t free = 0, kept = 0, spare = 0;
        for (int32_t page = 0; page < pool.size(); ++page) {
            ASSERT_EQ(pool.refcount(page), users[page] + pool.kept(page)) << "page " << page;
            free += pool.refcount(page) == 0;
            kept += pool.kept(page) > 0;
            spare += pool.kept(page) > 0 && users[page] == 0;
        }
        ASSERT_EQ(pool.free_count(), free);
        ASSERT_EQ(pool.kept_count(), kept);
        ASSERT_EQ(pool.spare_count(), spare);
    }
};

inline void say(Conversation& c, std::mt19937& rng, int64_t tokens, int32_t vocabulary = 3) {
    for (int64_t i = 0; i < tokens; ++i)
        c.tokens.push_back(static_cast<int32_t>(rng() % static_cast<unsigned>(vocabulary)));
    c.ends.push_back(static_cast<int64_t>(c.tokens.size()));
}

inline Conversation talk(std::mt19937& rng, int32_t user, uint64_t session, std::initializer_list<int64_t> messages,
                         int32_t vocabulary = 1000) {
    Conversation c{user, session, {}, {}};
    for (const int64_t n : messages) say(c, rng, n, vocabulary);
    return c;
}

struct Folder {
    std::string path;
    Folder() {
        std::string name = ::testing::TempDir() + "/riptide-prefix-XXXXXX";
        path = ::mkdtemp(name.data());
    }
    ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace riptide
