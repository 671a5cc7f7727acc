#include "engine/prompt/model_text.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "engine/prompt/loaded_text.h"

namespace riptide {

namespace {

/// What ends a message in the templates of Laguna and Qwen.
constexpr std::array<std::string_view, 6> kMessageEnds = {"</system>", "</user>",      "</tool_response>",
                                                          "</tool>",   "</assistant>", "<|im_end|>"};
/// Prompts shorter than this are not worth a checkpoint.
constexpr int64_t kShortPrompt = 256;
/// A message that ends so near to the prompt's end serves as well as the end.
constexpr int64_t kNearEnd = 64;

/// Byte offsets behind each end of a message that the template, not a client, wrote.
std::vector<int64_t> message_ends(const jinja::Rendered& prompt) {
    std::vector<int64_t> ends;
    for (const TextSpan& span : prompt.trusted) {
        const std::string_view text =
            std::string_view(prompt.text)
                .substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
        for (const std::string_view marker : kMessageEnds)
            for (size_t at = text.find(marker); at != std::string_view::npos; at = text.find(marker, at + 1))
                ends.push_back(span.begin + static_cast<int64_t>(at + marker.size()));
    }
    std::sort(ends.begin(), ends.end());
    return ends;
}

bool opens_with_system(const ChatPrompt& chat, const jinja::Rendered& prompt) {
    if (!chat.tools.empty()) return true;
    if (chat.messages.empty() || !chat.messages[0].is_object()) return false;
    const json::value* role = chat.messages[0].get_object().if_contains("role");
    if (role != nullptr && role->is_string() && (role->get_string() == "system" || role->get_string() == "developer"))
        return true;
    const std::vector<int64_t> ends = message_ends(prompt);  // the template may have a system prompt of its own
    if (ends.empty()) return false;
    const std::string_view first = std::string_view(prompt.text).substr(0, static_cast<size_t>(ends[0]));
    return first.ends_with("</system>") || first.starts_with("<|im_start|>system\n");
}

}  // namespace

ModelText::ModelText(const Checkpoint& checkpoint) : makers_(generation_defaults(checkpoint)) {
    if (!has_tokenizer(checkpoint)) return;
    tokenizer_.emplace(load_tokenizer(checkpoint));
    constrainer_ = std::make_unique<Constrainer>();
    stop_ids_ = tokenizer_->stop_ids(makers_.eos_ids);
    try {
        template_ = load_chat_template(checkpoint, *tokenizer_, makers_);
    } catch (const Error& error) {  // completions do without
        chat_problem_ = error.what();
    }
    if (template_) dialect_ = find_dialect(template_->traits(), *tokenizer_);
    if (dialect_ != nullptr) add_stops();
    std::string facts = fmt::format("{:016x} {}", tokenizer_->fingerprint(), chat_template_source(checkpoint));
    if (!makers_.template_kwargs.empty()) facts += json::serialize(makers_.template_kwargs);
    fingerprint_ = to_hex(sha256(std::as_bytes(std::span(facts))));
}

void ModelText::add_stops() {
    for (const std::string_view stop : dialect_->stops) {
        const int32_t id = tokenizer_->id_of(stop);
        const bool is_new = std::find(stop_ids_.begin(), stop_ids_.end(), id) == stop_ids_.end();
        if (id >= 0 && tokenizer_->is_added(id) && is_new) stop_ids_.push_back(id);
    }
    std::sort(stop_ids_.begin(), stop_ids_.end());
}

EncodedPrompt ModelText::encode(const Prompt& prompt, WorkBudget* work) const {
    if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) return encode_chat(*chat, work);
    EncodedPrompt out;
    if (const auto* tokens = std::get_if<TokenPrompt>(&prompt)) {
        out.tokens = *tokens;
        return out;
    }
    const auto& text = std::get<TextPrompt>(prompt);
    RT_CHECK(tokenizer_, "this model has no tokenizer: it takes prompts as token ids only");
    EncodeOptions options;
    options.add_special = text.add_special;
    options.parse_special = text.parse_special;
    options.work = work;
    out.tokens = tokenizer_->encode(text.text, options);
    return out;
}

std::string ModelText::why_no_chats() const {
    if (chats()) return "";
    const std::string_view takes = "it takes prompts as text or token ids only";
    if (!chat_problem_.empty())
        return fmt::format("this model's chat template cannot be used, so {}: {} (another comes with --chat-template)",
                           takes, chat_problem_);
    if (!template_) return fmt::format("this model has no chat template: {}", takes);
    return fmt::format(
        "no chat dialect fits this model's template and vocabulary, so its answers cannot be parsed: {}. Known "
        "dialects, with the tokens that they need: {}",
        takes, known_dialects());
}

void ModelText::require_chats() const {
    if (!chats()) throw Error(why_no_chats());
}

EncodedPrompt ModelText::encode_chat(const ChatPrompt& chat, WorkBudget* work) const {
    require_chats();
    EncodedPrompt out;
    out.rendered = std::make_shared<jinja::Rendered>(template_->render(chat.messages, chat.tools, chat.options, work));
    const jinja::Rendered& rendered = *out.rendered;
    EncodeOptions options;
    options.trusted = rendered.trusted;
    options.work = work;
    out.tokens = tokenizer_->encode(rendered.text, options);
    out.message_ends =
        token_ends(*tokenizer_, out.tokens, message_ends(rendered), static_cast<int64_t>(rendered.text.size()));
    out.opens_with_system = opens_with_system(chat, rendered);
    out.think_begin = tokenizer_->id_of("<think>");
    out.think_end = tokenizer_->id_of("</think>");
    out.thinking = thinking_of(rendered);
    const bool can_think = template_->traits().thinking && out.think_begin >= 0 && out.think_end >= 0;
    const bool continues = chat.options.continue_final_message;
    if (continues || (out.thinking == Thinking::not_begun && !can_think)) out.thinking = Thinking::over;
    if (dialect_->line_before_end_think) out.line_end = tokenizer_->id_of("\n");
    ParserOptions parser;
    parser.thinking = out.thinking == Thinking::inside;
    parser.continues = continues;
    parser.newline_framing = template_->traits().newlines_in_tags;
    parser.calls = !chat.tools.empty();
    parser.tools = ToolSchemas(chat.tools);
    out.make_parser = [make = dialect_->make_parser, parser = std::move(parser)] { return make(parser); };
    return out;
}

std::vector<ChatPart> ModelText::parts(const EncodedPrompt& prompt) const {
    if (!prompt.rendered) return {};
    return chat_parts(*prompt.rendered, token_spans(*tokenizer_, prompt.tokens, prompt.rendered->text));
}

std::shared_ptr<Constraint> ModelText::constraint(const Request& request, const EncodedPrompt& prompt,
                                                  WorkBudget* work) const {
    try {
        return make_constraint(request, prompt, work);
    } catch (const GrammarError& error) {
        const std::string what = error.what();
        if (what.starts_with("tool")) throw;
        const AnswerFormat& format = request.format;
        const bool regex = format.kind == AnswerFormat::Kind::regex;
        const bool grammar = format.kind == AnswerFormat::Kind::grammar;
        if (!format.where.empty()) throw FormError(format.field, format.where + ": " + what);
        const bool none = format.kind == AnswerFormat::Kind::any;  // then it is that of the tools
        const std::string field = regex ? "regex" : grammar ? "grammar" : none ? "tools" : format.field;
        throw FormError(field, field + ": " + what);
    }
}

std::shared_ptr<Constraint> ModelText::make_constraint(const Request& request, const EncodedPrompt& prompt,
                                                       WorkBudget* work) const {
    const auto* chat = std::get_if<ChatPrompt>(&request.prompt);
    if (chat == nullptr) {
        if (request.format.kind == AnswerFormat::Kind::any) return nullptr;
        RT_CHECK(tokenizer_, "response_format needs a tokenizer, and this model has none");
        return constrainer_->get(*tokenizer_, request.format, work);
    }
    AnswerForm form;
    form.thinking = prompt.thinking;
    form.newline_framing = template_->traits().newlines_in_tags;
    form.tools = chat->tools;
    form.choice = request.tool_choice;
    form.format = request.format;
    if (!is_constrained(form)) return nullptr;
    const bool free = form.format.kind == AnswerFormat::Kind::any && form.choice.kind == ToolChoice::Kind::automatic;
    RT_CHECK(free || !chat->options.continue_final_message,
             "an answer that goes on with a message has its beginning already: expected no response_format and no "
             "tool_choice that calls for tools");
    return constrainer_->get(*tokenizer_, *dialect_, form, work);
}

std::vector<int64_t> token_ends(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                                std::span<const int64_t> ends, int64_t text_bytes) {
    std::vector<int64_t> counts;
    int64_t bytes = 0;
    size_t next = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
        bytes += static_cast<int64_t>(tokenizer.piece(tokens[i]).size());
        for (; next < ends.size() && ends[next] <= bytes; ++next) {
            const auto count = static_cast<int64_t>(ends[next] == bytes ? i + 1 : i);
            if (count > 0 && (counts.empty() || counts.back() < count)) counts.push_back(count);
        }
    }
    if (bytes != text_bytes) counts.clear();  // the tokenizer normalises
    return counts;
}

std::vector<int64_t> choose_cuts(const EncodedPrompt& prompt, int64_t every) {
    const int64_t size = std::ssize(prompt.tokens);
    std::vector<int64_t> cuts;
    for (int64_t at = every; at < size; at += every) cuts.push_back(at);
    const std::vector<int64_t>& ends = prompt.message_ends;
    const int64_t count = std::ssize(ends);
    int64_t last = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t end = ends[static_cast<size_t>(i)];
        const bool wanted = (i == 0 && prompt.opens_with_system) || i >= count - 2 || end - last >= kCutDistance;
        if (!wanted || end >= size) continue;
        cuts.push_back(end);
        last = end;
    }
    if (size >= kShortPrompt && size - 1 - last >= kNearEnd) cuts.push_back(size - 1);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
}

}  // namespace riptide
