#include "server/api/anthropic/anthropic_request.h"

#include <limits>

#include "base/json.h"
#include "server/api/constraint_fields.h"
#include "server/api/history.h"

namespace riptide::server {

namespace {

constexpr std::string_view kBilling = "x-anthropic-billing-header:";

std::string_view block_type(const Fields& block) { return block.string("type").value_or("text"); }

[[noreturn]] void refuse_type(const std::string& where, std::string_view type) {
    refuse(where + ".type", "{}.type: '{}' is not supported: this model reads text only", where, type.substr(0, 40));
}

const json::object& need_block(const json::value& block, const std::string& where) {
    if (!block.is_object()) refuse(where, "{}: expected an object, found {}", where, kind_of(block));
    return block.get_object();
}

/// What becomes of blocks that cannot be read.
enum class Unread { refused, named };

std::string text_in(const json::value& content, const std::string& where, Unread unread);

/// What a client says of a text, on lines of their own.
std::string heading_of(const Fields& block, std::initializer_list<const char*> keys) {
    std::string out;
    for (const char* key : keys)
        if (const auto words = block.string(key); words && !words->empty()) out += fmt::format("{}: {}\n", key, *words);
    return out;
}

/// A document that is text, behind its title and what the client says of it.
std::string document_of(const Fields& block, const std::string& where, Unread unread) {
    const json::object* object = block.object("source");
    if (object == nullptr) refuse(where + ".source", "{}.source: missing", where);
    const Fields source(*object, where + ".source.");
    const std::string_view type = source.string("type").value_or("");
    std::string text;
    if (type == "text") {
        text = source.string("data").value_or("");
    } else if (type == "content" && source.find("content") != nullptr) {
        text = text_in(*source.find("content"), where + ".source.content", unread);
    } else {
        refuse(where + ".source.type",
               "{}.source.type: documents of type '{}' are not supported, only text and content: this model reads text "
               "only",
               where, type.substr(0, 40));
    }
    return heading_of(block, {"title", "context"}) + text;
}

bool is_readable(const Fields& document) {
    const json::object* source = document.object("source");
    const std::string_view type = source != nullptr ? Fields(*source).string("type").value_or("") : "";
    return type == "text" || type == "content";
}

/// What a search has found: title, source and text.
std::string search_result_of(const Fields& block, const std::string& where) {
    return heading_of(block, {"title", "source"}) + text_in(*block.find("content"), where + ".content", Unread::named);
}

/// Of a block that holds text, or text that names it.
std::string text_of_block(const json::object& object, const std::string& where, Unread unread) {
    const Fields block(object, where + ".");
    const std::string_view type = block_type(block);
    if (type == "text") return std::string(block.string("text").value_or(""));
    if (type == "document" && (unread == Unread::refused || is_readable(block)))
        return document_of(block, where, unread);
    if (type == "search_result" && block.array("content") != nullptr) return search_result_of(block, where);
    if (unread == Unread::refused && !is_trace(type)) refuse_type(where, type);
    return named_block(object);
}

/// A string, or the texts of blocks with newlines between them.
std::string text_in(const json::value& content, const std::string& where, Unread unread) {
    if (content.is_string()) return std::string(content.get_string());
    if (!content.is_array()) refuse(where, "{}: expected a string or an array, found {}", where, kind_of(content));
    std::string out;
    bool first = true;
    for (std::size_t i = 0; i < content.get_array().size(); ++i) {
        const std::string place = fmt::format("{}[{}]", where, i);
        const std::string text = text_of_block(need_block(content.get_array()[i], place), place, unread);
        if (text.starts_with(kBilling)) continue;
        if (!first) out += '\n';
        first = false;
        out += text;
    }
    return out;
}

/// Takes the blocks of one message apart.
class MessageReader {
  public:
    MessageReader(std::string role, Unread unread, json::array& out)
        : role_(std::move(role)), unread_(unread), out_(out) {}

    void take(const json::object& object, const std::string& where) {
        const Fields block(object, where + ".");
        const std::string_view type = block_type(block);
        if (type == "thinking") reasoning_ += block.string("thinking").value_or("");
        else if (type == "redacted_thinking") return;
        else if (type == "tool_use") add_call(block);
        else if (type == "tool_result") add_result(object, block, where);
        else add_text(text_of_block(object, where, unread_));
    }

    /// What is left makes one message; an empty one only if there was nothing else.
    void finish() { put(!only_results_); }

  private:
    void put(bool even_if_empty) {
        if (!any_ && !even_if_empty) return;
        json::object message = {{"role", role_}, {"content", text_}};
        if (!reasoning_.empty()) {
            message["reasoning_content"] = reasoning_;
            message["reasoning"] = reasoning_;
        }
        if (!calls_.empty()) message["tool_calls"] = std::move(calls_);
        out_.push_back(std::move(message));
        text_.clear();
        any_ = false;
    }
    void add_text(std::string_view text) {
        if (any_) text_ += '\n';
        any_ = true;
        text_ += text;
    }
    void add_call(const Fields& block) {
        const json::object* input = block.object("input");
        const json::object function = {{"name", block.string("name").value_or("")},
                                       {"arguments", input != nullptr ? *input : json::object()}};
        calls_.push_back({{"id", block.string("id").value_or("")}, {"type", "function"}, {"function", function}});
    }
    /// A message of its own; what the user said before it comes first.
    void add_result(const json::object& object, const Fields& block, const std::string& where) {
        put(false);
        const json::value* content = object.if_contains("content");
        const bool there = content != nullptr && !content->is_null();
        out_.push_back({{"role", "tool"},
                        {"tool_call_id", block.string("tool_use_id").value_or("")},
                        {"content", there ? text_in(*content, where + ".content", Unread::named) : std::string()}});
        only_results_ = true;
    }

    std::string role_;
    Unread unread_;
    json::array& out_;
    std::string text_, reasoning_;
    json::array calls_;
    bool any_ = false;           // text for a message
    bool only_results_ = false;  // there was a result
};

void add_message(const json::object& message, const std::string& where, Unread unread, json::array& out) {
    const Fields fields(message, where + ".");
    const std::string role(fields.string("role").value_or(""));
    if (role != "user" && role != "assistant" && role != "system")
        refuse(where + ".role", "{}.role: unknown role '{}', expected user, assistant or system", where,
               role.substr(0, 40));
    const json::value* content = fields.find("content");
    if (content == nullptr) refuse(where + ".content", "{}.content: missing", where);
    if (content->is_string() || role == "system") {
        out.push_back({{"role", role}, {"content", text_in(*content, where + ".content", unread)}});
        return;
    }
    const json::array* blocks = fields.array("content");
    MessageReader reader(role, unread, out);
    for (std::size_t i = 0; i < blocks->size(); ++i) {
        const std::string place = fmt::format("{}.content[{}]", where, i);
        reader.take(need_block((*blocks)[i], place), place);
    }
    reader.finish();
}

json::array functions_of(const json::array& tools) {
    json::array out;
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const std::string where = fmt::format("tools[{}]", i);
        const Fields tool(need_block(tools[i], where), where + ".");
        if (tool.string("type").value_or("custom") != "custom") continue;  // web_search and the like
        json::object function = {{"name", tool.filled("name")}};
        if (const auto text = tool.string("description")) function["description"] = *text;
        const json::object* schema = tool.object("input_schema");
        function["parameters"] = schema != nullptr ? *schema : json::object();
        if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
        out.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    return out;
}

void parse_stop_sequences(const Fields& fields, SamplingParams& sampling) {
    const json::array* stops = fields.array("stop_sequences");
    if (stops == nullptr) return;
    for (const json::value& stop : *stops) {
        if (!stop.is_string()) refuse("stop_sequences", "stop_sequences: expected strings, found {}", kind_of(stop));
        sampling.stop_strings.emplace_back(stop.get_string());
    }
}

/// Of metadata.user_id, which may be the JSON of an object with a session_id.
std::string session_in_metadata(const Fields& fields) {
    const json::object* metadata = fields.object("metadata");
    if (metadata == nullptr) return {};
    std::string user(Fields(*metadata, "metadata.").string("user_id").value_or("").substr(0, 1024));
    if (!user.starts_with('{')) return user;
    try {
        const json::value parsed = parse_json(user, "metadata.user_id");
        const json::value* session = parsed.is_object() ? parsed.get_object().if_contains("session_id") : nullptr;
        if (session != nullptr && session->is_string()) return std::string(session->get_string());
    } catch (const Error&) {  // then it is a name like any other
    }
    return user;
}

/// thinking.type, and how long it may be: thinking.budget_tokens, or output_config.effort.
void parse_thinking(const Fields& fields, const RequestDefaults& defaults, ChatOptions& options, Request& out) {
    out.thinking_budget = defaults.thinking_budget;
    if (const json::object* config = fields.object("output_config"))
        if (const auto effort = Fields(*config, "output_config.").string("effort")) {
            out.thinking_budget = budget_of_effort(*effort, "output_config.effort");
            tell_effort(*effort, options);
        }
    const json::object* thinking = fields.object("thinking");
    if (thinking == nullptr) return;
    const Fields inner(*thinking, "thinking.");
    options.enable_thinking = inner.string("type").value_or("enabled") != "disabled";
    if (const auto tokens = inner.integer("budget_tokens", 1, std::numeric_limits<int32_t>::max()))
        out.thinking_budget = *tokens;
}

/// output_config.format, output_format (what it was called before), or a form as parse_format has it.
AnswerFormat parse_output_format(const Fields& fields) {
    AnswerFormat out = parse_format(fields);
    const auto take = [&](const json::object* format, const std::string& where) {
        if (format == nullptr) return;
        if (out.kind != AnswerFormat::Kind::any)
            refuse(where, "{}: the answer has a form already, of {}; expected one of the two", where, out.field);
        out = parse_format_object(*format, where);
    };
    if (const json::object* config = fields.object("output_config"))
        take(Fields(*config, "output_config.").object("format"), "output_config.format");
    take(fields.object("output_format"), "output_format");
    return out;
}

bool ends_with_assistant(const ChatPrompt& prompt) {
    return prompt.messages.back().get_object().at("role") == "assistant";
}

/// A last message of the assistant is what the answer begins with (prefill): the answer goes on behind it.
bool goes_on_with_last(const ChatPrompt& prompt, const Fields& fields) {
    if (!ends_with_assistant(prompt)) return false;
    const json::object& last = prompt.messages.back().get_object();
    const json::object* thinking = fields.object("thinking");
    if (thinking != nullptr && prompt.options.enable_thinking.value_or(false))
        refuse("thinking",
               "thinking: the last message is the assistant's, and an answer that goes on with it has no thinking; "
               "expected \"disabled\", or a message of the user at the end");
    const std::string_view text = last.at("content").get_string();
    if (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
        refuse("messages", "messages: the last message is the assistant's and ends with white space, expected none");
    return true;
}

}  // namespace

GenerationRequest parse_messages(json::object body, const RequestDefaults& defaults, MessagesFor purpose) {
    const Fields fields(body);
    GenerationRequest out;
    out.until = parse_timeout(fields, defaults);
    Request& request = out.prompts.emplace_back();
    SamplingParams& sampling = request.sampling = defaults.sampling;
    sampling.temperature = fields.number("temperature").value_or(sampling.temperature);
    sampling.top_p = fields.number("top_p").value_or(sampling.top_p);
    sampling.top_k = fields.integer("top_k", 0, std::numeric_limits<int32_t>::max()).value_or(sampling.top_k);
    sampling.max_tokens = parse_max_tokens(fields, {"max_tokens"}).value_or(-1);
    request.compression = parse_compression(fields);
    parse_stop_sequences(fields, sampling);
    out.stream = fields.boolean("stream").value_or(false);
    out.model = std::string(fields.string("model").value_or(""));
    out.session = session_in_metadata(fields);

    ChatPrompt prompt;
    prompt.options.enable_thinking = defaults.thinking;
    prompt.options.template_kwargs = defaults.template_kwargs;
    parse_thinking(fields, defaults, prompt.options, request);
    const json::array* messages = fields.array("messages");
    if (messages == nullptr || messages->empty()) refuse("messages", "messages: expected at least one message");
    if (const json::value* system = fields.find("system")) {
        const std::string text = text_in(*system, "system", Unread::refused);
        if (!text.empty()) prompt.messages.push_back({{"role", "system"}, {"content", text}});
    }
    const std::size_t last = last_of_user(*messages);
    for (std::size_t i = 0; i < messages->size(); ++i) {
        const std::string where = fmt::format("messages[{}]", i);
        add_message(need_block((*messages)[i], where), where, i == last ? Unread::refused : Unread::named,
                    prompt.messages);
    }
    const bool offered = parse_anthropic_tool_choice(fields, request.tool_choice);
    out.one_tool_call = request.tool_choice.single;
    request.format = parse_output_format(fields);
    if (const json::array* tools = fields.array("tools"); tools != nullptr && offered)
        prompt.tools = functions_of(*tools);
    prompt.messages = prepare_history(std::move(prompt.messages));
    if (purpose == MessagesFor::counting) prompt.options.add_generation_prompt = !ends_with_assistant(prompt);
    else prompt.options.continue_final_message = goes_on_with_last(prompt, fields);
    prompt.tools = prepare_tools(prompt.tools);
    request.prompt = std::move(prompt);
    return out;
}

}  // namespace riptide::server
