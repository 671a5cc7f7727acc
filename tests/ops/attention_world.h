// Sequences of random tokens with their K/V storage, for attention tests: the same tokens can be fed in any steps,
// pages, batches and trees, and each row's output compared. Unused storage is NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/kv/kv_append.h"
#include "quant/kv_codec.h"
#include "tests/ops/op_fixture.h"

namespace riptide {

struct WorldShape {
    int64_t heads = 6;
    int64_t kv_heads = 2;
    int64_t head_dim = 64;
    DType k_dtype = DType::f16;
    DType v_dtype = DType::f16;
    int32_t window = 0;
    int32_t page_rows = 16;
    int32_t ring_rows = 128;
    int32_t capacity = 64;  // pages, or rings
    float key_scale = 1.0f;
};

/// A token fed in a step: what it is, and its parent among the rows fed for the same sequence (-1: the last committed).
struct FedToken {
    uint64_t id;
    int32_t parent;
};

struct WorldSequence {
    std::vector<int32_t> pages;
    int32_t slot = 0;
    int32_t committed = 0;
};

class AttentionWorld {
  public:
    AttentionWorld(OpContext& op, const WorldShape& shape, uint64_t seed) : op_(op), shape_(shape), rng_(seed) {
        view.k_dtype = shape.k_dtype;
        view.v_dtype = shape.v_dtype;
        view.num_kv_heads = shape.kv_heads;
        view.head_dim = shape.head_dim;
        view.k_slot_bytes = shape.kv_heads * row_bytes(shape.k_dtype, shape.head_dim);
        view.v_slot_bytes = shape.kv_heads * row_bytes(shape.v_dtype, shape.head_dim);
        view.window = shape.window;
        (shape.window > 0 ? view.ring_rows : view.page_rows) = shape.window > 0 ? shape.ring_rows : shape.page_rows;
        const int64_t slots = int64_t{shape.capacity} * (shape.window > 0 ? shape.ring_rows : shape.page_rows);
        k_ = unused(slots * view.k_slot_bytes);
        v_ = unused(slots * view.v_slot_bytes);
        view.k = k_.data();
        view.v = v_.data();
        for (int32_t i = 0; i < shape.capacity; ++i) free_.push_back(i);
        std::shuffle(free_.begin(), free_.end(), rng_);  // pages lie anywhere
    }

    WorldSequence sequence() {
        WorldSequence s;
        if (shape_.window > 0) s.slot = take();
        return s;
    }

    /// Feeds tokens to several sequences in one step and gives back the outputs, one vector for each row in order.
    /// Nothing is committed.
    std::vector<std::vector<float>> step(const std::vector<WorldSequence*>& sequences,
                                         const std::vector<std::vector<FedToken>>& fed) {
        build(sequences, fed);
        op_.poison();
        std::vector<float> q;
        for (const std::vector<FedToken>& tokens : fed)
            for (const FedToken& token : tokens) append(q, token.id * 3, shape_.heads, 1.0f);
        query = op_.tensor(q, {batch.rows(), shape_.heads, shape_.head_dim});
        store(fed);
        out = ops::attention(op_.ctx, query, view, device_batch, scale());
        return rows_of(out);
    }

    /// Makes the batch of a step and stores its K and V, for tests with projections of their own.
    void place(const std::vector<WorldSequence*>& sequences, const std::vector<std::vector<FedToken>>& fed) {
        build(sequences, fed);
        op_.poison();
        store(fed);
    }

    static std::vector<std::vector<float>> rows_of(const Tensor& t) {
        const std::vector<float> all = values_of(t);
        std::vector<std::vector<float>> rows;
        for (auto at = all.begin(); at != all.end(); at += t.row_elements())
            rows.emplace_back(at, at + t.row_elements());
        return rows;
    }

    /// Feeds a chain in steps of `chunk` tokens, or as many as the kernels take, and commits it. With
    /// --brief only the last rows, which it gives back: 6, prefill 70.
    std::vector<std::vector<float>> feed(WorldSequence& s, const std::vector<uint64_t>& ids, size_t chunk) {
        std::vector<std::vector<float>> rows;
        chunk = std::min(chunk, static_cast<size_t>(most_rows(op_.ctx)));
        const size_t skip = brief_skip(ids.size(), op_.ctx.family == Family::decode ? 6 : 70);
        if (skip > 0) fill(s, {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(skip)}, chunk);
        for (size_t begin = skip, count; begin < ids.size(); begin += count) {
            std::vector<FedToken> fed;
            count = step_of(ids.size(), begin, chunk, room());
            for (size_t i = begin; i < begin + count; ++i) fed.push_back({ids[i], static_cast<int32_t>(i - begin) - 1});
            for (std::vector<float>& row : step({&s}, {fed})) rows.push_back(std::move(row));
            s.committed += static_cast<int32_t>(fed.size());
        }
        return rows;
    }

    /// Stores and commits a chain of tokens as feed() does, for tests that do not look at its rows: with --brief
    /// without attention.
    void fill(WorldSequence& s, const std::vector<uint64_t>& ids, size_t chunk) {
        if (!brief_counts()) {
            feed(s, ids, chunk);
            return;
        }
        const size_t step = std::min<size_t>(256, room());
        for (size_t begin = 0; begin < ids.size(); begin += step) {
            std::vector<FedToken> fed;
            for (size_t i = begin; i < std::min(ids.size(), begin + step); ++i)
                fed.push_back({ids[i], static_cast<int32_t>(i - begin) - 1});
            place({&s}, {fed});
            s.committed += static_cast<int32_t>(fed.size());
        }
    }

    /// Rows that one sequence may be fed in a step.
    size_t room() const {
        return shape_.window > 0 ? static_cast<size_t>(shape_.ring_rows - shape_.window + 1) : size_t{1} << 20;
    }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

    /// The view over a copy of the storage in host memory, as it is now; until the next call.
    KvView host_view() {
        Gpu* gpu = op_.ctx.gpu;
        if (gpu == nullptr) return view;
        KvView host = view;
        const auto fetch = [gpu](const DeviceMemory& from, std::vector<std::byte>& to) {
            to.resize(static_cast<size_t>(from.bytes()));
            gpu->to_host(to.data(), from.data(), from.bytes());
            return to.data();
        };
        host.k = fetch(k_, host_k_);
        host.v = fetch(v_, host_v_);
        return host;
    }
    /// Overwrites the stored V row of one token and head, encoded as the cache has it.
    void set_v_row(int64_t sequence, int64_t index, int64_t head, const std::vector<std::byte>& encoded) {
        char* row = const_cast<char*>(view.v_row(view.slot(batch, sequence, index), head));
        if (op_.ctx.gpu != nullptr) op_.ctx.gpu->to_device(row, encoded.data(), std::ssize(encoded));
        else std::memcpy(row, encoded.data(), encoded.size());
    }

    KvView view;
    Batch batch;         // of the last step, until the next
    Batch device_batch;  // the same on the device
    Tensor query;        // the same
    Tensor out;

  private:
    DeviceMemory unused(int64_t bytes) {
        DeviceMemory memory(op_.ctx.gpu, bytes, "K/V");
        if (op_.ctx.gpu != nullptr) op_.ctx.gpu->fill(memory.data(), 0xFF, bytes);
        else std::memset(memory.data(), 0xFF, static_cast<size_t>(bytes));
        return memory;
    }

    int32_t take() {
        EXPECT_FALSE(free_.empty());
        const int32_t id = free_.back();
        free_.pop_back();
        return id;
    }

    /// K and V of the rows of `batch`.
    void store(const std::vector<std::vector<FedToken>>& fed) {
        std::vector<float> k, v;
        for (const std::vector<FedToken>& tokens : fed)
            for (const FedToken& token : tokens) {
                append(k, token.id * 3 + 1, shape_.kv_heads, shape_.key_scale);
                append(v, token.id * 3 + 2, shape_.kv_heads, 1.0f);
            }
        const int64_t n = batch.rows();
        device_batch = op_.batch(batch);
        ops::kv_append(op_.ctx, view, op_.tensor(k, {n, shape_.kv_heads, shape_.head_dim}),
                       op_.tensor(v, {n, shape_.kv_heads, shape_.head_dim}), device_batch);
    }

    void append(std::vector<float>& to, uint64_t seed, int64_t heads, float scale) const {
        const std::vector<float> x = normals(static_cast<size_t>(heads * shape_.head_dim), seed, scale);
        to.insert(to.end(), x.begin(), x.end());
    }

    void build(const std::vector<WorldSequence*>& sequences, const std::vector<std::vector<FedToken>>& fed) {
        for (auto* array :
             {&tokens_, &positions_, &row_sequence_, &parent_, &row_begin_, &committed_, &table_, &slots_})
            array->clear();
        bool tree = false;
        int32_t max_pages = 0;
        for (size_t s = 0; s < sequences.size(); ++s) {
            WorldSequence& sequence = *sequences[s];
            const auto first = static_cast<int32_t>(tokens_.size());
            row_begin_.push_back(first);
            for (size_t i = 0; i < fed[s].size(); ++i) {
                const int32_t parent = fed[s][i].parent;
                tree = tree || parent != static_cast<int32_t>(i) - 1;
                tokens_.push_back(static_cast<int32_t>(fed[s][i].id));
                positions_.push_back(parent < 0 ? sequence.committed
                                                : positions_[static_cast<size_t>(first + parent)] + 1);
                row_sequence_.push_back(static_cast<int32_t>(s));
                parent_.push_back(parent < 0 ? -1 : first + parent);
            }
            const size_t indices = static_cast<size_t>(sequence.committed) + fed[s].size();
            while (shape_.window == 0 && sequence.pages.size() * static_cast<size_t>(shape_.page_rows) < indices)
                sequence.pages.push_back(take());
            max_pages = std::max(max_pages, static_cast<int32_t>(sequence.pages.size()));
            committed_.push_back(sequence.committed);
            slots_.push_back(sequence.slot);
        }
        row_begin_.push_back(static_cast<int32_t>(tokens_.size()));
        for (size_t s = 0; s < sequences.size(); ++s) {
            table_.insert(table_.end(), sequences[s]->pages.begin(), sequences[s]->pages.end());
            table_.resize((s + 1) * static_cast<size_t>(max_pages), -1);
        }
        batch = {tokens_, positions_, row_sequence_, {}, row_begin_, committed_, table_, max_pages, slots_, {}};
        if (tree) batch.parent = parent_;
    }

    OpContext& op_;
    WorldShape shape_;
    std::mt19937_64 rng_;
    DeviceMemory k_, v_;
    std::vector<std::byte> host_k_, host_v_;
    std::vector<int32_t> free_;
    std::vector<int32_t> tokens_, positions_, row_sequence_, parent_, row_begin_, committed_, table_, slots_;
};

/// Trees are verified by the decode kernels; prefill has chains alone.
constexpr Family kTreeFamily = Family::decode;

inline std::vector<FedToken> chain_of(size_t n) {
    std::vector<FedToken> chain;
    for (size_t i = 0; i < n; ++i) chain.push_back({i, static_cast<int32_t>(i) - 1});
    return chain;
}

using Rows = std::vector<std::vector<float>>;

inline std::string shape_name(const WorldShape& s) {
    return fmt::format("{}/{} heads of {}, {}/{}, window {}", s.heads, s.kv_heads, s.head_dim, dtype_name(s.k_dtype),
                       dtype_name(s.v_dtype), s.window);
}

inline std::vector<uint64_t> token_ids(size_t n, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::vector<uint64_t> ids(n);
    for (uint64_t& id : ids) id = rng() % 1000003;
    return ids;
}

inline void expect_same_rows(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b,
                             const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t r = 0; r < a.size(); ++r) {
        ASSERT_EQ(a[r].size(), b[r].size()) << what;
        ASSERT_TRUE(same_bits(a[r].data(), b[r].data(), a[r].size())) << what << ": row " << r;
        ASSERT_TRUE(std::all_of(a[r].begin(), a[r].end(), [](float x) { return std::isfinite(x); }))
            << what << ": row " << r;
    }
}

/// What error bounds of attention depend on: the largest norms of a query and of a visible stored key, and the largest
/// visible stored |v|.
struct Magnitudes {
    double query = 0, key = 0, value = 0;
};

/// Of the last step of a world's only sequence: `rows` rows after `committed` tokens. q: its queries.
inline Magnitudes magnitudes(AttentionWorld& world, const WorldShape& shape, size_t committed, size_t rows,
                             const std::vector<float>& q) {
    const KvView stored = world.host_view();
    const auto d = static_cast<size_t>(shape.head_dim);
    const auto norm = [d](const float* x) { return std::sqrt(std::inner_product(x, x + d, x, 0.0)); };
    Magnitudes largest;
    std::vector<float> row(d);
    const auto keys = static_cast<int64_t>(committed + rows);
    for (int64_t i = shape.window > 0 ? std::max<int64_t>(0, static_cast<int64_t>(committed) - shape.window + 1) : 0;
         i < keys; ++i)
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
            const int64_t slot = stored.slot(world.batch, 0, i);
            decode_kv_row(shape.k_dtype, stored.k_row(slot, h), row.data(), shape.head_dim);
            largest.key = std::max(largest.key, norm(row.data()));
            decode_kv_row(shape.v_dtype, stored.v_row(slot, h), row.data(), shape.head_dim);
            if (kv_rotated(shape.v_dtype)) kv_unrotate(row.data(), shape.head_dim);
            for (const float v : row) largest.value = std::max(largest.value, std::abs(double{v}));
        }
    for (size_t i = 0; i < q.size(); i += d) largest.query = std::max(largest.query, norm(&q[i]));
    return largest;
}

}  // namespace riptide
