#include "text/structured/grammar_lark_syntax.h"

#include <algorithm>

#include "text/grammar/text_reader.h"
#include "text/utf8.h"

namespace riptide {

namespace {

constexpr std::size_t kLongestLark = 256 << 10;
constexpr int kDeepestLarkGroup = 64;

bool in_lark_name(char c) {
    return is_ascii_letter(static_cast<unsigned char>(c)) || (c >= '0' && c <= '9') || c == '_';
}

class LarkParser : TextReader {
  public:
    explicit LarkParser(std::string_view text) : TextReader(text) {}

    LarkFile parse() {
        check_text(kLongestLark, "a grammar");
        for (skip(true); more(); skip(true)) {
            if (take("%")) directive();
            else definition(How::define);
            skip(false);
            if (more() && peek() != '\n') does_not_belong();
        }
        return std::move(out_);
    }

  private:
    using Kind = LarkFile::Kind;
    enum class How { define, override, extend };

    std::string place() const override { return fmt::format("grammar, {}", line_and_column(text_, at_)); }
    [[noreturn]] void does_not_belong() {
        if (next_is("<")) wrong("special tokens (<...>) are not supported");
        if (next_is("@")) wrong("other grammars (@...) are not supported");
        if (next_is("~") || next_is("&")) wrong(fmt::format("the operator {} is not supported here", peek()));
        if (take("%")) wrong_at(at_ - 1, fmt::format("%{} is not supported here", name_or_empty()));
        wrong(fmt::format("'{}' does not belong here", more() ? text_.substr(at_, utf8_length()) : "the end"));
    }
    std::size_t utf8_length() const { return static_cast<std::size_t>(utf8_at(text_, at_).length); }

    /// White space, comments, and (`lines`) ends of lines; a backslash joins two lines.
    void skip(bool lines) {
        while (more()) {
            if (next_is("//") || peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
            else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || (lines && peek() == '\n')) ++at_;
            else if (!take("\\\n") && !take("\\\r\n")) break;
        }
    }

    std::string name_or_empty() {
        const std::size_t begin = at_;
        while (in_lark_name(peek()) || (at_ > begin && peek() == '-' && !next_is("->"))) ++at_;
        return std::string(text_.substr(begin, at_ - begin));
    }
    std::string name(std::string_view what) {
        std::string found = name_or_empty();
        if (found.empty() || (found[0] >= '0' && found[0] <= '9')) wrong(fmt::format("expected {}", what));
        return found;
    }
    void expect(std::string_view sign, std::string_view where) {
        skip(false);
        if (!take(sign)) wrong(fmt::format("expected {} {}", sign, where));
        skip(false);
    }

    int32_t add(LarkFile::Node node) {
        out_.nodes.push_back(std::move(node));
        return static_cast<int32_t>(out_.nodes.size() - 1);
    }
    int32_t add(Kind kind, std::size_t at, std::vector<int32_t> parts) {
        return parts.size() == 1 ? parts[0] : add({.kind = kind, .at = at, .parts = std::move(parts)});
    }

    void directive() {
        const std::size_t begin = at_ - 1;
        const std::string word = name("ignore, import, override or extend behind %");
        skip(false);
        if (word == "ignore") out_.ignored.push_back(alternatives(0));
        else if (word == "import") import();
        else if (word == "override") definition(How::override);
        else if (word == "extend") definition(How::extend);
        else if (word == "declare") wrong_at(begin, "%declare: a terminal without a text cannot be held");
        else if (word != "llguidance" || !take("{}")) wrong_at(begin, fmt::format("%{} is not supported", word));
    }

    /// common.A, common.A -> B, or common (A, B)
    void import() {
        const std::size_t begin = at_;
        if (const std::string library = name_or_empty(); library != "common")
            wrong_at(begin, fmt::format("%import: the only library is common, found '{}'", library));
        if (take(".")) {
            const std::size_t at = at_;
            const std::string from = name("the name of a terminal");
            skip(false);
            if (!take("->")) return import_as(from, from, at);
            skip(false);
            return import_as(from, name("a name behind ->"), at);
        }
        expect("(", "or . behind common");
        do {
            skip(true);
            const std::size_t at = at_;
            const std::string from = name("the name of a terminal");
            import_as(from, from, at);
            skip(true);
        } while (take(","));
        expect(")", "behind the names");
    }
    void import_as(const std::string& from, const std::string& as, std::size_t at) {
        const std::string_view expression = lark_common_terminal(from);
        if (expression.empty()) wrong_at(at, fmt::format("%import: there is no common.{}", from));
        if (!is_lark_terminal(as)) wrong_at(at, fmt::format("%import: '{}' is not the name of a terminal", as));
        const int32_t body =
            add({.kind = Kind::regex, .at = at, .text = std::string(expression), .style = {.wide = true}});
        const auto [found, is_new] = out_.definitions.try_emplace(as, LarkFile::Definition{at, {}, body});
        if (!is_new && out_.at(found->second.body).text != expression)
            wrong_at(at, fmt::format("'{}' is defined twice", as));
    }

    void definition(How how) {
        while (take("!") || take("?")) {  // how trees are built
        }
        LarkFile::Definition made{.at = at_};
        const std::string called = name("the name of a rule or of a terminal");
        if (take("{")) {
            do {
                skip(false);
                made.parameters.push_back(name("a parameter's name"));
                skip(false);
            } while (take(","));
            expect("}", "behind the parameters");
            if (is_lark_terminal(called)) wrong_at(made.at, "templates of terminals are not supported");
        }
        if (next_is("[")) wrong(fmt::format("attributes of a rule ('{}[...]') are not supported", called));
        if (take(".")) {  // a priority
            if (!take("-")) take("+");
            if (peek() < '0' || peek() > '9') wrong("expected a number: the priority");
            while (peek() >= '0' && peek() <= '9') ++at_;
        }
        expect(":", fmt::format("behind the name '{}'", called));
        made.body = alternatives(0);
        define(called, std::move(made), how);
    }
    void define(const std::string& called, LarkFile::Definition made, How how) {
        const auto known = out_.definitions.find(called);
        if (how == How::define && known != out_.definitions.end())
            wrong_at(made.at, fmt::format("'{}' is defined twice", called));
        if (how != How::define && known == out_.definitions.end())
            wrong_at(made.at,
                     fmt::format("there is no '{}' yet to {}", called, how == How::extend ? "extend" : "override"));
        if (how == How::extend) {
            if (known->second.parameters != made.parameters)
                wrong_at(made.at, fmt::format("'{}' has other parameters", called));
            LarkFile::Node both{.kind = Kind::choice, .at = made.at, .parts = {known->second.body}};
            if (out_.at(known->second.body).kind == Kind::choice) both = out_.at(known->second.body);
            both.parts.push_back(made.body);
            made.body = add(std::move(both));
        }
        out_.definitions.insert_or_assign(called, std::move(made));
    }

    /// `depth`: of groups. Inside them a line's end is white space; outside, one before | is.
    int32_t alternatives(int depth) {
        if (depth > kDeepestLarkGroup) wrong(fmt::format("groups nest deeper than {}", kDeepestLarkGroup));
        const std::size_t begin = at_;
        std::vector<int32_t> all;
        do all.push_back(sequence(depth));
        while (take_bar(depth > 0));
        return add(Kind::choice, begin, std::move(all));
    }
    bool take_bar(bool inside) {
        const std::size_t begin = at_;
        skip(true);
        if (take("|")) return true;
        if (!inside) at_ = begin;
        return false;
    }

    int32_t sequence(int depth) {
        std::vector<int32_t> parts;
        const std::size_t begin = at_;
        for (skip(depth > 0); more() && std::string_view("|)]\n").find(peek()) == std::string_view::npos;
             skip(depth > 0)) {
            if (take("->")) {  // how trees are built
                skip(false);
                name("a name behind ->");
                skip(depth > 0);
                break;
            }
            parts.push_back(repeated(atom(depth), depth));
        }
        return add(Kind::sequence, begin, std::move(parts));
    }

    int32_t repeated(int32_t part, int depth) {
        const std::size_t behind = at_;
        skip(depth > 0);
        LarkFile::Node node{.kind = Kind::repeat, .at = at_, .most = Grammar::kUnbounded, .parts = {part}};
        if (take("+")) node.least = 1;
        else if (take("?")) node.most = 1;
        else if (take("~")) counted(node, "..");
        else if (take("{")) counted(node, ",");
        else if (!take("*")) {
            at_ = behind;
            return part;
        }
        for (const char* sign : {"*", "+", "?", "~", "{"})
            if (next_is(sign)) wrong("two repetitions in a row; expected parentheses");
        return add(std::move(node));
    }
    /// ~n, ~n..m; or, behind the {, n} {n,} {,m} {n,m}.
    void counted(LarkFile::Node& node, std::string_view to) {
        const bool braces = to == ",";
        const auto digit = [&] {
            skip(false);
            return peek() >= '0' && peek() <= '9';
        };
        if (!digit() && !(braces && next_is(to))) wrong("expected a number of repetitions");
        node.least = node.most = count();
        skip(false);
        if (take(to)) {
            if (digit()) node.most = count();
            else if (braces) node.most = Grammar::kUnbounded;
            else wrong("expected a number behind ..");
        }
        if (braces) expect("}", "behind the repetitions");
        if (node.most != Grammar::kUnbounded && node.least > node.most)
            wrong(fmt::format("at least {} repetitions and at most {}", node.least, node.most));
    }

    int32_t atom(int depth) {
        if (depth > kDeepestLarkGroup) wrong(fmt::format("groups nest deeper than {}", kDeepestLarkGroup));
        const std::size_t begin = at_;
        if (take("(")) return group(begin, ")", depth);
        if (take("[")) {
            const int32_t inside = group(begin, "]", depth);
            return add({.kind = Kind::repeat, .at = begin, .most = 1, .parts = {inside}});
        }
        if (take("\"")) return literal(begin);
        if (take("/")) return regex(begin);
        if (!in_lark_name(peek())) does_not_belong();
        LarkFile::Node node{.kind = Kind::name, .at = begin, .text = name("a name")};
        skip(depth > 0);
        if (next_is(":"))
            wrong_at(begin, fmt::format("a definition ('{}:') begins in the middle of a line", node.text));
        const std::size_t inside = text_.find_first_not_of(" \t", at_ + 1);
        const bool counts = inside < text_.size() && std::string_view(",0123456789").find(text_[inside]) < 11;
        if (counts || !take("{")) return add(std::move(node));
        do {
            skip(true);
            node.parts.push_back(atom(depth + 1));
            skip(true);
        } while (take(","));
        expect("}", fmt::format("behind what '{}' is used with", node.text));
        return add(std::move(node));
    }

    int32_t group(std::size_t begin, std::string_view end, int depth) {
        const int32_t inside = alternatives(depth + 1);
        if (!take(end)) wrong_at(begin, fmt::format("a {} without its {}", text_[begin], end));
        return inside;
    }

    std::string quoted(std::size_t begin) {
        std::string bytes;
        while (!take("\"")) {
            if (!more() || peek() == '\n') wrong_at(begin, "a \" without its second");
            if (!take("\\")) append_utf8(bytes, character());
            else if (const auto escape = plain_escape()) append_utf8(bytes, *escape);
            else if (take("f")) bytes += '\f';
            else if (next_is("\\") || next_is("\"") || next_is("/")) bytes += static_cast<char>(character());
            else wrong("this escape is not supported");
        }
        return bytes;
    }

    /// "text", "text"i or "a".."z".
    int32_t literal(std::size_t begin) {
        LarkFile::Node node{.kind = Kind::text, .at = begin, .text = quoted(begin)};
        node.style.any_case = take("i");
        const std::size_t behind = at_;
        skip(false);
        if (!take("..")) {
            at_ = behind;
            return add(std::move(node));
        }
        skip(false);
        const std::size_t second = at_;
        if (!take("\"")) wrong("expected a string behind ..");
        const std::string last = quoted(second);
        const auto only = [&](const std::string& text) {
            const bool is_one = !text.empty() && utf8_at(text, 0).length == std::ssize(text);
            if (!is_one) wrong_at(begin, "a range is of two single characters");
            return utf8_at(text, 0).code_point;
        };
        node.kind = Kind::range;
        node.low = only(node.text);
        node.high = only(last);
        node.text.clear();
        if (node.low > node.high) wrong_at(begin, "a range that is none");
        return add(std::move(node));
    }

    /// /expression/flags
    int32_t regex(std::size_t begin) {
        const std::size_t first = at_;
        for (; more() && peek() != '/'; ++at_)
            if (peek() == '\\' && at_ + 1 < text_.size()) ++at_;
        const std::size_t last = at_;
        if (!take("/")) wrong_at(begin, "a / without its second");
        LarkFile::Node node{.kind = Kind::regex, .at = begin, .text = std::string(text_.substr(first, last - first))};
        node.style.wide = true;
        for (; more() && std::string_view("imsxul").find(peek()) != std::string_view::npos; ++at_) {
            if (peek() == 'i') node.style.any_case = true;
            if (peek() == 's') node.style.dot_all = true;
            if (peek() == 'x') node.style.spaced = true;
            if (peek() == 'l') wrong("the flag l (a locale) is not supported");
        }
        if (node.text.empty()) wrong_at(begin, "an empty regular expression");
        if (!node.style.spaced && node.text.find('\n') != std::string::npos)
            wrong_at(begin, "a line ends inside a regular expression; expected the flag x");
        return add(std::move(node));
    }

    LarkFile out_;
};

}  // namespace

bool is_lark_terminal(std::string_view name) {
    const std::size_t first = std::min(name.find_first_not_of('_'), name.size() - 1);
    return name[first] >= 'A' && name[first] <= 'Z';
}

void wrong_in_lark(std::string_view text, std::size_t at, std::string_view what) {
    throw GrammarError(fmt::format("grammar, {}: {}", line_and_column(text, at), what));
}

LarkFile parse_lark(std::string_view text) { return LarkParser(text).parse(); }

}  // namespace riptide
