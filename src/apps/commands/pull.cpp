// riptide pull: a model from a hub.
#include <memory>
#include <optional>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/environment.h"
#include "apps/support/model_store.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"

namespace riptide::apps {

namespace {

struct PullFlags {
    std::string what, folder, token_file;
    Hub hub;
};

std::string first_line(const std::string& text) {
    return text.substr(0, std::min(text.find_first_of("\r\n"), text.size()));
}

int pull(PullFlags o) {
    catch_interrupts();
    std::optional<ModelName> name = model_name(o.what);
    RT_CHECK(name.has_value(), ErrorKind::usage,
             "{}: expected OWNER/NAME, OWNER/NAME:VARIANT, or an alias of riptide list --known", o.what);
    if (o.hub.revision != "main") name->revision = o.hub.revision;
    if (!o.token_file.empty()) o.hub.token = first_line(read_file(o.token_file, 1 << 16));
    while (o.hub.endpoint.ends_with('/')) o.hub.endpoint.pop_back();
    put_text(pull_model(o.hub, *name, o.folder.empty() ? models_folder() : o.folder) + "\n");
    return 0;
}

}  // namespace

void add_pull(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("pull", "Fetch a model from Hugging Face, or a server that looks like it");
    auto options = std::make_shared<PullFlags>();
    cmd->add_option(
           "REPO", options->what,
           "OWNER/NAME[:VARIANT], or an alias (riptide list --known); VARIANT: a GGUF type (Q4_K_M if left out), "
           "a file, or safetensors")
        ->required();
    cmd->add_option("--revision", options->hub.revision,
                    "A branch, tag or commit; another than main has a folder of its own, NAME@REVISION")
        ->capture_default_str();
    cmd->add_option("--to", options->folder, "Where models belong; left out: ~/.cache/riptide/models");
    cmd->add_option("--endpoint", options->hub.endpoint, "The hub")->capture_default_str();
    cmd->add_option("--token-file", options->token_file, "A file with an access token, for private repositories");
    cmd->footer(
        "Prints the path. What is there already is checked, and fetched again only if it is wrong; what was broken off "
        "goes on. The SHA-256 of what was checked is remembered (~/.cache/riptide/digests): serve --cache-dir goes by "
        "it.\n"
        "Examples:\n  riptide pull laguna-xs.2\n  riptide pull OWNER/NAME:Q8_0 && riptide chat OWNER/NAME:Q8_0");
    cmd->callback([options, &action] { action = [options] { return pull(*options); }; });
}

}  // namespace riptide::apps
