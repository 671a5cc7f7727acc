// Matrix products of the decode and draft families: launches what plan.cpp chooses, one case for each of its kernels.
// The general kernel, Kernel::any, is launched from here, too; any.cuh describes it.
#include <algorithm>
#include <vector>

#include "ops/cuda/backend.h"
#include "ops/cuda/linear/gemv/any.cuh"
#include "ops/cuda/linear/gemv/bf16_small_sm90.h"
#include "ops/cuda/linear/gemv/kquant_i8.h"
#include "ops/cuda/linear/kquant_f16.h"
#include "ops/cuda/linear/shared/float.h"
#include "ops/cuda/linear/shared/kquant_i8_wide.h"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/linear/skinny/draft_f16_sm90.h"
#include "ops/cuda/linear/skinny/kquant_i8_narrow_sm90.h"
#include "ops/cuda/linear/skinny/kquant_i8_sm80.h"
#include "ops/cuda/linear/skinny/q8_i8_sm80.h"

namespace riptide::ops::cuda::decode {

namespace {

__global__ void __launch_bounds__(kThreads) int8_prepare_kernel(ActSource x, ActLayout layout, char* out) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    pdl_trigger();
    float* norm = reinterpret_cast<float*>(dynamic);
    fetch_norm(x, layout.cols, norm);
    pdl_wait();
    stage_rows(x, layout, blockIdx.x, 1, out + static_cast<int64_t>(blockIdx.x) * layout.bytes(), norm, partial);
}

/// The same for rows that are not normalised, by many CTAs: CTA (row, piece of 8 * kThreads columns).
__global__ void __launch_bounds__(kThreads) prepare_plain_kernel(ActSource x, ActLayout layout, char* out) {
    pdl_trigger();
    pdl_wait();
    const int c = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
    const int64_t row = blockIdx.x;
    float v[8];
    load8(reinterpret_cast<const float*>(x.rows + row * x.stride), c, layout.cols, v);
    put8(layout, out + row * layout.bytes(), c, v);
}

template <int G, int S, bool Whole>
MatmulKernel k_quant_kernel(int p) {
    if (p == 1) return any_planes_kernel<KQuants, G, S, Whole, 1>;
    constexpr int kFewer = G > 3 ? 3 : G;  // registers
    return p == 2 ? any_planes_kernel<KQuants, kFewer, S, Whole, 2> : any_planes_kernel<KQuants, kFewer, S, Whole, 4>;
}

MatmulKernel choose_kernel(const MatmulArgs& a, bool k_quants) {
    const int p = a.block_rows == 1 ? 1 : a.block_rows == 2 ? 2 : 4;
    if (a.plane_rows == 0) return float_kernel(p);
    if (!k_quants) return any_plane_kernel(p);
    return a.layout.groups <= 64 ? k_quant_kernel<5, 2, true>(p) : k_quant_kernel<1, 8, false>(p);
}

/// Warps for plane rows and for float rows: by bytes, never more than rows.
void divide(MatmulArgs& a, const Context& ctx, int64_t plane_bytes, int64_t float_bytes) {
    const int64_t warps = int64_t{2} * ctx.gpu->info().sm_count * kWarps;
    if (a.plane_rows == 0) {
        a.float_warps = static_cast<int32_t>(std::min<int64_t>(warps, a.float_rows));
        return;
    }
    if (a.float_rows > 0)
        a.float_warps = static_cast<int32_t>(std::clamp<int64_t>(warps * float_bytes / (plane_bytes + float_bytes) + 1,
                                                                 1, std::min<int64_t>(a.float_rows, warps - 1)));
    a.plane_warps = static_cast<int32_t>(std::min<int64_t>(warps - a.float_warps, a.plane_rows));
}

void launch_group(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                  std::span<const Tensor> y, Tensor* residual) {
    MatmulArgs a;
    bool k_quants = true;
    int64_t bytes[2] = {};
    int at = 0;
    for (const bool planes : {true, false}) {
        int32_t& rows = planes ? a.plane_rows : a.float_rows;
        if (!planes) a.first_float = at;
        for (size_t i = 0; i < weights.size(); ++i) {
            const Weight& w = *weights[i];
            if (is_planes(w.dtype) != planes) continue;
            Matrix& m = a.m[at++] = matrix_of(w);
            m.y = y[i].row(0);
            m.first_row = rows;
            rows += m.rows;
            bytes[planes ? 0 : 1] += w.bytes();
            if (planes) k_quants = k_quants && is_k_quant(w.dtype);
            else k_quants = k_quants && w.dtype != DType::f8_e4m3 && w.scales == nullptr;
        }
    }
    divide(a, ctx, bytes[0], bytes[1]);
    a.layout = act_layout(cols, a.plane_rows > 0, a.float_rows > 0);
    a.n = static_cast<int32_t>(n);
    a.block_rows = stage_count(ctx, a.layout, x.norm_bytes(a.layout.cols), n);
    a.x = n > 4 && x.kind != ActKind::int8 ? prepare_rows(ctx, x, a.layout, n) : x;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    const MatmulKernel kernel = choose_kernel(a, k_quants);
    const int64_t shared = int64_t{a.block_rows} * a.layout.bytes() + a.x.norm_bytes(a.layout.cols);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    const dim3 grid(static_cast<unsigned>((a.plane_warps + a.float_warps + kWarps - 1) / kWarps),
                    static_cast<unsigned>((n + a.block_rows - 1) / a.block_rows));
    launch(*ctx.gpu, kernel, grid, kThreads, static_cast<size_t>(shared), a);
}

}  // namespace

void check_weight(const Weight& w, int64_t cols) {
    const bool known = is_planes(w.dtype) || w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16 ||
                       w.dtype == DType::f8_e4m3;
    RT_CHECK(known, "no GPU matrix product for weights of type {}", dtype_name(w.dtype));
    RT_CHECK(w.cols == cols, "a weight of shape [{}, {}] cannot multiply rows of {} values", w.rows, w.cols, cols);
    RT_ASSERT(!is_planes(w.dtype) || w.cols % 32 == 0);
}

Matrix matrix_of(const Weight& w) {
    Matrix m;
    m.data = static_cast<const char*>(w.data);
    m.high = static_cast<const char*>(w.high);
    m.scales = static_cast<const char*>(w.scales);
    m.row_bytes = w.row_bytes;
    m.rows = static_cast<int32_t>(w.rows);
    m.cols = static_cast<int32_t>(w.cols);
    m.scale_rows = static_cast<int32_t>(std::min(w.scale_rows, w.rows));
    m.scale_cols = static_cast<int32_t>(w.scale_cols);
    m.scales_per_row = w.scale_cols > 0 ? static_cast<int32_t>((w.cols + w.scale_cols - 1) / w.scale_cols) : 0;
    m.scale = w.scale;
    m.type = w.dtype;
    m.scale_type = w.scale_dtype;
    m.levels = w.levels;
    return m;
}

Matrix matrix_of(std::span<const Weight> experts) {
    Matrix m = matrix_of(experts[0]);
    if (experts.size() > 1) {
        const auto stride = [](const void* a, const void* b) {
            return static_cast<const char*>(b) - static_cast<const char*>(a);
        };
        m.data_stride = stride(experts[0].data, experts[1].data);
        m.high_stride = stride(experts[0].high, experts[1].high);
        m.scale_stride = stride(experts[0].scales, experts[1].scales);
    }
    return m;
}

RouterWords* router_words(const Gpu& gpu) {
    static_assert(sizeof(RouterWords) <= Gpu::kSums * sizeof(uint64_t));
    return reinterpret_cast<RouterWords*>(gpu.sums());
}

void open_words(Gpu& gpu) {
    if (gpu.sums_open) gpu.fill(gpu.sums(), 0, sizeof(RouterWords));
    gpu.sums_open = true;
}

ActSource source_of(const Tensor& x, const Norm& norm, bool want_float) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous());
    ActSource s;
    s.rows = static_cast<const char*>(x.data);
    s.stride = x.shape[1] * int64_t{sizeof(float)};
    if (!norm.weight.empty()) {
        s.kind = ActKind::norm;
        s.norm = norm.weight.data();
        s.eps = norm.eps;
    } else if (x.int8 != nullptr && !want_float) {
        s.kind = ActKind::int8;
        s.rows = static_cast<const char*>(x.int8);
        s.stride = ActRow::bytes(x.shape[1]);
    }
    return s;
}

ActSource prepare_rows(Context& ctx, const ActSource& source, const ActLayout& layout, int64_t n) {
    if (source.kind == ActKind::staged) return source;
    ActSource staged;
    staged.kind = ActKind::staged;
    staged.stride = layout.bytes();
    auto* out = static_cast<char*>(ctx.arena->allocate(n * staged.stride));
    staged.rows = out;
    constexpr int32_t kPiece = 8 * kThreads;
    if (source.kind == ActKind::plain && layout.cols > kPiece) {
        const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>((layout.cols + kPiece - 1) / kPiece));
        launch(*ctx.gpu, prepare_plain_kernel, grid, kThreads, 0, source, layout, out);
        return staged;
    }
    const int32_t shared = source.norm_bytes(layout.cols);
    allow_shared(reinterpret_cast<const void*>(int8_prepare_kernel), shared);
    launch(*ctx.gpu, int8_prepare_kernel, dim3(static_cast<unsigned>(n)), kThreads, static_cast<size_t>(shared), source,
           layout, out);
    return staged;
}

int32_t stage_count(const Context& ctx, const ActLayout& layout, int64_t other, int64_t n) {
    constexpr int64_t kHalf = 96 << 10, kStatic = 2 << 10;
    const int64_t most = ctx.gpu->info().shared_bytes - kStatic - other;
    RT_CHECK(layout.bytes() <= most, "rows of {} values do not fit in the {} bytes of shared memory of {}", layout.cols,
             ctx.gpu->info().shared_bytes, ctx.gpu->info().name);
    const int64_t fit = std::max<int64_t>(1, std::min(kHalf, most) / layout.bytes());
    return static_cast<int32_t>(std::min({n, int64_t{kStageRows}, fit}));
}

int64_t most_clusters(const void* kernel, int cluster, int threads, int64_t shared_bytes) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(cluster));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    RT_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
}

namespace {

/// One launch of the plan.
void run(Context& ctx, const linear::Launch& launch, const ActSource& x, int64_t cols, std::span<const Weight* const> w,
         std::span<Tensor> y, Tensor* residual, const RouterAhead* ahead) {
    using linear::Kernel;
    const int64_t n = launch.rows;
    switch (launch.kernel) {
        case Kernel::draft_f16_sm90:
            return draft_multiply(ctx, x, cols, n, w, y, residual);
        case Kernel::kquant_f16_row1_sm90:
        case Kernel::kquant_f16_mma_sm90:
        case Kernel::kquant_f16_wgmma_sm90:
            return f16_multiply(ctx, launch, x, cols, w, y, residual);
        case Kernel::kquant_i8_whole5:
        case Kernel::kquant_i8_whole6:
        case Kernel::kquant_i8_split:
        case Kernel::kquant_i8_stream:
            return kquant_i8_multiply(ctx, launch.kernel, x, cols, w, y, residual, nullptr);
        case Kernel::kquant_i8_split_router:
            return kquant_i8_multiply(ctx, launch.kernel, x, cols, w, y, residual, ahead);
        case Kernel::planes_i8_whole5:
        case Kernel::planes_i8_whole6:
        case Kernel::planes_i8_split:
            return planes_i8_multiply(ctx, launch.kernel, x, cols, n, w, y, residual, nullptr);
        case Kernel::planes_i8_split_router:
            return planes_i8_multiply(ctx, launch.kernel, x, cols, n, w, y, residual, ahead);
        case Kernel::kquant_i8_rows4_whole5:
        case Kernel::kquant_i8_rows4_whole6:
        case Kernel::kquant_i8_rows4_split:
            return kquant_i8_rows4_multiply(ctx, launch.kernel, x, cols, n, w, y, residual, nullptr);
        case Kernel::kquant_i8_rows4_split_router:
            return kquant_i8_rows4_multiply(ctx, launch.kernel, x, cols, n, w, y, residual, ahead);
        case Kernel::bf16_small_sm90:
            if (launch.beside) return bf16_small_beside(ctx, x, cols, n, w, y);
            return bf16_small_multiply(ctx, x, cols, w, y, residual);
        case Kernel::float_row1:
        case Kernel::float_rows:
            return float_multiply(ctx, x, cols, n, w, y, residual);
        case Kernel::kquant_i8_wide_row1_sm90:
            return kquant_i8_wide_row1_multiply(ctx, x, cols, w, y, residual);
        case Kernel::kquant_i8_wide_sm90:
            return kquant_i8_wide_multiply(ctx, x, cols, n, w, y, residual);
        case Kernel::kquant_i8_narrow_sm90:
            return kquant_i8_narrow_multiply(ctx, x, cols, n, w, y, residual);
        case Kernel::kquant_i8_sm80:
            return tile_multiply(ctx, x, cols, n, w, y, residual);
        case Kernel::q8_i8_sm80:
            return q8_i8_multiply(ctx, x, cols, n, w, y, residual);
        case Kernel::any:
            return launch_group(ctx, x, cols, n, w, y, residual);
        case Kernel::gemm_fp8_sm90:  // of the prefill family
        case Kernel::gemm_bf16_sm90:
        case Kernel::gemm_bf16_sm80:
            break;
    }
    RT_ASSERT(false);
}

}  // namespace

linear::Case case_of(const Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                     std::span<const Weight* const> weights, bool residual) {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    return {
        ctx.family,       n, cols, x.kind, aligned(x.rows) && aligned(x.norm) && x.stride % 16 == 0, residual, weights,
        chip_of(*ctx.gpu)};
}

bool multiply_into(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<Tensor> y, Tensor* residual, const RouterAhead* ahead) {
    RT_ASSERT(residual == nullptr || weights.size() == 1);
    for (const Weight* w : weights) check_weight(*w, cols);
    const ArenaScope scope(*ctx.arena);
    linear::Case c = case_of(ctx, x, cols, n, weights, residual != nullptr);
    c.router = ahead != nullptr;
    bool summed = false;
    for (const linear::Launch& launch : linear::choose(c)) {
        std::vector<const Weight*> w;
        std::vector<Tensor> to;
        for (const size_t i : launch.weights) w.push_back(weights[i]), to.push_back(y[i]);
        run(ctx, launch, x, cols, w, to, residual, ahead);
        summed = summed || linear::leaves_words(launch.kernel);
    }
    return summed;
}

std::vector<Tensor> multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                             std::span<const Weight* const> weights, Tensor* residual, const RouterAhead* ahead) {
    std::vector<Tensor> y;
    y.reserve(weights.size());
    for (const Weight* w : weights) y.push_back(ctx.alloc(DType::f32, {n, w->rows}));
    const bool words = multiply_into(ctx, x, cols, n, weights, y, residual, ahead);
    if (ahead != nullptr) residual->routed.words = words;
    return y;
}

std::vector<Tensor> matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                 std::span<const Weight* const> weights, Tensor* residual, const RouterAhead* ahead) {
    const bool draft = ctx.family == Family::draft;
    const Chip chip = chip_of(*ctx.gpu);
    const bool want_float = std::any_of(weights.begin(), weights.end(), [&](const Weight* w) {
        return !is_planes(w->dtype) || linear::f16_weight(chip, *w) || (draft && linear::draft_weight(chip, *w));
    });
    return multiply(ctx, source_of(x, norm, want_float), x.shape[1], x.rows(), weights, residual, ahead);
}

}  // namespace riptide::ops::cuda::decode
