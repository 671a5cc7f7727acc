// Answers held to tool calls: whatever is drawn, the stream parser makes valid calls of it.
#include "text/dialects/dialect.h"

#include "base/json.h"
#include "tests/text/constraint_world.h"
#include "tests/text/schema_judge.h"
#include "text/structured/grammar_lark.h"

namespace riptide::testing {
namespace {

json::array call_tools(bool strict) {
    json::array out = parse_json(R"([
        {"type": "function", "function": {"name": "point", "parameters": {"type": "object", "required": ["target", "minutes", "unit"],
            "additionalProperties": false, "properties": {"target": {"type": "string"}, "minutes": {"type": "integer", "minimum": 0, "maximum": 90},
            "unit": {"type": "string", "enum": ["a", "ab c"]}, "note": {"type": ["string", "null"]},
            "where": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false},
            "list": {"type": "array", "items": {"$ref": "#/properties/unit"}}, "code": {"type": "string", "minLength": 1},
            "id": {"type": "string", "pattern": "^[a-c]{2}$"}}}}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}},
        {"type": "function", "function": {"name": "free", "parameters": {"type": "object", "required": ["a"],
            "properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "integer"}}}}])",
                                 "tools")
                          .as_array();
    for (json::value& tool : out) tool.at("function").as_object()["strict"] = strict;
    return out;
}

struct Parsed {
    std::string text, reasoning;
    std::vector<std::string> names, arguments;
    bool all_complete = true;
};

/// A dialect, and how its answers look.
struct DialectCase {
    std::string dialect, end_turn;
    std::string phrase;  // ends a string
    std::string stop;    // a call of `stop`, without its tokens
    bool json = false;   // arguments are an object
};
const DialectCase kCases[] = {{"laguna", "</assistant>", "</arg_value>", "stop\n"},
                              {"qwen-tags", "<|im_end|>", "\n</parameter>", "\n<function=stop>\n</function>\n"},
                              {"qwen-json", "<|im_end|>", "\"}", "\n{\"name\": \"stop\", \"arguments\": {}}\n", true}};

class DialectGrammar : public ::testing::TestWithParam<DialectCase> {
  protected:
    static const Dialect& dialect() {
        for (const Dialect& one : dialects())
            if (one.name == GetParam().dialect) return one;
        throw Error("no such dialect");
    }
    static std::shared_ptr<Constraint> constraint_of(const AnswerForm& answer) {
        return Constraint::compile(dialect().grammar(answer, nullptr), crossing_trie(), kNoShortWalks);
    }
    static std::string random(const std::shared_ptr<Constraint>& constraint, unsigned seed,
                              std::vector<int32_t>& tokens) {
        std::mt19937 random(seed);
        return random_answer(constraint, random, static_cast<int>(seed), &tokens, GetParam().phrase);
    }
    static Parsed parse(const AnswerForm& answer, const std::vector<int32_t>& tokens);
};

Parsed DialectGrammar::parse(const AnswerForm& answer, const std::vector<int32_t>& tokens) {
    ParserOptions options;
    options.thinking = answer.thinking == Thinking::inside;
    options.newline_framing = answer.newline_framing;
    options.tools = ToolSchemas(answer.tools);
    const auto parser = dialect().make_parser(options);
    StreamEvents events;
    for (const int32_t token : tokens)
        parser->push_token(crossing_tokenizer().piece(token), crossing_tokenizer().is_added(token), events);
    parser->push_token(GetParam().end_turn, true, events);
    parser->finish(events);
    Parsed out;
    for (const StreamEvent& event : events) {
        if (const auto* text = std::get_if<TextDelta>(&event)) out.text += text->text;
        if (const auto* text = std::get_if<ReasoningDelta>(&event)) out.reasoning += text->text;
        if (const auto* call = std::get_if<ToolCallBegin>(&event)) {
            out.names.push_back(call->name);
            out.arguments.emplace_back();
        }
        if (const auto* part = std::get_if<ToolCallArguments>(&event)) out.arguments.back() += part->json_fragment;
        if (const auto* end = std::get_if<ToolCallEnd>(&event)) out.all_complete = out.all_complete && end->complete;
    }
    return out;
}

void expect_valid_calls(const json::array& offered, const Parsed& parsed) {
    EXPECT_TRUE(parsed.all_complete);
    for (size_t i = 0; i < parsed.names.size(); ++i) {
        const json::value* schema = nullptr;
        for (const json::value& tool : offered)
            if (tool.at("function").at("name") == parsed.names[i].c_str())
                schema = &tool.at("function").at("parameters");
        ASSERT_NE(schema, nullptr) << parsed.names[i];
        const json::value arguments = parse_json(parsed.arguments[i], "arguments");
        EXPECT_TRUE(SchemaJudge(*schema).valid(arguments)) << parsed.names[i] << parsed.arguments[i];
    }
}

TEST_P(DialectGrammar, required_calls_are_valid_and_nothing_stands_beside_them) {
    for (const bool framing : {false, true})
        for (const bool thinking : {false, true})
            for (const bool single : {false, true}) {
                AnswerForm answer{.thinking = thinking ? Thinking::inside : Thinking::over,
                                  .newline_framing = framing,
                                  .tools = call_tools(single)};
                answer.choice = {.kind = ToolChoice::Kind::required, .single = single};
                const auto constraint = constraint_of(answer);
                for (unsigned seed = 0; seed < 60; ++seed) {
                    std::vector<int32_t> tokens;
                    const std::string said = random(constraint, seed, tokens);
                    const Parsed parsed = parse(answer, tokens);
                    EXPECT_GE(parsed.names.size(), 1u) << said;
                    EXPECT_EQ(parsed.text, "") << said;
                    EXPECT_TRUE(!single || parsed.names.size() == 1) << said;
                    expect_valid_calls(answer.tools, parsed);
                    if (HasFailure()) FAIL() << "seed " << seed << ": " << said;
                }
            }
}

TEST_P(DialectGrammar, a_text_of_a_grammar_is_all_that_a_tool_takes_and_is_never_cut_by_what_it_holds) {
    const std::string lark =
        "start: part~1..6 END?\npart: \"<\" | \"</\" | NAME | \"\\n\" | \"\\\"\" | \">\"\nNAME: "
        "/(arg_value|parameter|a)b?/\n"
        "END: \"</parameter\" | \"</arg_value\"";
    json::object tool = {{"name", "edit"}, {"strict", true}, {"grammar", {{"syntax", "lark"}, {"definition", lark}}}};
    tool["parameters"] = {{"type", "object"}, {"properties", {{"input", {{"type", "string"}}}}}};
    AnswerForm answer{.tools = {{{"type", "function"}, {"function", tool}}}};
    answer.choice = {.kind = ToolChoice::Kind::required, .single = true};
    const auto constraint = constraint_of(answer);
    Grammar alone;
    alone.set_root(add_lark(alone, lark));
    const auto texts = Constraint::compile(alone, crossing_trie(), kNoShortWalks);
    int with_tags = 0;
    for (unsigned seed = 0; seed < 300; ++seed) {
        std::vector<int32_t> tokens;
        const std::string said = random(constraint, seed, tokens);
        const Parsed parsed = parse(answer, tokens);
        ASSERT_EQ(parsed.names.size(), 1u) << said;
        ASSERT_TRUE(parsed.all_complete) << said;
        const json::value arguments = parse_json(parsed.arguments[0], "arguments");
        ASSERT_EQ(arguments.as_object().size(), 1u) << said;
        const std::string input(arguments.at("input").as_string());
        EXPECT_TRUE(takes(texts, input)) << "seed " << seed << ": " << said << "\n" << input;
        with_tags += input.find("</") != std::string::npos ? 1 : 0;
    }
    EXPECT_GT(with_tags, 0);
}

TEST_P(DialectGrammar, the_grammars_of_all_tools_together_are_bounded) {
    const std::string large = "start: \"a\" //" + std::string(200 << 10, '-');
    AnswerForm answer;
    answer.choice = {.kind = ToolChoice::Kind::required};
    for (const char* name : {"a", "b", "c"}) {
        EXPECT_NO_THROW(answer.tools.empty() ? nullptr : constraint_of(answer)) << name;
        const json::object grammar = {{"syntax", "lark"}, {"definition", large}};
        answer.tools.push_back({{"type", "function"}, {"function", {{"name", name}, {"grammar", grammar}}}});
    }
    EXPECT_THROW(constraint_of(answer), GrammarError);
}

TEST_P(DialectGrammar, a_named_tool_is_called_once) {
    AnswerForm answer{.tools = call_tools(true)};
    answer.choice = {.kind = ToolChoice::Kind::named, .name = "free"};
    const auto constraint = constraint_of(answer);
    for (unsigned seed = 0; seed < 40; ++seed) {
        std::vector<int32_t> tokens;
        random(constraint, seed, tokens);
        const Parsed parsed = parse(answer, tokens);
        EXPECT_EQ(parsed.names, std::vector<std::string>{"free"});
        expect_valid_calls(answer.tools, parsed);
    }
    answer.choice.name = "none";
    EXPECT_THROW(constraint_of(answer), GrammarError);
    answer.choice = {.kind = ToolChoice::Kind::required};
    answer.tools = {};
    EXPECT_THROW(constraint_of(answer), GrammarError);
}

TEST_P(DialectGrammar, strict_tools_are_called_rightly_wherever_a_call_begins) {
    AnswerForm answer{.thinking = Thinking::inside, .tools = call_tools(true)};
    EXPECT_TRUE(is_constrained(answer));
    EXPECT_FALSE(is_constrained({.tools = call_tools(false)}));
    const auto constraint = constraint_of(answer);
    const int32_t begin = crossing_tokenizer().id_of("<tool_call>"), think = crossing_tokenizer().id_of("</think>");
    ConstraintState state = constraint->start();
    const auto say = [&](std::string_view text) {
        for (const char c : text)
            ASSERT_TRUE(state.accept(crossing_tokenizer().id_of(std::string_view(&c, 1)))) << text;
    };
    EXPECT_FALSE(state.can_end()) << "in its reasoning";
    say("I think <tool_call>");
    EXPECT_TRUE(state.accept(think));
    say("\n\nSo:\n");
    EXPECT_TRUE(state.can_end());
    EXPECT_TRUE(state.accept(begin));
    EXPECT_FALSE(state.can_end());
    say(GetParam().stop);
    EXPECT_FALSE(state.accept(begin));
    EXPECT_TRUE(state.accept(crossing_tokenizer().id_of("</tool_call>")));
    EXPECT_TRUE(state.can_end());
    say("\nDone.");
    EXPECT_TRUE(state.can_end());
}

TEST_P(DialectGrammar, a_format_is_all_that_is_seen_of_an_answer_or_there_are_calls) {
    for (const bool framing : {false, true})
        for (const bool thinking : {false, true})
            for (const bool with_tools : {false, true}) {
                AnswerForm answer{.thinking = thinking ? Thinking::inside : Thinking::over, .newline_framing = framing};
                if (with_tools) answer.tools = call_tools(false);
                answer.format = {.kind = AnswerFormat::Kind::regex, .text = "\\n?[ab]{0,3}\\n?"};
                const auto constraint = constraint_of(answer);
                for (unsigned seed = 0; seed < 40; ++seed) {
                    std::vector<int32_t> tokens;
                    const std::string said = random(constraint, seed, tokens);
                    const Parsed parsed = parse(answer, tokens);
                    if (parsed.names.empty())
                        EXPECT_TRUE(takes(regex_constraint(answer.format.text), parsed.text)) << said;
                    else EXPECT_EQ(parsed.text, "") << said;
                    EXPECT_TRUE(with_tools || parsed.names.empty());
                    expect_valid_calls(answer.tools, parsed);
                }
            }
}

TEST_P(DialectGrammar, what_cannot_be_written_is_refused_with_the_tools_name) {
    const auto refuses = [&](std::string_view tool, std::string_view message) {
        AnswerForm answer{.tools = {parse_json(tool, "tool")}};
        answer.choice.kind = ToolChoice::Kind::required;
        try {
            constraint_of(answer);
            ADD_FAILURE() << tool;
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
        }
    };
    refuses(R"({"function": {"name": "a b"}})", "'a b' is not a name");
    refuses(
        R"({"function": {"name": "f", "strict": true, "parameters": {"properties": {"x": {"unevaluatedItems": false}}}}})",
        "tools: 'f': #/properties/x: 'unevaluatedItems' is not supported");
    refuses(
        R"json({"function": {"name": "f", "strict": true, "parameters": {"properties": {"x": {"type": "string", "pattern": "(?<=a)"}}}}})json",
        "look-behind");
    refuses(R"({"function": {"name": "f", "strict": true, "parameters": {"type": "array"}}})",
            "tools: 'f': #: the parameters are not the schema of an object");
    if (GetParam().json) return;
    refuses(R"({"function": {"name": "f", "parameters": {"properties": {"<x": {}}}}})", "#/properties/<x");
    refuses(R"({"function": {"name": "f", "strict": true, "parameters": {"anyOf": []}}})",
            "'anyOf' is not supported here");
    for (const char* word : {"dependentSchemas", "dependencies", "unevaluatedProperties"})
        refuses(fmt::format(
                    R"({{"function": {{"name": "f", "strict": true, "parameters": {{"{}": {{"a": false}}}}}}}})", word),
                fmt::format("'{}' is not supported here", word));
}

TEST_P(DialectGrammar, thinking_may_begin_or_not_where_the_prompt_leaves_it_open) {
    AnswerForm answer{.thinking = Thinking::not_begun};
    answer.format = {.kind = AnswerFormat::Kind::regex, .text = "[ab]{1,3}"};
    answer.newline_framing = false;
    const auto constraint = constraint_of(answer);
    int thought = 0;
    for (unsigned seed = 0; seed < 40; ++seed) {
        std::vector<int32_t> tokens;
        const std::string said = random(constraint, seed, tokens);
        const Parsed parsed = parse(answer, tokens);
        EXPECT_TRUE(takes(regex_constraint(answer.format.text), parsed.text)) << said;
        EXPECT_EQ(parsed.reasoning.empty(), !said.starts_with("<think>") || said.starts_with("<think></think>"))
            << said;
        thought += said.starts_with("<think>") ? 1 : 0;
    }
    EXPECT_GT(thought, 0);
    EXPECT_LT(thought, 40);
}

INSTANTIATE_TEST_SUITE_P(All, DialectGrammar, ::testing::ValuesIn(kCases), [](const auto& one) {
    std::string name = one.param.dialect;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

}  // namespace
}  // namespace riptide::testing
