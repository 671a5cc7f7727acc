// Engine: the door, its queue and its thread. engine_loop.cpp and engine_step.cpp have what the thread does.
#include "engine/engine.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/answer.h"
#include "engine/engine_loop.h"

namespace riptide {

namespace {

constexpr int32_t kMostAnswers = 128;
constexpr std::chrono::seconds kIdleCheck{1};

/// What a client names something by, as a number that others cannot aim at; `isolation` keeps clients apart.
uint64_t key_number(const std::string& isolation, const std::string& key, uint64_t secret) {
    const std::string text = fmt::format("{} {} {}{}", secret, isolation.size(), isolation, key);
    const Digest digest = sha256(std::as_bytes(std::span(text)));
    uint64_t number = 0;
    std::memcpy(&number, digest.data(), sizeof number);
    return number | 1;  // not 0
}

uint64_t random_number() {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct Engine::Impl {
    template <class Source>
    Impl(std::unique_ptr<Source> source, const EngineOptions& options, ModelText model_text)
        : text(std::move(model_text)),
          machine(std::move(source), options),
          loop(machine, [this] { return news.load(); }) {
        const EngineOptions& o = machine.options();
        facts.model = machine.model().info();
        if (machine.checkpoint() != nullptr) facts.path = machine.checkpoint()->path();
        facts.context_length = machine.context_length();
        facts.kv_tokens = o.kv_tokens;
        facts.max_running = o.max_running;
        facts.chunk_rows = o.chunk_rows;
        facts.k_dtype = o.k_dtype;
        facts.v_dtype = o.v_dtype;
        facts.device = machine.device();
        facts.chat = text.chats();
        if (text.chat_template() != nullptr) facts.chat_traits = text.chat_template()->traits();
        facts.stop_ids = text.stop_ids();
        loop.report(stats);
        thread = std::thread([this] { run(); });
    }

    std::unique_ptr<Job> make_job(Request&& request, Sink&& sink);
    void check_room(const Job& job) const;
    RequestId enqueue(std::unique_ptr<Job> job);
    int64_t reload(std::unique_ptr<Checkpoint> checkpoint);
    void refuse_in_sink(const char* what) const;

    void wake_up() {  // under the mutex
        news = true;
        wake.notify_one();
    }

    void run();
    void take_news(std::unique_lock<std::mutex>& lock);
    void step(std::unique_lock<std::mutex>& lock);
    void check_idle();
    void swap_weights(std::unique_lock<std::mutex>& lock);
    void end(std::unique_lock<std::mutex>& lock);

    /// Weights to be swapped in, and what came of it.
    struct Order {
        std::unique_ptr<Checkpoint> checkpoint;
        bool done = false;
        std::exception_ptr error;
    };

    const ModelText text;
    Machine machine;  // the engine thread's
    EngineLoop loop;  // the engine thread's; only `waiting` is everybody's
    const uint64_t secret = random_number();

    // Everybody's, under the mutex.
    mutable std::mutex mutex;
    std::condition_variable wake, changed;  // of the engine thread; of those who wait for it
    std::vector<std::unique_ptr<Job>> inbox;
    std::vector<RequestId> cancels;
    bool paused = false, draining = false, stopping = false;
    bool stepping = false;  // the engine thread works without the mutex
    bool quiet = true;      // no request is left
    Order* order = nullptr;
    std::string failure;  // why the engine has ended; empty while it has not
    RequestId last_id = 0;
    int64_t refused = 0, retry_after_us = 0;
    EngineInfo facts;
    EngineStats stats;

    std::atomic<bool> news = false;  // something above waits for the engine thread
    std::thread thread;
};

// The caller's side.

std::unique_ptr<Job> Engine::Impl::make_job(Request&& request, Sink&& sink) {
    const int64_t vocab = facts.model.vocab_size;
    RT_CHECK(sink, "a request without a sink");
    RT_CHECK(request.n >= 1 && request.n <= kMostAnswers, "n is {}, expected 1 to {}", request.n, kMostAnswers);
    RT_CHECK(request.priority >= 0 && request.priority <= 2, "priority is {}, expected 0 to 2", request.priority);
    RT_CHECK(!request.deadline || request.deadline->count() > 0, "deadline is {} ms, expected more than 0",
             request.deadline->count());
    RT_CHECK(request.thinking_budget >= -1, "thinking_budget is {}, expected 0 or more", request.thinking_budget);
    check_sampling_params(request.sampling, vocab);
    RT_CHECK(text.tokenizer() != nullptr || request.sampling.stop_strings.empty(),
             "stop strings need a tokenizer, and this model has none");
    auto job = std::make_unique<Job>();
    job->sink = std::move(sink);
    job->prompt = text.encode(request.prompt);
    job->constraint = text.constraint(request, job->prompt);
    RT_CHECK(!job->constraint || request.sampling.min_tokens == 0,
             "min_tokens is {}, expected 0 where the form of the answer is given", request.sampling.min_tokens);
    job->sampling = std::move(request.sampling);
    job->stop_ids = job->sampling.stop_ids;
    if (!job->sampling.ignore_eos)
        job->stop_ids.insert(job->stop_ids.end(), text.stop_ids().begin(), text.stop_ids().end());
    check_room(*job);
    const int64_t room = facts.context_length - std::ssize(job->prompt.tokens), asked = job->sampling.max_tokens;
    job->until_full = asked < 0 || asked > room;
    job->max_tokens = job->until_full ? room : asked;
    job->thinking_budget = request.thinking_budget;
    job->cuts = choose_cuts(job->prompt, machine.options().checkpoint_every);
    job->priority = request.priority;
    job->side = request.side;
    job->deterministic = request.deterministic.value_or(machine.options().deterministic);
    job->want_tokens = request.want_tokens;
    job->prompt_logprobs = request.prompt_logprobs;
    job->deadline = request.deadline;
    job->salt.prompt = text.fingerprint();
    job->salt.isolation = request.isolation;
    if (!request.session.empty()) job->cache_session = key_number(request.isolation, request.session, secret);
    job->share = job->cache_session;
    for (int32_t i = 0; i < request.n; ++i) job->answers.push_back(std::make_unique<Answer>(*job, i, text, vocab));
    job->open = request.n;
    return job;
}

void Engine::Impl::check_room(const Job& job) const {
    const std::vector<int32_t>& tokens = job.prompt.tokens;
    RT_CHECK(!tokens.empty(), "the prompt is empty: it needs at least one token");
    if (std::ssize(tokens) >= facts.context_length)
        throw PromptTooLong(fmt::format("the prompt has {} tokens, and the context holds {}: no room for an answer",
                                        tokens.size(), facts.context_length),
                            std::ssize(tokens), facts.context_length);
    for (size_t i = 0; i < tokens.size(); ++i)
        RT_CHECK(tokens[i] >= 0 && tokens[i] < facts.model.vocab_size, "token {} of the prompt is {}, expected 0 to {}",
                 i, tokens[i], facts.model.vocab_size - 1);
}

RequestId Engine::Impl::enqueue(std::unique_ptr<Job> job) {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) throw Error(failure, ErrorKind::system);
    if (draining || stopping) fail(ErrorKind::unavailable, "the engine takes no more requests: it is being drained");
    const int64_t waiting = loop.waiting, most = machine.options().max_queue, more = std::ssize(job->answers);
    if (waiting + more > most) {
        ++refused;
        const int64_t wait = std::max<int64_t>(1000, retry_after_us);
        throw QueueFull(fmt::format("{} answers wait already, of at most {}; try again in {:.1f} s", waiting, most,
                                    static_cast<double>(wait) / 1e6),
                        wait);
    }
    loop.waiting += more;
    job->id = ++last_id;
    if (job->share == 0) job->share = key_number({}, fmt::format("request {}", job->id), secret);
    job->submitted_us = loop.now_us();
    if (job->deadline) job->deadline_us = job->submitted_us + std::chrono::microseconds(*job->deadline).count();
    inbox.push_back(std::move(job));
    quiet = false;
    wake_up();
    return last_id;
}

void Engine::Impl::refuse_in_sink(const char* what) const {
    RT_CHECK(std::this_thread::get_id() != thread.get_id(), ErrorKind::usage,
             "a sink may call submit and cancel, not {}: all requests would wait for it", what);
}

int64_t Engine::Impl::reload(std::unique_ptr<Checkpoint> checkpoint) {
    refuse_in_sink("reload");
    Order mine{std::move(checkpoint), false, nullptr};
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return order == nullptr || !failure.empty() || stopping; });
    if (stopping) fail(ErrorKind::unavailable, "the engine ends");
    if (!failure.empty()) throw Error(failure, ErrorKind::system);
    order = &mine;
    wake_up();
    changed.wait(lock, [&] { return mine.done; });
    if (mine.error) std::rethrow_exception(mine.error);
    return facts.version;
}

// The engine thread's side.

void Engine::Impl::run() {
    std::unique_lock lock(mutex);
    try {
        machine.use_on_this_thread();
    } catch (const std::exception& error) {
        failure = fmt::format("the engine has failed: {}", error.what());
    }
    while (failure.empty()) {
        news = false;
        if (!inbox.empty() || !cancels.empty()) {
            take_news(lock);
        } else if (stopping) {
            break;
        } else if (order != nullptr && loop.begun() == 0) {
            swap_weights(lock);
        } else if (!loop.idle() && (!paused || draining || order != nullptr)) {
            step(lock);
        } else {
            quiet = loop.idle();
            changed.notify_all();
            if (!wake.wait_for(lock, kIdleCheck, [&] { return news.load(); })) check_idle();
        }
    }
    end(lock);
}

/// A device can fail while nobody uses it: whoever asks for the server's health should know.
void Engine::Impl::check_idle() {
    try {
        machine.check();
    } catch (const std::exception& error) {
        failure = fmt::format("the engine has failed: {}", error.what());
    }
}

/// New requests and cancellations go to the loop.
void Engine::Impl::take_news(std::unique_lock<std::mutex>& lock) {
    std::vector<std::unique_ptr<Job>> jobs = std::exchange(inbox, {});
    const std::vector<RequestId> ids = std::exchange(cancels, {});
    lock.unlock();  // sinks may submit and cancel
    for (auto& job : jobs) loop.add(std::move(job));
    for (const RequestId id : ids) loop.cancel(id);
    lock.lock();
    loop.report(stats);
}

void Engine::Impl::step(std::unique_lock<std::mutex>& lock) {
    stepping = true;
    loop.hold(order != nullptr);
    lock.unlock();
    std::string problem;
    try {
        loop.step();
    } catch (const std::exception& error) {
        problem = fmt::format("the engine has failed: {}", error.what());
    }
    lock.lock();
    stepping = false;
    failure = problem;
    retry_after_us = loop.retry_after_us();
    loop.report(stats);
}

/// REQUIRES that no request has begun.
void Engine::Impl::swap_weights(std::unique_lock<std::mutex>& lock) {
    Order& mine = *order;
    const int64_t version = facts.version + 1;
    stepping = true;
    lock.unlock();
    std::string path;
    try {
        path = mine.checkpoint->path();
        const std::string old = machine.weights_name();
        machine.replace(std::move(mine.checkpoint));
        loop.change_weights(old, version);
    } catch (...) {
        mine.error = std::current_exception();
    }
    std::string problem;
    try {
        if (mine.error && machine.usable()) loop.renew_drafter();  // the old weights are in another place now
    } catch (const std::exception& error) {
        problem = fmt::format("the engine has failed: {}", error.what());
    }
    lock.lock();
    stepping = false;
    order = nullptr;
    failure = problem;
    mine.done = true;
    if (!machine.usable()) failure = "the engine has failed: neither the new weights nor the old could be loaded";
    if (!mine.error) {
        facts.version = version;
        facts.path = path;
    }
    loop.report(stats);
    changed.notify_all();
}

/// Every request that is left gets its last event; the cache goes to disk.
void Engine::Impl::end(std::unique_lock<std::mutex>& lock) {
    std::vector<std::unique_ptr<Job>> jobs = std::exchange(inbox, {});
    const Failed failed{ErrorKind::system, failure};
    const bool broken = !failure.empty();
    lock.unlock();
    loop.end_all(broken ? &failed : nullptr, std::move(jobs));
    if (!broken && machine.prefix() != nullptr) machine.prefix()->persist();
    lock.lock();
    loop.report(stats);
    quiet = true;
    if (order != nullptr) {
        order->error = std::make_exception_ptr(Error(broken ? failure : "the engine ends", ErrorKind::system));
        order->done = true;
    }
    changed.notify_all();
}

// The contract.

std::unique_ptr<Engine> Engine::open(const std::string& path, const EngineOptions& options) {
    return std::make_unique<Engine>(open_checkpoint(path), options);
}

Engine::Engine(std::unique_ptr<Checkpoint> checkpoint, const EngineOptions& options) {
    ModelText text(*checkpoint);
    impl_ = std::make_unique<Impl>(std::move(checkpoint), options, std::move(text));
}

Engine::Engine(std::unique_ptr<Model> model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options, ModelText())) {}

Engine::~Engine() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->stopping = true;
        impl_->wake_up();
    }
    impl_->thread.join();
}

RequestId Engine::submit(Request request, Sink sink) {
    return impl_->enqueue(impl_->make_job(std::move(request), std::move(sink)));
}

void Engine::cancel(RequestId id) {
    const std::lock_guard lock(impl_->mutex);
    impl_->cancels.push_back(id);
    impl_->wake_up();
}

EngineStats Engine::stats() const {
    const std::lock_guard lock(impl_->mutex);
    EngineStats stats = impl_->stats;
    stats.waiting = impl_->loop.waiting;
    stats.refused = impl_->refused;
    stats.paused = impl_->paused;
    stats.broken = !impl_->failure.empty();
    return stats;
}

EngineInfo Engine::info() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->facts;
}

const Tokenizer* Engine::tokenizer() const { return impl_->text.tokenizer(); }
const ChatTemplate* Engine::chat_template() const { return impl_->text.chat_template(); }
std::vector<int32_t> Engine::tokenize(const Prompt& prompt) const { return impl_->text.encode(prompt).tokens; }

void Engine::pause() {
    impl_->refuse_in_sink("pause");
    std::unique_lock lock(impl_->mutex);
    impl_->paused = true;
    impl_->wake_up();
    impl_->changed.wait(lock, [this] { return !impl_->stepping; });
}

void Engine::resume() {
    const std::lock_guard lock(impl_->mutex);
    impl_->paused = impl_->draining = false;
    impl_->wake_up();
}

void Engine::drain() {
    impl_->refuse_in_sink("drain");
    std::unique_lock lock(impl_->mutex);
    impl_->draining = true;
    impl_->wake_up();
    impl_->changed.wait(lock, [this] { return impl_->quiet; });
}

int64_t Engine::reload(const std::string& path) { return impl_->reload(open_checkpoint(path)); }
int64_t Engine::reload(std::unique_ptr<Checkpoint> checkpoint) { return impl_->reload(std::move(checkpoint)); }

}  // namespace riptide
