// The engine used from many threads at once.
#include <random>
#include <thread>

#include "base/error.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/fake_model.h"

namespace riptide::testing {
namespace {

TEST(EngineThreads, threads_that_submit_cancel_pause_and_ask_disturb_nobody) {
    RT_CPU_ONLY("the fake model is host code");
    constexpr int kThreads = 6, kRequests = 120;
    EngineOptions o;
    o.threads = 1;
    o.context = 128;
    o.kv_tokens = 256;
    o.k_dtype = o.v_dtype = DType::f32;
    o.page_rows = 4;
    o.chunk_rows = 16;
    o.max_running = 4;
    o.max_queue = 40;
    o.checkpoint_every = 16;
    Engine engine(std::make_unique<FakeModel>(), o);
    std::atomic<int> wrong = 0, full = 0, cancelled = 0;
    const auto client = [&](uint64_t seed) {
        std::mt19937_64 rng(seed);
        const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
        Listener listener;
        std::vector<std::pair<int, Request>> asked;
        for (int i = 0; i < kRequests; ++i) {
            std::vector<int32_t> prompt(1 + pick(60));
            for (size_t t = 0; t < prompt.size(); ++t)
                prompt[t] = static_cast<int32_t>(t < 20 ? seed % 2 + 1 : 1 + pick(FakeModel::kVocab - 1));
            Request request = continuation(prompt, static_cast<int64_t>(1 + pick(20)));
            request.sampling.stop_ids = {FakeModel::kEnd};
            request.n = static_cast<int32_t>(1 + pick(2));
            RequestId id = 0;
            while (id == 0) {
                try {
                    id = engine.submit(request, listener.sink(i, request.n));
                } catch (const QueueFull&) {
                    ++full;
                    engine.resume();
                    std::this_thread::yield();
                }
            }
            asked.emplace_back(i, request);
            if (pick(8) == 0) engine.cancel(id);
            if (pick(30) == 0) engine.pause();
            if (pick(5) == 0 || i + 1 == kRequests) engine.resume();
            wrong += engine.stats().running > o.max_running;
            wrong += engine.info().context_length != o.context;
        }
        engine.resume();
        for (const auto& [key, request] : asked)
            for (int a = 0; a < request.n; ++a) {
                const Heard heard = listener.answer(key, a);
                std::vector<int32_t> alone =
                    FakeModel::answer(std::get<TokenPrompt>(request.prompt), request.sampling.max_tokens);
                if (!heard.done) {
                    ++wrong;
                    continue;
                }
                if (heard.done->reason == FinishReason::cancelled) {
                    ++cancelled;
                    alone.resize(std::min(alone.size(), heard.tokens.size()));
                }
                wrong += heard.tokens != alone;
            }
    };
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) threads.emplace_back(client, t + 1);
    for (std::thread& thread : threads) thread.join();
    engine.resume();  // the last word, if a pause came after all resumes
    engine.drain();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(cancelled, 0);
    EXPECT_GT(full, 0);
    EXPECT_EQ(engine.stats().waiting, 0);
    EXPECT_EQ(engine.stats().running, 0);
}

}  // namespace
}  // namespace riptide::testing
