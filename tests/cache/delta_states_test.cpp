// Recurrent state follows what sequences keep of their steps, bit for bit.
#include "cache/delta_states.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cache/batch_builder.h"
#include "cache/kv_cache.h"
#include "cache/sequence_state.h"

namespace riptide {
namespace {

const std::vector<StateSpec> kSpecs = [] {
    StateSpec small, odd, paged{.kind = StateSpec::Kind::paged, .num_kv_heads = 1, .head_dim = 4};
    small.kind = odd.kind = StateSpec::Kind::delta;
    small.delta = {.key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 4, .conv_width = 4};
    odd.delta = {
        .heads = DeltaHeads::tiled, .key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 3, .conv_width = 2};
    return std::vector{small, paged, odd};
}();

/// Layers whose projections are functions of token and position.
class DeltaStatesWorld {
  public:
    explicit DeltaStatesWorld(int32_t sequences) : cache_(kSpecs, options(sequences)) {
        context_.arena = &arena_;
        for (const DeltaView& view : cache_.delta().views()) weights_.push_back(weights(view));
    }
    static KvCacheOptions options(int32_t sequences) {
        return {.k_dtype = DType::f32,
                .v_dtype = DType::f32,
                .page_rows = 4,
                .pages = 400,
                .max_sequences = sequences,
                .max_step_rows = 16};
    }
    KvCache& cache() { return cache_; }

    /// Runs a step of one or more sequences, and says which rows are whose.
    void run(std::span<const StepRows> steps, std::span<SequenceState* const> sequences, ops::DeltaMode mode) {
        for (size_t s = 0; s < steps.size(); ++s) ASSERT_TRUE(sequences[s]->try_reserve(std::ssize(steps[s].tokens)));
        const Batch& batch = builder_.build(steps);
        for (size_t s = 0; s < steps.size(); ++s)
            sequences[s]->begin_rows(batch.row_begin[s], batch.row_begin[s + 1] - batch.row_begin[s], mode);
        run_layers(batch, mode, {});
    }
    void run_layers(const Batch& batch, ops::DeltaMode mode, std::span<const int32_t> held) {
        arena_.reset();
        for (size_t l = 0; l < kSpecs.size(); ++l) {
            const DeltaView& view = cache_.delta().views()[l];
            if (view.conv_width == 0) continue;
            const int64_t n = batch.rows(), values = view.value_heads * view.value_dim;
            const ops::GatedDeltaInput in{.qkv = rows(batch, view.channels(), 1),
                                          .z = rows(batch, values, 2),
                                          .a = rows(batch, view.value_heads, 3),
                                          .b = rows(batch, view.value_heads, 4),
                                          .conv = weights_[l].conv,
                                          .decay = weights_[l].decay,
                                          .dt_bias = weights_[l].bias,
                                          .norm = {weights_[l].norm, 1e-6f}};
            ASSERT_EQ(ops::gated_delta(context_, in, view, batch, mode, held).rows(), n);
        }
    }
    /// Runs steps of some sequences that follow each other, as a device does by itself; tokens[i][s] is fed to sequence
    /// s in step i.
    void follow(std::span<SequenceState* const> sequences, const std::vector<std::vector<int32_t>>& tokens) {
        std::vector<StepRows> first;
        for (size_t s = 0; s < sequences.size(); ++s) {
            ASSERT_TRUE(sequences[s]->try_reserve(std::ssize(tokens)));
            first.push_back({.sequence = sequences[s], .tokens = std::span(tokens[0]).subspan(s, 1), .parents = {}});
        }
        Batch batch = builder_.build(first);
        cache_.delta().begin_step();
        std::vector<int32_t> committed;
        for (size_t s = 0; s < sequences.size(); ++s) {
            sequences[s]->begin_follow(static_cast<int64_t>(s));
            committed.push_back(static_cast<int32_t>(sequences[s]->length()));
        }
        std::vector<int32_t> held = committed;
        batch.positions = batch.committed = committed;
        for (const std::vector<int32_t>& fed : tokens) {
            batch.tokens = fed;
            run_layers(batch, ops::DeltaMode::follow, held);
            held = committed;
            for (int32_t& length : committed) ++length;
        }
    }
    void run(SequenceState& s, std::span<const int32_t> tokens, std::span<const int32_t> parents, ops::DeltaMode mode) {
        const StepRows step{.sequence = &s, .tokens = tokens, .parents = parents};
        SequenceState* const one = &s;
        run({&step, 1}, {&one, 1}, mode);
    }
    /// What the next token depends on.
    std::vector<float> state_of(const SequenceState& s) const {
        std::vector<float> all;
        for (const DeltaView& view : cache_.delta().views()) {
            if (view.conv_width == 0 || s.length() == 0) continue;
            const float* state = static_cast<const float*>(view.state) + s.slot() * view.state_elements();
            all.insert(all.end(), state, state + view.state_elements());
            for (int64_t p = std::max<int64_t>(0, s.length() - view.conv_width + 1); p < s.length(); ++p) {
                const float* column = view.conv + s.slot() * view.conv_floats() + view.conv_column(p) * view.channels();
                all.insert(all.end(), column, column + view.channels());
            }
        }
        return all;
    }

  private:
    struct LayerWeights {
        std::vector<float> conv, decay, bias, norm;
    };
    static LayerWeights weights(const DeltaView& view) {
        std::mt19937 random(9);
        std::normal_distribution<float> normal;
        LayerWeights w;
        for (int64_t i = 0; i < view.conv_floats(); ++i) w.conv.push_back(normal(random));
        for (int64_t h = 0; h < view.value_heads; ++h) {
            w.decay.push_back(-0.1f * static_cast<float>(h + 1));
            w.bias.push_back(normal(random));
        }
        w.norm.assign(static_cast<size_t>(view.value_dim), 1.0f);
        return w;
    }
    Tensor rows(const Batch& batch, int64_t width, uint32_t kind) {
        Tensor t = context_.alloc(DType::f32, {batch.rows(), width});
        for (int64_t r = 0; r < batch.rows(); ++r) {
            std::mt19937 random(static_cast<uint32_t>(batch.tokens[static_cast<size_t>(r)]) * 8 + kind);
            std::normal_distribution<float> normal;
            for (int64_t c = 0; c < width; ++c) t.row(r)[c] = normal(random);
        }
        return t;
    }

    KvCache cache_;
    Arena arena_;
    Context context_;
    BatchBuilder builder_;
    std::vector<LayerWeights> weights_;
};

/// A sequence, and the tokens that it should hold.
struct Tracked {
    SequenceState state;
    std::vector<int32_t> tokens;
};

class DeltaStatesTest : public ::testing::Test {
  protected:
    static constexpr int32_t kSequences = 4;
    DeltaStatesWorld world{kSequences + 1};
    std::mt19937 random{1};

    std::vector<int32_t> invent(size_t n) {
        std::vector<int32_t> tokens(n);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 1000);
        return tokens;
    }
    /// The state of a sequence that was fed the tokens one by one.
    std::vector<float> fresh(const std::vector<int32_t>& tokens) {
        SequenceState s(world.cache());
        for (const int32_t& token : tokens) {
            world.run(s, {&token, 1}, {}, ops::DeltaMode::stash);
            s.commit_prefix(1);
        }
        return world.state_of(s);
    }
    /// A step of any kind, kept as a whole, in part or not at all.
    void step(Tracked& t) {
        const std::vector<int32_t> tokens = invent(1 + random() % 12);
        const auto n = static_cast<int64_t>(tokens.size());
        if (random() % 3 == 0) {  // a prompt
            world.run(t.state, tokens, {}, ops::DeltaMode::update);
            if (random() % 4 == 0) return t.state.commit_prefix(0);  // it has failed
            t.state.commit_prefix(n);
            t.tokens.insert(t.tokens.end(), tokens.begin(), tokens.end());
            return;
        }
        std::vector<int32_t> parents, path;
        for (int32_t i = 0; i < n; ++i)
            parents.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(i + 1)) - 1);
        world.run(t.state, tokens, parents, ops::DeltaMode::stash);
        for (auto at = static_cast<int32_t>(random() % static_cast<uint32_t>(n + 1)) - 1; at >= 0;
             at = parents[static_cast<size_t>(at)])
            path.insert(path.begin(), at);
        t.state.commit(path);
        for (const int32_t row : path) t.tokens.push_back(tokens[static_cast<size_t>(row)]);
    }
};

TEST_F(DeltaStatesTest, state_is_that_of_feeding_the_kept_tokens_one_by_one) {
    std::vector<Tracked> all;
    for (int i = 0; i < kSequences; ++i) all.push_back({SequenceState(world.cache()), {}});
    for (int round = 0; round < 120; ++round) {
        Tracked& t = all[random() % all.size()];
        const uint32_t what = random() % 12;
        if (what == 0 && !t.tokens.empty()) {  // another takes its place
            Tracked& other = all[random() % all.size()];
            if (&other == &t) continue;
            other = {SequenceState(std::move(other.state)), {}};
            other.state.truncate(0);
            const SavedState saved = t.state.save();
            other.state.restore(saved, t.state.pages());
            other.tokens = t.tokens;
        } else if (what == 1 && !t.tokens.empty()) {  // there and back
            const SavedState saved = t.state.save();
            const std::vector<int32_t> before = t.tokens;
            step(t);
            if (t.state.length() >= std::ssize(before)) t.state.restore(saved), t.tokens = before;
        } else if (what == 2) {
            t.state.truncate(0);
            t.tokens.clear();
        } else if (what < 5) {  // the last step may have been one too many
            std::vector<int32_t> tokens(1 + random() % 6);
            for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 1000);
            const size_t kept = tokens.size() - random() % 2;
            std::vector<std::vector<int32_t>> steps;
            for (const int32_t token : tokens) steps.push_back({token});
            SequenceState* const one = &t.state;
            world.follow({&one, 1}, steps);
            t.state.commit_followed(static_cast<int64_t>(kept), std::ssize(tokens));
            t.tokens.insert(t.tokens.end(), tokens.begin(), tokens.begin() + static_cast<int64_t>(kept));
        } else {
            step(t);
        }
        ASSERT_EQ(t.state.length(), std::ssize(t.tokens));
        ASSERT_EQ(world.state_of(t.state), fresh(t.tokens)) << "round " << round;
    }
}

TEST_F(DeltaStatesTest, sequences_of_one_step_commit_their_own_rows) {
    std::vector<Tracked> all;
    for (int i = 0; i < kSequences; ++i) all.push_back({SequenceState(world.cache()), {}});
    for (int round = 0; round < 10; ++round) {
        std::vector<std::vector<int32_t>> tokens;
        std::vector<StepRows> rows;
        std::vector<SequenceState*> sequences;
        for (Tracked& t : all) {
            tokens.push_back(invent(1 + random() % 3));
            sequences.push_back(&t.state);
        }
        for (size_t i = 0; i < all.size(); ++i) rows.push_back({.sequence = &all[i].state, .tokens = tokens[i]});
        world.run(rows, sequences, ops::DeltaMode::stash);
        for (size_t i = 0; i < all.size(); ++i) {
            const auto keep = static_cast<int64_t>(random() % (tokens[i].size() + 1));
            all[i].state.commit_prefix(keep);
            all[i].tokens.insert(all[i].tokens.end(), tokens[i].begin(), tokens[i].begin() + keep);
        }
        for (const Tracked& t : all) ASSERT_EQ(world.state_of(t.state), fresh(t.tokens));
    }
}

TEST_F(DeltaStatesTest, sequences_whose_steps_follow_each_other_commit_their_own_rows) {
    std::vector<Tracked> all;
    for (int i = 0; i < kSequences; ++i) all.push_back({SequenceState(world.cache()), {}});
    for (int round = 0; round < 20; ++round) {
        step(all[random() % all.size()]);  // so that their lengths differ
        std::vector<SequenceState*> sequences;
        for (Tracked& t : all) sequences.push_back(&t.state);
        std::vector<std::vector<int32_t>> tokens(1 + random() % 5);
        for (std::vector<int32_t>& fed : tokens) fed = invent(all.size());
        world.follow(sequences, tokens);
        std::vector<SequenceState::Followed> followed;
        for (size_t s = 0; s < all.size(); ++s) {
            const size_t kept = tokens.size() - random() % 2;
            followed.push_back({&all[s].state, static_cast<int64_t>(kept)});
            for (size_t i = 0; i < kept; ++i) all[s].tokens.push_back(tokens[i][s]);
        }
        SequenceState::commit_followed_states(followed, std::ssize(tokens));
        for (size_t s = all.size(); s-- > 0;) {
            all[s].state.commit_prefix(std::ssize(all[s].tokens) - all[s].state.length());
            ASSERT_EQ(world.state_of(all[s].state), fresh(all[s].tokens)) << "round " << round << ", sequence " << s;
        }
    }
}

TEST_F(DeltaStatesTest, a_fork_goes_its_own_way) {
    Tracked a{SequenceState(world.cache()), {}};
    for (int i = 0; i < 6; ++i) step(a);
    Tracked b{a.state.fork(), a.tokens};
    step(a);
    step(b);
    EXPECT_EQ(world.state_of(a.state), fresh(a.tokens));
    EXPECT_EQ(world.state_of(b.state), fresh(b.tokens));
}

TEST_F(DeltaStatesTest, a_state_cannot_be_shortened) {
    SequenceState s(world.cache());
    const std::vector<int32_t> tokens = invent(9);
    world.run(s, tokens, {}, ops::DeltaMode::update);
    s.commit_prefix(9);
    EXPECT_TRUE(s.can_truncate(9));
    EXPECT_FALSE(s.can_truncate(8));
    EXPECT_TRUE(s.can_truncate(0));
    EXPECT_THROW(s.truncate(8), Error);
}

TEST_F(DeltaStatesTest, a_step_that_is_begun_again_begins_where_the_first_did) {
    SequenceState s(world.cache());
    const std::vector<int32_t> first = invent(5), lost = invent(7), kept = invent(3);
    world.run(s, first, {}, ops::DeltaMode::update);
    s.commit_prefix(5);
    world.run(s, lost, {}, ops::DeltaMode::update);  // fails behind the op, and its rows are run in another step
    world.run(s, kept, {}, ops::DeltaMode::update);
    s.commit_prefix(3);
    std::vector<int32_t> all = first;
    all.insert(all.end(), kept.begin(), kept.end());
    EXPECT_EQ(world.state_of(s), fresh(all));
}

}  // namespace
}  // namespace riptide
