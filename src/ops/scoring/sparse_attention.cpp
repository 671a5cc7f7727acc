#include "ops/scoring/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend_scoring.h"
#include "ops/kv/kv_append.h"
#include "ops/norm.h"
#include "ops/op_cost.h"
#include "quant/kv_codec.h"

namespace riptide::ops {

namespace {

/// What stays the same over one call. A thread takes one block of queries of one head.
struct SparseJob {
    const KvView& view;
    const Batch& batch;
    const SparseOptions& options;
    const AttentionKernels& kernels;
    const Tensor& q;  // prepared
    float scale;
    int64_t heads, d, dp, state;
    int64_t keys;              // of the sequence
    const float* means;        // [kv heads, key blocks, dp]
    float* scratch = nullptr;  // scratch_floats() for each thread

    int64_t key_blocks() const { return (keys + kSparseBlock - 1) / kSparseBlock; }
    int64_t kv_head(int64_t h) const { return h / (heads / view.num_kv_heads); }
    /// Padded to whole pieces of kAttentionSplit: what `scores` writes.
    int64_t mass_floats() const { return (key_blocks() + kAttentionSplit - 1) / kAttentionSplit * kAttentionSplit; }
    int64_t scratch_floats() const { return kSparseBlock * (2 * dp + kAttentionSplit + 2 * state) + 2 * mass_floats(); }
};

/// One thread's buffers, each a multiple of 64 bytes.
struct SparseScratch {
    float* q;        // [128, dp]
    float* block;    // [128, dp]: keys or values
    float* scores;   // [128, kAttentionSplit]
    float* states;   // [128, state]
    float* running;  // [128, state]
    float* mass;     // [mass_floats()]
    float* largest;  // [mass_floats()]

    SparseScratch(const SparseJob& job, int thread) {
        q = job.scratch + thread * job.scratch_floats();
        block = q + kSparseBlock * job.dp;
        scores = block + kSparseBlock * job.dp;
        states = scores + kSparseBlock * kAttentionSplit;
        running = states + kSparseBlock * job.state;
        mass = running + kSparseBlock * job.state;
        largest = mass + job.mass_floats();
    }
};

/// Keys or values [first, first + count) of a head, padded with zeros to dp and to a multiple of four rows.
void decode_rows(const SparseJob& job, int64_t kv_head, int64_t first, int64_t count, bool values, float* to) {
    const DType type = values ? job.view.v_dtype : job.view.k_dtype;
    for (int64_t j = 0; j < count; ++j, to += job.dp) {
        const int64_t slot = job.view.slot(job.batch, 0, first + j);
        decode_kv_row(type, values ? job.view.v_row(slot, kv_head) : job.view.k_row(slot, kv_head), to, job.d);
        std::fill(to + job.d, to + job.dp, 0.0f);
    }
    std::fill_n(to, (4 - count % 4) % 4 * job.dp, 0.0f);
}

/// The means of all key blocks, [kv heads, key blocks + 3, dp]: room for the kernels, which take four at a time.
float* block_means(Context& ctx, const SparseJob& job) {
    const int64_t blocks = job.key_blocks(), each = (blocks + 3) * job.dp;
    float* const means = floats(ctx, job.view.num_kv_heads * each);
    std::fill_n(means, job.view.num_kv_heads * each, 0.0f);
    for_each_item(ctx, job.view.num_kv_heads * blocks, [&](int64_t item, int) {
        const int64_t kv_head = item / blocks, first = item % blocks * kSparseBlock;
        const int64_t count = std::min(kSparseBlock, job.keys - first);
        float* mean = means + kv_head * each + item % blocks * job.dp;
        std::vector<float> key(static_cast<size_t>(job.d));
        for (int64_t j = first; j < first + count; ++j) {
            decode_kv_row(job.view.k_dtype, job.view.k_row(job.view.slot(job.batch, 0, j), kv_head), key.data(), job.d);
            for (int64_t e = 0; e < job.d; ++e) mean[e] += key[static_cast<size_t>(e)];
        }
        for (int64_t e = 0; e < job.d; ++e) mean[e] /= static_cast<float>(count);
    });
    return means;
}

/// s.mass[0 .. m] of the queries in s.q, not normalised: the rule compares masses with each other alone.
void estimate(const SparseJob& job, int64_t kv_head, int64_t rows, int64_t m, const SparseScratch& s) {
    const float* means = job.means + kv_head * (job.key_blocks() + 3) * job.dp;
    for (int64_t first = 0; first <= m; first += kAttentionSplit) {
        const int64_t count = std::min(kAttentionSplit, m + 1 - first);
        job.kernels.scores(s.q, rows, means + first * job.dp, (count + 3) / 4 * 4, job.dp, job.scale, s.scores);
        for (int64_t n = 0; n < count; ++n) {
            float largest = -INFINITY, sum = 0;
            for (int64_t j = 0; j < rows; ++j) largest = std::max(largest, s.scores[j * kAttentionSplit + n]);
            for (int64_t j = 0; j < rows; ++j) sum += std::exp(s.scores[j * kAttentionSplit + n] - largest);
            s.largest[first + n] = largest;
            s.mass[first + n] = sum;
        }
    }
    const float largest = *std::max_element(s.largest, s.largest + m + 1);
    for (int64_t n = 0; n <= m; ++n) s.mass[n] *= std::exp(s.largest[n] - largest);
}

/// states <- those of the queries over one block of keys; rows see keys up to their own.
void attend_block(const SparseJob& job, int64_t kv_head, int64_t rows, int64_t own, int64_t block,
                  const SparseScratch& s) {
    const int64_t first = block * kSparseBlock, count = std::min(kSparseBlock, job.keys - first);
    decode_rows(job, kv_head, first, count, false, s.block);
    job.kernels.scores(s.q, rows, s.block, (count + 3) / 4 * 4, job.dp, job.scale, s.scores);
    const auto seen = [&](int64_t i) { return std::min(count, own + i + 1 - first); };
    for (int64_t i = 0; i < rows; ++i)
        job.kernels.softmax(s.scores + i * kAttentionSplit, 0, seen(i), job.dp, s.states + i * job.state);
    decode_rows(job, kv_head, first, count, true, s.block);
    if (seen(0) == count) return job.kernels.accumulate(s.scores, rows, s.block, count, job.dp, s.states);
    for (int64_t i = 0; i < rows; ++i)
        job.kernels.accumulate(s.scores + i * kAttentionSplit, 1, s.block, seen(i), job.dp, s.states + i * job.state);
}

/// Block `step` of the step's rows, one head.
void run_block(const SparseJob& job, int64_t step, int64_t h, const SparseScratch& s, SparseResult& result) {
    const int64_t first_row = step * kSparseBlock, rows = std::min(kSparseBlock, job.q.rows() - first_row);
    const int64_t own = job.keys - job.q.rows() + first_row, m = own / kSparseBlock, kv_head = job.kv_head(h);
    for (int64_t i = 0; i < rows; ++i) {
        std::copy_n(job.q.row(first_row + i) + h * job.d, job.d, s.q + i * job.dp);
        std::fill(s.q + i * job.dp + job.d, s.q + (i + 1) * job.dp, 0.0f);
        s.running[i * job.state + job.dp + 1] = 0;
    }
    estimate(job, kv_head, rows, m, s);
    int32_t* const list = result.lists.row<int32_t>(step) + h * result.lists.shape[2];
    list[0] = static_cast<int32_t>(choose_blocks(s.mass, m, job.options, list + 1));
    for (int32_t i = 1; i <= list[0]; ++i) {
        attend_block(job, kv_head, rows, own, list[i], s);
        for (int64_t j = 0; j < rows; ++j)
            job.kernels.merge(s.running + j * job.state, s.states + j * job.state, job.dp);
    }
    for (int64_t j = 0; j < rows; ++j) {
        const float inverse = 1.0f / s.running[j * job.state + job.dp + 1];
        float* const o = result.o.row(first_row + j) + h * job.d;
        for (int64_t e = 0; e < job.d; ++e) o[e] = s.running[j * job.state + e] * inverse;
    }
}

Tensor prepare_heads(Context& ctx, const Tensor& x, const Norm& norm, const Rope* rotation, const Batch& batch) {
    Tensor y = norm.weight.empty() ? x : rms_norm(ctx, x, norm.weight, norm.eps);
    if (rotation != nullptr) rope(ctx, y, rotary_positions(ctx, batch), *rotation);
    return y;
}

SparseResult on_cpu(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                    const SparseOptions& options, SparseResult result) {
    const ArenaScope scope(*ctx.arena);
    const Tensor q = prepare_heads(ctx, in.q, in.q_norm, in.rope, batch),
                 k = prepare_heads(ctx, in.k, in.k_norm, in.rope, batch);
    kv_append(ctx, view, k, in.v, batch);
    const int64_t d = view.head_dim, dp = (d + 15) / 16 * 16;
    SparseJob job{.view = view,
                  .batch = batch,
                  .options = options,
                  .kernels = attention_kernels(),
                  .q = q,
                  .scale = in.softmax_scale,
                  .heads = q.shape[1],
                  .d = d,
                  .dp = dp,
                  .state = attention_state_floats(dp),
                  .keys = batch.committed[0] + q.rows(),
                  .means = nullptr};
    RT_ASSERT(batch.committed[0] % kSparseBlock == 0);
    job.means = block_means(ctx, job);
    job.scratch = floats(ctx, job.scratch_floats() * (ctx.threads == nullptr ? 1 : ctx.threads->size()));
    for_each_item(ctx, result.lists.shape[0] * job.heads, [&](int64_t item, int thread) {
        run_block(job, item / job.heads, item % job.heads, SparseScratch(job, thread), result);
    });
    return result;
}

}  // namespace

SparseResult sparse_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                              const SparseOptions& options) {
    RT_ASSERT(in.q.dtype == DType::f32 && in.q.contiguous() && in.q.rank == 3 && in.q.rows() == batch.rows());
    RT_ASSERT(in.q.shape[2] == view.head_dim && in.q.shape[1] % view.num_kv_heads == 0 && in.softmax_scale > 0);
    RT_ASSERT(in.gate.data == nullptr && view.window == 0 && batch.sequences() == 1 && batch.parent.empty());
    RT_ASSERT(!kv_rotated(view.k_dtype) && !kv_rotated(view.v_dtype) && options.window_blocks >= 1);
    const OpScope told = announce(ctx, "sparse_attention", in.q.rows());  // what it computes depends on what it chooses
    const int64_t n = in.q.rows(), heads = in.q.shape[1];
    const int64_t columns = (int64_t{batch.max_pages} * view.page_rows + kSparseBlock - 1) / kSparseBlock;
    SparseResult result;
    result.o = ctx.alloc(DType::f32, {n, heads * view.head_dim});
    result.lists = ctx.alloc(DType::i32, {(n + kSparseBlock - 1) / kSparseBlock, heads, 1 + columns});
    if (n == 0) return result;
    if (ctx.gpu == nullptr) return on_cpu(ctx, in, view, batch, options, result);
    cuda::sparse_attention(ctx, in, view, batch, options, result);
    return result;
}

}  // namespace riptide::ops
