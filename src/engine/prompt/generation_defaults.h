// What a model's makers publish beside its weights, for whoever does not say otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/sampling/sampling_params.h"
#include "io/checkpoint.h"

namespace riptide {

/// Ways to draw that somebody has chosen, with the ranges of SamplingParams; what is absent is left to others.
struct SamplingChoice {
    std::optional<double> temperature, top_p, min_p, repetition_penalty;
    std::optional<int64_t> top_k;
};

struct GenerationDefaults {
    std::string source;  // where they stand: "generation_config.json", "general.sampling"
    SamplingChoice sampling;
    json::object template_kwargs;  // variables of the chat template: ChatTemplate
    std::vector<int32_t> eos_ids;  // which end an answer beside the tokenizer's own
};

/// A safetensors folder's generation_config.json:
///   temperature, top_p, min_p, repetition_penalty (numbers), top_k (a whole number; -1 means 0 as with other engines)
///   do_sample                     false: temperature 0, whatever the file's temperature, as transformers has it
///   default_chat_template_kwargs  its bools, numbers and strings; others are no variables that a request could set
///   eos_token_id                  an integer, or an array of them
/// also of a GGUF that was made of a folder in memory and has "generation_config" in its metadata.
/// Another GGUF's general.sampling.temp, top_p, min_p, penalty_repeat (numbers), top_k (a whole number): f32 are read
/// as the shortest decimal that they stand for, so that a GGUF draws as the folder that it was made of. It has no key
/// for the others. What is missing or null is absent; max_new_tokens is not read: it would cut answers short. Throws
/// Error naming file, key, value found and what is expected, for a value of another type or out of range.
GenerationDefaults generation_defaults(const Checkpoint& checkpoint);

/// A value in force, and who said it.
struct SettledValue {
    std::string_view name;  // as in SamplingParams
    double value = 0;
    std::string source;  // "command line", GenerationDefaults::source, "built in"
};
struct SettledSampling {
    SamplingParams params;
    std::vector<SettledValue> values;
};

/// Each value by itself: as the command line has it, else as the model's makers do, else as in `otherwise`. The command
/// line's values are not checked.
SettledSampling settle_sampling(const SamplingParams& otherwise, const SamplingChoice& command_line,
                                const GenerationDefaults& makers);

/// For people: "temperature 1, top_k 20 (generation_config.json), top_p 1, min_p 0 (built in)". A repetition_penalty
/// of 1, which changes nothing, is left out.
std::string describe(const SettledSampling& sampling);

}  // namespace riptide
