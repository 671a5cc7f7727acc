#include "engine/loop/scoring_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace riptide {

ScoringQueue::ScoringQueue(Compressor& compressor, std::function<void()> on_scored)
    : compressor_(compressor), on_scored_(std::move(on_scored)), thread_([this] { run(); }) {}

ScoringQueue::~ScoringQueue() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        for (const auto& [id, entry] : jobs_) entry.second->cancel = true;
        wake_.notify_all();
    }
    thread_.join();
}

void ScoringQueue::add(std::unique_ptr<Job> job) {
    auto task = std::make_shared<Task>();
    task->id = job->id;
    task->priority = job->priority;
    task->plan = job->plan;
    const std::lock_guard lock(mutex_);
    jobs_[task->id] = {std::move(job), task};
    wake_.notify_all();
}

std::unique_ptr<Job> ScoringQueue::remove(RequestId id) {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return nullptr;
    found->second.second->cancel = true;
    std::unique_ptr<Job> job = std::move(found->second.first);
    jobs_.erase(found);
    return job;
}

std::vector<ScoringQueue::Scored> ScoringQueue::take_scored(int64_t now_us) {
    const std::lock_guard lock(mutex_);
    std::vector<Scored> out;
    for (auto entry = jobs_.begin(); entry != jobs_.end();) {
        auto& [job, task] = entry->second;
        const bool late = job->deadline_us <= now_us;
        if (!task->over && !late) {
            ++entry;
            continue;
        }
        task->cancel = true;
        const std::optional<Failed> failed = late ? job->late() : task->failed;
        out.push_back({std::move(job), failed});
        entry = jobs_.erase(entry);
    }
    return out;
}

std::vector<std::unique_ptr<Job>> ScoringQueue::remove_all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Job>> out;
    for (auto& [id, entry] : jobs_) {
        entry.second->cancel = true;
        out.push_back(std::move(entry.first));
    }
    jobs_.clear();
    return out;
}

int64_t ScoringQueue::size() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(jobs_);
}

int64_t ScoringQueue::nearest_deadline() const {
    const std::lock_guard lock(mutex_);
    int64_t nearest = std::numeric_limits<int64_t>::max();
    for (const auto& [id, entry] : jobs_) nearest = std::min(nearest, entry.first->deadline_us);
    return nearest;
}

std::shared_ptr<ScoringQueue::Task> ScoringQueue::next() const {
    std::shared_ptr<Task> best;
    for (const auto& [id, entry] : jobs_) {
        const auto& task = entry.second;
        if (!task->begun && (!best || task->priority > best->priority)) best = task;
    }
    return best;
}

void ScoringQueue::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        std::shared_ptr<Task> task;
        wake_.wait(lock, [&] { return stopping_ || (task = next()) != nullptr; });
        if (stopping_) return;
        task->begun = true;
        lock.unlock();
        std::optional<Failed> failed;
        try {
            compressor_.choose(*task->plan, &task->cancel);
        } catch (const Error& error) {
            failed = Failed{error.kind(), fmt::format("the prompt could not be scored: {}", error.what())};
        } catch (const std::exception& error) {
            failed = Failed{ErrorKind::system, fmt::format("the prompt could not be scored: {}", error.what())};
        }
        lock.lock();
        task->over = true;
        task->failed = std::move(failed);
        lock.unlock();
        on_scored_();
        lock.lock();
    }
}

}  // namespace riptide
