// The SHA-256 of large files, remembered from one start to the next.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/sha256.h"

namespace riptide {

/// One small text file: a line for each file, its digest, stamp and path, the last one added at the end; then the
/// digest of all that. Whatever is not so, cut, changed or foreign, counts as empty and is written anew. Any number of
/// processes may use it at once: a reader sees a whole file, and who adds to it waits for the others
/// (`PATH.lock`). Holds the kMost files added last.
class DigestMemo {
  public:
    static constexpr size_t kMost = 512;

    /// `path` "": nothing is remembered. `makes_folder`: where its folder is missing, it is made when something is
    /// added.
    explicit DigestMemo(std::string path, bool makes_folder = true)
        : path_(std::move(path)), makes_folder_(makes_folder) {}

    /// The digest of the file at `file` if it was added with this stamp. Never throws: what cannot be read is not
    /// known.
    std::optional<Digest> find(const std::string& file, const FileStamp& stamp) const;
    /// REQUIRES that the content was read after the stamp was taken, so that a change in between shows. Throws Error:
    /// it cannot be written.
    void add(const std::string& file, const FileStamp& stamp, const Digest& digest) const;

  private:
    std::string path_;
    bool makes_folder_;
};

}  // namespace riptide
