// Where the time of a decoded token goes on the CPU: Laguna XS.2 in Q4_K_M, the same ops in the same order as
// models/laguna.cpp, with random weights of which every layer has its own (24 of 256 experts exist and are chosen), so
// that no cache holds what the next token reads. Prints, for each op and each of its parallel loops, microseconds per
// token:
//   serial   before the loop (or behind the last one), on one thread
//   loop     from begin to end
//   waiting  of the loop: the caller had nothing left to do
//   idle     share of the threads' time in the loop that no piece filled
//   GB/s     of weights, in the loop; and in the time that threads were busy
//   bench_cpu_decode [--threads N] [--tokens N] [--depth N] [--layers N] [--huge]
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/memory_bandwidth.h"
#include "bench/map_memory.h"
#include "ops/gated_attention.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/topk.h"
#include "quant/quant_mix.h"
#include "quant/random_fill.h"
#include "tensor/host_memory.h"

namespace {

using namespace riptide;

constexpr int64_t kHidden = 2048, kExperts = 256, kStored = 24, kTopK = 8, kFf = 512, kDenseFf = 8192, kVocab = 100352;
constexpr int64_t kHeadDim = 128, kKvHeads = 8, kWindow = 512, kPageRows = 256;

struct Settings {
    int threads = 0;
    int64_t tokens = 40, depth = 64, layers = 40;
    bool huge = false;
};

class Weights {
  public:
    Weights(ThreadPool& threads, bool huge) : threads_(threads), huge_(huge) {}

    Weight matrix(DType type, int64_t rows, int64_t cols) { return stack(type, rows, cols, 1).front(); }
    /// `count` matrices, one behind the other.
    std::vector<Weight> stack(DType type, int64_t rows, int64_t cols, int64_t count) {
        const int64_t bytes = row_bytes(type, cols), total = rows * count;
        std::byte* base = allocate(total * bytes);
        const uint64_t seed = ++seed_;
        threads_.parallel_for(total, 64, [&](int64_t begin, int64_t end, int) {
            random_fill(type, base + begin * bytes, (end - begin) * cols, 0.02f,
                        seed << 32 | static_cast<uint64_t>(begin));
        });
        std::vector<Weight> all(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
            Weight& w = all[static_cast<size_t>(i)];
            w.data = base + i * rows * bytes;
            w.dtype = type;
            w.rows = rows;
            w.cols = cols;
            w.row_bytes = bytes;
        }
        return all;
    }

  private:
    std::byte* allocate(int64_t bytes) {
        constexpr int64_t kSlab = int64_t{1} << 28;
        bytes = (bytes + 63) / 64 * 64;
        if (bytes > left_) {
            left_ = std::max(bytes, kSlab);
            free_ = map_memory(left_, huge_);
        }
        left_ -= bytes;
        return std::exchange(free_, free_ + bytes);
    }

    ThreadPool& threads_;
    bool huge_;
    uint64_t seed_ = 0;
    std::byte* free_ = nullptr;
    int64_t left_ = 0;
};

struct Layer {
    int64_t heads = 0;
    bool sliding = false, sparse = false;
    Weight q, k, v, g, o, gate, up, down, router;
    ops::ExpertWeights experts;
    KvView kv;
};

struct Model {
    std::vector<Layer> layers;
    Weight head;
    std::vector<float> norm, head_norm, bias;
    ops::Rope rope = ops::make_rope(10000, kHeadDim);
};

std::vector<Weight> experts(Weights& weights, DType type, int64_t rows, int64_t cols) {
    std::vector<Weight> all = weights.stack(type, rows, cols, kStored);
    all.resize(static_cast<size_t>(kExperts), all.front());
    return all;
}

KvView make_kv(const Settings& s, bool sliding) {
    KvView kv;
    kv.num_kv_heads = kKvHeads;
    kv.head_dim = kHeadDim;
    kv.k_slot_bytes = kv.v_slot_bytes = kKvHeads * kHeadDim * 4;
    kv.page_rows = kPageRows;
    kv.window = sliding ? kWindow : 0;
    kv.ring_rows = kWindow;
    const int64_t rows = sliding ? kWindow : (s.depth / kPageRows + 1) * kPageRows, values = rows * kKvHeads * kHeadDim;
    for (void** p : {&kv.k, &kv.v}) {
        static std::vector<HostMemory> memory;  // as the engine has it
        *p = memory.emplace_back(values * 4, "K/V").data();
        random_fill(DType::f32, *p, values, 1.0f, 99);
    }
    return kv;
}

Model make_model(const Settings& s, ThreadPool& threads) {
    Weights w(threads, s.huge);
    Model m;
    const DType q4 = DType::q4_k, q6 = DType::q6_k;
    for (int64_t l = 0; l < s.layers; ++l) {
        Layer a;
        a.sliding = l % 4 != 0;
        a.sparse = l != 0;
        a.heads = a.sliding ? 64 : 48;
        const DType better = quant_mix_more_bits(l, s.layers) ? q6 : q4;
        a.q = w.matrix(q4, a.heads * kHeadDim, kHidden);
        a.k = w.matrix(q4, kKvHeads * kHeadDim, kHidden);
        a.v = w.matrix(better, kKvHeads * kHeadDim, kHidden);
        a.g = w.matrix(q4, a.heads, kHidden);
        a.o = w.matrix(q4, kHidden, a.heads * kHeadDim);
        const int64_t ff = a.sparse ? kFf : kDenseFf;
        a.gate = w.matrix(q4, ff, kHidden);
        a.up = w.matrix(q4, ff, kHidden);
        a.down = w.matrix(better, kHidden, ff);
        if (a.sparse) {
            a.router = w.matrix(DType::bf16, kExperts, kHidden);
            a.experts.gate = experts(w, q4, kFf, kHidden);
            a.experts.up = experts(w, q4, kFf, kHidden);
            a.experts.down = experts(w, better, kHidden, kFf);
        }
        a.kv = make_kv(s, a.sliding);
        m.layers.push_back(std::move(a));
    }
    m.head = w.matrix(q6, kVocab, kHidden);
    m.norm.assign(static_cast<size_t>(kHidden), 1.0f);
    m.head_norm.assign(static_cast<size_t>(kHeadDim), 1.0f);
    m.bias.assign(static_cast<size_t>(kExperts), -10.0f);
    std::fill_n(m.bias.begin(), kStored, 0.0f);
    return m;
}

struct Batch1 {
    int32_t token = 1, position, row = 0, begin[2] = {0, 1}, committed, slot = 0;
    std::vector<int32_t> pages;
    explicit Batch1(int64_t depth) : position(static_cast<int32_t>(depth)), committed(position) {
        for (int64_t i = 0; i <= depth / kPageRows; ++i) pages.push_back(static_cast<int32_t>(i));
    }
    Batch batch() const {
        Batch b;
        b.tokens = {&token, 1};
        b.positions = {&position, 1};
        b.row_sequence = {&row, 1};
        b.row_begin = begin;
        b.committed = {&committed, 1};
        b.page_table = pages;
        b.max_pages = static_cast<int32_t>(pages.size());
        b.state_slot = {&slot, 1};
        return b;
    }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Cost {
    double serial = 0, loop = 0, waiting = 0, busy = 0, bytes = 0;
};

/// Sums of costs by name of the op and number of its loop.
class Profile {
  public:
    explicit Profile(ThreadPool& threads) : threads_(threads) { threads.log_loops(&log_); }
    ~Profile() { threads_.log_loops(nullptr); }

    /// bytes: of weights, for each loop.
    void op(const std::string& name, const std::vector<int64_t>& bytes, const std::function<void()>& f) {
        log_.clear();
        double last = now();
        f();
        const double end = now();
        std::vector<Cost>& costs = at(name);
        costs.resize(std::max(costs.size(), log_.size() + 1));
        for (size_t i = 0; i < log_.size(); ++i) {
            Cost& c = costs[i];
            c.serial += log_[i].begin - last;
            c.loop += log_[i].end - log_[i].begin;
            c.waiting += log_[i].end - log_[i].own_end;
            c.busy += log_[i].busy;
            if (bytes.size() == log_.size()) c.bytes += static_cast<double>(bytes[i]);
            last = log_[i].end;
        }
        costs[log_.size()].serial += end - last;
    }
    void clear() { ops_.clear(); }

    void print(int64_t tokens) const {
        fmt::print("{:<24} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8}   microseconds per token\n", "op / loop", "serial",
                   "loop", "waiting", "idle", "GB/s", "busy");
        const double each = 1e6 / static_cast<double>(tokens);
        Cost all;
        for (const auto& [name, costs] : ops_)
            for (size_t i = 0; i < costs.size(); ++i) {
                print_row(fmt::format("{} {}", name, i), costs[i], each);
                all.serial += costs[i].serial;
                all.loop += costs[i].loop;
                all.waiting += costs[i].waiting;
                all.busy += costs[i].busy;
                all.bytes += costs[i].bytes;
            }
        print_row("all", all, each);
    }

  private:
    std::vector<Cost>& at(const std::string& name) {
        for (auto& [known, costs] : ops_)
            if (known == name) return costs;
        return ops_.emplace_back(name, std::vector<Cost>()).second;
    }
    void print_row(const std::string& name, const Cost& c, double each) const {
        const double size = threads_.size();
        if (c.loop == 0) return fmt::print("{:<24} {:>9.1f}\n", name, c.serial * each);
        fmt::print("{:<24} {:>9.1f} {:>9.1f} {:>9.1f} {:>6.1f}% {:>8.1f} {:>8.1f}\n", name, c.serial * each,
                   c.loop * each, c.waiting * each, 100 - 100 * c.busy / (size * c.loop), c.bytes / c.loop * 1e-9,
                   c.bytes / (c.busy / size) * 1e-9);
    }

    ThreadPool& threads_;
    std::vector<LoopTimes> log_;
    std::vector<std::pair<std::string, std::vector<Cost>>> ops_;
};

int64_t total(std::initializer_list<const Weight*> weights) {
    int64_t bytes = 0;
    for (const Weight* w : weights) bytes += w->bytes();
    return bytes;
}

/// Calls run(name, bytes of each loop, op) for the ops of one token; returns the token.
template <class Run>
int32_t step(Context& ctx, const Model& m, const Settings& s, int64_t token, const Run& run) {
    const Batch1 rows(s.depth);
    const Batch batch = rows.batch();
    const ops::Norm norm{m.norm, 1e-6f}, head_norm{m.head_norm, 1e-6f};
    ctx.arena->reset();
    Tensor x = ctx.alloc(DType::f32, {1, kHidden});
    random_fill(DType::f32, x.data, kHidden, 1.0f, static_cast<uint64_t>(token) + 1000);
    for (const Layer& w : m.layers) {
        const ArenaScope scope(*ctx.arena);
        std::vector<Tensor> p;
        run("q k v g", {total({&w.q, &w.k, &w.v, &w.g})}, [&] {
            const Weight* group[] = {&w.q, &w.k, &w.v, &w.g};
            p = ops::norm_matmul_group(ctx, x, norm, group);
        });
        run("attention, o", {0, w.o.bytes()}, [&] {
            const ops::AttentionInput in{.q = p[0].view({1, w.heads, kHeadDim}),
                                         .k = p[1].view({1, kKvHeads, kHeadDim}),
                                         .v = p[2].view({1, kKvHeads, kHeadDim}),
                                         .gate = p[3],
                                         .q_norm = head_norm,
                                         .k_norm = head_norm,
                                         .rope = &m.rope,
                                         .softmax_scale = 0.088f};
            ops::gated_attention_add(ctx, in, w.kv, batch, w.o, x);
        });
        if (!w.sparse) {
            run("dense", {total({&w.gate, &w.up}), w.down.bytes()},
                [&] { ops::swiglu_ffn_add(ctx, x, norm, w.gate, w.up, w.down); });
            continue;
        }
        run("moe", {w.router.bytes() + (kTopK + 1) * total({&w.gate, &w.up, &w.down})}, [&] {
            const ops::Router router{&w.router, m.bias, kTopK, 2.5f, true};
            ops::moe_add(ctx, x, norm, router, w.experts, {&w.gate, &w.up, &w.down});
        });
    }
    Tensor logits;
    run("head", {m.head.bytes()}, [&] {
        const Weight* head[] = {&m.head};
        logits = ops::norm_matmul_group(ctx, x, norm, head)[0];
    });
    int32_t next = 0;
    run("argmax", {}, [&] { next = ops::argmax({logits.row(0), static_cast<size_t>(kVocab)}); });
    return next;
}

void bench(const Settings& s) {
    ThreadPool threads(s.threads);
    Arena arena;
    Context ctx;
    ctx.threads = &threads;
    ctx.arena = &arena;
    const Model model = make_model(s, threads);
    const double roof = measure_read_bandwidth(threads, int64_t{1} << 30);
    fmt::print("{} threads, {} pages, depth {}, {} layers; reads measured at {:.1f} GB/s\n", threads.size(),
               s.huge ? "huge" : "4 KiB", s.depth, s.layers, roof * 1e-9);

    double bytes = 0;
    uint64_t hash = 0;
    const auto plain = [&](const char*, const std::vector<int64_t>& loops, const std::function<void()>& f) {
        for (const int64_t b : loops) bytes += static_cast<double>(b);
        f();
    };
    std::vector<double> times;
    for (int64_t t = -4; t < s.tokens; ++t) {
        bytes = 0;
        const double start = now();
        hash = hash * 31 + static_cast<uint64_t>(step(ctx, model, s, t, plain));
        if (t >= 0) times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    fmt::print(
        "plain: {:.1f} us a token (fastest {:.1f}, slowest {:.1f}), {:.1f} tok/s, {:.1f} GB/s, {:.0f} % of the "
        "measured reads; tokens {:016x}\n",
        median * 1e6, times.front() * 1e6, times.back() * 1e6, 1 / median, bytes / median * 1e-9,
        100 * bytes / median / roof, hash);
    Profile profile(threads);
    const auto timed = [&](const char* name, const std::vector<int64_t>& loops, const std::function<void()>& f) {
        profile.op(name, loops, f);
    };
    for (int64_t t = 0; t < s.tokens; ++t) step(ctx, model, s, t, timed);
    profile.print(s.tokens);
}

}  // namespace

int main(int argc, char** argv) {
    Settings s;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--huge") s.huge = true;
        else if (i + 1 == argc) return fmt::print(stderr, "{} needs a value\n", flag), 64;
        else if (flag == "--threads") s.threads = std::atoi(argv[++i]);
        else if (flag == "--tokens") s.tokens = std::atoll(argv[++i]);
        else if (flag == "--depth") s.depth = std::atoll(argv[++i]);
        else if (flag == "--layers") s.layers = std::atoll(argv[++i]);
        else return fmt::print(stderr, "unknown flag {}\n", flag), 64;
    }
    bench(s);
}
