// What lies in a Hugging Face model folder: the list of shards and the JSON files.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"
#include "io/safetensors.h"

namespace riptide {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxIndex = 64 << 20;
constexpr int64_t kMaxConfig = 16 << 20;
constexpr int64_t kMaxTokenizer = 128 << 20;
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kWhole = "model.safetensors";

// A link that leads nowhere or a file behind a closed folder counts as there: opening it gives the better message.
bool is_there(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(path, error);
    return status.type() != fs::file_type::not_found;
}

// Whether an optional file is there. A pipe is refused, since reading it could wait for ever.
bool has_file(const std::string& path) {
    if (!is_there(path)) return false;
    std::error_code error;
    const fs::file_type type = fs::status(path, error).type();
    const bool other = type == fs::file_type::fifo || type == fs::file_type::character || type == fs::file_type::socket;
    RT_CHECK(!other, "{}: is not a regular file", path);
    return true;
}

// The number behind `marker` in names like model-00001-of-00014.safetensors.
std::optional<int64_t> number_after(std::string_view name, std::string_view marker) {
    const size_t at = name.rfind(marker);
    if (at == std::string_view::npos) return std::nullopt;
    const char* begin = name.data() + at + marker.size();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
    if (error != std::errc{} || *begin == '-' || end == begin) return std::nullopt;
    return number;
}

// Without an index, numbered names still say how many files there should be.
void check_numbering(const std::string& folder, const std::vector<std::string>& shards) {
    for (const std::string& shard : shards) {
        const auto total = number_after(shard, "-of-");
        if (!total) continue;
        const size_t of = shard.rfind("-of-");
        const size_t dash = of == 0 ? std::string::npos : shard.rfind('-', of - 1);
        if (dash == std::string::npos) continue;
        const size_t digits = of - dash - 1;
        RT_CHECK(*total <= 9999, "{}: {} claims {} shards", folder, printable(shard), *total);
        for (int64_t part = 1; part <= *total; ++part) {
            const std::string name =
                fmt::format("{}{:0{}}{}", shard.substr(0, dash + 1), part, digits, shard.substr(of));
            if (!std::binary_search(shards.begin(), shards.end(), name))
                fail(ErrorKind::no_input, "{}: shard {} is missing", folder, printable(name));
        }
    }
}

// A shard's name must lead to a file inside the folder.
void check_shard_name(const std::string& index, std::string_view name) {
    const fs::path path{std::string(name)};
    const bool leaves =
        path.is_absolute() || std::any_of(path.begin(), path.end(), [](const fs::path& p) { return p == ".."; });
    RT_CHECK(!leaves, "{}: file {} would lie outside of the model's folder", index, printable(name));
    RT_CHECK(name.ends_with(".safetensors") && name.find('\0') == std::string_view::npos,
             "{}: file {} is not a .safetensors file (pickle checkpoints are never loaded)", index, printable(name));
}

std::vector<std::string> files_ending(const std::string& folder, std::initializer_list<std::string_view> endings) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        for (const std::string_view ending : endings)
            if (name.ends_with(ending)) names.push_back(name);
    }
    if (error == std::errc::permission_denied)
        fail(ErrorKind::permission, "{}: cannot list: permission denied", folder);
    if (error) fail(ErrorKind::io, "{}: cannot list: {}", folder, error.message());
    std::sort(names.begin(), names.end());
    return names;
}

[[noreturn]] void fail_no_shards(const std::string& folder) {
    if (const auto pickles = files_ending(folder, {".bin", ".pt", ".pth", ".ckpt"}); !pickles.empty())
        fail("{}: has only {}: pickle checkpoints are never loaded, convert it to safetensors", folder,
             pickles.front());
    if (const auto ggufs = files_ending(folder, {".gguf"}); !ggufs.empty())
        fail("{}: a folder with GGUF files: name one of them, for example {}", folder,
             (fs::path(folder) / ggufs.front()).string());
    fail("{}: no .safetensors files in this folder", folder);
}

json::object read_weight_map(const std::string& folder) {
    const std::string index = (fs::path(folder) / kIndex).string();
    json::value root = parse_json(read_file(index, kMaxIndex), index, 8);
    json::value* map = root.is_object() ? root.as_object().if_contains("weight_map") : nullptr;
    RT_CHECK(map && map->is_object() && !map->as_object().empty(), "{}: has no weight_map", index);
    for (const auto& [name, file] : map->as_object()) {
        RT_CHECK(file.is_string(), "{}: the file of tensor {} is not a string", index, printable(name));
        check_shard_name(index, file.as_string());
    }
    return std::move(map->as_object());
}

std::optional<json::value> read_json_file(const std::string& folder, const char* name, int64_t max_bytes) {
    const std::string path = (fs::path(folder) / name).string();
    if (!has_file(path)) return std::nullopt;
    return parse_json(read_file(path, max_bytes), path);
}

std::optional<std::string> template_of(const json::value& config) {
    const json::value* value = config.is_object() ? config.as_object().if_contains("chat_template") : nullptr;
    if (!value) return std::nullopt;
    if (value->is_string()) return std::string(value->as_string());
    if (!value->is_array()) return std::nullopt;
    for (const json::value& named : value->as_array()) {
        const json::object* entry = named.if_object();
        const json::value* name = entry ? entry->if_contains("name") : nullptr;
        const json::value* text = entry ? entry->if_contains("template") : nullptr;
        if (name && text && text->is_string() && *name == "default") return std::string(text->as_string());
    }
    return std::nullopt;
}

}  // namespace

std::vector<std::string> list_shards(const std::string& folder, json::object& expected) {
    std::vector<std::string> present = files_ending(folder, {".safetensors"});
    if (!has_file((fs::path(folder) / kIndex).string())) {
        if (present.empty()) fail_no_shards(folder);
        // As transformers has it: a model in one file has this name, whatever else lies beside it.
        if (std::find(present.begin(), present.end(), kWhole) != present.end()) return {kWhole};
        check_numbering(folder, present);
        return present;
    }
    expected = read_weight_map(folder);
    std::set<std::string> named;
    for (const auto& entry : expected) named.emplace(entry.value().as_string());
    for (const std::string& shard : named)
        if (!is_there(fs::path(folder) / shard))
            fail(ErrorKind::no_input, "{}: shard {} named by {} is missing", folder, printable(shard), kIndex);
    for (const std::string& shard : present)
        RT_CHECK(named.contains(shard), "{}: shard {} is not named by {}: does it belong to another model?", folder,
                 printable(shard), kIndex);
    return {named.begin(), named.end()};
}

json::object load_hf_metadata(const std::string& folder) {
    json::object metadata;
    const auto load = [&](const char* key, const char* name, int64_t max_bytes) {
        auto value = read_json_file(folder, name, max_bytes);
        if (!value) return;
        RT_CHECK(value->is_object(), "{}: is not a JSON object", (fs::path(folder) / name).string());
        metadata.emplace(key, std::move(*value));
    };
    load("config", "config.json", kMaxConfig);
    load("generation_config", "generation_config.json", kMaxConfig);
    load("tokenizer", "tokenizer.json", kMaxTokenizer);
    load("tokenizer_config", "tokenizer_config.json", kMaxConfig);
    load("pooling", "1_Pooling/config.json", kMaxConfig);
    if (auto modules = read_json_file(folder, "modules.json", kMaxConfig)) {
        RT_CHECK(modules->is_array(), "{}: is not a JSON array", (fs::path(folder) / "modules.json").string());
        metadata.emplace("modules", std::move(*modules));
    }

    const std::string jinja = (fs::path(folder) / "chat_template.jinja").string();
    std::optional<std::string> chat_template;
    if (has_file(jinja)) chat_template = read_file(jinja, kMaxConfig);
    if (!chat_template)
        if (const auto file = read_json_file(folder, "chat_template.json", kMaxConfig))
            chat_template = template_of(*file);
    if (!chat_template && metadata.contains("tokenizer_config"))
        chat_template = template_of(metadata["tokenizer_config"]);
    if (chat_template) metadata.emplace("chat_template", json::string(*chat_template));
    return metadata;
}

}  // namespace riptide
