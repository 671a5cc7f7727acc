#include "engine/execution/decode_ahead.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "ops/topk.h"

namespace riptide {

GpuDecoder::GpuDecoder(const Model& model, KvCache& cache, Context& context, DeviceBatch& device_batch,
                       int64_t sequences)
    : model_(model),
      cache_(cache),
      context_(context),
      device_batch_(device_batch),
      sequences_(sequences),
      slots_(*context.gpu, sequences, model.info().vocab_size),
      masks_(*context.gpu, model.info().vocab_size),
      ring_memory_(*context.gpu, kRingSteps * sequences * int64_t{sizeof(uint64_t)}),
      step_memory_(context.gpu, 2 * int64_t{sizeof(int64_t)} + (2 * sequences + kForced) * int64_t{sizeof(int32_t)},
                   "step counter"),
      one_slot_(context.gpu, kMostDraws * int64_t{sizeof(int32_t)}, "slots of drafted rows"),
      drawn_slots_(context.gpu, kMostDraws * int64_t{sizeof(int32_t)}, "slots of drafted rows") {
    for (auto* steps : {&waiting_, &following_})
        for (RecordedSteps& way : *steps)
            for (auto& kind : way) kind.resize(static_cast<size_t>(sequences));
    draw_for(0);
    std::memset(ring_memory_.data(), 0, static_cast<size_t>(ring_memory_.bytes()));
    auto* const words = reinterpret_cast<int64_t*>(step_memory_.data());
    auto* const slots = reinterpret_cast<int32_t*>(words + 2);
    ring_ = {reinterpret_cast<uint64_t*>(ring_memory_.data()), kRingSteps, words, slots + 2 * sequences, words + 1};
    row_slots_ = {slots, static_cast<size_t>(sequences)};
    held_ = {slots + sequences, static_cast<size_t>(sequences)};
}

int64_t GpuDecoder::follow_rows() const {
    return std::min(sequences_, cache_.delta().follow_rows());
}

void GpuDecoder::begin(std::span<const DecodeRow> rows, Draw draw, std::span<const int32_t> forced, Recurrent state) {
    RT_ASSERT(state != Recurrent::follows || std::ssize(rows) <= follow_rows());
    RT_ASSERT(pending() == 0 && std::ssize(forced) <= kForced && !rows.empty() && std::ssize(rows) <= sequences_);
    step_.clear();
    for (const DecodeRow& row : rows)
        step_.push_back({row.sequence, std::span(&row.token, 1), {}, StepRows::Logits::last, {}});
    const Batch& batch = device_batch_.upload(builder_.build(step_));
    kind_ = (batch.gaps.empty() ? 0 : 1) + (batch.far ? 2 : 0);
    state_ = state;
    cache_.delta().begin_step();
    const int64_t size = std::ssize(forced);
    begin_words_.resize(sizeof size / sizeof(int32_t));
    std::memcpy(begin_words_.data(), &size, sizeof size);
    for (size_t r = 0; r < rows.size(); ++r) {
        begin_words_.push_back(rows[r].slot < 0 ? static_cast<int32_t>(r) : rows[r].slot);
        RT_ASSERT(begin_words_.back() < sequences_);
    }
    begin_words_.resize(sizeof size / sizeof(int32_t) + row_slots_.size());
    for (size_t r = 0; r < rows.size(); ++r) {
        SequenceState& sequence = *rows[r].sequence;
        const auto number = static_cast<int64_t>(r);
        begin_words_.push_back(static_cast<int32_t>(sequence.length()));
        if (state == Recurrent::waits) sequence.begin_rows(number, 1, ops::DeltaMode::stash);
        else sequence.begin_follow(number);
    }
    std::byte* const words = step_memory_.data() + sizeof(int64_t);
    context_.gpu->to_device(words, begin_words_.data(), std::ssize(begin_words_) * int64_t{sizeof(int32_t)});
    if (size > 0)
        context_.gpu->to_device(const_cast<int32_t*>(ring_.forced), forced.data(), size * int64_t{sizeof(int32_t)});
    rows_ = std::ssize(rows);
    draw_ = draw;
    run_ = 0;
}

RecordedStep& GpuDecoder::recorded(Way way) {
    return (state_ == Recurrent::follows ? following_ : waiting_)[way][kind_][static_cast<size_t>(rows_ - 1)];
}

States GpuDecoder::states() const {
    States states{cache_.views(), cache_.delta().views()};
    if (state_ == Recurrent::follows) {
        states.delta_mode = ops::DeltaMode::follow;
        states.held = held_.first(static_cast<size_t>(rows_));
    }
    return states;
}

void GpuDecoder::launch() {
    RT_ASSERT(rows_ > 0 && pending() < kRingSteps);
    const bool sampled = draw_ == Draw::sampled;
    context_.family = Family::decode;
    recorded(sampled ? kSampled : kLargest).run(context_, [&] {
        const Batch& batch = device_batch_.batch();
        const States states = this->states();
        const Tensor logits = model_.forward(context_, batch, states);
        if (sampled) {
            const Tensor tokens = ops::sample(context_, logits, slots_.state(), batch.positions,
                                              row_slots_.first(static_cast<size_t>(rows_)));
            ops::advance(context_, tokens, batch, ring_, states.held);
        } else {
            ops::advance_most_likely(context_, logits, batch, ring_, states.held);
        }
        return logits;
    });
    ++launched_;
    ++run_;
}

void GpuDecoder::forward() {
    RT_ASSERT(rows_ > 0 && draw_ == Draw::sampled);
    context_.family = Family::decode;
    logits_ =
        recorded(kForward).run(context_, [&] { return model_.forward(context_, device_batch_.batch(), states()); });
    ++run_;
}

void GpuDecoder::draw(std::span<const AllowedSet> allowed) {
    RT_ASSERT(pending() == 0 && logits_.rows() == rows_ && std::ssize(allowed) == rows_);
    const Batch& batch = device_batch_.batch();
    const Tensor tokens =
        ops::sample(context_, std::exchange(logits_, {}), slots_.state(), batch.positions,
                    row_slots_.first(static_cast<size_t>(rows_)), true, masks_.upload(allowed, DeviceMasks::Use::step));
    ops::advance(context_, tokens, batch, ring_, states().held);
    if (context_.on_op) context_.on_op({});
    ++launched_;
}

std::span<const int32_t> GpuDecoder::next() {
    RT_ASSERT(pending() > 0);
    tokens_.resize(static_cast<size_t>(rows_));
    const auto wanted = static_cast<uint32_t>(taken_ + 1);
    uint64_t* const entries = ring_.entries + taken_ % kRingSteps * rows_;
    int64_t polls = 0;
    for (int64_t r = 0; r < rows_; ++r) {
        const std::atomic_ref<uint64_t> entry(entries[r]);
        uint64_t value = entry.load(std::memory_order_acquire);
        while (value >> 32 != wanted) {
            if (++polls % 4096 == 0) context_.gpu->check();
            value = entry.load(std::memory_order_acquire);
        }
        tokens_[static_cast<size_t>(r)] = static_cast<int32_t>(value & 0xFFFFFFFFu);
    }
    ++taken_;
    return tokens_;
}

void GpuDecoder::draw_for(int64_t slot) {
    const std::vector<int32_t> slots(kMostDraws, static_cast<int32_t>(slot));
    context_.gpu->to_device(one_slot_.data(), slots.data(), kMostDraws * int64_t{sizeof(int32_t)});
}

Tensor GpuDecoder::draw(const Tensor& logits, std::span<const int32_t> positions, Draw draw) {
    return this->draw(logits, positions,
                      {reinterpret_cast<const int32_t*>(one_slot_.data()), static_cast<size_t>(logits.rows())}, draw);
}

Tensor GpuDecoder::draw(const Tensor& logits, std::span<const int32_t> positions, std::span<const int32_t> slots,
                        Draw draw, const ops::SampleMasks& masks) {
    const int64_t n = logits.rows();
    RT_ASSERT(masks.of_row.empty() || draw == Draw::sampled);
    RT_ASSERT(n >= 1 && n <= kMostDraws && n == std::ssize(positions) && n == std::ssize(slots));
    return draw == Draw::sampled ? ops::sample(context_, logits, slots_.state(), positions, slots, false, masks)
                                 : ops::most_likely(context_, logits);
}

/// For draws that are waited for.
ops::SampleMasks GpuDecoder::masks_of(std::span<const AllowedSet> allowed) {
    return allowed.empty() ? ops::SampleMasks() : masks_.upload(allowed, DeviceMasks::Use::rows);
}

std::span<const int32_t> GpuDecoder::draw_rows(const Tensor& logits, std::span<const int32_t> slots, Draw how,
                                               std::span<const AllowedSet> allowed) {
    const int64_t bytes = std::ssize(slots) * int64_t{sizeof(int32_t)};
    RT_ASSERT(std::ssize(slots) <= kMostDraws);
    if (how == Draw::sampled) context_.gpu->to_device(drawn_slots_.data(), slots.data(), bytes);
    const Tensor tokens =
        draw(logits, device_batch_.batch().positions,
             {reinterpret_cast<const int32_t*>(drawn_slots_.data()), slots.size()}, how, masks_of(allowed));
    drawn_.resize(slots.size());
    context_.gpu->to_host(drawn_.data(), tokens.data, bytes);
    return drawn_;
}

void GpuDecoder::end() {
    context_.gpu->synchronize();
    taken_ = launched_;
}

}  // namespace riptide
