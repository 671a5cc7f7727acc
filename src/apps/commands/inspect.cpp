// riptide inspect: what is in a checkpoint. The first command for any strange file.
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <string>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/known_models.h"
#include "apps/support/terminal.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "text/chat/chat.h"

namespace riptide::apps {

namespace {

struct InspectFlags {
    std::string model;
    bool tensors = false, metadata = false, as_json = false;
};

struct TypeTotal {
    int64_t count = 0, bytes = 0;
};

int64_t elements(const TensorInfo& tensor) {
    int64_t n = 1;
    for (int64_t extent : tensor.shape) n *= extent;
    return n;
}

/// A value on one line; long arrays and strings are cut.
std::string shown(const json::value& value) {
    if (const auto* array = value.if_array()) {
        std::string text = "[";
        for (size_t i = 0; i < array->size() && i < 8; ++i) text += (i != 0 ? ", " : "") + json::serialize((*array)[i]);
        return text + (array->size() > 8 ? fmt::format(", ... {} values]", array->size()) : "]");
    }
    std::string text = json::serialize(value);
    if (text.size() > 100) text = text.substr(0, 97) + "...";
    return text;
}

std::map<std::string, TypeTotal> totals_by_type(const Checkpoint& checkpoint) {
    std::map<std::string, TypeTotal> totals;
    for (const TensorInfo& tensor : checkpoint.tensors()) {
        TypeTotal& total = totals[dtype_name(tensor.dtype)];
        ++total.count;
        total.bytes += static_cast<int64_t>(tensor.bytes.size());
    }
    return totals;
}

void print_checkpoint_json(const Checkpoint& checkpoint, const InspectFlags& options) {
    json::object out;
    out["path"] = checkpoint.path();
    out["format"] = checkpoint.format() == Checkpoint::Format::gguf ? "gguf" : "safetensors";
    out["tensor_count"] = checkpoint.tensors().size();
    out["tensor_bytes"] = checkpoint.tensor_bytes();
    json::object& types = out["types"].emplace_object();
    for (const auto& [name, total] : totals_by_type(checkpoint))
        types[name] = {{"count", total.count}, {"bytes", total.bytes}};
    const std::string chat = chat_template_source(checkpoint);
    if (!chat.empty()) out["chat_template"] = template_summary(chat);
    if (options.metadata) out["metadata"] = checkpoint.metadata();
    if (options.tensors) {
        json::array& list = out["tensors"].emplace_array();
        for (const TensorInfo& tensor : checkpoint.tensors())
            list.push_back({{"name", tensor.name},
                            {"dtype", dtype_name(tensor.dtype)},
                            {"shape", json::value_from(tensor.shape)},
                            {"bytes", tensor.bytes.size()}});
    }
    tell("{}\n", json::serialize(out));
}

void print_metadata(const json::object& metadata, const std::string& indent, bool all) {
    for (const auto& [key, value] : metadata) {
        const std::string name(key);
        const bool bulky = name.rfind("tokenizer", 0) == 0 || name == "chat_template";
        if (bulky && !all) continue;
        if (value.is_object()) {
            tell("{}{}:\n", indent, name);
            print_metadata(value.get_object(), indent + "  ", all);
        } else {
            tell("{}{:<44} {}\n", indent, name, shown(value));
        }
    }
}

void print_head(const Checkpoint& checkpoint) {
    int64_t parameters = 0;
    for (const TensorInfo& tensor : checkpoint.tensors()) parameters += elements(tensor);
    tell("{}\n  {} · {} tensors · {} values · {} bytes of tensor data ({})\n", checkpoint.path(),
         checkpoint.format() == Checkpoint::Format::gguf ? "GGUF" : "safetensors",
         grouped(static_cast<int64_t>(checkpoint.tensors().size())), grouped(parameters),
         grouped(checkpoint.tensor_bytes()), human_bytes(checkpoint.tensor_bytes()));
}

void print_types_and_template(const Checkpoint& checkpoint) {
    tell("\ntypes\n");
    for (const auto& [name, total] : totals_by_type(checkpoint))
        tell("  {:<10} {:>6} tensors  {:>12}\n", name, total.count, human_bytes(total.bytes));
    const std::string chat = chat_template_source(checkpoint);
    tell("\nchat template\n  {}\n", chat.empty() ? "none" : template_summary(chat));
}

void print_text(const Checkpoint& checkpoint, const InspectFlags& options) {
    print_head(checkpoint);
    tell("\nconfig\n");
    print_metadata(checkpoint.metadata(), "  ", options.metadata);
    print_types_and_template(checkpoint);
    if (!options.tensors) return;
    tell("\ntensors\n");
    for (const TensorInfo& tensor : checkpoint.tensors())
        tell("  {:<52} {:<8} [{}]  {}\n", tensor.name, dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "),
             human_bytes(static_cast<int64_t>(tensor.bytes.size())));
}

}  // namespace

void add_inspect(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("inspect", "Print a checkpoint: config, tensor types and sizes, chat template");
    auto options = std::make_shared<InspectFlags>();
    cmd->add_option("MODEL", options->model, "File, folder, OWNER/NAME[:VARIANT] or alias; left out: the demo model");
    cmd->add_flag("--tensors", options->tensors, "List every tensor");
    cmd->add_flag("--metadata", options->metadata, "Show all metadata, tokenizer and template included");
    cmd->add_flag("--json", options->as_json, "Print JSON");
    cmd->footer(
        "Examples:\n  riptide inspect model.gguf\n  riptide inspect ./Laguna-XS.2 --tensors\n"
        "  riptide inspect model.gguf --json --tensors | jq '.tensors[0]'");
    cmd->callback([options, &action] {
        action = [options] {
            const auto checkpoint = open_model_or_demo(options->model);
            if (options->as_json) print_checkpoint_json(*checkpoint, *options);
            else print_text(*checkpoint, *options);
            return 0;
        };
    });
}

void add_show(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("show", "Say what a model is: file, size, types, chat template, drafter");
    auto what = std::make_shared<std::string>();
    cmd->add_option("MODEL", *what, "Name, alias, file or folder; left out: the demo model");
    cmd->footer("Examples:\n  riptide show laguna-xs.2\n  riptide show OWNER/NAME:Q8_0");
    cmd->callback([what, &action] {
        action = [what] {
            const auto checkpoint = open_model_or_demo(*what);
            print_head(*checkpoint);
            print_types_and_template(*checkpoint);
            for (const KnownModel& known : known_models().models)
                if ((known.alias == *what || known.name == *what) && !known.drafter.empty())
                    tell("\ndrafter\n  {} (as of {})\n", known.drafter, known_models().checked);
            return 0;
        };
    });
}

}  // namespace riptide::apps
