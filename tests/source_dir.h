// Where the repository's files are.
#pragma once

#include <string>

namespace riptide {

/// The repository that the tests were built from; where that is not there (a binary copied to another machine), the
/// working directory, which must be a copy of it.
std::string source_dir();

/// What other software says is right: $RIPTIDE_CONFORMANCE, ../shared/conformance beside the repository, or the part that
/// the repository holds (tests/conformance/data.tar.xz, unpacked when the build is configured).
std::string conformance_dir();

}  // namespace riptide
