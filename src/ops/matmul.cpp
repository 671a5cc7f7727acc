#include "ops/matmul.h"

#include <algorithm>
#include <cstddef>

#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/elementwise.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/op_cost.h"
#include "quant/planes.h"

namespace riptide::ops {

namespace {

constexpr int64_t kPanelRows = 16;  // kernels work on panels of sixteen weight rows
constexpr int64_t kUnitBytes = int64_t{64} << 10;

void check_weight(const Weight& w, int64_t cols) {
    RT_CHECK(has_dot(w.dtype) || is_planes(w.dtype), "no matrix product for weights of type {}", dtype_name(w.dtype));
    RT_CHECK(w.cols == cols, "a weight of shape [{}, {}] cannot multiply rows of {} values", w.rows, w.cols, cols);
}

/// Weight rows of one unit of work for n rows of x. About eight units for each thread, whole panels, at most 256 rows.
/// One or two rows of x make no panels and are bound by memory, where threads end at different times: then about
/// sixteen units, but of at least kUnitBytes (kernels read two streams, which want to be long) if that leaves four.
int64_t unit_rows(std::span<const Weight* const> weights, int64_t n, int threads) {
    int64_t rows = 0, bytes = 0;
    for (const Weight* w : weights) {
        rows += w->rows;
        bytes += w->bytes();
    }
    if (n <= 2) {
        const int64_t least = std::min(kUnitBytes / std::max<int64_t>(1, bytes / std::max<int64_t>(1, rows)),
                                       rows / (int64_t{threads} * 4));
        return (std::clamp<int64_t>(std::max(least, rows / (int64_t{threads} * 16)), 4, 64) + 3) / 4 * 4;
    }
    const int64_t share = rows / (int64_t{threads} * 8) / kPanelRows * kPanelRows;
    return std::clamp<int64_t>(share, kPanelRows, 256);
}

}  // namespace

template <class Acc>
void matmul_ref(const float* w, const float* x, int64_t rows, int64_t cols, Acc* y) {
    for (int64_t o = 0; o < rows; ++o) {
        Acc sum = 0;
        for (int64_t c = 0; c < cols; ++c) sum += Acc{w[o * cols + c]} * Acc{x[c]};
        y[o] = sum;
    }
}
template void matmul_ref<float>(const float*, const float*, int64_t, int64_t, float*);
template void matmul_ref<double>(const float*, const float*, int64_t, int64_t, double*);

void DotInput::set(DotTask& task, const Weight& w) const {
    const bool use_int8 = uses_int8_activations(w.dtype);
    task.w = &w;
    task.x = use_int8 ? int8 : f32;
    task.x_stride = use_int8 ? Int8Row::bytes(cols) : cols * int64_t{sizeof(float)};
}

void fetch_streams(const Weight& w, int64_t begin, int64_t end) {
    constexpr int64_t kBytes = 1024;  // from there on the kernel fetches
    for (const int64_t row : {begin, begin + (end - begin + 1) / 2}) {
        const auto* p = static_cast<const char*>(w.row(row));
        for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(p + i);
    }
}

DotInput dot_input(Context& ctx, const DotKernels& kernels, const Tensor& x, bool want_int8) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous());
    DotInput input{x.data, nullptr, x.shape[1]};
    if (!want_int8) return input;
    const int64_t bytes = Int8Row::bytes(input.cols);
    auto* rows = static_cast<std::byte*>(ctx.arena->allocate(x.rows() * bytes));
    const auto quantize = [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) kernels.quantize(x.row(r), 0, input.cols, input.cols, rows + r * bytes);
    };
    if (x.rows() >= 16 && thread_count(ctx) > 1) ctx.threads->parallel_for(x.rows(), 8, quantize);
    else quantize(0, x.rows(), 0);
    input.int8 = rows;
    return input;
}

namespace {

/// The products of all weights with the n rows of x, in one parallel region; each is added to `residual`, too, if there
/// is one.
std::vector<Tensor> products(Context& ctx, const DotKernels& kernels, std::span<const Weight* const> weights,
                             const DotInput& x, int64_t n, Tensor* residual) {
    if (ctx.on_input) {
        const Tensor rows(const_cast<void*>(x.f32), DType::f32, {n, x.cols});
        for (const Weight* w : weights) ctx.on_input(*w, rows);
    }
    std::vector<Tensor> results;
    results.reserve(weights.size());
    int64_t scratch_bytes = 0;
    for (const Weight* w : weights) {
        results.push_back(ctx.alloc(DType::f32, {n, w->rows}));
        scratch_bytes = std::max(scratch_bytes, dot_scratch_bytes(*w));
    }
    if (n == 0) return results;

    const ArenaScope scope(*ctx.arena);
    auto* scratch = static_cast<std::byte*>(ctx.arena->allocate(scratch_bytes * thread_count(ctx)));
    const int64_t step = unit_rows(weights, n, thread_count(ctx));
    const auto units_of = [step](const Weight& w) { return (w.rows + step - 1) / step; };
    const auto run_unit = [&](int64_t unit, int thread) {
        size_t i = 0;
        while (unit >= units_of(*weights[i])) unit -= units_of(*weights[i++]);
        DotTask task;
        x.set(task, *weights[i]);
        task.row_begin = unit * step;
        task.row_end = std::min(weights[i]->rows, task.row_begin + step);
        task.n = n;
        task.y = results[i].row(0) + task.row_begin;
        task.y_stride = weights[i]->rows;
        task.scratch = scratch + thread * scratch_bytes;
        if (n <= 2 && task.row_end < weights[i]->rows)
            fetch_streams(*weights[i], task.row_end, std::min(weights[i]->rows, task.row_end + step));
        kernels.dot(task);
        if (residual == nullptr) return;
        for (int64_t r = 0; r < n; ++r)
            add_row(residual->row(r) + task.row_begin, task.y + r * task.y_stride, task.row_end - task.row_begin);
    };
    int64_t units = 0;
    for (const Weight* w : weights) units += units_of(*w);
    const auto run = [&](int64_t begin, int64_t end, int thread) {
        for (int64_t unit = begin; unit < end; ++unit) run_unit(unit, thread);
    };
    if (thread_count(ctx) == 1) run(0, units, 0);
    else ctx.threads->parallel_for(units, 1, run);
    return results;
}

}  // namespace

std::vector<Tensor> matmul_group(Context& ctx, const DotKernels& kernels, std::span<const Weight* const> weights,
                                 const Tensor& x) {
    bool want_int8 = false;
    for (const Weight* w : weights) {
        check_weight(*w, x.shape[1]);
        want_int8 = want_int8 || uses_int8_activations(w->dtype);
    }
    return products(ctx, kernels, weights, dot_input(ctx, kernels, x, want_int8), x.rows(), nullptr);
}

std::vector<Tensor> matmul_group(Context& ctx, std::span<const Weight* const> weights, const Tensor& x) {
    const OpScope told = announce(ctx, "matmul_group", x.rows(), weights);
    if (ctx.gpu == nullptr) return matmul_group(ctx, dot_kernels(), weights, x);
    for (const Weight* w : weights) check_weight(*w, x.shape[1]);
    return cuda::matmul_group(ctx, weights, x);
}

Tensor matmul(Context& ctx, const Weight& w, const Tensor& x) {
    const Weight* const group[] = {&w};
    return matmul_group(ctx, group, x).front();
}

std::vector<Tensor> norm_matmul_group(Context& ctx, const Tensor& x, const Norm& norm,
                                      std::span<const Weight* const> weights) {
    const OpScope told = announce(ctx, "norm_matmul_group", x.rows(), weights);
    if (ctx.gpu == nullptr) return matmul_group(ctx, weights, rms_norm(ctx, x, norm.weight, norm.eps));
    for (const Weight* w : weights) check_weight(*w, x.shape[1]);
    return cuda::norm_matmul_group(ctx, x, norm, weights);
}

Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, Tensor& residual, const MoeLayer* next) {
    check_weight(w, x.shape[1]);
    RT_ASSERT(residual.rows() == x.rows() && residual.shape[1] == w.rows && residual.data != x.data);
    const Weight* const only = &w;
    const OpScope told = announce(ctx, "matmul_add", x.rows(), {&only, 1}, next);
    RT_ASSERT(!residual.routed.words);
    residual.routed = note_of(w, next);
    if (ctx.gpu != nullptr) return cuda::matmul_add(ctx, w, x, residual, next);
    return matmul_add(ctx, w, x, nullptr, residual);
}

Tensor matmul_add(Context& ctx, const Weight& w, const Tensor& x, const std::byte* int8, Tensor& residual) {
    RT_ASSERT(ctx.gpu == nullptr && x.dtype == DType::f32 && x.contiguous());
    check_weight(w, x.shape[1]);
    RT_ASSERT(residual.rows() == x.rows() && residual.shape[1] == w.rows && residual.data != x.data);
    const DotKernels& kernels = dot_kernels();
    DotInput input{x.data, int8, x.shape[1]};
    if (int8 == nullptr) input = dot_input(ctx, kernels, x, uses_int8_activations(w.dtype));
    const Weight* const group[] = {&w};
    return products(ctx, kernels, group, input, x.rows(), &residual).front();
}

Tensor swiglu_ffn_add(Context& ctx, Tensor& x, const Norm& norm, const Weight& w_gate, const Weight& w_up,
                      const Weight& w_down) {
    const Weight* const weights[] = {&w_gate, &w_up, &w_down};
    const OpScope told = announce(ctx, "swiglu_ffn_add", x.rows(), weights);
    RT_ASSERT(!x.routed.words);
    x.routed = {};
    if (ctx.gpu != nullptr) return cuda::swiglu_ffn_add(ctx, x, norm, w_gate, w_up, w_down);
    const Tensor y = swiglu_ffn(ctx, rms_norm(ctx, x, norm.weight, norm.eps), w_gate, w_up, w_down);
    add(ctx, x, y);
    return y;
}

bool wants_int8(const Gpu* gpu, const Weight& w) {
    return gpu != nullptr ? cuda::wants_int8(*gpu, w) : is_planes(w.dtype);
}

}  // namespace riptide::ops
