// JSON Schemas as people publish them, and JSON-Schema-Test-Suite: what compiles takes what is valid and nothing else.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <map>

#include "base/json.h"
#include "tests/source_dir.h"
#include "tests/text/constraint_world.h"
#include "text/json/json_grammar.h"
#include "text/json/json_schema_cases.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

fs::path schemas_folder() { return fs::path(conformance_dir()) / "schemas"; }

std::vector<json::value> lines_of(const std::string& name) {
    const std::string command = fmt::format("gzip -dc '{}'", (schemas_folder() / name).string());
    std::FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    char buffer[1 << 16];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
    EXPECT_EQ(pclose(pipe), 0) << command;
    std::vector<json::value> out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        out.push_back(parse_json(std::string_view(text).substr(at, end - at), name, 400));
        at = end + 1;
    }
    return out;
}

using Schemas = std::vector<const json::value*>;

/// Puts the members of a datum in the order in which a grammar has them: as the schema names them.
class InOrder {
  public:
    explicit InOrder(const json::value& root) : document_(root), cases_(document_, true) {}
    json::value of(const json::value& value) { return of(value, {&document_.root()}, 0); }

  private:
    static const json::value* at(const json::value& schema, const char* word) {
        return schema.is_object() ? schema.get_object().if_contains(word) : nullptr;
    }

    bool valid(const json::value& schema, const json::value& value) {
        try {
            return cases_.valid(value, cases_.term(schema, "#"));
        } catch (const Error&) {
            return false;
        }
    }

    /// All parts that say something of the same value: first those that hold in any case, then what is chosen.
    Schemas with_parts(Schemas todo, const json::value& value) {
        std::vector<Schemas> choices;
        std::set<const json::value*> seen;
        Schemas out;
        while (!todo.empty() || !choices.empty()) {
            if (todo.empty()) {
                todo = choices.front();
                choices.erase(choices.begin());
                continue;
            }
            const json::value* one = todo.front();
            todo.erase(todo.begin());
            if (!one->is_object() || !seen.insert(one).second) continue;
            out.push_back(one);
            if (at(*one, "$ref") != nullptr) {
                try {
                    todo.push_back(&document_.target(one->get_object(), ""));
                } catch (const Error&) {
                }
            }
            if (const json::value* list = at(*one, "allOf"); list != nullptr && list->is_array())
                for (const json::value& part : list->get_array()) todo.push_back(&part);
            choose(*one, value, choices);
        }
        return out;
    }

    void choose(const json::value& one, const json::value& value, std::vector<Schemas>& choices) {
        for (const char* word : {"anyOf", "oneOf"})
            if (const json::value* list = at(one, word); list != nullptr && list->is_array()) {
                Schemas& all = choices.emplace_back();
                for (const json::value& part : list->get_array())
                    if (valid(part, value)) {
                        all = {&part};
                        break;
                    } else {
                        all.push_back(&part);
                    }
            }
        if (const json::value* condition = at(one, "if")) {
            const bool holds = valid(*condition, value);
            Schemas& all = choices.emplace_back();
            if (holds) all.push_back(condition);
            if (const json::value* part = at(one, holds ? "then" : "else")) all.push_back(part);
        }
        for (const char* word : {"dependencies", "dependentRequired", "dependentSchemas"})
            if (const json::value* all = at(one, word); all != nullptr && all->is_object() && value.is_object())
                for (const auto& [key, part] : all->get_object()) {
                    if (!value.get_object().contains(key)) continue;
                    json::array names = {key};
                    if (part.is_array()) names.insert(names.end(), part.get_array().begin(), part.get_array().end());
                    made_.push_back(json::object{{"required", names}});
                    choices.push_back({&made_.back()});
                    if (part.is_object()) choices.back().push_back(&part);
                }
    }

    json::value of(const json::value& value, const Schemas& schemas, int depth) {
        if (!value.is_structured() || depth > 100) return value;
        const Schemas parts = with_parts(schemas, value);
        for (const json::value* part : parts) {  // a value that is listed is written as it is there
            const json::value *one = at(*part, "const"), *list = at(*part, "enum");
            if (one != nullptr && schema_value_key(*one) == schema_value_key(value)) return *one;
            if (list == nullptr || !list->is_array()) continue;
            for (const json::value& listed : list->get_array())
                if (schema_value_key(listed) == schema_value_key(value)) return listed;
        }
        if (const json::array* array = value.if_array()) {
            json::array out;
            for (std::size_t i = 0; i < array->size(); ++i) {
                Schemas inner;
                for (const json::value* part : parts)
                    for (const char* word : {"prefixItems", "items", "additionalItems", "contains"})
                        if (const json::value* items = at(*part, word)) {
                            const json::array* tuple = items->if_array();
                            if (tuple == nullptr) inner.push_back(items);
                            else if (i < tuple->size()) inner.push_back(&(*tuple)[i]);
                        }
                out.push_back(of((*array)[i], inner, depth + 1));
            }
            return out;
        }
        return object(value.get_object(), parts, depth);
    }

    json::value object(const json::object& value, const Schemas& parts, int depth) {
        std::vector<std::string> order;
        for (const json::value* part : parts)
            if (const json::value* properties = at(*part, "properties"); properties && properties->is_object())
                for (const auto& [name, one] : properties->get_object()) order.emplace_back(name);
        for (const json::value* part : parts)
            if (const json::value* required = at(*part, "required"); required && required->is_array())
                for (const json::value& name : required->get_array())
                    if (name.is_string()) order.emplace_back(name.get_string());
        for (const auto& [name, one] : value) order.emplace_back(name);
        json::object out;
        for (const std::string& name : order) {
            const json::value* member = value.if_contains(name);
            if (member == nullptr || out.contains(name)) continue;
            Schemas inner;
            for (const json::value* part : parts) {
                const json::value* properties = at(*part, "properties");
                if (properties != nullptr && at(*properties, name.c_str()) != nullptr)
                    inner.push_back(at(*properties, name.c_str()));
                if (const json::value* patterns = at(*part, "patternProperties"); patterns && patterns->is_object())
                    for (const auto& [key, one] : patterns->get_object()) inner.push_back(&one);
                if (const json::value* more = at(*part, "additionalProperties")) inner.push_back(more);
            }
            out[name] = of(*member, inner, depth + 1);
        }
        return out;
    }

    SchemaDocument document_;
    SchemaCases cases_;
    std::deque<json::value> made_;
};

/// What is refused, without places and numbers.
std::string reason_of(std::string_view message) {
    const std::size_t colon = message.starts_with('#') ? message.find(": ") : std::string_view::npos;
    std::string out;
    for (const char c : colon == std::string_view::npos ? message : message.substr(colon + 2))
        if (c < '0' || c > '9') out += c;
    return out.substr(0, 100);
}

struct Outcome {
    int64_t schemas = 0, compiled = 0, valid_refused = 0, invalid_taken = 0, tests = 0;
    std::map<std::string, std::vector<std::string>> reasons;
    std::vector<std::pair<double, std::string>> milliseconds;  // of the processor

    void judge(const std::string& id, const json::value& schema, const json::array& data) {
        ++schemas;
        std::shared_ptr<Constraint> constraint;
        const std::clock_t begin = std::clock();
        try {
            constraint = schema_constraint(schema);
        } catch (const GrammarError& error) {
            reasons[reason_of(error.what())].push_back(id);
        }
        milliseconds.emplace_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, id);
        if (constraint == nullptr) return;
        ++compiled;
        InOrder in_order(schema);
        for (const json::value& test : data) {
            const std::string text = json_text(in_order.of(test.at("data")));
            const bool valid = test.at("valid").as_bool();
            ++tests;
            if (takes(constraint, text) == valid) continue;
            ++(valid ? valid_refused : invalid_taken);
            ADD_FAILURE() << id << (valid ? ": valid, but refused: " : ": not valid, but taken: ")
                          << text.substr(0, 600);
        }
    }

    void print() {
        std::sort(milliseconds.begin(), milliseconds.end());
        std::vector<std::pair<std::size_t, std::string>> by_count;
        for (const auto& [reason, ids] : reasons)
            by_count.emplace_back(ids.size(), fmt::format("{}  ({})", reason, ids[0]));
        std::sort(by_count.rbegin(), by_count.rend());
        std::cout << fmt::format(
            "{} of {} compile; of {} data {} valid are refused, {} others taken; compile time "
            "p99 {:.1f} ms, longest {:.1f} ms ({})\n",
            compiled, schemas, tests, valid_refused, invalid_taken, milliseconds[milliseconds.size() * 99 / 100].first,
            milliseconds.back().first, milliseconds.back().second);
        for (const auto& [count, reason] : by_count) std::cout << fmt::format("{:6} {}\n", count, reason);
    }
};

/// Groups of the suite that judge by other rules: a format is an annotation or holds, as the reader likes; numbers of
/// more digits than are written; a draft that is defined far away.
bool is_apart(std::string_view id) {
    for (const char* word : {"format", "optional/content", "optional/bignum", "optional/float-overflow",
                             "optional/ecmascript-regex", "vocabulary"})
        if (id.find(word) != std::string_view::npos) return true;
    return false;
}

Outcome outcome_of(const std::string& name) {
    Outcome out;
    for (const json::value& line : lines_of(name)) {
        const std::string id(line.at("id").as_string());
        if (is_apart(id)) continue;
        json::value schema = line.at("schema");
        if (id.starts_with("draft7/") && schema.is_object() && !schema.get_object().contains("$schema"))
            schema.get_object()["$schema"] = "http://json-schema.org/draft-07/schema#";
        out.judge(id, schema, line.at("tests").as_array());
    }
    out.print();
    return out;
}

TEST(JsonSchemaConformance, published_schemas_take_what_is_valid_and_nothing_else) {
    if (!fs::exists(schemas_folder() / "real.jsonl.gz"))
        GTEST_SKIP() << schemas_folder() << " is not there: 1344 schemas";
    const Outcome out = outcome_of("real.jsonl.gz");
    // The part that is packed has fewer from everyday life, and as many made to be hard.
    EXPECT_GE(out.compiled * 100, out.schemas * (out.schemas < 1344 ? 94 : 95));
    EXPECT_EQ(out.valid_refused, 0);
    EXPECT_EQ(out.invalid_taken, 0);
}

TEST(JsonSchemaConformance, the_test_suite_agrees_where_it_compiles) {
    if (!fs::exists(schemas_folder() / "suite.jsonl.gz"))
        GTEST_SKIP() << schemas_folder() << " is not there: the suite";
    const Outcome out = outcome_of("suite.jsonl.gz");
    EXPECT_EQ(out.valid_refused, 0);
    EXPECT_EQ(out.invalid_taken, 0);
}

}  // namespace
}  // namespace riptide::testing
