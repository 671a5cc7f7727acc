#include "ops/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/lanes.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

/// Whether a comes before b: larger value, then lower index; NaN last.
bool before(const Scored& a, const Scored& b) {
    const bool nan_a = std::isnan(a.value), nan_b = std::isnan(b.value);
    if (nan_a != nan_b) return nan_b;
    if (!nan_a && a.value != b.value) return a.value > b.value;
    return a.index < b.index;
}

void check_rows(const Tensor& x) {
    RT_ASSERT(x.dtype == DType::f32 && x.contiguous() && x.rank == 2 && x.shape[1] > 0);
    RT_ASSERT(x.shape[1] <= std::numeric_limits<int32_t>::max());
}

std::span<const float> row_of(const Tensor& x, int64_t r) { return {x.row(r), static_cast<size_t>(x.shape[1])}; }

}  // namespace

int32_t argmax(std::span<const float> row) {
    RT_ASSERT(!row.empty());
    // The largest value in sixteen lanes, which pass over NaN; then the first place where it is.
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    Float4 lanes[4];
    for (Float4& lane : lanes) lane = Float4{} + kLeast;
    size_t i = 0;
    for (; i + kLanes <= row.size(); i += kLanes)
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; ++j) {
            const Float4 x = load4(row.data() + i + 4 * j);
            lanes[j] = x > lanes[j] ? x : lanes[j];
        }
    float largest = kLeast;
    for (; i < row.size(); ++i) largest = std::max(largest, row[i]);
    for (const Float4& lane : lanes)
        for (int j = 0; j < 4; ++j) largest = std::max(largest, lane[j]);
    const auto found = std::find(row.begin(), row.end(), largest);
    return found == row.end() ? 0 : static_cast<int32_t>(found - row.begin());  // not found: nothing but NaN
}

std::vector<Scored> top_k(std::span<const float> row, int64_t k) {
    RT_ASSERT(k >= 0);
    const size_t count = std::min(row.size(), static_cast<size_t>(k));
    std::vector<Scored> best;
    if (count == 0) return best;
    best.reserve(count + 1);
    // A heap whose top is the last of the best so far; long rows of logits mostly fail the first comparison.
    for (size_t i = 0; i < row.size(); ++i) {
        const Scored next{static_cast<int32_t>(i), row[i]};
        if (best.size() == count) {
            if (!before(next, best.front())) continue;
            std::pop_heap(best.begin(), best.end(), before);
            best.pop_back();
        }
        best.push_back(next);
        std::push_heap(best.begin(), best.end(), before);
    }
    std::sort_heap(best.begin(), best.end(), before);
    return best;
}

Tensor argmax(Context& ctx, const Tensor& x) {
    check_rows(x);
    if (ctx.gpu != nullptr) return cuda::argmax(ctx, x, false);
    Tensor y = ctx.alloc(DType::i32, {x.rows()});
    parallel_rows(ctx, x.rows(), x.shape[1], [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) *y.row<int32_t>(r) = argmax(row_of(x, r));
    });
    return y;
}

Tensor most_likely(Context& ctx, const Tensor& logits) {
    check_rows(logits);
    const OpScope told = announce(ctx, "most_likely", logits.rows());
    if (ctx.gpu != nullptr) return cuda::argmax(ctx, logits, true);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    Tensor y = ctx.alloc(DType::i32, {logits.rows()});
    parallel_rows(ctx, logits.rows(), logits.shape[1], [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
            const std::span<const float> row = row_of(logits, r);
            const bool sound = std::all_of(row.begin(), row.end(), [](float v) { return v < kInfinity; });
            const int32_t best = argmax(row);
            *y.row<int32_t>(r) = sound && row[static_cast<size_t>(best)] > -kInfinity ? best : -1;
        }
    });
    return y;
}

TopK top_k(Context& ctx, const Tensor& x, int64_t k) {
    check_rows(x);
    RT_ASSERT(k >= 1 && k <= x.shape[1]);
    if (ctx.gpu != nullptr) return cuda::top_k(ctx, x, k);
    TopK result{k, ctx.alloc(DType::i32, {x.rows(), k}), ctx.alloc(DType::f32, {x.rows(), k})};
    parallel_rows(ctx, x.rows(), 2 * x.shape[1], [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
            int64_t i = 0;
            for (const Scored& entry : top_k(row_of(x, r), k)) {
                result.indices.row<int32_t>(r)[i] = entry.index;
                result.values.row(r)[i++] = entry.value;
            }
        }
    });
    return result;
}

template <class Acc>
Acc log_sum_exp(std::span<const float> row) {
    RT_ASSERT(!row.empty());
    const float largest = *std::max_element(row.begin(), row.end());
    if (std::isinf(largest)) return static_cast<Acc>(largest);
    const Acc sum = lane_sum<Acc>(static_cast<int64_t>(row.size()), [&](int64_t i) {
        return std::exp(static_cast<Acc>(row[static_cast<size_t>(i)]) - static_cast<Acc>(largest));
    });
    return static_cast<Acc>(largest) + std::log(sum);
}

template float log_sum_exp<float>(std::span<const float>);
template double log_sum_exp<double>(std::span<const float>);

}  // namespace riptide::ops
