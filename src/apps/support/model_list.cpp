#include "apps/support/model_list.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "apps/support/model_store.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "models/task.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMostModelListBytes = 1 << 20, kMostNameBytes = 200;

int64_t bytes_of_model(const std::string& path) {
    std::error_code ec;
    if (!fs::is_directory(path, ec)) {
        const auto size = fs::file_size(path, ec);
        return ec ? 0 : static_cast<int64_t>(size);
    }
    int64_t bytes = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, ec)) {
        if (entry.path().extension() != ".safetensors") continue;
        const auto size = entry.file_size(ec);
        if (!ec) bytes += static_cast<int64_t>(size);
    }
    return bytes;
}

/// "-00002-of-00004" at its end: what the first shard brings along.
bool is_later_shard(const std::string& stem) {
    const std::size_t of = stem.rfind("-of-");
    return of != std::string::npos && of >= 6 && stem[of - 6] == '-' && stem.compare(of - 5, 5, "00001") != 0 &&
           stem.find_first_not_of("0123456789", of - 5) == of;
}

std::vector<ListedModel> models_in_folder(const std::string& folder) {
    std::vector<ListedModel> out;
    std::error_code ec;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ec)) {
        const fs::path& path = entry.path();
        const bool gguf = path.extension() == ".gguf" && !is_later_shard(path.stem().string());
        if (!gguf && !fs::exists(path / "config.json", ec)) continue;
        out.push_back({.name = default_name(path.string()), .path = path.string()});
    }
    RT_CHECK(!ec, ErrorKind::no_input, "--models {}: {}", folder, ec.message());
    RT_CHECK(!out.empty(), ErrorKind::no_input,
             "--models {}: no model in this folder; expected .gguf files, or folders with a config.json", folder);
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto same =
        std::adjacent_find(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
    RT_CHECK(same == out.end(), ErrorKind::usage,
             "--models {}: two models have the name '{}'; rename one, or name them in a JSON file", folder, same->name);
    return out;
}

/// Reads one model; `where` stands in front of its keys in errors.
class ListedModelReader {
  public:
    ListedModelReader(const json::value& value, std::string where) : where_(std::move(where)) {
        RT_CHECK(value.is_object(), ErrorKind::usage, "{}: expected an object, {{\"model\": ...}}", where_);
        object_ = &value.get_object();
    }

    ListedModel read(const fs::path& folder, const std::string& hub) const {
        for (const auto& [key, value] : *object_)
            RT_CHECK(kKeys.contains(key), ErrorKind::usage,
                     "{}.{}: unknown key; expected model, context, kv, kv_tokens, weights, drafter, memory_budget or "
                     "task",
                     where_, std::string_view(key));
        ListedModel out;
        out.path = text("model");
        RT_CHECK(!out.path.empty(), ErrorKind::usage, "{}.model: missing; expected a path or a name", where_);
        out.path = resolved(out.path, folder, hub);
        out.kv = text("kv");
        out.weights = text("weights");
        out.drafter = text("drafter");
        std::error_code ec;
        if (!out.drafter.empty() && fs::exists(folder / out.drafter, ec)) out.drafter = folder / out.drafter;
        out.memory_budget = text("memory_budget");
        out.task = text("task");
        RT_CHECK(out.task.empty() || task_from_name(out.task), ErrorKind::usage,
                 "{}.task is '{}', expected generate, embed or rerank", where_, out.task.substr(0, 40));
        out.context = tokens("context");
        out.kv_tokens = tokens("kv_tokens");
        return out;
    }

  private:
    std::string resolved(const std::string& model, const fs::path& folder, const std::string& hub) const {
        std::error_code ec;
        if (fs::exists(folder / model, ec)) return folder / model;
        std::string path;
        try {
            path = resolve_model(model, hub);
        } catch (const Error& error) {
            throw Error(fmt::format("{}.model: {}", where_, error.what()), error.kind());
        }
        RT_CHECK(fs::exists(path, ec), ErrorKind::no_input, "{}.model: {}: no such file or folder", where_, path);
        return path;
    }
    std::string text(const char* key) const {
        const json::value* value = object_->if_contains(key);
        if (value == nullptr) return {};
        RT_CHECK(value->is_string(), ErrorKind::usage, "{}.{}: expected a string", where_, key);
        return std::string(value->get_string());
    }
    int64_t tokens(const char* key) const {
        const json::value* value = object_->if_contains(key);
        if (value == nullptr) return 0;
        RT_CHECK(value->is_int64() && value->get_int64() > 0 && value->get_int64() < INT32_MAX, ErrorKind::usage,
                 "{}.{} is {}, expected a number of tokens", where_, key, json::serialize(*value).substr(0, 40));
        return value->get_int64();
    }

    inline static const std::set<std::string_view> kKeys = {"model",   "context",       "kv",  "kv_tokens", "weights",
                                                            "drafter", "memory_budget", "task"};
    std::string where_;
    const json::object* object_ = nullptr;
};

void check_listed_name(const std::string& name, const std::string& file) {
    const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= ' ' && c != 127; });
    RT_CHECK(!name.empty() && std::ssize(name) <= kMostNameBytes && plain && utf8_valid_prefix(name) == name.size(),
             ErrorKind::usage, "{}: models: the name '{}' is empty, longer than {} bytes or has control characters",
             file, name.substr(0, 40), kMostNameBytes);
}

std::vector<ListedModel> models_of_file(const std::string& file, const std::string& hub) {
    const json::value list = parse_json(read_file(file, kMostModelListBytes), file);
    RT_CHECK(list.is_object(), ErrorKind::usage, "{}: expected an object, {{\"models\": ...}}", file);
    for (const auto& [key, value] : list.get_object())
        RT_CHECK(key == "models" || key == "default", ErrorKind::usage, "{}: {}: unknown key; expected models, default",
                 file, std::string_view(key));
    const json::value* models = list.get_object().if_contains("models");
    RT_CHECK(models != nullptr && models->is_object() && !models->get_object().empty(), ErrorKind::usage,
             "{}: models: expected an object with a model or more, {{NAME: {{\"model\": ...}}}}", file);
    const fs::path folder = fs::path(file).parent_path();
    std::vector<ListedModel> out;
    for (const auto& [key, value] : models->get_object()) {
        const std::string name(key);
        check_listed_name(name, file);
        out.push_back(ListedModelReader(value, fmt::format("{}: models.{}", file, name)).read(folder, hub));
        out.back().name = name;
    }
    if (const json::value* first = list.get_object().if_contains("default")) {
        const auto found = std::find_if(out.begin(), out.end(), [&](const ListedModel& model) {
            return first->is_string() && model.name == first->get_string();
        });
        RT_CHECK(found != out.end(), ErrorKind::usage, "{}: default: {} is none of its models", file,
                 json::serialize(*first).substr(0, 80));
        std::rotate(out.begin(), found, found + 1);
    }
    return out;
}

}  // namespace

std::string default_name(const std::string& path) {
    if (path.empty()) return "laguna-demo";
    fs::path name = fs::path(path).lexically_normal();
    if (!name.has_filename()) name = name.parent_path();
    return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

std::vector<ListedModel> list_models(const std::string& what, const std::string& hub) {
    std::error_code ec;
    std::vector<ListedModel> out = fs::is_directory(what, ec) ? models_in_folder(what) : models_of_file(what, hub);
    for (ListedModel& model : out) model.file_bytes = bytes_of_model(model.path);
    return out;
}

}  // namespace riptide::apps
