// An engine's loop whose device runs ahead with recurrent state (steps that follow each other): every answer, and what
// the prefix cache keeps of it, is what steps that are committed one by one make of a lone request, bit for bit.
#include <random>
#include <set>

#include "engine/loop/engine_loop.h"
#include "engine/sampling/form_cache.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/host_decoder.h"
#include "tests/engine/state_hash.h"
#include "tests/models/fixture.h"
#include "tests/models/seeded_hybrid.h"

namespace riptide::testing {
namespace {

struct Asked {
    std::vector<int32_t> prompt, stop_ids;
    SamplingParams sampling;
    std::shared_ptr<Constraint> constraint;
    int64_t most = 1;
    int priority = 1;
    size_t breaks_at = SIZE_MAX;  // tokens after which the listener fails,
    size_t cancel_at = SIZE_MAX;  // or the request is cancelled
    bool whole() const { return breaks_at == SIZE_MAX && cancel_at == SIZE_MAX; }
};

/// What came of a request: its answer, and how much of it the cache has kept, as a hash.
struct Came {
    Heard heard;
    int64_t kept = 0;
    uint64_t state = 0;
};

/// What the device was asked for.
struct Launched {
    int64_t run = 0, pending = 0;  // of the steps begun last
    bool follows = false;
    size_t rows = 0;
    int64_t most_run = 0, most_pending = 0;  // of steps that follow
    std::set<size_t> ahead;                  // of how many answers steps ran ahead
    int64_t formed_ahead = 0;
};

/// Notes what a device is asked for.
DecodeDevice noted(const DecodeDevice& device, Launched& note) {
    DecodeDevice out = device;
    const auto step = [&note] {
        ++note.run;
        if (!note.follows) return;
        note.most_run = std::max(note.most_run, note.run);
        if (note.run > 1) note.ahead.insert(note.rows);
    };
    out.begin = [&note, device](std::span<const DecodeRow> rows, GpuDecoder::Draw draw, GpuDecoder::Recurrent state) {
        note.run = note.pending = 0;
        note.follows = state == GpuDecoder::Recurrent::follows;
        note.rows = rows.size();
        device.begin(rows, draw, state);
    };
    out.launch = [&note, device, step] {
        step();
        note.most_pending = std::max(note.most_pending, ++note.pending);
        device.launch();
    };
    out.next = [&note, device] {
        --note.pending;
        return device.next();
    };
    out.forward = [&note, device, step] {
        step();
        note.formed_ahead += note.run > 1;
        device.forward();
    };
    out.draw = [&note, device](std::span<const AllowedSet> allowed) {
        ++note.pending;
        device.draw(allowed);
    };
    return out;
}

class HybridWorld {
  public:
    /// Steps of up to `follow_rows` answers follow each other, all others are committed before the next.
    HybridWorld(const std::string& type, const EngineOptions& o, int64_t follow_rows, uint32_t seed)
        : HybridWorld(SeededHybrid::open(type), o, follow_rows, seed) {}
    template <class Of>
    HybridWorld(std::unique_ptr<Of> checkpoint_or_model, const EngineOptions& o, int64_t follow_rows, uint32_t seed)
        : machine_(std::move(checkpoint_or_model), o), random_(seed) {
        if (machine_.decoder() == nullptr && follow_rows > 0)  // else all is drawn by the host there
            machine_.use_decoder(stand_in_.emplace(machine_).functions());
        if (machine_.decoder() != nullptr) {
            DecodeDevice device = noted(*machine_.decoder(), launched);
            EXPECT_GE(device.follow_rows, o.max_running);
            device.follow_rows = follow_rows;
            machine_.use_decoder(device);
        }
        loop_.emplace(machine_, [this] { return random_() % 11 == 0; });
        loop_->use_parts([this] { return static_cast<int64_t>(1 + random_() % 3); });
    }

    /// Answers requests: one after the other, or as many at a time as there is room for, which come by and by.
    std::vector<Came> answer(const std::vector<Asked>& all, bool alone) {
        const RequestId before = last_;
        for (size_t i = 0; i < all.size() || !loop_->idle();) {
            if (i < all.size() && (loop_->idle() || (!alone && random_() % 3 == 0))) add(all[i++]);
            loop_->step();
            for (size_t k = 0; k < i; ++k) {
                const RequestId id = before + static_cast<RequestId>(k) + 1;
                if (listener_.tokens_so_far(static_cast<int>(id)) >= all[k].cancel_at) loop_->cancel(id);
            }
        }
        std::vector<Came> came;
        for (size_t i = 0; i < all.size(); ++i) {
            Came& one = came.emplace_back();
            listener_.wait(static_cast<int>(before + static_cast<RequestId>(i) + 1), [&](const Heard& heard) {
                one.heard = heard;
                return true;
            });
            if (all[i].whole() && one.heard.done) look_up(all[i], one);
        }
        return came;
    }
    EngineStats stats() const {
        EngineStats s;
        loop_->report(s);
        return s;
    }
    Launched launched;
    EngineLoop& loop() { return *loop_; }

  private:
    void add(const Asked& asked) {
        auto job = std::make_unique<Job>();
        job->id = ++last_;
        const Sink sink = listener_.sink(static_cast<int>(last_));
        job->sink = [sink, left = asked.breaks_at](const Event& event) mutable {
            sink(event);
            const auto* drawn = std::get_if<TokensDrawn>(&event.body);
            if (drawn == nullptr || left == SIZE_MAX) return;
            left -= std::min(left, drawn->tokens.size());
            if (left == 0) fail(ErrorKind::system, "nobody listens");
        };
        job->prompt.tokens = asked.prompt;
        job->cuts = choose_cuts(job->prompt, machine_.options().checkpoint_every);
        job->max_tokens = asked.most;
        job->stop_ids = asked.stop_ids;
        job->sampling = asked.sampling;
        job->constraint = asked.constraint;
        job->share = static_cast<uint64_t>(last_);
        job->priority = asked.priority;
        job->cache_session = static_cast<uint64_t>(last_);
        job->want_tokens = true;
        job->open = 1;
        job->answers.push_back(std::make_unique<Answer>(*job, 0, text_, machine_.model().info().vocab_size));
        ++loop_->waiting;
        loop_->add(std::move(job));
    }
    void look_up(const Asked& asked, Came& came) {
        const PrefixSalt salt;
        std::vector<int32_t> tokens = asked.prompt;
        tokens.insert(tokens.end(), came.heard.tokens.begin(), came.heard.tokens.end());
        tokens.push_back(1);
        SequenceState state(machine_.cache());
        came.kept =
            machine_.prefix()->attach({.salt = salt, .tokens = tokens, .message_ends = {}, .side = true}, state).cached;
        came.state = state_hash(state);
    }

    Machine machine_;
    std::optional<HostDecoder> stand_in_;
    std::mt19937 random_;
    ModelText text_;
    Listener listener_;
    std::optional<EngineLoop> loop_;
    RequestId last_ = 0;
};

EngineOptions loop_options() {
    EngineOptions o = demo_options();
    o.choose_kv = false;
    o.k_dtype = o.v_dtype = DType::q8_0;
    o.checkpoint_every = 48;
    o.max_running = 4;
    return o;
}

/// A small vocabulary for the first tokens of the seeded model, for answers of a given form.
class Forms {
  public:
    Forms() : checkpoint_(open_checkpoint(fixture_path("qwen35_tied") + "/model.safetensors")), text_(*checkpoint_) {
        RT_CHECK(text_.tokenizer()->vocab_size() <= SeededHybrid::kVocab, "more tokens than the model has");
    }
    std::shared_ptr<Constraint> regex(const std::string& text) {
        return constrainer_.get(*text_.tokenizer(), {.kind = AnswerFormat::Kind::regex, .text = text});
    }

  private:
    std::unique_ptr<Checkpoint> checkpoint_;
    ModelText text_;
    Constrainer constrainer_;
};

/// Requests of all kinds, no two of which begin alike.
std::vector<Asked> varied_requests(Forms& forms, size_t count, std::mt19937& random) {
    std::vector<Asked> all;
    for (size_t i = 0; i < count; ++i) {
        Asked a;
        a.prompt.push_back(static_cast<int32_t>(i));
        for (size_t n = random() % 90; n > 0; --n) a.prompt.push_back(static_cast<int32_t>(random() % 512));
        a.most = static_cast<int64_t>(1 + random() % 60);
        for (int k = 0; k < 8; ++k) a.stop_ids.push_back(static_cast<int32_t>(random() % 512));
        a.priority = static_cast<int>(i % 3);
        a.sampling.seed = i;
        a.sampling.temperature = i % 3 == 0 ? 0 : 1;
        if (i % 5 == 3) a.sampling.repetition_penalty = 1.2;
        if (i % 7 == 5) a.sampling.logprobs = 2;  // drawn by the host
        if (i % 4 == 2) a.constraint = forms.regex("[a-z ]{25,40}\\.");
        if (i % 11 == 6) a.cancel_at = 1 + random() % 20;
        if (i % 11 == 9) a.breaks_at = 1 + random() % 20;
        all.push_back(std::move(a));
    }
    return all;
}

void expect_same_answers(const std::vector<Asked>& asked, const std::vector<Came>& came,
                         const std::vector<Came>& expected, bool all_kept) {
    std::map<FinishReason, int> reasons;
    int64_t kept = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
        const Heard &heard = came[i].heard, &lone = expected[i].heard;
        if (!asked[i].whole()) {
            const std::vector<int32_t> begin(
                lone.tokens.begin(),
                lone.tokens.begin() + static_cast<ptrdiff_t>(std::min(heard.tokens.size(), lone.tokens.size())));
            EXPECT_EQ(heard.tokens, begin) << i;
            continue;
        }
        ASSERT_TRUE(heard.done && lone.done) << i << ": " << (heard.failed ? heard.failed->message : "");
        EXPECT_EQ(heard.tokens, lone.tokens) << i;
        EXPECT_EQ(heard.done->reason, lone.done->reason) << i;
        ++reasons[heard.done->reason];
        for (size_t t = 0; t < heard.sampled.size() && asked[i].sampling.logprobs >= 0; ++t)
            EXPECT_EQ(heard.sampled[t].logprob, lone.sampled.at(t).logprob) << i << ", token " << t;
        if (all_kept) {
            EXPECT_EQ(came[i].kept, expected[i].kept) << i;
            EXPECT_GE(came[i].kept, std::ssize(asked[i].prompt) + std::ssize(heard.tokens) - 1) << i;
        }
        if (came[i].kept != expected[i].kept) continue;
        EXPECT_EQ(came[i].state, expected[i].state) << "the state of answer " << i << ", of " << came[i].kept;
        ++kept;
    }
    EXPECT_GT(reasons[FinishReason::stop_id], fewer(1, 0));
    EXPECT_GT(reasons[FinishReason::length], fewer(3, 0));
    EXPECT_GT(kept, fewer<int64_t>(std::ssize(asked) / 4, 0));
}

class HybridLoop : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, HybridLoop, ::testing::Values("bf16", "q4_k_m"),
                         [](const auto& test) { return test.param; });

TEST_P(HybridLoop, a_device_that_runs_ahead_leaves_the_answers_and_the_state_of_lone_steps) {
    Forms forms;
    std::mt19937 random(17);
    const EngineOptions o = loop_options();
    for (const int64_t follow_rows : {1, 2, 4}) {
        const bool alone = follow_rows == 1;
        HybridWorld ahead(GetParam(), o, follow_rows, 3), lone(GetParam(), o, 0, 4);
        std::vector<Asked> asked = varied_requests(forms, fewer<size_t>(kThreadSanitizer ? 12 : 36, 12), random);
        std::vector<Asked> uncut = asked;
        for (Asked& a : uncut) a.cancel_at = a.breaks_at = SIZE_MAX;
        std::vector<Came> expected = lone.answer(uncut, true), came = ahead.answer(asked, alone);
        expect_same_answers(asked, came, expected, true);
        // The next turns go on from what was kept.
        std::vector<Asked> turns;
        for (size_t i = 0; i < asked.size(); ++i) {
            if (!asked[i].whole()) continue;
            Asked next = asked[i];
            next.prompt.insert(next.prompt.end(), came[i].heard.tokens.begin(), came[i].heard.tokens.end());
            next.prompt.resize(static_cast<size_t>(came[i].kept));
            for (int k = 0; k < 5; ++k) next.prompt.push_back(static_cast<int32_t>(random() % 512));
            turns.push_back(std::move(next));
        }
        expected = lone.answer(turns, true), came = ahead.answer(turns, alone);
        expect_same_answers(turns, came, expected, true);
        for (size_t i = 0; i < turns.size(); ++i)
            EXPECT_EQ(came[i].heard.done->usage.cached, std::ssize(turns[i].prompt) - 5) << i;
        EXPECT_EQ(lone.launched.most_run, 0);
        EXPECT_GT(ahead.launched.most_run, fewer(8, 3));
        EXPECT_EQ(ahead.launched.most_pending, 2);
        EXPECT_GT(ahead.launched.formed_ahead, fewer(5, 1));
        const auto most_rows = static_cast<int64_t>(*ahead.launched.ahead.rbegin());
        EXPECT_LE(most_rows, follow_rows);
        EXPECT_GE(most_rows, follow_rows < 4 ? 1 : fewer(3, 1));
    }
}

TEST_P(HybridLoop, who_is_driven_out_gets_the_same_answer_and_state) {
    Forms forms;
    std::mt19937 random(23);
    EngineOptions o = loop_options();
    o.context = 160;
    HybridWorld lone(GetParam(), o, 0, 5);
    o.kv_tokens = 160;
    HybridWorld ahead(GetParam(), o, o.max_running, 6);
    const std::vector<Asked> asked = varied_requests(forms, fewer<size_t>(kThreadSanitizer ? 12 : 40, 12), random);
    std::vector<Asked> uncut = asked;
    for (Asked& a : uncut) a.cancel_at = a.breaks_at = SIZE_MAX;
    const std::vector<Came> expected = lone.answer(uncut, true), came = ahead.answer(asked, false);
    for (size_t i = 0; i < asked.size(); ++i) {
        if (!asked[i].whole()) continue;
        ASSERT_TRUE(came[i].heard.done) << i;
        EXPECT_EQ(came[i].heard.tokens, expected[i].heard.tokens) << i;
        if (came[i].kept == expected[i].kept) {
            EXPECT_EQ(came[i].state, expected[i].state) << i;
        }
    }
    EXPECT_GT(ahead.stats().preempted, fewer(0, -1));
    EXPECT_GT(ahead.launched.most_run, 1);
}

TEST_P(HybridLoop, masks_found_beside_the_engines_thread_leave_the_answers_and_the_state_of_lone_steps) {
    Forms forms;
    std::mt19937 random(29);
    const EngineOptions o = loop_options();
    for (const int64_t follow_rows : {0, 1, 4}) {
        HybridWorld aside(GetParam(), o, follow_rows, 7), lone(GetParam(), o, 0, 8);
        aside.loop().use_mask_steps({.mask = 0, .step = 0});
        std::vector<Asked> asked = varied_requests(forms, fewer<size_t>(kThreadSanitizer ? 12 : 24, 12), random);
        for (size_t i = 0; i < asked.size(); i += 2)
            asked[i].constraint = forms.regex(fmt::format("[a-z0-9 ]{{20,{}}}[.!?]", 50 + follow_rows));
        std::vector<Asked> uncut = asked;
        for (Asked& a : uncut) a.cancel_at = a.breaks_at = SIZE_MAX;
        const std::vector<Came> came = aside.answer(asked, false);  // first, so that no mask is known
        expect_same_answers(asked, came, lone.answer(uncut, true), true);
        EXPECT_GT(aside.stats().masks_aside, 20);
    }
}

/// A hybrid whose logits are NaN behind a certain token.
class DamagedHybrid final : public Model {
  public:
    explicit DamagedHybrid(int32_t trouble) : trouble_(trouble) {}
    const ModelInfo& info() const override { return model_->info(); }
    std::span<const StateSpec> state_specs() const override { return model_->state_specs(); }
    Workspace workspace() const override { return model_->workspace(); }
    Tensor embed(Context& ctx, const Batch& batch) const override { return model_->embed(ctx, batch); }
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override {
        model_->layer(ctx, l, x, batch, states);
    }
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override {
        Tensor all = model_->logits(ctx, x, batch);
        for (size_t i = 0; i < batch.logit_rows.size(); ++i)
            if (batch.tokens[static_cast<size_t>(batch.logit_rows[i])] == trouble_)
                all.row(static_cast<int64_t>(i))[5] = std::numeric_limits<float>::quiet_NaN();
        return all;
    }

  private:
    int32_t trouble_;
    std::unique_ptr<Checkpoint> checkpoint_ = SeededHybrid::open("bf16");
    std::unique_ptr<Model> model_ = load_model(*checkpoint_);
};

TEST(HybridLoop, an_answer_that_fails_in_the_middle_leaves_the_others_alone) {
    RT_CPU_ONLY("a model without a checkpoint");
    Forms forms;
    std::mt19937 random(29);
    std::vector<Asked> asked = varied_requests(forms, kThreadSanitizer ? 12 : 40, random);
    for (Asked& a : asked) a.cancel_at = a.breaks_at = SIZE_MAX;
    const std::vector<Came> expected = HybridWorld("bf16", loop_options(), 0, 7).answer(asked, true);
    const std::vector<int32_t>& some = expected[4].heard.tokens;
    ASSERT_GT(some.size(), 8u);
    const int32_t trouble = some[some.size() / 2];
    HybridWorld world(std::make_unique<DamagedHybrid>(trouble), loop_options(), 4, 8);
    const std::vector<Came> came = world.answer(asked, false);
    int failed = 0, answered = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
        std::vector<int32_t> tokens = expected[i].heard.tokens;
        const auto at = std::find(tokens.begin(), tokens.end(), trouble);
        const bool fails =
            asked[i].prompt.back() == trouble ||
            (at != tokens.end() && (at + 1 != tokens.end() || expected[i].heard.done->reason == FinishReason::stop_id));
        if (fails) tokens.resize(asked[i].prompt.back() == trouble ? 0 : static_cast<size_t>(at + 1 - tokens.begin()));
        EXPECT_EQ(came[i].heard.failed.has_value(), fails) << i;
        EXPECT_EQ(came[i].heard.tokens, tokens) << i;
        (fails ? failed : answered) += 1;
    }
    EXPECT_GT(failed, 0);
    EXPECT_GT(answered, 10);
    EXPECT_GT(world.launched.most_run, 8);
}

}  // namespace
}  // namespace riptide::testing
