#include "text/grammar_regex.h"

#include <optional>

#include "text/utf8.h"

namespace riptide {

namespace {

constexpr std::size_t kLongestPattern = 16 << 10;
constexpr int kDeepestPattern = 64;

const CharSet kDigitSet = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpace = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexParser {
  public:
    RegexParser(Grammar& grammar, std::string_view pattern, const CharWriter& write)
        : grammar_(grammar), pattern_(pattern), write_(write) {}

    Grammar::Expr parse(bool search) {
        if (pattern_.size() > kLongestPattern)
            throw GrammarError(
                fmt::format("a regular expression of {} bytes, expected at most {}", pattern_.size(), kLongestPattern));
        if (utf8_valid_prefix(pattern_) < pattern_.size()) wrong("not valid UTF-8");
        std::vector<Grammar::Expr> alternatives;
        const Grammar::Expr any =
            search ? grammar_.repeat(one(all_characters()), 0, Grammar::kUnbounded) : grammar_.empty();
        do {
            const bool from_start = take('^');
            const Grammar::Expr middle = sequence(0);
            const bool to_end = take('$');
            alternatives.push_back(
                grammar_.sequence({from_start ? grammar_.empty() : any, middle, to_end ? grammar_.empty() : any}));
        } while (take('|'));
        if (at_ < pattern_.size()) wrong(pattern_[at_] == ')' ? "a ) without its (" : "$ is supported only at the end");
        return grammar_.choice(std::move(alternatives));
    }

  private:
    [[noreturn]] void wrong(std::string_view what) const {
        throw GrammarError(fmt::format("regular expression, at byte {}: {}", at_, what));
    }
    bool more() const { return at_ < pattern_.size(); }
    char peek() const { return more() ? pattern_[at_] : '\0'; }
    bool take(char c) {
        const bool is = more() && pattern_[at_] == c;
        at_ += is;
        return is;
    }
    char32_t character() {
        if (!more()) wrong("it ends too early");
        const Utf8Char c = utf8_at(pattern_, at_);
        at_ += static_cast<std::size_t>(c.length);
        return c.code_point;
    }
    Grammar::Expr one(const CharSet& set) { return write_ ? write_(grammar_, set) : grammar_.chars(set); }

    Grammar::Expr alternatives(int depth) {
        std::vector<Grammar::Expr> all;
        do all.push_back(sequence(depth));
        while (take('|'));
        return grammar_.choice(std::move(all));
    }

    Grammar::Expr sequence(int depth) {
        std::vector<Grammar::Expr> parts;
        while (more() && peek() != '|' && peek() != ')' && peek() != '$') parts.push_back(quantified(atom(depth)));
        if (depth > 0 && peek() == '$') wrong("$ is supported only at the end");
        return grammar_.sequence(std::move(parts));
    }

    Grammar::Expr atom(int depth) {
        switch (peek()) {
            case '(':
                return group(depth);
            case '[':
                ++at_;
                return one(char_class());
            case '.':
                ++at_;
                return one(complement(kLineEnds));
            case '\\': {
                ++at_;
                const CharSet set = escape(false);
                return one(set);
            }
            case '^':
                wrong("^ is supported only at the start");
            case '*':
            case '+':
            case '?':
            case '{':
                wrong("nothing to repeat");
            default: {
                const char32_t c = character();
                return one({{c, c}});
            }
        }
    }

    Grammar::Expr group(int depth) {
        if (depth >= kDeepestPattern) wrong(fmt::format("groups nest deeper than {}", kDeepestPattern));
        ++at_;
        if (take('?')) {
            if (take('P') && peek() != '<') wrong("this kind of group is not supported");
            if (take('<')) {
                if (peek() == '=' || peek() == '!') wrong("look-behind is not supported");
                while (more() && peek() != '>') ++at_;
                if (!take('>')) wrong("a group's name without its >");
            } else if (peek() == '=' || peek() == '!') {
                wrong("look-ahead is not supported");
            } else if (!take(':')) {
                wrong("this kind of group is not supported");
            }
        }
        const Grammar::Expr inside = alternatives(depth + 1);
        if (!take(')')) wrong("a ( without its )");
        return inside;
    }

    Grammar::Expr quantified(Grammar::Expr part) {
        int64_t least = 0, most = Grammar::kUnbounded;
        if (take('*')) {
        } else if (take('+')) {
            least = 1;
        } else if (take('?')) {
            most = 1;
        } else if (take('{')) {
            least = most = number();
            if (take(',')) most = peek() == '}' ? Grammar::kUnbounded : number();
            if (!take('}')) wrong("expected }");
        } else {
            return part;
        }
        take('?');
        if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') wrong("two quantifiers in a row");
        return grammar_.repeat(part, least, most);
    }

    int64_t number() {
        int64_t value = 0;
        if (peek() < '0' || peek() > '9') wrong("expected a number");
        while (peek() >= '0' && peek() <= '9') {
            value = value * 10 + (pattern_[at_++] - '0');
            if (value > Grammar::kMostRepeats) wrong(fmt::format("more than {} repetitions", Grammar::kMostRepeats));
        }
        return value;
    }

    /// Behind the [.
    CharSet char_class() {
        const bool negated = take('^');
        CharSet set;
        while (!take(']')) {
            if (!more()) wrong("a [ without its ]");
            const CharSet low = class_item();
            const bool single = low.size() == 1 && low[0].first == low[0].second;
            if (single && peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
                ++at_;
                const CharSet high = class_item();
                if (high.size() != 1 || high[0].first != high[0].second || high[0].first < low[0].first)
                    wrong("a range that is none");
                set.emplace_back(low[0].first, high[0].first);
            } else {
                set.insert(set.end(), low.begin(), low.end());
            }
        }
        set = normalized(std::move(set));
        return negated ? complement(set) : set;
    }

    CharSet class_item() {
        if (take('\\')) return escape(true);
        const char32_t c = character();
        return {{c, c}};
    }

    /// Behind the backslash.
    CharSet escape(bool in_class) {
        const char32_t c = character();
        const auto just = [](char32_t code) { return CharSet{{code, code}}; };
        switch (c) {
            case 'd':
                return kDigitSet;
            case 'D':
                return complement(kDigitSet);
            case 'w':
                return kWord;
            case 'W':
                return complement(kWord);
            case 's':
                return kSpace;
            case 'S':
                return complement(kSpace);
            case 't':
                return just('\t');
            case 'n':
                return just('\n');
            case 'r':
                return just('\r');
            case 'f':
                return just('\f');
            case 'v':
                return just('\v');
            case '0':
                if (peek() < '0' || peek() > '9') return just(0);
                break;
            case 'x':
                return just(hex(2));
            case 'u':
                return just(unicode());
            case 'b':
                if (in_class) return just('\b');
                break;
            default:
                if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9')) return just(c);
        }
        --at_;  // all of these are one byte
        wrong(fmt::format("\\{} is not supported", static_cast<char>(c)));
    }

    char32_t hex(int digits) {
        char32_t value = 0;
        for (int i = 0; i < digits; ++i) {
            const char c = peek();
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) wrong("expected a hexadecimal digit");
            value = value * 16 + static_cast<char32_t>(digit);
            ++at_;
        }
        return value;
    }

    char32_t unicode() {
        char32_t value = 0;
        if (take('{')) {
            do {
                value = value * 16 + hex(1);
                if (value > 0x10FFFF) wrong("no such character");
            } while (!take('}'));
        } else {
            value = hex(4);
            const bool pair = value >= 0xD800 && value < 0xDC00 && pattern_.substr(at_).starts_with("\\u");
            if (pair) {
                at_ += 2;
                const char32_t low = hex(4);
                if (low < 0xDC00 || low > 0xDFFF) wrong("half of a surrogate pair");
                value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
            }
        }
        if (value >= 0xD800 && value < 0xE000) wrong("half of a surrogate pair");
        return value;
    }

    Grammar& grammar_;
    std::string_view pattern_;
    const CharWriter& write_;
    std::size_t at_ = 0;
};

}  // namespace

Grammar::Expr add_regex(Grammar& grammar, std::string_view pattern, bool search, const CharWriter& write) {
    return RegexParser(grammar, pattern, write).parse(search);
}

}  // namespace riptide
