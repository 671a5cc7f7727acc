#include "engine/sampling/mask_search.h"

#include <utility>

#include "base/error.h"
#include "base/work_budget.h"

namespace riptide {

void MaskSearch::run() {
    WorkBudget work(WorkBudget::kUnlimited, stop_.get_token());
    try {
        work.look();
        next_ = state_.next(tokens_, &work);
    } catch (...) {
        error_ = std::current_exception();
    }
    steps_ = work.steps_spent();
    done_.store(true, std::memory_order_release);
}

const NextTokens& MaskSearch::next() const {
    RT_ASSERT(done());
    if (error_) std::rethrow_exception(error_);
    return next_;
}

MaskWorker::~MaskWorker() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        if (running_) running_->stop();
        wake_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
}

void MaskWorker::add(std::shared_ptr<MaskSearch> search) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(search));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    wake_.notify_all();
}

void MaskWorker::wait(std::chrono::microseconds most) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, most, [&] { return count_ > seen_; });
    seen_ = count_;
}

void MaskWorker::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (stopping_) return;
        running_ = std::move(waiting_.front());
        waiting_.pop_front();
        lock.unlock();
        running_->run();
        lock.lock();
        running_.reset();
        ++count_;
        ended_.notify_all();
    }
}

}  // namespace riptide
