// Files from a model hub, over HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace riptide::apps {

struct Hub {
    std::string endpoint = "https://huggingface.co";
    std::string token;              // may be empty
    std::string revision = "main";  // a branch, a tag or a commit
};

struct HubFile {
    std::string path;  // in the repository
    int64_t size = 0;
    std::string sha256;  // empty: the hub does not say
    std::string blob;    // the name that git has for the content; empty: the hub does not say, or says SHA-256
};

/// All files of a repository ("owner/name"). Throws Error: no such repository, no network, not what a hub says.
std::vector<HubFile> list_files(const Hub& hub, const std::string& repository);

/// Throws Error unless a name from a hub, or for one, is plain: [A-Za-z0-9._/-], no part begins with '-' or is "..".
void check_hub_name(const std::string& name);

/// Those that make up a variant, in order: a GGUF type ("Q4_K_M", in any case; one file or its shards), "safetensors"
/// (weights, config, tokenizer), or the name of a file (of a shard: all of them). Projectors, drafters and importance
/// matrices count only if the variant names them, or there is nothing else. Throws Error that lists what there is:
/// (no_input) where nothing fits, (usage) where several do; or that says which name is not plain.
std::vector<HubFile> choose_files(const std::vector<HubFile>& files, const std::string& variant);

/// Has the file at `path` the size and the content that the hub says? One without a digest needs the size only.
/// `progress` as below. Throws Error: it cannot be read.
bool is_fetched(const HubFile& file, const std::string& path, const std::function<void(int64_t done)>& progress);

/// Fetches a file to `path`; goes on with PATH.part where an earlier call stopped. Size and content are checked before
/// the file gets its name; what does not match is removed. `progress` may throw, which stops. Throws Error.
void fetch_file(const Hub& hub, const std::string& repository, const HubFile& file, const std::string& path,
                const std::function<void(int64_t done)>& progress);

}  // namespace riptide::apps
