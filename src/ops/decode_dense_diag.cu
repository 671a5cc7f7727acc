// Large Q4_K matrices of up to 6,144 columns times one row of x by tensor cores: the projections that Qwen3.5-27B
// normalises for, gate and up among them. decode_dense_row.cu has what does not fit here, with the same bits.
//
// Bytes: those of the weights; gate and up 100 MB, a recurrent layer's projections 47, q k v 41: 21.6, 10.6 and 8.9 us
// at 4.65 TB/s. Measured: see docs/results/qwen35.md.
// Instructions: 145 of a warp for 128 sub-blocks (dp4a: 81 for 32), a third of the time of the bytes.
// Design: one CTA an SM. Tiles come whole, half by half in two bulk copies each, to four slots (185 KB), before
// pdl_wait() too; a quad of warps multiplies a tile and then gives its slot back.
// What limits it: without arithmetic the kernels take 2 to 4 us less, as with half the warps. A step of a warp is a
// chain of about 600 cycles, and all slots are held while the first four tiles are multiplied.
// Tried (q k v; H200, 2026-11-23; 14.4 us as it is, 11.3 without arithmetic): zeros read from shared memory instead of
// masks 14.8; three quads 14.0, two 14.6, two with steps in pairs 14.3 (a whole model slower by 3 %); two CTAs an SM of
// two quads 17.1; copies of single rows of 1.4 KB 25.7: about 50 ns each as one warp's lanes ask for them.
#include <algorithm>

#include "ops/decode_dense.h"
#include "ops/decode_dense_diag.cuh"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

#if __CUDA_ARCH__ >= 900

/// Barriers of the warps that multiply and the one with float rows, and of a quad. (NormedRow has number 1.)
__device__ __forceinline__ void sync_staged() { asm volatile("bar.sync 2, %0;" ::"n"(kRowThreads + 32) : "memory"); }
__device__ __forceinline__ void sync_quad(int quad) { asm volatile("bar.sync %0, 128;" ::"r"(3 + quad) : "memory"); }

/// Columns 8 c .. + 7 of x, quantised as put8() does.
struct DiagPut {
    char* x;
    DiagX l;
    char* floats;
    ActLayout float_layout;

    __device__ __forceinline__ void operator()(int c, const float (&v)[8]) const {
        const Act8 q = quantise8(v);
        const int g = c / 4;
        if (g < l.groups) {
            *reinterpret_cast<uint2*>(x + 8 * c) = q.words;
            if (c % 4 == 0)
                *reinterpret_cast<float2*>(x + l.pairs() + 8 * g) = make_float2(q.d, static_cast<float>(q.all));
        }
        put8(float_layout, floats, c, v);
    }
};

/// An ActRow.
__device__ __forceinline__ void stage_quantised_row(const ActSource& s, const DiagX& l, char* x) {
#pragma unroll 1
    for (int g = threadIdx.x; g < l.groups; g += kRowThreads) {
        const uint4 lo = load_weights(s.rows + 16 * g), hi = load_weights(s.rows + 16 * (l.groups + g));
        const uint2 pair = load_weight64(s.rows + 32 * l.groups + 8 * g);
        reinterpret_cast<uint4*>(x)[2 * g] = lo;
        reinterpret_cast<uint4*>(x)[2 * g + 1] = hi;
        reinterpret_cast<uint2*>(x + l.pairs())[g] = pair;
    }
}

#endif  // __CUDA_ARCH__ >= 900

__global__ void __launch_bounds__(kDiagThreads, 1) dense_diag_kernel(const __grid_constant__ DiagArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps];
    __shared__ uint64_t barriers[2 * kDiagBarriers];
    __shared__ float4 sums[kQuads][2][4][32];
    pdl_trigger();
    char* const shared = reinterpret_cast<char*>(dynamic);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cta = blockIdx.x, ctas = gridDim.x;
    const int begin = cta * a.tiles + min(cta, a.more), count = a.tiles + (cta < a.more ? 1 : 0);
    const DiagRing ring(barriers);
    const DiagX layout{8 * a.blocks};
    const DiagSlot slot{a.blocks};
    const auto slot_of = [&](int tile) {
        return shared_address(shared + a.slot_start) + static_cast<uint32_t>(tile % a.slots * slot.bytes());
    };
    if (warp == kRowWarps) ring.init(lane);
    __syncthreads();
    if (warp == kRowWarps || warp == kRowWarps + 1) {
        const auto ask = [&](int tile) {
            ask_half(a, begin + tile, warp - kRowWarps, slot_of(tile), ring.full + 8 * (tile % kDiagBarriers));
        };
        if (lane == 0)
#pragma unroll 1
            for (int i = 0; i < min(count, a.slots); ++i) ask(i);
        pdl_wait();
        if (lane == 0)
#pragma unroll 1
            for (int i = a.slots; i < count; ++i) {
                ring.wait(ring.empty, i - a.slots);
                ask(i);
            }
        return;
    }
    if (warp > kRowWarps + 1) {
        const FloatRows<DiagArgs> floats{a};
        if (lane == 0) floats.fetch(cta, ctas);
        pdl_wait();
        sync_staged();
        floats.multiply(cta, ctas, lane, shared + a.float_start, {a.cols, 0, 0, a.float_bytes});
        return;
    }
    NormedRow row;
    row.load_weights_of(a.x, a.cols);
    pdl_wait();
    const DiagPut put{shared, layout, shared + a.float_start, {a.cols, 0, 0, a.float_bytes}};
    if (a.x.kind == ActKind::norm) row.stage(a.x, a.cols, put, partial);
    else if (a.x.kind != ActKind::int8) stage_plain_row<5>(a.x, a.cols, put);
    else stage_quantised_row(a.x, layout, shared);
    sync_staged();
    const int quad = warp / 4, q = warp % 4, g = lane / 4, t = lane % 4;
    const bool pairs = a.gate_up != 0;
    const DiagLane at(shared, layout, lane);
#pragma unroll 1
    for (int i = quad, round = 0; i < count; i += kQuads, ++round) {
        const DiagMatrix& m = matrix_of_tile(a, begin + i);
        // The quad's warps store by turns: lane t = 0 row g of the mma, t = 1 row g + 8.
        const int kept =
            DiagRowsAt::row_of(g, t) + (pairs ? 8 * (begin + i) : kDiagRows * (begin + i - m.first) + g % 2 * 8);
        const bool stores = round % 4 == q && t < 2 && kept < m.rows && (!pairs || g % 2 == 0);
        const float old = a.residual != nullptr && stores ? a.residual[kept] : 0.0f;
        float acc[4] = {};
        ring.wait(ring.full, i);
        const DiagRowsAt rows(slot_of(i), slot, lane);
#pragma unroll 1
        for (int b = q; b < a.blocks; b += 4) diag_step(rows, at, b, acc);
        ring.used(i);
        float4(&meeting)[4][32] = sums[quad][round % 2];
        meeting[q][lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        sync_quad(quad);
        if (round % 4 != q) continue;
        const float4 v0 = meeting[0][lane], v1 = meeting[1][lane], v2 = meeting[2][lane], v3 = meeting[3][lane];
        const auto add = [](float x0, float x1, float x2, float x3) {
            return __fadd_rn(__fadd_rn(x0, x2), __fadd_rn(x1, x3));
        };
        float sum[4] = {add(v0.x, v1.x, v2.x, v3.x), add(v0.y, v1.y, v2.y, v3.y), add(v0.z, v1.z, v2.z, v3.z),
                        add(v0.w, v1.w, v2.w, v3.w)};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            sum[k] = __fadd_rn(sum[k], __shfl_xor_sync(~0u, sum[k], 2));
            sum[k] = __fadd_rn(sum[k], __shfl_xor_sync(~0u, sum[k], 1));
        }
        const float mine = t == 0 ? __fadd_rn(sum[0], sum[1]) : __fadd_rn(sum[2], sum[3]);
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

/// Everything but matrices and floats is set here; tiles: of the group. False: too few of them fit.
bool launch_diag(Context& ctx, DiagArgs& a, const ActSource& x, int64_t cols, int64_t tiles) {
    const int64_t ctas = std::min<int64_t>(ctx.gpu->info().sm_count, tiles);
    constexpr int64_t kStatic = (17 << 10);  // static shared memory
    a.tiles = static_cast<int32_t>(tiles / ctas);
    a.more = static_cast<int32_t>(tiles % ctas);
    a.cols = static_cast<int32_t>(cols);
    a.blocks = static_cast<int32_t>(cols / 256);
    a.x = x;
    a.float_start = DiagX{8 * a.blocks}.bytes();
    a.float_bytes = a.float_rows > 0 ? act_layout(cols, false, true).float_bytes : 0;
    a.slot_start = (a.float_start + a.float_bytes + 127) / 128 * 128;
    const int64_t room = ctx.gpu->info().shared_bytes - kStatic - a.slot_start, most = (tiles + ctas - 1) / ctas;
    a.slots = static_cast<int32_t>(std::min<int64_t>({room / DiagSlot{a.blocks}.bytes(), kDiagSlots, most}));
    if (a.slots < std::min<int64_t>(most, 3)) return false;
    const int64_t shared = a.slot_start + int64_t{a.slots} * DiagSlot{a.blocks}.bytes();
    allow_shared(reinterpret_cast<const void*>(dense_diag_kernel), shared);
    launch(*ctx.gpu, dense_diag_kernel, dim3(static_cast<unsigned>(ctas)), kDiagThreads, static_cast<size_t>(shared),
           a);
    return true;
}

bool diag_weight(const Gpu& gpu, const Weight& w, const ActSource& x, int64_t cols) {
    return dense_weight(gpu, w) && w.dtype == DType::planes_q4_k && x.kind != ActKind::staged &&
           (x.kind != ActKind::norm || cols <= 2048 * kWholeRow);
}
DiagMatrix diag_matrix(const Weight& w, float* y, int64_t first) {
    return {static_cast<const char*>(w.data), static_cast<const char*>(w.scales), y, static_cast<int32_t>(w.rows),
            static_cast<int32_t>(first)};
}

}  // namespace

bool dense_diag_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                         std::span<Tensor> y, Tensor* residual) {
    DiagArgs a = {};
    int floats = 0;
    int64_t tiles = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        const bool plain = (w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16) &&
                           w.scales == nullptr && w.rows > 0;
        if (diag_weight(*ctx.gpu, w, x, cols) && a.matrices < kDiagPlanes) {
            a.m[a.matrices++] = diag_matrix(w, y[i].row(0), tiles);
            tiles += (w.rows + kDiagRows - 1) / kDiagRows;
        } else if (plain && floats < kDiagFloats && residual == nullptr && x.kind != ActKind::int8) {
            Matrix& m = a.floats[floats++] = matrix_of(w);
            m.y = y[i].row(0);
            m.first_row = a.float_rows;
            a.float_rows += m.rows;
        } else {
            return false;
        }
    }
    if (tiles == 0) return false;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return launch_diag(ctx, a, x, cols, tiles);
}

bool dense_diag_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                        float* out) {
    if (!diag_weight(*ctx.gpu, gate, x, cols) || !diag_weight(*ctx.gpu, up, x, cols) || gate.rows != up.rows)
        return false;
    DiagArgs a = {};
    a.m[0] = diag_matrix(gate, out, 0);
    a.m[1] = diag_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.gate_up = 1;
    return launch_diag(ctx, a, x, cols, (gate.rows + kDiagRows / 2 - 1) / (kDiagRows / 2));
}

}  // namespace riptide::ops::cuda::decode
