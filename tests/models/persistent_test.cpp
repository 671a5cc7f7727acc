// Steps of one row in one launch have the bits of the same steps op by op: logits, K/V, recurrent state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

struct LaunchCase {
    std::string fixture;
    DType kv;
    size_t tokens;
};

/// A model, its cache and one sequence.
struct World {
    std::unique_ptr<Model> model;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<Runner> runner;
    std::unique_ptr<SequenceState> sequence;

    World(const Checkpoint& checkpoint, bool one_launch, DType kv, Gpu* gpu) {
        ModelOptions options;
        options.gpu = gpu;
        model = load_model(checkpoint, options);
        KvCacheOptions o;
        o.k_dtype = o.v_dtype = kv;
        o.page_rows = 16;
        o.pages = 160;
        o.max_sequences = 2;
        o.max_step_rows = fewer(64, 1040);
        cache = std::make_unique<KvCache>(model->state_specs(), o, gpu);
        runner = std::make_unique<Runner>(*model, *cache, nullptr);
        if (one_launch) runner->decode_in_one_launch();
        sequence = std::make_unique<SequenceState>(*cache);
    }
    std::vector<float> step(std::span<const int32_t> tokens, Family family = Family::decode) {
        const StepItem item{sequence.get(), tokens};
        std::vector<float> logits = host_values(cache->gpu(), runner->step(std::span(&item, 1), family));
        sequence->commit_prefix(std::ssize(tokens));
        return logits;
    }
    /// K and V of the sequence's pages, of all layers.
    std::vector<std::byte> pages() const {
        std::vector<std::byte> all;
        for (const KvView& view : cache->views())
            for (const int32_t page : sequence->pages())
                for (const auto& [data, bytes] :
                     {std::pair{view.k, view.k_slot_bytes}, std::pair{view.v, view.v_slot_bytes}}) {
                    if (view.num_kv_heads == 0) continue;
                    const size_t at = all.size();
                    all.resize(at + static_cast<size_t>(view.page_rows * bytes));
                    cache->gpu()->to_host(all.data() + at,
                                          static_cast<const std::byte*>(data) + page * view.page_rows * bytes,
                                          view.page_rows * bytes);
                }
        return all;
    }
};

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class PersistentTest : public ::testing::TestWithParam<LaunchCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, PersistentTest,
    ::testing::Values(LaunchCase{"qwen35_tied", DType::f32, 60}, LaunchCase{"qwen35_tied", DType::f16, 40},
                      LaunchCase{"qwen35_tied", DType::q8_0, 2200}, LaunchCase{"qwen35_tied", DType::q4_0, 40},
                      LaunchCase{"qwen35_odd", DType::f32, 60}, LaunchCase{"qwen35_odd", DType::f16, 1100}),
    [](const auto& test) { return test.param.fixture + "_" + dtype_name(test.param.kv); });

TEST_P(PersistentTest, one_launch_has_the_bits_of_the_ops) {
    RT_GPU_ONLY();
    const auto checkpoint = open_checkpoint(fixture_path(GetParam().fixture) + "/model.safetensors");
    World chain(*checkpoint, false, GetParam().kv, test_gpu());
    World once(*checkpoint, true, GetParam().kv, test_gpu());
    std::mt19937 random(7);
    const auto draw = [&] {
        return static_cast<int32_t>(random() % static_cast<uint32_t>(chain.model->info().vocab_size));
    };
    if (brief_counts()) {  // what comes before the steps that are judged, at once; long contexts are of two chunks
        std::vector<int32_t> prompt(GetParam().tokens > 1000 ? 1030 : 20);
        std::ranges::generate(prompt, draw);
        for (World* world : {&chain, &once}) world->step(prompt, Family::prefill);
    }
    for (size_t t = 0; t < fewer<size_t>(GetParam().tokens, 2); ++t) {
        const int32_t token = draw();
        const std::vector<float> expected = chain.step(std::span(&token, 1)), seen = once.step(std::span(&token, 1));
        ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](float x) { return std::isfinite(x); })) << "token " << t;
        ASSERT_TRUE(same_bytes(seen, expected)) << "logits behind token " << t;
        if (t % 100 != 3 && t != 0) continue;
        ASSERT_TRUE(same_bytes(once.sequence->save(), chain.sequence->save())) << "state behind token " << t;
        ASSERT_TRUE(same_bytes(once.pages(), chain.pages())) << "K/V behind token " << t;
    }
}

TEST_P(PersistentTest, steps_of_one_row_and_of_more_take_turns) {
    RT_GPU_ONLY();
    const auto checkpoint = open_checkpoint(fixture_path(GetParam().fixture) + "/model.safetensors");
    World chain(*checkpoint, false, GetParam().kv, test_gpu());
    World once(*checkpoint, true, GetParam().kv, test_gpu());
    std::mt19937 random(8);
    for (int step = 0; step < fewer(60, 4); ++step) {
        std::vector<int32_t> tokens(random() % 2 == 0 ? 1 : 1 + random() % 20);
        for (int32_t& token : tokens)
            token = static_cast<int32_t>(random() % static_cast<uint32_t>(chain.model->info().vocab_size));
        const Family family = random() % 4 == 0 ? Family::prefill : Family::decode;
        ASSERT_TRUE(same_bytes(once.step(tokens, family), chain.step(tokens, family))) << "step " << step;
    }
    EXPECT_TRUE(same_bytes(once.sequence->save(), chain.sequence->save()));
}

TEST_P(PersistentTest, steps_that_run_ahead_leave_the_state_of_steps_that_do_not) {
    RT_GPU_ONLY();
    const auto session = [](bool one_launch) {
        SessionOptions options = Fixture(GetParam().fixture).options();
        options.context = 2048;
        options.k_dtype = options.v_dtype = GetParam().kv;
        options.one_launch = one_launch;
        auto opened = Session::open(fixture_path(GetParam().fixture) + "/model.safetensors", options);
        limit_multiprocessors(*opened->gpu());  // its own, not test_gpu()
        return opened;
    };
    const auto chain = session(false), once = session(true);
    const std::vector<int32_t> prompt = {5, 3, 8, 13};
    chain->prefill(prompt);
    once->prefill(prompt);
    int32_t token = 7;
    for (int64_t answer = 1; answer < fewer(40, 3); ++answer) {
        // The answer ends where somebody says so, at odd and even numbers of steps, with steps under way behind it.
        std::vector<int32_t> seen[2];
        for (const auto& [which, to] : {std::pair{chain.get(), &seen[0]}, std::pair{once.get(), &seen[1]}})
            which->decode_ahead(token, answer % 5 == 0 ? answer : 300, [&, to = to](int32_t next) {
                to->push_back(next);
                return std::ssize(*to) < answer;
            });
        ASSERT_EQ(seen[1], seen[0]);
        const std::span<const float> expected = chain->decode(seen[0].back()), found = once->decode(seen[0].back());
        ASSERT_EQ(std::memcmp(found.data(), expected.data(), expected.size_bytes()), 0) << answer;
        token = static_cast<int32_t>(answer % 90);
    }
}

TEST(PersistentTest, what_it_cannot_do_is_refused_in_a_sentence) {
    const auto refused = [](const std::string& fixture, DType kv = DType::f16) {
        const auto checkpoint = open_checkpoint(fixture_path(fixture) + "/model.safetensors");
        try {
            World(*checkpoint, true, kv, test_gpu());
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    if (test_gpu() == nullptr) {
        EXPECT_NE(refused("qwen35_tied").find("on a GPU only"), std::string::npos);
        return;
    }
    EXPECT_EQ(refused("qwen35_tied"), "");
    EXPECT_NE(refused("qwen35_tied", DType::tq3_0).find("takes K/V of any type but tq3_0"), std::string::npos);
    EXPECT_NE(refused("qwen35_moe").find("takes no mixtures of experts"), std::string::npos);
    EXPECT_NE(refused("qwen3_tied").find("no such kernel for qwen3 models"), std::string::npos);
}

}  // namespace
}  // namespace riptide::testing
