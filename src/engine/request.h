// What the engine is asked, and what it answers with.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/compression/compression.h"
#include "engine/finish_reason.h"
#include "engine/sampling/sampler.h"
#include "text/chat/chat.h"
#include "text/dialects/response_format.h"
#include "text/dialects/stream_parser.h"

namespace riptide {

using RequestId = int64_t;  // 1, 2, 3, ... in the order of submission

/// A conversation, rendered with the model's chat template; the answer is parsed by its dialect. Without tools there
/// are no calls: what looks like one is text.
struct ChatPrompt {
    json::array messages, tools;  // as ChatTemplate::render takes them
    ChatOptions options;
};
/// Plain text to continue; the answer is text.
struct TextPrompt {
    std::string text;
    bool add_special = true;     // put BOS in front, if the tokenizer has it so
    bool parse_special = false;  // read <think> and the like as control tokens
};
/// Token ids, fed as they are. The answer is text if the model has a tokenizer.
using TokenPrompt = std::vector<int32_t>;
using Prompt = std::variant<ChatPrompt, TextPrompt, TokenPrompt>;

struct Request {
    Prompt prompt;
    /// Stop strings are looked for in what the client reads: of a chat the visible text, not reasoning or tool calls.
    SamplingParams sampling;
    /// The form of the answer: of a chat the visible text, behind the reasoning. The model's stop ids may come exactly
    /// where the form is complete. Not with min_tokens, nor ignore_eos without stop_ids.
    AnswerFormat format;
    ToolChoice tool_choice;  // of a chat with tools
    int32_t n = 1;           // answers, at most 128; answer i draws with seed + i

    /// Requests of one conversation (or agent). They have one share of the device together, and what the last of them
    /// left in the prefix cache is kept longest. Empty: a request for itself.
    std::string session;
    /// Only requests with the same key share prefixes, and so can learn from timing what others have asked.
    std::string isolation;
    int32_t priority = 1;  // 0 background, 1 normal, 2 interactive
    bool side = false;     // a title, a sub-agent: never drives a live session's prefix out of the cache
    std::optional<std::chrono::milliseconds> deadline;  // from submit() on; then the request fails
    /// The same tokens whether prefixes were cached or not, in any tier, before or after a restart: a finished answer
    /// is kept for the next turn only as prefill computes it. Empty: EngineOptions::deterministic.
    std::optional<bool> deterministic;

    /// What the engine's CompressionOptions do not say for this request. In mode automatic a prompt is left whole if it
    /// is given as token ids, if its log-probabilities are wanted, or if the request is deterministic. With `always`
    /// the first and the last are compressed too (then nothing is remembered between requests), the second is an Error.
    CompressionRequest compression;

    /// Of a chat: tokens of reasoning after which the end-of-thinking marker is taken (behind a newline, where the
    /// dialect has one there), whatever the model would say. -1: as many as it likes.
    int64_t thinking_budget = -1;

    bool want_tokens = false;  // TokensDrawn events, with log-probabilities if sampling.logprobs >= 0
    /// PromptScored events. The whole prompt is computed then, whatever the prefix cache holds.
    bool prompt_logprobs = false;
    /// The prompt is read, and nothing follows: the answer is empty, whatever sampling.max_tokens says, so that the
    /// prompt may fill the whole context.
    bool prompt_only = false;
    /// The same, and what the model puts out behind the last token comes as a RowRead: all of it if the model embeds
    /// (Task::embed, which takes no other requests), else the logits of `row_columns`, one or more.
    bool read_row = false;
    std::vector<int32_t> row_columns;
    /// One call asked for this and for the request submitted before it: the queue had room for that, so it is not
    /// refused for want of room.
    bool same_call = false;
    bool hash_logits = false;  // Done::logits_hash
};

/// The prompt is being read: so many tokens are done, of them so many came from the cache.
struct PromptProgress {
    int64_t done = 0, cached = 0, total = 0;
};
/// Tokens of the prompt from `begin` on, with the probabilities that the model gave them. The first of all has none:
/// NaN. Only of answer 0.
struct PromptScored {
    int64_t begin = 0;
    std::vector<Sampled> tokens;
};
/// See Request::read_row.
struct RowRead {
    std::vector<float> values;
};
/// Tokens of the answer, except the stop id that ends it.
struct TokensDrawn {
    std::vector<Sampled> tokens;
};

struct Usage {
    int64_t prompt = 0;      // tokens that the model reads: of a compressed prompt those that are kept
    int64_t cached = 0;      // of them, restored from the prefix cache
    int64_t completion = 0;  // tokens of the answer, without the stop id
    int64_t reasoning = 0;   // of them, thinking
    int64_t steps = 0;  // decoding, of one row or of drafts too: `steps + accepted` tokens were drawn in them
    int64_t drafted = 0, accepted = 0;
};
struct Timings {  // seconds
    double queue = 0, prefill = 0, decode = 0;
    double scoring = 0;  // before `queue`: until a prompt that is compressed has been scored
    double fetch = 0;    // of `prefill`, its beginning: the host waited for a lower tier of the prefix cache; 0: for none
};
/// The answer is complete.
struct Done {
    FinishReason reason = FinishReason::length;
    std::string stop_string;  // reason == stop_string
    int32_t stop_token = -1;  // reason == stop_id
    int32_t tool_calls = 0;
    Usage usage;
    Timings timings;
    CompressionReport compression;
    int32_t attention_window = 0;  // ModelInfo's, if prompt and answer are longer: what lies further back was not seen
    std::string cache_note;  // why not more of the prompt was cached, in a sentence
    int64_t version = 0;     // of the weights: EngineInfo::version
    /// If asked for: LogitsHash over the raw logits of every token that the host drew, a stop id's too. On the CPU those
    /// are all.
    uint64_t logits_hash = 0;
};
/// There is no answer, or it stays incomplete. `kind`: data, usage: the request's own fault; unavailable: try again
/// later; else the machine's. A cancelled request is not Failed: it is Done with reason cancelled.
struct Failed {
    ErrorKind kind = ErrorKind::data;
    std::string message;
};

/// For each answer: PromptProgress and PromptScored, then deltas and TokensDrawn, or RowRead, then one Done or Failed.
using EventBody = std::variant<PromptProgress, PromptScored, RowRead, TextDelta, ReasoningDelta, ToolCallBegin,
                               ToolCallArguments, ToolCallEnd, TokensDrawn, Done, Failed>;
struct Event {
    RequestId id = 0;
    int32_t answer = 0;  // 0 .. n - 1
    bool last = false;   // no event of this request follows
    EventBody body;
};

/// The queue cannot take the request.
class QueueFull : public Error {
  public:
    QueueFull(const std::string& message, int64_t wait)
        : Error(message, ErrorKind::unavailable), retry_after_us(wait) {}
    int64_t retry_after_us;  // when a place should be free, as fast as places have become free lately
};

/// The prompt leaves no room for an answer in the context, or does not fit it at all.
class PromptTooLong : public Error {
  public:
    PromptTooLong(const std::string& message, int64_t prompt, int64_t context)
        : Error(message, ErrorKind::usage), prompt_tokens(prompt), context_length(context) {}
    int64_t prompt_tokens, context_length;
};

/// Called on the engine's thread, never before submit() has begun and possibly before it returns. It must not block:
/// all requests wait for it. It may call submit() and cancel(), nothing else of the engine. If it throws, the request
/// is cancelled and it is not called again.
using Sink = std::function<void(const Event&)>;

}  // namespace riptide
