// Gated DeltaNet over chains and trees, and the rows that a commit keeps. Few rows of few heads: verify_sm90.cu.
//
// Rows are prepared once by a kernel of their own, not again by each block; then a block takes its columns of a head
// through all rows, fetched before it waited, the next 16 rows on their way to shared memory meanwhile; the norm is a
// third kernel. A tree's nodes are visited depth first (delta_schedule.h), so that at most log2(n + 1) states wait in
// shared memory instead of one for each node. A commit does the same with the rows of the stash, in all layers at once,
// without outputs. The state sees each row as in decode_row.cu: the same bits.
//
// Bytes of a prompt, for each row at 48 heads: 66 KB to prepare and write, 33 KB read by each column tile, from L2
// after the first. FLOPs: four fma or products for each element and row on CUDA cores: 8192 rows of 48 heads are 0.77
// ms on an H200 if nothing else were done, which tensor cores could do in less, but only by chunks whose edges a
// prompt's parts and cached prefixes would have to keep.
// Reached on an H200, 2026-11-23 (bench_gpu_delta, random inputs, 48 heads): 16 rows of a chain 17.1 us, trees of 23
// and 64 nodes 25 and 75 us (33, 56 and 135 when each block prepared its rows); 8192 rows 6.0 ms, 13 % of that; commit
// of 16 rows 4.9 us a layer. Within a step of a 27B two columns a lane take 2 us of a layer less than four at 16 rows,
// 6 us less at 24, though alone no less: ncu says of four that warps wait for the row before (two a scheduler, 850
// cycles a row, of which 424 to issue; three with two columns, 345). The rest of the time is preparing and norm.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/gated_delta/recurrence.cuh"

namespace riptide::ops {

namespace {

constexpr int kPrepareWarps = 8;

constexpr int kAtOnce = 4, kBatch = 32 * kAtOnce;  // of DeltaConvolution
constexpr int kBatches = kDeltaDim / kBatch;

/// q and k of one key head of one row, by a warp: convolved, normalised; and k . q. Waits.
__device__ __forceinline__ void prepare_keys(const DeltaArgs& a, const DeltaPlace& at, const DeltaTaps& taps, int row,
                                             float* q_out, float* kq_out) {
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), d = z.key_dim;
    const int first[2] = {at.key * d, z.keys() + at.key * d};
    DeltaConvolution<2> conv;
    conv.load_weights(a.conv_weights, z.width, first, 0, d);
    pdl_wait();
    float x[kBatches][2][kAtOnce], squares[2] = {};
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
        if (batch * kBatch >= d) break;
        if (batch > 0) conv.load_weights(a.conv_weights, z.width, first, batch * kBatch, d);
        conv.load_inputs(taps, first, batch * kBatch, d);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) {
                x[batch][h][c] = conv.value(h, c);
                const int channel = batch * kBatch + lane + 32 * c;
                if (channel < d) delta_keep_input(a, at, row, first[h] + channel, conv.x[h][c][0]);
            }
            squares[h] = delta_squares(x[batch][h], d - batch * kBatch, squares[h]);
        }
    }
    const float factors[2] = {delta_factor(squares[0], d, true), delta_factor(squares[1], d, false)};
    float* const kept = a.kept.at + row * a.kept.stride + a.kept.heads_at + at.key * d;
    float sum = 0.0f;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch)
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
            const int i = batch * kBatch + lane + 32 * c;
            if (i >= d) break;
            const float q = __fmul_rn(x[batch][0][c], factors[0]), k = __fmul_rn(x[batch][1][c], factors[1]);
            q_out[row * int64_t{z.keys()} + at.key * d + i] = q;
            kept[i] = k;
            sum = __fmaf_rn(k, q, sum);
        }
    sum = warp_sum(sum);
    if (lane == 0) kq_out[row * int64_t{z.key_heads} + at.key] = sum;
}

/// v and gates of one value head of one row, by a warp. Waits.
__device__ __forceinline__ void prepare_values(const DeltaArgs& a, const DeltaPlace& at, const DeltaTaps& taps,
                                               int row) {
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), d = z.value_dim, first[1] = {2 * z.keys() + at.h * d};
    DeltaConvolution<1> conv;
    conv.load_weights(a.conv_weights, z.width, first, 0, d);
    const float dt_bias = __uint_as_float(EarlyLoad::one(a.dt_bias + at.h)),
                decay = __uint_as_float(EarlyLoad::one(a.decay + at.h));
    pdl_wait();
    float2 gates = {};
    if (lane == 0) gates = delta_gates(a, row, at.h, dt_bias, decay);
    float* const kept = a.kept.at + row * a.kept.stride + a.kept.heads_at - z.keys() + first[0];
#pragma unroll 1
    for (int begin = 0; begin < d; begin += kBatch) {
        if (begin > 0) conv.load_weights(a.conv_weights, z.width, first, begin, d);
        conv.load_inputs(taps, first, begin, d);
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
            const int i = begin + lane + 32 * c;
            if (i >= d) break;
            delta_keep_input(a, at, row, first[0] + i, conv.x[0][c][0]);
            kept[i] = conv.value(0, c);
        }
    }
    if (lane == 0) delta_keep_gates(a, row, at.h, gates);
}

/// A warp for each key head (q and k) and each value head (v and gates) of each row. Weights, and where the inputs lie,
/// are fetched before the wait.
__global__ void __launch_bounds__(32 * kPrepareWarps, 2)
    delta_prepare_kernel(const __grid_constant__ DeltaArgs a, float* q_out, float* kq_out, const int32_t* row_sequence,
                         int64_t items) {
    pdl_trigger();
    const DeltaSizes& z = a.sizes;
    const int64_t item = int64_t{blockIdx.x} * kPrepareWarps + threadIdx.x / 32;
    if (item >= items) return pdl_wait();
    const int parts = z.key_heads + z.value_heads;
    const int row = static_cast<int>(item / parts), part = static_cast<int>(item % parts);
    const bool keys = part < z.key_heads;
    DeltaPlace at;
    at.find(a, delta_early(row_sequence + row),
            !keys     ? part - z.key_heads
            : z.tiled ? part
                      : part * (z.value_heads / z.key_heads));
    const DeltaTaps taps = delta_taps(a, at, row);
    if (keys) prepare_keys(a, at, taps, row, q_out, kq_out);
    else prepare_values(a, at, taps, row);
}

/// One sequence, value head and layer in one block.
struct ChainPlace {
    int sequence, layer, h, key, first, n, column, columns;  // column: the block's first of `columns`
    const DeltaVisit* visits;                                // of a tree; null: in order
};

/// Rows [begin, begin + rows) of a block's order, on their way to shared memory. heads: what a row keeps, of row 0.
template <bool kOutput, bool kAligned>
__device__ __forceinline__ void fetch_rows(const DeltaChainArgs& a, const ChainPlace& at, const float* heads, int begin,
                                           int rows, const DeltaGroup& group) {
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32), dk = z.key_dim;
    const int values = min(at.columns, z.value_dim - at.column),
              first_value = z.keys() + at.h * z.value_dim + at.column;
    const int gates = z.keys() + z.value_heads * z.value_dim + at.h;
#pragma unroll 1
    for (int i = warp; i < rows; i += warps) {
        const int64_t row = a.path != nullptr      ? a.path[at.sequence * a.most + begin + i]
                            : at.visits != nullptr ? at.first + at.visits[begin + i].node
                                                   : at.first + begin + i;
        const float* kept = heads + row * a.stride;
        copy_row<kAligned>(group.k + i * group.padded, kept + at.key * dk, dk);
        copy_row<kAligned>(group.v + i * at.columns, kept + first_value, values);
        if constexpr (kOutput)
            copy_row<kAligned>(group.q + i * group.padded, a.q + (row * z.key_heads + at.key) * dk, dk);
        if (lane < 2) copy_async<4>(group.gate + 4 * i + lane, kept + gates + lane * z.value_heads);
        if (kOutput && lane == 2) copy_async<4>(group.gate + 4 * i + 2, a.kq + row * z.key_heads + at.key);
    }
    copies_commit();
}

template <bool kOutput>
__device__ __forceinline__ void fetch_group(const DeltaChainArgs& a, const ChainPlace& at, int begin, int rows,
                                            const DeltaGroup& group) {
    const float* heads = a.layers[at.layer].rows + a.heads_at;
    if ((a.sizes.key_dim | a.sizes.value_dim | a.heads_at) % 4 == 0 && a.stride % 4 == 0)
        fetch_rows<kOutput, true>(a, at, heads, begin, rows, group);
    else fetch_rows<kOutput, false>(a, at, heads, begin, rows, group);
}

/// Without a branch.
__device__ __forceinline__ void store_if(int wanted, float* to, float x) {
#ifdef __CUDA_ARCH__
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}" ::"l"(to), "f"(x), "r"(wanted)
                 : "memory");
#else
    if (wanted != 0) *to = x;
#endif
}

/// Threads of a block, at most.
constexpr int chain_threads(int columns) { return columns == 4 ? 256 : 128; }

/// Grid: column tiles, value heads, sequences times layers. Steps (kOutput) fetch the state before the wait: nothing of
/// the step writes it.
template <int kRows, int kColumns, bool kOutput, bool kTree>
__global__ void __launch_bounds__(chain_threads(kColumns))
    delta_chain_kernel(const __grid_constant__ DeltaChainArgs a) {
    using Tile = DeltaTile<kRows, kColumns>;
    using Piece = Tile::Piece;
    extern __shared__ float4 delta_shared[];
    pdl_trigger();
    if constexpr (!kOutput) pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32);
    ChainPlace at;
    at.sequence = static_cast<int>(blockIdx.z) % a.sequences;
    at.layer = static_cast<int>(blockIdx.z) / a.sequences;
    at.h = static_cast<int>(blockIdx.y);
    at.key = z.key_head(at.h);
    at.columns = Tile::kOwned * static_cast<int>(blockDim.x / 32);
    at.column = static_cast<int>(blockIdx.x) * at.columns;
    at.first = a.path != nullptr ? 0 : delta_early(a.row_begin + at.sequence);
    at.n =
        a.path != nullptr ? delta_early(a.count + at.sequence) : delta_early(a.row_begin + at.sequence + 1) - at.first;
    if (at.n == 0) {
        if constexpr (kOutput) pdl_wait();
        return;
    }
    const int own = warp * Tile::kOwned + Tile::first_column(), columns = z.value_dim - at.column - own;
    float* state = a.layers[at.layer].state + delta_early(a.state_slot + at.sequence) * z.state_elements +
                   int64_t{at.h} * z.key_dim * z.value_dim + at.column + own;
    Tile tile;
    if (delta_early(a.committed + at.sequence) == 0) tile.clear();
    else tile.load(state, z.key_dim, z.value_dim, columns);

    const DeltaLayout layout{16 * kRows, at.columns};
    const int floats = static_cast<int>(delta_group_floats(layout.padded, at.columns));
    auto* const bytes = reinterpret_cast<unsigned char*>(delta_shared);
    auto* const memory = reinterpret_cast<float*>(bytes);
    auto& plan = *reinterpret_cast<TreePlan*>(bytes + layout.plan());
    auto* const kept = reinterpret_cast<Piece*>(bytes + layout.slots()) + 32 * kRows * warp;
    const int slot_stride = static_cast<int>(layout.slot_bytes() / sizeof(Piece));
    at.visits = nullptr;
    if constexpr (kTree) {
        at.visits = plan.visits;
        if (plan_tree(a.parent, plan, at.first, at.n)) tile.keep(kept);
    }
    // What no copy reaches: padding of heads, columns behind the last.
    for (int i = static_cast<int>(threadIdx.x); i < 2 * floats / 4; i += static_cast<int>(blockDim.x))
        delta_shared[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncthreads();
    if constexpr (kOutput) pdl_wait();
    fetch_group<kOutput>(a, at, 0, min(kGroupRows, at.n), delta_group(memory, layout.padded, at.columns));

    const int column = at.column + own + Tile::output_column();
    int writes = Tile::has_output() && column < z.value_dim ? 1 : 0, out_stride = z.value_heads * z.value_dim;
    float* out = a.out + int64_t{at.first} * out_stride + at.h * z.value_dim + column;  // chains: of the row at hand
    asm volatile("" : "+r"(writes), "+r"(out_stride), "+l"(out));  // computed here, not again for each row
    for (int begin = 0; begin < at.n; begin += kGroupRows) {
        const int rows = min(kGroupRows, at.n - begin), left = at.n - begin - rows;
        const int turn = begin / kGroupRows % 2;
        const DeltaGroup group = delta_group(memory + turn * floats, layout.padded, at.columns);
        if (left > 0) {
            fetch_group<kOutput>(a, at, begin + rows, min(kGroupRows, left),
                                 delta_group(memory + (1 - turn) * floats, layout.padded, at.columns));
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        // The next row's q and k take the place of these as soon as those were needed last.
        float queries[kRows], keys[kRows];
        const float *q = group.q + Tile::row(0), *v = group.v + own, *gates = group.gate;
        if constexpr (kOutput) Tile::own_rows(q, queries);
        Tile::own_rows(q + kGroupRows * layout.padded, keys);
        const DeltaVisit* visit = kTree ? at.visits + begin : nullptr;
        for (int more = rows - 1; more >= 0; --more) {
            if (kTree && visit->load >= 0) tile.recall(kept + visit->load * slot_stride);
            const float4 gate = *reinterpret_cast<const float4*>(gates);
            const float sum = tile.template sums<kOutput>(queries, keys);
            q += layout.padded;
            if (kOutput && more > 0) Tile::own_rows(q, queries);
            const Piece d = Tile::differences(sum, *reinterpret_cast<const Piece*>(v), gate);
            tile.join(keys, d, gate);
            if (more > 0) Tile::own_rows(q + kGroupRows * layout.padded, keys);
            if (kTree && visit->save >= 0) tile.keep(kept + visit->save * slot_stride);
            if constexpr (kOutput)
                store_if(writes, kTree ? out + int64_t{visit->node} * out_stride : out, Tile::output(sum, d, gate));
            v += at.columns, gates += 4;
            if constexpr (kTree) ++visit;
            else out += out_stride;
        }
        __syncthreads();  // before the next rows but one take the place of these
    }
    if (a.update) tile.store(state, z.key_dim, z.value_dim, columns);
}

/// A warp for each head of each row: RMSNorm and gate, as floats and as int8. The loads of the first 128 elements go
/// out together.
__global__ void __launch_bounds__(256) delta_norm_kernel(const __grid_constant__ DeltaArgs a, int64_t items) {
    constexpr int kAtOnce = 4;  // elements of a lane
    pdl_trigger();
    const int64_t item = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
    if (item >= items) return pdl_wait();
    const int row = static_cast<int>(item / a.sizes.value_heads), h = static_cast<int>(item % a.sizes.value_heads);
    const int lane = static_cast<int>(threadIdx.x % 32), d = a.sizes.value_dim;
    float* const y = a.out + item * d;
    const float* const z = a.z.row(row) + h * d;
    const int64_t cols = int64_t{a.sizes.value_heads} * d;
    float norm[kAtOnce], o[kAtOnce], gate[kAtOnce];
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
        const int i = lane + 32 * c;
        norm[c] = i < d ? __uint_as_float(EarlyLoad::one(a.norm + i)) : 0.0f;
    }
    pdl_wait();
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
        const int i = lane + 32 * c;
        o[c] = i < d ? y[i] : 0.0f, gate[c] = i < d ? z[i] : 0.0f;
    }
    float squares = delta_squares(o, d, 0.0f);
    for (int i = lane + 32 * kAtOnce; i < d; i += 32) squares = __fmaf_rn(y[i], y[i], squares);
    const float scale = rms_scale(warp_sum(squares), d, a.eps);
    const auto put = [&](int i, float value) {
        y[i] = value;
        // With int8 rows d is a multiple of 32: all lanes are here.
        if (a.out8 != nullptr) put_act_group(a.out8 + row * ActRow::bytes(cols), cols, (h * d + i) / 32, value);
    };
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c)
        if (lane + 32 * c < d) put(lane + 32 * c, delta_output(o[c], scale, norm[c], delta_gate(gate[c])));
    for (int i = lane + 32 * kAtOnce; i < d; i += 32) put(i, delta_output(y[i], scale, a.norm[i], delta_gate(z[i])));
}

/// The slot's convolution inputs, `count` rows later. Grid: channels / 256, sequences (times layers).
template <class Input>
__device__ __forceinline__ void advance_conv(const DeltaSizes& z, float* conv, int committed, int count,
                                             const Input& input) {
    const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (channel >= z.channels || count == 0) return;
    if (committed == 0)
        for (int i = count; i < z.width; ++i) conv[int64_t{i} * z.channels + channel] = 0.0f;
    for (int i = max(0, count - z.width); i < count; ++i)
        conv[int64_t{(committed + i) % z.width} * z.channels + channel] = input(i)[channel];
}

__global__ void __launch_bounds__(256) delta_conv_kernel(const __grid_constant__ DeltaArgs a) {
    pdl_trigger();
    pdl_wait();
    const int s = static_cast<int>(blockIdx.y), first = a.row_begin[s];
    advance_conv(a.sizes, a.conv + a.state_slot[s] * a.sizes.conv_floats, a.committed[s], a.row_begin[s + 1] - first,
                 [&a, first](int i) { return a.qkv.row(first + i); });
}

/// The same for the kept rows of a stash.
__global__ void __launch_bounds__(256) delta_path_conv_kernel(const __grid_constant__ DeltaChainArgs a) {
    pdl_trigger();
    pdl_wait();
    const int s = static_cast<int>(blockIdx.y) % a.sequences;
    const DeltaChainArgs::Layer& layer = a.layers[static_cast<int>(blockIdx.y) / a.sequences];
    const int32_t* rows = a.path + s * a.most;
    advance_conv(a.sizes, layer.conv + a.state_slot[s] * a.sizes.conv_floats, a.committed[s], a.count[s],
                 [&](int i) { return layer.rows + rows[i] * a.stride; });
}

/// Warps of a block, and its shared memory: as many warps as the kernel takes, fewer until two thirds of the SMs have a
/// block, at least two. heads: of all sequences and layers. tree_rows: 0 without trees.
struct BlockShape {
    int warps;
    size_t shared;
};
BlockShape block_shape(const Gpu& gpu, const DeltaSizes& z, int64_t heads, int64_t tree_rows, int columns) {
    const int each = 2 * columns, most = tree_rows > 0 ? 4 : chain_threads(columns) / 32;
    int warps = std::min(most, blocks_of(z.value_dim, each));
    while (warps > 2 && heads * blocks_of(z.value_dim, int64_t{each} * warps) * 3 < gpu.info().sm_count * 2) warps /= 2;
    for (;; warps /= 2) {
        const DeltaLayout layout{padded_dim(z.key_dim), each * warps};
        const size_t kept = static_cast<size_t>(delta_slots(tree_rows)) * layout.slot_bytes(),
                     shared = tree_rows == 0 ? layout.plan() : layout.slots() + kept;
        if (static_cast<int64_t>(shared) <= gpu.info().shared_bytes) return {warps, shared};
        RT_CHECK(warps > 1, "Gated DeltaNet: a step with trees needs {} bytes of shared memory, {} has {}", shared,
                 gpu.info().name, gpu.info().shared_bytes);
    }
}

template <int kColumns, bool kOutput, bool kTree>
void launch_columns(const Gpu& gpu, const DeltaChainArgs& a, int64_t layers, int64_t tree_rows) {
    const DeltaSizes& z = a.sizes;
    auto [warps, shared] = block_shape(gpu, z, z.value_heads * a.sequences * layers, tree_rows, kColumns);
    const dim3 grid(static_cast<unsigned>(blocks_of(z.value_dim, int64_t{2 * kColumns} * warps)),
                    static_cast<unsigned>(z.value_heads), static_cast<unsigned>(a.sequences * layers));
    if (kColumns == 2) {
        const auto most = blocks_of(int64_t{grid.x} * grid.y * grid.z, std::max(1, gpu.info().sm_count));
        shared = std::max(shared, static_cast<size_t>(gpu.info().shared_bytes / (most + 1)));
    }
    auto* const kernel = choose_delta_kernel(z.key_dim, delta_chain_kernel<4, kColumns, kOutput, kTree>,
                                             delta_chain_kernel<8, kColumns, kOutput, kTree>,
                                             delta_chain_kernel<16, kColumns, kOutput, kTree>, shared);
    launch(gpu, kernel, grid, dim3(static_cast<unsigned>(32 * warps)), shared, a);
}

/// Steps of few heads are as long as one row after the other takes, so their lanes have two columns: half the work in a
/// row, and blocks of four warps that spread over the SMs more evenly (48 heads of 128 columns: 384 blocks on 132 SMs,
/// instead of 96 of eight). They ask for so much shared memory that no SM takes more than its share: those that are
/// free first would take six (16 rows 24.7 instead of 17.1 us, H200, 2026-11-23). Where that would be more than four
/// warps for each scheduler, issue slots count and not latency: four columns, which read half as much of q and k. So do
/// commits, bound by the states' bytes.
template <bool kOutput, bool kTree>
void launch_chain(const Gpu& gpu, const DeltaChainArgs& a, int64_t layers, int64_t tree_rows) {
    const DeltaSizes& z = a.sizes;
    const int64_t heads = z.value_heads * a.sequences * layers;
    if (kOutput && heads * blocks_of(z.value_dim, 4) <= 16 * gpu.info().sm_count)
        launch_columns<kOutput ? 2 : 4, kOutput, kTree>(gpu, a, layers, tree_rows);
    else launch_columns<4, kOutput, kTree>(gpu, a, layers, tree_rows);
}

bool same_sizes(const DeltaView& a, const DeltaView& b) {
    return a.heads == b.heads && a.key_heads == b.key_heads && a.value_heads == b.value_heads &&
           a.key_dim == b.key_dim && a.value_dim == b.value_dim && a.conv_width == b.conv_width;
}

/// Layers of one size, at most kDeltaLayers.
void replay(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths) {
    const DeltaView& view = layers.front();
    DeltaChainArgs a = {};
    for (size_t i = 0; i < layers.size(); ++i)
        a.layers[i] = {layers[i].conv, static_cast<float*>(layers[i].state), layers[i].stash};
    a.sizes = delta_sizes(view);
    a.stride = view.stash_floats();
    a.heads_at = a.sizes.channels;
    a.update = true;
    a.state_slot = paths.state_slot.data();
    a.committed = paths.committed.data();
    a.count = paths.count.data();
    a.path = paths.rows.data();
    a.most = paths.most;
    a.sequences = static_cast<int>(paths.count.size());
    launch_chain<false, false>(*ctx.gpu, a, std::ssize(layers), 0);
    const dim3 grid(static_cast<unsigned>(blocks_of(view.channels(), 256)),
                    static_cast<unsigned>(std::ssize(layers) * a.sequences));
    launch(*ctx.gpu, delta_path_conv_kernel, grid, dim3(256), 0, a);
}

}  // namespace

void check_delta_sizes(const DeltaView& view) {
    if (view.key_dim > kDeltaDim || view.conv_width > kDeltaTaps)
        fail(ErrorKind::unavailable, "Gated DeltaNet on a GPU takes keys of up to {} values and {} taps, not {} and {}",
             kDeltaDim, kDeltaTaps, view.key_dim, view.conv_width);
}

void launch_delta_chain(Context& ctx, DeltaArgs args, const Batch& batch) {
    const ArenaScope scope(*ctx.arena);
    const DeltaSizes& z = args.sizes;
    const int64_t n = batch.rows(), keys = int64_t{z.key_heads} * z.key_dim;
    const Tensor q = ctx.alloc(DType::f32, {n, keys}), kq = ctx.alloc(DType::f32, {n, z.key_heads});
    if (args.kept.at == nullptr) {
        const int64_t stride = z.stash_floats - z.channels;
        args.kept = {ctx.alloc(DType::f32, {n, stride}).row(0), stride, 0, false};
    }
    if (takes_delta_runs(args, n)) {
        launch_delta_runs(ctx, args, q.row(0), kq.row(0), batch);
    } else {
        const int64_t items = n * (z.key_heads + z.value_heads);
        launch(*ctx.gpu, delta_prepare_kernel, dim3(static_cast<unsigned>(blocks_of(items, kPrepareWarps))),
               dim3(32 * kPrepareWarps), 0, args, q.row(0), kq.row(0), batch.row_sequence.data(), items);
    }
    if (args.by_chunks) return launch_delta_chunks(ctx, args, q.row(0), n, batch.sequences());
    DeltaChainArgs a = {};
    a.layers[0] = {args.conv, args.state, args.kept.at};
    a.sizes = z;
    a.stride = args.kept.stride;
    a.heads_at = args.kept.heads_at;
    a.update = args.update;
    a.q = q.row(0);
    a.kq = kq.row(0);
    a.out = args.out;
    a.row_begin = args.row_begin;
    a.parent = args.parent;
    a.state_slot = args.state_slot;
    a.committed = args.committed;
    a.sequences = static_cast<int>(batch.sequences());
    if (args.parent != nullptr) launch_chain<true, true>(*ctx.gpu, a, 1, n);
    else launch_chain<true, false>(*ctx.gpu, a, 1, 0);
}

void launch_delta_norm(Context& ctx, const DeltaArgs& a, int64_t n) {
    const int64_t items = n * a.sizes.value_heads;
    launch(*ctx.gpu, delta_norm_kernel, dim3(static_cast<unsigned>(blocks_of(items, 8))), dim3(256), 0, a, items);
}

void launch_delta_conv(Context& ctx, const DeltaArgs& a, int64_t sequences) {
    const dim3 grid(static_cast<unsigned>(blocks_of(a.sizes.channels, 256)), static_cast<unsigned>(sequences));
    launch(*ctx.gpu, delta_conv_kernel, grid, dim3(256), 0, a);
}

namespace cuda {

void gated_delta_commit(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths) {
    while (!layers.empty()) {
        check_delta_sizes(layers.front());
        size_t count = 1;
        while (count < layers.size() && count < kDeltaLayers && same_sizes(layers.front(), layers[count])) ++count;
        replay(ctx, layers.first(count), paths);
        layers = layers.subspan(count);
    }
}

}  // namespace cuda

}  // namespace riptide::ops
