// Session::generate.
#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "engine/session.h"
#include "engine/stop_matcher.h"
#include "text/detokenizer.h"

namespace riptide {

namespace {

class Stopwatch {
  public:
    /// Seconds since the last lap.
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The text of an answer: tokens go in, text comes out as soon as it cannot belong to a stop string.
class AnswerText {
  public:
    AnswerText(const GenerateRequest& request, GenerationResult& result)
        : request_(request), result_(result), matcher_(request.sampling.stop_strings) {
        if (request.tokenizer != nullptr) detokenizer_.emplace(*request.tokenizer);
        else if (!request.sampling.stop_strings.empty() || request.on_text)
            fail(ErrorKind::usage, "stop strings and text need a tokenizer, and this model has none");
    }

    /// True if the answer ends here. Before `armed`, stop strings are text like any other.
    bool push(int32_t token, bool armed) {
        if (!detokenizer_) return false;
        const std::string text = detokenizer_->push(token);
        deliver(armed ? matcher_.push(text) : text);
        return stopped();
    }
    void finish() {
        if (!detokenizer_ || matcher_.matched()) return;
        deliver(matcher_.push(detokenizer_->finish()));
        deliver(matcher_.finish());
    }
    bool stopped() const { return matcher_.matched(); }
    const std::string& stop() const { return matcher_.match(); }

  private:
    void deliver(const std::string& text) {
        if (text.empty()) return;
        result_.text += text;
        if (request_.on_text) request_.on_text(text);
    }

    const GenerateRequest& request_;
    GenerationResult& result_;
    StopMatcher matcher_;
    std::optional<Detokenizer> detokenizer_;
};

std::vector<int32_t> stop_ids_of(const GenerateRequest& request) {
    std::vector<int32_t> ids = request.sampling.stop_ids;
    if (!request.sampling.ignore_eos) ids.insert(ids.end(), request.eos_ids.begin(), request.eos_ids.end());
    return ids;
}

bool cancelled(const GenerateRequest& request) {
    return request.cancel != nullptr && request.cancel->load(std::memory_order_relaxed);
}

double rate(int64_t count, double seconds) {
    return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop_id:
            return "stop_id";
        case FinishReason::stop_string:
            return "stop_string";
        case FinishReason::length:
            return "length";
        case FinishReason::context:
            return "context";
        case FinishReason::cancelled:
            return "cancelled";
    }
    return "";
}

double GenerationResult::prefill_rate() const { return rate(prompt_tokens - reused_tokens, prefill_seconds); }
double GenerationResult::decode_rate() const { return rate(decode_steps, decode_seconds); }

GenerationResult Session::generate(const GenerateRequest& request) {
    GenerationResult result;
    const std::vector<int32_t> stop_ids = stop_ids_of(request);
    Sampler sampler(request.sampling, model_->info().vocab_size, stop_ids, request.prompt);
    AnswerText text(request, result);
    Stopwatch watch;
    LogitsHash hash;
    result.prompt_tokens = std::ssize(request.prompt);
    const int64_t most =
        request.sampling.max_tokens < 0 ? std::numeric_limits<int64_t>::max() : request.sampling.max_tokens;

    std::span<const float> logits = prefill(request.prompt, request.on_prefill, request.cancel);
    result.reused_tokens = reused_;
    result.prefill_seconds = watch.lap();
    if (logits.empty()) result.reason = FinishReason::cancelled;
    while (!logits.empty()) {
        hash.add(logits);
        const Sampled sampled = sampler.sample(logits, std::ssize(tokens_));
        if (std::find(stop_ids.begin(), stop_ids.end(), sampled.token) != stop_ids.end()) {
            result.reason = FinishReason::stop_id;
            result.stop_token = sampled.token;
            break;
        }
        sampler.accept(sampled.token);
        result.tokens.push_back(sampled.token);
        if (request.sampling.logprobs >= 0) result.logprobs.push_back(sampled);
        if (request.on_token) request.on_token(sampled);
        const auto produced = std::ssize(result.tokens);
        if (text.push(sampled.token, produced > request.sampling.min_tokens)) {
            result.reason = FinishReason::stop_string;
            result.stop_string = text.stop();
            break;
        }
        result.reason = produced >= most                  ? FinishReason::length
                        : std::ssize(tokens_) >= context_ ? FinishReason::context
                                                          : FinishReason::cancelled;
        if (result.reason != FinishReason::cancelled || cancelled(request)) break;
        logits = decode(sampled.token);
        ++result.decode_steps;
    }
    text.finish();
    if (text.stopped() && result.reason != FinishReason::stop_string) {  // in what the detokeniser still held
        result.reason = FinishReason::stop_string;
        result.stop_string = text.stop();
    }
    result.decode_seconds = watch.lap();
    result.logits_hash = hash.value();
    return result;
}

}  // namespace riptide
