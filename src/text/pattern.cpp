// Regular expressions: their syntax.
#include "text/pattern.h"

#include <algorithm>
#include <map>

#include "text/utf8.h"

namespace riptide {

namespace {

constexpr std::size_t kLongestPattern = 16 << 10;
constexpr int kDeepestPattern = 64;

const CharSet kDigitSet = {{'0', '9'}};
const CharSet kSpace = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

bool is_ascii_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class PatternParser {
  public:
    PatternParser(std::string_view text, WorkBudget* work) : text_(text), work_(work) {}

    Pattern parse() {
        if (text_.size() > kLongestPattern)
            throw GrammarError(
                fmt::format("a regular expression of {} bytes, expected at most {}", text_.size(), kLongestPattern));
        if (utf8_valid_prefix(text_) < text_.size()) wrong("not valid UTF-8");
        out_.root = alternatives(0);
        if (more()) wrong("a ) without its (");
        return std::move(out_);
    }

  private:
    using Kind = Pattern::Kind;

    [[noreturn]] void wrong(std::string_view what) const {
        throw GrammarError(fmt::format("regular expression, at byte {}: {}", at_, what));
    }
    bool more() const { return at_ < text_.size(); }
    char peek() const { return more() ? text_[at_] : '\0'; }
    bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
    bool take(std::string_view what) {
        const bool is = next_is(what);
        at_ += is ? what.size() : 0;
        return is;
    }
    char32_t character() {
        if (!more()) wrong("it ends too early");
        const Utf8Char c = utf8_at(text_, at_);
        at_ += static_cast<std::size_t>(c.length);
        return c.code_point;
    }

    int32_t add(Pattern::Node node) {
        out_.nodes.push_back(std::move(node));
        return static_cast<int32_t>(out_.nodes.size() - 1);
    }
    int32_t add(Kind kind, std::vector<int32_t> parts = {}) {
        Pattern::Node node{kind};
        node.parts = std::move(parts);
        return add(std::move(node));
    }
    int32_t one(CharSet set) {
        Pattern::Node node{Kind::chars};
        node.chars = std::move(set);
        return add(std::move(node));
    }

    int32_t alternatives(int depth) {
        std::vector<int32_t> all;
        do all.push_back(sequence(depth));
        while (take("|"));
        return all.size() == 1 ? all[0] : add(Kind::choice, std::move(all));
    }

    int32_t sequence(int depth) {
        std::vector<int32_t> parts;
        while (more() && peek() != '|' && peek() != ')') parts.push_back(quantified(atom(depth)));
        return parts.size() == 1 ? parts[0] : add(Kind::sequence, std::move(parts));
    }

    int32_t atom(int depth) {
        switch (peek()) {
            case '(':
                return group(depth);
            case '[':
                ++at_;
                return one(char_class());
            case '.':
                ++at_;
                return one(complement(kLineEnds));
            case '^':
                ++at_;
                return add(Kind::start);
            case '$':
                ++at_;
                return add(Kind::end);
            case '\\':
                if (take("\\b")) return add(Kind::border);
                if (take("\\B")) return add(Kind::no_border);
                ++at_;
                return one(escape(false));
            case '{':
                if (!quantifier_ahead()) break;
                [[fallthrough]];
            case '*':
            case '+':
            case '?':
                wrong("nothing to repeat");
            default:
                break;
        }
        const char32_t c = character();
        return one({{c, c}});
    }

    int32_t group(int depth) {
        if (depth >= kDeepestPattern) wrong(fmt::format("groups nest deeper than {}", kDeepestPattern));
        ++at_;
        Kind kind = Kind::sequence;
        if (take("?=")) kind = Kind::ahead;
        else if (take("?!")) kind = Kind::not_ahead;
        else if (next_is("?<=") || next_is("?<!")) wrong("look-behind is not supported");
        else if (take("?<") || take("?P<")) {
            at_ = std::min(text_.find('>', at_), text_.size());
            if (!take(">")) wrong("a group's name without its >");
        } else if (!take("?:") && peek() == '?') {
            wrong("this kind of group is not supported");
        }
        const int32_t inside = alternatives(depth + 1);
        if (!take(")")) wrong("a ( without its )");
        return kind == Kind::sequence ? inside : add(kind, {inside});
    }

    /// A { that begins {n}, {n,} or {n,m}; any other is itself.
    bool quantifier_ahead() const {
        std::size_t i = at_ + 1;
        const auto digits = [&] {
            const std::size_t first = i;
            while (i < text_.size() && text_[i] >= '0' && text_[i] <= '9') ++i;
            return i > first;
        };
        if (peek() != '{' || !digits()) return false;
        if (i < text_.size() && text_[i] == ',') {
            ++i;
            digits();
        }
        return i < text_.size() && text_[i] == '}';
    }

    int32_t quantified(int32_t part) {
        Pattern::Node node{Kind::repeat};
        node.most = Grammar::kUnbounded;
        if (take("*")) {
        } else if (take("+")) {
            node.least = 1;
        } else if (take("?")) {
            node.most = 1;
        } else if (quantifier_ahead()) {
            ++at_;
            node.least = node.most = number();
            if (take(",")) node.most = peek() == '}' ? Grammar::kUnbounded : number();
            take("}");
            if (node.most != Grammar::kUnbounded && node.least > node.most)
                wrong(fmt::format("at least {} repetitions and at most {}", node.least, node.most));
        } else {
            return part;
        }
        take("?");
        if (peek() == '*' || peek() == '+' || peek() == '?' || quantifier_ahead()) wrong("two quantifiers in a row");
        node.parts = {part};
        return add(std::move(node));
    }

    int64_t number() {
        int64_t value = 0;
        while (peek() >= '0' && peek() <= '9') {
            value = value * 10 + (text_[at_++] - '0');
            if (value > Grammar::kMostRepeats) wrong(fmt::format("more than {} repetitions", Grammar::kMostRepeats));
        }
        return value;
    }

    /// Behind the [.
    CharSet char_class() {
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
        set = normalized(std::move(set));
        return negated ? complement(set) : set;
    }

    CharSet class_item() {
        if (take("\\")) return escape(true);
        const char32_t c = character();
        return {{c, c}};
    }

    /// Behind the backslash.
    CharSet escape(bool in_class) {
        const std::size_t start = at_;
        const char32_t c = character();
        const auto just = [](char32_t code) { return CharSet{{code, code}}; };
        constexpr std::string_view kNames = "tnvfr";
        switch (c) {
            case 'd':
            case 'D':
                return c == 'd' ? kDigitSet : complement(kDigitSet);
            case 'w':
            case 'W':
                return c == 'w' ? word_characters() : complement(word_characters());
            case 's':
            case 'S':
                return c == 's' ? kSpace : complement(kSpace);
            case 't':
            case 'n':
            case 'v':
            case 'f':
            case 'r':
                return just("\t\n\v\f\r"[kNames.find(static_cast<char>(c))]);
            case '0':
                if (peek() < '0' || peek() > '9') return just(0);
                break;
            case 'c':
                if (is_ascii_letter(static_cast<unsigned char>(peek()))) return just(character() % 32);
                break;
            case 'x':
                return just(hex(2));
            case 'u':
                return just(unicode());
            case 'p':
            case 'P':
                return property(c == 'P');
            case 'b':
                if (in_class) return just('\b');
                break;
            default:
                if (!is_ascii_letter(c) && !(c >= '0' && c <= '9')) return just(c);
        }
        at_ = start;
        wrong(fmt::format("\\{} is not supported", static_cast<char>(c)));
    }

    CharSet property(bool not_in) {
        const std::size_t start = at_, end = text_.find('}', at_);
        std::string_view name;
        if (take("{") && end != std::string_view::npos) {
            name = text_.substr(at_, end - at_);
            at_ = end + 1;
        } else if (more() && is_ascii_letter(static_cast<unsigned char>(peek()))) {  // \pL
            name = text_.substr(at_++, 1);
        }
        constexpr std::size_t kMostProperties = 8;  // each takes a look at every character
        const auto [known, is_new] = properties_.try_emplace(name);
        if (is_new && properties_.size() > kMostProperties)
            wrong(fmt::format("more than {} properties of Unicode in one regular expression", kMostProperties));
        constexpr int64_t kAllCharacters = 4'400'000;  // bytes
        if (is_new && work_ != nullptr) work_->spend_bytes(kAllCharacters);
        if (is_new) known->second = unicode_property(name);
        const CharSet& set = known->second;
        if (set.empty()) {
            at_ = start;
            wrong(fmt::format("\\p of '{}' is not known", name.substr(0, 40)));
        }
        return not_in ? complement(set) : set;
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
        if (take("{")) {
            do {
                value = value * 16 + hex(1);
                if (value > 0x10FFFF) wrong("no such character");
            } while (!take("}"));
        } else {
            value = hex(4);
            if (value >= 0xD800 && value < 0xDC00 && take("\\u")) {
                const char32_t low = hex(4);
                if (low < 0xDC00 || low > 0xDFFF) wrong("half of a surrogate pair");
                value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
            }
        }
        if (value >= 0xD800 && value < 0xE000) wrong("half of a surrogate pair");
        return value;
    }

    std::string_view text_;
    WorkBudget* work_;
    std::size_t at_ = 0;
    Pattern out_;
    std::map<std::string_view, CharSet> properties_;
};

}  // namespace

const CharSet& word_characters() {
    static const CharSet set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    return set;
}

Pattern parse_pattern(std::string_view text, WorkBudget* work) { return PatternParser(text, work).parse(); }

}  // namespace riptide
