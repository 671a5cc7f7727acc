#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/scoring/sparse_attention.h"
#include "quant/kv_codec.h"

namespace riptide::ops {

template <class Acc>
void block_mass_ref(const float* q, int64_t rows, const Acc* means, int64_t m, int64_t d, float softmax_scale,
                    Acc* mass) {
    std::vector<Acc> scores(static_cast<size_t>(rows * (m + 1)));
    Acc largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < rows; ++j)
        for (int64_t n = 0; n <= m; ++n) {
            Acc dot = 0;
            for (int64_t e = 0; e < d; ++e) dot += Acc{q[j * d + e]} * means[n * d + e];
            Acc& score = scores[static_cast<size_t>(j * (m + 1) + n)];
            score = dot * Acc{softmax_scale};
            largest = score > largest ? score : largest;
        }
    for (int64_t n = 0; n <= m; ++n) {
        mass[n] = 0;
        for (int64_t j = 0; j < rows; ++j) mass[n] += std::exp(scores[static_cast<size_t>(j * (m + 1) + n)] - largest);
        sum += mass[n];
    }
    for (int64_t n = 0; n <= m; ++n) mass[n] /= sum;
}

template <class Acc>
int64_t choose_blocks(const Acc* mass, int64_t m, const SparseOptions& options, int32_t* list) {
    const bool full = m < options.full_below || m >= options.full_from;
    const auto always = [&](int64_t n) { return full || n < options.sink_blocks || m - n < options.window_blocks; };
    Acc largest = 0;
    for (int64_t n = 0; n <= m; ++n) largest = mass[n] > largest ? mass[n] : largest;
    const Acc least = Acc{options.alpha} * largest;
    std::vector<int32_t> chosen;
    for (int64_t n = 0; n <= m; ++n)
        if (!always(n) && mass[n] >= least) chosen.push_back(static_cast<int32_t>(n));
    if (std::ssize(chosen) > options.most_blocks) {
        std::ranges::stable_sort(chosen, [&](int32_t a, int32_t b) { return mass[a] > mass[b]; });
        chosen.resize(static_cast<size_t>(options.most_blocks));
    }
    for (int64_t n = 0; n <= m; ++n)
        if (always(n)) chosen.push_back(static_cast<int32_t>(n));
    std::ranges::sort(chosen);
    std::ranges::copy(chosen, list);
    return std::ssize(chosen);
}

template <class Acc>
void block_means_ref(const KvView& view, const Batch& batch, int64_t kv_head, Acc* means) {
    const int64_t d = view.head_dim, keys = batch.committed[0] + batch.rows();
    std::vector<float> key(static_cast<size_t>(d));
    for (int64_t first = 0; first < keys; first += kSparseBlock, means += d) {
        const int64_t count = std::min(kSparseBlock, keys - first);
        std::fill_n(means, d, Acc{0});
        for (int64_t j = first; j < first + count; ++j) {
            decode_kv_row(view.k_dtype, view.k_row(view.slot(batch, 0, j), kv_head), key.data(), d);
            for (int64_t e = 0; e < d; ++e) means[e] += Acc{key[static_cast<size_t>(e)]};
        }
        for (int64_t e = 0; e < d; ++e) means[e] /= static_cast<Acc>(count);
    }
}

template <class Acc>
void sparse_attention_ref(const float* q, int64_t heads, const KvView& view, const Batch& batch, const Tensor& lists,
                          float softmax_scale, Acc* y) {
    const int64_t d = view.head_dim;
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t r = 0; r < batch.rows(); ++r)
        for (int64_t h = 0; h < heads; ++h, q += d, y += d) {
            const int64_t position = batch.positions[static_cast<size_t>(r)], kv = h / (heads / view.num_kv_heads);
            const int32_t* list = lists.row<int32_t>(r / kSparseBlock) + h * lists.shape[2];
            const auto decode = [&](bool values, int64_t j) {
                const int64_t slot = view.slot(batch, 0, j);
                const DType type = values ? view.v_dtype : view.k_dtype;
                decode_kv_row(type, values ? view.v_row(slot, kv) : view.k_row(slot, kv), row.data(), d);
            };
            std::vector<int64_t> keys;
            for (int32_t i = 1; i <= list[0]; ++i)
                for (int64_t j = list[i] * kSparseBlock; j < (list[i] + 1) * kSparseBlock && j <= position; ++j)
                    keys.push_back(j);
            std::vector<Acc> p;
            Acc largest = -INFINITY, sum = 0;
            for (const int64_t j : keys) {
                decode(false, j);
                Acc dot = 0;
                for (int64_t e = 0; e < d; ++e) dot += Acc{q[e]} * Acc{row[static_cast<size_t>(e)]};
                p.push_back(dot * Acc{softmax_scale});
                largest = std::max(largest, p.back());
            }
            for (Acc& x : p) sum += x = std::exp(x - largest);
            std::fill_n(y, d, Acc{0});
            for (size_t i = 0; i < keys.size(); ++i) {
                decode(true, keys[i]);
                for (int64_t e = 0; e < d; ++e) y[e] += p[i] / sum * Acc{row[static_cast<size_t>(e)]};
            }
        }
}

template void block_mass_ref<float>(const float*, int64_t, const float*, int64_t, int64_t, float, float*);
template int64_t choose_blocks<float>(const float*, int64_t, const SparseOptions&, int32_t*);
template void block_means_ref<float>(const KvView&, const Batch&, int64_t, float*);
template void sparse_attention_ref<float>(const float*, int64_t, const KvView&, const Batch&, const Tensor&, float,
                                          float*);
template void block_mass_ref<double>(const float*, int64_t, const double*, int64_t, int64_t, float, double*);
template int64_t choose_blocks<double>(const double*, int64_t, const SparseOptions&, int32_t*);
template void block_means_ref<double>(const KvView&, const Batch&, int64_t, double*);
template void sparse_attention_ref<double>(const float*, int64_t, const KvView&, const Batch&, const Tensor&, float,
                                           double*);

}  // namespace riptide::ops
