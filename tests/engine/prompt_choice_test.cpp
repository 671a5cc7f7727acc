// Units of a prompt, anchors, the budget.
#include "engine/compression/prompt_choice.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "engine/prompt/loaded_text.h"
#include "tests/engine/engine_world.h"

namespace riptide::testing {
namespace {

const Tokenizer& tokenizer() {
    static const Tokenizer loaded = load_tokenizer(*open_checkpoint(demo_path()));
    return loaded;
}

struct Prose {
    std::vector<int32_t> tokens;
    PromptText text;
    explicit Prose(const std::string& written) : tokens(tokenizer().encode(written)), text(tokenizer(), tokens) {}
    TokenRun all() const { return {0, std::ssize(tokens)}; }
    TokenRun find(const std::string& part) const {
        const auto at = static_cast<int64_t>(text.text.find(part));
        return tokens_at(text.spans, {at, at + std::ssize(part)});
    }
};

TEST(PromptChoice, units_cover_a_run_and_end_at_paragraphs_lines_and_sentences) {
    std::string written;
    for (int i = 0; i < 6; ++i)
        written += fmt::format("Paragraph {} has a few words, and then some more of them.\n\n", i);
    for (int i = 0; i < 60; ++i) written += fmt::format("    value_{} = compute({});\n", i, i * 7);
    for (int i = 0; i < 40; ++i) written += fmt::format("Sentence {} of one very long line. ", i);
    written += "\n" + std::string(3000, 'q');
    const Prose prose(written);
    const auto units = split_units(prose.text, prose.all());
    int64_t at = 0, sentences = 0;
    for (const TokenRun& unit : units) {
        EXPECT_EQ(unit.begin, at);
        at = unit.end;
        EXPECT_TRUE(prose.text.cuts[unit.begin] && prose.text.cuts[unit.end]);
        if (unit.size() > kMostUnit) {
            EXPECT_TRUE(std::none_of(prose.text.cuts.begin() + unit.begin + 1, prose.text.cuts.begin() + unit.end,
                                     [](bool cut) { return cut; }));
        }
        const std::string_view bytes = prose.text.bytes(unit);
        if (bytes.find("value_") != bytes.npos && bytes.find("Sentence") == bytes.npos) {
            EXPECT_TRUE(bytes.ends_with(";\n")) << bytes;
        }
        if (bytes.starts_with("Paragraph")) {
            EXPECT_TRUE(bytes.ends_with("\n\n")) << bytes;
        }
        sentences += bytes.find("Sentence") != bytes.npos && bytes.ends_with(".");
    }
    EXPECT_EQ(at, prose.all().end);
    EXPECT_GT(sentences, 5);
    EXPECT_TRUE(split_units(prose.text, {5, 5}).empty());
}

TEST(PromptChoice, the_budget_is_never_exceeded_and_the_best_units_are_taken) {
    std::mt19937_64 rng(7);
    for (int round = 0; round < 2000; ++round) {
        std::vector<TokenRun> units;
        std::vector<double> scores;
        std::vector<size_t> anchored;
        int64_t at = 0;
        for (size_t u = 0; u < 1 + rng() % 40; ++u) {
            at += static_cast<int64_t>(rng() % 3);
            const auto size = static_cast<int64_t>(1 + rng() % 60);
            units.push_back({at, at + size});
            at += size;
            scores.push_back(static_cast<double>(rng() % 20));
            if (rng() % 10 == 0) anchored.push_back(u);
        }
        const auto budget = static_cast<int64_t>(rng() % 500);
        const auto taken = choose_units(units, scores, anchored, budget);
        int64_t used = 0;
        std::vector<bool> in(units.size());
        for (const size_t u : taken) {
            ASSERT_FALSE(in[u]);
            in[u] = true;
            used += units[u].size();
        }
        ASSERT_TRUE(std::is_sorted(taken.begin(), taken.end()));
        ASSERT_LE(used, budget);
        for (size_t u = 0; u < units.size(); ++u) {
            if (in[u]) continue;
            ASSERT_GT(units[u].size(), budget - used) << "there was room for it";
            // Whoever was taken without being anchored is at least as good as one of its size that was left.
            for (const size_t other : taken)
                if (scores[other] < scores[u] && units[other].size() >= units[u].size()) {
                    ASSERT_TRUE(std::find(anchored.begin(), anchored.end(), other) != anchored.end());
                }
        }
    }
}

TEST(PromptChoice, scores_are_means_with_a_quarter_from_each_neighbour) {
    const std::vector<TokenRun> units = {{0, 2}, {2, 4}, {4, 5}, {7, 9}};
    const std::vector<float> scores = {1, 3, 0, 8, 4, 100, 100, 6, 6};
    EXPECT_EQ(unit_scores(units, scores), (std::vector<double>{0.75 * 2 + 1, 0.5 + 2 + 1, 3 + 1, 6}));
}

TEST(PromptChoice, units_that_repeat_words_of_the_question_are_anchored_the_rarest_first) {
    std::string written;
    for (int i = 0; i < 30; ++i)
        written += fmt::format("Line {} of the log says that all is well with the pump.\n\n", i);
    written += "The password of gate nineteen is walnut.\n\n";
    for (int i = 0; i < 30; ++i)
        written += fmt::format("Line {} of the log says that all is well with the valve.\n\n", i);
    const std::string question = "What is the password of gate nineteen in the log?";
    const Prose prose(written + question);
    const TokenRun asked = prose.find(question), needle = prose.find("The password of gate nineteen is walnut.");
    const auto units = split_units(prose.text, {0, asked.begin});
    const auto anchored = anchored_units(prose.text, prose.tokens, asked, units);
    ASSERT_FALSE(anchored.empty());
    EXPECT_LE(units[anchored[0]].begin, needle.begin);
    EXPECT_GE(units[anchored[0]].end, needle.begin + 4);
    EXPECT_TRUE(anchored_units(prose.text, prose.tokens, {asked.begin, asked.begin + kAnchor - 1}, units).empty());
}

TEST(PromptChoice, a_rare_word_of_the_question_anchors_in_any_case_and_company) {
    std::string written;
    for (int i = 0; i < 30; ++i) written += fmt::format("NOTE the pump of hall {} is as it was before.\n\n", i);
    written += "<SHEGOKON>: 553425, since May.\n\nshegokonia is a plant.\n\n";
    const std::string question = "what is the number of Shegokon?";
    const Prose prose(written + question);
    const TokenRun asked = prose.find(question), needle = prose.find("SHEGOKON");
    std::vector<TokenRun> units;
    for (size_t at = 0; at < written.size(); at = written.find("\n\n", at) + 2)
        units.push_back(prose.find(written.substr(at, written.find("\n\n", at) + 2 - at)));
    const auto anchored = anchored_units(prose.text, prose.tokens, asked, units);
    ASSERT_FALSE(anchored.empty());
    EXPECT_LE(units[anchored[0]].begin, needle.begin);
    EXPECT_GE(units[anchored[0]].end, needle.end) << "a longer word that begins alike is another word";
}

TEST(PromptChoice, json_in_one_line_is_cut_between_its_objects) {
    std::string written = "[";
    for (int i = 0; i < 60; ++i)
        written += fmt::format("{{\"id\": {}, \"name\": \"walnut {}\", \"price\": {}}}, ", i, i * 7, i * 3);
    const Prose prose(written + "{}]");
    const auto units = split_units(prose.text, prose.all());
    int64_t whole = 0;
    for (const TokenRun& unit : units) {
        std::string_view bytes = prose.text.bytes(unit);
        while (bytes.ends_with(' ')) bytes.remove_suffix(1);
        whole += bytes.ends_with("},");
    }
    EXPECT_GE(whole, std::ssize(units) - 1) << units.size();
    EXPECT_GT(whole, 10);
}

}  // namespace
}  // namespace riptide::testing
