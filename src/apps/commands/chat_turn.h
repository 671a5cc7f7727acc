// One turn of a conversation: messages to prompt, tokens to events, events to a message.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "apps/flags/compress_flags.h"
#include "apps/flags/model_flags.h"
#include "base/json.h"
#include "engine/prompt/model_text.h"
#include "text/chat/chat.h"
#include "text/dialects/stream_parser.h"

namespace riptide::apps {

/// What the model said.
struct ChatAnswer {
    /// role, content, and if there: reasoning_content, tool_calls, as OpenAI clients have them; and
    /// incomplete_tool_calls (name, arguments as far as they came, closed) for calls that the answer did not finish,
    /// which nobody should execute.
    json::object message;
    GenerationResult result;
    CompressionReport compression;  // of the prompt, if it was shortened
};

/// A session with its tokenizer, chat template and dialect. Not thread-safe.
class ChatModel {
  public:
    /// Throws Error if the checkpoint has no tokenizer, no chat template, or no dialect that is known.
    explicit ChatModel(std::unique_ptr<Session> session);

    Session& session() { return *session_; }
    const GenerationDefaults& makers() const { return text_.makers(); }
    /// From now on long conversations are shortened. Throws Error.
    void shorten(const CompressFlags& flags, PromptScorer scorer) {
        shortener_.emplace(flags, std::move(scorer), *text_.tokenizer());
    }

    /// Renders and tokenises the conversation (control tokens only where the template wrote them), generates, and
    /// parses the answer, calling on_event as it comes.
    ChatAnswer ask(const json::array& messages, const json::array& tools, bool think, const SamplingParams& params,
                   const std::function<void(const StreamEvent&)>& on_event,
                   const std::function<void(int64_t, int64_t)>& on_prefill, const std::atomic<bool>* cancel);

  private:
    std::unique_ptr<Session> session_;
    ModelText text_;
    std::optional<PromptShortener> shortener_;
};

}  // namespace riptide::apps
