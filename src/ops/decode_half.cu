// Large Q4_K and Q6_K matrices times 2 to 24 rows of x in half precision (sm_90a): what Qwen3.5-27B's products are made
// of when guesses are checked or sequences share a step. Arithmetic and formats: decode_half.cuh; rings and strips:
// decode_half_ring.cuh; one row: decode_half_row.cu.
//
// Bytes: those of the weights (decode_half_row.cu has them). Instructions by count, for 16 x 256 weights of Q4_K: 290
// for eight rows of x, 340 for sixteen, 400 for 24 (Q6_K: 410, 450, 500), as decoding a weight costs the same whatever
// the rows, and some 140 for the warp that asks for the next ones. Measured (H200, 2026-11-23, bench_gpu_dense;
// docs/results/qwen35.md) at 8, 16 and 24 rows: gate, up and down 63, 81 and 120 us, o 11, 14 and 16, head 274, 328 and
// 450; with int8 (decode_dense_tile.cu and others) 77, 101, 126; 15, 16, 19; 369, 598, 834. What limits it: ends of
// kernels, and that strips are few for the warps (16 rows, down: 1.2 of them a warp). 24 rows of 17,408 columns do not
// fit and are two reads. Design: one CTA of sixteen warps an SM, in teams of 4 / C warps that share strips. Where x
// does not fit in shared memory beside the rings, C CTAs share strips, each with its share of the chains and of x: two
// are a cluster and send each other their sums, the one that finishes a strip by turns; four leave them in the L2
// cache, and whoever comes last adds them up. x is rounded by a kernel before. Tried: warps of their own that ask for
// weights, as one row has (16 rows: 10.1 instead of 8.7 ms for all products).
#include <algorithm>

#include "ops/cluster_memory.cuh"
#include "ops/decode_dense.cuh"
#include "ops/decode_half_ring.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kHalfWarps = 16, kHalfThreads = 32 * kHalfWarps;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Stores the products of a strip that a lane of an mma has: all loads go out before the first store.
template <int NT>
__device__ __forceinline__ void store_half(const HalfArgs& a, const StripRows& rows, float (&v)[NT][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const HalfMatrix& m = a.m[rows.matrix[0]];
    const int row = rows.row[0] + g;
    float by[NT][2], old[NT][4] = {};
    bool there[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int col = 8 * nt + 2 * t + e % 2;
            there[nt][e] = col < a.n && row + e / 2 * 8 < m.rows;
            if (e < 2) by[nt][e] = a.rms != nullptr && col < a.n ? a.rms[col] : 1.0f;
            if (a.residual != nullptr && there[nt][e])
                old[nt][e] = a.residual[static_cast<int64_t>(col) * m.rows + row + e / 2 * 8];
        }
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
        if (a.rms != nullptr)
#pragma unroll
            for (int e = 0; e < 4; ++e) v[nt][e] = __fmul_rn(v[nt][e], by[nt][e % 2]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int64_t at = static_cast<int64_t>(8 * nt + 2 * t + e % 2) * m.rows + row + e / 2 * 8;
            if (a.gate_up != 0) {  // rows of gate; e + 2: of up
                if (e < 2 && 8 * nt + 2 * t + e < a.n && row < m.rows) m.y[at] = swiglu_value(v[nt][e], v[nt][e + 2]);
            } else if (there[nt][e]) {
                m.y[at] = v[nt][e];
                if (a.residual != nullptr) a.residual[at] = __fadd_rn(old[nt][e], v[nt][e]);
            }
        }
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int NT, int C>
__global__ void __launch_bounds__(kHalfThreads, 1)
    half_kernel(const __grid_constant__ HalfArgs a, const __grid_constant__ HalfMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    // Of four CTAs a warp of a team of two has the even quads, the other the odd ones, each with a ring of its own.
    constexpr int T = 4 / C, kOfTeam = C == 4 ? 2 : T, kTeams = kHalfWarps / kOfTeam, kRings = kHalfWarps / T;
    extern __shared__ uint4 dynamic[];
    // Of slots; x is there; C = 2: a team's sums of the other CTA are there, its own were read there.
    __shared__ uint64_t barriers[2 * kMostHalfStages * kRings + 1 + 2 * kTeams];
    __shared__ alignas(16) float results[kHalfWarps / 4][32];
    char* const x = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = blockIdx.x % C, cta = blockIdx.x / C, ctas = gridDim.x / C;
    const int team = warp / kOfTeam, of_team = warp % kOfTeam, of_ring = warp % T;
    const int blocks = a.quads * T, stride = half_stride(blocks);  // of x here
    const int first_slot = warp / T * a.stages, further = a.teams * ctas;
    const int first_quad = C == 4 ? of_team : 0;
    constexpr int kBy = C == 4 ? 2 : 1;
    HalfRing<T> ring;
    ring.data = shared_address(x) + a.data_at + first_slot * ring.kData;
    ring.high = shared_address(x) + a.high_at + first_slot * ring.kHigh;
    ring.heads = shared_address(x) + a.heads_at + first_slot * ring.kHeads;
    ring.barriers = shared_address(barriers) + 16 * first_slot;
    const uint32_t x_there = shared_address(barriers) + 16 * a.teams * (kOfTeam / T) * a.stages;
    const uint32_t sums_there = x_there + 8 + 16 * team, sums_read = sums_there + 8;
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
            ring.ask(a, maps, rank * T, ring.at(slot), first_quad, kBy, further, lane == 0);
    }
    if (lane == 0) {
        if (warp == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there) : "memory");
        if (C == 2 && of_team == 0 && team < a.teams) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(sums_there) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(sums_read) : "memory");
            expect_bytes(sums_there, 512 * NT);
        }
        publish_barriers();
    }
    pdl_trigger();
    __syncthreads();
    if constexpr (C == 2) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    auto* const scales = reinterpret_cast<float*>(x + a.scales_at);
    const int turned = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
    if (a.floats.pairs > 0 && lane == 0 && warp % 4 == 3) {
        const int row = warp / 4 * static_cast<int>(gridDim.x) + turned;
        if (row < a.floats.pairs * kFloatPair) prefetch_float_row(a.floats, row);
    }
    pdl_wait();
    if (warp == 0) {
        asm volatile("fence.proxy.async.global;" ::: "memory");
        const int bytes = kHalfBlock * blocks, all = a.n * bytes + 4 * 8 * NT * blocks;
        if (lane == 0) expect_bytes(x_there, all);
        __syncwarp();
        const auto copy = [&](const void* to, const void* p, int count) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(to)),
                "l"(p), "r"(count), "r"(x_there)
                : "memory");
        };
        if (lane < a.n) copy(x + lane * stride, a.x.rows + lane * a.x.stride + rank * bytes, bytes);
        if (lane == 31) copy(scales, a.scales + rank * blocks * 8 * NT, 4 * 8 * NT * blocks);
    }
    if constexpr (C == 2) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // its barriers are ready
    wait_parity(x_there, 0);
    const char* rows_of_x[NT];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
        rows_of_x[nt] = x + min(8 * nt + g, a.n - 1) * stride + kHalfBlock * (of_ring * a.quads + first_quad);
    const float* const scales_of_x = scales + 8 * NT * (of_ring * a.quads + first_quad) + 2 * t;
    const HalfLane<T> mine(a, x + a.data_at + first_slot * ring.kData, x + a.high_at + first_slot * ring.kHigh,
                           x + a.heads_at + first_slot * ring.kHeads, of_ring);
    const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(6 + team), "n"(32 * kOfTeam) : "memory"); };
    int slot = 0, before = 0;
    uint32_t parity = 0, before_parity = 0, there_parity = 0, read_parity = 1;
    [[maybe_unused]] int other = 0;  // C = 1: the chains' sums have two places by turns
    bool first = true;
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
            for (int quad = first_quad; quad < a.quads; quad += kBy) {
                const uint32_t d_now[2] = {d.d[0], d.d[1]};
                if (kSix && quad + kBy < a.quads) d.next(kBy);
                wait_parity(ring.barriers + 16 * slot, parity);
                if (asks && !first && ring.strip < a.strips) {
                    wait_parity(ring.barriers + 16 * before + 8, before_parity);
                    ring.ask(a, maps, rank * T, ring.at(before), first_quad, kBy, further, lane == 0);
                }
                first = false;
                float v[NT][4];
                multiply_tile<kSix, NT>(mine.tile(slot, d_now), block,
                                        [&](int nt, int e, float value) { v[nt][e] = value; });
                const auto add = [&](float(&to)[NT][4]) {
#pragma unroll
                    for (int i = 0; i < 4 * NT; ++i)
                        to[i / 4][i % 4] = __fmaf_rn(scale[8 * (i / 4) + i % 2], v[i / 4][i % 4], to[i / 4][i % 4]);
                };
                if (C == 4 || quad % 2 == 0) add(c);
                else add(odd);
                arrive_at(ring.barriers + 16 * slot + 8);
                before = slot, before_parity = parity;
                if (++slot == a.stages) slot = 0, parity ^= 1;
#pragma unroll
                for (int nt = 0; nt < NT; ++nt) block[nt] += kBy * kHalfBlock;
                scale += kBy * 8 * NT;
            }
        };
        if (q6) multiply(std::true_type{});
        else multiply(std::false_type{});
        if constexpr (C < 4)
#pragma unroll
            for (int i = 0; i < 4 * NT; ++i) c[i / 4][i % 4] = __fadd_rn(c[i / 4][i % 4], odd[i / 4][i % 4]);
        auto* const meeting = reinterpret_cast<float*>(x + a.meeting_at) + team * (C == 1 ? 8 : 1) * (128 * NT) + lane +
                              (C == 1 ? other * (512 * NT) : 0);
        if constexpr (C == 1) {
#pragma unroll
            for (int i = 0; i < 4 * NT; ++i)
                if (of_team != 0) meeting[(of_team * 4 * NT + i) * 32] = c[i / 4][i % 4];
            sync();
            if (of_team == 0) {
#pragma unroll
                for (int i = 0; i < 4 * NT; ++i) {
                    const float* const of = meeting + 32 * i;
                    c[i / 4][i % 4] =
                        __fadd_rn(__fadd_rn(c[i / 4][i % 4], of[128 * NT]), __fadd_rn(of[256 * NT], of[384 * NT]));
                }
                store_half<NT>(a, rows, c);
            }
            other ^= 1;
        } else if constexpr (C == 2) {
            if (of_team == 1)
#pragma unroll
                for (int i = 0; i < 4 * NT; ++i) meeting[32 * i] = c[i / 4][i % 4];
            sync();
            if (of_team == 0) {
#pragma unroll
                for (int i = 0; i < 4 * NT; ++i) c[i / 4][i % 4] = __fadd_rn(c[i / 4][i % 4], meeting[32 * i]);
                char* const inbox = x + a.inbox_at + team * (512 * NT) + 16 * lane;
                if (strip / further % 2 != rank) {
                    wait_parity(sums_read, read_parity);  // what was sent before was read
                    read_parity ^= 1;
                    const uint32_t to = in_cta(shared_address(inbox), rank ^ 1), barrier = in_cta(sums_there, rank ^ 1);
#pragma unroll
                    for (int nt = 0; nt < NT; ++nt)
                        send(to + 512 * nt, make_float4(c[nt][0], c[nt][1], c[nt][2], c[nt][3]), barrier);
                } else {
                    wait_cluster(sums_there, there_parity);
                    there_parity ^= 1;
#pragma unroll
                    for (int nt = 0; nt < NT; ++nt) {
                        const float4 s = *reinterpret_cast<const float4*>(inbox + 512 * nt);
                        c[nt][0] = __fadd_rn(c[nt][0], s.x), c[nt][1] = __fadd_rn(c[nt][1], s.y);
                        c[nt][2] = __fadd_rn(c[nt][2], s.z), c[nt][3] = __fadd_rn(c[nt][3], s.w);
                    }
                    if (lane == 0) expect_bytes(sums_there, 512 * NT);
                    __syncwarp();
                    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                                     in_cta(sums_read, rank ^ 1))
                                 : "memory");
                    store_half<NT>(a, rows, c);
                }
            }
            sync();
        } else {
            if (of_team == 1)
#pragma unroll
                for (int i = 0; i < 4 * NT; ++i) meeting[32 * i] = c[i / 4][i % 4];
            sync();
            if (of_team == 0) {
                float* const parts = a.parts + static_cast<int64_t>(strip) * (C * 128 * NT) + 4 * lane;
#pragma unroll
                for (int i = 0; i < 4 * NT; ++i) c[i / 4][i % 4] = __fadd_rn(c[i / 4][i % 4], meeting[32 * i]);
#pragma unroll
                for (int nt = 0; nt < NT; ++nt)
                    *reinterpret_cast<float4*>(parts + (rank * NT + nt) * 128) =
                        make_float4(c[nt][0], c[nt][1], c[nt][2], c[nt][3]);
                __syncwarp();
                int arrived = 0;
                if (lane == 0) {
                    __threadfence();
                    arrived = atomicAdd(a.arrivals + strip, 1);
                    __threadfence();
                }
                arrived = __shfl_sync(~0u, arrived, 0);
                if (arrived == C - 1) {
                    float4 p[C][NT];
#pragma unroll
                    for (int k = 0; k < C; ++k)
#pragma unroll
                        for (int nt = 0; nt < NT; ++nt)
                            p[k][nt] = __ldcg(reinterpret_cast<const float4*>(parts + (k * NT + nt) * 128));
#pragma unroll
                    for (int nt = 0; nt < NT; ++nt) {
                        const auto sum = [&](float4 q0, float4 q1) {
                            return make_float4(__fadd_rn(q0.x, q1.x), __fadd_rn(q0.y, q1.y), __fadd_rn(q0.z, q1.z),
                                               __fadd_rn(q0.w, q1.w));
                        };
                        const float4 all = sum(sum(p[0][nt], p[1][nt]), sum(p[C - 2][nt], p[C - 1][nt]));
                        c[nt][0] = all.x, c[nt][1] = all.y, c[nt][2] = all.z, c[nt][3] = all.w;
                    }
                    store_half<NT>(a, rows, c);
                }
            }
            sync();
        }
    }
    if (a.floats.pairs > 0)
        multiply_float_units<1, 4, NT == 3 ? 3 : 5>(a.floats, a.x, warp / 4 * gridDim.x + turned,
                                                    kHalfWarps / 4 * gridDim.x, 0, a.n, results[threadIdx.x / 128],
                                                    2 + static_cast<int>(threadIdx.x) / 128);
    if constexpr (C == 2) {  // the other one may still send and tell
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
#endif
}

// ---- The host's side.

/// How x and the rings share shared memory; false: they do not fit.
template <int NT, int C>
bool place_half(const Context& ctx, HalfArgs& a, int teams, bool q6, int64_t& shared) {
    constexpr int T = 4 / C;
    constexpr int64_t kStatic = (2 * kMostHalfStages + 2) * kHalfWarps / T * 8 + 768, kAlign = 1024;
    constexpr int64_t kBeside = 2 << 10;  // for half_prepare_kernel()
    const int64_t blocks = a.quads * T, x = int64_t{a.n} * half_stride(static_cast<int>(blocks));
    const int64_t stage = T * (2048 + 256 + (q6 ? 1024 : 0));
    int64_t at = 0;
    const auto take = [&at](int64_t bytes) {
        const int64_t from = at;
        at += (bytes + 15) / 16 * 16;
        return static_cast<int32_t>(from);
    };
    take(x);
    a.scales_at = take(4 * 8 * NT * blocks);
    a.meeting_at = take((C == 1 ? 8 : 1) * teams * 512 * NT);
    a.inbox_at = take(C == 2 ? teams * 512 * NT : 0);
    at = (at + kAlign - 1) / kAlign * kAlign;
    const int64_t room = ctx.gpu->info().shared_bytes - kStatic - kAlign - kBeside - at;
    const int64_t rings = C == 4 ? 2 * teams : teams;
    a.stages = static_cast<int32_t>(std::min<int64_t>(kMostHalfStages, room / (rings * stage)));
    if (room < 0 || a.stages < 2) return false;
    a.teams = teams;
    const int64_t slots = rings * a.stages;
    a.data_at = take(slots * 2048 * T);
    a.high_at = take(q6 ? slots * 1024 * T : 0);
    a.heads_at = take(slots * 256 * T);
    shared = at + kAlign;
    return true;
}

template <int NT, int C>
bool launch_half(Context& ctx, HalfGroup& group, const ActSource& x) {
    HalfArgs& a = group.a;
    constexpr int kTeams = C == 1 ? kHalfWarps / 4 : kHalfWarps / 2;
    int64_t shared = 0;
    const auto fits = [&](int teams) { return place_half<NT, C>(ctx, a, teams, group.q6, shared); };
    int teams = kTeams;
    while (teams >= kTeams / 2 && !fits(teams)) --teams;
    if (teams < kTeams / 2) return false;
    const int64_t blocks = 4 * a.quads, stride = kHalfBlock * blocks + a.floats.bytes;
    HalfPrepareArgs p = {};
    p.x = x;
    p.out = static_cast<char*>(ctx.arena->allocate(a.n * stride));
    p.scales = static_cast<float*>(ctx.arena->allocate(blocks * 8 * NT * 4));
    p.n = a.n, p.cols = a.cols, p.columns = 8 * NT, p.float_bytes = a.floats.bytes, p.strips = a.strips;
    if (x.kind == ActKind::norm) p.rms = static_cast<float*>(ctx.arena->allocate(a.n * 4));
    if (C == 4) {
        p.arrivals = static_cast<int32_t*>(ctx.arena->allocate(a.strips * 4));
        a.parts = static_cast<float*>(ctx.arena->allocate(int64_t{a.strips} * C * 512 * NT));
    }
    launch_half_prepare(ctx, p);
    a.x.kind = ActKind::staged;
    a.x.rows = p.out;
    a.x.stride = stride;
    a.scales = p.scales, a.rms = p.rms, a.arrivals = p.arrivals;
    const auto kernel = half_kernel<NT, C>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    const int64_t groups = std::min<int64_t>(a.strips, std::max(1, ctx.gpu->info().sm_count / C));
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(C * groups)), kHalfThreads,
                    static_cast<size_t>(shared), C == 2 ? 2 : 1, a, group.maps(4 / C));
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
