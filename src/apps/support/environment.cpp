#include "apps/support/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace riptide::apps {

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

std::string find_program(const std::string& name) {
    const std::string path = environment("PATH");
    for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find(':', at), path.size());
        const std::filesystem::path file = std::filesystem::path(path.substr(at, end - at)) / name;
        std::error_code ignored;
        if (at < end && std::filesystem::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0)
            return file.string();
        at = end + 1;
    }
    return {};
}

std::string cache_folder() {
    const std::string cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
    if (cache.empty() && home.empty()) return {};
    return (cache.empty() ? home + "/.cache" : cache) + "/riptide";
}

std::string models_folder() {
    const std::string cache = cache_folder();
    RT_CHECK(!cache.empty(), ErrorKind::usage,
             "neither XDG_CACHE_HOME nor HOME says where models belong: give --to FOLDER");
    return cache + "/models";
}

std::string digests_file() {
    const std::string cache = cache_folder();
    return cache.empty() ? cache : cache + "/digests";
}

std::string state_folder() {
    const std::string state = environment("XDG_STATE_HOME"), home = environment("HOME");
    if (state.empty() && home.empty()) return {};
    return (state.empty() ? home + "/.local/state" : state) + "/riptide";
}

}  // namespace riptide::apps
