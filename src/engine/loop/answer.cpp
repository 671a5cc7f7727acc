#include "engine/loop/answer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace riptide {

namespace {

SamplingParams with_seed(SamplingParams params, int32_t index) {
    params.seed += static_cast<uint64_t>(index);
    return params;
}

double seconds(int64_t from_us, int64_t to_us) {
    return static_cast<double>(std::max<int64_t>(0, to_us - from_us)) / 1e6;
}

}  // namespace

void Job::emit(const Answer& answer, EventBody body, bool ends) {
    if (sink_failed) return;
    try {
        sink({id, answer.index(), ends, std::move(body)});
    } catch (...) {  // whoever listens has gone: nobody is left to tell
        sink_failed = true;
    }
}

AnswerText::AnswerText(const ModelText& text, const EncodedPrompt& prompt, const std::vector<std::string>& stops)
    : tokenizer_(text.tokenizer()), matcher_(stops) {
    if (prompt.make_parser) parser_ = prompt.make_parser();
    else if (tokenizer_ != nullptr) detokenizer_.emplace(*tokenizer_);
}

void AnswerText::push(int32_t token, bool armed, std::vector<EventBody>& out) {
    if (detokenizer_) return deliver_text(detokenizer_->push(token), armed, out);
    if (!parser_) return;
    parser_->push_token(tokenizer_->piece(token), tokenizer_->is_added(token), events_);
    for (StreamEvent& event : events_) deliver(std::move(event), armed, out);
    events_.clear();
}

void AnswerText::finish(bool turn_ended, std::vector<EventBody>& out) {
    if (detokenizer_) deliver_text(detokenizer_->finish(), true, out);
    if (parser_) {
        if (turn_ended) parser_->end_turn(events_);
        parser_->finish(events_);
        for (StreamEvent& event : events_) deliver(std::move(event), true, out);
        events_.clear();
    }
    flush(out);
}

void AnswerText::deliver(StreamEvent&& event, bool armed, std::vector<EventBody>& out) {
    if (stopped()) return;
    if (auto* text = std::get_if<TextDelta>(&event)) return deliver_text(std::move(text->text), armed, out);
    flush(out);  // a stop string does not reach across other things
    if (const auto* end = std::get_if<Finish>(&event)) tool_calls_ = end->tool_calls;
    else
        std::visit(
            [&](auto& body) {
                if constexpr (!std::is_same_v<std::decay_t<decltype(body)>, Finish>) out.emplace_back(std::move(body));
            },
            event);
}

void AnswerText::deliver_text(std::string text, bool armed, std::vector<EventBody>& out) {
    if (armed) text = matcher_.push(text);
    if (!text.empty()) out.emplace_back(TextDelta{std::move(text)});
}

void AnswerText::flush(std::vector<EventBody>& out) {
    if (std::string rest = matcher_.finish(); !rest.empty()) out.emplace_back(TextDelta{std::move(rest)});
}

Answer::Answer(Job& job, int32_t index, const ModelText& text, int64_t vocab_size)
    : job_(&job),
      tokenizer_(text.tokenizer()),
      index_(index),
      sampling_(with_seed(job.sampling, index)),
      sampler_(sampling_, vocab_size, job.stop_ids, job.prompt.tokens),
      text_(text, job.prompt, job.sampling.stop_strings),
      thinking_(job.prompt.thinking == Thinking::inside) {
    usage.prompt = std::ssize(job.prompt.tokens);
    if (job.constraint) allowed_.emplace(job.constraint, job.stop_ids, vocab_size);
}

int64_t Answer::free_draws() const {
    if (!thinking_ || job_->thinking_budget < 0) return std::numeric_limits<int64_t>::max();
    return std::max<int64_t>(0, job_->thinking_budget - usage.reasoning);
}

int32_t Answer::end_of_thinking() const {
    const EncodedPrompt& prompt = job_->prompt;
    const int32_t last = tokens_.empty() ? prompt.tokens.back() : tokens_.back();
    return prompt.line_end < 0 || tokenizer_->piece(last).ends_with('\n') ? prompt.think_end : prompt.line_end;
}

Sampled Answer::draw(std::span<const float> logits, int64_t position) {
    if (job_->hash_logits) hash_.add(logits);
    Sampled out = sampler_.sample(logits, position, allowed_ ? allowed_->next() : std::span<const uint64_t>());
    if (free_draws() > 0) return out;
    out.token = end_of_thinking();  // certain, so its sampling_logprob is 0
    out.sampling_logprob = 0;
    if (sampling_.logprobs >= 0) out = score_token(logits, out.token, sampling_.logprobs);
    return out;
}

void Answer::score(int64_t begin, const Tensor& logits, int64_t first_row, int64_t rows) {
    const std::vector<int32_t>& tokens = job_->prompt.tokens;
    PromptScored out;
    out.begin = scored;
    if (scored == 0) out.tokens.push_back({tokens[0], std::numeric_limits<float>::quiet_NaN(), 0, {}});
    for (int64_t i = 0; i < rows && begin + i + 1 < std::ssize(tokens); ++i) {
        const int64_t at = begin + i + 1;                    // the token that the row says something of
        if (at < scored + std::ssize(out.tokens)) continue;  // a preempted answer reads its prompt again
        const std::span<const float> row(logits.row(first_row + i), static_cast<size_t>(logits.row_elements()));
        out.tokens.push_back(score_token(row, tokens[static_cast<size_t>(at)], sampling_.logprobs));
    }
    scored += std::ssize(out.tokens);
    if (!out.tokens.empty()) job_->emit(*this, std::move(out));
}

void Answer::take_row(std::span<const float> row) {
    RowRead out;
    if (job_->row_columns.empty()) out.values.assign(row.begin(), row.end());
    for (const int32_t column : job_->row_columns) out.values.push_back(row[static_cast<size_t>(column)]);
    const bool good = std::all_of(out.values.begin(), out.values.end(), [](float v) { return std::isfinite(v); });
    RT_CHECK(good, "what the model makes of the prompt is no number: its weights or its K/V are damaged");
    job_->emit(*this, std::move(out));
    ends = true;
    reason = FinishReason::length;
}

bool Answer::take(const Sampled& sampled) {
    if (job_->prompt_only) {  // drawn only to learn that it can be
        reason = FinishReason::length;
        return false;
    }
    if (std::find(job_->stop_ids.begin(), job_->stop_ids.end(), sampled.token) != job_->stop_ids.end()) {
        reason = FinishReason::stop_id;
        stop_token_ = sampled.token;
        return false;
    }
    sampler_.accept(sampled.token);
    if (allowed_) allowed_->accept(sampled.token);
    tokens_.push_back(sampled.token);
    const int64_t produced = ++usage.completion;
    if (sampled.token == job_->prompt.think_end) thinking_ = false;
    else if (sampled.token == job_->prompt.think_begin) thinking_ = true;
    else if (thinking_) ++usage.reasoning;
    if (job_->want_tokens) out_.emplace_back(TokensDrawn{{sampled}});
    text_.push(sampled.token, produced > sampling_.min_tokens, out_);
    send();
    if (text_.stopped()) {
        reason = FinishReason::stop_string;
        return false;
    }
    if (produced < job_->max_tokens) return true;
    reason = job_->until_full ? FinishReason::context : FinishReason::length;
    return false;
}

void Answer::begin_step() {
    ahead.clear();
    path.clear();
    undrawn = false;
}

void Answer::finish() {
    text_.finish(reason == FinishReason::stop_id, out_);
    send();
    if (text_.stopped() && reason != FinishReason::cancelled) reason = FinishReason::stop_string;
}

void Answer::send() {
    for (EventBody& body : out_) job_->emit(*this, std::move(body));
    out_.clear();
}

void Answer::close(int64_t now_us, int64_t version, int32_t attention_window) {
    closed_ = true;
    const bool last = --job_->open == 0;
    if (failure) return job_->emit(*this, *failure, last);
    finish();
    Done done;
    done.reason = reason;
    if (reason == FinishReason::stop_string) done.stop_string = text_.stop();
    if (reason == FinishReason::stop_id) done.stop_token = stop_token_;
    done.tool_calls = text_.tool_calls();
    done.usage = usage;
    const int64_t start = start_us < 0 ? now_us : start_us, first = first_us < 0 ? now_us : first_us;
    done.timings = {seconds(job_->submitted_us + job_->scoring_us, start), seconds(start, first),
                    seconds(first, now_us), seconds(0, job_->scoring_us), seconds(0, fetch_us)};
    done.compression = job_->compression;
    if (usage.prompt + usage.completion > attention_window) done.attention_window = attention_window;
    done.cache_note = cache_note;
    done.version = version;
    if (job_->hash_logits) done.logits_hash = hash_.value();
    job_->emit(*this, std::move(done), last);
}

}  // namespace riptide
