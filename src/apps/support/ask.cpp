#include "apps/support/ask.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

namespace riptide::apps {

namespace {

constexpr std::chrono::milliseconds kLook{20};  // for Ctrl-C

/// What the engine's thread has heard; its reader waits until it is over.
struct Listening {
    void take(const Event& event) {
        if (const auto* drawn = std::get_if<TokensDrawn>(&event.body))
            for (const Sampled& sampled : drawn->tokens) reply.tokens.push_back(sampled.token);
        if (const auto* text = std::get_if<TextDelta>(&event.body)) reply.text += text->text;
        if (const auto* done = std::get_if<Done>(&event.body)) reply.done = *done;
        if (const auto* failed = std::get_if<Failed>(&event.body)) throw Error(failed->message, failed->kind);
    }
    void end(std::exception_ptr why) {
        const std::lock_guard lock(mutex);
        trouble = std::move(why);
        over = true;
        changed.notify_one();
    }

    Reply reply;
    std::exception_ptr trouble;
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
};

double rate(int64_t count, double seconds) {
    return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

double Reply::prefill_rate() const { return rate(done.usage.prompt - done.usage.cached, done.timings.prefill); }
double Reply::decode_rate() const { return rate(done.usage.steps + done.usage.accepted, done.timings.decode); }
double Reply::step_rate() const { return rate(done.usage.steps, done.timings.decode); }
double Reply::tokens_per_step() const {
    return rate(done.usage.steps + done.usage.accepted, static_cast<double>(done.usage.steps));
}

Reply ask(Engine& engine, Request request, const std::function<void(const EventBody&)>& hear,
          const std::atomic<bool>& cancel, WorkBudget* work) {
    const auto listening = std::make_shared<Listening>();
    const auto sink = [listening, &hear](const Event& event) {
        try {
            listening->take(event);
            if (hear) hear(event.body);
        } catch (...) {
            listening->end(std::current_exception());
            throw;  // so that nothing more comes
        }
        if (event.last) listening->end(nullptr);
    };
    const RequestId id = engine.submit(std::move(request), sink, work);
    std::unique_lock lock(listening->mutex);
    for (bool cancelled = false; !listening->over;) {
        listening->changed.wait_for(lock, kLook);
        if (listening->over || cancelled || !cancel) continue;
        cancelled = true;
        engine.cancel(id);
    }
    if (listening->trouble) std::rethrow_exception(listening->trouble);
    return std::move(listening->reply);
}

}  // namespace riptide::apps
