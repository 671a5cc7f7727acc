// riptide pull: a model from a hub.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/download.h"
#include "apps/support/environment.h"
#include "apps/support/terminal.h"
#include "base/digest_memo.h"
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

/// What the hub has vouched for the server need not compute.
void remember(const HubFile& file, const std::string& path, const FileStamp& stamp) {
    const std::optional<Digest> digest = digest_of_hex(file.sha256);
    if (!digest) return;
    try {
        DigestMemo(digests_file()).add(path, stamp, *digest);
    } catch (const Error& error) {
        say("{}: its SHA-256 is not remembered: {}\n", path, error.what());
    }
}

/// Fetches a file unless it is there and right.
void get_file(const Hub& hub, const std::string& repository, const HubFile& file, const std::string& path) {
    const auto with_progress = [&](const std::string& label, const auto& work) {
        Progress progress(label, "B");
        return work([&](int64_t done) {
            if (interrupted()) fail(ErrorKind::unavailable, "{}: interrupted; pull again to go on", path);
            progress.update(done, file.size);
        });
    };
    if (std::filesystem::exists(path)) {
        const FileStamp stamp = stamp_of(path);
        if (with_progress("checking " + file.path, [&](const auto& on) { return is_fetched(file, path, on); }))
            return remember(file, path, stamp);
        say("{}: is not what the hub has: fetched again\n", path);
    }
    with_progress(file.path, [&](const auto& on) { fetch_file(hub, repository, file, path, on); });
    remember(file, path, stamp_of(path));
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
    const std::string folder = fmt::format("{}/{}{}", o.folder.empty() ? models_folder() : o.folder, repository,
                                           o.hub.revision == "main" ? "" : "@" + o.hub.revision);
    for (const HubFile& file : files) get_file(o.hub, repository, file, folder + "/" + file.path);
    put_text((variant == "safetensors" ? folder : folder + "/" + files.front().path) + "\n");
    return 0;
}

}  // namespace

void add_pull(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("pull", "Fetch a model from Hugging Face, or a server that looks like it");
    auto options = std::make_shared<PullFlags>();
    cmd->add_option("REPO", options->what,
                    "OWNER/NAME[:VARIANT]; VARIANT: a GGUF type (Q4_K_M if left out), a file, or safetensors")
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
        "Examples:\n  riptide serve \"$(riptide pull poolside/Laguna-XS.2-GGUF:Q4_K_M)\"");
    cmd->callback([options, &action] { action = [options] { return pull(*options); }; });
}

}  // namespace riptide::apps
