// A whole step of one row of a small dense hybrid (Qwen3.5) in one kernel.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/batch.h"
#include "ops/delta_view.h"
#include "ops/gated_delta.h"
#include "ops/kv/kv_view.h"
#include "ops/rope.h"
#include "tensor/context.h"

namespace riptide::ops {

/// A layer's weights, as WeightStore placed them on the device. Vectors are f32.
struct PersistentLayer {
    bool linear = false;  // Gated DeltaNet, else full attention
    Weight in[4];         // linear: qkv, z, beta, alpha; else [q | gates] for each head, k, v
    Weight out, gate, up, down;
    std::span<const float> attn_norm, ffn_norm;   // [hidden]
    std::span<const float> head_norm, k_norm;     // linear: over value_dim, none; else over head_dim, of q and of k
    std::span<const float> conv, decay, dt_bias;  // linear: see GatedDeltaInput
};

/// A model of such layers with what stands before and behind them.
struct PersistentModel {
    Weight embed_tokens, lm_head;
    std::span<const float> norm;
    std::vector<PersistentLayer> layers;
    Rope rope;
    float eps = 0;
    int64_t hidden = 0, ffn = 0, vocab = 0;
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int64_t tokens = 0;  // of a sequence, at most
    DeltaView delta;     // sizes alone
};

/// Runs steps of one row of one sequence in one launch: embedding, all layers, final norm and head.
///
/// Same bits as the ops one by one (the decode family of kernels, where Context::one_launch is set): logits, K and V
/// rows, and the stash. Reads the batch's arrays on the device, so a recorded launch serves every step.
///
/// The kernel takes the whole device: a CTA for each SM, all of which must run at once (a cooperative launch). What one
/// phase hands to the next are words of 64 bits, a float and the number of the step and layer it belongs to, so that
/// data and "it is there" arrive together; no barriers, no fences, no counters between phases.
/// Bytes: the weights once, state once, K/V once for each query head (L2).
class PersistentDecode {
  public:
    /// Why the model cannot run like that over K/V stored like that (a view for each layer; any type but tq3_0), in
    /// words that follow "the persistent kernel"; empty: it can.
    static std::string refusal(const Gpu& gpu, const PersistentModel& model, std::span<const KvView> kv);

    /// Takes device memory for the words. REQUIRES no refusal. `gpu` and the weights must outlive it.
    PersistentDecode(Gpu& gpu, PersistentModel model);

    /// Whether one launch can do this step: one row of the decode family whose logits are wanted, which stashes and
    /// which nobody watches.
    bool takes(const Context& ctx, const Batch& batch, DeltaMode mode) const {
        return ctx.gpu == &gpu_ && ctx.family == Family::decode && mode == DeltaMode::stash && !ctx.tap && !ctx.on_op &&
               batch.rows() == 1 && batch.logit_rows.size() == 1;
    }
    /// The step's logits, f32 [1, vocab], in the arena. kv and delta: one view for each layer. REQUIRES takes().
    Tensor run(Context& ctx, const Batch& batch, std::span<const KvView> kv, std::span<const DeltaView> delta) const;

    /// For benches: from now on a CTA stores the clock at the borders of phases to device memory: [layers + 1][8] of
    /// CTA `cta`.
    void watch(int64_t* clocks, int cta) { clocks_ = clocks, watched_ = cta; }
    /// For benches: how much is fetched to the L2 cache ahead, see PersistentCommon.
    void tune(std::span<const int> ahead);

  private:
    Gpu& gpu_;
    PersistentModel model_;
    DeviceMemory words_;
    int64_t* clocks_ = nullptr;
    int watched_ = 0;
    int ahead_[4];
};

}  // namespace riptide::ops
