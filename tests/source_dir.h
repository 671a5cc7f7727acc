// Where the repository's files are.
#pragma once

#include <filesystem>
#include <string>

namespace riptide {

/// The repository that the tests were built from; where that is not there (a binary copied to another machine), the
/// working directory, which must be a copy of it.
inline std::string source_dir() {
    return std::filesystem::exists(RIPTIDE_SOURCE_DIR "/tests/fixtures") ? RIPTIDE_SOURCE_DIR : ".";
}

}  // namespace riptide
