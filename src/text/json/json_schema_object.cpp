// JSON Schema: objects.
#include <algorithm>

#include "text/json/json_schema_builder.h"
#include "text/json/tool_arguments.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr int64_t kMostCounted = 64;
constexpr std::size_t kMostPatterns = 16, kMostCountedMembers = 1000;

/// Members between commas. They are halved, and halved again: what may follow a member is told once for each half, so
/// that thousands that may be left out cost no more than their number.
class MembersWriter {
  public:
    MembersWriter(Grammar& grammar, JsonGrammar& json, const std::vector<SchemaMember>& members)
        : g_(grammar), members_(members), comma_(grammar.sequence({grammar.text(","), json.space()})) {
        musts_.push_back(0);
        for (const SchemaMember& member : members) musts_.push_back(musts_.back() + member.must);
    }

    Expr comma() const { return comma_; }
    std::size_t musts(std::size_t first, std::size_t last) const { return musts_[last] - musts_[first]; }

    /// Of members [first, last), at least one, and all that must be there.
    Expr some(std::size_t first, std::size_t last) {
        if (last - first == 1) return members_[first].text;
        const std::size_t middle = first + (last - first) / 2;
        const Expr left = some(first, middle);
        Expr right = some(middle, last);
        const bool left_out = musts(first, middle) == 0, right_out = musts(middle, last) == 0;
        if (left_out) right = g_.named(right);
        Expr rest = g_.sequence({comma_, right});
        if (right_out) rest = g_.optional(rest);
        const Expr both = g_.sequence({left, rest});
        return left_out ? g_.choice({both, right}) : both;
    }

    /// The same, `count` of them (or more, if it is `enough`). Absent: there is no way. REQUIRES: count > 0.
    std::optional<Expr> counted(std::size_t first, std::size_t last, int64_t count, int64_t enough) {
        const auto key = std::tuple(first, last, count);
        if (const auto known = counted_.find(key); known != counted_.end()) return known->second;
        std::optional<Expr>& out = counted_[key];
        if (last - first == 1) {
            if (count == 1) out = members_[first].text;
            return out;
        }
        const std::size_t middle = first + (last - first) / 2;
        std::vector<Expr> ways;
        for (int64_t a = 0; a <= count; ++a)
            for (int64_t b = 0; b <= count; ++b) {
                if (a + b != count && !(count == enough && a + b > count)) continue;
                if ((a == 0 && musts(first, middle) > 0) || (b == 0 && musts(middle, last) > 0)) continue;
                const auto left = a > 0 ? counted(first, middle, a, enough) : std::nullopt;
                const auto right = b > 0 ? counted(middle, last, b, enough) : std::nullopt;
                if ((a > 0 && !left) || (b > 0 && !right)) continue;
                if (left && right) ways.push_back(g_.sequence({*left, comma_, *right}));
                else ways.push_back(left ? *left : *right);
            }
        if (!ways.empty()) out = g_.named(g_.choice(std::move(ways)));
        return out;
    }

  private:
    Grammar& g_;
    const std::vector<SchemaMember>& members_;
    const Expr comma_;
    std::vector<std::size_t> musts_;  // before each
    std::map<std::tuple<std::size_t, std::size_t, int64_t>, std::optional<Expr>> counted_;
};

/// `least` to `most` of `more` behind `count` members (0: none stands before).
Expr more_members(Grammar& g, Expr comma, Expr more, int64_t count, int64_t least, int64_t most) {
    const bool bounded = most != Grammar::kUnbounded;
    const Expr next = g.sequence({comma, more});
    if (count > 0) return g.repeat(next, least, most);
    if (bounded && most == 0) return g.empty();
    const Expr all =
        g.sequence({more, g.repeat(next, std::max<int64_t>(0, least - 1), bounded ? most - 1 : Grammar::kUnbounded)});
    return least == 0 ? g.optional(all) : all;
}

/// With a count of members from `least` to `most`.
Expr counted_members(Grammar& g, MembersWriter& writer, std::size_t size, std::optional<Expr> more, int64_t least,
                     int64_t most) {
    const bool bounded = most != Grammar::kUnbounded;
    const int64_t top = bounded ? std::min(most, static_cast<int64_t>(size)) : least;
    if (top > kMostCounted || size > kMostCountedMembers)
        throw GrammarError(
            fmt::format("'minProperties' or 'maxProperties' of more than {}, or beside more than {} "
                        "properties, are not supported",
                        kMostCounted, kMostCountedMembers));
    const auto must = static_cast<int64_t>(writer.musts(0, size));
    if (more && least > must + 1)
        throw GrammarError("'minProperties' is not supported where names may be free and are to differ");
    std::vector<Expr> ways;
    for (int64_t count = must > 0 ? 1 : 0; count <= top; ++count) {
        const int64_t rest = std::max<int64_t>(0, least - count);
        if (!more && rest > 0) continue;
        std::vector<Expr> all;
        if (count > 0) {
            const auto named = writer.counted(0, size, count, bounded ? -1 : top);
            if (!named) continue;
            all.push_back(*named);
        }
        if (more)
            all.push_back(
                more_members(g, writer.comma(), *more, count, rest, bounded ? most - count : Grammar::kUnbounded));
        ways.push_back(g.sequence(std::move(all)));
    }
    return g.choice(std::move(ways));
}

Expr free_members(Grammar& g, MembersWriter& writer, std::size_t size, std::optional<Expr> more, bool some) {
    std::vector<Expr> ways;
    const bool must = writer.musts(0, size) > 0;
    if (size > 0) {
        Expr named = writer.some(0, size);
        if (more) named = g.sequence({named, more_members(g, writer.comma(), *more, 1, 0, Grammar::kUnbounded)});
        ways.push_back(named);
    }
    if (more && !must) ways.push_back(more_members(g, writer.comma(), *more, 0, 1, Grammar::kUnbounded));
    if (!must && !some) ways.push_back(g.empty());
    return g.choice(std::move(ways));
}

}  // namespace

Expr add_members(Grammar& g, JsonGrammar& json, const std::vector<SchemaMember>& members, std::optional<Expr> more,
                 int64_t least, int64_t most) {
    if (most != Grammar::kUnbounded && least > most) return g.choice({});
    MembersWriter writer(g, json, members);
    const std::size_t size = members.size(), musts = writer.musts(0, size);
    if (more) more = g.named(*more);
    const bool from_any = least <= std::max<int64_t>(1, static_cast<int64_t>(musts));
    const bool to_any = most == Grammar::kUnbounded || (!more && most >= static_cast<int64_t>(size));
    const Expr inside = from_any && to_any ? free_members(g, writer, size, more, least > 0)
                                           : counted_members(g, writer, size, more, least, most);
    return g.sequence({g.text("{"), json.space(), inside, json.space(), g.text("}")});
}

Expr SchemaBuilder::object(const SchemaCase& one) {
    std::vector<std::string> names;
    std::set<std::string, std::less<>> known, needed;
    const auto add_name = [&](std::string_view name) {
        if (!known.emplace(name).second) return;
        names.emplace_back(name);
        if (names.size() > kMostSchemas) too_many_schemas(where(one, "properties"));
    };
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        for (const char* word : {"properties", "patternProperties"})
            if (const json::value* value = schema.if_contains(word); value != nullptr && !value->is_object())
                cases_.wrong(part, fmt::format("'{}' is not an object", word));
        if (const json::value* properties = schema.if_contains("properties"))
            for (const auto& [name, value] : properties->get_object()) add_name(name);
    }
    for (const json::value* part : one.parts) {
        const json::value* required = part->get_object().if_contains("required");
        // Draft 3, or a slip: true of a property itself.
        if (required == nullptr || required->is_bool()) continue;
        if (!required->is_array()) cases_.wrong(part, "'required' is not an array");
        for (const json::value& name : required->get_array()) {
            if (!name.is_string()) cases_.wrong(part, "'required' holds what is not a string");
            needed.emplace(name.get_string());
            add_name(name.get_string());
        }
    }
    std::vector<SchemaMember> members;
    for (const std::string& name : names) {
        const bool must = needed.contains(name);
        const SchemaTerms terms = cases_.member(one, name);
        if (holds_nothing(terms)) {
            if (must) return g_.choice({});
            continue;
        }
        std::string key = "\"";
        append_json_escaped(name, key);
        members.push_back({json().member(g_.text(key + "\""), schema(terms)), must});
    }
    auto [least, most] = counts(one, "minProperties", "maxProperties");
    for (const json::value* value : one.excluded) {
        if (!value->is_object()) continue;
        if (value->get_object().empty()) least = std::max<int64_t>(least, 1);
        else
            cases_.unsupported(where(one, "properties"),
                               "objects but for some ('not' with 'enum' or 'const') are not supported");
    }
    const std::optional<Expr> others = other_members(one, names);
    try {
        return add_members(g_, json(), members, others, least, most);
    } catch (const GrammarError& error) {
        cases_.wrong(where(one, least > 0 ? "minProperties" : "maxProperties"), error.what());
    }
}

/// The names that a schema of strings lets through.
TextSet SchemaBuilder::names_of(const SchemaTerms& terms) {
    TextSet out = TextSet::of_words({});
    for (const SchemaCase& one : cases_.of(terms)) {
        StringRules rules;
        if (one.values) {
            rules.words.emplace();
            for (const json::value* value : *one.values)
                if (value->is_string()) rules.words->emplace_back(value->get_string());
        } else if ((one.types & SchemaTypes::kString) != 0) {
            rules = rules_of(one);
        } else {
            continue;
        }
        out = out | string_set(rules, g_.work());
    }
    return out;
}

/// Members whose names are not listed, one after the other: those that match the same patterns have the same values.
std::optional<Expr> SchemaBuilder::other_members(const SchemaCase& one, const std::vector<std::string>& names) {
    std::set<std::string, std::less<>> patterns;
    SchemaTerms of_names;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        if (const json::value* list = schema.if_contains("patternProperties"))
            for (const auto& [regex, value] : list->get_object()) patterns.emplace(regex);
        if (const json::value* value = schema.if_contains("propertyNames"))
            of_names.push_back(cases_.term(*value, cases_.place(part) + "/propertyNames"));
    }
    if (patterns.empty() && of_names.empty()) {
        const SchemaTerms terms = cases_.other_member(one, {});
        if (holds_nothing(terms)) return std::nullopt;
        return json().member(names.empty() ? json().string() : json().other_string(names), schema(terms));
    }
    const std::string place = cases_.place(where(one, patterns.empty() ? "propertyNames" : "patternProperties"));
    if (patterns.size() > kMostPatterns)
        throw GrammarError(fmt::format("{}: 'patternProperties' of more than {} patterns", place, kMostPatterns));
    struct Class {
        TextSet names;
        std::set<std::string, std::less<>> patterns;
    };
    std::vector<Class> classes;
    std::vector<Expr> ways;
    try {
        classes.push_back({(of_names.empty() ? TextSet::all() : names_of(of_names)) - TextSet::of_words(names), {}});
        for (const std::string& pattern : patterns) {
            std::vector<Class> next;
            for (Class& c : classes) {
                Class inside{c.names & cases_.pattern(pattern), c.patterns};
                inside.patterns.insert(pattern);
                Class outside{c.names - cases_.pattern(pattern), c.patterns};
                for (Class* half : {&inside, &outside})
                    if (!half->names.empty()) next.push_back(std::move(*half));
            }
            classes = std::move(next);
        }
    } catch (const GrammarError& error) {
        throw GrammarError(fmt::format("{}/patternProperties: {}", place, error.what()));
    }
    for (const Class& c : classes) {
        const SchemaTerms terms = cases_.other_member(one, c.patterns);
        if (holds_nothing(terms)) continue;
        const Expr key = g_.sequence({g_.text("\""), key_inside(c.names, c.patterns, names), g_.text("\"")});
        ways.push_back(json().member(key, schema(terms)));
    }
    if (ways.empty()) return std::nullopt;
    return g_.choice(std::move(ways));
}

/// A pattern that takes nothing from the names listed is written as it is: its texts may then be of any length.
Expr SchemaBuilder::key_inside(const TextSet& set, const std::set<std::string, std::less<>>& patterns,
                               const std::vector<std::string>& names) {
    if (patterns.size() == 1) {
        const TextSet& own = cases_.pattern(*patterns.begin());
        const bool apart =
            std::none_of(names.begin(), names.end(), [&](const auto& name) { return own.contains(name); });
        if (apart && (own - set).empty()) return add_regex(g_, *patterns.begin(), true, json().writer());
    }
    return set.add_to(g_, json().writer());
}

}  // namespace riptide
