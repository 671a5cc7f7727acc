#include "cache/shared/place.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

std::string SharedPlace::problem() {
    const std::lock_guard lock(telling_);
    return heard_ < said_.size() ? said_[heard_++] : std::string();
}

void SharedPlace::tell(const std::string& problem) {
    const std::lock_guard lock(telling_);
    if (std::find(said_.begin(), said_.end(), problem) == said_.end()) said_.push_back(problem);
}

std::string without_password(std::string_view address) {
    const size_t begin = address.find("://"), end = address.rfind('@');
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return std::string(address);
    return std::string(address.substr(0, begin + 3)).append(address.substr(end + 1));
}

std::shared_ptr<SharedPlace> open_shared_place(std::string_view address, int64_t budget, const SharedAccess& access) {
    RT_CHECK(!address.starts_with("rediss:"), ErrorKind::usage,
             "{}: Redis over TLS is not supported: records are sealed before they leave, so redis:// shows nobody a "
             "prompt (its password it does: use a network of your own, or stunnel)",
             without_password(address));
    if (address.starts_with("redis://") || address.starts_with("redis+unix://"))
        return open_redis_place(address, access);
    if (address.starts_with("s3://")) return open_s3_place(address, access);
    constexpr std::string_view kKind = "dir:";
    const size_t colon = address.find(':');
    const bool named = colon != std::string_view::npos && address.find('/') > colon;
    RT_CHECK(!address.empty() && (!named || address.starts_with(kKind)) && address != kKind, ErrorKind::usage,
             "'{}' is not the address of a shared cache, expected dir:/a/folder, redis://host:6379 or s3://bucket",
             without_password(address));
    return open_folder_place(std::string(named ? address.substr(kKind.size()) : address), budget);
}

}  // namespace riptide
