#include "models/unread_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

/// Change no logit, wherever they stand and whatever they hold.
constexpr std::string_view kHarmless[] = {
    // names, versions, storage; how weights are packed is seen in the tensors
    "architectures",
    "auto_map",
    "base_model",
    "base_model_name_or_path",
    "dtype",
    "name_or_path",
    "model_type",
    "quantization_config",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "speculators_version",
    "transformers_weights",
    "use_bfloat16",
    "kv_cache_scheme",
    "hf_quant_config",
    // seen in the tensors: rows of the gates' and of the drafter's first matrix
    "gating",
    "gating_types",
    "target_hidden_size",
    // tokens and generation: read elsewhere, or asked for by requests
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "tokenizer_class",
    "prefix",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "max_length",
    "min_length",
    "max_new_tokens",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "generation_config",
    // what a program returns, and how it runs
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "use_cache",
    "use_return_dict",
    "use_mambapy",
    "mamba_ssm_dtype",
    "attn_implementation",
    "use_kernels",
    "pretraining_tp",
    // labels and tasks of other heads
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "cross_attention_hidden_size",
    // training
    "attention_dropout",
    "hidden_dropout",
    "embd_pdrop",
    "attn_pdrop",
    "resid_pdrop",
    "initializer_range",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "aux_loss_alpha",
    "seq_aux",
    "tf_legacy_loss",
    "gradient_checkpointing",
    "rescale_prenorm_residual",
    "lambda_base_start",
    "lambda_base_decay_ratio",
    "auf",
    "embed_requires_grad",
    "loss_decay_gamma",
    "num_anchors",
    // pictures and films: their towers are not run
    "vision_config",
    "audio_config",
    "video_config",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
    "language_model_only",
    // drafters that come with a model, and what made a drafter
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "mtp_loss_scaling_factor",
    "mtp_layer_types",
    "num_nextn_predict_layers",
    "proposal_methods",
    "default_proposal_method",
    "verifier",
    "algorithm",
    "pure_draft_prefix_len",
    "emb_dim",
    "gru_hidden_dim",
    "speculators_model_type",
    "draft_model_type",
    // in text all positions of a token are the same (qwen35_config.h)
    "mrope_section",
    "mrope_interleaved",
    // means something only where a window is on, which is read
    "max_window_layers",
};

struct Neutral {
    std::string_view key, value;  // as JSON
};

/// Change values, and are refused, unless they hold this.
constexpr std::array kNeutral = {
    Neutral{"causal_head", "false"},
    Neutral{"input_embedding_scale", "1"},
    Neutral{"output_multiplier", "1"},
    Neutral{"final_logit_softcapping", "0"},
    Neutral{"attn_logit_softcapping", "0"},
    Neutral{"logit_scale", "1"},
    Neutral{"logits_scaling", "1"},
    Neutral{"embedding_multiplier", "1"},
    Neutral{"residual_multiplier", "1"},
    Neutral{"embedding_scale", "1"},
    Neutral{"mlp_bias", "false"},
    Neutral{"qkv_bias", "false"},
    Neutral{"use_sliding_window", "false"},
    Neutral{"add_cross_attention", "false"},
    Neutral{"is_decoder", "false"},
    Neutral{"is_encoder_decoder", "false"},
    Neutral{"tie_encoder_decoder", "false"},
    Neutral{"pruned_heads", "{}"},
    Neutral{"mlp_only_layers", "[]"},
    Neutral{"decoder_sparse_step", "1"},
    Neutral{"projector_type", "\"dflash\""},
    Neutral{"shift_label", "false"},
};

/// Equal as JSON, where 1 and 1.0 are one.
bool holds(const json::value& value, std::string_view text) {
    const json::value wanted = parse_json(text, "a neutral value");
    if (value.is_number() && wanted.is_number()) return value.to_number<double>() == wanted.to_number<double>();
    return value == wanted;
}

void check_neutral(const Neutral& known, const json::value& value, const std::string& name) {
    RT_CHECK(holds(value, known.value), "{} is {}, which is not supported (only {})", name, json::serialize(value),
             known.value);
}

}  // namespace

void refuse_unread_keys(const ConfigReader& config) {
    for (const auto& [name, value] : config.unread()) {
        const std::string key = name.substr(name.rfind('.') + 1);
        if (key.starts_with('_') || key.starts_with("unsloth")) continue;  // notes of libraries
        if (std::ranges::find(kHarmless, key) != std::end(kHarmless)) continue;
        const auto* known =
            std::find_if(kNeutral.begin(), kNeutral.end(), [&](const Neutral& neutral) { return neutral.key == key; });
        if (known == kNeutral.end())
            fail("{} is not known, and may change what the model computes: remove it if it does not",
                 config.name_of(name));
        check_neutral(*known, *value, config.name_of(name));
    }
}

void refuse_scaled_gguf(const ConfigReader& keys, std::string_view below) {
    for (const Neutral& known : kNeutral) {
        const std::string key = std::string(below) + std::string(known.key);
        if (keys.has(key)) check_neutral(known, keys.raw(key), keys.name_of(key));
    }
}

}  // namespace riptide
