// Prefill attention on a GPU: the last chunk of a long prompt, random K/V, for the shapes of Laguna XS.2's layers.
// A figure is the median of 7 runs; in brackets the fastest and the slowest. TFLOP/s counts 4 * d for each key that a
// row sees and head. One row: the last of the chunk alone, on full layers nearly the time that gathering stored K/V
// takes in every run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/attention.h"
#include "quant/kv_row.h"
#include "tensor/arena.h"

namespace riptide {
namespace {

constexpr int64_t kDim = 128, kKvHeads = 8;
constexpr int32_t kPageRows = 64, kWindow = 512;

struct Case {
    const char* name;
    int64_t heads, committed, rows;
    int32_t window;
    DType type;
};

/// Device memory with random contents that decode to modest finite values.
DeviceMemory random_rows(Gpu& gpu, DType type, int64_t slots, std::mt19937& rng) {
    const int64_t row = kv_row_bytes(type, kDim);
    DeviceMemory memory(&gpu, slots * kKvHeads * row, "K/V");
    std::vector<uint8_t> block(static_cast<size_t>(row * 4096));
    for (uint8_t& byte : block) byte = static_cast<uint8_t>(rng());
    for (int64_t r = 0; r < 4096; ++r) {
        uint8_t* const at = block.data() + r * row;
        if (type == DType::f8_e4m3)
            for (int64_t i = 0; i < row; ++i) at[i] = static_cast<uint8_t>(at[i] & 0x80u) | (0x30 + at[i] % 12);
        else if (type == DType::f16 || type == DType::bf16)
            for (int64_t i = 1; i < row; i += 2)  // exponents near 1
                at[i] = static_cast<uint8_t>((at[i] & 0x80u) | (type == DType::f16 ? 0x38 + at[i] % 4 : 0x3F));
        else
            for (int64_t i = kv_scales_at(type, kDim); i < row; i += 2) at[i] = 0, at[i + 1] = 0x20;
    }
    for (int64_t done = 0; done < memory.bytes(); done += static_cast<int64_t>(block.size()))
        gpu.to_device(memory.data() + done, block.data(), std::min<int64_t>(std::ssize(block), memory.bytes() - done));
    return memory;
}

double visible_keys(const Case& c) {
    double keys = 0;
    for (int64_t r = 0; r < c.rows; ++r) {
        const int64_t position = c.committed + r;
        keys += static_cast<double>(c.window > 0 ? std::min<int64_t>(position + 1, c.window) : position + 1);
    }
    return keys;
}

class Setup {
  public:
    Setup(Gpu& gpu, const Case& c) : gpu_(gpu), arena_(int64_t{1} << 20, &gpu), inputs_(int64_t{1} << 20, &gpu) {
        std::mt19937 rng(1);
        const int64_t keys = c.committed + c.rows, pages = (keys + kPageRows - 1) / kPageRows;
        const int64_t ring = kWindow - 1 + c.rows;
        const int64_t slots = c.window > 0 ? ring : pages * kPageRows;
        k_ = random_rows(gpu, c.type, slots, rng);
        v_ = random_rows(gpu, c.type, slots, rng);
        view_.k = k_.data();
        view_.v = v_.data();
        view_.k_dtype = view_.v_dtype = c.type;
        view_.num_kv_heads = kKvHeads;
        view_.head_dim = kDim;
        view_.k_slot_bytes = view_.v_slot_bytes = kKvHeads * kv_row_bytes(c.type, kDim);
        view_.page_rows = kPageRows;
        view_.window = c.window;
        view_.ring_rows = static_cast<int32_t>(ring);
        std::vector<int32_t> table(static_cast<size_t>(pages));
        for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
        std::shuffle(table.begin(), table.end(), rng);
        table_ = table;
        std::vector<float> q(static_cast<size_t>(c.rows * c.heads * kDim));
        std::normal_distribution<float> normal;
        for (float& x : q) x = normal(rng);
        q_ = {upload(q), DType::f32, {c.rows, c.heads, kDim}};
        ctx_.gpu = &gpu;
        ctx_.family = Family::prefill;
        ctx_.arena = &arena_;
        all_ = batch(c.committed, c.rows);
        last_ = batch(c.committed + c.rows - 1, 1);
    }

    /// Milliseconds, ascending. one_row: only the last row of the chunk.
    std::vector<double> time(bool one_row) {
        GpuTimer timer(gpu_);
        std::vector<double> ms;
        Tensor q = q_;
        if (one_row) q.shape[0] = 1;
        for (int i = 0; i < 9; ++i) {
            arena_.reset();
            timer.start();
            ops::attention(ctx_, q, view_, one_row ? last_ : all_, 1 / std::sqrt(float{kDim}));
            timer.stop();
            const double t = timer.milliseconds();
            if (i >= 2) ms.push_back(t);
        }
        std::ranges::sort(ms);
        return ms;
    }

  private:
    template <class T>
    T* upload(const std::vector<T>& values) {
        const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
        T* const to = static_cast<T*>(inputs_.allocate(bytes));
        gpu_.to_device(to, values.data(), bytes);
        return to;
    }
    std::span<const int32_t> ints(const std::vector<int32_t>& values) { return {upload(values), values.size()}; }

    Batch batch(int64_t committed, int64_t rows) {
        std::vector<int32_t> positions(static_cast<size_t>(rows));
        for (size_t r = 0; r < positions.size(); ++r)
            positions[r] = static_cast<int32_t>(committed) + static_cast<int32_t>(r);
        Batch b;
        b.tokens = b.row_sequence = ints(std::vector<int32_t>(positions.size()));
        b.positions = ints(positions);
        b.row_begin = ints({0, static_cast<int32_t>(rows)});
        b.committed = ints({static_cast<int32_t>(committed)});
        b.page_table = ints(table_);
        b.max_pages = static_cast<int32_t>(table_.size());
        b.state_slot = ints({0});
        return b;
    }

    Gpu& gpu_;
    Arena arena_, inputs_;
    DeviceMemory k_, v_;
    KvView view_;
    std::vector<int32_t> table_;
    Tensor q_;
    Batch all_, last_;
    Context ctx_;
};

void run(Gpu& gpu, const Case& c) {
    Setup setup(gpu, c);
    const std::vector<double> ms = setup.time(false), gather = setup.time(true);
    const double flop = 4.0 * kDim * static_cast<double>(c.heads) * visible_keys(c);
    fmt::print("{:<34} {:<8} {:9.3f} ms [{:.3f}, {:.3f}]  {:7.1f} TFLOP/s  one row {:.3f} ms\n", c.name,
               dtype_name(c.type), ms[ms.size() / 2], ms.front(), ms.back(), flop / ms[ms.size() / 2] * 1e-9,
               gather[gather.size() / 2]);
    std::fflush(stdout);
}

}  // namespace
}  // namespace riptide

int main(int argc, char** argv) {
    using namespace riptide;
    try {
        GpuOptions options;
        for (int i = 1; i < argc; ++i) options.portable = options.portable || std::strcmp(argv[i], "--portable") == 0;
        const std::unique_ptr<Gpu> gpu = Gpu::open(options);
        fmt::print("{}{}\n", gpu->info().name, options.portable ? ", portable kernels" : "");
        const Case cases[] = {
            {"full, 512 rows from 0", 48, 0, 512, 0, DType::f16},
            {"full, 4096 rows from 0", 48, 0, 4096, 0, DType::f16},
            {"full, 8192 rows to 32K", 48, 24576, 8192, 0, DType::f16},
            {"full, 8192 rows to 32K", 48, 24576, 8192, 0, DType::bf16},
            {"full, 8192 rows to 32K", 48, 24576, 8192, 0, DType::f8_e4m3},
            {"full, 8192 rows to 32K", 48, 24576, 8192, 0, DType::q8_0},
            {"full, 16384 rows to 128K", 48, 114688, 16384, 0, DType::f16},
            {"window 512, 512 rows from 0", 64, 0, 512, kWindow, DType::f16},
            {"window 512, 4096 rows from 0", 64, 0, 4096, kWindow, DType::f16},
            {"window 512, 16384 rows to 128K", 64, 114688, 16384, kWindow, DType::f16},
        };
        for (const Case& c : cases) run(*gpu, c);
    } catch (const Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return static_cast<int>(error.kind());
    }
    return 0;
}
