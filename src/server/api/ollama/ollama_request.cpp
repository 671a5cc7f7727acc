#include "server/api/ollama/ollama_request.h"

#include <limits>

#include "server/api/history.h"

namespace riptide::server {

namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

/// What would change the answer and cannot be done, unless it has the value at which it does nothing.
void refuse_ways_to_draw(const Fields& options) {
    struct Way {
        const char* name;
        double off;
    };
    for (const auto& [name, off] : {Way{"mirostat", 0}, Way{"tfs_z", 1}, Way{"typical_p", 1}})
        if (const auto value = options.number(name); value && *value != off)
            refuse(options.name(name), "{}: not supported, expected {} (which turns it off); top_p and min_p are close",
                   options.name(name), off);
}

/// Penalties here look at the whole prompt and answer, so a window of them is all or nothing.
void apply_repeat_window(const Fields& options, SamplingParams& out) {
    const auto last = options.integer("repeat_last_n", -1, kMost);
    const bool in_force = out.repetition_penalty != 1 || out.presence_penalty != 0 || out.frequency_penalty != 0;
    if (!last || *last == -1 || !in_force) return;
    if (*last > 0)
        refuse(options.name("repeat_last_n"),
               "{} is {}, but penalties look at the whole context here: expected -1 (all of it) or 0 (no penalties)",
               options.name("repeat_last_n"), *last);
    out.repetition_penalty = 1;
    out.presence_penalty = out.frequency_penalty = 0;
}

/// `options`. Those that say how a model is loaded (num_ctx, num_gpu, ...) are passed over: it is loaded already.
SamplingParams parse_options(const Fields& fields, const RequestDefaults& defaults) {
    const json::object* given = fields.object("options");
    if (given == nullptr) return defaults.sampling;
    const Fields options(*given, "options.");
    SamplingParams out = parse_sampling(options, defaults);
    out.repetition_penalty = options.number("repeat_penalty").value_or(out.repetition_penalty);
    if (const auto most = options.integer("num_predict", -2, kMost)) out.max_tokens = *most > 0 ? *most : -1;
    if (options.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()) == -1)
        out.seed = defaults.sampling.seed;  // Ollama's way to say "any"
    refuse_ways_to_draw(options);
    apply_repeat_window(options, out);
    return out;
}

/// `format`: "json", a JSON Schema, or "" for none.
AnswerFormat parse_ollama_format(const Fields& fields) {
    AnswerFormat out;
    const json::value* format = fields.find("format");
    if (format == nullptr) return out;
    out.place_in("format");
    if (format->is_object()) {
        out.kind = AnswerFormat::Kind::json_schema;
        out.schema = *format;
    } else if (const std::string_view word = fields.string("format").value_or(""); word == "json") {
        out.kind = AnswerFormat::Kind::json_object;
    } else if (!word.empty()) {
        refuse("format", "format: expected \"json\" or a JSON Schema, found '{}'", word.substr(0, 40));
    }
    return out;
}

/// `think`: whether, or how long. True if the request wants thinking.
bool parse_think(const Fields& fields, ChatOptions& options, Request& out) {
    const json::value* think = fields.find("think");
    if (think == nullptr) return false;
    if (!think->is_string()) {
        options.enable_thinking = fields.boolean("think");
        return *options.enable_thinking;
    }
    const std::string_view effort = think->get_string();
    out.thinking_budget = budget_of_effort(effort, "think");
    tell_effort(effort, options);
    options.enable_thinking = effort != "none";
    return *options.enable_thinking;
}

void refuse_images(const Fields& fields) {
    const json::array* images = fields.array("images");
    if (images != nullptr && !images->empty())
        refuse(fields.name("images"), "{}: not supported, expected none: this model reads text only",
               fields.name("images"));
}

void parse_ollama_logprobs(const Fields& fields, GenerationRequest& out, Request& request) {
    out.logprobs = fields.boolean("logprobs").value_or(false);
    const auto top = fields.integer("top_logprobs", 0, 20);
    if (top && *top > 0 && !out.logprobs) refuse("top_logprobs", "top_logprobs: needs \"logprobs\": true");
    if (!out.logprobs) return;
    request.sampling.logprobs = top.value_or(0);
    request.want_tokens = true;
}

/// What both routes have, all but the prompt.
Request parse_common(const Fields& fields, const RequestDefaults& defaults, GenerationRequest& out) {
    Request request;
    out.until = parse_timeout(fields, defaults);
    out.model = ollama_model(fields);
    out.stream = fields.boolean("stream").value_or(true);
    request.sampling = parse_options(fields, defaults);
    request.thinking_budget = defaults.thinking_budget;
    request.format = parse_ollama_format(fields);
    request.compression = parse_compression(fields);
    parse_ollama_logprobs(fields, out, request);
    return request;
}

ChatOptions chat_options_of(const RequestDefaults& defaults) {
    ChatOptions out;
    out.enable_thinking = defaults.thinking;
    out.template_kwargs = defaults.template_kwargs;
    return out;
}

json::array calls_of(const json::array& sent, const std::string& where) {
    json::array out;
    for (std::size_t i = 0; i < sent.size(); ++i) {
        const std::string place = fmt::format("{}[{}]", where, i);
        if (!sent[i].is_object()) refuse(place, "{}: expected an object, found {}", place, kind_of(sent[i]));
        const json::object* function = Fields(sent[i].get_object(), place + ".").object("function");
        if (function == nullptr) refuse(place + ".function", "{}.function: missing", place);
        const Fields inner(*function, place + ".function.");
        const json::object* arguments = inner.object("arguments");
        const json::object call = {{"name", inner.filled("name")},
                                   {"arguments", arguments != nullptr ? *arguments : json::object()}};
        out.push_back({{"type", "function"}, {"function", call}});
    }
    return out;
}

json::object message_of(const Fields& fields, const std::string& where) {
    const std::string role(fields.filled("role"));
    if (role != "system" && role != "user" && role != "assistant" && role != "tool")
        refuse(where + ".role", "{}.role: unknown role '{}', expected system, user, assistant or tool", where,
               role.substr(0, 40));
    refuse_images(fields);
    json::object out = {{"role", role}, {"content", fields.string("content").value_or("")}};
    if (const auto thinking = fields.string("thinking"); thinking && !thinking->empty())
        out["reasoning_content"] = *thinking;
    if (const json::array* calls = fields.array("tool_calls"); calls != nullptr && !calls->empty())
        out["tool_calls"] = calls_of(*calls, where + ".tool_calls");
    if (const auto name = fields.string("tool_name")) out["name"] = *name;
    return out;
}

}  // namespace

std::string ollama_model(const Fields& fields) {
    for (const char* key : {"model", "name"})
        if (const auto name = fields.string(key); name && !name->empty()) return std::string(*name);
    return {};
}

GenerationRequest parse_ollama_chat(const json::object& body, const RequestDefaults& defaults) {
    const Fields fields(body);
    GenerationRequest out;
    Request request = parse_common(fields, defaults, out);
    ChatPrompt prompt;
    prompt.options = chat_options_of(defaults);
    (void)parse_think(fields, prompt.options, request);
    if (const json::array* tools = fields.array("tools")) prompt.tools = prepare_tools(*tools);
    const json::array* messages = fields.array("messages");
    if (messages == nullptr || messages->empty()) return out;
    for (std::size_t i = 0; i < messages->size(); ++i) {
        const std::string where = fmt::format("messages[{}]", i);
        const json::value& message = (*messages)[i];
        if (!message.is_object()) refuse(where, "{}: expected an object, found {}", where, kind_of(message));
        prompt.messages.push_back(message_of(Fields(message.get_object(), where + "."), where));
    }
    prompt.messages = prepare_history(std::move(prompt.messages));
    const json::object& last = prompt.messages.back().get_object();
    prompt.options.continue_final_message = last.at("role") == "assistant" && !last.contains("tool_calls");
    request.prompt = std::move(prompt);
    out.prompts.push_back(std::move(request));
    return out;
}

GenerationRequest parse_ollama_generate(const json::object& body, const RequestDefaults& defaults) {
    const Fields fields(body);
    GenerationRequest out;
    Request request = parse_common(fields, defaults, out);
    ChatPrompt prompt;
    prompt.options = chat_options_of(defaults);
    const bool thinks = parse_think(fields, prompt.options, request), raw = fields.boolean("raw").value_or(false);
    refuse_images(fields);
    for (const char* key : {"suffix", "template"})
        if (!fields.string(key).value_or("").empty())
            refuse(key, "{}: not supported; with \"raw\": true the prompt is taken as it is", key);
    if (const json::array* context = fields.array("context"); context != nullptr && !context->empty())
        refuse("context", "context: not supported; /api/chat takes the conversation as messages");
    const std::string_view text = fields.string("prompt").value_or(""), system = fields.string("system").value_or("");
    if (raw && !system.empty()) refuse("system", "system: not with \"raw\": true, where the prompt is taken as it is");
    if (raw && thinks) refuse("think", "think: not with \"raw\": true, where the prompt is taken as it is");
    if (text.empty()) return out;
    if (!system.empty()) prompt.messages.push_back({{"role", "system"}, {"content", system}});
    prompt.messages.push_back({{"role", "user"}, {"content", text}});
    if (raw) request.prompt = TextPrompt{.text = std::string(text)};
    else request.prompt = std::move(prompt);
    out.prompts.push_back(std::move(request));
    return out;
}

}  // namespace riptide::server
