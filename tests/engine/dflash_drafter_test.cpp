// DFlash models as drafters of an engine.
#include "engine/speculation/dflash_drafter.h"

#include <gtest/gtest.h>

#include "tests/engine/solo.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

class DflashDrafterTest : public ::testing::TestWithParam<std::string> {
  protected:
    Fixture fixture{target_of(GetParam())};
    const std::vector<int32_t>& prompt = fixture.prompts.back().tokens;
    std::unique_ptr<Solo> engine = open(32);

    std::unique_ptr<Solo> open(int32_t chunk) const {
        return std::make_unique<Solo>(open_checkpoint(fixture.model_path()), fixture.options(chunk));
    }
    std::shared_ptr<DflashDrafter> drafter(const DraftTarget& target) const {
        return std::make_shared<DflashDrafter>(open_checkpoint(fixture_path(GetParam()) + "/model.safetensors"), target);
    }
    std::shared_ptr<DflashDrafter> drafter(Solo& s) const { return drafter(s.machine().draft_target()); }
    static SpeculationOptions options(int32_t width, int32_t tree) {
        SpeculationOptions o;
        o.width = width, o.tree = tree, o.adaptive = false;
        return o;
    }
    static Draft draft(Drafter& d, uint64_t sequence, int32_t slots) {
        const DraftRequest wanted{sequence, slots, 4};
        Draft out;
        d.propose(std::span(&wanted, 1), std::span(&out, 1));
        return out;
    }
    /// Numbers that no engine gives.
    static constexpr uint64_t kOther = 1'000'000;
};
INSTANTIATE_TEST_SUITE_P(All, DflashDrafterTest,
                         ::testing::Values("dflash_zlab", "dflash_speculators", "dflash_laguna", "dflash_hybrid"),
                         fixture_name);

TEST_P(DflashDrafterTest, drafts_change_no_answer) {
    Question r = greedily(prompt, 90);
    for (const double temperature : {0.0, 1.0}) {
        r.sampling.temperature = temperature;
        engine->speculate(nullptr, {});
        engine->forget();
        const Answered truth = engine->answer(r);
        for (const auto& [width, tree] : {std::pair(1, 0), std::pair(3, 0), std::pair(15, 0), std::pair(7, 20)}) {
            engine->speculate(drafter(*engine), options(width, tree));
            engine->forget();
            const Answered result = engine->answer(r);
            EXPECT_EQ(result.tokens, truth.tokens);
            EXPECT_EQ(result.logits_hash, truth.logits_hash);
            EXPECT_GT(result.speculation.drafted, result.speculation.steps / 2);
        }
    }
}

TEST_P(DflashDrafterTest, a_draft_is_a_function_of_the_text_however_it_was_read) {
    RT_CPU_ONLY("prompts and answers take different kernels there");
    for (const int32_t tree : {0, 20}) {
        const auto told = drafter(*engine);
        engine->speculate(told, options(7, tree));
        engine->forget();
        std::vector<int32_t> text = prompt;
        for (int turn = 0; turn < 3; ++turn) {
            const Answered result = engine->answer(text, 30);
            text.insert(text.end(), result.tokens.begin(), result.tokens.end());
            EXPECT_EQ(result.reused_tokens > 0, turn > 0);
            told->begin(kOther, text);  // takes over what it knows of the answer
            EXPECT_EQ(told->fed(kOther), std::ssize(text) - 1);
            const auto again = open(7);
            const auto read = drafter(*again);
            again->speculate(read, options(7, 0));
            again->answer({text.begin(), text.end() - 1}, 1);
            read->begin(kOther, text);
            const Draft a = draft(*told, kOther, 7), b = draft(*read, kOther, 7);
            told->end(kOther);
            ASSERT_EQ(a.slots.size(), b.slots.size());
            EXPECT_EQ(a.slots.size(), static_cast<size_t>(std::min(7, told->slots())));
            for (size_t s = 0; s < a.slots.size(); ++s)
                for (size_t c = 0; c < a.slots[s].size(); ++c) {
                    EXPECT_EQ(a.slots[s][c].token, b.slots[s][c].token);
                    EXPECT_EQ(a.slots[s][c].logprob, b.slots[s][c].logprob);
                }
            text.push_back(static_cast<int32_t>(5 + turn));
        }
    }
}

TEST_P(DflashDrafterTest, a_sequence_that_begins_as_another_has_its_beginning) {
    DraftTarget target = engine->machine().draft_target();
    target.sequences = 3, target.kept = 1;
    const auto told = drafter(target);
    engine->speculate(told, options(7, 0));
    const Answered result = engine->answer(prompt, 20);
    std::vector<int32_t> text = prompt;
    text.insert(text.end(), result.tokens.begin(), result.tokens.end());
    told->begin(kOther, text);  // as the answer that has ended
    const Draft truth = draft(*told, kOther, 7);  // behind all of the text
    const int64_t fed = told->fed(kOther);
    ASSERT_EQ(fed + 1, std::ssize(text));
    const auto expect_truth = [&](const Draft& d) {
        ASSERT_EQ(d.slots.size(), truth.slots.size());
        for (size_t s = 0; s < d.slots.size(); ++s)
            for (size_t c = 0; c < d.slots[s].size(); ++c) EXPECT_EQ(d.slots[s][c].token, truth.slots[s][c].token);
    };
    told->begin(kOther + 1, text);  // while the other runs
    EXPECT_EQ(told->fed(kOther + 1), fed);
    expect_truth(draft(*told, kOther + 1, 7));
    std::vector<int32_t> other = text;
    other[static_cast<size_t>(fed) - 3] += 1;
    told->begin(kOther + 2, other);
    EXPECT_EQ(told->fed(kOther + 2), fed - 3);
    EXPECT_TRUE(draft(*told, kOther + 2, 7).slots.empty()) << "not all of it is known";
    for (const uint64_t sequence : {kOther, kOther + 2, kOther + 1}) told->end(sequence);
    told->begin(kOther + 3, text);  // after all have ended
    EXPECT_EQ(told->fed(kOther + 3), fed);
    expect_truth(draft(*told, kOther + 3, 7));
    told->begin(kOther + 4, std::vector<int32_t>{prompt[0] + 1, prompt[0]});
    EXPECT_EQ(told->fed(kOther + 4), 0);
}

}  // namespace
}  // namespace riptide::testing
