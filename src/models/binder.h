// From a checkpoint's named tensors to the Weights of a model: finding, checking, counting.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/checkpoint.h"
#include "quant/weight_store.h"
#include "tensor/tensor.h"

namespace riptide {

/// How the names of most weights end.
inline constexpr std::string_view kWeight = ".weight";

/// What one parameter may be called: in GGUF files, and in Hugging Face folders. The first name that exists is taken.
struct TensorNames {
    std::vector<std::string> gguf;
    std::vector<std::string> hf;
};

/// What the experts' matrices of one kind may be called.
struct ExpertNames {
    std::string gguf;            // one stack [experts, rows, cols]; or ...
    std::string gguf_both = {};  // ... [experts, 2 rows, cols] with gate above up, as hf_half says; may be empty
    std::string hf_each;         // one matrix each; "{}" stands for the expert
    std::string hf_stack;  // transformers' stack [experts, rows, cols] in memory, or [experts, 2 rows, cols] with ...
    int hf_half = -1;      // ... gate (0) above up (1); -1: the stack holds this matrix alone
};

/// Finds tensors, checks dtype and shape, and keeps account of what was used, so that a tensor which nothing reads is
/// an error and not a silently wrong model. Weights point into the checkpoint, which must outlive them.
///
/// A matrix stored as `X.weight` in a Hugging Face folder may lie there quantised; what it is, is decided by the
/// tensors themselves, one by one. Scales multiply, whatever they are called, except where it says divisor:
///   X.weight        F8_E4M3 [N, K]       with X.weight_scale or X.weight_scale_inv (official FP8 releases)
///                                        [ceil(N/128), ceil(K/128)], [N, 1], [N] or one value
///   X.weight_packed I32 [N, K/8 or K/4]  with X.weight_scale [N, K/g]: INT4 or INT8, g a divisor of K
///   X.weight_packed U8 [N, K/2]          with X.weight_scale F8_E4M3 [N, K/16] and X.weight_global_scale, a divisor:
///                                        NVFP4 of compressed-tensors
///   X.weight        U8 [N, K/2]          with X.weight_scale F8_E4M3 [N, K/16] and X.weight_scale_2: NVFP4 of ModelOpt
/// A stack X of experts may be F8_E4M3 [E, N, K] with X_scale or X_scale_inv [E, ceil(N/128), ceil(K/128)].
/// In a GGUF file X.weight of type NVFP4 may have X.scale F32 [1] beside it, or [E] for a stack: a factor of the
/// product.
///
/// Every function throws Error naming file and tensor, what was found and what was expected. Not thread-safe.
class Binder {
  public:
    /// Tensors of a safetensors checkpoint may all carry the prefix "language_model.".
    explicit Binder(const Checkpoint& checkpoint);

    bool has(const TensorNames& names) const { return find(names) != nullptr; }
    /// Dimension 0 of a matrix that must be there, for what the files say only by shape.
    int64_t rows_of(const TensorNames& names) const;

    Weight matrix(const TensorNames& names, int64_t rows, int64_t cols);
    /// f32, f16 and bf16 alike, as f32. Values that are not finite are an error.
    std::vector<float> vector(const TensorNames& names, int64_t size) { return values(names, {size}); }
    /// The same for more dimensions, row-major; dimensions of extent 1 do not count.
    std::vector<float> values(const TensorNames& names, const std::vector<int64_t>& shape);
    /// Tensors whose names begin so are not read, knowingly.
    void skip(std::string_view prefix);
    /// One floating-point value or `heads` of them, each from 2^-64 to 2^64: scales, which do not count as parameters.
    std::vector<float> scales(const TensorNames& names, int64_t heads);
    /// Of a tensor that must be there, as the file has it.
    DType dtype_of(const TensorNames& names) const;
    /// Whole numbers stored as i32, i64, bool or u8.
    std::vector<int64_t> integers(const TensorNames& names, int64_t size);
    std::vector<Weight> experts(const ExpertNames& names, int64_t experts, int64_t rows, int64_t cols);

    /// Throws Error if the checkpoint holds tensors that nothing asked for.
    void finish() const;

    /// Values of all tensors taken so far, each counted once; quantisation scales do not count.
    int64_t parameters() const { return parameters_; }
    /// Their bytes in the file, scales included.
    int64_t weight_bytes() const { return weight_bytes_; }
    /// Tensors that finish() let pass: KV scales, activation scales and the like. In the order of the file.
    std::vector<std::string> ignored() const;

  private:
    const TensorInfo* find(const TensorNames& names) const;
    const TensorInfo* find_name(const std::string& name) const;
    const std::vector<std::string>& candidates(const TensorNames& names) const;
    [[noreturn]] void fail_missing(std::span<const std::string> names) const;
    const TensorInfo& use(const TensorInfo& tensor, int64_t parameters);
    const TensorInfo& companion(const std::string& name, std::string_view of);
    std::string where(const TensorInfo& tensor) const;

    Weight stored_matrix(const TensorInfo& tensor, int64_t rows, int64_t cols);
    Weight float8_matrix(const std::string& stem, Weight w);
    Weight packed_matrix(const std::string& stem, const TensorInfo& packed, int64_t rows, int64_t cols);
    Weight named_matrix(const std::string& name, int64_t rows, int64_t cols);
    std::vector<Weight> stack(const TensorInfo& tensor, int64_t experts, int64_t rows, int64_t cols, int half);
    void float8_stack(const TensorInfo& tensor, std::vector<Weight>& experts, int half);
    const TensorInfo& float8_scale(const std::string& name, std::string_view of);
    std::vector<float> product_scales(const TensorInfo& tensor, int64_t count);
    void set_scale_plane(Weight& w, const TensorInfo& scale);
    float scalar(const TensorInfo& tensor) const;

    const Checkpoint& checkpoint_;
    std::string prefix_;
    std::set<std::string, std::less<>> used_;
    int64_t parameters_ = 0;
    int64_t weight_bytes_ = 0;
};

/// A Binder whose parameters go to their place: what models bind with. The checkpoint must outlive the store's
/// finish(), and on the CPU the model.
class WeightLoader {
  public:
    WeightLoader(const Checkpoint& checkpoint, WeightStore& store) : binder_(checkpoint), store_(store) {}

    bool has(const TensorNames& names) const { return binder_.has(names); }
    int64_t rows_of(const TensorNames& names) const { return binder_.rows_of(names); }
    /// W * factor. A factor other than 1 is a power of two, and the matrix not f16: then it is exact.
    Weight matrix(const TensorNames& names, int64_t rows, int64_t cols, float factor = 1) {
        Weight w = binder_.matrix(names, rows, cols);
        w.scale *= factor;
        return store_.matrix(w);
    }
    /// Matrices that the file stores one above the other, with `parts` rows each. REQUIRES scale planes, if there are
    /// any, to have their borders where the parts have theirs.
    std::vector<Weight> stacked(const TensorNames& names, std::span<const int64_t> parts, int64_t cols) {
        int64_t rows = 0;
        for (const int64_t part : parts) rows += part;
        const Weight whole = binder_.matrix(names, rows, cols);
        std::vector<Weight> weights;
        rows = 0;
        for (const int64_t part : parts) {
            weights.push_back(store_.matrix(whole.slice_rows(rows, part)));
            rows += part;
        }
        return weights;
    }
    /// A small matrix that every step reads: see WeightStore::halved.
    Weight halved_matrix(const TensorNames& names, int64_t rows, int64_t cols) {
        return store_.halved(binder_.matrix(names, rows, cols));
    }
    std::span<const float> vector(const TensorNames& names, int64_t size, float factor = 1) {
        std::vector<float> values = binder_.vector(names, size);
        for (float& value : values) value *= factor;
        return store_.floats(std::move(values));
    }
    std::span<const float> values(const TensorNames& names, const std::vector<int64_t>& shape) {
        return store_.floats(binder_.values(names, shape));
    }
    /// Values that a model has made of those of host_vector().
    std::span<const float> place(std::vector<float> values) { return store_.floats(std::move(values)); }
    void skip(std::string_view prefix) { binder_.skip(prefix); }
    DType dtype_of(const TensorNames& names) const { return binder_.dtype_of(names); }
    std::vector<float> scales(const TensorNames& names, int64_t heads) { return binder_.scales(names, heads); }
    /// These three stay with the caller.
    std::vector<float> host_vector(const TensorNames& names, int64_t size) { return binder_.vector(names, size); }
    std::vector<float> host_values(const TensorNames& names, const std::vector<int64_t>& shape) {
        return binder_.values(names, shape);
    }
    std::vector<int64_t> integers(const TensorNames& names, int64_t size) { return binder_.integers(names, size); }
    std::vector<Weight> experts(const ExpertNames& names, int64_t experts, int64_t rows, int64_t cols) {
        return store_.experts(binder_.experts(names, experts, rows, cols));
    }
    /// As Binder::finish(), then waits until all is in place.
    void finish() {
        binder_.finish();
        store_.finish();
    }
    const Binder& binder() const { return binder_; }

  private:
    Binder binder_;
    WeightStore& store_;
};

/// Bytes that a product with w reads: its rows and its planes.
int64_t bytes_read(const Weight& w);

}  // namespace riptide
