#include "text/structured/grammar_ebnf.h"

#include <algorithm>
#include <map>

#include "text/grammar/text_reader.h"
#include "text/utf8.h"

namespace riptide {

namespace {

constexpr std::size_t kLongestGrammar = 256 << 10;
constexpr int kDeepestGroup = 64;

bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class EbnfParser : TextReader {
  public:
    EbnfParser(Grammar& grammar, std::string_view text) : TextReader(text), grammar_(grammar) {}

    Grammar::Expr parse() {
        check_text(kLongestGrammar, "a grammar");
        for (skip(); more(); skip()) definition();
        for (const auto& [name, known] : rules_)
            if (!known.defined) wrong_at(known.at, fmt::format("there is no rule '{}'", name));
        const auto root = rules_.find("root");
        if (root == rules_.end()) throw GrammarError("grammar: there is no rule 'root'");
        return grammar_.call(root->second.rule);
    }

  private:
    struct Known {
        Grammar::Rule rule = -1;
        bool defined = false;
        std::size_t at = 0;  // where it was first seen
    };

    std::string place() const override { return fmt::format("grammar, {}", line_and_column(text_, at_)); }
    void skip() {
        while (more()) {
            if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
            else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') ++at_;
            else break;
        }
    }
    std::string_view name() {
        const std::size_t begin = at_;
        while (is_name(peek())) ++at_;
        if (at_ == begin) wrong("expected the name of a rule");
        return text_.substr(begin, at_ - begin);
    }
    /// Whether a name with ::= behind it stands here.
    bool at_definition() {
        const std::size_t begin = at_;
        while (is_name(peek())) ++at_;
        const bool named = at_ > begin;
        skip();
        const bool is = named && text_.substr(at_).starts_with("::=");
        at_ = begin;
        return is;
    }
    Known& known(std::string_view name_of, std::size_t at) {
        Known& rule = rules_[std::string(name_of)];
        if (rule.rule < 0) {
            rule.rule = grammar_.declare();
            rule.at = at;
        }
        return rule;
    }

    void definition() {
        const std::size_t begin = at_;
        const std::string_view called = name();
        skip();
        if (!take("::=")) wrong("expected ::=");
        if (known(called, begin).defined) wrong_at(begin, fmt::format("rule '{}' is defined twice", called));
        known(called, begin).defined = true;
        const Grammar::Expr body = alternatives(0);
        grammar_.define(known(called, begin).rule, body);
    }

    Grammar::Expr alternatives(int depth) {
        if (depth > kDeepestGroup) wrong(fmt::format("groups nest deeper than {}", kDeepestGroup));
        std::vector<Grammar::Expr> all;
        do {
            std::vector<Grammar::Expr> parts;
            for (skip(); more() && peek() != '|' && peek() != ')' && !at_definition(); skip())
                parts.push_back(repeated(part(depth)));
            all.push_back(grammar_.sequence(std::move(parts)));
        } while (take("|"));
        return grammar_.choice(std::move(all));
    }

    Grammar::Expr part(int depth) {
        if (take("(")) {
            const Grammar::Expr inside = alternatives(depth + 1);
            if (!take(")")) wrong("a ( without its )");
            return inside;
        }
        if (take("\"")) return literal();
        if (take("[")) return char_class();
        if (take(".")) return grammar_.chars(all_characters());
        if (!is_name(peek())) wrong(fmt::format("'{}' does not belong here", peek()));
        const std::size_t begin = at_;
        return grammar_.call(known(name(), begin).rule);
    }

    Grammar::Expr repeated(Grammar::Expr part_) {
        for (;;) {
            const std::size_t before = at_;
            skip();
            if (take("*")) part_ = grammar_.repeat(part_, 0, Grammar::kUnbounded);
            else if (take("+")) part_ = grammar_.repeat(part_, 1, Grammar::kUnbounded);
            else if (take("?")) part_ = grammar_.optional(part_);
            else if (take("{")) part_ = counted(part_);
            else {
                at_ = before;
                return part_;
            }
        }
    }

    Grammar::Expr counted(Grammar::Expr part_) {
        const int64_t least = number();
        int64_t most = least;
        skip();
        if (take(",")) {
            skip();
            most = peek() == '}' ? Grammar::kUnbounded : number();
            skip();
        }
        if (!take("}")) wrong("expected }");
        return grammar_.repeat(part_, least, most);
    }

    int64_t number() {
        skip();
        if (peek() < '0' || peek() > '9') wrong("expected a number");
        return count();
    }

    /// A character of a literal or a class.
    char32_t written() {
        if (!more() || peek() == '\n') wrong("the line ends too early");
        if (!take("\\")) return character();
        if (const auto escape = plain_escape()) return *escape;
        if (!more() || std::string_view("\\\"[]^-").find(peek()) == std::string_view::npos)
            wrong("this escape is not supported");
        return character();
    }

    Grammar::Expr literal() {
        std::string bytes;
        while (!take("\"")) append_utf8(bytes, written());
        return grammar_.text(bytes);
    }

    Grammar::Expr char_class() {
        const bool negated = take("^");
        CharSet set;
        while (!take("]")) {
            const char32_t low = written();
            char32_t high = low;
            if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
                ++at_;
                high = written();
                if (high < low) wrong("a range that is none");
            }
            set.emplace_back(low, high);
        }
        set = normalized(std::move(set));
        return grammar_.chars(negated ? complement(set) : set);
    }

    Grammar& grammar_;
    std::map<std::string, Known> rules_;
};

}  // namespace

Grammar::Expr add_ebnf(Grammar& grammar, std::string_view text) { return EbnfParser(grammar, text).parse(); }

}  // namespace riptide
