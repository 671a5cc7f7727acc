// Large Q4_K and Q6_K matrices times 2 to 24 rows of x in half precision (sm_90a): what Qwen3.5-27B's products are made
// of when guesses are checked or sequences share a step. Arithmetic and formats: decode_half.cuh; rings and strips:
// decode_half_ring.cuh; one row: decode_half_row.cu.
//
// Bytes: those of the weights (decode_half_row.cu has them). Instructions by count, for 16 x 256 weights of Q4_K: 290
// for eight rows of x, 340 for sixteen, 400 for 24 (Q6_K: 410, 450, 500), as decoding a weight costs the same whatever
// the rows, and some 140 for the warp that asks for the next ones. Measured (H200, 2026-11-23, bench_gpu_dense;
// docs/results/qwen35.md) at 8, 16 and 24 rows: gate, up and down 59, 72 and 105 us, o 11, 13 and 15, head 269, 293 and
// 363; with int8 (decode_dense_tile.cu and others) 77, 101, 126; 15, 16, 19; 369, 598, 834. What limits it: time until
// x is rounded and there (5 us and more), sums at the end, float rows (6 of 30 us of the projections at 16 rows). 24
// rows of 17,408 columns do not fit and are two reads. Design: one CTA of sixteen warps an SM, in teams that share
// strips. Where x does not fit in shared memory beside the rings, the two or four CTAs of a cluster share strips, each
// with its share of the chains and of x (decode_half_finish.cuh), as many clusters as fit at once. x is rounded by a
// kernel before, and comes in two halves. Tried: warps of their own that ask for weights, as one row has (16 rows: 10.1
// instead of 8.7 ms for all products); four CTAs that leave their sums in the L2 cache (down, 16 rows: 32 instead of 28
// us), or 33 clusters of four where fewer fit (46); two strips a warp, so that x is read once for both, with eight
// warps and twice the registers (gate and up as fast, projections 33 instead of 30, 24 rows 10 to 60 % slower); at most
// 104 registers, for room beside (products 7.5 instead of 7.7 ms, the whole model as fast).
#include <algorithm>

#include "ops/decode_dense.cuh"
#include "ops/decode_half_finish.cuh"

namespace riptide::ops::cuda::decode {

namespace {

template <int NT, int C>
__global__ void __launch_bounds__(kHalfThreads, 1)
    half_kernel(const __grid_constant__ HalfArgs a, const __grid_constant__ HalfMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = HalfShape<NT, C>;
    constexpr int T = S::T, W = S::W, By = S::By;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t
        barriers[2 * kMostHalfStages * S::kRings + 2];  // of slots; the first half of x is there, the second
    __shared__ uint64_t finish_barriers[2 * kHalfWarps];
    __shared__ alignas(16) float results[kHalfWarps / 4][32];
    char* const x = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = blockIdx.x % C, cta = blockIdx.x / C, ctas = gridDim.x / C;
    const int team = warp / W, of_team = warp % W, of_ring = warp % T;
    const int blocks = a.quads * T, stride = half_stride(blocks);  // of x here
    const int first_slot = warp / T * a.stages, further = a.teams * ctas;
    const int first_quad = By == 1 ? 0 : of_team;
    const int half = (a.quads + 1) / 2;  // quads of x that come first
    HalfRing<T> ring;
    ring.data = shared_address(x) + a.data_at + first_slot * ring.kData;
    ring.high = shared_address(x) + a.high_at + first_slot * ring.kHigh;
    ring.heads = shared_address(x) + a.heads_at + first_slot * ring.kHeads;
    ring.barriers = shared_address(barriers) + 16 * first_slot;
    const uint32_t x_there = shared_address(barriers + 2 * kMostHalfStages * S::kRings);
    const int begin = team < a.teams ? team * ctas + cta : a.strips;
    const bool asks = of_ring == 0 && begin < a.strips;
    if (asks) {
        if (lane == 0) {
            init_slots<T>(ring.barriers, a.stages);
            publish_barriers();
        }
        __syncwarp();
        ring.enter(a, begin, first_quad);
#pragma unroll 1
        for (int slot = 0; slot < a.stages && ring.strip < a.strips; ++slot)
            ring.ask(a, maps, rank * T, ring.at(slot), first_quad, By, further, lane == 0);
    }
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there + 8) : "memory");
        publish_barriers();
    }
    HalfFinish<NT, C> finish(a, x, finish_barriers, warp, rank);
    pdl_trigger();
    __syncthreads();
    if constexpr (C > 1) cluster_start();
    auto* const scales = reinterpret_cast<float*>(x + a.scales_at);
    const int turned = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
    if (a.floats.pairs > 0 && lane == 0 && warp % 4 == 3) {
        const int row = warp / 4 * static_cast<int>(gridDim.x) + turned;
        if (row < a.floats.pairs * kFloatPair) prefetch_float_row(a.floats, row);
    }
    pdl_wait();
    if (warp == 0) {
        asm volatile("fence.proxy.async.global;" ::: "memory");
        const int bytes = kHalfBlock * blocks, first_part = kHalfBlock * half,
                  last_part = kHalfBlock * (a.quads - half);
        if (lane == 0) {
            expect_bytes(x_there, a.n * T * first_part + 4 * 8 * NT * blocks);
            expect_bytes(x_there + 8, a.n * T * last_part);
        }
        __syncwarp();
        const auto copy = [&](const void* to, const void* p, int count, uint32_t barrier) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(to)),
                "l"(p), "r"(count), "r"(barrier)
                : "memory");
        };
        if (lane == 31) copy(scales, a.scales + rank * blocks * 8 * NT, 4 * 8 * NT * blocks, x_there);
        char* const to = x + lane * stride;
        const char* const from = a.x.rows + lane * a.x.stride + rank * bytes;
        if (lane < a.n) {
#pragma unroll
            for (int i = 0; i < T; ++i)
                copy(to + i * a.quads * kHalfBlock, from + i * a.quads * kHalfBlock, first_part, x_there);
#pragma unroll
            for (int i = 0; i < T; ++i)
                copy(to + i * a.quads * kHalfBlock + first_part, from + i * a.quads * kHalfBlock + first_part,
                     last_part, x_there + 8);
        }
    }
    if (a.floats.pairs > 0)
        multiply_float_units<1, 4, NT == 3 ? 3 : 5>(a.floats, a.x, warp / 4 * gridDim.x + turned,
                                                    kHalfWarps / 4 * gridDim.x, 0, a.n, results[threadIdx.x / 128],
                                                    2 + static_cast<int>(threadIdx.x) / 128);  // while x comes
    if constexpr (C > 1) cluster_wait();  // all CTAs' barriers are ready
    wait_parity(x_there, 0);
    const char* rows_of_x[NT];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
        rows_of_x[nt] = x + min(8 * nt + g, a.n - 1) * stride + kHalfBlock * (of_ring * a.quads + first_quad);
    const float* const scales_of_x = scales + 8 * NT * (of_ring * a.quads + first_quad) + 2 * t;
    const HalfLane<T> mine(a, x + a.data_at + first_slot * ring.kData, x + a.high_at + first_slot * ring.kHigh,
                           x + a.heads_at + first_slot * ring.kHeads, of_ring);
    int slot = 0, before = 0;
    uint32_t parity = 0, before_parity = 0;
    bool first = true, whole = false;  // whole: all of x is there
#pragma unroll 1
    for (int strip = begin; strip < a.strips; strip += further) {
        const StripRows rows(a, strip);
        const bool q6 = a.m[rows.matrix[0]].q6 != 0;
        HalfD d;
        if (q6) d.enter(a, rows, rank * T + of_ring, first_quad);
        float c[NT][4] = {}, odd[NT][4] = {};
        const auto multiply = [&](auto six) {
            constexpr bool kSix = decltype(six)::value;
            const char* block[NT];
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) block[nt] = rows_of_x[nt];
            const float* scale = scales_of_x;
#pragma unroll 1
            for (int quad = first_quad; quad < a.quads; quad += By) {
                const uint32_t d_now[2] = {d.d[0], d.d[1]};
                if (kSix && quad + By < a.quads) d.next(By);
                wait_parity(ring.barriers + 16 * slot, parity);
                if (asks && !first && ring.strip < a.strips) {
                    wait_parity(ring.barriers + 16 * before + 8, before_parity);
                    ring.ask(a, maps, rank * T, ring.at(before), first_quad, By, further, lane == 0);
                }
                first = false;
                if (!whole && quad >= half) wait_parity(x_there + 8, 0), whole = true;
                float v[NT][4];
                multiply_tile<kSix, NT>(mine.tile(slot, d_now), block,
                                        [&](int nt, int e, float value) { v[nt][e] = value; });
                const auto add = [&](float(&to)[NT][4]) {
#pragma unroll
                    for (int i = 0; i < 4 * NT; ++i)
                        to[i / 4][i % 4] = __fmaf_rn(scale[8 * (i / 4) + i % 2], v[i / 4][i % 4], to[i / 4][i % 4]);
                };
                if (By == 2 || quad % 2 == 0) add(c);
                else add(odd);
                arrive_at(ring.barriers + 16 * slot + 8);
                before = slot, before_parity = parity;
                if (++slot == a.stages) slot = 0, parity ^= 1;
#pragma unroll
                for (int nt = 0; nt < NT; ++nt) block[nt] += By * kHalfBlock;
                scale += By * 8 * NT;
            }
        };
        if (q6) multiply(std::true_type{});
        else multiply(std::false_type{});
        if constexpr (By == 1)
#pragma unroll
            for (int i = 0; i < 4 * NT; ++i) c[i / 4][i % 4] = __fadd_rn(c[i / 4][i % 4], odd[i / 4][i % 4]);
        finish.run(a, rows, c);
    }
    if (!whole) wait_parity(x_there + 8, 0);
    if constexpr (C > 1) {  // others may still tell that they have read
        cluster_start();
        cluster_wait();
    }
#endif
}

// ---- The host's side.

/// How x and the rings share shared memory; false: they do not fit.
template <int NT, int C>
bool place_half(const Context& ctx, HalfArgs& a, int teams, bool q6, int64_t& shared) {
    using S = HalfShape<NT, C>;
    constexpr int64_t kStatic = (2 * kMostHalfStages * S::kRings + 2 + 2 * kHalfWarps) * 8 + kHalfWarps * 32,
                      kAlign = 1024;
    constexpr int64_t kBeside = 2 << 10;  // for half_prepare_kernel(), and what a CTA takes by itself
    const int64_t blocks = a.quads * S::T, x = int64_t{a.n} * half_stride(static_cast<int>(blocks));
    const int64_t stage = S::T * (2048 + 256 + (q6 ? 1024 : 0));
    int64_t at = 0;
    const auto take = [&at](int64_t bytes) {
        const int64_t from = at;
        at += (bytes + 15) / 16 * 16;
        return static_cast<int32_t>(from);
    };
    take(x);
    a.scales_at = take(4 * 8 * NT * blocks);
    a.meeting_at = take(int64_t{teams} * S::kMeeting * kPieceBytes);
    a.inbox_at = take(int64_t{teams} * S::kInbox * kPieceBytes);
    at = (at + kAlign - 1) / kAlign * kAlign;
    const int64_t room = ctx.gpu->info().shared_bytes - kStatic - kAlign - kBeside - at;
    const int64_t rings = teams * S::W / S::T;
    a.stages = static_cast<int32_t>(std::min<int64_t>(kMostHalfStages, room / (rings * stage)));
    if (room < 0 || a.stages < 2) return false;
    a.teams = teams;
    const int64_t slots = rings * a.stages;
    a.data_at = take(slots * 2048 * S::T);
    a.high_at = take(q6 ? slots * 1024 * S::T : 0);
    a.heads_at = take(slots * 256 * S::T);
    shared = at + kAlign;
    return true;
}

template <int NT, int C>
bool launch_half(Context& ctx, HalfGroup& group, const ActSource& x) {
    using S = HalfShape<NT, C>;
    HalfArgs& a = group.a;
    int64_t shared = 0;
    const auto fits = [&](int teams) { return place_half<NT, C>(ctx, a, teams, group.q6, shared); };
    int teams = S::kTeams;
    while (teams >= S::kTeams / 2 && !fits(teams)) --teams;
    if (teams < S::kTeams / 2) return false;
    const int64_t blocks = 4 * a.quads, stride = kHalfBlock * blocks + a.floats.bytes;
    HalfPrepareArgs p = {};
    p.x = x;
    p.out = static_cast<char*>(ctx.arena->allocate(a.n * stride));
    p.scales = static_cast<float*>(ctx.arena->allocate(blocks * 8 * NT * 4));
    p.n = a.n, p.cols = a.cols, p.columns = 8 * NT, p.float_bytes = a.floats.bytes;
    if (x.kind == ActKind::norm) p.rms = static_cast<float*>(ctx.arena->allocate(a.n * 4));
    launch_half_prepare(ctx, p);
    a.x.kind = ActKind::staged;
    a.x.rows = p.out;
    a.x.stride = stride;
    a.scales = p.scales, a.rms = p.rms;
    const auto kernel = half_kernel<NT, C>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    // A cluster that finds no room beside the others would run after them.
    const int64_t most = C == 1 ? std::max(1, ctx.gpu->info().sm_count)
                                : most_clusters(reinterpret_cast<const void*>(kernel), C, kHalfThreads, shared);
    const int64_t groups = std::min<int64_t>(a.strips, most);
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(C * groups)), kHalfThreads,
                    static_cast<size_t>(shared), C, a, group.maps(S::T));
    return true;
}

}  // namespace

bool launch_half_rows(Context& ctx, HalfGroup& group, const ActSource& x) {
    const int n = group.a.n;
    if (n <= 8) return launch_half<1, 1>(ctx, group, x) || launch_half<1, 4>(ctx, group, x);
    if (n <= 16) return launch_half<2, 2>(ctx, group, x) || launch_half<2, 4>(ctx, group, x);
    return launch_half<3, 2>(ctx, group, x) || launch_half<3, 4>(ctx, group, x);
}

}  // namespace riptide::ops::cuda::decode
