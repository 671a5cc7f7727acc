// Any bytes open or throw Error, and neither takes more memory than a small multiple of the file: every allocation of
// this test binary goes through the operator new below.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "tests/io/test_files.h"

namespace {

std::atomic<std::size_t> g_largest{0};
std::atomic<std::size_t> g_total{0};

}  // namespace

// Not inlined: the compiler would see free() on what new gave and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
    std::size_t largest = g_largest.load(std::memory_order_relaxed);
    while (size > largest && !g_largest.compare_exchange_weak(largest, size)) {
    }
    g_total.fetch_add(size, std::memory_order_relaxed);
    if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace riptide {
namespace {

using test::Bytes;
using test::RawGguf;

// A key-value or tensor takes at least 14 and 33 bytes in the file and a few hundred in memory; messages take a fixed
// amount.
constexpr size_t kLargestFactor = 32, kTotalFactor = 256, kFixed = 1 << 16;

enum class Outcome { opened, refused };

/// Opens a copy of exact size on the heap, so that AddressSanitizer sees any read outside it.
Outcome open_counted(const Bytes& image, bool gguf) {
    const auto exact = std::make_unique<std::byte[]>(std::max<size_t>(image.size(), 1));
    std::copy(image.begin(), image.end(), exact.get());
    const std::span<const std::byte> span(exact.get(), image.size());
    Outcome outcome = Outcome::opened;
    g_largest = g_total = 0;
    try {
        if (gguf) {
            (void)GgufFile::from_memory(span, "x.gguf");
        } else {
            (void)SafetensorsModel::from_memory(span, "x.safetensors");
        }
    } catch (const Error& error) {
        outcome = Outcome::refused;
        EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    }
    EXPECT_LE(g_largest.load(), image.size() * kLargestFactor + kFixed);
    EXPECT_LE(g_total.load(), image.size() * kTotalFactor + kFixed);
    return outcome;
}

class Mutator {
  public:
    explicit Mutator(uint64_t seed) : random_(seed) { std::cout << "seed " << seed << "\n"; }
    size_t pick(size_t n) { return static_cast<size_t>(random_() % n); }

    /// A few bytes changed, most of them in the header; sometimes cut or lengthened.
    Bytes operator()(const Bytes& original, size_t header, std::string_view tokens) {
        Bytes bytes = original;
        for (size_t changes = 1 + pick(4); changes > 0; --changes) {
            std::byte& byte = bytes[pick(4) ? pick(header) : pick(bytes.size())];
            if (pick(2)) {
                byte = tokens.empty() ? byte ^ static_cast<std::byte>(1u << pick(8))
                                      : static_cast<std::byte>(tokens[pick(tokens.size())]);
            } else {
                byte = static_cast<std::byte>(random_());
            }
        }
        if (pick(8) == 0) bytes.resize(pick(bytes.size() + 64));
        return bytes;
    }

  private:
    std::mt19937_64 random_;
};

TEST(Mutation, the_counter_counts) {
    g_largest = 0;
    { const std::vector<int> big(100000); }
    EXPECT_GE(g_largest.load(), 400000u);
}

TEST(Mutation, twenty_thousand_gguf_files) {
    const RawGguf raw = test::small_gguf();
    Mutator mutate(20240501);
    int opened = 0;
    for (int round = 0; round < 20000; ++round)
        opened += open_counted(mutate(raw.bytes, raw.bytes.size() - 160, ""), true) == Outcome::opened;
    EXPECT_GT(opened, 100) << "mutations must reach what lies behind the first checks";
    EXPECT_LT(opened, 15000);
}

TEST(Mutation, twenty_thousand_safetensors_files) {
    const Bytes original = test::safetensors_image(test::kSmallHeader, 22);
    Mutator mutate(7);
    int opened = 0;
    for (int round = 0; round < 20000; ++round)
        opened += open_counted(mutate(original, original.size() - 22, "{}[]\":,\\0123456789-eE.untrf FBU"), false) ==
                  Outcome::opened;
    EXPECT_GT(opened, 100) << "mutations must reach what lies behind the first checks";
    EXPECT_LT(opened, 15000);
}

TEST(Mutation, absurd_numbers_in_any_gguf_field_are_refused) {
    const RawGguf raw = test::small_gguf();
    constexpr uint64_t kAbsurd[] = {std::numeric_limits<uint64_t>::max(),
                                    uint64_t{1} << 63,
                                    (uint64_t{1} << 63) - 1,
                                    uint64_t{1} << 62,
                                    uint64_t{1} << 61,
                                    uint64_t{1} << 40,
                                    (uint64_t{1} << 32) + 1,
                                    uint64_t{0xffffffff},
                                    uint64_t{0x80000000},
                                    uint64_t{0x7fffffff}};
    for (const auto& field : raw.fields) {
        for (const uint64_t value : kAbsurd) {
            if (field.size == 4 && value > 0xffffffff) continue;
            SCOPED_TRACE(fmt::format("field at {} = {}", field.at, value));
            Bytes bytes = raw.bytes;
            std::memcpy(bytes.data() + field.at, &value, field.size);
            EXPECT_EQ(open_counted(bytes, true), Outcome::refused);
        }
    }
}

TEST(Mutation, a_sparse_file_of_ten_gigabytes_with_absurd_counts_takes_no_memory) {
    // Counts are believed only as far as the file could hold them; here it could, by its size.
    test::TempFolder folder;
    for (const bool tensors : {true, false}) {
        RawGguf raw;
        raw.header(tensors ? 300'000'000 : 0, tensors ? 0 : 700'000'000);
        const std::string path = folder.put("m.gguf", raw.bytes);
        std::error_code error;
        std::filesystem::resize_file(path, 10'000'000'000, error);
        if (error) GTEST_SKIP() << "this file system has no sparse files of 10 GB";
        g_total = 0;
        test::expect_error([&] { (void)open_checkpoint(path); }, {path});
        EXPECT_LT(g_total.load(), 64u << 20);
    }
}

}  // namespace
}  // namespace riptide
