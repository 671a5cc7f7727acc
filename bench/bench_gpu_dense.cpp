// The decode family's products of a dense model in the sizes of Qwen3.5-27B (Q4_K_M; a third of `down` in Q6_K is timed
// by itself): each op as a chain over the weights of 16 layers, as a graph, for 1 to 64 rows. Prints microseconds of
// one op (median of 15 replays), in brackets the floor by the weights' bytes at 4.65 TB/s, and the time of 64 layers
// and the head beside that of one row. The weights are random; every layer has its own (5 GB), so that nothing stays in
// the L2 cache.
//   bench_gpu_dense [--rows 1,2,4,8,16,24,32] [--only part of an op's name] [--portable]
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu_model.h"
#include "bench/gpu_timing.h"

namespace {

using namespace riptide;
using namespace riptide::bench;

constexpr double kBandwidth = 4650;  // GB/s
constexpr int64_t kD = 5120, kWide = 17408, kHeads = 6144, kChain = 16, kVocabulary = 248320;
constexpr float kEps = 1e-6f;

struct DenseLayer {
    Weight qkv, z, beta, alpha, q, k, v, o, gate, up, down, down6;
};

/// An op of the model: how often a step runs it, and its bytes.
struct Op {
    const char* name;
    double times;
    int64_t chain;
    double bytes;
    std::function<void(Context&, const DenseLayer&)> run;
};

double bytes_of_all(std::initializer_list<const Weight*> weights) {
    double bytes = 0;
    for (const Weight* w : weights) bytes += static_cast<double>(placed_bytes(*w));
    return bytes;
}

/// only: part of the names of the ops to time.
void run(Gpu& gpu, const std::vector<int64_t>& counts, const std::string& only) {
    Weights weights(gpu);
    const DType q4 = DType::planes_q4_k, q6 = DType::planes_q6_k;
    const auto stack = [&](DType type, int64_t rows, int64_t cols) { return weights.stack(type, rows, cols, kChain); };
    std::vector<DenseLayer> layers(static_cast<size_t>(kChain));
    const auto place = [&](Weight DenseLayer::*member, DType type, int64_t rows, int64_t cols) {
        const std::vector<Weight> all = stack(type, rows, cols);
        for (size_t i = 0; i < layers.size(); ++i) layers[i].*member = all[i];
    };
    place(&DenseLayer::qkv, q4, 10240, kD);
    place(&DenseLayer::z, q4, kHeads, kD);
    place(&DenseLayer::beta, DType::f32, 48, kD);
    place(&DenseLayer::alpha, DType::f32, 48, kD);
    place(&DenseLayer::q, q4, 2 * kHeads, kD);
    place(&DenseLayer::k, q4, 1024, kD);
    place(&DenseLayer::v, q4, 1024, kD);
    place(&DenseLayer::o, q4, kD, kHeads);
    place(&DenseLayer::gate, q4, kWide, kD);
    place(&DenseLayer::up, q4, kWide, kD);
    place(&DenseLayer::down, q4, kD, kWide);
    place(&DenseLayer::down6, q6, kD, kWide);
    const Weight head = weights.matrix(q6, kVocabulary, kD);

    DeviceMemory ones(&gpu, kD * 4, "norm");
    const std::vector<float> one(static_cast<size_t>(kD), 1.0f);
    gpu.to_device(ones.data(), one.data(), kD * 4);
    const ops::Norm norm{{reinterpret_cast<const float*>(ones.data()), one.size()}, kEps};

    Arena arena(int64_t{512} << 20, &gpu), inputs(int64_t{64} << 20, &gpu);
    Tensor x, heads, wide;
    const DenseLayer& l0 = layers[0];
    const std::vector<Op> ops = {
        {"norm, qkv z beta alpha (48)", 48, kChain, bytes_of_all({&l0.qkv, &l0.z, &l0.beta, &l0.alpha}),
         [&](Context& ctx, const DenseLayer& l) {
             const Weight* const group[] = {&l.qkv, &l.z, &l.beta, &l.alpha};
             ops::norm_matmul_group(ctx, x, norm, group);
         }},
        {"norm, q k v (16)", 16, kChain, bytes_of_all({&l0.q, &l0.k, &l0.v}),
         [&](Context& ctx, const DenseLayer& l) {
             const Weight* const group[] = {&l.q, &l.k, &l.v};
             ops::norm_matmul_group(ctx, x, norm, group);
         }},
        {"o += (64)", 64, kChain, bytes_of_all({&l0.o}),
         [&](Context& ctx, const DenseLayer& l) { ops::matmul_add(ctx, l.o, heads, x); }},
        {"norm, gate up, down += (43)", 43, kChain, bytes_of_all({&l0.gate, &l0.up, &l0.down}),
         [&](Context& ctx, const DenseLayer& l) { ops::swiglu_ffn_add(ctx, x, norm, l.gate, l.up, l.down); }},
        {"the same, down in Q6_K (21)", 21, kChain, bytes_of_all({&l0.gate, &l0.up, &l0.down6}),
         [&](Context& ctx, const DenseLayer& l) { ops::swiglu_ffn_add(ctx, x, norm, l.gate, l.up, l.down6); }},
        {"  down += alone", 0, kChain, bytes_of_all({&l0.down}),
         [&](Context& ctx, const DenseLayer& l) { ops::matmul_add(ctx, l.down, wide, x); }},
        {"  down += in Q6_K alone", 0, kChain, bytes_of_all({&l0.down6}),
         [&](Context& ctx, const DenseLayer& l) { ops::matmul_add(ctx, l.down6, wide, x); }},
        {"a layer but for attention", 0, kChain,
         bytes_of_all({&l0.qkv, &l0.z, &l0.beta, &l0.alpha, &l0.o, &l0.gate, &l0.up, &l0.down}),
         [&](Context& ctx, const DenseLayer& l) {
             const Weight* const group[] = {&l.qkv, &l.z, &l.beta, &l.alpha};
             ops::norm_matmul_group(ctx, x, norm, group);
             ops::matmul_add(ctx, l.o, heads, x);
             ops::swiglu_ffn_add(ctx, x, norm, l.gate, l.up, l.down);
         }},
        {"norm, head (1)", 1, 2, bytes_of_all({&head}), [&](Context& ctx, const DenseLayer&) {
             const Weight* const group[] = {&head};
             ops::norm_matmul_group(ctx, x, norm, group);
         }}};

    fmt::print("{:32}", "us each (floor), rows:");
    for (const int64_t n : counts) fmt::print("{:>10}", n);
    fmt::print("\n");
    std::vector<double> step(counts.size());
    double floor = 0;
    for (const Op& op : ops) {
        if (std::string(op.name).find(only) == std::string::npos) continue;
        const double least = op.bytes / kBandwidth / 1e3;
        floor += op.times * least / 1e3;
        fmt::print("{:32}", fmt::format("{} {:.1f}", op.name, least));
        for (size_t i = 0; i < counts.size(); ++i) {
            inputs.reset();
            Context ctx;
            ctx.gpu = &gpu;
            ctx.arena = &inputs;
            x = random_tensor(ctx, counts[i], kD);
            heads = random_tensor(ctx, counts[i], kHeads);
            wide = random_tensor(ctx, counts[i], kWide);
            ctx.arena = &arena;
            const double us = median_us(gpu, arena,
                                        [&] {
                                            for (int64_t l = 0; l < op.chain; ++l)
                                                op.run(ctx, layers[static_cast<size_t>(l)]);
                                        }) /
                              static_cast<double>(op.chain);
            step[i] += op.times * us / 1e3;
            fmt::print("{:>10.1f}", us);
            std::fflush(stdout);
        }
        fmt::print("\n");
    }
    fmt::print("{:32}", fmt::format("all products of a step, ms {:.2f}", floor));
    for (const double ms : step) fmt::print("{:>10.2f}", ms);
    fmt::print("\n{:32}", "times the first");
    for (const double ms : step) fmt::print("{:>10.2f}", ms / step[0]);
    fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) try {
    GpuOptions options;
    std::string rows = "1,2,4,8,16,24,32", only;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--portable") options.portable = true;
        else if (a == "--rows" && i + 1 < argc) rows = argv[++i];
        else if (a == "--only" && i + 1 < argc) only = argv[++i];
        else fail(ErrorKind::usage, "unknown argument {}", a);
    }
    const std::unique_ptr<Gpu> gpu = Gpu::open(options);
    fmt::print("{}{}\n", gpu->info().name, options.portable ? ", portable" : "");
    run(*gpu, numbers(rows), only);
    return 0;
} catch (const riptide::Error& error) {
    std::fprintf(stderr, "bench_gpu_dense: %s\n", error.what());
    return static_cast<int>(error.kind());
}
