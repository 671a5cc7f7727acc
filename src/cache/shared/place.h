// Where records that replicas share lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riptide {

/// Pieces of bytes by name (64 hexadecimal digits), in a place that many processes use and that may fail, hang or lie
/// at any time. Called by several threads at once. Nothing throws.
class SharedPlace {
  public:
    enum class Status { done, missing, failed };

    virtual ~SharedPlace() = default;
    /// Bytes of each piece, -1 for those that are not there. Empty when the place does not answer.
    virtual std::vector<int64_t> sizes(std::span<const std::string> names) = 0;
    /// Fills `to`; a piece of another size is missing.
    virtual Status get(const std::string& name, std::span<std::byte> to) = 0;
    virtual Status put(const std::string& name, std::span<const std::byte> bytes) = 0;
    virtual void erase(const std::string& name) = 0;
};

/// A place by its address: `dir:/a/folder`, or the folder alone. Throws Error (usage: another kind of address;
/// no_input, permission, io: a folder that cannot be used). At most `budget` bytes are kept there (0: no bound): when
/// there are more, the files least recently used go, by whichever process has time.
std::shared_ptr<SharedPlace> open_shared_place(std::string_view address, int64_t budget);

}  // namespace riptide
