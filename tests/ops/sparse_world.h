// One sequence for tests of sparse attention: given queries, keys and values, fed in steps, in shuffled pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/scoring/sparse_attention.h"
#include "tests/ops/op_fixture.h"

namespace riptide::sparse {

using ops::kSparseBlock;
using ops::SparseOptions;

struct Shape {
    int64_t heads = 4, kv_heads = 2, head_dim = 64;
    DType dtype = DType::f16;
};
inline std::vector<Shape> shapes() {
    if (brief_counts()) return {{4, 2, 64, DType::f16}, {1, 1, 24, DType::f32}, {2, 1, 128, DType::bf16}};
    return {{4, 2, 64, DType::f16},
            {2, 1, 128, DType::f16},
            {4, 4, 24, DType::f32},
            {3, 1, 128, DType::f32},
            {4, 2, 128, DType::bf16}};
}
inline std::string name_of(const Shape& s) {
    return fmt::format("{}/{} heads of {}, {}", s.heads, s.kv_heads, s.head_dim, dtype_name(s.dtype));
}

/// One sequence with given q, k, v for all its tokens, in shuffled pages, fed in steps.
class World {
  public:
    World(const Shape& shape, int64_t tokens, int threads = 2)
        : op(Family::prefill, threads), shape_(shape), n(tokens) {
        const auto values = [&](int64_t heads, uint64_t seed) {
            return normals(static_cast<size_t>(tokens * heads * shape.head_dim), seed);
        };
        q = values(shape.heads, 1);
        k = values(shape.kv_heads, 2);
        v = values(shape.kv_heads, 3);
    }

    struct Result {
        std::vector<float> o;
        std::vector<std::vector<int32_t>> lists;  // of block m, head h: [m * heads + h]
    };

    Result run(const SparseOptions& options, int64_t chunk = 1 << 20) {
        make_cache();
        Result all;
        for (int64_t first = 0; first < n; first += chunk) {
            const int64_t rows = std::min(chunk, n - first);
            set_batch(first, rows);
            op.poison();
            const ops::AttentionInput in = input(first, rows);
            const Batch batch = op.batch(host_batch);
            const ops::SparseResult result = ops::sparse_attention(op.ctx, in, view, batch, options);
            const std::vector<float> o = values_of(result.o);
            all.o.insert(all.o.end(), o.begin(), o.end());
            const std::vector<int32_t> lists = values_of<int32_t>(result.lists);
            for (size_t at = 0; at < lists.size(); at += static_cast<size_t>(result.lists.shape[2])) {
                EXPECT_LT(lists[at], result.lists.shape[2]);
                const auto from = lists.begin() + static_cast<std::ptrdiff_t>(at) + 1;
                all.lists.emplace_back(from, from + lists[at]);
            }
        }
        return all;
    }
    /// Dense attention of the last step's rows over the same cache.
    std::vector<float> dense() {
        op.poison();
        const Tensor queries = input(host_batch.committed[0], host_batch.rows()).q;
        return values_of(ops::attention(op.ctx, queries, view, op.batch(host_batch), scale()));
    }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
    float* key(int64_t token, int64_t head) {
        return &k[static_cast<size_t>((token * shape_.kv_heads + head) * shape_.head_dim)];
    }
    float* value(int64_t token, int64_t head) {
        return &v[static_cast<size_t>((token * shape_.kv_heads + head) * shape_.head_dim)];
    }
    float* query(int64_t token, int64_t head) {
        return &q[static_cast<size_t>((token * shape_.heads + head) * shape_.head_dim)];
    }
    int64_t blocks() const { return (n + kSparseBlock - 1) / kSparseBlock; }
    int64_t rows_of_block(int64_t m) const { return std::min(kSparseBlock, n - m * kSparseBlock); }

    /// The view over a copy of the storage in host memory.
    KvView host_view() {
        KvView host = view;
        for (int i = 0; i < 2; ++i) {
            const DeviceMemory& from = i == 0 ? k_memory_ : v_memory_;
            std::vector<std::byte>& to = host_memory_[i];
            to.resize(static_cast<size_t>(from.bytes()));
            if (op.ctx.gpu != nullptr) op.ctx.gpu->to_host(to.data(), from.data(), from.bytes());
            else std::memcpy(to.data(), from.data(), to.size());
            (i == 0 ? host.k : host.v) = to.data();
        }
        return host;
    }
    void set_batch(int64_t first, int64_t rows) {
        tokens_.assign(static_cast<size_t>(rows), 0);
        positions_.resize(static_cast<size_t>(rows));
        std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(first));
        row_begin_ = {0, static_cast<int32_t>(rows)};
        committed_ = {static_cast<int32_t>(first)};
        const auto pages = static_cast<int32_t>((first + rows + kPage - 1) / kPage);
        host_batch = {tokens_,
                      positions_,
                      tokens_,
                      {},
                      row_begin_,
                      committed_,
                      std::span(table_).first(static_cast<size_t>(pages)),
                      pages,
                      slot_,
                      {}};
    }

    OpContext op;
    std::vector<float> q, k, v;
    ops::Norm q_norm, k_norm;
    const ops::Rope* rope = nullptr;
    KvView view;
    Batch host_batch;

  private:
    static constexpr int32_t kPage = 64;

    void make_cache() {
        const int64_t pages = (n + kPage - 1) / kPage, head_bytes = row_bytes(shape_.dtype, shape_.head_dim);
        table_.resize(static_cast<size_t>(pages));
        std::iota(table_.begin(), table_.end(), 0);
        std::mt19937_64 rng(9);
        std::ranges::shuffle(table_, rng);
        view = {.k_dtype = shape_.dtype,
                .v_dtype = shape_.dtype,
                .num_kv_heads = shape_.kv_heads,
                .head_dim = shape_.head_dim,
                .k_slot_bytes = shape_.kv_heads * head_bytes,
                .v_slot_bytes = shape_.kv_heads * head_bytes,
                .page_rows = kPage};
        for (DeviceMemory* memory : {&k_memory_, &v_memory_}) {
            const int64_t bytes = pages * kPage * view.k_slot_bytes;
            *memory = DeviceMemory(op.ctx.gpu, bytes, "K/V");
            if (op.ctx.gpu != nullptr) op.ctx.gpu->fill(memory->data(), 0xFF, bytes);
            else std::memset(memory->data(), 0xFF, static_cast<size_t>(bytes));
        }
        view.k = k_memory_.data();
        view.v = v_memory_.data();
    }
    ops::AttentionInput input(int64_t first, int64_t rows) {
        const auto part = [&](const std::vector<float>& all, int64_t heads) {
            const int64_t width = heads * shape_.head_dim;
            const auto from = all.begin() + first * width;
            return op.tensor({from, from + rows * width}, {rows, heads, shape_.head_dim});
        };
        ops::AttentionInput in;
        in.q = part(q, shape_.heads);
        in.k = part(k, shape_.kv_heads);
        in.v = part(v, shape_.kv_heads);
        in.q_norm = q_norm;
        in.k_norm = k_norm;
        in.rope = rope;
        in.softmax_scale = scale();
        return in;
    }

    Shape shape_;
    int64_t n;
    DeviceMemory k_memory_, v_memory_;
    std::vector<std::byte> host_memory_[2];
    std::vector<int32_t> table_, tokens_, positions_, row_begin_, committed_, slot_ = {0};
};

inline double norm_of(const float* x, int64_t d) { return std::sqrt(std::inner_product(x, x + d, x, 0.0)); }

/// Relative error of an element when the device's products round their operands: tiles are f16 or bf16.
inline double operand_rounding(const Shape& shape) {
    const bool tiles = test_gpu() != nullptr && shape.dtype != DType::f32 && shape.head_dim % 64 == 0;
    return !tiles ? 0 : shape.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

/// Leaves most out.
inline constexpr SparseOptions kTight = {
    .sink_blocks = 1, .window_blocks = 2, .alpha = 0.3f, .most_blocks = 3, .full_below = 2};

}  // namespace riptide::sparse
