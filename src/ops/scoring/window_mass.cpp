#include "ops/scoring/window_mass.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend_scoring.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

/// One call on the CPU. Queries are the pairs of a row and a head of one KV head's group.
struct MassJob {
    const float* q;  // [kv heads, queries, dp]
    const Tensor& keys;
    int64_t queries, group, dp, begin, end, n;
    float scale;

    /// The keys of [first, first + count) that a query sees are all but those behind its row in the window.
    bool sees(int64_t query, int64_t key) const { return key <= begin + query / group || key >= end; }
};

/// s[i][j] = score of query i and key first + j, -inf where it does not see it, for one KV head.
void score(const MassJob& job, int64_t kv_head, int64_t first, int64_t count, float* block, float* s) {
    for (int64_t j = 0; j < count; ++j)
        std::copy_n(job.keys.row(first + j) + kv_head * job.dp, job.dp, block + j * job.dp);
    std::fill_n(block + count * job.dp, (4 - count % 4) % 4 * job.dp, 0.0f);
    attention_kernels().scores(job.q + kv_head * job.queries * job.dp, job.queries, block, (count + 3) / 4 * 4, job.dp,
                               job.scale, s);
    if (first + count <= job.begin || first >= job.end) return;
    for (int64_t i = 0; i < job.queries; ++i)
        for (int64_t j = 0; j < count; ++j)
            if (!job.sees(i, first + j)) s[i * kAttentionSplit + j] = -INFINITY;
}

/// Buffers of one item of work, aligned for the kernels.
struct MassBuffers {
    float *block, *s;
    MassBuffers(float* memory, const MassJob& job, int thread) {
        block = memory + thread * floats(job);
        s = block + kAttentionSplit * job.dp;
    }
    static int64_t floats(const MassJob& job) { return kAttentionSplit * (job.dp + job.queries); }
};

/// The largest score and the sum of exp(score - largest) of each query of a KV head, over all keys in ascending order.
void softmax_sums(const MassJob& job, int64_t kv_head, const MassBuffers& buffers, float* largest, float* sum) {
    std::fill_n(largest, job.queries, -INFINITY);
    std::fill_n(sum, job.queries, 0.0f);
    for (int64_t first = 0; first < job.n; first += kAttentionSplit) {
        const int64_t count = std::min(kAttentionSplit, job.n - first);
        score(job, kv_head, first, count, buffers.block, buffers.s);
        for (int64_t i = 0; i < job.queries; ++i) {
            const float* s = buffers.s + i * kAttentionSplit;
            const float now = std::max(largest[i], *std::max_element(s, s + count));
            if (now == -INFINITY) continue;  // nothing seen yet
            float part = 0;
            for (int64_t j = 0; j < count; ++j) part += std::exp(s[j] - now);
            sum[i] = sum[i] * std::exp(largest[i] - now) + part;
            largest[i] = now;
        }
    }
}

void add_on_cpu(Context& ctx, const Tensor& q, const Tensor& keys, int64_t begin, int64_t n, float scale,
                Tensor& mass) {
    const ArenaScope scope(*ctx.arena);
    const int64_t kv_heads = keys.shape[1], group = q.shape[1] / kv_heads, d = q.shape[2], dp = keys.shape[2];
    const int64_t queries = q.rows() * group;
    float* const padded = floats(ctx, kv_heads * queries * dp);
    for (int64_t t = 0; t < q.rows(); ++t)
        for (int64_t h = 0; h < q.shape[1]; ++h) {
            float* const to = padded + (h / group * queries + t * group + h % group) * dp;
            std::fill(std::copy_n(q.row(t) + h * d, d, to), to + dp, 0.0f);
        }
    const MassJob job{padded, keys, queries, group, dp, begin, begin + q.rows(), n, scale};
    const int threads = ctx.threads == nullptr ? 1 : ctx.threads->size();
    float* const memory = floats(ctx, threads * MassBuffers::floats(job));
    float* const largest = floats(ctx, kv_heads * queries);
    float* const sum = floats(ctx, kv_heads * queries);
    parallel_rows(ctx, kv_heads, queries * n * dp, [&](int64_t from, int64_t to, int thread) {
        for (int64_t h = from; h < to; ++h)
            softmax_sums(job, h, MassBuffers(memory, job, thread), largest + h * queries, sum + h * queries);
    });
    const int64_t pieces = (n + kAttentionSplit - 1) / kAttentionSplit;
    parallel_rows(ctx, pieces, kv_heads * queries * kAttentionSplit * dp, [&](int64_t from, int64_t to, int thread) {
        const MassBuffers buffers(memory, job, thread);
        for (int64_t piece = from; piece < to; ++piece) {
            const int64_t first = piece * kAttentionSplit, count = std::min(kAttentionSplit, n - first);
            float* const out = mass.row(0) + first;
            for (int64_t h = 0; h < kv_heads; ++h) {
                score(job, h, first, count, buffers.block, buffers.s);
                for (int64_t i = h * queries; i < (h + 1) * queries; ++i)
                    for (int64_t j = 0; j < count; ++j)
                        out[j] += std::exp(buffers.s[(i - h * queries) * kAttentionSplit + j] - largest[i]) / sum[i];
            }
        }
    });
}

}  // namespace

void store_score_keys(Context& ctx, const Tensor& k, int64_t first, Tensor& keys) {
    RT_ASSERT(k.dtype == DType::f32 && k.rank == 3 && k.contiguous() && keys.rank == 3 && keys.contiguous());
    RT_ASSERT(keys.dtype == score_key_dtype(ctx.gpu) && keys.shape[1] == k.shape[1]);
    RT_ASSERT(keys.shape[2] == score_key_columns(k.shape[2]) && first >= 0 && first + k.rows() <= keys.rows());
    const OpScope told = announce(ctx, "store_score_keys", k.rows());
    if (ctx.gpu != nullptr) return cuda::store_score_keys(ctx, k, first, keys);
    const int64_t heads = k.shape[1], d = k.shape[2], dp = keys.shape[2];
    parallel_rows(ctx, k.rows() * heads, d, [&](int64_t from, int64_t to, int) {
        for (int64_t i = from; i < to; ++i) {
            float* const row = keys.row(first) + i * dp;
            std::fill(std::copy_n(k.row(0) + i * d, d, row), row + dp, 0.0f);
        }
    });
}

void add_window_mass(Context& ctx, const Tensor& q, const Tensor& keys, int64_t begin, int64_t n, float softmax_scale,
                     Tensor& mass) {
    RT_ASSERT(q.dtype == DType::f32 && q.rank == 3 && q.contiguous() && q.rows() >= 1 && keys.rank == 3);
    RT_ASSERT(keys.dtype == score_key_dtype(ctx.gpu) && keys.shape[2] == score_key_columns(q.shape[2]));
    RT_ASSERT(q.shape[1] % keys.shape[1] == 0 && begin >= 0 && begin + q.rows() <= n && n <= keys.rows());
    RT_ASSERT(mass.dtype == DType::f32 && mass.elements() == n && mass.contiguous());
    const OpScope told = announce(ctx, "add_window_mass", q.rows());
    if (ctx.gpu != nullptr) return cuda::add_window_mass(ctx, q, keys, begin, n, softmax_scale, mass);
    add_on_cpu(ctx, q, keys, begin, n, softmax_scale, mass);
}

template <class Acc>
void window_mass_ref(const float* q, int64_t rows, int64_t heads, const float* keys, int64_t kv_heads, int64_t d,
                     int64_t begin, int64_t n, float softmax_scale, Acc* mass) {
    std::fill_n(mass, n, Acc{0});
    std::vector<Acc> p(static_cast<size_t>(n));
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t h = 0; h < heads; ++h) {
            Acc largest = -INFINITY, sum = 0;
            for (int64_t j = 0; j < n; ++j) {
                Acc dot = 0;
                for (int64_t e = 0; e < d; ++e)
                    dot += Acc{q[(t * heads + h) * d + e]} * Acc{keys[(j * kv_heads + h / (heads / kv_heads)) * d + e]};
                const bool seen = j <= begin + t || j >= begin + rows;
                p[static_cast<size_t>(j)] = seen ? dot * Acc{softmax_scale} : -INFINITY;
                largest = std::max(largest, p[static_cast<size_t>(j)]);
            }
            for (Acc& x : p) sum += x = std::exp(x - largest);
            for (int64_t j = 0; j < n; ++j) mass[j] += p[static_cast<size_t>(j)] / sum;
        }
}

template void window_mass_ref<float>(const float*, int64_t, int64_t, const float*, int64_t, int64_t, int64_t, int64_t,
                                     float, float*);
template void window_mass_ref<double>(const float*, int64_t, int64_t, const float*, int64_t, int64_t, int64_t, int64_t,
                                      float, double*);

}  // namespace riptide::ops
