// An engine for one request at a time, whose loop the test steps by itself.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/loop/engine_loop.h"
#include "engine/loop/job_maker.h"
#include "tests/engine/state_hash.h"

namespace riptide::testing {

/// What is asked. The model's own stop ids end nothing unless `eos` says so.
struct Question {
    std::vector<int32_t> prompt;
    SamplingParams sampling;
    AnswerFormat format = {};
    bool eos = false;
    const std::atomic<bool>* cancel = nullptr;  // looked at between steps, and behind each token told
    std::function<void(int64_t done, int64_t total)> on_prefill = {};  // of what must be computed
    std::function<void(const Sampled&)> on_token = {};                 // may throw: then so does the answer
    std::function<void(std::string_view)> on_text = {};
};

/// A greedy one.
inline Question greedily(std::vector<int32_t> prompt, int64_t tokens) {
    Question q;
    q.prompt = std::move(prompt);
    q.sampling.temperature = 0;
    q.sampling.max_tokens = tokens;
    return q;
}

struct Answered {
    std::vector<int32_t> tokens;
    std::vector<Sampled> logprobs;  // if asked for
    std::string text;
    FinishReason reason = FinishReason::cancelled;
    int32_t stop_token = -1;
    std::string stop_string;
    int64_t prompt_tokens = 0, reused_tokens = 0, decode_steps = 0, decoded_tokens = 0;
    uint64_t logits_hash = 0;
    SpeculationStats speculation;
};

class Solo {
  public:
    /// `text`: whose tokenizer it has; null: the checkpoint's.
    Solo(std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options, const Checkpoint* text = nullptr)
        : text_(text != nullptr ? *text : *checkpoint),
          machine_(std::move(checkpoint), engine_options(options)),
          loop_(machine_, [this] { return stop_; }),
          maker_(text_, machine_.options(), machine_.model().info(), machine_.context_length(), nullptr) {}

    /// Throws what is wrong with the question, what fails it, and what on_token throws.
    Answered answer(const Question& q) {
        Answered out;
        std::exception_ptr trouble;
        if (auto before = loop_.speculate(nullptr)) {
            before->clear_stats();
            loop_.speculate(std::move(before));
        }
        Request request;
        request.prompt = q.prompt;
        request.sampling = q.sampling;
        request.sampling.ignore_eos = q.sampling.ignore_eos || !q.eos;
        request.format = q.format;
        request.want_tokens = request.hash_logits = true;
        auto job = maker_.make(std::move(request), [&](const Event& event) {
            try {
                hear(q, event, out);
            } catch (...) {
                trouble = std::current_exception();
                throw;
            }
        });
        const RequestId id = job->id = ++last_;
        job->share = 1;
        stop_ = false;
        ++loop_.waiting;
        loop_.add(std::move(job));
        while (!loop_.idle()) {
            if (q.cancel != nullptr && *q.cancel) loop_.cancel(id);
            if (!loop_.idle()) loop_.step();
        }
        if (auto drafts = loop_.speculate(nullptr)) {
            out.speculation = drafts->stats();
            loop_.speculate(std::move(drafts));
        }
        try {
            if (trouble) std::rethrow_exception(trouble);
        } catch (const Cancelled&) {
        }
        if (q.sampling.logprobs < 0) out.logprobs.clear();
        return out;
    }
    Answered answer(std::vector<int32_t> prompt, int64_t tokens) { return answer(greedily(std::move(prompt), tokens)); }

    /// Who drafts from now on; nobody.
    void speculate(std::shared_ptr<Drafter> drafter, const SpeculationOptions& options) {
        check_speculation(options);
        loop_.speculate(drafter ? std::make_unique<Speculator>(std::move(drafter), options) : nullptr);
    }
    /// Nothing that was computed is used again.
    void forget() { machine_.prefix()->forget(); }

    /// What is kept behind prompt and answer: tokens, and all K/V and recurrent state of them.
    struct Kept {
        int64_t tokens = 0;
        uint64_t state = 0;
        bool operator==(const Kept&) const = default;
    };
    Kept kept(const std::vector<int32_t>& prompt, const Answered& answer) {
        Kept out;
        look_at_kept(prompt, answer,
                     [&](const SequenceState& state) { out = {state.length(), state_hash(state)}; });
        return out;
    }
    void look_at_kept(std::vector<int32_t> prompt, const Answered& answer,
                      const std::function<void(const SequenceState&)>& look) {
        prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
        prompt.push_back(1);
        PrefixSalt salt;
        salt.prompt = text_.fingerprint();
        SequenceState state(machine_.cache());
        machine_.prefix()->attach({.salt = salt, .tokens = prompt, .message_ends = {}, .side = true}, state);
        look(state);
    }

    Machine& machine() { return machine_; }
    EngineLoop& loop() { return loop_; }
    const ModelText& text() const { return text_; }
    const ModelInfo& info() const { return machine_.model().info(); }
    /// The newest request.
    RequestId last() const { return last_; }

  private:
    struct Cancelled {};

    static EngineOptions engine_options(const SessionOptions& options) {
        EngineOptions o;
        static_cast<SessionOptions&>(o) = options;
        o.max_running = 1;
        if (!options.gpu && options.context > 0) o.kv_tokens = 4 * options.context;  // answers before stay kept
        return o;
    }
    void hear(const Question& q, const Event& event, Answered& out) {
        if (const auto* read = std::get_if<PromptProgress>(&event.body); read != nullptr && q.on_prefill)
            q.on_prefill(read->done - read->cached, read->total - read->cached);
        if (const auto* text = std::get_if<TextDelta>(&event.body)) {
            out.text += text->text;
            if (q.on_text) q.on_text(text->text);
        }
        if (const auto* drawn = std::get_if<TokensDrawn>(&event.body))
            for (const Sampled& sampled : drawn->tokens) {
                out.tokens.push_back(sampled.token);
                out.logprobs.push_back(sampled);
                if (q.on_token) q.on_token(sampled);
                if (q.cancel != nullptr && *q.cancel) throw Cancelled();
            }
        if (const auto* failed = std::get_if<Failed>(&event.body)) throw Error(failed->message, failed->kind);
        const auto* done = std::get_if<Done>(&event.body);
        if (done == nullptr) return;
        out.reason = done->reason;
        out.stop_token = done->stop_token;
        out.stop_string = done->stop_string;
        out.prompt_tokens = done->usage.prompt;
        out.reused_tokens = done->usage.cached;
        out.decode_steps = done->usage.steps;
        out.decoded_tokens = done->usage.steps + done->usage.accepted;
        if (!machine_.options().gpu) out.logits_hash = done->logits_hash;
    }

    ModelText text_;
    Machine machine_;
    EngineLoop loop_;
    JobMaker maker_;
    bool stop_ = false;
    RequestId last_ = 0;
};

}  // namespace riptide::testing
