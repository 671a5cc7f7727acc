// Models with recurrent state: it is exact at one length only, and company, drafts, preemption, cancellation and the
// prefix cache still change nothing.
#include <random>

#include "tests/engine/engine_world.h"
#include "tests/engine/test_drafters.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

std::string hybrid_path() { return fixture_path("qwen35_moe") + "/model.safetensors"; }

EngineOptions hybrid_options() {
    EngineOptions o = demo_options();
    o.choose_kv = false;
    o.k_dtype = o.v_dtype = DType::f32;
    return o;
}

std::vector<int32_t> invent(std::mt19937& random, size_t n) {
    std::vector<int32_t> tokens(n);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 128);
    return tokens;
}

/// Requests that share beginnings, some drawn at random.
std::vector<Request> overlapping_requests(size_t count) {
    std::mt19937 random(3);
    const Prompt text = Fixture("qwen35_moe").prompts.back();
    std::vector<int32_t> shared = text.tokens;  // twice, so that drafts are right at times
    shared.insert(shared.end(), text.greedy.begin(), text.greedy.end());
    shared.insert(shared.end(), text.tokens.begin(), text.tokens.end());
    std::vector<Request> all;
    for (size_t i = 0; i < count; ++i) {
        std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(random() % shared.size()));
        const std::vector<int32_t> own = invent(random, 1 + random() % 30);
        prompt.insert(prompt.end(), own.begin(), own.end());
        Request r = continuation(prompt, static_cast<int64_t>(1 + random() % 90));
        r.sampling.seed = i;
        r.sampling.temperature = i % 2 == 0 ? 0 : 1;
        r.priority = static_cast<int32_t>(random() % 3);
        r.deterministic = test_gpu() != nullptr;  // prefill rounds otherwise there
        all.push_back(std::move(r));
    }
    return all;
}

std::vector<std::vector<int32_t>> alone(const std::vector<Request>& all, const std::string& path = hybrid_path()) {
    EngineOptions o = hybrid_options();
    o.prefix_cache = false;
    o.max_running = 1;
    const auto engine = Engine::open(path, o);
    std::vector<std::vector<int32_t>> tokens;
    for (const Request& request : all) tokens.push_back(ask(*engine, request).tokens);
    return tokens;
}

EngineStats expect_lone_answers(const EngineOptions& o, int cancel_every) {
    const std::vector<Request> all = overlapping_requests(40);
    const std::vector<std::vector<int32_t>> expected = alone(all);
    const auto engine = Engine::open(hybrid_path(), o);
    Listener listener;
    std::vector<RequestId> ids;
    engine->pause();
    for (size_t i = 0; i < all.size(); ++i) {
        ids.push_back(engine->submit(all[i], listener.sink(static_cast<int>(i))));
        if (i == all.size() / 2) engine->resume();
    }
    for (size_t i = 5; cancel_every > 0 && i < ids.size(); i += static_cast<size_t>(cancel_every))
        engine->cancel(ids[i]);
    for (size_t i = 0; i < all.size(); ++i) {
        const Heard heard = listener.answer(static_cast<int>(i));
        EXPECT_TRUE(heard.done) << (heard.failed ? heard.failed->message : "");
        if (!heard.done || heard.done->reason == FinishReason::cancelled) continue;
        EXPECT_EQ(heard.tokens, expected[i]) << "request " << i;
    }
    return engine->stats();
}

TEST(EngineHybrid, in_a_crowd_with_preemption_and_cancellations_each_gets_the_tokens_of_a_lone_run) {
    EngineOptions o = hybrid_options();
    o.context = 512;
    o.kv_tokens = 512;  // little: requests drive each other out
    o.max_running = 6;
    o.checkpoint_every = 64;
    EXPECT_GT(expect_lone_answers(o, 7).preempted, 0);
}

TEST(EngineHybrid, drafts_change_nothing) {
    EngineOptions o = hybrid_options();
    o.context = 512;
    o.kv_tokens = 8 * o.context;
    o.speculation.drafter = "ngram";
    o.speculation.adaptive = false;
    o.speculation.width = 5;
    const EngineStats stats = expect_lone_answers(o, 0);
    EXPECT_GT(stats.accepted_rows, 0);
    EXPECT_GT(stats.drafted_rows, stats.accepted_rows);
}

TEST(EngineHybrid, a_hit_goes_on_from_the_newest_checkpoint_and_has_the_bits_of_a_cold_start) {
    std::mt19937 random(11);
    const std::vector<int32_t> base = invent(random, 300);
    EngineOptions o = hybrid_options();
    o.checkpoint_every = 64;
    const auto engine = Engine::open(hybrid_path(), o);
    EXPECT_EQ(ask(*engine, continuation(base, 8)).done->usage.cached, 0);
    for (const size_t same : {299, 256, 200, 70, 63}) {
        std::vector<int32_t> prompt(base.begin(), base.begin() + static_cast<ptrdiff_t>(same));
        const std::vector<int32_t> own = invent(random, 20);
        prompt.insert(prompt.end(), own.begin(), own.end());
        prompt[same] = (base[same] + 1) % 128;
        Request request = continuation(prompt, 24);
        request.deterministic = test_gpu() != nullptr;
        const Heard warm = ask(*engine, request);
        ASSERT_TRUE(warm.done);
        if (test_gpu() == nullptr) {
            EXPECT_EQ(warm.done->usage.cached, same == 299 ? 299 : static_cast<int64_t>(same) / 64 * 64) << same;
        }
        EXPECT_EQ(warm.tokens, alone({request})[0]) << same;
    }
}

/// Blocks of 16, causal window layers and one that sees the whole block, embedding and head of the target.
TEST(EngineHybrid, a_drafter_in_the_dialect_of_the_27B_changes_no_answer) {
    const std::string path = fixture_path("qwen35_tied") + "/model.safetensors";
    const std::vector<Request> all = overlapping_requests(12);
    const std::vector<std::vector<int32_t>> expected = alone(all, path);
    for (const auto& [width, tree, adaptive] :
         {std::tuple(15, 0, false), std::tuple(4, 24, false), std::tuple(15, 0, true)}) {
        EngineOptions o = hybrid_options();
        o.speculation.drafter = fixture_path("dflash_hybrid") + "/model.safetensors";
        o.speculation.width = width, o.speculation.tree = tree, o.speculation.adaptive = adaptive;
        const auto engine = Engine::open(path, o);
        Listener listener;
        for (size_t i = 0; i < all.size(); ++i) engine->submit(all[i], listener.sink(static_cast<int>(i)));
        for (size_t i = 0; i < all.size(); ++i) {
            const Heard heard = listener.answer(static_cast<int>(i));
            ASSERT_TRUE(heard.done) << (heard.failed ? heard.failed->message : "");
            EXPECT_EQ(heard.tokens, expected[i]) << i << ", width " << width << ", tree " << tree;
        }
        engine->drain();
        if (adaptive) continue;
        EXPECT_GT(engine->stats().drafted_rows, 100);
    }
}

/// A hybrid that fails, behind a layer whose state it has updated, when it is fed a certain token.
class TroubledHybrid final : public Model {
  public:
    explicit TroubledHybrid(int32_t trouble) : trouble_(trouble) {}
    const ModelInfo& info() const override { return model_->info(); }
    std::span<const StateSpec> state_specs() const override { return model_->state_specs(); }
    Workspace workspace() const override { return model_->workspace(); }
    Tensor embed(Context& ctx, const Batch& batch) const override { return model_->embed(ctx, batch); }
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override {
        model_->layer(ctx, l, x, batch, states);
        if (l == 1 && std::find(batch.tokens.begin(), batch.tokens.end(), trouble_) != batch.tokens.end())
            fail(ErrorKind::unavailable, "no memory");
    }
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override {
        return model_->logits(ctx, x, batch);
    }

  private:
    int32_t trouble_;
    std::unique_ptr<Checkpoint> checkpoint_ = open_checkpoint(hybrid_path());
    std::unique_ptr<Model> model_ = load_model(*checkpoint_);
};

TEST(EngineHybrid, a_step_that_fails_leaves_the_others_as_they_were) {
    RT_CPU_ONLY("a model without a checkpoint");
    const std::vector<Request> all = overlapping_requests(24);
    const std::vector<std::vector<int32_t>> expected = alone(all);
    size_t longest = 0;
    for (size_t i = 0; i < all.size(); ++i)
        if (expected[i].size() > expected[longest].size()) longest = i;
    for (const int32_t trouble : {expected[longest][expected[longest].size() / 2], int32_t{128 - 1}}) {
        EngineOptions o = hybrid_options();
        o.context = 512;
        o.kv_tokens = 8 * o.context;
        Engine engine(std::make_unique<TroubledHybrid>(trouble), o);
        Listener listener;
        engine.pause();
        for (size_t i = 0; i < all.size(); ++i) engine.submit(all[i], listener.sink(static_cast<int>(i)));
        engine.resume();
        int failed = 0, answered = 0;
        for (size_t i = 0; i < all.size(); ++i) {
            std::vector<int32_t> fed = std::get<TokenPrompt>(all[i].prompt);
            fed.insert(fed.end(), expected[i].begin(), expected[i].end() - 1);
            const bool fails = std::find(fed.begin(), fed.end(), trouble) != fed.end();
            const Heard heard = listener.answer(static_cast<int>(i));
            EXPECT_EQ(heard.failed.has_value(), fails) << i;
            (fails ? failed : answered) += 1;
            if (!fails) {
                EXPECT_EQ(heard.tokens, expected[i]) << i;
            }
        }
        EXPECT_GT(failed, 0);
        EXPECT_GT(answered, 0);
    }
}

TEST(SessionHybrid, going_back_goes_on_from_what_was_kept) {
    std::mt19937 random(12);
    const Fixture fixture("qwen35_tied");
    const auto session = fixture.session(32), fresh = fixture.session(32);
    std::vector<int32_t> prompt = invent(random, 90);
    for (int turn = 0; turn < 4; ++turn) {
        const auto read = [&](Session& by, int64_t& computed) {
            by.prefill(prompt, [&](int64_t, int64_t total) { computed = total; });
            return draw_greedily(by, prompt, 12);
        };
        int64_t computed = 0, all = 0;
        const Drawn warm = read(*session, computed);
        fresh->clear();
        const Drawn cold = read(*fresh, all);
        EXPECT_EQ(warm.tokens, cold.tokens);
        EXPECT_EQ(warm.logits_hash, cold.logits_hash);
        EXPECT_EQ(all, std::ssize(prompt));
        if (turn > 0) {
            EXPECT_EQ(computed, turn == 3 ? std::ssize(prompt) : 50 + 14) << turn;
        }
        prompt.resize(prompt.size() - 2);
        const std::vector<int32_t> more = invent(random, 50);
        prompt.insert(prompt.end(), more.begin(), more.end());
        if (turn == 2) prompt[5] = (prompt[5] + 1) % 128;
    }
}

}  // namespace
}  // namespace riptide::testing
