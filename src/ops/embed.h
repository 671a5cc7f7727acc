// Table look-up by token, and picking rows.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/context.h"

namespace riptide::ops {

/// y[r] = dequantize(table[tokens[r]]).
/// table [vocab, cols], any weight dtype; y f32 [n, cols], fresh.
/// Throws Error if a token is not in [0, vocab); on a GPU, where tokens are the device's, such a row is NaN instead.
/// Determinism: exact. Cost: n rows of the table.
Tensor embed(Context& ctx, const Weight& table, std::span<const int32_t> tokens);

/// y[i] = x[rows[i]]. x f32 [n, ...]; y has shape [rows.size(), ...], fresh. REQUIRES 0 <= rows[i] < n.
Tensor gather_rows(Context& ctx, const Tensor& x, std::span<const int32_t> rows);
/// The same for rows that ascend, as those of Batch::logit_rows do: x itself if they are all of its rows.
Tensor wanted_rows(Context& ctx, const Tensor& x, std::span<const int32_t> rows);

}  // namespace riptide::ops
