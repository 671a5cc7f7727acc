#include "base/json.h"

#include <atomic>

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

/// The heap, up to a limit.
class CountedMemory final : public json::memory_resource {
  public:
    CountedMemory(std::string_view what, int64_t most) : what_(what), most_(most) {}

  private:
    void* do_allocate(std::size_t bytes, std::size_t align) override {
        const auto more = static_cast<int64_t>(bytes);
        if ((taken_ += more) > most_) {
            taken_ -= more;
            fail("{}: its values need more than {} bytes of memory", what_, most_);
        }
        return ::operator new(bytes, std::align_val_t(align));
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t align) override {
        taken_ -= static_cast<int64_t>(bytes);
        ::operator delete(memory, std::align_val_t(align));
    }
    bool do_is_equal(const json::memory_resource& other) const noexcept override { return this == &other; }

    const std::string what_;
    const int64_t most_;
    std::atomic<int64_t> taken_ = 0;
};

json::value parse_into(const json::storage_ptr& memory, std::string_view text, std::string_view what, int max_depth) {
    json::parse_options options;
    options.max_depth = static_cast<std::size_t>(max_depth);
    json::stream_parser parser(memory, options);
    parser.reset(memory);
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

}  // namespace

json::value parse_json(std::string_view text, std::string_view what, int max_depth) {
    return parse_into({}, text, what, max_depth);
}

json::value parse_json_within(std::string_view text, std::string_view what, int64_t max_bytes, int max_depth) {
    return parse_into(json::make_shared_resource<CountedMemory>(what, max_bytes), text, what, max_depth);
}

const json::value& SharedJson::operator*() const {
    static const json::value null;
    return value_ ? *value_ : null;
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
