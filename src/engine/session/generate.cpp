// Session::generate.
#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "engine/sampling/device_sampling.h"
#include "engine/sampling/stop_matcher.h"
#include "engine/session/session.h"
#include "text/tokenizer/detokenizer.h"

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
class GeneratedText {
  public:
    GeneratedText(const GenerateRequest& request, GenerationResult& result)
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

double GenerationResult::prefill_rate() const { return rate(prompt_tokens - reused_tokens, prefill_seconds); }
double GenerationResult::decode_rate() const { return rate(decoded_tokens, decode_seconds); }
double GenerationResult::step_rate() const { return rate(decode_steps, decode_seconds); }

namespace {

/// An answer in the making: what each drawn token means for it.
class GeneratedAnswer {
  public:
    GeneratedAnswer(const GenerateRequest& request, GenerationResult& result)
        : request_(request),
          result_(result),
          text_(request, result),
          stop_ids_(stop_ids_of(request)),
          most_(request.sampling.max_tokens < 0 ? std::numeric_limits<int64_t>::max() : request.sampling.max_tokens) {}

    const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

    /// Takes a drawn token. True if another is wanted; else result.reason says why not. `full`: the context holds no
    /// more.
    bool take(const Sampled& sampled, bool full) {
        if (std::find(stop_ids_.begin(), stop_ids_.end(), sampled.token) != stop_ids_.end()) {
            result_.reason = FinishReason::stop_id;
            result_.stop_token = sampled.token;
            return false;
        }
        result_.tokens.push_back(sampled.token);
        if (request_.sampling.logprobs >= 0) result_.logprobs.push_back(sampled);
        if (request_.on_token) request_.on_token(sampled);
        const auto produced = std::ssize(result_.tokens);
        if (text_.push(sampled.token, produced > request_.sampling.min_tokens)) {
            result_.reason = FinishReason::stop_string;
            result_.stop_string = text_.stop();
            return false;
        }
        result_.reason = produced >= most_ ? FinishReason::length
                         : full            ? FinishReason::context
                                           : FinishReason::cancelled;
        return result_.reason == FinishReason::cancelled && !cancelled(request_);
    }

    void finish() {
        text_.finish();
        if (!text_.stopped() || result_.reason == FinishReason::stop_string) return;
        result_.reason = FinishReason::stop_string;  // in what the detokeniser still held
        result_.stop_string = text_.stop();
    }

    int64_t most() const { return most_; }
    /// Tokens still wanted.
    int64_t wanted() const { return most_ - std::ssize(result_.tokens); }

  private:
    const GenerateRequest& request_;
    GenerationResult& result_;
    GeneratedText text_;
    std::vector<int32_t> stop_ids_;
    int64_t most_;
};

}  // namespace

GenerationResult Session::generate(const GenerateRequest& request) {
    GenerationResult result;
    GeneratedAnswer answer(request, result);
    Sampler sampler(request.sampling, model_->info().vocab_size, answer.stop_ids(), request.prompt);
    std::optional<AllowedTokens> allowed;
    if (request.constraint)
        allowed.emplace(request.constraint, answer.stop_ids(), model_->info().vocab_size, request.cancel);
    Stopwatch watch;
    LogitsHash hash;
    result.prompt_tokens = std::ssize(request.prompt);
    std::span<const float> logits = prefill(request.prompt, request.on_prefill, request.cancel, request.gaps);
    result.reused_tokens = reused_;
    result.prefill_seconds = watch.lap();
    if (logits.empty()) result.reason = FinishReason::cancelled;
    bool damaged = false;  // if something throws, then because no token can be drawn
    /// The token that follows the sequence: `drawn` by the device, or here from its logits.
    const auto take = [&](std::span<const float> row, int32_t drawn) {
        if (!gpu_ && !row.empty()) hash.add(row);
        const std::span<const uint64_t> fitting =
            allowed && !row.empty() ? allowed->next() : std::span<const uint64_t>();
        damaged = true;
        RT_CHECK(drawn >= 0 || !row.empty(),
                 "no token can be drawn for position {}: a logit is NaN or +infinity, or none is above -infinity; the "
                 "model's weights or its K/V are damaged",
                 tokens_.size());
        Sampled sampled{.token = drawn};
        if (!row.empty()) sampled = sampler.sample(row, std::ssize(tokens_), fitting);
        damaged = false;
        sampler.accept(sampled.token);
        const std::vector<int32_t>& stops = answer.stop_ids();
        if (allowed && std::find(stops.begin(), stops.end(), sampled.token) == stops.end())
            allowed->accept(sampled.token);
        return answer.take(sampled, std::ssize(tokens_) >= context_);
    };
    const auto decoded = [&](std::span<const float> row, int32_t drawn) {
        ++result.decoded_tokens;
        return take(row, drawn);
    };
    try {
        bool more = !logits.empty() && take(logits, -1);
        if (more && speculator_) {
            decode_drafted(request, result, answer.stop_ids(), answer.most(), decoded, allowed ? &*allowed : nullptr);
        } else if (more && gpu_ && device_draws(request.sampling, model_->info().vocab_size)) {
            // The device runs ahead: the token that a step draws is not yet part of the sequence when it is taken.
            const ops::SampleStart start =
                sample_start(request.sampling, answer.stop_ids(), request.prompt, result.tokens);
            std::function<AllowedSet()> place;
            if (allowed) place = [&] { return allowed->place(); };
            decode_ahead(
                result.tokens.back(), answer.wanted(), [&](int32_t token) { return decoded({}, token); },
                plainly_greedy(request.sampling) && !allowed ? nullptr : &start, {}, place);
            result.decode_steps = result.decoded_tokens;
        } else {
            while (more) {
                logits = decode(result.tokens.back());
                ++result.decode_steps;
                more = decoded(logits, -1);
            }
        }
    } catch (const WorkStopped&) {  // in the middle of a mask
        result.reason = FinishReason::cancelled;
    } catch (...) {
        if (damaged) clear();
        throw;
    }
    answer.finish();
    result.decode_seconds = watch.lap();
    result.logits_hash = hash.value();
    return result;
}

}  // namespace riptide
