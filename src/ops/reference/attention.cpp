#include <cmath>
#include <vector>

#include "ops/attention.h"
#include "ops/attention_plan.h"
#include "quant/kv_codec.h"

namespace riptide::ops {

namespace {

/// One head of one row: two passes over its keys in order of position.
template <class Acc>
void attend_head(const float* q, int64_t kv_head, const KvView& view, const std::vector<int64_t>& slots, float scale,
                 float* row, Acc* y) {
    const int64_t d = view.head_dim;
    std::vector<Acc> p(slots.size());
    Acc largest = -INFINITY, sum = 0;
    for (size_t j = 0; j < slots.size(); ++j) {
        decode_kv_row(view.k_dtype, view.k_row(slots[j], kv_head), row, d);
        Acc dot = 0;
        for (int64_t e = 0; e < d; ++e) dot += Acc{q[e]} * Acc{row[e]};
        p[j] = dot * Acc{scale};
        largest = p[j] > largest ? p[j] : largest;
    }
    for (Acc& x : p) sum += x = std::exp(x - largest);
    for (int64_t e = 0; e < d; ++e) y[e] = 0;
    for (size_t j = 0; j < slots.size(); ++j) {
        decode_kv_row(view.v_dtype, view.v_row(slots[j], kv_head), row, d);
        if (kv_rotated(view.v_dtype)) kv_unrotate(row, d);
        for (int64_t e = 0; e < d; ++e) y[e] += p[j] / sum * Acc{row[e]};
    }
}

}  // namespace

template <class Acc>
void attention_ref(const float* q, int64_t heads, const KvView& view, const Batch& batch, float softmax_scale, Acc* y) {
    const int64_t d = view.head_dim, group = heads / view.num_kv_heads;
    std::vector<float> row(static_cast<size_t>(d)), query(static_cast<size_t>(d));
    for (int64_t r = 0; r < batch.rows(); ++r) {
        const VisibleRange range = visible_range(batch, view.window, r);
        std::vector<int64_t> slots(static_cast<size_t>(range.end - range.begin));
        path_indices(batch, r, range.begin, range.end, slots.data());
        for (int64_t& slot : slots) slot = view.slot(batch, batch.row_sequence[static_cast<size_t>(r)], slot);
        for (int64_t h = 0; h < heads; ++h, q += d, y += d) {
            query.assign(q, q + d);
            if (kv_rotated(view.k_dtype)) kv_rotate(query.data(), d);
            attend_head(query.data(), h / group, view, slots, softmax_scale, row.data(), y);
        }
    }
}

template void attention_ref<float>(const float*, int64_t, const KvView&, const Batch&, float, float*);
template void attention_ref<double>(const float*, int64_t, const KvView&, const Batch&, float, double*);

}  // namespace riptide::ops
