#include "tests/source_dir.h"

#include <cstdlib>
#include <filesystem>

namespace riptide {

std::string source_dir() {
    return std::filesystem::exists(RIPTIDE_SOURCE_DIR "/tests/fixtures") ? RIPTIDE_SOURCE_DIR : ".";
}

std::string conformance_dir() {
    if (const char* told = std::getenv("RIPTIDE_CONFORMANCE")) return told;
    const std::string beside = source_dir() + "/../shared/conformance";
    return std::filesystem::exists(beside) ? beside : RIPTIDE_CONFORMANCE_DIR;
}

}  // namespace riptide
