// What `riptide bench --serve` shows: tables for people, JSON for scripts.
#pragma once

#include "apps/bench/bench_serve.h"
#include "base/json.h"

namespace riptide::apps {

void print_engine(const EngineInfo& info);
void print_closed_header();
void print(const ClosedLoad& load);
void print(const OpenLoad& load);
void print(const BesideLoad& load);
void print(const AgentLoad& load);

json::object to_json(const ClosedLoad& load);
json::object to_json(const OpenLoad& load);
json::object to_json(const BesideLoad& load);
json::object to_json(const AgentLoad& load);

}  // namespace riptide::apps
