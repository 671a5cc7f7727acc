// A schema as a list of ways to be valid, each without alternatives. Private to json_schema*.cpp.
#pragma once

#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/work_budget.h"
#include "text/grammar/text_set.h"
#include "text/json/json_schema_document.h"

namespace riptide {

/// A schema that must hold, or must not.
struct SchemaTerm {
    const json::value* schema = nullptr;
    bool negated = false;
    friend auto operator<=>(const SchemaTerm&, const SchemaTerm&) = default;
};
using SchemaTerms = std::vector<SchemaTerm>;  // all of them

/// One way for a value to be valid: of these types; by what each of `parts` says about its type (type, enum, $ref and
/// what joins schemas are done with); one of `values`, if there is a list; none of `excluded`; and a string holds none
/// of `not_patterns`; and an object has a member that the `properties` and `patternProperties` of each of `strangers`
/// do not hold (what `not` makes of "additionalProperties": false; SchemaCases turns it into required ones).
struct SchemaCase {
    uint8_t types = SchemaTypes::kAll;
    std::vector<const json::value*> parts;
    std::optional<std::vector<const json::value*>> values;
    std::vector<const json::value*> excluded;
    std::vector<std::string> not_patterns;
    std::vector<const json::value*> strangers;
};

/// One of several ways on, in a schema with alternatives.
struct SchemaOption {
    SchemaTerms terms = {};
    uint8_t types = SchemaTypes::kAll;
    std::optional<std::vector<const json::value*>> values = {};
    std::vector<const json::value*> excluded = {};
    std::vector<std::string> not_patterns = {};
    std::vector<const json::value*> strangers = {};
};

class SchemaCases {
  public:
    /// `work` counts what is done; or null.
    SchemaCases(const SchemaDocument& document, bool lenient, WorkBudget* work = nullptr)
        : document_(document), lenient_(lenient), budget_(work) {}

    /// The cases of all terms together, but for those that visibly let nothing through. Throws GrammarError for what is
    /// wrong, and (unless lenient) for what cannot be held.
    std::vector<SchemaCase> of(const SchemaTerms& terms);
    /// Whether it can be seen that no value is valid.
    bool nothing(const SchemaTerms& terms, uint8_t types = SchemaTypes::kAll);
    /// What a member of this name must be, in objects of the case.
    SchemaTerms member(const SchemaCase& one, std::string_view name);
    /// The same of names that no `properties` hold, but just these patterns.
    SchemaTerms other_member(const SchemaCase& one, const std::set<std::string, std::less<>>& patterns);
    /// What item `index` of an array must be.
    SchemaTerms item(const SchemaCase& one, std::size_t index);

    /// Whether a value is valid. Throws GrammarError for what cannot be told.
    bool valid(const json::value& value, const SchemaTerm& term, int depth = 0);

    const TextSet& pattern(const std::string& regex);
    const TextSet& format(const std::string& name);
    SchemaTerm term(const json::value& schema, const std::string& place, bool negated = false);
    std::string place(const json::value* schema) const;
    /// A schema made here, once for each key.
    const json::value& made(const void* of, const std::string& word, json::value schema);
    [[noreturn]] void wrong(const json::value* schema, std::string_view what) const;
    /// Throws, or passes over it if lenient.
    void unsupported(const json::value* schema, std::string_view what) const;
    const SchemaDocument& document() const { return document_; }

  private:
    using Option = SchemaOption;
    /// A case in the making: terms to look at, and choices to make.
    struct Walk {
        SchemaCase made;
        const SchemaTerms& whole;
        SchemaTerms todo;
        std::set<SchemaTerm> seen;
        std::deque<std::vector<Option>> choices;

        void meet(const Option& option) {
            made.types = static_cast<uint8_t>(made.types & option.types);
            todo.insert(todo.end(), option.terms.begin(), option.terms.end());
            if (option.values) made.values = option.values;
            made.excluded.insert(made.excluded.end(), option.excluded.begin(), option.excluded.end());
            made.not_patterns.insert(made.not_patterns.end(), option.not_patterns.begin(), option.not_patterns.end());
            made.strangers.insert(made.strangers.end(), option.strangers.begin(), option.strangers.end());
        }
    };

    void run(Walk walk, std::vector<SchemaCase>& out, bool first_only);
    bool take(Walk& walk, const SchemaTerm& term);
    void take_words(Walk& walk, const json::value& schema);
    void take_choices(Walk& walk, const json::value& schema);
    void take_conditions(Walk& walk, const json::value& schema);
    std::vector<Option> opposite(const json::value& schema);
    bool not_joined(std::vector<Option>& options, const json::value& at, std::string_view word);
    bool not_members(std::vector<Option>& options, const json::value& at, std::string_view word);
    bool not_bound(std::vector<Option>& options, const json::value& at, std::string_view word);
    std::vector<Option> options_of(const json::value& schema, const std::string& word);
    std::vector<Option> one_of(const json::value& schema, std::vector<Option> options, uint8_t types);
    bool live(const SchemaCase& one);
    bool apart(const SchemaTerm& a, const SchemaTerm& b, uint8_t types);
    bool has_stranger(const SchemaCase& one, const json::value& schema);
    std::vector<Option> stranger_options(const SchemaCase& one, const json::value& schema);
    bool names_member(const json::value& schema, std::string_view name);
    bool number_live(const SchemaCase& one) const;
    void count(std::size_t steps);

    bool object_valid(const json::object& value, const json::object& schema, const json::value* at, int depth);
    bool array_valid(const json::array& value, const json::object& schema, const json::value* at, int depth);
    bool number_valid(const json::value& value, const json::object& schema) const;
    bool string_valid(std::string_view value, const json::object& schema);
    bool joined_valid(const json::value& value, const json::object& schema, const json::value* at, int depth);

    const std::set<std::string>& keys_of(const json::value& list);
    std::string key_of(const json::value& value);

    const SchemaDocument& document_;
    const bool lenient_;
    WorkBudget* const budget_;
    std::unordered_map<const json::value*, std::set<std::string>> keys_;  // of the values of each enum
    std::unordered_map<const json::value*, std::string> places_;
    std::deque<json::value> made_;
    std::map<std::pair<const void*, std::string>, const json::value*> made_for_;
    std::map<std::string, TextSet> patterns_, formats_;
    std::map<std::tuple<SchemaTerm, SchemaTerm, uint8_t>, bool> apart_;
    std::size_t work_ = 0;
    int looking_ = 0;  // calls of nothing() inside each other
};

/// The types that `type` names; all if it is absent. Throws GrammarError.
uint8_t schema_type_set(const json::object& schema, const std::string& path);

/// What the `format` of a schema says of numbers, as a schema; nullptr if it says nothing of them.
const json::object* number_format(const json::object& schema);

/// Why a word cannot be held where the opposite is asked for.
std::string not_opposed(std::string_view word);

/// The same text for values that are equal as JSON Schema has it (1 and 1.0, members in any order).
std::string schema_value_key(const json::value& value);

}  // namespace riptide
