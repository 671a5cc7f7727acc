#include "text/structured/grammar_lark.h"

#include <algorithm>
#include <deque>

#include "text/structured/grammar_lark_syntax.h"
#include "text/utf8.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

class LarkBuilder {
  public:
    LarkBuilder(Grammar& grammar, std::string_view text, const CharWriter& write)
        : g_(grammar), text_(text), write_(write), file_(parse_lark(text)) {}

    Expr build() {
        const auto start = file_.definitions.find("start");
        if (start == file_.definitions.end()) throw GrammarError("grammar: there is no rule 'start'");
        std::vector<Expr> ignored;
        for (const int32_t node : file_.ignored) ignored.push_back(terminal_part(node));
        if (!ignored.empty()) skip_ = g_.named(g_.repeat(g_.choice(std::move(ignored)), 0, Grammar::kUnbounded));
        const Expr root = named_part("start", start->second.at, {});
        for (const auto& [name, definition] : file_.definitions) {  // what is wrong is said of all of them
            if (is_lark_terminal(name)) terminal(name, definition.at);
            else if (definition.parameters.empty()) named_part(name, definition.at, {});
        }
        for (; !todo_.empty(); todo_.pop_front()) {
            const Instance& next = todo_.front();
            g_.define(next.rule, rule_part(next.body, next.given));
        }
        if (!can_match())
            wrong_in_lark(text_, start->second.at, "no text is a 'start': its rules call each other without an end");
        return g_.sequence({skip_, root});
    }

  private:
    using Kind = LarkFile::Kind;
    using Given = std::map<std::string, Expr, std::less<>>;  // a template's parameters
    struct Instance {
        Grammar::Rule rule;
        int32_t body;
        Given given;
    };
    static constexpr std::size_t kMostInstances = 1000;  // of templates
    static constexpr int kDeepestTerminal = 64;

    [[noreturn]] void wrong(std::size_t at, std::string_view what) const { wrong_in_lark(text_, at, what); }

    /// A part of a rule: behind each terminal stands what is ignored.
    Expr rule_part(int32_t at, const Given& given) {
        const LarkFile::Node& node = file_.at(at);
        std::vector<Expr> parts;
        switch (node.kind) {
            case Kind::text:
            case Kind::range:
            case Kind::regex:
                return g_.sequence({shared(terminal_part(at)), skip_});
            case Kind::name:
                for (const int32_t part : node.parts) parts.push_back(rule_part(part, given));
                if (const auto found = given.find(node.text); found != given.end() && parts.empty())
                    return found->second;
                if (is_lark_terminal(node.text)) return used(node);
                return named_part(node.text, node.at, std::move(parts));
            case Kind::sequence:
            case Kind::choice:
            case Kind::repeat:
                for (const int32_t part : node.parts) parts.push_back(rule_part(part, given));
                return combined(node, std::move(parts));
        }
        return g_.empty();
    }

    Expr combined(const LarkFile::Node& node, std::vector<Expr> parts) {
        if (node.kind == Kind::sequence) return g_.sequence(std::move(parts));
        if (node.kind == Kind::choice) return g_.choice(std::move(parts));
        return g_.repeat(parts[0], node.least, node.most);
    }

    /// A rule of its own for what is more than a few bytes: what is found out about it then holds wherever it is used.
    Expr shared(Expr terminal) {
        const Grammar::Kind kind = g_.node(terminal).kind;
        if (kind == Grammar::Kind::text || kind == Grammar::Kind::chars || kind == Grammar::Kind::empty ||
            kind == Grammar::Kind::rule)
            return terminal;
        const auto [known, is_new] = shared_.try_emplace(terminal, 0);
        if (is_new) known->second = g_.named(terminal);
        return known->second;
    }

    /// A terminal in a rule.
    Expr used(const LarkFile::Node& node) {
        if (!node.parts.empty()) wrong(node.at, fmt::format("terminal '{}' is no template", node.text));
        const auto [known, is_new] = used_.try_emplace(node.text, 0);
        if (is_new) known->second = g_.sequence({shared(terminal(node.text, node.at)), skip_});
        return known->second;
    }

    /// A rule, or a template with what its parameters are.
    Expr named_part(const std::string& name, std::size_t at, std::vector<Expr> arguments) {
        const auto found = file_.definitions.find(name);
        if (found == file_.definitions.end()) wrong(at, fmt::format("there is no rule '{}'", name));
        const std::vector<std::string>& parameters = found->second.parameters;
        if (parameters.size() != arguments.size())
            wrong(at, fmt::format("rule '{}' is used with {} parameters, expected {}", name, arguments.size(),
                                  parameters.size()));
        const auto [known, is_new] = rules_.try_emplace({name, arguments}, 0);
        if (!is_new) return known->second;
        if (!arguments.empty() && ++instances_ > kMostInstances)
            wrong(at, fmt::format("templates are used in more than {} different ways", kMostInstances));
        Given given;
        for (std::size_t i = 0; i < parameters.size(); ++i) given.insert_or_assign(parameters[i], arguments[i]);
        const Grammar::Rule rule = g_.declare();
        known->second = g_.call(rule);
        todo_.push_back({rule, found->second.body, std::move(given)});
        return known->second;
    }

    /// A terminal, without what is ignored behind it.
    Expr terminal(const std::string& name, std::size_t at) {
        const auto [known, is_new] = terminals_.try_emplace(name, kOpen);
        if (!is_new && known->second == kOpen) wrong(at, fmt::format("terminal '{}' is part of itself", name));
        if (!is_new) return known->second;
        const auto found = file_.definitions.find(name);
        if (found == file_.definitions.end()) wrong(at, fmt::format("there is no terminal '{}'", name));
        if (++depth_ > kDeepestTerminal)
            wrong(at, fmt::format("terminals stand deeper in each other than {}", kDeepestTerminal));
        const Expr made = terminal_part(found->second.body);
        --depth_;
        return terminals_[name] = made;
    }

    Expr terminal_part(int32_t at) {
        const LarkFile::Node& node = file_.at(at);
        std::vector<Expr> parts;
        switch (node.kind) {
            case Kind::text:
            case Kind::range:
            case Kind::regex:
                return literal(node);
            case Kind::name:
                if (!is_lark_terminal(node.text))
                    wrong(node.at, fmt::format("rule '{}' in a terminal, or in what is ignored", node.text));
                if (!node.parts.empty()) wrong(node.at, fmt::format("terminal '{}' is no template", node.text));
                return terminal(node.text, node.at);
            case Kind::sequence:
            case Kind::choice:
            case Kind::repeat:
                for (const int32_t part : node.parts) parts.push_back(terminal_part(part));
                return combined(node, std::move(parts));
        }
        return g_.empty();
    }

    /// What is written alike is made once.
    Expr literal(const LarkFile::Node& node) {
        const std::string key = fmt::format("{}{:d}{:d}{:d} {} {} {}", static_cast<int>(node.kind), node.style.any_case,
                                            node.style.dot_all, node.style.spaced, static_cast<uint32_t>(node.low),
                                            static_cast<uint32_t>(node.high), node.text);
        if (const auto known = literals_.find(key); known != literals_.end()) return known->second;
        const Expr made = node.kind == Kind::text    ? text(node)
                          : node.kind == Kind::range ? one(normalized({{node.low, node.high}}))
                                                     : regex(node);
        return literals_[key] = made;
    }

    Expr text(const LarkFile::Node& node) {
        if (!write_ && !node.style.any_case) return g_.text(node.text);
        std::vector<Expr> all;
        for (std::size_t at = 0; at < node.text.size();) {
            const Utf8Char c = utf8_at(node.text, at);
            const CharSet set = {{c.code_point, c.code_point}};
            all.push_back(one(node.style.any_case ? with_both_cases(set) : set));
            at += static_cast<std::size_t>(c.length);
        }
        return g_.sequence(std::move(all));
    }

    Expr regex(const LarkFile::Node& node) {
        try {
            PatternStyle style = node.style;
            style.properties = &properties_;
            const Pattern pattern = parse_pattern(node.text, style);
            const auto looks = [](const Pattern::Node& part) { return part.kind > Pattern::Kind::repeat; };
            if (std::any_of(pattern.nodes.begin(), pattern.nodes.end(), looks))
                wrong(node.at,
                      "^, $, \\b, \\B and look-ahead are not supported: a terminal does not see what stands round it");
            return add_plain_pattern(g_, pattern, [this](Grammar&, const CharSet& set) { return one(set); });
        } catch (const GrammarError& error) {
            const std::string_view what = error.what();
            if (!what.starts_with("regular")) throw;
            wrong(node.at, what);
        }
    }

    /// One character. Large sets take many edges, and are rules.
    Expr one(const CharSet& set) {
        constexpr std::size_t kMostRanges = 16, kMostRangesInAll = 1'000'000;
        const auto [known, is_new] = characters_.try_emplace(set, 0);
        if (!is_new) return known->second;
        ranges_ += set.size();
        if (ranges_ > kMostRangesInAll)
            throw GrammarError(fmt::format("grammar: too large: its classes have more than {} ranges of characters",
                                           kMostRangesInAll));
        Expr made = write_ ? write_(g_, set) : g_.chars(set);
        if (set.size() > kMostRanges) made = g_.named(made);
        return known->second = made;
    }

    /// Whether there is a text at all. Rules are looked at again until no more of them are known to have one.
    bool can_match() {
        constexpr std::size_t kMostSteps = 40'000'000;
        std::vector<uint8_t> ends(g_.bodies().size(), 0);
        std::size_t steps = 0;
        const auto can_end = [&](const auto& self, Expr expr) -> bool {
            if (++steps > kMostSteps)
                throw GrammarError(fmt::format("grammar: reading it takes more than {} steps", kMostSteps));
            const Grammar::Node& node = g_.node(expr);
            const auto inside = [&](Expr part) { return self(self, part); };
            if (node.kind == Grammar::Kind::rule) return ends[static_cast<std::size_t>(node.rule)] != 0;
            if (node.kind == Grammar::Kind::chars) return !node.chars.empty();
            if (node.kind == Grammar::Kind::choice) return std::any_of(node.parts.begin(), node.parts.end(), inside);
            if (node.kind == Grammar::Kind::sequence) return std::all_of(node.parts.begin(), node.parts.end(), inside);
            return node.kind != Grammar::Kind::repeat || node.least == 0 || inside(node.parts[0]);
        };
        for (bool more = true; more;) {
            more = false;
            for (std::size_t rule = g_.bodies().size(); rule-- > 0;) {
                if (ends[rule] != 0 || g_.bodies()[rule] < 0 || !can_end(can_end, g_.bodies()[rule])) continue;
                ends[rule] = 1;
                more = true;
            }
        }
        return can_end(can_end, rules_.at({"start", {}}));
    }

    static constexpr Expr kOpen = -1;  // a terminal that is being made

    Grammar& g_;
    std::string_view text_;
    const CharWriter& write_;
    const LarkFile file_;
    Expr skip_ = 0;  // what is ignored; nothing, at first
    PropertySets properties_;
    std::map<std::string, Expr, std::less<>> terminals_, used_, literals_;
    std::map<Expr, Expr> shared_;
    std::map<CharSet, Expr> characters_;
    std::map<std::pair<std::string, std::vector<Expr>>, Expr> rules_;
    std::deque<Instance> todo_;
    std::size_t instances_ = 0, ranges_ = 0;
    int depth_ = 0;
};

}  // namespace

Expr add_lark(Grammar& grammar, std::string_view text, const CharWriter& write) {
    return LarkBuilder(grammar, text, write).build();
}

bool looks_like_lark(std::string_view text) {
    std::size_t at = 0;
    const auto skip = [&](std::string_view also) { at = std::min(text.find_first_not_of(also, at), text.size()); };
    for (skip(" \t\r\n"); text.substr(at).starts_with("//") || text.substr(at).starts_with('#'); skip(" \t\r\n"))
        at = std::min(text.find('\n', at), text.size());
    if (at < text.size() && std::string_view("%?!").find(text[at]) != std::string_view::npos) return true;
    const std::size_t begin = at;
    skip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    const bool named = at > begin;
    skip(" \t\r\n");
    const std::string_view rest = text.substr(at);
    return named && !rest.starts_with("::=") &&
           (rest.starts_with(':') || rest.starts_with('.') || rest.starts_with('{'));
}

}  // namespace riptide
