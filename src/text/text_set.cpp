#include "text/text_set.h"

#include <algorithm>
#include <map>

#include "text/utf8.h"

namespace riptide {

namespace {

std::u32string characters_of(std::string_view text) {
    std::u32string out;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        out += c.code_point;
        at += static_cast<std::size_t>(c.length);
    }
    return out;
}

}  // namespace

/// From the expressions of a regular grammar to states: Thompson's construction, then sets of its nodes.
class TextSetBuilder {
  public:
    explicit TextSetBuilder(const Grammar& grammar) : grammar_(grammar) {}

    TextSet build() {
        const int32_t start = add_node();
        end_ = add(grammar_.root(), start);
        state_of({start});
        for (std::size_t i = 0; i < todo_.size(); ++i) fill(static_cast<int32_t>(i), std::vector<int32_t>(todo_[i]));
        made_.trim();
        return std::move(made_);
    }

  private:
    struct Node {
        std::vector<TextSet::Edge> edges;
        std::vector<int32_t> skips;
    };
    Node& at(int32_t node) { return nodes_[static_cast<std::size_t>(node)]; }

    int32_t add_node() {
        if (nodes_.size() >= 8 * TextSet::kMostStates)
            throw GrammarError(fmt::format("too large: more than {} states", 8 * TextSet::kMostStates));
        nodes_.emplace_back();
        return static_cast<int32_t>(nodes_.size() - 1);
    }

    int32_t add(Grammar::Expr expr, int32_t from) {
        const Grammar::Node& node = grammar_.node(expr);
        switch (node.kind) {
            case Grammar::Kind::empty:
                return from;
            case Grammar::Kind::chars: {
                const int32_t to = add_node();
                for (const auto& [low, high] : node.chars) at(from).edges.push_back({low, high, to});
                return to;
            }
            case Grammar::Kind::text:
                for (const char32_t c : characters_of(node.text)) {
                    const int32_t to = add_node();
                    at(from).edges.push_back({c, c, to});
                    from = to;
                }
                return from;
            case Grammar::Kind::sequence:
                for (const Grammar::Expr part : node.parts) from = add(part, from);
                return from;
            case Grammar::Kind::choice: {
                const int32_t to = add_node();
                for (const Grammar::Expr part : node.parts) {
                    const int32_t begin = add_node();
                    at(from).skips.push_back(begin);
                    const int32_t end = add(part, begin);
                    at(end).skips.push_back(to);
                }
                return to;
            }
            case Grammar::Kind::repeat:
                return add_repeat(node, from);
            case Grammar::Kind::rule:
            case Grammar::Kind::token:
                break;
        }
        throw GrammarError("not a regular expression");
    }

    int32_t add_repeat(const Grammar::Node& node, int32_t from) {
        const bool unbounded = node.most == Grammar::kUnbounded;
        for (int64_t i = 0; i < node.least; ++i) from = add(node.parts[0], from);
        const int32_t to = add_node();
        for (int64_t i = node.least; i < node.most; ++i) {
            at(from).skips.push_back(to);
            from = add(node.parts[0], from);
        }
        at(from).skips.push_back(to);
        if (unbounded) {
            const int32_t end = add(node.parts[0], to);
            at(end).skips.push_back(to);
        }
        return to;
    }

    /// The state for these nodes and all that they skip to.
    int32_t state_of(std::vector<int32_t> nodes) {
        std::vector<bool> seen(nodes_.size());
        for (std::size_t i = 0; i < nodes.size(); ++i) seen[static_cast<std::size_t>(nodes[i])] = true;
        for (std::size_t i = 0; i < nodes.size(); ++i)
            for (const int32_t to : std::vector<int32_t>(at(nodes[i]).skips))
                if (!seen[static_cast<std::size_t>(to)]) {
                    seen[static_cast<std::size_t>(to)] = true;
                    nodes.push_back(to);
                }
        std::sort(nodes.begin(), nodes.end());
        const auto [found, is_new] = numbers_.try_emplace(nodes, 0);
        if (is_new) {
            found->second = made_.add_state();
            made_.states_.back().accepts = seen[static_cast<std::size_t>(end_)];
            todo_.push_back(std::move(nodes));
        }
        return found->second;
    }

    void fill(int32_t state, const std::vector<int32_t>& nodes) {
        std::vector<TextSet::Edge> edges;
        std::vector<char32_t> cuts;
        for (const int32_t node : nodes)
            for (const TextSet::Edge& edge : at(node).edges) {
                edges.push_back(edge);
                cuts.push_back(edge.low);
                cuts.push_back(edge.high + 1);
            }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        std::map<std::vector<int32_t>, int32_t> known;
        std::vector<TextSet::Edge> out;
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
            std::vector<int32_t> to;
            for (const TextSet::Edge& edge : edges)
                if (edge.low <= cuts[i] && cuts[i] <= edge.high) to.push_back(edge.to);
            if (to.empty()) continue;
            std::sort(to.begin(), to.end());
            to.erase(std::unique(to.begin(), to.end()), to.end());
            const auto [found, is_new] = known.try_emplace(to, 0);
            if (is_new) found->second = state_of(to);
            const char32_t low = cuts[i], high = cuts[i + 1] - 1;
            if (!out.empty() && out.back().to == found->second && out.back().high + 1 == low) out.back().high = high;
            else out.push_back({low, high, found->second});
        }
        made_.states_[static_cast<std::size_t>(state)].edges = std::move(out);
    }

    const Grammar& grammar_;
    std::vector<Node> nodes_;
    int32_t end_ = 0;
    TextSet made_;
    std::map<std::vector<int32_t>, int32_t> numbers_;
    std::vector<std::vector<int32_t>> todo_;
};

/// A state that is met once stands where it is met; others, and those in circles, are rules.
class TextSetWriter {
  public:
    TextSetWriter(const TextSet& set, Grammar& grammar, const CharWriter& write)
        : set_(set), g_(grammar), write_(write), rules_(set.states_.size(), -1), uses_(set.states_.size(), 0) {
        for (std::size_t s = 0; s < set.states_.size(); ++s)
            for (const auto& [to, chars] : ways_of(s))
                if (to != s) ++uses_[to];
        ++uses_[0];
    }

    Grammar::Expr state(std::size_t s, int depth = 0) {
        const bool own = uses_[s] > 1 || depth > kDeepest;
        if (own && rules_[s] >= 0) return g_.call(rules_[s]);
        if (own) rules_[s] = g_.declare();
        std::vector<Grammar::Expr> ways;
        Grammar::Expr loop = g_.empty();
        if (set_.states_[s].accepts) ways.push_back(g_.empty());
        for (const auto& [to, chars] : ways_of(s)) {
            const Grammar::Expr one = write_(g_, chars);
            if (to == s) loop = g_.repeat(one, 0, Grammar::kUnbounded);
            else ways.push_back(g_.sequence({one, state(to, own ? 1 : depth + 1)}));
        }
        const Grammar::Expr body = g_.sequence({loop, g_.choice(std::move(ways))});
        if (!own) return body;
        g_.define(rules_[s], body);
        return g_.call(rules_[s]);
    }

  private:
    static constexpr int kDeepest = 200;  // expressions inside each other

    std::map<std::size_t, CharSet> ways_of(std::size_t s) const {
        std::map<std::size_t, CharSet> out;
        for (const TextSet::Edge& edge : set_.states_[s].edges)
            out[static_cast<std::size_t>(edge.to)].emplace_back(edge.low, edge.high);
        for (auto& [to, chars] : out) chars = normalized(std::move(chars));
        return out;
    }

    const TextSet& set_;
    Grammar& g_;
    const CharWriter& write_;
    std::vector<Grammar::Rule> rules_;
    std::vector<int> uses_;
};

int32_t TextSet::add_state() {
    if (states_.size() >= kMostStates)
        throw GrammarError(fmt::format("patterns together: more than {} states", kMostStates));
    states_.emplace_back();
    return static_cast<int32_t>(states_.size() - 1);
}

TextSet TextSet::all() { return of_length(0, Grammar::kUnbounded); }

TextSet TextSet::of_regex(std::string_view pattern, bool search) {
    Grammar grammar;
    grammar.set_root(add_regex(grammar, pattern, search));
    return TextSetBuilder(grammar).build();
}

TextSet TextSet::of_words(const std::vector<std::string>& words) {
    Grammar grammar;
    std::vector<Grammar::Expr> ways;
    for (const std::string& word : words) ways.push_back(grammar.text(word));
    grammar.set_root(grammar.choice(std::move(ways)));
    return TextSetBuilder(grammar).build();
}

TextSet TextSet::of_length(int64_t least, int64_t most) {
    Grammar grammar;
    grammar.set_root(grammar.repeat(grammar.chars(all_characters()), least, most));
    return TextSetBuilder(grammar).build();
}

TextSet TextSet::operator&(const TextSet& other) const {
    return product(other, [](bool a, bool b) { return a && b; });
}
TextSet TextSet::operator|(const TextSet& other) const {
    return product(other, [](bool a, bool b) { return a || b; });
}
TextSet TextSet::operator-(const TextSet& other) const {
    return product(other, [](bool a, bool b) { return a && !b; });
}

/// States are pairs of states; -1: the text is in that set no more, whatever follows.
TextSet TextSet::product(const TextSet& other, const std::function<bool(bool, bool)>& keep) const {
    TextSet out;
    std::map<std::pair<int32_t, int32_t>, int32_t> numbers;
    std::vector<std::pair<int32_t, int32_t>> todo;
    const auto accepts = [](const TextSet& set, int32_t s) {
        return s >= 0 && set.states_[static_cast<std::size_t>(s)].accepts;
    };
    const auto edges = [](const TextSet& set, int32_t s) {
        return s < 0 ? std::vector<Edge>() : set.states_[static_cast<std::size_t>(s)].edges;
    };
    const auto number = [&](int32_t a, int32_t b) {
        const auto [found, is_new] = numbers.try_emplace({a, b}, 0);
        if (is_new) {
            found->second = out.add_state();
            out.states_.back().accepts = keep(accepts(*this, a), accepts(other, b));
            todo.emplace_back(a, b);
        }
        return found->second;
    };
    number(empty() ? -1 : 0, other.empty() ? -1 : 0);
    for (std::size_t i = 0; i < todo.size(); ++i) {
        const std::vector<Edge> left = edges(*this, todo[i].first), right = edges(other, todo[i].second);
        std::vector<char32_t> cuts;
        for (const auto* list : {&left, &right})
            for (const Edge& edge : *list) {
                cuts.push_back(edge.low);
                cuts.push_back(edge.high + 1);
            }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        const auto target = [](const std::vector<Edge>& list, std::size_t& at, char32_t c) {
            while (at < list.size() && list[at].high < c) ++at;
            return at < list.size() && list[at].low <= c ? list[at].to : -1;
        };
        std::size_t l = 0, r = 0;
        for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
            const int32_t a = target(left, l, cuts[k]), b = target(right, r, cuts[k]);
            if (a < 0 && b < 0) continue;
            const int32_t to = number(a, b);
            out.states_[i].edges.push_back({cuts[k], cuts[k + 1] - 1, to});
        }
    }
    out.trim();
    return out;
}

/// Takes out what leads nowhere.
void TextSet::trim() {
    std::vector<std::vector<std::size_t>> from(states_.size());
    std::vector<std::size_t> todo;
    std::vector<bool> alive(states_.size());
    for (std::size_t s = 0; s < states_.size(); ++s) {
        for (const Edge& edge : states_[s].edges) from[static_cast<std::size_t>(edge.to)].push_back(s);
        if (!states_[s].accepts) continue;
        alive[s] = true;
        todo.push_back(s);
    }
    for (std::size_t i = 0; i < todo.size(); ++i)
        for (const std::size_t s : std::vector<std::size_t>(from[todo[i]]))
            if (!alive[s]) {
                alive[s] = true;
                todo.push_back(s);
            }
    if (states_.empty() || !alive[0]) {
        states_.clear();
        return;
    }
    std::vector<int32_t> number(states_.size(), -1);
    int32_t count = 0;
    for (std::size_t s = 0; s < states_.size(); ++s)
        if (alive[s]) number[s] = count++;
    std::vector<State> kept;
    for (std::size_t s = 0; s < states_.size(); ++s) {
        if (!alive[s]) continue;
        State& state = kept.emplace_back(std::move(states_[s]));
        for (Edge& edge : state.edges) edge.to = number[static_cast<std::size_t>(edge.to)];
        std::erase_if(state.edges, [](const Edge& edge) { return edge.to < 0; });
    }
    states_ = std::move(kept);
}

bool TextSet::contains(std::string_view text) const {
    int32_t at = empty() ? -1 : 0;
    for (const char32_t c : characters_of(text)) {
        if (at < 0) return false;
        const std::vector<Edge>& edges = states_[static_cast<std::size_t>(at)].edges;
        const auto edge =
            std::find_if(edges.begin(), edges.end(), [&](const Edge& e) { return e.low <= c && c <= e.high; });
        at = edge == edges.end() ? -1 : edge->to;
    }
    return at >= 0 && states_[static_cast<std::size_t>(at)].accepts;
}

Grammar::Expr TextSet::add_to(Grammar& grammar, const CharWriter& write) const {
    if (empty()) return grammar.choice({});
    return TextSetWriter(*this, grammar, write).state(0);
}

}  // namespace riptide
