// Gated DeltaNet, row after row: plain decoding, short chains and trees. For long chains and commits see
// gated_delta_chain.cu.
//
// Bytes: a sequence's state, read (and written, where rows are kept) once: 3.15 MB a layer at 48 heads of 128 x 128;
// one row reads and writes 6.3 MB, 1.4 us at 4.5 TB/s on an H200. FLOPs: 8 for each element of the state and row; on
// CUDA cores, 128 x 128 x 4 fma of a head are 512 cycles of an SM.
// Reached on an H200, 2026-11-22 (bench_gpu_delta, random inputs, 48 heads; docs/results/qwen35.md): one kept row 13.8
// us, 10 % of the floor; 16 rows of a chain 33 us; trees of 23 and 64 nodes 56 and 135 us; 16 heads take as long for
// one row, so it is latency: slots, inputs, state, norm one behind the other. Not attacked yet. Tried: state in 16-byte
// pieces past L1 with the halves of a sector 16 lanes apart: a commit took 3.8 us instead of 2.9 (other changes came
// with it; 3.6 with the halves side by side, so that fetching sectors twice explains little of it).
//
// A warp owns eight columns of a head's state, in registers (DeltaTile), and needs nobody else's columns: only what a
// row is made of (convolved and normalised q and k, v, gates) is prepared by the block, 16 rows at a time. Few rows: a
// block has a whole head, and so normalises the output too: one launch a layer. Many rows or a tree: a block has fewer
// columns, so that all SMs have work, and the norm is a kernel of its own. A tree's nodes are visited depth first
// (delta_schedule.h), so that at most log2(n + 1) states wait in shared memory instead of one for each node.
// The convolution is computed again by each block of a key head: 320 channels beside 128 x 64 elements of a state.
#include <algorithm>

#include "ops/cuda.h"
#include "ops/gated_delta_rows.cuh"

namespace riptide::ops {

namespace {

/// Warps that a block may have, for so many rows of a state in a lane: registers.
constexpr int most_warps(int rows) { return rows > 8 ? 8 : 16; }
constexpr int kChainRows = 32;  // of a sequence, on average: from here on rows are prepared by a kernel of their own

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

/// Rows [begin, begin + rows) of the order, by all warps; ends with a barrier.
__device__ void prepare_group(const DeltaArgs& a, const DeltaPlace& at, const TreePlan& plan, int begin, int rows,
                              const DeltaGroup& group) {
    const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int item = warp; item < 4 * rows; item += warps) {
        const int i = item % rows, part = item / rows;
        const int node = a.parent != nullptr ? plan.visits[begin + i].node : begin + i, row = at.first + node;
        if (part == 3) {
            delta_prepare_gates(a, at, row, group.gate + 4 * i);
            continue;
        }
        const DeltaTaps taps = delta_taps(a, at, a.parent != nullptr ? plan.parent : nullptr, node);
        if (part == 2) delta_prepare_values(a, at, taps, row, group.v + i * group.columns, group.columns);
        else
            delta_prepare_key(a, at, taps, row, part == 0, (part == 0 ? group.q : group.k) + i * group.padded,
                              group.padded);
    }
    __syncthreads();
    for (int i = warp; i < rows; i += warps) {
        const float kq = delta_dot(group.k + i * group.padded, group.q + i * group.padded, a.sizes.key_dim);
        if (lane == 0) group.gate[4 * i + 2] = kq;
    }
    __syncthreads();
}

/// Grid: column tiles, value heads, sequences.
template <int kRows>
__global__ void __launch_bounds__(32 * most_warps(kRows)) delta_rows_kernel(const __grid_constant__ DeltaArgs a) {
    extern __shared__ float4 delta_shared[];
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const Layout layout{16 * kRows, kWarpColumns * static_cast<int>(blockDim.x / 32)};
    DeltaPlace at;
    at.column = static_cast<int>(blockIdx.x) * layout.columns;
    at.h = static_cast<int>(blockIdx.y);
    at.key = z.key_head(at.h);
    at.sequence = static_cast<int>(blockIdx.z);
    at.slot = a.state_slot[at.sequence];
    at.committed = a.committed[at.sequence];
    at.first = a.row_begin[at.sequence];
    at.n = a.row_begin[at.sequence + 1] - at.first;
    const int own = warp * kWarpColumns + DeltaTile<kRows>::first_column(), columns = z.value_dim - at.column - own;
    float* state = a.state + at.slot * z.state_elements + int64_t{at.h} * z.key_dim * z.value_dim + at.column + own;
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
    const int column = own + DeltaTile<kRows>::output_column();
    const bool writes = DeltaTile<kRows>::has_output() && at.column + column < z.value_dim;
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
            delta_finish_head(a, at.first + node, at.h, group.o + i * layout.columns);
        }
    }
    if (a.update) tile.store(state, z.key_dim, z.value_dim, columns);
}

/// Warps of a block, and its shared memory.
struct BlockShape {
    int warps;
    size_t shared;
};

/// Whole heads for a few rows of each sequence; else narrower blocks, until two thirds of the SMs have one.
BlockShape block_shape(const Gpu& gpu, const DeltaView& view, const Batch& batch) {
    const int64_t tree_rows = batch.parent.empty() ? 0 : batch.rows();
    const int whole = blocks_of(view.value_dim, kWarpColumns);
    int warps = whole;
    if (tree_rows > 0) warps = std::min(whole, 4);
    else if (whole > most_warps(padded_dim(view.key_dim) / 16) || batch.rows() > 4 * batch.sequences())
        warps = delta_warps(gpu, view.value_heads * batch.sequences(), view.value_dim, std::min(whole, 8));
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

/// The kernel that prepares what it needs: a few rows, or trees. Sets a.whole.
void launch_rows(const Gpu& gpu, DeltaArgs& a, const DeltaView& view, const Batch& batch) {
    const auto [warps, shared] = block_shape(gpu, view, batch);
    a.whole = kWarpColumns * warps >= view.value_dim;
    const dim3 grid(static_cast<unsigned>(blocks_of(view.value_dim, int64_t{kWarpColumns} * warps)),
                    static_cast<unsigned>(view.value_heads), static_cast<unsigned>(batch.sequences()));
    auto* const kernel =
        choose_delta_kernel(view.key_dim, delta_rows_kernel<4>, delta_rows_kernel<8>, delta_rows_kernel<16>, shared);
    launch(gpu, kernel, grid, dim3(static_cast<unsigned>(32 * warps)), shared, a);
}

DeltaMatrix matrix(const Tensor& t) { return {t.row(0), t.row_stride}; }

}  // namespace

namespace cuda {

Tensor gated_delta(Context& ctx, const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode) {
    check_delta_sizes(view);
    RT_ASSERT(batch.parent.empty() || batch.rows() <= kDeltaTreeRows);
    const int64_t n = batch.rows(), heads = view.value_heads;
    Tensor out = ctx.alloc(DType::f32, {n, heads * view.value_dim});
    if (n == 0) return out;
    DeltaArgs a = {};
    a.conv = view.conv;
    a.state = static_cast<float*>(view.state);
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
    if (ctx.family == Family::decode && view.value_dim % 32 == 0) {
        a.out8 = static_cast<unsigned char*>(ctx.arena->allocate(n * ActRow::bytes(heads * view.value_dim)));
        out.int8 = a.out8;
    }
    a.positions = batch.positions.data();
    a.row_begin = batch.row_begin.data();
    a.committed = batch.committed.data();
    a.state_slot = batch.state_slot.data();
    a.parent = batch.parent.empty() ? nullptr : batch.parent.data();
    a.update = mode == DeltaMode::update;
    if (!a.update) a.kept = {view.stash, view.stash_floats(), static_cast<int>(view.channels()), true};
    a.one_row = a.update && n == batch.sequences();
    if (a.parent == nullptr && n >= kChainRows * batch.sequences()) launch_delta_chain(ctx, a, batch);
    else launch_rows(*ctx.gpu, a, view, batch);
    if (!a.whole) launch_delta_norm(ctx, a, n);
    if (a.update && !a.one_row) launch_delta_conv(ctx, a, batch.sequences());
    return out;
}

}  // namespace cuda

}  // namespace riptide::ops
