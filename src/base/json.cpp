#include "base/json.h"

#include <sys/mman.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/work_budget.h"

namespace riptide {

namespace {

/// Boost has "syntax error" for the first half of a surrogate pair (U+D800 to U+DBFF) with no escape behind it, and
/// stops there or one byte further, behind a backslash.
std::string describe(const json::error_code& ec, std::string_view before) {
    if (ec == json::error::object_too_large) return fmt::format("an object of more than {} members", kMostJsonMembers);
    if (ec != json::error::syntax) return ec.message();
    if (before.ends_with('\\')) before.remove_suffix(1);
    const std::string_view escape = before.substr(before.size() < 6 ? 0 : before.size() - 6);
    const bool half = escape.size() == 6 && escape.starts_with("\\u") && (escape[2] | 0x20) == 'd' &&
                      std::string_view("89abAB").find(escape[3]) != std::string_view::npos;
    return half ? fmt::format("{} is half of a surrogate pair, and the other half does not follow", escape)
                : ec.message();
}

/// Makes values of what the parser finds. Doubles are read from their text: the parser's own are up to three units in
/// the last place away.
template <std::size_t MostMembers>
struct ValueBuilder {
    static constexpr std::size_t max_object_size = MostMembers, max_array_size = json::array::max_size(),
                                 max_key_size = json::string::max_size(), max_string_size = json::string::max_size();
    json::value_stack stack;
    std::string number;  // the parts of one that have come

    explicit ValueBuilder(const json::storage_ptr& memory) : stack(memory) { stack.reset(memory); }
    bool on_document_begin(json::error_code&) { return true; }
    bool on_document_end(json::error_code&) { return true; }
    bool on_object_begin(json::error_code&) { return true; }
    bool on_object_end(std::size_t n, json::error_code&) { return stack.push_object(n), true; }
    bool on_array_begin(json::error_code&) { return true; }
    bool on_array_end(std::size_t n, json::error_code&) { return stack.push_array(n), true; }
    bool on_key_part(std::string_view s, std::size_t, json::error_code&) { return stack.push_chars(s), true; }
    bool on_key(std::string_view s, std::size_t, json::error_code&) { return stack.push_key(s), true; }
    bool on_string_part(std::string_view s, std::size_t, json::error_code&) { return stack.push_chars(s), true; }
    bool on_string(std::string_view s, std::size_t, json::error_code&) { return stack.push_string(s), true; }
    bool on_number_part(std::string_view s, json::error_code&) { return number += s, true; }
    bool on_int64(std::int64_t i, std::string_view, json::error_code&) {
        number.clear();
        return stack.push_int64(i), true;
    }
    bool on_uint64(std::uint64_t u, std::string_view, json::error_code&) {
        number.clear();
        return stack.push_uint64(u), true;
    }
    bool on_double(double, std::string_view s, json::error_code&) {
        number += s;
        double value = 0;
        const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
        if (error == std::errc::result_out_of_range) value = std::strtod(number.c_str(), nullptr);
        number.clear();
        return stack.push_double(value), true;
    }
    bool on_bool(bool b, json::error_code&) { return stack.push_bool(b), true; }
    bool on_null(json::error_code&) { return stack.push_null(), true; }
    bool on_comment_part(std::string_view, json::error_code&) { return true; }
    bool on_comment(std::string_view, json::error_code&) { return true; }
};

/// Up to a limit. Small pieces lie one behind the other in blocks that are given back together, when the last value has
/// gone: two million pieces of the heap's own would make whoever asks it next tidy up for a tenth of a second. Large
/// ones are the heap's, and where they begin is drawn: Boost salts an object's hash table with its address, and whoever
/// knows the lower bits of that can send names that all have one hash (65,536 took 2 s, 262,144 took 41).
class CountedMemory final : public json::memory_resource {
  public:
    CountedMemory(std::string_view what, int64_t most) : what_(what), most_(most) {}

  private:
    static constexpr std::size_t kLarge = 4096, kStep = alignof(std::max_align_t), kMostBlock = std::size_t{2} << 20;
    struct Free {
        void operator()(char* block) const { std::free(block); }
    };

    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        const std::lock_guard lock(mutex_);
        count(static_cast<int64_t>(bytes));
        if (bytes >= kLarge) return large(bytes);
        std::size_t at = (used_ + alignment - 1) / alignment * alignment;
        if (at + bytes > size_) {
            add_block();
            at = 0;
        }
        used_ = at + bytes;
        return blocks_.back().get() + at;
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t) override {
        if (bytes < kLarge) return;
        std::size_t ahead = 0;
        std::memcpy(&ahead, static_cast<char*>(memory) - sizeof(ahead), sizeof(ahead));
        ::operator delete(static_cast<char*>(memory) - ahead);
        const std::lock_guard lock(mutex_);
        taken_ -= static_cast<int64_t>(bytes);
    }
    bool do_is_equal(const json::memory_resource& other) const noexcept override { return this == &other; }

    void count(int64_t more) {
        if (taken_ + more > most_) fail("{}: its values need more than {} bytes of memory", what_, most_);
        taken_ += more;
    }
    void* large(std::size_t bytes) {
        thread_local std::minstd_rand random(std::random_device{}());
        const std::size_t ahead = kStep * (1 + random() % (kLarge / kStep));
        char* const memory = static_cast<char*>(::operator new(ahead + bytes)) + ahead;
        std::memcpy(memory - sizeof(ahead), &ahead, sizeof(ahead));
        return memory;
    }
    /// Blocks double up to two MiB, which are one page where the kernel has such.
    void add_block() {
        size_ = std::min(kMostBlock, std::max(kLarge, 2 * size_));
        blocks_.emplace_back(static_cast<char*>(std::aligned_alloc(size_, size_)));
        if (!blocks_.back()) throw std::bad_alloc();
        if (size_ == kMostBlock) madvise(blocks_.back().get(), size_, MADV_HUGEPAGE);
    }

    const std::string what_;
    const int64_t most_;
    std::mutex mutex_;  // copies are made by several threads
    int64_t taken_ = 0;
    std::vector<std::unique_ptr<char, Free>> blocks_;
    std::size_t size_ = 0, used_ = 0;  // of the last
};

template <std::size_t MostMembers>
json::value parse_into(const json::storage_ptr& memory, std::string_view text, std::string_view what, int max_depth,
                       WorkBudget* work) {
    constexpr std::size_t kBetweenLooks = std::size_t{16} << 10;  // bytes, of which some 50 MB are parsed in a second
    json::parse_options options;
    options.max_depth = static_cast<std::size_t>(max_depth);
    json::basic_parser<ValueBuilder<MostMembers>> parser(options, memory);
    json::error_code ec;
    std::size_t used = 0;
    while (used < text.size() && !ec && !parser.done()) {
        used += parser.write_some(true, text.data() + used, std::min(kBetweenLooks, text.size() - used), ec);
        if (work != nullptr) work->look();
    }
    if (!ec && parser.done()) {
        const std::size_t rest = text.find_first_not_of(" \t\r\n", used);
        RT_CHECK(rest == std::string_view::npos, "{}: extra bytes after the JSON value at byte {}", what, rest);
    } else if (!ec) {
        parser.write_some(false, nullptr, 0, ec);
    }
    RT_CHECK(!ec, "{}: not valid JSON at byte {}: {}", what, used, describe(ec, text.substr(0, used)));
    return parser.handler().stack.release();
}

}  // namespace

json::value parse_json(std::string_view text, std::string_view what, int max_depth) {
    return parse_into<json::object::max_size()>({}, text, what, max_depth, nullptr);
}

json::value parse_json_within(std::string_view text, std::string_view what, int64_t max_bytes, WorkBudget* work,
                              int max_depth) {
    return parse_into<kMostJsonMembers>(json_memory(what, max_bytes), text, what, max_depth, work);
}

json::storage_ptr json_memory(std::string_view what, int64_t max_bytes) {
    return json::make_shared_resource<CountedMemory>(what, max_bytes);
}

const json::value& SharedJson::operator*() const {
    static const json::value null;
    return value_ ? *value_ : null;
}

json::value sorted_members(const json::value& value) {
    if (const json::array* array = value.if_array()) {
        json::array out(array->storage());
        for (const json::value& one : *array) out.push_back(sorted_members(one));
        return out;
    }
    const json::object* object = value.if_object();
    if (object == nullptr) return value;
    std::map<std::string_view, const json::value*> members;
    for (const auto& [key, one] : *object) members[key] = &one;
    json::object out(object->storage());
    out.reserve(members.size());
    for (const auto& [key, one] : members) out[key] = sorted_members(*one);
    return out;
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
