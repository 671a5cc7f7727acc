// Large Q4_K and Q6_K matrices times one row of x in half precision (sm_90a): decoding Qwen3.5-27B. Arithmetic and
// formats: kquant_f16.cuh; rings and strips: kquant_f16_ring.cuh.
//
// Bytes: those of the weights; in Q4_K gate and up 100 MB, down 50, a recurrent layer's projections 47, o 18, the head
// (Q6_K) 1.04 GB: 21.6, 10.8, 10.1, 3.8, 224 us at 4.65 TB/s. Instructions by count: 265 for 16 x 256 weights of Q4_K,
// 385 of Q6_K, 1.9 ms of issue slots for the whole model, whose bytes take 3.3; they bind its loop, whose warps hardly
// ever wait for weights. Measured (H200, 2026-11-23, docs/results/qwen35.md): gate, up and down 44 us, projections 15,
// o 7.7, the head 259. A third of an op's time is before its first product: 1.1 us until the kernel before has ended
// and its writes are there, 1.4 for x. Design: one CTA an SM, three teams of four warps and a warp for each that asks
// for its weights. A CTA has strips that follow one another, and its teams equally many quads of them, so that a strip
// may be begun by one team and ended by others: these do their part first and leave their terms in shared memory, the
// first one adds them in the order of the chain. The weights of the first slots are asked for before anything else.
// Every CTA normalises and rounds x for itself; float rows of the group (beta and alpha) are multiplied by the last
// team of as many CTAs, which has fewer quads for it. Few registers and slots leave room for the next kernels, and
// little code stays in the caches: both are worth more than faster products. Tried (tok/s of Qwen3.5-27B, one lease but
// for the last two, when this had 172.8; it has 191): four teams with 80 registers 167.0, with 95 and all slots that
// fit 156 (another lease, where this had not been built; four teams with 80 had 162); two teams 120; two slots 168,
// four 170; three slots asked for ahead 171; 96 registers 169; 64 (spills) 151. Strips shared by neighbouring CTAs,
// too, through the L2 cache: slower (146); in clusters of two: as fast alone, slower in the model. One of the team's
// warps asking: 5 to 10 % slower alone; one warp for all teams 9 % in the model. Several products in one launch whose
// CTAs meet: 161 where this had 184.
#include <algorithm>

#include "ops/cuda/linear/shared/kquant_f16_ring.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kRowTeams = kF16RowTeams, kRowThreads = 128 * kRowTeams;  // that multiply
constexpr int kAllThreads = kRowThreads + 32 * kRowTeams;               // and a warp for each team that asks
constexpr int kRegisters = 80;                                          // of a thread
[[maybe_unused]] constexpr int kHeadsAt = 8192, kHighAt = kF16Slot;     // in a slot, behind the nibbles
[[maybe_unused]] constexpr int kAhead = 2;                              // of them, that are asked for before x is there
[[maybe_unused]] constexpr int kFloatQuads = 2;  // quads in whose time a team multiplies a float row

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void sync_row() { asm volatile("bar.sync 5, %0;" ::"n"(kRowThreads) : "memory"); }
/// A team's four warps. (A barrier whose number is in a register would count for all sixteen of a CTA.)
__device__ __forceinline__ void sync_team(int team) {
    if (team == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
    else if (team == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
    else if (team == 2) asm volatile("bar.sync 3, 128;" ::: "memory");
    else asm volatile("bar.sync 4, 128;" ::: "memory");
}

/// Columns 8 c .. 8 c + 7, if c < pieces.
__device__ __forceinline__ void load_piece(const float* x, int c, int pieces, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 some = c < pieces ? *reinterpret_cast<const float4*>(x + 8 * c + i) : float4{};
        v[i] = some.x, v[i + 1] = some.y, v[i + 2] = some.z, v[i + 3] = some.w;
    }
}

/// The row of x, by all threads of a CTA; what is loaded goes out at once.
struct OwnRow {
    static constexpr int Threads = kRowThreads;
    static constexpr int kNormed = (768 + Threads - 1) / Threads;  // pieces of eight of up to 6,144 columns
    float norm[kNormed][8];

    __device__ __forceinline__ void load_norms_of(const F16Args& a) {
        if (a.x.kind != ActKind::norm) return;
#pragma unroll
        for (int r = 0; r < kNormed; ++r) load_norm8(a.x.norm, r * Threads + threadIdx.x, a.cols, norm[r]);
    }
    /// Returns 1 / rms, or 1. floats: where normalised floats go, or null. partial: kWarps floats.
    __device__ __forceinline__ float stage(const F16Args& a, char* x, float* scales, char* floats, float* partial) {
        const auto* const from = reinterpret_cast<const float*>(a.x.rows);
        const int pieces = a.cols / 8;
        const auto put = [&](int c, const float(&v)[8]) {
            const int place = f16_place(c / 32, a.quads);
            char* const block = x + kF16Block * place;
            if (c < pieces) put_f16_block(RowUnits{block, false}, block + kF16Units, scales + place, v);
        };
        float rms = 1.0f;
        if (a.x.kind == ActKind::norm) {
            float v[kNormed][8], w[kWholeRow][8], by[8];
#pragma unroll
            for (int r = 0; r < kNormed; ++r) load_piece(from, r * Threads + threadIdx.x, pieces, v[r]);
            if (threadIdx.x < kThreads)
#pragma unroll
                for (int r = 0; r < kWholeRow; ++r) load_piece(from, r * kThreads + threadIdx.x, pieces, w[r]);
#pragma unroll
            for (int r = 0; r < kNormed; ++r) {
#pragma unroll
                for (int i = 0; i < 8; ++i) by[i] = __fmul_rn(v[r][i], norm[r][i]);
                put(r * Threads + threadIdx.x, by);
            }
            if (threadIdx.x < kThreads) {
                float sum = 0.0f;
#pragma unroll
                for (int r = 0; r < kWholeRow; ++r) sum = add_squares(w[r], sum);
                sum = warp_sum(sum);
                if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
            }
            sync_row();
            rms = row_scale(partial, a.cols, a.x.eps);
            if (floats == nullptr) return rms;
#pragma unroll
            for (int r = 0; r < kNormed; ++r) {
#pragma unroll
                for (int i = 0; i < 8; ++i) by[i] = rms_value(v[r][i], rms, norm[r][i]);
                put8({a.cols, 0, 0, a.floats.bytes}, floats, r * Threads + threadIdx.x, by);
            }
        } else {
            constexpr int kTogether = 2;  // more code is slower
#pragma unroll 1
            for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < pieces; c += kTogether * Threads) {
                float v[kTogether][8];
#pragma unroll
                for (int r = 0; r < kTogether; ++r) load_piece(from, c + r * Threads, pieces, v[r]);
#pragma unroll
                for (int r = 0; r < kTogether; ++r) {
                    put(c + r * Threads, v[r]);
                    if (floats != nullptr) put8({a.cols, 0, 0, a.floats.bytes}, floats, c + r * Threads, v[r]);
                }
            }
        }
        sync_row();
        return rms;
    }
};

__device__ __forceinline__ float load_shared(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t at, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

/// Its weights to shared memory, if they fit there; else to the L2 cache.
__device__ __forceinline__ void ask_float_row(const F16Args& a, int unit, char* x, uint32_t barrier) {
    const FloatRow row(a.floats, unit);
    if (a.float_weights_at == 0 || !row.whole()) return prefetch_float_row(a.floats, unit);
    expect_bytes(barrier, static_cast<int>(row.bytes));
    prefill::bulk_copy(shared_address(x + a.float_weights_at), row.from, row.bytes, barrier);
}

/// Of `total` things, where part i of n begins.
__device__ __forceinline__ int begin_of(int total, int i, int n) {
    return static_cast<int>(static_cast<uint32_t>(total * i) / static_cast<uint32_t>(n));
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

__global__ void __maxnreg__(kRegisters)
    kquant_f16_row1_kernel(const __grid_constant__ F16Args a, const __grid_constant__ F16Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[kRowTeams * (2 * kMostF16Stages + 1)];  // of slots; a team's first terms are there
    __shared__ uint64_t float_weights_there;
    __shared__ float partial[kWarps];
    __shared__ alignas(16) float results[16];
    char* const x = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int cta = blockIdx.x, ctas = gridDim.x, team = warp < 4 * kRowTeams ? warp / 4 : warp - 4 * kRowTeams,
              chain = warp % 4;
    // The first CTAs have a strip more: they started first, on SMs that the kernel before left first. The last ones
    // have the float rows.
    const int each = a.strips / ctas, more = a.strips % ctas;
    const int first_strip = cta * each + min(cta, more), steps = (each + (cta < more ? 1 : 0)) * a.quads;
    const int float_row = ctas - 1 - cta;
    const bool has_floats = float_row < a.floats.pairs * kFloatPair;
    const int dealt = steps + (has_floats ? kFloatQuads : 0);
    const int begin = min(steps, begin_of(dealt, team, kRowTeams)),
              end = min(steps, begin_of(dealt, team + 1, kRowTeams));
    char* const slots = x + a.data_at + team * a.stages * a.slot_bytes;
    const uint32_t bars = shared_address(barriers) + 16 * team * a.stages;  // full and empty of each slot
    const uint32_t terms_there = shared_address(barriers) + 16 * kRowTeams * a.stages;
    if (warp >= 4 * kRowTeams) {  // asks for the team's weights
        if (lane == 0) {
            init_slots<4>(bars, a.stages);
            asm volatile("mbarrier.init.shared.b64 [%0], 128;" ::"r"(terms_there + 8 * team) : "memory");
            if (team == 0 && has_floats)
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&float_weights_there))
                             : "memory");
            publish_barriers();
            if (team == 0 && has_floats) ask_float_row(a, float_row, x, shared_address(&float_weights_there));
        }
        __syncwarp();
        const uint32_t end_of_bars = bars + 16 * a.stages, slots0 = shared_address(slots);
        F16Ring<4> ring;
        F16Slot to{slots0, slots0 + kHeadsAt, slots0 + kHighAt, bars};
        int left = end - begin;
        int strip = first_strip + begin / a.quads;
        const auto ask = [&] {
            ring.ask(maps, 0, to, lane == 0);
            if (++ring.quad == a.quads) ring.enter(a, ++strip, 0);
            --left;
            to.full += 16, to.data += a.slot_bytes;
            if (to.full == end_of_bars) to.full = bars, to.data = slots0;
            to.heads = to.data + kHeadsAt, to.high = to.data + kHighAt;
        };
        ring.enter(a, strip, begin % a.quads);
#pragma unroll 1
        for (int i = min(kAhead, a.stages); i > 0 && left > 0; --i) ask();
        pdl_trigger();
        __syncthreads();
        asm volatile("bar.sync 6, %0;" ::"n"(kAllThreads) : "memory");  // x is there
#pragma unroll 1
        for (int i = a.stages - kAhead; i > 0 && left > 0; --i) ask();
        uint32_t parity = 0;
#pragma unroll 1
        while (left > 0) {
            wait_parity(to.full + 8, parity);
            ask();
            if (to.full == bars) parity ^= 1;
        }
        return;
    }
    pdl_trigger();
    char* const floats = has_floats ? x + a.floats_at : nullptr;
    OwnRow own;
    own.load_norms_of(a);
    auto* const scales = reinterpret_cast<float*>(x + a.scales_at);
    __syncthreads();  // barriers are ready
    pdl_wait();
    const float rms = own.stage(a, x, scales, floats, partial);
    asm volatile("bar.arrive 6, %0;" ::"n"(kAllThreads) : "memory");
    if (has_floats && team == kRowTeams - 1) {
        ActSource staged;
        staged.rows = floats, staged.stride = a.floats.bytes;
        const bool here = a.float_weights_at != 0 && FloatRow(a.floats, float_row).whole();
        if (here) wait_parity(shared_address(&float_weights_there), 0);
        multiply_float_units<1, 1, 2>(a.floats, staged, float_row, ctas, 0, 1, results, 7,
                                      here ? x + a.float_weights_at : nullptr);
    }
    const char* const row_of_x = x + kF16Block * chain * a.quads;
    const float* const scale_of_x = scales + chain * a.quads;
    auto* const terms = reinterpret_cast<float*>(x + a.terms_at);                   // [team][quad][chain][16 rows]
    auto* const meeting = reinterpret_cast<float*>(x + a.meeting_at) + team * 128;  // [2][chain][16 rows]
    const F16Lane<4> mine(a, slots, slots + kHighAt, slots + kHeadsAt, chain);
    const int ring_bytes = a.stages * a.slot_bytes;
    int slot = 0, other = 0;  // slot: bytes behind the first one
    uint32_t full = bars, parity = 0;
    int strip = first_strip + begin / a.quads, quad0 = begin % a.quads;
#pragma unroll 1
    for (int left = end - begin; left > 0; ++strip, quad0 = 0) {
        const int count = min(left, a.quads - quad0);
        left -= count;
        const StripRows rows(a, strip);
        const F16Matrix& m = a.m[rows.matrix[0]];
        const bool q6 = m.q6 != 0;
        const int row = rows.row[0] + lane;  // to be stored by lanes of chain 0
        const bool stores = chain == 0 && lane < (a.gate_up != 0 ? 8 : 16) && row < m.rows;
        const float old = a.residual != nullptr && quad0 == 0 && stores ? a.residual[row] : 0.0f;
        F16BlockScale d;
        if (q6) d.enter(a, rows, chain, quad0);
        float c[2][2] = {};  // chains of even and of odd quads; rows g, g + 8; lanes with t = 0
        const auto add = [&](bool odd, float scale, float low, float high) {
            if (!odd) c[0][0] = __fmaf_rn(scale, low, c[0][0]), c[0][1] = __fmaf_rn(scale, high, c[0][1]);
            else c[1][0] = __fmaf_rn(scale, low, c[1][0]), c[1][1] = __fmaf_rn(scale, high, c[1][1]);
        };
        const bool leaves = quad0 != 0 && t == 0;  // terms for the team that began the strip
        const auto multiply = [&](auto six) {
            constexpr bool kSix = decltype(six)::value;
            F16RowX block = {row_of_x + kF16Block * quad0};
            uint32_t scale = shared_address(scale_of_x + quad0),
                     to = shared_address(terms + (team * a.quads * 4 + chain) * 16 + g);
            int k = count;
            bool odd = false;
#pragma unroll 1
            do {
                const uint32_t d_now[2] = {d.d[0], d.d[1]};
                if (kSix && k > 1) d.next(1);
                wait_parity(full, parity);
                float v[4];
                multiply_tile<kSix, 1, false>(
                    mine.tile(slot, slot, slot, d_now), block, [](uint32_t) {},
                    [&](int, int e, float value) { v[e] = value; });
                arrive_at(full + 8);
                slot += a.slot_bytes, full += 16;
                if (slot == ring_bytes) slot = 0, full = bars, parity ^= 1;
                add(odd, load_shared(scale), v[0], v[2]);  // of no use if the terms are left to another team
                if (leaves) store_shared(to, v[0]), store_shared(to + 32, v[2]);
                odd = !odd, block.at += kF16Block, scale += 4, to += 256;
            } while (--k > 0);
        };
        if (q6) multiply(std::true_type{});
        else multiply(std::false_type{});
        if (quad0 != 0) {
            arrive_at(terms_there + 8 * team);
            continue;
        }
        // What other teams have of this strip.
#pragma unroll 1
        for (int k = count, from = team + 1; k < a.quads; ++from) {
            const int there =
                min(steps, begin_of(dealt, from + 1, kRowTeams)) - min(steps, begin_of(dealt, from, kRowTeams));
            const int some = min(there, a.quads - k);
            if (some == 0) continue;
            wait_parity(terms_there + 8 * from, 0);
#pragma unroll 1
            for (int i = 0; i < some; ++i, ++k) {
                const float* const of = terms + ((from * a.quads + i) * 4 + chain) * 16 + g;
                add(k % 2 != 0, scale_of_x[k], of[0], of[8]);
            }
        }
        float* const met = meeting + other * 64;
        other ^= 1;
        if (t == 0)
            met[16 * chain + g] = __fadd_rn(c[0][0], c[1][0]), met[16 * chain + 8 + g] = __fadd_rn(c[0][1], c[1][1]);
        sync_team(team);
        if (chain != 0) continue;
        const float* const s = met + lane % 16;
        float sum = __fadd_rn(__fadd_rn(s[0], s[16]), __fadd_rn(s[32], s[48]));
        if (a.x.kind == ActKind::norm) sum = __fmul_rn(sum, rms);
        const float up = __shfl_down_sync(~0u, sum, 8);
        if (!stores) continue;
        if (a.gate_up != 0) {
            m.y[row] = a.gate_up == 1 ? swiglu_value(sum, up) : swiglu_value(up, sum);
        } else {
            m.y[row] = sum;
            if (a.residual != nullptr) a.residual[row] = __fadd_rn(old, sum);
        }
    }
#endif
}

}  // namespace

void launch_f16_row(Context& ctx, F16Group& group, const ActSource& x) {
    F16Args& a = group.a;
    a.floats.bytes = a.floats.pairs > 0 ? act_layout(a.cols, false, true).float_bytes : 0;
    int64_t row_bytes = 0;
    for (int i = 0; i < a.floats.matrices; ++i) row_bytes = std::max<int64_t>(row_bytes, a.floats.m[i].row_bytes);
    const auto fit = fit_f16_row(chip_of(*ctx.gpu), a.cols, x.kind, group.q6, a.floats.bytes, row_bytes);
    RT_ASSERT(fit);
    a.scales_at = fit->scales_at, a.meeting_at = fit->meeting_at, a.terms_at = fit->terms_at;
    a.floats_at = fit->floats_at, a.float_weights_at = fit->float_weights_at;
    a.stages = fit->stages, a.slot_bytes = fit->slot_bytes, a.data_at = fit->data_at;
    a.x = x;
    const int64_t ctas = std::min<int64_t>(a.strips, std::max(1, ctx.gpu->info().sm_count));
    allow_shared(reinterpret_cast<const void*>(kquant_f16_row1_kernel), fit->shared);
    launch(*ctx.gpu, kquant_f16_row1_kernel, dim3(static_cast<unsigned>(ctas)), kAllThreads,
           static_cast<size_t>(fit->shared), a, group.maps(4));
}

}  // namespace riptide::ops::cuda::decode
