#include "apps/support/model_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace riptide::apps {

namespace {

namespace fs = std::filesystem;

bool is_name_part(std::string_view part) {
    constexpr std::string_view kOthers = "._-";
    return !part.empty() && part[0] != '-' && part[0] != '.' && std::all_of(part.begin(), part.end(), [&](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               kOthers.find(c) != std::string_view::npos;
    });
}

std::vector<std::string> folders_in(const std::string& folder) {
    std::vector<std::string> out;
    std::error_code ec;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ec))
        if (entry.is_directory(ec)) out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
}

/// The whole files of a repository's folder, by their paths in it.
std::vector<HubFile> files_in(const std::string& folder) {
    std::vector<HubFile> out;
    std::error_code ec;
    for (fs::recursive_directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec)) {
        if (!at->is_regular_file(ec) || at->path().extension() == ".part") continue;
        HubFile file;
        file.path = at->path().lexically_relative(folder).string();
        file.size = static_cast<int64_t>(at->file_size(ec));
        out.push_back(std::move(file));
    }
    std::sort(out.begin(), out.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
    return out;
}

StoredModel stored(const std::string& folder, const ModelName& name, const std::vector<HubFile>& files) {
    StoredModel out;
    out.name = name;
    out.path = model_path(folder, name, files);
    for (const HubFile& file : files) {
        const std::string path = folder + "/" + file.path;
        out.files.push_back(path);
        out.bytes += file.size;
        struct stat info {};
        if (::stat(path.c_str(), &info) == 0) out.modified = std::max<int64_t>(out.modified, info.st_mtime);
    }
    return out;
}

/// The word by which choose_files() finds these alone, or the name of the first: "Q4_K_M" of "laguna-q4_k_m.gguf".
std::string shortest_variant(const std::vector<HubFile>& all, const std::vector<HubFile>& chosen) {
    std::string stem = fs::path(chosen.front().path).stem().string();
    if (chosen.size() > 1) stem = stem.substr(0, stem.rfind("-00001-of-"));
    std::string word = stem.substr(stem.find_last_of("-.") + 1);
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::toupper(c); });
    try {
        if (choose_files(all, word).front().path == chosen.front().path) return word;
    } catch (const Error&) {  // the word means several, or nothing
    }
    return chosen.front().path;
}

void add_models_of(const std::string& root, ModelName name, std::vector<StoredModel>& out) {
    const std::string folder = root + "/" + name.folder();
    const std::vector<HubFile> all = files_in(folder);
    bool safetensors = false;
    for (const HubFile& file : all) {
        safetensors = safetensors || (file.path.ends_with(".safetensors") && file.path.find('/') == std::string::npos);
        if (!file.path.ends_with(".gguf")) continue;
        try {
            const std::vector<HubFile> chosen = choose_files(all, file.path);
            if (chosen.front().path != file.path) continue;  // a later shard
            name.variant = shortest_variant(all, chosen);
            out.push_back(stored(folder, name, chosen));
        } catch (const Error& error) {
            name.variant = file.path;
            out.push_back(stored(folder, name, {file}));
            out.back().problem = error.what();
        }
    }
    if (!safetensors) return;
    name.variant = "safetensors";
    out.push_back(stored(folder, name, choose_files(all, name.variant)));
}

}  // namespace

std::string ModelName::folder() const { return repository + (revision == "main" ? "" : "@" + revision); }

std::string ModelName::text() const { return folder() + (variant.empty() ? "" : ":" + variant); }

std::optional<ModelName> parse_model_name(const std::string& text) {
    ModelName name;
    const std::size_t colon = text.find(':');
    if (colon != std::string::npos) name.variant = text.substr(colon + 1);
    std::string rest = text.substr(0, colon);
    if (const std::size_t at = rest.find('@'); at != std::string::npos) {
        name.revision = rest.substr(at + 1);
        rest.resize(at);
    }
    const std::size_t slash = rest.find('/');
    if (slash == std::string::npos || !is_name_part(rest.substr(0, slash)) || !is_name_part(rest.substr(slash + 1)))
        return std::nullopt;
    if ((colon != std::string::npos && name.variant.empty()) || !is_name_part(name.revision)) return std::nullopt;
    name.repository = rest;
    return name;
}

std::string model_path(const std::string& folder, const ModelName& name, const std::vector<HubFile>& files) {
    return name.variant == "safetensors" ? folder : folder + "/" + files.front().path;
}

std::vector<StoredModel> stored_models(const std::string& root) {
    std::vector<StoredModel> out;
    for (const std::string& owner : folders_in(root))
        for (const std::string& folder : folders_in(root + "/" + owner))
            if (const auto name = parse_model_name(owner + "/" + folder)) add_models_of(root, *name, out);
    return out;
}

std::optional<StoredModel> find_stored(const std::string& root, const ModelName& name) {
    ModelName meant = name;
    const std::string folder = root + "/" + name.folder();
    if (name.variant.empty()) {
        std::vector<StoredModel> all;
        add_models_of(root, name, all);
        if (all.size() == 1 && all.front().problem.empty()) return all.front();
        meant.variant = kUsualVariant;
    }
    try {
        const std::vector<HubFile> all = files_in(folder);
        if (all.empty()) return std::nullopt;
        const std::vector<HubFile> chosen = choose_files(all, meant.variant);
        const bool weights = std::any_of(chosen.begin(), chosen.end(), [](const HubFile& file) {
            return file.path.ends_with(".gguf") || file.path.ends_with(".safetensors");
        });
        if (!weights) return std::nullopt;
        return stored(folder, meant, chosen);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::no_input)
            fail(error.kind(), "{}: {}; riptide pull {} fetches what is missing", name.text(), error.what(),
                 meant.text());
        return std::nullopt;
    }
}

}  // namespace riptide::apps
