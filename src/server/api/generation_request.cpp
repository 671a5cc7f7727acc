#include "server/api/generation_request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "server/api/constraint_fields.h"
#include "server/api/history.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

constexpr std::size_t kMostTools = 512, kMostBiases = 1024;
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

void parse_stop(const Fields& fields, SamplingParams& out) {
    const json::value* stop = fields.find("stop");
    if (stop == nullptr) return;
    if (stop->is_string()) {
        out.stop_strings.emplace_back(stop->get_string());
        return;
    }
    const json::array* list = fields.array("stop");
    for (std::size_t i = 0; i < list->size(); ++i) {
        const json::value& text = (*list)[i];
        if (!text.is_string())
            refuse(fmt::format("{}[{}]", fields.name("stop"), i), "{}[{}]: expected a string, found {}",
                   fields.name("stop"), i, kind_of(text));
        out.stop_strings.emplace_back(text.get_string());
    }
}

void parse_logit_bias(const Fields& fields, SamplingParams& out) {
    const json::object* biases = fields.object("logit_bias");
    if (biases == nullptr) return;
    if (biases->size() > kMostBiases)
        refuse("logit_bias", "logit_bias has {} entries, expected at most {}", biases->size(), kMostBiases);
    for (const auto& [key, value] : *biases) {
        int32_t id = 0;
        const char* end = key.data() + key.size();
        const auto [stopped, error] = std::from_chars(key.data(), end, id);
        if (error != std::errc() || stopped != end || id < 0)
            refuse("logit_bias", "logit_bias: '{}' is not a token id", std::string_view(key).substr(0, 40));
        if (!value.is_number()) refuse("logit_bias", "logit_bias.{}: expected a number", id);
        out.logit_bias.emplace_back(id, value.to_number<double>());
    }
}

ChatOptions parse_chat_options(const Fields& fields, const RequestDefaults& defaults) {
    ChatOptions options;
    options.enable_thinking = defaults.thinking;
    options.template_kwargs = defaults.template_kwargs;
    if (const auto effort = fields.string("reasoning_effort")) {
        options.enable_thinking = *effort != "none";
        tell_effort(*effort, options);
    }
    if (const json::object* extra = fields.object("chat_template_kwargs"))
        for (const auto& [key, value] : *extra) options.template_kwargs[key] = value;
    return options;
}

/// The answer goes on with the last message: `continue_final_message`, or "prefix": true in a message of the
/// assistant, as other servers have it.
bool goes_on(const Fields& fields, json::array& messages) {
    bool out = fields.boolean("continue_final_message").value_or(false);
    if (fields.boolean("add_generation_prompt").value_or(false) && out)
        refuse("continue_final_message",
               "continue_final_message: with add_generation_prompt the answer would be a message of its own, expected "
               "one of the two");
    json::object* last = messages.empty() ? nullptr : messages.back().if_object();
    if (last == nullptr) return out;
    const Fields of_last(*last, fmt::format("messages[{}].", messages.size() - 1));
    if (of_last.string("role").value_or("") != "assistant") return out;
    out = of_last.boolean("prefix").value_or(false) || out;
    last->erase("prefix");  // it is not for the template
    return out;
}

/// What says how long the model may think: the most exact of the fields that are there.
int64_t parse_thinking_budget(const Fields& fields, const RequestDefaults& defaults) {
    int64_t budget = defaults.thinking_budget;
    if (const auto effort = fields.string("reasoning_effort")) budget = budget_of_effort(*effort, "reasoning_effort");
    for (const char* key : {"thinking_budget", "thinking_token_budget"})
        if (const auto tokens = fields.integer(key, 0, kMostTokens)) budget = *tokens;
    return budget;
}

void parse_stream(const Fields& fields, GenerationRequest& out) {
    out.stream = fields.boolean("stream").value_or(false);
    const json::object* options = fields.object("stream_options");
    if (options != nullptr)
        out.include_usage = Fields(*options, "stream_options.").boolean("include_usage").value_or(false);
}

int32_t parse_n(const Fields& fields) { return static_cast<int32_t>(fields.integer("n", 1, 128).value_or(1)); }

std::string first_string(const Fields& fields, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys)
        if (const auto text = fields.string(key)) return std::string(*text);
    return {};
}

}  // namespace

int64_t budget_of_effort(std::string_view effort, const std::string& field) {
    if (effort == "none") return 0;
    if (effort == "minimal") return 256;
    if (effort == "low") return 1024;
    if (effort == "medium") return 8192;
    if (effort == "high" || effort == "xhigh" || effort == "max") return -1;
    refuse(field, "{}: expected none, minimal, low, medium, high, xhigh or max, found '{}'", field,
           effort.substr(0, 40));
}

namespace {

CompressMode parse_compress_mode(std::string_view mode, const std::string& field) {
    if (mode == "off") return CompressMode::off;
    if (mode == "auto") return CompressMode::automatic;
    if (mode == "always") return CompressMode::always;
    refuse(field, "{}: expected off, auto or always, found '{}'", field, mode.substr(0, 40));
}

}  // namespace

CompressionRequest parse_compression(const Fields& fields) {
    CompressionRequest out;
    const json::value* given = fields.find("compress");
    if (given == nullptr) return out;
    if (given->is_string()) {
        out.mode = parse_compress_mode(given->get_string(), fields.name("compress"));
        return out;
    }
    const Fields inner(*fields.object("compress"), fields.name("compress") + ".");
    if (const auto mode = inner.string("mode")) out.mode = parse_compress_mode(*mode, inner.name("mode"));
    out.keep = inner.number("keep");
    if (out.keep && !(*out.keep > 0 && *out.keep <= 1))
        refuse(inner.name("keep"), "{} is {}, expected more than 0 and at most 1", inner.name("keep"), *out.keep);
    out.keep_tokens = inner.integer("keep_tokens", 1, kMostTokens);
    out.above = inner.integer("above", 0, kMostTokens);
    out.show = inner.boolean("show").value_or(false);
    if (const auto positions = inner.string("positions")) {
        if (*positions != "compact" && *positions != "original")
            refuse(inner.name("positions"), "{}: expected compact or original, found '{}'", inner.name("positions"),
                   positions->substr(0, 40));
        out.positions = *positions == "original" ? KeptPositions::original : KeptPositions::compact;
    }
    return out;
}

json::object template_variables(const RequestDefaults& defaults, json::object makers) {
    if (defaults.thinking) makers["enable_thinking"] = *defaults.thinking;
    for (const auto& [key, value] : defaults.template_kwargs) makers[key] = value;
    return makers;
}

std::optional<int64_t> parse_max_tokens(const Fields& fields, std::initializer_list<const char*> keys) {
    std::optional<int64_t> out;
    for (const char* key : keys) {
        const auto most = fields.integer(key, -1, kMostTokens);
        if (most == 0)
            refuse(fields.name(key), "{} is 0, expected 1 to {}, or -1: until the context ends", fields.name(key),
                   kMostTokens);
        if (most) out = most;
    }
    return out;
}

std::optional<std::chrono::steady_clock::time_point> parse_timeout(const Fields& fields,
                                                                   const RequestDefaults& defaults) {
    constexpr double kMost = 1e9;  // as a clock's nanoseconds it fits into 63 bits
    const auto seconds = fields.number("timeout");
    if (!seconds) return std::nullopt;
    if (!(*seconds > 0 && *seconds <= kMost))
        refuse("timeout", "timeout is {}, expected seconds: more than 0 and at most {}", *seconds, kMost);
    const std::chrono::milliseconds time(static_cast<int64_t>(std::ceil(*seconds * 1000)));
    const auto until = defaults.received + time;
    if (defaults.work != nullptr) {
        defaults.work->end_at(until);
        defaults.work->look();
    }
    return until;
}

SamplingParams parse_sampling(const Fields& f, const RequestDefaults& defaults) {
    SamplingParams p = defaults.sampling;
    p.temperature = f.number("temperature").value_or(p.temperature);
    p.top_p = f.number("top_p").value_or(p.top_p);
    p.min_p = f.number("min_p").value_or(p.min_p);
    p.top_k = f.integer("top_k", -1, kMostTokens).value_or(p.top_k);
    if (p.top_k == -1) p.top_k = 0;  // others' way to say "all"
    p.frequency_penalty = f.number("frequency_penalty").value_or(p.frequency_penalty);
    p.presence_penalty = f.number("presence_penalty").value_or(p.presence_penalty);
    p.repetition_penalty = f.number("repetition_penalty").value_or(p.repetition_penalty);
    if (const auto seed = f.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
        p.seed = static_cast<uint64_t>(*seed);
    p.max_tokens = parse_max_tokens(f, {"n_predict", "max_tokens", "max_completion_tokens"}).value_or(p.max_tokens);
    p.min_tokens = f.integer("min_tokens", 0, kMostTokens).value_or(0);
    p.ignore_eos = f.boolean("ignore_eos").value_or(false);
    parse_stop(f, p);
    parse_logit_bias(f, p);
    return p;
}

void tell_effort(std::string_view effort, ChatOptions& options) {
    if (effort != "none") options.template_kwargs["reasoning_effort"] = effort;
}

json::array prepare_tools(const json::array& tools) {
    if (tools.size() > kMostTools) refuse("tools", "tools: {} tools, expected at most {}", tools.size(), kMostTools);
    json::array out;
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const std::string where = fmt::format("tools[{}]", i);
        if (!tools[i].is_object()) refuse(where, "{}: expected an object, found {}", where, kind_of(tools[i]));
        const json::object& tool = tools[i].get_object();
        const json::value* type = tool.if_contains("type");
        const bool function = type == nullptr || (type->is_string() && type->get_string() == "function");
        if (!function) continue;  // web_search and the like: no model of ours has them
        const json::object* described = Fields(tool, where + ".").object("function");
        if (described == nullptr) refuse(where + ".function", "{}.function: missing", where);
        const Fields names(*described, where + ".function.");
        (void)names.filled("name");
        out.push_back(tool);
        const auto strict =
            Fields(tool, where + ".").boolean("strict");  // beside the function, as some clients have it
        if (strict && !names.boolean("strict")) out.back().at("function").as_object()["strict"] = *strict;
    }
    return out;
}

GenerationRequest parse_chat(json::object body, const RequestDefaults& defaults) {
    const Fields fields(body);
    GenerationRequest out;
    out.until = parse_timeout(fields, defaults);
    Request& request = out.prompts.emplace_back();
    request.sampling = parse_sampling(fields, defaults);
    request.n = parse_n(fields);
    request.compression = parse_compression(fields);
    parse_stream(fields, out);
    request.format = parse_format(fields);
    out.one_tool_call = !fields.boolean("parallel_tool_calls").value_or(true);
    out.logprobs = fields.boolean("logprobs").value_or(false);
    const auto top = fields.integer("top_logprobs", 0, 20);
    if (top && *top > 0 && !out.logprobs) refuse("top_logprobs", "top_logprobs: needs \"logprobs\": true");
    if (out.logprobs) {
        request.sampling.logprobs = top.value_or(0);
        request.want_tokens = true;
    }
    out.model = first_string(fields, {"model"});
    out.session = first_string(fields, {"prompt_cache_key", "session_id"});
    out.cache_salt = std::string(fields.string("cache_salt").value_or(""));
    ChatPrompt prompt;
    prompt.options = parse_chat_options(fields, defaults);
    request.thinking_budget = parse_thinking_budget(fields, defaults);
    const ToolOffer offer = parse_tool_choice(fields, request.tool_choice);
    request.tool_choice.single = out.one_tool_call;
    if (const json::array* tools = fields.array("tools"); tools != nullptr && !offer.none)
        prompt.tools = prepare_tools(with_custom_functions(*tools, out.custom));
    keep_offered(offer, prompt.tools);
    if (fields.array("messages") == nullptr) refuse("messages", "messages: missing");
    json::array& messages = body["messages"].get_array();
    prompt.options.continue_final_message = goes_on(fields, messages);
    prompt.messages = prepare_history(std::move(messages));
    request.prompt = std::move(prompt);
    return out;
}

namespace {

std::vector<int32_t> token_ids(const json::array& ids, const std::string& where) {
    std::vector<int32_t> out;
    out.reserve(ids.size());
    for (const json::value& id : ids) {
        if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > kMostTokens)
            refuse("prompt", "{}[{}]: expected a token id, found {}", where, out.size(),
                   json::serialize(id).substr(0, 40));
        out.push_back(static_cast<int32_t>(id.get_int64()));
    }
    return out;
}

std::vector<Prompt> parse_prompts(const json::value& prompt) {
    constexpr std::size_t kMostPrompts = 128;
    const auto text = [](const json::value& value) { return TextPrompt{.text = std::string(value.get_string())}; };
    if (prompt.is_string()) return {text(prompt)};
    if (!prompt.is_array() || prompt.get_array().empty())
        refuse("prompt", "prompt: expected a string, or an array of strings or token ids");
    const json::array& list = prompt.get_array();
    if (list[0].is_number()) return {token_ids(list, "prompt")};
    if (list.size() > kMostPrompts)
        refuse("prompt", "prompt: {} prompts, expected at most {}", list.size(), kMostPrompts);
    std::vector<Prompt> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].is_string()) out.emplace_back(text(list[i]));
        else if (list[i].is_array()) out.emplace_back(token_ids(list[i].get_array(), fmt::format("prompt[{}]", i)));
        else refuse("prompt", "prompt[{}]: expected a string or an array of token ids, found {}", i, kind_of(list[i]));
    }
    return out;
}

std::string echo_of(const Prompt& prompt, const Tokenizer* tokenizer) {
    if (const auto* text = std::get_if<TextPrompt>(&prompt)) return text->text;
    const auto& ids = std::get<TokenPrompt>(prompt);
    if (tokenizer == nullptr) refuse("echo", "echo of token ids needs a tokenizer, and this model has none");
    for (const int32_t id : ids)
        if (id >= tokenizer->vocab_size()) refuse("prompt", "prompt: token {} is not in the vocabulary", id);
    std::string text;  // ids may spell anything, and JSON is UTF-8
    Utf8Stream stream;
    stream.push(tokenizer->decode(ids), text);
    stream.finish(text);
    return text;
}

void refuse_unsupported(const Fields& fields) {
    if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty())
        refuse("suffix", "suffix: this model has no tokens for filling in the middle");
    if (fields.integer("best_of", 1, 128).value_or(1) > parse_n(fields))
        refuse("best_of", "best_of: more answers than n are not supported");
}

/// OpenAI's default for this endpoint, where nothing says how long the answer may be.
constexpr int64_t kTokensUnasked = 16;

bool says_how_long(const Fields& fields) {
    const auto given = [&](const char* key) { return fields.find(key) != nullptr; };
    return given("max_tokens") || given("max_completion_tokens") || given("n_predict");
}

}  // namespace

GenerationRequest parse_completion(json::object body, const RequestDefaults& defaults, const Tokenizer* tokenizer) {
    const Fields fields(body);
    GenerationRequest out;
    out.until = parse_timeout(fields, defaults);
    refuse_unsupported(fields);
    const bool echo = fields.boolean("echo").value_or(false);
    Request request;
    const json::value* most = fields.find("max_tokens");
    request.prompt_only = echo && most != nullptr && *most == 0;  // evaluation harnesses want no more
    if (request.prompt_only) body.erase("max_tokens");
    request.sampling = parse_sampling(fields, defaults);
    if (request.sampling.max_tokens < 0 && !says_how_long(fields)) request.sampling.max_tokens = kTokensUnasked;
    request.n = parse_n(fields);
    request.compression = parse_compression(fields);
    if (echo && request.compression.mode == CompressMode::always)
        refuse("compress", "compress: what echo gives back is the whole prompt");
    if (echo) request.compression.mode = CompressMode::off;
    parse_stream(fields, out);
    request.format = parse_format(fields);
    out.model = first_string(fields, {"model"});
    out.session = first_string(fields, {"prompt_cache_key", "session_id"});
    out.cache_salt = std::string(fields.string("cache_salt").value_or(""));
    if (const auto top = fields.integer("logprobs", 0, 20)) {
        out.logprobs = request.want_tokens = true;
        request.prompt_logprobs = echo;
        request.sampling.logprobs = *top;
    }
    const json::value* prompt = fields.find("prompt");
    if (prompt == nullptr) refuse("prompt", "prompt: missing");
    for (Prompt& each : parse_prompts(*prompt)) {
        if (echo) out.echo.push_back(echo_of(each, tokenizer));
        request.prompt = std::move(each);
        out.prompts.push_back(request);
    }
    return out;
}

}  // namespace riptide::server
