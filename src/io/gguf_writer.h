// Writes GGUF version 3: first everything that the header says, then the data of each tensor, streamed in order.
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
#include "io/gguf.h"

namespace riptide {

/// Use: set(...) and add_tensor(...) in any order; then write(...) the tensors' bytes in the order of add_tensor; then
/// finish(). A file gets its name only in finish(), so an abandoned writer leaves nothing behind. Memory: the header.
/// Not thread-safe. All functions throw Error naming the file and the key or tensor.
class GgufWriter {
  public:
    explicit GgufWriter(const std::string& path);
    /// Appends to `out`, which must outlive the writer.
    explicit GgufWriter(std::vector<std::byte>& out);

    /// Adds a key, or replaces its type and value in place. Numbers must fit the type (floats are rounded to f32). The
    /// key general.alignment sets the alignment, else it is 32.
    void set(std::string_view key, GgufValueType type, const json::value& value);
    void set_u32(std::string_view key, uint32_t value);
    void set_i32(std::string_view key, int32_t value);
    void set_f32(std::string_view key, float value);
    void set_bool(std::string_view key, bool value);
    void set_string(std::string_view key, std::string_view value);
    void set_strings(std::string_view key, std::span<const std::string> values);
    void set_array(std::string_view key, GgufType element, const json::array& values);
    /// Every key-value of `file` with its exact type, in its order, so that read, write, read loses nothing. Leaves out
    /// the keys of a split model (split.*), since what is written is one file, and those that begin with `without`.
    void copy_metadata(const GgufFile& file, std::string_view without = "split.");

    /// Declares a tensor of row-major shape with 1 to 4 dimensions.
    void add_tensor(std::string_view name, DType dtype, std::span<const int64_t> shape);

    /// The next bytes of the tensors' data: any piece that does not cross the end of the current tensor. Padding
    /// between tensors is added here. The first call writes the header, after which set and add_tensor are errors.
    void write(std::span<const std::byte> bytes);
    /// All bytes of one tensor, which must be the next one.
    void write_tensor(std::string_view name, std::span<const std::byte> bytes);
    /// Checks that every tensor is complete and puts the file in place.
    void finish();

    /// Bytes of all declared tensors, without padding.
    int64_t tensor_bytes() const;

  private:
    struct KeyValue {
        std::string key;
        std::vector<std::byte> encoded;  // type and value as in the file
    };
    struct Tensor {
        std::string name;
        DType dtype = DType::f32;
        std::vector<int64_t> shape;
        int64_t bytes = 0;
    };

    void check_declaring() const;
    void write_header();
    void emit(std::span<const std::byte> bytes);
    void pad();

    std::string path_;
    std::optional<OutputFile> file_;
    std::vector<std::byte>* memory_ = nullptr;
    std::vector<KeyValue> key_values_;
    std::map<std::string, size_t, std::less<>> key_index_;
    std::vector<Tensor> tensors_;
    std::set<std::string, std::less<>> tensor_names_;
    int64_t alignment_ = 32;
    bool header_written_ = false;
    bool finished_ = false;
    int64_t position_ = 0;        // bytes emitted
    size_t tensor_ = 0;           // being written
    int64_t tensor_written_ = 0;  // of it
};

}  // namespace riptide
