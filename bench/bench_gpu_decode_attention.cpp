// Decode attention on a GPU, norm, rope, append and gate included, in the shapes of Laguna XS.2's layers (heads of 256:
// of Qwen3.5-27B's, queries beside their gates): microseconds of a call (median of 15 graph replays, spread), the floor
// of reading its K and V once at 4.65 TB/s, the share of it reached, and a hash of the result, the same in two builds
// whose bits are the same. A graph holds a chain of calls over storage of their own, enough of it that nothing stays in
// the L2 cache, each behind an addition to the queries as the projections of a layer would be; a chain of additions
// alone is subtracted.
//   bench_gpu_decode_attention [--kv f8_e4m3|q8_0|f16|...] [--keys N,...] [--rows N,...] [--heads-of 128|256]
//                              [--group H,N] [--drafts N,...] [--block N,...] [--portable]
//       rows: of as many sequences; then 4 and 16 rows of one sequence, a draft to verify
//       heads of 256, group: query and KV heads (24,4; Qwen3.5-0.8B: 8,2); drafts: rows of one sequence (0: none)
//       block: a drafter's blocks of so many rows instead (16 heads on 8, all rows of a block see each other, f16)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/gpu_timing.h"
#include "ops/block_attention.h"
#include "ops/elementwise.h"
#include "ops/gated_attention.h"
#include "quant/kv_row.h"
#include "tensor/arena.h"

namespace riptide {
namespace {

constexpr int32_t kPageRows = 64, kWindow = 512, kRing = 576;
constexpr double kBandwidth = 4.65e12;

struct Case {
    int64_t heads;
    int32_t window, keys, rows, sequences;
    DType type;
    int64_t dim = 128, kv_heads = 8;
    bool block = false;
};

/// Device memory with random contents that decode to modest finite values.
DeviceMemory random_rows(Gpu& gpu, DType type, int64_t dim, int64_t count, std::mt19937& rng) {
    const int64_t row = kv_row_bytes(type, dim);
    DeviceMemory memory(&gpu, count * row, "K/V");
    std::vector<uint8_t> block(static_cast<size_t>(row * 4096));
    for (uint8_t& byte : block) byte = static_cast<uint8_t>(rng());
    for (int64_t r = 0; r < 4096; ++r) {
        uint8_t* const at = block.data() + r * row;
        if (type == DType::f8_e4m3)
            for (int64_t i = 0; i < row; ++i) at[i] = static_cast<uint8_t>((at[i] & 0x80u) | (0x30u + at[i] % 12u));
        else if (type == DType::f16 || type == DType::bf16)
            for (int64_t i = 1; i < row; i += 2)  // exponents near 1
                at[i] = static_cast<uint8_t>((at[i] & 0x80u) | (type == DType::f16 ? 0x38u + at[i] % 4u : 0x3Fu));
        else
            for (int64_t i = kv_scales_at(type, dim); i < row; i += 2) at[i] = 0, at[i + 1] = 0x20;
    }
    for (int64_t done = 0; done < memory.bytes(); done += std::ssize(block))
        gpu.to_device(memory.data() + done, block.data(), std::min<int64_t>(std::ssize(block), memory.bytes() - done));
    return memory;
}

class Bench {
  public:
    Bench(Gpu& gpu, const Case& c)
        : gpu_(gpu), case_(c), arena_(int64_t{256} << 20, &gpu), inputs_(int64_t{64} << 20, &gpu) {
        ctx_.gpu = &gpu;
        ctx_.family = Family::decode;
        ctx_.arena = &arena_;
        const int32_t each = c.rows / c.sequences;  // the last of a sequence's c.keys keys are its rows
        const int32_t pages = (c.keys + kPageRows - 1) / kPageRows;
        const int64_t slots = int64_t{c.sequences} * (c.window > 0 ? kRing : pages * kPageRows);
        const int64_t visible = c.window > 0 ? std::min(c.window, c.keys) : c.keys;
        bytes_ = static_cast<double>(c.sequences * visible * c.kv_heads * 2 * kv_row_bytes(c.type, c.dim));
        const auto copies = static_cast<int64_t>(std::clamp(2.0e8 / bytes_, 1.0, 40.0));
        std::vector<int32_t> table(static_cast<size_t>(c.sequences) * static_cast<size_t>(pages));
        std::iota(table.begin(), table.end(), 0);
        std::shuffle(table.begin(), table.end(), rng_);
        for (int64_t i = 0; i < copies; ++i) {
            k_.push_back(random_rows(gpu, c.type, c.dim, slots * c.kv_heads, rng_));
            v_.push_back(random_rows(gpu, c.type, c.dim, slots * c.kv_heads, rng_));
            KvView view;
            view.k = k_.back().data();
            view.v = v_.back().data();
            view.k_dtype = view.v_dtype = c.type;
            view.num_kv_heads = c.kv_heads;
            view.head_dim = c.dim;
            view.k_slot_bytes = view.v_slot_bytes = c.kv_heads * kv_row_bytes(c.type, c.dim);
            view.page_rows = kPageRows;
            view.window = c.window;
            view.ring_rows = c.window > 0 ? kRing : 0;
            views_.push_back(view);
        }
        std::vector<int32_t> positions, sequence, begin{0}, committed, slot;
        for (int32_t s = 0; s < c.sequences; ++s) {
            for (int32_t r = 0; r < each; ++r) {
                positions.push_back(c.keys - each + r);
                sequence.push_back(s);
            }
            begin.push_back((s + 1) * each);
            committed.push_back(c.keys - each);
            slot.push_back(c.sequences - 1 - s);
        }
        batch_.tokens = batch_.positions = ints(positions);
        batch_.row_sequence = ints(sequence);
        batch_.row_begin = ints(begin);
        batch_.committed = ints(committed);
        batch_.page_table = ints(table);
        batch_.max_pages = pages;
        batch_.far = c.rows == 1 && c.keys > Batch::kFarPosition;
        batch_.state_slot = ints(slot);
        const bool beside = c.dim == 256;
        rope_.rotary_dim = c.window > 0 ? 128 : 64;
        for (int i = 0; i < rope_.rotary_dim / 2; ++i)
            rope_.inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / 128.0f));
        in_.q = floats({c.rows, c.heads, beside ? 2 * c.dim : c.dim});
        in_.k = floats({c.rows, c.kv_heads, c.dim});
        in_.v = floats({c.rows, c.kv_heads, c.dim});
        in_.gate = floats({c.rows, c.heads});
        const Tensor norms = floats({2, c.dim});
        in_.q_norm = {std::span(norms.row(0), c.dim), 1e-6f};
        in_.k_norm = {std::span(norms.row(1), c.dim), 1e-6f};
        in_.rope = &rope_;
        in_.softmax_scale = 1 / std::sqrt(static_cast<float>(c.dim));
        zeros_ = floats({c.rows, c.heads, in_.q.shape[2]});
        gpu.fill(zeros_.data, 0, zeros_.elements() * 4);
        q_ = in_.q;
    }

    double bytes() const { return bytes_; }

    /// Microseconds of one link of a chain, ascending.
    std::vector<double> time(bool attend) {
        const int64_t links = std::max<int64_t>(8, std::ssize(views_));
        const auto chain = [&] {
            for (int64_t i = 0; i < links; ++i) {
                arena_.reset();
                ops::add(ctx_, q_, zeros_);
                if (!attend) continue;
                const KvView& view = views_[static_cast<size_t>(i) % views_.size()];
                if (case_.block) {
                    ops::BlockHeads heads{in_.q, in_.k, in_.v, in_.q_norm, in_.k_norm, view};
                    out_ = ops::gated_block_attention(ctx_, heads, rope_, batch_, in_.softmax_scale, {});
                } else if (case_.dim == 256) out_ = ops::sigmoid_attention(ctx_, in_, view, batch_);
                else out_ = ops::gated_attention(ctx_, in_, view, batch_);
            }
        };
        std::vector<double> us = bench::replays_us(gpu_, chain);
        for (double& t : us) t /= static_cast<double>(links);
        return us;
    }

    /// FNV-1a of the last result: the same in two builds whose bits are the same.
    uint64_t hash() {
        std::vector<uint8_t> bytes(static_cast<size_t>(out_.elements() * 4));
        gpu_.to_host(bytes.data(), out_.data, std::ssize(bytes));
        uint64_t h = 0xCBF29CE484222325u;
        for (const uint8_t byte : bytes) h = (h ^ byte) * 0x100000001B3u;
        return h;
    }

  private:
    std::span<const int32_t> ints(const std::vector<int32_t>& values) {
        auto* const to = static_cast<int32_t*>(inputs_.allocate(std::ssize(values) * 4));
        gpu_.to_device(to, values.data(), std::ssize(values) * 4);
        return {to, values.size()};
    }
    Tensor floats(std::initializer_list<int64_t> shape) {
        Tensor t(nullptr, DType::f32, shape);
        std::vector<float> values(static_cast<size_t>(t.rows() * t.row_elements()));
        std::normal_distribution<float> normal;
        for (float& x : values) x = normal(rng_);
        t.data = inputs_.allocate(std::ssize(values) * 4);
        gpu_.to_device(t.data, values.data(), std::ssize(values) * 4);
        return t;
    }

    Gpu& gpu_;
    Case case_;
    std::mt19937 rng_{1};
    Arena arena_, inputs_;
    Context ctx_;
    std::vector<DeviceMemory> k_, v_;
    std::vector<KvView> views_;
    Batch batch_;
    ops::Rope rope_;
    ops::AttentionInput in_;
    Tensor zeros_, q_, out_;
    double bytes_ = 0;
};

void run(Gpu& gpu, const Case& c) {
    Bench bench(gpu, c);
    const std::vector<double> with = bench.time(true);
    const uint64_t hash = bench.hash();
    const std::vector<double> without = bench.time(false);
    const double base = without[without.size() / 2], us = with[with.size() / 2] - base;
    const double floor = bench.bytes() / kBandwidth * 1e6;
    fmt::print(
        "{:6} {:5} keys {:4} rows of {:4} {:8}  {:8.2f} us  ({:.2f} .. {:.2f})  floor {:7.2f}  {:5.1f} %  {:016x}\n",
        c.window > 0 ? "window" : "full", c.keys, c.rows, c.sequences, dtype_name(c.type), us, with.front() - base,
        with.back() - base, floor, floor / us * 100, hash);
    std::fflush(stdout);
}

std::vector<int32_t> numbers(const char* list) {
    std::vector<int32_t> values;
    for (char* at = const_cast<char*>(list); *at != 0; at += *at == ',')
        values.push_back(static_cast<int32_t>(std::strtol(at, &at, 10)));
    return values;
}

}  // namespace
}  // namespace riptide

int main(int argc, char** argv) {
    using namespace riptide;
    try {
        GpuOptions options;
        std::vector<int32_t> keys{1056}, rows{1, 2, 4, 8, 16, 32, 64, 128}, group{24, 4}, drafts{2, 4, 8, 16, 32};
        DType type = DType::f8_e4m3;
        bool wide = false;
        std::vector<int32_t> blocks;
        for (int i = 1; i < argc; ++i) {
            const std::string option = argv[i];
            if (option == "--portable") {
                options.portable = true;
                continue;
            }
            if (i + 1 == argc) fail(ErrorKind::usage, "{} takes a value", option);
            const char* const value = argv[++i];
            if (option == "--kv") {
                const std::optional<DType> found = dtype_from_name(value);
                if (!found) fail(ErrorKind::usage, "unknown type {}", value);
                type = *found;
            } else if (option == "--keys") keys = numbers(value);
            else if (option == "--rows") rows = numbers(value);
            else if (option == "--drafts") drafts = numbers(value);
            else if (option == "--group") group = numbers(value);
            else if (option == "--block") blocks = numbers(value);
            else if (option == "--heads-of") wide = std::string(value) == "256";
            else fail(ErrorKind::usage, "unknown option {}", option);
        }
        if (group.size() != 2) fail(ErrorKind::usage, "--group takes two numbers");
        const std::unique_ptr<Gpu> gpu = Gpu::open(options);
        fmt::print("{}{}\n", gpu->info().name, options.portable ? ", portable kernels" : "");
        for (const int32_t k : keys)
            for (const int32_t window : {0, kWindow}) {
                for (const int32_t n : blocks) run(*gpu, {16, window, k, n, 1, DType::f16, 128, 8, true});
                if (!blocks.empty()) continue;
                if (wide && window == 0) {
                    for (const int32_t n : rows) run(*gpu, {group[0], 0, k, n, n, type, 256, group[1]});
                    for (const int32_t n : drafts)
                        if (n > 0) run(*gpu, {group[0], 0, k, n, 1, type, 256, group[1]});
                }
                if (wide) continue;
                const int64_t heads = window > 0 ? 64 : 48;
                for (const int32_t n : rows) run(*gpu, {heads, window, k, n, n, type});
                for (const int32_t n : {4, 16}) run(*gpu, {heads, window, k, n, 1, type});
            }
    } catch (const Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return static_cast<int>(error.kind());
    }
    return 0;
}
