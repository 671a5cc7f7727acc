// riptide pull: a model from a hub.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "apps/commands.h"
#include "apps/download.h"
#include "apps/environment.h"
#include "apps/flags.h"
#include "apps/terminal.h"
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
    const std::size_t colon = o.what.rfind(':');
    const std::string repository = o.what.substr(0, colon);
    const std::string variant = colon == std::string::npos ? "Q4_K_M" : o.what.substr(colon + 1);
    RT_CHECK(std::count(repository.begin(), repository.end(), '/') == 1 && !variant.empty(), ErrorKind::usage,
             "{}: expected OWNER/NAME or OWNER/NAME:VARIANT", o.what);
    if (!o.token_file.empty()) o.hub.token = first_line(read_file(o.token_file, 1 << 16));
    while (o.hub.endpoint.ends_with('/')) o.hub.endpoint.pop_back();
    const std::vector<HubFile> files = choose_files(list_files(o.hub, repository), variant);
    const std::string folder = (o.folder.empty() ? models_folder() : o.folder) + "/" + repository;
    for (const HubFile& file : files) {
        const std::string path = folder + "/" + file.path;
        std::error_code ec;
        if (static_cast<int64_t>(std::filesystem::file_size(path, ec)) == file.size && !ec) continue;
        Progress progress(file.path, "B");
        fetch_file(o.hub, repository, file, path, [&](int64_t done) {
            if (interrupted()) fail(ErrorKind::unavailable, "{}: interrupted; pull again to go on", path);
            progress.update(done, file.size);
        });
    }
    fmt::print("{}\n", variant == "safetensors" ? folder : folder + "/" + files.front().path);
    return 0;
}

}  // namespace

void add_pull(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("pull", "Fetch a model from Hugging Face, or a server that looks like it");
    auto options = std::make_shared<PullFlags>();
    cmd->add_option("REPO", options->what,
                    "OWNER/NAME[:VARIANT]; VARIANT: a GGUF type (Q4_K_M if left out), a file, or safetensors")
        ->required();
    cmd->add_option("--to", options->folder, "Where models belong; left out: ~/.cache/riptide/models");
    cmd->add_option("--endpoint", options->hub.endpoint, "The hub")->capture_default_str();
    cmd->add_option("--token-file", options->token_file, "A file with an access token, for private repositories");
    cmd->footer(
        "Prints the path. What is there already is not fetched again; what was broken off goes on.\n"
        "Examples:\n  riptide serve $(riptide pull poolside/Laguna-XS.2-GGUF:Q4_K_M)");
    cmd->callback([options, &action] { action = [options] { return pull(*options); }; });
}

}  // namespace riptide::apps
