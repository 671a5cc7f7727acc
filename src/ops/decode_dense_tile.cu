// Large Q4_K, Q5_K and Q6_K matrices of any width times 2 to 256 rows: each weight is read and decoded once for up to
// 32 rows. What Qwen3.5-27B's products are made of when guesses are checked or sequences share a step.
//
// Bytes: those of the weights (decode_dense_row.cu has them); the issue of instructions is as near: 65 of a warp for a
// sub-block of sixteen rows would take as long as its bytes in Q4_K, and 16 rows of x need 52 (decode_dense_tile.cuh).
// Design: clusters of four CTAs, an SM each, share tiles of 32 rows, each CTA a quarter of the columns, so that x fits
// beside a deep ring even where a row of it has 17,408 columns. Sixteen warps of a CTA multiply; one more asks for
// weights, from before pdl_wait() on. When a tile is done, its sums go to the CTAs of the cluster that add them up
// (through distributed shared memory, a quarter of the products each), and are added while the next tile is multiplied.
// x is quantised by a kernel before. Gate and up: half of a tile's rows are of each, and silu(gate) * up is stored.
#include <algorithm>

#include "ops/decode_dense.cuh"
#include "ops/decode_dense.h"
#include "ops/decode_dense_tile.cuh"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kMostDense = 8;                          // matrices of a group
constexpr int kDenseThreads = 32 * (kDenseWarps + 1);  // the last warp asks for weights
constexpr int kUsers = 32 * kDenseWarps;
constexpr int kMostDenseStages = 6;

struct DenseTileMatrix {
    TilePlanes planes;
    float* y;
    int32_t rows, first;  // first tile
    DType type;
};

struct DenseTileArgs {
    DenseTileMatrix m[kMostDense];
    int32_t matrices, tiles;
    int32_t gate_up;  // tile t has rows 16 t .. of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t n, row_blocks;
    int32_t stages, stage_bytes, buffers;  // buffers: places for sums, 2 or 1
    int32_t a0;                            // whether any matrix is Q6_K
    int32_t layout_groups, most_groups;    // sub-blocks of a row, and of a CTA's share at most
    ActSource x;                           // kinds staged, int8
    float* residual;
};

struct DensePrepareArgs {
    ActSource x;
    ActLayout layout;
    char* out;
};

/// Row blockIdx.x, quantised; without a norm the columns from 2,048 blockIdx.y on.
__global__ void __launch_bounds__(kThreads) dense_prepare_kernel(const __grid_constant__ DensePrepareArgs a) {
    __shared__ float partial[kWarps];
    pdl_trigger();
    float norm[kWholeRow][8] = {};
    load_norms(a.x, a.layout.cols, norm);
    pdl_wait();
    const auto* x = reinterpret_cast<const float*>(a.x.rows + blockIdx.x * a.x.stride);
    char* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.layout.bytes();
    if (a.x.kind == ActKind::norm) {
        stage_whole_row(a.x, x, a.layout, norm, out, partial);
        return;
    }
    const int c = blockIdx.y * kThreads + threadIdx.x;
    float v[8];
    load8(x, c, a.layout.cols, v);
    put8(a.layout, out, c, v);
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ const DenseTileMatrix& matrix_of_tile(const DenseTileArgs& a, int tile) {
    int i = 0;
    if (a.gate_up == 0)
        while (i + 1 < a.matrices && tile >= a.m[i + 1].first) ++i;
    return a.m[i];
}

/// The blocks of 256 columns of this CTA: `blocks` of every row, in `parts` stages.
struct Share {
    int rank, blocks, parts, least, more;  // `more` stages have least + 1 blocks, the others least

    __device__ __forceinline__ Share(const DenseTileArgs& a, int r)
        : rank(r),
          blocks((a.layout_groups / 8 - r + kCluster - 1) / kCluster),
          parts((blocks + kBlocks - 1) / kBlocks),
          least(blocks / max(parts, 1)),
          more(blocks - parts * least) {}
    __device__ __forceinline__ int count(int part) const { return least + (part < more ? 1 : 0); }
    __device__ __forceinline__ int first(int part) const { return part * least + min(part, more); }
};

/// Blocks [first, first + count) of this CTA of the rows of tile `tile`, by one warp. d: of Q6_K, as load_d() found it.
template <DType Type>
__device__ __forceinline__ void fetch_stage(const DenseTileArgs& a, int tile, const Share& share, int first, int count,
                                            char* stage, const uint32_t (&d)[kBlocks]) {
    using S = DenseStage<Type>;
    const int lane = threadIdx.x % 32, blocks = a.layout_groups / 8;
    const DenseTileMatrix& m = matrix_of_tile(a, tile);
    const auto planes_of_row = [&](int r) -> const TilePlanes& {
        return a.gate_up != 0 && r / 8 % 2 != 0 ? a.m[1].planes : m.planes;
    };
    /// The first of this CTA's blocks of row r of the tile, as the number of a block of the matrix.
    const auto block_of = [&](int r) {
        const int row = a.gate_up != 0 ? 16 * tile + r / 16 * 8 + r % 8 : 32 * (tile - m.first) + r;
        return static_cast<int64_t>(min(row, m.rows - 1)) * blocks + share.rank + kCluster * first;
    };
    const auto piece = [&](int each, int strided, int at, const auto& plane) {  // `each` bytes of a block
        const int pieces = each / 16, rows = 32 / pieces, r0 = lane / pieces, c = lane % pieces * 16;
#pragma unroll
        for (int k = 0; k < kDenseRows / rows; ++k) {
            const int r = k * rows + r0;
            const char* const from = plane(planes_of_row(r)) + block_of(r) * each + c;
            char* const to = stage + at + r * strided + c;
#pragma unroll 1
            for (int b = 0; b < count; ++b)
                copy_async16(to + b * each, from + static_cast<int64_t>(b) * kCluster * each);
        }
    };
    piece(128, S::kDataStride, 0, [](const TilePlanes& p) { return p.data; });
    piece(16, S::kHeadStride, S::kHeads, [](const TilePlanes& p) { return p.scales; });
    if constexpr (S::kHighEach > 0)
        piece(S::kHighEach, S::kHighStride, S::kHigh, [](const TilePlanes& p) { return p.high; });
    if constexpr (S::kQ6) {
        auto* const to = reinterpret_cast<uint16_t*>(stage + S::kD) + lane * kBlocks;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
            if (b < count) to[b] = static_cast<uint16_t>(d[b]);
    }
}
/// d of row `lane` of a stage of Q6_K.
__device__ __forceinline__ void load_d(const DenseTileArgs& a, int tile, const Share& share, int first, int count,
                                       uint32_t (&d)[kBlocks]) {
    const int r = threadIdx.x % 32;
    const DenseTileMatrix& m = matrix_of_tile(a, tile);
    if (m.type != DType::planes_q6_k) return;
    const int row = a.gate_up != 0 ? 16 * tile + r / 16 * 8 + r % 8 : 32 * (tile - m.first) + r;
    const char* const plane = a.gate_up != 0 && r / 8 % 2 != 0 ? a.m[1].planes.d : m.planes.d;
    const int64_t at =
        static_cast<int64_t>(min(row, m.rows - 1)) * (a.layout_groups / 8) + share.rank + kCluster * first;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
        if (b < count) d[b] = load_weight16(plane + 2 * (at + b * kCluster));
}

/// What the last warp does.
__device__ __forceinline__ void ask_for_tiles(const DenseTileArgs& a, const Share& share, char* stages, StageRing ring,
                                              int tile, int step) {
    if (share.parts == 0) return;
    uint32_t d[kBlocks] = {};
    Cursor now{tile, 0};
    if (now.outer < a.tiles) load_d(a, now.outer, share, 0, share.count(0), d);
#pragma unroll 1
    while (now.outer < a.tiles) {
        const int first = share.first(now.part), count = share.count(now.part);
        char* const stage = stages + ring.at() * a.stage_bytes;
        const DType type = matrix_of_tile(a, now.outer).type;
        ring.wait_until_empty();
        if (type == DType::planes_q6_k) fetch_stage<DType::planes_q6_k>(a, now.outer, share, first, count, stage, d);
        else if (type == DType::planes_q5_k)
            fetch_stage<DType::planes_q5_k>(a, now.outer, share, first, count, stage, d);
        else fetch_stage<DType::planes_q4_k>(a, now.outer, share, first, count, stage, d);
        ring.asked();
        ring.arrive();  // what this lane stored itself
        ring.advance();
        now.advance(share.parts, step);
        if (now.outer < a.tiles) load_d(a, now.outer, share, share.first(now.part), share.count(now.part), d);
    }
}

/// This CTA's share of rows row0 .. row0 + count - 1 of x to shared memory, by the warps that multiply.
template <int NT>
__device__ __forceinline__ void stage_share(const DenseTileArgs& a, const Share& share, int row0, int count,
                                            const DenseX& x, char* staged) {
    const int groups = 8 * share.blocks, all = a.layout_groups;
    const bool given = a.x.kind == ActKind::int8;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * groups; i += kUsers) {
        const int p = i / groups, j = i % groups, g = 8 * (share.rank + j / 8 * kCluster) + j % 8;
        const char* const from = a.x.rows + (row0 + p) * a.x.stride;
        char* const row = staged + p * x.stride;
        copy_async16(row + 16 * j, from + 16 * g);
        copy_async16(row + 16 * (x.groups + j), from + 16 * (all + g));
        copy_async8(staged + x.pairs + 8 * (8 * NT * j + p), from + 32 * all + 8 * g);
        if (a.a0 != 0 && !given) copy_async4(staged + x.halves + 4 * (8 * NT * j + p), from + 40 * all + 4 * g);
    }
    copy_async_wait();
    if (a.a0 == 0 || !given) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * groups; i += kUsers) {
        const int p = i / groups, j = i % groups;
        const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        const int sum = dot4(ones, *reinterpret_cast<const uint4*>(staged + p * x.stride + 16 * j));
        *reinterpret_cast<float*>(staged + x.halves + 4 * (8 * NT * j + p)) = static_cast<float>(sum);
    }
}

/// Adds up this CTA's products of a tile and stores them.
template <int NT>
__device__ __forceinline__ void finish_tile(const DenseTileArgs& a, int tile, int rank, int row0, int count,
                                            const float* sums) {
    constexpr int kShare = dense_share(NT);
    const int o = static_cast<int>(threadIdx.x) / kShare, k = threadIdx.x % kShare;
    if (o >= 64 * NT) return;  // whole warps
    const float sum = add_sums<NT>(sums, o, k);
    const int p = o / 8, h = o / 4 % 2, r = 4 * (rank % 2) + o % 4;
    if (a.gate_up != 0) {
        const float up = __shfl_xor_sync(~0u, sum, 4 * kShare);
        const int row = 16 * tile + rank / 2 * 8 + r;
        if (k == 0 && h == 0 && p < count && row < a.m[0].rows)
            a.m[0].y[static_cast<int64_t>(row0 + p) * a.m[0].rows + row] = swiglu_value(sum, up);
        return;
    }
    const DenseTileMatrix& m = matrix_of_tile(a, tile);
    const int row = 32 * (tile - m.first) + rank / 2 * 16 + 8 * h + r;
    if (k != 0 || p >= count || row >= m.rows) return;
    const int64_t at = static_cast<int64_t>(row0 + p) * m.rows + row;
    m.y[at] = sum;
    if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], sum);
}

#endif  // __CUDA_ARCH__ >= 900

template <int NT>
__global__ void __launch_bounds__(kDenseThreads, 1) dense_tile_kernel(const __grid_constant__ DenseTileArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostDenseStages + 3];  // of the ring; sums there (two), sums read
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cluster = blockIdx.x / kCluster;
    const int row0 = cluster % a.row_blocks * 8 * NT, count = min(8 * NT, a.n - row0);
    const int first_tile = cluster / a.row_blocks, step = gridDim.x / kCluster / a.row_blocks;
    const Share share(a, static_cast<int>(cluster_rank()));
    const DenseX layout = DenseX::of(a.most_groups, 8 * NT, a.a0 != 0);
    char* const stages = reinterpret_cast<char*>(dynamic);
    char* const sums = stages + a.stages * a.stage_bytes;
    char* const staged = sums + a.buffers * dense_sums_bytes(NT);
    const uint32_t there = shared_address(barriers + 2 * kMostDenseStages), read = there + 16;
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) {
        ring.init(kDenseWarps, 64);
        for (int i = 0; i < 3; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(there + 8 * i), "r"(kCluster * kDenseWarps)
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (warp == kDenseWarps) {
        ask_for_tiles(a, share, stages, ring, first_tile, step);
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
    pdl_wait();
    stage_share<NT>(a, share, row0, count, layout, staged);
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    sync_warps<kDenseWarps>();
    const int half = warp / 8, low = warp % 8;
    const DenseLane x{staged + lane % 8 * layout.stride + lane / 8 % 2 * 16 * layout.groups,
                      staged + layout.pairs + lane % 4 * 16, staged + layout.halves + lane % 4 * 8, layout.stride};
    const KShifts at(low);
    int before = -1;  // the tile whose sums are to be added up
    uint32_t turn = 0;
    const auto finish = [&](int tile, uint32_t its_turn) {
        const uint32_t buffer = a.buffers == 2 ? its_turn & 1 : 0;
        wait_cluster(there + 8 * buffer, (a.buffers == 2 ? its_turn >> 1 : its_turn) & 1);
        finish_tile<NT>(a, tile, share.rank, row0, count,
                        reinterpret_cast<const float*>(sums + buffer * dense_sums_bytes(NT)));
    };
#pragma unroll 1
    for (int tile = first_tile; tile < a.tiles; tile += step, ++turn) {
        DenseSums<NT> acc = {};
        const DType type = matrix_of_tile(a, tile).type;
#pragma unroll 1
        for (int part = 0; part < share.parts; ++part, ring.advance()) {
            const int first = share.first(part), blocks = share.count(part);
            const char* const stage = stages + ring.at() * a.stage_bytes;
            ring.wait_until_full();
            if (type == DType::planes_q6_k)
                dense_stage<DType::planes_q6_k, NT>(stage, half, low, at, x, first, blocks, lane, acc);
            else if (type == DType::planes_q5_k)
                dense_stage<DType::planes_q5_k, NT>(stage, half, low, at, x, first, blocks, lane, acc);
            else dense_stage<DType::planes_q4_k, NT>(stage, half, low, at, x, first, blocks, lane, acc);
            ring.used(lane);
            if (part == 0 && before >= 0) {
                finish(before, turn - 1);
                if (a.buffers == 1) arrive_everywhere(read, lane);
                before = -1;
            }
        }
        if (before >= 0) {  // a CTA without columns
            finish(before, turn - 1);
            if (a.buffers == 1) arrive_everywhere(read, lane);
        }
        const uint32_t buffer = a.buffers == 2 ? turn & 1 : 0;
        if (a.buffers == 1 && turn > 0) wait_cluster(read, (turn - 1) & 1);
        put_sums<NT>(shared_address(sums) + buffer * dense_sums_bytes(NT), static_cast<uint32_t>(share.rank), warp,
                     lane, acc);
        arrive_everywhere(there + 8 * buffer, lane);
        before = tile;
    }
    if (before >= 0) finish(before, turn - 1);
#endif
}

/// Clusters of a kernel that the device runs at a time. (Where the number of SMs of a part of the chip is no multiple
/// of four, some stay empty.)
int64_t most_clusters(const void* kernel, int64_t shared) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kCluster);
    config.blockDim = dim3(kDenseThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kCluster, 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    RT_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
}

/// False: rows this long do not fit.
template <int NT>
bool launch_dense(Context& ctx, DenseTileArgs& a) {
    const int64_t room = ctx.gpu->info().shared_bytes - (1 << 10);  // static shared memory
    const DenseX x = DenseX::of(a.most_groups, 8 * NT, a.a0 != 0);
    a.stages = 0;
    for (a.buffers = 2; a.buffers > 0; --a.buffers) {
        a.stages = static_cast<int32_t>(std::clamp<int64_t>(
            (room - x.bytes - a.buffers * dense_sums_bytes(NT)) / a.stage_bytes, 0, kMostDenseStages));
        if (a.stages > 2 || (a.stages == 2 && a.buffers == 1)) break;
    }
    if (a.stages < 2) return false;
    const int64_t shared = int64_t{a.stages} * a.stage_bytes + a.buffers * dense_sums_bytes(NT) + x.bytes;
    const auto kernel = dense_tile_kernel<NT>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    a.row_blocks = (a.n + 8 * NT - 1) / (8 * NT);
    const int64_t most = most_clusters(reinterpret_cast<const void*>(kernel), shared);
    const int64_t clusters = a.row_blocks * std::min<int64_t>(a.tiles, std::max<int64_t>(1, most / a.row_blocks));
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(kCluster * clusters)), kDenseThreads,
                    static_cast<size_t>(shared), kCluster, a);
    return true;
}

/// Launches for x and the matrices of a. False: does not fit.
bool multiply_tiles(Context& ctx, DenseTileArgs& a, const ActSource& x, int64_t cols, int64_t n) {
    const int64_t blocks = cols / 256;
    a.layout_groups = static_cast<int32_t>(cols / 32);
    a.most_groups = static_cast<int32_t>(8 * ((blocks + kCluster - 1) / kCluster));
    a.n = static_cast<int32_t>(n);
    for (int i = 0; i < a.matrices; ++i) {
        a.a0 |= static_cast<int32_t>(a.m[i].type == DType::planes_q6_k);
        a.stage_bytes = std::max(a.stage_bytes, static_cast<int32_t>(dense_stage_bytes(a.m[i].type)));
    }
    const int64_t least = DenseX::of(a.most_groups, 8, a.a0 != 0).bytes + dense_sums_bytes(1) + 2 * a.stage_bytes;
    if (least > ctx.gpu->info().shared_bytes - (1 << 10)) return false;
    if (x.kind == ActKind::int8) {
        a.x = x;
    } else {
        DensePrepareArgs p = {x, act_layout(cols, true, false), nullptr};
        a.x.kind = ActKind::staged;
        a.x.stride = p.layout.bytes();
        p.out = static_cast<char*>(ctx.arena->allocate(n * a.x.stride));
        a.x.rows = p.out;
        const int64_t parts = x.kind == ActKind::norm ? 1 : (cols + 2047) / 2048;
        launch(*ctx.gpu, dense_prepare_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(parts)), kThreads,
               0, p);
    }
    // As few reads of the weights as possible; then as few columns of x as possible.
    const int64_t row_blocks = (n + 31) / 32, tiles = ((n + row_blocks - 1) / row_blocks + 7) / 8;
    return (tiles > 3 && launch_dense<4>(ctx, a)) || (tiles == 3 && launch_dense<3>(ctx, a)) ||
           (tiles > 1 && launch_dense<2>(ctx, a)) || launch_dense<1>(ctx, a);
}

bool right_source(const ActSource& x, int64_t cols) {
    return x.kind != ActKind::staged && (x.kind != ActKind::norm || cols <= 2048 * kWholeRow);
}

DenseTileMatrix tile_matrix(const Weight& w, float* y, int32_t first) {
    return {tile_planes(matrix_of(w)), y, static_cast<int32_t>(w.rows), first, w.dtype};
}

}  // namespace

bool dense_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    if (!right_source(x, cols) || weights.size() > kMostDense) return false;
    DenseTileArgs a = {};
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        if (!dense_weight(*ctx.gpu, w)) return false;
        a.m[a.matrices++] = tile_matrix(w, y[i].row(0), a.tiles);
        a.tiles += static_cast<int32_t>((w.rows + kDenseRows - 1) / kDenseRows);
    }
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return a.matrices > 0 && multiply_tiles(ctx, a, x, cols, n);
}

bool dense_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out) {
    if (!right_source(x, cols) || !dense_weight(*ctx.gpu, gate) || !dense_weight(*ctx.gpu, up) ||
        gate.dtype != up.dtype || gate.rows != up.rows)
        return false;
    DenseTileArgs a = {};
    a.m[0] = tile_matrix(gate, out, 0);
    a.m[1] = tile_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.gate_up = 1;
    a.tiles = static_cast<int32_t>((gate.rows + kDenseRows / 2 - 1) / (kDenseRows / 2));
    return multiply_tiles(ctx, a, x, cols, n);
}

}  // namespace riptide::ops::cuda::decode
