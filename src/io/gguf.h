// GGUF checkpoints, versions 2 and 3, little-endian, in one file or split into parts.
// Layout (all numbers little-endian; string = u64 length + bytes, no terminator):
//   "GGUF" | u32 version | u64 tensors | u64 key-values
//   per key-value: string key | u32 type | value          (array = u32 element type | u64 count | elements)
//   per tensor:    string name | u32 dims | u64 dim[dims], fastest first | u32 type | u64 offset into the data
//   padding to general.alignment (32 unless given) | data, each tensor at a multiple of the alignment
// Source: the GGUF specification, docs/gguf.md of ggml.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/checkpoint.h"
#include "io/tensor_table.h"

namespace riptide {

/// Value types with their ids in the file.
enum class GgufType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12
};

/// "u32", "bool", "string"
const char* gguf_type_name(GgufType type);

/// Type of a key's value; `element` says what an array holds and equals `type` otherwise.
struct GgufValueType {
    GgufType type = GgufType::u32;
    GgufType element = GgufType::u32;
    static GgufValueType scalar(GgufType type) { return {type, type}; }
    static GgufValueType array_of(GgufType element) { return {GgufType::array, element}; }
    bool operator==(const GgufValueType&) const = default;
};

/// One file's header, checked against its real size: every tensor's bytes lie inside `image`, start at a multiple of
/// the alignment, do not overlap and leave no holes but padding.
struct GgufImage {
    uint32_t version = 3;
    int64_t alignment = 32;
    json::object metadata;             // whole numbers as int64 (uint64 only above its range), floats as double
    std::vector<GgufValueType> types;  // of metadata's entries, in their order
    std::vector<TensorInfo> tensors;   // in the order of the header
};

/// Reads a header. `file` names the source in messages and in TensorInfo. Touches no tensor data. Allocates at most a
/// small multiple of the header's size. Throws Error naming the file and the key or tensor.
GgufImage parse_gguf(std::span<const std::byte> image, const std::string& file);

/// An open GGUF. Immutable, so thread-safe to read.
class GgufFile final : public Checkpoint {
  public:
    /// Opens a file; any part of a split model ("NAME-00002-of-00003.gguf") opens all of them.
    static std::unique_ptr<GgufFile> open(const std::string& path);
    static std::unique_ptr<GgufFile> open(MappedFile file);
    /// `image` must outlive the result.
    static std::unique_ptr<GgufFile> from_memory(std::span<const std::byte> image, const std::string& name);

    Format format() const override { return Format::gguf; }
    const std::string& path() const override { return path_; }
    std::span<const TensorInfo> tensors() const override { return table_.all(); }
    const TensorInfo* find(std::string_view name) const override { return table_.find(name); }
    const json::object& metadata() const override { return image_.metadata; }
    void check_intact() const override;
    std::span<const MappedFile> files() const override { return files_; }

    uint32_t version() const { return image_.version; }
    int64_t alignment() const { return image_.alignment; }
    /// The exact type that metadata()[key] has in the file. Throws Error if there is no such key.
    GgufValueType type_of(std::string_view key) const;

  private:
    GgufFile(std::string path, std::span<const std::byte> image);
    int64_t parts() const;  // of a split model; 1 if it is none
    std::string first_part() const;
    void open_parts();

    std::string path_;
    std::vector<MappedFile> files_;
    GgufImage image_;  // of the first part; its tensors are moved to table_
    TensorTable table_;
};

}  // namespace riptide
