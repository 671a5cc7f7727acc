// What the host sides of the decode kernels share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/linear/plan.h"
#include "ops/cuda/linear/shared/dot.cuh"
#include "ops/cuda/linear/shared/router_words.h"
#include "ops/matmul.h"
#include "tensor/context.h"

namespace riptide::ops::cuda::decode {

/// Throws Error for a type without decode kernels.
void check_weight(const Weight& w, int64_t cols);
Matrix matrix_of(const Weight& w);
/// Experts of one shape and type, placed by WeightStore::experts.
Matrix matrix_of(std::span<const Weight> experts);
/// Whether the kernels compiled for KQuants can multiply it.
inline bool is_k_quant(DType type) { return KQuants::has(type); }

ActSource source_of(const Tensor& x, const Norm& norm, bool want_float);
/// Staged rows in the arena, by a kernel of their own. (One that is staged already stays as it is.)
ActSource prepare_rows(Context& ctx, const ActSource& source, const ActLayout& layout, int64_t n);

/// Rows that one CTA stages: all n, at most kStageRows, as many as leave room for a second CTA on the SM if possible.
/// Throws Error if one does not fit next to `other` bytes of shared memory.
int32_t stage_count(const Context& ctx, const ActLayout& layout, int64_t other, int64_t n);

/// Clusters of so many CTAs of a kernel that the device runs at a time.
int64_t most_clusters(const void* kernel, int cluster, int threads, int64_t shared_bytes);

/// Those of the device, for one step at a time.
RouterWords* router_words(const Gpu& gpu);
/// Before a kernel that adds to them; gpu.sums_open = false behind the launch of the one that zeroes them.
void open_words(Gpu& gpu);

/// What the plan is asked.
linear::Case case_of(const Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                     std::span<const Weight* const> weights, bool residual);

/// y[i] = weights[i] x, f32 [n, rows]; residual += y[0] (one weight). x: f32 or int8 rows. ahead: of who reads the
/// residual next, or null; whether its words were left.
bool multiply_into(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual, const RouterAhead* ahead = nullptr);
/// The same to fresh tensors.
std::vector<Tensor> multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                             std::span<const Weight* const> weights, Tensor* residual,
                             const RouterAhead* ahead = nullptr);

/// y = w_down (silu(w_gate x) * (w_up x)); residual += y.
void dense_swiglu(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& w_gate, const Weight& w_up,
                  const Weight& w_down, Tensor& y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
