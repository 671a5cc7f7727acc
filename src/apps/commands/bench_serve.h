// The part of `riptide bench` behind --serve.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/bench_serve.h"
#include "apps/flags/model_flags.h"

namespace riptide::apps {

class Flag;

struct ServeFlags {
    bool serve = false, deterministic = false, no_prefix_cache = false;
    double rate = 0, temperature = 0;
    int64_t requests = 64;
    std::vector<int64_t> beside, agent;  // N,TOKENS and TURNS,TOKENS
    int32_t prompt_rows = 0;
    double slowdown = EngineOptions().slowdown;
    uint64_t seed = 1;
    Flag* option = nullptr;  // --serve
};
void add_serve_flags(Command& cmd, ServeFlags& flags);

/// Measures what the flags ask for and prints it. `batches` empty: 1, 2, 4 ... up to what the device runs by default.
int bench_serve(const ModelFlags& model, const ServeFlags& flags, const LoadOptions& load,
                const std::vector<int64_t>& prompts, std::vector<int64_t> batches, bool as_json);

}  // namespace riptide::apps
