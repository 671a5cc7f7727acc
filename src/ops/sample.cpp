// The host's side of drawing on a GPU: what a slot starts with.
#include "ops/sample.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace riptide::ops {

namespace {

bool changes_logits(const SampleStart& start) {
    const SampleParams& p = start.params;
    return p.repetition != 1 || p.frequency != 0 || p.presence != 0 || !start.logit_bias.empty() || p.min_tokens > 0;
}

std::vector<uint32_t> make_marks(const SampleStart& start, int64_t vocab) {
    std::vector<uint32_t> marks(static_cast<size_t>(vocab));
    const auto each = [&](std::span<const int32_t> tokens, auto&& change) {
        for (const int32_t token : tokens)
            if (token >= 0 && token < vocab) change(marks[static_cast<size_t>(token)]);
    };
    each(start.prompt, [](uint32_t& mark) { mark |= SampleState::kPrompt; });
    each(start.stop_ids, [](uint32_t& mark) { mark |= SampleState::kStop; });
    each(start.answer, [](uint32_t& mark) { ++mark; });
    for (const auto& [token, value] : start.logit_bias) {
        RT_CHECK(token >= 0 && token < vocab, "logit_bias names token {}, but the vocabulary has {}", token, vocab);
        marks[static_cast<size_t>(token)] |= SampleState::kBiased;
    }
    return marks;
}

}  // namespace

SampleSlots::SampleSlots(Gpu& gpu, int64_t count, int64_t vocab)
    : gpu_(gpu),
      slots_(&gpu, count * int64_t{sizeof(SampleSlot)}, "sampling parameters"),
      marks_(&gpu, count * vocab * int64_t{sizeof(uint32_t)}, "histories for sampling"),
      biases_(&gpu, count * SampleState::kMaxBiases * int64_t{sizeof(SampleBias)}, "logit biases") {
    RT_ASSERT(count >= 1 && vocab >= 1);
    state_.slots = reinterpret_cast<SampleSlot*>(slots_.data());
    state_.marks = reinterpret_cast<uint32_t*>(marks_.data());
    state_.biases = reinterpret_cast<SampleBias*>(biases_.data());
    state_.count = count;
    state_.vocab = vocab;
}

void SampleSlots::start(int64_t slot, const SampleStart& start) {
    RT_ASSERT(slot >= 0 && slot < state_.count);
    const int64_t biases = std::ssize(start.logit_bias);
    RT_CHECK(biases <= SampleState::kMaxBiases, "logit_bias has {} entries, on a GPU at most {}", biases,
             SampleState::kMaxBiases);
    SampleSlot value;
    value.params = start.params;
    value.answer_tokens = std::ssize(start.answer);
    value.marked = changes_logits(start) ? 1 : 0;
    value.biases = static_cast<int32_t>(biases);
    gpu_.to_device(state_.slots + slot, &value, sizeof(value));
    if (value.marked == 0) return;  // never read
    const std::vector<uint32_t> marks = make_marks(start, state_.vocab);
    gpu_.to_device(state_.marks + slot * state_.vocab, marks.data(), state_.vocab * int64_t{sizeof(uint32_t)});
    std::vector<SampleBias> list;
    for (const auto& [token, bias] : start.logit_bias) list.push_back({token, 0, bias});
    if (!list.empty())
        gpu_.to_device(state_.biases + slot * SampleState::kMaxBiases, list.data(), biases * int64_t{sizeof(SampleBias)});
}

}  // namespace riptide::ops
