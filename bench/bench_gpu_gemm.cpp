// The products of the prefill family on a GPU, in the shapes of Laguna XS.2 (hidden 2048, 256 experts of 512, top 8):
// expansion of weights to bf16, the products alone, and whole ops. Argument: rows. Time is the device's (GpuTimer).
// Counters: TFLOPs, or weights/s (in T), and for the expansion GB/s in and out. Inputs: random_fill weights,
// activations in [-1, 1], a random routing. Medians: --benchmark_repetitions=5 --benchmark_report_aggregates_only.
#include <string>
#include <vector>

#include "bench/gemm_device.h"
#include "ops/cuda/backend.h"

namespace {

using namespace riptide;
using namespace riptide::bench;
using namespace riptide::ops::cuda::prefill;

void expansion(benchmark::State& state, DType type, int64_t rows, int64_t cols, double bytes) {
    Device d;
    Expansion job;
    job.w = d.matrix(type, rows, cols);
    job.rows = static_cast<int>(rows);
    job.k = static_cast<int>(cols);
    job.b = d.arena.allocate(2 * scratch_rows(RowOrder::f32, rows) * cols);
    measure(state, d, [&] { expand(*d.gpu, job); });
    rate(state, "Tweights/s", static_cast<double>(rows * cols));
    rate(state, "TB/s", static_cast<double>(rows * cols) * (bytes + 2));
}

/// bf16 rows and weights; contents do not matter for time as long as they are not all zero.
struct Operands {
    void* a;
    void* b;
    Operands(Device& d, int64_t rows, int64_t n, int64_t k) {
        const Tensor x = d.rows(rows, k), w = d.rows(n, k);
        a = d.arena.allocate(2 * rows * k);
        b = d.arena.allocate(2 * n * k);
        to_bf16(*d.gpu, x, nullptr, 0, a, k, nullptr);
        to_bf16(*d.gpu, w, nullptr, 0, b, k, nullptr);
    }
};

void product(benchmark::State& state, int64_t n, int64_t k, bool residual) {
    Device d;
    const int64_t rows = state.range(0);
    const Operands in(d, rows, n, k);
    const Tensor y = d.ctx.alloc(DType::f32, {rows, n}), x = d.rows(rows, n);
    OutF32 out;
    out.add(y.row(0), 0, static_cast<int>(n), n, residual ? x.row(0) : nullptr);
    GemmProblem problem;
    problem.a = in.a, problem.b = in.b;
    problem.rows = static_cast<int>(rows), problem.n = static_cast<int>(n), problem.k = static_cast<int>(k);
    measure(state, d, [&] { gemm(*d.gpu, problem, out); });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(rows * n * k));
}

void product_swiglu(benchmark::State& state, int64_t width, int64_t k) {
    Device d;
    const int64_t rows = state.range(0);
    const Operands in(d, rows, 2 * width, k);
    auto* act = static_cast<uint16_t*>(d.arena.allocate(2 * rows * width));
    GemmProblem problem;
    problem.a = in.a, problem.b = in.b;
    problem.rows = static_cast<int>(rows), problem.n = static_cast<int>(2 * width), problem.k = static_cast<int>(k);
    measure(state, d, [&] { gemm(*d.gpu, problem, OutSwiglu{act, static_cast<int>(width), width}); });
    rate(state, "TFLOP/s", 4.0 * static_cast<double>(rows * width * k));
}

/// The experts' first (gate and up) or second product, all experts at once.
void product_experts(benchmark::State& state, bool first) {
    Device d;
    const int64_t rows = state.range(0), slots = rows * kTopK, n = first ? 2 * kWidth : kHidden,
                  k = first ? kHidden : kWidth;
    const SortedRouting sorted = sort_routing(d.ctx, random_routing(d, rows), kExperts, false);
    void* a = d.arena.allocate(2 * slots * k);
    void* b = d.arena.allocate(2 * kExperts * n * k);
    d.gpu->fill(a, 0x3C, 2 * slots * k);
    d.gpu->fill(b, 0x3C, 2 * kExperts * n * k);
    {
        const ArenaScope scope(d.arena);
        const Tensor x = d.rows(slots / 8, k);  // not constants
        for (int64_t i = 0; i < 8; ++i)
            to_bf16(*d.gpu, x, nullptr, 0, static_cast<uint16_t*>(a) + i * x.elements(), k, nullptr);
        const Tensor w = d.rows(n, k);
        for (int64_t e = 0; e < kExperts; ++e)
            to_bf16(*d.gpu, w, nullptr, 0, static_cast<uint16_t*>(b) + e * n * k, k, nullptr);
    }
    void* y = d.arena.allocate(2 * slots * n);
    GemmProblem problem{a, b,       static_cast<int>(slots), static_cast<int>(n), static_cast<int>(k), sorted.plan,
                        0, kExperts};
    measure(state, d, [&] {
        if (first) gemm(*d.gpu, problem, OutSwiglu{static_cast<uint16_t*>(y), static_cast<int>(kWidth), kWidth});
        else gemm(*d.gpu, problem, OutBf16{static_cast<uint16_t*>(y), n});
    });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(slots * n * k));
}

/// One sparse layer's weights, made once.
struct SparseLayer {
    Device d;
    ops::ExpertWeights experts{d.experts(DType::q4_k, kWidth, kHidden), d.experts(DType::q4_k, kWidth, kHidden),
                               d.experts(DType::q6_k, kHidden, kWidth)};
    std::vector<Weight> down_q4_k = d.experts(DType::q4_k, kHidden, kWidth);
    Weight gate = d.matrix(DType::q4_k, kWidth, kHidden), up = d.matrix(DType::q4_k, kWidth, kHidden),
           down = d.matrix(DType::q6_k, kHidden, kWidth), shared_q4_k = d.matrix(DType::q4_k, kHidden, kWidth),
           router = d.matrix(DType::bf16, kExperts, kHidden);
    std::span<const float> norm = d.store.floats(std::vector<float>(kHidden, 1.0f));
    SparseLayer() { d.store.finish(); }
};
SparseLayer& sparse_layer() {
    static SparseLayer layer;
    return layer;
}

enum class Product { gate_up, down_q4_k, down_q6_k };

/// The experts' first or second product from their planes, the shared expert with them: decoded in the
/// kernel, or expanded to scratch for all experts at once and multiplied. TB/s: planes alone.
void experts_from_planes(benchmark::State& state, Product which, bool decoded) {
    SparseLayer& l = sparse_layer();
    Device& d = l.d;
    const ArenaScope scope(d.arena);
    const bool first = which == Product::gate_up;
    const int64_t rows = state.range(0), slots = rows * (kTopK + 1), n = first ? 2 * kWidth : kHidden,
                  k = first ? kHidden : kWidth;
    const std::vector<Weight>& one = first                         ? l.experts.gate
                                     : which == Product::down_q4_k ? l.down_q4_k
                                                                   : l.experts.down;
    const Weight& shared = first ? l.gate : which == Product::down_q4_k ? l.shared_q4_k : l.down;
    const auto stride = [](const std::vector<Weight>& w) {
        return static_cast<const char*>(w[1].data) - static_cast<const char*>(w[0].data);
    };
    if (!can_decode(*d.gpu, one[0], stride(one))) return state.SkipWithError("not on this device");
    DecodingProblem job;
    GemmProblem& p = job.gemm;
    p.plan = sort_routing(d.ctx, random_routing(d, rows), kExperts, true).plan;
    p.rows = static_cast<int>(slots), p.n = static_cast<int>(n), p.k = static_cast<int>(k);
    p.expert_end = kExperts + 1;
    void* a = d.arena.allocate(2 * slots * k);
    p.a = a;
    {
        const ArenaScope input(d.arena);
        const Tensor x = d.rows(rows, k);
        for (int64_t i = 0; i <= kTopK; ++i)
            to_bf16(*d.gpu, x, nullptr, 0, static_cast<uint16_t*>(a) + i * x.elements(), k, nullptr);
    }
    job.first[0] = &one[0], job.stride[0] = stride(one), job.shared[0] = &shared;
    if (first) job.first[1] = &l.experts.up[0], job.stride[1] = stride(l.experts.up), job.shared[1] = &l.up;
    void* y = d.arena.allocate(2 * slots * (first ? kWidth : kHidden));
    auto* b = static_cast<uint16_t*>(decoded ? nullptr : d.arena.allocate(2 * (kExperts + 1) * n * k));
    const auto expand_one = [&](const Weight& w, int which_row, int64_t at, int experts, int64_t bytes) {
        Expansion e;
        e.w = w, e.rows = static_cast<int>(w.rows), e.b = b + at * n * k, e.k = p.k;
        e.order = first ? RowOrder::swiglu : RowOrder::f32, e.which = which_row;
        e.expert_stride = bytes, e.expert_rows = n, e.experts = experts;
        if (experts > 1) e.row_first = p.plan.row_first;
        expand(*d.gpu, e);
    };
    const OutBf16 out16{static_cast<uint16_t*>(y), n};
    const OutSwiglu act{static_cast<uint16_t*>(y), static_cast<int>(kWidth), kWidth};
    measure(state, d, [&] {
        if (decoded) {
            if (first) gemm_decoding(*d.gpu, job, act);
            else gemm_decoding(*d.gpu, job, out16);
            return;
        }
        for (int i = 0; i < (first ? 2 : 1); ++i) {
            expand_one(*job.first[i], i, 0, kExperts, job.stride[i]);
            expand_one(*job.shared[i], i, kExperts, 1, 0);
        }
        p.b = b;
        if (first) gemm(*d.gpu, p, act);
        else gemm(*d.gpu, p, out16);
    });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(slots * n * k));
    const double each = which == Product::down_q6_k ? 0.8203125 : 0.5625;
    rate(state, "TB/s", static_cast<double>((kExperts + 1) * n * k) * each);
}

/// q, k, v and gate, or o with its residual: expanded and multiplied.
void dense_from_planes(benchmark::State& state, bool qkvg) {
    Device d;
    const int64_t n = state.range(0), k = qkvg ? kHidden : 8192;
    std::vector<Weight> w;
    if (qkvg)
        w = {d.matrix(DType::q4_k, 8192, k), d.matrix(DType::q4_k, 1024, k), d.matrix(DType::q6_k, 1024, k),
             d.matrix(DType::q4_k, 64, k)};
    else w = {d.matrix(DType::q4_k, kHidden, k)};
    d.store.finish();
    std::vector<const Weight*> weights;
    std::vector<Tensor> results;
    int64_t rows = 0;
    for (const Weight& m : w) {
        weights.push_back(&m);
        results.push_back(d.ctx.alloc(DType::f32, {n, m.rows}));
        rows += m.rows;
    }
    auto* a = static_cast<uint16_t*>(d.arena.allocate(2 * n * k));
    to_bf16(*d.gpu, d.rows(n, k), nullptr, 0, a, k, nullptr);
    auto* b = static_cast<uint16_t*>(d.arena.allocate(2 * rows * k));
    Tensor residual = d.rows(n, kHidden);
    measure(state, d, [&] {
        std::vector<Expansion> jobs(w.size());
        OutF32 out;
        int64_t used = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            jobs[i].w = w[i], jobs[i].rows = static_cast<int>(w[i].rows), jobs[i].b = b + used * k;
            jobs[i].k = static_cast<int>(k);
            out.add(results[i].row(0), static_cast<int>(used), static_cast<int>(w[i].rows), w[i].rows,
                    qkvg ? nullptr : residual.row(0));
            used += w[i].rows;
        }
        expand(*d.gpu, jobs);
        gemm(*d.gpu, {a, b, static_cast<int>(n), static_cast<int>(used), static_cast<int>(k)}, out);
    });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(n * rows * k));
}

void op_qkv(benchmark::State& state) {
    Device d;
    const Weight q = d.matrix(DType::q4_k, 8192, kHidden), k = d.matrix(DType::q4_k, 1024, kHidden),
                 v = d.matrix(DType::q6_k, 1024, kHidden), g = d.matrix(DType::q4_k, 64, kHidden);
    const Weight* const group[] = {&q, &k, &v, &g};
    const std::span<const float> norm = d.store.floats(std::vector<float>(kHidden, 1.0f));
    d.store.finish();
    const Tensor x = d.rows(state.range(0), kHidden);
    measure(state, d, [&] { ops::cuda::prefill::matmul_group(d.ctx, x, {norm, 1e-6f}, group, nullptr); });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(state.range(0) * 10304 * kHidden));
}

void op_moe(benchmark::State& state) {
    SparseLayer& l = sparse_layer();
    Device& d = l.d;
    const ArenaScope scope(d.arena);
    Tensor x = d.rows(state.range(0), kHidden);
    measure(state, d, [&] {
        ops::cuda::prefill::moe_add(d.ctx, x, {l.norm, 1e-6f}, {&l.router, {}, kTopK, 2.5f, true}, l.experts,
                                    {&l.gate, &l.up, &l.down});
    });
    rate(state, "TFLOP/s", 6.0 * static_cast<double>(state.range(0) * (kTopK + 1) * kHidden * kWidth));
}

/// type: f32 (six products of parts) or bf16 (three). width: of Hopper's tiles; 0: as chosen.
void op_router(benchmark::State& state, DType type, int width) {
    Device d;
    const Weight router = d.matrix(type, kExperts, kHidden);
    const Tensor h = d.rows(state.range(0), kHidden);
    Tensor logits = d.ctx.alloc(DType::f32, {state.range(0), kExperts});
    if (width != 0 && !d.gpu->hopper()) return state.SkipWithError("not on this device");
    measure(state, d, [&] {
        if (width == 0) router_logits(d.ctx, router, h.row(0), h.rows(), logits);
        else router_logits_sm90(*d.gpu, router, h.row(0), h.rows(), logits.row(0), width);
    });
    rate(state, "TFLOP/s", 2.0 * static_cast<double>(state.range(0) * kExperts * kHidden));
}

}  // namespace

int main(int argc, char** argv) {
    add("expand/q4_k", expansion, DType::q4_k, 65536, kHidden, 0.5625);
    add("expand/q6_k", expansion, DType::q6_k, 65536, kHidden, 0.8203125);
    add("expand/q4_k_10304", expansion, DType::q4_k, 10304, kHidden, 0.5625);
    add_rows("gemm/qkvg_10304x2048", product, 10304, 2048, false);
    add_rows("gemm/o_2048x8192_residual", product, 2048, 8192, true);
    add_rows("gemm/dense_gate_up_8192x2048", product_swiglu, 8192, 2048);
    add_rows("gemm/experts_gate_up", product_experts, true);
    add_rows("gemm/experts_down", product_experts, false);
    for (const bool decoded : {true, false}) {
        const std::string name = decoded ? "decoded" : "expanded";
        add_rows(("experts/gate_up_q4_k/" + name).c_str(), experts_from_planes, Product::gate_up, decoded);
        add_rows(("experts/down_q4_k/" + name).c_str(), experts_from_planes, Product::down_q4_k, decoded);
        add_rows(("experts/down_q6_k/" + name).c_str(), experts_from_planes, Product::down_q6_k, decoded);
    }
    add_rows("dense/qkvg", dense_from_planes, true);
    add_rows("dense/o", dense_from_planes, false);
    add_rows("op/router_f32", op_router, DType::f32, 0);
    add_rows("op/router_bf16", op_router, DType::bf16, 0);
    for (const int width : {16, 32, 64, 128})
        add_rows(("op/router_bf16/" + std::to_string(width)).c_str(), op_router, DType::bf16, width);
    add_rows("op/norm_qkvg", op_qkv);
    add_rows("op/moe_add", op_moe);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
