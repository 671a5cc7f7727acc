#include "text/chat/chat.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json.h"
#include "text/chat/chat_messages.h"

namespace riptide {
namespace {

constexpr std::string_view kProbe = "riptide-probe";

int laguna_version(std::string_view source) {
    constexpr std::string_view kMarker = "laguna_glm_thinking_v";
    const std::size_t at = source.find(kMarker);
    if (at == std::string_view::npos || at + kMarker.size() >= source.size()) return 0;
    const char digit = source[at + kMarker.size()];
    return digit >= '1' && digit <= '9' ? digit - '0' : 0;
}

json::value sample_message(const json::value& content) { return {{"role", "user"}, {"content", content}}; }

json::value sample_call() {
    const json::value function = {{"name", "probe_tool"}, {"arguments", {{"probe_key", "probe_value"}}}};
    return {{"role", "assistant"},
            {"content", ""},
            {"tool_calls", {{{"id", "call_0"}, {"type", "function"}, {"function", function}}}}};
}

CallForm call_form(std::string_view prompt) {
    const auto has = [&](std::string_view text) { return prompt.find(text) != std::string_view::npos; };
    if (has("<tool_call>\n<function=probe_tool>\n<parameter=probe_key>\nprobe_value\n</parameter>"))
        return CallForm::function_tags;
    return has("<tool_call>\n{\"name\": \"probe_tool\", \"arguments\": {") ? CallForm::json : CallForm::other;
}

/// The prompt of a sample, or nothing if the template fails on it.
std::optional<std::string> try_render(const jinja::Template& program, const json::object& variables,
                                      const jinja::RenderOptions& options) {
    try {
        return program.render(variables, options).text;
    } catch (const Error&) {
        return std::nullopt;
    }
}

/// Leaves what comes before the last place where `mark` stands.
void cut_at(jinja::Rendered& prompt, std::string_view mark) {
    const std::size_t at = prompt.text.rfind(mark);
    RT_CHECK(at != std::string::npos,
             "the chat template does not show the content of the last message, so no answer can go on with it");
    const auto end = static_cast<int64_t>(at);
    prompt.text.resize(at);
    std::erase_if(prompt.trusted, [end](const TextSpan& span) { return span.begin >= end; });
    if (!prompt.trusted.empty()) prompt.trusted.back().end = std::min(prompt.trusted.back().end, end);
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name, std::string bos, std::string eos,
                           json::object defaults, const jinja::Limits& limits)
    : template_(jinja::Template::parse(source, name, limits)),
      bos_(std::move(bos)),
      eos_(std::move(eos)),
      defaults_(std::move(defaults)) {
    probe(source);
}

/// Renders samples to see what the template can do.
void ChatTemplate::probe(std::string_view source) {
    knows_developer_ = source.find("developer") != std::string_view::npos;
    traits_.laguna_version = laguna_version(source);
    jinja::RenderOptions options;
    options.trusted_variables = {{"bos_token", bos_}, {"eos_token", eos_}};
    options.now.emplace();
    options.now->tm_year = 100;
    options.now->tm_mday = 1;
    const json::object plain = {{"messages", json::array{sample_message(json::string(kProbe))}},
                                {"tools", nullptr},
                                {"documents", nullptr},
                                {"add_generation_prompt", true}};
    std::string prompt;
    try {
        prompt = template_.render(plain, options).text;
    } catch (const jinja::RaisedError&) {
        return;  // it asks for more than the sample has; nothing to learn
    }
    traits_.newlines_in_tags = prompt.find(fmt::format("<user>\n{}\n</user>", kProbe)) != std::string::npos;
    traits_.im_tags = prompt.find(fmt::format("<|im_start|>user\n{}<|im_end|>", kProbe)) != std::string::npos;

    json::object variant = plain;
    variant["messages"] = json::array{sample_message(json::array{json::value{{"type", "text"}, {"text", kProbe}}})};
    traits_.content_parts =
        try_render(template_, variant, options) == prompt && prompt.find(kProbe) != std::string::npos;

    variant = plain;
    const std::string late = "riptide-late";
    const std::pair<const char*, std::string> turns[] = {{"assistant", "a"}, {"system", late}, {"user", "b"}};
    for (const auto& [role, text] : turns)
        variant["messages"].as_array().push_back({{"role", role}, {"content", text}});
    const std::optional<std::string> with_late = try_render(template_, variant, options);
    traits_.late_system = with_late && with_late->find(late) != std::string::npos;

    variant = plain;
    variant["tools"] =
        json::array{json::value{{"type", "function"},
                                {"function",
                                 {{"name", "probe_tool"},
                                  {"description", ""},
                                  {"parameters", {{"type", "object"}, {"properties", json::object()}}}}}}};
    const std::optional<std::string> with_tool = try_render(template_, variant, options);
    traits_.tools = with_tool && with_tool->find("probe_tool") != std::string::npos;

    variant["messages"].as_array().push_back(sample_call());
    if (const auto call = try_render(template_, variant, options)) traits_.calls = call_form(*call);

    variant = plain;
    variant["enable_thinking"] = true;
    const std::optional<std::string> thinking = try_render(template_, variant, options);
    variant["enable_thinking"] = false;
    traits_.thinking = thinking && thinking != try_render(template_, variant, options);
}

jinja::Rendered ChatTemplate::render(const json::array& messages, const json::array& tools, const ChatOptions& options,
                                     WorkBudget* work) const {
    check_tools(tools);
    check_template_kwargs(options.template_kwargs);
    json::object variables = options.template_kwargs;
    if (options.enable_thinking && !variables.contains("enable_thinking"))
        variables["enable_thinking"] = *options.enable_thinking;
    variables.insert(defaults_.begin(), defaults_.end());  // what is there stays
    json::array prepared = prepare_messages(messages, {traits_.content_parts, knows_developer_, traits_.late_system});
    std::string_view mark;
    if (options.continue_final_message) mark = mark_final_message(prepared);
    variables["messages"] = std::move(prepared);
    variables["tools"] = tools.empty() ? json::value() : json::value(tools);
    variables["documents"] = nullptr;
    variables["add_generation_prompt"] = options.add_generation_prompt && mark.empty();
    jinja::RenderOptions render_options;
    render_options.trusted_variables = {{"bos_token", bos_}, {"eos_token", eos_}};
    render_options.trusted_roles = {"system", "developer", "user", "assistant", "tool"};
    render_options.now = options.now;
    render_options.work = work;
    jinja::Rendered out = template_.render(variables, render_options);
    if (!mark.empty()) cut_at(out, mark);
    return out;
}

std::string template_summary(std::string_view source) {
    try {
        const ChatTraits traits = ChatTemplate(source, "chat template", "<s>", "</s>").traits();
        std::string out = "a template of its own kind";
        if (traits.laguna_version > 0)
            out = fmt::format("Laguna v{}, {}", traits.laguna_version,
                              traits.newlines_in_tags ? "newlines inside tags" : "no newlines inside tags");
        else if (traits.im_tags)
            out = traits.calls == CallForm::function_tags ? "ChatML, calls between tags"
                  : traits.calls == CallForm::json        ? "ChatML, calls in JSON"
                                                          : "ChatML, no calls";
        out += traits.tools ? ", tools" : ", no tools";
        out += traits.thinking ? ", thinking" : ", no thinking";
        return out;
    } catch (const Error& found) {
        return fmt::format("cannot be used: {}", found.what());
    }
}

Thinking thinking_of(const jinja::Rendered& prompt) {
    constexpr std::array<std::string_view, 4> kMarks = {"<think>", "</think>", "<assistant>", "<|im_start|>"};
    for (auto span = prompt.trusted.rbegin(); span != prompt.trusted.rend(); ++span) {
        const std::string_view text =
            std::string_view(prompt.text)
                .substr(static_cast<std::size_t>(span->begin), static_cast<std::size_t>(span->end - span->begin));
        std::size_t last = 0;
        std::string_view found;
        for (const std::string_view mark : kMarks) {
            const std::size_t at = text.rfind(mark);
            if (at == std::string_view::npos || (!found.empty() && at < last)) continue;
            last = at;
            found = mark;
        }
        if (found == kMarks[0]) return Thinking::inside;
        if (found == kMarks[1]) return Thinking::over;
        if (!found.empty()) return Thinking::not_begun;
    }
    return Thinking::not_begun;
}

}  // namespace riptide
