#include "engine/gpu_decoder.h"

#include <atomic>
#include <cstring>

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
      largest_(static_cast<size_t>(sequences)),
      sampled_(static_cast<size_t>(sequences)),
      slots_(*context.gpu, sequences, model.info().vocab_size),
      ring_memory_(*context.gpu, kRingSteps * sequences * int64_t{sizeof(uint64_t)}),
      step_memory_(context.gpu, 2 * int64_t{sizeof(int64_t)} + kForced * int64_t{sizeof(int32_t)}, "step counter") {
    std::memset(ring_memory_.data(), 0, static_cast<size_t>(ring_memory_.bytes()));
    auto* const words = reinterpret_cast<int64_t*>(step_memory_.data());
    ring_ = {reinterpret_cast<uint64_t*>(ring_memory_.data()), kRingSteps, words,
             reinterpret_cast<const int32_t*>(words + 2), words + 1};
}

void GpuDecoder::begin(std::span<const DecodeRow> rows, Draw draw, std::span<const int32_t> forced) {
    RT_ASSERT(pending() == 0 && std::ssize(forced) <= kForced && !rows.empty() && std::ssize(rows) <= sequences_);
    std::byte* const words = step_memory_.data();
    const int64_t size = std::ssize(forced);
    context_.gpu->to_device(words + sizeof(int64_t), &size, sizeof size);
    if (size > 0) context_.gpu->to_device(words + 2 * sizeof(int64_t), forced.data(), size * int64_t{sizeof(int32_t)});
    std::vector<StepRows> step;
    for (const DecodeRow& row : rows)
        step.push_back({row.sequence, std::span(&row.token, 1), {}, StepRows::Logits::last, {}});
    device_batch_.upload(builder_.build(step));
    rows_ = std::ssize(rows);
    draw_ = draw;
}

void GpuDecoder::launch() {
    RT_ASSERT(rows_ > 0 && pending() < kRingSteps);
    const bool sampled = draw_ == Draw::sampled;
    context_.family = Family::decode;
    (sampled ? sampled_ : largest_)[static_cast<size_t>(rows_ - 1)].run(context_, [&] {
        const Batch& batch = device_batch_.batch();
        const Tensor logits = model_.forward(context_, batch, States{cache_.views()});
        const Tensor tokens = sampled ? ops::sample(context_, logits, slots_.state(), batch.positions)
                                      : ops::most_likely(context_, logits);
        ops::advance(context_, tokens, batch, ring_);
        return tokens;
    });
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

void GpuDecoder::end() {
    context_.gpu->synchronize();
    taken_ = launched_;
}

}  // namespace riptide
