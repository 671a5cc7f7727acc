// Matrix products of one thread or more, for every block type: decode (one row, weights from memory) and prefill (64
// rows). Arguments of a benchmark: rows of x, threads. bytes_per_second counts weight bytes, items 2 * n * rows * cols
// operations. Inputs: random weights (random_fill), activations in [-1, 1]. Decode walks 160 MB of weights, more than
// any L3 cache part.
#include <benchmark/benchmark.h>

#include <algorithm>
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

/// One layer of Laguna XS.2: 256 experts of width 512, 8 for each row, and a shared one. Every step routes at random.
void experts(benchmark::State& state) {
    constexpr int64_t kExperts = 256, kWidth = 512, kUsed = 8;
    const int64_t n = state.range(0);
    const Matrix gate = random_matrix(DType::q4_k, (kExperts + 1) * kWidth, kCols);
    const Matrix up = random_matrix(DType::q4_k, (kExperts + 1) * kWidth, kCols);
    const Matrix down = random_matrix(DType::q4_k, (kExperts + 1) * kCols, kWidth);
    ops::ExpertWeights weights;
    for (int64_t e = 0; e < kExperts; ++e) {
        weights.gate.push_back(gate.w.slice_rows(e * kWidth, kWidth));
        weights.up.push_back(up.w.slice_rows(e * kWidth, kWidth));
        weights.down.push_back(down.w.slice_rows(e * kCols, kCols));
    }
    const Weight shared[] = {gate.w.slice_rows(kExperts * kWidth, kWidth), up.w.slice_rows(kExperts * kWidth, kWidth),
                             down.w.slice_rows(kExperts * kCols, kCols)};
    ThreadPool threads(static_cast<int>(state.range(1)));
    Arena arena, inputs;
    Context ctx;
    ctx.threads = &threads;
    ctx.arena = &inputs;
    Tensor x = ctx.alloc(DType::f32, {n, kCols}), logits = ctx.alloc(DType::f32, {n, kExperts});
    fill(x);
    ctx.arena = &arena;
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    int64_t bytes = 0;
    for (auto _ : state) {
        for (int64_t i = 0; i < logits.elements(); ++i) logits.row(0)[i] = uniform(random);
        arena.reset();
        const ops::Routing routing = ops::route_sigmoid(ctx, logits, {}, kUsed, 2.5f, true);
        benchmark::DoNotOptimize(ops::moe_swiglu(ctx, x, routing, weights, {&shared[0], &shared[1], &shared[2]}));
        std::vector<bool> used(kExperts);
        for (int64_t i = 0; i < n * kUsed; ++i) used[static_cast<size_t>(routing.experts.row<int32_t>(0)[i])] = true;
        bytes += (std::count(used.begin(), used.end(), true) + 1) * 3 * shared[0].bytes();
    }
    state.SetBytesProcessed(bytes);
    state.SetItemsProcessed(state.iterations() * 2 * n * (kUsed + 1) * 3 * kWidth * kCols);
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    const DType types[] = {DType::q4_k,  DType::q5_k,  DType::q6_k, DType::q8_0, DType::q4_0,   DType::q4_1,
                           DType::q5_0,  DType::q5_1,  DType::q2_k, DType::q3_k, DType::iq4_nl, DType::iq4_xs,
                           DType::mxfp4, DType::nvfp4, DType::f32,  DType::f16,  DType::bf16,   DType::f8_e4m3};
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
    benchmark::RegisterBenchmark("experts/q4_k", experts)
        ->ArgsProduct({{1, 8, 64, 512}, {1, 2}})
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
