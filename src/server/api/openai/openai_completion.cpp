#include "server/api/openai/openai_completion.h"

#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace riptide::server {

namespace {

int64_t characters(std::string_view text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

CompletionReply::CompletionReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer)
    : facts_(std::move(facts)),
      tokenizer_(tokenizer),
      stream_(request.stream),
      include_usage_(request.include_usage),
      logprobs_(request.logprobs),
      n_(request.prompts.at(0).n),
      echo_(request.echo),
      prompts_(request.prompts.size()),
      choices_(request.prompts.size() * static_cast<std::size_t>(n_)),
      usage_(std::ssize(choices_)) {
    chunk_head_ = json::serialize(envelope());
    chunk_head_.back() = ',';  // goes on
    chunk_head_ += "\"choices\":[{\"index\":";
}

json::object CompletionReply::envelope() const {
    return {{"id", facts_.id}, {"object", "text_completion"}, {"created", facts_.created}, {"model", facts_.model}};
}

/// Of what is `before`, which spells `echo`, and of the tokens drawn since the last call.
json::value CompletionReply::logprobs(Choice& choice, std::span<const Sampled> before, std::string_view echo) const {
    if (!logprobs_) return nullptr;
    json::array tokens, values, tops, offsets;
    const auto add = [&](const Sampled& sampled) {
        const std::string text = token_text(tokenizer_, sampled.token);
        json::object top;
        for (const TokenLogprob& other : sampled.top)
            top[token_text(tokenizer_, other.token)] = json_logprob(other.logprob);
        const bool first = std::isnan(sampled.logprob);  // of a prompt
        tokens.emplace_back(text);
        values.push_back(first ? json::value() : json::value(json_logprob(sampled.logprob)));
        tops.push_back(first ? json::value() : json::value(std::move(top)));
        offsets.emplace_back(choice.offset);
        const bool unseen = first && sampled.token == tokenizer_->bos() && !echo.starts_with(text);
        if (!unseen) choice.offset += characters(text);
    };
    for (const Sampled& sampled : before) add(sampled);
    for (const Sampled& sampled : std::exchange(choice.drawn, {})) add(sampled);
    return json::object{{"tokens", std::move(tokens)},
                        {"token_logprobs", std::move(values)},
                        {"top_logprobs", std::move(tops)},
                        {"text_offset", std::move(offsets)}};
}

/// Written by hand: this is what each token costs.
void CompletionReply::send(std::size_t index, std::string_view text, const json::value& finish_reason, std::string& out,
                           std::span<const Sampled> before) {
    if (!stream_) return;
    out += "data: ";
    out += chunk_head_;
    out += std::to_string(index);
    out += ",\"text\":";
    out += json::serialize(json::string_view(text.data(), text.size()));
    out +=
        logprobs_ ? ",\"logprobs\":" + json::serialize(logprobs(choices_[index], before, text)) : ",\"logprobs\":null";
    out += ",\"finish_reason\":";
    out += finish_reason.is_null() ? "null" : json::serialize(finish_reason);
    out += include_usage_ ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

std::string CompletionReply::opening() {
    std::string out;
    for (std::size_t i = 0; i < choices_.size() && !echo_.empty() && !logprobs_; ++i)
        send(i, echo_[i / static_cast<std::size_t>(n_)], nullptr, out);
    return out;
}

/// In a stream, an echo with probabilities comes in one piece, when all of the prompt has been read.
void CompletionReply::send_echo(std::size_t prompt, std::string& out) {
    if (!stream_ || !logprobs_ || echo_.empty() || prompts_[prompt].empty()) return;
    const std::vector<Sampled> scored = std::exchange(prompts_[prompt], {});
    const auto n = static_cast<std::size_t>(n_);
    for (std::size_t i = prompt * n; i < (prompt + 1) * n; ++i) send(i, echo_[prompt], nullptr, out, scored);
}

bool CompletionReply::take(const Item& item, std::string& out) {
    const Event& event = item.event;
    const auto index = static_cast<std::size_t>(item.request * n_ + event.answer);
    Choice& choice = choices_.at(index);
    usage_.add(item);
    if (std::holds_alternative<Failed>(event.body) || was_cancelled(event)) {
        error_ = error_of(event);
        if (stream_) abort(*error_, out);
        return true;
    }
    if (const auto* part = std::get_if<PromptScored>(&event.body)) {
        std::vector<Sampled>& prompt = prompts_.at(static_cast<std::size_t>(item.request));
        prompt.insert(prompt.end(), part->tokens.begin(), part->tokens.end());
        return false;
    }
    if (std::holds_alternative<PromptProgress>(event.body)) return false;
    send_echo(static_cast<std::size_t>(item.request), out);
    if (const auto* text = std::get_if<TextDelta>(&event.body); text != nullptr) {
        if (!stream_) choice.text += text->text;
        send(index, text->text, nullptr, out);
    } else if (const auto* tokens = std::get_if<TokensDrawn>(&event.body); tokens != nullptr) {
        choice.drawn.insert(choice.drawn.end(), tokens->tokens.begin(), tokens->tokens.end());
    } else if (const auto* done = std::get_if<Done>(&event.body)) {
        choice.finish_reason = openai_finish_reason(*done);
        send(index, "", choice.finish_reason, out);
    }
    if (!usage_.complete() || !stream_) return usage_.complete();
    if (include_usage_) {
        json::object last = envelope();
        last["choices"] = json::array();
        last["usage"] = usage_.openai();
        last["timings"] = usage_.timings();
        last["weights_version"] = usage_.version();
        append_data(out, json::serialize(last));
    }
    append_data(out, "[DONE]");
    return true;
}

void CompletionReply::heartbeat(std::string& out) const {
    json::object chunk = envelope();
    chunk["choices"] = json::array{{{"index", 0}, {"text", ""}, {"logprobs", nullptr}, {"finish_reason", nullptr}}};
    append_data(out, json::serialize(chunk));
}

void CompletionReply::abort(const ApiError& error, std::string& out) const {
    append_data(out, error_body(error, ErrorShape::openai));
}

HttpReply CompletionReply::finish() const {
    if (error_) return error_reply(*error_, ErrorShape::openai);
    json::array choices;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        Choice& choice = choices_[i];
        const std::string echo = echo_.empty() ? "" : echo_[i / static_cast<std::size_t>(n_)];
        choices.push_back({{"index", i},
                           {"text", echo + choice.text},
                           {"logprobs", logprobs(choice, prompts_[i / static_cast<std::size_t>(n_)], echo)},
                           {"finish_reason", choice.finish_reason}});
    }
    json::object out = envelope();
    out["choices"] = std::move(choices);
    out["usage"] = usage_.openai();
    out["timings"] = usage_.timings();
    out["weights_version"] = usage_.version();
    return {200, json::serialize(out)};
}

}  // namespace riptide::server
