// What a schema's grammar takes is valid by the schema; what is not supported is refused by name.
#include "text/json/json_schema.h"

#include "base/json.h"
#include "tests/text/constraint_world.h"
#include "tests/text/schema_judge.h"

namespace riptide::testing {
namespace {

json::value json_of(std::string_view text) { return parse_json(text, "test"); }

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}, "ab": {"type": "boolean"}, "a\"\n": {"const": 1}}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "abc": {"type": "integer"}}, "required": ["abc"], "additionalProperties": {"type": "string"}})",
    R"({"type": "object", "required": ["x", "y"]})",
    R"({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -12, "maximum": 345}, "minItems": 2, "maxItems": 4})",
    R"({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "maxItems": 3})",
    R"({"type": "array", "items": {"type": "number", "minimum": -2.25, "maximum": 13.5}})",
    R"({"type": "array", "items": {"type": "number", "exclusiveMinimum": -10, "exclusiveMaximum": -1.5}})",
    R"({"type": "array", "items": {"type": "integer", "exclusiveMinimum": 7}})",
    R"({"type": "array", "items": {"type": "integer", "exclusiveMaximum": -99.5}})",
    R"({"type": "array", "items": {"type": "number", "minimum": 2}})",
    R"({"type": "string", "minLength": 2, "maxLength": 5})",
    R"({"type": "string", "minLength": 3})",
    R"({"type": "string", "pattern": "^[a-c]+\\d{2,3}(x|\"y\")?$"})",
    R"({"type": "string", "pattern": "b|n\\d"})",
    R"({"type": "string", "pattern": "^ab|b$"})",
    R"({"enum": ["a", "ab", "abc", 12, 1.5, true, null, {"a": [1]}]})",
    R"({"const": "\u00e4\n\"x\""})",
    R"({"type": ["string", "null"]})",
    R"({"type": ["integer", "boolean"]})",
    R"({"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"a": {"$ref": "#/anyOf/0"}}, "required": ["a"]}]})",
    R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
                  {"type": "object", "properties": {"k": {"const": "ab"}, "w": {"type": "string"}}, "required": ["k"]}, {"type": "null"}]})",
    R"({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "boolean"}}})",
    R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}, "all": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "required": ["v", "next", "all"], "additionalProperties": false}}})",
    R"({"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": false})",
    R"({"type": "object"})",
    R"({})",
    R"(true)",
    R"({"items": {"minimum": 3}})",
    R"({"title": "T", "description": "d", "x-order": 3, "type": "boolean", "default": false})",
};

TEST(JsonSchema, a_reference_is_the_fragment_of_a_uri) {
    EXPECT_NO_THROW(
        schema_constraint(json_of(R"({"$ref": "#/%24defs/a%20b%7e1", "$defs": {"a b/": {"type": "boolean"}}})")));
    EXPECT_THROW(schema_constraint(json_of(R"({"$ref": "#/$defs/a%20b", "$defs": {"a%20b": {}}})")), GrammarError);
}

TEST(JsonSchema, every_random_walk_ends_in_a_valid_document) {
    constexpr int kSeeds = 40;
    for (const char* text : kSchemas) {
        const json::value schema = json_of(text);
        const SchemaJudge judge(schema);
        const auto constraint = schema_constraint(schema);
        for (unsigned seed = 0; seed < kSeeds; ++seed) {
            std::mt19937 random(seed);
            const std::string answer = random_answer(constraint, random, static_cast<int>(seed));
            json::value value;
            ASSERT_NO_THROW(value = parse_json(answer, "answer", 200)) << text << "\nseed " << seed << "\n" << answer;
            ASSERT_TRUE(judge.valid(value)) << text << "\nseed " << seed << "\n" << answer;
        }
    }
}

TEST(JsonSchema, a_mask_holds_just_the_tokens_that_are_accepted) {
    const Tokenizer& tokenizer = crossing_tokenizer();
    for (const char* text : kSchemas) {
        const auto constraint = schema_constraint(json_of(text));
        for (unsigned seed = 100; seed < 103; ++seed) {
            std::mt19937 random(seed);
            std::vector<int32_t> tokens;
            random_answer(constraint, random, 30, &tokens);
            ConstraintState state = constraint->start();
            for (size_t i = 0; i <= std::min<size_t>(tokens.size(), 60); ++i) {
                const auto mask = state.mask();
                for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
                    ConstraintState copy = state;
                    ASSERT_EQ(mask->has(id), copy.accept(id))
                        << text << "\nseed " << seed << " step " << i << " token " << id;
                }
                ASSERT_TRUE(i == tokens.size() || state.accept(tokens[i]));
            }
        }
    }
}

struct SchemaCase {
    const char* schema;
    std::vector<const char*> yes, no;
};

TEST(JsonSchema, documents_are_taken_or_not_as_written_here) {
    const SchemaCase cases[] = {
        {kSchemas[0],
         {R"({"name":"x","age":3})", R"({"name": "x", "age": -30})",
          "{\n  \"name\": \"\\u00e4\\ud83d\\ude00\",\n  \"age\": 0\n}"},
         {R"({"name":"x"})", R"({"age":3,"name":"x"})", R"({"name":"x","age":03})", R"({"name":"x","age":3.5})",
          R"({"name":"x","age":3,"more":1})", R"({"name":"\ud83d","age":3})", "{\"name\":\"\x01\",\"age\":3}",
          "{\"name\":\"\xC3\",\"age\":3}", R"({"name":"x","age":3},)", R"({"name":"x","age":3,})", ""}},
        {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
         {R"({})", R"({"a":1})", R"({"a":1,"b":"x"})", R"({"b":"x"})", R"({"ab":"x"})", R"({"":"x"})"},
         {R"({"a":"x"})", R"({"\u0061":"x"})", R"({"b":1})", R"({"b":"x","a":"x"})"}},
        {R"({"type": "integer", "minimum": 5, "maximum": 1203})",
         {"5", "9", "10", "99", "100", "999", "1000", "1203", "1199"},
         {"4", "0", "1204", "1210", "2000", "05", "-5", "10000", "1e3", ""}},
        {R"({"type": "integer", "minimum": -30, "maximum": -3})",
         {"-3", "-9", "-10", "-30"},
         {"-2", "-31", "3", "0", "-0"}},
        {R"({"type": "number", "minimum": 0, "maximum": 1})",
         {"0", "1", "0.5", "0.999", "1.000", "0.0"},
         {"1.001", "-0.5", "2", "1.", ".5", "00.5"}},
        {R"({"type": "number", "exclusiveMinimum": 0.25, "maximum": 10.5})",
         {"0.251", "0.3", "1", "10", "10.5", "10.50", "10.49", "5.25"},
         {"0.25", "0.250", "0.2", "0", "10.51", "11", "10.6"}},
        {R"({"type": "number"})", {"0", "-1.5e-10", "123", "1E+9"}, {"01", "+1", "1e", "1.e3", "NaN"}},
        {R"({"type": "string", "maxLength": 2})",
         {R"("")", "\"\xE2\x82\xAC\xF0\x9F\x98\x80\"", R"("\"\\")", R"("\u00e4b")"},
         {R"("abc")", R"("a)", "\"\xE2\x82\""}},
        {R"({"type": "string", "pattern": "^a.c$"})",
         {R"("abc")",
          "\"a\xE2\x82\xAC"
          "c\"",
          R"("a\"c")", R"("a\tc")"},
         {R"("ac")", R"("abcd")", R"("a\nc")", R"("xabc")"}},
        {R"({"type": "string", "pattern": "b"})", {R"("b")", R"("abc")", R"("\nb\n")"}, {R"("a")", R"("")"}},
        {R"({"type": "string", "format": "date-time"})",
         {R"("2024-02-28T23:59:59Z")", R"("1999-12-31T00:00:00.5+01:30")"},
         {R"("2023-02-30T00:00:00Z")", R"("2024-04-31T00:00:00Z")", R"("2024-13-01T00:00:00Z")", R"("2024-01-01")"}},
        {R"({"type": "string", "format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
        {R"({"type": "string", "format": "ipv4"})",
         {R"("0.10.199.255")"},
         {R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"}},
        {R"({"type": "string", "format": "email"})", {R"("a.b@example.org")"}, {R"("a@b")", R"("@example.org")"}},
        {R"({"type": "string", "format": "duration"})",
         {R"("P1Y2M3D")", R"("PT5M")", R"("P3W")"},
         {R"("P")", R"("5M")", R"("P1YT")"}},
        {R"({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2})",
         {"[null]", "[null, null]", "[ null,\nnull ]"},
         {"[]", "[null,null,null]", "[null,]"}},
    };
    for (const SchemaCase& c : cases) {
        const auto constraint = schema_constraint(json_of(c.schema));
        for (const char* text : c.yes) EXPECT_TRUE(takes(constraint, text)) << c.schema << "\n" << text;
        for (const char* text : c.no) EXPECT_FALSE(takes(constraint, text)) << c.schema << "\n" << text;
    }
}

TEST(JsonSchema, what_is_not_supported_is_refused_with_its_name_and_place) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"type": "array", "uniqueItems": true, "contains": {}})", "#: 'uniqueItems' beside 'contains'"},
        {R"({"uniqueItems": true, "items": {"uniqueItems": true}})", "or inside items that must differ themselves"},
        {R"({"type": "object", "properties": {"a/b": {"unevaluatedItems": false}}})",
         "#/properties/a~1b: 'unevaluatedItems' is not supported"},
        {R"({"not": {"multipleOf": 3}})", "#/not: 'multipleOf' is not supported under 'not'"},
        {R"({"oneOf": [{"pattern": "a", "format": "uuid"}, {"type": "string"}]})",
         "#/oneOf/0: 'format' is not supported under 'not', nor in a part of 'oneOf'"},
        {R"({"properties": {"a": true}, "minProperties": 3})", "#: 'minProperties' is not supported where"},
        {R"({"properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}})",
         "#/properties/a/pattern: regular expression, at byte"},
        {R"({"type": "string", "pattern": "*a"})", "#/pattern: regular expression, at byte 0: nothing to repeat"},
        {R"({"type": "string", "format": "idn-hostname"})", "#: format 'idn-hostname' is not supported"},
        {R"({"type": "strnig"})", "#: 'strnig' is not a type"},
        {R"({"type": 5})", "#: 'type' is not"},
        {R"({"$ref": "https://example.org/x"})", "'$ref' to 'https://example.org/x'"},
        {R"({"$ref": "#/$defs/none"})", "there is no '#/$defs/none'"},
        {R"({"$ref": "#"})", "nothing can match"},
        {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "nothing can match"},
        {R"({"type": "object", "required": ["a"], "properties": {"a": false}})", "nothing can match"},
        {R"({"type": "array", "minItems": 3, "maxItems": 2})", "'minItems' is more than 'maxItems'"},
        {R"({"type": "array", "maxItems": 10000000})", "of more than 1000000"},
        {R"({"type": "array", "maxItems": -1})", "'maxItems' is not a whole number"},
        {R"({"type": "integer", "minimum": 3, "maximum": 2})", "the lowest number allowed is above the highest"},
        {R"({"type": "integer", "enum": ["a"]})", "nothing can match"},
        {R"({"items": 5})", "#/items: expected an object"},
        {R"([])", "#: expected an object"},
    };
    for (const auto& [schema, message] : cases) {
        try {
            schema_constraint(json_of(schema));
            ADD_FAILURE() << schema << " is taken";
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << schema << "\n" << error.what();
        }
    }
}

TEST(JsonSchema, a_lenient_reading_keeps_what_it_understands) {
    const json::value schema = json_of(R"json({"type": "object", "properties": {
        "a": {"type": "array", "uniqueItems": true, "items": {"type": "integer"}, "contains": {"minimum": 0}},
        "b": {"type": "string", "pattern": "(?<=x)"}, "c": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "required": ["a", "b"]})json");
    const auto constraint = schema_constraint(schema, {.lenient = true});
    EXPECT_TRUE(takes(constraint, R"({"a":[1,1],"b":"y","c":2})"));
    EXPECT_FALSE(takes(constraint, R"({"a":5,"b":"y"})"));
    EXPECT_FALSE(takes(constraint, R"({"a":[],"b":5})"));
    EXPECT_FALSE(takes(constraint, R"({"b":"y"})"));
}

TEST(JsonSchema, schemas_of_any_size_end_in_an_answer_or_an_error) {
    std::string deep, many = "{\"properties\": {", loop;
    for (int i = 0; i < 65; ++i) deep += "{\"items\":";
    deep += "true" + std::string(65, '}');
    EXPECT_THROW(schema_constraint(json_of(deep)), GrammarError);
    for (int i = 0; i < 10'000; ++i) many += fmt::format("{}\"p{}\": {{\"type\": \"integer\"}}", i > 0 ? "," : "", i);
    many += "}, \"required\": [\"p0\"]}";
    try {
        std::mt19937 random(1);
        SchemaJudge judge(json_of(many));
        EXPECT_TRUE(judge.valid(parse_json(random_answer(schema_constraint(json_of(many)), random, 20), "answer")));
    } catch (const GrammarError&) {
    }
}

/// Time and memory do not grow with the square of what a schema holds: each of these took seconds.
TEST(JsonSchema, large_schemas_cost_what_they_are_large) {
    json::object all_optional;
    for (int i = 0; i < 3000; ++i) all_optional[fmt::format("p{}", i)] = true;
    const auto optional = schema_constraint(json::object{{"properties", all_optional}});
    EXPECT_TRUE(takes(optional, R"({"p7": 1, "p2999": 2, "q": 3})"));
    EXPECT_FALSE(takes(optional, R"({"p7": 1, "p6": 2})"));
    for (int i = 3000; i < 18'000; ++i) all_optional[fmt::format("p{}", i)] = true;
    EXPECT_THROW(schema_constraint(json::object{{"properties", all_optional}}), GrammarError);

    json::array left, right, needed;
    for (int i = 0; i < 30'000; ++i) {
        left.push_back(i);
        right.push_back(i + 29'999);
        needed.push_back(json::string(fmt::format("p{}", i % 15'000)));
    }
    const json::object lists = {{"oneOf", json::array{json::object{{"enum", left}}, json::object{{"enum", right}}}}};
    const auto one = schema_constraint(lists);
    EXPECT_TRUE(takes(one, "29998"));
    EXPECT_FALSE(takes(one, "29999"));
    EXPECT_THROW(schema_constraint(json::object{{"properties", all_optional}, {"required", needed}}), GrammarError);

    json::value deep = json::object{{"type", "string"}, {"example", std::string(1 << 20, 'x')}};
    for (int i = 0; i < 56; ++i) deep = json::object{{"anyOf", json::array{deep}}};
    EXPECT_TRUE(takes(schema_constraint(deep), R"("a")"));
}

TEST(JsonSchema, arrays_nest_down_to_the_limit_and_always_come_back) {
    const auto constraint = schema_constraint(
        json_of(R"({"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}})"));
    const int32_t open = crossing_tokenizer().id_of("["), four = crossing_tokenizer().id_of("[[[["),
                  close = crossing_tokenizer().id_of("]");
    ConstraintState state = constraint->start();
    int64_t depth = 0;
    for (bool more = true; more;) {
        const auto mask = state.mask();
        ConstraintState copy = state;
        EXPECT_EQ(mask->has(four), copy.accept(four));
        more = mask->has(open);
        depth += more;
        ASSERT_TRUE(state.accept(more ? open : close));
        ASSERT_LT(depth, 1000);
    }
    EXPECT_GT(depth, 30);
    for (int64_t i = 1; i < depth; ++i) ASSERT_TRUE(state.accept(close)) << i;
    EXPECT_TRUE(state.can_end());
    EXPECT_TRUE(state.exhausted());
}

}  // namespace
}  // namespace riptide::testing
