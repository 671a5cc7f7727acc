// The router's logits on Hopper, for bf16 routers: h in f32 cut into three bf16 parts, as in router_prefill.cu, by
// wgmma.
//
// FLOPs: 2 n experts cols, three times: 4096 rows of 2048, 256 experts: 13 G, 17 us at 780 T/s. Bytes through L2: each
// tile's rows of h and of w, 134 MB there (64 x 128), 24 us at 5.5 TB/s (an estimate); router_prefill.cu: 330 MB, 112
// us (H200, 2026-11-29); here 32 us. Clocks of sixteen columns of such a tile (estimates): products 192; shared memory
// 96 for w, which three products read, 32 for h, 64 for copies; cutting and adding 110. Rows of 256 to 16,384: gpu.md.
//
// Design: warpgroup 0 feeds stages of 64 columns through TMA (h 64 x 64 in two boxes, w kN x 64, 128-byte swizzle).
// Warpgroups 1 and 2 take stages in turns, so that one cuts and adds while the other multiplies: each makes fragments
// of A from h, once for all experts of the tile, and sums its stages; at the end warpgroup 1 adds both. Few rows have
// narrow tiles, so that all multiprocessors work: 512 rows are 128 tiles of 64 x 16, 75 MB through L2.
//
// Every sixteen columns are summed on the tensor core from zero, small products first, and added in f32 in ascending
// order, even and odd stages apart, then both: the same for any width of tile and any number of rows. The sums of
// router_prefill.cu differ; hence this kernel takes all rows of such a router (moe::prefill_router).
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "ops/cuda/linear/gemm/ring_sm90.cuh"
#include "ops/cuda/moe/moe_prefill.h"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kRows = 64, kCols = 64;  // of a tile; of a stage
constexpr int kBoxH = kRows * 32 * 4;  // 32 columns of h: 128 bytes, a swizzle row
constexpr int kStageH = 2 * kBoxH;
constexpr uint32_t kSlices = 2;  // warpgroups that multiply

/// Stages of tiles of kN experts, an even number, so that a stage is always the same warpgroup's, whose lanes all read
/// it. Behind the barriers: sums of warpgroup 2.
template <int kN>
struct Ring : GemmRing<kN == 128 ? 6 : 8, kStageH + kN * kCols * 2, 128> {
    using Frame = GemmRing<kN == 128 ? 6 : 8, kStageH + kN * kCols * 2, 128>;
    static constexpr int kAtSums = Frame::kCount * Frame::kStage + 128, kShared = 1024 + kAtSums + kRows * kN * 4;
    static_assert(Frame::kCount % kSlices == 0 && Frame::kStage % 1024 == 0 && kShared <= 227 * 1024);
};

struct Maps {
    CUtensorMap h, w;
};
struct Work {
    int n, experts, steps;  // steps: stages of a tile
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// body(first row, first expert) for the tiles of this block; tiles of the same rows follow each other.
template <int kN, class Body>
__device__ __forceinline__ void for_tiles(const Work& work, const Body& body) {
    const int across = ceil_div(work.experts, kN), tiles = ceil_div(work.n, kRows) * across;
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x))
        body(t / across * kRows, t % across * kN);
}

/// One thread: keeps the stages full.
template <int kN>
__device__ __forceinline__ void produce(const Maps& maps, const Work& work, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    using R = Ring<kN>;
    uint32_t i = 0;  // stages so far, through all tiles
    for_tiles<kN>(work, [&](int row, int expert) {
        for (int step = 0; step < work.steps; ++step, ++i) {
            const uint32_t stage = i % R::kCount, to = stages + stage * R::kStage, there = full + 8 * stage;
            barrier_wait(empty + 8 * stage, (i / R::kCount & 1) ^ 1);  // the first round passes at once
            barrier_expect(there, R::kStage);
            load_box(to, &maps.h, there, step * kCols, row);
            load_box(to + kBoxH, &maps.h, there, step * kCols + kCols / 2, row);
            load_box(to + kStageH, &maps.w, there, step * kCols, expert);
        }
    });
}

__device__ __forceinline__ float2 read_two(uint32_t from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}

/// A lane's place: fragments' rows g and g + 8 of a warp's sixteen are 2 g and 2 g + 1 of h here, which keeps the reads
/// of half a warp out of each other's banks.
struct Lane {
    int quad, row;  // row: the first of two in the tile
    uint32_t at;    // columns 2 quad and + 1 of that row in a stage's first box

    __device__ __forceinline__ explicit Lane(int thread) {
        const int group = thread % 32 / 4;
        quad = thread % 4;
        row = thread / 32 * 16 + 2 * group;
        // The swizzle exchanges pieces of 16 bytes by row % 8 = 2 (group % 4).
        at = static_cast<uint32_t>(row * 128 + (8 * quad ^ (group % 4 << 5)));
    }
    /// The parts of h in sixteen columns: fragments of A. j: which of the stage at `from`.
    __device__ __forceinline__ void load(uint32_t (&a)[3][4], uint32_t from, int j) const {
        const uint32_t first = (from + at + j / 2 * kBoxH) ^ (j % 2 * 64);
        float2 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)  // the next row: its pieces are exchanged in pairs; columns 2 quad + 8, + 9
            v[i] = read_two(first ^ (i % 2 * (128 + 16)) ^ (i / 2 * 32));
#pragma unroll
        for (int part = 0; part < 3; ++part)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[part][i] = next_part(v[i].x, v[i].y);
    }
};

/// sum += a warpgroup's stages i, i + 2, .. below `end`. While products of some columns run, the next columns are cut.
/// wgmma stays asynchronous only if nothing branches behind it before it is waited for: so a stage is waited for before
/// the last products of the one before.
template <int kN>
__device__ __forceinline__ void add_stages(float (&sum)[kN / 2], const Lane& lane, uint32_t i, uint32_t end,
                                           uint32_t stages, uint32_t full, uint32_t empty) {
    using R = Ring<kN>;
    constexpr int kTogether = kN == 128 ? 1 : 2, kTurns = kCols / 16 / kTogether;  // sixteens of columns under way
    static_assert(kTurns % 2 == 0);
    if (i >= end) return;
    const auto stage_at = [&](uint32_t which) { return stages + which % R::kCount * R::kStage; };
    const auto wait_for = [&](uint32_t which) { barrier_wait(full + 8 * (which % R::kCount), which / R::kCount & 1); };
    float t[kTogether][kN / 2];
    uint32_t a[2][kTogether][3][4];  // of this turn and the next
    const auto pin_parts = [&](int turn) {
#pragma unroll
        for (int s = 0; s < kTogether; ++s)
#pragma unroll
            for (int part = 0; part < 3; ++part) pin(a[turn % 2][s][part]);
    };
    const auto load = [&](int turn, uint32_t from) {
#pragma unroll
        for (int s = 0; s < kTogether; ++s) lane.load(a[turn % 2][s], from, turn % kTurns * kTogether + s);
        pin_parts(turn);
    };
    wait_for(i);
    load(0, stage_at(i));
#pragma unroll 1
    for (; i < end; i += kSlices) {
        const uint32_t from = stage_at(i), next = i + kSlices < end ? i + kSlices : i;
        const uint64_t w = rows_descriptor(from + kStageH);
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
            if (turn == kTurns - 1) wait_for(next);
            wgmma_fence();
#pragma unroll
            for (int small = 2; small >= 0; --small)
#pragma unroll
                for (int s = 0; s < kTogether; ++s)
                    wgmma<__nv_bfloat16, kN, false>(t[s], a[turn % 2][s][small], w + 2 * (turn * kTogether + s),
                                                    small < 2 ? 1 : 0);
            wgmma_commit();
            load(turn + 1, turn == kTurns - 1 ? stage_at(next) : from);  // behind the last stage: for nothing
            wgmma_wait<0>();
            pin_parts(turn);
#pragma unroll
            for (int s = 0; s < kTogether; ++s) {
                pin(t[s]);
#pragma unroll
                for (int j = 0; j < kN / 2; ++j) sum[j] = __fadd_rn(sum[j], t[s][j]);
            }
        }
        barrier_arrive(empty + 8 * (i % R::kCount));
    }
}

/// Logits of a lane's two rows and kN / 4 experts.
template <int kN>
__device__ __forceinline__ void store(const float (&sum)[kN / 2], const Work& work, float* logits, int row,
                                      int expert) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + half >= work.n) continue;
        float* const to = logits + int64_t{row + half} * work.experts;
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
            const int e = expert + 8 * j;
            const float2 v = make_float2(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
            if (work.experts % 2 == 0) {
                if (e < work.experts) *reinterpret_cast<float2*>(to + e) = v;
            } else {
                if (e < work.experts) to[e] = v.x;
                if (e + 1 < work.experts) to[e + 1] = v.y;
            }
        }
    }
}

/// Warpgroups 1 and 2, as `group` 0 and 1.
template <int kN>
__device__ __forceinline__ void consume(const Work& work, float* logits, uint32_t stages, uint32_t full, uint32_t empty,
                                        int group) {
    const auto both_here = [] { asm volatile("bar.sync 1, 256;" ::: "memory"); };
    const int thread = static_cast<int>(threadIdx.x % 128);
    const Lane lane(thread);
    const uint32_t theirs = stages + Ring<kN>::kAtSums + 16 * thread;
    uint32_t begin = 0;  // stages so far
    for_tiles<kN>(work, [&](int row, int expert) {
        float sum[kN / 2];
#pragma unroll
        for (int j = 0; j < kN / 2; ++j) sum[j] = 0.0f;
        const uint32_t end = begin + work.steps;
        add_stages<kN>(sum, lane, begin + ((begin ^ group) & 1), end, stages, full, empty);
        begin = end;
        both_here();  // the sums of the tile before have been read
        if (group == 1) {
#pragma unroll
            for (int j = 0; j < kN / 2; j += 4)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(theirs + j * 512), "f"(sum[j]),
                             "f"(sum[j + 1]), "f"(sum[j + 2]), "f"(sum[j + 3])
                             : "memory");
        }
        both_here();
        if (group == 0) {
#pragma unroll
            for (int j = 0; j < kN / 2; j += 4) {
                float v[4];
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                             : "r"(theirs + j * 512)
                             : "memory");
#pragma unroll
                for (int k = 0; k < 4; ++k) sum[j + k] = __fadd_rn(sum[j + k], v[k]);
            }
            store<kN>(sum, work, logits, row + lane.row, expert + 2 * lane.quad);
        }
    });
}

#endif

template <int kN>
__global__ void __launch_bounds__(Ring<kN>::kThreads, 1)
    router_prefill_sm90_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work, float* logits) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    run_gemm_ring<Ring<kN>>(
        [&](uint32_t stages, uint32_t full, uint32_t empty) { produce<kN>(maps, work, stages, full, empty); },
        [&](uint32_t stages, uint32_t full, uint32_t empty, int group) {
            consume<kN>(work, logits, stages, full, empty, group);
        });
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

template <int kN>
int64_t tiles_of(const Work& work) {
    return int64_t{ceil_div(work.n, kRows)} * ceil_div(work.experts, kN);
}

template <int kN>
void launch_wide(const Gpu& gpu, const Weight& w, const float* h, const Work& work, float* logits) {
    BoxedTensor rows;
    rows.data = h;
    rows.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    rows.extents[0] = static_cast<cuuint64_t>(w.cols), rows.extents[1] = static_cast<cuuint64_t>(work.n);
    rows.strides[0] = static_cast<cuuint64_t>(4 * w.cols);
    rows.box[0] = kCols / 2, rows.box[1] = kRows;
    const Maps maps = {encode(rows), bf16_boxes(w.data, w.rows, w.cols, kN)};
    launch_gemm_ring<Ring<kN>>(gpu, router_prefill_sm90_kernel<kN>, tiles_of<kN>(work), maps, work, logits);
}

}  // namespace

void router_logits_sm90(const Gpu& gpu, const Weight& w, const float* h, int64_t n, float* logits, int width) {
    RT_ASSERT(w.cols % kCols == 0 && w.row_bytes == 2 * w.cols && reinterpret_cast<uintptr_t>(logits) % 8 == 0);
    const Work work = {static_cast<int>(n), static_cast<int>(w.rows), static_cast<int>(w.cols / kCols)};
    // Clocks of a stage are estimates.
    const struct {
        int width;
        int64_t tiles, clocks;
        decltype(&launch_wide<128>) launch;
    } all[] = {{128, tiles_of<128>(work), 800, launch_wide<128>},
               {64, tiles_of<64>(work), 560, launch_wide<64>},
               {32, tiles_of<32>(work), 450, launch_wide<32>},
               {16, tiles_of<16>(work), 400, launch_wide<16>}};
    const auto cost = [&](const auto& one) {  // rounds of the chip times clocks
        return ceil_div(one.tiles, gpu.info().sm_count) * one.clocks;
    };
    const auto* best = std::min_element(std::begin(all), std::end(all),
                                        [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
    if (width != 0)
        best = std::find_if(std::begin(all), std::end(all), [&](const auto& one) { return one.width == width; });
    RT_ASSERT(best != std::end(all));
    best->launch(gpu, w, h, work, logits);
}

}  // namespace riptide::ops::cuda::prefill
