// Long prompts made shorter: what must stay, what is chosen, what is remembered.
#include "engine/compression/compressor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "engine/prompt/model_text.h"
#include "tests/engine/engine_world.h"
#include "tests/text/small_vocabulary.h"

namespace riptide::testing {
namespace {

const ModelText& demo() {
    static const auto checkpoint = open_checkpoint(demo_path());
    static const ModelText text(*checkpoint);
    return text;
}

/// What a fake scorer was asked, and by what it scores: bytes of its text that are in the marked word count.
struct FakeScorer {
    std::shared_ptr<const Tokenizer> tokenizer;  // null: the target's
    std::string needle = "walnut";
    std::vector<std::string> texts;                 // of each call
    std::vector<std::vector<std::string>> queries;  // the windows' texts
    int64_t calls = 0;

    PromptScorer scorer() {
        const Tokenizer* vocabulary = tokenizer ? tokenizer.get() : demo().tokenizer();
        return {"fake", tokenizer, [this, vocabulary](const ScoreCall& call) {
                    ++calls;
                    const std::string text = vocabulary->decode(call.tokens);
                    texts.push_back(text);
                    queries.emplace_back();
                    std::vector<float> scores(call.tokens.size());
                    int64_t last = 0;
                    for (const QueryWindow& w : call.windows) {
                        EXPECT_TRUE(w.begin >= last && w.begin < w.end && w.end <= std::ssize(call.tokens));
                        EXPECT_GT(w.weight, 0);
                        last = w.end;
                        queries.back().push_back(vocabulary->decode(
                            call.tokens.subspan(static_cast<size_t>(w.begin), static_cast<size_t>(w.end - w.begin))));
                    }
                    const auto spans = token_spans(*vocabulary, call.tokens, text);
                    for (size_t at = text.find(needle); at != text.npos; at = text.find(needle, at + 1)) {
                        const auto from = static_cast<int64_t>(at);
                        const TokenRun run = tokens_at(spans, {from, from + std::ssize(needle)});
                        for (int64_t t = run.begin; t < run.end; ++t) scores[static_cast<size_t>(t)] = 1;
                    }
                    return scores;
                }};
    }
};

json::object message(std::string_view role, std::string_view content) { return {{"role", role}, {"content", content}}; }

std::string pump_log(int lines, int first = 0) {
    std::string out;
    for (int i = first; i < first + lines; ++i)
        out += fmt::format("Entry {}: the pump of hall {} ran for {} minutes.\n", i, i % 7, i * 3 % 50);
    return out;
}

struct Compressed {
    EncodedPrompt prompt;
    std::shared_ptr<CompressionPlan> plan;
    std::string text;  // of what is kept
};

Compressed compress(Compressor& compressor, const ChatPrompt& chat, const CompressionOptions& options,
                    bool remember = true) {
    Compressed out;
    out.prompt = demo().encode(chat);
    const auto parts = demo().parts(out.prompt);
    out.plan = compressor.plan({out.prompt.tokens, parts, "me", remember}, options);
    if (!out.plan) return out;
    const int64_t most = out.plan->most_kept();
    EXPECT_TRUE(compressor.choose(*out.plan));
    EXPECT_LE(out.plan->report.kept, most);
    out.text = demo().tokenizer()->decode(kept_tokens(*out.plan));
    return out;
}

CompressionOptions keeping(double share) { return {.mode = CompressMode::always, .keep = share, .least = 0}; }

/// Tokens that can be left out.
int64_t contents(const EncodedPrompt& prompt) {
    int64_t out = 0;
    for (const ChatPart& part : demo().parts(prompt))
        if (part.kind != ChatPart::Kind::markup && part.kind != ChatPart::Kind::fixed) out += part.tokens.size();
    return out;
}

TEST(Compressor, the_needle_and_what_must_stay_are_kept_within_the_budget) {
    FakeScorer fake;
    Compressor compressor(*demo().tokenizer(), "f", fake.scorer());
    ChatPrompt chat;
    chat.messages = {message("system", "Be brief and exact."),
                     message("user", pump_log(150) + "The code is walnut, remember it.\n" + pump_log(150, 150)),
                     message("assistant", "I have read it."), message("user", "What is the code?")};
    const Compressed got = compress(compressor, chat, keeping(0.1));
    ASSERT_TRUE(got.plan);
    const CompressionReport& report = got.plan->report;
    EXPECT_EQ(report.original, std::ssize(got.prompt.tokens));
    EXPECT_EQ(got.plan->room, contents(got.prompt) / 10);
    EXPECT_EQ(report.budget, report.original - contents(got.prompt) + got.plan->room);
    EXPECT_LE(report.kept, report.budget);
    EXPECT_GT(report.kept, report.budget - kMostUnit) << "what fits is used";
    EXPECT_EQ(report.scored, report.original) << "the same vocabulary";
    for (const char* part : {"Be brief and exact.", "The code is walnut", "I have read it.", "What is the code?"})
        EXPECT_NE(got.text.find(part), got.text.npos) << part;
    EXPECT_EQ(got.text.find("walnut"), got.text.rfind("walnut"));
    EXPECT_TRUE(got.text.ends_with("<assistant>\n</think>")) << got.text.substr(got.text.size() - 60);
    ASSERT_EQ(fake.queries.size(), 1U);
    EXPECT_NE(fmt::format("{}", fmt::join(fake.queries[0], "|")).find("What is the code?"), std::string::npos);
    EXPECT_EQ(kept_counts(*got.plan, got.prompt.message_ends).size(), got.prompt.message_ends.size());
    const std::string shown = show_kept(*got.plan);
    EXPECT_NE(shown.find("[-"), shown.npos);
    EXPECT_FALSE(report.sentence().empty());
}

TEST(Compressor, another_vocabulary_scores_the_same_bytes) {
    FakeScorer fake;
    SmallVocabulary small;
    small.merges = {{"w", "a"}, {"wa", "l"}, {"l", "n"}, {"u", "t"}};
    fake.tokenizer = std::make_shared<Tokenizer>(small.tokenizer());
    Compressor compressor(*demo().tokenizer(), "f", fake.scorer());
    ChatPrompt chat;
    chat.messages = {message("user", pump_log(200) + "It is walnut.\n" + pump_log(200) + "What is it? Say the word.")};
    const Compressed got = compress(compressor, chat, keeping(0.1));
    ASSERT_TRUE(got.plan);
    EXPECT_NE(got.text.find("It is walnut."), got.text.npos);
    EXPECT_NE(got.text.find("What is it? Say the word."), got.text.npos) << "the end of a long question";
    EXPECT_GT(got.plan->report.scored, got.plan->report.original);
    EXPECT_LE(got.plan->report.kept, got.plan->report.budget);
}

TEST(Compressor, the_next_turn_keeps_what_was_kept_and_scores_only_what_is_new) {
    FakeScorer fake;
    Compressor compressor(*demo().tokenizer(), "f", fake.scorer());
    ChatPrompt chat;
    chat.messages = {message("user", pump_log(300) + "The code is walnut.\n" + pump_log(300) + "What is the code?")};
    const Compressed first = compress(compressor, chat, keeping(0.2));
    EXPECT_EQ(fake.calls, 1);
    const Compressed again = compress(compressor, chat, keeping(0.2));
    EXPECT_EQ(again.text, first.text);
    EXPECT_EQ(fake.calls, 1) << "nothing is new";

    chat.messages.push_back(message("assistant", "Walnut."));
    chat.messages.push_back(message("user", "And the pump?"));
    fake.needle = "hall 3";
    const Compressed second = compress(compressor, chat, keeping(0.2));
    EXPECT_EQ(fake.calls, 1);
    const size_t end = first.text.find("</user>") + 7;
    EXPECT_EQ(second.text.substr(0, end), first.text.substr(0, end));
    EXPECT_GT(second.plan->report.remembered, 0);

    chat.messages.push_back(message("assistant", "It ran."));
    chat.messages.push_back(message("user", pump_log(300, 900) + "Which of these?"));
    const Compressed third = compress(compressor, chat, keeping(0.2));
    EXPECT_EQ(fake.calls, 2);
    EXPECT_EQ(third.text.substr(0, end), first.text.substr(0, end));
    EXPECT_LT(std::ssize(fake.texts[1]), std::ssize(third.prompt.rendered->text) * 2 / 3) << "old turns in short";
    EXPECT_NE(fake.texts[1].find("walnut"), std::string::npos);
    EXPECT_LE(third.plan->report.kept, third.plan->report.budget * 5 / 4);

    // Another owner, other options, or a request that wants no memory: all is chosen anew.
    const auto parts = demo().parts(third.prompt);
    for (const auto& [owner, remember, keep] : {std::tuple{"you", true, 0.2}, {"me", false, 0.2}, {"me", true, 0.25}}) {
        const auto plan = compressor.plan({third.prompt.tokens, parts, owner, remember}, keeping(keep));
        EXPECT_EQ(plan->report.remembered, 0);
    }
    // The same document with another question is another conversation.
    ChatPrompt other;
    other.messages = {message("user", pump_log(300) + "The code is walnut.\n" + pump_log(300) + "Which hall is it?")};
    EXPECT_EQ(compress(compressor, other, keeping(0.2)).plan->report.remembered, 0);
}

TEST(Compressor, what_must_stay_and_does_not_fit_is_kept_and_said) {
    FakeScorer fake;
    Compressor compressor(*demo().tokenizer(), "f", fake.scorer());
    ChatPrompt chat;
    chat.messages = {message("system", pump_log(100)), message("user", pump_log(100)), message("assistant", "Yes."),
                     message("user", "Why?")};
    const Compressed got =
        compress(compressor, chat, {.mode = CompressMode::always, .keep_tokens = std::ssize(pump_log(100)) / 10});
    ASSERT_TRUE(got.plan);
    EXPECT_TRUE(got.plan->report.over());
    EXPECT_NE(got.plan->report.sentence().find("more than the budget"), std::string::npos);
    EXPECT_NE(got.text.find(pump_log(99).substr(0, 2000)), got.text.npos) << "the system prompt";
    EXPECT_EQ(fake.calls, 0) << "nothing is left to choose";
}

TEST(Compressor, what_is_short_enough_is_left_alone) {
    FakeScorer fake;
    Compressor compressor(*demo().tokenizer(), "f", fake.scorer());
    const auto tokens = demo().tokenizer()->encode("A few words.");
    EXPECT_EQ(compressor.plan({tokens}, keeping(1)), nullptr);
    EXPECT_EQ(compressor.plan({tokens}, {.keep_tokens = 100}), nullptr);
    const auto more = demo().tokenizer()->encode(pump_log(100));
    const auto plan = compressor.plan({more}, {.keep_tokens = 100});
    ASSERT_TRUE(plan);
    EXPECT_TRUE(compressor.choose(*plan));
    EXPECT_LE(plan->report.kept, 100);
    EXPECT_THROW(compressor.plan({more}, keeping(0)), Error);
    EXPECT_THROW(compressor.plan({more}, keeping(1.5)), Error);
}

TEST(Compressor, scores_that_are_no_numbers_or_cannot_be_made_fail_the_request) {
    const auto tokens = demo().tokenizer()->encode(pump_log(100));
    const auto scores_with = [&](float value) {
        return [value](const ScoreCall& call) { return std::vector<float>(call.tokens.size(), value); };
    };
    for (const float bad : {std::nanf(""), -1.0f, INFINITY}) {
        Compressor compressor(*demo().tokenizer(), "f", {"bad", nullptr, scores_with(bad)});
        const auto plan = compressor.plan({tokens}, keeping(0.1));
        EXPECT_THROW(compressor.choose(*plan), Error);
    }
    Compressor small(*demo().tokenizer(), "f", {"small", nullptr, scores_with(1), 1000});
    EXPECT_THROW(small.choose(*small.plan({tokens}, keeping(0.1))), Error);
    std::atomic<bool> cancel = true;
    Compressor fine(*demo().tokenizer(), "f", {"fine", nullptr, scores_with(1)});
    EXPECT_FALSE(fine.choose(*fine.plan({tokens}, keeping(0.1)), &cancel));
}

// Random conversations.

std::string random_content(std::mt19937_64& rng, int most) {
    static const std::vector<std::string> kWords = {"walnut ",
                                                    "the ",
                                                    "pump ",
                                                    "naïve ",
                                                    "漢字",
                                                    "👩‍👩‍👧‍👦 ",
                                                    "x_1 = 2;\n",
                                                    "\n\n",
                                                    "```\ncode\n```\n",
                                                    "<user>",
                                                    "</tool_call>",
                                                    "e\u0301 ",
                                                    "{\"a\": 1}",
                                                    ". ",
                                                    "said, ",
                                                    "\r\n",
                                                    "〈|EOS|〉",
                                                    "12345 ",
                                                    "<think>",
                                                    "…"};
    std::string out;
    for (int i = static_cast<int>(rng() % static_cast<uint64_t>(most)); i >= 0; --i)
        out += kWords[rng() % kWords.size()];
    return out + "end.";
}

json::array random_tools(std::mt19937_64& rng) {
    json::array tools;
    for (uint64_t i = rng() % 3; i > 0; --i)
        tools.push_back({{"type", "function"},
                         {"function",
                          {{"name", fmt::format("tool_{}", i)},
                           {"description", random_content(rng, 30)},
                           {"parameters", {{"type", "object"}, {"properties", json::object()}}}}}});
    return tools;
}

ChatPrompt random_chat(std::mt19937_64& rng) {
    ChatPrompt chat;
    chat.tools = random_tools(rng);
    if (rng() % 2 == 0) chat.messages.push_back(message("system", random_content(rng, 60)));
    const uint64_t turns = 1 + rng() % 4;
    for (uint64_t t = 0; t < turns; ++t) {
        chat.messages.push_back(message("user", random_content(rng, rng() % 3 == 0 ? 900 : 20)));
        for (uint64_t step = rng() % 3; step > 0; --step) {
            json::object answer = message("assistant", random_content(rng, 40));
            json::array calls;
            for (uint64_t c = 1 + rng() % 2; c > 0; --c)
                calls.push_back({{"id", "1"},
                                 {"type", "function"},
                                 {"function", {{"name", "tool_1"}, {"arguments", {{"a", random_content(rng, 20)}}}}}});
            answer["tool_calls"] = calls;
            chat.messages.push_back(answer);
            chat.messages.push_back(message("tool", random_content(rng, rng() % 2 == 0 ? 500 : 10)));
        }
        if (t + 1 < turns) chat.messages.push_back(message("assistant", random_content(rng, 60)));
    }
    return chat;
}

/// The texts of stretches that must be there byte for byte: they are not content.
void check_kept(const Compressed& got, uint64_t seed, int64_t& whole_turns) {
    SCOPED_TRACE(seed);
    const CompressionPlan& plan = *got.plan;
    const auto parts = demo().parts(got.prompt);
    const Tokenizer& tokenizer = *demo().tokenizer();
    int64_t kept = 0;
    for (const ChatPart& part : parts) {
        const bool content = part.kind == ChatPart::Kind::user || part.kind == ChatPart::Kind::assistant ||
                             part.kind == ChatPart::Kind::tool;
        for (int64_t at = part.tokens.begin; at < part.tokens.end; ++at) {
            kept += plan.kept[at];
            ASSERT_TRUE(content || plan.kept[at]) << "markup, system prompt, tools or a call is cut at " << at;
            ASSERT_TRUE(plan.kept[at] || !tokenizer.is_added(plan.tokens[at]));
            if (at > 0 && plan.kept[at] != plan.kept[at - 1]) {
                ASSERT_TRUE(plan.text.cuts[at]) << "a word is cut at " << at;
            }
        }
    }
    ASSERT_EQ(kept, plan.report.kept);
    if (plan.report.remembered == 0) {
        ASSERT_TRUE(!plan.report.over() || kept == plan.report.forced) << "over the budget by choice";
    }
    // The last user message: whole, or (if it is long) its first and last words. And if the last turn fits into half of
    // the budget, all of it.
    const auto last =
        std::find_if(parts.rbegin(), parts.rend(), [](const ChatPart& p) { return p.kind == ChatPart::Kind::user; });
    ASSERT_NE(last, parts.rend());
    if (last->tokens.size() <= std::clamp<int64_t>(plan.room / 4, 32, 4096)) {
        for (int64_t at = last->tokens.begin; at < last->tokens.end; ++at) ASSERT_TRUE(plan.kept[at]);
        const int64_t turn = std::ssize(plan.tokens) - last->tokens.begin;
        if (turn <= plan.room / 2 && plan.report.remembered == 0) {
            ++whole_turns;
            for (int64_t at = last->tokens.begin; at < std::ssize(plan.tokens); ++at) ASSERT_TRUE(plan.kept[at]);
        }
    }
    for (int64_t at = last->tokens.end - 8; at < last->tokens.end; ++at)
        ASSERT_TRUE(plan.kept[std::max<int64_t>(0, at)]);
    ASSERT_TRUE(plan.kept.front() && plan.kept.back());
}

TEST(Compressor, random_conversations_keep_markup_tools_calls_and_the_last_turn) {
    const uint64_t wanted = full_counts() ? 10'000 : 300;
    FakeScorer fake;
    Compressor compressor(*demo().tokenizer(), "f", fake.scorer());
    int64_t compressed = 0, over = 0, whole_turns = 0;
    for (uint64_t seed = 0; seed < wanted; ++seed) {
        std::mt19937_64 rng(seed);
        const ChatPrompt chat = random_chat(rng);
        const double share = static_cast<double>(5 + rng() % 60) / 100;
        CompressionOptions options = keeping(share);
        if (rng() % 2 == 0)
            options.keep_tokens = std::max<int64_t>(
                1, static_cast<int64_t>(share * static_cast<double>(demo().encode(chat).tokens.size())));
        const Compressed got = compress(compressor, chat, options, rng() % 2 == 0);
        if (!got.plan) continue;
        ++compressed;
        over += got.plan->report.over();
        check_kept(got, seed, whole_turns);
        for (const json::value& tool : chat.tools) {
            const json::object& function = tool.at("function").as_object();
            const std::string description(function.at("description").as_string());
            ASSERT_NE(got.prompt.rendered->text.find(std::string(function.at("name").as_string())), std::string::npos);
            const std::string& whole = got.prompt.rendered->text;
            const size_t at = whole.find("<available_tools>"), end = whole.find("</available_tools>", at);
            ASSERT_NE(got.text.find(whole.substr(at, end - at)), std::string::npos) << "tool schemas, byte for byte";
        }
        if (seed % 20 == 0) {  // a function of the prompt, if nothing is remembered
            const auto again = compress(compressor, chat, options, false);
            ASSERT_EQ(compress(compressor, chat, options, false).plan->kept, again.plan->kept);
        }
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(compressed, static_cast<int64_t>(wanted) / 2);
    EXPECT_GT(over, 0);
    EXPECT_LT(over, compressed);
    EXPECT_GT(whole_turns, 0);
}

}  // namespace
}  // namespace riptide::testing
