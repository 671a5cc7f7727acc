// The PFlash scorer on small Qwen3 models with random weights: against the model's own forward pass, and against
// itself.
#include "models/scorer.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "ops/scoring/window_mass.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

constexpr int64_t kKeyBlock = ops::kSparseBlock;

/// A scorer with a context of its own.
class Scoring {
  public:
    explicit Scoring(const std::string& name, const ScorerOptions& options = {}, int threads = 2)
        : checkpoint_(open_checkpoint(fixture_path(name) + "/model.safetensors")),
          threads_(threads),
          arena_(int64_t{16} << 20, test_gpu()),
          scorer(*checkpoint_, options, test_gpu()) {
        context.gpu = test_gpu();
        context.threads = &threads_;
        context.arena = &arena_;
    }
    std::vector<float> score(std::span<const int32_t> tokens, std::span<const QueryWindow> windows,
                             ScoredPrefix* prefix = nullptr) {
        return scorer.score(context, tokens, windows, prefix);
    }

  private:
    std::unique_ptr<Checkpoint> checkpoint_;
    ThreadPool threads_;
    Arena arena_;

  public:
    Scorer scorer;
    Context context;
};

/// Sparse enough that prompts of a few blocks leave some out.
ScorerOptions tight(int64_t chunk_rows = 8192) {
    ScorerOptions o;
    o.sparse = {.sink_blocks = 1, .window_blocks = 1, .alpha = 0.5f, .most_blocks = 1, .full_below = 1};
    o.last_blocks = 1;
    o.chunk_rows = chunk_rows;
    return o;
}
ScorerOptions everything() {
    ScorerOptions o;
    o.sparse.full_below = INT32_MAX;
    return o;
}

std::vector<int32_t> some_tokens(int64_t n, uint64_t seed, int32_t vocab = 128) {
    std::mt19937_64 rng(seed);
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
    return tokens;
}

constexpr double kScoreDeviations = 4;  // of the errors that rounding.h estimates

class ScorerTest : public ::testing::TestWithParam<std::string> {
  protected:
    Fixture fixture{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, ScorerTest, ::testing::Values("qwen3_tied", "qwen3_untied"), fixture_name);

/// Both passes round on their own.
OperandRounding rounding() {
    return test_gpu() == nullptr ? OperandRounding::none()
                                 : OperandRounding::prefill(true) + OperandRounding::prefill(true);
}

TEST_P(ScorerTest, with_every_block_chosen_its_layers_are_the_models) {
    const auto session = fixture.session();
    const std::vector<int32_t> tokens = some_tokens(4 * kKeyBlock + 50, 1);
    const Pass dense = forward_pass(*session, tokens, Family::prefill);
    Scoring world(fixture.name, everything());
    std::map<std::string, std::vector<float>> taps;
    world.context.tap = [&](std::string_view name, int layer, const Tensor& value) {
        std::vector<float>& rows = taps[fmt::format("tap.{}.{}", layer, name)];
        rows.insert(rows.end(), value.row(0), value.row(0) + value.elements());
    };
    const QueryWindow window{std::ssize(tokens) - 8, std::ssize(tokens), 1};
    world.score(tokens, {&window, 1});
    const auto width = static_cast<size_t>(session->model().info().hidden_size);
    const Variance variance = Variance::of(*open_checkpoint(fixture.model_path()), std::ssize(tokens), rounding());
    double most = 0;
    for (int64_t l = 0; l + 1 < session->model().info().num_hidden_layers; ++l) {  // the last layer has keys alone
        const std::string key = fmt::format("tap.{}.layer_out", l);
        ASSERT_EQ(taps[key].size(), dense.taps.at(key).size()) << key;
        for (size_t r = 0; r < tokens.size(); ++r) {
            const auto expected = row_at(dense.taps.at(key), r, width);
            const double share =
                distance(row_at(taps[key], r, width), expected) /
                (kScoreDeviations * std::sqrt(2 * variance.through[static_cast<size_t>(l)]) * norm2(expected));
            ASSERT_LE(share, 1) << key << ", row " << r;
            most = std::max(most, share);
        }
    }
    fmt::print("{}: used {:.3f} of the bound\n", fixture.name, most);
    EXPECT_GE(most, 0.02) << "the bound is too loose";
}

/// What the formulas of models/scorer.h give, in double, from the stream x[l] that goes into each layer.
std::vector<double> reference(const Qwen3& model, const std::vector<std::vector<float>>& x, int64_t n,
                              std::span<const int32_t> layers, std::span<const QueryWindow> windows, double* product) {
    const Qwen3Config& c = model.config();
    const int64_t D = c.hidden_size, d = c.head_dim;
    *product = 0;
    const auto heads_of = [&](const Weight& w, std::span<const float> input_norm, std::span<const float> norm,
                              const float* row) {
        std::vector<double> h(static_cast<size_t>(D)), y(static_cast<size_t>(w.rows));
        double squares = 0;
        for (int64_t i = 0; i < D; ++i) squares += double{row[i]} * row[i];
        for (int64_t i = 0; i < D; ++i)
            h[static_cast<size_t>(i)] = input_norm[static_cast<size_t>(i)] * row[i] /
                                        std::sqrt(squares / static_cast<double>(D) + c.rms_norm_eps);
        const auto weights = matrix_rows(w);
        for (size_t o = 0; o < y.size(); ++o) y[o] = std::inner_product(h.begin(), h.end(), weights[o].begin(), 0.0);
        std::vector<float> out(y.size());
        for (size_t first = 0; first < y.size(); first += static_cast<size_t>(d)) {
            squares = 0;
            for (size_t e = first; e < first + static_cast<size_t>(d); ++e) squares += y[e] * y[e];
            for (size_t e = first; e < first + static_cast<size_t>(d); ++e)
                out[e] = static_cast<float>(norm[e - first] * y[e] /
                                            std::sqrt(squares / static_cast<double>(d) + c.rms_norm_eps));
        }
        return out;
    };
    std::vector<double> score(static_cast<size_t>(n)), mass(static_cast<size_t>(n));
    std::vector<std::vector<double>> masses(windows.size(), score);
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
    for (const int32_t l : layers) {
        const Qwen3::Layer& w = model.weights(l);
        std::vector<float> keys;
        for (int64_t j = 0; j < n; ++j) {
            const auto k =
                heads_of(w.wk, w.attn_norm, w.k_norm, &x[static_cast<size_t>(l)][static_cast<size_t>(j * D)]);
            keys.insert(keys.end(), k.begin(), k.end());
        }
        for (size_t i = 0; i < windows.size(); ++i) {
            std::vector<float> q;
            for (int64_t t = windows[i].begin; t < windows[i].end; ++t) {
                const auto row =
                    heads_of(w.wq, w.attn_norm, w.q_norm, &x[static_cast<size_t>(l)][static_cast<size_t>(t * D)]);
                q.insert(q.end(), row.begin(), row.end());
            }
            ops::window_mass_ref<double>(q.data(), windows[i].end - windows[i].begin, c.num_attention_heads,
                                         keys.data(), c.num_key_value_heads, d, windows[i].begin, n, scale,
                                         mass.data());
            for (size_t j = 0; j < mass.size(); ++j) masses[i][j] += mass[j];
            double largest_q = 0, largest_k = 0;
            for (auto at = q.begin(); at != q.end(); at += d)
                largest_q = std::max(largest_q, norm2({&*at, static_cast<size_t>(d)}));
            for (auto at = keys.begin(); at != keys.end(); at += d)
                largest_k = std::max(largest_k, norm2({&*at, static_cast<size_t>(d)}));
            *product = std::max(*product, scale * largest_q * largest_k);
        }
    }
    double weights = 0;
    for (const QueryWindow& w : windows) weights += w.weight;
    for (size_t i = 0; i < windows.size(); ++i) {
        for (const QueryWindow& w : windows) std::fill(masses[i].begin() + w.begin, masses[i].begin() + w.end, 0.0);
        const double sum = std::accumulate(masses[i].begin(), masses[i].end(), 0.0);
        for (size_t j = 0; j < score.size(); ++j) score[j] += windows[i].weight / weights * masses[i][j] / sum;
    }
    return score;
}

TEST_P(ScorerTest, scores_are_those_of_the_formulas) {
    const std::vector<int32_t> tokens = some_tokens(3 * kKeyBlock - 11, 2);
    const int64_t n = std::ssize(tokens);
    const QueryWindow windows[] = {{n - 5, n, 1}, {40, 47, 0.5f}, {200, 201, 0.25f}};
    const auto session = fixture.session();
    const std::vector<float> embedded = forward_pass(*session, tokens, Family::prefill).taps.at("tap.embed");
    const auto checkpoint = open_checkpoint(fixture.model_path());
    const Qwen3 on_host(*checkpoint, {});
    double most = 0;
    for (const std::vector<int32_t>& layers : {std::vector<int32_t>{0, 1, 2}, {1}, {0, 2}}) {
        ScorerOptions options = everything();
        options.score_layers = layers;
        Scoring world(fixture.name, options);
        std::vector<std::vector<float>> x = {embedded};  // the scorer's own stream: the test above judges it
        world.context.tap = [&](std::string_view, int layer, const Tensor& value) {
            x.resize(static_cast<size_t>(layer) + 2);
            x.back().insert(x.back().end(), value.row(0), value.row(0) + value.elements());
        };
        const std::vector<float> scores = world.score(tokens, windows);
        double product = 0;
        const std::vector<double> expected = reference(on_host, x, n, layers, windows, &product);
        // q and k come from sums of D, D and d products in 16 lanes (and bf16 operands on a GPU, and f16 keys and
        // queries): errors without a preferred direction, so that a score is off by their share of |q| |k| over
        // sqrt(d). A mass of 1 that is shared out by exp of the scores moves by twice that; rows and heads are
        // averaged, so that two deviations are enough.
        const OperandRounding own = test_gpu() == nullptr ? OperandRounding::none() : OperandRounding::prefill(true);
        const double D = 64, d = 24;
        const double vector =
            std::sqrt(0x1p-48 * ((D + D + d + d) / 16 + 4) + 2 * own.product() + own.attention * own.attention);
        const double allowed = 2 * 2 * std::sqrt(2.0 / d) * vector * product + 0x1p-24;
        double off = 0, sum = 0;
        for (size_t j = 0; j < scores.size(); ++j) {
            off += std::abs(scores[j] - expected[j]);
            sum += double{scores[j]};
            ASSERT_GE(scores[j], 0) << j;
        }
        EXPECT_LE(off, allowed) << fmt::format("{} scoring layers", layers.size());
        EXPECT_NEAR(sum, 1, 1e-5);
        for (const QueryWindow& w : windows)
            for (int64_t j = w.begin; j < w.end; ++j) EXPECT_EQ(scores[static_cast<size_t>(j)], 0) << j;
        fmt::print("{}: off by {:.1e} of a mass of 1, allowed {:.1e}\n", fixture.name, off, allowed);
        most = std::max(most, off / allowed);
    }
    EXPECT_GE(most, 0.02) << "the bound is too loose";
}

TEST_P(ScorerTest, chunks_and_threads_give_the_same_bits) {
    const std::vector<int32_t> tokens = some_tokens(9 * kKeyBlock + 17, 3);
    const int64_t n = std::ssize(tokens);
    const QueryWindow windows[] = {{n - 9, n, 1}, {250, 260, 0.5f}};
    const std::vector<float> whole = Scoring(fixture.name, tight()).score(tokens, windows);
    for (const int64_t rows : {kKeyBlock, 4 * kKeyBlock}) {
        Scoring world(fixture.name, tight(rows), 1);
        expect_bits(world.score(tokens, windows), whole, fmt::format("chunks of {}", rows));
        expect_bits(world.score(tokens, windows), whole, "again");
    }
    const std::vector<float> dense = Scoring(fixture.name, everything()).score(tokens, windows);
    EXPECT_NE(dense, whole) << "nothing was left out: the test shows nothing";
}

// A conversation that grows, is edited, is cut back: always the bits of a prompt computed at once.
TEST_P(ScorerTest, a_growing_prompt_has_the_bits_of_a_whole_one) {
    ScorerOptions options = tight(4 * kKeyBlock);
    options.score_layers = {0, 2};
    Scoring world(fixture.name, options), other(fixture.name, options);
    ScoredPrefix prefix(world.scorer);
    std::vector<int32_t> tokens;
    std::vector<QueryWindow> windows;
    std::mt19937_64 rng(4);
    int64_t reused = 0;
    for (int turn = 0; turn < 14; ++turn) {
        if (turn % 5 == 4) {  // an edit: some tokens are other ones, what follows is gone
            tokens.resize(tokens.size() - std::min<size_t>(tokens.size() - 1, rng() % 500));
            tokens[tokens.size() / 2 + rng() % (tokens.size() / 2)] ^= 1;
        }
        const auto seed = rng();
        const auto more = some_tokens(static_cast<int64_t>(turn == 7 ? 1 : 30 + rng() % 400), seed);
        tokens.insert(tokens.end(), more.begin(), more.end());
        const int64_t n = std::ssize(tokens);
        std::erase_if(windows, [&](const QueryWindow& w) { return w.end > n - 8; });
        windows.push_back({n - 8, n, 1});
        if (windows.size() > 4) windows.erase(windows.begin());
        if (turn == 9)
            windows.insert(windows.begin(), {3, 5, 0.5f});  // one that no prompt before had: all is computed again
        const int64_t before = prefix.length();
        const std::vector<float> grown = world.score(tokens, windows, &prefix);
        expect_bits(grown, other.score(tokens, windows), fmt::format("turn {}, {} tokens", turn, n));
        EXPECT_LE(prefix.length(), n - n % kKeyBlock);
        EXPECT_GE(prefix.length() + 3 * kKeyBlock, n);
        reused += before;
    }
    EXPECT_GT(reused, 4000);
    EXPECT_GT(prefix.bytes(), 0);
    prefix.clear();
    EXPECT_EQ(prefix.length(), 0);
    EXPECT_EQ(prefix.bytes(), 0);
    expect_bits(world.score(tokens, windows, &prefix), other.score(tokens, windows), "after clear()");
}

TEST_P(ScorerTest, a_prefix_saves_the_rows_that_it_holds) {
    Scoring world(fixture.name, tight());
    ScoredPrefix prefix(world.scorer);
    int64_t rows = 0;
    world.context.tap = [&](std::string_view, int layer, const Tensor& value) {
        rows += layer == 0 ? value.rows() : 0;
    };
    std::vector<int32_t> tokens = some_tokens(10 * kKeyBlock + 3, 5);
    QueryWindow window{std::ssize(tokens) - 4, std::ssize(tokens), 1};
    world.score(tokens, {&window, 1}, &prefix);
    EXPECT_EQ(rows, std::ssize(tokens));
    EXPECT_EQ(prefix.length(), 10 * kKeyBlock);
    rows = 0;
    tokens.push_back(1);
    window = {std::ssize(tokens) - 4, std::ssize(tokens), 1};
    world.score(tokens, {&window, 1}, &prefix);
    EXPECT_EQ(rows, 4);
}

TEST_P(ScorerTest, layers_behind_the_last_scoring_one_do_not_run) {
    ScorerOptions options;
    options.score_layers = {1};
    Scoring world(fixture.name, options);
    std::vector<int> ran;
    world.context.tap = [&](std::string_view, int layer, const Tensor&) { ran.push_back(layer); };
    const std::vector<int32_t> tokens = some_tokens(50, 6);
    const QueryWindow window{40, 50, 1};
    world.score(tokens, {&window, 1});
    EXPECT_EQ(ran, std::vector<int>{0});
}

TEST(Scorer, refuses_what_cannot_be_scored) {
    Scoring world("qwen3_tied");
    const std::vector<int32_t> tokens = some_tokens(50, 7);
    std::vector<int32_t> foreign = tokens;
    foreign[3] = 128;
    struct Bad {
        const std::vector<int32_t>& tokens;
        std::vector<QueryWindow> windows;
        const char* says;
    };
    const std::vector<int32_t> none;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Bad bad[] = {
        {none, {{0, 1, 1}}, "a prompt of 0 tokens"},
        {tokens, {}, "no query window"},
        {tokens, {{3, 3, 1}}, "query window [3, 3)"},
        {tokens, {{-1, 3, 1}}, "query window [-1, 3)"},
        {tokens, {{48, 51, 1}}, "of a prompt of 50 tokens"},
        {tokens, {{40, 50, 1}, {30, 41, 1}}, "begins before 41"},
        {tokens, {{40, 50, 0}}, "has weight 0"},
        {tokens, {{40, 50, nan}}, "has weight nan"},
        {tokens, {{0, 50, 1}}, "none is left"},
        {foreign, {{40, 50, 1}}, "token 128 is not in the scorer's vocabulary of 128"},
    };
    for (const Bad& b : bad) {
        try {
            world.score(b.tokens, b.windows);
            ADD_FAILURE() << b.says;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(b.says), std::string::npos) << error.what();
        }
    }
    for (const auto& change : std::vector<void (*)(ScorerOptions&)>{
             [](ScorerOptions& o) { o.chunk_rows = 100; }, [](ScorerOptions& o) { o.score_layers = {3}; },
             [](ScorerOptions& o) {
                 o.score_layers = {1, 1};
             },
             [](ScorerOptions& o) { o.sparse.alpha = 1.5f; }, [](ScorerOptions& o) { o.sparse.window_blocks = 0; },
             [](ScorerOptions& o) { o.last_blocks = -1; }}) {
        ScorerOptions options;
        change(options);
        EXPECT_THROW(Scoring("qwen3_tied", options), Error);
    }
}

}  // namespace
}  // namespace riptide::testing
