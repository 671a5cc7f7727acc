// JSON Schema as a grammar.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_regex.h"

namespace riptide {

struct SchemaOptions {
    /// Words that cannot be held are passed over, and a part that cannot be used allows whatever its type allows; what
    /// is left still holds. Else both are errors.
    bool lenient = false;
};

/// Texts that are valid by a schema (drafts 4 to 2020-12): all that is matched is valid; what is valid is matched, but
/// for the order of members (that of `properties`, then required ones that it does not name, then others), numbers
/// beyond JsonGrammar's digits, and formats (see regex_of_format). docs/structured-output.md lists what can be held;
/// words of those drafts that cannot are a GrammarError that names the word and its place: "#/properties/a:
/// 'unevaluatedItems' is not supported". Other words say nothing.
Grammar::Expr add_json_schema(Grammar& grammar, const json::value& schema, const SchemaOptions& options = {});

/// A part of a schema, in which '#' means `root`; `path` names it in errors.
Grammar::Expr add_json_schema(Grammar& grammar, const json::value& root, const json::value& part,
                              const std::string& path, const SchemaOptions& options);

/// Any JSON object.
Grammar::Expr add_json_object(Grammar& grammar);

/// One way for a string to be valid: one of `words`, if there are such; else all of the rest.
struct StringRules {
    std::optional<std::vector<std::string>> words;
    std::vector<std::string> patterns, formats, not_patterns, excluded;
    int64_t least = 0, most = Grammar::kUnbounded;  // characters

    bool free() const;          // any string
    bool only_lengths() const;  // any string of these lengths
};

/// The ways of the strings that are valid by a part of a schema. Throws GrammarError.
std::vector<StringRules> string_rules(const json::value& root, const json::value& part, const std::string& path,
                                      const SchemaOptions& options);

/// Strings by these rules, without quotes, each character written by `write`. Throws GrammarError.
Grammar::Expr add_string_inside(Grammar& grammar, const StringRules& rules, const CharWriter& write);

/// A count: absent, or a whole number from 0 on. Throws GrammarError.
std::optional<int64_t> schema_count(const json::object& schema, std::string_view word, const std::string& path);

/// What a string of this format is: the whole of it. What it matches is valid; of email, hostname (no A-labels),
/// duration and regex it matches a part. Throws GrammarError for a format that cannot be held.
/// `counted`: its states will be counted with lengths; fewer, for a part of what is valid.
std::string regex_of_format(std::string_view format, bool counted = false);
/// Whether JSON Schema, OpenAPI or their usual validators know this format of strings. Others say nothing.
bool is_known_format(std::string_view format);
/// Whether it says nothing where a pattern stands beside it, which says the same.
bool is_said_by_pattern(std::string_view format);

/// The name of a member in a JSON pointer.
std::string escaped_pointer(std::string_view key);

}  // namespace riptide
