// Answers of a given form drawn by the device (on the CPU, by one that is none) are those that the host draws.
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "tests/engine/formed_crowd.h"
#include "tests/engine/solo.h"

namespace riptide::testing {
namespace {

TEST(FormedDraw, answers_in_a_crowd_are_those_that_the_host_draws) {
    for (const uint64_t seed : brief<uint64_t>({1, 2, 3}, 1)) {
        const Crowd crowd{.requests = formed_requests(false), .seed = seed};
        const Outcome host = crowd.run(DrawnBy::host), device = crowd.run(DrawnBy::device);
        expect_same_outcome(device, host);
        EXPECT_EQ(host.stats.formed_rows, 0);
        EXPECT_GT(device.stats.formed_rows, 400);
    }
}

TEST(FormedDraw, a_lone_answer_runs_a_step_ahead_of_its_draws) {
    for (const Request& request : brief(formed_requests(false), 6)) {
        if (request.format.kind == AnswerFormat::Kind::any) continue;
        const Crowd one{.requests = {request}};
        const Outcome host = one.run(DrawnBy::host), device = one.run(DrawnBy::device);
        expect_same_outcome(device, host);
        EXPECT_GE(device.stats.formed_rows, std::ssize(host.heard[0].tokens) - 1) << "all but the first";
    }
}

TEST(FormedDraw, drafts_change_nothing) {
    Crowd crowd{.requests = formed_requests(true)};
    const Outcome host = crowd.run(DrawnBy::host);
    for (const int32_t tree : {0, 12}) {
        draft_well(crowd, host, tree);
        const Outcome drafted = crowd.run(DrawnBy::device);
        expect_same_outcome(drafted, host);
        EXPECT_GT(drafted.stats.formed_rows, 400);
        EXPECT_GT(drafted.stats.accepted_rows, 200);
        EXPECT_GT(drafted.stats.drafted_rows, drafted.stats.accepted_rows) << "some were wrong";
        expect_same_outcome(crowd.run(DrawnBy::host), host);
    }
}

TEST(FormedDraw, a_cancelled_answer_and_one_whose_form_ends_in_nothing_leave_the_others_alone) {
    Crowd crowd{.requests = formed_requests(false)};
    // Every token with an x ends the answer, and the form needs one: it fails in the middle.
    const auto checkpoint = open_checkpoint(demo_path());
    const ModelText text(*checkpoint);
    Request& stuck = crowd.requests[6];
    stuck.format = regex("[a-c]{12}x[a-c]*");
    for (int32_t id = 0; id < text.tokenizer()->vocab_size(); ++id)
        if (text.tokenizer()->piece(id).find('x') != std::string::npos) stuck.sampling.stop_ids.push_back(id);
    stuck.sampling.logit_bias.clear();
    const Outcome host = crowd.run(DrawnBy::host), device = crowd.run(DrawnBy::device);
    expect_same_outcome(device, host);
    ASSERT_TRUE(device.heard[6].failed);
    EXPECT_NE(device.heard[6].failed->message.find("allows no further token"), std::string::npos);
    EXPECT_GT(device.heard[6].tokens.size(), 1u);
    crowd.cancelled = 1;
    const Outcome without = crowd.run(DrawnBy::device);
    ASSERT_TRUE(without.heard[1].done);
    EXPECT_EQ(without.heard[1].done->reason, FinishReason::cancelled);
    for (size_t i = 2; i < crowd.requests.size(); ++i) EXPECT_EQ(without.heard[i].tokens, host.heard[i].tokens) << i;
}

TEST(FormedDraw, weights_may_be_loaded_anew_between_answers) {
    const auto engine = Engine::open(demo_path(), demo_options());
    Request request = formed_requests(false)[1];
    const Heard before = ask(*engine, request);
    EXPECT_EQ(engine->reload(demo_path()), 2);
    const int64_t drawn = engine->stats().formed_rows;
    const Heard after = ask(*engine, request);
    EXPECT_EQ(after.tokens, before.tokens);
    if (test_gpu() != nullptr) {
        EXPECT_GT(drawn, 10);
        // The engine counts a step behind the events that it sends of it.
        for (int i = 0; i < 500 && engine->stats().formed_rows == drawn; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_GT(engine->stats().formed_rows, drawn);
    }
}

TEST(FormedDraw, a_lone_answer_is_the_same_ahead_and_with_drafts) {
    Solo solo(open_checkpoint(demo_path()), demo_options());
    const ModelText& text = solo.text();
    const std::vector<int32_t> prompt =
        text.encode(TextPrompt{"Say [1, 2, 3] and [1, 2, 3] and [1, 2, 3] again:"}).tokens;
    for (const Request& like : brief(formed_requests(false), 6)) {
        if (like.format.kind == AnswerFormat::Kind::any) continue;
        Question asked;
        asked.prompt = prompt;
        asked.sampling = like.sampling;
        asked.format = like.format;
        asked.eos = true;
        const auto answer = [&](int64_t logprobs, std::shared_ptr<Drafter> drafter) {
            SpeculationOptions options;
            options.width = 4;
            options.adaptive = false;
            solo.speculate(std::move(drafter), options);
            solo.forget();
            asked.sampling.logprobs = logprobs;  // 0: drawn on the host
            return solo.answer(asked);
        };
        const Answered host = answer(0, nullptr), device = answer(-1, nullptr);
        EXPECT_EQ(device.tokens, host.tokens);
        EXPECT_EQ(device.reason, host.reason);
        std::vector<int32_t> whole = prompt;
        whole.insert(whole.end(), host.tokens.begin(), host.tokens.end());
        auto random = std::make_shared<std::mt19937>(5u);
        const auto drafter = std::make_shared<TestDrafter>(
            4, oracle(whole, 300, [random](int32_t) { return (*random)() % 4 == 0 ? 1 : 0; }));
        const Answered drafted = answer(-1, drafter);
        EXPECT_EQ(drafted.tokens, host.tokens);
        EXPECT_EQ(drafted.reason, host.reason);
        EXPECT_TRUE(host.tokens.size() < 20 || drafted.decode_steps < host.decode_steps) << "drafts were right";
    }
}

TEST(FormedDraw, a_pool_of_masks_keeps_the_last_used_and_tells_sets_apart) {
    std::vector<std::shared_ptr<TokenMask>> masks;
    for (int i = 0; i < 6; ++i) masks.push_back(std::make_shared<TokenMask>(100));
    const std::vector<int32_t> stops = {7}, others = {7, 9};
    const auto set = [&](size_t mask, bool end, const std::vector<int32_t>& ids) {
        return AllowedSet{masks[mask], end, ids, {}};
    };
    MaskPool pool(4);
    std::vector<int32_t> numbers;
    for (const AllowedSet& each :
         {set(0, false, stops), set(0, true, stops), set(0, true, others), set(1, false, stops)}) {
        const MaskPool::Place place = pool.find(each);
        EXPECT_TRUE(place.fresh);
        numbers.push_back(place.number);
        EXPECT_FALSE(pool.find(each).fresh);
    }
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(numbers, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_FALSE(pool.find(set(0, false, stops)).fresh);
    EXPECT_TRUE(pool.find(set(2, false, stops)).fresh);  // in place of (0, true, stops)
    EXPECT_FALSE(pool.find(set(0, true, others)).fresh);
    EXPECT_TRUE(pool.find(set(0, true, stops)).fresh);
    EXPECT_EQ(pool.size(), 4);
    EXPECT_GT(masks[2].use_count(), 1) << "a mask that is kept lives, so that no other has its address";
    pool.clear();
    EXPECT_EQ(masks[2].use_count(), 1);
    // Any number of sets, a bounded number of masks; the last `count` stay where they are.
    std::mt19937 random(3);
    MaskPool large(16);
    std::vector<std::pair<const TokenMask*, int32_t>> last;
    for (int i = 0; i < 5000; ++i) {
        if (masks.size() < 3000) masks.push_back(std::make_shared<TokenMask>(100));
        const size_t at = random() % 4 == 0 ? random() % masks.size() : masks.size() - 1 - random() % 8;
        const MaskPool::Place place = large.find(set(at, false, stops));
        EXPECT_LT(place.number, 16);
        for (const auto& [mask, number] : last)
            EXPECT_TRUE(number != place.number || mask == masks[at].get() || place.fresh);
        std::erase_if(last,
                      [&](const auto& each) { return each.first == masks[at].get() || each.second == place.number; });
        last.emplace_back(masks[at].get(), place.number);
        if (last.size() > 16) last.erase(last.begin());
    }
    EXPECT_EQ(large.size(), 16);
}

TEST(FormedDraw, masks_in_a_gpus_memory_are_those_that_rows_ask_for) {
    RT_GPU_ONLY();
    const int64_t vocab = 70000;  // 16 MiB hold more, but no more than 1024 are kept
    const auto words = static_cast<size_t>(ops::SampleMasks::words_of(vocab));
    DeviceMasks device(*test_gpu(), vocab);
    std::mt19937_64 random(1);
    const std::vector<int32_t> stops = {3, 69999};
    std::vector<std::shared_ptr<TokenMask>> masks;
    int64_t rows = 0;
    for (int step = 0; step < 60; ++step) {
        for (int i = 0; i < 50; ++i) {
            masks.push_back(std::make_shared<TokenMask>(static_cast<int32_t>(vocab - 100)));
            for (uint64_t& word : masks.back()->words) word = random();
        }
        std::vector<AllowedSet> sets;
        for (size_t r = 0, n = 1 + random() % DeviceMasks::kMostRows; r < n; ++r)
            sets.push_back(random() % 5 == 0
                               ? AllowedSet()
                               : AllowedSet{masks[random() % masks.size()], random() % 2 == 0, stops, {}});
        const auto use = step % 3 == 0 ? DeviceMasks::Use::rows : DeviceMasks::Use::step;
        const ops::SampleMasks uploaded = device.upload(sets, use);
        std::vector<int32_t> numbers(sets.size());
        test_gpu()->to_host(numbers.data(), uploaded.of_row.data(), static_cast<int64_t>(4 * numbers.size()));
        std::vector<uint64_t> found(words), expected(words);
        for (size_t r = 0; r < sets.size(); ++r) {
            ASSERT_EQ(numbers[r] < 0, sets[r].any_token());
            if (sets[r].any_token() || r % 4 != 0) continue;
            test_gpu()->to_host(found.data(), uploaded.words + static_cast<size_t>(numbers[r]) * words,
                                static_cast<int64_t>(8 * words));
            sets[r].write(expected);
            ASSERT_EQ(found, expected) << "step " << step << ", row " << r;
            ++rows;
        }
    }
    EXPECT_GT(rows, 500);
    EXPECT_LE(DeviceMasks::bytes(vocab), DeviceMasks::kMostBytes + 4096);
}

}  // namespace
}  // namespace riptide::testing
