#include "ops/attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "ops/attention_plan.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "quant/kv_codec.h"

namespace riptide::ops {

namespace {

constexpr int64_t kBlockKeys = 32;                    // K or V decoded at a time: 16 KiB at head_dim 128
constexpr int64_t kFewPieces = 4;                     // that may each prepare their queries for themselves
constexpr int64_t kPartialFloats = int64_t{1} << 20;  // of states that wait to be merged

/// What stays the same over one call.
struct AttentionJob {
    const KvView& view;
    const Batch& batch;
    const AttentionKernels& kernels;
    const Tensor& q;
    const HeadSteps& steps;
    const DotKernels& dot;
    float scale;
    int64_t heads;  // that queries have
    int64_t parts;  // sets of query heads for one KV head
    int64_t group;  // heads of a set: what one item of work takes
    int64_t d, dp, state;
    int64_t most_rows;         // of a tile
    float* scratch = nullptr;  // scratch_floats() for each thread

    int64_t sets() const { return view.num_kv_heads * parts; }
    int64_t kv_head(int64_t set) const { return set / parts; }

    int64_t queries(const AttentionTile& tile) const { return tile.rows * group; }
    int64_t scratch_floats() const { return most_rows * group * (dp + kAttentionSplit + 2 * state) + kBlockKeys * dp; }
};

/// One thread's buffers, each a multiple of 64 bytes.
struct TileScratch {
    float* block;    // [kBlockKeys, dp], zero beyond head_dim
    float* q;        // [most_rows * group, dp]
    float* scores;   // [most_rows * group, kAttentionSplit]
    float* states;   // [most_rows * group, state]
    float* running;  // the same: states of the pieces so far

    TileScratch(const AttentionJob& job, int thread) {
        const int64_t queries = job.most_rows * job.group;
        block = job.scratch + thread * job.scratch_floats();
        q = block + kBlockKeys * job.dp;
        scores = q + queries * job.dp;
        states = scores + queries * kAttentionSplit;
        running = states + queries * job.state;
    }
};

/// The part of one piece that a set of queries looks at: slots of storage and, for each row, a range of keys.
struct PieceKeys {
    int64_t begin = kAttentionSplit, end = 0;  // keys of the piece that some row sees
    std::array<VisibleRange, kTileRows> rows{};
    std::array<int64_t, kAttentionSplit> slot{};

    /// What a row sees of the block that begins there.
    VisibleRange seen(int64_t row, int64_t block) const {
        const VisibleRange all = rows[static_cast<size_t>(row)];
        return {std::max(all.begin, block), std::min(all.end, block + kBlockKeys)};
    }
};

/// The query of one head of row r, normalised and rotated.
void prepare_head(const float* from, int64_t d, const HeadSteps& steps, int64_t r, float* q) {
    if (steps.q_norm.weight.empty()) std::copy_n(from, d, q);
    else rms_norm_row(from, steps.q_norm.weight.data(), d, steps.q_norm.eps, q);
    if (steps.rope != nullptr) rotate_heads(q, 1, d, steps.rotary_dim, steps.rope + r * steps.rotary_dim, q);
}

/// Queries of the tile and a set of heads, normalised, rotated, padded with zeros to dp, in the domain of the stored
/// keys.
void load_queries(const AttentionJob& job, const AttentionTile& tile, int64_t set, float* q) {
    for (int64_t r = tile.row; r < tile.row + tile.rows; ++r)
        for (int64_t g = 0; g < job.group; ++g, q += job.dp) {
            const float* source = job.q.row(r) + (set * job.group + g) * job.d;
            prepare_head(source, job.d, job.steps, r, q);
            std::fill(q + job.d, q + job.dp, 0.0f);
            if (kv_rotated(job.view.k_dtype)) kv_rotate(q, job.d);
        }
}

/// Keys of rows [first, first + count) of the tile in a piece. More than one row: a part that all see in the same
/// slots.
void find_keys(const AttentionJob& job, const AttentionTile& tile, int64_t piece, int64_t first, int64_t count,
               PieceKeys& keys) {
    const int64_t origin = piece * kAttentionSplit;
    keys.begin = kAttentionSplit;
    keys.end = 0;
    for (int64_t i = 0; i < count; ++i) {
        VisibleRange range = visible_range(job.batch, job.view.window, tile.row + first + i);
        range.begin = std::clamp<int64_t>(range.begin - origin, 0, kAttentionSplit);
        range.end = std::clamp<int64_t>(range.end - origin, 0, kAttentionSplit);
        keys.rows[static_cast<size_t>(i)] = range;
        if (range.begin >= range.end) continue;
        keys.begin = std::min(keys.begin, range.begin);
        keys.end = std::max(keys.end, range.end);
    }
    if (keys.begin >= keys.end) return;
    if (tile.tree)
        path_indices(job.batch, tile.row + first + count - 1, origin + keys.begin, origin + keys.end,
                     keys.slot.data() + keys.begin);
    else std::iota(keys.slot.begin() + keys.begin, keys.slot.begin() + keys.end, origin + keys.begin);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
        int64_t& slot = keys.slot[static_cast<size_t>(j)];  // a storage index until now
        slot = job.view.slot(job.batch, tile.sequence, slot);
    }
}

/// Decodes the keys of the piece in [block, block + kBlockKeys) to their places in a block, and fetches the rows that
/// come next, values after keys: the rows of a head lie a slot apart, which hardware does not foresee.
void decode_block(const AttentionJob& job, int64_t kv_head, const PieceKeys& keys, int64_t block, bool values,
                  float* out) {
    const auto stored = [&](int64_t j, bool of_values) {
        const int64_t slot = keys.slot[static_cast<size_t>(j)];
        return of_values ? job.view.v_row(slot, kv_head) : job.view.k_row(slot, kv_head);
    };
    const int64_t begin = std::max(block, keys.begin), end = std::min(block + kBlockKeys, keys.end);
    const DType type = values ? job.view.v_dtype : job.view.k_dtype;
    for (int64_t j = begin; j < end; ++j) {
        const char* row = stored(j, values);
        float* to = out + (j - block) * job.dp;
        if (type == DType::f16 && job.kernels.decode_f16 != nullptr) job.kernels.decode_f16(row, to, job.d);
        else decode_kv_row(type, row, to, job.d);
        int64_t ahead = j + kBlockKeys;
        const bool next_values = values || ahead >= keys.end;
        if (next_values && !values) ahead = keys.begin + ahead - keys.end;
        if (ahead >= keys.end) continue;
        const char* next = stored(ahead, next_values);
        const int64_t bytes = (next_values ? job.view.v_slot_bytes : job.view.k_slot_bytes) / job.view.num_kv_heads;
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i);
    }
}

/// One state for each query of rows [first, first + count): softmax over their keys of one piece.
void attend(const AttentionJob& job, int64_t kv_head, int64_t first, int64_t count, const PieceKeys& keys,
            const TileScratch& scratch, float* states) {
    const float* q = scratch.q + first * job.group * job.dp;
    const int64_t first_block = keys.begin / kBlockKeys * kBlockKeys, score_stride = job.group * kAttentionSplit;
    for (int64_t block = first_block; block < keys.end; block += kBlockKeys) {
        decode_block(job, kv_head, keys, block, false, scratch.block);
        const int64_t n = (std::min(kBlockKeys, keys.end - block) + 3) / 4 * 4;
        int64_t from = 0, to = count;
        while (from < to && !keys.seen(from, block).any()) ++from;
        while (from < to && !keys.seen(to - 1, block).any()) --to;
        job.kernels.scores(q + from * job.group * job.dp, (to - from) * job.group, scratch.block, n, job.dp, job.scale,
                           scratch.scores + from * score_stride + block);
    }
    for (int64_t i = 0; i < count * job.group; ++i) {
        const VisibleRange range = keys.rows[static_cast<size_t>(i / job.group)];
        float* state = states + i * job.state;
        if (range.begin < range.end)
            job.kernels.softmax(scratch.scores + i * kAttentionSplit, range.begin, range.end, job.dp, state);
        else state[job.dp + 1] = 0;
    }
    for (int64_t block = first_block; block < keys.end; block += kBlockKeys) {
        decode_block(job, kv_head, keys, block, true, scratch.block);
        for (int64_t i = 0, next = 0; i < count; i = next) {
            const VisibleRange seen = keys.seen(i, block);
            for (next = i + 1; next < count && keys.seen(next, block) == seen;) ++next;
            if (seen.any())
                job.kernels.accumulate(scratch.scores + i * score_stride + seen.begin, (next - i) * job.group,
                                       scratch.block + (seen.begin - block) * job.dp, seen.end - seen.begin, job.dp,
                                       states + i * job.group * job.state);
        }
    }
}

/// States of all queries of the tile for one piece. Rows share the committed part; where a tree's own rows begin, each
/// row follows its own path.
void attend_piece(const AttentionJob& job, const AttentionTile& tile, int64_t kv_head, int64_t piece,
                  const TileScratch& scratch, float* states) {
    const int64_t committed = job.batch.committed[static_cast<size_t>(tile.sequence)];
    const bool shared = !tile.tree || (piece + 1) * kAttentionSplit <= committed;
    const int64_t step = shared ? tile.rows : 1;
    PieceKeys keys;
    for (int64_t first = 0; first < tile.rows; first += step) {
        find_keys(job, tile, piece, first, step, keys);
        attend(job, kv_head, first, step, keys, scratch, states + first * job.group * job.state);
    }
}

void merge_states(const AttentionJob& job, int64_t queries, float* into, const float* from) {
    for (int64_t i = 0; i < queries; ++i)
        if (from[i * job.state + job.dp + 1] != 0)
            job.kernels.merge(into + i * job.state, from + i * job.state, job.dp);
}

void clear_states(const AttentionJob& job, int64_t queries, float* states) {
    for (int64_t i = 0; i < queries; ++i) states[i * job.state + job.dp + 1] = 0;
}

/// o = acc / s, out of the domain of the stored values; then the gate.
void finish(const AttentionJob& job, const AttentionTile& tile, int64_t set, const float* states, Tensor& out) {
    const Tensor& gate = job.steps.gate;
    const int64_t cols = job.heads * job.d, gates = gate.data == nullptr ? 0 : gate.row_elements() / job.heads;
    for (int64_t i = 0; i < job.queries(tile); ++i, states += job.state) {
        const int64_t row = tile.row + i / job.group, head = set * job.group + i % job.group, first = head * job.d;
        float* o = out.row(row) + first;
        const float inverse = 1.0f / states[job.dp + 1];
        for (int64_t e = 0; e < job.d; ++e) o[e] = states[e] * inverse;
        if (kv_rotated(job.view.v_dtype)) kv_unrotate(o, job.d);
        if (gates > 0) mul_softplus_row(o, gate.row(row) + head * gates, job.d, job.d / gates);
        if (job.steps.int8 != nullptr)
            job.dot.quantize(o, first, first + job.d, cols, job.steps.int8 + row * Int8Row::bytes(cols));
    }
}

/// Memory for the TileScratch of each thread.
float* scratch_memory(Context& ctx, const AttentionJob& job, int threads) {
    const int64_t stride = job.scratch_floats();
    float* memory = floats(ctx, threads * stride);
    if (job.dp != job.d)
        for (int t = 0; t < threads; ++t) std::fill_n(memory + t * stride, kBlockKeys * job.dp, 0.0f);
    return memory;
}

struct PieceRange {
    int64_t first, end;
};
/// The pieces that some tile sees.
PieceRange piece_range(const std::vector<AttentionTile>& tiles) {
    PieceRange range{INT64_MAX, 0};
    for (const AttentionTile& tile : tiles) {
        range.first = std::min(range.first, tile.first_piece);
        range.end = std::max(range.end, tile.end_piece);
    }
    return range;
}

/// Enough tiles for all threads, or a single piece: a thread takes a tile and a set of heads through all pieces.
void run_tiles(Context& ctx, const AttentionJob& job, const std::vector<AttentionTile>& tiles, Tensor& out) {
    const int64_t sets = job.sets();
    for_each_item(ctx, static_cast<int64_t>(tiles.size()) * sets, [&](int64_t item, int thread) {
        const AttentionTile& tile = tiles[static_cast<size_t>(item / sets)];
        const int64_t set = item % sets;
        const TileScratch s(job, thread);
        load_queries(job, tile, set, s.q);
        clear_states(job, job.queries(tile), s.running);
        for (int64_t piece = tile.first_piece; piece < tile.end_piece; ++piece) {
            attend_piece(job, tile, job.kv_head(set), piece, s, s.states);
            merge_states(job, job.queries(tile), s.running, s.states);
        }
        finish(job, tile, set, s.running, out);
    });
}

/// Few tiles over many keys: pieces run in parallel, a bounded number of them at a time. Whoever ends the last piece of
/// a tile and set of heads merges them all, in order.
void run_pieces(Context& ctx, const AttentionJob& job, const std::vector<AttentionTile>& tiles, Tensor& out) {
    const int64_t sets = job.sets(), items = static_cast<int64_t>(tiles.size()) * sets;
    const PieceRange seen = piece_range(tiles);
    const int64_t first = seen.first, end = seen.end;
    const int64_t stride = job.most_rows * job.group * job.state;
    const int64_t pieces = std::clamp<int64_t>(kPartialFloats / (items * stride), 1, end - first);
    float* partial = floats(ctx, items * pieces * stride);
    float* running = floats(ctx, items * stride);
    auto* arrived = static_cast<int32_t*>(ctx.arena->allocate(items * int64_t{sizeof(int32_t)}));
    std::fill_n(arrived, items, 0);
    const auto tile_of = [&](int64_t item) -> const AttentionTile& { return tiles[static_cast<size_t>(item / sets)]; };
    for (int64_t item = 0; item < items; ++item) clear_states(job, job.queries(tile_of(item)), running + item * stride);
    for (int64_t start = first; start < end; start += pieces) {
        const int64_t count = std::min(pieces, end - start);
        for_each_item(ctx, items * count, [&](int64_t i, int thread) {
            const int64_t item = i / count, piece = start + i % count;
            const AttentionTile& tile = tile_of(item);
            float* states = partial + i * stride;
            if (piece >= tile.first_piece && piece < tile.end_piece) {
                const TileScratch s(job, thread);
                load_queries(job, tile, item % sets, s.q);
                attend_piece(job, tile, job.kv_head(item % sets), piece, s, states);
            } else {
                clear_states(job, job.queries(tile), states);
            }
            if (std::atomic_ref(arrived[item]).fetch_add(1, std::memory_order_acq_rel) + 1 < count) return;
            arrived[item] = 0;
            for (int64_t j = 0; j < count; ++j)
                merge_states(job, job.queries(tile), running + item * stride, partial + (item * count + j) * stride);
            if (start + count >= end) finish(job, tile, item % sets, running + item * stride, out);
        });
    }
}

/// Queries normalised and rotated beforehand, for when every piece would do it again.
Tensor prepare_queries(Context& ctx, const Tensor& q, HeadSteps& steps) {
    const int64_t heads = q.shape[1], d = q.shape[2];
    Tensor y = ctx.alloc(DType::f32, {q.rows(), heads, d});
    parallel_rows(ctx, q.rows() * heads, 4 * d, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) prepare_head(q.row(0) + i * d, d, steps, i / heads, y.row(0) + i * d);
    });
    steps.q_norm = {};
    steps.rope = nullptr;
    return y;
}

/// How many sets the query heads of a KV head are cut into, so that `items` of work are enough for all threads.
int64_t cut_heads(int64_t heads, int64_t items, int64_t threads) {
    int64_t parts = 1;
    while (parts < heads && (heads % parts != 0 || items * parts < threads)) ++parts;
    return parts;
}

}  // namespace

Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    if (ctx.gpu != nullptr) return cuda::attention(ctx, q, view, batch, softmax_scale);
    return attention(ctx, q, view, batch, softmax_scale, {});
}

Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale,
                 const HeadSteps& steps) {
    RT_ASSERT(q.dtype == DType::f32 && q.contiguous() && q.rank == 3 && q.rows() == batch.rows());
    RT_ASSERT(q.shape[2] == view.head_dim && q.shape[1] % view.num_kv_heads == 0);
    RT_ASSERT(steps.int8 == nullptr || view.head_dim % 32 == 0);
    const int64_t heads = q.shape[1], d = view.head_dim, dp = (d + 15) / 16 * 16, each = heads / view.num_kv_heads;
    Tensor out = ctx.alloc(DType::f32, {q.rows(), heads * d});
    if (q.rows() == 0) return out;
    const ArenaScope scope(*ctx.arena);
    const std::vector<AttentionTile> tiles = plan_tiles(batch, view.window);
    const auto [first, end] = piece_range(tiles);
    const int64_t items = static_cast<int64_t>(tiles.size()) * view.num_kv_heads, threads = thread_count(ctx);
    const bool whole = items >= 4 * threads || end - first == 1;
    const int64_t parts = whole ? cut_heads(each, items, threads) : 1;
    HeadSteps todo = steps;
    const Tensor queries = whole || end - first <= kFewPieces ? q : prepare_queries(ctx, q, todo);
    AttentionJob job{.view = view,
                     .batch = batch,
                     .kernels = attention_kernels(),
                     .q = queries,
                     .steps = todo,
                     .dot = dot_kernels(),
                     .scale = softmax_scale,
                     .heads = heads,
                     .parts = parts,
                     .group = each / parts,
                     .d = d,
                     .dp = dp,
                     .state = attention_state_floats(dp),
                     .most_rows = 1};
    for (const AttentionTile& tile : tiles) job.most_rows = std::max(job.most_rows, tile.rows);
    job.scratch = scratch_memory(ctx, job, thread_count(ctx));
    if (whole) run_tiles(ctx, job, tiles, out);
    else run_pieces(ctx, job, tiles, out);
    return out;
}

}  // namespace riptide::ops
