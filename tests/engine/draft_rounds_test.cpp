// Rounds that the device runs by itself say what plain decoding says, and what the host's rounds say.
#include "engine/speculation/device_rounds.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/engine/solo.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

using Rounds = SpeculationOptions::Rounds;

/// Named after a drafter, or after a hybrid, for which a drafter reads other layers than it was made
/// for: its drafts are bad, but drafts.
class DraftRoundsTest : public ::testing::TestWithParam<std::string> {
  protected:
    bool hybrid() const { return GetParam().starts_with("qwen35"); }
    Fixture fixture{hybrid() ? GetParam() : target_of(GetParam())};
    const std::vector<int32_t>& prompt = fixture.prompts.back().tokens;
    std::unique_ptr<Solo> engine = open(fixture.options(32));
    std::shared_ptr<DflashDrafter> drafter = make_drafter();

    std::shared_ptr<DflashDrafter> make_drafter() {
        std::string folder = fixture_path(hybrid() ? "dflash_zlab" : GetParam());
        const std::filesystem::path other = ::testing::TempDir() + "dflash_of_" + GetParam();
        if (hybrid()) {
            std::string config = read_file(folder + "/config.json", 1 << 20);
            json::value parsed = parse_json(config, "config.json");
            parsed.as_object()["num_target_layers"] = engine->info().num_hidden_layers;
            parsed.at("dflash_config").as_object()["target_layer_ids"] = {0, 2, 3};
            std::filesystem::create_directories(other);
            std::filesystem::copy_file(folder + "/model.safetensors", other / "model.safetensors",
                                       std::filesystem::copy_options::overwrite_existing);
            std::ofstream(other / "config.json") << json::serialize(parsed);
            folder = other.string();
        }
        return std::make_shared<DflashDrafter>(open_checkpoint(folder + "/model.safetensors"), engine->machine().draft_target());
    }
    ~DraftRoundsTest() override {
        drafter.reset();
        std::filesystem::remove_all(::testing::TempDir() + "dflash_of_" + GetParam());
    }

    std::unique_ptr<Solo> open(const SessionOptions& options) const {
        return std::make_unique<Solo>(open_checkpoint(fixture.model_path()), options);
    }
    static SpeculationOptions fixed(int32_t width, int32_t tree, Rounds rounds = Rounds::device) {
        SpeculationOptions o;
        o.width = width, o.tree = tree, o.adaptive = false, o.rounds = rounds;
        return o;
    }
    Question request(int64_t count, double temperature = 0) const {
        Question r;
        r.prompt = prompt;
        r.sampling.temperature = temperature;
        r.sampling.max_tokens = count;
        return r;
    }
    Answered run(const Question& r) {
        engine->forget();
        last = engine->answer(r);
        return last;
    }
    Answered plain(const Question& r) {
        engine->speculate(nullptr, {});
        return run(r);
    }
    Answered drafted(const Question& r, const SpeculationOptions& o) {
        engine->speculate(drafter, o);
        const int64_t before = rounds();
        const Answered answer = run(r);
        last_rounds = rounds() - before;
        return answer;
    }
    int64_t rounds() const {
        EngineStats stats;
        engine->loop().report(stats);
        return stats.rounds;
    }
    int64_t last_rounds = 0;
    /// What is kept of the last run: K/V and recurrent state.
    Solo::Kept after() { return engine->kept(prompt, last); }
    /// The drafter was told all that was fed.
    void expect_told() {
        std::vector<int32_t> whole = prompt;
        whole.insert(whole.end(), last.tokens.begin(), last.tokens.end());
        constexpr uint64_t kOther = 1'000'000;
        drafter->begin(kOther, whole);
        EXPECT_EQ(drafter->fed(kOther), std::ssize(whole) - 1);
        drafter->end(kOther);
    }
    Answered last;
    static void expect_same(const Answered& a, const Answered& b, const std::string& what) {
        EXPECT_EQ(a.tokens, b.tokens) << what;
        EXPECT_EQ(a.reason, b.reason) << what;
        EXPECT_EQ(a.stop_token, b.stop_token) << what;
        EXPECT_EQ(a.decoded_tokens, b.decoded_tokens) << what;
    }
};
INSTANTIATE_TEST_SUITE_P(All, DraftRoundsTest,
                         ::testing::Values("dflash_zlab", "dflash_speculators", "dflash_laguna", "dflash_hybrid",
                                           "qwen35_tied", "qwen35_moe"),
                         fixture_name);

TEST_P(DraftRoundsTest, chains_and_trees_of_any_size_change_nothing) {
    for (const double temperature : {0.0, 0.8}) {
        Question r = request(90, temperature);
        r.sampling.seed = 3, r.sampling.top_k = 20;
        const Answered truth = plain(r);
        const Solo::Kept state = after();
        for (const auto& [width, tree] : {std::pair(1, 0), std::pair(3, 0), std::pair(15, 0), std::pair(7, 1),
                                          std::pair(7, 6), std::pair(7, 20), std::pair(15, 31), std::pair(15, 63)}) {
            const auto what = fmt::format("temperature {}, width {}, tree {}", temperature, width, tree);
            const Answered result = drafted(r, fixed(width, tree));
            expect_same(truth, result, what);
            EXPECT_EQ(result.speculation.steps, result.decode_steps) << what;
            EXPECT_EQ(last_rounds, result.decode_steps) << what << ": all of them the device's";
            EXPECT_GT(result.speculation.drafted, result.speculation.steps / 2) << what;
            expect_told();
            EXPECT_EQ(after(), state) << what;
        }
    }
}

TEST_P(DraftRoundsTest, the_device_accepts_what_the_host_accepts) {
    RT_CPU_ONLY("the host's rounds feed the drafter with other kernels there");
    for (const auto& shape : {std::pair(2, 0), std::pair(7, 0), std::pair(7, 12), std::pair(15, 40)}) {
        const int32_t width = shape.first, tree = shape.second;
        // Cancelled, since the host makes trees smaller towards an end that it foresees.
        std::atomic<bool> cancel = false;
        Question r = request(200);
        r.cancel = &cancel;
        const auto answer = [&](Rounds rounds) {
            cancel = false;
            r.on_token = [&, seen = 0](const Sampled&) mutable { cancel = ++seen == 120; };
            return drafted(r, fixed(width, tree, rounds));
        };
        const Answered host = answer(Rounds::host);
        EXPECT_EQ(last_rounds, 0);
        const Answered device = answer(Rounds::device);
        EXPECT_GT(last_rounds, 0);
        EXPECT_EQ(std::ssize(host.tokens), 120);
        const auto what = fmt::format("width {}, tree {}", width, tree);
        expect_same(host, device, what);
        EXPECT_EQ(host.speculation.steps, device.speculation.steps) << what;
        EXPECT_EQ(host.speculation.accepted, device.speculation.accepted) << what;
        for (size_t s = 0; s < host.speculation.slots.size(); ++s)
            EXPECT_EQ(host.speculation.slots[s].accepted, device.speculation.slots[s].accepted) << what;
    }
}

TEST_P(DraftRoundsTest, plain_rounds_and_others_take_turns) {
    const Question r = request(300);
    const Answered truth = plain(r);
    for (const int32_t tree : {0, 12}) {
        SpeculationOptions o = fixed(5, tree);
        o.adaptive = true;
        const Answered result = drafted(r, o);
        expect_same(truth, result, "adaptive");
        EXPECT_GT(result.speculation.drafted, 0);
        EXPECT_GT(result.speculation.steps * (tree > 0 ? tree : 5), result.speculation.drafted) << "some were plain";
        expect_told();  // what was kept of plain rounds, too
    }
}

TEST_P(DraftRoundsTest, an_answer_ends_where_it_would_end) {
    const Answered truth = plain(request(64));
    for (const int64_t tokens : {1, 2, 3, 7, 8, 9, 33}) {
        const Answered expected = plain(request(tokens));
        const Solo::Kept state = after();
        for (const int32_t tree : {0, 14}) {
            expect_same(expected, drafted(request(tokens), fixed(7, tree)), fmt::format("max_tokens {}", tokens));
            EXPECT_EQ(after(), state);
        }
    }
    for (const size_t at : {3u, 20u, 40u}) {
        Question r = request(64);
        r.sampling.stop_ids = {truth.tokens[at]};
        const Answered expected = plain(r);
        EXPECT_EQ(expected.reason, FinishReason::stop_id);
        const Solo::Kept state = after();
        expect_same(expected, drafted(r, fixed(7, 0)), "stop id");
        EXPECT_EQ(after(), state);
        r.sampling.min_tokens = static_cast<int64_t>(at) + 2;  // the host's, then the device's
        expect_same(plain(r), drafted(r, fixed(7, 16)), "stop id and min_tokens");
    }
}

TEST_P(DraftRoundsTest, rounds_do_not_reach_beyond_the_context) {
    for (int64_t room = 1; room < 12; ++room) {
        SessionOptions o = fixture.options(32);
        o.context = std::ssize(prompt) + room;
        engine->speculate(nullptr, {});
        drafter.reset();  // before the engine, whose GPU it uses
        engine = open(o);
        drafter = make_drafter();
        const Answered truth = plain(request(-1));
        EXPECT_EQ(truth.reason, FinishReason::context);
        expect_same(truth, drafted(request(-1), fixed(15, 0)), "chain");
        expect_same(truth, drafted(request(-1), fixed(15, 60)), "tree");
    }
}

TEST_P(DraftRoundsTest, what_needs_the_host_goes_to_the_host) {
    Question r = request(48, 0.7);
    for (int kind = 0; kind < 3; ++kind) {
        if (kind == 0) r.sampling.repetition_penalty = 1.2;
        if (kind == 1) r.sampling.repetition_penalty = 1, r.sampling.logprobs = 2;
        if (kind == 2) r.sampling.logprobs = -1, r.sampling.logit_bias = {{5, 1.5}};
        const Answered truth = plain(r);
        const Answered result = drafted(r, fixed(6, 0));
        expect_same(truth, result, fmt::format("kind {}", kind));
        EXPECT_EQ(last_rounds > 0, kind == 2) << "a GPU and a sampler know biases";
        ASSERT_EQ(result.logprobs.size(), truth.logprobs.size());
        for (size_t i = 0; i < truth.logprobs.size(); ++i)
            EXPECT_EQ(result.logprobs[i].logprob, truth.logprobs[i].logprob);
    }
}

TEST_P(DraftRoundsTest, a_conversation_goes_on_from_what_was_accepted) {
    const auto talk = [&] {
        engine->forget();
        const Answered first = engine->answer(request(40));
        std::vector<int32_t> next = prompt;
        next.insert(next.end(), first.tokens.begin(), first.tokens.end());
        next.push_back(3);
        Question r = request(40);
        r.prompt = next;
        return engine->answer(r);
    };
    engine->speculate(nullptr, {});
    const Answered expected = talk();
    for (const int32_t tree : {0, 12}) {
        engine->speculate(drafter, fixed(7, tree));
        const Answered again = talk();
        expect_same(expected, again, "second turn");
        EXPECT_GT(again.reused_tokens, 0);
    }
}

TEST_P(DraftRoundsTest, who_throws_leaves_an_engine_that_works) {
    const Question r = request(60);
    const Answered truth = plain(r);
    for (const bool adaptive : {false, true}) {
        SpeculationOptions o = fixed(7, 0);
        o.adaptive = adaptive;
        engine->speculate(drafter, o);
        Question failing = r;
        failing.on_token = [seen = 0](const Sampled&) mutable {
            if (++seen == 20) throw std::runtime_error("enough");
        };
        EXPECT_THROW(run(failing), std::runtime_error);
        expect_same(truth, run(r), "after an exception");
        std::atomic<bool> cancel = false;
        Question cut = r;
        cut.cancel = &cancel;
        cut.on_token = [&, seen = 0](const Sampled&) mutable { cancel = ++seen == 20; };
        const Answered part = run(cut);
        EXPECT_EQ(part.reason, FinishReason::cancelled);
        EXPECT_EQ(part.tokens, std::vector<int32_t>(truth.tokens.begin(), truth.tokens.begin() + 20));
    }
}

TEST_P(DraftRoundsTest, recorded_rounds_say_what_their_kernels_say) {
    RT_GPU_ONLY();
    const Question r = request(60);
    const Answered truth = plain(r);
    for (const int32_t tree : {0, 12}) {
        expect_same(truth, drafted(r, fixed(6, tree)), "graphs");
        int64_t seen = 0;
        engine->machine().runner().context().tap = [&](std::string_view, int, const Tensor&) { ++seen; };  // no graphs
        expect_same(truth, drafted(r, fixed(6, tree)), "kernel by kernel");
        engine->machine().runner().context().tap = nullptr;
        EXPECT_GT(seen, 0);
        expect_same(truth, drafted(r, fixed(6, tree)), "graphs again");
    }
}

}  // namespace
}  // namespace riptide::testing
