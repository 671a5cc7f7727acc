// Each word of JSON Schema: what it takes and what not. And what tool arguments read out of the same schemas.
#include <span>

#include "base/json.h"
#include "tests/text/constraint_world.h"
#include "text/grammar/text_set.h"
#include "text/json/tool_arguments.h"

namespace riptide::testing {
namespace {

struct WordCase {
    const char* schema;
    std::vector<const char*> yes, no;
};

void expect_cases(std::span<const WordCase> cases) {
    for (const WordCase& c : cases) {
        const auto constraint = schema_constraint(parse_json(c.schema, "test"));
        for (const char* text : c.yes) EXPECT_TRUE(takes(constraint, text)) << c.schema << "\n" << text;
        for (const char* text : c.no) EXPECT_FALSE(takes(constraint, text)) << c.schema << "\n" << text;
    }
}

TEST(JsonSchemaWords, listed_numbers_are_judged_as_others_are) {
    const WordCase cases[] = {
        {R"({"enum": [127, 128, -129, 1.5, "a"], "format": "int8"})", {"127", R"("a")"}, {"128", "-129", "1.5"}},
        {R"({"enum": [0, -1, 4294967296], "format": "uint32"})", {"0"}, {"-1", "4294967296"}},
        {R"({"enum": [18446744073709551615, 9223372036854775807, 9223372036854775808], "format": "int64"})",
         {"9223372036854775807"},
         {"18446744073709551615", "9223372036854775808"}},
        {R"({"enum": [9007199254740993, 9007199254740992], "maximum": 9007199254740992})",
         {"9007199254740992"},
         {"9007199254740993"}},
        {R"({"enum": [0.3, 0.35, 91897120.6, 91897120.65, 1], "multipleOf": 0.1})",
         {"0.3", "91897120.6", "1"},
         {"0.35", "91897120.65"}},
        {R"({"enum": [300, 1000, 1e20, 250], "multipleOf": 100})", {"300", "1000", "1e+20"}, {"250"}},
    };
    expect_cases(cases);
    EXPECT_THROW(schema_constraint(parse_json(R"({"enum": [1, 2], "multipleOf": 0})", "test")), GrammarError);
}

TEST(JsonSchemaWords, numbers_that_no_double_holds_are_read_as_numbers) {
    const WordCase cases[] = {
        {R"({"enum": [1, 1e999, -1e999]})", {"1", "1e400", "-1e400"}, {"inf"}},
        {R"({"enum": [0, 1, 2], "multipleOf": 1e999})", {"0"}, {"1", "2"}},
        {R"({"type": "integer", "maximum": 1e999, "minimum": 7})", {"7", "123456"}, {"6"}},
    };
    expect_cases(cases);
    EXPECT_THROW(schema_constraint(parse_json(R"({"type": "number", "multipleOf": 1e999})", "test")), GrammarError);
    EXPECT_THROW(schema_constraint(parse_json(R"({"type": "number", "minimum": 1e999, "maximum": 1})", "test")),
                 GrammarError);
}

TEST(JsonSchemaWords, formats_of_numbers_are_not_passed_over_under_not) {
    const char* const opposed[] = {R"({"not": {"format": "int8"}})",
                                   R"({"oneOf": [{"format": "int8"}, {"type": "number"}]})"};
    for (const char* schema : opposed)
        EXPECT_THROW(schema_constraint(parse_json(schema, "test")), GrammarError) << schema;
}

TEST(JsonSchemaWords, joined_schemas_hold_together) {
    const WordCase cases[] = {
        {R"({"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]})", {"3", "5"}, {"2", "6", "\"a\""}},
        {R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                       {"properties": {"a": {"minimum": 5}, "b": {"type": "null"}}}], "type": "object"})",
         {R"({"a":5})", R"({"a":7,"b":null,"c":1})"},
         {R"({"a":4})", R"({"b":null})", R"({"a":5,"b":1})"}},
        {R"({"$ref": "#/$defs/n", "maximum": 9, "$defs": {"n": {"type": "integer", "minimum": 3}}})",
         {"3", "9"},
         {"2", "10"}},
        {R"({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n", "maximum": 9,
             "definitions": {"n": {"type": "integer", "minimum": 3}}})",
         {"3", "10"},
         {"2"}},
        {R"({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"const": 1}, "b": {"const": 2}},
             "type": "object"})",
         {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"},
         {"{}", R"({"c":1})", R"({"a":2})"}},
        {R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"const": 1}, "b": {"const": 2}},
             "type": "object"})",
         {R"({"a":1})", R"({"b":2,"c":3})"},
         {"{}", R"({"a":1,"b":2})"}},
        {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"1.5", "-0.25"}, {"1", "1.0"}},
        {R"({"oneOf": [{"properties": {"a": {"type": "null"}}, "additionalProperties": false},
                       {"properties": {"b": {"type": "null"}}, "additionalProperties": false}], "type": "object"})",
         {R"({"a":null})", R"({"b":null})"},
         {"{}", R"({"a":null,"b":null})"}},
        {R"({"type": "string", "enum": ["a", "bb", 3], "maxLength": 1})", {R"("a")"}, {R"("bb")", "3"}},
        {R"({"anyOf": [{"const": 1}, {"const": "x"}, {"enum": [2, 3]}], "not": {"const": 3}})",
         {"1", "2", R"("x")"},
         {"3"}},
        {R"({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["a"]},
             "else": {"required": ["b"]}, "type": "object", "properties": {"k": {}, "a": {}, "b": {}}})",
         {R"({"k":1,"a":0})", R"({"k":2,"b":0})", R"({"b":0})"},
         {R"({"k":1,"b":0})", R"({"k":2,"a":0})", "{}"}},
        {R"({"not": {"type": ["string", "object", "array"]}})", {"1", "null", "true"}, {R"("a")", "{}", "[]"}},
        {R"({"type": "string", "not": {"enum": ["a", "ab"]}})", {R"("b")", R"("")", R"("abc")"}, {R"("a")", R"("ab")"}},
        {R"({"type": "number", "not": {"enum": [1, 2.5, 0]}})",
         {"2", "2.51", "10", "-1", "1.01"},
         {"1", "1.00", "2.5", "2.50", "0", "-0", "0.0"}},
        {R"({"type": "string", "not": {"pattern": "b"}})", {R"("a")", R"("")"}, {R"("abc")"}},
        {R"({"type": "string", "pattern": "^a", "maxLength": 2})", {R"("a")", R"("ab")"}, {R"("abc")", R"("b")"}},
    };
    expect_cases(cases);
}

TEST(JsonSchemaWords, objects) {
    const WordCase cases[] = {
        {R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "properties": {"xa": {"minimum": 3}},
             "additionalProperties": {"type": "null"}})",
         {R"({"xa":4,"xb":1,"y":null})", "{}", R"({"y":null,"x":-1})"},
         {R"({"xa":2})", R"({"xb":null})", R"({"y":1})"}},
        {R"({"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 2}})",
         {R"({"ab":1,"c":2})", "{}"},
         {R"({"abc":1})", R"({"d":1})"}},
        {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1})",
         {R"({"b":1})"},
         {"{}", R"({"c":1})"}},
        {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false,
             "minProperties": 2, "maxProperties": 2})",
         {R"({"a":1,"b":1})", R"({"a":1,"c":1})", R"({"b":1,"c":1})"},
         {R"({"a":1})", "{}", R"({"a":1,"b":1,"c":1})"}},
        {R"({"type": "object", "maxProperties": 1})", {"{}", R"({"z":1})"}, {R"({"a":1,"b":2})"}},
        {R"({"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}})",
         {"{}", R"({"b":1})", R"({"a":1,"b":1})"},
         {R"({"a":1})"}},
        {R"({"type": "object", "dependencies": {"a": {"properties": {"b": {"type": "null"}}}}, "properties": {"a": {}, "b": {}}})",
         {R"({"b":1})", R"({"a":1,"b":null})"},
         {R"({"a":1,"b":1})"}},
    };
    expect_cases(cases);
}

TEST(JsonSchemaWords, arrays_and_numbers) {
    const WordCase cases[] = {
        {R"({"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"type": "integer"}})",
         {"[]", "[null]", "[null,true]", "[null,true,1,2]"},
         {"[true]", "[null,true,null]"}},
        {R"({"type": "array", "items": [{"type": "null"}], "additionalItems": false, "minItems": 1})",
         {"[null]"},
         {"[]", "[null,null]"}},
        {R"({"type": "array", "contains": {"type": "null"}})", {"[null]", "[1,null]", "[null,1]"}, {"[]", "[1]"}},
        {R"({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "minContains": 2, "maxContains": 2})",
         {"[1,1]", "[2,1,2,1,2]"},
         {"[1]", "[1,1,1]", "[2]"}},
        {R"({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": true, "minItems": 1})",
         {"[1]", "[3,1,2]"},
         {"[]", "[1,1]", "[4]"}},
        {R"({"type": "array", "not": {"type": "array", "items": false}})", {"[1]", "[null,null]"}, {"[]"}},
        {R"({"type": "integer", "format": "uint8"})", {"0", "255"}, {"-1", "256", "131562"}},
        {R"({"type": "integer", "format": "int32"})", {"-2147483648", "2147483647"}, {"2147483648"}},
        {R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true})", {"4"}, {"3"}},
    };
    expect_cases(cases);
    const auto counted =
        schema_constraint(parse_json(R"({"type": "string", "minLength": 70, "maxLength": 5000})", "t"));
    for (const int n : {69, 70, 71, 139, 140, 141, 1000, 4968, 4969, 4999, 5000, 5001})
        EXPECT_EQ(takes(counted, "\"" + std::string(static_cast<std::size_t>(n), 'a') + "\""), n >= 70 && n <= 5000)
            << n;
}

TEST(JsonSchemaWords, references_follow_ids_and_anchors_within_the_document) {
    const WordCase cases[] = {
        {R"({"$id": "https://e.org/a", "$ref": "b#n", "$defs": {"x": {"$id": "b", "$defs": {"y": {"$anchor": "n", "type": "null"}}}}})",
         {"null"},
         {"1"}},
        {R"({"$ref": "https://e.org/t", "$defs": {"x": {"$id": "https://e.org/t", "type": "boolean"}}})",
         {"true"},
         {"1"}},
        {R"({"$ref": "#foo", "definitions": {"x": {"id": "#foo", "type": "integer"}}})", {"1"}, {"null"}},
    };
    expect_cases(cases);
}

TEST(JsonSchemaWords, nullable_lets_null_through_beside_a_type) {
    const WordCase cases[] = {
        {R"({"type": "string", "nullable": true})", {"null", R"("a")"}, {"1"}},
        {R"({"type": ["string", "integer"], "nullable": true})", {"null", "1"}, {"true"}},
        {R"({"type": "string", "nullable": true, "enum": [null, "a"]})", {"null", R"("a")"}, {R"("b")"}},
        {R"({"type": "string", "nullable": false})", {R"("a")"}, {"null"}},
        {R"({"enum": ["a"], "nullable": true})", {R"("a")"}, {"null"}},
        {R"({"not": {"type": "string", "nullable": true}})", {"1"}, {"null", R"("a")"}},
    };
    expect_cases(cases);
}

TEST(JsonSchemaWords, words_that_no_draft_knows_say_nothing) {
    EXPECT_TRUE(takes(schema_constraint(parse_json(R"({"requried": ["a"], "format": "colour"})", "t")), "{}"));
}

TEST(JsonSchemaWords, a_tool_reads_its_arguments_by_the_same_references) {
    const json::value tools =
        parse_json(R"([{"name": "f", "parameters": {"$defs": {"s": {"type": "string"}}, "properties": {
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "one": {"oneOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]},
        "all": {"allOf": [{"$ref": "#/$defs/s"}, {"maxLength": 5}]}, "ref": {"$ref": "#/$defs/s"}, "const": {"const": "x"},
        "mixed": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "open": {}, "openapi": {"type": "string", "nullable": true}}}}])",
                   "test");
    using Type = ToolSchemas::Type;
    const ToolSchemas types(tools.as_array());
    for (const char* name : {"any", "one", "openapi"})
        EXPECT_EQ(types.type_of("f", name), Type::nullable_string) << name;
    for (const char* name : {"all", "ref", "const"}) EXPECT_EQ(types.type_of("f", name), Type::string) << name;
    for (const char* name : {"mixed", "open"}) EXPECT_EQ(types.type_of("f", name), Type::any) << name;
}

TEST(TextSet, is_a_set) {
    const TextSet words = TextSet::of_words({"a", "ab", "b"}), begins = TextSet::of_regex("^a", true);
    for (const char* text : {"", "a", "ab", "b", "abc", "ba", "\xC3\xA4"}) {
        const bool word = words.contains(text), begin = std::string_view(text).starts_with('a');
        EXPECT_EQ(begins.contains(text), begin) << text;
        EXPECT_EQ((words & begins).contains(text), word && begin) << text;
        EXPECT_EQ((words | begins).contains(text), word || begin) << text;
        EXPECT_EQ((begins - words).contains(text), begin && !word) << text;
        EXPECT_EQ((TextSet::all() - begins).contains(text), !begin) << text;
    }
    EXPECT_TRUE((words - TextSet::all()).empty());
    EXPECT_TRUE((words & TextSet::of_length(3, 4)).empty());
}

}  // namespace
}  // namespace riptide::testing
