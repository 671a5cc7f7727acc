#include "text/json/tool_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace riptide {
namespace {

using Type = ToolSchemas::Type;

constexpr std::size_t kMaxDepth = 100;

bool names_string(const json::value& type) {
    if (!type.is_string()) return false;
    const std::string_view name = type.get_string();
    return name == "string" || name == "str" || name == "text" || name == "enum";
}

const json::object* object_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr ? nullptr : value->if_object();
}

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool is_json(std::string_view text) {
    if (text.empty()) return false;
    json::error_code error;
    json::parse_options options;
    options.max_depth = kMaxDepth;
    json::stream_parser parser({}, options);
    const std::size_t used = parser.write(text.data(), text.size(), error);
    if (!error) parser.finish(error);
    return !error && used == text.size();
}

}  // namespace

Type ToolSchemas::type_of_schema(const SchemaDocument& document, const json::value& schema) {
    const json::object* object = schema.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type != nullptr && *type != "string" && names_string(*type)) return Type::string;
    const uint8_t types = document.types_of(schema);
    if (types == SchemaTypes::kString) return Type::string;
    return types == (SchemaTypes::kString | SchemaTypes::kNull) ? Type::nullable_string : Type::any;
}

ToolSchemas::ToolSchemas(const json::array& tools) {
    for (const json::value& tool : tools) {
        const json::object* function = tool.if_object();
        if (function == nullptr) continue;
        if (const json::object* inner = object_at(*function, "function")) function = inner;
        const json::value* name = function->if_contains("name");
        if (name == nullptr || !name->is_string()) continue;
        auto& types = types_[std::string(name->get_string())];
        const json::value* schema = function->if_contains("parameters");
        if (schema == nullptr || !schema->is_object()) schema = function->if_contains("input_schema");
        if (schema == nullptr || !schema->is_object()) continue;
        const SchemaDocument document(*schema);
        const json::object* properties = object_at(schema->get_object(), "properties");
        if (properties == nullptr) continue;
        for (const auto& [key, value] : *properties) types[std::string(key)] = type_of_schema(document, value);
    }
}

bool ToolSchemas::offers(std::string_view tool) const { return types_.contains(tool); }

bool ToolSchemas::declares(std::string_view tool, std::string_view parameter) const {
    const auto types = types_.find(tool);
    return types != types_.end() && types->second.contains(parameter);
}

Type ToolSchemas::type_of(std::string_view tool, std::string_view parameter) const {
    const auto types = types_.find(tool);
    if (types == types_.end()) return Type::any;
    const auto type = types->second.find(parameter);
    return type == types->second.end() ? Type::any : type->second;
}

std::string json_escape(char c) {
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kEscapes = "\"\\bfnrt";
    const std::size_t at = kEscaped.find(c);
    return at != std::string_view::npos ? std::string("\\") + kEscapes[at]
                                        : fmt::format("\\u{:04x}", static_cast<unsigned>(c));
}

void append_json_escaped(std::string_view text, std::string& out) {
    for (const char c : text) {
        if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) out += json_escape(c);
        else out += c;
    }
}

std::string json_of_raw(std::string_view raw, Type type) {
    const std::string_view text = trimmed(raw);
    if (type == Type::nullable_string) {
        if (text == "null" || text == "None") return "null";
    } else {
        if (is_json(text)) return std::string(text);
        if (text == "True") return "true";
        if (text == "False") return "false";
        if (text == "None") return "null";
    }
    std::string out = "\"";
    append_json_escaped(raw, out);
    return out + "\"";
}

void ToolArguments::begin_value(std::string_view key, Type type, std::string& fragment) {
    RT_ASSERT(!open_);
    open_ = true;
    type_ = type;
    raw_.clear();
    ignored_ = key.empty() || keys_.find(key) != keys_.end();
    if (ignored_) return;
    fragment += keys_.empty() ? "{\"" : ", \"";
    append_json_escaped(key, fragment);
    fragment += type == Type::string ? "\": \"" : "\": ";
    keys_.emplace(key);
}

void ToolArguments::append(std::string_view text, std::string& fragment) {
    if (ignored_) return;
    if (type_ == Type::string) {
        append_json_escaped(text, fragment);
    } else {
        raw_.append(text);
    }
}

void ToolArguments::end_value(std::string& fragment) {
    open_ = false;
    if (ignored_) return;
    fragment += type_ == Type::string ? "\"" : json_of_raw(raw_, type_);
    raw_.clear();
}

void ToolArguments::end(std::string& fragment) {
    if (open_) end_value(fragment);
    fragment += keys_.empty() ? "{}" : "}";
}

}  // namespace riptide
