// Builds without hiredis.
#include "base/error.h"
#include "cache/shared/place.h"

namespace riptide {

std::shared_ptr<SharedPlace> open_redis_place(std::string_view address, const SharedAccess&) {
    fail(ErrorKind::unavailable, "{}: this riptide was built without hiredis", without_password(address));
}

}  // namespace riptide
