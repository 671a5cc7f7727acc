// Large Q4_K and Q6_K matrices times any number of rows of x in half precision (sm_90a): what Qwen3.5-27B's products are
// made of, one row or a draft's 24. Arithmetic and formats: decode_half.cuh.
//
// Bytes: those of the weights; in Q4_K gate and up 100 MB, down 50, a recurrent layer's projections 47, o 18, the head
// (Q6_K) 1.04 GB: 21.6, 10.8, 10.1, 3.8, 224 us at 4.65 TB/s. Instructions by count, for 16 x 256 weights: 204 + 37 for
// eight rows of x (decode_dense_row.cu, for one row: 324 on dp4a), as decoding a weight costs the same whatever the
// rows: 1.7 ms of issue slots for the whole model at one row, 2.2 at 24, where the bytes take 3.3.
// Design: one CTA of sixteen warps an SM. Teams of 4 / C warps share strips of sixteen weight rows, a warp a chain of
// them; the weights come by tensor copies, boxes of eight rows and four blocks, to a ring of the team's own, which its
// first lane asks for, from before pdl_wait() on. Where x does not fit in shared memory (C = 2, 4), C CTAs each have
// their share of the chains and of x, leave their sums in the L2 cache, and whoever comes last adds them up. One row is
// quantised by every CTA for itself (Own), more by a kernel before.
#include <algorithm>

#include "ops/decode_dense.cuh"
#include "ops/decode_dense.h"
#include "ops/decode_dense_float.cuh"
#include "ops/decode_dense_tile.cuh"
#include "ops/decode_float.h"
#include "ops/decode_half.cuh"
#include "ops/decode_half.h"
#include "ops/prefill_gemm_hopper.cuh"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kMostHalf = 4;  // matrices of a group
[[maybe_unused]] constexpr int kMostHalfStages = 6;
constexpr int kStripRows = 16;
constexpr int kMostHalfRows = 24;  // of x, in one launch
constexpr DType kQ4 = DType::planes_q4_k, kQ6 = DType::planes_q6_k;

struct HalfMatrix {
    const char* d;  // Q6_K
    float* y;
    int32_t rows, first;  // first strip
    int32_t q6;
};
struct HalfMaps {
    CUtensorMap data[kMostHalf], heads[kMostHalf], high[kMostHalf];
};
struct HalfArgs {
    HalfMatrix m[kMostHalf];
    int32_t matrices, strips;
    int32_t gate_up;  // strip s has rows 8 s .. of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t n, cols, quads;  // quads: blocks of 256 columns / 4
    int32_t teams, stages;   // of a CTA; of a team
    int32_t scales_at, data_at, high_at, heads_at, meeting_at, floats_at;  // in shared memory; x lies first
    ActSource x;             // Own: as given; otherwise as half_prepare_kernel() leaves it
    const float* scales;     // of blocks: [block][8 NT]
    const float* rms;        // of rows, or null
    float* residual;
    float* parts;       // C > 1: [strip][C][4 NT][32]
    int32_t* arrivals;  // C > 1: [strip]
    DenseFloats floats;
};

struct HalfPrepareArgs {
    ActSource x;  // kinds plain, norm
    char* out;
    float* scales;
    float* rms;
    int32_t* arrivals;
    int32_t n, cols, columns, float_bytes, strips;  // columns: rows of x to a block's scales
};

#if __CUDA_ARCH__ >= 900

/// Columns 8 c .. + 7 of x, times the norm's weights if there is a norm.
__device__ __forceinline__ void load_weighted(const ActSource& s, const float* x, int c, int cols, float (&v)[8]) {
    load8(x, c, cols, v);
    if (s.kind != ActKind::norm) return;
    float by[8] = {};
    load_norm8(s.norm, c, cols, by);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], by[i]);
}
__device__ __forceinline__ int half_place(int block, int quads) { return block % 4 * quads + block / 4; }

#endif

/// Row blockIdx.x; without a norm the columns from 2,048 blockIdx.y on.
__global__ void __launch_bounds__(kThreads) half_prepare_kernel(const __grid_constant__ HalfPrepareArgs a) {
#if __CUDA_ARCH__ >= 900
    __shared__ float partial[kWarps];
    pdl_trigger();
    pdl_wait();
    const int row = blockIdx.x, blocks = a.cols / 256, quads = blocks / 4;
    const auto* const x = reinterpret_cast<const float*>(a.x.rows + row * a.x.stride);
    char* const out = a.out + static_cast<int64_t>(row) * (kHalfBlock * blocks + a.float_bytes);
    const bool norm = a.x.kind == ActKind::norm;
    const ActLayout floats = {a.cols, 0, 0, a.float_bytes};
    if (a.arrivals != nullptr)
        for (int i = (blockIdx.y * gridDim.x + blockIdx.x) * kThreads + threadIdx.x; i < a.strips;
             i += gridDim.x * gridDim.y * kThreads)
            a.arrivals[i] = 0;
    const float scale = norm ? block_rms_scale(x, a.cols, a.x.eps, partial) : 1.0f;
    if (norm && threadIdx.x == 0) a.rms[row] = scale;
#pragma unroll 1
    for (int c = blockIdx.y * kThreads + threadIdx.x; c / 32 < blocks; c += gridDim.y * kThreads) {
        const int at = half_place(c / 32, quads);
        float v[8];
        load_weighted(a.x, x, c, a.cols, v);
        put_half_block(out + kHalfBlock * at, a.scales + a.columns * at + row % a.columns, v);
        if (a.float_bytes == 0) continue;
        if (norm) {
            float by[8] = {};
            load_norm8(a.x.norm, c, a.cols, by);
            load8(x, c, a.cols, v);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = rms_value(v[i], scale, by[i]);
        }
        put8(floats, out + kHalfBlock * blocks, c, v);
    }
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void half_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int row, int block,
                                         int quad, bool does) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %7, 0;\n@p cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];\n}" ::"r"(to),
        "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(block), "r"(quad), "r"(static_cast<int>(does))
        : "memory");
}
__device__ __forceinline__ void head_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int row,
                                         bool does) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n}" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(static_cast<int>(does))
        : "memory");
}
__device__ __forceinline__ void expect_if(uint32_t barrier, int bytes, bool does) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n}" ::"r"(
            barrier),
        "r"(bytes), "r"(static_cast<int>(does))
        : "memory");
}
__device__ __forceinline__ void wait_parity(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Where rows g (h = 0) and g + 8 (h = 1) of a strip are: the first of eight rows each.
struct StripRows {
    int matrix[2], row[2];

    __device__ __forceinline__ StripRows(const HalfArgs& a, int strip) {
        if (a.gate_up != 0) {
            matrix[0] = 0, matrix[1] = 1, row[0] = row[1] = 8 * strip;
        } else {
            int i = 0;
            while (i + 1 < a.matrices && strip >= a.m[i + 1].first) ++i;
            matrix[0] = matrix[1] = i;
            row[0] = kStripRows * (strip - a.m[i].first), row[1] = row[0] + 8;
        }
    }
};

/// What a team asks for next, and its ring: slots of T chains. All of a warp's lanes have the same.
template <int T>
struct HalfRing {
    static constexpr int kData = 2048 * T, kHigh = 1024 * T, kHeads = 256 * T;  // of a slot
    uint32_t data, high, heads, barriers;  // of slot 0; full and empty of a slot side by side
    int strip, quad, row[2], matrix[2], bytes;
    bool q6;

    __device__ __forceinline__ void enter(const HalfArgs& a, int to) {
        strip = to, quad = 0;
        if (to >= a.strips) return;
        const StripRows rows(a, to);
#pragma unroll
        for (int h = 0; h < 2; ++h) row[h] = rows.row[h], matrix[h] = rows.matrix[h];
        q6 = a.m[matrix[0]].q6 != 0;
        bytes = kData + kHeads + (q6 ? kHigh : 0);
    }
    /// The next quad to a slot; chain: the first of the team's. By a whole warp.
    __device__ __forceinline__ void ask(const HalfArgs& a, const HalfMaps& maps, int chain, int slot, int step,
                                        bool does) {
        const uint32_t full = barriers + 16 * slot;
        expect_if(full, bytes, does);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            half_box(data + slot * kData + h * (kData / 2), &maps.data[matrix[h]], full, row[h], chain, quad, does);
            head_box(heads + slot * kHeads + h * (kHeads / 2), &maps.heads[matrix[h]], full, 64 * quad + 16 * chain,
                     row[h], does);
            if (q6)
                half_box(high + slot * kHigh + h * (kHigh / 2), &maps.high[matrix[h]], full, row[h], chain, quad, does);
        }
        if (++quad == a.quads) enter(a, strip + step);
    }
};

/// Stores products of rows g and g + 8 of a strip and column `col` of x.
__device__ __forceinline__ void store_half(const HalfArgs& a, const StripRows& rows, int g, int col, float own_rms,
                                           float low, float high) {
    if (col >= a.n) return;
    if (a.x.norm != nullptr) {
        const float by = a.rms == nullptr ? own_rms : a.rms[col];
        low = __fmul_rn(low, by), high = __fmul_rn(high, by);
    }
    const HalfMatrix& m = a.m[rows.matrix[0]];
    float* const y = m.y + static_cast<int64_t>(col) * m.rows;
    const int row = rows.row[0] + g;
    if (a.gate_up != 0) {
        if (row < m.rows) y[row] = swiglu_value(low, high);
        return;
    }
    float* const residual = a.residual == nullptr ? nullptr : a.residual + static_cast<int64_t>(col) * m.rows;
    const auto put = [&](int i, float v) {
        if (i >= m.rows) return;
        y[i] = v;
        if (residual != nullptr) residual[i] = __fadd_rn(residual[i], v);
    };
    put(row, low), put(row + 8, high);
}

/// One row of x, by all threads of a CTA; what is loaded goes out at once. Returns 1 / rms, or 1.
template <int Threads>
struct OwnRow {
    static constexpr int kNormed = (768 + Threads - 1) / Threads;  // pieces of eight of up to 6,144 columns
    float norm[kNormed][8];

    __device__ __forceinline__ void load_norms_of(const HalfArgs& a) {
        if (a.x.kind != ActKind::norm) return;
#pragma unroll
        for (int r = 0; r < kNormed; ++r) load_norm8(a.x.norm, r * Threads + threadIdx.x, a.cols, norm[r]);
    }
    __device__ __forceinline__ float stage(const HalfArgs& a, char* x, float* scales, char* floats, float* partial) {
        const auto* const from = reinterpret_cast<const float*>(a.x.rows);
        const int pieces = a.cols / 8;
        const auto put = [&](int c, const float(&v)[8]) {
            const int place = half_place(c / 32, a.quads);
            if (c < pieces) put_half_block(x + kHalfBlock * place, scales + place, v);
        };
        float rms = 1.0f;
        if (a.x.kind == ActKind::norm) {
            float v[kNormed][8], w[kWholeRow][8], by[8];
#pragma unroll
            for (int r = 0; r < kNormed; ++r) load8(from, r * Threads + threadIdx.x, a.cols, v[r]);
            if (threadIdx.x < kThreads)
#pragma unroll
                for (int r = 0; r < kWholeRow; ++r) load8(from, r * kThreads + threadIdx.x, a.cols, w[r]);
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
            __syncthreads();
            rms = row_scale(partial, a.cols, a.x.eps);
            if (floats == nullptr) return rms;
#pragma unroll
            for (int r = 0; r < kNormed; ++r) {
#pragma unroll
                for (int i = 0; i < 8; ++i) by[i] = rms_value(v[r][i], rms, norm[r][i]);
                put8({a.cols, 0, 0, a.floats.bytes}, floats, r * Threads + threadIdx.x, by);
            }
        } else {
            constexpr int kTogether = 4;
#pragma unroll 1
            for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < pieces; c += kTogether * Threads) {
                float v[kTogether][8];
#pragma unroll
                for (int r = 0; r < kTogether; ++r) load8(from, c + r * Threads, a.cols, v[r]);
#pragma unroll
                for (int r = 0; r < kTogether; ++r) {
                    put(c + r * Threads, v[r]);
                    if (floats != nullptr) put8({a.cols, 0, 0, a.floats.bytes}, floats, c + r * Threads, v[r]);
                }
            }
        }
        __syncthreads();
        return rms;
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Warps of a CTA: a multiple of four.
template <int NT>
constexpr int half_warps() {
    return NT == 1 ? 20 : 16;
}

template <int NT, int C, bool Own>
__global__ void __launch_bounds__(32 * half_warps<NT>(), 1)
    half_kernel(const __grid_constant__ HalfArgs a, const __grid_constant__ HalfMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int T = 4 / C, kHalfWarps = half_warps<NT>(), kHalfThreads = 32 * kHalfWarps;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostHalfStages * kHalfWarps / T + 1];
    __shared__ float partial[kWarps];
    __shared__ alignas(16) float results[kHalfWarps / 4][kFloatPair * kFloatX * 4];
    pdl_trigger();
    char* const x = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = blockIdx.x % C, cta = blockIdx.x / C, ctas = gridDim.x / C;
    const int team = warp / T, of_team = warp % T;
    const int blocks = a.quads * T, stride = Own ? 0 : half_stride(blocks);  // blocks of x here
    const int first_slot = team * a.stages;
    HalfRing<T> ring;
    ring.data = shared_address(x) + a.data_at + first_slot * ring.kData;
    ring.high = shared_address(x) + a.high_at + first_slot * ring.kHigh;
    ring.heads = shared_address(x) + a.heads_at + first_slot * ring.kHeads;
    ring.barriers = shared_address(barriers) + 16 * first_slot;
    const uint32_t x_there = shared_address(barriers) + 16 * a.teams * a.stages;
    if (static_cast<int>(threadIdx.x) < a.teams * a.stages) {
        const uint32_t at = shared_address(barriers) + 16 * threadIdx.x;
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at + 8), "r"(32 * T) : "memory");
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (lane == 0 && warp < a.matrices) {
        prefetch_map(&maps.data[warp]);
        prefetch_map(&maps.heads[warp]);
        if (a.m[warp].q6 != 0) prefetch_map(&maps.high[warp]);
    }
    __syncthreads();
    const int step = a.teams * ctas;
    int strip = team < a.teams ? team * ctas + cta : a.strips;
    const bool asks = of_team == 0;
    ring.enter(a, strip);
    if (asks)
#pragma unroll 1
        for (int slot = 0; slot < a.stages && ring.strip < a.strips; ++slot)
            ring.ask(a, maps, rank * T, slot, step, lane == 0);
    auto* const scales = reinterpret_cast<float*>(x + a.scales_at);
    float rms = 1.0f;
    ActSource staged = a.x;
    // Float rows: for the CTAs that have the fewest strips.
    const int turned = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
    if constexpr (Own) {
        OwnRow<kHalfThreads> own;
        own.load_norms_of(a);
        char* const floats = turned < a.floats.pairs ? x + a.floats_at : nullptr;
        if (floats != nullptr && threadIdx.x == 0) prefetch_floats(a.floats, turned, static_cast<int>(gridDim.x));
        pdl_wait();
        rms = own.stage(a, x, scales, floats, partial);
        staged.rows = floats, staged.stride = a.floats.bytes;
        if (floats != nullptr) __syncthreads();
    } else {
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
        wait_parity(x_there, 0);
    }
    const char* rows[NT];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
        rows[nt] = x + (Own ? 0 : min(8 * nt + g, a.n - 1)) * stride + kHalfBlock * of_team * a.quads;
    const float* const first_scale = scales + (Own ? 1 : 8 * NT) * of_team * a.quads + (Own ? 0 : 2 * t);
    const int swizzled = T == 4 ? of_team ^ (g / 2) : T == 2 ? of_team ^ (g / 4) : 0;
    const char* const data = x + a.data_at + first_slot * ring.kData + of_team * 1024 + g * 128;
    const char* const high = x + a.high_at + first_slot * ring.kHigh + of_team * 512 + g * 64;
    const char* const heads = x + a.heads_at + first_slot * ring.kHeads + g * (16 * T) + 16 * swizzled;
    int slot = 0, before = 0;
    uint32_t parity = 0, before_parity = 0;
    bool first = true;
#pragma unroll 1
    for (; strip < a.strips; strip += step) {
        const StripRows strip_rows(a, strip);
        const bool q6 = a.m[strip_rows.matrix[0]].q6 != 0;
        const char* d_at[2] = {};  // d of Q6_K of this lane's rows
        uint32_t d[2] = {};
        if (q6)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const HalfMatrix& m = a.m[strip_rows.matrix[h]];
                const int row = min(strip_rows.row[h] + g, m.rows - 1);
                d_at[h] = m.d + 2 * (static_cast<int64_t>(row) * (4 * a.quads) + rank * T + of_team);
                d[h] = load_weight16(d_at[h]);
            }
        float c[NT][4] = {};
        const auto multiply = [&](auto six) {
            constexpr bool kSix = decltype(six)::value;
            const char* block[NT];
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) block[nt] = rows[nt];
            const float* scale_at = first_scale;
#pragma unroll 1
            for (int quad = 0; quad < a.quads; ++quad) {
                HalfTile tile;
                tile.d[0] = d[0], tile.d[1] = d[1];
                if (kSix && quad + 1 < a.quads)
#pragma unroll
                    for (int h = 0; h < 2; ++h) d[h] = load_weight16(d_at[h] += 8);
                wait_parity(ring.barriers + 16 * slot, parity);
                if (asks && !first && ring.strip < a.strips) {
                    wait_parity(ring.barriers + 16 * before + 8, before_parity);
                    ring.ask(a, maps, rank * T, before, step, lane == 0);
                }
                first = false;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    tile.data[h] = data + slot * ring.kData + h * (ring.kData / 2);
                    tile.high[h] = high + slot * ring.kHigh + h * (ring.kHigh / 2);
                    tile.head[h] =
                        *reinterpret_cast<const uint4*>(heads + slot * ring.kHeads + h * (ring.kHeads / 2));
                }
                multiply_tile<kSix, NT>(
                    tile, block, [&](int nt, int i) { return scale_at[Own ? 0 : 8 * nt + i]; }, c);
                asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(ring.barriers + 16 * slot + 8) : "memory");
                before = slot, before_parity = parity;
                if (++slot == a.stages) slot = 0, parity ^= 1;
#pragma unroll
                for (int nt = 0; nt < NT; ++nt) block[nt] += kHalfBlock;
                scale_at += Own ? 1 : 8 * NT;
            }
        };
        if (q6) multiply(std::true_type{});
        else multiply(std::false_type{});
        auto* const meeting = reinterpret_cast<float*>(x + a.meeting_at) + team * (C == 1 ? 4 : 1) * (128 * NT) + lane;
        const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(7 + team), "n"(32 * T) : "memory"); };
        if constexpr (C == 1) {
#pragma unroll
            for (int i = 0; i < 4 * NT; ++i) meeting[(of_team * 4 * NT + i) * 32] = c[i / 4][i % 4];
            sync();
#pragma unroll
            for (int i = 0; i < 2 * NT; ++i) {
                if (i % 4 != of_team || 8 * (i / 2) + i % 2 >= a.n) continue;
                const int nt = i / 2, e = i % 2;
                float v[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float* const s = meeting + (4 * nt + e + 2 * h) * 32;
                    v[h] = __fadd_rn(__fadd_rn(s[0], s[128 * NT]), __fadd_rn(s[256 * NT], s[384 * NT]));
                }
                store_half(a, strip_rows, g, 8 * nt + 2 * t + e, rms, v[0], v[1]);
            }
            sync();
        } else {
            if constexpr (C == 2) {
                if (of_team == 1)
#pragma unroll
                    for (int i = 0; i < 4 * NT; ++i) meeting[32 * i] = c[i / 4][i % 4];
                sync();
                if (of_team == 0)
#pragma unroll
                    for (int i = 0; i < 4 * NT; ++i) c[i / 4][i % 4] = __fadd_rn(c[i / 4][i % 4], meeting[32 * i]);
            }
            if (of_team == 0) {
                float* const parts = a.parts + static_cast<int64_t>(strip) * (C * 128 * NT) + lane;
#pragma unroll
                for (int i = 0; i < 4 * NT; ++i) parts[rank * (128 * NT) + 32 * i] = c[i / 4][i % 4];
                __syncwarp();
                int arrived = 0;
                if (lane == 0) {
                    __threadfence();
                    arrived = atomicAdd(a.arrivals + strip, 1);
                    __threadfence();
                }
                arrived = __shfl_sync(~0u, arrived, 0);
                if (arrived == C - 1)
#pragma unroll
                    for (int i = 0; i < 2 * NT; ++i) {
                        const int nt = i / 2, e = i % 2;
                        float v[2];
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            const float* const s = parts + (4 * nt + e + 2 * h) * 32;
                            float p[C];
#pragma unroll
                            for (int k = 0; k < C; ++k) p[k] = __ldcg(s + k * (128 * NT));
                            if constexpr (C == 2) v[h] = __fadd_rn(p[0], p[1]);
                            else v[h] = __fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[C - 2], p[C - 1]));
                        }
                        store_half(a, strip_rows, g, 8 * nt + 2 * t + e, rms, v[0], v[1]);
                    }
            }
            if constexpr (C == 2) sync();
        }
    }
    if (a.floats.pairs > 0 && (!Own || staged.rows != nullptr))
        multiply_floats<kHalfWarps / 4>(a.floats, staged, turned, gridDim.x, 0, a.n, results[warp / 4]);
#endif
}

// ---- The host's side.

/// A plane of `each` bytes for each block of 256 columns, in boxes of eight rows and `chains` blocks of four.
CUtensorMap half_boxes(const char* plane, int64_t rows, int blocks, int each, int chains) {
    prefill::BoxedTensor t;
    t.data = plane;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = each == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    t.rank = 4;
    const auto e = static_cast<cuuint64_t>(each), b = static_cast<cuuint64_t>(blocks);
    t.extents[0] = e, t.extents[1] = static_cast<cuuint64_t>(rows), t.extents[2] = 4, t.extents[3] = b / 4;
    t.strides[0] = e * b, t.strides[1] = e, t.strides[2] = 4 * e;
    t.box[0] = static_cast<cuuint32_t>(each), t.box[1] = 8, t.box[2] = static_cast<cuuint32_t>(chains), t.box[3] = 1;
    return prefill::encode(t);
}
CUtensorMap half_heads(const char* plane, int64_t rows, int blocks, int chains) {
    prefill::BoxedTensor t;
    t.data = plane;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = chains == 4   ? CU_TENSOR_MAP_SWIZZLE_64B
                : chains == 2 ? CU_TENSOR_MAP_SWIZZLE_32B
                              : CU_TENSOR_MAP_SWIZZLE_NONE;
    t.extents[0] = static_cast<cuuint64_t>(16 * blocks), t.extents[1] = static_cast<cuuint64_t>(rows);
    t.strides[0] = static_cast<cuuint64_t>(16 * blocks);
    t.box[0] = static_cast<cuuint32_t>(16 * chains), t.box[1] = 8;
    return prefill::encode(t);
}

/// How x and the rings share shared memory; false: they do not fit.
template <int NT, int C, bool Own>
bool place_half(const Context& ctx, HalfArgs& a, int teams, bool q6, int64_t& shared) {
    constexpr int T = 4 / C;
    constexpr int64_t kStatic = (2 * kMostHalfStages * half_warps<NT>() / T + 1) * 8 + 700, kAlign = 1024;
    const int64_t blocks = a.quads * T, columns = Own ? 1 : 8 * NT;
    const auto up = [](int64_t v, int64_t to) { return (v + to - 1) / to * to; };
    const int64_t x = Own ? kHalfBlock * blocks : int64_t{a.n} * half_stride(static_cast<int>(blocks));
    const int64_t meeting = C == 1 ? teams * 4 * 512 * NT : C == 2 ? teams * 512 * NT : 0;
    const int64_t floats = Own && a.floats.pairs > 0 ? a.floats.bytes : 0;
    const int64_t fixed = up(x + 4 * columns * blocks, kAlign) + meeting + floats;
    const int64_t stage = T * (2048 + 256 + (q6 ? 1024 : 0));
    const int64_t room = ctx.gpu->info().shared_bytes - kStatic - kAlign - fixed;
    a.stages = static_cast<int32_t>(std::min<int64_t>(kMostHalfStages, room / (teams * stage)));
    if (room < 0 || a.stages < 2) return false;
    a.teams = teams;
    int64_t at = up(x + 4 * columns * blocks, kAlign);
    const auto take = [&at](int64_t bytes) {
        const int64_t from = at;
        at += bytes;
        return static_cast<int32_t>(from);
    };
    const int64_t slots = int64_t{teams} * a.stages;
    a.scales_at = static_cast<int32_t>(x);
    a.data_at = take(slots * 2048 * T);
    a.high_at = take(q6 ? slots * 1024 * T : 0);
    a.heads_at = take(slots * 256 * T);
    a.meeting_at = take(meeting);
    a.floats_at = take(floats);
    shared = at + kAlign;
    return true;
}

/// What the host knows of a group.
struct HalfGroup {
    HalfArgs a = {};
    const Weight* w[kMostHalf] = {};
    bool q6 = false;

    void add(const Weight& weight, float* y, int strip_rows) {
        const Matrix m = matrix_of(weight);
        const bool six = weight.dtype == kQ6;
        q6 = q6 || six;
        w[a.matrices] = &weight;
        a.m[a.matrices++] = {tile_planes(m).d, y, m.rows, a.strips, six ? 1 : 0};
        a.strips += (m.rows + strip_rows - 1) / strip_rows;
    }
};

template <int NT, int C, bool Own>
bool launch_half(Context& ctx, HalfGroup& group, const ActSource& x) {
    HalfArgs& a = group.a;
    constexpr int kTeams = half_warps<NT>() * C / 4;
    int64_t shared = 0;
    if (!place_half<NT, C, Own>(ctx, a, kTeams, group.q6, shared) &&
        (C == 1 || !place_half<NT, C, Own>(ctx, a, kTeams * 3 / 4, group.q6, shared)) &&
        (C == 1 || !place_half<NT, C, Own>(ctx, a, kTeams / 2, group.q6, shared)))
        return false;
    HalfMaps maps = {};
    for (int i = 0; i < a.matrices; ++i) {
        const TilePlanes planes = tile_planes(matrix_of(*group.w[i]));
        const int64_t rows = group.w[i]->rows;
        maps.data[i] = half_boxes(planes.data, rows, 4 * a.quads, 128, 4 / C);
        maps.heads[i] = half_heads(planes.scales, rows, 4 * a.quads, 4 / C);
        if (a.m[i].q6 != 0) maps.high[i] = half_boxes(planes.high, rows, 4 * a.quads, 64, 4 / C);
    }
    a.x = x;
    if constexpr (!Own) {
        const int64_t blocks = 4 * a.quads, stride = kHalfBlock * blocks + a.floats.bytes;
        HalfPrepareArgs p = {};
        p.x = x;
        p.out = static_cast<char*>(ctx.arena->allocate(a.n * stride));
        p.scales = static_cast<float*>(ctx.arena->allocate(blocks * 8 * NT * 4));
        p.n = a.n, p.cols = a.cols, p.columns = 8 * NT, p.float_bytes = a.floats.bytes, p.strips = a.strips;
        if (x.kind == ActKind::norm) p.rms = static_cast<float*>(ctx.arena->allocate(a.n * 4));
        if (C > 1) {
            p.arrivals = static_cast<int32_t*>(ctx.arena->allocate(a.strips * 4));
            a.parts = static_cast<float*>(ctx.arena->allocate(int64_t{a.strips} * C * 512 * NT));
        }
        const int64_t pieces = x.kind == ActKind::norm ? 1 : (a.cols + 2047) / 2048;
        launch(*ctx.gpu, half_prepare_kernel, dim3(static_cast<unsigned>(a.n), static_cast<unsigned>(pieces)), kThreads,
               0, p);
        a.x.kind = ActKind::staged;
        a.x.rows = p.out;
        a.x.stride = stride;
        a.x.norm = x.kind == ActKind::norm ? x.norm : nullptr;
        a.scales = p.scales, a.rms = p.rms, a.arrivals = p.arrivals;
    }
    const auto kernel = half_kernel<NT, C, Own>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    const int64_t groups = std::min<int64_t>(a.strips, std::max(1, ctx.gpu->info().sm_count / C));
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(C * groups)), 32 * half_warps<NT>(),
           static_cast<size_t>(shared), a, maps);
    return true;
}

/// Up to 24 rows. False: they do not fit.
bool launch_rows(Context& ctx, HalfGroup& group, const ActSource& x) {
    const int n = group.a.n;
    if (n == 1 && (x.kind != ActKind::norm || group.a.cols <= 2048 * kWholeRow))
        return launch_half<1, 1, true>(ctx, group, x);
    if (n <= 8) return launch_half<1, 1, false>(ctx, group, x) || launch_half<1, 4, false>(ctx, group, x);
    if (n <= 16) return launch_half<2, 2, false>(ctx, group, x) || launch_half<2, 4, false>(ctx, group, x);
    return launch_half<3, 2, false>(ctx, group, x) || launch_half<3, 4, false>(ctx, group, x);
}

/// All rows, as many at a time as fit.
bool multiply_half(Context& ctx, const HalfGroup& group, const ActSource& x, int64_t cols, int64_t n) {
    for (int64_t row = 0; row < n;) {
        bool done = false;
        for (const int64_t most : {int64_t{kMostHalfRows}, int64_t{16}, int64_t{8}, int64_t{1}}) {
            const ArenaScope scope(*ctx.arena);
            HalfGroup part = group;
            HalfArgs& a = part.a;
            a.n = static_cast<int32_t>(std::min(most, n - row));
            a.cols = static_cast<int32_t>(cols);
            a.quads = static_cast<int32_t>(cols / 1024);
            for (int i = 0; i < a.matrices; ++i)
                if (a.m[i].y != nullptr) a.m[i].y += row * a.m[i].rows;
            for (int i = 0; i < a.floats.matrices; ++i) a.floats.m[i].y += row * a.floats.m[i].rows;
            if (a.residual != nullptr) a.residual += row * a.m[0].rows;
            a.floats.bytes = a.floats.pairs > 0 ? act_layout(cols, false, true).float_bytes : 0;
            ActSource from = x;
            from.rows += row * x.stride;
            if (x.kind != ActKind::norm) from.norm = nullptr;
            if (!launch_rows(ctx, part, from)) continue;
            row += a.n;
            done = true;
            break;
        }
        RT_CHECK(done, "rows of {} values do not fit in the {} bytes of shared memory of {}", cols,
                 ctx.gpu->info().shared_bytes, ctx.gpu->info().name);
    }
    return true;
}

bool half_source(const ActSource& x) { return x.kind == ActKind::plain || x.kind == ActKind::norm; }

}  // namespace

bool half_weight(const Gpu& gpu, const Weight& w) {
    return gpu.info().major == 9 && gpu.info().shared_bytes >= (220 << 10) && dense_weight(gpu, w) &&
           (w.dtype == kQ4 || w.dtype == kQ6) && w.cols % 1024 == 0 && w.cols > 2048 &&
           (w.rows >= 4096 || w.cols % 2048 != 0);
}

bool half_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<const Tensor> y, Tensor* residual) {
    if (!half_source(x)) return false;
    HalfGroup group;
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        if (half_weight(*ctx.gpu, w) && group.a.matrices < kMostHalf) group.add(w, y[i].row(0), kStripRows);
        else if (residual != nullptr || !group.a.floats.add(w, y[i].row(0))) return false;
    }
    if (group.a.matrices == 0) return false;
    group.a.residual = residual == nullptr ? nullptr : residual->row(0);
    return multiply_half(ctx, group, x, cols, n);
}

bool half_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                  float* out) {
    if (!half_source(x) || !half_weight(*ctx.gpu, gate) || !half_weight(*ctx.gpu, up) || gate.dtype != up.dtype ||
        gate.rows != up.rows)
        return false;
    HalfGroup group;
    group.add(gate, out, kStripRows / 2);
    const int32_t strips = group.a.strips;
    group.add(up, nullptr, kStripRows / 2);
    group.a.strips = strips;
    group.a.gate_up = 1;
    return multiply_half(ctx, group, x, cols, n);
}

}  // namespace riptide::ops::cuda::decode
