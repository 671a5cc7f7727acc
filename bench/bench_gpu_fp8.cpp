// The FP8 products of the prefill family on a GPU, in the shapes of Laguna XS.2; see bench_gpu_gemm.cpp, whose figures
// are those of bf16. Needs Hopper.
#include "bench/gemm_device.h"
#include "ops/cuda/linear/gemm/fp8_sm90.h"

namespace {

using namespace riptide;
using namespace riptide::bench;
using namespace riptide::ops::cuda::prefill;

/// A random e4m3 copy of q4_k weights.
struct Fp8Weights {
    std::vector<Weight> w;
    Fp8Weights(Device& d, int64_t rows, int64_t cols, bool experts) {
        if (experts) w = d.experts(DType::q4_k, rows, cols);
        else w = {d.matrix(DType::q4_k, rows, cols)};
        d.store.add_fp8(w);
    }
};
Fp8Rows random_fp8(Device& d, int64_t rows, int64_t cols) {
    const Fp8Rows to = {static_cast<uint8_t*>(d.arena.allocate(rows * cols)),
                        static_cast<float*>(d.arena.allocate(4 * rows * (cols / 128)))};
    const ArenaScope scope(d.arena);
    const int64_t each = std::min<int64_t>(rows, 4096);
    const Tensor x = d.rows(each, cols);
    for (int64_t i = 0; i < rows; i += each)
        to_fp8(*d.gpu, x, nullptr, 0, {to.values + i * cols, to.scales + i * (cols / 128)}, nullptr);
    return to;
}

void product_fp8(benchmark::State& state, int64_t n, int64_t k, bool residual) {
    Device d;
    const int64_t rows = state.range(0);
    const Fp8Weights w(d, n, k, false);
    const Tensor y = d.ctx.alloc(DType::f32, {rows, n}), x = d.rows(rows, n);
    OutF32 out;
    out.add(y.row(0), 0, static_cast<int>(n), n, residual ? x.row(0) : nullptr);
    Fp8Problem problem;
    problem.a = random_fp8(d, rows, k);
    problem.b[0] = fp8_of(w.w[0]), problem.matrices = 1;
    problem.rows = static_cast<int>(rows), problem.k = static_cast<int>(k);
    measure(state, d, [&] { gemm_fp8(*d.gpu, problem, out); });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(rows * n * k));
}

/// All experts at once, without a shared one.
void experts_fp8(benchmark::State& state, bool first) {
    Device d;
    const int64_t rows = state.range(0), slots = rows * kTopK, n = first ? kWidth : kHidden,
                  k = first ? kHidden : kWidth;
    const Fp8Weights one(d, n, k, true), two(d, n, k, true);
    Fp8Problem problem;
    problem.a = random_fp8(d, slots, k);
    problem.b[0] = fp8_of(one.w[0]), problem.b[1] = fp8_of(two.w[0]);
    problem.matrices = first ? 2 : 1;
    problem.rows = static_cast<int>(slots), problem.k = static_cast<int>(k);
    problem.plan = sort_routing(d.ctx, random_routing(d, rows), kExperts, false).plan;
    problem.experts = kExperts;
    void* y = d.arena.allocate(4 * slots * n);
    const OutFp8 act{{static_cast<uint8_t*>(y), static_cast<float*>(d.arena.allocate(4 * slots * (n / 128)))},
                     static_cast<int>(n)};
    OutF32 out;
    out.add(static_cast<float*>(y), 0, static_cast<int>(n), n);
    measure(state, d, [&] {
        if (first) gemm_fp8(*d.gpu, problem, act);
        else gemm_fp8(*d.gpu, problem, out);
    });
    rate(state, "TFLOP/s", (first ? 4.0 : 2.0) * static_cast<double>(slots * n * k));
}

void rows_to_fp8(benchmark::State& state, bool norm) {
    Device d;
    const int64_t rows = state.range(0);
    const Tensor x = d.rows(rows, kHidden);
    const std::span<const float> weight = d.store.floats(std::vector<float>(kHidden, 1.0f));
    d.store.finish();
    const Fp8Rows to = random_fp8(d, rows, kHidden);
    measure(state, d, [&] { to_fp8(*d.gpu, x, norm ? weight.data() : nullptr, 1e-6f, to, nullptr); });
    rate(state, "TB/s", 5.0 * static_cast<double>(rows * kHidden));
}

}  // namespace

int main(int argc, char** argv) {
    add_rows("rows_norm", rows_to_fp8, true);
    add_rows("q_8192x2048", product_fp8, 8192, 2048, false);
    add_rows("o_2048x8192_residual", product_fp8, 2048, 8192, true);
    add_rows("experts_gate_up", experts_fp8, true);
    add_rows("experts_down", experts_fp8, false);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
