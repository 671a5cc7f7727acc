// The text side of a model: from a prompt to tokens, from tokens to events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prompt/generation_defaults.h"
#include "engine/request.h"
#include "engine/sampling/form_cache.h"
#include "io/checkpoint.h"
#include "text/chat/chat.h"
#include "text/chat/chat_parts.h"
#include "text/dialects/dialect.h"
#include "text/dialects/stream_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

/// A prompt as it is fed.
struct EncodedPrompt {
    std::vector<int32_t> tokens;
    /// Ascending token counts: the ends of a chat's messages as they stand in the prompt. Empty for other prompts.
    std::vector<int64_t> message_ends;
    bool opens_with_system = false;            // the first of them ends system prompt and tools
    Thinking thinking = Thinking::over;        // where a chat's answer begins
    int32_t think_begin = -1, think_end = -1;  // the markers of a chat's thinking
    int32_t line_end = -1;  // drawn before an end of thinking that is forced, where no line has just ended; -1: nothing
    std::function<std::unique_ptr<StreamParser>()> make_parser = {};  // for each answer of a chat; empty: plain text
    std::shared_ptr<const jinja::Rendered> rendered;                  // of a chat
};

/// Tokenizer, chat template, dialect and published defaults of a checkpoint, as far as it has them. Immutable: threads
/// may share it.
class ModelText {
  public:
    /// A model without any.
    ModelText() = default;
    /// Throws Error for a tokenizer or defaults that are there but cannot be used. With a template that cannot be used
    /// there are no chats.
    explicit ModelText(const Checkpoint& checkpoint);

    const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
    const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }
    /// How chats are answered; null if they cannot be rendered and their answers parsed: then require_chats() throws
    /// Error that says why.
    const Dialect* dialect() const { return dialect_; }
    bool chats() const { return dialect_ != nullptr; }
    /// For people; "" if there are chats.
    std::string why_no_chats() const;
    void require_chats() const;
    const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
    const GenerationDefaults& makers() const { return makers_; }
    /// Of what decides the tokens of a prompt; the same for equal tokenizers, templates and their
    /// variables.
    const std::string& fingerprint() const { return fingerprint_; }

    /// Throws Error (data) if the model cannot read such a prompt, or what the template and the tokenizer throw. `work`
    /// counts what is done; null: budgets of their own.
    EncodedPrompt encode(const Prompt& prompt, WorkBudget* work = nullptr) const;
    /// What the tokens of a chat's prompt are; empty for other prompts. Throws Error where token_spans does.
    std::vector<ChatPart> parts(const EncodedPrompt& prompt) const;
    /// What holds the answers of a request to their form; null if nothing does. Those that have been made lately are
    /// made only once. `work` counts what is done, and stops it; or null. Throws GrammarError, or Error without a
    /// tokenizer.
    std::shared_ptr<Constraint> constraint(const Request& request, const EncodedPrompt& prompt, WorkBudget* work) const;

  private:
    void add_stops();
    EncodedPrompt encode_chat(const ChatPrompt& chat, WorkBudget* work) const;
    std::shared_ptr<Constraint> make_constraint(const Request& request, const EncodedPrompt& prompt,
                                                WorkBudget* work) const;

    GenerationDefaults makers_;
    std::optional<Tokenizer> tokenizer_;
    std::optional<ChatTemplate> template_;
    std::string chat_problem_;  // why the template that is there cannot be used
    const Dialect* dialect_ = nullptr;
    std::vector<int32_t> stop_ids_;
    std::string fingerprint_;
    std::unique_ptr<Constrainer> constrainer_;  // if there is a tokenizer
};

/// The token counts at which `ends` (of messages, as byte offsets in the text that the tokens spell) lie: the most
/// tokens that do not go beyond each. Empty if the tokens do not spell `text_bytes` bytes.
std::vector<int64_t> token_ends(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                                std::span<const int64_t> ends, int64_t text_bytes);

/// Lengths at which a prompt's state is worth keeping, ascending, at least 1 and less than the whole: the end of system
/// prompt and tools, the last two message ends (an edited last message leaves the one before it), earlier ones where
/// `kCutDistance` tokens lie between, multiples of `every`, and (unless a message ends near there) all but the last
/// token, for those who ask the same again. Each costs a checkpoint.
std::vector<int64_t> choose_cuts(const EncodedPrompt& prompt, int64_t every);
inline constexpr int64_t kCutDistance = 1024;

}  // namespace riptide
