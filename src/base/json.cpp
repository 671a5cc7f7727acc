#include "base/json.h"

#include "base/error.h"

namespace riptide {

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
    RT_CHECK(!ec, "{}: not valid JSON at byte {}: {}", what, used, ec.message());
    return parser.release();
}

}  // namespace riptide
