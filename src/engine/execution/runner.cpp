#include "engine/execution/runner.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace riptide {

namespace {

/// Drops the rows of a step unless it succeeds.
class StepGuard {
  public:
    explicit StepGuard(std::span<const StepItem> items) : items_(items) {}
    ~StepGuard() {
        if (items_.empty()) return;
        for (const StepItem& item : items_)
            if (item.sequence->reserved() > 0) item.sequence->commit_prefix(0);
    }
    StepGuard(const StepGuard&) = delete;
    StepGuard& operator=(const StepGuard&) = delete;
    void succeed() { items_ = {}; }

  private:
    std::span<const StepItem> items_;
};

constexpr int64_t kFirstArenaBytes = int64_t{1} << 20, kFirstGpuArenaBytes = int64_t{64} << 20;

}  // namespace

void begin_rows(std::span<const StepItem> items, std::span<const int32_t> row_begin, Family family) {
    for (size_t i = 0; i < items.size(); ++i)
        items[i].sequence->begin_rows(row_begin[i], row_begin[i + 1] - row_begin[i], delta_mode(family));
}

Runner::Runner(const Model& model, KvCache& cache, ThreadPool* threads, int64_t sequence_tokens, int64_t workspace)
    : model_(model),
      cache_(cache),
      arena_(cache.gpu() == nullptr ? kFirstArenaBytes : std::max(kFirstGpuArenaBytes, workspace), cache.gpu()) {
    context_.gpu = cache.gpu();
    context_.threads = threads;
    context_.arena = &arena_;
    if (cache.gpu() == nullptr) return;
    device_batch_.emplace(new_device_batch(sequence_tokens));
    forget_recorded();
}

void Runner::forget_recorded() {
    const auto decode = static_cast<size_t>(std::min<int64_t>(kGraphRows, cache_.options().max_sequences)),
               verify = static_cast<size_t>(std::min<int64_t>(kVerifyRows, cache_.options().max_step_rows));
    for (RecordedSteps& steps : steps_) {
        steps = {};
        steps.decode.resize(decode);
        steps.chain.resize(verify);
        steps.tree.resize(verify);
    }
}

DeviceBatch Runner::new_device_batch(int64_t sequence_tokens) const {
    const KvCacheOptions& o = cache_.options();
    return DeviceBatch(*cache_.gpu(), int64_t{o.max_step_rows} * o.max_sequences, o.max_sequences,
                       sequence_tokens > 0 ? std::min(o.pages, cache_.pages_for(sequence_tokens)) : o.pages);
}

int64_t Runner::graphs() const {
    int64_t count = 0;
    for (const RecordedSteps& kind : steps_)
        for (const auto* steps : {&kind.decode, &kind.chain, &kind.tree})
            count += std::count_if(steps->begin(), steps->end(), [](const auto& step) { return step.recorded(); });
    return count;
}

void Runner::capture(std::span<const int32_t> layers) {
    if (std::equal(layers.begin(), layers.end(), capture_layers_.begin(), capture_layers_.end())) return;
    capture_layers_.assign(layers.begin(), layers.end());
    captured_ = {};
    captured_by_.clear();
    if (device_batch_) forget_recorded();
}

/// What a step like this is recorded as; null: it is not.
RecordedStep* Runner::recorded(const Batch& batch) {
    const int64_t n = batch.rows();
    if (context_.family != Family::decode || std::ssize(batch.logit_rows) != n) return nullptr;
    RecordedSteps& kind = steps_[(batch.gaps.empty() ? 0 : 1) + (batch.far ? 2 : 0)];
    auto& steps = batch.sequences() == n && batch.parent.empty() ? kind.decode
                  : batch.parent.empty()                         ? kind.chain
                                                                 : kind.tree;
    const bool fits = (&steps == &kind.decode || batch.sequences() == 1) && n <= std::ssize(steps);
    return fits ? &steps[static_cast<size_t>(n - 1)] : nullptr;
}

/// Runs the batch that has been built.
Tensor Runner::forward(const Batch& host) {
    const Batch& batch = device_batch_ ? device_batch_->upload(host) : host;
    const States states{cache_.views(), cache_.delta().views(), delta_mode(context_.family)};
    const auto body = [&] {
        if (capture_layers_.empty()) return model_.forward(context_, batch, states);
        FeatureCapture capture{capture_layers_, {}};
        capture.out = captured_ =
            context_.alloc(DType::f32, {batch.rows(), std::ssize(capture_layers_) * model_.info().hidden_size});
        return model_.forward(context_, batch, states, &capture);
    };
    if (RecordedStep* step = recorded(host)) {
        captured_ = captured_by_[step];
        const Tensor logits = step->run(context_, body);  // which sets it, or is a graph
        captured_by_[step] = captured_;
        return logits;
    }
    arena_.reset();
    const Tensor logits = body();
    if (context_.on_op) context_.on_op({});
    return logits;
}

void Runner::reserve(std::span<const StepItem> items) {
    for (const StepItem& item : items) {
        const auto rows = std::ssize(item.tokens);
        if (item.sequence->try_reserve(rows)) continue;
        fail(ErrorKind::unavailable, "the K/V cache is full: {} more tokens need {} pages of {}, and {} are free", rows,
             item.sequence->pages_needed(rows), cache_.options().page_rows, cache_.pool().free_count());
    }
}

Tensor Runner::step(std::span<const StepItem> items, Family family) {
    RT_ASSERT(!items.empty());
    StepGuard guard(items);
    reserve(items);
    std::vector<StepRows> rows;
    for (const StepItem& item : items)
        rows.push_back({item.sequence, item.tokens, item.parents, item.logits, item.logit_list});
    context_.family = family;
    const Batch& batch = builder_.build(rows);
    if (delta_mode(family) == ops::DeltaMode::stash) cache_.delta().begin_step();
    begin_rows(items, batch.row_begin, family);
    const Tensor logits = forward(batch);
    guard.succeed();
    return logits;
}

}  // namespace riptide
