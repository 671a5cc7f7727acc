// Gated DeltaNet: linear attention with a recurrent state of fixed size.
#pragma once

#include <cstdint>
#include <span>

#include "ops/batch.h"
#include "ops/delta_view.h"
#include "ops/matmul.h"
#include "tensor/context.h"

namespace riptide::ops {

/// The projections of the rows and the layer's small weights. Hk, Hv, dk, dv, W: key_heads, value_heads, key_dim,
/// value_dim and conv_width of the view; channels = 2 Hk dk + Hv dv. Rows of tensors may lie row_stride apart.
struct GatedDeltaInput {
    Tensor qkv;                      // f32 [n, channels]: q heads, k heads, v heads
    Tensor z;                        // f32 [n, Hv * dv]
    Tensor a, b;                     // f32 [n, Hv]
    std::span<const float> conv;     // [channels, W]: HF conv1d.weight, GGUF ssm_conv1d; the last tap is the row's own
    std::span<const float> decay;    // [Hv]: -exp(A_log); GGUF ssm_a stores it like that
    std::span<const float> dt_bias;  // [Hv]
    Norm norm;                       // over dv; each value head by itself
    bool int8 = true;                // on a GPU y is wanted as int8 rows, too (Tensor::int8)
};

/// What becomes of the state.
enum class DeltaMode : uint8_t {
    stash,   // it stays as it is; the rows go to the stash, for gated_delta_commit
    update,  // all rows are committed: plain decoding, prompts. REQUIRES chains (batch.parent empty)
    follow,  // one row for each sequence, which is stashed; the row that such a step stashed before joins the state
             // first
};
/// Of a step that follows: the row of the stash for sequence s of the step and a position. The next step may write
/// while the one before it is read.
inline constexpr int64_t delta_follow_row(int64_t s, int64_t position) { return 2 * s + position % 2; }

/// Rows of any sequences, chains or (stash) trees by batch.parent. For row r with the tokens t_0 .. t_p = r of its
/// path:
///   u_p      = qkv[r];  c = silu(sum_{i < W} conv[:, W - 1 - i] u_{p - i}), u of positions before 0 being 0
///   q, k, v  = heads of c;  q <- q / sqrt(|q|^2 + 1e-6) / sqrt(dk);  k <- k / sqrt(|k|^2 + 1e-6)
///   g        = softplus(a + dt_bias) * decay;  beta = sigmoid(b)
///   S'       = e^g S_{p-1};  d = beta (v - S'^T k);  S_p = S' + k d^T;  o = S_p^T q      per value head h, with q
///              and k of key head view.key_head(h)
///   y        = norm.weight * (o / sqrt(mean(o^2) + eps)) * silu(z)
/// Returns y f32 [n, Hv * dv], fresh. S_{-1} = 0.
/// REQUIRES every sequence to have a row; in stash mode view.stash_rows >= n. On a GPU: at most 256 rows if there are
/// trees; throws Error if key_dim > 256 or conv_width > 4. Reads the slots of the step's sequences. stash: writes
/// nothing but the stash. update: writes the slots and not the stash; should the step fail behind this op, the
/// sequence's state is lost. follow: held[s], on the device, is the number of tokens that the slot describes,
/// committed[s] or one less: then the row of the stash of that position (delta_follow_row) is committed first, as
/// gated_delta_commit would. So steps may be put behind each other unseen: what the last one was given is not yet part
/// of the state. REQUIRES delta_follows(), stash_rows >= 2 sequences. On a GPU states are read before earlier kernels
/// of the step have ended: what wrote them must have been complete when the step's first kernel let others start
/// (embed; tensor/launch.cuh).
///
/// Determinism: the value of a row, and the state behind it, is a function of the inputs on its path, bit for bit: the
/// same as a node of a tree, in a chain, alone, in any chunk, in any batch, on any thread count; and update has the
/// bits of stash and commit. On a GPU both families have the same bits. But: where view.by_chunks is set, a Hopper
/// GPU takes steps of at least 64 rows that update in the prefill family (heads of 128 keys and whole 64 values, their
/// number even) through S in chunks of 64 rows from each sequence's first on: three to ten times as fast, as near to
/// the formulas as factors of 2^-17 allow, and a row's bits then depend on where its step begins, on nothing else.
///
/// Arithmetic: with p = S^T k, s = S^T q, kq = k . q:  d = beta (v - e^g p), o = e^g s + kq d, S <- e^g S + k d^T. One
/// pass over S instead of three; equal to the formulas above but for rounding.
///
/// Cost: 8 n Hv dk dv FLOPs; S is read (update: and written) once for each sequence: 3.15 MB at 48 heads of 128 x 128.
/// Source: Yang et al. 2024, arXiv 2412.06464; transformers, Qwen3NextGatedDeltaNet (qwen3_next, qwen3_5) with
/// torch_recurrent_gated_delta_rule.
Tensor gated_delta(Context& ctx, const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode,
                   std::span<const int32_t> held = {});

/// Whether layers of these sizes can follow: always on the CPU; on a GPU keys and values of up to 128 in whole 32s.
bool delta_follows(const Gpu* gpu, const DeltaView& view);

/// Bytes of temporaries that chunks take besides those of rows; 0 without view.by_chunks.
int64_t delta_chunk_bytes(const DeltaView& view);

/// Which rows of the last stashed step are kept. Spans lie in memory of the device that runs the step; s = sequences.
struct DeltaPaths {
    std::span<const int32_t> state_slot;  // [s] as in the step
    std::span<const int32_t> committed;   // [s] as in the step: without the rows kept now
    std::span<const int32_t> count;       // [s] rows kept; 0: the state stays
    std::span<const int32_t> rows;  // [s, most] their numbers in the step, in order of position, each the child of
                                    //     the one before it; entries behind count are not read
    int64_t most = 0;
};

/// Replays the kept rows from the stash of each layer: the slots become, bit for bit, what update would have made of
/// the same rows. Layers may have different sizes. Cost: S of each sequence read and written once; two launches on a
/// GPU for up to 64 layers.
void gated_delta_commit(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths);

/// The formulas in Acc for one chain of n rows with one view: the judge. `conv` [W - 1, channels] holds the inputs of
/// the positions before the first row, oldest first, and `state` [Hv, dk, dv] S before it; both are left as they are
/// behind the last row. qkv, z, a, b contiguous; y [n, Hv * dv].
template <class Acc>
void gated_delta_ref(const GatedDeltaInput& in, const DeltaView& view, Acc* conv, Acc* state, Acc* y);

}  // namespace riptide::ops
