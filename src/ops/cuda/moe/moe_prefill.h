// The small kernels around the expert products of the prefill family. Host interface, without CUDA headers, for tests.
#pragma once

#include <cstdint>

#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/moe.h"

namespace riptide::ops::cuda::prefill {

/// logits[r, e] = sum_c w[e, c] h[r, c] with the accuracy of f32 sums. h: f32 [n, cols], 16-byte aligned. Columns in
/// 32s go to tensor cores, in bf16 parts (router_prefill.cu, router_prefill_sm90.cu); the others, and old chips, are
/// f32 fused multiply-adds in ascending c. A row's bits do not depend on the other rows. Cost: up to six products of n
/// x cols x rows.
void router_logits(Context& ctx, const Weight& w, const float* h, int64_t n, Tensor& logits);

/// The same for the routers of moe::Router::prefill_sm90 (router_prefill_sm90.cu). logits: 8-byte aligned. width:
/// experts of a tile, 16, 32, 64 or 128, without influence on the result; 0: the fastest.
void router_logits_sm90(const Gpu& gpu, const Weight& w, const float* h, int64_t n, float* logits, int width = 0);

/// Sorts the entries (r, rank) of a routing by expert, stably: slot_of[r * top_k + rank] is the place of an entry.
/// Slots [n top_k, n top_k + n) belong to the shared expert, if there is one, in order of rows. All in arena memory.
/// REQUIRES at most 1024 experts.
struct SortedRouting {
    GroupPlan plan;
    int32_t* slot_of = nullptr;
    int64_t experts = 0;
};
SortedRouting sort_routing(Context& ctx, const Routing& routing, int64_t experts, bool shared);

/// to[slot_of[r, i]] = from[r] for all i: bf16 rows of k values.
void spread_rows(const Gpu& gpu, const uint16_t* from, const int32_t* slot_of, int64_t n, int64_t top_k, int64_t k,
                 uint16_t* to);

/// logits[r] = sum_c w[0, c] h[r, c] in f32, an order for all numbers of rows. w: [1, cols], columns in 16s; h: f32
/// [n, cols], 16-byte aligned. Throws Error for other shapes. Cost: reads h.
void share_logits(const Gpu& gpu, const Weight& w, const float* h, int64_t n, float* logits);

/// The results of the experts: bf16 [slots, stride]; and of the shared one, if it has any: rows of the same, or f32.
struct ExpertResults {
    const uint16_t* slots = nullptr;
    int64_t stride = 0;  // in eights
    const uint16_t* shared = nullptr;
    const float* shared_f32 = nullptr;  // [n, d]
    const float* share = nullptr;       // [n]: the shared expert's count sigmoid of it; null: whole
};
/// y[r] = sum over i ascending of weights[r, i] * slots[slot_of[r, i]] (+ shared[r] if set, times sigmoid(share[r])),
/// each product and each sum rounded; x += y if x is set. y, x: f32 [n, d].
void combine(const Gpu& gpu, const ExpertResults& results, const int32_t* slot_of, const Routing& routing,
             const Tensor& y, Tensor* x);

}  // namespace riptide::ops::cuda::prefill
