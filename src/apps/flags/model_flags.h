// Flags that several subcommands share, and the objects they describe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/support/ask.h"
#include "apps/support/download.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/session/session.h"

namespace riptide::apps {

class Command;

/// MODEL and how to run it.
struct ModelFlags {
    std::string model, weights, kv = "auto", device = "auto", memory_budget, prefill = "bf16";
    std::string random_weights;  // see random_checkpoint(); empty: MODEL
    std::string random_routing = "alike";
    int threads = 0;
    int gpu = 0;
    bool portable = false;
    int64_t context = 0, attention_window = 0;
    int chunk = 0;
    double yarn_attention_factor = -1;
    std::string delta = "rows";
    std::string hub = Hub().endpoint;      // see resolve_model()
    std::string tokenizer, chat_template;  // folder and file instead of the model's own; empty: those
};
void add_model_flags(Command& cmd, ModelFlags& flags);
/// --weights, which add_model_flags has too.
void add_weights_flag(Command& cmd, ModelFlags& flags);
/// --tokenizer, and --chat-template, for who uses them.
void add_tokenizer_flag(Command& cmd, ModelFlags& flags);
void add_template_flag(Command& cmd, ModelFlags& flags);
/// MODEL (or the demo) with the weights, the tokenizer and the template that the flags name. Throws Error.
std::unique_ptr<Checkpoint> open_model(const ModelFlags& flags);
/// Throws Error (usage) naming --weights if it is there and no mix that can be written.
void check_weights(const ModelFlags& flags);
/// `checkpoint` with the weights of --weights, if it is given: with a progress bar, and on stderr what that did.
std::unique_ptr<Checkpoint> with_weights(std::unique_ptr<Checkpoint> checkpoint, const ModelFlags& flags);
/// The same for reckoning: of other sizes, without values. Says nothing.
std::unique_ptr<Checkpoint> with_weight_sizes(std::unique_ptr<Checkpoint> checkpoint, const ModelFlags& flags);
/// How an engine of these flags opens other weights of its model (EngineOptions::open_weights); empty: as they are.
std::function<std::unique_ptr<Checkpoint>(const std::string&)> weights_opener(const ModelFlags& flags);

/// Who drafts tokens, and how many.
struct DraftFlags {
    std::string drafter, width = "auto";
    int32_t tree = 0;
};
void add_draft_flags(Command& cmd, DraftFlags& flags);
/// Throws Error (usage) naming the flag that is wrong.
SpeculationOptions speculation_options(const DraftFlags& flags);
/// "24GiB", "8000 MB", "123456" behind `flag`. Throws Error (usage).
int64_t parse_bytes(const char* flag, const std::string& text);
/// Does --device mean a GPU here? Says on stderr why not, where `auto` cannot have the one that is there.
bool wants_gpu(const ModelFlags& flags);
/// Where and how the flags want the model to run. Throws Error naming the flag that is wrong.
SessionOptions session_options(const ModelFlags& flags);
/// Opens the model (or the demo) with a progress bar; on a GPU prints what its memory is used for. Throws Error naming
/// the flag that is wrong.
std::unique_ptr<Session> open_session(const ModelFlags& flags);
/// The same in an engine. `options`: who drafts, and what SessionOptions does not have.
std::unique_ptr<Engine> open_engine(const ModelFlags& flags, EngineOptions options);
/// The same for one person's requests, one at a time; on a GPU prints what its memory is used for.
std::unique_ptr<Engine> open_lone_engine(const ModelFlags& flags, EngineOptions options);

/// What --attention-window does to a model, in a sentence; empty: nothing.
std::string window_sentence(const ModelInfo& model);

/// How K and V are stored: "f16", "q8_0/q4_0".
std::string kv_name(const Session& session);
std::string kv_name(DType k, DType v);
/// Those of "f16" or "q8_0/q4_0". Throws Error (usage).
std::pair<DType, DType> kv_types(const std::string& text);

/// How tokens are drawn where neither the command line nor the model's file says.
SamplingParams usual_sampling();
/// --temperature, --top-k, --top-p, --min-p, --repetition-penalty: what a model's file may say too.
void add_sampling_choice(Command& cmd, SamplingChoice& choice);

/// What -n means where it is not given and an answer to one prompt is wanted.
inline constexpr int64_t kDefaultTokens = 128;

/// -n and everything about drawing tokens.
struct SamplingFlags {
    SamplingParams params;              // where `choice` and the model's file do not say
    SamplingChoice choice;              // what the command line says
    std::optional<int64_t> max_tokens;  // none: `fallback` of sampling_params()
};
/// `left_out`: what -n means where it is not given.
void add_sampling_flags(Command& cmd, SamplingFlags& flags, const char* left_out);
/// The parameters, checked; told on stderr if the model's makers have a part in them. `fallback` tokens at most where
/// -n is not given; -1: until the context is full. Throws Error (usage).
SamplingParams sampling_params(const SamplingFlags& flags, const GenerationDefaults& makers, int64_t vocab_size,
                               int64_t fallback);

/// Reads token ids: a JSON array, or an object with an array "tokens". Throws Error naming the file.
std::vector<int32_t> read_token_file(const std::string& path);

/// The one line that ends a run: tokens, prefill and decode tok/s, GB/s of weights, share of this machine's measured
/// read bandwidth, K/V type, device, logits hash. `drafted`: whether somebody drafts.
std::string closing_line(Engine& engine, const Reply& reply, bool drafted);
/// The same facts for scripts.
json::object closing_json(Engine& engine, const Reply& reply, bool drafted);

}  // namespace riptide::apps
