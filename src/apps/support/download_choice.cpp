// Which files of a repository make up a model.
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "apps/support/download.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

std::string upper(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    return out;
}

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// Does `word` begin a word of `name`; does one end there too, '_' being part of a word?
bool has_word(const std::string& name, const std::string& word, bool whole) {
    const auto inside = [&](std::size_t at) {
        return at < name.size() && (is_alnum(name[at]) || (whole && name[at] == '_'));
    };
    for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1))
        if ((at == 0 || !inside(at - 1)) && !(whole && inside(at + word.size()))) return true;
    return false;
}

/// What lies beside a model and bears its name: projectors of pictures, drafters, importance matrices.
bool is_sidecar(const std::string& name) {
    constexpr std::array kWords = {"MMPROJ", "IMATRIX", "DRAFT", "DFLASH", "DSPARK", "EAGLE"};
    return std::any_of(kWords.begin(), kWords.end(), [&](const char* word) { return has_word(name, word, false); });
}

std::string name_of(const HubFile& file) { return upper(file.path.substr(file.path.rfind('/') + 1)); }

/// Of "x-00002-of-00003.gguf": "x", and "-of-00003.gguf"; "" and "" if it is no shard.
std::pair<std::string_view, std::string_view> shard_of(std::string_view path) {
    const std::size_t of = path.rfind("-of-");
    if (of == std::string_view::npos || of < 6 || path[of - 6] != '-' || path.size() < of + 9) return {};
    const auto digits = [&](std::size_t at) {
        return std::all_of(&path[at], &path[at] + 5, [](char c) { return c >= '0' && c <= '9'; });
    };
    if (!digits(of - 5) || !digits(of + 4)) return {};
    return {path.substr(0, of - 6), path.substr(of)};
}

/// All shards of the model that `one` is a part of. Throws Error unless they are as many as their names say.
std::vector<HubFile> whole_of(const std::vector<HubFile>& files, const HubFile& one) {
    const auto shard = shard_of(one.path);
    if (shard.first.empty()) return {one};
    std::vector<HubFile> all;
    std::copy_if(files.begin(), files.end(), std::back_inserter(all),
                 [&](const HubFile& file) { return shard_of(file.path) == shard; });
    const std::size_t expected = std::stoul(std::string(shard.second.substr(4, 5)));
    RT_CHECK(all.size() == expected, "{}: {} shards are there, expected {}", one.path, all.size(), expected);
    return all;
}

/// GGUF files whose names have the variant in them: as a word, or else as a part of one.
std::vector<HubFile> of_type(const std::vector<HubFile>& files, const std::string& variant) {
    std::vector<HubFile> models, words, parts;
    const bool any_model = std::any_of(files.begin(), files.end(), [](const HubFile& file) {
        return name_of(file).ends_with(".GGUF") && !is_sidecar(name_of(file));
    });
    for (const HubFile& file : files) {
        const std::string name = name_of(file);
        if (!name.ends_with(".GGUF") || (any_model && is_sidecar(name) && !is_sidecar(variant))) continue;
        if (has_word(name, variant, true)) words.push_back(file);
        if (name.find(variant) != std::string::npos) parts.push_back(file);
    }
    return words.empty() ? parts : words;
}

bool of_safetensors(const std::string& path) {
    if (path == "1_Pooling/config.json") return true;  // how an embedding model pools
    return path.find('/') == std::string::npos &&
           (path.ends_with(".safetensors") || path.ends_with(".json") || path.ends_with(".jinja"));
}

std::string weights_in(const std::vector<HubFile>& files) {
    std::string out;
    for (const HubFile& file : files)
        if (file.path.ends_with(".gguf") || file.path.ends_with(".safetensors"))
            out += (out.empty() ? "" : ", ") + file.path;
    return out.empty() ? "no weights at all" : out.substr(0, 2000);
}

}  // namespace

void check_hub_name(const std::string& name) {
    constexpr std::string_view kOthers = "._/-";
    bool good = true, begins = true;
    for (std::size_t i = 0; i < name.size(); ++i) {
        const char c = name[i];
        good =
            good && (is_alnum(c) || kOthers.find(c) != std::string_view::npos) && !(begins && (c == '-' || c == '/'));
        begins = c == '/';
    }
    for (const char* part : {"/./", "/../"}) good = good && ("/" + name + "/").find(part) == std::string::npos;
    RT_CHECK(good && !begins, "the hub's name '{}': expected letters, digits and ._-, in parts that begin with no '-'",
             name.substr(0, 200));
}

std::vector<HubFile> choose_files(const std::vector<HubFile>& files, const std::string& variant) {
    std::vector<HubFile> chosen;
    const auto take = [&](const auto& wanted) {
        std::copy_if(files.begin(), files.end(), std::back_inserter(chosen), wanted);
    };
    if (variant == "safetensors") take([](const HubFile& file) { return of_safetensors(file.path); });
    else take([&](const HubFile& file) { return file.path == variant; });
    if (chosen.empty()) chosen = of_type(files, upper(variant));
    if (chosen.empty()) fail(ErrorKind::no_input, "'{}' is not there: {}", variant, weights_in(files));
    if (variant != "safetensors") {
        const std::vector<HubFile> whole = whole_of(files, chosen.front());
        for (const HubFile& file : chosen)
            if (file.path != chosen.front().path &&
                std::none_of(whole.begin(), whole.end(), [&](const HubFile& part) { return part.path == file.path; }))
                fail(ErrorKind::usage, "'{}' is more than once there: {}", variant, weights_in(chosen));
        chosen = whole;
    }
    for (const HubFile& file : chosen) check_hub_name(file.path);
    std::sort(chosen.begin(), chosen.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
    return chosen;
}

}  // namespace riptide::apps
