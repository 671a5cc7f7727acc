// A checkpoint whose tensors are made up in memory.
#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "base/json.h"
#include "models/binder.h"

namespace riptide::testing {

/// A matrix to try things with: the queries of the first layer.
inline const TensorNames kQueryNames = {{"blk.0.attn_q.weight"}, {"model.layers.0.self_attn.q_proj.weight"}};

/// Tensors in memory.
class FakeCheckpoint final : public Checkpoint {
  public:
    explicit FakeCheckpoint(Format format = Format::safetensors) : format_(format) {}

    template <class T>
    void add(const std::string& name, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
        std::vector<std::byte>& bytes = storage_.emplace_back(values.size() * sizeof(T));
        std::memcpy(bytes.data(), values.data(), bytes.size());
        tensors_.push_back({name, dtype, std::move(shape), bytes, "m.safetensors"});
    }
    /// A tensor whose bytes live elsewhere.
    void add_view(const std::string& name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
        tensors_.push_back({name, dtype, std::move(shape), bytes, path_});
    }
    void add_zeros(const std::string& name, DType dtype, std::vector<int64_t> shape) {
        int64_t rows = 1;
        for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
        add(name, dtype, shape,
            std::vector<uint8_t>(static_cast<size_t>(rows * row_bytes(dtype, shape.empty() ? 1 : shape.back()))));
    }

    Format format() const override { return format_; }
    const std::string& path() const override { return path_; }
    std::span<const TensorInfo> tensors() const override { return tensors_; }
    const TensorInfo* find(std::string_view name) const override {
        for (const TensorInfo& tensor : tensors_)
            if (tensor.name == name) return &tensor;
        return nullptr;
    }
    const json::object& metadata() const override { return metadata_; }
    json::object& metadata() { return metadata_; }
    void check_intact() const override {}

  private:
    Format format_;
    std::string path_ = "m.safetensors";
    std::deque<std::vector<std::byte>> storage_;
    std::vector<TensorInfo> tensors_;
    json::object metadata_;
};

}  // namespace riptide::testing
