// The products of a drafter in the sizes of Qwen3.6-27B's (or, --hidden 2048, of Laguna XS.2's): each op as a chain
// over the weights of all layers, as a graph. Prints microseconds of one op (median of 15 replays), in brackets the
// floor by the weights' bytes at 4.65 TB/s, and the sum of a pass without its head. The weights are random.
//   bench_gpu_draft [--type bf16|f16|q8_0] [--hidden 5120|2048] [--rows 8,16,24] [--decode]
// --decode: by the kernels of the decode family.
#include <fmt/format.h>

#include "bench/gpu_model.h"
#include "bench/gpu_timing.h"

namespace {

using namespace riptide;
using namespace riptide::bench;

constexpr double kBandwidth = 4650;  // GB/s
constexpr int64_t kDraftLayers = 5, kTaps = 5, kKv = 1024;
constexpr float kEps = 1e-6f;

struct Sizes {
    int64_t hidden, heads, ff;
};

struct DraftLayer {
    Weight q, k, v, o, gate, up, down;
};

struct Op {
    const char* name;
    int64_t times;  // in a pass
    double bytes;
    std::function<void(Context&, const DraftLayer&)> run;
};

double bytes_of_all(std::initializer_list<const Weight*> weights) {
    double bytes = 0;
    for (const Weight* w : weights) bytes += bytes_of(*w);
    return bytes;
}

void run(Gpu& gpu, DType type, const Sizes& sizes, const std::vector<int64_t>& counts, Family family) {
    Weights weights(gpu);
    std::vector<DraftLayer> layers(static_cast<size_t>(kDraftLayers));
    const auto matrix = [&](int64_t rows, int64_t cols) {
        Weight w = weights.matrix(type, rows, cols);
        if (type == DType::planes_int8) w.scale_dtype = DType::f16;
        return w;
    };
    for (DraftLayer& l : layers) {
        l.q = matrix(sizes.heads, sizes.hidden), l.k = matrix(kKv, sizes.hidden), l.v = matrix(kKv, sizes.hidden);
        l.o = matrix(sizes.hidden, sizes.heads);
        l.gate = matrix(sizes.ff, sizes.hidden), l.up = matrix(sizes.ff, sizes.hidden);
        l.down = matrix(sizes.hidden, sizes.ff);
    }
    const Weight fc = matrix(sizes.hidden, kTaps * sizes.hidden);
    DeviceMemory ones(&gpu, sizes.hidden * 4, "norm");
    const std::vector<float> one(static_cast<size_t>(sizes.hidden), 1.0f);
    gpu.to_device(ones.data(), one.data(), sizes.hidden * 4);
    const ops::Norm norm{{reinterpret_cast<const float*>(ones.data()), one.size()}, kEps};
    std::vector<const Weight*> context;
    for (const DraftLayer& l : layers) context.insert(context.end(), {&l.k, &l.v});

    Arena arena(int64_t{512} << 20, &gpu), inputs(int64_t{64} << 20, &gpu);
    Tensor x, heads, wide, taps;
    const DraftLayer& l0 = layers[0];
    const std::vector<Op> ops = {
        {"norm, q k v", kDraftLayers, bytes_of_all({&l0.q, &l0.k, &l0.v}),
         [&](Context& ctx, const DraftLayer& l) {
             const Weight* const group[] = {&l.q, &l.k, &l.v};
             ops::norm_matmul_group(ctx, x, norm, group);
         }},
        {"o +=", kDraftLayers, bytes_of_all({&l0.o}),
         [&](Context& ctx, const DraftLayer& l) { ops::matmul_add(ctx, l.o, heads, x); }},
        {"norm, gate up, down +=", kDraftLayers, bytes_of_all({&l0.gate, &l0.up, &l0.down}),
         [&](Context& ctx, const DraftLayer& l) { ops::swiglu_ffn_add(ctx, x, norm, l.gate, l.up, l.down); }},
        {"  down += alone", 0, bytes_of_all({&l0.down}),
         [&](Context& ctx, const DraftLayer& l) { ops::matmul_add(ctx, l.down, wide, x); }},
        {"fc", 1, bytes_of_all({&fc}), [&](Context& ctx, const DraftLayer&) { ops::matmul(ctx, fc, taps); }},
        {"norm, all k v", 1, kDraftLayers * bytes_of_all({&l0.k, &l0.v}),
         [&](Context& ctx, const DraftLayer&) { ops::norm_matmul_group(ctx, x, norm, context); }}};

    fmt::print("{:32}", "us each (floor), rows:");
    for (const int64_t n : counts) fmt::print("{:>10}", n);
    fmt::print("\n");
    std::vector<double> pass(counts.size());
    double floor = 0;
    for (const Op& op : ops) {
        const double least = op.bytes / kBandwidth / 1e3;
        floor += static_cast<double>(op.times) * least;
        fmt::print("{:32}", fmt::format("{} {:.1f}", op.name, least));
        for (size_t i = 0; i < counts.size(); ++i) {
            inputs.reset();
            Context ctx;
            ctx.gpu = &gpu;
            ctx.arena = &inputs;
            ctx.family = family;
            x = random_tensor(ctx, counts[i], sizes.hidden);
            heads = random_tensor(ctx, counts[i], sizes.heads);
            wide = random_tensor(ctx, counts[i], sizes.ff);
            taps = random_tensor(ctx, counts[i], kTaps * sizes.hidden);
            ctx.arena = &arena;
            const double us = median_us(gpu, arena,
                                        [&] {
                                            for (const DraftLayer& l : layers) op.run(ctx, l);
                                        }) /
                              static_cast<double>(kDraftLayers);
            pass[i] += static_cast<double>(op.times) * us;
            fmt::print("{:>10.1f}", us);
            std::fflush(stdout);
        }
        fmt::print("\n");
    }
    fmt::print("{:32}", fmt::format("a pass without its head {:.0f}", floor));
    for (const double us : pass) fmt::print("{:>10.0f}", us);
    fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) try {
    std::string rows = "8,16,24", type = "bf16", hidden = "5120";
    Family family = Family::draft;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--decode") family = Family::decode;
        else if (a == "--type" && i + 1 < argc) type = argv[++i];
        else if (a == "--hidden" && i + 1 < argc) hidden = argv[++i];
        else if (a == "--rows" && i + 1 < argc) rows = argv[++i];
        else fail(ErrorKind::usage, "unknown argument {}", a);
    }
    RT_CHECK(type == "bf16" || type == "f16" || type == "q8_0", "--type {}: not bf16, f16 or q8_0", type);
    RT_CHECK(hidden == "5120" || hidden == "2048", "--hidden {}: not 5120 or 2048", hidden);
    const DType stored = type == "bf16" ? DType::bf16 : type == "f16" ? DType::f16 : DType::planes_int8;
    const std::unique_ptr<Gpu> gpu = Gpu::open();
    fmt::print("{}, {} weights, {} columns\n", gpu->info().name, type, hidden);
    run(*gpu, stored, hidden == "5120" ? Sizes{5120, 4096, 17408} : Sizes{2048, 2048, 8192}, numbers(rows), family);
    return 0;
} catch (const std::exception& e) {
    fmt::print(stderr, "bench_gpu_draft: {}\n", e.what());
    return 1;
}
