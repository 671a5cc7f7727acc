// Arrays whose items must all differ: no item twice, all else, and always a way to an end.
#include <fmt/ranges.h>

#include <set>

#include "tests/text/constraint_world.h"

namespace riptide::testing {
namespace {

/// Tokens that end items, begin others, and say the same twice.
const Tokenizer& item_tokenizer() {
    static const Tokenizer tokenizer = [] {
        SmallVocabulary v;
        v.merges = {{"[", "1"},    {"[1", ","}, {"[1,", "1"}, {"1", ","},  {",", "1"},    {",1", ","},  {"\"", ","},
                    {"\",", "\""}, {"a", "\""}, {"a", "b"},   {"\"", "a"}, {"\"a", "\""}, {"[", "\"a"}, {"\"]", "}"},
                    {"\"", "]"},   {"1", "2"},  {"t", "rue"}, {"r", "ue"}, {"u", "e"},    {"{", "\""},  {"\"", ":"},
                    {"}", ","},    {"},", "{"}, {"\\", "n"},  {"1", "]"},  {",1", "]"},   {",", "\"a"}, {",\"a", "\""}};
        return v.tokenizer();
    }();
    return tokenizer;
}

std::shared_ptr<Constraint> items_constraint(const std::string& schema, std::size_t bytes = std::size_t{32} << 20) {
    static const auto trie = std::make_shared<const TokenTrie>(item_tokenizer());
    Grammar grammar;
    grammar.set_root(add_json_schema(grammar, parse_json(schema, "a schema"), {}));
    Constraint::Limits limits;
    limits.short_walk = 0;
    limits.bytes = bytes;
    return Constraint::compile(grammar, trie, limits);
}

bool says(const std::shared_ptr<Constraint>& constraint, std::string_view text) {
    ConstraintState state = constraint->start();
    for (const char c : text)
        if (!state.accept(item_tokenizer().id_of(std::string_view(&c, 1)))) return false;
    return state.can_end();
}

/// A random answer. Holds on the way: the mask has what is accepted, and there is always a way on or an end.
std::string random_items(const std::shared_ptr<Constraint>& constraint, std::mt19937& random, int patience) {
    const Tokenizer& tokenizer = item_tokenizer();
    ConstraintState state = constraint->start();
    std::string text;
    for (int step = 0; step < patience + 600; ++step) {
        const auto mask = state.mask();
        std::vector<int32_t> fitting;
        for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
            if (mask->has(id)) fitting.push_back(id);
            ConstraintState copy = state;
            EXPECT_EQ(copy.accept(id), mask->has(id)) << text << " then " << tokenizer.piece(id);
        }
        if (state.can_end() && fitting.empty()) return text;
        if (fitting.empty()) {
            ADD_FAILURE() << "a dead end behind " << text;
            return text;
        }
        int32_t token = fitting[random() % fitting.size()];
        const std::string_view closing[] = {"\"", "]", "}", "1", "2", "a", "b", "c"};
        for (std::size_t i = random() % 3 == 0 ? random() % 8 : 0; step >= patience && i < 8; ++i)
            if (const int32_t id = tokenizer.id_of(closing[i]); mask->has(id)) {
                token = id;
                break;
            }
        EXPECT_TRUE(state.accept(token));
        text += tokenizer.piece(token);
    }
    ADD_FAILURE() << "no end: " << text.substr(0, 500);
    return text;
}

void expect_distinct(const json::value& array) {
    std::set<std::string> seen;
    for (const json::value& item : array.as_array())
        EXPECT_TRUE(seen.insert(json::serialize(sorted_members(item))).second) << json::serialize(array);
}

struct ItemCase {
    const char* schema;
    std::vector<const char*> yes, no;
};

TEST(DistinctItems, what_is_valid_is_taken_and_no_item_twice) {
    const ItemCase cases[] = {
        {R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})",
         {"[]", R"(["a"])", R"(["a","ab","abc",""])", R"([ "a", "b" ])", R"(["a\"","a"])", R"(["]","[",","])"},
         {R"(["a","a"])", R"(["","b",""])", R"(["a","b","c","b"])", R"(["\"","\""])", R"(["a",1])"}},
        {R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})",
         {"[1,12,2,-1,0]", "[10,1,100]"},
         {"[1,1]", "[1,12,1]", "[0,-0]", "[-0]"}},
        {R"({"type": "array", "items": {"type": "number"}, "uniqueItems": true})",
         {"[1.5,1,0.5,-0.5]", "[9007199254740993,9007199254740992]"},
         {"[1,1.0]", "[1.5,1.50]", "[1.5,1.5]", "[1e0,1]", "[0.5000000000000001,0.50000000000000010000001]"}},
        {R"({"type": "array", "items": {"type": "number", "minimum": -2, "maximum": 2}, "uniqueItems": true})",
         {"[1.5,1,-2]"},
         {"[1,1.0]", "[1.5,1.5]", "[3]"}},
        {R"({"type": "array", "items": {"type": ["integer", "null", "boolean", "string"]}, "uniqueItems": true})",
         {R"([1,null,true,false,"1","null"])"},
         {"[null,null]", "[true,1,true]"}},
        {R"({"uniqueItems": true})",
         {"5", R"([1,"1",[1],{"a":1},[],{},[[1]],true])", R"([{"a":1},{"b":1},{"a":2}])"},
         {R"([{"a":1,"b":2},{"b":2,"a":1}])", "[[],[]]", "[[1],[1]]", R"([{"a":[1,2]},{"a":[1,2]}])", "[{},{}]"}},
        {R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
             "b": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}})",
         {R"({"a":["x"],"b":["x"]})"},
         {R"({"a":["x"],"b":["y","y"]})"}},
        {R"({"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}})",
         {"[[1,2],[1,2],[]]"},
         {"[[1,2],[3,3]]"}},
        {R"({"type": "array", "uniqueItems": true, "items": {"enum": [1,2,3,4,5,6,7,8,"9",[10],null]}, "minItems": 2})",
         {R"([1,"9",[10],null])"},
         {"[1]", "[1,1]", "[[10],[10]]", "[11,1]"}},
        // Where there is another way to be valid, items may be the same in that one.
        {R"({"anyOf": [{"type": "array", "items": {"type": "string"}, "uniqueItems": true},
                       {"type": "array", "items": {"type": "string"}, "maxItems": 2}]})",
         {R"(["a","a"])", R"(["a","b","c"])", R"(["a"])"},
         {R"(["a","a","b"])", R"(["a","b","a"])"}},
        {R"({"anyOf": [{"properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}},
                       {"properties": {"a": {"type": "array", "items": {"type": "integer", "maximum": 12}}}}],
             "type": "object"})",
         {R"({"a":[1,1]})", R"({"a":[13,1]})", R"({"a":[1,12,1]})"},
         {R"({"a":[13,1,1]})", R"({"a":[1,13,13]})", R"({"a":[1,1,13]})"}},
        {R"({"anyOf": [{"type": "array", "items": {"type": "string"}, "uniqueItems": true}, {"type": "array",
             "items": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}]})",
         {"[[1,2],[1,2]]", R"(["a"])"},
         {"[[1,1]]", "[[1,2],[2,2]]", R"(["a","a"])"}},
    };
    for (const ItemCase& c : cases) {
        const auto constraint = items_constraint(c.schema);
        for (const char* text : c.yes) EXPECT_TRUE(says(constraint, text)) << c.schema << "\n" << text;
        for (const char* text : c.no) EXPECT_FALSE(says(constraint, text)) << c.schema << "\n" << text;
    }
}

TEST(DistinctItems, of_all_short_arrays_those_that_differ) {
    const auto constraint =
        items_constraint(R"({"type": "array", "items": {"pattern": "^(a|ab|b|ba)$", "type": "string"},
                             "uniqueItems": true, "maxItems": 4})");
    const std::vector<std::string> items = {"\"a\"", "\"ab\"", "\"b\"", "\"ba\""};
    for (int code = 0; code < 5 * 5 * 5 * 5; ++code) {
        std::vector<std::string> said;
        bool gap = false, whole = true;
        for (int rest = code, i = 0; i < 4; ++i, rest /= 5) {
            if (rest % 5 == 4) gap = true;
            else if (gap) whole = false;
            else said.push_back(items[static_cast<std::size_t>(rest % 5)]);
        }
        if (!whole) continue;
        const std::string text = fmt::format("[{}]", fmt::join(said, ","));
        const bool differ = std::set<std::string>(said.begin(), said.end()).size() == said.size();
        EXPECT_EQ(says(constraint, text), differ) << text;
    }
}

TEST(DistinctItems, random_answers_differ_and_find_their_end) {
    const char* schemas[] = {
        R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})",
        R"({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 12}, "uniqueItems": true})",
        R"({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 2}, "uniqueItems": true})",
        R"({"type": "array", "items": {"type": "string", "pattern": "^[ab]{1,2}$"}, "uniqueItems": true, "minItems": 5})",
        R"({"type": "array", "items": {"type": ["number", "boolean"]}, "uniqueItems": true, "minItems": 3})",
        R"({"uniqueItems": true, "type": "array"})",
        R"({"type": "array", "uniqueItems": true, "minItems": 3, "items": {"type": "object", "additionalProperties": false,
            "required": ["a", "b"], "properties": {"a": {"enum": [1, 12]}, "b": {"type": "boolean"}}}})",
        R"({"type": "array", "items": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2},
            "uniqueItems": true})",
        R"({"type": "array", "minItems": 4, "items": {"type": "array", "uniqueItems": true, "minItems": 2,
            "items": {"type": "string", "maxLength": 1}}})",
    };
    std::mt19937 random(7);
    for (const char* schema : schemas)
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{32} << 20}) {  // forgotten at once, or kept
            const auto constraint = items_constraint(schema, bytes);
            for (int i = 0; i < 6; ++i) {
                const std::string text = random_items(constraint, random, bytes == 1 ? 20 : 5 + i * 12);
                const json::value value = parse_json(text, text);
                const bool of_arrays = std::string_view(schema).find("maxLength") != std::string_view::npos;
                if (!of_arrays) expect_distinct(value);
                for (const json::value& inner : of_arrays ? value.as_array() : json::array()) expect_distinct(inner);
                if (std::string_view(schema).find("\"minItems\": 5") != std::string_view::npos) {
                    EXPECT_GE(value.as_array().size(), 5u);
                }
            }
        }
}

TEST(DistinctItems, more_items_than_there_are_texts_are_refused) {
    for (
        const char* schema :
        {R"({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": true, "minItems": 4})",
         R"({"type": "array", "items": {"type": "string", "pattern": "^[ab]$"}, "uniqueItems": true, "minItems": 3})"})
        try {
            items_constraint(schema);
            ADD_FAILURE() << schema;
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find("items that differ"), std::string::npos) << error.what();
        }
    EXPECT_NO_THROW(items_constraint(
        R"({"type": "array", "items": {"type": "string", "format": "uuid"}, "uniqueItems": true, "minItems": 400})"));
}

}  // namespace
}  // namespace riptide::testing
