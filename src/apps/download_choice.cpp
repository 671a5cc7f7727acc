// Which files of a repository make up a model.
#include <algorithm>
#include <filesystem>

#include "apps/download.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

std::string upper(std::string text) {
    for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    return text;
}

/// Of a shard, everything before "-00001-of-00003"; "" if it is none.
std::string stem(const std::string& path) {
    const std::size_t of = path.rfind("-of-");
    return of == std::string::npos || of < 6 ? "" : path.substr(0, of - 6);
}

}  // namespace

std::vector<HubFile> choose_files(const std::vector<HubFile>& files, const std::string& variant) {
    std::vector<HubFile> chosen;
    for (const HubFile& file : files) {
        const std::string name = upper(std::filesystem::path(file.path).filename().string());
        const bool top = file.path.find('/') == std::string::npos;
        if (variant == "safetensors") {
            if (top &&
                (file.path.ends_with(".safetensors") || file.path.ends_with(".json") || file.path.ends_with(".jinja")))
                chosen.push_back(file);
        } else if (file.path == variant ||
                   (name.ends_with(".GGUF") && name.find(upper(variant)) != std::string::npos)) {
            chosen.push_back(file);
        }
    }
    const auto same_model = [&](const HubFile& file) {
        return !stem(file.path).empty() && stem(file.path) == stem(chosen.front().path);
    };
    const bool one = !chosen.empty() && (variant == "safetensors" || chosen.size() == 1 ||
                                         std::all_of(chosen.begin(), chosen.end(), same_model));
    if (one) return chosen;
    std::string there;
    for (const HubFile& file : chosen.empty() ? files : chosen)
        if (file.path.ends_with(".gguf") || file.path.ends_with(".safetensors"))
            there += (there.empty() ? "" : ", ") + file.path;
    fail(ErrorKind::no_input, "'{}' is {} there: {}", variant, chosen.empty() ? "not" : "more than once",
         there.empty() ? "no weights at all" : there.substr(0, 2000));
}

}  // namespace riptide::apps
