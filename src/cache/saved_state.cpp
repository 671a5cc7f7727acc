#include "cache/saved_state.h"

#include <cstring>

#include "cache/kv_cache.h"

namespace riptide {

std::vector<std::byte> SavedState::bytes() const {
    std::vector<std::byte> all(static_cast<size_t>(bytes_));
    if (all.empty()) return all;
    if (Gpu* const gpu = cache_->gpu()) gpu->to_host(all.data(), packed_.data(), bytes_);
    else std::memcpy(all.data(), packed_.data(), all.size());
    return all;
}

}  // namespace riptide
