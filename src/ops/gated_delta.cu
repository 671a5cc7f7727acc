// Gated DeltaNet, row after row: plain decoding, trees, commits, and prompts.
//
// Bytes: a sequence's state, read (and written, where rows are kept) once: 3.15 MB a layer at 48 heads of 128 x 128;
// one row reads and writes 6.3 MB, 1.4 us at 4.5 TB/s on an H200. FLOPs: 8 for each element of the state and row; on
// CUDA cores, 128 x 128 x 4 fma of a head are 512 cycles of an SM. Not measured yet: written without a GPU at hand.
//
// A warp owns eight columns of a head's state, in registers (DeltaTile), and needs nobody else's columns: only what a
// row is made of (convolved and normalised q and k, v, gates) is prepared by the block, 16 rows at a time. Few rows: a
// block has a whole head, and so normalises the output too: one launch a layer. Many rows or a tree: a block has fewer
// columns, so that all SMs have work, and the norm is a kernel of its own. A tree's nodes are visited depth first
// (delta_schedule.h), so that at most log2(n + 1) states wait in shared memory instead of one for each node.
// The convolution is computed again by each block of a key head: 320 channels beside 128 x 64 elements of a state.
#include <algorithm>

#include "ops/cuda.h"
#include "ops/gated_delta.cuh"

namespace riptide::ops {

namespace {

constexpr int kMostWarps = 16;

/// A tree's order, in shared memory.
struct TreePlan {
    int32_t parent[kDeltaTreeRows];
    int32_t numbers[4][kDeltaTreeRows + 1];
    DeltaVisit visits[kDeltaTreeRows];
};

/// Shared memory: a group's rows, then (trees) the plan, then the kept states: [slot][warp][kRows][32] float4.
struct Layout {
    int padded, columns;
    __host__ __device__ size_t plan() const { return (delta_group_floats(padded, columns) * 4 + 15) / 16 * 16; }
    __host__ __device__ size_t slots() const { return plan() + (sizeof(TreePlan) + 15) / 16 * 16; }
    __host__ __device__ size_t slot_bytes() const { return static_cast<size_t>(padded) * columns * 4; }
};

/// By all threads of the block; ends with a barrier. Returns whether the committed state must be kept.
__device__ bool plan_tree(const DeltaArgs& a, TreePlan& plan, int first, int n) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
        const int p = a.parent[first + i];
        plan.parent[i] = p < 0 ? -1 : p - first;
    }
    const auto parent = [&plan](int32_t i) { return plan.parent[i]; };
    const DeltaSchedule<decltype(parent)> schedule{
        parent, n, plan.numbers[0], plan.numbers[1], plan.numbers[2], plan.numbers[3], plan.visits};
    const auto add = [](int32_t* to, int32_t x) { atomicAdd(to, x); };
    const auto max = [](int32_t* to, int32_t x) { atomicMax(to, x); };
    const int begin = static_cast<int>(threadIdx.x), stride = static_cast<int>(blockDim.x);
    for (int i = begin; i <= n; i += stride) schedule.begin(i);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.count(i, add);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.choose(i, max);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.arrange(i);
    __syncthreads();
    for (int i = begin; i < n; i += stride) schedule.place(i);
    __syncthreads();
    return schedule.saves_root();
}

/// One sequence and value head in one block.
struct Place {
    int sequence, h, key, slot, committed, first, n, column;  // column: the block's first
};

__device__ __forceinline__ DeltaTaps row_taps(const DeltaArgs& a, const Place& at, const TreePlan& plan, int node) {
    const DeltaSizes& z = a.sizes;
    const float* conv = a.memory.conv + at.slot * z.conv_floats;
    int position = a.positions[at.first + node];
    DeltaTaps taps;
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i, --position) {
        taps.at[i] = nullptr;
        if (i >= z.width || position < 0) continue;
        if (position >= at.committed) {
            taps.at[i] = a.qkv.row(at.first + node);
            node = a.parent != nullptr ? plan.parent[node] : node - 1;
        } else {
            taps.at[i] = conv + int64_t{position % z.width} * z.channels;
        }
    }
    return taps;
}

/// What a block keeps of an input of the convolution: for the stash, or as the sequence's only row in the slot.
__device__ __forceinline__ void keep_input(const DeltaArgs& a, const Place& at, int row, int channel, float u) {
    const DeltaSizes& z = a.sizes;
    if (!a.update) {
        a.memory.stash[row * z.stash_floats + channel] = u;
    } else if (a.one_row) {
        float* conv = a.memory.conv + at.slot * z.conv_floats + channel;
        if (at.committed == 0)
            for (int i = 0; i < z.width; ++i) conv[int64_t{i} * z.channels] = 0.0f;
        conv[int64_t{at.committed % z.width} * z.channels] = u;  // no tap of this row: that is the column of W rows ago
    }
}

/// q or k of one row, by a warp: convolved, normalised, times scale.
__device__ __forceinline__ void prepare_key(const DeltaArgs& a, const Place& at, const DeltaTaps& taps, int row,
                                            bool query, float* to, int padded) {
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), d = z.key_dim;
    const int channel = (query ? 0 : z.keys()) + at.key * d;
    const bool writes = at.column == 0 && z.writes_keys(at.h);
    for (int i = lane; i < padded; i += 32) to[i] = 0.0f;
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < d; i += 32) to[i] = delta_convolve(taps, a.conv_weights, z.width, channel + i);
    if (writes)
        for (int i = lane; i < d; i += 32) keep_input(a, at, row, channel + i, taps.at[0][channel + i]);
    __syncwarp();
    float factor = delta_unit_factor(to, d);
    if (query) factor = __fmul_rn(factor, __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d))));
    float* stash = a.memory.stash + row * z.stash_floats + z.channels + at.key * d;
    for (int i = lane; i < d; i += 32) {
        const float x = __fmul_rn(to[i], factor);
        to[i] = x;
        if (!query && !a.update && writes) stash[i] = x;
    }
}

__device__ __forceinline__ void prepare_values(const DeltaArgs& a, const Place& at, const DeltaTaps& taps, int row,
                                               float* to, int columns) {
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), first = 2 * z.keys() + at.h * z.value_dim + at.column;
    float* stash = a.memory.stash + row * z.stash_floats + z.channels - z.keys() + first;
#pragma unroll 4
    for (int i = lane; i < columns; i += 32) {
        const bool there = at.column + i < z.value_dim;
        const float x = there ? delta_convolve(taps, a.conv_weights, z.width, first + i) : 0.0f;
        to[i] = x;
        if (!there) continue;
        keep_input(a, at, row, first + i, taps.at[0][first + i]);
        if (!a.update) stash[i] = x;
    }
}

__device__ __forceinline__ void prepare_gates(const DeltaArgs& a, const Place& at, int row, float* to) {
    if (threadIdx.x % 32 != 0) return;
    const float g = __fmul_rn(softplus(__fadd_rn(a.a.row(row)[at.h], a.dt_bias[at.h])), a.decay[at.h]);
    const float decay = expf(g), beta = sigmoid(a.b.row(row)[at.h]);
    to[0] = decay;
    to[1] = beta;
    if (a.update || at.column != 0) return;
    float* stash = a.memory.stash + row * a.sizes.stash_floats + a.sizes.stash_floats - 2 * a.sizes.value_heads;
    stash[at.h] = decay;
    stash[a.sizes.value_heads + at.h] = beta;
}

/// Rows [begin, begin + rows) of the order, by all warps; ends with a barrier.
__device__ void prepare_group(const DeltaArgs& a, const Place& at, const TreePlan& plan, int begin, int rows,
                              const DeltaGroup& group) {
    const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int item = warp; item < 4 * rows; item += warps) {
        const int i = item % rows, part = item / rows;
        const int node = a.parent != nullptr ? plan.visits[begin + i].node : begin + i, row = at.first + node;
        if (part == 3) {
            prepare_gates(a, at, row, group.gate + 4 * i);
            continue;
        }
        const DeltaTaps taps = row_taps(a, at, plan, node);
        if (part == 2) prepare_values(a, at, taps, row, group.v + i * group.columns, group.columns);
        else prepare_key(a, at, taps, row, part == 0, (part == 0 ? group.q : group.k) + i * group.padded, group.padded);
    }
    __syncthreads();
    for (int i = warp; i < rows; i += warps) {
        float kq = 0.0f;
        for (int e = lane; e < a.sizes.key_dim; e += 32)
            kq = __fmaf_rn(group.k[i * group.padded + e], group.q[i * group.padded + e], kq);
        kq = warp_sum(kq);
        if (lane == 0) group.gate[4 * i + 2] = kq;
    }
    __syncthreads();
}

/// y = RMSNorm(o) * silu(z) of one head of one row, by a warp; o may be where y goes.
__device__ __forceinline__ void finish_head(const DeltaArgs& a, int row, int h, const float* o) {
    const int lane = static_cast<int>(threadIdx.x % 32), d = a.sizes.value_dim;
    const float scale = warp_rms_scale([o, lane](int j) { return o[lane + 32 * j]; }, d, a.eps);
    const float* z = a.z.row(row) + h * d;
    float* y = a.out + (int64_t{row} * a.sizes.value_heads + h) * d;
    for (int i = lane; i < d; i += 32) {
        const float gate = __fdiv_rn(z[i], __fadd_rn(1.0f, expf(-z[i])));
        y[i] = __fmul_rn(rms_value(o[i], scale, a.norm[i]), gate);
    }
}

/// Grid: column tiles, value heads, sequences.
template <int kRows>
__global__ void __launch_bounds__(32 * kMostWarps) delta_rows_kernel(const __grid_constant__ DeltaArgs a) {
    extern __shared__ float4 delta_shared[];
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const Layout layout{16 * kRows, kWarpColumns * static_cast<int>(blockDim.x / 32)};
    Place at;
    at.column = static_cast<int>(blockIdx.x) * layout.columns;
    at.h = static_cast<int>(blockIdx.y);
    at.key = z.key_head(at.h);
    at.sequence = static_cast<int>(blockIdx.z);
    at.slot = a.state_slot[at.sequence];
    at.committed = a.committed[at.sequence];
    at.first = a.row_begin[at.sequence];
    at.n = a.row_begin[at.sequence + 1] - at.first;
    const int own = warp * kWarpColumns + DeltaTile<kRows>::first_column(), columns = z.value_dim - at.column - own;
    float* state =
        a.memory.state + at.slot * z.state_elements + int64_t{at.h} * z.key_dim * z.value_dim + at.column + own;
    DeltaTile<kRows> tile;
    if (at.committed == 0) tile.clear();
    else tile.load(state, z.key_dim, z.value_dim, columns);

    auto* bytes = reinterpret_cast<unsigned char*>(delta_shared);
    const DeltaGroup group = delta_group(reinterpret_cast<float*>(bytes), layout.padded, layout.columns);
    auto& plan = *reinterpret_cast<TreePlan*>(bytes + layout.plan());
    auto* kept = reinterpret_cast<float4*>(bytes + layout.slots()) + 32 * kRows * warp;
    const int slot_stride = static_cast<int>(layout.slot_bytes() / 16);
    if (a.parent != nullptr && plan_tree(a, plan, at.first, at.n)) tile.keep(kept);

    // The output of this lane's column: see DeltaTile::step.
    const int column = own + ((lane & 4) != 0 ? 2 : 0) + ((lane & 2) != 0 ? 1 : 0);
    const bool writes = (lane & 9) == 8 && at.column + column < z.value_dim;
    for (int begin = 0; begin < at.n; begin += kGroupRows) {
        const int rows = min(kGroupRows, at.n - begin);
        if (begin > 0) __syncthreads();
        prepare_group(a, at, plan, begin, rows, group);
        for (int i = 0; i < rows; ++i) {
            DeltaVisit visit{begin + i, -1, -1};
            if (a.parent != nullptr) visit = plan.visits[begin + i];
            if (visit.load >= 0) tile.recall(kept + visit.load * slot_stride);
            const float4 v = *reinterpret_cast<const float4*>(group.v + i * layout.columns + own);
            const float4 gate = *reinterpret_cast<const float4*>(group.gate + 4 * i);
            const float o = tile.template step<true>(group.q + i * layout.padded, group.k + i * layout.padded, v, gate);
            if (visit.save >= 0) tile.keep(kept + visit.save * slot_stride);
            if (a.whole) {
                if (writes) group.o[i * layout.columns + column] = o;
            } else if (writes) {
                const int64_t row = at.first + visit.node;
                a.out[(row * z.value_heads + at.h) * z.value_dim + at.column + column] = o;
            }
        }
        if (!a.whole) continue;
        __syncthreads();
        for (int i = warp; i < rows; i += static_cast<int>(blockDim.x / 32)) {
            const int node = a.parent != nullptr ? plan.visits[begin + i].node : begin + i;
            finish_head(a, at.first + node, at.h, group.o + i * layout.columns);
        }
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
    finish_head(a, row, h, a.out + item * a.sizes.value_dim);
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
    advance_conv(a.sizes, a.memory.conv + a.state_slot[s] * a.sizes.conv_floats, a.committed[s],
                 a.row_begin[s + 1] - first, [&a, first](int i) { return a.qkv.row(first + i); });
}

__global__ void __launch_bounds__(256) delta_replay_conv_kernel(const __grid_constant__ DeltaReplayArgs a) {
    pdl_trigger();
    pdl_wait();
    const int s = static_cast<int>(blockIdx.y) % a.sequences, layer = static_cast<int>(blockIdx.y) / a.sequences;
    const DeltaMemory& memory = a.memory[layer];
    const int32_t* rows = a.rows + s * a.most;
    advance_conv(a.sizes, memory.conv + a.state_slot[s] * a.sizes.conv_floats, a.committed[s], a.count[s],
                 [&](int i) { return memory.stash + rows[i] * a.sizes.stash_floats; });
}

/// Grid: column tiles, value heads, sequences times layers.
template <int kRows>
__global__ void __launch_bounds__(32 * kMostWarps) delta_replay_kernel(const __grid_constant__ DeltaReplayArgs a) {
    extern __shared__ float4 delta_shared[];
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int s = static_cast<int>(blockIdx.z) % a.sequences, layer = static_cast<int>(blockIdx.z) / a.sequences;
    const int h = static_cast<int>(blockIdx.y), warp = static_cast<int>(threadIdx.x / 32), n = a.count[s];
    const int warps = static_cast<int>(blockDim.x / 32), tile_columns = kWarpColumns * warps;
    const int first = static_cast<int>(blockIdx.x) * tile_columns, lane = static_cast<int>(threadIdx.x % 32);
    const int own = warp * kWarpColumns + DeltaTile<kRows>::first_column(), columns = z.value_dim - first - own;
    const DeltaMemory& memory = a.memory[layer];
    float* state =
        memory.state + a.state_slot[s] * z.state_elements + int64_t{h} * z.key_dim * z.value_dim + first + own;
    DeltaTile<kRows> tile;
    if (n == 0) return;
    if (a.committed[s] == 0) tile.clear();
    else tile.load(state, z.key_dim, z.value_dim, columns);
    const DeltaGroup group = delta_group(reinterpret_cast<float*>(delta_shared), 16 * kRows, tile_columns);
    const int32_t* path = a.rows + s * a.most;
    for (int begin = 0; begin < n; begin += kGroupRows) {
        const int rows = min(kGroupRows, n - begin);
        if (begin > 0) __syncthreads();
        for (int i = warp; i < rows; i += warps) {
            const float* stash = memory.stash + path[begin + i] * z.stash_floats + z.channels;
            const float* k = stash + z.key_head(h) * z.key_dim;
            const float* v = stash + z.keys() + h * z.value_dim + first;
            const float* gates = stash + z.keys() + z.value_heads * z.value_dim + h;
            for (int e = lane; e < group.padded; e += 32) group.k[i * group.padded + e] = e < z.key_dim ? k[e] : 0.0f;
            for (int e = lane; e < tile_columns; e += 32)
                group.v[i * tile_columns + e] = first + e < z.value_dim ? v[e] : 0.0f;
            if (lane < 2) group.gate[4 * i + lane] = gates[lane * z.value_heads];
        }
        __syncthreads();
        for (int i = 0; i < rows; ++i) {
            const float4 v = *reinterpret_cast<const float4*>(group.v + i * tile_columns + own);
            const float4 gate = *reinterpret_cast<const float4*>(group.gate + 4 * i);
            tile.template step<false>(nullptr, group.k + i * group.padded, v, gate);
        }
    }
    tile.store(state, z.key_dim, z.value_dim, columns);
}

/// Calls launch(kernel) with the kernel that `key_dim` needs, allowed that much shared memory.
template <class Args, class Launch>
void choose_kernel(int64_t key_dim, size_t shared, void (*rows4)(Args), void (*rows8)(Args), void (*rows16)(Args),
                   const Launch& launch) {
    auto* const kernel = key_dim <= 64 ? rows4 : key_dim <= 128 ? rows8 : rows16;
    if (shared > size_t{48} << 10)
        RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    launch(kernel);
}

int padded_dim(int64_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

void check_sizes(const DeltaView& view) {
    if (view.key_dim > kDeltaDim || view.conv_width > kDeltaTaps)
        fail(ErrorKind::unavailable, "Gated DeltaNet on a GPU takes keys of up to {} values and {} taps, not {} and {}",
             kDeltaDim, kDeltaTaps, view.key_dim, view.conv_width);
}

int blocks(int64_t count, int64_t each) { return static_cast<int>((count + each - 1) / each); }

/// Warps of a block, and its shared memory.
struct BlockShape {
    int warps;
    size_t shared;
};

/// Whole heads for a few rows of each sequence; else narrower blocks, until two thirds of the SMs have one.
BlockShape block_shape(const Gpu& gpu, const DeltaView& view, const Batch& batch) {
    const int64_t heads = view.value_heads * batch.sequences(), tree_rows = batch.parent.empty() ? 0 : batch.rows();
    const int whole = blocks(view.value_dim, kWarpColumns);
    int warps = whole;
    if (tree_rows > 0) warps = std::min(whole, 4);
    else if (whole > kMostWarps || batch.rows() > 4 * batch.sequences())
        for (warps = std::min(whole, 8); warps > 2; warps /= 2)
            if (heads * blocks(whole, warps) * 3 >= gpu.info().sm_count * 2) break;
    for (;; warps /= 2) {
        const Layout layout{padded_dim(view.key_dim), kWarpColumns * warps};
        const size_t shared = tree_rows == 0
                                  ? layout.plan()
                                  : layout.slots() + static_cast<size_t>(delta_slots(tree_rows)) * layout.slot_bytes();
        if (static_cast<int64_t>(shared) <= gpu.info().shared_bytes) return {warps, shared};
        RT_CHECK(warps > 1, "Gated DeltaNet: a step with trees needs {} bytes of shared memory, {} has {}", shared,
                 gpu.info().name, gpu.info().shared_bytes);
    }
}

DeltaMemory memory_of(const DeltaView& view) { return {view.conv, static_cast<float*>(view.state), view.stash}; }

bool same_sizes(const DeltaView& a, const DeltaView& b) {
    return a.heads == b.heads && a.key_heads == b.key_heads && a.value_heads == b.value_heads &&
           a.key_dim == b.key_dim && a.value_dim == b.value_dim && a.conv_width == b.conv_width;
}

DeltaMatrix matrix(const Tensor& t) { return {t.row(0), t.row_stride}; }

/// Layers of one size, at most kDeltaLayers.
void replay(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths) {
    const DeltaView& view = layers.front();
    DeltaReplayArgs a = {};
    for (size_t i = 0; i < layers.size(); ++i) a.memory[i] = memory_of(layers[i]);
    a.sizes = delta_sizes(view);
    a.state_slot = paths.state_slot.data();
    a.committed = paths.committed.data();
    a.count = paths.count.data();
    a.rows = paths.rows.data();
    a.most = paths.most;
    a.sequences = static_cast<int>(paths.count.size());
    const int warps = std::min(4, blocks(view.value_dim, kWarpColumns));
    const auto all = static_cast<unsigned>(std::ssize(layers) * a.sequences);
    const dim3 grid(static_cast<unsigned>(blocks(view.value_dim, int64_t{kWarpColumns} * warps)),
                    static_cast<unsigned>(view.value_heads), all);
    const size_t shared = Layout{padded_dim(view.key_dim), kWarpColumns * warps}.plan();
    choose_kernel(
        view.key_dim, shared, delta_replay_kernel<4>, delta_replay_kernel<8>, delta_replay_kernel<16>,
        [&](auto* kernel) { launch(*ctx.gpu, kernel, grid, dim3(static_cast<unsigned>(32 * warps)), shared, a); });
    launch(*ctx.gpu, delta_replay_conv_kernel, dim3(static_cast<unsigned>(blocks(view.channels(), 256)), all),
           dim3(256), 0, a);
}

}  // namespace

namespace cuda {

Tensor gated_delta(Context& ctx, const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode) {
    check_sizes(view);
    RT_ASSERT(batch.parent.empty() || batch.rows() <= kDeltaTreeRows);
    const int64_t n = batch.rows(), heads = view.value_heads;
    Tensor out = ctx.alloc(DType::f32, {n, heads * view.value_dim});
    if (n == 0) return out;
    const auto [warps, shared] = block_shape(*ctx.gpu, view, batch);
    DeltaArgs a = {};
    a.memory = memory_of(view);
    a.sizes = delta_sizes(view);
    a.qkv = matrix(in.qkv);
    a.z = matrix(in.z);
    a.a = matrix(in.a);
    a.b = matrix(in.b);
    a.conv_weights = in.conv.data();
    a.decay = in.decay.data();
    a.dt_bias = in.dt_bias.data();
    a.norm = in.norm.weight.data();
    a.eps = in.norm.eps;
    a.out = out.row(0);
    a.positions = batch.positions.data();
    a.row_begin = batch.row_begin.data();
    a.committed = batch.committed.data();
    a.state_slot = batch.state_slot.data();
    a.parent = batch.parent.empty() ? nullptr : batch.parent.data();
    a.update = mode == DeltaMode::update;
    a.one_row = a.update && n == batch.sequences();
    a.whole = kWarpColumns * warps >= view.value_dim;
    const dim3 grid(static_cast<unsigned>(blocks(view.value_dim, int64_t{kWarpColumns} * warps)),
                    static_cast<unsigned>(heads), static_cast<unsigned>(batch.sequences()));
    choose_kernel(view.key_dim, shared, delta_rows_kernel<4>, delta_rows_kernel<8>, delta_rows_kernel<16>,
                  [&, w = warps, bytes = shared](auto* kernel) {
                      launch(*ctx.gpu, kernel, grid, dim3(static_cast<unsigned>(32 * w)), bytes, a);
                  });
    if (!a.whole)
        launch(*ctx.gpu, delta_norm_kernel, dim3(static_cast<unsigned>(blocks(n * heads, 8))), dim3(256), 0, a,
               n * heads);
    if (a.update && !a.one_row)
        launch(*ctx.gpu, delta_conv_kernel,
               dim3(static_cast<unsigned>(blocks(view.channels(), 256)), static_cast<unsigned>(batch.sequences())),
               dim3(256), 0, a);
    return out;
}

void gated_delta_commit(Context& ctx, std::span<const DeltaView> layers, const DeltaPaths& paths) {
    while (!layers.empty()) {
        check_sizes(layers.front());
        size_t count = 1;
        while (count < layers.size() && count < kDeltaLayers && same_sizes(layers.front(), layers[count])) ++count;
        replay(ctx, layers.first(count), paths);
        layers = layers.subspan(count);
    }
}

}  // namespace cuda

}  // namespace riptide::ops
