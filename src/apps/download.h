// Files from a model hub, over HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace riptide::apps {

struct Hub {
    std::string endpoint = "https://huggingface.co";
    std::string token;  // may be empty
};

struct HubFile {
    std::string path;  // in the repository
    int64_t size = 0;
    std::string sha256;  // empty: the hub does not say
};

/// All files of a repository ("owner/name"). Throws Error: no such repository, no network, not what a hub says.
std::vector<HubFile> list_files(const Hub& hub, const std::string& repository);

/// Those that make up a variant: a GGUF type ("Q4_K_M", in any case; one file or its shards), "safetensors" (weights,
/// config, tokenizer), or the name of a file. Throws Error that lists what there is.
std::vector<HubFile> choose_files(const std::vector<HubFile>& files, const std::string& variant);

/// Fetches a file to `path`; goes on with PATH.part where an earlier call stopped. Size and SHA-256 are checked before
/// the file gets its name; what does not match is removed. `progress` may throw, which stops. Throws Error.
void fetch_file(const Hub& hub, const std::string& repository, const HubFile& file, const std::string& path,
                const std::function<void(int64_t done)>& progress);

}  // namespace riptide::apps
