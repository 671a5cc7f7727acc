// One conversation with one model: prefill, decoding, generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/execution/decode_ahead.h"
#include "engine/execution/memory_plan.h"
#include "engine/execution/runner.h"
#include "engine/finish_reason.h"
#include "engine/sampling/form_cache.h"
#include "engine/sampling/logits_hash.h"
#include "engine/sampling/sampler.h"
#include "engine/session_options.h"
#include "engine/speculation/device_rounds.h"
#include "engine/speculation/speculation.h"
#include "io/checkpoint.h"
#include "models/model.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

/// A question. Everything but the prompt may stay as it is.
struct GenerateRequest {
    std::span<const int32_t> prompt;
    std::shared_ptr<const PromptGaps> gaps = {};  // where the prompt's tokens stood in a longer one; or null
    SamplingParams sampling;
    std::span<const int32_t> eos_ids;           // the model's own stop ids; see SamplingParams::ignore_eos
    const Tokenizer* tokenizer = nullptr;       // needed for stop strings and on_text
    std::shared_ptr<Constraint> constraint;     // holds the answer to a form; or null
    const std::atomic<bool>* cancel = nullptr;  // looked at between steps, and while a mask is found

    /// Prompt tokens that are done, of those that must be computed: after each chunk.
    std::function<void(int64_t done, int64_t total)> on_prefill = {};
    /// Each token of the answer as soon as it is drawn, except the stop id that ends it.
    std::function<void(const Sampled&)> on_token = {};
    /// The answer's text as far as it cannot be part of a stop string any more. Valid UTF-8, never empty.
    std::function<void(std::string_view)> on_text = {};
};

struct GenerationResult {
    std::vector<int32_t> tokens;    // without the stop id; with the tokens that spell a stop string
    std::vector<Sampled> logprobs;  // one for each token, if asked for
    std::string text;               // before the stop string, if there is a tokenizer
    FinishReason reason = FinishReason::length;
    int32_t stop_token = -1;  // reason == stop_id
    std::string stop_string;  // reason == stop_string
    int64_t prompt_tokens = 0;
    int64_t reused_tokens = 0;   // of the prompt, not computed again
    int64_t decode_steps = 0;    // after the prompt: of one row, or of drafts too
    int64_t decoded_tokens = 0;  // drawn in them, the stop id included
    double prefill_seconds = 0;
    double decode_seconds = 0;
    uint64_t logits_hash = 0;  // LogitsHash over the raw logits of every drawn token, the stop id's included
    SpeculationStats speculation;

    double prefill_rate() const;  // computed prompt tokens per second; 0 if none
    double decode_rate() const;   // decoded tokens per second; 0 if none
    double step_rate() const;     // steps per second; 0 if none
};

/// Owns the model, its K/V and its threads, and keeps the tokens that it has seen: a prompt that begins as the last one
/// did (the next turn of a chat) is computed only from where it differs. Not thread-safe.
class Session {
  public:
    /// Opens the model at `path`; see open_checkpoint and load_model for errors.
    static std::unique_ptr<Session> open(const std::string& path, const SessionOptions& options = {});
    explicit Session(std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options = {});

    const Checkpoint& checkpoint() const { return *checkpoint_; }
    const Model& model() const { return *model_; }
    /// With what was chosen where they left a choice.
    const SessionOptions& options() const { return options_; }
    /// Tokens of prompt and answer together.
    int64_t context_length() const { return context_; }
    /// The device; null on the CPU.
    Gpu* gpu() { return gpu_.get(); }
    /// Bytes per second that the device can read, measured at the first call (a fraction of a second).
    double memory_bandwidth();
    /// What the GPU's memory is used for.
    const MemoryPlan& memory_plan() const { return plan_; }
    KvCache& cache() { return *cache_; }
    Runner& runner() { return *runner_; }
    int threads() const { return threads_->size(); }
    /// The tokens whose K/V are held.
    std::span<const int32_t> tokens() const { return tokens_; }
    /// Where in cache() they lie. REQUIRES tokens; between steps.
    const SequenceState& sequence() const { return *sequence_; }

    /// From now on answers are drafted by `drafter`; null: by nobody. Tokens, log-probabilities and logits stay what
    /// they are without. Throws Error (usage) for options out of range.
    void speculate(std::shared_ptr<Drafter> drafter, const SpeculationOptions& options);
    /// The same with all that a speculator has learnt; returns the one that it replaces. Each may be null.
    std::unique_ptr<Speculator> speculate(std::unique_ptr<Speculator> speculator);
    /// What a drafter for this session must know.
    DraftTarget draft_target();
    /// Null without drafter.
    const Speculator* speculator() const { return speculator_.get(); }

    /// Answers a prompt. Throws Error for a prompt that is empty, longer than the context or holds ids outside the
    /// vocabulary, for parameters out of range, for logits that no token can be drawn from (the session then forgets
    /// its K/V, which may be damaged), and for a checkpoint that changed on disk.
    GenerationResult generate(const GenerateRequest& request);

    /// Makes the sequence equal to `tokens`, reusing the common beginning (at least the last token is computed), and
    /// returns the logits [vocab_size] that follow the last one, valid until the next step; an empty span if cancelled.
    /// `gaps`: as GenerateRequest::gaps; what they change is not reused.
    std::span<const float> prefill(std::span<const int32_t> tokens,
                                   const std::function<void(int64_t, int64_t)>& on_progress = {},
                                   const std::atomic<bool>* cancel = nullptr,
                                   std::shared_ptr<const PromptGaps> gaps = {});
    /// Appends one token; returns the logits that follow it, valid until the next step.
    std::span<const float> decode(int32_t token);
    /// On a GPU: decodes after `token`, up to `steps` tokens, calling on_token with each; stops when it returns false.
    /// The device draws, as `sampling` says, or (null) always the largest logit, and runs ahead of the host. The last
    /// token given is not yet part of the sequence. Throws Error if no token can be drawn; then everything is
    /// forgotten, since K/V may be damaged. `forced`: see GpuDecoder::begin. `allowed`: what may be drawn next, asked
    /// for once a step, behind on_token for the last one; REQUIRES sampling.
    void decode_ahead(int32_t token, int64_t steps, const std::function<bool(int32_t)>& on_token,
                      const ops::SampleStart* sampling = nullptr, std::span<const int32_t> forced = {},
                      const std::function<AllowedSet()>& allowed = {});
    /// Forgets everything, then runs `tokens` and shows the logits of every position: on_rows(first position, [rows,
    /// vocab_size]), in order. Stops early if cancelled.
    void score(std::span<const int32_t> tokens, const std::function<void(int64_t, const Tensor&)>& on_rows,
               const std::atomic<bool>* cancel = nullptr);
    /// Forgets everything.
    void clear();

  private:
    static constexpr uint64_t kSequence = 0;  // the drafter's number for the sequence

    void check_tokens(std::span<const int32_t> tokens) const;
    int64_t rewind_to_common(std::span<const int32_t> tokens, int64_t most, std::shared_ptr<const PromptGaps> gaps);
    int64_t begin_drafter(std::span<const int32_t> tokens);
    void feed_drafter(int64_t position, std::span<const int32_t> rows);
    void hold_for_drafter(int64_t position);
    void show_held();
    Tensor feed(std::span<const int32_t> tokens, StepRows::Logits logits, Family family = Family::prefill);
    Tensor on_host(const Tensor& logits);
    /// Takes the token that follows a row, or draws it from the row's logits if they are not empty. True if another is
    /// wanted.
    using TakeToken = std::function<bool(std::span<const float> logits, int32_t drawn)>;
    /// How the tokens of a step's rows are drawn: by the device, or from logits by `take`, which returns the token, or
    /// -1 if no other is wanted.
    struct RowDraws {
        bool on_device;
        GpuDecoder::Draw how;
        std::function<int32_t(std::span<const float> logits, int32_t drawn)> take;
        AllowedTokens* allowed = nullptr;  // the answer's form, if it has one
    };
    void decode_drafted(const GenerateRequest& request, GenerationResult& result, std::span<const int32_t> stop_ids,
                        int64_t max_tokens, const TakeToken& take, AllowedTokens* allowed);
    /// Whether the device should run rounds of drafting and checking by itself; whether it can from here on.
    bool wants_rounds(const Speculator& speculator) const;
    bool can_run_rounds() const;
    /// An answer that is decoded in rounds.
    struct RoundSpan {
        DraftRounds::Draws draws;
        TakeToken take;
        std::vector<int32_t>& answer;
        int64_t wanted = 0;  // tokens, at most
        bool more = true;    // another is wanted
        int64_t steps = 0;   // rounds that were taken
    };
    bool run_rounds(RoundSpan& span);
    void keep_rounds(int64_t fed, bool exact, const SpareState& before);
    void verify_drafts(GenerationResult& result, const RowDraws& draws, int64_t wanted);
    DraftRounds::Draws round_draws(const GenerateRequest& request, std::span<const int32_t> stop_ids);
    void verify(int32_t token, const DraftTree& tree, const RowDraws& draws, std::vector<int32_t>& path);
    void plan_memory();

    SessionOptions options_;
    std::unique_ptr<Gpu> gpu_;
    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<Model> model_;
    int64_t context_ = 0;
    std::unique_ptr<ThreadPool> threads_;
    std::unique_ptr<KvCache> cache_;
    std::unique_ptr<Runner> runner_;
    std::unique_ptr<GpuDecoder> decoder_;  // on a GPU
    std::unique_ptr<Speculator> speculator_;
    std::unique_ptr<DraftRounds> rounds_;  // of the last drafter that can
    MemoryPlan plan_;
    double memory_bandwidth_ = 0;
    std::vector<float> host_logits_;
    std::optional<SequenceState> sequence_;
    std::vector<int32_t> tokens_;
    std::vector<float> held_features_;  // of steps without drafts, which the drafter has not been shown yet
    int64_t held_from_ = 0, held_rows_ = 0;
    int64_t reused_ = 0;                 // by the last prefill
    std::optional<SequenceState> kept_;  // with recurrent state: the sequence shortly before the end of a prompt
};

}  // namespace riptide
