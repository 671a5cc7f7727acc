// Hyper-parameters of DFlash drafters, from config.json or from GGUF metadata.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "models/rope_config.h"

namespace riptide {

/// Everything that shapes a drafter's forward pass but what the tensors say by themselves (norms of single taps, gates,
/// an embedding, head and vocabulary of its own: where the tensors are there, they are used).
struct DflashConfig {
    enum class Dialect { zlab, speculators, laguna, gguf };
    Dialect dialect = Dialect::zlab;
    int64_t hidden_size = 0;
    int64_t num_hidden_layers = 0;
    int64_t num_attention_heads = 0;
    int64_t num_key_value_heads = 0;
    int64_t head_dim = 0;
    int64_t intermediate_size = 0;
    int64_t max_position_embeddings = 0;
    double rms_norm_eps = 0;
    int64_t vocab_size = 0;         // the target's; 0: not said
    int64_t draft_vocab_size = 0;   // 0: the target's vocabulary
    int64_t num_target_layers = 0;  // 0: not said
    int64_t block_size = 0;         // rows of a block: the anchor and block_size - 1 masks
    int64_t mask_token_id = 0;
    std::vector<int32_t> taps;     // 0-based target layers whose outputs are captured, in the order of fc's columns
    std::vector<char> is_sliding;  // per layer
    std::vector<char> is_causal;   // per layer: within the block
    int64_t sliding_window = 0;    // 0 without sliding layers; a row's own position counts as one
    bool norms_context = false;    // context rows pass each layer's input norm
    bool d2t_is_absolute = false;  // d2t holds words of the target; else what is to be added to the draft's own number
    /// Slot j predicts position p0 + j + 1, slot 0 too; else slot j >= 1 predicts p0 + j.
    bool sample_from_anchor = false;
    RopeConfig rope;          // of full layers, or of all
    RopeConfig rope_sliding;  // meaningless without sliding layers

    bool has_sliding() const;
    /// Tokens that a block proposes.
    int64_t drafts() const { return sample_from_anchor ? block_size : block_size - 1; }
};

/// Whether the checkpoint says that it is a DFlash drafter.
bool is_dflash(const Checkpoint& checkpoint);

/// For a checkpoint that is to be the model. Throws Error, saying what it is for, if it is a DFlash drafter.
void refuse_dflash(const Checkpoint& checkpoint);

/// From config.json. The dialects and what differs:
///   z-lab        block_size; dflash_config.{mask_token_id, target_layer_ids}; the layers' keys at the top
///   Laguna 2.1   architectures DFlashLaguna*: as z-lab, context rows pass the layers' input norms
///   speculators  speculators_config, aux_hidden_state_layer_ids, draft_vocab_size; the layers' keys in
///   transformer_layer_config
/// block_size and mask_token_id may stand at the top or in dflash_config (both: they must agree). Taps:
/// target_layer_ids name outputs of 0-based layers; aux_hidden_state_layer_ids and eagle_aux_hidden_state_layer_ids
/// name the stream that enters a layer, one more. A layer is causal by is_causal, else dflash_config.causal, else if it
/// slides and sliding_window_non_causal is not true. Sliding layers: layer_types, else all if use_sliding_window is
/// true or dflash_config.swa_window_size is there; the window is swa_window_size, else sliding_window. Throws Error
/// naming the key for anything missing, contradictory or not supported.
DflashConfig dflash_config_from_hf(const ConfigReader& config);

/// From GGUF metadata; `keys` has the prefix of the architecture, `all` has none. Two schools:
///   dflash-draft, qwen35-dflash-draft, gemma4-dflash-draft (Lucebox, and what `riptide quantize` writes):
///   dflash.block_size, dflash.mask_token_id, dflash.target_layer_ids, which name outputs of 0-based layers. A layer is
///   causal by dflash.causal (a flag for each, of our own), else if it slides; their attention.causal says nothing, as
///   it is false for drafters with causal layers, too. dflash (llama.cpp): block_size, tokenizer.ggml.mask_token_id,
///   target_layers, which name the stream that enters a layer, one more; d2t holds the words themselves. All layers are
///   causal by attention.causal, else if decoder_arch is "laguna", whose context rows pass the layers' input norms;
///   else a layer is causal if it slides.
/// Throws Error for DFlash2 and DSpark drafters, which are other networks.
DflashConfig dflash_config_from_gguf(const ConfigReader& keys, const ConfigReader& all);

/// The one that fits the checkpoint.
DflashConfig dflash_config(const Checkpoint& checkpoint);

/// Throws Error beginning with `source` if sizes are out of range or do not fit each other.
void check_dflash_config(const DflashConfig& config, std::string_view source);

}  // namespace riptide
