// The decode family's matrix kernels in the sizes of Laguna XS.2: each op as a chain over 40 layers' weights, and the
// whole token without attention, as graphs. Prints microseconds (median of 15 replays, spread), GB/s of weights, and
// the share of 4.65 TB/s, what an H200 reads at best. The weights (20 GB in Q4_K_M) are random; every layer has its
// own, so that nothing stays in the L2 cache.
//   bench_gpu_ops [--type q4_k_m|bf16|f16|f8|fp8|int4] [--rows N] [--portable]
//       f8: all matrices, one scale each; fp8: the layout of Laguna's FP8 checkpoints, that is experts and dense layers
//       with a scale for each 128 x 128 block, attention and head in bf16.
//   bench_gpu_ops --table [--counts N,...] [--only TEXT] [--type ...] [--portable]    microseconds of each op (whose
//       name has TEXT in it) for 1 to 128 rows, beside the floor: the bytes of the weights that are used, at 4.65 TB/s.
//       Experts "at random": 8 of 256 for each row; "alike": the same 8.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/gpu_model.h"
#include "bench/gpu_timing.h"
#include "ops/gated_attention.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "quant/act_rows.h"
#include "tensor/context.h"

namespace {

using namespace riptide;
using namespace riptide::bench;

constexpr double kBandwidth = 4650;  // GB/s

struct Settings {
    std::string type = "q4_k_m";
    int64_t rows = 1;
    bool portable = false;
    bool table = false;
    std::vector<int64_t> counts = {1, 2, 3, 4, 8, 16, 32, 64, 128};
    std::string only;
};

class Bench {
  public:
    Bench(Gpu& gpu, int64_t rows, bool quiet = false)
        : gpu_(gpu), rows_(rows), quiet_(quiet), arena_(int64_t{64} << 20, &gpu), inputs_(int64_t{64} << 20, &gpu) {
        ctx_.gpu = &gpu;
        ctx_.arena = &inputs_;
        x0_ = random_tensor(kHidden);
        x_ = ctx_.alloc(DType::f32, {rows, kHidden});
        wide_[0] = random_tensor(48 * 128);
        wide_[1] = random_tensor(64 * 128);
        for (Tensor& t : wide_) {  // attention leaves its output as int8 too; which, does not matter here
            const int64_t bytes = rows * ActRow::bytes(t.shape[1]);
            void* twin = inputs_.allocate(bytes);
            const std::vector<uint8_t> zeros(static_cast<size_t>(bytes));
            gpu.to_device(twin, zeros.data(), bytes);
            t.int8 = twin;
        }
        ctx_.arena = &arena_;
    }

    Context& context() { return ctx_; }
    int64_t rows() const { return rows_; }
    Tensor& x() { return x_; }
    const Tensor& wide(const Layer& l) const { return wide_[l.o.cols == 48 * 128 ? 0 : 1]; }
    Tensor random_tensor(int64_t cols) {
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<size_t>(rows_ * cols));
        for (float& v : values) v = normal(random);
        Tensor t = ctx_.alloc(DType::f32, {rows_, cols});
        gpu_.to_device(t.data, values.data(), static_cast<int64_t>(values.size()) * 4);
        return t;
    }

    /// `body` runs `times` ops that read `bytes` of weights together.
    double run(const char* name, int64_t times, double bytes, const std::function<void()>& body) {
        const auto whole = [&] {
            gpu_.copy(x_.data, x0_.data, rows_ * kHidden * 4);
            arena_.reset();
            body();
        };
        const std::vector<double> us = bench::replays_us(gpu_, whole);
        const double median = us[us.size() / 2], each = median / static_cast<double>(times);
        if (quiet_) return median;
        fmt::print("{:34} {:9.2f} us  ({:.2f} .. {:.2f})  {:8.2f} MB  {:7.0f} GB/s  {:5.1f} %\n", name, each,
                   us.front() / static_cast<double>(times), us.back() / static_cast<double>(times),
                   bytes / 1e6 / static_cast<double>(times), bytes / median / 1e3,
                   bytes / median / 1e3 / kBandwidth * 100);
        return median;
    }

  private:
    Gpu& gpu_;
    int64_t rows_;
    bool quiet_;
    Arena arena_, inputs_;
    Context ctx_;
    Tensor x_, x0_, wide_[2];
};

constexpr float kEps = 1e-6f;

ops::Router router_of(const Layer& l) { return {&l.router, {}, kTopK, 2.5f, true}; }

/// Expert chosen(row, rank) for each row, weight 0.3, in `memory`.
ops::Routing placed_routing(Context& ctx, const DeviceMemory& memory, int64_t rows,
                            const std::function<int32_t(int64_t, int64_t)>& chosen) {
    ops::Routing r{kTopK, ctx.alloc(DType::i32, {rows, kTopK}), ctx.alloc(DType::f32, {rows, kTopK})};
    std::vector<int32_t> ids;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t k = 0; k < kTopK; ++k) ids.push_back(chosen(row, k));
    const std::vector<float> weights(ids.size(), 0.3f);
    r.experts.data = memory.data();
    r.weights.data = memory.data() + ids.size() * 4;
    ctx.gpu->to_device(r.experts.data, ids.data(), std::ssize(ids) * 4);
    ctx.gpu->to_device(r.weights.data, weights.data(), std::ssize(ids) * 4);
    return r;
}

void run_ops(Bench& bench, const Model& model) {
    Context& ctx = bench.context();
    for (const bool window : {false, true}) {
        double qkv = 0, o = 0;
        int64_t count = 0;
        const auto each = [&](const auto& f) {
            for (size_t i = 0; i < model.layers.size(); ++i)
                if ((i % 4 != 0) == window) f(model.layers[i]);
        };
        each([&](const Layer& l) {
            for (const Weight* w : l.attention()) qkv += bytes_of(*w);
            o += bytes_of(l.o);
            ++count;
        });
        bench.run(window ? "norm q k v gate, window layers" : "norm q k v gate, full layers", count, qkv, [&] {
            each([&](const Layer& l) { ops::norm_matmul_group(ctx, bench.x(), {l.norm, kEps}, l.attention()); });
        });
        bench.run(window ? "o += window layers" : "o += full layers", count, o,
                  [&] { each([&](const Layer& l) { ops::matmul_add(ctx, l.o, bench.wide(l), bench.x()); }); });
    }
    const auto sparse = [&](const auto& f) {
        for (size_t i = 1; i < model.layers.size(); ++i) f(model.layers[i]);
    };
    const auto rows = static_cast<double>(bench.rows());  // as if no two rows shared an expert
    double experts = 0, routers = 0;
    sparse([&](const Layer& l) {
        experts += rows * (expert_bytes(l, false) + expert_bytes(l, true));
        routers += bytes_of(l.router);
    });
    DeviceMemory memory(ctx.gpu, bench.rows() * kTopK * 8, "routing");
    const ops::Routing fixed = placed_routing(ctx, memory, bench.rows(), [](int64_t row, int64_t k) {
        return static_cast<int32_t>((row * kTopK + k) * 37 % kExperts);
    });
    const double two = bench.run("gate up, down (2 kernels)", kLayers - 1, experts, [&] {
        sparse([&](const Layer& l) { ops::moe_swiglu(ctx, bench.x(), fixed, l.experts, l.shared()); });
    });
    const double three = bench.run("norm router, gate up, down +=", kLayers - 1, experts + routers, [&] {
        sparse([&](const Layer& l) {
            ops::moe_add(ctx, bench.x(), {l.norm, kEps}, router_of(l), l.experts, l.shared());
        });
    });
    fmt::print("{:34} {:9.2f} us\n", "  of which router", (three - two) / static_cast<double>(kLayers - 1));
    const Layer& dense = model.layers[0];
    bench.run(
        "dense layer", 1, bytes_of(dense.dense_gate) + bytes_of(dense.dense_up) + bytes_of(dense.dense_down), [&] {
            ops::swiglu_ffn_add(ctx, bench.x(), {dense.norm, kEps}, dense.dense_gate, dense.dense_up, dense.dense_down);
        });
    const Weight* const head = &model.head;
    bench.run("norm head", 4, 4 * bytes_of(model.head), [&] {
        for (int i = 0; i < 4; ++i) ops::norm_matmul_group(ctx, bench.x(), {dense.norm, kEps}, {&head, 1});
    });
}

void run_token(Bench& bench, const Model& model) {
    Context& ctx = bench.context();
    double bytes = bytes_of(model.head);
    const auto rows = static_cast<double>(bench.rows());
    for (const Layer& l : model.layers) {
        for (const Weight* w : l.attention()) bytes += bytes_of(*w);
        bytes += bytes_of(l.o);
        if (l.router) bytes += bytes_of(l.router) + rows * (expert_bytes(l, false) + expert_bytes(l, true));
        else bytes += bytes_of(l.dense_gate) + bytes_of(l.dense_up) + bytes_of(l.dense_down);
    }
    const double us = bench.run("a token without attention", 1, bytes, [&] {
        for (const Layer& l : model.layers) {
            const ops::Norm norm{l.norm, kEps};
            ops::norm_matmul_group(ctx, bench.x(), norm, l.attention());
            ops::matmul_add(ctx, l.o, bench.wide(l), bench.x());
            if (l.router) ops::moe_add(ctx, bench.x(), norm, router_of(l), l.experts, l.shared());
            else ops::swiglu_ffn_add(ctx, bench.x(), norm, l.dense_gate, l.dense_up, l.dense_down);
        }
        const Weight* const head = &model.head;
        ops::norm_matmul_group(ctx, bench.x(), {model.layers[0].norm, kEps}, {&head, 1});
    });
    fmt::print("{:34} {:9.0f} steps/s\n", "", 1e6 / us);
}

/// Eight different experts for each row, at random.
std::vector<int32_t> random_experts(int64_t rows) {
    std::mt19937 random(11);
    std::vector<int32_t> all(static_cast<size_t>(kExperts)), ids;
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    for (int64_t row = 0; row < rows; ++row) {
        std::shuffle(all.begin(), all.end(), random);
        ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
    }
    return ids;
}

/// One line of the table: an op's microseconds and its floor for each number of rows.
struct TableLine {
    std::string name;
    std::vector<double> us, floor;
};

void add_to_table(std::vector<TableLine>& table, const char* name, double us, double bytes) {
    auto line = std::find_if(table.begin(), table.end(), [&](const TableLine& l) { return l.name == name; });
    if (line == table.end()) line = table.insert(table.end(), TableLine{name, {}, {}});
    line->us.push_back(us);
    line->floor.push_back(bytes / kBandwidth / 1e3);
}

void add_rows(std::vector<TableLine>& table, Gpu& gpu, const Model& model, int64_t n, const std::string& only) {
    Bench bench(gpu, n, true);
    Context& ctx = bench.context();
    const auto layers = [&](const auto& wanted, const auto& bytes_each, const char* name, const auto& op) {
        if (std::string(name).find(only) == std::string::npos) return;
        double bytes = 0;
        int64_t count = 0;
        for (size_t i = 0; i < model.layers.size(); ++i)
            if (wanted(i)) bytes += bytes_each(model.layers[i]), ++count;
        const double us = bench.run(name, count, bytes, [&] {
            for (size_t i = 0; i < model.layers.size(); ++i)
                if (wanted(i)) op(model.layers[i]);
        });
        add_to_table(table, name, us / static_cast<double>(count), bytes / static_cast<double>(count));
    };
    const auto window = [](size_t i) { return i % 4 != 0; };
    const auto sparse = [](size_t i) { return i > 0; };
    const auto dense = [](size_t i) { return i == 0; };
    layers(
        window, [](const Layer& l) { return bytes_of(l.q) + bytes_of(l.k) + bytes_of(l.v) + bytes_of(l.gate); },
        "norm, q k v gate (window layers)",
        [&](const Layer& l) {
            ops::norm_matmul_group(ctx, bench.x(), {l.norm, kEps}, l.attention());
        });
    layers(
        window, [](const Layer& l) { return bytes_of(l.o); }, "o += (window layers)",
        [&](const Layer& l) { ops::matmul_add(ctx, l.o, bench.wide(l), bench.x()); });
    const auto experts_bytes = [](const Layer& l, double distinct) {
        return distinct * (bytes_of(l.experts.gate[0]) + bytes_of(l.experts.up[0]) + bytes_of(l.experts.down[0])) +
               bytes_of(l.shared_gate) + bytes_of(l.shared_up) + bytes_of(l.shared_down);
    };
    DeviceMemory memory(&gpu, n * kTopK * 8, "routing");
    const std::vector<int32_t> ids = random_experts(n);
    std::vector<int32_t> sorted = ids;
    std::sort(sorted.begin(), sorted.end());
    const auto used = static_cast<double>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
    for (const bool alike : {false, true}) {
        const ops::Routing r = placed_routing(ctx, memory, n, [&](int64_t row, int64_t k) {
            return ids[static_cast<size_t>(alike ? k : row * kTopK + k)];
        });
        layers(
            sparse, [&](const Layer& l) { return experts_bytes(l, alike ? kTopK : used); },
            alike ? "gate up down, experts alike" : "gate up down, experts at random",
            [&](const Layer& l) { ops::moe_swiglu(ctx, bench.x(), r, l.experts, l.shared()); });
    }
    layers(
        sparse, [&](const Layer& l) { return bytes_of(l.router) + experts_bytes(l, used); },
        "norm, router, gate up down +=",
        [&](const Layer& l) {
            ops::moe_add(ctx, bench.x(), {l.norm, kEps}, router_of(l), l.experts, l.shared());
        });
    layers(
        dense, [](const Layer& l) { return bytes_of(l.dense_gate) + bytes_of(l.dense_up) + bytes_of(l.dense_down); },
        "dense layer",
        [&](const Layer& l) {
            ops::swiglu_ffn_add(ctx, bench.x(), {l.norm, kEps}, l.dense_gate, l.dense_up, l.dense_down);
        });
    const Weight* const head = &model.head;
    layers(
        dense, [&](const Layer&) { return bytes_of(model.head); }, "norm, head",
        [&](const Layer& l) {
            ops::norm_matmul_group(ctx, bench.x(), {l.norm, kEps}, {&head, 1});
        });
}

void run_table(Gpu& gpu, const Model& model, const Settings& settings) {
    const std::vector<int64_t>& counts = settings.counts;
    std::vector<TableLine> table;
    for (const int64_t n : counts) add_rows(table, gpu, model, n, settings.only);
    fmt::print("{:34}", "us each (floor), rows:");
    for (const int64_t n : counts) fmt::print("{:>16}", n);
    fmt::print("\n");
    for (const TableLine& line : table) {
        fmt::print("{:34}", line.name);
        for (size_t i = 0; i < line.us.size(); ++i)
            fmt::print("{:>16}", fmt::format("{:.1f} ({:.1f})", line.us[i], line.floor[i]));
        fmt::print("\n");
    }
}

std::vector<int64_t> counts_of(const std::string& text) {
    std::vector<int64_t> counts;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        counts.push_back(std::stoll(text.substr(at, end - at)));
        at = end + 1;
    }
    return counts;
}

Settings read_settings(int argc, char** argv) {
    Settings s;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--portable") s.portable = true;
        else if (a == "--table") s.table = true;
        else if (a == "--type" && i + 1 < argc) s.type = argv[++i];
        else if (a == "--only" && i + 1 < argc) s.only = argv[++i];
        else if (a == "--counts" && i + 1 < argc) s.counts = counts_of(argv[++i]);
        else if (a == "--rows" && i + 1 < argc) s.rows = std::stoll(argv[++i]);
        else fail(ErrorKind::usage, "unknown argument {}", a);
    }
    return s;
}

}  // namespace

int main(int argc, char** argv) try {
    const Settings settings = read_settings(argc, argv);
    GpuOptions options;
    options.portable = settings.portable;
    const std::unique_ptr<Gpu> gpu = Gpu::open(options);
    fmt::print("{}, {}, {} rows{}\n", gpu->info().name, settings.type, settings.rows,
               settings.portable ? ", portable" : "");
    Weights weights(*gpu);
    const Model model(weights, settings.type);
    gpu->synchronize();
    if (settings.table) {
        run_table(*gpu, model, settings);
        return 0;
    }
    Bench bench(*gpu, settings.rows);
    run_ops(bench, model);
    run_token(bench, model);
    return 0;
} catch (const riptide::Error& error) {
    std::fprintf(stderr, "bench_gpu_ops: %s\n", error.what());
    return static_cast<int>(error.kind());
}
