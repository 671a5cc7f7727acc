// What `riptide ab` shows: a table, JSON, a plot.
#pragma once

#include <string>

#include "apps/ab/ab_run.h"

#include "base/json.h"

namespace riptide::apps {

/// Of all prompts together, a line for each mode; then a line for each prompt.
std::string ab_table(const AbResult& result);
/// The same numbers and more, for scripts.
json::object ab_json(const AbResult& result);
/// A picture: speed-up against the number of drafts in a step, and the share of steps in which each slot's draft was
/// accepted. Well-formed SVG, without fonts or scripts of its own.
std::string ab_svg(const AbResult& result, const std::string& title);

}  // namespace riptide::apps
