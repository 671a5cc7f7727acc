// Steps that draw their own tokens and run ahead of the loop, on a device that is no device: the fake model's rows are
// computed when a step is launched, long before the loop asks for its tokens.
#include <deque>
#include <map>
#include <random>

#include "engine/loop/engine_loop.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/test_drafters.h"

namespace riptide::testing {
namespace {

/// Holds the loop to GpuDecoder's contract.
class FakeDevice {
  public:
    FakeDevice(KvCache& cache, size_t slots) : cache_(cache), slots_(slots) {}
    DecodeDevice functions() {
        return {[this](int64_t slot, const ops::SampleStart& start) {
                    EXPECT_TRUE(pending_.empty());
                    auto& history = slots_.at(static_cast<size_t>(slot));
                    history.assign(start.prompt.begin(), start.prompt.end());
                    history.insert(history.end(), start.answer.begin(), start.answer.end());
                },
                [this](std::span<const DecodeRow> rows, GpuDecoder::Draw draw, GpuDecoder::Recurrent) {
                    EXPECT_TRUE(pending_.empty());
                    rows_.assign(rows.begin(), rows.end());
                    sampled_ = draw == GpuDecoder::Draw::sampled;
                    step_ = 0;
                },
                [this] { launch(); },
                [this]() -> std::span<const int32_t> {
                    taken_ = pending_.at(0);
                    pending_.pop_front();
                    return taken_;
                },
                {}};
    }
    /// Rows of a step that the loop has run: the largest logits are what is drawn.
    std::span<const int32_t> draw_rows(const Tensor& logits, std::span<const int32_t> rows, GpuDecoder::Draw draw) {
        EXPECT_EQ(std::ssize(rows), logits.rows());
        drawn_.clear();
        for (int64_t r = 0; r < logits.rows(); ++r) {
            if (draw == GpuDecoder::Draw::sampled) {
                EXPECT_FALSE(slots_.at(static_cast<size_t>(rows[static_cast<size_t>(r)])).empty())
                    << "a slot not begun";
            }
            drawn_.push_back(fake_choice(logits, r));
        }
        drawn_rows += logits.rows();
        return drawn_;
    }
    int64_t launched = 0, most_pending = 0, drawn_rows = 0;

  private:
    void launch() {
        std::vector<int32_t> drawn;
        for (DecodeRow& row : rows_) {
            ASSERT_LT(step_, row.sequence->reserved()) << "a step without room";
            const std::vector<int32_t> token = {row.token}, zero = {0}, begin = {0, 1}, slot = {row.sequence->slot()},
                                       at = {static_cast<int32_t>(row.sequence->length() + step_)};
            Batch batch;
            batch.tokens = token, batch.positions = at, batch.row_sequence = zero, batch.row_begin = begin;
            batch.committed = at, batch.page_table = row.sequence->pages(), batch.state_slot = slot;
            batch.max_pages = static_cast<int32_t>(row.sequence->pages().size());
            fake_append(cache_.views(), batch);
            const std::vector<int32_t> seen = fake_read(cache_.view(0), batch, 0),
                                       recent = fake_read(cache_.view(1), batch, 0);
            EXPECT_TRUE(std::equal(recent.rbegin(), recent.rend(), seen.rbegin()));
            if (sampled_) {
                auto& history = slots_.at(static_cast<size_t>(row.slot));
                EXPECT_EQ(history, seen) << "the slot's history is another's, or too old";
                history.push_back(FakeModel::next(seen));
            }
            row.token = FakeModel::next(seen);
            drawn.push_back(row.token);
        }
        ++step_;
        ++launched;
        pending_.push_back(drawn);
        most_pending = std::max(most_pending, std::ssize(pending_));
    }

    KvCache& cache_;
    std::vector<std::vector<int32_t>> slots_;  // prompt and answer
    std::vector<DecodeRow> rows_;
    bool sampled_ = false;
    int64_t step_ = 0;
    std::deque<std::vector<int32_t>> pending_;
    std::vector<int32_t> taken_, drawn_;
};

/// Right about half of the time for the fake model; at times it drafts nothing.
TestDrafter::Rule some_drafts(uint32_t seed) {
    return [random = std::mt19937(seed), seen = std::vector<int32_t>()](const std::vector<int32_t>& tokens,
                                                                        int32_t slot, int32_t choices) mutable {
        if (slot == 0) seen = tokens;
        if (random() % 3 == 0) return std::vector<DraftToken>();
        const int32_t truth = FakeModel::next(seen);
        seen.push_back(truth);
        return drafts_with(truth, static_cast<int32_t>(random() % 3), choices, FakeModel::kVocab);
    };
}

TEST(EngineAhead, answers_drawn_ahead_of_the_loop_are_those_of_lone_runs) {
    RT_CPU_ONLY("the fake model is host code");
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        std::mt19937_64 rng(seed);
        const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
        EngineOptions o;
        o.threads = 1;
        o.context = 160;
        o.kv_tokens = static_cast<int64_t>(160 + 4 * pick(80));
        o.k_dtype = o.v_dtype = DType::f32;
        o.page_rows = 4;
        o.chunk_rows = 32;
        o.max_running = 5;
        o.checkpoint_every = 16;
        const bool drafts = seed % 2 == 0;
        if (drafts) {
            o.speculation.width = 4, o.speculation.tree = static_cast<int32_t>(4 * pick(3));
            o.speculation.adaptive = false;
            o.speculation.make = [=] {
                return std::make_unique<TestDrafter>(4, some_drafts(static_cast<uint32_t>(seed)));
            };
        }
        Machine machine(std::make_unique<FakeModel>(), o);
        FakeDevice device(machine.cache(), 5);
        DecodeDevice functions = device.functions();
        functions.draw_rows = [&](std::span<const int32_t> rows, GpuDecoder::Draw draw, std::span<const AllowedSet>) {
            return device.draw_rows(machine.logits(), rows, draw);
        };
        machine.use_decoder(functions);
        EngineLoop loop(machine, [&] { return pick(20) == 0; });
        loop.use_parts([&] { return static_cast<int64_t>(1 + pick(4)); });
        const ModelText text;
        Listener listener;
        constexpr int kRequests = 60;
        std::vector<std::vector<int32_t>> prompts(kRequests);
        std::vector<int64_t> most(kRequests);
        std::vector<int32_t> past;
        for (int i = 0; i < kRequests;) {
            const auto at = static_cast<size_t>(i);
            if (pick(4) == 0 || loop.idle()) {
                if (pick(3) == 0 || past.size() > 80) past.clear();
                for (size_t n = 1 + pick(30); n > 0; --n) past.push_back(static_cast<int32_t>(1 + pick(60)));
                auto job = std::make_unique<Job>();
                job->id = ++i;
                job->sink = listener.sink(i);
                job->prompt.tokens = prompts[at] = past;
                job->cuts = choose_cuts(job->prompt, o.checkpoint_every);
                job->max_tokens = most[at] = static_cast<int64_t>(1 + pick(60));
                job->stop_ids = {FakeModel::kEnd};
                job->sampling.temperature = 0;
                if (pick(2) == 0) job->sampling.top_k = 1, job->sampling.temperature = 1;  // drawn, but the largest
                if (pick(6) == 0) job->sampling.logprobs = 1;                              // by the host
                job->share = pick(3) + 1;
                job->priority = static_cast<int>(pick(3));
                job->want_tokens = true;
                job->open = 1;
                job->answers.push_back(std::make_unique<Answer>(*job, 0, text, FakeModel::kVocab));
                ++loop.waiting;
                loop.add(std::move(job));
            }
            if (pick(25) == 0) loop.cancel(static_cast<RequestId>(1 + pick(at + 1)));
            if (!loop.idle()) loop.step();
        }
        while (!loop.idle()) loop.step();
        for (int i = 1; i <= kRequests; ++i) {
            const auto at = static_cast<size_t>(i - 1);
            const Heard heard = listener.answer(i);
            ASSERT_TRUE(heard.done) << heard.failed->message;
            std::vector<int32_t> alone = FakeModel::answer(prompts[at], most[at]);
            if (heard.done->reason == FinishReason::cancelled)
                alone.resize(std::min(alone.size(), heard.tokens.size()));
            ASSERT_EQ(heard.tokens, alone) << "seed " << seed << ", request " << i;
        }
        EXPECT_EQ(loop.waiting, 0);
        EXPECT_EQ(device.drawn_rows > 200, drafts) << device.drawn_rows;
        if (!drafts) {
            EXPECT_GT(device.launched, 100);
            EXPECT_EQ(device.most_pending, 3);
        }
        EngineStats stats;
        loop.report(stats);
        EXPECT_GE(stats.steps, device.launched) << "steps run ahead are steps";
        EXPECT_GT(stats.prompt_parts, kRequests) << "prompts are read in parts between them";
    }
}

}  // namespace
}  // namespace riptide::testing
