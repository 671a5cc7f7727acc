// JSON Schema: arrays.
#include <algorithm>

#include "text/json/json_schema_builder.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr std::size_t kLongestTuple = 200, kMostDistinct = 8;
constexpr int64_t kMostContained = 64;

std::size_t tuple_length(const SchemaCase& one) {
    std::size_t length = 0;
    for (const json::value* part : one.parts)
        for (const char* word : {"prefixItems", "items"})
            if (const json::value* list = part->get_object().if_contains(word); list != nullptr && list->is_array())
                length = std::max(length, list->get_array().size());
    return length;
}

}  // namespace

Expr SchemaBuilder::array(const SchemaCase& one) {
    auto [least, most] = counts(one, "minItems", "maxItems");
    if (least > Grammar::kMostRepeats || most > Grammar::kMostRepeats)
        cases_.wrong(where(one, "maxItems"),
                     fmt::format("'minItems' and 'maxItems' of more than {} are not supported", Grammar::kMostRepeats));
    for (const json::value* value : one.excluded) {
        if (!value->is_array()) continue;
        if (value->get_array().empty()) least = std::max<int64_t>(least, 1);
        else
            cases_.unsupported(where(one, "items"),
                               "arrays but for some ('not' with 'enum' or 'const') are not supported");
    }
    const std::size_t tuple = tuple_length(one);
    if (tuple > kLongestTuple)
        cases_.wrong(where(one, "items"), fmt::format("'items' of more than {} places", kLongestTuple));
    for (std::size_t i = 0; i <= tuple; ++i)
        if (holds_nothing(cases_.item(one, i))) {
            most = most == Grammar::kUnbounded ? static_cast<int64_t>(i) : std::min(most, static_cast<int64_t>(i));
            break;
        }
    if (most != Grammar::kUnbounded && least > most) return g_.choice({});
    const auto is_true = [](const json::value* value) { return value->is_bool() && value->get_bool(); };
    const bool unique = std::any_of(one.parts.begin(), one.parts.end(), [&](const json::value* part) {
        const json::value* value = part->get_object().if_contains("uniqueItems");
        return value != nullptr && is_true(value);
    });
    std::vector<const json::value*> contains;
    for (const json::value* part : one.parts) {
        const json::value* least_hits = part->get_object().if_contains("minContains");
        const bool any = least_hits != nullptr && least_hits->is_number() && least_hits->to_number<double>() == 0;
        if (part->get_object().contains("contains") && !(any && !part->get_object().contains("maxContains")))
            contains.push_back(part);
    }
    const bool several = most == Grammar::kUnbounded || most > 1;
    if (unique && several) {
        if (contains.empty() && tuple == 0 && !items_differ_) {
            const auto listed = listed_once(one, least, most);
            return listed ? *listed : distinct(one, least, most);
        }
        cases_.unsupported(where(one, "uniqueItems"),
                           "'uniqueItems' beside 'contains' or a list of items, or inside items that must differ "
                           "themselves, is not supported");
    }
    if (!contains.empty()) {
        if (contains.size() == 1 && tuple == 0) return containing(one, *contains[0], least, most);
        cases_.unsupported(contains[0], "several 'contains', or one beside a list of items, are not supported");
    }
    return g_.sequence({g_.text("["), json().space(), items(one, 0, tuple, least, most), json().space(), g_.text("]")});
}

/// What follows the first `from` items.
Expr SchemaBuilder::items(const SchemaCase& one, std::size_t from, std::size_t tuple, int64_t least, int64_t most) {
    const auto before = static_cast<int64_t>(from);
    if (most != Grammar::kUnbounded && before >= most) return g_.empty();
    const int64_t need = std::max<int64_t>(0, least - before);
    const int64_t left = most == Grammar::kUnbounded ? most : most - before;
    const Expr comma = g_.sequence({g_.text(","), json().space()});
    Expr item = schema(cases_.item(one, from));
    if (from < tuple) {
        const Expr rest = items(one, from + 1, tuple, least, most);
        const Expr all = g_.sequence({from > 0 ? comma : g_.empty(), item, rest});
        return need > 0 ? all : g_.optional(all);
    }
    item = g_.named(item);
    const Expr next = g_.sequence({comma, item});
    if (from > 0) return g_.repeat(next, need, left);
    const Expr all = g_.sequence(
        {item, g_.repeat(next, std::max<int64_t>(0, need - 1), left == Grammar::kUnbounded ? left : left - 1)});
    return need > 0 ? all : g_.optional(all);
}

/// At least so many items by `contains`.
Expr SchemaBuilder::containing(const SchemaCase& one, const json::value& part, int64_t least, int64_t most) {
    const json::object& words = part.get_object();
    const std::string place = cases_.place(&part);
    const int64_t hits = schema_count(words, "minContains", place).value_or(1);
    const int64_t most_hits = schema_count(words, "maxContains", place).value_or(Grammar::kUnbounded);
    if (most_hits != Grammar::kUnbounded && most_hits < hits) return g_.choice({});
    SchemaTerms any = cases_.item(one, 0), hit = any, miss = any;
    hit.push_back(cases_.term(words.at("contains"), place + "/contains"));
    miss.push_back(cases_.term(words.at("contains"), place + "/contains", true));
    const Expr comma = g_.sequence({g_.text(","), json().space()});
    const Expr item = g_.named(schema(any)), found = g_.named(schema(hit));
    const bool bounded = most != Grammar::kUnbounded;
    std::vector<Expr> ways;
    if (hits == 1 && most_hits == Grammar::kUnbounded) {
        const int64_t last = bounded ? most - 1 : std::max<int64_t>(0, least - 1);
        if (last > kMostContained)
            cases_.wrong(&part,
                         fmt::format("'contains' beside counts of more than {} is not supported", kMostContained));
        const Expr before = g_.sequence({item, comma}), after = g_.sequence({comma, item});
        for (int64_t i = 0; i <= last; ++i) {
            const int64_t up_to = !bounded && i == last ? Grammar::kUnbounded : i;
            const int64_t behind = std::max<int64_t>(0, least - 1 - i);
            ways.push_back(g_.sequence({g_.repeat(before, i, up_to), found,
                                        g_.repeat(after, behind, bounded ? most - 1 - i : Grammar::kUnbounded)}));
        }
    } else {
        const int64_t top = most_hits == Grammar::kUnbounded ? hits : most_hits;
        if (bounded || least > hits || top > kMostContained)
            cases_.wrong(&part, "'minContains' and 'maxContains' beside other counts, or beyond 64, are not supported");
        const Expr other = g_.named(schema(miss));
        const Expr before = g_.repeat(g_.sequence({other, comma}), 0, Grammar::kUnbounded);
        for (int64_t count = hits; count <= top; ++count) {
            const bool more = count == top && most_hits == Grammar::kUnbounded;
            const Expr after = g_.repeat(g_.sequence({comma, more ? item : other}), 0, Grammar::kUnbounded);
            std::vector<Expr> all;
            for (int64_t i = 0; i < count; ++i) {
                if (i > 0) all.push_back(comma);
                all.push_back(before);
                all.push_back(found);
            }
            all.push_back(count > 0 ? after
                                    : g_.optional(g_.sequence(
                                          {other, g_.repeat(g_.sequence({comma, other}), 0, Grammar::kUnbounded)})));
            ways.push_back(g_.sequence(std::move(all)));
        }
    }
    return g_.sequence({g_.text("["), json().space(), g_.choice(std::move(ways)), json().space(), g_.text("]")});
}

/// Any items, none twice.
Expr SchemaBuilder::distinct(const SchemaCase& one, int64_t least, int64_t most) {
    struct Inside {
        bool& flag;
        explicit Inside(bool& f) : flag(f) { flag = true; }
        ~Inside() { flag = false; }
    };
    const Inside inside(items_differ_);
    const Expr item = g_.distinct(schema(cases_.item(one, 0)), least);
    return spaced_.array_of(item, least, most);
}

/// Items out of few values, none twice: a rule for each set that has been said. Absent: their values are not listed.
std::optional<Expr> SchemaBuilder::listed_once(const SchemaCase& one, int64_t least, int64_t most) {
    std::map<std::string, std::string> values;  // by their keys
    const auto add = [&](const json::value& value) { values.emplace(schema_value_key(value), json_text(value)); };
    const SchemaTerms terms = cases_.item(one, 0);
    if (terms.empty()) return std::nullopt;
    for (const SchemaCase& item : cases_.of(terms)) {
        if (item.values) {
            for (const json::value* value : *item.values) add(*value);
            continue;
        }
        if ((item.types & ~(SchemaTypes::kNull | SchemaTypes::kBoolean)) != 0 || !item.excluded.empty())
            return std::nullopt;
        if ((item.types & SchemaTypes::kNull) != 0) add(nullptr);
        if ((item.types & SchemaTypes::kBoolean) != 0)
            for (const bool b : {true, false}) add(b);
    }
    if (values.size() > kMostDistinct) return std::nullopt;
    std::vector<Expr> texts;
    for (const auto& [key, text] : values) texts.push_back(g_.text(text));
    const Expr comma = g_.sequence({g_.text(","), json().space()});
    const std::size_t sets = std::size_t{1} << texts.size();
    std::vector<Expr> behind(sets);
    for (std::size_t said = sets; said-- > 0;) {  // what may come once these have
        const auto count = static_cast<int64_t>(__builtin_popcountll(said));
        std::vector<Expr> ways;
        if (count >= least) ways.push_back(g_.empty());
        for (std::size_t i = 0; i < texts.size() && (most == Grammar::kUnbounded || count < most); ++i)
            if ((said >> i & 1) == 0)
                ways.push_back(
                    g_.sequence({said != 0 ? comma : g_.empty(), texts[i], behind[said | std::size_t{1} << i]}));
        behind[said] = g_.named(g_.choice(std::move(ways)));
    }
    return g_.sequence({g_.text("["), json().space(), behind[0], json().space(), g_.text("]")});
}

}  // namespace riptide
