// One request and its answers while they are being made. Internal to the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/compression/compressor.h"
#include "engine/prompt/model_text.h"
#include "engine/request.h"
#include "engine/sampling/form_cache.h"
#include "engine/sampling/logits_hash.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/stop_matcher.h"
#include "tensor/tensor.h"
#include "text/tokenizer/detokenizer.h"

namespace riptide {

class Answer;

/// A request that has been checked.
struct Job {
    RequestId id = 0;
    Sink sink;
    EncodedPrompt prompt;
    std::shared_ptr<CompressionPlan> plan;   // while the prompt is to be compressed; there are no answers yet
    CompressionReport compression;           // of the prompt, if it was
    bool show_kept = false;                  // CompressionReport::shown is wanted
    std::shared_ptr<const PromptGaps> gaps;  // where what is left of it stood, if the model is to see that
    int64_t scoring_us = 0;                  // that went by until then
    std::vector<int64_t> cuts;               // lengths of the prompt at which its state is kept
    SamplingParams sampling;
    std::shared_ptr<Constraint> constraint;  // of each answer; or null
    std::vector<int32_t> stop_ids;           // that end the answer
    int64_t max_tokens = 0;                  // of the answer
    bool until_full = false;                 // max_tokens is what the context leaves
    int64_t thinking_budget = -1;            // Request::thinking_budget
    PrefixSalt salt;
    uint64_t share = 0;          // for whom the scheduler counts
    uint64_t cache_session = 0;  // whose prefix the cache keeps; 0: nobody's
    int priority = 1;
    bool side = false, deterministic = false, want_tokens = false, prompt_logprobs = false, prompt_only = false,
         read_row = false, same_call = false, hash_logits = false;
    std::vector<int32_t> row_columns;
    int64_t submitted_us = 0;
    int64_t deadline_us = std::numeric_limits<int64_t>::max();
    std::optional<std::chrono::milliseconds> deadline;  // as asked

    // The engine thread's.
    std::vector<std::unique_ptr<Answer>> answers;
    int64_t open = 0;          // answers that have not ended
    int64_t held_from = 0;     // answers from here on wait until the first has read the prompt
    bool prompt_kept = false;  // the last cut is in the cache
    bool sink_failed = false;

    /// What each answer ends with once `deadline` has passed.
    Failed late() const {
        return {ErrorKind::unavailable, fmt::format("the deadline of {} ms has passed", deadline->count())};
    }
    /// Calls the sink, unless it has thrown before.
    void emit(const Answer& answer, EventBody body, bool ends = false);
    /// Valid until the next call. The engine thread's.
    PrefixRequest prefix(std::span<const int32_t> tokens, int64_t vocab) const {
        if (gaps) tokens = keys = gaps->keys(tokens, vocab);
        return {salt, tokens, prompt.message_ends, cache_session, side};
    }
    mutable std::vector<int32_t> keys;  // what the prefix cache knows tokens by, where there are gaps
};

/// The answer's text: tokens go in, events come out as soon as they cannot belong to a stop string.
class AnswerText {
  public:
    /// `text` must outlive this. Without tokenizer there are no events.
    AnswerText(const ModelText& text, const EncodedPrompt& prompt, const std::vector<std::string>& stops);

    /// `armed`: stop strings end the answer; else they are text like any other. Appends to `out`.
    void push(int32_t token, bool armed, std::vector<EventBody>& out);
    /// The answer is over: what was held back. `turn_ended`: by a stop id, which was not pushed.
    void finish(bool turn_ended, std::vector<EventBody>& out);
    bool stopped() const { return matcher_.matched(); }
    const std::string& stop() const { return matcher_.match(); }
    int32_t tool_calls() const { return tool_calls_; }

  private:
    void deliver(StreamEvent&& event, bool armed, std::vector<EventBody>& out);
    void deliver_text(std::string text, bool armed, std::vector<EventBody>& out);
    void flush(std::vector<EventBody>& out);

    const Tokenizer* tokenizer_;
    std::unique_ptr<StreamParser> parser_;    // of a chat
    std::optional<Detokenizer> detokenizer_;  // of plain text
    StopMatcher matcher_;
    StreamEvents events_;
    int32_t tool_calls_ = 0;
};

/// One answer of a request: what each drawn token means for it.
class Answer {
  public:
    Answer(Job& job, int32_t index, const ModelText& text, int64_t vocab_size);

    Job& job() const { return *job_; }
    int32_t index() const { return index_; }
    const SamplingParams& sampling() const { return sampling_; }
    /// Draws for `position` from the raw logits. Throws Error if no token can be drawn; GrammarError if that is due to
    /// the form that was asked for.
    Sampled draw(std::span<const float> logits, int64_t position);
    /// Whether the answer is held to a form.
    bool constrained() const { return allowed_.has_value(); }
    /// What holds it to that form; null if nothing does. draw() waits for what it does not know.
    AllowedTokens* allowed() { return allowed_ ? &*allowed_ : nullptr; }
    /// How many of the next tokens are the sampler's to choose: 0 if the next is forced, which draw() does.
    int64_t free_draws() const;
    /// What draw() forces where the thinking must end.
    int32_t end_of_thinking() const;
    /// Sends what logits [rows, vocab] behind the prompt's tokens from `begin` on say of the tokens that follow them.
    void score(int64_t begin, const Tensor& logits, int64_t first_row, int64_t rows);
    /// Sends what Request::read_row asks for, of the row behind the prompt, in place of a token: the answer is over.
    /// Throws Error for a value that is no number.
    void take_row(std::span<const float> row);
    /// Takes the next token and sends events. True if another is wanted.
    bool take(const Sampled& sampled);
    /// Sends what was held back.
    void finish();
    /// Forgets what came of the last step.
    void begin_step();
    /// The last event: Failed if `failure` is set, else Done. The others: of the model that answered.
    void close(int64_t now_us, int64_t version, int32_t attention_window);

    bool closed() const { return closed_; }

    const std::vector<int32_t>& tokens() const { return tokens_; }

    int64_t scheduled = 0;  // the scheduler's number; 0: held back, or over
    FinishReason reason = FinishReason::cancelled;
    std::optional<Failed> failure;
    Usage usage;
    std::string cache_note;
    int64_t fetch_us = 0;                  // Timings::fetch
    int64_t start_us = -1, first_us = -1;  // of the first step, of the first token
    uint64_t cached_at = 0;                // when cached_tokens was looked up
    int64_t cached_tokens = 0;
    int64_t waits_for = 0;  // tokens of the prompt that are to be read, while the answer has not begun
    int64_t scored = 0;     // tokens of the prompt whose PromptScored has been sent
    int64_t computed = 0;   // tokens of the prompt up to which the cache has been given what is worth keeping
    /// Of the running step: whether its token was the last, and what steps run ahead drew before it.
    bool ends = false;
    std::vector<int32_t> ahead;
    std::vector<int32_t> path;    // of the running step: rows that drafts were right about, if there were drafts
    bool undrawn = false;         // of the running step: nothing was drawn, since nobody knew yet what may come
    bool without_rounds = false;  // there was no room for them once
    int64_t told = -1;            // tokens of the answer that the drafter knows; -1: it does not know the prompt

  private:
    void send();

    Job* job_;
    const Tokenizer* tokenizer_;  // of a chat, or null
    int32_t index_;
    SamplingParams sampling_;
    Sampler sampler_;
    std::optional<AllowedTokens> allowed_;
    AnswerText text_;
    std::vector<int32_t> tokens_;
    LogitsHash hash_;
    int32_t stop_token_ = -1;
    bool thinking_;
    bool closed_ = false;
    std::vector<EventBody> out_;
};

}  // namespace riptide
