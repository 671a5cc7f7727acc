// Builds without libzmq.
#include "apps/events/kv_events.h"
#include "base/error.h"

namespace riptide::apps {

struct KvEvents::Impl {
    std::string none;
};

bool KvEvents::available() { return false; }

KvEvents::KvEvents(const KvEventsOptions& options, std::shared_ptr<CacheFeed>) {
    fail(ErrorKind::unavailable, "--kv-events {}: this riptide was built without libzmq", options.endpoint);
}

KvEvents::~KvEvents() = default;

const std::string& KvEvents::endpoint() const { return impl_->none; }
const std::string& KvEvents::replay() const { return impl_->none; }

}  // namespace riptide::apps
