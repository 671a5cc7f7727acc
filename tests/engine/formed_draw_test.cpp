// Answers of a given form drawn by the device (on the CPU, by one that is none) are those that the host draws.
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "engine/engine_loop.h"
#include "engine/job_maker.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/host_decoder.h"
#include "tests/engine/test_drafters.h"

namespace riptide::testing {
namespace {

enum class Drawn { by_host, by_device };

/// What came of some requests.
struct Outcome {
    std::vector<Heard> heard;
    EngineStats stats;
};

struct Crowd {
    std::vector<Request> requests;
    EngineOptions options = demo_options();
    uint64_t seed = 1;       // of arrivals, news and cancellations
    int64_t cancelled = -1;  // the request that is cancelled in the middle of its answer

    Outcome run(Drawn drawn) const {
        Machine machine(open_checkpoint(demo_path()), options);
        std::optional<HostDecoder> stand_in;
        if (machine.decoder() != nullptr && drawn == Drawn::by_host) {
            DecodeDevice device = *machine.decoder();
            device.forward = {}, device.draw = {}, device.draw_rows = {};
            machine.use_decoder(std::move(device));
        } else if (machine.decoder() == nullptr && drawn == Drawn::by_device) {
            machine.use_decoder(stand_in.emplace(machine).functions());
        }
        const ModelText text(*machine.checkpoint());
        const JobMaker maker(text, machine.options(), machine.model().info(), machine.context_length(), nullptr);
        std::mt19937_64 random(seed);
        EngineLoop loop(machine, [&] { return random() % 7 == 0; });
        Listener listener;
        RequestId id = 0;
        for (size_t i = 0; i < requests.size() || !loop.idle();) {
            if (i < requests.size() && (loop.idle() || random() % 3 == 0)) {
                auto job = maker.make(Request(requests[i]), listener.sink(static_cast<int>(i)));
                job->id = ++id;
                if (job->share == 0) job->share = maker.share_of(id);
                ++loop.waiting;
                loop.add(std::move(job));
                ++i;
            }
            loop.step();
            if (cancelled >= 0 && static_cast<size_t>(cancelled) < i) {
                const size_t long_enough = 9;
                if (listener.tokens_so_far(static_cast<int>(cancelled)) >= long_enough) loop.cancel(cancelled + 1);
            }
        }
        Outcome out;
        for (size_t i = 0; i < requests.size(); ++i) out.heard.push_back(listener.answer(static_cast<int>(i)));
        loop.report(out.stats);
        return out;
    }
};

AnswerFormat regex(const std::string& text) { return {.kind = AnswerFormat::Kind::regex, .text = text}; }

/// Of all kinds of forms, and of none, by all kinds of draws.
std::vector<Request> formed_requests(bool greedy) {
    const std::vector<AnswerFormat> formats = {
        {.kind = AnswerFormat::Kind::json_object},
        regex("(yes|no), because [a-z ]{10,200}\\."),
        {},
        {.kind = AnswerFormat::Kind::grammar, .text = "root ::= \"<\" root \">\" | [a-z]{3,9} (\" \" [a-z]+)*"},
        {.kind = AnswerFormat::Kind::json_schema,
         .schema = parse_json(R"({"type": "object", "properties": {"n": {"type": "string", "maxLength": 20},
             "d": {"type": "string", "format": "date"}, "l": {"type": "array", "items": {"type": "integer"}}},
             "required": ["n", "d", "l"]})",
                              "schema")},
        regex("[ -~\\n]{150}")};
    std::vector<Request> requests;
    for (size_t i = 0; i < 18; ++i) {
        Request request = chat("Is tea good? Say it in other words " + std::to_string(i), 90);
        std::get<ChatPrompt>(request.prompt).options.enable_thinking = i % 5 == 4;
        request.format = formats[i % formats.size()];
        request.want_tokens = true;
        SamplingParams& s = request.sampling;
        s.seed = 100 + i;
        s.temperature = greedy || i % 4 == 0 ? 0 : i % 4 == 1 ? 1.3 : 0.8;
        s.top_k = i % 3 == 1 ? 30 : 0;
        s.top_p = i % 3 == 2 ? 0.9 : 1;
        s.min_p = i % 7 == 3 ? 0.02 : 0;
        if (!greedy && i % 6 > 2) s.frequency_penalty = 0.4, s.repetition_penalty = 1.1;
        if (!greedy && i % 6 == 1) s.logit_bias = {{300, 2.0}};
        requests.push_back(std::move(request));
    }
    return requests;
}

void expect_same_outcome(const Outcome& device, const Outcome& host) {
    ASSERT_EQ(device.heard.size(), host.heard.size());
    for (size_t i = 0; i < host.heard.size(); ++i) {
        ASSERT_EQ(device.heard[i].failed.has_value(), host.heard[i].failed.has_value()) << i;
        if (host.heard[i].failed) {
            EXPECT_EQ(device.heard[i].failed->message, host.heard[i].failed->message) << i;
            EXPECT_EQ(device.heard[i].failed->kind, host.heard[i].failed->kind) << i;
        } else {
            EXPECT_EQ(device.heard[i].done->reason, host.heard[i].done->reason) << i;
        }
        EXPECT_EQ(device.heard[i].tokens, host.heard[i].tokens) << i;
        EXPECT_EQ(device.heard[i].text, host.heard[i].text) << i;
    }
}

TEST(FormedDraw, answers_in_a_crowd_are_those_that_the_host_draws) {
    for (const uint64_t seed : brief<uint64_t>({1, 2, 3}, 1)) {
        const Crowd crowd{.requests = formed_requests(false), .seed = seed};
        const Outcome host = crowd.run(Drawn::by_host), device = crowd.run(Drawn::by_device);
        expect_same_outcome(device, host);
        EXPECT_EQ(host.stats.formed_rows, 0);
        EXPECT_GT(device.stats.formed_rows, 400);
    }
}

TEST(FormedDraw, a_lone_answer_runs_a_step_ahead_of_its_draws) {
    for (const Request& request : brief(formed_requests(false), 6)) {
        if (request.format.kind == AnswerFormat::Kind::any) continue;
        const Crowd one{.requests = {request}};
        const Outcome host = one.run(Drawn::by_host), device = one.run(Drawn::by_device);
        expect_same_outcome(device, host);
        EXPECT_GE(device.stats.formed_rows, std::ssize(host.heard[0].tokens) - 1) << "all but the first";
    }
}

TEST(FormedDraw, guesses_change_nothing) {
    Crowd crowd{.requests = formed_requests(true)};
    const Outcome host = crowd.run(Drawn::by_host);
    for (const int32_t tree : {0, 12}) {
        // Knows every answer, and is wrong every now and then, with tokens that the form allows and others.
        auto texts = std::make_shared<std::vector<std::vector<int32_t>>>();
        for (size_t i = 0; i < crowd.requests.size(); ++i) texts->push_back(host.heard[i].tokens);
        auto random = std::make_shared<std::mt19937>(7u + static_cast<uint32_t>(tree));
        const int64_t vocab = 300;
        crowd.options.speculation.width = 5;
        crowd.options.speculation.tree = tree;
        crowd.options.speculation.adaptive = false;
        crowd.options.speculation.make = [=] {
            return std::make_unique<TestDrafter>(
                5, [=](const std::vector<int32_t>& tokens, int32_t slot, int32_t choices) {
                    for (const auto& text : *texts) {
                        // Where the end of the text lies in an answer, what follows it.
                        const size_t tail = std::min<size_t>({4, tokens.size(), text.size()});
                        const auto at = std::search(text.begin(), text.end(), tokens.end() - static_cast<int64_t>(tail),
                                                    tokens.end());
                        const auto next = static_cast<size_t>(at - text.begin()) + tail + static_cast<size_t>(slot);
                        if (at == text.end() || next >= text.size()) continue;
                        return guesses_with(text[next], static_cast<int32_t>((*random)() % 4 == 0), choices, vocab);
                    }
                    return std::vector<Guess>();
                });
        };
        const Outcome guessed = crowd.run(Drawn::by_device);
        expect_same_outcome(guessed, host);
        EXPECT_GT(guessed.stats.formed_rows, 400);
        EXPECT_GT(guessed.stats.accepted_rows, 200);
        EXPECT_GT(guessed.stats.drafted_rows, guessed.stats.accepted_rows) << "some were wrong";
        expect_same_outcome(crowd.run(Drawn::by_host), host);
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
    const Outcome host = crowd.run(Drawn::by_host), device = crowd.run(Drawn::by_device);
    expect_same_outcome(device, host);
    ASSERT_TRUE(device.heard[6].failed);
    EXPECT_NE(device.heard[6].failed->message.find("allows no further token"), std::string::npos);
    EXPECT_GT(device.heard[6].tokens.size(), 1u);
    crowd.cancelled = 1;
    const Outcome without = crowd.run(Drawn::by_device);
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

TEST(FormedDraw, a_session_gives_the_same_answers_ahead_and_with_guesses) {
    const auto session = Session::open(demo_path(), demo_options());
    const auto checkpoint = open_checkpoint(demo_path());
    const ModelText text(*checkpoint);
    Constrainer constrainer;
    const std::vector<int32_t> prompt =
        text.encode(TextPrompt{"Say [1, 2, 3] and [1, 2, 3] and [1, 2, 3] again:"}).tokens;
    for (const Request& like : brief(formed_requests(false), 6)) {
        if (like.format.kind == AnswerFormat::Kind::any) continue;
        GenerateRequest asked;
        asked.prompt = prompt;
        asked.sampling = like.sampling;
        asked.sampling.stop_ids = text.stop_ids();
        asked.tokenizer = text.tokenizer();
        asked.constraint = constrainer.get(*text.tokenizer(), like.format);
        const auto answer = [&](int64_t logprobs, std::shared_ptr<Drafter> drafter) {
            SpeculationOptions options;
            options.width = 4;
            options.adaptive = false;
            session->speculate(std::move(drafter), options);
            session->clear();
            asked.sampling.logprobs = logprobs;  // 0: drawn on the host
            return session->generate(asked);
        };
        const GenerationResult host = answer(0, nullptr), device = answer(-1, nullptr);
        EXPECT_EQ(device.tokens, host.tokens);
        EXPECT_EQ(device.reason, host.reason);
        std::vector<int32_t> whole = prompt;
        whole.insert(whole.end(), host.tokens.begin(), host.tokens.end());
        auto random = std::make_shared<std::mt19937>(5u);
        const auto drafter = std::make_shared<TestDrafter>(
            4, oracle(whole, 300, [random](int32_t) { return (*random)() % 4 == 0 ? 1 : 0; }));
        const GenerationResult guessed = answer(-1, drafter);
        EXPECT_EQ(guessed.tokens, host.tokens);
        EXPECT_EQ(guessed.reason, host.reason);
        EXPECT_TRUE(host.tokens.size() < 20 || guessed.decode_steps < host.decode_steps) << "guesses were right";
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
