// What the kernels that draw tokens share: a row's logits after bias and penalties, and the orders they are compared
// in.
#pragma once

#include <cstdint>

#include "ops/noise.h"
#include "ops/sample.h"
#include "tensor/launch.cuh"

namespace riptide::ops::drawing {

constexpr int kGroup = 64;     // neighbouring tokens whose largest value is kept by the scan
constexpr int kFewTopK = 256;  // the scan's last CTA filters up to this top_k ...
constexpr int kFew = 512;      // ... if no more than this many tokens are left

/// The arguments of a draw: n rows of `vocab` logits.
struct Draw {
    const float* logits;
    int64_t row_stride;
    const int32_t* positions;
    const int32_t* slots;    // nullptr: row r has slot r
    const uint64_t* masks;   // [any, mask_words]
    const int32_t* mask_of;  // nullptr: no row has one
    int64_t mask_words;
    SampleState state;
    uint32_t* value_keys;  // [n, groups] high_key of the largest value of each group
    uint32_t* score_keys;  // [n, groups] the same of value / temperature - ln(-ln(u))
    int32_t* unfinished;   // [n] 1: left to the filter kernel
    int32_t* counters;     // [n]
    int32_t* tokens;       // [n]
    int vocab;
    int groups;
    int accept;
    int aligned;        // rows may be read 16 bytes at a time
    double mass_scale;  // weights are summed as multiples of 1 / mass_scale
};

/// Ordered like the numbers; NaN apart. REQUIRES not -0.
__device__ __forceinline__ uint64_t order_key(double value) {
    const auto bits = static_cast<uint64_t>(__double_as_longlong(value));
    return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}
__device__ __forceinline__ double from_order_key(uint64_t key) {
    const uint64_t bits = key >> 63 != 0 ? key & ~(uint64_t{1} << 63) : ~key;
    return __longlong_as_double(static_cast<long long>(bits));
}
__device__ __forceinline__ uint32_t high_key(double value) { return static_cast<uint32_t>(order_key(value) >> 32); }

constexpr uint32_t kHighImpossible = 0x000FFFFFu;  // high_key(-infinity)
constexpr uint32_t kHighInfinite = 0xFFF00000u;    // high_key(+infinity)
constexpr uint32_t kHighBad = 0xFFFFFFFFu;         // stands for a logit that is NaN or +infinity

enum class Mode {
    greedy,  // temperature 0
    all,     // nothing is filtered
    few,     // at most kFewTopK tokens and those equal to the last of them, or a vocabulary of at most kFew
    filter,  // all else
};

__device__ __forceinline__ bool limits(const SampleParams& p, int vocab) { return p.top_k > 0 && p.top_k < vocab; }

__device__ __forceinline__ Mode mode_of(const SampleParams& p, int vocab) {
    if (p.temperature == 0) return Mode::greedy;
    if (vocab <= kFew || (limits(p, vocab) && p.top_k <= kFewTopK)) return Mode::few;
    // Scores need a temperature that no logit overflows by.
    const bool filters = limits(p, vocab) || p.top_p < 1 || p.min_p > 0 || p.temperature < 1e-3;
    return filters ? Mode::filter : Mode::all;
}

/// One row of a draw.
struct Row {
    SampleParams params;
    const float* logits;
    const uint32_t* marks;  // nullptr: no token has any
    const uint64_t* mask;   // nullptr: every token may be drawn
    const SampleBias* biases;
    SampleSlot* slot;
    uint64_t position;  // of the token to draw
    int bias_count;
    bool stops_impossible;

    __device__ Row(const Draw& draw, int row) {
        const int64_t at = draw.slots == nullptr ? row : draw.slots[row];
        slot = draw.state.slots + at;
        params = slot->params;
        logits = draw.logits + row * draw.row_stride;
        const int64_t masked = draw.mask_of == nullptr ? -1 : draw.mask_of[row];
        mask = masked < 0 ? nullptr : draw.masks + masked * draw.mask_words;
        marks = slot->marked != 0 ? draw.state.marks + at * draw.state.vocab : nullptr;
        biases = draw.state.biases + at * SampleState::kMaxBiases;
        bias_count = slot->biases;
        position = static_cast<uint64_t>(int64_t{draw.positions[row]} + 1);
        stops_impossible = slot->answer_tokens < params.min_tokens;
    }

    /// The logit after bias and penalties, each operation rounded on its own; never -0.
    __device__ double penalized(float logit, uint32_t mark, int token) const {
        double v = static_cast<double>(logit);
        if (mark != 0) {
            if ((mark & SampleState::kBiased) != 0)
                for (int i = 0; i < bias_count; ++i)
                    if (biases[i].token == token) v = __dadd_rn(v, biases[i].value);
            if ((mark & SampleState::kStop) != 0 && stops_impossible) return __longlong_as_double(0xFFF0000000000000ll);
            const uint32_t count = mark & SampleState::kCount;
            if (count != 0 || (mark & SampleState::kPrompt) != 0)
                v = v > 0 ? __ddiv_rn(v, params.repetition) : __dmul_rn(v, params.repetition);
            if (count != 0)
                v = __dsub_rn(v, __dadd_rn(__dmul_rn(params.frequency, static_cast<double>(count)), params.presence));
        }
        return __dadd_rn(v, 0.0);
    }
    __device__ bool allowed(int token) const { return mask == nullptr || (mask[token / 64] >> (token % 64) & 1) != 0; }
    __device__ double value(int token) const {
        if (!allowed(token)) return __longlong_as_double(0xFFF0000000000000ll);
        return penalized(logits[token], marks == nullptr ? 0 : marks[token], token);
    }
    /// Relative to that of the largest value.
    __device__ double weight(double value, double largest) const {
        return exp(__ddiv_rn(__dsub_rn(value, largest), params.temperature));
    }
    __device__ double exponential(int token) const {
        return -log(sampling_noise(params.seed, position, static_cast<uint32_t>(token)));
    }
};

/// A token and how it compares: the larger key, then the lower id. No token: key 0, id -1.
struct Best {
    uint64_t key = 0;
    int32_t token = -1;

    __device__ static Best better(Best a, Best b) {
        if (a.key != b.key) return a.key > b.key ? a : b;
        return static_cast<uint32_t>(a.token) < static_cast<uint32_t>(b.token) ? a : b;
    }
    /// Of the draw: the smaller -ln(u) / weight, the better. REQUIRES weight > 0.
    __device__ static Best drawn(const Row& row, int token, double weight) {
        const double key = __ddiv_rn(row.exponential(token), weight);
        return {~static_cast<uint64_t>(__double_as_longlong(key)), token};
    }
};

/// Reports the row's token and makes it part of the answer. One thread, behind everything that reads the marks.
__device__ inline void finish_row(const Draw& draw, const Row& row, int r, int token) {
    draw.tokens[r] = token;
    if (draw.accept == 0 || token < 0) return;
    ++row.slot->answer_tokens;
    if (row.marks != nullptr) ++const_cast<uint32_t*>(row.marks)[token];
}

}  // namespace riptide::ops::drawing
