// The ops on a GPU: what the dispatch in each op's .cpp calls when ctx.gpu is set. The contracts are those of the
// public headers; arguments have been checked. Builds without CUDA link no_cuda.cpp, which throws.
//
// Tensors, weights (as WeightStore placed them), norm weights and the spans of Batch lie in device memory; Rope does
// not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "ops/block_heads.h"
#include "ops/draft_round.h"
#include "ops/elementwise.h"
#include "ops/gated_attention.h"
#include "ops/gated_delta.h"
#include "ops/kv/kv_compact.h"
#include "ops/kv/kv_pack_job.h"
#include "ops/kv/kv_view.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/rope.h"
#include "ops/topk.h"
#include "tensor/context.h"

namespace riptide::ops::cuda {

// Both families, one kernel each (elementwise.cu, topk.cu).
Tensor embed(Context& ctx, const Weight& table, std::span<const int32_t> tokens);
Tensor gather_rows(Context& ctx, const Tensor& x, std::span<const int32_t> rows);
Tensor rms_norm(Context& ctx, const Tensor& x, std::span<const float> weight, float eps);
void rope(Context& ctx, Tensor& x, std::span<const int32_t> positions, const Rope& rope);
void add(Context& ctx, Tensor& x, const Tensor& y);
Tensor swiglu(Context& ctx, const Tensor& gate, const Tensor& up);
void mul_softplus(Context& ctx, Tensor& o, const Tensor& g, int64_t heads);
void mul_sigmoid(Context& ctx, Tensor& o, const Tensor& g, int64_t heads);
HeadsAndGates split_gates(Context& ctx, const Tensor& x, int64_t heads);
Routing route_sigmoid(Context& ctx, const Tensor& logits, std::span<const float> bias, int64_t top_k, float scale,
                      bool normalize);
Routing route_softmax(Context& ctx, const Tensor& logits, int64_t top_k);
// What the router says, into tensors that are there: [n, top_k] each. Its weights are not read.
Routing alloc_routing(Context& ctx, int64_t n, int64_t top_k);
void route(Context& ctx, const Tensor& logits, const Router& router, const Routing& to);
// strict: most_likely of topk.h.
Tensor argmax(Context& ctx, const Tensor& x, bool strict);
TopK top_k(Context& ctx, const Tensor& x, int64_t k);

// K/V (append.cu).
void kv_append(Context& ctx, const KvView& view, const Tensor& k, const Tensor& v, const Batch& batch);
// For drafters (capture.cu, draft_block.cu, draft_block_heads.cu).
void copy_columns(Context& ctx, const Tensor& x, Tensor& out, int64_t column);
Tensor rms_norm_parts(Context& ctx, const Tensor& x, std::span<const float> weight, int64_t parts, float eps);
Tensor block_attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale);
bool has_block_tensor(const Context& ctx, const KvView& view, int64_t heads);
Tensor gated_block_attention_tensor(Context& ctx, const BlockHeads& in, const Rope& rope, const Batch& batch,
                                    float softmax_scale, const Tensor& gate);
void block_heads(Context& ctx, std::span<BlockHeads> layers, const Rope& rope, const Batch& batch);
// decode_row.cu.
Tensor gated_delta(Context& ctx, const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode,
                   std::span<const int32_t> held);
bool delta_follows(const DeltaView& view);
void gated_delta_commit(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths);
// Rounds of speculative decoding (draft_round.cu, compact.cu).
void begin_round(Context& ctx, const RoundState& state);
Tensor choice_logprobs(Context& ctx, const TopK& best);
void draft_rows(Context& ctx, const Tensor& indices, const Tensor& logprobs, std::span<const int32_t> words,
                const DraftPlan& plan, const DraftRows& rows);
void accept_rows(Context& ctx, const Tensor& drawn, const RoundState& state, const RoundRing& ring);
void store_rows(Context& ctx, const Tensor& x, const int32_t* at, Tensor& out);
void kv_compact(Context& ctx, std::span<const KvView> views, const Batch& batch, const int32_t* path,
                const int32_t* kept);
void kv_compact(Gpu& gpu, std::span<const KvView> views, const KvWay& way);
// pack.cu. Addresses are of device memory.
void kv_pack(Gpu& gpu, const PackJob& job);

// kquant_f16.cu.
bool wants_int8(const Gpu& gpu, const Weight& w);

// Dispatch on ctx.family to the functions of decode:: and prefill:: (backend.cu).
std::vector<Tensor> matmul_group(Context& ctx, std::span<const Weight* const> weights, const Tensor& x);
std::vector<Tensor> norm_matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                      std::span<const Weight* const> weights);
// next: see ops/matmul.h. Sets residual.routed.words.
Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, Tensor& residual, const MoeLayer* next);
Tensor swiglu_ffn(Context& ctx, const Tensor& x, const Weight& w_gate, const Weight& w_up, const Weight& w_down);
Tensor swiglu_ffn_add(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                      const Weight& w_down);
Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared);
MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared);
Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale);
Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);
// Whether there are kernels for it, in the decode family; otherwise it is a composition.
bool has_sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);
Tensor sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);

namespace decode {
struct RouterAhead;
// An empty norm weight means no normalisation. residual: nullptr or f32 [n, rows of the only weight], += y. ahead: see
// linear/shared/linear.h, multiply_into; sets residual->routed.words.
std::vector<Tensor> matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                 std::span<const Weight* const> weights, Tensor* residual,
                                 const RouterAhead* ahead = nullptr);
// One that leaves the words of next's router in residual, if there is a kernel for it.
Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, Tensor& residual, const MoeLayer& next);
// x += y if add.
Tensor swiglu_ffn(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                  const Weight& w_down, bool add);
Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared);
MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared);
Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale);
Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);
bool has_sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);
Tensor sigmoid_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);
}  // namespace decode

namespace prefill {
std::vector<Tensor> matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                 std::span<const Weight* const> weights, Tensor* residual);
Tensor swiglu_ffn(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                  const Weight& w_down, bool add);
Tensor moe_swiglu(Context& ctx, const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                  const SharedExpert& shared);
MoeResult moe_add(Context& ctx, Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
                  const SharedExpert& shared);
Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale);
Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch);
}  // namespace prefill

}  // namespace riptide::ops::cuda
