// The largest entries of rows of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/context.h"

namespace riptide::ops {

struct Scored {
    int32_t index = -1;
    float value = 0;
};

/// The k largest entries of each row, largest first.
struct TopK {
    int64_t k = 0;
    Tensor indices;  // i32 [n, k]
    Tensor values;   // f32 [n, k]
};

// Order everywhere: larger value first, equal values by lower index; NaN comes after everything else.

/// Index of the first entry of that order. REQUIRES a non-empty row.
int32_t argmax(std::span<const float> row);
/// The first min(k, size) entries of that order. O(size log k), for random rows about O(size).
std::vector<Scored> top_k(std::span<const float> row, int64_t k);

/// The same for each row of x f32 [n, m]; i32 [n], fresh.
Tensor argmax(Context& ctx, const Tensor& x);
/// The same, but -1 for a row that holds NaN or +infinity, or nothing above -infinity: what a sampler refuses.
Tensor most_likely(Context& ctx, const Tensor& logits);
/// REQUIRES 1 <= k <= m. On a GPU k <= 256, or Error.
TopK top_k(Context& ctx, const Tensor& x, int64_t k);

/// ln sum_i exp(row[i]), computed in Acc (float or double) as max + ln(sum exp(row[i] - max)); the sum runs over 16
/// lanes (element i in lane i % 16) that are added pairwise. Entries of -inf add nothing; all -inf gives -inf.
template <class Acc>
Acc log_sum_exp(std::span<const float> row);

}  // namespace riptide::ops
