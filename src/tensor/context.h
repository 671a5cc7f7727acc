// Where an op runs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/arena.h"
#include "tensor/gpu.h"
#include "tensor/tensor.h"

namespace riptide {

struct KvView;
namespace ops {
struct AttentionInput;
struct Router;
struct ExpertWeights;
struct SharedExpert;
struct MoeLayer;
}  // namespace ops

/// On a GPU there are three sets of kernels for one mathematics. Within a family a row's bits do not depend on the
/// other rows of its step; between the families they may differ by rounding. On the CPU all are the same.
enum class Family {
    decode,   // up to 256 rows, bound by reading weights: int8 activations (large K-quant matrices on Hopper: f16)
    prefill,  // any number of rows, bound by arithmetic: bf16 tensor cores
    draft,    // as decode, but for float and Q8_0 matrices on Hopper: bf16 or f16 tensor cores, 24 rows at a time
};

/// cos and sin of the angles by which a step's rows are rotated: the same in all layers. See ops/rope.h.
struct RopeTable {
    std::vector<float> inv_freq;  // what it was made of: these, ...
    float magnitude = 0;
    std::vector<int32_t> positions;
    std::vector<float> cos_sin;  // for each row: all cos, then all sin
};

/// Sees intermediate results by name: tap(name, layer, value). Called on the thread that runs forward.
using Tap = std::function<void(std::string_view name, int layer, const Tensor& value)>;

/// What an op of a model's step is about to do. Bytes are those that it must read once: weights as they lie in memory
/// (of a sparse layer as many experts as n rows use on average if all are equally likely), and K/V. Activations do not
/// count.
struct OpCost {
    std::string_view name;  // "moe_add"; empty: the step has ended
    std::string shape = {};
    int64_t rows = 0;
    double weight_bytes = 0;
    double flops = 0;          // without those of attention over keys:
    double flops_per_key = 0;  // for each row and key that it sees
    int64_t key_bytes = 0;     // K and V of one token
    int64_t window = 0;        // keys that a row sees at most; 0: all
    double state_bytes = 0;    // of recurrent state, read and written
    // What it works on, as long as on_op runs; empty, null: nothing of that kind.
    std::span<const Weight* const> weights = {};
    const ops::AttentionInput* attention = nullptr;
    const KvView* kv = nullptr;
    const ops::Router* router = nullptr;
    const ops::ExpertWeights* experts = nullptr;
    const ops::SharedExpert* shared = nullptr;
    const ops::MoeLayer* next = nullptr;  // that reads the product's sum
    const Weight* product = nullptr;      // that made what a sparse layer reads, and knew of it
};

/// The device (a GPU, or the CPU if `gpu` is null), its threads, the arena for temporaries, and an optional tap. Passed
/// to every op; there are no globals.
struct Context {
    Gpu* gpu = nullptr;
    Family family = Family::decode;
    ThreadPool* threads = nullptr;
    Arena* arena = nullptr;
    Tap tap;
    /// On the CPU: sees the experts, i32 [n, top_k], that a sparse layer is about to use, and may write others in their
    /// place. For comparing devices: where rounding decides between nearly equal experts, one device follows the other.
    std::function<void(Tensor& experts)> reroute = {};
    /// Told by the ops that models call before they do anything, and with an empty name when a step has ended. Steps
    /// then run kernel by kernel. For measuring.
    std::function<void(const OpCost&)> on_op = {};
    /// On the CPU: shown the rows, f32 [n, cols], that matrix w is about to multiply, on the thread that runs forward;
    /// an expert's are those that use it. Feed-forward layers then go expert by expert and take longer; bits stay.
    std::function<void(const Weight& w, const Tensor& rows)> on_input = {};
    std::vector<RopeTable> rope_tables;  // the last ones made: layers take turns with two ropes

    /// A fresh, uninitialised arena tensor.
    Tensor alloc(DType dtype, std::initializer_list<int64_t> shape) {
        Tensor t(nullptr, dtype, shape);
        t.data = arena->allocate(shape.size() == 0 ? 0 : t.shape[0] * row_bytes(dtype, t.row_elements()));
        return t;
    }
    /// Shows a value to the tap, in host memory.
    void observe(std::string_view name, int layer, const Tensor& value) const {
        if (!tap) return;
        if (gpu == nullptr) return tap(name, layer, value);
        std::vector<std::byte> copy(static_cast<size_t>(value.rows() * row_bytes(value.dtype, value.row_elements())));
        gpu->to_host(copy.data(), value.data, static_cast<int64_t>(copy.size()));
        Tensor host = value;
        host.data = copy.data();
        tap(name, layer, host);
    }
};

/// Another family of kernels for as long as it lives.
class WithFamily {
  public:
    WithFamily(Context& ctx, Family family) : ctx_(ctx), before_(ctx.family) { ctx.family = family; }
    ~WithFamily() { ctx_.family = before_; }
    WithFamily(const WithFamily&) = delete;
    WithFamily& operator=(const WithFamily&) = delete;

  private:
    Context& ctx_;
    Family before_;
};

}  // namespace riptide
