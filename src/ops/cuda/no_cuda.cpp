// What ops/cuda/backend.h and the GPU-only ops mean in a build without CUDA. No context can have a GPU there, so
// nothing gets here.
#include "ops/advance.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/backend_scoring.h"
#include "ops/sample.h"

namespace riptide::ops {

namespace {
[[noreturn]] void no_cuda() {
    fail(ErrorKind::unavailable,
         "this riptide was built without CUDA: configure with the preset \"cuda\", or use --device cpu");
}
}  // namespace

void advance(Context&, const Tensor&, const Batch&, const TokenRing&, std::span<const int32_t>) { no_cuda(); }
void advance_most_likely(Context&, const Tensor&, const Batch&, const TokenRing&, std::span<const int32_t>) {
    no_cuda();
}
Tensor sample(Context&, const Tensor&, const SampleState&, std::span<const int32_t>, std::span<const int32_t>, bool,
              const SampleMasks&) {
    no_cuda();
}

namespace cuda {

Tensor embed(Context&, const Weight&, std::span<const int32_t>) { no_cuda(); }
Tensor gather_rows(Context&, const Tensor&, std::span<const int32_t>) { no_cuda(); }
Tensor rms_norm(Context&, const Tensor&, std::span<const float>, float) { no_cuda(); }
void rope(Context&, Tensor&, std::span<const int32_t>, const Rope&) { no_cuda(); }
void add(Context&, Tensor&, const Tensor&) { no_cuda(); }
Tensor swiglu(Context&, const Tensor&, const Tensor&) { no_cuda(); }
void mul_softplus(Context&, Tensor&, const Tensor&, int64_t) { no_cuda(); }
void mul_sigmoid(Context&, Tensor&, const Tensor&, int64_t) { no_cuda(); }
HeadsAndGates split_gates(Context&, const Tensor&, int64_t) { no_cuda(); }
Routing route_softmax(Context&, const Tensor&, int64_t) { no_cuda(); }
Routing route_sigmoid(Context&, const Tensor&, std::span<const float>, int64_t, float, bool) { no_cuda(); }
Tensor argmax(Context&, const Tensor&, bool) { no_cuda(); }
TopK top_k(Context&, const Tensor&, int64_t) { no_cuda(); }
void kv_append(Context&, const KvView&, const Tensor&, const Tensor&, const Batch&) { no_cuda(); }
void copy_columns(Context&, const Tensor&, Tensor&, int64_t) { no_cuda(); }
Tensor rms_norm_parts(Context&, const Tensor&, std::span<const float>, int64_t, float) { no_cuda(); }
Tensor block_attention(Context&, const Tensor&, const KvView&, const Batch&, float) { no_cuda(); }
bool has_block_tensor(const Context&, const KvView&, int64_t) { no_cuda(); }
Tensor gated_block_attention_tensor(Context&, const BlockHeads&, const Rope&, const Batch&, float, const Tensor&) {
    no_cuda();
}
void block_heads(Context&, std::span<BlockHeads>, const Rope&, const Batch&) { no_cuda(); }
Tensor gated_delta(Context&, const GatedDeltaInput&, const DeltaView&, const Batch&, DeltaMode,
                   std::span<const int32_t>) {
    no_cuda();
}
bool delta_follows(const DeltaView&) { no_cuda(); }
bool wants_int8(const Gpu&, const Weight&) { no_cuda(); }
void gated_delta_commit(Context&, std::span<const DeltaView>, const DeltaPaths&) { no_cuda(); }
void sparse_attention(Context&, const AttentionInput&, const KvView&, const Batch&, const SparseOptions&,
                      SparseResult&) {
    no_cuda();
}
void store_score_keys(Context&, const Tensor&, int64_t, Tensor&) { no_cuda(); }
void add_window_mass(Context&, const Tensor&, const Tensor&, int64_t, int64_t, float, Tensor&) { no_cuda(); }
void begin_round(Context&, const RoundState&) { no_cuda(); }
Tensor choice_logprobs(Context&, const TopK&) { no_cuda(); }
void draft_rows(Context&, const Tensor&, const Tensor&, std::span<const int32_t>, const DraftPlan&, const DraftRows&) {
    no_cuda();
}
void accept_rows(Context&, const Tensor&, const RoundState&, const RoundRing&) { no_cuda(); }
void store_rows(Context&, const Tensor&, const int32_t*, Tensor&) { no_cuda(); }
void kv_compact(Context&, std::span<const KvView>, const Batch&, const int32_t*, const int32_t*) { no_cuda(); }
void kv_compact(Gpu&, std::span<const KvView>, const KvWay&) { no_cuda(); }
void kv_pack(Gpu&, const PackJob&) { no_cuda(); }

std::vector<Tensor> matmul_group(Context&, std::span<const Weight* const>, const Tensor&) { no_cuda(); }
std::vector<Tensor> norm_matmul_group(Context&, const Tensor&, const Norm&, std::span<const Weight* const>) {
    no_cuda();
}
Tensor matmul_add(Context&, const Weight&, const Tensor&, Tensor&, const MoeLayer*) { no_cuda(); }
Tensor swiglu_ffn(Context&, const Tensor&, const Weight&, const Weight&, const Weight&) { no_cuda(); }
Tensor swiglu_ffn_add(Context&, Tensor&, const Norm&, const Weight&, const Weight&, const Weight&) { no_cuda(); }
Tensor moe_swiglu(Context&, const Tensor&, const Routing&, const ExpertWeights&, const SharedExpert&) { no_cuda(); }
MoeResult moe_add(Context&, Tensor&, const Norm&, const Router&, const ExpertWeights&, const SharedExpert&) {
    no_cuda();
}
Tensor attention(Context&, const Tensor&, const KvView&, const Batch&, float) { no_cuda(); }
Tensor gated_attention(Context&, const AttentionInput&, const KvView&, const Batch&) { no_cuda(); }
bool has_sigmoid_attention(Context&, const AttentionInput&, const KvView&, const Batch&) { no_cuda(); }
Tensor sigmoid_attention(Context&, const AttentionInput&, const KvView&, const Batch&) { no_cuda(); }

}  // namespace cuda

}  // namespace riptide::ops
