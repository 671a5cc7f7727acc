#include "base/error.h"

namespace riptide {

void throw_error(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
    throw Error(fmt::vformat(format, args), kind);
}

}  // namespace riptide
