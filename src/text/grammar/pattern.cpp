// Regular expressions: their syntax.
#include "text/grammar/pattern.h"

#include <algorithm>

#include "text/grammar/pattern_reader.h"

namespace riptide {

namespace {

constexpr std::size_t kLongestPattern = 16 << 10;
constexpr int kDeepestPattern = 64;

const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class PatternParser : PatternReader {
  public:
    PatternParser(std::string_view text, const PatternStyle& style) : PatternReader(text, style) {}

    Pattern parse() {
        check_text(kLongestPattern, "a regular expression");
        out_.root = alternatives(0);
        if (more()) wrong("a ) without its (");
        return std::move(out_);
    }

  private:
    using Kind = Pattern::Kind;

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
        for (skip(); more() && peek() != '|' && peek() != ')'; skip()) parts.push_back(quantified(atom(depth)));
        return parts.size() == 1 ? parts[0] : add(Kind::sequence, std::move(parts));
    }

    /// White space and comments, where they are passed over.
    void skip() {
        while (style_.spaced && more()) {
            if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
            else if (std::string_view(" \t\n\r\f\v").find(peek()) != std::string_view::npos) ++at_;
            else break;
        }
    }

    /// What a dot is.
    CharSet any_character() const {
        if (style_.dot_all) return all_characters();
        return complement(style_.wide ? CharSet{{'\n', '\n'}} : kLineEnds);
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
                return one(any_character());
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
                return one(cased(escape(false)));
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
        const char32_t c = letter();
        return one(cased({{c, c}}));
    }

    int32_t group(int depth) {
        if (depth >= kDeepestPattern) wrong(fmt::format("groups nest deeper than {}", kDeepestPattern));
        ++at_;
        const PatternStyle outer = style_;
        const bool flagged = style_.wide && flags();
        if (flagged && take(")")) return add(Kind::sequence);  // they hold to the end of the group round this
        const Kind kind = flagged ? Kind::sequence : opening();
        const int32_t inside = alternatives(depth + 1);
        if (!take(")")) wrong("a ( without its )");
        style_ = outer;
        return kind == Kind::sequence ? inside : add(kind, {inside});
    }

    /// Behind a (: what kind of group it is.
    Kind opening() {
        if (take("?=")) return Kind::ahead;
        if (take("?!")) return Kind::not_ahead;
        if (next_is("?<=") || next_is("?<!")) wrong("look-behind is not supported");
        if (take("?<") || take("?P<")) {
            at_ = std::min(text_.find('>', at_), text_.size());
            if (!take(">")) wrong("a group's name without its >");
        } else if (!take("?:") && peek() == '?') {
            wrong("this kind of group is not supported");
        }
        return Kind::sequence;
    }

    /// Behind a (: ?i or ?is-x, and a colon if there is one. False, with nothing taken, if there are no flags.
    bool flags() {
        const std::size_t end = std::min(text_.find_first_not_of("imsxuU-", at_ + 1), text_.size());
        if (!next_is("?") || end <= at_ + 1 || end == text_.size() || (text_[end] != ')' && text_[end] != ':'))
            return false;
        bool on = true;
        for (++at_; at_ < end; ++at_) {
            if (peek() == '-') on = false;
            else if (peek() == 'i') style_.any_case = on;
            else if (peek() == 's') style_.dot_all = on;
            else if (peek() == 'x') style_.spaced = on;
            else if (peek() == 'u' && !on) wrong("the flag -u (bytes) is not supported");
        }
        take(":");
        return true;
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
        skip();
        if (take("*")) {
        } else if (take("+")) {
            node.least = 1;
        } else if (take("?")) {
            node.most = 1;
        } else if (quantifier_ahead()) {
            ++at_;
            node.least = node.most = count();
            if (take(",")) node.most = peek() == '}' ? Grammar::kUnbounded : count();
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

    Pattern out_;
};

}  // namespace

Pattern parse_pattern(std::string_view text, const PatternStyle& style) { return PatternParser(text, style).parse(); }

}  // namespace riptide
