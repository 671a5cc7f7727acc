// Tools that take free text: to the model, functions whose one argument is that text.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/work_budget.h"

namespace riptide::server {

/// Names of tools that take free text.
using CustomNames = std::set<std::string, std::less<>>;

/// {"type": "custom", "name", "description", "format"} -> {"type": "function", "function"}, whose argument `input` is
/// held to the format's grammar, of syntax `lark` or `regex`. `where` names the tool in errors; `bytes` sums up the
/// Lark grammars of a request; `work`: RequestDefaults::work. Throws ApiError for a grammar that cannot be held, and
/// beyond kMostInputGrammars.
json::object custom_function(const json::object& tool, const std::string& where, std::size_t& bytes, WorkBudget* work);
/// The tools of a chat, those of {"type": "custom", "custom": {"name", ...}} as functions, named in `names`.
json::array with_custom_functions(const json::array& tools, CustomNames& names, WorkBudget* work);

/// The text in the arguments of a call, as far as it came.
std::string text_of_input(std::string_view arguments);
/// {"type": "custom", "custom": {"name", "input"}} -> {"type": "function", "function": {"name", "arguments"}}, for the
/// history; other calls stay as they are.
void call_as_function(json::object& call);

}  // namespace riptide::server
