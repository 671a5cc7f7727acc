// Large Q4_K and Q6_K matrices times 2 to 24 rows of x in half precision (sm_90a): what Qwen3.5-27B's products are made
// of when drafts are verified or sequences share a step. Arithmetic and formats: kquant_f16.cuh; rings and strips:
// kquant_f16_ring.cuh; one row: kquant_f16_row1_sm90.cu.
//
// Bytes: those of the weights (kquant_f16_row1_sm90.cu has them). Instructions for 16 x 256 weights of Q4_K and sixteen
// rows of x, read off the counters for gate and up: 455, of them 345 of the loop; decoding a weight costs the same
// whatever the rows. Measured (H200, 2026-11-23, bench_gpu_dense; docs/results/qwen35.md) at 8, 16 and 24 rows: gate,
// up and down 54, 59 and 81 us, o 10, 11 and 13, head 262, 280 and 368; with int8 (kquant_i8_wide_sm90.cu and others)
// 77, 101, 126; 15, 16, 19; 369, 598, 834. What limits it: in the loop, which is half of the time, instructions (93 %
// of issue slots) and shared memory alike (88 wavefronts a tile and warp at 16 rows, of which 64 for x); the rest is
// the time until x is rounded and there, sums at the end of strips, float rows (4 of the projections' 26 us), and
// twelve SMs that clusters of four leave idle.
//
// Design: one CTA of sixteen warps an SM, in teams that share strips and have equally many quads (F16Share). Where x
// does not fit in shared memory beside the rings, the two or four CTAs of a cluster share strips, each with its share
// of the chains and of x (kquant_f16_epilogue.cuh), as many clusters as fit at once; wider x is
// kquant_f16_wgmma_sm90.cu's. x is rounded by a kernel before and lies there as it does in shared memory, so that a
// copy each brings its first quads and the rest. Where a warp has a slot or two of its own, it loads a whole tile, asks
// for the next one and only then multiplies.
//
// Tried: warps of their own that ask for weights, as one row has (16 rows: 10.1 instead of 8.7 ms for all products);
// four CTAs that leave their sums in the L2 cache (down, 16 rows: 32 instead of 28 us), or 33 clusters of four where
// fewer fit (46); two strips a warp, so that x is read once for both, with eight warps and twice the registers (gate
// and up as fast, projections 33 instead of 30, 24 rows 10 to 60 % slower); so few registers that the kernel before
// finds room beside (16 rows of the whole model 8.1 to 8.3 instead of 7.8 ms: its CTAs pile up on the SMs that clusters
// of four leave idle); 1 / rms found here and float rows behind the strips (8.0 to 8.4); whole tiles loaded first where
// there are more slots, one quad of x first, or half of them (no difference); one warp of a ring that asks for all (1.5
// % slower); clusters of four for o, too, whose strips are fewer than teams of clusters of two (15.9 instead of 11.2
// us); wgmma with strips of 64 rows in clusters of two (H100: gate and up 48 and 52 instead of 43 and 49 us at 16 and
// 24 rows, projections 32 and 36 instead of 29 and 34; with weights from the L2 cache 17.5 and 19.1 instead of 19.1 and
// 23.6 us for 12,672 x 5,120: what multiplies faster has to wait for the same memory, and larger shares end less
// evenly).
#include <algorithm>

#include "ops/cuda/linear/shared/kquant_f16_epilogue.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.cuh"

namespace riptide::ops::cuda::decode {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Rows of x to shared memory, by one thread: the first `half` quads with sums and scales to barrier `there`, the rest
/// to the one behind it.
template <int NT, int T>
__device__ __forceinline__ void ask_for_x(const F16Args& a, char* x, int rank, int half, uint32_t there) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const int blocks = a.quads * T, before = rank * blocks;
    const int unit_bytes = kF16Units * a.n * blocks, first_bytes = kF16Units * a.n * T * half,
              sum_bytes = kF16Sums * a.n * blocks, scale_bytes = 4 * 8 * NT * blocks;
    const auto copy = [](const void* to, const void* from, int bytes, uint32_t barrier) {
        prefill::bulk_copy(shared_address(to), from, static_cast<uint32_t>(bytes), barrier);
    };
    const char* const units = a.units + before * a.n * kF16Units;
    expect_bytes(there, first_bytes + sum_bytes + scale_bytes);
    copy(x, units, first_bytes, there);
    copy(x + a.sums_at, a.sums + before * a.n * kF16Sums, sum_bytes, there);
    copy(x + a.scales_at, a.scales + before * 8 * NT, scale_bytes, there);
    expect_bytes(there + 8, unit_bytes - first_bytes);
    copy(x + first_bytes, units + first_bytes, unit_bytes - first_bytes, there + 8);
}

#endif

template <int NT, int C>
__global__ void __launch_bounds__(kF16Threads, 1)
    kquant_f16_mma_kernel(const __grid_constant__ F16Args a, const __grid_constant__ F16Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = F16Shape<NT, C>;
    constexpr int T = S::T, W = S::W, By = S::By, kChains = S::kChains;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t
        barriers[2 * kMostF16Stages * S::kRings + 2];  // of slots; the first quads of x are there, the rest
    __shared__ uint64_t finish_barriers[2 * kF16Warps];
    __shared__ uint64_t left[kF16Warps];  // what a warp leaves to the next team's is there
    __shared__ alignas(16) float results[kF16Warps / 4][64];
    char* const x = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32;
    const int rank = blockIdx.x % C, cta = blockIdx.x / C, ctas = gridDim.x / C;
    const int team = warp / W, of_team = warp % W, of_ring = warp % T;
    const int first_slot = warp / T * a.stages;
    const int half = (a.quads + 3) / 4;  // quads of x that come first
    F16Ring<T> ring;
    ring.data = shared_address(x) + a.data_at + first_slot * ring.kData;
    ring.high = shared_address(x) + a.high_at + first_slot * ring.kHigh;
    ring.heads = shared_address(x) + a.heads_at + first_slot * ring.kHeads;
    ring.barriers = shared_address(barriers) + 16 * first_slot;
    const uint32_t x_there = shared_address(barriers + 2 * kMostF16Stages * S::kRings);
    // Of strips cta, cta + ctas, ...
    const auto begin = [&a, cta](int of) {  // shuffled, so that uniform registers have what is alike in a warp
        const F16Begin b = a.plan.begin[cta < a.plan.many][of];
        return F16Begin{static_cast<int16_t>(__shfl_sync(~0u, int{b.strip}, 0)),
                        static_cast<int16_t>(__shfl_sync(~0u, int{b.quad}, 0))};
    };
    const F16Share share(a.quads, begin(team), begin(team + 1));
    // What is asked for next; the warps of a ring take turns, so that none is slower than the others.
    const int first_quad = By == 1 ? 0 : of_team;
    int asked = 0, end = 0;
    const auto enter = [&] {
        const F16Part part = share.part(asked);
        ring.enter(a, part.strip * ctas + cta, part.from + first_quad), end = part.to;
    };
    const auto go_on = [&] {
        if ((ring.quad += By) >= end && ++asked < share.parts) enter();
    };
    if (lane == 0) {
        if (of_ring == 0) init_slots<T>(ring.barriers, a.stages);
        asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(shared_address(left + warp)) : "memory");
        publish_barriers();
    }
    __syncwarp();
    if (share.parts > 0) enter();
    // x has to wait for what was asked for before it.
    const int early = T > 1 && a.stages > 2 ? a.stages - 1 : a.stages;
#pragma unroll 1
    for (int slot = 0; slot < early && asked < share.parts; ++slot) {
        if (of_ring == 0) ring.ask(maps, rank * T, ring.at(slot), lane == 0);
        go_on();
    }
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there + 8) : "memory");
        publish_barriers();
    }
    F16Finish<NT, C> finish(a, x, finish_barriers, warp, rank);
    pdl_trigger();
    __syncthreads();
    if constexpr (C > 1) cluster_start();
    const int turned = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
    if (a.floats.pairs > 0 && lane == 0 && warp % 4 == 3) {
        const int row = warp / 4 * static_cast<int>(gridDim.x) + turned;
        if (row < a.floats.pairs * kFloatPair) prefetch_float_row(a.floats, row);
    }
    pdl_wait();
    if (threadIdx.x == 0) ask_for_x<NT, T>(a, x, rank, half, x_there);
    if (a.floats.pairs > 0)
        multiply_float_units<2, 4, 3>(a.floats, a.x, warp / 4 * gridDim.x + turned, kF16Warps / 4 * gridDim.x, 0, a.n,
                                      results[threadIdx.x / 128],
                                      2 + static_cast<int>(threadIdx.x) / 128);  // while x comes
    if constexpr (C > 1) cluster_wait();                                         // all CTAs' barriers are ready
    wait_parity(x_there, 0);
    // Rows behind the last one are read, of no use: the next block's, which must be there.
    bool whole = a.n % 8 != 0;  // all of x is there
    if (whole) wait_parity(x_there + 8, 0);
    finish.enter(a);
    const int first_block = first_quad * T + of_ring;
    const F16RowsX rows_of_x(x + kF16Units * a.n * first_block, x + a.sums_at + kF16Sums * a.n * first_block);
    const float* const scales_of_x =
        reinterpret_cast<const float*>(x + a.scales_at) + 8 * NT * first_block + 2 * (lane % 4);
    const F16Lane<T> mine(a, x + a.data_at + first_slot * ring.kData, x + a.high_at + first_slot * ring.kHigh,
                          x + a.heads_at + first_slot * ring.kHeads, of_ring);
    int slot = 0, before = a.stages - 1, turn = 0;
    uint32_t parity = 0, before_parity = 1;  // nobody has used it yet
    bool first = early == a.stages;
#pragma unroll 1
    for (int i = 0; i < share.parts; ++i) {
        const F16Part part = share.part(i);
        const int strip = part.strip * ctas + cta;
        const StripRows rows(a, strip);
        const bool q6 = a.m[rows.matrix[0]].q6 != 0;
        F16BlockScale d;
        if (q6) d.enter(a, rows, rank * T + of_ring, part.from + first_quad);
        float c[kChains][NT][4] = {};  // By == 1: of even quads, of odd ones
        const auto sums = [&](int of_warp) {
            return a.left + static_cast<int64_t>(of_warp) * (kChains * NT * 32) + lane;
        };
        const int left_at = static_cast<int>(blockIdx.x) * kF16Warps + warp;
        if (part.from > 0) {  // begun by the team before
            wait_parity(shared_address(left + warp - W), 0);
            const float4* const from = sums(left_at - W);
#pragma unroll
            for (int j = 0; j < kChains * NT; ++j) set_piece(c[j / NT][j % NT], from[32 * j]);
        }
        const auto multiply = [&](auto six) {
            constexpr bool kSix = decltype(six)::value;
            F16RowsX block = rows_of_x;
            block.go(part.from * T * a.n);
            const float* scale = scales_of_x + part.from * T * 8 * NT;
#pragma unroll 1
            for (int quad = part.from + first_quad; quad < part.to; quad += By) {
                const uint32_t d_now[2] = {d.d[0], d.d[1]};
                if (kSix && quad + By < part.to) d.next(By);
                wait_parity(ring.barriers + 16 * slot, parity);
                if (T > 1 && !first && asked < share.parts) {
                    if (turn == of_ring) {
                        wait_parity(ring.barriers + 16 * before + 8, before_parity);
                        ring.ask(maps, rank * T, ring.at(before), lane == 0);
                    }
                    go_on();
                    turn = turn + 1 == T ? 0 : turn + 1;
                }
                first = false;
                if (!whole && quad >= half) wait_parity(x_there + 8, 0), whole = true;
                float v[NT][4];
                // T == 1: the slot is asked for again as soon as it is in registers; there is room for one or two.
                const auto loaded = [&](uint32_t bits) {
                    // By its address, since an arrival does not wait for loads.
                    arrive_at(ring.barriers + 16 * slot + 8 + (bits & static_cast<uint32_t>(a.zero)));
                    if (asked == share.parts) return;
                    wait_parity(ring.barriers + 16 * slot + 8, parity);
                    ring.ask(maps, rank, ring.at(slot), lane == 0);
                    go_on();
                };
                multiply_tile<kSix, NT, T == 1>(mine.tile(slot, d_now), block, loaded,
                                                [&](int nt, int e, float value) { v[nt][e] = value; });
                if constexpr (T > 1) arrive_at(ring.barriers + 16 * slot + 8);
                const auto add = [&](float(&to)[NT][4]) {
#pragma unroll
                    for (int j = 0; j < 4 * NT; ++j)
                        to[j / 4][j % 4] = __fmaf_rn(scale[8 * (j / 4) + j % 2], v[j / 4][j % 4], to[j / 4][j % 4]);
                };
                if (kChains == 1 || quad % 2 == 0) add(c[0]);
                else add(c[kChains - 1]);
                before = slot, before_parity = parity;
                if (++slot == a.stages) slot = 0, parity ^= 1;
                block.go(By * T * a.n);
                scale += By * T * 8 * NT;
            }
        };
        if (q6) multiply(std::true_type{});
        else multiply(std::false_type{});
        if (part.to < a.quads) {  // the next team ends it
            float4* const to = sums(left_at);
#pragma unroll
            for (int j = 0; j < kChains * NT; ++j) to[32 * j] = piece_of(c[j / NT][j % NT]);
            arrive_at(shared_address(left + warp));
            continue;
        }
        if constexpr (kChains == 2)
#pragma unroll
            for (int j = 0; j < 4 * NT; ++j) c[0][j / 4][j % 4] = __fadd_rn(c[0][j / 4][j % 4], c[1][j / 4][j % 4]);
        finish.run(a, rows, c[0], i + 1 == share.parts);
    }
    if (!whole) wait_parity(x_there + 8, 0);
#endif
}

// ---- The host's side.

/// Strips, dealt out to `clusters`.
template <int NT, int C>
F16Plan plan_kquant_f16(const F16Args& a, int clusters) {
    using S = F16Shape<NT, C>;
    static_assert(S::kTeams <= F16Plan::kTeams);
    F16Plan plan;
    plan.many = a.strips % clusters;
    for (int more = 0; more < 2; ++more)
        for (int team = 0; team <= S::kTeams; ++team)
            plan.begin[more][team] = f16_begin(a.strips / clusters + more, a.quads, a.teams, team, S::By);
    return plan;
}

template <int NT, int C>
void launch_f16(Context& ctx, F16Group& group, const ActSource& x, const F16Fit& fit) {
    using S = F16Shape<NT, C>;
    F16Args& a = group.a;
    a.teams = fit.teams, a.stages = fit.stages;
    a.sums_at = fit.sums_at, a.scales_at = fit.scales_at, a.meeting_at = fit.meeting_at, a.inbox_at = fit.inbox_at;
    a.data_at = fit.data_at, a.high_at = fit.high_at, a.heads_at = fit.heads_at;
    kquant_f16_prepare(ctx, a, x, {.columns = 8 * NT, .chains = S::T});
    const auto kernel = kquant_f16_mma_kernel<NT, C>;
    allow_shared(reinterpret_cast<const void*>(kernel), fit.shared);
    // A cluster that finds no room beside the others would run after them.
    const int64_t most = C == 1 ? std::max(1, ctx.gpu->info().sm_count)
                                : most_clusters(reinterpret_cast<const void*>(kernel), C, kF16Threads, fit.shared);
    const int64_t groups = std::min<int64_t>(a.strips, most);
    constexpr int64_t kSums = S::kChains * NT * kPieceBytes;  // of a warp
    a.left = static_cast<float4*>(ctx.arena->allocate(C * groups * kF16Warps * kSums));
    a.plan = plan_kquant_f16<NT, C>(a, static_cast<int>(groups));
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(C * groups)), kF16Threads,
                    static_cast<size_t>(fit.shared), C, a, group.maps(S::T));
}

}  // namespace

void launch_f16_rows(Context& ctx, F16Group& group, const ActSource& x) {
    const auto fit = fit_f16_rows(chip_of(*ctx.gpu), group.a.cols, group.a.n, group.q6);
    RT_ASSERT(fit);
    if (fit->tiles == 1 && fit->cluster == 1) launch_f16<1, 1>(ctx, group, x, *fit);
    else if (fit->tiles == 1) launch_f16<1, 4>(ctx, group, x, *fit);
    else if (fit->tiles == 2 && fit->cluster == 2) launch_f16<2, 2>(ctx, group, x, *fit);
    else if (fit->tiles == 2) launch_f16<2, 4>(ctx, group, x, *fit);
    else launch_f16<3, 2>(ctx, group, x, *fit);
}

}  // namespace riptide::ops::cuda::decode
