// Models by name: OWNER/NAME[@REVISION][:VARIANT], the folder where pull puts them, and which file a name means.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/support/download.h"

namespace riptide::apps {

/// A name taken apart. `variant`: a GGUF type, a file, or safetensors; empty: none is given.
struct ModelName {
    std::string repository, revision = "main", variant;

    /// The name as a person writes it.
    std::string text() const;
    /// Below the folder of models: OWNER/NAME, or OWNER/NAME@REVISION.
    std::string folder() const;
};
/// What pull takes where no variant is given.
inline constexpr const char* kUsualVariant = "Q4_K_M";

/// nullopt: a text of another form, such as a path.
std::optional<ModelName> parse_model_name(const std::string& text);

/// The same, or an alias of known_models(). Throws Error (no_input) for one whose repository is not recorded.
std::optional<ModelName> model_name(const std::string& what);

/// What opens a model whose `files` lie in `folder`: the folder of safetensors, else the first file. REQUIRES a file.
std::string model_path(const std::string& folder, const ModelName& name, const std::vector<HubFile>& files);

/// One model in the store.
struct StoredModel {
    ModelName name;
    std::string path;                // of its first file; of safetensors: the folder
    std::vector<std::string> files;  // all of them, as paths
    int64_t bytes = 0;
    int64_t modified = 0;  // seconds since 1970, of the newest file
    std::string problem;   // empty: all its files are there
};
/// All below `root`, by name.
std::vector<StoredModel> stored_models(const std::string& root);
/// The one that a name means; without a variant: the usual one, or the only one that is there. nullopt: it is not
/// there. Throws Error: several match, or shards are missing.
std::optional<StoredModel> find_stored(const std::string& root, const ModelName& name);

/// Fetches what is missing or wrong and returns the path of the model; the revision is the name's. Throws Error.
/// Interruptible: what has come stays.
std::string pull_model(Hub hub, const ModelName& name, const std::string& root);

/// The path that `what` means: a path that is there; else an alias of known_models() or a name, looked up in the store
/// (models_folder()). What is not there is fetched if a person at a terminal agrees; on no terminal that is an Error
/// (no_input) with the command that fetches it. "" stays "", and what looks like a path stays itself.
std::string resolve_model(const std::string& what, const std::string& hub = Hub().endpoint);

}  // namespace riptide::apps
