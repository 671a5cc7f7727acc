// JSON Schema: from ways to be valid to a grammar.
#include "text/json/json_schema.h"

#include <algorithm>

#include "base/json.h"
#include "text/json/json_schema_builder.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr int kDeepestSchema = 64;

}  // namespace

std::optional<int64_t> schema_count(const json::object& schema, std::string_view word, const std::string& path) {
    const json::value* value = schema.if_contains(word);
    if (value == nullptr) return std::nullopt;
    json::error_code error;
    const auto count = value->is_number() ? value->to_number<int64_t>(error) : -1;
    if (error || count < 0) throw GrammarError(fmt::format("{}: '{}' is not a whole number from 0 on", path, word));
    return count;
}

std::string escaped_pointer(std::string_view key) {
    std::string out;
    for (const char c : key) {
        if (c == '~') out += "~0";
        else if (c == '/') out += "~1";
        else out += c;
    }
    return out;
}

bool holds_nothing(const SchemaTerms& terms) {
    return std::any_of(terms.begin(), terms.end(), [](const SchemaTerm& one) {
        return one.schema->is_bool() && one.schema->get_bool() == one.negated;
    });
}

Expr SchemaBuilder::build(const json::value& part, const std::string& path) {
    return schema({cases_.term(part, path)});
}

/// All of these. What is met once stands where it is met; else it is a rule, also where it holds itself.
Expr SchemaBuilder::schema(SchemaTerms terms) {
    if (holds_nothing(terms)) return g_.choice({});
    std::erase_if(terms, [](const SchemaTerm& one) { return one.schema->is_bool(); });
    std::sort(terms.begin(), terms.end());
    terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
    if (terms.empty()) return json().any();
    const auto [known, is_new] = known_[items_differ_].try_emplace(terms);
    if (!is_new) {
        Known& old = known->second;
        if (old.rule < 0) {
            old.rule = g_.declare();
            if (old.done) g_.define(old.rule, old.expr);
        }
        return g_.call(old.rule);
    }
    const json::value* first = terms[0].schema;
    if (++schemas_ > kMostSchemas) too_many_schemas(first);
    if (depth_ >= kDeepestSchema) cases_.wrong(first, fmt::format("schemas nest deeper than {}", kDeepestSchema));
    const int depth = depth_++;
    Expr out = g_.empty();
    try {
        out = exact(terms);
    } catch (const GrammarError&) {
        if (!options_.lenient || schemas_ > kMostSchemas) throw;
        out = whatever(terms);
    }
    depth_ = depth;
    Known& made = known->second;
    made.expr = out;
    made.done = true;
    if (made.rule < 0) return out;
    g_.define(made.rule, out);
    return g_.call(made.rule);
}

void SchemaBuilder::too_many_schemas(const json::value* at) const {
    cases_.wrong(at, fmt::format("more than {} schemas", kMostSchemas));
}

/// Of a part that cannot be used, what its type allows.
Expr SchemaBuilder::whatever(const SchemaTerms& terms) {
    SchemaCase any;
    for (const SchemaTerm& one : terms)
        if (!one.negated) any.types = static_cast<uint8_t>(any.types & document_.types_of(*one.schema));
    std::vector<Expr> ways;
    typed(any, any.types, ways);
    return g_.choice(std::move(ways));
}

Expr SchemaBuilder::exact(const SchemaTerms& terms) {
    const std::vector<SchemaCase> cases = cases_.of(terms);
    std::vector<std::string> texts;
    std::vector<Expr> ways;
    uint8_t simple = 0;  // once, not in each case
    constexpr uint8_t kSimple = SchemaTypes::kNull | SchemaTypes::kBoolean;
    for (const SchemaCase& one : cases) {
        if (one.values) {
            for (const json::value* value : *one.values) texts.push_back(json_text(*value));
            continue;
        }
        SchemaCase left = one;
        for (const json::value* value : one.excluded) {
            if (value->is_null()) left.types = static_cast<uint8_t>(left.types & ~SchemaTypes::kNull);
            if (value->is_bool() && (left.types & SchemaTypes::kBoolean) != 0) {
                left.types = static_cast<uint8_t>(left.types & ~SchemaTypes::kBoolean);
                texts.emplace_back(value->get_bool() ? "false" : "true");
                const json::value other(!value->get_bool());
                if (std::any_of(one.excluded.begin(), one.excluded.end(), [&](const auto* v) { return *v == other; }))
                    texts.pop_back();
            }
        }
        simple = static_cast<uint8_t>(simple | (left.types & kSimple));
        left.types = static_cast<uint8_t>(left.types & ~kSimple);
        if (left.types == (SchemaTypes::kAll & ~kSimple) && simple == kSimple && left.parts.empty() &&
            left.excluded.empty() && left.not_patterns.empty() && left.strangers.empty())
            return json().any();
        typed(left, left.types, ways);
    }
    typed({}, simple, ways);
    if (!texts.empty()) ways.push_back(g_.words(std::move(texts)));
    return g_.choice(std::move(ways));
}

void SchemaBuilder::typed(const SchemaCase& one, uint8_t types, std::vector<Expr>& ways) {
    if ((types & SchemaTypes::kObject) != 0) ways.push_back(object(one));
    if ((types & SchemaTypes::kArray) != 0) ways.push_back(array(one));
    if ((types & SchemaTypes::kString) != 0) ways.push_back(string(one));
    if ((types & SchemaTypes::kNumber) != 0) ways.push_back(number(one));
    if ((types & SchemaTypes::kBoolean) != 0) ways.push_back(json().boolean());
    if ((types & SchemaTypes::kNull) != 0) ways.push_back(g_.text("null"));
}

const json::value* SchemaBuilder::where(const SchemaCase& one, std::string_view word) const {
    for (const json::value* part : one.parts)
        if (part->get_object().contains(word)) return part;
    return one.parts.empty() ? &document_.root() : one.parts[0];
}

std::pair<int64_t, int64_t> SchemaBuilder::counts(const SchemaCase& one, const char* least, const char* most) const {
    int64_t low = 0, high = Grammar::kUnbounded;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        const std::string place = cases_.place(part);
        const auto from = schema_count(schema, least, place), to = schema_count(schema, most, place);
        if (from && to && *from > *to) cases_.wrong(part, fmt::format("'{}' is more than '{}'", least, most));
        low = std::max(low, from.value_or(0));
        if (to) high = high == Grammar::kUnbounded ? *to : std::min(high, *to);
    }
    return {low, high};
}

std::vector<StringRules> SchemaBuilder::strings(const json::value& part, const std::string& path) {
    std::vector<StringRules> out;
    for (const SchemaCase& one : cases_.of({cases_.term(part, path)})) {
        if (!one.values) {
            if ((one.types & SchemaTypes::kString) != 0) out.push_back(rules_of(one));
            continue;
        }
        StringRules rules;
        rules.words.emplace();
        for (const json::value* value : *one.values)
            if (value->is_string()) rules.words->emplace_back(value->get_string());
        if (!rules.words->empty()) out.push_back(std::move(rules));
    }
    return out;
}

std::vector<StringRules> string_rules(const json::value& root, const json::value& part, const std::string& path,
                                      const SchemaOptions& options) {
    Grammar scratch;
    return SchemaBuilder(scratch, root, options).strings(part, path);
}

Expr add_json_schema(Grammar& grammar, const json::value& schema, const SchemaOptions& options) {
    const Expr all = SchemaBuilder(grammar, schema, options).build(schema, "#");
    const Grammar::Node& node = grammar.node(all);
    if (node.kind == Grammar::Kind::choice && node.parts.empty()) throw GrammarError("#: nothing can match");
    return all;
}

Expr add_json_schema(Grammar& grammar, const json::value& root, const json::value& part, const std::string& path,
                     const SchemaOptions& options) {
    return SchemaBuilder(grammar, root, options).build(part, path);
}

Expr add_json_object(Grammar& grammar) { return JsonGrammar(grammar).object(); }

}  // namespace riptide
