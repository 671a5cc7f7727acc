#include "engine/execution/prefill_step.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

namespace {

/// Room for x of the largest step, so that its address never changes and nothing lies idle beside it.
int64_t stream_bytes(const Model& model, const KvCache& cache) {
    const int64_t rows = cache.options().max_step_rows;
    return std::max<int64_t>(4096, rows * model.info().hidden_size * int64_t{sizeof(float)});
}

}  // namespace

PromptStep::PromptStep(Runner& runner, KvCache& cache, int64_t sequence_tokens, std::function<int64_t()> now_us)
    : model_(runner.model()),
      cache_(cache),
      gpu_(cache.gpu()),
      temporaries_(*runner.context().arena),
      stream_(stream_bytes(runner.model(), cache), cache.gpu()),
      features_(stream_bytes(runner.model(), cache), cache.gpu()),
      now_us_(std::move(now_us)) {
    context_.gpu = gpu_;
    context_.threads = runner.context().threads;
    context_.family = Family::prefill;
    for (const StateSpec& spec : model_.state_specs()) full_.push_back(spec.kind == StateSpec::Kind::paged);
    layer_ = std::ssize(full_);
    if (gpu_ == nullptr) return;
    device_batch_.emplace(runner.new_device_batch(sequence_tokens));
    for (auto& timer : timers_) timer = std::make_unique<GpuTimer>(*gpu_);
}

void PromptStep::begin(std::span<const StepItem> items) {
    RT_ASSERT(!items.empty());
    drop();
    std::vector<StepRows> rows;
    rows_ = row_keys_ = layer_ = 0;
    for (const StepItem& item : items) {
        const auto n = std::ssize(item.tokens);
        rows.push_back({item.sequence, item.tokens, item.parents, item.logits, item.logit_list});
        rows_ += n;
        row_keys_ += n * item.sequence->length() + n * (n + 1) / 2;
    }
    const Batch& host = builder_.build(rows);
    begin_rows(items, host.row_begin, Family::prefill);
    batch_ = device_batch_ ? &device_batch_->upload(host) : &host;
    stream_.reset();
    context_.arena = &stream_;
    x_ = model_.embed(context_, *batch_);
    if (!capture_layers_.empty()) {
        features_.reset();
        context_.arena = &features_;
        capture_.layers = capture_layers_;
        capture_.out = context_.alloc(DType::f32, {rows_, std::ssize(capture_layers_) * model_.info().hidden_size});
        capture_.take(context_, -1, x_);
    }
    context_.arena = &temporaries_;
    under_way_ = true;
}

void PromptStep::run(int64_t layers) {
    RT_ASSERT(under_way_ && layers > 0 && !complete());
    layers = std::min(layers, std::ssize(full_) - layer_);
    const auto first = full_.begin() + layer_;
    PromptPart part{
        .layers = layers, .full_layers = std::count(first, first + layers, 1), .rows = rows_, .row_keys = row_keys_};
    if (timed_.size() == kTimed) timed_.pop_front();
    GpuTimer* timer = gpu_ != nullptr ? timers_[next_timer_].get() : nullptr;
    const int64_t start = now_us_();
    if (timer != nullptr) timer->start();
    under_way_ = false;  // unless all goes well
    temporaries_.reset();
    for (const int64_t end = layer_ + layers; layer_ < end; ++layer_) {
        const void* const x = x_.data;
        model_.layer(context_, layer_, x_, *batch_,
                     States{cache_.views(), cache_.delta().views(), delta_mode(Family::prefill)});
        if (!capture_layers_.empty()) capture_.take(context_, layer_, x_);
        RT_ASSERT(x_.data == x);  // in temporaries_ it would not live until the next part
    }
    under_way_ = true;
    if (timer != nullptr) timer->stop();
    part.seconds = static_cast<double>(now_us_() - start) * 1e-6;
    timed_.push_back({part, next_timer_});
    next_timer_ = (next_timer_ + 1) % kTimed;
}

Tensor PromptStep::finish() {
    RT_ASSERT(under_way_ && complete());
    under_way_ = false;
    temporaries_.reset();
    return model_.logits(context_, x_, *batch_);
}

std::optional<PromptPart> PromptStep::time(size_t running) {
    if (timed_.size() <= running) return std::nullopt;
    Timed oldest = timed_.front();
    timed_.pop_front();
    if (gpu_ != nullptr) oldest.part.seconds = timers_[oldest.timer]->milliseconds() * 1e-3;
    return oldest.part;
}

}  // namespace riptide
