// DFlash models as drafters of a session.
#include "engine/speculation/dflash_drafter.h"

#include <gtest/gtest.h>

#include "engine/session/session.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

class DflashDrafterTest : public ::testing::TestWithParam<std::string> {
  protected:
    Fixture fixture{target_of(GetParam())};
    const std::vector<int32_t>& prompt = fixture.prompts.back().tokens;
    std::unique_ptr<Session> session = fixture.session(32);

    std::shared_ptr<DflashDrafter> drafter(Session& s) const {
        return std::make_shared<DflashDrafter>(open_checkpoint(fixture_path(GetParam()) + "/model.safetensors"),
                                               s.draft_target());
    }
    static SpeculationOptions options(int32_t width, int32_t tree) {
        SpeculationOptions o;
        o.width = width, o.tree = tree, o.adaptive = false;
        return o;
    }
    GenerateRequest request(std::span<const int32_t> tokens, int64_t count) const {
        GenerateRequest r;
        r.prompt = tokens;
        r.sampling.temperature = 0;
        r.sampling.max_tokens = count;
        return r;
    }
    static Draft draft(Drafter& d, int32_t slots) {
        const DraftRequest wanted{0, slots, 4};
        Draft out;
        d.propose(std::span(&wanted, 1), std::span(&out, 1));
        return out;
    }
};
INSTANTIATE_TEST_SUITE_P(All, DflashDrafterTest,
                         ::testing::Values("dflash_zlab", "dflash_speculators", "dflash_laguna", "dflash_hybrid"),
                         fixture_name);

TEST_P(DflashDrafterTest, drafts_change_no_answer) {
    GenerateRequest r = request(prompt, 90);
    for (const double temperature : {0.0, 1.0}) {
        r.sampling.temperature = temperature;
        session->speculate(nullptr, {});
        session->clear();
        const GenerationResult truth = session->generate(r);
        for (const auto& [width, tree] : {std::pair(1, 0), std::pair(3, 0), std::pair(15, 0), std::pair(7, 20)}) {
            session->speculate(drafter(*session), options(width, tree));
            session->clear();
            const GenerationResult result = session->generate(r);
            EXPECT_EQ(result.tokens, truth.tokens);
            EXPECT_EQ(result.logits_hash, truth.logits_hash);
            EXPECT_GT(result.speculation.drafted, result.speculation.steps / 2);
        }
    }
}

TEST_P(DflashDrafterTest, a_draft_is_a_function_of_the_text_however_it_was_read) {
    RT_CPU_ONLY("prompts and answers take different kernels there");
    for (const int32_t tree : {0, 20}) {
        const auto told = drafter(*session);
        session->speculate(told, options(7, tree));
        session->clear();
        std::vector<int32_t> text = prompt;
        for (int turn = 0; turn < 3; ++turn) {
            const GenerationResult result = session->generate(request(text, 30));
            text.insert(text.end(), result.tokens.begin(), result.tokens.end());
            EXPECT_EQ(told->fed(0), std::ssize(session->tokens()));
            EXPECT_EQ(result.reused_tokens > 0, turn > 0);
            const auto again = fixture.session(7);
            const auto read = drafter(*again);
            again->speculate(read, options(7, 0));
            again->generate(request(std::span(text).first(text.size() - 1), 1));
            read->begin(0, text);
            const Draft a = draft(*told, 7), b = draft(*read, 7);
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
    DraftTarget target = session->draft_target();
    target.sequences = 3, target.kept = 1;
    const auto told =
        std::make_shared<DflashDrafter>(open_checkpoint(fixture_path(GetParam()) + "/model.safetensors"), target);
    session->speculate(told, options(7, 0));
    const GenerationResult result = session->generate(request(prompt, 20));
    std::vector<int32_t> text = prompt;
    text.insert(text.end(), result.tokens.begin(), result.tokens.end());
    const Draft truth = draft(*told, 7);  // behind all of the text
    const int64_t fed = told->fed(0);
    ASSERT_EQ(fed + 1, std::ssize(text));
    const auto draft_of = [&](uint64_t sequence) {
        const DraftRequest wanted{sequence, 7, 4};
        Draft out;
        told->propose(std::span(&wanted, 1), std::span(&out, 1));
        return out;
    };
    const auto expect_truth = [&](const Draft& d) {
        ASSERT_EQ(d.slots.size(), truth.slots.size());
        for (size_t s = 0; s < d.slots.size(); ++s)
            for (size_t c = 0; c < d.slots[s].size(); ++c) EXPECT_EQ(d.slots[s][c].token, truth.slots[s][c].token);
    };
    told->begin(1, text);  // while the other runs
    EXPECT_EQ(told->fed(1), fed);
    expect_truth(draft_of(1));
    std::vector<int32_t> other = text;
    other[static_cast<size_t>(fed) - 3] += 1;
    told->begin(2, other);
    EXPECT_EQ(told->fed(2), fed - 3);
    EXPECT_TRUE(draft_of(2).slots.empty()) << "not all of it is known";
    for (const uint64_t sequence : {0u, 2u, 1u}) told->end(sequence);
    told->begin(3, text);  // after all have ended
    EXPECT_EQ(told->fed(3), fed);
    expect_truth(draft_of(3));
    told->begin(4, std::vector<int32_t>{prompt[0] + 1, prompt[0]});
    EXPECT_EQ(told->fed(4), 0);
}

TEST_P(DflashDrafterTest, what_was_not_fed_is_read_again_and_not_drafted_from) {
    const auto d = drafter(*session);
    session->speculate(d, options(5, 0));
    const GenerationResult truth = session->generate(request(prompt, 20));
    session->clear();
    session->prefill(prompt);
    session->decode(truth.tokens[0]);  // captured, but not told
    session->decode(truth.tokens[1]);
    d->begin(0, session->tokens());
    EXPECT_TRUE(draft(*d, 5).slots.empty());
    std::vector<int32_t> longer = prompt;
    longer.insert(longer.end(), truth.tokens.begin(), truth.tokens.begin() + 3);
    const GenerationResult result = session->generate(request(longer, 10));
    if (session->cache().delta().any()) {  // goes back to the state that is kept shortly before a prompt's end
        EXPECT_GT(result.reused_tokens, std::ssize(prompt) - 32);
        EXPECT_LE(result.reused_tokens, std::ssize(prompt));
    } else EXPECT_EQ(result.reused_tokens, std::ssize(prompt));
    EXPECT_GT(result.speculation.drafted, 0);
}

}  // namespace
}  // namespace riptide::testing
