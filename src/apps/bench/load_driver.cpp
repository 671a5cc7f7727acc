#include "apps/bench/load_driver.h"

#include <algorithm>
#include <atomic>

#include "apps/bench/bench_rows.h"
#include "apps/support/terminal.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

using namespace std::chrono_literals;

std::atomic<int64_t> g_prompts{0};  // prompts made in this process

}  // namespace

LoadDriver::~LoadDriver() {
    engine_.resume();  // it may be paused: an error came while settled_stats() had it so
    for (const RequestId id : ids_) engine_.cancel(id);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
        return std::all_of(requests_.begin(), requests_.end(), [](const auto& request) { return request->over; });
    });
}

std::vector<int32_t> LoadDriver::fresh_prompt(int64_t tokens) const {
    return made_up_tokens(tokens, vocab_, ++g_prompts);
}

size_t LoadDriver::submit(std::vector<int32_t> prompt, int64_t max_tokens, const std::string& session, bool side) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = temperature_;
    request.sampling.seed = ids_.size();
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = max_tokens;
    request.session = session;
    request.side = side;
    request.want_tokens = true;
    LoadRequest* mine = nullptr;
    size_t number = 0;
    {
        const std::lock_guard lock(mutex_);
        number = requests_.size();
        requests_.push_back(std::make_unique<LoadRequest>());
        mine = requests_.back().get();
        mine->submitted = now();
    }
    try {
        ids_.push_back(engine_.submit(std::move(request), [this, mine](const Event& event) { take(*mine, event); }));
    } catch (...) {
        const std::lock_guard lock(mutex_);
        requests_.pop_back();
        throw;
    }
    return number;
}

void LoadDriver::cancel(size_t request) { engine_.cancel(ids_[request]); }

/// On the engine's thread.
void LoadDriver::take(LoadRequest& request, const Event& event) {
    const double at = now();
    const std::lock_guard lock(mutex_);
    const bool first = request.times.empty();
    if (const auto* drawn = std::get_if<TokensDrawn>(&event.body)) {
        for (const Sampled& sampled : drawn->tokens) {
            request.times.push_back(at);
            request.tokens.push_back(sampled.token);
        }
    } else if (const auto* done = std::get_if<Done>(&event.body)) {
        request.done = *done;
    } else if (const auto* failed = std::get_if<Failed>(&event.body)) {
        failure_ = *failed;
    }
    request.over = request.over || event.last;
    if (event.last || (first && !request.times.empty())) changed_.notify_one();
}

bool LoadDriver::wait(const std::function<bool(const std::vector<std::unique_ptr<LoadRequest>>&)>& ready) {
    std::unique_lock lock(mutex_);
    while (!interrupted()) {
        if (failure_) throw Error("a request has failed: " + failure_->message, failure_->kind);
        if (ready(requests_)) return true;
        changed_.wait_for(lock, 5ms);
    }
    return false;
}

bool LoadDriver::wait_for_tokens(size_t first, size_t count, int64_t more) {
    std::vector<int64_t> wanted;
    return wait([&](const auto& requests) {
        for (size_t i = wanted.size(); i < count; ++i) wanted.push_back(std::ssize(requests[first + i]->times) + more);
        for (size_t i = 0; i < count; ++i) {
            const LoadRequest& request = *requests[first + i];
            if (!request.over && std::ssize(request.times) < wanted[i]) return false;
        }
        return true;
    });
}

bool LoadDriver::wait_for_end(size_t request) {
    return wait([&](const auto& requests) { return requests[request]->over; });
}

LoadRequest LoadDriver::get(size_t request) const {
    const std::lock_guard lock(mutex_);
    return *requests_[request];
}

std::vector<TokenTimes> LoadDriver::times(size_t first, size_t count) const {
    const std::lock_guard lock(mutex_);
    std::vector<TokenTimes> result;
    for (size_t i = 0; i < count; ++i) result.push_back(requests_[first + i]->times);
    return result;
}

EngineStats LoadDriver::settled_stats() {
    engine_.pause();
    EngineStats stats = engine_.stats();
    engine_.resume();
    return stats;
}

}  // namespace riptide::apps
