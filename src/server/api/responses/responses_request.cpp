#include "server/api/responses/responses_request.h"

#include "base/json.h"
#include "server/api/responses/responses_compact.h"
#include "server/api/responses/responses_tools.h"

#include <algorithm>
#include <utility>

namespace riptide::server {

namespace {

constexpr std::string_view kSeal = "riptide:";
constexpr std::string_view kSummary = "Summary of the conversation so far:\n\n";
constexpr std::size_t kMostItems = 8192;
constexpr std::string_view kBefore = "previous_response_id";

/// The texts of parts, joined; "" for what has none.
std::string texts_of(const json::value* content) {
    if (content == nullptr) return {};
    if (content->is_string()) return std::string(content->get_string());
    std::string out;
    if (!content->is_array()) return out;
    for (const json::value& part : content->get_array()) {
        const json::value* text = part.is_object() ? part.get_object().if_contains("text") : nullptr;
        if (text != nullptr && text->is_string()) out += std::string_view(text->get_string());
    }
    return out;
}

/// The same text may stand in a reasoning item up to three times.
std::string reasoning_of(const json::object& item) {
    if (std::string text = texts_of(item.if_contains("content")); !text.empty()) return text;
    if (std::string text = unseal(string_of(item, "encrypted_content")); !text.empty()) return text;
    return texts_of(item.if_contains("summary"));
}

/// Turns items into messages of a chat.
class ItemReader {
  public:
    explicit ItemReader(const Stored* stored) : stored_(stored) {}

    /// `where`: its path in the request; kBefore of what is stored.
    void take(const json::value& value, const std::string& where) {
        if (summary_wanted) refuse(where, "{}: expected nothing behind compaction_trigger", where);
        if (!value.is_object()) refuse(where, "{}: expected an object, found {}", where, kind_of(value));
        where_ = where;
        const json::object& item = value.get_object();
        const std::string_view type = item_type(item);
        if (type == "message") add_message(item, where);
        else if (type == "reasoning") add_reasoning(item);
        else if (type == "function_call" || type == "custom_tool_call") add_call(item, where, type == "function_call");
        else if (type == "function_call_output" || type == "custom_tool_call_output") add_output(item, where);
        else if (type == "compaction" || type == "compaction_summary") add_summary(item, where);
        else if (type == "compaction_trigger") ask_for_summary(where);
        else if (type == "item_reference") take(stored(item, where), where);
        // Others (web searches, ...) are the traces of tools that this server does not have.
    }
    /// A message that is complete.
    void put(json::object message, MessageOrigin origin) {
        messages.push_back(std::move(message));
        origins.push_back(std::move(origin));
    }
    /// What the model said since the last item of somebody else.
    void finish_turn() {
        if (!turn_.empty()) put(std::exchange(turn_, {}), std::move(turn_origin_));
    }

    json::array messages;
    std::vector<MessageOrigin> origins;  // of each message
    bool summary_wanted = false;

  private:
    json::object& turn() {
        if (turn_.empty()) {
            turn_ = {{"role", "assistant"}, {"content", ""}};
            turn_origin_ = {where_, where_ + ".content", {}};
        }
        return turn_;
    }
    bool has(std::string_view key) const { return turn_.contains(key); }

    void add_message(const json::object& item, const std::string& where) {
        const std::string role = string_of(item, "role");
        const json::value* content = item.if_contains("content");
        if (content == nullptr) refuse(where + ".content", "{}.content: missing", where);
        if (role != "assistant") {
            finish_turn();
            put({{"role", role}, {"content", *content}}, {where, where + ".content", {}});
            return;
        }
        if (said_ || has("tool_calls")) finish_turn();
        turn()["content"] = *content;
        turn_origin_.content = where + ".content";
        said_ = true;
    }
    void add_reasoning(const json::object& item) {
        if (said_ || has("tool_calls") || has("reasoning_content")) finish_turn();
        said_ = false;
        if (std::string text = reasoning_of(item); !text.empty()) turn()["reasoning_content"] = std::move(text);
    }
    void add_call(const json::object& item, const std::string& where, bool json_arguments) {
        const json::value arguments = json_arguments ? json::value(string_of(item, "arguments"))
                                                     : json::value(json::object{{"input", string_of(item, "input")}});
        const json::object function = {{"name", Fields(item, where + ".").filled("name")}, {"arguments", arguments}};
        json::object& message = turn();
        if (!has("tool_calls")) message["tool_calls"] = json::array();
        message["tool_calls"].get_array().push_back(
            {{"id", string_of(item, "call_id")}, {"type", "function"}, {"function", function}});
        turn_origin_.calls.push_back(where);
        said_ = false;
    }
    void add_output(const json::object& item, const std::string& where) {
        finish_turn();
        said_ = false;
        const json::value* output = item.if_contains("output");
        if (output == nullptr) refuse(where + ".output", "{}.output: missing", where);
        const bool readable = output->is_string() || output->is_array();
        put({{"role", "tool"},
             {"tool_call_id", string_of(item, "call_id")},
             {"content", readable ? *output : json::value(json::serialize(*output))}},
            {where, where + ".output", {}});
    }
    void ask_for_summary(const std::string& where) {
        finish_turn();
        put({{"role", "user"}, {"content", kAskForSummary}}, {where, where, {}});
        summary_wanted = true;
    }
    /// What was made of an earlier part of the conversation.
    void add_summary(const json::object& item, const std::string& where) {
        const std::string summary = unseal(string_of(item, "encrypted_content"));
        if (summary.empty())
            refuse(where + ".encrypted_content",
                   "{}.encrypted_content: this summary was not written here and cannot be read; send the conversation",
                   where);
        finish_turn();
        said_ = false;
        put({{"role", "user"}, {"content", std::string(kSummary) + summary}},
            {where, where + ".encrypted_content", {}});
    }
    json::value stored(const json::object& item, const std::string& where) const {
        const std::string id = string_of(item, "id");
        auto found = stored_ != nullptr ? stored_->item(id) : std::nullopt;
        if (!found && where == kBefore)
            refuse(where, "{}: the item '{}' of it is not there any more: send the whole conversation as input", where,
                   id.substr(0, 80));
        if (!found)
            refuse(where + ".id", "{}.id: there is no item '{}' (any more): send the item itself", where,
                   id.substr(0, 80));
        return std::move(*found);
    }

    const Stored* stored_;
    std::string where_;  // of the item that is read
    json::object turn_;
    MessageOrigin turn_origin_;
    bool said_ = false;  // the turn has its text
};

/// The format as response_format has it.
json::value chat_format(const json::object& format) {
    if (item_type(format) != "json_schema") return format;
    json::object schema;
    for (const auto& [key, value] : format)
        if (key != "type") schema[key] = value;
    return json::object{{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

/// Fields that mean the same here and there.
constexpr std::string_view kSame[] = {"model",
                                      "compress",
                                      "stream",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "seed",
                                      "stop",
                                      "frequency_penalty",
                                      "presence_penalty",
                                      "repetition_penalty",
                                      "logit_bias",
                                      "min_tokens",
                                      "ignore_eos",
                                      "parallel_tool_calls",
                                      "prompt_cache_key",
                                      "chat_template_kwargs",
                                      "thinking_budget",
                                      "thinking_token_budget",
                                      "timeout",
                                      "cache_salt",
                                      "n_predict",
                                      "max_tokens",
                                      "regex",
                                      "grammar",
                                      "json_schema",
                                      "guided_json",
                                      "guided_regex",
                                      "guided_choice",
                                      "guided_grammar",
                                      "guided_whitespace_pattern",
                                      "structured_outputs",
                                      "strict"};

void refuse_unsupported_responses(const Fields& fields) {
    if (fields.boolean("background").value_or(false))
        refuse("background", "background: answers are not kept for later; ask without, or with \"stream\": true");
    if (fields.find("conversation") != nullptr)
        refuse("conversation", "conversation: not supported; send the items, or previous_response_id");
    if (fields.find("stream_id") != nullptr)
        refuse("stream_id", "stream_id: one response at a time on a connection; open another for another stream");
    if (fields.find("response_format") != nullptr)
        refuse("response_format", "response_format: expected text.format, where this API has it");
    if (fields.find("prompt") != nullptr) refuse("prompt", "prompt: there are no stored prompts here");
    if (fields.integer("top_logprobs", 0, 20).value_or(0) > 0)
        refuse("top_logprobs", "top_logprobs: not supported here; /v1/chat/completions has them");
    const json::array* include = fields.array("include");
    for (std::size_t i = 0; include != nullptr && i < include->size(); ++i)
        if ((*include)[i] == "message.output_text.logprobs")
            refuse("include", "include: log-probabilities are not supported here; /v1/chat/completions has them");
}

struct Items {
    json::array all;         // of the conversation so far, and then of the request
    std::size_t stored = 0;  // of them, of the conversation so far
    bool spelled = false;    // the request's is a text
    std::string path(std::size_t i) const {
        if (i < stored) return std::string(kBefore);
        return spelled ? "input" : fmt::format("input[{}]", i - stored);
    }
};

Items items_of(const Fields& fields, const Stored* stored, bool may_be_empty) {
    Items out;
    json::array& items = out.all;
    if (const auto id = fields.string("previous_response_id")) {
        auto before = stored != nullptr ? stored->conversation(std::string(*id)) : std::nullopt;
        if (!before)
            throw ApiError(400,
                           fmt::format("previous_response_id: there is no response '{}' (any more): send the whole "
                                       "conversation as input",
                                       id->substr(0, 80)),
                           "previous_response_id", "previous_response_not_found");
        items = std::move(*before);
        out.stored = items.size();
    }
    const json::value* input = fields.find("input");
    if (input == nullptr) refuse("input", "input: missing");
    out.spelled = input->is_string();
    if (out.spelled) {
        items.push_back({{"type", "message"}, {"role", "user"}, {"content", *input}});
    } else {
        for (const json::value& item : *fields.array("input")) items.push_back(item);
    }
    if (items.empty() && !may_be_empty) refuse("input", "input: expected at least one item");
    if (items.size() > kMostItems)
        refuse("input", "input: {} items{}, expected at most {} in all", items.size() - out.stored,
               out.stored > 0 ? fmt::format(" behind the {} of previous_response_id", out.stored) : "", kMostItems);
    return out;
}

json::object echoed_fields(const json::object& body) {
    json::object out;
    const auto copy = [&](std::string_view key, json::value otherwise) {
        const json::value* value = body.if_contains(key);
        out[key] = value != nullptr && !value->is_null() ? *value : std::move(otherwise);
    };
    copy("instructions", nullptr);
    copy("max_output_tokens", nullptr);
    copy("metadata", json::object());
    copy("parallel_tool_calls", true);
    copy("previous_response_id", nullptr);
    copy("prompt_cache_key", nullptr);
    copy("reasoning", json::object{{"effort", nullptr}, {"summary", nullptr}});
    copy("text", json::object{{"format", {{"type", "text"}}}});
    copy("tool_choice", "auto");
    copy("tools", json::array());
    copy("user", nullptr);
    return out;
}

void add_reasoning(const Fields& fields, json::object& chat, ResponsesRequest& out) {
    if (const json::object* reasoning = fields.object("reasoning")) {
        const Fields inner(*reasoning, "reasoning.");
        if (const auto effort = inner.string("effort")) chat["reasoning_effort"] = *effort;
        const auto summary = inner.string("summary");
        out.summary = (summary && *summary != "none") || inner.string("generate_summary");
    }
    const json::array* include = fields.array("include");
    out.sealed = include != nullptr && std::find(include->begin(), include->end(),
                                                 json::value("reasoning.encrypted_content")) != include->end();
}

}  // namespace

std::string seal(std::string_view text) { return std::string(kSeal) + std::string(text); }

std::string unseal(std::string_view sealed) {
    return sealed.starts_with(kSeal) ? std::string(sealed.substr(kSeal.size())) : std::string();
}

ResponsesRequest parse_responses(json::object body, const RequestDefaults& defaults, const Stored* stored) {
    const Fields fields(body);
    ResponsesRequest out;
    refuse_unsupported_responses(fields);
    out.store = fields.boolean("store").value_or(true);
    out.generate = fields.boolean("generate").value_or(true);
    Items items = items_of(fields, stored, !out.generate);
    ItemReader reader(stored);
    if (const auto text = fields.string("instructions"); text && !text->empty())
        reader.put({{"role", "system"}, {"content", *text}}, {"instructions", "instructions", {}});
    for (std::size_t i = 0; i < items.all.size(); ++i) reader.take(items.all[i], items.path(i));
    reader.finish_turn();
    out.compact = reader.summary_wanted;
    out.conversation = out.compact ? users_messages(items.all) : std::move(items.all);
    out.origins.messages = std::move(reader.origins);

    json::object chat;
    for (const std::string_view key : kSame)
        if (const json::value* value = fields.find(key)) chat[key] = *value;
    chat["messages"] = std::move(reader.messages);
    if (const json::value* most = fields.find("max_output_tokens")) chat["max_completion_tokens"] = *most;
    if (const json::array* tools = fields.array("tools")) chat["tools"] = chat_tools(*tools, out);
    if (const json::value* choice = fields.find("tool_choice")) chat["tool_choice"] = chat_tool_choice(*choice);
    if (const json::object* text = fields.object("text"))
        if (const json::object* format = Fields(*text, "text.").object("format"))
            chat["response_format"] = chat_format(*format);
    add_reasoning(fields, chat, out);
    out.echo = echoed_fields(body);
    CustomTools custom = std::move(out.generation.custom);  // functions, to the chat
    try {
        out.generation = parse_chat(std::move(chat), defaults);
        out.generation.custom = std::move(custom);
    } catch (const ApiError& error) {
        throw in_its_words(error, out.origins);
    }
    return out;
}

}  // namespace riptide::server
