// A JSON Schema as a document: what its references mean, and which types a part of it lets through.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json_fwd.h"

namespace riptide {

/// Sets of the types of JSON Schema, where `number` is two: whole ones and others.
struct SchemaTypes {
    static constexpr uint8_t kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32,
                             kObject = 64, kNumber = kInteger | kFraction, kAll = 127;
    /// The set that a name stands for; 0: no type.
    static uint8_t named(std::string_view name);
    static uint8_t of(const json::value& value);
    /// What `type` lets through beside OpenAPI 3.0's "nullable": null too, if that is true.
    static uint8_t with_nullable(uint8_t types, const json::object& schema);
};

/// Not thread-safe. The root must outlive this.
class SchemaDocument {
  public:
    explicit SchemaDocument(const json::value& root);

    const json::value& root() const { return root_; }

    /// What the `$ref` of `schema` (which is part of the root) means: '#', '#/...', '#NAME' ($anchor), or the $id (in
    /// draft 4: id) of a part, with one of these behind it. Throws GrammarError for others; `path` names the place.
    const json::value& target(const json::object& schema, const std::string& path) const;

    /// Drafts 4 to 7: what stands beside a $ref says nothing.
    bool references_stand_alone() const { return references_stand_alone_; }

    /// The types that `schema` lets through as far as type, enum, const, $ref, anyOf, oneOf and allOf tell; others may
    /// turn out not to be valid. Never throws: what it cannot follow lets all through.
    uint8_t types_of(const json::value& schema) const;

  private:
    void index(const json::value& at, const std::string& base, int depth);
    const json::value* found(const std::string& base, std::string_view reference) const;
    uint8_t types_of(const json::value& schema, int depth, int& work) const;

    const json::value& root_;
    bool references_stand_alone_ = false;
    std::string base_;                                            // of the root
    std::map<std::string, const json::value*> names_;             // addresses of parts
    std::unordered_map<const json::object*, std::string> bases_;  // of parts with a $ref, if not the root's
};

}  // namespace riptide
