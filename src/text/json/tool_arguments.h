// Arguments of a tool call that a model wrote as keys and raw values, turned into JSON as they come.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "text/json/json_schema_document.h"

namespace riptide {

/// What the tools that a request offers say about their parameters.
class ToolSchemas {
  public:
    enum class Type {
        string,           // the raw text is the value
        nullable_string,  // the same, except that null and None are null
        any,              // JSON if it is JSON, else True, False or None, else a string
    };
    ToolSchemas() = default;
    /// `tools` as in a chat request: {"type": "function", "function": {"name", "parameters"}}, or the bare inner
    /// object, with the JSON schema under "parameters" or "input_schema". Whatever has another shape is passed over.
    explicit ToolSchemas(const json::array& tools);

    /// Whether there is a tool of this name.
    bool offers(std::string_view tool) const;
    /// Whether there is, and its schema names this parameter.
    bool declares(std::string_view tool, std::string_view parameter) const;
    /// The type of a parameter; `any` for unknown tools and parameters.
    /// A schema is a string's if it lets only strings through (SchemaDocument::types_of), or its `type` is one of the
    /// words that some write for it: str, text, enum.
    Type type_of(std::string_view tool, std::string_view parameter) const;
    /// `schema` is a part of the document.
    static Type type_of_schema(const SchemaDocument& document, const json::value& schema);

  private:
    using Types = std::map<std::string, Type, std::less<>>;  // ordered: strangers can choose what std::hash makes of names
    std::map<std::string, Types, std::less<>> types_;
};

/// Writes the JSON object of one call in fragments: `{"k": v`, then `, "k": v`, then `}`. The first of several equal
/// keys counts; later ones and empty ones are left out. Values of type string are written as they come, others when
/// they end. All text given must be valid UTF-8 and cut at character borders.
class ToolArguments {
  public:
    /// Starts the value of `key`. REQUIRES: no value open.
    void begin_value(std::string_view key, ToolSchemas::Type type, std::string& fragment);
    /// More of the value's raw text.
    void append(std::string_view text, std::string& fragment);
    /// Ends the value.
    void end_value(std::string& fragment);
    /// Ends the object (and a value that is open).
    void end(std::string& fragment);
    /// There was a value of this key.
    bool has(std::string_view key) const { return keys_.contains(key); }

  private:
    std::set<std::string, std::less<>> keys_;
    ToolSchemas::Type type_ = ToolSchemas::Type::any;
    bool open_ = false;
    bool ignored_ = false;
    std::string raw_;
};

/// The JSON of a raw value of type any or nullable_string, as above. JSON is taken over as written, without the white
/// space round it. Nesting beyond 100 counts as no JSON.
std::string json_of_raw(std::string_view raw, ToolSchemas::Type type);

/// A character that stands inside a JSON string in no other way (a quote, a backslash, those below a space): \" \\ \b
/// \f \n \r \t, or \u00XX.
std::string json_escape(char c);
/// Appends `text` (valid UTF-8) as the inside of a JSON string, with these escapes only.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace riptide
