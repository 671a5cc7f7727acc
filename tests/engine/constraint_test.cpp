// Answers held to a form, from the demo model: always of that form, and the same in a crowd as alone.
#include <random>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "engine/sampling/form_cache.h"
#include "tests/engine/engine_world.h"
#include "tests/models/fixture.h"
#include "tests/text/schema_judge.h"
#include "tests/text/small_vocabulary.h"

namespace riptide::testing {
namespace {

/// A random schema, of what small models can be asked for.
json::value random_schema(std::mt19937& random, int depth) {
    const auto pick = [&](uint32_t n) { return random() % n; };
    switch (pick(depth > 2 ? 6 : 9)) {
        case 0:
            return {{"type", "string"}, {"maxLength", 1 + pick(12)}};
        case 1:
            return {{"type", "integer"}, {"minimum", -static_cast<int>(pick(50))}, {"maximum", pick(5000)}};
        case 2:
            return {{"type", "boolean"}};
        case 3:
            return {{"enum", {"red", "green", 7, nullptr}}};
        case 4:
            return {{"type", "string"}, {"pattern", "^[a-f]{1,4}-\\d+$"}};
        case 5:
            return {{"type", "number"}, {"minimum", 0}, {"maximum", 10}};
        case 6:
            return {{"type", "array"}, {"items", random_schema(random, depth + 1)}, {"maxItems", 1 + pick(3)}};
        case 7:
            return {{"anyOf", {random_schema(random, depth + 1), {{"type", "null"}}}}};
        default:
            json::object properties;
            json::array required;
            for (uint32_t i = 0; i <= pick(3); ++i) {
                const std::string name = std::string(1, static_cast<char>('a' + i)) + std::to_string(pick(9));
                properties[name] = random_schema(random, depth + 1);
                if (pick(3) != 0) required.emplace_back(name);
            }
            return {{"type", "object"},
                    {"properties", properties},
                    {"required", required},
                    {"additionalProperties", false}};
    }
}

Request formed(const std::string& question, AnswerFormat format, uint64_t seed) {
    Request request = chat(question, 400);
    request.sampling.temperature = 1.5;
    request.sampling.seed = seed;
    request.format = std::move(format);
    return request;
}

json::array tea_tools() {
    return parse_json(read_file(source_dir() + "/examples/tools.json", 1 << 20), "tools.json").as_array();
}

class EngineConstraint : public ::testing::Test {
  protected:
    std::unique_ptr<Engine> engine = Engine::open(demo_path(), demo_options());
    std::string refusal(Request request) {
        try {
            engine->submit(std::move(request), [](const Event&) {});
        } catch (const Error& error) {
            return error.what();
        }
        ADD_FAILURE() << "no error";
        return "";
    }
};

TEST_F(EngineConstraint, a_hundred_schemas_at_temperature_1_5_give_valid_documents) {
    constexpr unsigned kSchemas = kThreadSanitizer ? 10 : 100;
    Listener listener;
    std::vector<json::value> schemas;
    for (unsigned seed = 0; seed < kSchemas; ++seed) {
        std::mt19937 random(seed);
        const json::value schema = json::object{{"type", "object"},
                                                {"properties", {{"answer", random_schema(random, 0)}}},
                                                {"required", {"answer"}},
                                                {"additionalProperties", false}};
        schemas.push_back(schema);
        Request request =
            formed("Tell me something.", {.kind = AnswerFormat::Kind::json_schema, .schema = schema}, seed);
        std::get<ChatPrompt>(request.prompt).options.enable_thinking = false;
        engine->submit(std::move(request), listener.sink(static_cast<int>(seed)));
    }
    int complete = 0;
    for (unsigned seed = 0; seed < kSchemas; ++seed) {
        const Heard heard = listener.answer(static_cast<int>(seed));
        ASSERT_TRUE(heard.done) << "seed " << seed << ": " << (heard.failed ? heard.failed->message : "");
        if (heard.done->reason == FinishReason::length) continue;  // cut short
        ASSERT_EQ(heard.done->reason, FinishReason::stop_id);
        ++complete;
        json::value value;
        ASSERT_NO_THROW(value = parse_json(heard.text, "answer")) << "seed " << seed << ": " << heard.text;
        EXPECT_TRUE(SchemaJudge(schemas[seed]).valid(value)) << "seed " << seed << ": " << heard.text << "\n"
                                                             << json::serialize(schemas[seed]);
    }
    EXPECT_GE(complete, kSchemas * 9 / 10);
}

TEST_F(EngineConstraint, answers_in_a_crowd_are_those_given_alone) {
    const AnswerFormat object{.kind = AnswerFormat::Kind::json_object};
    const AnswerFormat regex{.kind = AnswerFormat::Kind::regex, .text = "(yes|no), because [a-z ]{10,40}\\."};
    const AnswerFormat grammar{.kind = AnswerFormat::Kind::grammar, .text = "root ::= \"<\" root \">\" | [a-z]{3}"};
    std::vector<Request> requests;
    for (const AnswerFormat& format : {object, regex, grammar, AnswerFormat{}})
        for (uint64_t seed = 0; seed < 3; ++seed) {
            Request request = formed("Is tea good?", format, seed);
            request.sampling.max_tokens = 60;
            request.sampling.frequency_penalty = seed == 1 ? 0.5 : 0;
            request.sampling.logprobs = seed == 2 ? 2 : -1;
            request.sampling.top_k = seed == 2 ? 20 : 0;
            requests.push_back(request);
        }
    std::vector<Heard> alone;
    for (const Request& request : requests) alone.push_back(ask(*engine, request));
    Listener listener;
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].want_tokens = true;
        engine->submit(requests[i], listener.sink(static_cast<int>(i)));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        const Heard heard = listener.answer(static_cast<int>(i));
        EXPECT_EQ(heard.tokens, alone[i].tokens) << i;
        EXPECT_EQ(heard.text, alone[i].text) << i;
        for (const Sampled& sampled : heard.sampled) EXPECT_LE(sampled.sampling_logprob, 0);
    }
}

TEST_F(EngineConstraint, reasoning_is_free_and_the_form_begins_behind_it) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
        Request request = formed("What is 2 plus 2?", {.kind = AnswerFormat::Kind::regex, .text = "\\d{1,4}"}, seed);
        std::get<ChatPrompt>(request.prompt).options.enable_thinking = true;
        request.sampling.temperature = 0.7;
        request.n = 2;
        Listener listener;
        engine->submit(std::move(request), listener.sink(0, 2));
        for (const int i : {0, 1}) {
            const Heard heard = listener.answer(0, i);
            ASSERT_TRUE(heard.done) << heard.failed->message;
            if (heard.done->reason != FinishReason::stop_id) continue;
            EXPECT_FALSE(heard.text.empty());
            EXPECT_LE(heard.text.size(), 4u);
            EXPECT_EQ(heard.text.find_first_not_of("0123456789"), std::string::npos) << heard.text;
        }
    }
}

TEST_F(EngineConstraint, tools_are_called_when_they_must_be) {
    const json::array tools = tea_tools();
    std::set<std::string> names;
    for (const json::value& tool : tools) names.insert(std::string(tool.at("function").at("name").as_string()));
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Request request = formed("Nothing to do with tools.", {}, seed);
        ChatPrompt& prompt = std::get<ChatPrompt>(request.prompt);
        prompt.tools = tools;
        request.sampling.temperature = 1;
        request.tool_choice.kind = seed % 2 != 0 ? ToolChoice::Kind::named : ToolChoice::Kind::required;
        request.tool_choice.single = true;
        const std::string name = *std::next(names.begin(), static_cast<int64_t>(seed % names.size()));
        if (seed % 2 != 0) request.tool_choice.name = name;
        const Heard heard = ask(*engine, request);
        ASSERT_TRUE(heard.done) << heard.failed->message;
        if (heard.done->reason != FinishReason::stop_id) continue;
        ASSERT_EQ(heard.calls.size(), 1u);
        EXPECT_TRUE(names.count(heard.calls[0])) << heard.calls[0];
        EXPECT_TRUE(seed % 2 == 0 || heard.calls[0] == name) << heard.calls[0];
        EXPECT_EQ(heard.text, "");
        for (const json::value& tool : tools) {
            if (tool.at("function").at("name") != heard.calls[0].c_str()) continue;
            const SchemaJudge judge(tool.at("function").at("parameters"));
            EXPECT_TRUE(judge.valid(parse_json(heard.arguments[0], "arguments"))) << heard.arguments[0];
        }
    }
}

TEST_F(EngineConstraint, forms_that_cannot_be_are_refused_by_name) {
    const auto with = [](AnswerFormat format) { return formed("Hi", std::move(format), 0); };
    EXPECT_NE(refusal(with({.kind = AnswerFormat::Kind::regex, .text = "(?<=a)b"})).find("regex: regular"),
              std::string::npos);
    EXPECT_NE(refusal(with({.kind = AnswerFormat::Kind::grammar, .text = "root ::= \"a\" root"}))
                  .find("grammar: nothing can match"),
              std::string::npos);
    const json::value bad = {{"type", "object"}, {"properties", {{"a", {{"unevaluatedItems", false}}}}}};
    EXPECT_NE(refusal(with({.kind = AnswerFormat::Kind::json_schema, .schema = bad}))
                  .find("#/properties/a: 'unevaluatedItems'"),
              std::string::npos);
    Request choice = with({});
    choice.tool_choice.kind = ToolChoice::Kind::required;
    EXPECT_NE(refusal(choice).find("tool_choice: "), std::string::npos);
    Request few = with({.kind = AnswerFormat::Kind::json_object});
    few.sampling.min_tokens = 3;
    EXPECT_NE(refusal(few).find("min_tokens is 3"), std::string::npos);
    Request endless = with({.kind = AnswerFormat::Kind::json_object});
    endless.sampling.ignore_eos = true;
    EXPECT_NE(refusal(endless).find("ignore_eos"), std::string::npos);
}

TEST_F(EngineConstraint, what_is_drawn_from_a_lone_sequence_and_the_engine_agree) {
    const auto session = Session::open(demo_path(), demo_options());
    const std::vector<int32_t> prompt = engine->tokenize(TextPrompt{"{\"a\": 1}\n"});
    const AnswerFormat format{.kind = AnswerFormat::Kind::json_object};
    Constrainer constrainer;
    const auto constraint = constrainer.get(*engine->tokenizer(), format);
    EXPECT_EQ(constraint, constrainer.get(*engine->tokenizer(), format)) << "made once";
    Request request = continuation(prompt, 60);
    request.sampling.temperature = 0.9;
    request.sampling.seed = 4;
    request.sampling.ignore_eos = false;
    request.format = format;
    SamplingParams sampling = request.sampling;
    sampling.stop_ids = engine->info().stop_ids;
    AllowedTokens allowed(constraint, sampling.stop_ids, engine->info().model.vocab_size);
    const Drawn expected = draw(*session, prompt, sampling, &allowed);
    const Heard heard = ask(*engine, request);
    EXPECT_EQ(heard.tokens, expected.tokens);
    EXPECT_EQ(heard.text, engine->tokenizer()->decode(expected.tokens));
}

/// Bytes, and 150,000 merges of letters: as large as vocabularies are, so that their tree takes a while.
Tokenizer large_tokenizer() {
    SmallVocabulary v;
    std::vector<std::string> pairs;
    for (char a = 'a'; a <= 'z'; ++a)
        for (char b = 'a'; b <= 'z'; ++b) {
            v.merges.push_back({std::string(1, a), std::string(1, b)});
            pairs.push_back({a, b});
        }
    for (const std::string& left : pairs)
        for (const std::string& right : pairs)
            if (v.merges.size() < 150'000) v.merges.push_back({left, right});
    return v.tokenizer();
}

TEST(Constrainer, who_has_gone_does_not_wait_for_the_tree_of_the_vocabulary) {
    const Tokenizer tokenizer = large_tokenizer();
    const AnswerFormat format{.kind = AnswerFormat::Kind::regex, .text = "a"};
    std::stop_source gone;
    gone.request_stop();
    WorkBudget first(WorkBudget::kUnlimited, gone.get_token()), second(WorkBudget::kUnlimited, gone.get_token()), late;
    late.end_at(std::chrono::steady_clock::now());
    EXPECT_THROW(TokenTrie(tokenizer, &first), WorkStopped);
    Constrainer constrainer;
    EXPECT_THROW(constrainer.get(tokenizer, format, &first), WorkStopped);
    EXPECT_THROW(constrainer.get(tokenizer, format, &second), WorkStopped) << "nor for who has begun it";
    EXPECT_THROW(constrainer.get(tokenizer, format, &late), WorkLate);
    EXPECT_TRUE(constrainer.get(tokenizer, format)) << "which is made all the same";
    Constrainer ends;  // while its tree is being made
    EXPECT_THROW(ends.get(tokenizer, format, &first), WorkStopped);
}

}  // namespace
}  // namespace riptide::testing
