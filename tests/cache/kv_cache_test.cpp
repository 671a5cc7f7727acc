#include "cache/kv_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/error.h"

namespace riptide {
namespace {

constexpr StateSpec paged_spec(int64_t heads, int64_t d) { return {StateSpec::Kind::paged, heads, d, 0}; }
constexpr StateSpec window_spec(int64_t heads, int64_t d, int32_t w) { return {StateSpec::Kind::window, heads, d, w}; }

/// Laguna XS: 40 layers, every fourth with full attention, the others with a window of 512.
std::vector<StateSpec> laguna_xs() {
    std::vector<StateSpec> specs;
    for (int layer = 0; layer < 40; ++layer)
        specs.push_back(layer % 4 == 0 ? paged_spec(8, 128) : window_spec(8, 128, 512));
    return specs;
}

std::string error_of(std::span<const StateSpec> specs, const KvCacheOptions& options) {
    try {
        KvCache cache(specs, options);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(kv_cache, bytes_are_those_of_the_published_tables) {
    struct {
        DType type;
        int64_t per_token;
    } const rows[] = {{DType::f32, 81920},     {DType::f16, 40960},  {DType::bf16, 40960},
                      {DType::f8_e4m3, 20480}, {DType::q8_0, 21760}, {DType::q4_0, 11520}};
    for (const auto& row : rows) {
        const KvCache cache(laguna_xs(), {.k_dtype = row.type, .v_dtype = row.type, .pages = 16, .max_sequences = 3});
        EXPECT_EQ(cache.bytes_per_token(), row.per_token) << dtype_name(row.type);
        EXPECT_EQ(cache.bytes_per_sequence(), row.per_token / 10 * 30 * 512) << dtype_name(row.type);
        EXPECT_EQ(cache.total_bytes(), row.per_token * (16 * 64 + 3 * 3 * 512)) << dtype_name(row.type);
    }
}

TEST(kv_cache, k_and_v_may_differ_in_type) {
    const KvCache cache(std::vector{paged_spec(2, 64)}, {.k_dtype = DType::q8_0, .v_dtype = DType::q4_0, .pages = 1});
    EXPECT_EQ(cache.view(0).k_slot_bytes, 2 * 68);
    EXPECT_EQ(cache.view(0).v_slot_bytes, 2 * 36);
    EXPECT_EQ(cache.bytes_per_token(), 2 * 104);
}

TEST(kv_cache, rings_hold_the_window_and_a_step) {
    const std::vector<StateSpec> specs{paged_spec(1, 2), window_spec(1, 2, 512), StateSpec{}, window_spec(1, 2, 65)};
    const KvCache cache(specs, {.pages = 1, .max_step_rows = 16});
    EXPECT_EQ(cache.view(0).ring_rows, 0);
    EXPECT_EQ(cache.view(0).page_rows, 64);
    EXPECT_EQ(cache.view(1).ring_rows, 576);  // 511 + 16 = 527
    EXPECT_EQ(cache.view(1).window, 512);
    EXPECT_EQ(cache.view(2).k, nullptr);
    EXPECT_EQ(cache.view(2).num_kv_heads, 0);
    EXPECT_EQ(cache.view(3).ring_rows, 128);  // 64 + 16 = 80
    EXPECT_EQ(cache.views().size(), 4u);
}

TEST(kv_cache, a_head_that_does_not_suit_the_type_is_named_with_it) {
    const std::string message =
        error_of(std::vector{paged_spec(1, 40)}, {.k_dtype = DType::f16, .v_dtype = DType::q8_0, .pages = 1});
    EXPECT_NE(message.find("head_dim 40"), std::string::npos) << message;
    EXPECT_NE(message.find("q8_0"), std::string::npos) << message;
    EXPECT_NE(error_of(std::vector{paged_spec(1, 64)}, {.k_dtype = DType::q6_k}).find("q6_k"), std::string::npos);
}

TEST(kv_cache, impossible_options_are_errors) {
    const std::vector<StateSpec> specs{paged_spec(8, 128)};
    EXPECT_NE(error_of(specs, {.page_rows = 0}), "");
    EXPECT_NE(error_of(specs, {.pages = -1}), "");
    EXPECT_NE(error_of(specs, {.max_sequences = 0}), "");
    EXPECT_NE(error_of(specs, {.max_step_rows = 0}), "");
    EXPECT_NE(error_of(specs, {.pages = INT32_MAX}), "");
    EXPECT_NE(error_of(std::vector{paged_spec(INT64_MAX / 8, 128)}, {.pages = 1}), "");
    EXPECT_NE(error_of(std::vector{window_spec(8, 128, 0)}, {}), "");
    EXPECT_NE(error_of(std::vector{paged_spec(0, 128)}, {}), "");
}

int64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    int64_t total = -1, resident = -1;
    statm >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

TEST(kv_cache, memory_is_resident_only_where_it_is_written) {
    if (resident_bytes() < 0) GTEST_SKIP() << "this system does not tell resident memory";
    const int64_t before = resident_bytes();
    KvCache cache(laguna_xs(), {.pages = 2048, .max_sequences = 4});  // 128K tokens: 5.4 GB
    EXPECT_GT(cache.total_bytes(), int64_t{5} << 30);
    EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
    std::memset(cache.view(0).k, 1, 1 << 20);
    EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
}

TEST(kv_cache, copy_page_copies_the_first_tokens_of_every_paged_layer) {
    KvCache cache(std::vector{paged_spec(1, 2), window_spec(1, 2, 3), paged_spec(2, 2)},
                  {.k_dtype = DType::f32, .v_dtype = DType::f32, .page_rows = 4, .pages = 3});
    const auto token = [&](int64_t layer, int64_t slot) {
        const KvView& view = cache.view(layer);
        return std::pair{reinterpret_cast<float*>(const_cast<char*>(view.k_row(slot, 0))),
                         reinterpret_cast<float*>(const_cast<char*>(view.v_row(slot, 0)))};
    };
    for (const int64_t layer : {0, 2})
        for (int64_t slot = 0; slot < 4; ++slot) {
            token(layer, slot).first[0] = static_cast<float>(100 * layer + slot + 1);
            token(layer, slot).second[0] = -static_cast<float>(100 * layer + slot + 1);
        }
    cache.copy_page(0, 2, 3);
    for (const int64_t layer : {0, 2})
        for (int64_t slot = 0; slot < 4; ++slot) {
            const float expected = slot < 3 ? static_cast<float>(100 * layer + slot + 1) : 0;
            EXPECT_EQ(token(layer, 8 + slot).first[0], expected);
            EXPECT_EQ(token(layer, 8 + slot).second[0], -expected);
            EXPECT_EQ(token(layer, 4 + slot).first[0], 0);
        }
}

TEST(kv_cache, slots_are_handed_out_once) {
    KvCache cache(std::vector{window_spec(1, 2, 3)}, {.max_sequences = 2});
    EXPECT_EQ(cache.acquire_slot(), 0);
    EXPECT_EQ(cache.acquire_slot(), 1);
    EXPECT_EQ(cache.acquire_slot(), -1);
    cache.release_slot(0);
    EXPECT_EQ(cache.free_slots(), 1);
    EXPECT_EQ(cache.acquire_slot(), 0);
}

TEST(kv_cache_death, releasing_a_free_slot_aborts) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    KvCache cache(std::vector{window_spec(1, 2, 3)}, {.max_sequences = 2});
    EXPECT_DEATH(cache.release_slot(1), "assertion failed");
}

}  // namespace
}  // namespace riptide
