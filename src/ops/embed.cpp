#include "ops/embed.h"

#include <cstring>

#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/op_cost.h"
#include "quant/codec.h"

namespace riptide::ops {

Tensor embed(Context& ctx, const Weight& table, std::span<const int32_t> tokens) {
    const OpScope told = announce_lookup(ctx, "embed", std::ssize(tokens), table);
    if (ctx.gpu != nullptr) return cuda::embed(ctx, table, tokens);
    for (const int32_t token : tokens)
        RT_CHECK(token >= 0 && token < table.rows, "token {} is not in the vocabulary of {}", token, table.rows);
    const auto n = static_cast<int64_t>(tokens.size());
    Tensor y = ctx.alloc(DType::f32, {n, table.cols});
    parallel_rows(ctx, n, 4 * table.cols, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) dequantize_row(table, tokens[static_cast<size_t>(r)], y.row(r));
    });
    return y;
}

Tensor gather_rows(Context& ctx, const Tensor& x, std::span<const int32_t> rows) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank >= 2 && x.rank <= 3);
    const OpScope told = announce(ctx, "gather_rows", std::ssize(rows));
    if (ctx.gpu != nullptr) return cuda::gather_rows(ctx, x, rows);
    const auto n = static_cast<int64_t>(rows.size());
    Tensor y =
        x.rank == 2 ? ctx.alloc(DType::f32, {n, x.shape[1]}) : ctx.alloc(DType::f32, {n, x.shape[1], x.shape[2]});
    for (int64_t i = 0; i < n; ++i) {
        const int64_t source = rows[static_cast<size_t>(i)];
        RT_ASSERT(source >= 0 && source < x.rows());
        std::memcpy(y.row(i), x.row(source), static_cast<size_t>(x.row_elements()) * sizeof(float));
    }
    return y;
}

Tensor wanted_rows(Context& ctx, const Tensor& x, std::span<const int32_t> rows) {
    return std::ssize(rows) == x.rows() ? x : gather_rows(ctx, x, rows);
}

}  // namespace riptide::ops
