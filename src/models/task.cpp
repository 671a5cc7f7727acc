#include "models/task.h"

#include <array>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"
#include "io/hf_config.h"

namespace riptide {

namespace {

constexpr std::array<std::string_view, 3> kTaskNames = {"generate", "embed", "rerank"};

/// pooling_type of GGUF files.
constexpr int64_t kNoPooling = 0, kLastPooling = 3, kRankPooling = 4;

bool gguf_embeds(const Checkpoint& checkpoint) {
    const auto architecture = gguf_config(checkpoint).get<std::string>("general.architecture");
    const ConfigReader keys = gguf_config(checkpoint, architecture + ".");
    const auto pooling = keys.get_or<int64_t>("pooling_type", kNoPooling);
    RT_CHECK(
        pooling != kRankPooling,
        "{} is 4 (rank), a classifier of its own, which is not supported: convert the model as the causal language "
        "model that it is, and give serve --task rerank",
        keys.name_of("pooling_type"));
    RT_CHECK(pooling == kNoPooling || pooling == kLastPooling,
             "{} is {}, which is not supported (only 3, the last token)", keys.name_of("pooling_type"), pooling);
    return pooling == kLastPooling;
}

/// What sentence-transformers wrote of the pooling: in its old words or the new ones.
void check_pooling(const Checkpoint& checkpoint) {
    const json::value* config = checkpoint.metadata().if_contains("pooling");
    RT_CHECK(config != nullptr,
             "{}: modules.json has a Pooling layer, but there is no 1_Pooling/config.json that says how; expected one "
             "with pooling_mode_lasttoken (or give --task embed, which pools the last token)",
             checkpoint.path());
    const std::string file = checkpoint.path() + "/1_Pooling/config.json";
    const ConfigReader keys(config->as_object(), file);
    bool last = keys.get_or<std::string>("pooling_mode", "") == "lasttoken";
    for (const auto& [key, value] : config->as_object()) {
        if (!key.starts_with("pooling_mode_") || value != true) continue;
        RT_CHECK(key == "pooling_mode_lasttoken", "{}: {} is not supported (only pooling_mode_lasttoken)", file,
                 printable(key));
        last = true;
    }
    RT_CHECK(last, "{}: pooling_mode_lasttoken is not true, and no other pooling is supported", file);
}

bool folder_embeds(const Checkpoint& checkpoint) {
    const json::value* modules = checkpoint.metadata().if_contains("modules");
    if (modules == nullptr) return false;
    bool pools = false;
    std::string other;
    for (const json::value& module : modules->as_array()) {
        RT_CHECK(module.is_object(), "{}: modules.json: expected a list of objects", checkpoint.path());
        const auto type = ConfigReader(module.as_object(), "modules.json").get<std::string>("type");
        const std::string kind = type.substr(type.rfind('.') + 1);
        pools = pools || kind == "Pooling";
        if (kind != "Transformer" && kind != "Pooling" && kind != "Normalize") other = kind;
    }
    if (!pools) return false;
    RT_CHECK(other.empty(), "{}: modules.json has a layer {}, which is not supported (only Pooling and Normalize)",
             checkpoint.path(), printable(other));
    check_pooling(checkpoint);
    return true;
}

}  // namespace

std::string_view task_name(Task task) { return kTaskNames[static_cast<size_t>(task)]; }

std::optional<Task> task_from_name(std::string_view name) {
    for (size_t i = 0; i < kTaskNames.size(); ++i)
        if (kTaskNames[i] == name) return static_cast<Task>(i);
    return std::nullopt;
}

Task task_of(const Checkpoint& checkpoint, std::optional<Task> asked) {
    if (asked) return *asked;
    const bool embeds =
        checkpoint.format() == Checkpoint::Format::gguf ? gguf_embeds(checkpoint) : folder_embeds(checkpoint);
    return embeds ? Task::embed : Task::generate;
}

}  // namespace riptide
