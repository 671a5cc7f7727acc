// JSON in and out: the variables, and tojson = Python's json.dumps.
#include <cmath>

#include "text/jinja/interpreter.h"

#include "base/json.h"

namespace riptide::jinja {

Value Interpreter::from_json(const json::value& value, bool trusted, int depth) {
    if (depth > program_.limits.value_depth)
        fault("the variables are nested more than {} deep", program_.limits.value_depth);
    switch (value.kind()) {
        case json::kind::null:
            return Value::none();
        case json::kind::bool_:
            return Value::boolean(value.get_bool());
        case json::kind::int64:
            return Value::integer(value.get_int64());
        case json::kind::uint64:
            return Value::big(value.get_uint64());
        case json::kind::double_:
            return Value::floating(value.get_double());
        case json::kind::string:
            return heap_.text(std::string_view(value.get_string()), trusted);
        case json::kind::array: {
            std::vector<Value> items;
            items.reserve(value.get_array().size());
            for (const json::value& item : value.get_array()) items.push_back(from_json(item, trusted, depth + 1));
            return heap_.sequence(std::move(items));
        }
        case json::kind::object:
            break;
    }
    std::vector<std::pair<Value, Value>> items;
    items.reserve(value.get_object().size());
    for (const auto& [key, item] : value.get_object()) {
        bool item_trusted = trusted;
        if (item.is_string() && key == "role") {
            const auto& roles = options_.trusted_roles;
            item_trusted |= std::find(roles.begin(), roles.end(), std::string_view(item.get_string())) != roles.end();
        }
        items.emplace_back(heap_.text(std::string_view(key), trusted), from_json(item, item_trusted, depth + 1));
    }
    return heap_.dict(std::move(items));
}

namespace {

std::string escape_code(uint32_t code) {
    if (code < 0x10000) return fmt::format("\\u{:04x}", code);
    code -= 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
}

void append_json_string(TextBuilder& out, const Text& text, bool ensure_ascii) {
    out.heap().step_chars(text.size());
    out.append("\"", false);
    int64_t plain = 0;
    const std::string& bytes = text.bytes();
    for (int64_t at = 0; at < text.size();) {
        const auto byte = static_cast<unsigned char>(bytes[static_cast<std::size_t>(at)]);
        int length = 1;
        std::string escaped;
        if (byte == '"') escaped = "\\\"";
        else if (byte == '\\') escaped = "\\\\";
        else if (byte == '\n') escaped = "\\n";
        else if (byte == '\r') escaped = "\\r";
        else if (byte == '\t') escaped = "\\t";
        else if (byte == '\b') escaped = "\\b";
        else if (byte == '\f') escaped = "\\f";
        else if (byte < 0x20 || (ensure_ascii && byte == 0x7F)) escaped = escape_code(byte);
        else if (byte >= 0x80 && ensure_ascii) {
            const Char c = char_at(bytes, at);
            length = c.bytes;
            escaped = escape_code(static_cast<uint32_t>(c.code));
        }
        if (!escaped.empty()) {
            out.append(text, plain, at);
            out.append(escaped, text.trusted_at(at));
            plain = at + length;
        }
        at += length;
    }
    out.append(text, plain, text.size());
    out.append("\"", false);
}

std::string number_text(const Value& value) {
    if (value.is_big()) return std::to_string(value.as_big());
    if (value.is(Kind::integer)) return std::to_string(value.as_int());
    const double number = value.as_double();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return repr_of(number);
}

void append_key(TextBuilder& out, const Value& key, const JsonStyle& style) {
    switch (key.kind()) {
        case Kind::string:
            append_json_string(out, key.text(), style.ensure_ascii);
            return;
        case Kind::none:
            out.append("\"null\"", false);
            return;
        case Kind::boolean:
            out.append(key.as_bool() ? "\"true\"" : "\"false\"", false);
            return;
        case Kind::integer:
        case Kind::floating:
            out.append("\"" + number_text(key) + "\"", false);
            return;
        default:
            fault("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
}

void append_break(TextBuilder& out, const JsonStyle& style, int depth) {
    if (!style.indent) return;
    out.append("\n", false);
    for (int i = 0; i < depth; ++i) out.append(*style.indent);
}

}  // namespace

void append_json(TextBuilder& out, const Value& value, const JsonStyle& style, int depth) {
    out.heap().step();
    switch (value.kind()) {
        case Kind::none:
            out.append("null", false);
            return;
        case Kind::boolean:
            out.append(value.as_bool() ? "true" : "false", false);
            return;
        case Kind::integer:
        case Kind::floating:
            out.append(number_text(value), false);
            return;
        case Kind::string:
            append_json_string(out, value.text(), style.ensure_ascii);
            return;
        case Kind::sequence: {
            if (value.sequence().shape > Shape::group) break;
            const std::vector<Value>& items = value.sequence().items;
            out.append("[", false);
            for (std::size_t i = 0; i < items.size(); ++i) {
                if (i > 0) out.append(style.item_separator);
                append_break(out, style, depth + 1);
                append_json(out, items[i], style, depth + 1);
            }
            if (!items.empty()) append_break(out, style, depth);
            out.append("]", false);
            return;
        }
        case Kind::dict: {
            std::vector<const std::pair<Value, Value>*> items;
            for (const auto& item : value.dict().items) items.push_back(&item);
            if (style.sort_keys) {
                std::stable_sort(items.begin(), items.end(),
                                 [&](auto* a, auto* b) { return ordered(out.heap(), a->first, b->first, "<"); });
            }
            out.append("{", false);
            for (std::size_t i = 0; i < items.size(); ++i) {
                if (i > 0) out.append(style.item_separator);
                append_break(out, style, depth + 1);
                append_key(out, items[i]->first, style);
                out.append(style.key_separator);
                append_json(out, items[i]->second, style, depth + 1);
            }
            if (!items.empty()) append_break(out, style, depth);
            out.append("}", false);
            return;
        }
        default:
            break;
    }
    fault("Object of type {} is not JSON serializable", type_name(value));
}

}  // namespace riptide::jinja
