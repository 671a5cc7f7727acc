// Engines for tests, and somebody who listens to them.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "engine/engine.h"
#include "engine/session/session.h"
#include "tests/source_dir.h"
#include "tests/test_device.h"

namespace riptide::testing {

inline std::string demo_path() { return source_dir() + "/models/demo/laguna-demo.gguf"; }

/// How long anything may take that a test waits for.
inline constexpr std::chrono::seconds kPatience(kThreadSanitizer ? 5000 : 100);

/// Small pages and chunks, so that every border is crossed.
inline EngineOptions demo_options() {
    EngineOptions o;
    o.threads = 1;
    o.context = 1024;
    o.choose_kv = true;
    o.chunk_rows = 64;
    o.page_rows = 16;
    o.max_running = 8;
    o.kv_tokens = 8 * o.context;
    o.prefill_rows_beside = 32;
    o.checkpoint_every = 128;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    return o;
}

/// What one answer has come to.
struct Heard {
    std::vector<int32_t> tokens;
    std::vector<Sampled> sampled;
    std::string text, reasoning;
    std::vector<std::string> calls, arguments;
    std::vector<PromptProgress> progress;
    std::vector<Sampled> scored;  // of the prompt
    std::vector<float> row;       // RowRead
    std::optional<Done> done;
    std::optional<Failed> failed;
    int64_t events = 0;
    bool last = false;
    bool over() const { return done || failed; }
};

/// Keeps all that is heard, and holds the order of events to the contract.
class Listener {
  public:
    /// A sink for one request of n answers; its number is the key. It may outlive the listener.
    Sink sink(int key, int n = 1) {
        const std::lock_guard lock(heard_->mutex);
        heard_->answers[key].resize(static_cast<size_t>(n));
        return [heard = heard_, key, also = also](const Event& event) {
            heard->take(key, event);
            if (also) also(event);
        };
    }
    Heard answer(int key, int index = 0) {
        wait(
            key, [](const Heard& h) { return h.over(); }, index);
        const std::lock_guard lock(heard_->mutex);
        return heard_->at(key, index);
    }
    size_t tokens_so_far(int key, int index = 0) const {
        const std::lock_guard lock(heard_->mutex);
        return heard_->at(key, index).tokens.size();
    }
    /// Waits for something.
    template <class Condition>
    void wait(int key, const Condition& condition, int index = 0) {
        std::unique_lock lock(heard_->mutex);
        EXPECT_TRUE(heard_->changed.wait_for(lock, kPatience, [&] { return condition(heard_->at(key, index)); }))
            << "request " << key << " does not get so far";
    }
    std::function<void(const Event&)> also;  // called with each event by sinks that are made from now on

  private:
    struct All {
        std::mutex mutex;
        std::condition_variable changed;
        std::map<int, std::vector<Heard>> answers;

        Heard& at(int key, int index) { return answers.at(key).at(static_cast<size_t>(index)); }
        void take(int key, const Event& event) {
            const std::lock_guard lock(mutex);
            Heard& heard = at(key, event.answer);
            EXPECT_FALSE(heard.over()) << "an event after the last";
            ++heard.events;
            heard.last = event.last;
            std::visit([&](const auto& body) { add(heard, body); }, event.body);
            changed.notify_all();
        }
    };
    static void add(Heard& h, const PromptProgress& p) { h.progress.push_back(p); }
    static void add(Heard& h, const PromptScored& p) {
        EXPECT_EQ(p.begin, std::ssize(h.scored)) << "tokens of the prompt come in order, each once";
        h.scored.insert(h.scored.end(), p.tokens.begin(), p.tokens.end());
    }
    static void add(Heard& h, const RowRead& r) {
        EXPECT_TRUE(h.row.empty()) << "one row, once";
        h.row = r.values;
    }
    static void add(Heard& h, const TextDelta& d) { h.text += d.text; }
    static void add(Heard& h, const ReasoningDelta& d) { h.reasoning += d.text; }
    static void add(Heard& h, const ToolCallBegin& c) {
        h.calls.push_back(c.name);
        h.arguments.emplace_back();
    }
    static void add(Heard& h, const ToolCallArguments& a) {
        h.arguments.at(static_cast<size_t>(a.index)) += a.json_fragment;
    }
    static void add(Heard&, const ToolCallEnd&) {}
    static void add(Heard& h, const TokensDrawn& drawn) {
        for (const Sampled& s : drawn.tokens) {
            h.tokens.push_back(s.token);
            h.sampled.push_back(s);
        }
    }
    static void add(Heard& h, const Done& d) { h.done = d; }
    static void add(Heard& h, const Failed& f) { h.failed = f; }

    std::shared_ptr<All> heard_ = std::make_shared<All>();
};

/// Submits and waits.
inline Heard ask(Engine& engine, Request request) {
    Listener listener;
    request.want_tokens = true;
    engine.submit(std::move(request), listener.sink(0));
    return listener.answer(0);
}

/// A greedy continuation of token ids.
inline Request continuation(std::vector<int32_t> prompt, int64_t tokens) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = tokens;
    r.sampling.ignore_eos = true;
    r.want_tokens = true;
    return r;
}

inline Request chat(const std::string& question, int64_t tokens = 64) {
    Request r;
    ChatPrompt prompt;
    prompt.messages = {{{"role", "user"}, {"content", question}}};
    r.prompt = prompt;
    r.sampling.temperature = 0;
    r.sampling.max_tokens = tokens;
    r.want_tokens = true;
    return r;
}

}  // namespace riptide::testing
