// What turns a schema into a grammar. Private to json_schema*.cpp.
#pragma once

#include <map>
#include <set>
#include <string>

#include "text/json/json_grammar.h"
#include "text/json/json_schema.h"
#include "text/json/json_schema_cases.h"

namespace riptide {

/// The members of an object, in order, each with its key and whether it must be there.
struct SchemaMember {
    Grammar::Expr text;
    bool must = false;
};

/// "{", members, then any number of `more` (or none, if absent), "}": `least` to `most` (or Grammar::kUnbounded) in
/// all. Throws GrammarError without a place. Cost: linear in the members, times `most` or `least` where they must be
/// counted.
Grammar::Expr add_members(Grammar& grammar, JsonGrammar& json, const std::vector<SchemaMember>& members,
                          std::optional<Grammar::Expr> more, int64_t least, int64_t most);

/// The strings by these rules.
TextSet string_set(const StringRules& rules, WorkBudget* work);

class SchemaBuilder {
  public:
    using Expr = Grammar::Expr;

    SchemaBuilder(Grammar& grammar, const json::value& root, const SchemaOptions& options)
        : g_(grammar),
          spaced_(grammar),
          one_way_(grammar, true),
          document_(root),
          cases_(document_, options.lenient, grammar.work()),
          options_(options) {}

    Expr build(const json::value& part, const std::string& path);
    std::vector<StringRules> strings(const json::value& part, const std::string& path);

  private:
    static constexpr std::size_t kMostSchemas = 20'000;

    struct Known {
        Expr expr = 0;
        Grammar::Rule rule = -1;  // if it is met more than once
        bool done = false;
    };

    Expr schema(SchemaTerms terms);
    Expr exact(const SchemaTerms& terms);
    Expr whatever(const SchemaTerms& terms);
    void typed(const SchemaCase& one, uint8_t types, std::vector<Expr>& ways);
    StringRules rules_of(const SchemaCase& one) const;
    TextSet names_of(const SchemaTerms& terms);

    Expr object(const SchemaCase& one);
    std::optional<Expr> other_members(const SchemaCase& one, const std::vector<std::string>& names);
    Expr key_inside(const TextSet& set, const std::set<std::string, std::less<>>& patterns,
                    const std::vector<std::string>& names);
    Expr array(const SchemaCase& one);
    Expr items(const SchemaCase& one, std::size_t from, std::size_t tuple, int64_t least, int64_t most);
    Expr containing(const SchemaCase& one, const json::value& part, int64_t least, int64_t most);
    std::optional<Expr> listed_once(const SchemaCase& one, int64_t least, int64_t most);
    Expr distinct(const SchemaCase& one, int64_t least, int64_t most);
    Expr string(const SchemaCase& one);
    Expr number(const SchemaCase& one);

    /// The highest of `least` and the lowest of `most` that the parts say. Nothing is between if they say so
    /// themselves; one part alone that does is an error.
    std::pair<int64_t, int64_t> counts(const SchemaCase& one, const char* least, const char* most) const;
    const json::value* where(const SchemaCase& one, std::string_view word) const;  // the part that holds the word
    [[noreturn]] void too_many_schemas(const json::value* at) const;

    /// How values are written here.
    JsonGrammar& json() { return items_differ_ ? one_way_ : spaced_; }

    Grammar& g_;
    JsonGrammar spaced_, one_way_;
    bool items_differ_ = false;  // inside items of an array that must all differ
    SchemaDocument document_;
    SchemaCases cases_;
    const SchemaOptions options_;
    std::map<SchemaTerms, Known> known_[2];  // of each way of writing
    int depth_ = 0;
    std::size_t schemas_ = 0;
};

/// Whether a term is `false`: nothing is valid.
bool holds_nothing(const SchemaTerms& terms);

}  // namespace riptide
