#include "ops/kv/kv_append.h"

#include "quant/kv_codec.h"
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

TEST(kv_append, writes_the_encoded_rows_where_the_view_says_and_nothing_else) {
    for (const DType type :
         {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0})
        for (const int32_t window : {0, 7}) {
            OpContext op(3);
            AttentionWorld world(op,
                                 {.kv_heads = 2,
                                  .head_dim = 64,
                                  .k_dtype = type,
                                  .v_dtype = DType::f16,
                                  .window = window,
                                  .page_rows = 4,
                                  .ring_rows = 32,
                                  .capacity = 6},
                                 1);
            WorldSequence a = world.sequence(), b = world.sequence();
            world.feed(b, {100, 101, 102}, 3);
            world.step({&a, &b}, {{{7, -1}, {8, 0}, {9, 0}}, {{10, -1}}});
            const KvView stored = world.host_view();
            const uint64_t ids[] = {7, 8, 9, 10};
            for (int64_t r = 0; r < 4; ++r) {
                const int64_t sequence = r / 3, index = r < 3 ? r : 3;
                EXPECT_EQ(world.batch.storage_index(r), index);
                const int64_t slot = world.view.slot(world.batch, sequence, index);
                const std::vector<float> k = normals(128, ids[r] * 3 + 1);
                for (int64_t h = 0; h < 2; ++h) {
                    std::vector<float> row(k.begin() + h * 64, k.begin() + (h + 1) * 64);
                    if (kv_rotated(type)) kv_rotate(row.data(), 64);
                    std::vector<char> encoded(static_cast<size_t>(row_bytes(type, 64)));
                    encode_kv_row(type, row.data(), encoded.data(), 64);
                    EXPECT_EQ(std::memcmp(encoded.data(), stored.k_row(slot, h), encoded.size()), 0)
                        << dtype_name(type);
                }
            }
            int64_t written = 0;
            const int64_t slots = window > 0 ? 6 * 32 : 6 * 4;
            const std::vector<char> untouched(static_cast<size_t>(world.view.k_slot_bytes), '\xFF');
            for (int64_t slot = 0; slot < slots; ++slot)
                written += std::memcmp(untouched.data(), stored.k_row(slot, 0), untouched.size()) != 0;
            EXPECT_EQ(written, 7);
        }
}

TEST(kv_append, kv_move_copies_one_token_bit_for_bit) {
    OpContext op;
    AttentionWorld world(op, {.k_dtype = DType::q8_0, .v_dtype = DType::f16, .page_rows = 4, .capacity = 2}, 1);
    WorldSequence s = world.sequence();
    world.step({&s}, {{{1, -1}, {2, 0}, {3, 0}}});
    const auto k_of = [&](int64_t index) {
        const KvView stored = world.host_view();
        const int64_t slot = stored.slot(world.batch, 0, index);
        return std::string(stored.k_row(slot, 0), static_cast<size_t>(stored.k_slot_bytes)) +
               std::string(stored.v_row(slot, 0), static_cast<size_t>(stored.v_slot_bytes));
    };
    const std::string first = k_of(0), second = k_of(1), third = k_of(2);
    ops::kv_move(op.ctx.gpu, world.view, world.view.slot(world.batch, 0, 2), world.view.slot(world.batch, 0, 1));
    EXPECT_EQ(k_of(0), first);
    EXPECT_EQ(k_of(1), third);
    EXPECT_EQ(k_of(2), third);
    EXPECT_NE(second, third);
    ops::kv_move(op.ctx.gpu, world.view, world.view.slot(world.batch, 0, 0), world.view.slot(world.batch, 0, 0));
    EXPECT_EQ(k_of(0), first);
}

}  // namespace
}  // namespace riptide
