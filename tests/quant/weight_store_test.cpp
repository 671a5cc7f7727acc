// A store leaves weights where they are without a GPU; with one it makes the same planes as the CPU.
#include "quant/weight_store.h"

#include <gtest/gtest.h>

#include <cstring>

#include "placed_weight.h"
#include "tests/test_device.h"

namespace riptide {

using namespace test;

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
    for (const WeightKind& kind :
         {WeightKind{DType::f4_pack, DType::f8_e4m3, 1, 16}, WeightKind{DType::f8_e4m3}, WeightKind{DType::nvfp4}}) {
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
