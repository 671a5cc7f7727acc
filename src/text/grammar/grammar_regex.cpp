// Regular expressions as grammars: as they stand where that can be, else by way of an automaton.
#include "text/grammar/grammar_regex.h"

#include <algorithm>

#include "text/grammar/text_automaton.h"

namespace riptide {

namespace {

/// Writes what has anchors at the ends of the whole, or of its alternatives, only.
class PatternWriter {
  public:
    PatternWriter(Grammar& grammar, const Pattern& pattern, const CharWriter& write)
        : g_(grammar), pattern_(pattern), write_(write) {
        for (const Pattern::Node& node : pattern_.nodes) {
            const bool inside =
                std::all_of(node.parts.begin(), node.parts.end(), [&](int32_t part) { return is_plain(part); });
            plain_.push_back(inside && node.kind <= Pattern::Kind::repeat);
        }
    }

    bool can_write() {
        const std::vector<int32_t> all = alternatives();
        return std::all_of(all.begin(), all.end(), [&](int32_t alternative) {
            const Anchored parts = anchored(alternative);
            return std::all_of(parts.middle.begin(), parts.middle.end(), [&](int32_t part) { return is_plain(part); });
        });
    }

    Grammar::Expr write(bool search) {
        const Grammar::Expr any = search ? g_.repeat(one(all_characters()), 0, Grammar::kUnbounded) : g_.empty();
        std::vector<Grammar::Expr> ways;
        for (const int32_t alternative : alternatives()) {
            const Anchored parts = anchored(alternative);
            std::vector<Grammar::Expr> all = {parts.start ? g_.empty() : any};
            for (const int32_t part : parts.middle) all.push_back(expression(part));
            all.push_back(parts.end ? g_.empty() : any);
            ways.push_back(g_.sequence(std::move(all)));
        }
        return g_.choice(std::move(ways));
    }

  private:
    using Kind = Pattern::Kind;
    struct Anchored {
        bool start, end;
        std::vector<int32_t> middle;
    };

    bool is_plain(int32_t node) const { return plain_[static_cast<std::size_t>(node)]; }
    Grammar::Expr one(const CharSet& set) { return write_ ? write_(g_, set) : g_.chars(set); }

    std::vector<int32_t> alternatives() const {
        const Pattern::Node& root = pattern_.at(pattern_.root);
        return root.kind == Kind::choice ? root.parts : std::vector<int32_t>{pattern_.root};
    }
    Anchored anchored(int32_t node) const {
        const Pattern::Node& from = pattern_.at(node);
        Anchored out{false, false, from.kind == Kind::sequence ? from.parts : std::vector<int32_t>{node}};
        const auto is = [&](int32_t part, Kind kind) { return pattern_.at(part).kind == kind; };
        out.start = !out.middle.empty() && is(out.middle.front(), Kind::start);
        if (out.start) out.middle.erase(out.middle.begin());
        out.end = !out.middle.empty() && is(out.middle.back(), Kind::end);
        if (out.end) out.middle.pop_back();
        return out;
    }

    Grammar::Expr expression(int32_t node) {
        const Pattern::Node& from = pattern_.at(node);
        if (from.kind == Kind::chars) return one(from.chars);
        std::vector<Grammar::Expr> parts;
        for (const int32_t part : from.parts) parts.push_back(expression(part));
        if (from.kind == Kind::repeat) return g_.repeat(parts[0], from.least, from.most);
        return from.kind == Kind::choice ? g_.choice(std::move(parts)) : g_.sequence(std::move(parts));
    }

    Grammar& g_;
    const Pattern& pattern_;
    const CharWriter& write_;
    std::vector<bool> plain_;  // of each node: nothing in it but characters
};

}  // namespace

Grammar::Expr add_regex(Grammar& grammar, std::string_view pattern, bool search, const CharWriter& write) {
    TextRules rules;
    (search ? rules.patterns : rules.wholes).emplace_back(pattern);
    return add_text(grammar, rules, write);
}

Grammar::Expr add_plain_pattern(Grammar& grammar, const Pattern& pattern, const CharWriter& write) {
    return PatternWriter(grammar, pattern, write).write(false);
}

Grammar::Expr add_text(Grammar& grammar, const TextRules& rules, const CharWriter& write) {
    std::vector<Pattern> read;
    for (const auto* texts : {&rules.patterns, &rules.wholes})
        for (const std::string& text : *texts) read.push_back(parse_pattern(text, {.work = grammar.work()}));
    const bool any_length = rules.least == 0 && rules.most == Grammar::kUnbounded;
    if (read.empty()) {
        const CharSet all = all_characters();
        return grammar.repeat(write ? write(grammar, all) : grammar.chars(all), rules.least, rules.most);
    }
    if (read.size() == 1 && any_length)
        if (PatternWriter writer(grammar, read[0], write); writer.can_write())
            return writer.write(!rules.patterns.empty());
    std::vector<TextCondition> conditions;
    for (std::size_t i = 0; i < read.size(); ++i)
        conditions.push_back({.pattern = &read[i], .search = i < rules.patterns.size()});
    return add_text_automaton(grammar, text_automaton(conditions, grammar.work()), rules.least, rules.most, write);
}

}  // namespace riptide
