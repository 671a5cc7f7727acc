// From a hub into the store, and from what a person writes to a path.
#include <unistd.h>

#include <filesystem>

#include "apps/support/environment.h"
#include "apps/support/known_models.h"
#include "apps/support/model_store.h"
#include "apps/support/nearest_word.h"
#include "apps/support/terminal.h"
#include "base/digest_memo.h"
#include "base/error.h"
#include "base/file.h"

namespace riptide::apps {

namespace {

/// What the hub has vouched for the server need not compute.
void remember_digest(const HubFile& file, const std::string& path, const FileStamp& stamp) {
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
    const auto with_bar = [&](const std::string& label, const auto& work) {
        Progress progress(label, "B");
        return work([&](int64_t done) {
            if (interrupted()) fail(ErrorKind::unavailable, "{}: interrupted; pull again to go on", path);
            progress.update(done, file.size);
        });
    };
    if (std::filesystem::exists(path)) {
        const FileStamp stamp = stamp_of(path);
        if (with_bar("checking " + file.path, [&](const auto& on) { return is_fetched(file, path, on); }))
            return remember_digest(file, path, stamp);
        say("{}: is not what the hub has: fetched again\n", path);
    }
    with_bar(file.path, [&](const auto& on) { fetch_file(hub, repository, file, path, on); });
    remember_digest(file, path, stamp_of(path));
}

std::string fetch_all(const Hub& hub, const ModelName& name, const std::vector<HubFile>& files,
                      const std::string& root) {
    const std::string folder = root + "/" + name.folder();
    for (const HubFile& file : files) get_file(hub, name.repository, file, folder + "/" + file.path);
    return model_path(folder, name, files);
}

/// A line that a person types, without reading beyond it.
std::string typed_answer() {
    std::string line;
    for (char c = 0; ::read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line;
}

/// Asks whether to fetch what is not there, and does. Throws Error if nobody can be asked, or does not want it.
std::string offer_to_pull(ModelName name, const std::string& endpoint, const std::string& root) {
    if (name.variant.empty()) name.variant = kUsualVariant;
    const std::string command = fmt::format("riptide pull {}", name.text());
    if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1)
        fail(ErrorKind::no_input, "{}: is neither a file nor in {}; fetch it with: {}", name.text(), root, command);
    Hub hub;
    hub.endpoint = endpoint;
    hub.revision = name.revision;
    const std::vector<HubFile> files = choose_files(list_files(hub, name.repository), name.variant);
    int64_t bytes = 0;
    for (const HubFile& file : files) bytes += file.size;
    say("{} is not here. Fetch {} ({} file{}) from {} to {}? [y/N] ", name.text(), human_bytes(bytes), files.size(),
        files.size() == 1 ? "" : "s", hub.endpoint, root);
    const std::string answer = typed_answer();
    RT_CHECK(answer == "y" || answer == "yes", ErrorKind::no_input, "{}: is not here; later: {}", name.text(), command);
    return fetch_all(hub, name, files, root);
}

/// The known model of that alias.
std::optional<ModelName> name_of_alias(const std::string& what) {
    for (const KnownModel& model : known_models().models) {
        if (model.alias != what) continue;
        RT_CHECK(!model.name.empty(), ErrorKind::no_input,
                 "{}: no repository is recorded for it; give a file or OWNER/NAME:VARIANT", what);
        return parse_model_name(model.name);
    }
    return std::nullopt;
}

}  // namespace

std::optional<ModelName> model_name(const std::string& what) {
    const std::optional<ModelName> name = name_of_alias(what);
    return name ? name : parse_model_name(what);
}

std::string pull_model(Hub hub, const ModelName& name, const std::string& root) {
    ModelName whole = name;
    if (whole.variant.empty()) whole.variant = kUsualVariant;
    hub.revision = name.revision;
    return fetch_all(hub, whole, choose_files(list_files(hub, name.repository), whole.variant), root);
}

std::string resolve_model(const std::string& what, const std::string& hub) {
    std::error_code ec;
    if (what.empty() || std::filesystem::exists(what, ec)) return what;
    if (what.starts_with('-') || (what.ends_with(".gguf") && what.find(':') == std::string::npos)) return what;
    const std::optional<ModelName> name = model_name(what);
    if (!name) {
        if (what.find('/') != std::string::npos) return what;
        std::vector<std::string> aliases;
        for (const KnownModel& model : known_models().models) aliases.push_back(model.alias);
        fail(ErrorKind::no_input,
             "{}: no such file, and no name of a model{}; riptide list shows those that are here, list --known others; "
             "a "
             "prompt goes behind the model, or behind -p",
             what, did_you_mean(what, aliases));
    }
    const std::string root = models_folder();
    if (const auto found = find_stored(root, *name)) return found->path;
    return offer_to_pull(*name, hub, root);
}

}  // namespace riptide::apps
