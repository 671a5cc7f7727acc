// Where a model's parameters live: in the checkpoint's mapping, or in device memory, rearranged for the kernels.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/gpu.h"
#include "tensor/tensor.h"

namespace riptide {

/// Takes each parameter as the checkpoint has it and returns where a model finds it. Without a GPU a matrix stays where
/// it is (but see halved()). On a GPU it is copied and repacked (quant/planes.h); types without kernels of their own become f16, and
/// `conversions` says so. Owns the memory. Host memory handed in must stay as it is until finish(). The Gpu must
/// outlive the store. Throws Error (unavailable) when device memory runs out. Not thread-safe. Cost: about the time
/// that the bytes take from the page cache over PCIe.
class WeightStore {
  public:
    /// `gpu` null: the CPU. `on_progress`: host bytes taken so far.
    explicit WeightStore(Gpu* gpu = nullptr, std::function<void(int64_t)> on_progress = {});
    ~WeightStore();
    WeightStore(const WeightStore&) = delete;
    WeightStore& operator=(const WeightStore&) = delete;

    /// The same source matrix gives the same placement (tied embeddings are stored once).
    Weight matrix(const Weight& host);
    /// As matrix(), for small f32 matrices that every step reads, like routers: on the CPU too they become bf16 if that
    /// holds all their values. The same products bit for bit, for half the bytes.
    Weight halved(const Weight& host);
    /// Experts of one shape. On a GPU they all have one type, one kind of plane and one Weight::scale, and expert e
    /// lies e * (data[1] - data[0]) bytes behind expert 0, in every plane.
    std::vector<Weight> experts(const std::vector<Weight>& host);
    std::span<const float> floats(std::vector<float> values);
    /// Waits until all is in place. REQUIRED before the first step.
    void finish();

    /// Gives placed weights their copies for FP8 prefill (quant/fp8_copy.h), where there is such a form; those that are
    /// empty get none; experts get theirs one behind the other. REQUIRES a GPU, and finish() before it. Cost: a byte of
    /// device memory for a weight.
    void add_fp8(std::span<Weight* const> weights);
    void add_fp8(std::vector<Weight>& experts);

    /// Device memory taken; 0 on the CPU.
    int64_t device_bytes() const;
    /// One sentence for each type that was converted: "q5_1: 40 matrices stored as f16 (no GPU kernels for q5_1)".
    std::vector<std::string> conversions() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide
