// JSON Schema as a grammar.
#pragma once

#include "base/json_fwd.h"
#include "text/grammar.h"
#include "text/json_grammar.h"

namespace riptide {

/// `lenient`: keywords that are not supported are passed over, and a part that cannot be used allows whatever its type
/// allows; what is left still holds. Else both are errors.
struct SchemaOptions {
    bool lenient = false;
};

/// Texts that are valid by a schema (draft 2020-12, and drafts 4 to 7 as far as they agree): all that is matched is
/// valid; not all that is valid is matched. Supported:
///
/// - type (one or several), enum, const, anyOf, oneOf (if its parts exclude each other visibly: by type or by a
/// required
///   property with a constant), allOf of one, $ref within the document, also recursive; true and false
/// - objects: properties, required, additionalProperties. Members come in the order of `properties`, then required ones
///   that it does not name, then others. Without additionalProperties there are others only if there are no properties.
/// - arrays: items, minItems, maxItems (at most 1000)
/// - strings: minLength, maxLength (at most 1,000,000), pattern (see add_regex), format (see string_formats.cpp)
/// - integers and numbers: minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf
///
/// Words that say nothing about what is valid (title, description, default, ..., x-*) are ignored. Everything else is a
/// GrammarError that names it and its place: "#/properties/a: 'uniqueItems' is not supported".
/// At most 64 levels and 20,000 schemas.
Grammar::Expr add_json_schema(Grammar& grammar, const json::value& schema, const SchemaOptions& options = {});

/// A part of a schema, in which '#' means `root`; `path` names it in errors.
Grammar::Expr add_json_schema(Grammar& grammar, const json::value& root, const json::value& part,
                              const std::string& path, const SchemaOptions& options);

/// Any JSON object.
Grammar::Expr add_json_object(Grammar& grammar);

/// A count: absent, or a whole number from 0 on. Throws GrammarError.
std::optional<int64_t> schema_count(const json::object& schema, std::string_view word, const std::string& path);

/// What a string of this format is: the whole of it. What it matches is valid; of email, hostname (no A-labels),
/// duration and regex it matches a part. Throws GrammarError for a format that is not known.
/// `counted`: its states will be counted with lengths; fewer, for a part of what is valid.
std::string regex_of_format(std::string_view format, bool counted = false);

/// A schema's pattern, format, minLength and maxLength. A format that zod writes beside the pattern that says the same
/// is left out there. Throws GrammarError with the place.
TextRules text_rules(const json::object& schema, const std::string& path);

}  // namespace riptide
