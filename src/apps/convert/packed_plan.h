// What becomes of each tensor of a folder that is written in FP8 or NVFP4.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "tensor/tensor.h"

namespace riptide::apps {

enum class PackedType : uint8_t {
    fp8,    // e4m3, a bf16 scale for each block of 128 x 128: "float-quantized"
    nvfp4,  // e2m1, an e4m3 scale for 16 columns, an f32 one that divides: "nvfp4-pack-quantized", weights alone
};

struct PackedReport {
    int64_t matrices = 0;  // that were rounded
    int64_t copied = 0;    // tensors that stayed
    int64_t odd = 0;       // of those: matrices whose columns are no whole groups
    int64_t bytes = 0;     // of tensors in the new folder
    int64_t shards = 1;
};

/// A tensor of the new folder.
struct PackedTensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    int64_t bytes() const;
};

/// One tensor of the old folder, or one matrix of a stack. A view of the checkpoint.
struct PackedItem {
    const TensorInfo* from = nullptr;
    Weight w;                        // the matrix; of other tensors that stay: empty
    std::string shares;              // items of one name here have one global scale; empty: it stays as it is
    std::vector<PackedTensor> made;  // codes, scales and global scale, in the order of the file; or itself
    int64_t bytes() const;
};

/// All of a checkpoint, in its order: gate_proj, up_proj and down_proj of each layer's mlp (and of its experts) are
/// rounded; stacks of experts ([E, rows, cols], or [E, 2 rows, cols] with gate above up) become a matrix each.
struct PackedPlan {
    /// Throws Error where nothing is to be rounded, and for matrices that are not f32, f16 or bf16.
    PackedPlan(const Checkpoint& checkpoint, PackedType type);

    std::vector<PackedItem> items;
    std::set<std::string> packed, kept;  // modules ("model.layers.0.mlp.up_proj"): rounded, and matrices that stay
    PackedReport report;                 // all but shards

  private:
    void add(const TensorInfo& t);
    void add_stack(const TensorInfo& t);
    void add_matrix(const TensorInfo& t, const std::string& module, const Weight& w);
    void keep(const TensorInfo& t, const std::string& name, const Weight& w, std::vector<int64_t> shape);

    PackedType type_;
};

}  // namespace riptide::apps
