// Long-context questions: what answers stands in the text once, where it was asked for; judges; what is reported.
#include "apps/niah/niah_cases.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "apps/niah/niah_report.h"
#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"

namespace riptide::apps {
namespace {

int64_t tokens_of(std::string_view text) { return std::ssize(text) / 3 + 1; }

/// All that the conversation says, and what stands in front of the question.
std::string all_text(const json::array& messages) {
    std::string out;
    for (const json::value& message : messages) {
        out += message.at("content").as_string();
        out += '\n';
    }
    return out;
}

NiahCounter counter() {
    return {tokens_of, [](const json::array& messages, const json::array& tools) {
                return tokens_of(all_text(messages)) + tokens_of(json::serialize(tools)) + 10 * std::ssize(messages);
            }};
}

int count_of(std::string_view text, std::string_view part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

NiahCase made(NiahTask task, int64_t tokens, double depth, uint64_t seed) {
    return make_niah_case({.task = task, .tokens = tokens, .depth = depth, .seed = seed}, counter());
}

TEST(NiahCases, are_the_same_whichever_compiler_built_them) {
    std::string all;
    for (const NiahTask task : kNiahTasks)
        for (uint64_t seed = 0; seed < 10; ++seed) {
            const NiahCase c = made(task, 1500, 0.5, seed);
            all += all_text(c.messages) + c.question;
        }
    EXPECT_EQ(to_hex(sha256(std::as_bytes(std::span(all)))),
              "23c30f8b3b65440e1893e62550e0c79439663cf069a72b57f1a87fa59765a5d0");
}

TEST(NiahCases, each_line_that_answers_stands_in_the_text_once) {
    for (const NiahTask task : kNiahTasks)
        for (uint64_t seed = 0; seed < 40; ++seed) {
            const NiahCase c = made(task, 1500, static_cast<double>(seed % 5) / 4, seed);
            const std::string text = "\n" + all_text(c.messages);
            ASSERT_FALSE(c.evidence.empty());
            for (const std::string& line : c.evidence)
                EXPECT_EQ(count_of(text, "\n" + line + "\n"), 1)
                    << niah_task_name(task) << " seed " << seed << ": " << line;
            EXPECT_EQ(count_of(text, c.question), 1);
        }
}

TEST(NiahCases, what_is_expected_stands_nowhere_else) {
    for (const NiahTask task : kNiahTasks)
        for (uint64_t seed = 0; seed < 40; ++seed) {
            const NiahCase c = made(task, 1500, 0.5, seed);
            if (c.how == Judge::number) {
                EXPECT_EQ(c.expected, std::vector<std::string>{std::to_string(c.evidence.size())});
                continue;
            }
            const std::string text = all_text(c.messages);
            for (const std::string& value : c.expected) {
                EXPECT_EQ(count_of(text, value), 1) << niah_task_name(task) << " seed " << seed << ": " << value;
                EXPECT_TRUE(std::any_of(c.evidence.begin(), c.evidence.end(), [&](const std::string& line) {
                    return line.find(value) != std::string::npos;
                }));
            }
        }
}

TEST(NiahCases, what_answers_first_stands_at_the_depth) {
    for (const NiahTask task : {NiahTask::single, NiahTask::multi_key, NiahTask::variables, NiahTask::code})
        for (uint64_t seed = 0; seed < 20; ++seed)
            for (const double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
                const NiahCase c = made(task, 4000, depth, seed);
                const std::string text = all_text(c.messages);
                const auto all = static_cast<double>(text.size() - c.question.size());
                // Decoys and the other evidence are in the text, but not in the count: at most 12 short entries.
                EXPECT_NEAR(static_cast<double>(text.find(c.evidence[0])), depth * all, 0.1 * all)
                    << niah_task_name(task);
                if (depth == 0) {
                    EXPECT_EQ(text.find(c.evidence[0]), 0u);
                }
            }
}

TEST(NiahCases, a_prompt_is_as_long_as_asked_to_the_line) {
    for (const NiahTask task : kNiahTasks)
        for (const int64_t tokens : {600, 1000, 4096, 30000}) {
            const NiahCase c = made(task, tokens, 0.25, static_cast<uint64_t>(tokens));
            EXPECT_LE(c.tokens, tokens);
            EXPECT_EQ(c.tokens, counter().prompt(c.messages, c.tools));
            // The stand-in rounds up each line; a line of the text is shorter than 50 of its tokens.
            EXPECT_GE(static_cast<double>(c.tokens), 0.9 * static_cast<double>(tokens) - 50) << niah_task_name(task);
        }
}

TEST(NiahCases, the_same_spec_gives_the_same_case_and_each_seed_another) {
    for (const NiahTask task : kNiahTasks) {
        const NiahCase a = made(task, 800, 0.5, 7), b = made(task, 800, 0.5, 7), c = made(task, 800, 0.5, 8);
        EXPECT_EQ(a.messages, b.messages);
        EXPECT_EQ(a.expected, b.expected);
        EXPECT_NE(a.messages, c.messages);
    }
}

TEST(NiahCases, the_depth_changes_the_place_and_nothing_that_is_asked) {
    const NiahCase a = made(NiahTask::multi_key, 2000, 0, 3), b = made(NiahTask::multi_key, 2000, 1, 3);
    EXPECT_EQ(a.question, b.question);
    EXPECT_EQ(a.expected, b.expected);
    EXPECT_NE(a.messages, b.messages);
}

TEST(NiahCases, too_few_tokens_are_refused_with_the_number_that_is_needed) {
    try {
        made(NiahTask::tool, 60, 0, 1);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find("the task tool needs a prompt of at least"), std::string::npos)
            << error.what();
    }
}

TEST(NiahCases, tool_results_come_in_the_middle_of_the_conversation) {
    const NiahCase c = made(NiahTask::tool, 2000, 0.5, 5);
    std::string roles;
    for (const json::value& message : c.messages) roles += message.at("role").as_string()[0];
    EXPECT_EQ(roles, "uatatatau");
    EXPECT_EQ(c.tools.size(), 1u);
    EXPECT_EQ(c.messages.back().at("content").as_string(), c.question);
}

bool right(Judge how, std::vector<std::string> expected, std::string_view answer) {
    return judge(how, expected, answer);
}

TEST(NiahJudge, contains_wants_whole_words) {
    EXPECT_TRUE(right(Judge::contains, {"4821"}, "The code is 4821."));
    EXPECT_TRUE(right(Judge::contains, {"4821"}, "4821"));
    EXPECT_FALSE(right(Judge::contains, {"4821"}, "The code is 48213."));
    EXPECT_FALSE(right(Judge::contains, {"4821"}, "14821 or 4821_x"));
    EXPECT_TRUE(right(Judge::contains, {"4821"}, "14821 or 4821"));
    EXPECT_TRUE(right(Judge::contains, {"value * 37 + 11"}, "    result = value * 37 + 11\n"));
    EXPECT_FALSE(right(Judge::contains, {"value * 37 + 11"}, "result = value * 37 + 118"));
    EXPECT_FALSE(right(Judge::contains, {"4821"}, ""));
}

TEST(NiahJudge, all_of_wants_each) {
    EXPECT_TRUE(right(Judge::all_of, {"11", "22", "33"}, "33, 11 and 22"));
    EXPECT_FALSE(right(Judge::all_of, {"11", "22", "33"}, "33 and 11"));
}

TEST(NiahJudge, exact_forgives_space_and_a_full_stop) {
    EXPECT_TRUE(right(Judge::exact, {"blue"}, " blue.\n"));
    EXPECT_FALSE(right(Judge::exact, {"blue"}, "light blue"));
}

TEST(NiahJudge, number_wants_one_number_only) {
    EXPECT_TRUE(right(Judge::number, {"3"}, "3"));
    EXPECT_TRUE(right(Judge::number, {"3"}, "There are 3 lines, so 3."));
    EXPECT_FALSE(right(Judge::number, {"3"}, "1, 2, 3"));
    EXPECT_FALSE(right(Judge::number, {"3"}, "13"));
    EXPECT_FALSE(right(Judge::number, {"3"}, "three"));
}

struct Reported {
    NiahOptions options;
    std::vector<NiahAnswer> answers;
};

Reported reported() {
    Reported r;
    r.options.tasks = {NiahTask::single, NiahTask::counting};
    r.options.lengths = {1024, 1500};
    r.options.depths = {0, 100};
    r.options.keeps = {1, 0.25};
    for (const NiahTask task : r.options.tasks)
        for (const int64_t length : r.options.lengths)
            for (const int depth : r.options.depths)
                for (const double keep : r.options.keeps)
                    r.answers.push_back({.task = task,
                                         .length = length,
                                         .depth = depth,
                                         .keep = keep,
                                         .tokens = 1000,
                                         .kept = keep == 1 ? 1000 : 250,
                                         .right = task == NiahTask::single || (keep == 1 && depth == 0),
                                         .expected = "<7>",
                                         .answer = "a \"b\" & <c>\n",
                                         .ttft = 0.5,
                                         .seconds = 1,
                                         .scoring = keep == 1 ? 0 : 0.25});
    return r;
}

TEST(NiahReport, the_table_counts_right_answers) {
    const Reported r = reported();
    EXPECT_EQ(niah_table(r.answers, r.options),
              "right, whole prompts\n"
              "                     1K     1500\n"
              "single            100 %    100 %\n"
              "counting           50 %     50 %\n"
              "all                75 %     75 %\n"
              "read              100 %    100 %\n"
              "first token     0.500 s  0.500 s\n"
              "\nright, keep 0.25\n"
              "                     1K     1500\n"
              "single            100 %    100 %\n"
              "counting            0 %      0 %\n"
              "all                50 %     50 %\n"
              "read               25 %     25 %\n"
              "first token     0.500 s  0.500 s\n"
              "of it scoring   0.250 s  0.250 s\n");
}

TEST(NiahReport, json_comes_back_as_it_was_and_only_with_its_settings) {
    const Reported r = reported();
    const json::object settings = niah_settings({{"model", "m"}}, r.options);
    const json::value written = parse_json(json::serialize(niah_json(settings, r.answers, r.options)), "n.json");
    const std::vector<NiahAnswer> back = niah_answers(written, settings, "n.json");
    ASSERT_EQ(back.size(), r.answers.size());
    EXPECT_EQ(niah_table(back, r.options), niah_table(r.answers, r.options));
    for (size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i].answer, r.answers[i].answer);
    EXPECT_EQ(written.at("cells").as_array().size(), 16u);

    NiahOptions other = r.options;
    other.seed = 99;
    EXPECT_THROW(niah_answers(written, niah_settings({{"model", "m"}}, other), "n.json"), Error);
    EXPECT_THROW(niah_answers(json::array{}, settings, "n.json"), Error);
    EXPECT_THROW(niah_answers(json::object{{"settings", settings}}, settings, "n.json"), Error);
}

TEST(NiahReport, the_map_has_a_cell_for_each_place_also_without_answers) {
    const Reported r = reported();
    const std::string full = niah_svg(r.answers, r.options, "a <b> & \"c\""), empty = niah_svg({}, r.options, "none");
    EXPECT_EQ(count_of(full, "<rect"), 3 * 2 * 4);  // two tasks and all; two shares; two lengths, two depths
    EXPECT_EQ(count_of(empty, "<rect"), 3 * 2 * 4);
    EXPECT_EQ(count_of(empty, "#ddd"), 3 * 2 * 4);
    EXPECT_EQ(count_of(full, "a &lt;b&gt; &amp; &quot;c&quot;"), 2);  // shown, and the title
}

}  // namespace
}  // namespace riptide::apps
