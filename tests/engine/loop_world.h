// A loop that a test steps by itself, on a fake model and a clock that only the model moves.
#pragma once

#include "engine/loop/engine_loop.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/fake_model.h"

namespace riptide::testing {

/// A fake model that takes time: each layer so long for a step, and so long for each row. Four layers.
class SlowModel : public FakeModel {
  public:
    explicit SlowModel(int64_t& now_us) : now_us_(now_us) {}
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override {
        const bool prompts = ctx.family == Family::prefill;
        now_us_ += prompts ? prompt_us + batch.rows() * row_us : decode_us;
        FakeModel::layer(ctx, l, x, batch, states);
        if (on_layer) on_layer(ctx.family, l, batch);
    }
    int64_t decode_us = 250, prompt_us = 100, row_us = 10;
    std::function<void(Family, int64_t l, const Batch&)> on_layer;

  private:
    int64_t& now_us_;
};

class LoopWorld {
  public:
    static EngineOptions options() {
        EngineOptions o;
        o.threads = 1;
        o.context = 512;
        o.kv_tokens = 2048;
        o.k_dtype = o.v_dtype = DType::f32;
        o.page_rows = 4;
        o.chunk_rows = 64;
        o.prefill_rows_beside = 32;
        o.max_running = 6;
        o.checkpoint_every = 16;
        return o;
    }
    explicit LoopWorld(const EngineOptions& o = options())
        : machine(std::make_unique<SlowModel>(now_us), o), loop(machine, [] { return false; }) {
        machine.use_clock([this] { return now_us; });
    }
    SlowModel& model() { return const_cast<SlowModel&>(static_cast<const SlowModel&>(machine.model())); }
    PagePool& pool() { return machine.cache().pool(); }

    /// A prompt of so many tokens whose answer is at least so long.
    static std::vector<int32_t> prompt(size_t tokens, int64_t answer, int32_t first = 1) {
        for (int32_t last = 1;; ++last) {
            std::vector<int32_t> p(tokens, first);
            p.back() = last % 59 + 1;
            p[p.size() / 2] = last / 59 + 1;
            if (std::ssize(FakeModel::answer(p, answer)) == answer) return p;
        }
    }
    RequestId ask(std::vector<int32_t> prompt, int64_t most, int64_t deadline_us = INT64_MAX) {
        auto job = std::make_unique<Job>();
        job->id = ++last_;
        const int key = static_cast<int>(last_);
        job->sink = listener.sink(key);
        job->prompt.tokens = std::move(prompt);
        job->cuts = choose_cuts(job->prompt, machine.options().checkpoint_every);
        job->max_tokens = most;
        job->stop_ids = {FakeModel::kEnd};
        job->sampling.temperature = 0;
        job->share = static_cast<uint64_t>(last_);
        job->want_tokens = true;
        job->deadline_us = deadline_us;
        if (deadline_us != INT64_MAX) job->deadline = std::chrono::milliseconds(deadline_us / 1000);
        job->open = 1;
        job->answers.push_back(std::make_unique<Answer>(*job, 0, text_, FakeModel::kVocab));
        ++loop.waiting;
        loop.add(std::move(job));
        return last_;
    }
    EngineStats stats() {
        EngineStats s;
        loop.report(s);
        return s;
    }
    /// Whether a request has come to its end by now.
    Heard heard(RequestId id) {
        Heard h;
        listener.wait(static_cast<int>(id), [&](const Heard& now) {
            h = now;
            return true;
        });
        return h;
    }
    void run() {
        while (!loop.idle()) loop.step();
    }

    int64_t now_us = 0;
    Listener listener;
    Machine machine;
    EngineLoop loop;

  private:
    ModelText text_;
    RequestId last_ = 0;
};

}  // namespace riptide::testing
