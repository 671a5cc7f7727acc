// The host's side of the half-precision products (kquant_f16_mma_sm90.cu, kquant_f16_wgmma_sm90.cu,
// kquant_f16_row1_sm90.cu), and the kernel that prepares rows of x for the first two.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/linear/kquant_f16.h"
#include "ops/cuda/linear/shared/kquant_f16_ring.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.h"

namespace riptide::ops::cuda::decode {

namespace {

/// Columns 8 c .. 8 c + 7 of a row of whole such pieces; zeros behind its end. Without branches: code that runs once
/// comes from far.
[[maybe_unused]] __device__ __forceinline__ void load_eight(const float* x, int c, int cols, float (&v)[8]) {
#if __CUDA_ARCH__ >= 900
#pragma unroll
    for (int i = 0; i < 8; i += 4)
        asm volatile(
            "{\n.reg .pred p;\nsetp.lt.s32 p, %5, %6;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
            "mov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n@p ld.global.v4.f32 {%0,%1,%2,%3}, [%4];\n}"
            : "=&f"(v[i]), "=&f"(v[i + 1]), "=&f"(v[i + 2]), "=&f"(v[i + 3])
            : "l"(x + 8 * c + i), "r"(8 * c), "r"(cols)
            : "memory");
#endif
}

/// Row blockIdx.x. CTA y of `parts` rounds columns 2,048 y .. for the products, and stages them as floats if those are
/// wanted; if not, and x is normalised, one CTA more finds 1 / rms. kChain: for kquant_f16_wgmma_sm90.cu.
template <bool kNorm, bool kChain>
__global__ void __launch_bounds__(kThreads) kquant_f16_prepare_kernel(const __grid_constant__ F16PrepareArgs a) {
#if __CUDA_ARCH__ >= 900
    constexpr int kSquares = 3;  // pieces of a thread at a time
    __shared__ float partial[kWarps];
    pdl_trigger();
    const int row = blockIdx.x, blocks = a.cols / 256, columns = a.layout.columns, parts = (a.cols + 2047) / 2048;
    const bool rounds = static_cast<int>(blockIdx.y) < parts, floats = a.float_bytes != 0;
    const int c = blockIdx.y * kThreads + threadIdx.x;
    float by[8] = {}, v[8], w[8], squares = 0.0f;
    if (kNorm) load_norm8(a.x.norm, c, a.cols, by);
    const int block = c / 32, chain = block % 4, chains = a.layout.chains;  // 1, 2 or 4
    const int at = ((chain >> chains / 2) * (blocks / 4) + block / 4) * chains + (chain & (chains - 1));
    const int64_t of_row = static_cast<int64_t>(at) * a.n + row;
    pdl_wait();
    if (kChain && row == 0 && blockIdx.y == 0)
        for (int i = threadIdx.x; i < a.layout.flag_count; i += kThreads) a.flags[i] = 0;
    const auto* const x = reinterpret_cast<const float*>(a.x.rows + row * a.x.stride);
    load_eight(x, c, a.cols, v);
    if (kNorm && (floats || !rounds))  // as thread_squares() adds
#pragma unroll 1
        for (int begin = threadIdx.x; 8 * begin < a.cols; begin += kSquares * kThreads) {
            float piece[kSquares][8];
#pragma unroll
            for (int i = 0; i < kSquares; ++i) load_eight(x, begin + i * kThreads, a.cols, piece[i]);
#pragma unroll
            for (int i = 0; i < kSquares; ++i) squares = add_squares(piece[i], squares);
        }
    if (block < blocks) {
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = kNorm ? __fmul_rn(v[i], by[i]) : v[i];
        if constexpr (kChain) {
            const int all = (kF16Block + 4) * columns;
            char* const to = a.units + static_cast<int64_t>(block % 8 * a.layout.steps + block / 8) * all;
            put_f16_block(PieceUnits{to + row / 8 * 128 + row % 8 * 16, columns},
                          to + kF16Units * columns + kF16Sums * row,
                          reinterpret_cast<float*>(to + kF16Block * columns) + row, w);
        } else {
            put_f16_block(RowUnits{a.units + kF16Units * of_row, row % 2 != 0}, a.sums + kF16Sums * of_row,
                          a.scales + columns * at + row, w);
        }
    }
    if (rounds && !floats) return;
    if constexpr (kNorm) {
        const float scale = block_rms_scale(squares, a.cols, a.x.eps, partial);
        if ((!rounds || blockIdx.y == 0) && threadIdx.x == 0) a.rms[row] = scale;
        if (!rounds) return;
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = rms_value(v[i], scale, by[i]);
    }
    put8({a.cols, 0, 0, a.float_bytes}, a.floats + static_cast<int64_t>(row) * a.float_bytes, c, v);
#endif
}

/// One matrix, or two that lie `apart` bytes from each other.
struct F16Plane {
    const char* data;
    int64_t rows, blocks, apart;
    int strip_rows;

    int box_rows() const { return apart != 0 ? strip_rows / 2 : strip_rows; }
    cuuint64_t matrices() const { return apart != 0 ? 2 : 1; }
};

/// `each` bytes for each block of 256 columns, in boxes of `chains` blocks of four.
CUtensorMap f16_boxes(const F16Plane& plane, int each, int chains) {
    prefill::BoxedTensor t;
    t.data = plane.data;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = each == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    t.rank = 5;
    const auto e = static_cast<cuuint64_t>(each), b = static_cast<cuuint64_t>(plane.blocks);
    t.extents[0] = e, t.extents[1] = static_cast<cuuint64_t>(plane.rows), t.extents[2] = 4, t.extents[3] = b / 4;
    t.extents[4] = plane.matrices();
    t.strides[0] = e * b, t.strides[1] = e, t.strides[2] = 4 * e;
    t.strides[3] = plane.apart != 0 ? static_cast<cuuint64_t>(plane.apart) : e * b;
    t.box[0] = static_cast<cuuint32_t>(each), t.box[1] = static_cast<cuuint32_t>(plane.box_rows());
    t.box[2] = static_cast<cuuint32_t>(chains), t.box[4] = static_cast<cuuint32_t>(t.extents[4]);
    return prefill::encode(t);
}
CUtensorMap f16_heads(const F16Plane& plane, int chains) {
    prefill::BoxedTensor t;
    t.data = plane.data;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = chains == 4   ? CU_TENSOR_MAP_SWIZZLE_64B
                : chains == 2 ? CU_TENSOR_MAP_SWIZZLE_32B
                              : CU_TENSOR_MAP_SWIZZLE_NONE;
    t.rank = 3;
    t.extents[0] = static_cast<cuuint64_t>(16 * plane.blocks), t.extents[1] = static_cast<cuuint64_t>(plane.rows);
    t.extents[2] = plane.matrices();
    t.strides[0] = t.extents[0];
    t.strides[1] = plane.apart != 0 ? static_cast<cuuint64_t>(plane.apart) : t.extents[0];
    t.box[0] = static_cast<cuuint32_t>(16 * chains), t.box[1] = static_cast<cuuint32_t>(plane.box_rows());
    t.box[2] = static_cast<cuuint32_t>(t.extents[2]);
    return prefill::encode(t);
}

/// The rows of a launch of the plan.
void kquant_f16_multiply(Context& ctx, F16Group& group, const linear::Launch& launch, const ActSource& x,
                         int64_t cols) {
    const ArenaScope scope(*ctx.arena);
    group.cut(kStripRows);
    F16Args& a = group.a;
    a.n = static_cast<int32_t>(launch.rows);
    a.cols = static_cast<int32_t>(cols);
    a.quads = static_cast<int32_t>(cols / 1024);
    for (int i = 0; i < a.matrices; ++i)
        if (a.m[i].y != nullptr) a.m[i].y += launch.row * a.m[i].rows;
    for (int i = 0; i < a.floats.matrices; ++i) a.floats.m[i].y += launch.row * a.floats.m[i].rows;
    if (a.residual != nullptr) a.residual += launch.row * a.m[0].rows;
    a.floats.bytes = a.floats.pairs > 0 ? act_layout(cols, false, true).float_bytes : 0;
    ActSource from = x;
    from.rows += launch.row * x.stride;
    if (x.kind != ActKind::norm) from.norm = nullptr;
    if (launch.kernel == linear::Kernel::kquant_f16_row1_sm90) launch_f16_row(ctx, group, from);
    else if (launch.kernel == linear::Kernel::kquant_f16_mma_sm90) launch_f16_rows(ctx, group, from);
    else launch_f16_chain(ctx, group, from);
}

}  // namespace

void kquant_f16_prepare(Context& ctx, F16Args& a, const ActSource& x, const F16Layout& layout) {
    const bool norm = x.kind == ActKind::norm, chain = layout.steps > 0, floats = a.floats.bytes > 0;
    const int64_t blocks = 4 * a.quads;
    const auto take = [&ctx](int64_t bytes) {
        return bytes == 0 ? nullptr : static_cast<char*>(ctx.arena->allocate(bytes));
    };
    F16PrepareArgs p = {};
    p.x = x, p.layout = layout, p.n = a.n, p.cols = a.cols, p.float_bytes = a.floats.bytes;
    p.units = take(chain ? int64_t{8} * layout.steps * (kF16Block + 4) * layout.columns : kF16Units * blocks * a.n);
    p.sums = take(chain ? 0 : kF16Sums * blocks * a.n);
    p.scales = reinterpret_cast<float*>(take(chain ? 0 : 4 * blocks * layout.columns));
    p.floats = take(a.n * a.floats.bytes);
    p.rms = reinterpret_cast<float*>(take(norm ? 4 * a.n : 0));
    p.flags = reinterpret_cast<int32_t*>(take(4 * layout.flag_count));
    const int parts = (a.cols + 2047) / 2048, more = norm && !floats ? 1 : 0;
    auto* kernel = norm ? kquant_f16_prepare_kernel<true, false> : kquant_f16_prepare_kernel<false, false>;
    if (chain) kernel = norm ? kquant_f16_prepare_kernel<true, true> : kquant_f16_prepare_kernel<false, true>;
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(a.n), static_cast<unsigned>(parts + more)), kThreads, 0, p);
    a.x = {};
    a.x.kind = ActKind::staged;
    a.x.rows = p.floats;
    a.x.stride = a.floats.bytes;
    a.units = p.units, a.sums = p.sums, a.scales = p.scales, a.rms = p.rms, a.flags = p.flags;
}

void F16Group::add(const Weight& weight, float* y) {
    const Matrix m = matrix_of(weight);
    const bool six = weight.dtype == DType::planes_q6_k;
    q6 = q6 || six;
    w[a.matrices] = &weight;
    a.m[a.matrices++] = {tile_planes(m).d, y, m.rows, 0, six ? 1 : 0};
}

void F16Group::cut(int strip_rows) {
    const bool pair = a.gate_up != 0;
    a.strips = 0;
    for (int i = 0; i < (pair ? 1 : a.matrices); ++i) {
        const int rows = pair ? strip_rows / 2 : strip_rows;
        a.m[i].first = a.strips;
        a.strips += (a.m[i].rows + rows - 1) / rows;
    }
}

void F16Group::add_gate_up(const Weight& gate, const Weight& up, float* out) {
    const bool swapped = gate.data > up.data;  // the first one lies lower
    add(swapped ? up : gate, out);
    add(swapped ? gate : up, nullptr);
    a.gate_up = swapped ? 2 : 1;
}

F16Maps F16Group::maps(int chains, int strip_rows) const {
    F16Maps maps = {};
    const bool pair = a.gate_up != 0;
    for (int i = 0; i < (pair ? 1 : a.matrices); ++i) {
        const TilePlanes planes = tile_planes(matrix_of(*w[i]));
        const TilePlanes second = pair ? tile_planes(matrix_of(*w[1])) : planes;
        const auto plane = [&](const char* data, const char* other) {
            return F16Plane{data, w[i]->rows, 4 * a.quads, other - data, strip_rows};
        };
        maps.data[i] = f16_boxes(plane(planes.data, second.data), 128, chains);
        maps.heads[i] = f16_heads(plane(planes.scales, second.scales), chains);
        if (a.m[i].q6 != 0) maps.high[i] = f16_boxes(plane(planes.high, second.high), 64, chains);
    }
    return maps;
}

void f16_multiply(Context& ctx, const linear::Launch& launch, const ActSource& x, int64_t cols,
                  std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual) {
    F16Group group;
    for (size_t i = 0; i < weights.size(); ++i) {
        if (is_planes(weights[i]->dtype)) group.add(*weights[i], y[i].row(0));
        else group.a.floats.add(*weights[i], y[i].row(0));
    }
    group.a.residual = residual == nullptr ? nullptr : residual->row(0);
    kquant_f16_multiply(ctx, group, launch, x, cols);
}

void f16_gate_up(Context& ctx, const linear::Launch& launch, const ActSource& x, int64_t cols, const Weight& gate,
                 const Weight& up, float* out) {
    F16Group group;
    group.add_gate_up(gate, up, out);
    kquant_f16_multiply(ctx, group, launch, x, cols);
}

}  // namespace riptide::ops::cuda::decode

namespace riptide::ops::cuda {

bool wants_int8(const Gpu& gpu, const Weight& w) { return is_planes(w.dtype) && !linear::f16_weight(chip_of(gpu), w); }

}  // namespace riptide::ops::cuda
