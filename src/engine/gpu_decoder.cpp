#include "engine/gpu_decoder.h"

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "ops/topk.h"

namespace riptide {

GpuDecoder::GpuDecoder(const Model& model, KvCache& cache, Context& context, DeviceBatch& device_batch)
    : model_(model),
      cache_(cache),
      context_(context),
      device_batch_(device_batch),
      ring_memory_(*context.gpu, kRingSteps * int64_t{sizeof(uint64_t)}),
      step_memory_(context.gpu, 2 * int64_t{sizeof(int64_t)} + kForced * int64_t{sizeof(int32_t)}, "step counter") {
    std::memset(ring_memory_.data(), 0, static_cast<size_t>(ring_memory_.bytes()));
    auto* const words = reinterpret_cast<int64_t*>(step_memory_.data());
    ring_ = {reinterpret_cast<uint64_t*>(ring_memory_.data()), kRingSteps, words,
             reinterpret_cast<const int32_t*>(words + 2), words + 1};
}

void GpuDecoder::upload(SequenceState& sequence, int32_t token) {
    const StepRows rows{&sequence, std::span(&token, 1), {}, StepRows::Logits::last, {}};
    device_batch_.upload(builder_.build(std::span(&rows, 1)));
    context_.family = Family::decode;
}

std::span<const float> GpuDecoder::logits_after(SequenceState& sequence, int32_t token) {
    upload(sequence, token);
    const auto forward = [&] {
        context_.arena->reset();
        logits_ = model_.forward(context_, device_batch_.batch(), States{cache_.views()});
    };
    if (logits_warm_ == 0 || context_.tap) {
        forward();
        logits_warm_ = 1;
    } else {
        if (!logits_graph_) logits_graph_ = GpuGraph(*context_.gpu, forward);
        logits_graph_.launch();
    }
    host_logits_.resize(static_cast<size_t>(logits_.elements()));
    context_.gpu->to_host(host_logits_.data(), logits_.data, logits_.elements() * int64_t{sizeof(float)});
    return host_logits_;
}

void GpuDecoder::begin(SequenceState& sequence, int32_t token, std::span<const int32_t> forced) {
    RT_ASSERT(pending() == 0 && std::ssize(forced) <= kForced);
    std::byte* const words = step_memory_.data();
    const int64_t size = std::ssize(forced);
    context_.gpu->to_device(words + sizeof(int64_t), &size, sizeof size);
    if (size > 0) context_.gpu->to_device(words + 2 * sizeof(int64_t), forced.data(), size * int64_t{sizeof(int32_t)});
    upload(sequence, token);
}

void GpuDecoder::greedy_step() {
    context_.arena->reset();
    logits_ = model_.forward(context_, device_batch_.batch(), States{cache_.views()});
    ops::advance(context_, ops::argmax(context_, logits_), device_batch_.batch(), ring_);
}

void GpuDecoder::launch() {
    RT_ASSERT(pending() < kRingSteps);
    if (greedy_warm_ == 0) {
        greedy_step();
        greedy_warm_ = 1;
    } else {
        if (!greedy_graph_) greedy_graph_ = GpuGraph(*context_.gpu, [&] { greedy_step(); });
        greedy_graph_.launch();
    }
    ++launched_;
}

int32_t GpuDecoder::next() {
    RT_ASSERT(pending() > 0);
    const std::atomic_ref<uint64_t> entry(ring_.entries[taken_ % kRingSteps]);
    const auto wanted = static_cast<uint64_t>(taken_ + 1);
    for (int64_t polls = 1;; ++polls) {
        const uint64_t value = entry.load(std::memory_order_acquire);
        if (value >> 32 == (wanted & 0xFFFFFFFFu)) {
            ++taken_;
            const auto token = static_cast<int32_t>(value & 0xFFFFFFFFu);
            if (token >= 0) return token;
            end();
            fail("the logits hold NaN or +infinity: the model's weights or its K/V are damaged");
        }
        if (polls % 4096 == 0) context_.gpu->check();
    }
}

void GpuDecoder::end() {
    context_.gpu->synchronize();
    taken_ = launched_;
}

}  // namespace riptide
