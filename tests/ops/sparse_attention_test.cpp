#include "ops/sparse_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/attention.h"
#include "ops/kv_append.h"
#include "ops/norm.h"
#include "quant/kv_codec.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

using ops::kSparseBlock;
using ops::SparseOptions;

struct Shape {
    int64_t heads = 4, kv_heads = 2, head_dim = 64;
    DType dtype = DType::f16;
};
std::vector<Shape> shapes() {
    return {{4, 2, 64, DType::f16},
            {2, 1, 128, DType::f16},
            {4, 4, 24, DType::f32},
            {3, 1, 128, DType::f32},
            {4, 2, 128, DType::bf16}};
}
std::string name_of(const Shape& s) {
    return fmt::format("{}/{} heads of {}, {}", s.heads, s.kv_heads, s.head_dim, dtype_name(s.dtype));
}

/// One sequence with given q, k, v for all its tokens, in shuffled pages, fed in steps.
class World {
  public:
    World(const Shape& shape, int64_t tokens, int threads = 2)
        : op(Family::prefill, threads), shape_(shape), n(tokens) {
        const auto values = [&](int64_t heads, uint64_t seed) {
            return normals(static_cast<size_t>(tokens * heads * shape.head_dim), seed);
        };
        q = values(shape.heads, 1);
        k = values(shape.kv_heads, 2);
        v = values(shape.kv_heads, 3);
    }

    struct Result {
        std::vector<float> o;
        std::vector<std::vector<int32_t>> lists;  // of block m, head h: [m * heads + h]
    };

    Result run(const SparseOptions& options, int64_t chunk = 1 << 20) {
        make_cache();
        Result all;
        for (int64_t first = 0; first < n; first += chunk) {
            const int64_t rows = std::min(chunk, n - first);
            set_batch(first, rows);
            op.poison();
            const ops::AttentionInput in = input(first, rows);
            const Batch batch = op.batch(host_batch);
            const ops::SparseResult result = ops::sparse_attention(op.ctx, in, view, batch, options);
            const std::vector<float> o = values_of(result.o);
            all.o.insert(all.o.end(), o.begin(), o.end());
            const std::vector<int32_t> lists = values_of<int32_t>(result.lists);
            for (size_t at = 0; at < lists.size(); at += static_cast<size_t>(result.lists.shape[2])) {
                EXPECT_LT(lists[at], result.lists.shape[2]);
                const auto from = lists.begin() + static_cast<std::ptrdiff_t>(at) + 1;
                all.lists.emplace_back(from, from + lists[at]);
            }
        }
        return all;
    }
    /// Dense attention of the last step's rows over the same cache.
    std::vector<float> dense() {
        op.poison();
        const Tensor queries = input(host_batch.committed[0], host_batch.rows()).q;
        return values_of(ops::attention(op.ctx, queries, view, op.batch(host_batch), scale()));
    }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
    float* key(int64_t token, int64_t head) {
        return &k[static_cast<size_t>((token * shape_.kv_heads + head) * shape_.head_dim)];
    }
    float* value(int64_t token, int64_t head) {
        return &v[static_cast<size_t>((token * shape_.kv_heads + head) * shape_.head_dim)];
    }
    float* query(int64_t token, int64_t head) {
        return &q[static_cast<size_t>((token * shape_.heads + head) * shape_.head_dim)];
    }
    int64_t blocks() const { return (n + kSparseBlock - 1) / kSparseBlock; }
    int64_t rows_of_block(int64_t m) const { return std::min(kSparseBlock, n - m * kSparseBlock); }

    /// The view over a copy of the storage in host memory.
    KvView host_view() {
        KvView host = view;
        for (int i = 0; i < 2; ++i) {
            const DeviceMemory& from = i == 0 ? k_memory_ : v_memory_;
            std::vector<std::byte>& to = host_memory_[i];
            to.resize(static_cast<size_t>(from.bytes()));
            if (op.ctx.gpu != nullptr) op.ctx.gpu->to_host(to.data(), from.data(), from.bytes());
            else std::memcpy(to.data(), from.data(), to.size());
            (i == 0 ? host.k : host.v) = to.data();
        }
        return host;
    }
    void set_batch(int64_t first, int64_t rows) {
        tokens_.assign(static_cast<size_t>(rows), 0);
        positions_.resize(static_cast<size_t>(rows));
        std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(first));
        row_begin_ = {0, static_cast<int32_t>(rows)};
        committed_ = {static_cast<int32_t>(first)};
        const auto pages = static_cast<int32_t>((first + rows + kPage - 1) / kPage);
        host_batch = {tokens_,
                      positions_,
                      tokens_,
                      {},
                      row_begin_,
                      committed_,
                      std::span(table_).first(static_cast<size_t>(pages)),
                      pages,
                      slot_,
                      {}};
    }

    OpContext op;
    std::vector<float> q, k, v;
    ops::Norm q_norm, k_norm;
    const ops::Rope* rope = nullptr;
    KvView view;
    Batch host_batch;

  private:
    static constexpr int32_t kPage = 64;

    void make_cache() {
        const int64_t pages = (n + kPage - 1) / kPage, head_bytes = row_bytes(shape_.dtype, shape_.head_dim);
        table_.resize(static_cast<size_t>(pages));
        std::iota(table_.begin(), table_.end(), 0);
        std::mt19937_64 rng(9);
        std::ranges::shuffle(table_, rng);
        view = {.k_dtype = shape_.dtype,
                .v_dtype = shape_.dtype,
                .num_kv_heads = shape_.kv_heads,
                .head_dim = shape_.head_dim,
                .k_slot_bytes = shape_.kv_heads * head_bytes,
                .v_slot_bytes = shape_.kv_heads * head_bytes,
                .page_rows = kPage};
        for (DeviceMemory* memory : {&k_memory_, &v_memory_}) {
            const int64_t bytes = pages * kPage * view.k_slot_bytes;
            *memory = DeviceMemory(op.ctx.gpu, bytes, "K/V");
            if (op.ctx.gpu != nullptr) op.ctx.gpu->fill(memory->data(), 0xFF, bytes);
            else std::memset(memory->data(), 0xFF, static_cast<size_t>(bytes));
        }
        view.k = k_memory_.data();
        view.v = v_memory_.data();
    }
    ops::AttentionInput input(int64_t first, int64_t rows) {
        const auto part = [&](const std::vector<float>& all, int64_t heads) {
            const int64_t width = heads * shape_.head_dim;
            const auto from = all.begin() + first * width;
            return op.tensor({from, from + rows * width}, {rows, heads, shape_.head_dim});
        };
        ops::AttentionInput in;
        in.q = part(q, shape_.heads);
        in.k = part(k, shape_.kv_heads);
        in.v = part(v, shape_.kv_heads);
        in.q_norm = q_norm;
        in.k_norm = k_norm;
        in.rope = rope;
        in.softmax_scale = scale();
        return in;
    }

    Shape shape_;
    int64_t n;
    DeviceMemory k_memory_, v_memory_;
    std::vector<std::byte> host_memory_[2];
    std::vector<int32_t> table_, tokens_, positions_, row_begin_, committed_, slot_ = {0};
};

double norm_of(const float* x, int64_t d) { return std::sqrt(std::inner_product(x, x + d, x, 0.0)); }

/// Relative error of an element when the device's products round their operands: tiles are f16 or bf16.
double operand_rounding(const Shape& shape) {
    const bool tiles = test_gpu() != nullptr && shape.dtype != DType::f32 && shape.head_dim % 64 == 0;
    return !tiles ? 0 : shape.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

// ---- the rule -------------------------------------------------------------------------------------------------------

std::vector<int32_t> choose(const std::vector<double>& mass, const SparseOptions& options) {
    std::vector<int32_t> list(mass.size(), -1);
    const auto m = std::ssize(mass) - 1;
    const int64_t count = ops::choose_blocks<double>(mass.data(), m, options, list.data());
    list.resize(static_cast<size_t>(count));
    return list;
}

using List = std::vector<int32_t>;

TEST(choose_blocks, keeps_sinks_window_and_what_comes_near_the_largest_mass) {
    SparseOptions o{.sink_blocks = 1, .window_blocks = 2, .alpha = 0.5f, .most_blocks = 8, .full_below = 0};
    EXPECT_EQ(choose({.1, .4, .19, .2, .05, .01}, o), (List{0, 1, 3, 4, 5}));
    EXPECT_EQ(choose({.9, .4, .45, .2, .05, .01}, o), (List{0, 2, 4, 5}));  // the sink's mass counts as largest
    o.sink_blocks = 0;
    EXPECT_EQ(choose({.1, .4, .19, .2, .05, .01}, o), (List{1, 3, 4, 5}));
    EXPECT_EQ(choose({1.0}, o), List{0});
}

TEST(choose_blocks, takes_the_largest_within_the_budget_and_of_equal_ones_the_first) {
    SparseOptions o{.sink_blocks = 1, .window_blocks = 1, .alpha = 0.0f, .most_blocks = 2, .full_below = 0};
    EXPECT_EQ(choose({.1, .1, .3, .2, .1, .2}, o), (List{0, 2, 3, 5}));
    EXPECT_EQ(choose({.2, .2, .2, .2, .2, .2}, o), (List{0, 1, 2, 5}));
    o.most_blocks = 0;
    EXPECT_EQ(choose({.2, .2, .2, .2, .2, .2}, o), (List{0, 5}));
}

TEST(choose_blocks, full_blocks_of_queries_read_everything) {
    const SparseOptions o{
        .sink_blocks = 0, .window_blocks = 1, .alpha = 1, .most_blocks = 0, .full_below = 2, .full_from = 4};
    for (const int64_t m : {0, 1, 2, 3, 4, 5}) {
        std::vector<double> mass(static_cast<size_t>(m + 1), 1.0 / static_cast<double>(m + 1));
        List all(mass.size());
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(choose(mass, o), m < 2 || m >= 4 ? all : List{static_cast<int32_t>(m)}) << m;
    }
}

TEST(choose_blocks, masses_that_are_no_numbers_choose_nothing) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const SparseOptions o{.sink_blocks = 1, .window_blocks = 2, .alpha = 0.0f, .most_blocks = 9, .full_below = 0};
    EXPECT_EQ(choose({nan, nan, nan, nan, nan, nan}, o), (List{0, 4, 5}));
}

// ---- the choice on the device ---------------------------------------------------------------------------------------

constexpr SparseOptions kTight = {
    .sink_blocks = 1, .window_blocks = 2, .alpha = 0.3f, .most_blocks = 3, .full_below = 2};

/// Blocks whose keys look like some queries, so that masses differ by orders of magnitude, and blocks that do not.
void plant_needles(World& world, const Shape& shape, float strength) {
    for (int64_t m = 1; m < world.blocks(); m += 3)
        for (int64_t h = 0; h < shape.kv_heads; ++h)
            for (int64_t j = 0; j < world.rows_of_block(m); ++j) {
                const float* like =
                    world.query(std::min<int64_t>(m * 211 % (world.blocks() * 100), world.blocks() * 100 - 1), h);
                for (int64_t e = 0; e < shape.head_dim; ++e)
                    world.key(m * kSparseBlock + j, h)[e] += strength * like[e];
            }
}

/// Each list is the double reference's, but for blocks whose mass is so near the border that rounding decides.
void expect_reference_lists(World& world, const Shape& shape, const SparseOptions& options, const World::Result& got) {
    const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
    world.set_batch(0, world.blocks() * 0 + std::ssize(world.q) / (shape.heads * d));
    const KvView stored = world.host_view();
    int64_t different = 0;
    for (int64_t h = 0; h < shape.heads; ++h) {
        std::vector<double> means(static_cast<size_t>(world.blocks() * d));
        ops::block_means_ref<double>(stored, world.host_batch, h / group, means.data());
        for (int64_t m = 0; m < world.blocks(); ++m) {
            const int64_t rows = world.rows_of_block(m);
            std::vector<float> q(static_cast<size_t>(rows * d));
            double query = 0, mean = 0;
            for (int64_t j = 0; j < rows; ++j) {
                std::copy_n(world.query(m * kSparseBlock + j, h), d, &q[static_cast<size_t>(j * d)]);
                query = std::max(query, norm_of(&q[static_cast<size_t>(j * d)], d));
            }
            for (int64_t n = 0; n <= m; ++n) {
                const std::vector<float> row(means.begin() + n * d, means.begin() + (n + 1) * d);
                mean = std::max(mean, norm_of(row.data(), d));
            }
            std::vector<double> mass(static_cast<size_t>(m + 1));
            ops::block_mass_ref<double>(q.data(), rows, means.data(), m, d, world.scale(), mass.data());
            List expected(mass.size());
            expected.resize(static_cast<size_t>(ops::choose_blocks<double>(mass.data(), m, options, expected.data())));
            const List& list = got.lists[static_cast<size_t>(m * shape.heads + h)];
            ASSERT_TRUE(std::ranges::is_sorted(list)) << m;
            if (list == expected) continue;
            // A d is off by the rounding of q and of the mean, by its products' sum and by the mean's own sum of 128
            // keys, whose error is relative to the keys' norm, at most sqrt(d) times their largest value: the mass of a
            // block by twice exp of that; the compared masses are off both.
            double key = 0;
            for (int64_t j = 0; j < (m + 1) * kSparseBlock && j < std::ssize(world.k) / (shape.kv_heads * d); ++j)
                key = std::max(key, norm_of(world.key(j, h / group), d));
            const double off =
                world.scale() * query *
                (mean * (2 * operand_rounding(shape) + kUnitF32 * (std::sqrt(static_cast<double>(d)) + 4)) +
                 key * kUnitF32 * std::sqrt(128.0));
            const double allowed = 4 * off + 64 * kUnitF32;
            ASSERT_LE(allowed, 1) << "the bound says nothing";
            // The border: what the last one taken had, or alpha times the largest.
            double border = options.alpha * *std::ranges::max_element(mass);
            std::vector<double> others;
            for (int64_t n = options.sink_blocks; n <= m - options.window_blocks; ++n)
                others.push_back(mass[static_cast<size_t>(n)]);
            std::ranges::sort(others, std::greater<>());
            if (options.most_blocks < std::ssize(others))
                border = std::max(border, others[static_cast<size_t>(std::max(0, options.most_blocks - 1))]);
            List changed;
            std::ranges::set_symmetric_difference(list, expected, std::back_inserter(changed));
            for (const int32_t n : changed)
                EXPECT_LE(std::abs(std::log(mass[static_cast<size_t>(n)] / border)), allowed)
                    << name_of(shape) << ", head " << h << ", block " << m << " of queries, " << n << " of keys";
            ++different;
        }
    }
    EXPECT_LE(different, world.blocks() * shape.heads / 4);
}

TEST(sparse_attention, chooses_what_the_double_reference_chooses) {
    for (const Shape& shape : shapes())
        for (const float strength : {0.0f, 0.2f, 1.0f}) {
            World world(shape, 12 * kSparseBlock + 37);
            if (strength > 0) plant_needles(world, shape, strength);
            for (SparseOptions options : {kTight, SparseOptions{.sink_blocks = 0,
                                                  .window_blocks = 1,
                                                  .alpha = 0.9f,
                                                  .most_blocks = 9,
                                                  .full_below = 0,
                                                  .full_from = 12}}) {
                const World::Result got = world.run(options);
                expect_reference_lists(world, shape, options, got);
            }
        }
}

TEST(sparse_attention, of_blocks_that_are_exactly_alike_the_first_are_read) {
    for (const Shape& shape : shapes()) {
        World world(shape, 9 * kSparseBlock);
        for (float& x : world.k) x = 0.5f;  // sums and means are exact
        const World::Result got = world.run(kTight);
        for (int64_t m = 0; m < world.blocks(); ++m)
            for (int64_t h = 0; h < shape.heads; ++h) {
                List expected = {0};
                for (int32_t n = 1; n <= m; ++n)
                    if (m < 2 || n <= 3 || m - n < 2) expected.push_back(n);
                EXPECT_EQ(got.lists[static_cast<size_t>(m * shape.heads + h)], expected) << name_of(shape) << ", " << m;
            }
    }
}

TEST(sparse_attention, lists_have_room_for_every_block) {
    for (const Shape& shape : shapes()) {
        World world(shape, 6 * kSparseBlock + 1);
        const World::Result got =
            world.run({.sink_blocks = 0, .window_blocks = 1, .alpha = 0, .most_blocks = 1000, .full_below = 0});
        for (int64_t m = 0; m < world.blocks(); ++m) {
            List all(static_cast<size_t>(m + 1));
            std::iota(all.begin(), all.end(), 0);
            for (int64_t h = 0; h < shape.heads; ++h)
                EXPECT_EQ(got.lists[static_cast<size_t>(m * shape.heads + h)], all) << name_of(shape) << ", " << m;
        }
    }
}

// ---- the attention --------------------------------------------------------------------------------------------------

/// As in attention_bound_test.cpp: on the CPU sums of 16 lanes and of pieces of 128 keys; on a GPU sums in any order,
/// with weights and values in the type of the tiles.
double allowed_error(World& world, const Shape& shape, double n) {
    const int64_t d = shape.head_dim;
    double query = 0, key = 0, value = 0;
    for (size_t i = 0; i < world.q.size(); i += static_cast<size_t>(d))
        query = std::max(query, norm_of(&world.q[i], d));
    for (size_t i = 0; i < world.k.size(); i += static_cast<size_t>(d)) key = std::max(key, norm_of(&world.k[i], d));
    for (const float x : world.v) value = std::max(value, std::abs(double{x}));
    const double product = world.scale() * query * key * 1.01;  // 1.01: stored in 16 bits
    if (test_gpu() == nullptr) {
        const double lanes = kUnitF32 * (std::sqrt(static_cast<double>(d) / 16 + 5) + 1) * product;
        return 1.01 * value * (2 * lanes + kUnitF32 * (8 + 3 * std::sqrt(std::min(n, 128.0))));
    }
    const double half = operand_rounding(shape);
    const double score = kUnitF32 * (std::sqrt(static_cast<double>(d)) + 3) * product;
    const double sums = kUnitF32 * (18 + 3 * std::sqrt(n)), tensor_cores = half > 0 ? 0x1p-23 : 0;
    return 1.01 * value *
           (std::expm1(2 * (score + (half + static_cast<double>(d) * tensor_cores) * product)) + half +
            n * tensor_cores + sums);
}

TEST(sparse_attention, stays_within_the_bound_of_the_double_reference) {
    std::vector<double> shares;
    for (const Shape& shape : shapes())
        for (const int64_t n : {int64_t{1}, int64_t{128}, int64_t{129}, 7 * kSparseBlock + 55}) {
            World world(shape, n);
            const World::Result got = world.run(kTight);
            world.set_batch(0, n);
            const KvView stored = world.host_view();
            const int64_t blocks = world.blocks(), columns = 1 + blocks;
            std::vector<int32_t> flat(static_cast<size_t>(blocks * shape.heads * columns));
            for (size_t i = 0; i < got.lists.size(); ++i) {
                flat[i * static_cast<size_t>(columns)] = static_cast<int32_t>(got.lists[i].size());
                std::ranges::copy(got.lists[i], flat.begin() + static_cast<std::ptrdiff_t>(i) * columns + 1);
            }
            const Tensor lists(flat.data(), DType::i32, {blocks, shape.heads, columns});
            std::vector<double> expected(got.o.size());
            ops::sparse_attention_ref<double>(world.q.data(), shape.heads, stored, world.host_batch, lists,
                                              world.scale(), expected.data());
            const double allowed = allowed_error(world, shape, static_cast<double>(n));
            BoundCheck check;
            for (size_t i = 0; i < expected.size(); ++i) check.add(got.o[i], expected[i], allowed);
            EXPECT_LE(check.worst(), 1.0) << name_of(shape) << ", " << n;
            shares.push_back(check.worst());
        }
    EXPECT_GE(*std::ranges::max_element(shares), 0.005) << "the bound is too loose";
}

TEST(sparse_attention, with_everything_chosen_is_dense_attention) {
    for (const Shape& shape : shapes()) {
        World world(shape, 5 * kSparseBlock + 99);
        const World::Result got = world.run({.full_below = 1 << 20});
        const std::vector<float> dense = world.dense();
        const double allowed = 2 * allowed_error(world, shape, 128 * 6);
        BoundCheck check;
        for (size_t i = 0; i < dense.size(); ++i) check.add(got.o[i], dense[i], allowed);
        EXPECT_LE(check.worst(), 1.0) << name_of(shape);
    }
}

TEST(sparse_attention, chunks_have_the_bits_and_the_lists_of_the_whole) {
    for (const Shape& shape : shapes()) {
        const SparseOptions options{
            .sink_blocks = 1, .window_blocks = 2, .alpha = 0.1f, .most_blocks = 3, .full_below = 1, .full_from = 8};
        World world(shape, 9 * kSparseBlock + 70), alone(shape, 9 * kSparseBlock + 70, 1);
        const World::Result whole = world.run(options);
        for (const int64_t chunk : {kSparseBlock, 3 * kSparseBlock, 8 * kSparseBlock}) {
            const World::Result parts = alone.run(options, chunk);
            EXPECT_EQ(parts.lists, whole.lists) << name_of(shape) << ", chunks of " << chunk;
            expect_same_bits(parts.o, whole.o, name_of(shape).c_str());
        }
        expect_same_bits(world.run(options).o, whole.o, "again");
    }
}

TEST(sparse_attention, blocks_that_are_not_read_have_no_effect) {
    for (const Shape& shape : shapes()) {
        World world(shape, 10 * kSparseBlock);
        const World::Result before = world.run(kTight);
        std::vector<bool> read(static_cast<size_t>(world.blocks() * shape.kv_heads));
        const int64_t m = world.blocks() - 1, group = shape.heads / shape.kv_heads;
        for (int64_t h = 0; h < shape.heads; ++h)
            for (const int32_t n : before.lists[static_cast<size_t>(m * shape.heads + h)])
                read[static_cast<size_t>(h / group * world.blocks() + n)] = true;
        int64_t changed = 0;
        for (int64_t h = 0; h < shape.kv_heads; ++h)
            for (int64_t n = 0; n < m; ++n) {
                if (read[static_cast<size_t>(h * world.blocks() + n)]) continue;
                for (int64_t j = n * kSparseBlock; j < (n + 1) * kSparseBlock; ++j, ++changed)
                    std::fill_n(world.value(j, h), shape.head_dim, std::numeric_limits<float>::quiet_NaN());
            }
        EXPECT_GT(changed, 0) << name_of(shape);
        const World::Result after = world.run(kTight);
        EXPECT_EQ(after.lists, before.lists);
        const auto from = static_cast<std::ptrdiff_t>(m * kSparseBlock * shape.heads * shape.head_dim);
        expect_same_bits({after.o.begin() + from, after.o.end()}, {before.o.begin() + from, before.o.end()},
                         name_of(shape).c_str());
    }
}

TEST(sparse_attention, norms_and_rotates_as_the_ops_do) {
    for (const Shape& shape : shapes()) {
        World world(shape, 3 * kSparseBlock + 5), plain(shape, 3 * kSparseBlock + 5);
        const auto weight = normals(static_cast<size_t>(shape.head_dim), 7);
        const ops::Rope rope = ops::make_rope(10000, shape.head_dim);
        world.q_norm = world.k_norm = {world.op.floats(weight), 1e-6f};
        world.rope = &rope;
        const World::Result fused = world.run(kTight);
        const std::span<const float> norm = plain.op.floats(weight);
        const int64_t n = std::ssize(plain.q) / (shape.heads * shape.head_dim);
        std::vector<int32_t> positions(static_cast<size_t>(n));
        std::iota(positions.begin(), positions.end(), 0);
        const auto prepared = [&](const std::vector<float>& x, int64_t heads) {
            Tensor y = ops::rms_norm(plain.op.ctx, plain.op.tensor(x, {n, heads, shape.head_dim}), norm, 1e-6f);
            ops::rope(plain.op.ctx, y, plain.op.ints(positions), rope);
            return values_of(y);
        };
        plain.q = prepared(plain.q, shape.heads);
        plain.k = prepared(plain.k, shape.kv_heads);
        const World::Result apart = plain.run(kTight);
        EXPECT_EQ(fused.lists, apart.lists) << name_of(shape);
        expect_same_bits(fused.o, apart.o, name_of(shape).c_str());
    }
}

}  // namespace
}  // namespace riptide
