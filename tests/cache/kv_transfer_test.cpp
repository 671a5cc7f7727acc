#include "cache/kv_transfer.h"

#include <cstring>
#include <string>

#include "tests/cache/prefix_world.h"

namespace riptide {
namespace {

/// A cache of random bytes on the device under test.
struct Transfer {
    KvCache kv;
    std::shared_ptr<HostHeap> heap = HostHeap::make(test_gpu());
    KvTransfer transfer;

    Transfer(const std::vector<StateSpec>& specs, const KvCacheOptions& options)
        : kv(specs, options, test_gpu()), transfer(kv, *heap) {
        HostViews host(kv);
        std::mt19937_64 rng(3);
        for (const KvView& view : host.views())
            for (void* const base : {view.k, view.v})
                for (int64_t i = 0; i < bytes_of(view) / 8; ++i) static_cast<uint64_t*>(base)[i] = rng();
        host.write_back();
    }
    /// Bytes of K, and of V.
    int64_t bytes_of(const KvView& view) const {
        const KvCacheOptions& o = kv.options();
        return view.k_slot_bytes *
               (view.window > 0 ? int64_t{o.max_sequences} * view.ring_rows : int64_t{o.pages} * o.page_rows);
    }
    void overwrite() {
        for (const KvView& view : kv.views())
            for (void* const base : {view.k, view.v}) {
                if (kv.gpu() != nullptr) kv.gpu()->fill(base, 0xEE, bytes_of(view));
                else std::memset(base, 0xEE, static_cast<size_t>(bytes_of(view)));
            }
    }
};

std::string text(const std::byte* data, int64_t bytes) {
    return {reinterpret_cast<const char*>(data), static_cast<size_t>(bytes)};
}

/// The tokens of a ring, in order.
std::string ring_text(const KvCache& kv, int64_t slot, int64_t length) {
    const HostViews host(kv);
    std::string all;
    for (const KvView& view : host.views())
        for (const void* const base : {view.k, view.v})
            for (int64_t i = std::max<int64_t>(0, length - view.window + 1); view.window > 0 && i < length; ++i)
                all += text(static_cast<const std::byte*>(base) +
                                (slot * view.ring_rows + i % view.ring_rows) * view.k_slot_bytes,
                            view.k_slot_bytes);
    return all;
}

std::string page_text(const KvCache& kv, int64_t page, int64_t rows) {
    const HostViews host(kv);
    std::string all;
    for (const KvView& view : host.views())
        for (const void* const base : {view.k, view.v})
            if (view.window == 0)
                all += text(static_cast<const std::byte*>(base) + page * view.page_rows * view.k_slot_bytes,
                            rows * view.k_slot_bytes);
    return all;
}

TEST(kv_transfer, rings_larger_than_the_staging_memory_come_back_though_overwritten_at_once) {
    // 5 x 8.4 MB.
    const std::vector<StateSpec> specs(5, {StateSpec::Kind::window, 8, 128, 1024});
    Transfer t(specs, {.k_dtype = DType::f32, .v_dtype = DType::f32, .max_sequences = 2, .max_step_rows = 16});
    for (const int64_t length : {int64_t{700}, int64_t{5000}}) {
        const std::string expected = ring_text(t.kv, 1, length);
        ASSERT_EQ(t.transfer.state_bytes(length), std::ssize(expected));
        const HostBytes block = t.heap->take(std::ssize(expected));
        t.transfer.save_state(1, length, *block);
        t.overwrite();  // nobody has waited
        t.transfer.load_state(0, length, *block);
        t.transfer.load_state(1, length, *block);
        EXPECT_TRUE(ring_text(t.kv, 0, length) == expected);
        EXPECT_TRUE(ring_text(t.kv, 1, length) == expected);
        t.heap->wait(*block);
        EXPECT_TRUE(text(block->data, block->bytes) == expected);
    }
}

TEST(kv_transfer, more_pages_than_a_batch_come_back_into_any_places) {
    // 1 MiB a page: 32 in a batch.
    const std::vector<StateSpec> specs(2, {StateSpec::Kind::paged, 8, 128, 0});
    Transfer t(specs, {.k_dtype = DType::f32, .v_dtype = DType::f32, .page_rows = 64, .pages = 40});
    EXPECT_EQ(t.transfer.page_bytes(64), 1 << 20);
    EXPECT_EQ(t.transfer.batch_pages(), 32);
    ThreadPool threads(2);
    for (const int64_t rows : {64, 5}) {
        std::vector<std::string> expected;
        std::vector<HostBytes> blocks;
        std::vector<const std::byte*> from;
        std::vector<int32_t> to;
        for (int32_t page = 0; page < 40; ++page) {
            expected.push_back(page_text(t.kv, page, rows));
            blocks.push_back(t.heap->take(t.transfer.page_bytes(rows)));
            t.transfer.save_page(page, rows, *blocks.back());
            from.push_back(blocks.back()->data);
            to.push_back((page * 7 + 3) % 40);
        }
        t.overwrite();
        t.transfer.load_pages(to, rows, from, &threads);
        for (size_t i = 0; i < 40; ++i) EXPECT_TRUE(page_text(t.kv, to[i], rows) == expected[i]) << i;
        for (size_t i = 0; i < 40; ++i) {  // more marks than the clock keeps events for come below
            t.heap->wait(*blocks[i]);
            EXPECT_TRUE(text(blocks[i]->data, blocks[i]->bytes) == expected[i]) << i;
        }
    }
    const HostBytes early = t.heap->take(t.transfer.page_bytes(64));
    t.transfer.save_page(0, 64, *early);
    for (int i = 0; i < 200; ++i) t.heap->clock().mark();
    t.heap->wait(*early);
    EXPECT_TRUE(text(early->data, early->bytes) == page_text(t.kv, 0, 64));
}

}  // namespace
}  // namespace riptide
