// From the messages of a chat request to the prompt of one model, through the model's own template.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/jinja/template.h"

namespace riptide {

/// What one request asks of the template.
struct ChatOptions {
    bool add_generation_prompt = true;
    /// The prompt ends behind the content of the last message, which is the assistant's and calls no tools: the answer
    /// goes on with it. Then add_generation_prompt means nothing.
    bool continue_final_message = false;
    /// If absent the template's defaults say it, or the template itself.
    std::optional<bool> enable_thinking;
    /// Further variables of the template, as clients send them in `chat_template_kwargs`: at most 64, scalars only, and
    /// none of the names that the engine sets itself. `enable_thinking` here (a bool) overrides the field above.
    json::object template_kwargs;
    /// What the template sees as the time; the local time if absent.
    std::optional<std::tm> now;
};

/// How a template writes a call of a tool in the history.
enum class CallForm {
    other,          // in its own way, or not at all
    function_tags,  // <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> </function> </tool_call>
    json,           // <tool_call> {"name": NAME, "arguments": {...}} </tool_call>
};

/// What a template can do, found out by rendering small samples with it.
struct ChatTraits {
    int laguna_version = 0;         // of the marker "laguna_glm_thinking_vN" in its source; 0 if there is none
    bool newlines_in_tags = false;  // "<user>\n" (Laguna v4, v5), not "<user>" (v8)
    bool im_tags = false;           // "<|im_start|>user\n" (ChatML)
    CallForm calls = CallForm::other;
    bool tools = false;          // tools appear in the prompt
    bool thinking = false;       // enable_thinking changes the prompt
    bool content_parts = false;  // takes content as a list of parts; else parts are joined for it
    bool late_system = true;     // takes system messages anywhere
};

/// A model's chat template with its special tokens. Immutable; threads may share it.
class ChatTemplate {
  public:
    /// `name` stands in errors. bos and eos are what the template sees as bos_token and eos_token. `defaults` are
    /// variables that it gets wherever ChatOptions do not set them; REQUIRES what check_template_kwargs takes.
    /// Throws Error with line and column if the template cannot be parsed, or fails on a sample (other than by
    /// raise_exception).
    ChatTemplate(std::string_view source, const std::string& name, std::string bos, std::string eos,
                 json::object defaults = {}, const jinja::Limits& limits = {});

    /// The prompt. Template literals, bos, eos and known roles are trusted; all that the client wrote is not.
    ///
    /// Messages are those of the OpenAI API: `role` is system, developer, user, assistant or tool (developer becomes
    /// system for templates that do not know it; where a template takes system messages at the beginning only, later
    /// ones are joined to the user's message before them, or are the user's); `content` is a string, null, or a list of
    /// parts {"type": "text", "text"}, which are joined with newlines for templates that take strings;
    /// `tool_calls[].function.arguments` is an object, or a string that holds one, which the template gets as an
    /// object; other fields are passed on as they are. Tools are {"type": "function", "function": {"name", ...}},
    /// passed on as they are. Throws Error that names the field ("messages[2].content: ..."); jinja::RaisedError if the
    /// template refuses.
    /// `work` counts what is done; null: a budget of its own.
    jinja::Rendered render(const json::array& messages, const json::array& tools, const ChatOptions& options,
                           WorkBudget* work = nullptr) const;

    const ChatTraits& traits() const { return traits_; }

  private:
    void probe(std::string_view source);

    jinja::Template template_;
    std::string bos_, eos_;
    json::object defaults_;
    bool knows_developer_ = false;
    ChatTraits traits_;
};

/// One line for people: "Laguna v5, newlines inside tags, tools, thinking", or why the template cannot be used.
std::string template_summary(std::string_view source);

/// Where an answer begins.
enum class Thinking {
    over,       // behind the thinking, or where there is none
    inside,     // in it
    not_begun,  // where the model may begin to think, or not
};

/// What the last of <think>, </think> and the beginning of an answer (<assistant>, <|im_start|>) among the trusted
/// bytes of a prompt says; not_begun if there is none of them. Time linear in the prompt.
Thinking thinking_of(const jinja::Rendered& prompt);

}  // namespace riptide
