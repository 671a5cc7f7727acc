// Weights as GPUs hold them, made on the CPU, and random ones to make them of.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "quant/decode.cuh"
#include "quant/placement.h"
#include "quant/planes.h"
#include "random_weight.h"

namespace riptide::test {

/// Every bit of every block is random, except for the binary16 scales and minima at `halves`.
inline void scramble(RandomWeight& random, const std::vector<int64_t>& halves, uint64_t seed) {
    std::mt19937_64 engine(seed);
    const int64_t block = dtype_info(random.w.dtype).block_bytes;
    for (size_t i = 0; i < random.data.size(); ++i) {
        const int64_t at = static_cast<int64_t>(i) % block;
        bool keep = false;
        for (const int64_t half : halves) keep = keep || at == half || at == half + 1;
        if (!keep) random.data[i] = static_cast<std::byte>(engine() & 255);
    }
}

/// Where binary16 scales and minima lie in a block; nothing for types whose random weights stay as they are.
inline std::optional<std::vector<int64_t>> halves_of(DType type) {
    switch (type) {
        case DType::q4_k:
        case DType::q5_k:
            return std::vector<int64_t>{0, 2};
        case DType::q2_k:
            return std::vector<int64_t>{80, 82};
        case DType::q3_k:
            return std::vector<int64_t>{108};
        case DType::q6_k:
            return std::vector<int64_t>{208};
        case DType::iq1_m:
            return std::vector<int64_t>{48, 50, 52, 54};
        case DType::tq1_0:
            return std::vector<int64_t>{52};
        case DType::iq4_xs:
        case DType::q5_0:
        case DType::iq1_s:
        case DType::iq2_xxs:
        case DType::iq2_xs:
        case DType::iq2_s:
        case DType::iq3_xxs:
        case DType::iq3_s:
            return std::vector<int64_t>{0};
        case DType::mxfp4:
        case DType::nvfp4:
            return std::vector<int64_t>{};
        default:
            return std::nullopt;
    }
}

inline RandomWeight scrambled(const WeightKind& kind, int64_t rows, int64_t cols, uint64_t seed) {
    RandomWeight random(kind, rows, cols, seed);
    if (kind.type == DType::f32) random.data[0] = std::byte{1};  // the last bit says that bf16 will not do
    if (const auto halves = halves_of(kind.type)) scramble(random, *halves, seed);
    return random;
}

inline std::vector<WeightKind> kinds() {
    std::vector<WeightKind> all = test::all_weight_kinds();
    all.push_back({DType::i4_pack, DType::f8_e4m3, 1, 64});
    all.push_back({DType::i4_pack, DType::bf16, 1, 16});
    all.push_back({DType::i8_pack, DType::bf16, 1, 512});
    return all;
}

struct HostPlacement {
    Placement plan;
    std::vector<std::byte> memory;
    Weight w;

    explicit HostPlacement(const Weight& host, const PlacementRules& rules = {})
        : plan(plan_placement(host, rules)), memory(static_cast<size_t>(plan.bytes()), std::byte{0xA5}) {
        w = place_on_host(host, plan, memory.data());
    }
};

inline std::vector<float> decoded(const Weight& w) {
    std::vector<float> values;
    for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t c = 0; c < w.cols; c += 16) {
            float out[16];
            decode16(w, r, c, out);
            for (int64_t j = 0; j < 16; ++j) {
                if (c + j < w.cols) values.push_back(out[j]);
                else EXPECT_EQ(out[j], 0.0f);
            }
        }
    return values;
}

inline void expect_same_values(const std::vector<float>& got, const std::vector<float>& expected,
                               const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
            << what << ": value " << i << ": " << got[i] << " != " << expected[i];
}

/// The planes alone, without the gaps between them.
inline std::vector<std::byte> plane_bytes(const Placement& plan, const std::vector<std::byte>& memory) {
    const Weight w = plan.at(memory.data());
    std::vector<std::byte> bytes;
    const auto add = [&](const void* from, int64_t n) {
        const auto* p = static_cast<const std::byte*>(from);
        if (n > 0) bytes.insert(bytes.end(), p, p + n);
    };
    add(w.data, plan.data_bytes);
    add(w.high, plan.high_bytes);
    add(w.scales, plan.scale_bytes);
    return bytes;
}

}  // namespace riptide::test
