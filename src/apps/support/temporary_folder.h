// A folder that goes away again.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace riptide::apps {

/// Only its owner can look into it. With all that is in it, it goes when the object goes.
class TemporaryFolder {
  public:
    TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "riptide-XXXXXX").string()) {
        RT_CHECK(::mkdtemp(path_.data()) != nullptr, ErrorKind::io, "{}: cannot be made", path_);
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace riptide::apps
