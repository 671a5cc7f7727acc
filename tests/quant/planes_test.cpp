// Weights as GPUs hold them: the planes give the file's values, and a GPU makes the same planes as the CPU.
#include "quant/planes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "quant/decode.cuh"
#include "quant/placement.h"
#include "quant/weight_store.h"
#include "random_weight.h"
#include "tests/test_device.h"

namespace riptide {

using test::RandomWeight;
using test::WeightKind;

namespace {

/// Every bit of every block is random, except for the binary16 scales and minima at `halves`.
void scramble(RandomWeight& random, std::vector<int64_t> halves, uint64_t seed) {
    std::mt19937_64 engine(seed);
    const int64_t block = dtype_info(random.w.dtype).block_bytes;
    for (size_t i = 0; i < random.data.size(); ++i) {
        const int64_t at = static_cast<int64_t>(i) % block;
        bool keep = false;
        for (const int64_t half : halves) keep = keep || at == half || at == half + 1;
        if (!keep) random.data[i] = static_cast<std::byte>(engine() & 255);
    }
}

RandomWeight scrambled(const WeightKind& kind, int64_t rows, int64_t cols, uint64_t seed) {
    RandomWeight random(kind, rows, cols, seed);
    switch (kind.type) {
        case DType::q4_k:
        case DType::q5_k:
            scramble(random, {0, 2}, seed);
            break;
        case DType::q6_k:
            scramble(random, {208}, seed);
            break;
        case DType::iq4_xs:
            scramble(random, {0}, seed);
            break;
        case DType::f32:  // the last bit says that bf16 will not do
            random.data[0] = std::byte{1};
            break;
        case DType::mxfp4:
        case DType::nvfp4:
            scramble(random, {}, seed);
            break;
        default:
            break;
    }
    return random;
}

std::vector<WeightKind> kinds() {
    std::vector<WeightKind> all = test::all_weight_kinds();
    all.push_back({DType::tq2_0});
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

std::vector<float> decoded(const Weight& w) {
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

void expect_same_values(const std::vector<float>& got, const std::vector<float>& expected, const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
            << what << ": value " << i << ": " << got[i] << " != " << expected[i];
}

/// The planes alone, without the gaps between them.
std::vector<std::byte> plane_bytes(const Placement& plan, const std::vector<std::byte>& memory) {
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

}  // namespace

TEST(Planes, hold_exactly_the_values_of_the_file) {
    for (const WeightKind& kind : kinds()) {
        const RandomWeight random = scrambled(kind, 7, 512, 11);
        const HostPlacement placed(random.w);
        std::vector<float> expected = random.dequantized();
        if (!placed.plan.converted.empty())
            for (float& value : expected) value = f16_to_f32(f32_to_f16(value));
        expect_same_values(decoded(placed.w), expected, kind.name());
        EXPECT_EQ(placed_bytes(placed.w), static_cast<int64_t>(plane_bytes(placed.plan, placed.memory).size()));
    }
}

TEST(Planes, every_type_of_a_checkpoint_has_its_placement) {
    const std::pair<DType, DType> expected[] = {
        {DType::q4_k, DType::planes_q4_k},  {DType::q5_k, DType::planes_q5_k},  {DType::q6_k, DType::planes_q6_k},
        {DType::q8_0, DType::planes_int8},  {DType::q4_0, DType::planes_int4},  {DType::iq4_nl, DType::planes_iq4},
        {DType::iq4_xs, DType::planes_iq4}, {DType::mxfp4, DType::planes_e2m1}, {DType::nvfp4, DType::planes_e2m1},
        {DType::f32, DType::f32},           {DType::f16, DType::f16},           {DType::bf16, DType::bf16},
        {DType::f8_e4m3, DType::f8_e4m3},   {DType::q2_k, DType::f16},          {DType::q3_k, DType::f16},
        {DType::q4_1, DType::f16},          {DType::q5_0, DType::f16},          {DType::q5_1, DType::f16},
        {DType::tq2_0, DType::f16}};
    for (const auto& [from, to] : expected) {
        const RandomWeight random({from}, 3, 256, 5);
        const Placement plan = plan_placement(random.w, {.bf16 = false});  // these f32 values bf16 can hold
        EXPECT_EQ(plan.w.dtype, to) << dtype_name(from);
        EXPECT_EQ(plan.converted.empty(), from == to || is_planes(to)) << dtype_name(from);
        EXPECT_EQ(is_planes(plan.w.dtype), plan.w.dtype >= DType::planes_q4_k);
    }
}

TEST(Planes, rows_of_floats_are_padded_to_16_bytes) {
    const WeightKind floats[] = {{DType::f32},
                                 {DType::f16},
                                 {DType::bf16},
                                 {DType::f8_e4m3},
                                 {DType::f8_e4m3, DType::f32, 3, 7, 0.7f},
                                 {DType::f8_e4m3, DType::bf16, 128, 128}};
    for (const WeightKind& kind : floats)
        for (const int64_t cols : {1, 37, 100, 131}) {
            const RandomWeight random(kind, 5, cols, 3);
            const HostPlacement placed(random.w, {.bf16 = false});
            EXPECT_EQ(placed.w.row_bytes % 16, 0);
            EXPECT_EQ(placed.w.row_bytes, (random.w.row_bytes + 15) / 16 * 16);
            expect_same_values(decoded(placed.w), random.dequantized(), kind.name());
            for (int64_t i = random.w.row_bytes; i < placed.w.row_bytes; ++i)
                EXPECT_EQ(placed.memory[static_cast<size_t>(i)], std::byte{0});
        }
}

TEST(Planes, a_matrix_of_f32_that_bf16_can_hold_becomes_bf16) {
    std::vector<float> values(3 * 2048);
    for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_f32(static_cast<uint16_t>(0x3F00 + i % 97));
    Weight w{.data = values.data(), .dtype = DType::f32, .rows = 3, .cols = 2048, .row_bytes = 8192};
    HostPlacement placed(w);
    EXPECT_EQ(placed.w.dtype, DType::bf16);
    expect_same_values(decoded(placed.w), values, "bf16");
    values.back() = std::nextafter(1.0f, 2.0f);
    EXPECT_EQ(plan_placement(w).w.dtype, DType::f32);
    values.back() = 1.0f;
    EXPECT_EQ(plan_placement(w, {.bf16 = false}).w.dtype, DType::f32);
}

TEST(Planes, every_code_of_the_small_scales_is_exact) {
    std::vector<uint8_t> data(256 * sizeof(BlockMxfp4));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(37 * i);
    for (size_t e = 0; e < 256; ++e) data[e * sizeof(BlockMxfp4)] = static_cast<uint8_t>(e);
    Weight w{.data = data.data(), .dtype = DType::mxfp4, .rows = 256, .cols = 32, .row_bytes = sizeof(BlockMxfp4)};
    std::vector<float> expected(256 * 64);
    dequantize(w.dtype, data.data(), expected.data(), 256 * 32);
    expected.resize(256 * 32);
    expect_same_values(decoded(HostPlacement(w).w), expected, "mxfp4");

    data.resize(256 * sizeof(BlockNvfp4));
    for (size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<uint8_t>(i % sizeof(BlockNvfp4) < 4 ? i / sizeof(BlockNvfp4) + 64 * (i % 4) : 37 * i);
    w = {.data = data.data(), .dtype = DType::nvfp4, .rows = 256, .cols = 64, .row_bytes = sizeof(BlockNvfp4)};
    expected.resize(256 * 64);
    dequantize(w.dtype, data.data(), expected.data(), 256 * 64);
    expect_same_values(decoded(HostPlacement(w).w), expected, "nvfp4");
}

TEST(Planes, a_folded_scale_is_one_rounding_away) {
    const RandomWeight random({DType::f4_pack, DType::f8_e4m3, 1, 16, 0.0123f}, 4, 128, 9);
    const HostPlacement placed(random.w, {.fold_scale = true});
    EXPECT_EQ(placed.w.scale, 1.0f);
    EXPECT_EQ(placed.w.scale_dtype, DType::f32);
    const std::vector<float> expected = random.dequantized(), got = decoded(placed.w);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], std::abs(expected[i]) * 0x1p-23f) << i;

    const RandomWeight eight({.type = DType::f8_e4m3, .scale = 0.37f}, 5, 48, 9);
    expect_same_values(decoded(HostPlacement(eight.w, {.fold_scale = true}).w), eight.dequantized(), "f8_e4m3");
}

TEST(Planes, a_value_too_large_for_f16_is_an_error) {
    RandomWeight random({DType::q4_1}, 2, 64, 1);
    const uint16_t large = f32_to_f16(60000.0f);
    std::memcpy(random.data.data(), &large, 2);
    std::memcpy(random.data.data() + 4, "\xFF\xFF\xFF\xFF", 4);
    try {
        HostPlacement placed(random.w);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("q4_1 holds"), std::string::npos) << error.what();
    }
}

TEST(WeightStore, leaves_matrices_where_they_are_without_a_gpu) {
    const RandomWeight random({DType::q4_k}, 4, 256, 1), other({DType::q4_k}, 4, 256, 2);
    WeightStore store;
    EXPECT_EQ(store.matrix(random.w).data, random.w.data);
    const std::vector<Weight> stack = store.experts({random.w, other.w});
    EXPECT_EQ(stack[1].data, other.w.data);
    const std::span<const float> a = store.floats({1, 2, 3});
    const std::span<const float> b = store.floats({4});
    store.finish();
    EXPECT_EQ(a[2], 3.0f);
    EXPECT_EQ(b[0], 4.0f);
    EXPECT_TRUE(store.floats({}).empty());
    EXPECT_EQ(store.device_bytes(), 0);
    EXPECT_TRUE(store.conversions().empty());
}

TEST(WeightStore, f32_becomes_bf16_on_the_cpu_where_every_value_fits) {
    std::vector<float> values(3 * 64);
    for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_f32(static_cast<uint16_t>(0x3E00 + 37 * i));
    Weight host;
    host.data = values.data();
    host.dtype = DType::f32;
    host.rows = 3;
    host.cols = 64;
    host.row_bytes = 4 * 64;
    WeightStore store;
    const Weight half = store.halved(host);
    ASSERT_EQ(half.dtype, DType::bf16);
    std::vector<float> row(64);
    for (int64_t r = 0; r < 3; ++r) {
        dequantize_row(half, r, row.data());
        EXPECT_EQ(std::memcmp(row.data(), values.data() + r * 64, 256), 0);
    }
    values[100] = 1.0f + 0x1p-20f;
    EXPECT_EQ(store.halved(host).data, host.data);
    const RandomWeight other({DType::q4_k}, 4, 256, 1);
    EXPECT_EQ(store.halved(other.w).data, other.w.data);
    store.finish();
}

// ---- on a GPU -------------------------------------------------------------------------------------------------------

namespace {

std::vector<std::byte> download(Gpu& gpu, const void* from, int64_t bytes) {
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    gpu.to_host(host.data(), from, bytes);
    return host;
}

void expect_placed(Gpu& gpu, const Weight& host, const Weight& device, const PlacementRules& rules,
                   const std::string& what) {
    const HostPlacement expected(host, rules);
    const std::vector<std::byte> got = download(gpu, device.data, expected.plan.bytes());
    EXPECT_EQ(device.dtype, expected.w.dtype) << what;
    EXPECT_EQ(device.row_bytes, expected.w.row_bytes) << what;
    const Weight relative = expected.plan.at(static_cast<const std::byte*>(device.data));
    EXPECT_EQ(device.high, relative.high) << what;
    EXPECT_EQ(device.scales, relative.scales) << what;
    const std::vector<std::byte> a = plane_bytes(expected.plan, got), b = plane_bytes(expected.plan, expected.memory);
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << what << ": byte " << i << " of " << a.size();
}

}  // namespace

TEST(WeightStoreGpu, planes_are_those_of_the_cpu_byte_for_byte) {
    RT_GPU_ONLY();
    Gpu& gpu = *test_gpu();
    const int64_t before = gpu.allocated();
    {
        WeightStore store(&gpu);
        std::vector<RandomWeight> hosts;
        std::vector<Weight> placed;
        std::vector<std::string> names;
        for (const int64_t rows : {5, 700})  // 700 rows: several buffers
            for (const WeightKind& kind : kinds()) {
                hosts.push_back(scrambled(kind, rows, 1024, 17));
                names.push_back(kind.name());
            }
        for (const WeightKind& kind : {WeightKind{DType::f32}, WeightKind{DType::bf16}, WeightKind{DType::f8_e4m3}}) {
            hosts.emplace_back(kind, 33, 131, 4);
            names.push_back(kind.name() + " padded");
        }
        for (const RandomWeight& host : hosts) placed.push_back(store.matrix(host.w));
        const std::vector<float> values = {1.5f, -2.0f, 0x1p-140f, 3.0f, 7.0f};
        const std::span<const float> floats = store.floats(values);
        store.finish();
        for (size_t i = 0; i < hosts.size(); ++i) expect_placed(gpu, hosts[i].w, placed[i], {}, names[i]);
        const std::vector<std::byte> got = download(gpu, floats.data(), 20);
        EXPECT_EQ(std::memcmp(got.data(), values.data(), 20), 0);
        EXPECT_EQ(store.device_bytes(), gpu.allocated() - before);
        EXPECT_FALSE(store.conversions().empty());
    }
    EXPECT_EQ(gpu.allocated(), before);
}

TEST(WeightStoreGpu, the_same_matrix_is_placed_once) {
    RT_GPU_ONLY();
    const RandomWeight random({DType::q6_k}, 8, 256, 1);
    WeightStore store(test_gpu());
    const Weight a = store.matrix(random.w), b = store.matrix(random.w);
    store.finish();
    EXPECT_EQ(a.data, b.data);
    EXPECT_EQ(a.scales, b.scales);
    EXPECT_EQ(store.matrix(random.w).data, a.data);
    store.finish();
}

TEST(WeightStoreGpu, experts_lie_at_a_constant_stride) {
    RT_GPU_ONLY();
    Gpu& gpu = *test_gpu();
    for (const WeightKind& kind : kinds()) {
        std::vector<RandomWeight> hosts;
        std::vector<Weight> stack;
        for (uint64_t e = 0; e < 5; ++e) {
            hosts.push_back(scrambled(kind, 24, 512, e));
            stack.push_back(hosts.back().w);
        }
        WeightStore store(&gpu);
        const std::vector<Weight> placed = store.experts(stack);
        store.finish();
        const auto at = [](const void* p) { return static_cast<const std::byte*>(p); };
        for (size_t e = 0; e < placed.size(); ++e) {
            const auto step = static_cast<int64_t>(e) * (at(placed[1].data) - at(placed[0].data));
            EXPECT_EQ(at(placed[e].data) - at(placed[0].data), step);
            if (placed[0].high != nullptr) {
                EXPECT_EQ(at(placed[e].high) - at(placed[0].high), step);
            }
            if (placed[0].scales != nullptr) {
                EXPECT_EQ(at(placed[e].scales) - at(placed[0].scales), step);
            }
            expect_placed(gpu, stack[e], placed[e], {}, kind.name());
        }
    }
}

TEST(WeightStoreGpu, experts_with_scales_of_their_own_get_planes_of_f32) {
    RT_GPU_ONLY();
    for (const WeightKind& kind : {WeightKind{DType::f4_pack, DType::f8_e4m3, 1, 16}, WeightKind{DType::f8_e4m3}}) {
        RandomWeight a(kind, 16, 128, 1), b(kind, 16, 128, 2);
        a.w.scale = 0.3f;
        b.w.scale = 0.4f;
        WeightStore store(test_gpu());
        const std::vector<Weight> placed = store.experts({a.w, b.w});
        store.finish();
        expect_placed(*test_gpu(), a.w, placed[0], {.fold_scale = true}, kind.name());
        expect_placed(*test_gpu(), b.w, placed[1], {.fold_scale = true}, kind.name());
        EXPECT_EQ(placed[0].scale, 1.0f);
        EXPECT_EQ(placed[1].scale, 1.0f);
    }
}

TEST(WeightStoreGpu, progress_grows_to_the_bytes_of_the_file) {
    RT_GPU_ONLY();
    const RandomWeight random({DType::q4_k}, 4096, 1024, 1);
    int64_t last = 0, calls = 0;
    WeightStore store(test_gpu(), [&](int64_t bytes) {
        EXPECT_GT(bytes, last);
        last = bytes;
        ++calls;
    });
    store.matrix(random.w);
    store.finish();
    EXPECT_EQ(last, random.w.bytes());
    EXPECT_GT(calls, 1);
}

}  // namespace riptide
