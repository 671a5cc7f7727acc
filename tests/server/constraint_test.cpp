// Forms of answers over HTTP: honoured in every dialect, streamed or not; what is wrong with them is named.
#include "base/file.h"
#include "base/json.h"
#include "tests/server/http_client.h"
#include "tests/text/schema_judge.h"

namespace riptide::testing {
namespace {

json::array example_tools() {
    return parse_json(read_file(source_dir() + "/examples/tools.json", 1 << 20), "tools.json").as_array();
}

const json::value& person() {
    static const json::value schema =
        parse_json(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
        "required": ["name", "age"], "additionalProperties": false})",
                   "schema");
    return schema;
}

class ServerConstraint : public ServerTest {
  protected:
    void SetUp() override { start(); }
    json::object body(uint64_t seed) const {
        return {{"messages", user_says("Who are you?")}, {"temperature", 1.2}, {"seed", seed}, {"max_tokens", 300}};
    }
    static json::object message_of(const Answer& answer) {
        return answer.object().at("choices").as_array().at(0).as_object().at("message").as_object();
    }
};

TEST_F(ServerConstraint, a_json_schema_is_kept_to_streamed_or_not) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        json::object asked = body(seed);
        asked["response_format"] = {{"type", "json_schema"},
                                    {"json_schema", {{"name", "person"}, {"strict", true}, {"schema", person()}}}};
        const Answer whole = post("/v1/chat/completions", asked);
        ASSERT_EQ(whole.status, 200) << whole.body;
        const std::string text(message_of(whole).at("content").as_string());
        asked["stream"] = true;
        EXPECT_EQ(join(post("/v1/chat/completions", asked).body).text, text);
        if (whole.object().at("choices").as_array().at(0).at("finish_reason") == "length") continue;
        EXPECT_TRUE(SchemaJudge(person()).valid(parse_json(text, "answer"))) << text;
    }
}

TEST_F(ServerConstraint, objects_regular_expressions_and_grammars_are_kept_to) {
    json::object asked = body(1);
    asked["response_format"] = {{"type", "json_object"}};
    const Answer object = post("/v1/chat/completions", asked);
    ASSERT_EQ(object.status, 200) << object.body;
    const std::string text(message_of(object).at("content").as_string());
    EXPECT_EQ(text.front(), '{');
    asked = body(2);
    asked["regex"] = "(red|green)-\\d{2}";
    const std::string colour(message_of(post("/v1/chat/completions", asked)).at("content").as_string());
    EXPECT_TRUE(colour.starts_with("red-") || colour.starts_with("green-")) << colour;
    asked = body(3);
    asked["grammar"] = "root ::= \"<\" [a-c]{3} \">\"";
    const std::string word(message_of(post("/v1/chat/completions", asked)).at("content").as_string());
    EXPECT_EQ(word.size(), 5u) << word;
    json::object completion = {{"prompt", "The colour is "}, {"regex", "(red|green)"}, {"max_tokens", 20}};
    const Answer plain = post("/v1/completions", completion);
    const std::string said(plain.object().at("choices").as_array().at(0).at("text").as_string());
    EXPECT_TRUE(said == "red" || said == "green") << plain.body;
}

TEST_F(ServerConstraint, tools_are_called_when_they_must_be_in_both_dialects) {
    const json::array tools = example_tools();
    const std::string name(tools[0].at("function").at("name").as_string());
    json::object asked = body(5);
    asked["tools"] = tools;
    asked["tool_choice"] = "required";
    asked["parallel_tool_calls"] = false;
    const Answer required = post("/v1/chat/completions", asked);
    ASSERT_EQ(required.status, 200) << required.body;
    EXPECT_EQ(message_of(required).at("tool_calls").as_array().size(), 1u);
    EXPECT_EQ(required.object().at("choices").as_array().at(0).at("finish_reason"), "tool_calls");
    asked["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
    const Answer named = post("/v1/chat/completions", asked);
    ASSERT_EQ(named.status, 200) << named.body;
    EXPECT_EQ(message_of(named).at("tool_calls").as_array().at(0).at("function").at("name").as_string(), name);

    json::object message = {{"messages", user_says("Hello")}, {"max_tokens", 300}};
    message["tools"] = json::array{{{"name", name}, {"input_schema", tools[0].at("function").at("parameters")}}};
    for (const json::object& choice : {json::object{{"type", "any"}}, json::object{{"type", "tool"}, {"name", name}}}) {
        message["tool_choice"] = choice;
        const Answer answer = post("/v1/messages", message);
        ASSERT_EQ(answer.status, 200) << answer.body;
        EXPECT_EQ(answer.object().at("stop_reason"), "tool_use") << answer.body;
    }
    message["tool_choice"] = {{"type", "tool"}, {"name", "none"}};
    EXPECT_EQ(post("/v1/messages", message).status, 400);
}

TEST_F(ServerConstraint, what_is_wrong_with_a_schema_is_said_with_its_place) {
    json::object asked = body(0);
    asked["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"schema", {{"type", "object"}, {"properties", {{"a", {{"unevaluatedItems", false}}}}}}}}}};
    const Answer answer = post("/v1/chat/completions", asked);
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(
        answer.body.find("response_format.json_schema.schema: #/properties/a: 'unevaluatedItems' is not supported"),
        std::string::npos)
        << answer.body;
    asked["response_format"] = {{"type", "json_object"}};
    asked["regex"] = "a";
    EXPECT_EQ(post("/v1/chat/completions", asked).param(), "regex");
    asked.erase("regex");
    asked["min_tokens"] = 5;
    EXPECT_EQ(post("/v1/chat/completions", asked).param(), "min_tokens");
    asked = body(0);
    asked["grammar"] = "root ::= \"a\" root";
    EXPECT_EQ(post("/v1/chat/completions", asked).param(), "grammar");
    expect_alive();
}

/// What pydantic makes of `tags: set[str]` and `numbers: set[int]`.
TEST_F(ServerConstraint, a_set_has_no_item_twice) {
    const json::value schema = parse_json(
        R"({"type": "object", "properties": {"tags": {"items": {"type": "string", "maxLength": 2}, "title": "Tags",
        "type": "array", "uniqueItems": true, "minItems": 4, "maxItems": 12}, "numbers": {"items": {"type": "integer",
        "minimum": 1, "maximum": 5}, "type": "array", "uniqueItems": true, "minItems": 5}},
        "required": ["tags", "numbers"], "additionalProperties": false})",
        "schema");
    for (uint64_t seed = 0; seed < 8; ++seed) {
        json::object asked = body(seed);
        asked["temperature"] = seed % 4;
        asked["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "s"}, {"schema", schema}}}};
        const Answer answer = post("/v1/chat/completions", asked);
        ASSERT_EQ(answer.status, 200) << answer.body;
        const std::string text(message_of(answer).at("content").as_string());
        EXPECT_TRUE(SchemaJudge(schema).valid(parse_json(text, "answer"))) << text;
        EXPECT_EQ(parse_json(text, "answer").at("numbers").as_array().size(), 5u);
    }
}

TEST_F(ServerConstraint, what_cannot_be_held_is_passed_over_where_a_request_says_that_it_is_not_strict) {
    const json::value schema = parse_json(
        R"({"type": "object", "properties": {"tags": {"items": {"enum": ["a", "b", "c", "d", "e", "f", "g", "h", "i"]},
        "title": "Tags", "type": "array", "uniqueItems": true, "contains": {"const": "a"}, "maxItems": 3}},
        "required": ["tags"], "additionalProperties": false})",
        "schema");
    json::object rest = schema.as_object();
    rest.at("properties").at("tags").as_object().erase("uniqueItems");
    const auto format = [&](const json::object& more) {
        json::object inner = {{"name", "tags"}, {"schema", schema}};
        for (const auto& [key, value] : more) inner[key] = value;
        return inner;
    };
    const auto text_format = [&](bool strict) {
        json::object inner = format({{"strict", strict}});
        inner["type"] = "json_schema";
        return json::object{{"text", {{"format", inner}}}, {"input", "go"}, {"max_output_tokens", 200}};
    };
    const auto chat_format = [&](const json::object& more) {
        return json::object{{"response_format", {{"type", "json_schema"}, {"json_schema", format(more)}}}};
    };
    for (const json::object& strict :
         {chat_format({}), chat_format({{"strict", true}}), json::object{{"guided_json", schema}}}) {
        json::object asked = body(1);
        for (const auto& [key, value] : strict) asked[key] = value;
        const Answer answer = post("/v1/chat/completions", asked);
        EXPECT_EQ(answer.status, 400) << json::serialize(strict);
        EXPECT_NE(answer.body.find("#/properties/tags: 'uniqueItems'"), std::string::npos) << answer.body;
    }
    EXPECT_EQ(post("/v1/responses", text_format(true)).status, 400);
    EXPECT_EQ(post("/v1/responses", text_format(false)).status, 200);
    for (const json::object& loose :
         {chat_format({{"strict", false}}), json::object{{"guided_json", schema}, {"strict", false}}}) {
        json::object asked = body(1);
        for (const auto& [key, value] : loose) asked[key] = value;
        const Answer answer = post("/v1/chat/completions", asked);
        ASSERT_EQ(answer.status, 200) << answer.body;
        const std::string text(message_of(answer).at("content").as_string());
        EXPECT_TRUE(SchemaJudge(rest).valid(parse_json(text, "answer"))) << text;
    }
}

json::value nested(int levels) {
    json::value schema = {{"type", "string"}};
    for (int i = 0; i < levels; ++i) schema = {{"type", "array"}, {"items", schema}};
    return schema;
}

json::value many_properties(int count) {
    json::object properties;
    for (int i = 0; i < count; ++i) properties["p" + std::to_string(i)] = {{"type", "integer"}};
    return {{"type", "object"}, {"properties", properties}};
}

TEST_F(ServerConstraint, bad_schemas_are_refused_soon_wherever_they_come_from) {
    const struct {
        json::value schema;
        std::string message;
    } cases[] = {
        {{{"type", "nonsense"}}, "#/properties/a: 'nonsense' is not a type"},
        {{{"type", "string"}, {"pattern", "(a"}}, "#/properties/a"},
        {{{"type", "string"}, {"pattern", "(?<=a)"}}, "look-behind"},
        {{{"$ref", "https://example.com/schema"}}, "#/properties/a"},
        {{{"$ref", "#/$defs/none"}}, "#/properties/a"},
        {nested(70), "schemas nest deeper than 64"},
        {many_properties(10'000), ""},
        {{{"type", "integer"}, {"minimum", "three"}}, "#/properties/a"},
    };
    for (const auto& one : cases) {
        const json::object schema = {{"type", "object"}, {"properties", {{"a", one.schema}}}, {"required", {"a"}}};
        json::object format = body(0), tool = body(0);
        format["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}};
        tool["tools"] = {
            {{"type", "function"}, {"function", {{"name", "f"}, {"strict", true}, {"parameters", schema}}}}};
        for (const json::object& asked : {format, tool}) {
            const auto begun = std::chrono::steady_clock::now();
            const Answer answer = post("/v1/chat/completions", asked);
            EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5))
                << json::serialize(one.schema).substr(0, 200);
            EXPECT_EQ(answer.status, 400) << answer.body.substr(0, 500);
            EXPECT_NE(answer.body.find(one.message), std::string::npos) << answer.body.substr(0, 500);
        }
        expect_alive();
    }
}

TEST_F(ServerConstraint, a_schema_that_refers_to_itself_and_to_nothing_else_is_refused) {
    json::object asked = body(0);
    asked["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"$ref", "#"}}}}}};
    EXPECT_EQ(post("/v1/chat/completions", asked).param(), "response_format");
    expect_alive();
}

TEST_F(ServerConstraint, tool_choices_that_cannot_be_kept_are_refused) {
    const auto refused = [&](const json::object& more) {
        json::object asked = body(0);
        for (const auto& [key, value] : more) asked[key] = value;
        const Answer answer = post("/v1/chat/completions", asked);
        EXPECT_EQ(answer.status, 400) << json::serialize(more);
        return answer.status == 400 ? answer.param() : "";
    };
    const json::object absent = {{"type", "function"}, {"function", {{"name", "absent"}}}};
    EXPECT_EQ(refused({{"tool_choice", "required"}}), "tool_choice");
    EXPECT_EQ(refused({{"tool_choice", "required"}, {"tools", json::array()}}), "tool_choice");
    EXPECT_EQ(refused({{"tool_choice", absent}, {"tools", example_tools()}}), "tool_choice");
    EXPECT_EQ(refused({{"tool_choice", "must"}, {"tools", example_tools()}}), "tool_choice");
    EXPECT_EQ(refused({{"regex", "a"}, {"grammar", "root ::= \"a\""}}), "grammar");
    EXPECT_EQ(refused({{"regex", "a"}, {"response_format", {{"type", "json_object"}}}}), "regex");
    expect_alive();
}

std::string without_spaces(std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
}

TEST_F(ServerConstraint, other_engines_names_for_a_form_are_obeyed) {
    const json::object team = {{"type", "object"},
                               {"properties", {{"team", {{"const", "a"}}}}},
                               {"required", {"team"}},
                               {"additionalProperties", false}};
    const std::string grammar = "root ::= \"<\" [a-c]{3} \">\"";
    const auto says = [&](const char* path, json::object more) {
        more["max_tokens"] = 400;
        more["temperature"] = 0;
        if (std::string_view(path) == "/v1/completions") more["prompt"] = "x";
        else if (std::string_view(path) == "/v1/responses") more["input"] = "x";
        else more["messages"] = user_says("go");
        const Answer answer = post(path, more);
        EXPECT_EQ(answer.status, 200) << path << json::serialize(more) << answer.body;
        if (answer.status != 200) return std::string();
        const json::object reply = answer.object();
        if (const json::value* output = reply.if_contains("output"))
            return std::string(output->as_array().back().at("content").at(0).at("text").as_string());
        if (const json::value* content = reply.if_contains("content"))
            return std::string(content->as_array().back().at("text").as_string());
        const json::object& choice = reply.at("choices").at(0).as_object();
        return std::string(choice.contains("text") ? choice.at("text").as_string()
                                                   : choice.at("message").at("content").as_string());
    };
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}) {
        for (const json::object& asked : {json::object{{"json_schema", team}}, json::object{{"guided_json", team}},
                                          json::object{{"guided_json", json::serialize(team)}},
                                          json::object{{"structured_outputs", {{"json", team}, {"backend", "auto"}}}}})
            EXPECT_EQ(without_spaces(says(path, asked)), R"({"team":"a"})") << path << json::serialize(asked);
        for (const json::object& asked : {json::object{{"guided_regex", "(red|green)-\\d"}},
                                          json::object{{"structured_outputs", {{"regex", "(red|green)-\\d"}}}}}) {
            const std::string text = says(path, asked);
            EXPECT_TRUE(text.starts_with("red-") || text.starts_with("green-")) << text;
        }
        for (const json::object& asked : {json::object{{"guided_choice", {"a.b", "c|d"}}},
                                          json::object{{"structured_outputs", {{"choice", {"a.b", "c|d"}}}}}}) {
            const std::string text = says(path, asked);
            EXPECT_TRUE(text == "a.b" || text == "c|d") << text;
        }
        for (const json::object& asked :
             {json::object{{"guided_grammar", grammar}}, json::object{{"structured_outputs", {{"grammar", grammar}}}},
              json::object{{"guided_grammar", "start: \"<\" /[a-c]{3}/ \">\""}}})
            EXPECT_EQ(says(path, asked).size(), 5u);
        EXPECT_EQ(says(path, {{"structured_outputs", {{"json_object", true}}}}).front(), '{');
    }
    const json::object format = {{"type", "json_object"}, {"schema", team}};
    EXPECT_EQ(without_spaces(says("/v1/chat/completions", {{"response_format", format}})), R"({"team":"a"})");
}

TEST_F(ServerConstraint, a_form_that_cannot_be_obeyed_is_refused_by_its_field) {
    const json::object object = {{"type", "json_object"}};
    const std::vector<std::pair<json::object, std::string>> cases = {
        {{{"response_format", {{"type", "json_object"}, {"schema", {{"not", true}}}}}}, "response_format"},
        {{{"guided_json", {{"not", true}}}}, "guided_json"},
        {{{"guided_json", "{"}}, "guided_json"},
        {{{"json_schema", {{"type", "nonsense"}}}}, "json_schema"},
        {{{"guided_regex", "(?<=a)b"}}, "guided_regex"},
        {{{"guided_choice", json::array()}}, "guided_choice"},
        {{{"guided_choice", {"a", 1}}}, "guided_choice"},
        {{{"guided_regex", "[]"}}, "guided_regex"},
        {{{"guided_grammar", "start: b"}}, "guided_grammar"},
        {{{"guided_grammar", "start: /[^\\x00-\\U0010FFFF]/"}}, "guided_grammar"},
        {{{"structured_outputs", {{"grammar", "root ::= \"a\" root"}}}}, "structured_outputs"},
        {{{"guided_whitespace_pattern", " "}}, "guided_whitespace_pattern"},
        {{{"structured_outputs", {{"structural_tag", "{}"}}}}, "structured_outputs.structural_tag"},
        {{{"structured_outputs", {{"regex", "(?<=a)b"}}}}, "structured_outputs"},
        {{{"structured_outputs", {{"regex", "a"}, {"choice", {"a"}}}}}, "structured_outputs.choice"},
        {{{"response_format", object}, {"guided_regex", "a"}}, "guided_regex"},
        {{{"guided_regex", "a"}, {"structured_outputs", {{"regex", "a"}}}}, "structured_outputs.regex"},
        {{{"strict", true}}, "strict"},
        {{{"n_predict", 0}}, "n_predict"},
        {{{"n_predict", -2}}, "n_predict"},
    };
    for (const auto& [more, field] : cases) {
        json::object asked = body(0);
        for (const auto& [key, value] : more) asked[key] = value;
        const Answer answer = post("/v1/chat/completions", asked);
        EXPECT_EQ(answer.status, 400) << json::serialize(more) << answer.body;
        if (answer.status != 400) continue;
        EXPECT_EQ(answer.param(), field) << answer.body;
    }
    EXPECT_EQ(post("/v1/responses", {{"input", "x"}, {"response_format", object}}).param(), "response_format");
    expect_alive();
}

TEST_F(ServerConstraint, allowed_tools_are_all_that_is_offered) {
    const auto function = [](const char* name) {
        return json::object{{"name", name}, {"parameters", {{"type", "object"}, {"properties", json::object()}}}};
    };
    const auto tool = [&](const char* name) {
        return json::object{{"type", "function"}, {"function", function(name)}};
    };
    const auto allowed = [](const char* mode, const json::array& names) {
        return json::object{{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", names}}}};
    };
    const json::array tools = {tool("first"), tool("second"), tool("third")};
    const json::object second = {{"type", "function"}, {"function", {{"name", "second"}}}};
    const auto prompt = [&](json::object more) {
        more["messages"] = user_says("Hi");
        more["tools"] = tools;
        return std::string(post("/apply-template", more).object().at("prompt").as_string());
    };
    const std::string offered = prompt({{"tool_choice", allowed("auto", {second})}});
    EXPECT_NE(offered.find("second"), std::string::npos);
    EXPECT_EQ(offered.find("first"), std::string::npos);
    EXPECT_NE(prompt({}).find("first"), std::string::npos);
    json::object asked = body(3);
    asked["tools"] = tools;
    asked["tool_choice"] = allowed("required", {second});
    const Answer answer = post("/v1/chat/completions", asked);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json::array calls = message_of(answer).at("tool_calls").as_array();
    for (const json::value& call : calls) EXPECT_EQ(call.at("function").at("name").as_string(), "second");
    json::object flat = function("second");  // as the other API writes it
    flat["type"] = "function";
    const json::object choice = {
        {"type", "allowed_tools"}, {"mode", "required"}, {"tools", {{{"type", "function"}, {"name", "second"}}}}};
    json::object other = function("first");
    other["type"] = "function";
    const json::object items =
        post("/v1/responses",
             {{"input", "Hi"}, {"tools", {other, flat}}, {"tool_choice", choice}, {"max_output_tokens", 200}})
            .object();
    EXPECT_EQ(items.at("output").as_array().back().at("name").as_string(), "second");
    for (const json::object& wrong : {allowed("auto", {{{"type", "function"}, {"function", {{"name", "none"}}}}}),
                                      allowed("auto", {}), allowed("never", {second})}) {
        asked["tool_choice"] = wrong;
        EXPECT_EQ(post("/v1/chat/completions", asked).param(), "tool_choice") << json::serialize(wrong);
    }
}

TEST_F(ServerConstraint, strict_counts_beside_the_function_too) {
    const json::object schema = {{"type", "object"},
                                 {"properties", {{"code", {{"type", "string"}, {"pattern", "^[A-Z]{2}$"}}}}},
                                 {"required", {"code"}},
                                 {"additionalProperties", false}};
    json::object asked = body(4);
    asked["tools"] = {
        {{"type", "function"}, {"strict", true}, {"function", {{"name", "look_up"}, {"parameters", schema}}}}};
    asked["tool_choice"] = "required";
    asked["parallel_tool_calls"] = false;
    const json::value call = message_of(post("/v1/chat/completions", asked)).at("tool_calls").at(0);
    const json::value arguments = parse_json(std::string(call.at("function").at("arguments").as_string()), "arguments");
    EXPECT_EQ(arguments.at("code").as_string().size(), 2u) << json::serialize(arguments);
}

TEST_F(ServerConstraint, an_answer_may_last_until_the_context_ends) {
    const auto tokens = [&](const json::object& more) {
        json::object asked = {{"prompt", "x"}, {"ignore_eos", true}};
        for (const auto& [key, value] : more) asked[key] = value;
        const Answer answer = post("/v1/completions", asked);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object().at("usage").at("completion_tokens").to_number<int64_t>();
    };
    EXPECT_EQ(tokens({}), 16);
    EXPECT_EQ(tokens({{"n_predict", 3}}), 3);
    EXPECT_EQ(tokens({{"n_predict", 3}, {"max_tokens", 2}}), 2) << "the name of this API comes first";
    for (const char* name : {"max_tokens", "n_predict"}) EXPECT_GT(tokens({{name, -1}}), 900) << name;
    const json::object draft = {{"type", "content"}, {"content", "abc"}};
    EXPECT_EQ(tokens({{"cache_prompt", false}, {"prediction", draft}, {"max_tokens", 2}}), 2);
}

}  // namespace
}  // namespace riptide::testing
