#include "text/grammar/pattern_reader.h"

#include <algorithm>
#include <array>

#include "text/generated/jinja_case_tables.h"

namespace riptide {

namespace {

const CharSet kDigitSet = {{'0', '9'}};
const CharSet kSpace = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

/// What Rust's and Python's \s take, of either.
const CharSet kWideSpace = {{9, 13},          {28, 32},         {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
                            {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

const CharSet& wide_digits() {
    static const CharSet set = unicode_property("Nd");
    return set;
}

const CharSet& wide_word() {
    static const CharSet set = [] {
        CharSet all = {{'_', '_'}, {0x200C, 0x200D}};
        for (const char* name : {"Alphabetic", "L", "M", "N", "Pc"}) {
            const CharSet part = unicode_property(name);
            all.insert(all.end(), part.begin(), part.end());
        }
        return normalized(std::move(all));
    }();
    return set;
}

struct PosixClass {
    std::string_view name;
    CharSet set;
};
const std::array kPosixClasses = {PosixClass{"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
                                  PosixClass{"alpha", {{'A', 'Z'}, {'a', 'z'}}},
                                  PosixClass{"ascii", {{0, 127}}},
                                  PosixClass{"blank", {{'\t', '\t'}, {' ', ' '}}},
                                  PosixClass{"cntrl", {{0, 31}, {127, 127}}},
                                  PosixClass{"digit", {{'0', '9'}}},
                                  PosixClass{"graph", {{'!', '~'}}},
                                  PosixClass{"lower", {{'a', 'z'}}},
                                  PosixClass{"print", {{' ', '~'}}},
                                  PosixClass{"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
                                  PosixClass{"space", {{9, 13}, {' ', ' '}}},
                                  PosixClass{"upper", {{'A', 'Z'}}},
                                  PosixClass{"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
                                  PosixClass{"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}}};

using CasePair = std::pair<char32_t, char32_t>;

/// Each character with another case, and that; sorted.
const std::vector<CasePair>& case_pairs() {
    static const std::vector<CasePair> all = [] {
        std::vector<CasePair> out;
        const auto add = [&](const jinja::CaseRun* runs, int count) {
            for (const jinja::CaseRun* run = runs; run != runs + count; ++run)
                for (uint32_t c = run->first; c <= run->last; c += static_cast<uint32_t>(run->step)) {
                    const auto other = static_cast<char32_t>(static_cast<int64_t>(c) + run->delta);
                    out.emplace_back(c, other);
                    out.emplace_back(other, c);
                }
        };
        add(jinja::kUpper, jinja::kUpperCount);
        add(jinja::kLower, jinja::kLowerCount);
        std::sort(out.begin(), out.end());
        out.erase(std::unique(out.begin(), out.end()), out.end());
        return out;
    }();
    return all;
}

bool has_character(const CharSet& set, char32_t c) {
    const auto behind = std::upper_bound(set.begin(), set.end(), c,
                                         [](char32_t code, const auto& range) { return code < range.first; });
    return behind != set.begin() && c <= std::prev(behind)->second;
}

}  // namespace

const CharSet& word_characters() {
    static const CharSet set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    return set;
}

CharSet with_both_cases(const CharSet& set) {
    CharSet out = set;
    for (int round = 0; round < 2; ++round) {  // from K to k, and on to the sign of Kelvin
        CharSet more;
        const std::vector<CasePair>& pairs = case_pairs();
        auto pair = pairs.begin();
        for (const auto& [low, high] : out)
            for (pair = std::lower_bound(pair, pairs.end(), CasePair{low, 0});
                 pair != pairs.end() && pair->first <= high; ++pair)
                if (!has_character(out, pair->second)) more.emplace_back(pair->second, pair->second);
        if (more.empty()) break;
        more.insert(more.end(), out.begin(), out.end());
        out = normalized(std::move(more));
    }
    return out;
}

CharSet PatternReader::char_class() {
    const bool negated = take("^");
    CharSet set;
    while (!take("]")) {
        if (!more()) wrong("a [ without its ]");
        const CharSet low = class_item();
        const bool single = low.size() == 1 && low[0].first == low[0].second;
        if (single && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
            ++at_;
            const CharSet high = class_item();
            if (high.size() != 1 || high[0].first != high[0].second || high[0].first < low[0].first)
                wrong("a range that is none");
            set.emplace_back(low[0].first, high[0].first);
        } else {
            set.insert(set.end(), low.begin(), low.end());
        }
    }
    set = cased(normalized(std::move(set)));
    return negated ? complement(set) : set;
}

CharSet PatternReader::class_item() {
    if (take("\\")) return escape(true);
    if (style_.wide) {
        if (take("[:")) return posix_class();
        // Here readers differ: to some these are a class inside a class, or classes taken from each other.
        for (const std::string_view sign : {"[", "&&", "--", "~~"})
            if (next_is(sign)) wrong(fmt::format("{} inside a class is not supported; expected \\{}", sign, sign[0]));
    }
    const char32_t c = letter();
    return {{c, c}};
}

/// Behind the [:.
CharSet PatternReader::posix_class() {
    const bool negated = take("^");
    for (const PosixClass& one : kPosixClasses)
        if (next_is(std::string(one.name) + ":]")) {
            at_ += one.name.size() + 2;
            return negated ? complement(one.set) : one.set;
        }
    wrong("no name of a class behind [:");
}

CharSet PatternReader::escape(bool in_class) {
    const std::size_t start = at_;
    const char32_t c = letter();
    const auto just = [](char32_t code) { return CharSet{{code, code}}; };
    const auto either = [](bool is, const CharSet& set) { return is ? set : complement(set); };
    constexpr std::string_view kNames = "tnvfr";
    switch (c) {
        case 'd':
        case 'D':
            return either(c == 'd', style_.wide ? wide_digits() : kDigitSet);
        case 'w':
        case 'W':
            return either(c == 'w', style_.wide ? wide_word() : word_characters());
        case 's':
        case 'S':
            return either(c == 's', style_.wide ? kWideSpace : kSpace);
        case 't':
        case 'n':
        case 'v':
        case 'f':
        case 'r':
            return just("\t\n\v\f\r"[kNames.find(static_cast<char>(c))]);
        case '0':
            if (peek() < '0' || peek() > '9') return just(0);
            break;
        case 'a':
            if (style_.wide) return just('\a');
            break;
        case 'c':
            if (!style_.wide && is_ascii_letter(static_cast<unsigned char>(peek()))) return just(letter() % 32);
            break;
        case 'x':
            return just(style_.wide && take("{") ? braced() : hex(2));
        case 'u':
            return just(unicode());
        case 'U':
            if (style_.wide) return just(hex_character(8));
            break;
        case 'p':
        case 'P':
            return property(c == 'P');
        case 'b':
            if (in_class) return just('\b');
            break;
        default:
            if (!is_ascii_letter(c) && !(c >= '0' && c <= '9')) return just(c);
    }
    wrong_at(start, fmt::format("\\{} is not supported", static_cast<char>(c)));
}

CharSet PatternReader::property(bool not_in) {
    const std::size_t start = at_, end = text_.find('}', at_);
    std::string_view name;
    if (take("{") && end != std::string_view::npos) {
        name = text_.substr(at_, end - at_);
        at_ = end + 1;
    } else if (more() && is_ascii_letter(static_cast<unsigned char>(peek()))) {  // \pL
        name = text_.substr(at_++, 1);
    }
    constexpr std::size_t kMostProperties = 8;  // each takes a look at every character
    const auto [known, is_new] = properties_.try_emplace(std::string(name));
    if (is_new && properties_.size() > kMostProperties)
        wrong(fmt::format("more than {} properties of Unicode", kMostProperties));
    constexpr int64_t kAllCharacters = 4'400'000;  // bytes
    if (is_new && style_.work != nullptr) style_.work->spend_bytes(kAllCharacters);
    if (is_new) known->second = unicode_property(name);
    const CharSet& set = known->second;
    if (set.empty()) wrong_at(start, fmt::format("\\p of '{}' is not known", name.substr(0, 40)));
    return not_in ? complement(set) : set;
}

/// Digits up to a }.
char32_t PatternReader::braced() {
    char32_t value = 0;
    do {
        value = value * 16 + hex(1);
        if (value > 0x10FFFF) wrong("no such character");
    } while (!take("}"));
    return value;
}

char32_t PatternReader::unicode() {
    char32_t value = take("{") ? braced() : hex(4);
    if (value >= 0xD800 && value < 0xDC00 && take("\\u")) {
        const char32_t low = hex(4);
        if (low < 0xDC00 || low > 0xDFFF) wrong("half of a surrogate pair");
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    if (value >= 0xD800 && value < 0xE000) wrong("half of a surrogate pair");
    return value;
}

}  // namespace riptide
