// The ops that only move rows or work on them element by element.
//
// Bytes: each reads its input and writes its result once, f32; at n rows of 2048 values 16 KB n. Floor on the H200: the
// launch (about 1 us in a chain) up to some 200 rows, then 4.5 TB/s. FLOPs do not count. In decode most of them are
// fused into the kernels that need them (by the functions of row_math.cuh); here they serve prefill, the
// model's ends, and tests. Design: a CTA or a warp for each row, neighbouring threads on neighbouring elements; an
// element's value depends on its row alone. Limited by latency at few rows, by memory at many.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "quant/decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda {

namespace {

constexpr int kThreads = 256;

unsigned blocks(int64_t items, int64_t each) { return static_cast<unsigned>((items + each - 1) / each); }

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// ---- rows ---------------------------------------------------------------------------------------------

/// CTA (r, p): sixteen columns in each thread. The first kernel of a step: it lets the next one start only behind its
/// own wait, so that all later kernels of the step may read above their waits what was complete before the step began.
/// Type: the table's; kAny: whatever it is. One type is little code, which nothing has kept in a cache since the last
/// step.
template <DType Type, bool kAny = false>
__global__ void __launch_bounds__(kThreads) embed_kernel(Weight table, const int32_t* tokens, float* y) {
    if constexpr (!kAny) table.dtype = Type;
    pdl_wait();
    pdl_trigger();
    const int64_t row = tokens[blockIdx.x];
    const int64_t col = 16 * (int64_t{blockIdx.y} * kThreads + threadIdx.x);
    if (col >= table.cols) return;
    float v[16];
    if (row >= 0 && row < table.rows) decode16(table, row, col, v);
    else
        for (float& x : v) x = __int_as_float(0x7FC00000);
    float* out = y + blockIdx.x * table.cols + col;
    if (table.cols % 4 == 0 && col + 16 <= table.cols) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            reinterpret_cast<float4*>(out)[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < 16; ++i)
            if (col + i < table.cols) out[i] = v[i];
    }
}

/// CTA (i, p): `kThreads` pieces of type T of a row of `width` of them.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const T* x, int64_t stride, const int32_t* rows, int64_t width, T* y) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
    if (i < width) y[blockIdx.x * width + i] = x[rows[blockIdx.x] * stride + i];
}

// ---- normalisation ------------------------------------------------------------------------------------

static_assert(kThreads == decode::kThreads, "block_rms_scale");

/// One CTA for each row.
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, const float* weight, int d, float eps, float* y) {
    __shared__ float partial[8];
    pdl_trigger();
    pdl_wait();
    x += int64_t{blockIdx.x} * d;
    y += int64_t{blockIdx.x} * d;
    const float scale = decode::block_rms_scale(x, d, eps, partial);
    if (d % 4 == 0) {
        for (int i = static_cast<int>(threadIdx.x); i < d / 4; i += kThreads) {
            const float4 v = reinterpret_cast<const float4*>(x)[i], w = reinterpret_cast<const float4*>(weight)[i];
            reinterpret_cast<float4*>(y)[i] = make_float4(rms_value(v.x, scale, w.x), rms_value(v.y, scale, w.y),
                                                          rms_value(v.z, scale, w.z), rms_value(v.w, scale, w.w));
        }
    } else {
        for (int i = static_cast<int>(threadIdx.x); i < d; i += kThreads) y[i] = rms_value(x[i], scale, weight[i]);
    }
}

/// One warp for each head; `heads` over all rows.
__global__ void __launch_bounds__(kThreads)
    head_norm_kernel(const float* x, const float* weight, int64_t heads, int d, float eps, float* y) {
    pdl_trigger();
    pdl_wait();
    const int64_t head = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
    if (head >= heads) return;
    x += head * d;
    y += head * d;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float scale = warp_rms_scale([&](int j) { return x[lane + 32 * j]; }, d, eps);
    for (int i = lane; i < d; i += 32) y[i] = rms_value(x[i], scale, weight[i]);
}

// ---- rotation -----------------------------------------------------------------------------------------

constexpr int kMostFrequencies = 128;

struct RopeTable {
    float inv_freq[kMostFrequencies];
    float magnitude;
    int half;
};

/// One CTA for each row: the cosines and sines once, then all heads.
__global__ void __launch_bounds__(kThreads)
    rope_kernel(float* x, int heads, int d, const int32_t* positions, RopeTable table) {
    __shared__ float2 turns[kMostFrequencies];
    pdl_trigger();
    pdl_wait();
    const int half = table.half, thread = static_cast<int>(threadIdx.x);
    if (thread < half) turns[thread] = rope_turn(positions[blockIdx.x], table.inv_freq[thread], table.magnitude);
    __syncthreads();
    x += int64_t{blockIdx.x} * heads * d;
    for (int i = thread; i < heads * half; i += kThreads) {
        const int j = i % half;
        float* a = x + i / half * d + j;
        const float2 rotated = rope_rotate(a[0], a[half], turns[j]);
        a[0] = rotated.x;
        a[half] = rotated.y;
    }
}

// ---- element by element -------------------------------------------------------------------------------

/// x[i] = op(x[i], y[i], i) over `count` pieces of four, or single elements.
template <class T, class Op>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(const float* a, const float* b, float* out, int64_t count, Op op) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= count) return;
    if constexpr (sizeof(T) == sizeof(float4)) {
        const float4 u = reinterpret_cast<const float4*>(a)[i], v = reinterpret_cast<const float4*>(b)[i];
        reinterpret_cast<float4*>(out)[i] = make_float4(op(u.x, v.x), op(u.y, v.y), op(u.z, v.z), op(u.w, v.w));
    } else {
        out[i] = op(a[i], b[i]);
    }
}

struct Add {
    __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};
struct Swiglu {
    __device__ float operator()(float gate, float up) const { return swiglu_value(gate, up); }
};
struct MulSoftplus {
    __device__ float operator()(float o, float g) const { return __fmul_rn(o, softplus(g)); }
};

/// out = op(a, b), element by element; out may be a or b.
template <class Op>
void map(const Context& ctx, const float* a, const float* b, float* out, int64_t count, Op op) {
    if (count == 0) return;
    if (count % 4 == 0 && aligned16(a) && aligned16(b) && aligned16(out))
        launch(*ctx.gpu, elementwise_kernel<float4, Op>, blocks(count / 4, kThreads), kThreads, 0, a, b, out, count / 4,
               op);
    else launch(*ctx.gpu, elementwise_kernel<float, Op>, blocks(count, kThreads), kThreads, 0, a, b, out, count, op);
}

struct MulSigmoid {
    __device__ float operator()(float o, float g) const { return __fmul_rn(o, sigmoid(g)); }
};

/// `repeat` elements share one gate.
template <class Op>
__global__ void __launch_bounds__(kThreads) gate_kernel(float* o, const float* g, int64_t count, int repeat, Op op) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i < count) o[i] = op(o[i], g[i / repeat]);
}

template <class Op>
void gate(const Context& ctx, Tensor& o, const Tensor& g, Op op) {
    o.int8 = nullptr;
    const int64_t count = o.elements();
    if (count == 0) return;
    if (g.elements() == count) map(ctx, o.row(0), g.row(0), o.row(0), count, op);
    else
        launch(*ctx.gpu, gate_kernel<Op>, blocks(count, kThreads), kThreads, 0, o.row(0), g.row(0), count,
               static_cast<int>(count / g.elements()), op);
}

/// Element i of the heads and of the gates; a head of x is d values and d gates.
__global__ void __launch_bounds__(kThreads)
    split_gates_kernel(const float* x, int64_t count, int d, float* heads, float* gates) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= count) return;
    const int64_t at = i / d * 2 * d + i % d;
    heads[i] = x[at];
    gates[i] = x[at + d];
}

}  // namespace

Tensor embed(Context& ctx, const Weight& table, std::span<const int32_t> tokens) {
    const auto n = static_cast<int64_t>(tokens.size());
    Tensor y = ctx.alloc(DType::f32, {n, table.cols});
    if (n == 0) return y;
    auto* const kernel = table.dtype == DType::bf16          ? embed_kernel<DType::bf16>
                         : table.dtype == DType::planes_q4_k ? embed_kernel<DType::planes_q4_k>
                         : table.dtype == DType::planes_q6_k ? embed_kernel<DType::planes_q6_k>
                                                             : embed_kernel<DType::bf16, true>;
    launch(*ctx.gpu, kernel, dim3(blocks(n, 1), blocks(table.cols, 16 * kThreads)), kThreads, 0, table, tokens.data(),
           y.row(0));
    return y;
}

Tensor gather_rows(Context& ctx, const Tensor& x, std::span<const int32_t> rows) {
    const auto n = static_cast<int64_t>(rows.size());
    Tensor y =
        x.rank == 2 ? ctx.alloc(DType::f32, {n, x.shape[1]}) : ctx.alloc(DType::f32, {n, x.shape[1], x.shape[2]});
    const int64_t width = x.row_elements();
    if (n == 0 || width == 0) return y;
    if (width % 4 == 0 && x.row_stride % 4 == 0 && aligned16(x.data))
        launch(*ctx.gpu, gather_rows_kernel<float4>, dim3(blocks(n, 1), blocks(width / 4, kThreads)), kThreads, 0,
               static_cast<const float4*>(x.data), x.row_stride / 4, rows.data(), width / 4,
               static_cast<float4*>(y.data));
    else
        launch(*ctx.gpu, gather_rows_kernel<float>, dim3(blocks(n, 1), blocks(width, kThreads)), kThreads, 0,
               static_cast<const float*>(x.data), x.row_stride, rows.data(), width, static_cast<float*>(y.data));
    return y;
}

Tensor rms_norm(Context& ctx, const Tensor& x, std::span<const float> weight, float eps) {
    const int d = static_cast<int>(weight.size());
    Tensor y = x.rank == 2 ? ctx.alloc(DType::f32, {x.shape[0], x.shape[1]})
                           : ctx.alloc(DType::f32, {x.shape[0], x.shape[1], x.shape[2]});
    if (x.elements() == 0) return y;
    if (x.rank == 2) {
        launch(*ctx.gpu, rms_norm_kernel, blocks(x.rows(), 1), kThreads, 0, x.row(0), weight.data(), d, eps, y.row(0));
    } else {
        const int64_t heads = x.shape[0] * x.shape[1];
        launch(*ctx.gpu, head_norm_kernel, blocks(heads, kThreads / 32), kThreads, 0, x.row(0), weight.data(), heads, d,
               eps, y.row(0));
    }
    return y;
}

void rope(Context& ctx, Tensor& x, std::span<const int32_t> positions, const Rope& rope) {
    RT_CHECK(rope.inv_freq.size() <= kMostFrequencies,
             "a rotary position embedding over {} of a head's values, but GPU kernels rotate at most {}",
             rope.rotary_dim, 2 * kMostFrequencies);
    x.int8 = nullptr;
    if (x.elements() == 0 || rope.inv_freq.empty()) return;
    RopeTable table{};
    std::copy(rope.inv_freq.begin(), rope.inv_freq.end(), table.inv_freq);
    table.magnitude = rope.magnitude;
    table.half = static_cast<int>(rope.inv_freq.size());
    launch(*ctx.gpu, rope_kernel, blocks(x.rows(), 1), kThreads, 0, x.row(0), static_cast<int>(x.shape[1]),
           static_cast<int>(x.shape[2]), positions.data(), table);
}

void add(Context& ctx, Tensor& x, const Tensor& y) {
    x.int8 = nullptr;
    map(ctx, x.row(0), y.row(0), x.row(0), x.elements(), Add{});
}

Tensor swiglu(Context& ctx, const Tensor& gate, const Tensor& up) {
    Tensor z = ctx.alloc(DType::f32, {gate.shape[0], gate.shape[1]});
    map(ctx, gate.row(0), up.row(0), z.row(0), z.elements(), Swiglu{});
    return z;
}

void mul_softplus(Context& ctx, Tensor& o, const Tensor& g, int64_t) { gate(ctx, o, g, MulSoftplus{}); }

void mul_sigmoid(Context& ctx, Tensor& o, const Tensor& g, int64_t) { gate(ctx, o, g, MulSigmoid{}); }

HeadsAndGates split_gates(Context& ctx, const Tensor& x, int64_t heads) {
    const int64_t n = x.rows(), half = x.shape[1] / 2;
    HeadsAndGates out{ctx.alloc(DType::f32, {n, half}), ctx.alloc(DType::f32, {n, half})};
    if (n * half > 0)
        launch(*ctx.gpu, split_gates_kernel, blocks(n * half, kThreads), kThreads, 0, x.row(0), n * half,
               static_cast<int>(half / heads), out.heads.row(0), out.gates.row(0));
    return out;
}

}  // namespace riptide::ops::cuda
