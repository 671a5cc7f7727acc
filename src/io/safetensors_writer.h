// Writes safetensors files: the header first, then the data of each tensor, streamed in order.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"

namespace riptide {

/// Use: add_tensor(...) and set_metadata(...) in any order; then write(...) the tensors' bytes in that order; then
/// finish(). A file gets its name only in finish(). Not thread-safe. All functions throw Error naming the file and the
/// tensor.
class SafetensorsWriter {
  public:
    explicit SafetensorsWriter(const std::string& path);
    /// Appends to `out`, which must outlive the writer.
    explicit SafetensorsWriter(std::vector<std::byte>& out);

    /// An entry of "__metadata__".
    void set_metadata(std::string_view key, std::string_view value);
    /// Declares a tensor of row-major shape; no dimensions make a single value.
    void add_tensor(std::string_view name, DType dtype, std::span<const int64_t> shape);

    /// The next bytes of the data, in pieces of any length. The first call writes the header.
    void write(std::span<const std::byte> bytes);
    /// Checks that the data is complete and puts the file in place.
    void finish();

  private:
    void write_header();
    void emit(std::span<const std::byte> bytes);

    std::string path_;
    std::optional<OutputFile> file_;
    std::vector<std::byte>* memory_ = nullptr;
    std::map<std::string, std::string, std::less<>> metadata_;
    std::set<std::string, std::less<>> names_;
    std::string entries_;   // header text of the tensors so far
    int64_t declared_ = 0;  // bytes of data
    int64_t written_ = 0;
    bool header_written_ = false;
    bool finished_ = false;
};

/// A tensor in memory with its name. `shape` is row-major.
struct NamedTensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;
};

/// Writes all tensors to `path`, or leaves `path` as it was and throws.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace riptide
