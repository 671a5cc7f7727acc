// Engine: the door, its queue and its thread. engine_loop.cpp and engine_step.cpp have what the thread does.
#include "engine/engine.h"

#include "base/error.h"
#include "cache/cache_feed.h"
#include "engine/engine_impl.h"

namespace riptide {

namespace {

constexpr std::chrono::seconds kIdleCheck{1};
/// How soon is heard that a client has gone, a deadline has passed or weights are loaded, where nobody tells.
constexpr std::chrono::milliseconds kLook{5};
/// Between two looks at what is to be written to the shared tier where nothing else is to do; how long the engine's end
/// waits for it.
constexpr std::chrono::milliseconds kShareAgain{1}, kShareAtEnd{2000};

}  // namespace

std::unique_ptr<Compressor> Engine::Impl::make_compressor(const ModelText& text, const EngineOptions& options) {
    check_compression(options.compression, "compression.");
    if (!options.scorer || text.tokenizer() == nullptr) return nullptr;
    return std::make_unique<Compressor>(*text.tokenizer(), text.fingerprint(), options.scorer);
}

// The caller's side.

RequestId Engine::Impl::enqueue(std::unique_ptr<Job> job, int64_t submitted_us) {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) throw Error(failure, ErrorKind::system);
    if (draining || stopping) fail(ErrorKind::unavailable, "the engine takes no more requests: it is being drained");
    const int64_t waiting = loop.waiting, most = machine.options().max_queue, more = job->open;
    if (waiting + more > most && !job->same_call) {
        ++refused;
        const int64_t wait = std::max<int64_t>(1000, retry_after_us);
        throw QueueFull(fmt::format("{} answers wait already, of at most {}; try again in {} s", waiting, most,
                                    (wait + 999'999) / 1'000'000),
                        wait);
    }
    loop.waiting += more;
    job->id = ++last_id;
    if (job->share == 0) job->share = maker.share_of(job->id);
    job->submitted_us = submitted_us;
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

void Engine::Impl::drain(WorkBudget* work) {
    refuse_in_sink("drain");
    std::unique_lock lock(mutex);
    draining = true;
    wake_up();
    try {
        while (!changed.wait_for(lock, kLook, [this] { return quiet; }))
            if (work != nullptr) work->look();
    } catch (...) {
        draining = false;
        throw;
    }
}

/// Waits until no request has begun, and until the engine's thread has done it. Throws what it throws, and what
/// `budget` (or null) does before it has begun.
void Engine::Impl::between_requests(const char* what, const std::function<void()>& work, WorkBudget* budget) {
    refuse_in_sink(what);
    Order mine{.work = work};
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kLook, [&] { return order == nullptr || !failure.empty() || stopping; }))
        if (budget != nullptr) budget->look();
    if (stopping) fail(ErrorKind::unavailable, "the engine ends");
    if (!failure.empty()) throw Error(failure, ErrorKind::system);
    order = &mine;
    wake_up();
    try {
        while (!changed.wait_for(lock, kLook, [&] { return mine.done; }))
            if (budget != nullptr && !mine.begun) budget->look();
    } catch (...) {
        order = nullptr;
        wake_up();
        changed.notify_all();
        throw;
    }
    if (mine.error) std::rethrow_exception(mine.error);
}

int64_t Engine::Impl::reload(std::unique_ptr<Checkpoint> checkpoint, WorkBudget* budget) {
    const std::string path = checkpoint->path();
    int64_t version = 0;
    const auto swap = [&] {
        load(std::move(checkpoint));
        version = facts.version + 1;  // nobody else writes it
        loop.change_weights(version);
        const std::lock_guard lock(mutex);
        facts.version = version;
        facts.path = path;
    };
    between_requests("reload", swap, budget);
    return version;
}

void Engine::Impl::hear_back() {  // on the scorer's thread, or one of the shared tier's
    const std::lock_guard lock(mutex);
    back = true;
    wake_up();
}

// The engine thread's side.

void Engine::Impl::run() {
    std::unique_lock lock(mutex);
    try {
        machine.use_on_this_thread();
        if (fetches) machine.try_shared();
    } catch (const std::exception& error) {
        failure = fmt::format("the engine has failed: {}", error.what());
    }
    while (failure.empty()) {
        news = false;
        if (any_news()) {
            take_news(lock);
            report();
        } else if (stopping) {
            break;
        } else if (order != nullptr && loop.begun() == 0) {
            carry_out(lock);
        } else if (!loop.idle() && (!paused || draining || order != nullptr)) {
            step(lock);
        } else {
            quiet = loop.idle() && elsewhere() == 0;
            changed.notify_all();
            wait(lock);
        }
    }
    end(lock);
}

/// Until there is news, or the next deadline. Meanwhile others get what they may share.
void Engine::Impl::wait(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const bool more = share_some();
    lock.lock();
    if (!failure.empty()) return;
    const std::chrono::microseconds left(std::max<int64_t>(0, nearest_deadline() - loop.now_us()));
    const auto time = std::min<std::chrono::microseconds>(left, more ? kShareAgain : kIdleCheck);
    if (wake.wait_for(lock, time, [&] { return news.load(); })) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - checked < kIdleCheck && more) return;
    checked = now;
    check_idle();
}

/// Without the mutex.
bool Engine::Impl::share_some() {
    try {
        return loop.share_some();
    } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failure = fmt::format("the engine has failed: {}", error.what());
        return false;
    }
}

void Engine::Impl::report() {
    loop.report(stats);
    recent = loop.recent();
    if (!fetches) return;
    stats.fetching = fetches->size();
    stats.shared_fetched = fetches->stats().fetched;
    stats.shared_tokens = fetches->stats().tokens;
    stats.shared_late = fetches->stats().late;
    stats.shared_slower = fetches->stats().slower;
}

/// A device can fail while nobody uses it: whoever asks for the server's health should know.
void Engine::Impl::check_idle() {
    try {
        machine.check();
        loop.learn_weights();
    } catch (const std::exception& error) {
        failure = fmt::format("the engine has failed: {}", error.what());
    }
}

/// New requests and cancellations go to the loop; what is past its deadline ends.
void Engine::Impl::take_news(std::unique_lock<std::mutex>& lock) {
    std::vector<std::unique_ptr<Job>> jobs = std::exchange(inbox, {});
    const std::vector<RequestId> ids = std::exchange(cancels, {});
    back = false;
    lock.unlock();  // sinks may submit and cancel
    for (auto& job : jobs) {
        if (job->plan) scoring->add(std::move(job));
        else begin(std::move(job));
    }
    for (const RequestId id : ids) {
        std::unique_ptr<Job> job = scoring ? scoring->remove(id) : nullptr;
        if (job) maker.complete(*job, false);
        if (!job && fetches) job = fetches->remove(id);
        if (job) loop.refuse(std::move(job), {});
        else loop.cancel(id);
    }
    if (scoring) take_scored();
    if (fetches && !loop.loading) {
        for (auto& job : fetches->take_ready(loop.now_us())) loop.add(std::move(job));
        machine.tell_shared_problem();
    }
    loop.expire();
    lock.lock();
}

/// Prompts that are short now go the way of all others.
void Engine::Impl::take_scored() {
    for (auto& [job, failed] : scoring->take_scored(loop.now_us())) {
        job->scoring_us = loop.now_us() - job->submitted_us;
        maker.complete(*job, !failed);
        if (failed) loop.refuse(std::move(job), failed);
        else begin(std::move(job));
    }
}

/// Lets it run, once what others may have computed of its prompt is here.
void Engine::Impl::begin(std::unique_ptr<Job> job) {
    if (!fetches || loop.loading || !fetches->add(job, facts.model.vocab_size, loop.now_us())) loop.add(std::move(job));
}

void Engine::Impl::step(std::unique_lock<std::mutex>& lock) {
    stepping = true;
    loop.hold(order != nullptr);
    lock.unlock();
    std::string problem;
    try {
        loop.learn_weights();
        loop.step();
        loop.share_some();
    } catch (const std::exception& error) {
        problem = fmt::format("the engine has failed: {}", error.what());
    }
    lock.lock();
    stepping = false;
    failure = problem;
    retry_after_us = loop.retry_after_us();
    report();
}

void Engine::Impl::hear_until(const std::future<void>& done) {
    while (done.wait_for(kLook) != std::future_status::ready) {
        std::unique_lock lock(mutex);
        news = false;
        if (any_news()) take_news(lock);
    }
}

/// Loading takes long: requests that wait are heard meanwhile. They have no K/V, so the loop asks nothing of the
/// machine for them. REQUIRES that no request has begun.
void Engine::Impl::load(std::unique_ptr<Checkpoint> checkpoint) {
    const auto replace = [&] {
        machine.use_on_this_thread();
        machine.replace(std::move(checkpoint));
    };
    // What is fetched is of the old weights, and the machine is the other thread's until it is done.
    if (fetches)
        for (auto& job : fetches->remove_all()) loop.add(std::move(job));
    loop.loading = true;
    try {
        std::future<void> done = std::async(std::launch::async, replace);
        hear_until(done);
        done.get();
        loop.loading = false;
    } catch (...) {
        loop.loading = false;
        const std::exception_ptr why = std::current_exception();
        try {
            if (machine.usable()) loop.renew_drafter();  // the old weights are in another place now
        } catch (const std::exception& error) {
            const std::lock_guard lock(mutex);
            failure = fmt::format("the engine has failed: {}", error.what());
        }
        std::rethrow_exception(why);
    }
}

/// REQUIRES that no request has begun.
void Engine::Impl::carry_out(std::unique_lock<std::mutex>& lock) {
    Order& mine = *order;
    stepping = mine.begun = true;
    lock.unlock();
    try {
        mine.work();
    } catch (...) {
        mine.error = std::current_exception();
    }
    lock.lock();
    stepping = false;
    order = nullptr;
    mine.done = true;
    if (!machine.usable()) failure = "the engine has failed: neither the new weights nor the old could be loaded";
    report();
    changed.notify_all();
}

/// Every request that is left gets its last event; the cache goes to disk.
void Engine::Impl::end(std::unique_lock<std::mutex>& lock) {
    std::vector<std::unique_ptr<Job>> jobs = std::exchange(inbox, {});
    const Failed failed{ErrorKind::system, failure};
    const bool broken = !failure.empty();
    lock.unlock();
    if (scoring)
        for (auto& job : scoring->remove_all()) jobs.push_back(std::move(job));
    for (auto& job : jobs)
        if (job->plan) maker.complete(*job, false);
    if (fetches)
        for (auto& job : fetches->remove_all()) jobs.push_back(std::move(job));
    loop.end_all(broken ? &failed : nullptr, std::move(jobs));
    if (!broken && machine.prefix() != nullptr) {
        loop.learn_weights();
        machine.prefix()->persist();
        const auto end = std::chrono::steady_clock::now() + kShareAtEnd;
        while (share_some() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kShareAgain);
    }
    lock.lock();
    report();
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

Engine::Engine(std::unique_ptr<Model> model, const EngineOptions& options, const Checkpoint* text)
    : impl_(std::make_unique<Impl>(std::move(model), options, text != nullptr ? ModelText(*text) : ModelText())) {}

Engine::~Engine() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->stopping = true;
        impl_->wake_up();
    }
    impl_->thread.join();
    impl_->machine.hear_shared(nullptr);
    if (impl_->fetches) impl_->machine.tell_shared_problem();
}

RequestId Engine::submit(Request request, Sink sink, WorkBudget* work) {
    const int64_t now = impl_->loop.now_us();
    return impl_->enqueue(impl_->maker.make(std::move(request), std::move(sink), work), now);
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
    stats.waiting_tokens = impl_->loop.waiting_tokens;
    stats.answer_rate = impl_->recent.rate(impl_->loop.now_us());
    stats.refused = impl_->refused;
    stats.scoring = impl_->scoring ? impl_->scoring->size() : 0;
    stats.paused = impl_->paused;
    stats.broken = !impl_->failure.empty();
    if (const CacheFeed* feed = impl_->machine.options().cache_feed.get()) {
        stats.tells_kv_events = true;
        stats.kv_events = feed->told.events;
        stats.kv_events_lost = feed->told.lost;
        stats.kv_event_epochs = feed->told.epochs;
    }
    return stats;
}

EngineInfo Engine::info() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->facts;
}

const Tokenizer* Engine::tokenizer() const { return impl_->text.tokenizer(); }
const ChatTemplate* Engine::chat_template() const { return impl_->text.chat_template(); }
std::vector<int32_t> Engine::tokenize(const Prompt& prompt, WorkBudget* work) const {
    return impl_->text.encode(prompt, work).tokens;
}

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

void Engine::drain(WorkBudget* work) { impl_->drain(work); }

int64_t Engine::reload(const std::string& path, WorkBudget* work) {
    const auto& open = impl_->machine.options().open_weights;
    return impl_->reload(open ? open(path) : open_checkpoint(path), work);
}
int64_t Engine::reload(std::unique_ptr<Checkpoint> checkpoint, WorkBudget* work) {
    return impl_->reload(std::move(checkpoint), work);
}

void Engine::forget_cache(WorkBudget* work) {
    impl_->between_requests(
        "forget_cache", [this] { impl_->loop.flush(); }, work);
}

std::unique_ptr<Speculator> Engine::speculate(std::unique_ptr<Speculator> speculator) {
    impl_->between_requests("speculate", [&] { speculator = impl_->loop.speculate(std::move(speculator)); });
    return speculator;
}

double Engine::memory_bandwidth() {
    double rate = 0;
    impl_->between_requests("memory_bandwidth", [&] { rate = impl_->machine.memory_bandwidth(); });
    return rate;
}

}  // namespace riptide
