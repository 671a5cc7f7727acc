#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace riptide {
namespace {

constexpr std::size_t kMaxPattern = 16384;
constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

std::string message_of(int code) {
    PCRE2_UCHAR buffer[256] = {};
    pcre2_get_error_message(code, buffer, sizeof(buffer));
    return reinterpret_cast<const char*>(buffer);
}

}  // namespace

std::string translate_regex(std::string_view pattern, std::string_view what) {
    std::string out;
    bool in_class = false;
    std::size_t class_start = 0;  // where a ']' would still be a literal
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < pattern.size()) {
            const char next = pattern[++i];
            if (next == 's' && in_class) {
                out.append(kWhiteSpace);
            } else if (next == 's' || (next == 'S' && !in_class)) {
                out.append(next == 's' ? "[" : "[^").append(kWhiteSpace).append("]");
            } else {
                out.append({c, next});
            }
            continue;
        }
        RT_CHECK(!(in_class && pattern.substr(i, 2) == "&&"), "{}: regular expression {:?} uses '&&' in a class", what,
                 pattern);
        if (c == '[' && !in_class) {
            in_class = true;
            class_start = i + (pattern.substr(i + 1, 1) == "^" ? 2 : 1);
        } else if (c == ']' && in_class && i != class_start) {
            in_class = false;
        }
        out.push_back(c);
    }
    return out;
}

struct Regex::Scratch::Impl {
    pcre2_match_data* data = nullptr;
    pcre2_match_context* context = nullptr;
    Impl() : data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
        RT_CHECK(data != nullptr && context != nullptr, "out of memory for a regular expression match");
    }
    ~Impl() {
        pcre2_match_data_free(data);
        pcre2_match_context_free(context);
    }
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
Regex::Scratch::~Scratch() = default;

struct Regex::Impl {
    pcre2_code* code = nullptr;
    std::string what;
    ~Impl() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view what) : impl_(std::make_unique<Impl>()) {
    RT_CHECK(pattern.size() <= kMaxPattern, "{}: regular expression of {} bytes, at most {} are allowed", what,
             pattern.size(), kMaxPattern);
    const std::string text = translate_regex(pattern, what);
    impl_->what = what;
    int code = 0;
    PCRE2_SIZE offset = 0;
    const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    impl_->code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &code, &offset, nullptr);
    RT_CHECK(impl_->code != nullptr, "{}: regular expression {:?}: {}", what, pattern, message_of(code));
    // A machine that forbids executable memory makes this fail; pcre2_match then interprets the pattern.
    (void)pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view subject, std::size_t from, Scratch& scratch, Match& match) const {
    const Scratch::Impl& work = *scratch.impl_;
    const std::uint64_t limit = 1'000'000 + 100 * static_cast<std::uint64_t>(subject.size());
    pcre2_set_match_limit(work.context, static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, UINT32_MAX)));
    const auto text = reinterpret_cast<PCRE2_SPTR>(subject.data());
    const auto run = [&](std::uint32_t more) {
        return pcre2_match(impl_->code, text, subject.size(), from, PCRE2_NO_UTF_CHECK | more, work.data, work.context);
    };
    int result = run(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return false;
    RT_CHECK(result >= 0, "{}: regular expression failed on a text of {} bytes: {}", impl_->what, subject.size(),
             message_of(result));
    const PCRE2_SIZE* where = pcre2_get_ovector_pointer(work.data);
    RT_CHECK(where[0] >= from && where[0] <= where[1] && where[1] <= subject.size(),
             "{}: regular expression gives a match that ends before it starts", impl_->what);
    match = {where[0], where[1]};
    return true;
}

}  // namespace riptide
