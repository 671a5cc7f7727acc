#include "ops/kv/kv_pack.h"

#include <algorithm>

#include "quant/kv_codec.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

constexpr int32_t kPageRows = 4, kRing = 64, kPages = 70, kPackSlots = 3;
constexpr char kPoison = '\x5A';

struct PackLayer {
    int32_t window;  // 0: paged; -1: neither
    int64_t heads, dim;
};

/// K/V storage of some layers on the device under test, filled with random bytes, and a copy on the host.
class PackWorld {
  public:
    PackWorld(const std::vector<PackLayer>& layers, DType k, DType v) : gpu_(test_gpu()) {
        std::mt19937 rng(5);
        for (const PackLayer& layer : layers) {
            KvView view;
            if (layer.window >= 0) {
                view.k_dtype = k;
                view.v_dtype = v;
                view.num_kv_heads = layer.heads;
                view.head_dim = layer.dim;
                view.k_slot_bytes = layer.heads * row_bytes(k, layer.dim);
                view.v_slot_bytes = layer.heads * row_bytes(v, layer.dim);
                view.window = layer.window;
                if (layer.window > 0) view.ring_rows = kRing;
                else view.page_rows = kPageRows;
                const int64_t slots = layer.window > 0 ? kPackSlots * kRing : kPages * kPageRows;
                view.k = add(slots * view.k_slot_bytes, rng);
                view.v = add(slots * view.v_slot_bytes, rng);
            }
            views_.push_back(view);
        }
    }
    std::span<const KvView> views() const { return views_; }
    Gpu* gpu() const { return gpu_; }

    /// All storage as it is now.
    std::vector<std::string> now() const {
        std::vector<std::string> all;
        for (const DeviceMemory& one : memory_) all.push_back(download(one.data(), one.bytes()));
        return all;
    }
    std::string download(const std::byte* from, int64_t bytes) const {
        std::string text(static_cast<size_t>(bytes), 0);
        if (gpu_ != nullptr) gpu_->to_host(text.data(), from, bytes);
        else std::memcpy(text.data(), from, text.size());
        return text;
    }
    void upload(std::byte* to, const std::string& text) const {
        if (gpu_ != nullptr) gpu_->to_device(to, text.data(), static_cast<int64_t>(text.size()));
        else std::memcpy(to, text.data(), text.size());
    }

  private:
    void* add(int64_t bytes, std::mt19937& rng) {
        std::string random(static_cast<size_t>(bytes), 0);
        for (char& c : random) c = static_cast<char>(rng());
        memory_.emplace_back(gpu_, bytes, "K/V");
        upload(memory_.back().data(), random);
        return memory_.back().data();
    }
    Gpu* gpu_;
    std::vector<DeviceMemory> memory_;  // K and V of each layer that has any
    std::vector<KvView> views_;
};

/// The tokens of a ring, one by one: the definition.
void for_each_ring_token(const PackWorld& world, int64_t slot, int64_t length,
                         const std::function<void(size_t array, int64_t at, int64_t bytes)>& see) {
    size_t array = 0;
    for (const KvView& view : world.views()) {
        if (view.num_kv_heads == 0) continue;
        for (const int64_t bytes : {view.k_slot_bytes, view.v_slot_bytes}) {
            if (view.window > 0)
                for (int64_t i = std::max<int64_t>(0, length - view.window + 1); i < length; ++i)
                    see(array, (slot * kRing + i % kRing) * bytes, bytes);
            ++array;
        }
    }
}

void for_each_page_token(const PackWorld& world, int32_t page, int64_t rows,
                         const std::function<void(size_t array, int64_t at, int64_t bytes)>& see) {
    size_t array = 0;
    for (const KvView& view : world.views()) {
        if (view.num_kv_heads == 0) continue;
        for (const int64_t bytes : {view.k_slot_bytes, view.v_slot_bytes}) {
            if (view.window == 0)
                for (int64_t i = 0; i < rows; ++i) see(array, (int64_t{page} * kPageRows + i) * bytes, bytes);
            ++array;
        }
    }
}

const std::vector<PackLayer> kSmall{{0, 2, 32}, {7, 1, 64}, {-1, 0, 0}, {30, 3, 32}, {0, 1, 64}};
/// More arrays than one launch takes.
std::vector<PackLayer> many_layers() {
    std::vector<PackLayer> layers;
    for (int i = 0; i < 2 * 33; ++i) layers.push_back({i % 2 == 0 ? 0 : 5 + i % 3, 1 + i % 2, 32});
    return layers;
}

/// Slots of 16-byte words, of 4-byte words, and odd ones; packed memory that is aligned or not.
struct PackCase {
    std::vector<PackLayer> layers;
    DType k, v;
    int64_t shift;
};
std::vector<PackCase> pack_cases() {
    const std::vector<PackCase> all = {{kSmall, DType::f16, DType::f8_e4m3, 0},
                                       {kSmall, DType::q8_0, DType::tq3_0, 0},  // 34 and 14 bytes for 32 values
                                       {kSmall, DType::f32, DType::f32, 4},
                                       {kSmall, DType::f16, DType::f16, 1},
                                       {{{0, 1, 3}, {9, 1, 1}}, DType::f16, DType::bf16, 0},
                                       {many_layers(), DType::f8_e4m3, DType::f16, 0}};
    return brief(all, 3);
}

TEST(kv_pack, packed_rings_are_the_tokens_in_order_and_come_back_into_any_slot) {
    for (const PackCase& c : pack_cases())
        for (const int64_t length : fewer<std::vector<int64_t>>({0, 1, 5, 31, 63, 64, 70, 100, 128, 1000}, {5, 70})) {
            if (brief_counts() && c.layers.size() > 60 && length == 5) continue;  // its copies take longest
            PackWorld world(c.layers, c.k, c.v);
            const std::vector<std::string> before = world.now();
            std::string expected;
            for_each_ring_token(world, 1, length, [&](size_t array, int64_t at, int64_t bytes) {
                expected += before[array].substr(static_cast<size_t>(at), static_cast<size_t>(bytes));
            });
            const auto bytes = static_cast<int64_t>(expected.size());
            ASSERT_EQ(ops::packed_state_bytes({world.views(), {}}, length), bytes);
            const DeviceMemory memory(world.gpu(), bytes + 64, "packed");
            world.upload(memory.data(), std::string(static_cast<size_t>(memory.bytes()), kPoison));
            ops::pack_state(world.gpu(), {world.views(), {}}, 1, length, memory.data() + c.shift);
            const std::string all = world.download(memory.data(), memory.bytes());
            EXPECT_TRUE(all == std::string(static_cast<size_t>(c.shift), kPoison) + expected +
                                   std::string(static_cast<size_t>(64 - c.shift), kPoison))
                << length;
            EXPECT_TRUE(world.now() == before);

            ops::unpack_state(world.gpu(), {world.views(), {}}, 2, length, memory.data() + c.shift);
            std::vector<std::string> after = before;
            size_t from = 0;
            for_each_ring_token(world, 2, length, [&](size_t array, int64_t at, int64_t n) {
                after[array].replace(static_cast<size_t>(at), static_cast<size_t>(n), expected, from,
                                     static_cast<size_t>(n));
                from += static_cast<size_t>(n);
            });
            EXPECT_TRUE(world.now() == after) << length;

            ops::copy_state(world.gpu(), {world.views(), {}}, 1, 0, length);
            from = 0;
            for_each_ring_token(world, 0, length, [&](size_t array, int64_t at, int64_t n) {
                after[array].replace(static_cast<size_t>(at), static_cast<size_t>(n), expected, from,
                                     static_cast<size_t>(n));
                from += static_cast<size_t>(n);
            });
            EXPECT_TRUE(world.now() == after) << length;
        }
}

TEST(kv_pack, packed_pages_are_their_first_tokens_and_come_back_into_any_pages) {
    for (const PackCase& c : pack_cases())
        for (const size_t count :
             fewer<std::vector<size_t>>({0, 1, 5, 66}, {5, 66}))  // more pages than one launch takes
            for (const int64_t rows : fewer<std::vector<int64_t>>({1, 3, kPageRows}, {3})) {
                if (brief_counts() && c.layers.size() > 60 && count == 5) continue;
                PackWorld world(c.layers, c.k, c.v);
                const std::vector<std::string> before = world.now();
                std::vector<int32_t> pages(kPages);
                for (int32_t i = 0; i < kPages; ++i) pages[static_cast<size_t>(i)] = i;
                std::shuffle(pages.begin(), pages.end(), std::mt19937(9));
                const std::vector<int32_t> others(pages.rbegin(), pages.rbegin() + static_cast<ptrdiff_t>(count));
                pages.resize(count);
                std::string expected;
                for (const int32_t page : pages)
                    for_each_page_token(world, page, rows, [&](size_t array, int64_t at, int64_t bytes) {
                        expected += before[array].substr(static_cast<size_t>(at), static_cast<size_t>(bytes));
                    });
                ASSERT_EQ(ops::packed_page_bytes(world.views(), rows) * static_cast<int64_t>(count),
                          std::ssize(expected));
                const DeviceMemory memory(world.gpu(), std::ssize(expected) + 64, "packed");
                world.upload(memory.data(), std::string(static_cast<size_t>(memory.bytes()), kPoison));
                ops::pack_pages(world.gpu(), world.views(), pages, rows, memory.data() + c.shift);
                EXPECT_TRUE(world.download(memory.data(), memory.bytes()) ==
                            std::string(static_cast<size_t>(c.shift), kPoison) + expected +
                                std::string(static_cast<size_t>(64 - c.shift), kPoison));
                EXPECT_TRUE(world.now() == before);

                ops::unpack_pages(world.gpu(), world.views(), others, rows, memory.data() + c.shift);
                std::vector<std::string> after = before;
                size_t from = 0;
                for (const int32_t page : others)
                    for_each_page_token(world, page, rows, [&](size_t array, int64_t at, int64_t n) {
                        after[array].replace(static_cast<size_t>(at), static_cast<size_t>(n), expected, from,
                                             static_cast<size_t>(n));
                        from += static_cast<size_t>(n);
                    });
                EXPECT_TRUE(world.now() == after) << count << " pages, " << rows << " rows";
            }
}

TEST(kv_pack, a_page_copy_moves_its_first_tokens_and_nothing_else) {
    for (const PackCase& c : pack_cases()) {
        PackWorld world(c.layers, c.k, c.v);
        std::vector<std::string> after = world.now();
        const std::vector<std::string> before = after;
        std::string moved;
        for_each_page_token(world, 3, 3, [&](size_t array, int64_t at, int64_t bytes) {
            moved += before[array].substr(static_cast<size_t>(at), static_cast<size_t>(bytes));
        });
        size_t from = 0;
        for_each_page_token(world, 9, 3, [&](size_t array, int64_t at, int64_t n) {
            after[array].replace(static_cast<size_t>(at), static_cast<size_t>(n), moved, from, static_cast<size_t>(n));
            from += static_cast<size_t>(n);
        });
        ops::copy_page(world.gpu(), world.views(), 3, 9, 3);
        EXPECT_TRUE(world.now() == after);
    }
}

}  // namespace
}  // namespace riptide
