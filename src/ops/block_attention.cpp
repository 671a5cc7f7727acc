#include "ops/block_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/elementwise.h"
#include "ops/op_cost.h"
#include "quant/kv_codec.h"

namespace riptide::ops {

namespace {

/// The storage indices that row r sees: [begin, end).
struct SeenKeys {
    int64_t begin, end;
};
SeenKeys seen_keys(const Batch& batch, int32_t window, int64_t r) {
    const auto s = static_cast<size_t>(batch.row_sequence[static_cast<size_t>(r)]);
    const int64_t own = batch.storage_index(r);
    return {window > 0 ? std::max<int64_t>(0, own - window + 1) : 0,
            batch.committed[s] + batch.row_begin[s + 1] - batch.row_begin[s]};
}

/// All rows of one sequence and all query heads of one KV head.
class Work {
  public:
    Work(const Tensor& q, const KvView& view, const Batch& batch, int64_t sequence, int64_t kv_head)
        : q_(q), view_(view), batch_(batch), sequence_(sequence), kv_head_(kv_head) {
        const auto s = static_cast<size_t>(sequence);
        first_ = batch.row_begin[s];
        rows_ = batch.row_begin[s + 1] - first_;
        group_ = q.shape[1] / view.num_kv_heads;
        if (rows_ == 0) return;
        begin_ = seen_keys(batch, view.window, first_).begin;
        keys_ = seen_keys(batch, view.window, first_).end - begin_;
        scores_.resize(static_cast<size_t>(rows_ * group_ * keys_));
        key_.resize(static_cast<size_t>(view.head_dim));
    }

    void run(float scale, Tensor& out) {
        load_queries();
        score(scale);
        for (int64_t i = 0; i < rows_ * group_; ++i) softmax(i);
        add_values(out);
    }

  private:
    float* scores(int64_t query) { return scores_.data() + query * keys_; }
    /// Keys of a query: places in scores(), the first one and one past the last are the same for all but windows.
    int64_t first_key(int64_t query) const {
        return seen_keys(batch_, view_.window, first_ + query / group_).begin - begin_;
    }
    float* result(Tensor& out, int64_t query) const {
        return out.row(first_ + query / group_) + (kv_head_ * group_ + query % group_) * view_.head_dim;
    }

    void load_queries() {
        const int64_t d = view_.head_dim;
        queries_.resize(static_cast<size_t>(rows_ * group_ * d));
        for (int64_t i = 0; i < rows_ * group_; ++i) {
            float* to = queries_.data() + i * d;
            std::copy_n(q_.row(first_ + i / group_) + (kv_head_ * group_ + i % group_) * d, d, to);
            if (kv_rotated(view_.k_dtype)) kv_rotate(to, d);
        }
    }
    void score(float scale) {
        const int64_t d = view_.head_dim;
        for (int64_t key = 0; key < keys_; ++key) {
            const int64_t slot = view_.slot(batch_, sequence_, begin_ + key);
            decode_kv_row(view_.k_dtype, view_.k_row(slot, kv_head_), key_.data(), d);
            for (int64_t i = 0; i < rows_ * group_; ++i)
                if (key >= first_key(i)) scores(i)[key] = scale * dot(queries_.data() + i * d, key_.data(), d);
        }
    }
    static float dot(const float* a, const float* b, int64_t d) {
        float lane[16] = {};
        int64_t e = 0;
        for (; e + 16 <= d; e += 16)
            for (int64_t l = 0; l < 16; ++l) lane[l] += a[e + l] * b[e + l];
        for (int64_t l = 0; e + l < d; ++l) lane[l] += a[e + l] * b[e + l];
        for (int64_t half = 8; half > 0; half /= 2)
            for (int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
        return lane[0];
    }
    /// scores <- probabilities.
    void softmax(int64_t query) {
        float* s = scores(query);
        const int64_t from = first_key(query);
        float largest = s[from], sum = 0;
        for (int64_t key = from; key < keys_; ++key) largest = std::max(largest, s[key]);
        for (int64_t key = from; key < keys_; ++key) sum += s[key] = std::exp(s[key] - largest);
        for (int64_t key = from; key < keys_; ++key) s[key] /= sum;
    }
    void add_values(Tensor& out) {
        const int64_t d = view_.head_dim;
        for (int64_t i = 0; i < rows_ * group_; ++i) std::fill_n(result(out, i), d, 0.0f);
        for (int64_t key = 0; key < keys_; ++key) {
            const int64_t slot = view_.slot(batch_, sequence_, begin_ + key);
            decode_kv_row(view_.v_dtype, view_.v_row(slot, kv_head_), key_.data(), d);
            for (int64_t i = 0; i < rows_ * group_; ++i) {
                if (key < first_key(i)) continue;
                const float p = scores(i)[key];
                float* y = result(out, i);
                for (int64_t e = 0; e < d; ++e) y[e] += p * key_[static_cast<size_t>(e)];
            }
        }
        if (kv_rotated(view_.v_dtype))
            for (int64_t i = 0; i < rows_ * group_; ++i) kv_unrotate(result(out, i), d);
    }

    const Tensor& q_;
    const KvView& view_;
    const Batch& batch_;
    int64_t sequence_, kv_head_, first_ = 0, rows_ = 0, group_ = 0, begin_ = 0, keys_ = 0;
    std::vector<float> queries_, scores_, key_;
};

}  // namespace

Tensor block_attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    RT_ASSERT(q.dtype == DType::f32 && q.contiguous() && q.rank == 3 && q.rows() == batch.rows());
    RT_ASSERT(q.shape[2] == view.head_dim && q.shape[1] % view.num_kv_heads == 0 && batch.parent.empty());
    const OpScope told = announce(ctx, "block_attention", q.rows());
    if (ctx.gpu != nullptr) return cuda::block_attention(ctx, q, view, batch, softmax_scale);
    Tensor out = ctx.alloc(DType::f32, {q.rows(), q.shape[1] * q.shape[2]});
    parallel_rows(ctx, batch.sequences() * view.num_kv_heads, int64_t{1} << 14, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
            Work(q, view, batch, i / view.num_kv_heads, i % view.num_kv_heads).run(softmax_scale, out);
    });
    return out;
}

Tensor gated_block_attention(Context& ctx, BlockHeads& in, const Rope& rope, const Batch& batch, float softmax_scale,
                             const Tensor& gate) {
    const int64_t n = in.q.rows(), heads = in.q.shape[1];
    RT_ASSERT(in.q.rank == 3 && in.q.contiguous() && in.k.contiguous() && in.v.contiguous() && n == batch.rows());
    RT_ASSERT(in.k.rows() == n && in.k.shape[1] == in.kv.num_kv_heads && in.v.shape == in.k.shape);
    RT_ASSERT(in.q.shape[2] == in.kv.head_dim && in.k.shape[2] == in.kv.head_dim && batch.parent.empty());
    RT_ASSERT(gate.data == nullptr ||
              (gate.rank == 2 && gate.contiguous() && gate.rows() == n && gate.shape[1] == heads));
    if (ctx.gpu != nullptr && cuda::has_block_tensor(ctx, in.kv, heads)) {
        const OpScope told = announce(ctx, "gated_block_attention", n);
        return cuda::gated_block_attention_tensor(ctx, in, rope, batch, softmax_scale, gate);
    }
    block_heads(ctx, {&in, 1}, rope, batch);
    Tensor o = block_attention(ctx, in.q, in.kv, batch, softmax_scale);
    if (gate.data != nullptr) mul_softplus(ctx, o, gate, heads);
    return o;
}

template <class Acc>
void block_attention_ref(const float* q, int64_t heads, const KvView& view, const Batch& batch, float softmax_scale,
                         Acc* y) {
    const int64_t d = view.head_dim;
    std::vector<float> query(static_cast<size_t>(d)), stored(static_cast<size_t>(d));
    for (int64_t r = 0; r < batch.rows(); ++r)
        for (int64_t h = 0; h < heads; ++h, q += d, y += d) {
            const int64_t sequence = batch.row_sequence[static_cast<size_t>(r)], kv = h / (heads / view.num_kv_heads);
            const SeenKeys seen = seen_keys(batch, view.window, r);
            query.assign(q, q + d);
            if (kv_rotated(view.k_dtype)) kv_rotate(query.data(), d);
            std::vector<Acc> p;
            Acc largest = -INFINITY, sum = 0;
            for (int64_t j = seen.begin; j < seen.end; ++j) {
                decode_kv_row(view.k_dtype, view.k_row(view.slot(batch, sequence, j), kv), stored.data(), d);
                Acc score = 0;
                for (size_t e = 0; e < stored.size(); ++e) score += Acc{query[e]} * Acc{stored[e]};
                p.push_back(score * Acc{softmax_scale});
                largest = std::max(largest, p.back());
            }
            for (Acc& x : p) sum += x = std::exp(x - largest);
            std::fill_n(y, d, Acc{0});
            for (int64_t j = seen.begin; j < seen.end; ++j) {
                decode_kv_row(view.v_dtype, view.v_row(view.slot(batch, sequence, j), kv), stored.data(), d);
                if (kv_rotated(view.v_dtype)) kv_unrotate(stored.data(), d);
                for (int64_t e = 0; e < d; ++e)
                    y[e] += p[static_cast<size_t>(j - seen.begin)] / sum * Acc{stored[static_cast<size_t>(e)]};
            }
        }
}

template void block_attention_ref<float>(const float*, int64_t, const KvView&, const Batch&, float, float*);
template void block_attention_ref<double>(const float*, int64_t, const KvView&, const Batch&, float, double*);

}  // namespace riptide::ops
