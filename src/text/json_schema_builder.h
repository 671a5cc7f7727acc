// What turns a schema into a grammar. Private to json_schema*.cpp.
#pragma once

#include <map>
#include <string>

#include "text/json_schema.h"

namespace riptide {

class SchemaBuilder {
  public:
    using Expr = Grammar::Expr;

    SchemaBuilder(Grammar& grammar, const json::value& root, const SchemaOptions& options)
        : g_(grammar), json_(grammar), root_(root), options_(options) {}

    Expr build() { return schema(root_, "#"); }
    Expr schema(const json::value& value, const std::string& path);

  private:
    [[noreturn]] static void wrong(const std::string& path, std::string_view what);
    void check_words(const json::object& schema, const std::string& path) const;

    Expr exact(const json::value& value, const std::string& path);
    Expr whatever(const json::value& value);
    Expr typed(const json::object& schema, std::string_view type, const std::string& path);
    Expr object(const json::object& schema, const std::string& path);
    Expr array(const json::object& schema, const std::string& path);
    Expr string(const json::object& schema, const std::string& path);
    Expr number(const json::object& schema, const std::string& path, bool whole);

    Expr reference(const json::object& schema, const std::string& path);
    Expr constants(const json::object& schema, const std::string& path);
    Expr alternatives(const json::object& schema, const std::string& word, const std::string& path);
    const json::value& target(std::string_view pointer, const std::string& path) const;
    void check_disjoint(const json::array& parts, const std::string& path) const;
    bool disjoint(const json::object& a, const json::object& b) const;
    const json::object& resolved(const json::object& schema) const;

    Grammar& g_;
    JsonGrammar json_;
    const json::value& root_;
    const SchemaOptions& options_;
    std::map<std::string, Grammar::Rule, std::less<>> references_;
    int depth_ = 0;
    int64_t schemas_ = 0;
};

/// The types that a schema names or, if it names none, that its words are about; empty: any.
std::vector<std::string> schema_types(const json::object& schema);
}  // namespace riptide
