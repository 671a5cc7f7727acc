// Builds without libcurl.
#include "apps/support/download.h"
#include "base/error.h"

namespace riptide::apps {

std::vector<HubFile> list_files(const Hub&, const std::string&) {
    fail(ErrorKind::unavailable, "this riptide was built without libcurl: fetch the file with a browser or curl");
}

bool is_fetched(const HubFile&, const std::string&, const std::function<void(int64_t)>&) {
    fail(ErrorKind::unavailable, "this riptide was built without libcurl");
}

void fetch_file(const Hub&, const std::string&, const HubFile&, const std::string&,
                const std::function<void(int64_t)>&) {
    fail(ErrorKind::unavailable, "this riptide was built without libcurl");
}

}  // namespace riptide::apps
