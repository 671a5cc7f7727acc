#include "text/jinja/unicode.h"

#include <algorithm>

#include "text/generated/jinja_case_tables.h"
#include "text/utf8.h"

namespace riptide::jinja {
namespace {

bool in_ranges(const Range* ranges, int count, char32_t code) {
    const Range* found =
        std::upper_bound(ranges, ranges + count, code, [](char32_t c, const Range& range) { return c < range.first; });
    return found != ranges && code <= (found - 1)->last;
}

/// The delta of `code` in the runs, or `none`.
const CaseRun* find_run(const CaseRun* runs, int count, char32_t code) {
    // Runs of step 2 may interleave (upper and lower letters by turns), so look back over a few.
    const CaseRun* found =
        std::upper_bound(runs, runs + count, code, [](char32_t c, const CaseRun& run) { return c < run.first; });
    for (int back = 0; found != runs && back < 4; ++back) {
        --found;
        if (code <= found->last && (code - found->first) % static_cast<uint32_t>(found->step) == 0) return found;
    }
    return nullptr;
}

bool append_special(std::string& out, char32_t code, int kind) {
    for (int i = 0; i < kSpecialCount; ++i) {
        if (kSpecial[i].code != code || kSpecial[i].kind != kind) continue;
        for (const uint32_t to : kSpecial[i].to) {
            if (to != 0) append_utf8(out, to);
        }
        return true;
    }
    return false;
}

}  // namespace

Char char_at(std::string_view text, int64_t at) {
    const auto first = static_cast<unsigned char>(text[static_cast<std::size_t>(at)]);
    if (first < 0x80) return {first, 1};
    const Utf8Char found = utf8_at(text, static_cast<std::size_t>(at));
    if (found.kind != Utf8Char::Kind::character) return {0xFFFD, 1};
    return {found.code_point, found.length};
}

int64_t char_before(std::string_view text, int64_t at) {
    int64_t begin = at - 1;
    while (begin > 0 && at - begin < 4 && (text[static_cast<std::size_t>(begin)] & 0xC0) == 0x80) --begin;
    return begin + char_at(text, begin).bytes == at ? begin : at - 1;
}

int64_t count_chars(std::string_view text) {
    int64_t count = 0;
    const auto size = static_cast<int64_t>(text.size());
    for (int64_t at = 0; at < size; at += char_at(text, at).bytes) ++count;
    return count;
}

int64_t byte_of_char(std::string_view text, int64_t index) {
    int64_t at = 0;
    const auto size = static_cast<int64_t>(text.size());
    while (index-- > 0 && at < size) at += char_at(text, at).bytes;
    return at;
}

bool is_space(char32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_line_end(char32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

bool is_upper(char32_t code) {
    if (code < 0x80) return code >= 'A' && code <= 'Z';
    return in_ranges(kIsUpper, kIsUpperCount, code);
}
bool is_lower(char32_t code) {
    if (code < 0x80) return code >= 'a' && code <= 'z';
    return in_ranges(kIsLower, kIsLowerCount, code);
}
bool is_alpha(char32_t code) { return in_ranges(kIsAlpha, kIsAlphaCount, code); }
bool is_digit(char32_t code) { return in_ranges(kIsDigit, kIsDigitCount, code); }
bool is_printable(char32_t code) {
    if (code < 0x80) return code >= 0x20 && code < 0x7F;
    return !in_ranges(kNotPrintable, kNotPrintableCount, code);
}

void append_case(std::string& out, char32_t code, Case to) {
    if (code < 0x80) {
        const auto byte = static_cast<char>(code);
        if (to == Case::lower) out += byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte;
        else out += byte >= 'a' && byte <= 'z' ? static_cast<char>(byte - 32) : byte;
        return;
    }
    const CaseRun* run = nullptr;
    if (to == Case::title) {
        if (append_special(out, code, 2)) return;
        run = find_run(kTitle, kTitleCount, code);
        if (run == nullptr) to = Case::upper;
    }
    if (run == nullptr) {
        if (append_special(out, code, to == Case::upper ? 0 : 1)) return;
        run = to == Case::upper ? find_run(kUpper, kUpperCount, code) : find_run(kLower, kLowerCount, code);
    }
    append_utf8(out, run == nullptr ? code : static_cast<char32_t>(static_cast<int64_t>(code) + run->delta));
}

Kept strip_range(std::string_view text, const std::string_view* chars, bool left, bool right,
                 const std::function<void(int64_t)>& count) {
    const auto strips = [&](int64_t at, int bytes) {
        if (count) count(bytes + (chars == nullptr ? 0 : static_cast<int64_t>(chars->size())));
        if (chars == nullptr) return is_space(char_at(text, at).code);
        const std::string_view c = text.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
        for (int64_t i = 0; i < static_cast<int64_t>(chars->size());) {
            const int step = char_at(*chars, i).bytes;
            if (chars->substr(static_cast<std::size_t>(i), static_cast<std::size_t>(step)) == c) return true;
            i += step;
        }
        return false;
    };
    Kept kept{0, static_cast<int64_t>(text.size())};
    while (left && kept.begin < kept.end) {
        const int bytes = char_at(text, kept.begin).bytes;
        if (!strips(kept.begin, bytes)) break;
        kept.begin += bytes;
    }
    while (right && kept.begin < kept.end) {
        const int64_t at = char_before(text, kept.end);
        if (at < kept.begin || !strips(at, static_cast<int>(kept.end - at))) break;
        kept.end = at;
    }
    return kept;
}

}  // namespace riptide::jinja
