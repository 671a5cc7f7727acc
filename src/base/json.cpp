#include "base/json.h"

#include "base/error.h"

namespace riptide {

namespace {

/// Boost has "syntax error" for the first half of a surrogate pair (U+D800 to U+DBFF) with no escape behind it, and
/// stops there or one byte further, behind a backslash.
std::string describe(const json::error_code& ec, std::string_view before) {
    if (ec != json::error::syntax) return ec.message();
    if (before.ends_with('\\')) before.remove_suffix(1);
    const std::string_view escape = before.substr(before.size() < 6 ? 0 : before.size() - 6);
    const bool half = escape.size() == 6 && escape.starts_with("\\u") && (escape[2] | 0x20) == 'd' &&
                      std::string_view("89abAB").find(escape[3]) != std::string_view::npos;
    return half ? fmt::format("{} is half of a surrogate pair, and the other half does not follow", escape)
                : ec.message();
}

}  // namespace

json::value parse_json(std::string_view text, std::string_view what, int max_depth) {
    json::parse_options options;
    options.max_depth = static_cast<std::size_t>(max_depth);
    json::stream_parser parser({}, options);
    json::error_code ec;
    const std::size_t used = parser.write_some(text.data(), text.size(), ec);
    if (!ec && parser.done()) {
        const std::size_t rest = text.find_first_not_of(" \t\r\n", used);
        RT_CHECK(rest == std::string_view::npos, "{}: extra bytes after the JSON value at byte {}", what, rest);
    } else if (!ec) {
        parser.finish(ec);
    }
    RT_CHECK(!ec, "{}: not valid JSON at byte {}: {}", what, used, describe(ec, text.substr(0, used)));
    return parser.release();
}

std::string_view kind_of(const json::value& value) {
    switch (value.kind()) {
        case json::kind::null:
            return "null";
        case json::kind::bool_:
            return "true or false";
        case json::kind::string:
            return "a string";
        case json::kind::array:
            return "an array";
        case json::kind::object:
            return "an object";
        default:
            return "a number";
    }
}

}  // namespace riptide
