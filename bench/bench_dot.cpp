// Matrix products of one thread or more, for every block type: decode (one row, weights from memory) and prefill (64 rows).
// Arguments of a benchmark: rows of x, threads. bytes_per_second counts weight bytes, items 2 * n * rows * cols operations.
// Inputs: random weights (random_fill), activations in [-1, 1]. Decode walks 160 MB of weights, more than any L3 cache part.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "quant/random_fill.h"

namespace {

using namespace riptide;

constexpr int64_t kCols = 2048;

struct Matrix {
    std::vector<std::byte> bytes;
    Weight w;
};

Matrix random_matrix(DType type, int64_t rows, int64_t cols) {
    Matrix m;
    m.w.dtype = type;
    m.w.rows = rows;
    m.w.cols = cols;
    m.w.row_bytes = row_bytes(type, cols);
    m.bytes.resize(static_cast<size_t>(m.w.bytes()));
    random_fill(type, m.bytes.data(), rows * cols, 0.02f, 1);
    m.w.data = m.bytes.data();
    return m;
}

void fill(Tensor& x) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < x.elements(); ++i) x.row(0)[i] = uniform(random);
}

void product(benchmark::State& state, DType type, Isa isa, int64_t weight_bytes) {
    const Matrix m = random_matrix(type, weight_bytes / row_bytes(type, kCols) / 16 * 16, kCols);
    ThreadPool threads(static_cast<int>(state.range(1)));
    Arena arena, inputs;
    Context ctx;
    ctx.threads = &threads;
    ctx.arena = &inputs;
    Tensor x = ctx.alloc(DType::f32, {state.range(0), kCols});
    fill(x);
    ctx.arena = &arena;
    const Weight* const group[] = {&m.w};
    for (auto _ : state) {
        arena.reset();
        benchmark::DoNotOptimize(ops::matmul_group(ctx, dot_kernels(isa), group, x));
    }
    state.SetBytesProcessed(state.iterations() * m.w.bytes());
    state.SetItemsProcessed(state.iterations() * 2 * state.range(0) * m.w.rows * m.w.cols);
}

void empty_region(benchmark::State& state) {
    ThreadPool threads(static_cast<int>(state.range(0)));
    const std::function<void(int64_t, int64_t, int)> nothing = [](int64_t, int64_t, int) {};
    for (auto _ : state) threads.parallel_for(4 * threads.size(), 1, nothing);
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    const DType types[] = {DType::q4_k, DType::q5_k,   DType::q6_k,   DType::q8_0,  DType::q4_0,  DType::q4_1, DType::q5_0,
                           DType::q5_1, DType::q2_k,   DType::q3_k,   DType::iq4_nl, DType::iq4_xs, DType::mxfp4, DType::nvfp4,
                           DType::f32,  DType::f16,    DType::bf16,   DType::f8_e4m3};
    for (Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
        if (!isa_available(isa)) continue;
        for (DType type : types) {
            const std::string name = std::string(dot_kernels(isa).name) + "/" + dtype_name(type);
            benchmark::RegisterBenchmark(("decode/" + name).c_str(), product, type, isa, int64_t{160} << 20)
                ->Args({1, 1})
                ->Args({1, 2})
                ->Unit(benchmark::kMillisecond)
                ->UseRealTime();
            benchmark::RegisterBenchmark(("prefill/" + name).c_str(), product, type, isa, int64_t{2} << 20)
                ->Args({4, 1})
                ->Args({16, 1})
                ->Args({64, 1})
                ->Args({512, 1})
                ->Unit(benchmark::kMillisecond)
                ->UseRealTime();
        }
    }
    benchmark::RegisterBenchmark("empty_region", empty_region)->Arg(2)->UseRealTime();
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
