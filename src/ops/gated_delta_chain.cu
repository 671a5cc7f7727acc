// Gated DeltaNet over long chains: prompts, and the rows that a commit keeps.
//
// A prompt's rows are prepared once by a kernel of their own, not again by each block; then a block takes its columns
// of a head through all rows, the next 16 rows on their way to shared memory meanwhile. A commit does the same with the
// rows of the stash, in all layers at once, without outputs. The state sees each row as in gated_delta.cu: the same
// bits.
//
// Bytes of a prompt, for each row at 48 heads: 66 KB to prepare and write, 33 KB read by each column tile, from L2
// after the first. FLOPs: four fma or products for each element and row on CUDA cores: 8192 rows of 48 heads are 0.77
// ms on an H200 if nothing else were done, which tensor cores could do in less, but only by chunks whose edges a
// prompt's parts and cached prefixes would have to keep.
// Reached on an H200, 2026-11-22 (random inputs, 48 heads): 8192 rows 6.6 ms
// (12.7 with rows prepared by each block), 12 % of that; commit of one row 3.6 us a layer. Of the scan ncu says 960
// cycles a row, 247 instructions of each of two warps a scheduler: waiting for the row before, 56 % of issue slots
// used; the rest of the time is preparing and norm.
#include <algorithm>

#include "ops/cuda.h"
#include "ops/gated_delta_rows.cuh"

namespace riptide::ops {

namespace {

constexpr int kPrepareWarps = 8;

/// A word (or, aligned, four) to shared memory, while the caller goes on.
template <int kBytes>
__device__ __forceinline__ void copy_async(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    for (int i = 0; i < kBytes / 4; ++i) to[i] = from[i];
#endif
}
__device__ __forceinline__ void copies_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

/// `count` floats by a warp. kAligned: both sides and the count are whole pieces of 16 bytes.
template <bool kAligned>
__device__ __forceinline__ void copy_row(float* to, const float* from, int count) {
    constexpr int kPiece = kAligned ? 4 : 1;
#pragma unroll 1
    for (int i = kPiece * static_cast<int>(threadIdx.x % 32); i < count; i += 32 * kPiece)
        copy_async<4 * kPiece>(to + i, from + i);
}

/// A warp for each key head (q and k) and each value head (v and gates) of each row. Chains only.
__global__ void __launch_bounds__(32 * kPrepareWarps, 2)
    delta_prepare_kernel(const __grid_constant__ DeltaArgs a, float* q_out, float* kq_out, const int32_t* row_sequence,
                         int64_t items, int warp_floats, int padded) {
    extern __shared__ float4 delta_shared[];
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int64_t item = int64_t{blockIdx.x} * kPrepareWarps + warp;
    if (item >= items) return;
    float* const memory = reinterpret_cast<float*>(delta_shared) + warp * warp_floats;
    const int parts = z.key_heads + z.value_heads;
    const int row = static_cast<int>(item / parts), part = static_cast<int>(item % parts);
    DeltaPlace at;
    at.sequence = row_sequence[row];
    at.slot = a.state_slot[at.sequence];
    at.committed = a.committed[at.sequence];
    at.first = a.row_begin[at.sequence];
    at.n = a.row_begin[at.sequence + 1] - at.first;
    at.column = 0;
    const bool keys = part < z.key_heads;
    at.h = !keys ? part - z.key_heads : z.tiled ? part : part * (z.value_heads / z.key_heads);
    at.key = z.key_head(at.h);
    const DeltaTaps taps = delta_taps(a, at, nullptr, row - at.first);
    if (!keys) {
        delta_prepare_values(a, at, taps, row, memory, z.value_dim);
        delta_prepare_gates(a, at, row, memory);
        return;
    }
    float *const q = memory, *const k = memory + padded;
    delta_prepare_key(a, at, taps, row, true, q, padded);
    delta_prepare_key(a, at, taps, row, false, k, padded);
    __syncwarp();
    for (int i = lane; i < z.key_dim; i += 32) q_out[row * int64_t{z.keys()} + at.key * z.key_dim + i] = q[i];
    const float kq = delta_dot(k, q, z.key_dim);
    if (lane == 0) kq_out[row * int64_t{z.key_heads} + at.key] = kq;
}

/// One sequence, value head and layer in one block.
struct ChainPlace {
    int sequence, layer, h, key, first, n, column, columns;  // column: the block's first of `columns`
};

/// Rows [begin, begin + rows) of a block's chain, on their way to shared memory. heads: what a row keeps, of row 0.
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
        const int64_t row = a.path != nullptr ? a.path[at.sequence * a.most + begin + i] : at.first + begin + i;
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

/// Grid: column tiles, value heads, sequences times layers.
template <int kRows, bool kOutput>
__global__ void __launch_bounds__(256) delta_chain_kernel(const __grid_constant__ DeltaChainArgs a) {
    extern __shared__ float4 delta_shared[];
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32);
    ChainPlace at;
    at.sequence = static_cast<int>(blockIdx.z) % a.sequences;
    at.layer = static_cast<int>(blockIdx.z) / a.sequences;
    at.h = static_cast<int>(blockIdx.y);
    at.key = z.key_head(at.h);
    at.columns = kWarpColumns * static_cast<int>(blockDim.x / 32);
    at.column = static_cast<int>(blockIdx.x) * at.columns;
    at.first = a.path != nullptr ? 0 : a.row_begin[at.sequence];
    at.n = a.path != nullptr ? a.count[at.sequence] : a.row_begin[at.sequence + 1] - at.first;
    if (at.n == 0) return;
    constexpr int kPadded = 16 * kRows;
    const int floats = static_cast<int>(delta_group_floats(kPadded, at.columns));
    auto* const memory = reinterpret_cast<float*>(delta_shared);
    // What no copy reaches: padding of heads, columns behind the last.
    for (int i = static_cast<int>(threadIdx.x); i < 2 * floats; i += static_cast<int>(blockDim.x)) memory[i] = 0.0f;
    __syncthreads();
    fetch_group<kOutput>(a, at, 0, min(kGroupRows, at.n), delta_group(memory, kPadded, at.columns));

    const int own = warp * kWarpColumns + DeltaTile<kRows>::first_column(), columns = z.value_dim - at.column - own;
    float* state = a.layers[at.layer].state + a.state_slot[at.sequence] * z.state_elements +
                   int64_t{at.h} * z.key_dim * z.value_dim + at.column + own;
    DeltaTile<kRows> tile;
    if (a.committed[at.sequence] == 0) tile.clear();
    else tile.load(state, z.key_dim, z.value_dim, columns);
    const int column = at.column + own + DeltaTile<kRows>::output_column();
    const bool writes = DeltaTile<kRows>::has_output() && column < z.value_dim;
    for (int begin = 0; begin < at.n; begin += kGroupRows) {
        const int rows = min(kGroupRows, at.n - begin), left = at.n - begin - rows;
        const int turn = begin / kGroupRows % 2;
        const DeltaGroup group = delta_group(memory + turn * floats, kPadded, at.columns);
        if (left > 0) {
            fetch_group<kOutput>(a, at, begin + rows, min(kGroupRows, left),
                                 delta_group(memory + (1 - turn) * floats, kPadded, at.columns));
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        for (int i = 0; i < rows; ++i) {
            const float4 v = *reinterpret_cast<const float4*>(group.v + i * at.columns + own);
            const float4 gate = *reinterpret_cast<const float4*>(group.gate + 4 * i);
            const float o = tile.template step<kOutput>(group.q + i * kPadded, group.k + i * kPadded, v, gate);
            if (kOutput && writes)
                a.out[(int64_t{at.first + begin + i} * z.value_heads + at.h) * z.value_dim + column] = o;
        }
        __syncthreads();  // before the next rows but one take the place of these
    }
    if (a.update) tile.store(state, z.key_dim, z.value_dim, columns);
}

/// A warp for each head of each row.
__global__ void __launch_bounds__(256) delta_norm_kernel(const __grid_constant__ DeltaArgs a, int64_t items) {
    pdl_trigger();
    pdl_wait();
    const int64_t item = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
    if (item >= items) return;
    const int row = static_cast<int>(item / a.sizes.value_heads), h = static_cast<int>(item % a.sizes.value_heads);
    delta_finish_head(a, row, h, a.out + item * a.sizes.value_dim);
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

template <bool kOutput>
void launch_chain(const Gpu& gpu, const DeltaChainArgs& a, int64_t layers) {
    const DeltaSizes& z = a.sizes;
    const int most = std::min(8, blocks_of(z.value_dim, kWarpColumns));
    const int warps = delta_warps(gpu, z.value_heads * a.sequences * layers, z.value_dim, most);
    const dim3 grid(static_cast<unsigned>(blocks_of(z.value_dim, int64_t{kWarpColumns} * warps)),
                    static_cast<unsigned>(z.value_heads), static_cast<unsigned>(a.sequences * layers));
    const size_t shared = 2 * 4 * delta_group_floats(padded_dim(z.key_dim), kWarpColumns * warps);
    auto* const kernel = choose_delta_kernel(z.key_dim, delta_chain_kernel<4, kOutput>, delta_chain_kernel<8, kOutput>,
                                             delta_chain_kernel<16, kOutput>, shared);
    launch(gpu, kernel, grid, dim3(static_cast<unsigned>(32 * warps)), shared, a);
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
    launch_chain<false>(*ctx.gpu, a, std::ssize(layers));
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
    const int padded = padded_dim(z.key_dim), floats = std::max(2 * padded, (z.value_dim + 3) / 4 * 4);
    const int64_t items = n * (z.key_heads + z.value_heads);
    launch(*ctx.gpu, delta_prepare_kernel, dim3(static_cast<unsigned>(blocks_of(items, kPrepareWarps))),
           dim3(32 * kPrepareWarps), static_cast<size_t>(kPrepareWarps * floats) * 4, args, q.row(0), kq.row(0),
           batch.row_sequence.data(), items, floats, padded);
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
    a.state_slot = args.state_slot;
    a.committed = args.committed;
    a.sequences = static_cast<int>(batch.sequences());
    launch_chain<true>(*ctx.gpu, a, 1);
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
