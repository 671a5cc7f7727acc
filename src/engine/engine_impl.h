// The engine's queue and its thread: what callers and the thread share. Internal to the engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/loop/answer.h"
#include "engine/loop/engine_loop.h"
#include "engine/loop/fetch_queue.h"
#include "engine/loop/job_maker.h"
#include "engine/loop/recent_count.h"
#include "engine/loop/scoring_queue.h"

namespace riptide {

struct Engine::Impl {
    template <class Source>
    Impl(std::unique_ptr<Source> source, const EngineOptions& options, ModelText model_text)
        : text(std::move(model_text)),
          machine(std::move(source), options),
          loop(machine, [this] { return news.load() || nearest_look() <= loop.now_us(); }),
          compressor(make_compressor(text, options)),
          maker(text, machine.options(), machine.model().info(), machine.context_length(), compressor.get()) {
        facts = machine.facts();
        if (compressor) facts.scorer = machine.options().scorer.name;
        const bool embeds = facts.model.task == Task::embed;
        facts.chat = text.chats() && !embeds;
        facts.no_chat = embeds ? "this is an embedding model, which writes no text" : text.why_no_chats();
        if (facts.chat) facts.chat_dialect = text.dialect()->name;
        if (text.chat_template() != nullptr) facts.chat_traits = text.chat_template()->traits();
        facts.stop_ids = text.stop_ids();
        facts.makers = text.makers();
        loop.report(stats);
        if (compressor) scoring = std::make_unique<ScoringQueue>(*compressor, [this] { hear_back(); });
        if (machine.prefix() != nullptr && machine.shared_tier() != nullptr) {
            fetches = std::make_unique<FetchQueue>(*machine.prefix(), *machine.shared_tier(),
                                                   [this](int64_t tokens) { return loop.read_seconds(tokens); });
            machine.hear_shared([this] { hear_back(); });
        }
        thread = std::thread([this] { run(); });
    }

    static std::unique_ptr<Compressor> make_compressor(const ModelText& text, const EngineOptions& options);

    RequestId enqueue(std::unique_ptr<Job> job, int64_t submitted_us);
    void drain(WorkBudget* work);
    int64_t reload(std::unique_ptr<Checkpoint> checkpoint, WorkBudget* budget);
    void load(std::unique_ptr<Checkpoint> checkpoint);
    void between_requests(const char* what, const std::function<void()>& work, WorkBudget* budget = nullptr);
    void refuse_in_sink(const char* what) const;

    void wake_up() {  // under the mutex
        news = true;
        wake.notify_one();
    }

    /// Whether anything but a step is to be done for requests; under the mutex.
    bool any_news() const { return !inbox.empty() || !cancels.empty() || back || nearest_deadline() <= loop.now_us(); }
    /// Of requests that the loop does not know yet.
    int64_t nearest_look() const {
        return std::min(scoring ? scoring->nearest_deadline() : std::numeric_limits<int64_t>::max(),
                        fetches ? fetches->look_us() : std::numeric_limits<int64_t>::max());
    }
    int64_t nearest_deadline() const { return std::min(loop.nearest_deadline(), nearest_look()); }
    int64_t elsewhere() const { return (scoring ? scoring->size() : 0) + (fetches ? fetches->size() : 0); }

    void hear_back();
    void run();
    void take_scored();
    void begin(std::unique_ptr<Job> job);
    bool share_some();
    void report();
    void take_news(std::unique_lock<std::mutex>& lock);
    void wait(std::unique_lock<std::mutex>& lock);
    void hear_until(const std::future<void>& done);
    void step(std::unique_lock<std::mutex>& lock);
    void check_idle();
    void carry_out(std::unique_lock<std::mutex>& lock);
    void end(std::unique_lock<std::mutex>& lock);

    /// What the engine's thread is to do between requests, and what came of it.
    struct Order {
        const std::function<void()>& work;
        bool begun = false, done = false;
        std::exception_ptr error = {};
    };

    const ModelText text;
    Machine machine;                         // the engine thread's
    EngineLoop loop;                         // the engine thread's; only what is atomic is everybody's
    std::unique_ptr<Compressor> compressor;  // null: prompts are never compressed
    const JobMaker maker;

    // Everybody's, under the mutex.
    mutable std::mutex mutex;
    std::condition_variable wake, changed;  // of the engine thread; of those who wait for it
    std::vector<std::unique_ptr<Job>> inbox;
    std::vector<RequestId> cancels;
    bool paused = false, draining = false, stopping = false;
    bool back = false;      // the scorer has done a prompt, or the shared tier has answered
    bool stepping = false;  // the engine thread works without the mutex
    bool quiet = true;      // no request is left
    Order* order = nullptr;
    std::string failure;  // why the engine has ended; empty while it has not
    RequestId last_id = 0;
    int64_t refused = 0, retry_after_us = 0;
    EngineInfo facts;
    EngineStats stats;
    RecentCount recent;  // EngineLoop::recent

    std::chrono::steady_clock::time_point checked{};  // check_idle(); the engine thread's
    std::atomic<bool> news = false;                   // something above waits for the engine thread
    std::thread thread;
    std::unique_ptr<ScoringQueue> scoring;  // the engine thread's; beside compressor
    std::unique_ptr<FetchQueue> fetches;    // the engine thread's; beside a shared tier
};

}  // namespace riptide
