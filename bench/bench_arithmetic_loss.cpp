// What an arithmetic of products costs a model: perplexity, KL and first choices against exact products, or the error
// of each kind of product. On the CPU, for arithmetics that no kernel has yet, too (bench/rounded_products.h). Block
// weights only: routers stay exact. Attention and K/V are f32.
//
//   bench_arithmetic_loss MODEL TEXT WINDOW quality|products [OUTLIER [TOKENS]]
//
// WINDOW: tokens that are read together. OUTLIER: one column of each 128 of x is so many times as large, and that of
// the weights as much smaller. TOKENS: of the text. quality: a table after each window.
//
// The ops get their kernels from dot_kernels() and ask uses_int8_activations() how they want x. The linker gives them
// this program's two instead (--wrap, bench/CMakeLists.txt), so that ops know nothing of it.
#include <fmt/format.h>

#include <array>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "bench/rounded_products.h"
#include "engine/prompt/loaded_text.h"
#include "engine/session/session.h"
#include "ops/topk.h"

extern "C" bool __real__ZN7riptide21uses_int8_activationsENS_5DTypeE(riptide::DType type);

namespace riptide {
namespace {

struct Arithmetic {
    const char* name;
    Form x, w;
    bool head = false;    // the head's product is rounded, too
    bool engine = false;  // the engine's own kernels
};
constexpr Form int8(int64_t cols, int64_t rows = 1) { return {Form::int8, cols, rows}; }
constexpr Arithmetic kArithmetics[] = {
    {"exact", {}, {}},
    {"bf16 x, bf16 w", {Form::bf16}, {Form::bf16}, true},
    {"FP8 x / 128, FP8 w / 64 x 128", {Form::fp8, kFp8Cols}, {Form::fp8, kFp8Cols, kFp8Rows}},
    {"int8 x / 128, int8 w / 32", int8(128), int8(32)},
    {"int8 x / 128, int8 w / 128", int8(128), int8(128)},
    {"int8 x / 128, int8 w / 256", int8(128), int8(256)},
    {"int8 x / 128, int8 w / 128 x 128", int8(128), int8(128, 128)},
    {"int8 x / row, int8 w / row", int8(0), int8(0)},
    {"int8 x / 128, own w", int8(128), {}},
    {"int8 x / 32, own w, head too", int8(32), {}, true},
    {"int8 x / 128, own w, head too", int8(128), {}, true},
    {"int8 x / 256, own w, head too", int8(256), {}, true},
    {"int8 x / row, own w, head too", int8(0), {}, true},
    {"f16 x / 256, own w, head too", {Form::f16, 256}, {}, true},
    {"the engine on the CPU", {}, {}, true, true},
};
constexpr size_t kCount = std::size(kArithmetics);
constexpr const char* kKinds[] = {"q k v gate", "o", "gate, up", "down", "head"};
constexpr size_t kHead = std::size(kKinds) - 1;
constexpr int64_t kGroups[] = {32, 128, 256, 0};

/// How far the largest of a group is above the root of its mean square.
struct Crest {
    double peaks = 0, squares = 0;  // peaks: each value as large as its group's largest
    double most = 0;

    void add(const float* v, int64_t n) {
        const double peak = largest(v, n), count = static_cast<double>(n);
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double{v[i]} * double{v[i]};
        peaks += peak * peak * count;
        squares += sum;
        if (sum > 0) most = std::max(most, peak / std::sqrt(sum / count));
    }
};

struct Kind {
    double squares = 0;
    std::array<double, kCount> errors{};
    std::array<Crest, std::size(kGroups)> x;
    Crest w;  // for 128 columns of a row
};

/// What the functions below know that ops call: they have no arguments to pass it in.
struct State {
    const Arithmetic* now = &kArithmetics[0];
    bool measuring = false;               // of products
    std::map<const void*, size_t> kinds;  // by where a tensor begins
    std::optional<RoundedProducts> products;
    std::mutex mutex;
    std::array<Kind, std::size(kKinds)> sums;
} state;

/// The exact product, and how far from it the others are.
void measure(const DotTask& task, size_t kind_index) {
    const int64_t rows = task.row_end - task.row_begin, cols = task.w->cols;
    state.products->multiply(task, {}, {}, task.y, task.y_stride);
    std::vector<float> y(static_cast<size_t>(task.n * rows));
    std::array<double, kCount> errors{};
    double squares = 0;
    for (size_t a = 1; a < kCount; ++a) {
        state.products->multiply(task, kArithmetics[a].x, kArithmetics[a].w, y.data(), rows);
        for (int64_t i = 0; i < task.n * rows; ++i) {
            const double exact = task.y[i / rows * task.y_stride + i % rows];
            const double off = double{y[static_cast<size_t>(i)]} - exact;
            errors[a] += off * off;
            if (a == 1) squares += exact * exact;
        }
    }
    const float* const w = state.products->weight(*task.w, {});
    const std::lock_guard lock(state.mutex);
    Kind& kind = state.sums[kind_index];
    kind.squares += squares;
    for (size_t a = 0; a < kCount; ++a) kind.errors[a] += errors[a];
    for (int64_t i = task.row_begin * cols; i < task.row_end * cols; i += 128) kind.w.add(w + i, 128);
    for (size_t g = 0; g < std::size(kGroups) && task.row_begin == 0; ++g)
        for (int64_t i = 0, n = kGroups[g] == 0 ? cols : kGroups[g]; i < task.n * cols; i += n)
            kind.x[g].add(static_cast<const float*>(task.x_row(i / cols)) + i % cols, n);
}

void dot(const DotTask& task) {
    if (task.w->dtype == DType::f32) return RoundedProducts::best().dot(task);
    const size_t kind = std::prev(state.kinds.upper_bound(task.w->data))->second;
    if (state.measuring) return measure(task, kind);
    const Arithmetic& a = kind == kHead && !state.now->head ? kArithmetics[0] : *state.now;
    state.products->multiply(task, a.x, a.w, task.y, task.y_stride);
}

struct Quality {
    double loss = 0, more = 0, squares = 0, divergence = 0, agree = 0, tokens = 0;
};

struct Row {
    std::vector<float> logits;
    double normaliser = 0;
};

/// Compares logits that predict `next` with the exact ones.
void compare(std::span<const float> q, double zq, const Row& exact, int32_t next, Quality& sum) {
    const auto token = static_cast<size_t>(next);
    const double zp = exact.normaliser, loss = zq - double{q[token]}, more = loss - (zp - double{exact.logits[token]});
    for (size_t i = 0; i < q.size(); ++i) {
        const double ln_p = double{exact.logits[i]} - zp;
        sum.divergence += std::exp(ln_p) * (ln_p - (double{q[i]} - zq));
    }
    sum.loss += loss, sum.more += more, sum.squares += more * more, sum.tokens += 1;
    sum.agree += ops::argmax(q) == ops::argmax(exact.logits) ? 1 : 0;
}

/// A window with each arithmetic.
void score(Session& session, std::span<const int32_t> ids, std::array<Quality, kCount>& sums) {
    std::vector<Row> exact(ids.size());
    for (size_t a = 0; a < kCount; ++a) {
        state.now = &kArithmetics[a];
        session.score(ids, [&](int64_t first, const Tensor& logits) {
            for (int64_t r = 0; r < logits.rows() && first + r + 1 < std::ssize(ids); ++r) {
                const std::span<const float> row(logits.row(r), static_cast<size_t>(logits.shape[1]));
                const auto at = static_cast<size_t>(first + r);
                const double normaliser = ops::log_sum_exp<double>(row);
                if (a == 0) exact[at] = {{row.begin(), row.end()}, normaliser};
                compare(row, normaliser, exact[at], ids[at + 1], sums[a]);
            }
        });
        fmt::print(stderr, "{}: {:.0f} tokens\n", state.now->name, sums[a].tokens);
    }
}

void print_quality(const std::array<Quality, kCount>& sums) {
    fmt::print("\n| {:.0f} tokens | perplexity | loss, nats a token | KL, nats a token | same first choice |\n",
               sums[0].tokens);
    fmt::print("|---|---:|---:|---:|---:|\n");
    for (size_t a = 0; a < kCount; ++a) {
        const Quality& q = sums[a];
        const double n = q.tokens, more = q.more / n, error = std::sqrt(std::max(0.0, q.squares / n - more * more) / n);
        fmt::print("| {} | {:.4f} | {:+.5f} ± {:.5f} | {:.6f} | {:.2f} % |\n", kArithmetics[a].name,
                   std::exp(q.loss / n), more, error, q.divergence / n, 100 * q.agree / n);
    }
    std::fflush(stdout);
}

void print_products() {
    const auto line = [](const std::string& name, const auto& cell) {
        fmt::print("| {} |", name);
        for (const Kind& kind : state.sums) fmt::print(" {} |", cell(kind));
        fmt::print("\n");
    };
    const auto crest = [](const Crest& c) {
        return fmt::format("{:.2f}, {:.1f}", std::sqrt(c.peaks / c.squares), c.most);
    };
    fmt::print("| relative error, % | {} |\n|---|---:|---:|---:|---:|---:|\n", fmt::join(kKinds, " | "));
    for (size_t a = 1; a < kCount && !kArithmetics[a].engine; ++a)
        line(kArithmetics[a].name,
             [&](const Kind& k) { return fmt::format("{:.3f}", 100 * std::sqrt(k.errors[a] / k.squares)); });
    for (size_t g = 0; g < std::size(kGroups); ++g)
        line(fmt::format("crest of x / {}", kGroups[g]), [&](const Kind& k) { return crest(k.x[g]); });
    line("crest of w / 128", [&](const Kind& k) { return crest(k.w); });
}

void run(const std::string& model, const std::string& text, int64_t window, bool products, float outlier,
         int64_t tokens) {
    SessionOptions options;
    options.k_dtype = options.v_dtype = DType::f32;
    const auto session = Session::open(model, options);
    for (const TensorInfo& t : session->checkpoint().tensors()) {
        const auto has = [&](const char* word) { return t.name.find(word) != std::string::npos; };
        state.kinds[t.bytes.data()] = has("attn_output")                    ? 1
                                      : has("ffn_gate") || has("ffn_up")    ? 2
                                      : has("ffn_down")                     ? 3
                                      : has("output.") || has("token_embd") ? kHead
                                                                            : 0;
    }
    state.products.emplace(outlier);
    state.measuring = products;
    const Tokenizer tokenizer = load_tokenizer(session->checkpoint());
    std::vector<int32_t> ids = tokenizer.encode(read_file(text, int64_t{16} << 20));
    ids.resize(std::min(ids.size(), static_cast<size_t>(tokens)));
    std::array<Quality, kCount> sums{};
    for (int64_t at = 0; at + 1 < std::ssize(ids); at += window - 1) {
        std::vector<int32_t> piece = {tokenizer.bos()};
        piece.insert(piece.end(), ids.begin() + at, ids.begin() + std::min(std::ssize(ids), at + window - 1));
        if (products) session->score(piece, [](int64_t, const Tensor&) {});
        else score(*session, piece, sums), print_quality(sums);
    }
    if (products) print_products();
}

/// Whether ops get the engine's kernels.
bool plain() { return state.now->engine && !state.measuring; }

}  // namespace
}  // namespace riptide

extern "C" const riptide::DotKernels& __wrap__ZN7riptide11dot_kernelsEv() {
    using namespace riptide;
    static const DotKernels rounding = {RoundedProducts::best().isa, "rounding", RoundedProducts::best().quantize, dot};
    return plain() ? RoundedProducts::best() : rounding;
}
extern "C" bool __wrap__ZN7riptide21uses_int8_activationsENS_5DTypeE(riptide::DType type) {
    return riptide::plain() && __real__ZN7riptide21uses_int8_activationsENS_5DTypeE(type);
}

int main(int count, char** words) {
    if (count < 5) return fmt::print(stderr, "usage: see the head of bench/bench_arithmetic_loss.cpp\n"), 64;
    const std::string what = words[4];
    if (what != "quality" && what != "products") return fmt::print(stderr, "quality or products, not {}\n", what), 64;
    riptide::run(words[1], words[2], std::stoll(words[3]), what == "products", count > 5 ? std::stof(words[5]) : 1,
                 count > 6 ? std::stoll(words[6]) : INT64_MAX);
}
