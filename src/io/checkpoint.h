// A checkpoint: named tensors and metadata, read from a GGUF file or a folder of safetensors. Knows no model.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json_fwd.h"
#include "tensor/dtype.h"

namespace riptide {

/// One stored tensor. `shape` is row-major, outermost dimension first, for every file format (GGUF's order is turned
/// round when it is read). `bytes` lies inside the mapped file and lives as long as the Checkpoint.
struct TensorInfo {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;
    std::string file;  // which shard, for messages
};

/// Named tensors and metadata. Immutable after opening, so any number of threads may read it.
class Checkpoint {
  public:
    enum class Format { gguf, safetensors };
    virtual ~Checkpoint() = default;
    virtual Format format() const = 0;
    /// The path as the user gave it, for messages.
    virtual const std::string& path() const = 0;
    virtual std::span<const TensorInfo> tensors() const = 0;
    /// The tensor of that name, or nullptr.
    virtual const TensorInfo* find(std::string_view name) const = 0;
    /// GGUF: every key-value, with GGUF's flat names. Safetensors: {"config", "generation_config", "tokenizer",
    /// "tokenizer_config", "chat_template"} as far as the folder has them (parsed JSON; chat_template a string), and of
    /// sentence-transformers "modules" (an array) and "pooling" (1_Pooling/config.json).
    virtual const json::object& metadata() const = 0;
    /// Throws Error(io) if a mapped file has become shorter since it was opened: what was read from it may be zeros.
    virtual void check_intact() const = 0;
    /// The files that the tensors lie in, in the order of their parts; none for what was never a file.
    virtual std::span<const MappedFile> files() const { return {}; }
    /// What was made of the files' tensors when they were opened, as a part of the weights' name: "weights q4_k_m".
    /// Empty: they are the files'.
    virtual std::string_view made() const { return {}; }
    /// Bytes of all tensors.
    int64_t tensor_bytes() const;
};

/// Opens `path`: a .gguf file, a .safetensors file, or a folder with config.json and *.safetensors (sharded index or
/// not). Throws Error that names the file, what was found and what was expected.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path);

/// A GGUF image in memory that outlives the checkpoint; `name` stands for the path in messages.
std::unique_ptr<Checkpoint> open_gguf_memory(std::span<const std::byte> image, const std::string& name);

}  // namespace riptide
