#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "ops/cpu/lanes.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

/// theta^(2i / rotary_dim) as transformers has it: exponent and power each rounded to f32.
std::vector<float> position_periods(double theta, int64_t rotary_dim) {
    RT_ASSERT(rotary_dim > 0 && rotary_dim % 2 == 0 && theta > 1);
    std::vector<float> periods(static_cast<size_t>(rotary_dim / 2));
    for (size_t i = 0; i < periods.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
        periods[i] = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    }
    return periods;
}

/// cos of the angles of a row, then sin.
void fill_angles(int32_t position, const Rope& rope, float* cos_sin) {
    const size_t half = rope.inv_freq.size();
    for (size_t j = 0; j < half; ++j) {
        const float angle = static_cast<float>(position) * rope.inv_freq[j];
        cos_sin[j] = std::cos(angle) * rope.magnitude;
        cos_sin[half + j] = std::sin(angle) * rope.magnitude;
    }
}

/// Rotates the heads of one row by the angles whose cos and sin are given. y may be x.
template <class Acc>
void rotate_row(const float* x, int64_t heads, int64_t d, int64_t half, const float* c, const float* s, Acc* y) {
    for (int64_t h = 0; h < heads; ++h, x += d, y += d) {
        int64_t first = 0;
        if constexpr (std::is_same_v<Acc, float>)
            for (; first + 4 <= half; first += 4) {
                const Float4 a = load4(x + first), b = load4(x + first + half), cos = load4(c + first),
                             sin = load4(s + first);
                store4(y + first, a * cos - b * sin);
                store4(y + first + half, b * cos + a * sin);
            }
        for (int64_t j = first; j < half; ++j) {
            const Acc a = x[j], b = x[j + half];
            y[j] = a * Acc{c[j]} - b * Acc{s[j]};
            y[j + half] = b * Acc{c[j]} + a * Acc{s[j]};
        }
        for (int64_t j = 2 * half; j < d; ++j) y[j] = x[j];
    }
}

}  // namespace

Rope make_rope(double theta, int64_t rotary_dim) {
    Rope rope{position_periods(theta, rotary_dim), 1.0f, rotary_dim};
    for (float& f : rope.inv_freq) f = 1.0f / f;
    return rope;
}

Rope make_yarn_rope(double theta, int64_t rotary_dim, double factor, double original_context, double beta_fast,
                    double beta_slow, double magnitude) {
    Rope rope{position_periods(theta, rotary_dim), static_cast<float>(magnitude), rotary_dim};
    const auto d = static_cast<double>(rotary_dim);
    const auto corr = [&](double beta) {
        return d * std::log(original_context / (beta * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    const double low = std::max(std::floor(corr(beta_fast)), 0.0);
    const double high = std::min(std::ceil(corr(beta_slow)), d - 1);
    const auto width = static_cast<float>(std::max(0.001, high - low));
    for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
        const float period = rope.inv_freq[i];
        const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / width, 0.0f, 1.0f);
        const float keep = 1.0f - ramp;
        const float stretched = 1.0f / (static_cast<float>(factor) * period);
        rope.inv_freq[i] = stretched * (1.0f - keep) + 1.0f / period * keep;
    }
    return rope;
}

template <class Acc>
void rope_ref(const float* x, int64_t rows, int64_t heads, int64_t d, const int32_t* positions, const Rope& rope,
              Acc* y) {
    const size_t half = rope.inv_freq.size();
    std::vector<float> cos_sin(2 * half);
    for (int64_t r = 0; r < rows; ++r) {
        fill_angles(positions[r], rope, cos_sin.data());
        const int64_t first = r * heads * d;
        rotate_row(x + first, heads, d, static_cast<int64_t>(half), cos_sin.data(), cos_sin.data() + half, y + first);
    }
}

template void rope_ref<float>(const float*, int64_t, int64_t, int64_t, const int32_t*, const Rope&, float*);
template void rope_ref<double>(const float*, int64_t, int64_t, int64_t, const int32_t*, const Rope&, double*);

std::span<const int32_t> rotary_positions(Context& ctx, const Batch& batch) {
    if (batch.gaps.empty()) return batch.positions;
    RT_ASSERT(ctx.gpu == nullptr && batch.gaps.size() == batch.positions.size());
    const Tensor sums = ctx.alloc(DType::i32, {batch.rows()});
    for (int64_t r = 0; r < batch.rows(); ++r) sums.row<int32_t>(0)[r] = batch.rotary_position(r);
    return {sums.row<int32_t>(0), batch.positions.size()};
}

const float* rope_table(Context& ctx, std::span<const int32_t> positions, const Rope& rope) {
    constexpr size_t kKept = 2;
    for (const RopeTable& t : ctx.rope_tables)
        if (t.magnitude == rope.magnitude && t.inv_freq == rope.inv_freq && std::ranges::equal(t.positions, positions))
            return t.cos_sin.data();
    RopeTable table = ctx.rope_tables.size() < kKept ? RopeTable{} : std::move(ctx.rope_tables.front());
    if (ctx.rope_tables.size() == kKept) ctx.rope_tables.erase(ctx.rope_tables.begin());
    const size_t half = rope.inv_freq.size();
    table.inv_freq = rope.inv_freq;
    table.magnitude = rope.magnitude;
    table.positions.assign(positions.begin(), positions.end());
    table.cos_sin.resize(positions.size() * 2 * half);
    constexpr int64_t kTrigCost = 40;
    parallel_rows(ctx, static_cast<int64_t>(positions.size()), static_cast<int64_t>(2 * half) * kTrigCost,
                  [&](int64_t begin, int64_t end, int) {
                      for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r)
                          fill_angles(positions[r], rope, table.cos_sin.data() + r * 2 * half);
                  });
    return ctx.rope_tables.emplace_back(std::move(table)).cos_sin.data();
}

void rotate_heads(const float* x, int64_t heads, int64_t d, int64_t rotary_dim, const float* table, float* y) {
    rotate_row<float>(x, heads, d, rotary_dim / 2, table, table + rotary_dim / 2, y);
}

void rope(Context& ctx, Tensor& x, std::span<const int32_t> positions, const Rope& rope) {
    RT_ASSERT(x.dtype == DType::f32 && x.contiguous() && x.rank == 3);
    RT_ASSERT(x.rows() == static_cast<int64_t>(positions.size()));
    const int64_t heads = x.shape[1], d = x.shape[2];
    RT_ASSERT(rope.rotary_dim <= d && rope.rotary_dim == 2 * static_cast<int64_t>(rope.inv_freq.size()));
    const OpScope told = announce(ctx, "rope", x.rows());
    if (ctx.gpu != nullptr) return cuda::rope(ctx, x, positions, rope);
    const float* table = rope_table(ctx, positions, rope);
    parallel_rows(ctx, x.rows(), 2 * heads * d, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r)
            rotate_heads(x.row(r), heads, d, rope.rotary_dim, table + r * rope.rotary_dim, x.row(r));
    });
}

}  // namespace riptide::ops
