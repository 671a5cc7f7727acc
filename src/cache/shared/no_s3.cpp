// Builds without libcurl.
#include "base/error.h"
#include "cache/shared/place.h"

namespace riptide {

std::shared_ptr<SharedPlace> open_s3_place(std::string_view address, const SharedAccess&) {
    fail(ErrorKind::unavailable, "{}: this riptide was built without libcurl", without_password(address));
}

}  // namespace riptide
