// riptide list, rm: what pull has put into the store.
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/environment.h"
#include "apps/support/known_models.h"
#include "apps/support/model_store.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct ListFlags {
    bool known = false, as_json = false;
};

struct RmFlags {
    std::vector<std::string> names;
    bool yes = false;
};

/// "2026-11-28".
std::string day_of(int64_t seconds) {
    const auto time = static_cast<std::time_t>(seconds);
    std::tm parts{};
    char text[16] = "";
    if (::localtime_r(&time, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
    return text;
}

int list_known(bool as_json) {
    const KnownModels known = known_models();
    json::array out;
    if (!as_json) tell("{:<20} {:<40} {:>9}  {:<48} {}\n", "ALIAS", "MODEL", "SIZE", "DRAFTER", "UNVERIFIED");
    for (const KnownModel& model : known.models) {
        const std::string size = model.gigabytes > 0 ? fmt::format("{:.2f} GB", model.gigabytes) : "-";
        if (!as_json)
            tell("{:<20} {:<40} {:>9}  {:<48} {}\n", model.alias, model.name.empty() ? "-" : model.name, size,
                 model.drafter.empty() ? "-" : model.drafter, model.unverified.empty() ? "-" : model.unverified);
        out.push_back({{"alias", model.alias},
                       {"name", model.name},
                       {"gigabytes", model.gigabytes},
                       {"drafter", model.drafter},
                       {"unverified", model.unverified}});
    }
    if (as_json) tell("{}\n", json::serialize(json::object{{"checked", known.checked}, {"models", out}}));
    else tell("As of {}, {}.\n", known.checked, known.how);
    return 0;
}

int list(const ListFlags& o) {
    if (o.known) return list_known(o.as_json);
    const std::string root = models_folder();
    const std::vector<StoredModel> models = stored_models(root);
    json::array out;
    for (const StoredModel& model : models) {
        if (!o.as_json)
            tell("{:<56} {:>11}  {}  {}\n", model.name.text(), human_bytes(model.bytes), day_of(model.modified),
                 model.problem);
        out.push_back({{"name", model.name.text()},
                       {"path", model.path},
                       {"bytes", model.bytes},
                       {"modified", model.modified},
                       {"problem", model.problem}});
    }
    if (o.as_json) tell("{}\n", json::serialize(out));
    else if (models.empty()) say("no model in {}; riptide pull fetches one, list --known names some\n", root);
    return 0;
}

/// With the folders that are empty then, up to that of all models.
void remove_files(const StoredModel& model, const std::string& root) {
    for (const std::string& path : model.files) {
        std::error_code ec;
        if (!std::filesystem::remove(path, ec) || ec)
            fail(ErrorKind::io, "{}: cannot be removed: {}", path, ec.message());
        std::filesystem::path folder = std::filesystem::path(path).parent_path();
        for (; folder.string().size() > root.size() && std::filesystem::is_empty(folder, ec) && !ec;
             folder = folder.parent_path())
            std::filesystem::remove(folder, ec);
    }
}

int rm(const RmFlags& o) {
    const std::string root = models_folder();
    std::vector<StoredModel> models;
    for (const std::string& what : o.names) {
        const std::optional<ModelName> name = model_name(what);
        RT_CHECK(name.has_value(), ErrorKind::usage, "{}: expected a name as riptide list shows it", what);
        auto found = find_stored(root, *name);
        RT_CHECK(found.has_value(), ErrorKind::no_input, "{}: not in {}; riptide list shows what is", name->text(),
                 root);
        models.push_back(std::move(*found));
    }
    for (const StoredModel& model : models) {
        if (!o.yes) {
            RT_CHECK(isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1, ErrorKind::usage,
                     "rm {}: nobody is here to be asked: give --yes", model.name.text());
            say("remove {}, {}? [y/N] ", model.name.text(), human_bytes(model.bytes));
            std::string answer;
            std::getline(std::cin, answer);
            if (answer != "y" && answer != "yes") continue;
        }
        remove_files(model, root);
        tell("removed {}, {}\n", model.name.text(), human_bytes(model.bytes));
    }
    return 0;
}

}  // namespace

void add_list(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("list", "Show the models that were pulled, or known ones");
    auto options = std::make_shared<ListFlags>();
    cmd->add_flag("--known", options->known, "Models with short names, and what is known of them");
    cmd->add_flag("--json", options->as_json, "For scripts");
    cmd->footer("Examples:\n  riptide list\n  riptide list --known");
    cmd->callback([options, &action] { action = [options] { return list(*options); }; });
}

void add_rm(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("rm", "Remove models that were pulled");
    auto options = std::make_shared<RmFlags>();
    cmd->add_option("NAME", options->names, "As riptide list shows them")->required();
    cmd->add_flag("--yes", options->yes, "Do not ask");
    cmd->footer("Examples:\n  riptide rm OWNER/NAME:Q4_K_M");
    cmd->callback([options, &action] { action = [options] { return rm(*options); }; });
}

}  // namespace riptide::apps
