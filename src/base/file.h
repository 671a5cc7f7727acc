// Files: read-only maps that survive a file shrinking under them, bounded reads, and writes that appear whole or not at
// all.
//
// Every error is one line that begins with the path. Kinds: a missing file is no_input, a refused one permission, a
// folder or other thing that is not a file is data, everything else io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace riptide {

/// Which file it is, and since when it has been as it is: a file whose stamp is the same has the same content. (The
/// time of its last change of state is the system's own: whoever sets the other date back leaves a trace here.)
struct FileStamp {
    uint64_t device = 0, inode = 0;
    int64_t size = 0;
    int64_t modified_ns = 0, changed_ns = 0;
    bool operator==(const FileStamp&) const = default;
};
/// Of what is at `path` now. Throws Error.
FileStamp stamp_of(const std::string& path);

/// A whole regular file, mapped read-only; its real size comes from fstat. Pages are read when touched, so mapping
/// costs the same for 1 KB and for 20 GB. An empty file maps to an empty span.
///
/// If the file becomes shorter while mapped, reading the lost part gives zeros instead of killing the process: the
/// first mapping installs a SIGBUS handler (faults outside these maps go on to the handler that was there before),
/// which puts zeros over the rest of the map and notes the loss for check_intact(). Reading is thread-safe; moving and
/// destroying are not.
class MappedFile {
  public:
    MappedFile() = default;
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
    const std::string& path() const { return path_; }
    /// When it was opened.
    const FileStamp& stamp() const { return stamp_; }
    /// Reads bytes from `offset` on, past the map: other pages of it stay where they are. Thread-safe. Throws
    /// Error(io): they are not all there, or the file is no longer as it was opened.
    void read(int64_t offset, std::span<std::byte> to) const;
    /// The pages that lie whole in `part` leave this process's memory; whoever reads them again gets them from the file
    /// (or the system's cache of it). Nothing for bytes that are not of this map. Thread-safe.
    void let_go(std::span<const std::byte> part) const;
    /// Whether its size and date are those that it was opened with. One fstat.
    bool unchanged() const;
    /// Throws Error(io) if what bytes() gave since opening may have been zeros in place of the file. One fstat.
    void check_intact() const;

  private:
    void swap(MappedFile& other) noexcept;

    std::string path_;
    const std::byte* data_ = nullptr;
    int64_t size_ = 0;
    int fd_ = -1;
    int slot_ = -1;
    FileStamp stamp_;
};

/// The whole file (or pipe) as text. Throws Error(data) if it holds more than `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes);

/// A file that is written under a temporary name beside `path` and gets its own name, complete and on disk, in
/// commit(). Without commit() the destructor removes it, so nothing half-written is ever seen under `path`. Not
/// thread-safe.
class OutputFile {
  public:
    /// REQUIRES: `path` is new or a regular file (which commit() replaces).
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    /// Appends. Throws Error(io) naming the path, the cause and how much was written ("no space left on device").
    void write(std::span<const std::byte> bytes);
    int64_t written() const { return written_; }
    const std::string& path() const { return path_; }
    /// fsync, rename, fsync of the folder. Call once, last.
    void commit();

  private:
    std::string path_;
    std::string temp_;
    int fd_ = -1;
    int64_t written_ = 0;
};

/// Writes all of `bytes` to `path`, or leaves `path` as it was and throws.
void write_file_atomic(const std::string& path, std::span<const std::byte> bytes);
inline void write_file_atomic(const std::string& path, std::string_view text) {
    write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace riptide
