// Large Q4_K, Q5_K and Q6_K matrices of any width times one row of x, by tensor cores.
#include <algorithm>
#include <cstdlib>

#include "ops/decode_dense.h"
#include "ops/decode_dense_diag.cuh"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

#if __CUDA_ARCH__ >= 900

/// Barriers of the warps that multiply, and of them and the one with float rows.
template <int Mul>
__device__ __forceinline__ void sync_multiplying() {
    asm volatile("bar.sync 1, %0;" ::"n"(Mul) : "memory");
}
template <int Mul>
__device__ __forceinline__ void sync_staged() {
    asm volatile("bar.sync 2, %0;" ::"n"(Mul + 32) : "memory");
}
__device__ __forceinline__ void sync_quad(int quad) { asm volatile("bar.sync %0, 128;" ::"r"(3 + quad) : "memory"); }

/// Columns 8 c .. + 7 of x, quantised as put8() does.
struct DiagPut {
    char* x;
    DiagX l;
    ActLayout floats;
    char* to_floats;

    __device__ __forceinline__ void operator()(int c, const float (&v)[8]) const {
        const Act8 q = quantise8(v);
        const int g = c / 4, quarter = c % 4;
        if (g < l.groups) {
            *reinterpret_cast<uint2*>(x + 8 * c) = q.words;
            if (quarter == 0) {
                *reinterpret_cast<float2*>(x + l.pairs() + 8 * g) = make_float2(q.d, static_cast<float>(q.all));
                *reinterpret_cast<float*>(x + l.halves() + 4 * g) = static_cast<float>(q.half);
            }
        }
        put8(floats, to_floats, c, v);
    }
};

/// A row that is normalised, by twice the threads of stage_whole_row() of decode_dense.cuh: same bits. The sum of
/// squares is that of 256 threads, which load what others will quantise besides.
template <int Mul>
struct NormedRow {
    static constexpr int kMost = 2048 * kWholeRow / 8;  // pieces of eight
    static constexpr int kOwn = (kMost + Mul - 1) / Mul, kSums = kMost / kThreads;
    float norm[kOwn][8] = {};

    __device__ __forceinline__ void load_weights_of(const ActSource& s, int cols) {
        if (s.kind != ActKind::norm) return;
#pragma unroll
        for (int r = 0; r < kOwn; ++r) load_norm8(s.norm, r * Mul + threadIdx.x, cols, norm[r]);
    }
    __device__ __forceinline__ void stage(const ActSource& s, int cols, const DiagPut& put, float* partial) const {
        const auto* x = reinterpret_cast<const float*>(s.rows);
        float v[kOwn][8];
#pragma unroll
        for (int r = 0; r < kOwn; ++r) load8(x, r * Mul + threadIdx.x, cols, v[r]);
        if (threadIdx.x < kThreads) {
            float sum = 0.0f;
#pragma unroll
            for (int r = 0; r < kSums; ++r) {
                if (r * kThreads % Mul == 0) {
                    sum = add_squares(v[r * kThreads / Mul], sum);
                } else {
                    float other[8];
                    load8(x, r * kThreads + threadIdx.x, cols, other);
                    sum = add_squares(other, sum);
                }
            }
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        }
        sync_multiplying<Mul>();
        const float scale = row_scale(partial, cols, s.eps);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) v[r][i] = rms_value(v[r][i], scale, norm[r][i]);
            put(r * Mul + threadIdx.x, v[r]);
        }
    }
};

/// A row that is not normalised, several loads at once.
template <int Mul>
__device__ __forceinline__ void stage_plain_row(const ActSource& s, int cols, const DiagPut& put) {
    constexpr int kTogether = 5;
    const auto* x = reinterpret_cast<const float*>(s.rows);
#pragma unroll 1
    for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < cols / 8; c += kTogether * Mul) {
        float v[kTogether][8];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) load8(x, c + r * Mul, cols, v[r]);
#pragma unroll
        for (int r = 0; r < kTogether; ++r) put(c + r * Mul, v[r]);
    }
}

/// An ActRow.
template <int Mul>
__device__ __forceinline__ void stage_quantised_row(const ActSource& s, const DiagX& l, char* x) {
#pragma unroll 1
    for (int g = threadIdx.x; g < l.groups; g += Mul) {
        const uint4 lo = load_weights(s.rows + 16 * g), hi = load_weights(s.rows + 16 * (l.groups + g));
        const uint2 pair = load_weight64(s.rows + 32 * l.groups + 8 * g);
        const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        reinterpret_cast<uint4*>(x)[2 * g] = lo;
        reinterpret_cast<uint4*>(x)[2 * g + 1] = hi;
        reinterpret_cast<uint2*>(x + l.pairs())[g] = pair;
        reinterpret_cast<float*>(x + l.halves())[g] = static_cast<float>(dot4(ones, lo));
    }
}

/// Float rows of the group, every so many-th: by one warp.
struct FloatRows {
    const DiagArgs& a;
    __device__ __forceinline__ int matrix(int row) const {
        int k = 0;
        while (row >= a.floats[k].first_row + a.floats[k].rows) ++k;
        return k;
    }
    __device__ __forceinline__ RowRef operator()(int row) const {
        const int k = matrix(row);
        return {k, 0, row - a.floats[k].first_row};
    }
    /// So that multiply() finds them in the L2 cache. One thread; before pdl_wait().
    __device__ __forceinline__ void fetch(int first, int by) const {
        for (int row = first; row < a.float_rows; row += by) {
            const Matrix& m = a.floats[matrix(row)];
            const char* const from = m.data + (row - m.first_row) * m.row_bytes;
            const uint32_t bytes = static_cast<uint32_t>(m.row_bytes) & ~15u;
            if ((reinterpret_cast<uintptr_t>(from) & 15) == 0 && bytes > 0)
                asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
        }
    }
    __device__ __forceinline__ void multiply(int first, int by, int lane, const char* x) const {
        using Floats = FloatBatch<PlainFloats, 1, 8>;
        uint32_t raw[Floats::kWords];
        const ActLayout layout = {a.cols, 0, 0, a.float_bytes};
        const auto nothing = [] {};
#pragma unroll 1
        for (int row = first; row < a.float_rows; row += by)
            run_rows<Floats, 1>(a.floats, *this, row, row + 1, lane, raw, false, x, layout, 1, nothing, nothing,
                                [&](int i, int, float sum) {
                                    const RowRef r = (*this)(i);
                                    a.floats[r.matrix].y[r.row] = __fmul_rn(sum, a.floats[r.matrix].scale);
                                });
    }
};

#endif  // __CUDA_ARCH__ >= 900

/// f with the type of a matrix as a constant.
template <bool Q4, class F>
__device__ __forceinline__ void with_type(DType type, const F& f) {
    if (Q4 || type == DType::planes_q4_k) f(std::integral_constant<DType, DType::planes_q4_k>{});
    else if (type == DType::planes_q6_k) f(std::integral_constant<DType, DType::planes_q6_k>{});
    else f(std::integral_constant<DType, DType::planes_q5_k>{});
}

template <bool Q4, int Quads, bool Masks, int Unroll>
__global__ void __launch_bounds__(diag_threads(Quads), 1) dense_diag_kernel(const __grid_constant__ DiagArgs a) {
#if __CUDA_ARCH__ >= 900
    constexpr int kMul = diag_multiplying(Quads), kDiagWarps = 4 * Quads;
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ uint64_t barriers[2 * kDiagBarriers];
    __shared__ float4 sums[Quads][2][4][32];
    pdl_trigger();
    char* const shared = reinterpret_cast<char*>(dynamic);
    char* const slots = shared + a.slot_start;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cta = blockIdx.x, ctas = gridDim.x;
    const int begin = cta * a.each + min(cta, a.more), count = a.each + (cta < a.more ? 1 : 0);
    const DiagRing ring(barriers);
    const DiagX layout{a.blocks * 8};
    if (warp == kDiagWarps) ring.init(lane);
    if (threadIdx.x < 8) reinterpret_cast<uint32_t*>(shared + layout.zeros())[threadIdx.x] = 0;
    __syncthreads();
    if (warp == kDiagWarps || warp == kDiagWarps + 1) {
        const int half = warp - kDiagWarps;
        const auto ask = [&](int from, int to) {
            int seq = 0;
#pragma unroll 1
            for (int round = 0; round < count; round += Quads)
#pragma unroll 1
                for (int part = 0; part < a.parts; ++part)
#pragma unroll 1
                    for (int tile = round; tile < min(count, round + Quads); ++tile, ++seq) {
                        if (seq < from) continue;
                        if (seq >= to) return;
                        if (seq >= a.slots) ring.wait(ring.empty, seq - a.slots);
                        const DiagMatrix& m = a.m[matrix_of_tile(a, begin + tile)];
                        with_type<Q4>(m.type, [&](auto type) {
                            ask_part<decltype(type)::value>(a, m, begin + tile, half, part,
                                                            shared_address(slots) + seq % a.slots * a.slot_bytes,
                                                            ring.full + 8 * (seq % kDiagBarriers));
                        });
                    }
        };
        if (lane == 0) ask(0, a.slots);
        pdl_wait();
        if (lane == 0) ask(a.slots, INT32_MAX);
        return;
    }
    if (warp > kDiagWarps + 1) {
        const FloatRows floats{a};
        if (lane == 0) floats.fetch(cta, ctas);
        pdl_wait();
        sync_staged<kMul>();
        floats.multiply(cta, ctas, lane, shared + a.float_start);
        return;
    }
    NormedRow<kMul> row;
    row.load_weights_of(a.x, a.cols);
    pdl_wait();
    const DiagPut put{shared, layout, {a.cols, 0, 0, a.float_bytes}, shared + a.float_start};
    if (a.mode & 2) {}
    else if (a.x.kind == ActKind::norm) row.stage(a.x, a.cols, put, partial);
    else if (a.x.kind != ActKind::int8) stage_plain_row<kMul>(a.x, a.cols, put);
    else stage_quantised_row<kMul>(a.x, layout, shared);
    sync_staged<kMul>();
    const int quad = warp / 4, q = warp % 4, g = lane / 4, t = lane % 4;
    const DiagLane<Masks> x(shared, layout, lane);
    const HeadShifts at(t);
#pragma unroll 1
    for (int round = 0, seq0 = 0; round + quad < count; round += Quads) {
        const int together = min(count - round, Quads), tile = begin + round + quad;
        const DiagMatrix& m = a.m[matrix_of_tile(a, tile)];
        const bool pairs = a.gate_up != 0;
        // Lanes t = 0 and 1 of a warp, each quad's warps by turns, store row g and the one eight on.
        const bool finishes = round / Quads % 4 == q;
        const int kept = pairs ? 8 * tile + t * 4 + g / 2 : kDiagRows * (tile - m.first) + g % 2 * 8 + t * 4 + g / 2;
        const bool stores = finishes && t < 2 && kept < m.rows && (!pairs || g % 2 == 0);
        const float old = a.residual != nullptr && stores ? a.residual[kept] : 0.0f;
        float acc[4] = {};
#pragma unroll 1
        for (int part = 0; part < a.parts; ++part) {
            const int seq = seq0 + part * together + quad;
            ring.wait(ring.full, seq);
            if ((a.mode & 1) == 0) with_type<Q4>(m.type, [&](auto type) {
                constexpr DType kType = decltype(type)::value;
                diag_part<kType, Masks, Unroll>(shared_address(slots) + seq % a.slots * a.slot_bytes, DiagSlot<kType>{a.part, a.blocks},
                                 part * a.part, q, x, at, lane, acc);
            });
            ring.used(seq);
        }
        seq0 += a.parts * together;
        float4(&meeting)[4][32] = sums[quad][round / Quads % 2];
        meeting[q][lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        sync_quad(quad);
        if (!finishes) continue;
        const float4 v[4] = {meeting[0][lane], meeting[1][lane], meeting[2][lane], meeting[3][lane]};
        const auto add = [](float v0, float v1, float v2, float v3) {
            return __fadd_rn(__fadd_rn(v0, v2), __fadd_rn(v1, v3));
        };
        float sum[4] = {add(v[0].x, v[1].x, v[2].x, v[3].x), add(v[0].y, v[1].y, v[2].y, v[3].y),
                        add(v[0].z, v[1].z, v[2].z, v[3].z), add(v[0].w, v[1].w, v[2].w, v[3].w)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 2));
            sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 1));
        }
        const float one = __fadd_rn(sum[0], sum[1]), two = __fadd_rn(sum[2], sum[3]), mine = t == 0 ? one : two;
        if (pairs) {
            const float up = __shfl_xor_sync(~0u, mine, 4);
            if (stores) m.y[kept] = swiglu_value(mine, up);
        } else if (stores) {
            m.y[kept] = mine;
            if (a.residual != nullptr) a.residual[kept] = __fadd_rn(old, mine);
        }
    }
#endif
}

/// Everything but matrices and floats is set here. False: rows this long do not fit.
template <int Quads, bool Masks, int Unroll>
bool launch_diag(Context& ctx, DiagArgs& a, const ActSource& x, int64_t cols) {
    bool q4 = true;
    for (int i = 0; i < a.matrices; ++i) q4 = q4 && a.m[i].type == DType::planes_q4_k;
    const char* const only = std::getenv("RIPTIDE_DIAG");
    if (only != nullptr && only[0] == '0') return false;
    if (!q4 || (cols > 24 * 256 && (only == nullptr || only[0] < 'a'))) return false;
    const int64_t ctas = std::min<int64_t>(ctx.gpu->info().sm_count, a.tiles);
    const int64_t most = (a.tiles + ctas - 1) / ctas;  // tiles of a CTA
    constexpr int64_t kStatic = (4096 + 64) * Quads + 768;  // static, and what the system takes
    a.each = static_cast<int32_t>(a.tiles / ctas);
    a.more = static_cast<int32_t>(a.tiles % ctas);
    a.cols = static_cast<int32_t>(cols);
    a.blocks = static_cast<int32_t>(cols / 256);
    a.x = x;
    const char* const mode = std::getenv("RIPTIDE_DIAG_MODE");
    a.mode = mode != nullptr ? std::atoi(mode) : 0;
    a.float_start = DiagX{a.blocks * 8}.bytes();
    a.float_bytes = a.float_rows > 0 ? act_layout(cols, false, true).float_bytes : 0;
    a.slot_start = (a.float_start + a.float_bytes + 127) / 128 * 128;
    const int64_t room = ctx.gpu->info().shared_bytes - kStatic - a.slot_start;
    const char* const want = std::getenv("RIPTIDE_DIAG_PARTS");
    const int32_t least = want != nullptr && std::atoi(want) <= a.blocks ? std::atoi(want) : 1;
    for (a.parts = least; a.parts <= a.blocks; ++a.parts) {
        a.part = (a.blocks + a.parts - 1) / a.parts;
        a.slot_bytes = 0;
        for (int i = 0; i < a.matrices; ++i)
            a.slot_bytes = std::max(a.slot_bytes, diag_slot_bytes(a.m[i].type, a.part, a.blocks));
        a.slots = static_cast<int32_t>(std::min<int64_t>({room / a.slot_bytes, kDiagSlots, most * a.parts}));
        if (a.slots >= (a.parts == 1 ? 3 : 4) || a.slots == most * a.parts) break;
    }
    a.parts = (a.blocks + a.part - 1) / a.part;  // none without a block
    if (a.slots < 1 || a.part < 1) return false;
    const int64_t shared = a.slot_start + int64_t{a.slots} * a.slot_bytes;
    const auto kernel = dense_diag_kernel<true, Quads, Masks, Unroll>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), diag_threads(Quads), static_cast<size_t>(shared), a);
    return true;
}

bool launch_any(Context& ctx, DiagArgs& a, const ActSource& x, int64_t cols, char which) {
    if (which >= 'a') which -= 32;
    switch (which) {
        case 'B': return launch_diag<4, true, 1>(ctx, a, x, cols);
        case 'C': return launch_diag<2, false, 2>(ctx, a, x, cols);
        case 'D': return launch_diag<2, true, 2>(ctx, a, x, cols);
        case 'E': return launch_diag<3, true, 1>(ctx, a, x, cols);
        case 'F': return launch_diag<2, true, 1>(ctx, a, x, cols);
        case 'G': return launch_diag<2, false, 3>(ctx, a, x, cols);
        default: return launch_diag<4, false, 1>(ctx, a, x, cols);
    }
}

DiagMatrix diag_matrix(const Weight& w, float* y, int32_t first) {
    return {tile_planes(matrix_of(w)), y, static_cast<int32_t>(w.rows), first, w.dtype};
}

}  // namespace

bool dense_diag_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                         std::span<Tensor> y, Tensor* residual) {
    if (x.kind == ActKind::staged || (x.kind == ActKind::norm && cols > 2048 * kWholeRow)) return false;
    DiagArgs a = {};
    int floats = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        const bool plain = (w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16) &&
                           w.scales == nullptr && w.rows > 0;
        if (dense_weight(*ctx.gpu, w) && a.matrices < kDiagPlanes) {
            a.m[a.matrices++] = diag_matrix(w, y[i].row(0), a.tiles);
            a.tiles += static_cast<int32_t>((w.rows + kDiagRows - 1) / kDiagRows);
        } else if (plain && floats < kDiagFloats && residual == nullptr && x.kind != ActKind::int8) {
            Matrix& m = a.floats[floats++] = matrix_of(w);
            m.y = y[i].row(0);
            m.first_row = a.float_rows;
            a.float_rows += m.rows;
        } else {
            return false;
        }
    }
    if (a.tiles == 0) return false;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    const char* const only = std::getenv("RIPTIDE_DIAG");
    return launch_any(ctx, a, x, cols, only == nullptr ? 'A' : only[0]);
}

bool dense_diag_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                        float* out) {
    if (!dense_weight(*ctx.gpu, gate) || !dense_weight(*ctx.gpu, up) || gate.dtype != up.dtype ||
        gate.rows != up.rows || x.kind == ActKind::staged || (x.kind == ActKind::norm && cols > 2048 * kWholeRow))
        return false;
    DiagArgs a = {};
    a.m[0] = diag_matrix(gate, out, 0);
    a.m[1] = diag_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.tiles = static_cast<int32_t>((gate.rows + kDiagRows / 2 - 1) / (kDiagRows / 2));
    a.gate_up = 1;
    const char* const only = std::getenv("RIPTIDE_DIAG");
    return launch_any(ctx, a, x, cols, only == nullptr ? 'A' : only[0]);
}

}  // namespace riptide::ops::cuda::decode
