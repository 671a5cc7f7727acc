// The models of a server that has several: a folder of them, or a JSON file that names them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace riptide::apps {

/// One of them. What is empty or 0 is as the command line has it.
struct ListedModel {
    std::string name;  // in the API
    std::string path;
    std::string kv, weights, drafter, memory_budget, task;
    int64_t context = 0, kv_tokens = 0;
    int64_t file_bytes = 0;  // of its first file, or of all .safetensors of its folder
};

/// "laguna-xs.2-q4_k_m" of a path; the demo model's for "".
std::string default_name(const std::string& path);

/// Of a folder: each .gguf file (of several shards the first) and each folder with a config.json in it, by name. Of a
/// file: what its JSON says, {"models": {NAME: {"model": MODEL, "context", "kv", "kv_tokens", "weights", "drafter",
/// "memory_budget", "task"}}, "default": NAME}, a path being relative to the file's folder; else MODEL is as
/// resolve_model() has it. The default stands first: the one named so, or the first. Throws Error naming the key that
/// is wrong.
std::vector<ListedModel> list_models(const std::string& what, const std::string& hub);

}  // namespace riptide::apps
