// The router's logits, as exact as sums in f32: a rounded one may choose another expert.
//
// Tensor cores on values cut into bf16 parts of eight bits: h = h1 + h2 + h3 to 27 bits; w likewise, unless it is bf16
// already. Of the products of parts those above 2^-27 are made: 3, or 6. Each sixteen columns are summed on the tensor
// core from zero, small products first, and added in f32, so that what tensor cores cut off stays 2^-23 of a small sum.
//
// FLOPs: 2 n experts cols, 3 or 6 times: 4096 rows of 2048, 256 experts: 26 G, 0.04 ms at 638 T/s. Bytes through L2:
// 0.6 or 0.9 MB for each 64 rows x 32 experts: 330 or 460 MB, the limit, 60 to 90 us (an estimate); the same in f32
// took 130 us, and nearly as long for 512 rows, where now 128 blocks of 32 rows x 32 experts share the work (21 us,
// bound by one load and one product after the other; since then loads go one group ahead and four sums take turns: no
// figure yet). Eight warps of a block take an eighth of the columns each and add up in order: the order is the same for
// every number of rows. Fragments come straight from memory: a lane has eight neighbouring columns, two steps of the
// tensor core. bf16 routers have router_prefill_sm90.cu on Hopper.
#include "base/error.h"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "ops/cuda/moe/moe_prefill.h"
#include "ops/cuda/moe/plan.h"
#include "quant/decode.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

// ---- tensor cores (sm_80 on), columns in 32s ---------------------------------------------------

constexpr int kSlices = 8, kGroup = 32, kExpertTiles = 4;  // a warp's slice of the columns; columns of a load; eights

/// Parts of w as bf16 [3, rows, cols].
__global__ void __launch_bounds__(256) router_split_kernel(const __grid_constant__ Weight w, uint16_t* to) {
    pdl_trigger();
    pdl_wait();
    const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, per_row = w.cols / 16;
    if (unit >= w.rows * per_row) return;
    const int64_t row = unit / per_row, col = unit % per_row * 16;
    float v[16];
    decode16(w, row, col, v);
    for (int part = 0; part < 3; ++part) {
        uint4* out = reinterpret_cast<uint4*>(to + (part * w.rows + row) * w.cols + col);
        out[0] = pack_bf16(v);
        out[1] = pack_bf16(v + 8);
#pragma unroll
        for (int j = 0; j < 16; ++j) v[j] -= __bfloat162float(__float2bfloat16_rn(v[j]));
    }
}

struct RouterProblem {
    const float* h;     // [n, cols]
    const uint16_t* w;  // part 0: [experts, stride]
    int64_t part;       // from one part to the next
    int stride, n, experts, cols;
    float* logits;  // [n, experts]
};

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Sixteen columns' sums of 16 rows x 32 experts, one after the other: products of one sum wait for each other, so
/// those of all four take turns. a: parts of the rows, b: columns of the parts of the experts (step 0: .x, .y; 1: .z,
/// .w).
template <int kParts>
__device__ __forceinline__ void add_products(float (&sum)[kExpertTiles][4], const uint32_t (&a)[3][4],
                                             const uint4 (&b)[kExpertTiles][kParts], int step) {
    float t[kExpertTiles][4] = {};
#pragma unroll
    for (int small = 2; small >= 0; --small)
#pragma unroll
        for (int j = 0; j < kParts && j <= small; ++j)
#pragma unroll
            for (int e = 0; e < kExpertTiles; ++e)
                mma(t[e], a[small - j], step == 0 ? b[e][j].x : b[e][j].z, step == 0 ? b[e][j].y : b[e][j].w);
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[e][j] = __fadd_rn(sum[e][j], t[e][j]);
}

/// What a lane reads of one group of columns.
template <int kTiles, int kParts>
struct Columns {
    uint4 b[kExpertTiles][kParts];
    float4 h[kTiles][2][2];  // [tile][row, row + 8][four columns, the next four]

    __device__ __forceinline__ void load(const RouterProblem& p, int first_row, int first_expert, int g) {
        const int group = static_cast<int>(threadIdx.x % 32 / 4), quad = static_cast<int>(threadIdx.x % 4);
        const int col = g * kGroup + 8 * quad;
#pragma unroll
        for (int e = 0; e < kExpertTiles; ++e)
#pragma unroll
            for (int part = 0; part < kParts; ++part)
                b[e][part] = *reinterpret_cast<const uint4*>(
                    p.w + part * p.part + int64_t{min(p.experts - 1, first_expert + 8 * e + group)} * p.stride + col);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float4* from = reinterpret_cast<const float4*>(
                    p.h + int64_t{min(p.n - 1, first_row + 16 * m + group + 8 * r)} * p.cols + col);
                h[m][r][0] = from[0];
                h[m][r][1] = from[1];
            }
    }
};

#endif

/// A block: 16 kTiles rows x 32 experts; warp s the s-th slice of the columns.
template <int kTiles, int kParts>
__global__ void __launch_bounds__(32 * kSlices) router_prefill_sm80_kernel(const __grid_constant__ RouterProblem p) {
    pdl_trigger();
    [[maybe_unused]] __shared__ float total[16 * kTiles][8 * kExpertTiles + 1];
    pdl_wait();
#if __CUDA_ARCH__ >= 800
    const int lane = static_cast<int>(threadIdx.x % 32), slice = static_cast<int>(threadIdx.x / 32);
    const int group = lane / 4, quad = lane % 4;
    const int first_row = static_cast<int>(blockIdx.x) * 16 * kTiles,
              first_expert = static_cast<int>(blockIdx.y) * 8 * kExpertTiles;
    float sum[kTiles][kExpertTiles][4] = {};
    const int groups = p.cols / kGroup, each = (groups + kSlices - 1) / kSlices;
    const int end = min(groups, (slice + 1) * each);
    // With registers to spare, the next columns are under way while these are multiplied.
    constexpr bool kAhead = kTiles <= 2 && kParts == 1;
    Columns<kTiles, kParts> now, next;
    const int begin = slice * each;
    if (kAhead && begin < end) now.load(p, first_row, first_expert, begin);
#pragma unroll 1
    for (int g = begin; g < end; ++g) {
        if (!kAhead) now.load(p, first_row, first_expert, g);
        else if (g + 1 < end) next.load(p, first_row, first_expert, g + 1);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                // The tensor core's columns 2 q, + 1 and 2 q + 8, + 9 are four neighbours here: any order will do.
                uint32_t a[3][4];
                float4 &upper = now.h[m][0][step], &lower = now.h[m][1][step];
#pragma unroll
                for (int part = 0; part < 3; ++part) {
                    a[part][0] = next_part(upper.x, upper.y);
                    a[part][1] = next_part(lower.x, lower.y);
                    a[part][2] = next_part(upper.z, upper.w);
                    a[part][3] = next_part(lower.z, lower.w);
                }
                add_products<kParts>(sum[m], a, now.b, step);
            }
        if (kAhead) now = next;
    }
    for (int s = 0; s < kSlices; ++s) {
        if (s == slice) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m)
#pragma unroll
                for (int e = 0; e < kExpertTiles; ++e)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        float& to = total[16 * m + group + j / 2 * 8][8 * e + 2 * quad + j % 2];
                        to = s == 0 ? sum[m][e][j] : __fadd_rn(to, sum[m][e][j]);
                    }
        }
        __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x); i < 16 * kTiles * 8 * kExpertTiles; i += 32 * kSlices) {
        const int row = i / (8 * kExpertTiles), expert = i % (8 * kExpertTiles);
        if (first_row + row < p.n && first_expert + expert < p.experts)
            p.logits[int64_t{first_row + row} * p.experts + first_expert + expert] = total[row][expert];
    }
#else
    __trap();  // never launched there
#endif
}

/// Rows of h from here on: fewer bytes through L2; below: more blocks.
constexpr int64_t kManyRows = 2048;

template <int kParts>
void launch_tensor(const Gpu& gpu, const RouterProblem& p) {
    const bool many = p.n >= kManyRows;
    const int rows = many ? 64 : 32;
    const dim3 grid(static_cast<unsigned>(ceil_div(p.n, rows)),
                    static_cast<unsigned>(ceil_div(p.experts, 8 * kExpertTiles)));
    launch(gpu, many ? router_prefill_sm80_kernel<4, kParts> : router_prefill_sm80_kernel<2, kParts>, grid,
           32 * kSlices, 0, p);
}

void tensor_logits(Context& ctx, const Weight& w, const float* h, int64_t n, Tensor& logits) {
    RouterProblem p = {h,
                       static_cast<const uint16_t*>(w.data),
                       0,
                       static_cast<int>(w.row_bytes / 2),
                       static_cast<int>(n),
                       static_cast<int>(w.rows),
                       static_cast<int>(w.cols),
                       logits.row(0)};
    if (w.dtype == DType::bf16 && w.scale == 1.0f) return launch_tensor<1>(*ctx.gpu, p);
    auto* parts = static_cast<uint16_t*>(ctx.arena->allocate(3 * 2 * w.rows * w.cols));
    launch(*ctx.gpu, router_split_kernel, static_cast<unsigned>((w.rows * w.cols / 16 + 255) / 256), 256, 0, w, parts);
    p.w = parts;
    p.part = w.rows * w.cols;
    p.stride = static_cast<int>(w.cols);
    launch_tensor<3>(*ctx.gpu, p);
}

// ---- any columns, any chip: ordinary units -----------------------------------------------------

constexpr int kRouterRows = 128, kRouterExperts = 64, kRouterK = 16, kRouterThreads = 256;

/// Sixteen columns of w as f32 [rows, k], zero behind the last column.
__global__ void __launch_bounds__(256) router_decode_f32_kernel(const __grid_constant__ Weight w, float* to, int k) {
    pdl_trigger();
    pdl_wait();
    const int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, per_row = k / 16;
    if (unit >= w.rows * per_row) return;
    const int64_t row = unit / per_row, col = unit % per_row * 16;
    float v[16];
    if (col < w.cols) {
        decode16(w, row, col, v);
    } else {
#pragma unroll
        for (int j = 0; j < 16; ++j) v[j] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 16; j += 4)
        *reinterpret_cast<float4*>(to + row * k + col + j) = make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]);
}

/// Four values of a row of `cols`, zeros outside.
__device__ __forceinline__ float4 load4(const float* p, bool row_there, int64_t row, int stride, int c, int cols) {
    if (!row_there || c >= cols) return make_float4(0, 0, 0, 0);
    p += row * stride + c;
    if (c + 4 <= cols && stride % 4 == 0) return *reinterpret_cast<const float4*>(p);
    return make_float4(p[0], c + 1 < cols ? p[1] : 0.0f, c + 2 < cols ? p[2] : 0.0f, c + 3 < cols ? p[3] : 0.0f);
}

/// A tile of 128 rows x 64 experts; thread (ty, tx) has rows 4 ty .. + 3, the same + 64, and experts 4 tx .. + 3.
__global__ void __launch_bounds__(kRouterThreads)
    router_prefill_any_kernel(const float* h, const float* w, int w_stride, float* logits, int n, int experts,
                              int cols) {
    pdl_trigger();
    __shared__ float4 rows_at[2][kRouterK][kRouterRows / 4 + 1], experts_at[2][kRouterK][kRouterExperts / 4 + 1];
    pdl_wait();
    const int thread = static_cast<int>(threadIdx.x), tx = thread % 16, ty = thread / 16;
    const int first_row = static_cast<int>(blockIdx.x) * kRouterRows,
              first_expert = static_cast<int>(blockIdx.y) * kRouterExperts;
    // Thread t brings columns 4 (t % 4) .. + 3 of rows t / 4 and t / 4 + 64, and of expert t / 4.
    const int line = thread / 4, part = thread % 4 * 4;
    float4 in[3];
    const auto fetch = [&](int k0) {
        in[0] = load4(h, first_row + line < n, first_row + line, cols, k0 + part, cols);
        in[1] = load4(h, first_row + line + 64 < n, first_row + line + 64, cols, k0 + part, cols);
        in[2] = load4(w, first_expert + line < experts, first_expert + line, w_stride, k0 + part, cols);
    };
    const auto put = [&](int stage) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float* row = reinterpret_cast<float*>(rows_at[stage][part + j]);
            row[line] = (&in[0].x)[j];
            row[line + 64] = (&in[1].x)[j];
            reinterpret_cast<float*>(experts_at[stage][part + j])[line] = (&in[2].x)[j];
        }
    };
    float sum[8][4] = {};
    fetch(0);
    put(0);
    __syncthreads();
    const int steps = ceil_div(cols, kRouterK);
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) fetch((step + 1) * kRouterK);
#pragma unroll
        for (int k = 0; k < kRouterK; ++k) {
            const float4 low = rows_at[step % 2][k][ty], high = rows_at[step % 2][k][ty + 16];
            const float4 e = experts_at[step % 2][k][tx];
            const float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const float b[4] = {e.x, e.y, e.z, e.w};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        if (step + 1 < steps) put((step + 1) % 2);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = first_row + 4 * ty + i % 4 + i / 4 * 64;
        if (row >= n) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int e = first_expert + 4 * tx + j;
            if (e < experts) logits[int64_t{row} * experts + e] = sum[i][j];
        }
    }
}

}  // namespace

void router_logits(Context& ctx, const Weight& w, const float* h, int64_t n, Tensor& logits) {
    if (n == 0) return;
    const ArenaScope scope(*ctx.arena);
    static_assert(kGroup == 32);  // what moe::prefill_router() asks
    const moe::Router router = moe::prefill_router(chip_of(*ctx.gpu), w);
    if (router == moe::Router::prefill_sm90) return router_logits_sm90(*ctx.gpu, w, h, n, logits.row(0));
    if (router == moe::Router::prefill_tensor) return tensor_logits(ctx, w, h, n, logits);
    const auto* weights = static_cast<const float*>(w.data);
    int64_t stride = w.row_bytes / 4;
    if (w.dtype != DType::f32 || w.scale != 1.0f) {
        stride = round_up(w.cols, 16);
        auto* decoded = static_cast<float*>(ctx.arena->allocate(4 * w.rows * stride));
        launch(*ctx.gpu, router_decode_f32_kernel, static_cast<unsigned>((w.rows * stride / 16 + 255) / 256), 256, 0, w,
               decoded, static_cast<int>(stride));
        weights = decoded;
    }
    const dim3 grid(static_cast<unsigned>((n + kRouterRows - 1) / kRouterRows),
                    static_cast<unsigned>((w.rows + kRouterExperts - 1) / kRouterExperts));
    launch(*ctx.gpu, router_prefill_any_kernel, grid, kRouterThreads, 0, h, weights, static_cast<int>(stride),
           logits.row(0), static_cast<int>(n), static_cast<int>(w.rows), static_cast<int>(w.cols));
}

}  // namespace riptide::ops::cuda::prefill
