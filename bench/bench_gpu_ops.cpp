// The decode family's matrix kernels in the sizes of Laguna XS.2: each op as a chain over 40 layers' weights, and the
// whole token without attention, as graphs. Prints microseconds (median of 15 replays, spread), GB/s of weights, and
// the share of 4.65 TB/s, what an H200 reads at best. The weights (20 GB in Q4_K_M) are random; every layer has its
// own, so that nothing stays in the L2 cache.
//   bench_gpu_ops [--type q4_k_m|bf16|f8|int4] [--rows N] [--portable]
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/gated_attention.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "quant/act_rows.h"
#include "quant/planes.h"
#include "tensor/context.h"

namespace {

using namespace riptide;

constexpr int64_t kHidden = 2048, kLayers = 40, kExperts = 256, kTopK = 8, kFf = 512, kDenseFf = 8192, kVocab = 100352;
constexpr double kBandwidth = 4650;  // GB/s

struct Settings {
    std::string type = "q4_k_m";
    int64_t rows = 1;
    bool portable = false;
};

/// Device memory with random matrices of any type, the same bytes in different places.
class Weights {
  public:
    explicit Weights(Gpu& gpu) : gpu_(gpu), random_(7) {}

    std::vector<Weight> stack(DType type, int64_t rows, int64_t cols, int64_t count) {
        Weight w;
        w.dtype = type;
        w.rows = rows;
        w.cols = cols;
        w.row_bytes = row_bytes_of(type, cols);
        w.scale = type == DType::f8_e4m3 ? 0.01f : 1.0f;
        const std::vector<uint8_t> scales = scale_plane(w), high(static_cast<size_t>(high_bytes(w)), 0x9C);
        const int64_t data = align(w.bytes()), high_at = align(high_bytes(w)),
                      each = data + high_at + align(bytes_of(scales));
        memory_.emplace_back(&gpu_, each * count, "weights");
        std::vector<uint8_t> first(static_cast<size_t>(each));
        fill(type, first.data(), w.bytes());
        std::copy(high.begin(), high.end(), first.begin() + data);
        std::copy(scales.begin(), scales.end(), first.begin() + data + high_at);
        std::byte* base = memory_.back().data();
        gpu_.to_device(base, first.data(), each);
        std::vector<Weight> all;
        for (int64_t i = 0; i < count; ++i) {
            std::byte* at = base + i * each;
            if (i > 0) gpu_.copy(at, base, each);
            w.data = at;
            w.high = high.empty() ? nullptr : at + data;
            w.scales = scales.empty() ? nullptr : at + data + high_at;
            all.push_back(w);
        }
        return all;
    }
    Weight matrix(DType type, int64_t rows, int64_t cols) { return stack(type, rows, cols, 1).front(); }
    std::span<const float> norm() {
        const std::vector<float> ones(static_cast<size_t>(kHidden), 1.0f);
        memory_.emplace_back(&gpu_, kHidden * 4, "norm");
        gpu_.to_device(memory_.back().data(), ones.data(), kHidden * 4);
        return {reinterpret_cast<const float*>(memory_.back().data()), ones.size()};
    }

  private:
    static int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }
    static int64_t bytes_of(const std::vector<uint8_t>& v) { return static_cast<int64_t>(v.size()); }
    static int64_t row_bytes_of(DType type, int64_t cols) {
        if (type == DType::planes_int8) return cols;
        return is_planes(type) ? cols / 2 : cols * dtype_info(type).block_bytes;
    }
    static int64_t high_bytes(const Weight& w) {
        return w.dtype == DType::planes_q6_k   ? w.rows * w.cols / 4
               : w.dtype == DType::planes_q5_k ? w.rows * w.cols / 8
                                               : 0;
    }
    void fill(DType type, uint8_t* p, int64_t bytes) {
        for (int64_t i = 0; i < bytes; i += 8) {
            uint64_t word = random_();
            if (type == DType::bf16) word = (word & 0x807F807F807F807Full) | 0x3C003C003C003C00ull;
            if (type == DType::f8_e4m3) word &= 0xB7B7B7B7B7B7B7B7ull;
            if (type == DType::f32) word = (word & 0x807FFFFF807FFFFFull) | 0x3C0000003C000000ull;
            std::memcpy(p + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
        }
    }
    /// d = 2^-13, dmin = 2^-10; planes of bf16 2^-7, one for 32 columns.
    std::vector<uint8_t> scale_plane(Weight& w) {
        std::vector<uint8_t> plane;
        const int64_t blocks = w.rows * w.cols / 256;
        if (w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q5_k) {
            plane.resize(static_cast<size_t>(blocks * 16));
            fill(w.dtype, plane.data(), blocks * 16);
            const uint16_t d[2] = {0x0800, 0x1400};
            for (int64_t b = 0; b < blocks; ++b) std::memcpy(plane.data() + 16 * b + 12, d, 4);
        } else if (w.dtype == DType::planes_q6_k) {
            plane.resize(static_cast<size_t>(blocks * 18));
            fill(w.dtype, plane.data(), blocks * 16);
            const uint16_t d = 0x0800;
            for (int64_t b = 0; b < blocks; ++b) std::memcpy(plane.data() + 16 * blocks + 2 * b, &d, 2);
        } else if (is_planes(w.dtype)) {
            w.scale_dtype = DType::bf16;
            w.scale_cols = 32;
            plane.resize(static_cast<size_t>(w.rows * w.cols / 16));
            const uint16_t d = 0x3C00;
            for (size_t i = 0; i < plane.size(); i += 2) std::memcpy(plane.data() + i, &d, 2);
        }
        return plane;
    }

    Gpu& gpu_;
    std::mt19937_64 random_;
    std::vector<DeviceMemory> memory_;
};

struct Layer {
    std::span<const float> norm;
    Weight q, k, v, gate, o;
    Weight dense_gate, dense_up, dense_down;  // layer 0
    Weight router, shared_gate, shared_up, shared_down;
    ops::ExpertWeights experts;

    std::vector<const Weight*> attention() const { return {&q, &k, &v, &gate}; }
    ops::SharedExpert shared() const { return {&shared_gate, &shared_up, &shared_down}; }
};

struct Model {
    std::vector<Layer> layers;
    Weight head;

    Model(Weights& weights, const std::string& type) {
        const bool mixed = type == "q4_k_m";
        RT_CHECK(mixed || type == "bf16" || type == "f8" || type == "int4", "--type {}: not q4_k_m, bf16, f8 or int4",
                 type);
        const DType most = mixed            ? DType::planes_q4_k
                           : type == "bf16" ? DType::bf16
                           : type == "f8"   ? DType::f8_e4m3
                                            : DType::planes_int4;
        head = weights.matrix(mixed ? DType::planes_q6_k : most, kVocab, kHidden);
        for (int64_t i = 0; i < kLayers; ++i) {
            // llama-quantize gives more bits to the first and last eighth of the layers and to every third between.
            const bool more = mixed && (i < kLayers / 8 || i >= 7 * kLayers / 8 || (i - kLayers / 8) % 3 == 2);
            const DType better = more ? DType::planes_q6_k : most;
            const int64_t heads = i % 4 == 0 ? 48 : 64;
            Layer l;
            l.norm = weights.norm();
            l.q = weights.matrix(most, heads * 128, kHidden);
            l.k = weights.matrix(most, 1024, kHidden);
            l.v = weights.matrix(better, 1024, kHidden);
            l.gate = weights.matrix(most, heads, kHidden);
            l.o = weights.matrix(most, kHidden, heads * 128);
            if (i == 0) {
                l.dense_gate = weights.matrix(most, kDenseFf, kHidden);
                l.dense_up = weights.matrix(most, kDenseFf, kHidden);
                l.dense_down = weights.matrix(better, kHidden, kDenseFf);
            } else {
                l.router = weights.matrix(DType::bf16, kExperts, kHidden);
                l.experts = {weights.stack(most, kFf, kHidden, kExperts), weights.stack(most, kFf, kHidden, kExperts),
                             weights.stack(better, kHidden, kFf, kExperts)};
                l.shared_gate = weights.matrix(most, kFf, kHidden);
                l.shared_up = weights.matrix(most, kFf, kHidden);
                l.shared_down = weights.matrix(better, kHidden, kFf);
            }
            layers.push_back(std::move(l));
        }
    }
};

double bytes_of(const Weight& w) { return static_cast<double>(placed_bytes(w)); }
double expert_bytes(const Layer& l, bool down) {
    const auto used = static_cast<double>(kTopK);
    if (down) return used * bytes_of(l.experts.down[0]) + bytes_of(l.shared_down);
    return used * (bytes_of(l.experts.gate[0]) + bytes_of(l.experts.up[0])) + bytes_of(l.shared_gate) +
           bytes_of(l.shared_up);
}

class Bench {
  public:
    Bench(Gpu& gpu, int64_t rows)
        : gpu_(gpu), rows_(rows), arena_(int64_t{64} << 20, &gpu), inputs_(int64_t{64} << 20, &gpu) {
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
        whole();
        gpu_.synchronize();
        GpuGraph graph(gpu_, whole);
        GpuTimer timer(gpu_);
        std::vector<double> us;
        for (int i = 0; i < 18; ++i) {
            timer.start();
            graph.launch();
            timer.stop();
            const double t = timer.milliseconds() * 1e3;
            if (i >= 3) us.push_back(t);
        }
        std::sort(us.begin(), us.end());
        const double median = us[us.size() / 2], each = median / static_cast<double>(times);
        fmt::print("{:34} {:9.2f} us  ({:.2f} .. {:.2f})  {:8.2f} MB  {:7.0f} GB/s  {:5.1f} %\n", name, each,
                   us.front() / static_cast<double>(times), us.back() / static_cast<double>(times),
                   bytes / 1e6 / static_cast<double>(times), bytes / median / 1e3,
                   bytes / median / 1e3 / kBandwidth * 100);
        return median;
    }

  private:
    Gpu& gpu_;
    int64_t rows_;
    Arena arena_, inputs_;
    Context ctx_;
    Tensor x_, x0_, wide_[2];
};

constexpr float kEps = 1e-6f;

ops::Router router_of(const Layer& l) { return {&l.router, {}, kTopK, 2.5f, true}; }

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
    const ops::Routing fixed = [&] {
        ops::Routing kept{kTopK, ctx.alloc(DType::i32, {bench.rows(), kTopK}),
                          ctx.alloc(DType::f32, {bench.rows(), kTopK})};
        std::vector<int32_t> ids(static_cast<size_t>(bench.rows() * kTopK));
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % kExperts);
        const std::vector<float> ones(ids.size(), 0.3f);
        kept.experts.data = memory.data();
        kept.weights.data = memory.data() + ids.size() * 4;
        ctx.gpu->to_device(kept.experts.data, ids.data(), static_cast<int64_t>(ids.size()) * 4);
        ctx.gpu->to_device(kept.weights.data, ones.data(), static_cast<int64_t>(ids.size()) * 4);
        return kept;
    }();
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
            ctx.upcoming = &l == &model.layers.back() ? std::vector<const Weight*>() : (&l + 1)->attention();
            if (l.router) ops::moe_add(ctx, bench.x(), norm, router_of(l), l.experts, l.shared());
            else ops::swiglu_ffn_add(ctx, bench.x(), norm, l.dense_gate, l.dense_up, l.dense_down);
        }
        const Weight* const head = &model.head;
        ops::norm_matmul_group(ctx, bench.x(), {model.layers[0].norm, kEps}, {&head, 1});
    });
    fmt::print("{:34} {:9.0f} steps/s\n", "", 1e6 / us);
}

Settings read_settings(int argc, char** argv) {
    Settings s;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--portable") s.portable = true;
        else if (a == "--type" && i + 1 < argc) s.type = argv[++i];
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
    Bench bench(*gpu, settings.rows);
    run_ops(bench, model);
    run_token(bench, model);
    return 0;
} catch (const riptide::Error& error) {
    std::fprintf(stderr, "bench_gpu_ops: %s\n", error.what());
    return static_cast<int>(error.kind());
}
