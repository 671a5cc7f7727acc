// Large Q4_K, Q5_K and Q6_K matrices of any width times one row of x: the products of Qwen3.5-27B (5,120, 6,144 and
// 17,408 columns), which take 10 to 25 us each, so that bytes in flight count and the ends of kernels still matter.
//
// Bytes: those of the weights; in Q4_K gate and up 100 MB, down 50, a recurrent layer's projections 47, o 18, the head
// (Q6_K) 1.04 GB: 21.6, 10.8, 10.1, 3.8, 224 us at 4.65 TB/s.
// Measured (H200, 2026-11-22, bench_gpu_dense, each op by itself): gate, up and down 48 us, projections 20, o 10; a
// chain of them as in a model 89 us (docs/results/qwen35.md).
// What limits it is not known in this state. Not code: loops are short, and one function serves all ops. Chains of
// kernels that overlap take longer than their ops alone.
// Design: one CTA of eight warps an SM, in about half of its shared memory, so that the next kernel's CTA fits beside
// it and fills its rings meanwhile. Each warp has a contiguous range of rows, two at a time, and a ring of stages of
// its own in shared memory: up to 5,120 columns (Q6_K: 3,072) of both rows, brought by bulk copies of which eight lanes
// ask for one each. No barrier but those of a warp. The rings are filled before pdl_wait(); behind it the CTA
// normalises and quantises x, all of whose loads go out at once. Gate and up: a row of each, and silu(gate) * up is
// what is stored. Float matrices of a group (48 rows of beta) go to the last warps. Tried: loops unrolled for whole
// rows (chains 7 % slower), 12 warps a CTA (slower), 16 (64 registers: slower); triggering the next kernel behind the
// wait (the same); weights by cp.async (9 % slower).
#include <algorithm>

#include "ops/decode_batch.cuh"
#include "ops/decode_dense.cuh"
#include "ops/decode_dense.h"
#include "ops/decode_k_dot.cuh"
#include "ops/decode_matmul.cuh"
#include "ops/decode_tile.cuh"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kRowWarps = 8, kRowCtas = 2;       // of a CTA; of an SM: this kernel's and the next one's
constexpr int kStage = 160, kQ6Stage = 96;       // sub-blocks of a stage
constexpr int kMostPlanes = 4, kMostFloats = 4;  // matrices of a group
constexpr int kLeastSlots = 2, kMostSlots = 6;   // stages of a warp's ring
constexpr int kDBytes = 64;                      // of a row's d of Q6_K in a stage: at most 56 are used
constexpr int kLarge = 116 << 10;                // more than half of an SM's shared memory

struct DenseMatrix {
    const char* data;
    const char* high;
    const char* scales;
    const char* d;  // planes_q6_k
    float* y;
    int32_t rows, first;  // first row, among those of the group
    DType type;
};

struct DenseRowArgs {
    DenseMatrix m[kMostPlanes];
    Matrix floats[kMostFloats];
    int32_t matrices, rows, plane_warps, float_rows, float_warps;
    int32_t gate_up;                        // row p is row p of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t stage_groups, pieces, tail;     // sub-blocks of a stage; stages of a row; sub-blocks of the last of them
    int32_t slots, slot_bytes, slot_start;  // the rings lie at slot_start of shared memory
    ActLayout layout;
    ActSource x;
    float* residual;
};

/// Where the parts of a row lie in a stage of up to `groups` sub-blocks; both rows of a pair lie one behind the other.
struct StageParts {
    int high, heads, d, bytes;

    RT_HD static constexpr StageParts of(DType type, int groups) {
        StageParts p{};
        p.high = 16 * groups;
        p.heads = p.high + (type == DType::planes_q6_k ? 8 * groups : type == DType::planes_q5_k ? 4 * groups : 0);
        p.d = p.heads + 2 * groups;
        p.bytes = p.d + (type == DType::planes_q6_k ? kDBytes : 0);
        return p;
    }
};

#if __CUDA_ARCH__ >= 900

/// The matrix of row `row` of the group.
__device__ __forceinline__ int matrix_of_row(const DenseRowArgs& a, int row) {
    int i = 0;
    if (a.gate_up == 0)
#pragma unroll
        for (int k = 1; k < kMostPlanes; ++k)
            if (k < a.matrices && row >= a.m[k].first) i = k;
    return i;
}
/// A warp's ring, and its walk over the stages that it asks for, two rows at a time (the last of a matrix may be
/// alone): lanes 0 to 7 have a part (nibbles, high bits, scales, d of Q6_K) of a row each.
struct DenseRing {
    static constexpr int kLanes = 8;
    uint32_t slots, barriers;  // addresses; a barrier is eight bytes
    int row, end, piece = 0, slot = 0;
    // Of this lane, as far as the matrix goes:
    int matrix_end = 0, which = 0;  // the row behind the matrix's last or `end`; this lane's row of the two
    const char* from = nullptr;     // this lane's part of the next stage
    int64_t skip = 0;               // bytes from the end of a row to the next one's of this lane
    int each = 0, to = 0;           // bytes of a sub-block, place in the stage
    bool d = false;                 // a sub-block has a quarter of a byte

    __device__ __forceinline__ uint32_t barrier(int i) const { return barriers + 8 * i; }
    __device__ __forceinline__ void begin_matrix(const DenseRowArgs& a, int lane) {
        const int second = lane / 4 % 2, part = lane % 4;
        const bool both = a.gate_up != 0;
        const DenseMatrix& m = both ? a.m[second] : a.m[matrix_of_row(a, row)];
        matrix_end = both ? end : min(end, m.first + m.rows);
        which = both ? 0 : second;
        const int64_t group = static_cast<int64_t>(row - m.first + which) * a.layout.groups;
        const int64_t stride = (both ? 0 : 1) * a.layout.groups;
        const StageParts parts = StageParts::of(m.type, a.stage_groups);
        const bool q6 = m.type == DType::planes_q6_k;
        d = q6 && part == 3;
        each = part == 0 ? 16 : part == 2 ? 2 : part == 3 ? 0 : q6 ? 8 : m.type == DType::planes_q5_k ? 4 : 0;
        to = second * parts.bytes + (part == 0 ? 0 : part == 1 ? parts.high : part == 2 ? parts.heads : parts.d);
        from = part == 3   ? m.d + group / 4
               : part == 2 ? m.scales + each * group
                           : (part == 1 ? m.high : m.data) + each * group;
        skip = d ? stride / 4 : each * stride;
    }
    /// Asks for the next stage. All lanes; there is one.
    __device__ __forceinline__ void ask(const DenseRowArgs& a, int lane) {
        const bool ends = piece + 1 == a.pieces;
        const int n = ends ? a.tail : a.stage_groups;
        if (lane < kLanes) {
            int bytes = each * n;
            const char* begin = from;
            from += bytes;
            if (d) {  // the sixteen-byte pieces that have them
                const int before = static_cast<int>(reinterpret_cast<uintptr_t>(begin) & 15);
                begin -= before;
                from += n / 4;
                bytes = (before + n / 4 + 15) & ~15;
            }
            if (row + which >= matrix_end) bytes = 0;
            const uint32_t full = barrier(slot);
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "r"(bytes) : "memory");
            if (bytes > 0)
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                        slots + slot * a.slot_bytes + to),
                    "l"(begin), "r"(bytes), "r"(full)
                    : "memory");
        }
        if (++slot == a.slots) slot = 0;
        ++piece;
        if (!ends) return;
        piece = 0;
        from += skip;
        row += a.gate_up != 0 ? 1 : 2;
        if (row < matrix_end) return;
        row = matrix_end;
        if (row < end) begin_matrix(a, lane);
    }
    __device__ __forceinline__ void wait(int at, uint32_t parity) const {
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
                barrier(at)),
            "r"(parity)
            : "memory");
    }
};

/// acc[g] += sub-block i of both rows of a stage, number j of a row, times x.
template <DType Type>
__device__ __forceinline__ void dot_sub_block(const char* stage, const StageParts& parts, int i, int j, int d_at,
                                              const KShifts& at, const char* staged, int groups, float (&acc)[2]) {
    constexpr bool kQ6 = Type == DType::planes_q6_k;
    KActs x;
    if constexpr (Type != DType::planes_q5_k) x = k_acts<kQ6>(staged, groups, j);
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
            dot_plane<AllPlanes, 1>(Type, Matrix{}, raw, j, groups, staged, 0, 1, one);
            acc[g] = one[0];
        } else {
            uint2 high = {};
            float2 by;
            if constexpr (kQ6) {
                high = *reinterpret_cast<const uint2*>(row + parts.high + 8 * i);
                by = q6_scales(*reinterpret_cast<const uint16_t*>(row + parts.heads + 2 * i),
                               *reinterpret_cast<const uint16_t*>(row + parts.d + (d_at >> (16 * g) & 15) + i / 8 * 2));
            } else {
                by = q4_scales<true>(load_shared16(row + parts.heads + i / 8 * 16), at);
            }
            acc[g] = fmaf(k_value<kQ6>(q, high, x, by), x.d, acc[g]);
        }
    }
}

/// acc[g] += rows of a stage (n sub-blocks, the first of which is number j of the row) times x. A short loop: what runs
/// once for each stage waits for instructions, if it is long.
template <DType Type>
__device__ __forceinline__ void dot_stage(const char* stage, const StageParts& parts, int n, int j, int d_at,
                                          const char* staged, int groups, int lane, float (&acc)[2]) {
    const KShifts at(lane);
    int i = lane;
#pragma unroll 1
    for (; i - lane + 64 <= n; i += 64)
#pragma unroll
        for (int u = 0; u < 64; u += 32)
            dot_sub_block<Type>(stage, parts, i + u, j + i + u, d_at, at, staged, groups, acc);
#pragma unroll 1
    for (; i < n; i += 32) dot_sub_block<Type>(stage, parts, i, j + i, d_at, at, staged, groups, acc);
}

/// stage_floats() for a long row that is not normalised: same bits, several loads at once. Behind pdl_wait().
__device__ __forceinline__ void stage_long_row(const ActSource& s, const ActLayout& l, char* staged) {
    constexpr int kTogether = 5;
    const auto* x = reinterpret_cast<const float*>(s.rows);
#pragma unroll 1
    for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < l.cols / 8; c += kTogether * kThreads) {
        float v[kTogether][8];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) load8(x, c + r * kThreads, l.cols, v[r]);
#pragma unroll
        for (int r = 0; r < kTogether; ++r) put8(l, staged, c + r * kThreads, v[r]);
    }
}

#endif  // __CUDA_ARCH__ >= 900

__global__ void __launch_bounds__(32 * kRowWarps, kRowCtas) dense_row_kernel(const __grid_constant__ DenseRowArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    __shared__ uint64_t barriers[kRowWarps][kMostSlots];
    pdl_trigger();
    char* const staged = reinterpret_cast<char*>(dynamic);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int unit = warp * gridDim.x + blockIdx.x;
    const bool planes = unit < a.plane_warps;
    const int begin = planes ? share(a.rows, unit, a.plane_warps) : 0,
              end = planes ? share(a.rows, unit + 1, a.plane_warps) : 0;
    char* const slots = staged + a.slot_start + warp * a.slots * a.slot_bytes;
    DenseRing ring{static_cast<uint32_t>(__cvta_generic_to_shared(slots)),
                   static_cast<uint32_t>(__cvta_generic_to_shared(barriers[warp])), begin, end};
    if (lane < a.slots)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(ring.barrier(lane)), "n"(ring.kLanes) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    if (begin < end) ring.begin_matrix(a, lane);
#pragma unroll 1
    for (int k = 0; k < a.slots && ring.row < end; ++k) ring.ask(a, lane);
    float norm[kWholeRow][8] = {};
    if (threadIdx.x < kThreads) load_norms(a.x, a.layout.cols, norm);
    pdl_wait();
    const bool first_ones = threadIdx.x < kThreads;  // the order of a norm's sum is that of 256 threads
    if (a.x.kind == ActKind::int8) {
        if (first_ones) stage_int8(a.x, a.layout, 0, 1, staged);
    } else if (a.x.kind == ActKind::norm) {
        if (first_ones) stage_whole_row(a.x, reinterpret_cast<const float*>(a.x.rows), a.layout, norm, staged, partial);
    } else if (first_ones) {
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
    int slot = 0, matrix_end = begin;
    uint32_t parity = 0;
    const DenseMatrix* m = a.m;
    const char* second_d = nullptr;  // as seen from the first row's number
    StageParts parts = {};
#pragma unroll 1
    for (int p = begin; p < end;) {
        if (p >= matrix_end) {
            m = a.m + matrix_of_row(a, p);
            matrix_end = a.gate_up != 0 ? end : min(end, m->first + m->rows);
            second_d = a.gate_up != 0 ? a.m[1].d : m->d + groups / 4;
            parts = StageParts::of(m->type, a.stage_groups);
        }
        const int row = p - m->first;
        const DType type = m->type;
        const bool stores = lane % 16 == 0 && p + lane / 16 < matrix_end;
        const float old = a.residual != nullptr && stores ? a.residual[row + lane / 16] : 0.0f;
        int d_at = 0;  // where d of both rows lie in sixteen bytes, the second sixteen bits on
        if (type == DType::planes_q6_k) {
            const int64_t at = static_cast<int64_t>(row) * (groups / 4);
            d_at = static_cast<int>(reinterpret_cast<uintptr_t>(m->d + at) & 15) |
                   static_cast<int>(reinterpret_cast<uintptr_t>(second_d + at) & 15) << 16;
        }
        float acc[2] = {0.0f, 0.0f};
        int j = 0;
#pragma unroll 1
        for (int piece = 1; piece <= a.pieces; ++piece, j += a.stage_groups) {
            const int n = piece == a.pieces ? a.tail : a.stage_groups;
            const char* const stage = slots + slot * a.slot_bytes;
            ring.wait(slot, parity);
            if (type == DType::planes_q4_k) {
                dot_stage<DType::planes_q4_k>(stage, parts, n, j, 0, staged, groups, lane, acc);
            } else if (type == DType::planes_q5_k) {
                dot_stage<DType::planes_q5_k>(stage, parts, n, j, 0, staged, groups, lane, acc);
            } else {
                const int d_here = (d_at + (j / 4) * 0x10001) & 0x000F000F;
                dot_stage<DType::planes_q6_k>(stage, parts, n, j, d_here, staged, groups, lane, acc);
            }
            __syncwarp();  // the stage has been read
            if (++slot == a.slots) slot = 0, parity ^= 1;
            if (ring.row < end) ring.ask(a, lane);
        }
        const float sum = reduce_lanes<2>(acc, lane);  // of row lane / 16
        if (a.gate_up != 0) {
            const float up = __shfl_xor_sync(~0u, sum, 16);
            if (lane == 0) m->y[row] = swiglu_value(sum, up);
        } else if (stores) {
            m->y[row + lane / 16] = sum;
            if (a.residual != nullptr) a.residual[row + lane / 16] = __fadd_rn(old, sum);
        }
        p = a.gate_up != 0 ? p + 1 : min(p + 2, matrix_end);
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
    a.layout = act_layout(cols, true, a.float_rows > 0);
    a.x = x;
    // Two CTAs an SM, of this kernel and the next. Products that are added to x ask for more than half of the memory,
    // others for what is left beside that: along a chain they alternate, and no SM gets two CTAs of one kernel.
    const bool large = a.x.kind != ActKind::norm;
    const int64_t all = ctx.gpu->info().shared_bytes, fixed = 2 << 10;  // static, and what the system takes
    const int64_t room = kRowCtas == 1 ? all - fixed : large ? kLarge : all + (1 << 10) - kLarge - 2 * fixed;
    bool q6 = false;
    for (int i = 0; i < a.matrices; ++i) q6 = q6 || a.m[i].type == DType::planes_q6_k;
    a.stage_groups = std::min(q6 ? kQ6Stage : kStage, a.layout.groups);
    a.pieces = (a.layout.groups + a.stage_groups - 1) / a.stage_groups;
    a.tail = a.layout.groups - (a.pieces - 1) * a.stage_groups;
    a.slot_bytes = 0;
    for (int i = 0; i < a.matrices; ++i)
        a.slot_bytes = std::max(a.slot_bytes, 2 * StageParts::of(a.m[i].type, a.stage_groups).bytes);
    a.slot_start = (a.layout.bytes() + 127) / 128 * 128;
    a.slot_bytes = (a.slot_bytes + 127) / 128 * 128;
    const int64_t slots = (room - a.slot_start) / (int64_t{kRowWarps} * a.slot_bytes);
    a.slots = static_cast<int32_t>(std::clamp<int64_t>(slots, kLeastSlots, kMostSlots));
    const int64_t shared =
        std::max<int64_t>(large ? kLarge : 0, a.slot_start + int64_t{kRowWarps} * a.slots * a.slot_bytes);
    if (shared + fixed > all) return false;
    const int64_t units = a.rows + a.float_rows, sms = ctx.gpu->info().sm_count;
    const int64_t ctas = std::min(sms, (units + kRowWarps - 1) / kRowWarps), warps = ctas * kRowWarps;
    a.float_warps = static_cast<int32_t>(std::min<int64_t>((a.float_rows + 1) / 2, std::max<int64_t>(1, warps / 4)));
    a.plane_warps = static_cast<int32_t>(std::min<int64_t>(warps - a.float_warps, a.rows));
    allow_shared(reinterpret_cast<const void*>(dense_row_kernel), shared);
    launch(*ctx.gpu, dense_row_kernel, dim3(static_cast<unsigned>(ctas)), 32 * kRowWarps, static_cast<size_t>(shared),
           a);
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
            a.m[a.matrices++] = dense_matrix(w, y[i].row(0), a.rows);
            a.rows += static_cast<int32_t>(w.rows);
        } else if (plain && floats < kMostFloats && residual == nullptr && x.kind != ActKind::int8) {
            Matrix& m = a.floats[floats++] = matrix_of(w);
            m.y = y[i].row(0);
            m.first_row = a.float_rows;
            a.float_rows += m.rows;
        } else {
            return false;
        }
    }
    if (a.rows == 0) return false;
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
    a.rows = static_cast<int32_t>(gate.rows);
    a.gate_up = 1;
    return launch_row(ctx, a, x, cols);
}

}  // namespace riptide::ops::cuda::decode
