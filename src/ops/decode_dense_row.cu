// Large Q4_K, Q5_K and Q6_K matrices of any width times one row of x: the products of Qwen3.5-27B (5,120, 6,144 and
// 17,408 columns), which take 10 to 25 us each, so that bytes in flight count and the ends of kernels still matter.
//
// Bytes: those of the weights; in Q4_K gate and up 100 MB, down 50, a recurrent layer's projections 47, o 18, the head
// (Q6_K) 1.04 GB: 21.6, 10.8, 10.1, 3.8, 224 us at 4.65 TB/s.
// Design: one CTA of eight warps an SM, in at most half of its shared memory, so that the next kernel's CTA fits beside
// it and fills its rings meanwhile. Each warp has a contiguous range of pairs of rows, and a ring of stages of its own
// in shared memory: 3,072 columns of both rows, brought by bulk copies of which each lane asks for one, 60 to 85 KB of
// them on their way in an SM. No barrier but those of a warp. The rings are filled before pdl_wait(); behind it the
// CTA normalises and quantises x, all of whose loads go out at once. Gate and up: a pair is a row of each, and
// silu(gate) * up is what is stored. Float matrices of a group (48 rows of beta) go to the last warps.
#include <algorithm>

#include "ops/decode_batch.cuh"
#include "ops/decode_dense.cuh"
#include "ops/decode_dense.h"
#include "ops/decode_k_dot.cuh"
#include "ops/decode_matmul.cuh"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kMostPlanes = 4, kMostFloats = 4;  // matrices of a group
#ifndef DENSE_WARPS
#define DENSE_WARPS 16
#endif
#ifndef DENSE_STEPS
#define DENSE_STEPS 2
#endif
constexpr int kRowWarps = DENSE_WARPS, kRowThreads = 32 * kRowWarps;
constexpr int kSteps = DENSE_STEPS;             // 1,024 columns each, of a stage
constexpr int kLeastSlots = 2, kMostSlots = 6;  // stages of a warp's ring
constexpr int kDBytes = 64;                     // of a row's d of Q6_K in a stage: at most 48 are used

struct DenseMatrix {
    const char* data;
    const char* high;
    const char* scales;
    const char* d;  // planes_q6_k
    float* y;
    int32_t rows, first;  // first pair
    DType type;
};

struct DenseRowArgs {
    DenseMatrix m[kMostPlanes];
    Matrix floats[kMostFloats];
    int32_t matrices, pairs, plane_warps, float_rows, float_warps;
    int32_t gate_up;                        // pair p is row p of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t pieces;                         // stages of a pair
    int32_t slots, slot_bytes, slot_start;  // the rings lie at slot_start of shared memory
    ActLayout layout;
    ActSource x;
    float* residual;
};

/// Where the parts of a row lie in a stage of n sub-blocks; both rows of a pair lie one behind the other.
struct StageParts {
    int high, heads, d, bytes;

    RT_HD static StageParts of(DType type, int n) {
        StageParts p;
        p.high = 16 * n;
        p.heads = p.high + (type == DType::planes_q6_k ? 8 * n : type == DType::planes_q5_k ? 4 * n : 0);
        p.d = p.heads + 2 * n;
        p.bytes = p.d + (type == DType::planes_q6_k ? kDBytes : 0);
        return p;
    }
};
constexpr int kStageGroups = 32 * kSteps;

#if __CUDA_ARCH__ >= 900

/// A place in a warp's walk over the stages of its pairs.
struct Walk {
    int pair, piece, slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance(int pieces, int slots) {
        if (++piece == pieces) piece = 0, ++pair;
        if (++slot == slots) slot = 0, parity ^= 1;
    }
};

/// The rows of pair `pair`: of one matrix, or of gate and up.
struct Pair {
    const DenseMatrix* m[2];
    int row[2], count;

    __device__ __forceinline__ Pair(const DenseRowArgs& a, int pair) {
        if (a.gate_up != 0) {
            m[0] = &a.m[0], m[1] = &a.m[1], row[0] = row[1] = pair, count = 2;
            return;
        }
        int i = 0;
#pragma unroll
        for (int k = 1; k < kMostPlanes; ++k)
            if (k < a.matrices && pair >= a.m[k].first) i = k;
        m[0] = m[1] = &a.m[i];
        row[0] = 2 * (pair - a.m[i].first);
        count = min(2, a.m[i].rows - row[0]);
        row[1] = row[0] + count - 1;
    }
};

/// The first sub-block of a stage.
__device__ __forceinline__ int first_of(const ActLayout& l, int piece) { return min(piece * kStageGroups, l.groups); }

struct DenseRing {
    char* slots;
    uint32_t barriers;  // 8 bytes for each slot

    __device__ __forceinline__ uint32_t barrier(int slot) const { return barriers + 8 * slot; }
    /// Asks for a stage. All lanes.
    __device__ __forceinline__ void ask(const DenseRowArgs& a, const Walk& at, int lane) const {
        const Pair pair(a, at.pair);
        const int j = first_of(a.layout, at.piece), n = first_of(a.layout, at.piece + 1) - j;
        const int which = lane / 4 % 2, part = lane % 4;  // lanes 0 to 7: a part of a row each
        const DenseMatrix& m = *pair.m[which];
        const StageParts parts = StageParts::of(m.type, n);
        const int64_t at_group = static_cast<int64_t>(pair.row[which]) * a.layout.groups + j;
        const char* from = m.data + 16 * at_group;
        int to = 0, bytes = 16 * n;
        if (part == 1) {
            const int each = m.type == DType::planes_q6_k ? 8 : m.type == DType::planes_q5_k ? 4 : 0;
            from = m.high + each * at_group, to = parts.high, bytes = each * n;
        } else if (part == 2) {
            from = m.scales + 2 * at_group, to = parts.heads, bytes = 2 * n;
        } else if (part == 3) {  // the sixteen-byte pieces that have them
            const char* first = m.d + at_group / 4;
            from = first - (reinterpret_cast<uintptr_t>(first) & 15), to = parts.d;
            bytes = m.type == DType::planes_q6_k ? static_cast<int>(first + n / 4 - from + 15) / 16 * 16 : 0;
        }
        if (lane >= 4 * pair.count) bytes = 0;
        const uint32_t sum = __reduce_add_sync(~0u, static_cast<uint32_t>(bytes));
        const uint32_t full = barrier(at.slot);
        if (lane == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "r"(sum) : "memory");
        __syncwarp();
        if (bytes > 0)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    static_cast<uint32_t>(
                        __cvta_generic_to_shared(slots + at.slot * a.slot_bytes + which * parts.bytes + to))),
                "l"(from), "r"(bytes), "r"(full)
                : "memory");
    }
    __device__ __forceinline__ void wait(const Walk& at) const {
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
                barrier(at.slot)),
            "r"(at.parity)
            : "memory");
    }
};

/// acc[g] += sub-block i of both rows of a stage, number j + i of a row, times x.
template <DType Type>
__device__ __forceinline__ void dot_sub_block(const char* stage, const StageParts& parts, int i, int j, int d_at,
                                              const KShifts& at, const char* staged, int groups, float (&acc)[2]) {
    constexpr bool kQ6 = Type == DType::planes_q6_k;
    KActs x;
    if constexpr (Type != DType::planes_q5_k) x = k_acts<kQ6>(staged, groups, j + i);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        const char* const row = stage + g * parts.bytes;
        const uint4 q = *reinterpret_cast<const uint4*>(row + 16 * i);
        if constexpr (Type == DType::planes_q5_k) {
            uint32_t raw[AllPlanes::kWords];
            put_words(raw, 0, q);
            put_words(raw, 4, *reinterpret_cast<const uint4*>(row + parts.heads + i / 8 * 16));
            raw[8] = *reinterpret_cast<const uint32_t*>(row + parts.high + 4 * i);
            float one[1] = {acc[g]};
            dot_plane<AllPlanes, 1>(Type, Matrix{}, raw, j + i, groups, staged, 0, 1, one);
            acc[g] = one[0];
        } else {
            uint2 high = {};
            float2 by;
            if constexpr (kQ6) {
                high = *reinterpret_cast<const uint2*>(row + parts.high + 8 * i);
                by = q6_scales(*reinterpret_cast<const uint16_t*>(row + parts.heads + 2 * i),
                               *reinterpret_cast<const uint16_t*>(row + parts.d + (d_at >> (16 * g) & 15) + i / 8 * 2));
            } else {
                by = q4_scales<true>(*reinterpret_cast<const uint4*>(row + parts.heads + i / 8 * 16), at);
            }
            acc[g] = fmaf(k_value<kQ6>(q, high, x, by), x.d, acc[g]);
        }
    }
}

/// acc[g] += rows of a stage (n sub-blocks, the first of which is number j of the row) times x. Whole steps have no
/// branches between them, so that the loads of one go ahead of the arithmetic of the other.
template <DType Type>
__device__ __forceinline__ void dot_stage(const char* stage, int n, int j, int d_at, const char* staged, int groups,
                                          int lane, float (&acc)[2]) {
    const KShifts at(lane);
    if (n == kStageGroups) {
        const StageParts parts = StageParts::of(Type, kStageGroups);
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
            dot_sub_block<Type>(stage, parts, 32 * s + lane, j, d_at, at, staged, groups, acc);
    } else {
        const StageParts parts = StageParts::of(Type, n);
#pragma unroll 1
        for (int i = lane; i < n; i += 32) dot_sub_block<Type>(stage, parts, i, j, d_at, at, staged, groups, acc);
    }
}

/// stage_floats() for a long row that is not normalised: same bits, several loads at once. Behind pdl_wait().
__device__ __forceinline__ void stage_long_row(const ActSource& s, const ActLayout& l, char* staged) {
    constexpr int kTogether = kRowWarps == 8 ? 5 : 3;
    const auto* x = reinterpret_cast<const float*>(s.rows);
#pragma unroll 1
    for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < l.cols / 8; c += kTogether * kRowThreads) {
        float v[kTogether][8];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) load8(x, c + r * kRowThreads, l.cols, v[r]);
#pragma unroll
        for (int r = 0; r < kTogether; ++r) put8(l, staged, c + r * kRowThreads, v[r]);
    }
}

#endif  // __CUDA_ARCH__ >= 900

__global__ void __launch_bounds__(kRowThreads, 2) dense_row_kernel(const __grid_constant__ DenseRowArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    __shared__ uint64_t barriers[kRowWarps][kMostSlots];
    pdl_trigger();
    char* const staged = reinterpret_cast<char*>(dynamic);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int unit = warp * gridDim.x + blockIdx.x;
    const bool planes = unit < a.plane_warps;
    const int begin = planes ? share(a.pairs, unit, a.plane_warps) : 0,
              end = planes ? share(a.pairs, unit + 1, a.plane_warps) : 0;
    const DenseRing ring{staged + a.slot_start + warp * a.slots * a.slot_bytes,
                         static_cast<uint32_t>(__cvta_generic_to_shared(barriers[warp]))};
    if (lane < a.slots) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(ring.barrier(lane)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    Walk ask{begin, 0}, now{begin, 0};
#pragma unroll 1
    for (int k = 0; k < a.slots && ask.pair < end; ++k, ask.advance(a.pieces, a.slots)) ring.ask(a, ask, lane);
    float norm[kWholeRow][8] = {};
    if (threadIdx.x < kThreads) load_norms(a.x, a.layout.cols, norm);
    pdl_wait();
    const bool first_ones = threadIdx.x < kThreads;  // the order of a norm's sum is that of 256 threads
    if (a.x.kind == ActKind::int8) {
        if (first_ones) stage_int8(a.x, a.layout, 0, 1, staged);
    } else if (a.x.kind == ActKind::norm) {
        if (first_ones) stage_whole_row(a.x, reinterpret_cast<const float*>(a.x.rows), a.layout, norm, staged, partial);
    } else {
        stage_long_row(a.x, a.layout, staged);
    }
    __syncthreads();
    if (!planes) {
        const int i = unit - a.plane_warps;
        if (i >= a.float_warps) return;
        using Floats = FloatBatch<PlainFloats, 1, 8>;
        uint32_t raw[Floats::kWords];
        const auto matrix = [&](int row) {
            int k = 0;
            while (row >= a.floats[k].first_row + a.floats[k].rows) ++k;
            return k;
        };
        struct Rows {
            const DenseRowArgs& a;
            decltype(matrix)& matrix;
            __device__ __forceinline__ RowRef operator()(int row) const {
                const int k = matrix(row);
                return {k, 0, row - a.floats[k].first_row};
            }
        };
        const Rows row_of{a, matrix};
        const auto nothing = [] {};
        run_rows<Floats, 1>(a.floats, row_of, share(a.float_rows, i, a.float_warps),
                            share(a.float_rows, i + 1, a.float_warps), lane, raw, false, staged, a.layout, 1, nothing,
                            nothing, [&](int row, int, float sum) {
                                const RowRef r = row_of(row);
                                a.floats[r.matrix].y[r.row] = __fmul_rn(sum, a.floats[r.matrix].scale);
                            });
        return;
    }
    const int groups = a.layout.groups;
#pragma unroll 1
    while (now.pair < end) {
        const Pair pair(a, now.pair);
        const int64_t at_block[2] = {static_cast<int64_t>(pair.row[0]) * (groups / 8),
                                     static_cast<int64_t>(pair.row[1]) * (groups / 8)};
        const DType type = pair.m[0]->type;
        float acc[2] = {0.0f, 0.0f};
#pragma unroll 1
        for (int piece = 0; piece < a.pieces; ++piece) {
            const int j = first_of(a.layout, piece), n = first_of(a.layout, piece + 1) - j;
            const char* const stage = ring.slots + now.slot * a.slot_bytes;
            ring.wait(now);
            if (type == DType::planes_q6_k) {
                int d_at = 0;  // of both rows, sixteen bits each
#pragma unroll
                for (int g = 0; g < 2; ++g)
                    d_at |= static_cast<int>(reinterpret_cast<uintptr_t>(pair.m[g]->d + 2 * (at_block[g] + j / 8)) & 15)
                            << (16 * g);
                dot_stage<DType::planes_q6_k>(stage, n, j, d_at, staged, groups, lane, acc);
            } else if (type == DType::planes_q5_k) {
                dot_stage<DType::planes_q5_k>(stage, n, j, 0, staged, groups, lane, acc);
            } else {
                dot_stage<DType::planes_q4_k>(stage, n, j, 0, staged, groups, lane, acc);
            }
            __syncwarp();  // the stage has been read
            now.advance(a.pieces, a.slots);
            if (ask.pair < end) {
                ring.ask(a, ask, lane);
                ask.advance(a.pieces, a.slots);
            }
        }
        const float sum = reduce_lanes<2>(acc, lane);  // of row lane / 16
        if (a.gate_up != 0) {
            const float up = __shfl_xor_sync(~0u, sum, 16);
            if (lane == 0) a.m[0].y[pair.row[0]] = swiglu_value(sum, up);
        } else if (lane % 16 == 0 && lane / 16 < pair.count) {
            const int row = pair.row[0] + lane / 16;
            pair.m[0]->y[row] = sum;
            if (a.residual != nullptr) a.residual[row] = __fadd_rn(a.residual[row], sum);
        }
    }
#endif
}

DenseMatrix dense_matrix(const Weight& w, float* y, int32_t first) {
    const char* const scales = static_cast<const char*>(w.scales);
    return {static_cast<const char*>(w.data),
            static_cast<const char*>(w.high),
            scales,
            scales + w.rows * (w.cols / 16),
            y,
            static_cast<int32_t>(w.rows),
            first,
            w.dtype};
}

/// Everything but matrices and floats is set here. False: rows this long do not fit.
bool launch_row(Context& ctx, DenseRowArgs& a, const ActSource& x, int64_t cols) {
    // Two CTAs an SM, of this kernel and the next.
    const int64_t room = (ctx.gpu->info().shared_bytes + (1 << 10)) / 2 - (1 << 10) - (1 << 10);
    a.layout = act_layout(cols, true, a.float_rows > 0);
    a.x = x;
    a.pieces = (a.layout.groups + kStageGroups - 1) / kStageGroups;
    for (int i = 0; i < a.matrices; ++i)
        a.slot_bytes =
            std::max(a.slot_bytes, 2 * StageParts::of(a.m[i].type, std::min(kStageGroups, a.layout.groups)).bytes);
    a.slot_start = (a.layout.bytes() + 127) / 128 * 128;
    a.slot_bytes = (a.slot_bytes + 127) / 128 * 128;
    const int64_t slots = (room - a.slot_start) / (int64_t{kRowWarps} * a.slot_bytes);
    a.slots = static_cast<int32_t>(std::clamp<int64_t>(slots, kLeastSlots, kMostSlots));
    const int64_t shared = a.slot_start + int64_t{kRowWarps} * a.slots * a.slot_bytes;
    if (shared + (1 << 10) > ctx.gpu->info().shared_bytes) return false;
    const int64_t units = a.pairs + a.float_rows, sms = ctx.gpu->info().sm_count;
    const int64_t ctas = std::min(sms, (units + kRowWarps - 1) / kRowWarps), warps = ctas * kRowWarps;
    a.float_warps = static_cast<int32_t>(std::min<int64_t>(a.float_rows, std::max<int64_t>(1, warps / 4)));
    a.plane_warps = static_cast<int32_t>(std::min<int64_t>(warps - a.float_warps, a.pairs));
    allow_shared(reinterpret_cast<const void*>(dense_row_kernel), shared);
    launch(*ctx.gpu, dense_row_kernel, dim3(static_cast<unsigned>(ctas)), kRowThreads, static_cast<size_t>(shared), a);
    return true;
}

}  // namespace

bool dense_weight(const Gpu& gpu, const Weight& w) {
    const bool type = w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q5_k || w.dtype == DType::planes_q6_k;
    return gpu.info().major >= 9 && !gpu.options().portable && type && w.scale == 1.0f && w.cols > 0 &&
           w.cols % 256 == 0 && w.rows > 0;
}

bool dense_multiply_row(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                        std::span<Tensor> y, Tensor* residual) {
    if (x.kind == ActKind::staged || (x.kind == ActKind::norm && cols > 2048 * kWholeRow)) return false;
    DenseRowArgs a = {};
    int floats = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        const bool plain = (w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16) &&
                           w.scales == nullptr && w.rows > 0;
        if (dense_weight(*ctx.gpu, w) && a.matrices < kMostPlanes) {
            a.m[a.matrices++] = dense_matrix(w, y[i].row(0), a.pairs);
            a.pairs += static_cast<int32_t>((w.rows + 1) / 2);
        } else if (plain && floats < kMostFloats && residual == nullptr && x.kind != ActKind::int8) {
            Matrix& m = a.floats[floats++] = matrix_of(w);
            m.y = y[i].row(0);
            m.first_row = a.float_rows;
            a.float_rows += m.rows;
        } else {
            return false;
        }
    }
    if (a.pairs == 0) return false;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return launch_row(ctx, a, x, cols);
}

bool dense_gate_up_row(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                       float* out) {
    if (!dense_weight(*ctx.gpu, gate) || !dense_weight(*ctx.gpu, up) || gate.dtype != up.dtype ||
        gate.rows != up.rows || x.kind == ActKind::staged || (x.kind == ActKind::norm && cols > 2048 * kWholeRow))
        return false;
    DenseRowArgs a = {};
    a.m[0] = dense_matrix(gate, out, 0);
    a.m[1] = dense_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.pairs = static_cast<int32_t>(gate.rows);
    a.gate_up = 1;
    return launch_row(ctx, a, x, cols);
}

}  // namespace riptide::ops::cuda::decode
