// One record as a file: a checksummed header with the format's version, the key, the payload with its own checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>

#include "cache/disk_writer.h"
#include "cache/record_index.h"

namespace riptide {

inline constexpr uint64_t kMostKeyBytes = uint64_t{1} << 24;

/// What a file says about its record, and the file system about the file.
struct RecordHead {
    Digest group{};
    std::string key;
    int32_t rank = 0;
    int32_t tag = 0;
    uint32_t naming = 0;  // the rule that its name was made by
    timespec used{};      // its modification time
    int64_t file_bytes = 0;
};

/// Of the file of a record with this key.
int64_t record_file_bytes(const std::string& key, int64_t payload_bytes);
/// Nothing unless header and key are whole and as they were written.
std::optional<RecordHead> read_record_head(const std::string& path);
/// Reads a payload in parts. False unless the file holds this record, of that size, and all bytes fit their checksum.
bool read_record(const std::string& path, const RecordKey& id, std::span<const std::span<std::byte>> to, int32_t& tag);
/// Writes the record to `temp`, which becomes `path`. Gives errno.
int write_record(const DiskWrite& write, uint32_t naming);
/// Gives the record in the file `temp` the group and the key of `write`, a key of the same length, and the name `path`;
/// the payload stays as it is. Gives errno. Whoever dies in between leaves a file that is misnamed or damaged.
int rename_record(const DiskWrite& write);
/// The file was used now.
void mark_record_used(const std::string& path);

/// All of `bytes`, or false with errno; a read also at the end of the file.
bool read_all(int fd, void* to, size_t bytes);
bool write_all(int fd, const void* from, size_t bytes);

}  // namespace riptide
