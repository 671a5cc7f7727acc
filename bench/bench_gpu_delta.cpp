// Gated DeltaNet on a GPU in the shapes of Qwen3.5 (48, 32 and 16 value heads of 128 x 128 over 16 key heads):
// microseconds of a call (median of 15 graph replays, spread), the floor of reading (and where rows are kept writing)
// the states once at 4.65 TB/s, and the share of it reached. A graph holds a chain of 48 calls over states of their
// own, 150 MB at 48 heads. Random inputs.
//   bench_gpu_delta [--heads N] [--one-row] [--portable]
// --one-row: only steps of one row for each sequence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/gpu_timing.h"
#include "ops/gated_delta.h"
#include "tensor/arena.h"

namespace riptide {
namespace {

constexpr int64_t kLayers = 48, kDim = 128, kWidth = 4, kKeyHeads = 16, kStashRows = 256, kSlots = 16;
constexpr double kBandwidth = 4.65e12;

class Bench {
  public:
    Bench(Gpu& gpu, int64_t heads)
        : gpu_(gpu), arena_(int64_t{1} << 30, &gpu), inputs_(int64_t{1} << 30, &gpu), heads_(heads) {
        ctx_.gpu = &gpu;
        ctx_.family = Family::decode;
        DeltaView view;
        view.key_heads = kKeyHeads;
        view.value_heads = heads;
        view.key_dim = view.value_dim = kDim;
        view.conv_width = kWidth;
        view.stash_rows = kStashRows;
        for (int64_t i = 0; i < kLayers; ++i) {
            view.conv = floats(kSlots * view.conv_floats());
            view.state = floats(kSlots * view.state_elements());
            view.stash = floats(kStashRows * view.stash_floats());
            layers_.push_back(view);
        }
        conv_ = numbers(view.channels() * kWidth, 0.5f);
        decay_ = numbers(heads, -0.5f);
        bias_ = numbers(heads, 1.0f);
        norm_ = numbers(kDim, 1.0f);
    }

    /// Rows of each of some sequences that have tokens already.
    void decode(int64_t sequences, int64_t rows, bool tree, ops::DeltaMode mode) {
        const Arena::Mark mark = inputs_.mark();
        const Batch batch = make_batch(sequences, rows, tree);
        const ops::GatedDeltaInput in = make_input(sequences * rows);
        const bool update = mode == ops::DeltaMode::update, follows = mode == ops::DeltaMode::follow;
        const std::vector<int32_t> held(static_cast<size_t>(follows ? sequences : 0), 99);  // one less than committed
        const std::span<const int32_t> held_there = ints(held);
        const double bytes =
            static_cast<double>(sequences * layers_.front().state_bytes()) * (update || follows ? 2 : 1);
        report(fmt::format("{} {} of {} {}", sequences * rows,
                           update    ? "kept rows"
                           : follows ? "rows that follow"
                           : tree    ? "tree rows"
                                     : "chain rows",
                           sequences, sequences == 1 ? "sequence" : "sequences"),
               bytes, [&] {
                   for (const DeltaView& view : layers_) {
                       arena_.reset();
                       ops::gated_delta(ctx_, in, view, batch, mode, held_there);
                   }
               });
        inputs_.restore(mark);
    }
    /// A prompt's rows, by rows and in chunks.
    void prompt(int64_t rows) {
        const Arena::Mark mark = inputs_.mark();
        const Batch batch = make_batch(1, rows, false);
        const ops::GatedDeltaInput in = make_input(rows);
        ctx_.family = Family::prefill;
        for (const bool chunks : {false, true}) {
            for (DeltaView& view : layers_) view.by_chunks = chunks;
            report(fmt::format("prompt of {} rows{}", rows, chunks ? ", in chunks" : ""),
                   2 * static_cast<double>(layers_.front().state_bytes()), [&] {
                       for (const DeltaView& view : layers_) {
                           arena_.reset();
                           ops::gated_delta(ctx_, in, view, batch, ops::DeltaMode::update);
                       }
                   });
        }
        ctx_.family = Family::decode;
        inputs_.restore(mark);
    }
    /// All layers at once.
    void commit(int64_t rows) {
        const std::vector<int32_t> one = {0}, committed = {100}, count = {static_cast<int32_t>(rows)};
        std::vector<int32_t> path(static_cast<size_t>(rows));
        std::iota(path.begin(), path.end(), 0);
        const ops::DeltaPaths paths{ints(one), ints(committed), ints(count), ints(path), rows};
        report(fmt::format("commit of {} rows, a layer's share", rows),
               2 * static_cast<double>(layers_.front().state_bytes()),
               [&] { ops::gated_delta_commit(ctx_, layers_, paths); });
    }

  private:
    float* floats(int64_t count) {
        memory_.emplace_back(&gpu_, count * 4, "state");
        return reinterpret_cast<float*>(memory_.back().data());
    }
    std::span<const float> numbers(int64_t count, float scale) {
        return {random(count, scale), static_cast<size_t>(count)};
    }
    float* random(int64_t count, float scale) {
        std::normal_distribution<float> normal;
        std::vector<float> block(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
        for (float& x : block) x = scale * std::abs(normal(rng_));
        auto* to = static_cast<float*>(inputs_.allocate(count * 4));
        for (int64_t at = 0; at < count; at += std::ssize(block))
            gpu_.to_device(to + at, block.data(), 4 * std::min<int64_t>(std::ssize(block), count - at));
        return to;
    }
    std::span<const int32_t> ints(const std::vector<int32_t>& values) {
        void* to = inputs_.allocate(std::ssize(values) * 4);
        gpu_.to_device(to, values.data(), std::ssize(values) * 4);
        return {static_cast<const int32_t*>(to), values.size()};
    }
    Batch make_batch(int64_t sequences, int64_t rows, bool tree) {
        std::vector<int32_t> positions, sequence, parent, begin, committed, slots;
        for (int64_t s = 0; s < sequences; ++s) {
            const auto first = static_cast<int32_t>(positions.size());
            begin.push_back(first);
            for (int32_t i = 0; i < rows; ++i) {
                const int32_t p =
                    !tree || i <= rows / 2 ? i - 1 : static_cast<int32_t>(rng_() % static_cast<uint64_t>(i));
                positions.push_back(p < 0 ? 100 : positions[static_cast<size_t>(first + p)] + 1);
                parent.push_back(p < 0 ? -1 : first + p);
                sequence.push_back(static_cast<int32_t>(s));
            }
            committed.push_back(100);
            slots.push_back(static_cast<int32_t>(s));
        }
        begin.push_back(static_cast<int32_t>(positions.size()));
        Batch batch;
        batch.tokens = batch.positions = ints(positions);
        batch.row_sequence = ints(sequence);
        if (tree) batch.parent = ints(parent);
        batch.row_begin = ints(begin);
        batch.committed = ints(committed);
        batch.state_slot = ints(slots);
        return batch;
    }
    ops::GatedDeltaInput make_input(int64_t n) {
        const auto tensor = [&](int64_t cols) { return Tensor(random(n * cols, 1.0f), DType::f32, {n, cols}); };
        return {tensor(layers_.front().channels()),
                tensor(heads_ * kDim),
                tensor(heads_),
                tensor(heads_),
                conv_,
                decay_,
                bias_,
                {norm_, 1e-6f}};
    }
    void report(const std::string& name, double bytes, const std::function<void()>& chain) {
        ctx_.arena = &arena_;
        arena_.reset();
        std::vector<double> us = bench::replays_us(gpu_, chain);
        for (double& t : us) t /= kLayers;
        const double median = us[us.size() / 2], floor = bytes / kBandwidth * 1e6;
        fmt::print("{:2} heads  {:38} {:9.2f} us ({:.2f} .. {:.2f})  floor {:6.2f} us  {:5.1f} %\n", heads_, name,
                   median, us.front(), us.back(), floor, 100 * floor / median);
        std::fflush(stdout);
    }

    Gpu& gpu_;
    Arena arena_, inputs_;
    Context ctx_;
    int64_t heads_;
    std::mt19937_64 rng_{7};
    std::vector<DeviceMemory> memory_;
    std::vector<DeltaView> layers_;
    std::span<const float> conv_, decay_, bias_, norm_;
};

void run(Gpu& gpu, int64_t heads, bool one_row) {
    using ops::DeltaMode;
    Bench bench(gpu, heads);
    for (const int64_t sequences : {1, 2, 4, 8, 16}) bench.decode(sequences, 1, false, DeltaMode::update);
    for (const int64_t sequences : {1, 2, 4}) bench.decode(sequences, 1, false, DeltaMode::follow);
    for (const int64_t rows : {1, 2, 4, 8, 16})
        if (rows == 1 || !one_row) bench.decode(1, rows, false, DeltaMode::stash);
    if (one_row) return;
    for (const int64_t rows : {8, 23, 64}) bench.decode(1, rows, true, DeltaMode::stash);
    for (const int64_t rows : {1, 4, 16}) bench.commit(rows);
    for (const int64_t rows : {64, 512, 2048, 8192}) bench.prompt(rows);
}

}  // namespace
}  // namespace riptide

int main(int argc, char** argv) {
    std::vector<int64_t> heads = {48, 32, 16};
    riptide::GpuOptions options;
    bool one_row = false;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--portable") == 0) options.portable = true;
        else if (std::strcmp(argv[i], "--one-row") == 0) one_row = true;
        else if (std::strcmp(argv[i], "--heads") == 0 && i + 1 < argc) heads = {std::atoll(argv[++i])};
        else return fmt::print(stderr, "usage: {} [--heads N] [--one-row] [--portable]\n", argv[0]), 64;
    }
    try {
        const auto gpu = riptide::Gpu::open(options);
        fmt::print("{}, {} layers\n", gpu->info().name, riptide::kLayers);
        for (const int64_t n : heads) riptide::run(*gpu, n, one_row);
    } catch (const riptide::Error& error) {
        fmt::print(stderr, "{}: {}\n", argv[0], error.what());
        return static_cast<int>(error.kind());
    }
}
