// Large Q4_K and Q6_K matrices times 9 to 24 rows of x in half precision (sm_90a), where x is too wide to lie beside
// the weights in the shared memory of one to four CTAs (kquant_f16_mma_sm90.cu): `down` of Qwen3.5-27B, 17,408 columns,
// at 17 rows and more. Arithmetic, formats and bits: kquant_f16.cuh.
//
// Bytes: those of the weights, 50 MB of Q4_K: 10.8 us at 4.65 TB/s. Instructions for 64 x 256 weights and 24 rows of
// x: some 400 a warp, of them 144 that decode. Measured (H100, 3.03 TB/s, 2026-11-26, bench_gpu_dense, 24 rows; in
// brackets two launches of kquant_f16_mma_sm90.cu, each with half of the columns): 30 us (37), in Q6_K 40 (45). What
// limits it: the time until x is rounded and there, some 6 us; behind that nothing is busy (ncu: memory 53 %, SMs 34
// %), 120 of 132 SMs have a CTA, as no more than 15 clusters of eight find room, and groups wait for memory and for
// each other.
//
// Design: a cluster of eight CTAs has strips of 64 weight rows, each CTA one of the eight chains: of 24 rows of x, 835
// KB, each has 118. A CTA has three groups of four warps that multiply, and one whose warps ask for weights and x. A
// group takes 64 x 256 weights from its ring, decodes them in registers and gives them to wgmma, which reads x from
// shared memory once for 64 rows; mma.sync reads it for each 16, three quarters of all that a tile reads there. Groups
// of all clusters have equally many steps (two quads of a strip); who ends what another group began finds its sums in
// device memory, told by a barrier in the same CTA and by a flag in the next one. Eight parts of a strip's products
// meet in inboxes, each piece in the CTA that finishes it.
//
// Tried: wgmma in clusters of four and two launches (33 us), there with a fence for each step instead of two (33.4
// instead of 32.6) and with four groups of 112 registers (no faster, some sums spilled); two blocks of a quad in a CTA,
// one after the other for the whole strip (neighbours in memory at different times: the head 620 instead of 418 us);
// this kernel for 9 to 16 rows of 17,408 columns (29.5 instead of 27.2 us with kquant_f16_mma_sm90.cu) and for 2 to 8
// (27.4 instead of 26.9).
#include <algorithm>

#include "ops/cuda/linear/shared/kquant_i8_wide.cuh"
#include "ops/cuda/linear/skinny/kquant_f16_wgmma_sm90.cuh"

namespace riptide::ops::cuda::decode {

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The CTA's blocks of x to shared memory, by one thread: the first `first` to barrier `there`, the rest to the one
/// behind it.
template <int NT>
__device__ __forceinline__ void ask_for_x(const F16Args& a, const char* x, int rank, int steps, int first,
                                          uint32_t there) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const char* const from = a.units + static_cast<int64_t>(rank) * steps * ChainX<NT>::kBlock;
    const int bytes = first * ChainX<NT>::kBlock, rest = (steps - first) * ChainX<NT>::kBlock;
    expect_bytes(there, bytes);
    prefill::bulk_copy(shared_address(x), from, static_cast<uint32_t>(bytes), there);
    expect_bytes(there + 8, rest);
    if (rest > 0) prefill::bulk_copy(shared_address(x) + bytes, from + bytes, static_cast<uint32_t>(rest), there + 8);
}

/// What a warp of the group that asks does: for one of those that multiply, block after block. It is through the
/// cluster's first barrier before it waits for an empty slot: the chip does not need it, racecheck does (PITFALLS.md).
__device__ __forceinline__ void ask_for_weights(const F16Args& a, const F16Maps& maps, const ChainRing& ring,
                                                const F16Share& share, int rank) {
    const int early = a.stages > 2 ? a.stages - 1 : a.stages;  // x has to wait for what was asked for before it
    const bool does = threadIdx.x % 32 == 0;
    const auto wait = [] { pdl_wait(), cluster_wait(); };
    int slot = 0, asked = 0;
    uint32_t parity = 1;
#pragma unroll 1
    for (int i = 0; i < share.parts; ++i) {
        const F16Part part = share.part(i);
        const ChainRows rows(a, part.strip, 0);
#pragma unroll 1
        for (int quad = 2 * part.from + rank / 4; quad < min(2 * part.to, a.quads); quad += 2) {
            if (asked++ == early) wait();
            wait_parity(ring.empty(slot), parity);
            ring.ask(a, maps, slot, rows, rank % 4, quad, does);
            if (++slot == a.stages) slot = 0, parity ^= 1;
        }
    }
    if (asked <= early) wait();
}

/// What a group that multiplies does.
template <int NT>
__device__ __forceinline__ void multiply_share(const F16Args& a, const char* x, const ChainRing& ring,
                                               const F16Share& share, ChainFinish<NT>& finish, uint64_t* left,
                                               uint32_t x_there, int first, int rank, int slab) {
    using X = ChainX<NT>;
    const int lane = threadIdx.x % 32;
    bool whole = false;  // all of x is there
    const ChainLane mine(a, x, ring.first_slot, slab);
    const uint32_t units = units_descriptor<NT>(shared_address(x));
    const char* const sums_of_x = x + X::kSumsAt + kF16Sums * (lane / 4) + 8 * (lane % 4);
    const char* const scales_of_x = x + X::kScalesAt + 8 * (lane % 4);
    int slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int i = 0; i < share.parts; ++i) {
        const F16Part part = share.part(i);
        const ChainRows rows(a, part.strip, slab);
        const bool q6 = a.m[rows.matrix[0]].q6 != 0;
        const int end = min(part.to, (a.quads + 1 - rank / 4) / 2);  // the last step may lack its second quad
        const auto block = [&](int step) { return 8 * min(step, end - 1) + rank; };
        ChainD d;
        if (q6) d.enter(a, rows), d.next(block(part.from)), d.next(block(part.from + 1));
        ChainSums<NT> sums;
        sums.begin(a, part, left);
        const auto multiply = [&](auto six) {
            constexpr bool kSix = decltype(six)::value;
#pragma unroll 1
            for (int step = part.from; step < end; ++step) {
                const uint32_t d_now[2] = {d.d[0], d.d[1]};
                if (kSix) d.next(block(step + 2));
                wait_parity(ring.full(slot), parity);
                if (!whole && step >= first) wait_parity(x_there + 8, 0), whole = true;
                const auto loaded = [&](uint32_t bits) {
                    // By its address, since an arrival does not wait for loads.
                    const int any = __any_sync(~0u, (bits & static_cast<uint32_t>(a.zero)) != 0);
                    if (lane == 0) arrive_at(ring.empty(slot) + any);
                };
                const int at = step * X::kBlock;
                float v[NT][4];
                // A reduction's result lies in a uniform register, where wgmma wants it.
                multiply_chain_tile<kSix, NT>(mine.tile(slot, d_now), __reduce_or_sync(~0u, units + at / 16),
                                              sums_of_x + at, loaded, v);
#pragma unroll
                for (int j = 0; j < NT; ++j) {
                    const auto scale = *reinterpret_cast<const float2*>(scales_of_x + at + 32 * j);
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        sums.c[j][e] = __fmaf_rn(e % 2 == 0 ? scale.x : scale.y, v[j][e], sums.c[j][e]);
                }
                if (++slot == a.stages) slot = 0, parity ^= 1;
            }
        };
        if (q6) multiply(std::true_type{});
        else multiply(std::false_type{});
        if (part.to < share.quads) sums.leave(a, left);
        else finish.run(a, rows, sums.c, i + 1 == share.parts);
    }
    if (!whole) wait_parity(x_there + 8, 0);
}

#endif

template <int NT>
__global__ void __launch_bounds__(kChainThreads, 1)
    kquant_f16_wgmma_kernel(const __grid_constant__ F16Args a, const __grid_constant__ ChainPlan plan,
                            const __grid_constant__ F16Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int G = kChainGroups;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostChainStages * G + 2];  // of slots; the first blocks of x are there, the rest
    __shared__ uint64_t finish_barriers[2 * 4 * G];
    __shared__ uint64_t left[4 * G];  // what a warp leaves to the next team's is there
    __shared__ alignas(16) float results[G][64];
    char* const x = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32, slab = warp % 4, group = warp / 4;
    const int rank = blockIdx.x % kChainCtas, cluster = blockIdx.x / kChainCtas;
    const int steps = (a.quads + 1) / 2, first = (steps + 3) / 4;
    const uint32_t x_there = shared_address(barriers + 2 * kMostChainStages * G);
    const bool asks = group == G;
    const int of = asks ? min(slab, G - 1) : group;
    const ChainRing ring(a, x, barriers, of);
    const auto begin = [&plan, cluster](int team) {  // shuffled: the compiler then knows what is alike in a warp
        const F16Begin b = plan.begin[cluster * G + team];
        return F16Begin{static_cast<int16_t>(__shfl_sync(~0u, int{b.strip}, 0)),
                        static_cast<int16_t>(__shfl_sync(~0u, int{b.quad}, 0))};
    };
    const F16Share share(steps, begin(of), begin(of + 1));
    ChainFinish<NT> finish(a, x, finish_barriers, warp, rank);
    if (lane == 0) {
        if (!asks) {
            if (slab == 0) ring.init(a.stages);
            asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(shared_address(left + warp)) : "memory");
            finish.init();
        } else if (slab == G) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there + 8) : "memory");
        }
        publish_barriers();
    }
    pdl_trigger();
    __syncthreads();
    cluster_start();
    if (asks) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (slab < G) {
            ask_for_weights(a, maps, ring, share, rank);
        } else {
            pdl_wait();
            if (lane == 0) ask_for_x<NT>(a, x, rank, steps, first, x_there);
            cluster_wait();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        pdl_wait();
        if (a.floats.pairs > 0)
            multiply_float_units<2, 4, 3>(a.floats, a.x, group * gridDim.x + blockIdx.x, G * gridDim.x, 0, a.n,
                                          results[group], 2 + group);  // while x comes
        cluster_wait();                                                // all CTAs' barriers are ready
        wait_parity(x_there, 0);
        multiply_share<NT>(a, x, ring, share, finish, left, x_there, first, rank, slab);
    }
#endif
}

// ---- The host's side.

template <int NT>
void launch_chain(Context& ctx, F16Group& group, const ActSource& x, const F16Fit& fit) {
    F16Args& a = group.a;
    const int64_t steps = (a.quads + 1) / 2, shared = fit.shared;
    a.stages = fit.stages, a.inbox_at = fit.inbox_at;
    a.data_at = fit.data_at, a.high_at = fit.high_at, a.heads_at = fit.heads_at;
    group.cut(kChainRows);
    const auto kernel = kquant_f16_wgmma_kernel<NT>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    // A cluster that finds no room beside the others would run after them.
    const int64_t most =
        std::min({int64_t{kMostChainTeams / kChainGroups}, int64_t{ctx.gpu->info().sm_count} / kChainCtas,
                  most_clusters(reinterpret_cast<const void*>(kernel), kChainCtas, kChainThreads, shared)});
    RT_CHECK(most > 0, "{} runs no cluster of {} blocks, which products with rows of {} values need",
             ctx.gpu->info().name, kChainCtas, a.cols);
    const int64_t clusters = std::min<int64_t>((a.strips + kChainGroups - 1) / kChainGroups, most);
    const int64_t ctas = kChainCtas * clusters, teams = kChainGroups * clusters;
    kquant_f16_prepare(
        ctx, a, x,
        {.columns = 8 * NT, .steps = static_cast<int32_t>(steps), .flag_count = static_cast<int32_t>(4 * ctas)});
    a.left = static_cast<float4*>(ctx.arena->allocate(ctas * 4 * kChainGroups * NT * kPieceBytes));
    ChainPlan plan;
    for (int64_t team = 0; team <= teams; ++team)
        plan.begin[team] =
            f16_begin(a.strips, static_cast<int>(steps), static_cast<int>(teams), static_cast<int>(team), 1);
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kChainThreads, static_cast<size_t>(shared),
                    kChainCtas, a, plan, group.maps(1, kChainRows));
}

}  // namespace

void launch_f16_chain(Context& ctx, F16Group& group, const ActSource& x) {
    const auto fit = fit_f16_chain(chip_of(*ctx.gpu), group.a.cols, group.a.n, group.q6);
    RT_ASSERT(fit);
    if (fit->tiles == 2) launch_chain<2>(ctx, group, x, *fit);
    else launch_chain<3>(ctx, group, x, *fit);
}

}  // namespace riptide::ops::cuda::decode
