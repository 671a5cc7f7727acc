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

bool is_folder_address(std::string_view address) {
    const size_t colon = address.find(':');
    return colon == std::string_view::npos || address.find('/') < colon || address.starts_with("dir:");
}

std::string without_password(std::string_view address) {
    if (is_folder_address(address)) return std::string(address);
    const size_t colon = address.find(':');
    if (address.starts_with("s3:"))
        address = address.substr(0, address.find('?'));  // an endpoint there may have a user
    const size_t kind = address.substr(colon + 1).starts_with("//") ? colon + 3 : colon + 1,
                 end = address.rfind('@') + 1;
    std::string_view rest = address.substr(std::max(kind, end));  // without @ the end is 0
    return std::string(address.substr(0, end > 0 && end < kind ? 0 : kind)).append(rest.substr(0, rest.find('?')));
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
    RT_CHECK(!address.empty() && is_folder_address(address) && address != kKind, ErrorKind::usage,
             "'{}' is not the address of a shared cache, expected dir:/a/folder, redis://host:6379 or s3://bucket",
             without_password(address));
    return open_folder_place(std::string(address.starts_with(kKind) ? address.substr(kKind.size()) : address), budget);
}

}  // namespace riptide
