// The law: an answer is a function of its request. Company, preemption, cancellation, cache and restart change nothing.
#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/fake_model.h"

namespace riptide::testing {
namespace {

/// Requests with shared beginnings and every way of drawing.
std::vector<Request> mixed_requests(size_t count, int64_t vocab, uint64_t seed) {
    std::mt19937_64 rng(seed);
    const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
    const auto invent = [&](size_t n) {
        std::vector<int32_t> tokens(n);
        for (int32_t& token : tokens) token = static_cast<int32_t>(pick(static_cast<size_t>(vocab)));
        return tokens;
    };
    const std::vector<std::vector<int32_t>> beginnings = {invent(150), invent(280), invent(16), {}};
    std::vector<Request> requests;
    for (size_t i = 0; i < count; ++i) {
        std::vector<int32_t> prompt = beginnings[pick(beginnings.size())];
        prompt.resize(prompt.size() - (prompt.empty() ? 0 : pick(prompt.size() / 2)));
        const std::vector<int32_t> own = invent(1 + pick(40));
        prompt.insert(prompt.end(), own.begin(), own.end());
        Request r = continuation(prompt, static_cast<int64_t>(1 + pick(60)));
        r.deterministic = true;
        r.session = i % 3 == 0 ? "" : fmt::format("session {}", i % 5);
        r.priority = static_cast<int32_t>(pick(3));
        r.side = pick(5) == 0;
        r.sampling.seed = i;
        if (i % 4 != 0) r.sampling.temperature = 1.0 + 0.2 * static_cast<double>(i % 3);
        if (i % 5 == 1) r.sampling.top_k = 20;
        if (i % 5 == 2) r.sampling.top_p = 0.9;
        if (i % 5 == 3) r.sampling.repetition_penalty = 1.2, r.sampling.frequency_penalty = 0.4;
        if (i % 7 == 3) r.sampling.min_tokens = std::min<int64_t>(8, r.sampling.max_tokens);
        if (i % 7 == 4) r.sampling.logprobs = 2;  // drawn by the host
        if (i % 7 == 5) r.sampling.logit_bias = {{7, 3.0}, {11, -100}};
        r.sampling.ignore_eos = i % 2 == 0;
        requests.push_back(std::move(r));
    }
    return requests;
}

std::vector<std::vector<int32_t>> lone_runs(const std::vector<Request>& requests) {
    EngineOptions o = demo_options();
    o.prefix_cache = false;
    o.max_running = 1;
    const auto engine = Engine::open(demo_path(), o);
    std::vector<std::vector<int32_t>> tokens;
    for (const Request& request : requests) tokens.push_back(ask(*engine, request).tokens);
    return tokens;
}

/// 64 requests, of which `running` run together with room for `kv_tokens`, some cancelled, against lone runs.
EngineStats expect_lone_tokens(int32_t running, int64_t kv_tokens, const std::vector<Request>& requests,
                               const std::vector<std::vector<int32_t>>& expected) {
    const int count = static_cast<int>(requests.size());
    EngineOptions o = demo_options();
    o.context = 512;
    o.kv_tokens = kv_tokens;
    o.max_running = running;
    o.prefill_rows_beside = 4 * running;
    o.checkpoint_every = 64;
    const auto engine = Engine::open(demo_path(), o);
    for (const bool deterministic : {true, false}) {
        if (!deterministic && test_gpu() != nullptr) continue;  // what the cache kept may be rounded otherwise
        Listener listener;
        std::vector<RequestId> ids;
        engine->pause();
        for (int i = 0; i < count; ++i) {
            Request request = requests[static_cast<size_t>(i)];
            request.deterministic = deterministic;
            ids.push_back(engine->submit(request, listener.sink(i)));
            if (i == count / 2) engine->resume();
        }
        for (int i = 5; i < count; i += 9) {
            listener.wait(i, [](const Heard& h) { return h.events > 0 || h.over(); });
            engine->cancel(ids[static_cast<size_t>(i)]);
        }
        for (int i = 0; i < count; ++i) {
            const Heard heard = listener.answer(i);
            EXPECT_TRUE(heard.done) << i << ": " << heard.failed->message;
            if (!heard.done) continue;
            std::vector<int32_t> alone = expected[static_cast<size_t>(i)];
            if (heard.done->reason == FinishReason::cancelled)
                alone.resize(std::min(alone.size(), heard.tokens.size()));
            EXPECT_EQ(heard.tokens, alone) << i;
        }
        engine->drain();
        engine->resume();
    }
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.cancelled, 0);
    EXPECT_EQ(stats.failed, 0);
    EXPECT_EQ(stats.waiting_tokens, 0);
    fmt::print(
        "{} requests, {} together: {} tokens in {} steps, {} cancelled, {} preempted, {} of {} prompt tokens "
        "cached\n",
        count, running, stats.answer_tokens, stats.steps, stats.cancelled, stats.preempted, stats.cached_tokens,
        stats.prompt_tokens);
    return stats;
}

TEST(EngineLaw, in_a_crowd_with_preemption_and_cancellations_each_gets_the_tokens_of_a_lone_run) {
    constexpr size_t kRequests = kThreadSanitizer ? 24 : 64;  // of 16 none drives another out
    const int64_t vocab = Engine::open(demo_path(), demo_options())->info().model.vocab_size;
    const std::vector<Request> requests = mixed_requests(kRequests, vocab, 1);
    const std::vector<std::vector<int32_t>> expected = lone_runs(requests);
    // Little room: requests drive each other out.
    const EngineStats narrow = expect_lone_tokens(7, 512, requests, expected);
    EXPECT_GT(narrow.preempted, 0);
    EXPECT_GT(narrow.cached_tokens, kThreadSanitizer ? 100 : 500);
    // As many together as there are; not all of them fit.
    expect_lone_tokens(static_cast<int32_t>(kRequests), std::max<int64_t>(512, 24 * kRequests), requests, expected);
}

/// Four turns of a chat; `next` gives the engine for each.
template <class Next>
std::vector<Heard> conversation(const Next& next) {
    json::array messages = {
        {{"role", "system"}, {"content", "Answer briefly, and say what you mean. Be kind to everybody."}}};
    std::vector<Heard> turns;
    for (const char* question : {"Hello, who are you?", "What can you do for me?", "Tell me about tea.", "Goodbye."}) {
        messages.push_back({{"role", "user"}, {"content", question}});
        Request request;
        request.prompt = ChatPrompt{messages, {}, {}};
        request.session = "one";
        request.deterministic = true;
        request.sampling.temperature = 0.7;
        request.sampling.seed = turns.size();
        request.sampling.max_tokens = 80;
        turns.push_back(ask(next(), request));
        messages.push_back({{"role", "assistant"}, {"content", turns.back().text}});
    }
    return turns;
}

void expect_equal_turns(const std::vector<Heard>& turns, const std::vector<Heard>& expected, bool cached,
                        const char* how) {
    ASSERT_EQ(turns.size(), expected.size());
    for (size_t i = 0; i < turns.size(); ++i) {
        ASSERT_TRUE(turns[i].done) << how;
        EXPECT_EQ(turns[i].tokens, expected[i].tokens) << how << ", turn " << i;
        EXPECT_TRUE(i == 0 || (turns[i].done->usage.cached > 30) == cached) << how << ", turn " << i;
    }
}

TEST(EngineLaw, hit_or_miss_in_any_tier_before_or_after_a_restart_the_tokens_are_the_same) {
    std::unique_ptr<Engine> engine;
    EngineOptions o = demo_options();
    o.prefix_cache = false;
    engine = Engine::open(demo_path(), o);
    const std::vector<Heard> expected = conversation([&]() -> Engine& { return *engine; });
    EXPECT_GT(expected[1].tokens.size(), 3U);

    o = demo_options();
    o.host_cache_bytes = 0;
    engine = Engine::open(demo_path(), o);
    expect_equal_turns(conversation([&]() -> Engine& { return *engine; }), expected, true, "on the device");

    o = demo_options();
    o.context = o.kv_tokens = 512;
    engine = Engine::open(demo_path(), o);
    int32_t noise = 0;
    const auto driven_out = [&]() -> Engine& {
        // All pages, so that the conversation's go to the host.
        EXPECT_TRUE(ask(*engine, continuation(std::vector<int32_t>(500, ++noise), 2)).done);
        return *engine;
    };
    expect_equal_turns(conversation(driven_out), expected, true, "in host memory");
    EXPECT_GT(engine->stats().host_tier_bytes, 0);
    engine.reset();

    const std::string folder = ::testing::TempDir() + "riptide_engine_tier";
    std::filesystem::remove_all(folder);
    for (const int64_t host_bytes : {int64_t{0}, int64_t{1} << 30}) {
        o = demo_options();
        o.disk_cache = folder;
        o.host_cache_bytes = host_bytes;
        const auto restarted = [&]() -> Engine& {
            engine.reset();
            engine = Engine::open(demo_path(), o);
            return *engine;
        };
        const std::vector<Heard> turns = conversation(restarted);
        if (host_bytes == 0) expect_equal_turns(turns, expected, true, "on disk, behind a restart");
        for (size_t i = 0; i < turns.size(); ++i) EXPECT_EQ(turns[i].tokens, expected[i].tokens);
    }
    EXPECT_GT(engine->stats().disk_tier_bytes, 0);
    engine.reset();
    std::filesystem::remove_all(folder);
}

// Every token that the fake model says is a hash of all that it can reach: a page, ring or checkpoint of somebody else
// changes the answer.
TEST(EngineLaw, ten_thousand_requests_under_cache_pressure_never_see_anothers_text) {
    RT_CPU_ONLY("the fake model is host code");
    constexpr int kRequests = 10'000;
    EngineOptions o;
    o.threads = 1;
    o.context = 200;
    o.k_dtype = o.v_dtype = DType::f32;
    o.page_rows = 4;
    o.chunk_rows = 32;
    o.prefill_rows_beside = 16;
    o.kv_tokens = 320;
    o.max_running = 6;
    o.max_queue = kRequests;
    o.checkpoint_every = 16;
    o.checkpoint_bytes = 1 << 14;
    o.host_cache_bytes = 1 << 16;
    Engine engine(std::make_unique<FakeModel>(), o);
    std::mt19937_64 rng(7);
    const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
    std::vector<std::vector<int32_t>> pasts(8);  // conversations that go on
    Listener listener;
    std::vector<std::vector<int32_t>> prompts(kRequests);
    std::vector<int64_t> most(kRequests);
    std::vector<char> cancelled(kRequests, 0);
    int64_t answered = 0;
    const auto check = [&](int i) {
        const auto at = static_cast<size_t>(i);
        const Heard heard = listener.answer(i);
        ASSERT_TRUE(heard.done) << heard.failed->message;
        std::vector<int32_t> alone = FakeModel::answer(prompts[at], most[at]);
        if (cancelled[at] != 0 && heard.done->reason == FinishReason::cancelled)
            alone.resize(std::min(alone.size(), heard.tokens.size()));
        else ++answered;
        ASSERT_EQ(heard.tokens, alone) << "request " << i;
    };
    for (int i = 0; i < kRequests && !::testing::Test::HasFatalFailure(); ++i) {
        const auto at = static_cast<size_t>(i);
        std::vector<int32_t>& past = pasts[pick(pasts.size())];
        if (past.size() > 120 || pick(6) == 0) past.clear();
        if (pick(5) == 0 && !past.empty()) past.resize(1 + pick(past.size()));  // an edit
        for (size_t n = 1 + pick(30); n > 0; --n) past.push_back(static_cast<int32_t>(1 + pick(FakeModel::kVocab - 1)));
        prompts[at] = past;
        most[at] = static_cast<int64_t>(1 + pick(24));
        Request r = continuation(past, most[at]);
        r.sampling.stop_ids = {FakeModel::kEnd};
        r.deterministic = pick(3) == 0;
        r.priority = static_cast<int32_t>(pick(3));
        r.side = pick(6) == 0;
        r.session = pick(3) == 0 ? "" : fmt::format("{}", &past - pasts.data());
        r.isolation = pick(4) == 0 ? "other" : "";
        const RequestId id = engine.submit(std::move(r), listener.sink(i));
        if (pick(40) == 0) {
            cancelled[at] = 1;
            engine.cancel(id);
        }
        const std::vector<int32_t> said = FakeModel::answer(past, most[at]);
        past.insert(past.end(), said.begin(), said.end());
        if (i >= 40) check(i - 40);  // a crowd of forty
    }
    for (int i = kRequests - 40; i < kRequests && !::testing::Test::HasFatalFailure(); ++i) check(i);
    engine.drain();
    const EngineStats stats = engine.stats();
    EXPECT_GT(answered, kRequests * 9 / 10);
    EXPECT_GT(stats.preempted, 100);
    EXPECT_GT(stats.cached_tokens, 10'000);
    EXPECT_EQ(stats.failed, 0);
    EXPECT_EQ(stats.waiting_tokens, 0);
    std::printf("%lld steps, %lld of %lld prompt tokens cached, %lld preempted, %lld cancelled\n",
                static_cast<long long>(stats.steps), static_cast<long long>(stats.cached_tokens),
                static_cast<long long>(stats.prompt_tokens), static_cast<long long>(stats.preempted),
                static_cast<long long>(stats.cancelled));
}

TEST(EngineLaw, side_requests_run_even_when_live_prefixes_fill_the_cache) {
    RT_CPU_ONLY("the fake model is host code");
    EngineOptions o;
    o.threads = 1;
    o.context = 64;
    o.kv_tokens = 64;
    o.k_dtype = o.v_dtype = DType::f32;
    o.page_rows = 4;
    o.chunk_rows = 16;
    o.checkpoint_every = 16;
    Engine engine(std::make_unique<FakeModel>(), o);
    Request live = continuation(std::vector<int32_t>(40, 3), 20);
    live.session = "live";
    EXPECT_TRUE(ask(engine, live).done);
    Request side = continuation(std::vector<int32_t>(40, 5), 20);
    side.side = true;
    side.sampling.stop_ids = {FakeModel::kEnd};
    const Heard heard = ask(engine, side);
    ASSERT_TRUE(heard.done);
    EXPECT_EQ(heard.tokens, FakeModel::answer(std::get<TokenPrompt>(side.prompt), 20));
    // One that needs every page, and starts from a partly filled one that the cache shares.
    Request all = continuation(std::get<TokenPrompt>(live.prompt), 24);
    all.session = "live";
    EXPECT_TRUE(ask(engine, all).done);
    EXPECT_TRUE(ask(engine, all).done);
}

}  // namespace
}  // namespace riptide::testing
