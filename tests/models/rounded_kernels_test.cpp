// Kernels of a GPU that round the operands of their products, judged by the CPU, which transformers judges.
//
// A router that sees rounded activations now and then chooses another of two nearly equal experts, and from there on
// the two passes compute different things. So the CPU follows the GPU's choices, everything that both compute must
// agree within the bounds of rounding.h, and each choice that is not the CPU's own must lie within what rounding does
// to the scores. A rounding error has no preferred direction: it moves a product by |w| |error| / sqrt(D).
//
// The bounds count on errors that are passed on with a gain of about 1. Where what a head of Gated DeltaNet reads out
// of its state nearly cancels, the norm behind it has a larger one: a row of qwen35_moe has heads whose readout is 0.03
// and 0.06 of |S| |q|, an eighth and a quarter of what a random direction gives. There the gain is measured: passes of
// the CPU with other weights, each element off by a random error of the size of the rounding.
#include <random>

#include "ops/moe.h"
#include "quant/codec.h"
#include "tests/models/fake_checkpoint.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

constexpr double kKernelDeviations = 6;  // the largest of some 200,000 logits is expected at 4.7
constexpr int kSamples = 16;             // which know a standard deviation to 18 %

/// The checkpoint with all elements of matrices that are operands of products off by independent relative errors of
/// standard deviation `error`, uniform: to each product of a row they do what errors of the row's elements do.
FakeCheckpoint with_errors(const Checkpoint& checkpoint, double error, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-std::sqrt(3.0), std::sqrt(3.0));
    FakeCheckpoint out;
    out.metadata() = checkpoint.metadata();
    for (const TensorInfo& t : checkpoint.tensors()) {
        const bool operand = t.shape.size() >= 2 && t.name.find("embed_tokens") == std::string::npos &&
                             t.name.find("conv1d") == std::string::npos;
        if (!operand) {
            out.add_view(t.name, t.dtype, t.shape, t.bytes);
            continue;
        }
        int64_t elements = 1;
        for (const int64_t n : t.shape) elements *= n;
        std::vector<float> values(static_cast<size_t>(elements));
        dequantize(t.dtype, t.bytes.data(), values.data(), elements);
        for (float& v : values) v *= static_cast<float>(1 + error * uniform(random));
        out.add(t.name, DType::f32, t.shape, values);
    }
    return out;
}

struct Shares {
    double logits = 0, taps = 0, choices = 0;  // the largest, of their bounds
    int64_t rows = 0, rerouted = 0;            // rows of sparse layers; those with other experts than the CPU's
};

/// One prompt on both devices.
class Comparison {
  public:
    Comparison(Session& session, const Model& cpu, std::span<const int32_t> tokens, Family family,
               const OperandRounding& rounding)
        : checkpoint_(session.checkpoint()),
          D_(static_cast<size_t>(session.model().info().hidden_size)),
          layers_(static_cast<int>(session.model().info().num_hidden_layers)),
          seen_(forward_pass(session, tokens, family)),
          judge_(forward_pass(cpu, nullptr, tokens, Family::decode, &seen_)),
          plain_(Variance::of(checkpoint_, std::ssize(tokens))),
          variance_(Variance::of(checkpoint_, std::ssize(tokens), rounding)) {}

    /// Measures the gain of every row, in place of taking it to be 1.
    void measure(std::span<const int32_t> tokens, const OperandRounding& rounding) {
        const std::vector<std::vector<float>> w = head_rows(checkpoint_);
        head_error_.assign(judge_.logits.size() / w.size(), 0);
        for (uint32_t seed = 0; seed < kSamples; ++seed) {
            const FakeCheckpoint other = with_errors(checkpoint_, std::sqrt(rounding.product()), seed);
            const auto model = load_model(other);
            Pass sample = forward_pass(*model, nullptr, tokens, Family::decode, &seen_);
            for (const auto& [key, values] : sample.taps) {
                if (!key.ends_with("_out")) continue;
                std::vector<double>& errors = tap_errors_[key];
                errors.resize(values.size() / D_);
                for (size_t r = 0; r < errors.size(); ++r) {
                    const double d = distance(row_at(values, r, D_), row_at(judge_.taps[key], r, D_));
                    errors[r] += d * d / kSamples;
                }
            }
            for (size_t i = 0; i < judge_.logits.size(); ++i) {
                const double d = (double{sample.logits[i]} - judge_.logits[i]) / norm2(w[i % w.size()]);
                head_error_[i / w.size()] += d * d / (kSamples * static_cast<double>(w.size()));
            }
        }
    }

    void judge(Shares& shares) {
        judge_taps(shares);
        judge_logits(shares);
        for (int l = 0; l < layers_; ++l)
            if (!seen_.experts(l).empty()) judge_choices(l, shares);
    }

  private:
    void judge_taps(Shares& shares) {
        for (int l = 0; l < layers_; ++l)
            for (const char* name : {"attn_out", "ffn_out", "layer_out"}) {
                const std::string key = fmt::format("tap.{}.{}", l, name);
                const std::vector<float>&mine = seen_.taps[key], &theirs = judge_.taps[key];
                ASSERT_EQ(mine.size(), theirs.size()) << key;
                const std::vector<float>& residual = judge_.taps[fmt::format("tap.{}.layer_out", l)];
                for (size_t r = 0; r < theirs.size() / D_; ++r) {
                    const double allowed =
                        tap_errors_.empty()
                            ? 4 * std::sqrt(variance_.through[static_cast<size_t>(l)]) * norm2(row_at(residual, r, D_))
                            : kKernelDeviations * std::sqrt(tap_errors_[key][r]);
                    const double share = distance(row_at(mine, r, D_), row_at(theirs, r, D_)) / allowed;
                    EXPECT_LE(share, 1) << key << ", row " << r;
                    shares.taps = std::max(shares.taps, share);
                }
            }
    }

    void judge_logits(Shares& shares) {
        const std::vector<std::vector<float>> w = head_rows(checkpoint_);
        ASSERT_EQ(seen_.logits.size(), judge_.logits.size());
        for (size_t r = 0; r < judge_.logits.size() / w.size(); ++r) {
            const double x = norm2(row_at(judge_.taps["tap.norm"], r, D_));
            const double allowed =
                kKernelDeviations * (head_error_.empty()
                                         ? x * std::sqrt(plain_.head + spread(variance_.head - plain_.head))
                                         : std::sqrt(head_error_[r]));
            for (size_t v = 0; v < w.size(); ++v) {
                const size_t at = r * w.size() + v;
                const double share = std::abs(double{seen_.logits[at]} - judge_.logits[at]) / (allowed * norm2(w[v]));
                EXPECT_LE(share, 1) << "logit " << v << " of row " << r;
                shares.logits = std::max(shares.logits, share);
            }
        }
    }

    void judge_choices(int l, Shares& shares) {
        const ConfigReader outer = hf_config(checkpoint_);
        const bool hybrid = outer.has("text_config");  // Qwen3.5: softmax, which keeps the order of the logits
        const ConfigReader config = hybrid ? outer.child("text_config") : outer;
        const auto E = config.get<int64_t>("num_experts"), k = config.get<int64_t>("num_experts_per_tok");
        Binder bind(checkpoint_);
        const auto names = [&](std::initializer_list<std::string_view> all) {
            TensorNames out;
            for (const auto name : all)
                out.hf.push_back(fmt::format("model.{}layers.{}.{}", hybrid ? "language_model." : "", l, name));
            return out;
        };
        const auto D = static_cast<int64_t>(D_);
        const auto router = matrix_rows(bind.matrix(names({"mlp.gate.weight"}), E, D));
        const std::vector<float> bias =
            hybrid ? std::vector<float>()
                   : bind.vector(names({"mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"}), E);
        std::vector<float> norm = bind.vector(names({"post_attention_layernorm.weight"}), D);
        for (float& factor : norm) factor += hybrid ? 1 : 0;
        const std::vector<float>& logits = judge_.taps[fmt::format("tap.{}.router_logits", l)];
        const std::vector<int32_t> chosen = seen_.experts(l);
        std::vector<int32_t> own(static_cast<size_t>(k));
        std::vector<float> weights(static_cast<size_t>(k));
        for (size_t r = 0; r < logits.size() / static_cast<size_t>(E); ++r) {
            const auto scores = row_at(logits, r, static_cast<size_t>(E));
            const auto theirs = row_at(chosen, r, static_cast<size_t>(k));
            if (hybrid) ops::route_softmax_ref<float>(scores.data(), E, k, own.data(), weights.data());
            else ops::route_sigmoid_ref<float>(scores.data(), bias.data(), E, k, 1, false, own.data(), weights.data());
            const auto key = [&](int32_t e) {
                const auto i = static_cast<size_t>(e);
                return hybrid ? double{scores[i]} : 1 / (1 + std::exp(-double{scores[i]})) + bias[i];
            };
            const auto in = [](std::span<const int32_t> all, int32_t e) {
                return std::find(all.begin(), all.end(), e) != all.end();
            };
            const double h = input_norm(l, r, norm);
            bool rerouted = false;
            for (const int32_t mine : own)
                for (const int32_t other : theirs) {
                    if (in(theirs, mine) || in(own, other)) continue;
                    rerouted = true;
                    // A sigmoid moves by at most a quarter of its logit.
                    const double steep = (hybrid ? 1 : 0.25) * (norm2(router[static_cast<size_t>(mine)]) +
                                                                norm2(router[static_cast<size_t>(other)]));
                    const double allowed =
                        kKernelDeviations * h * steep * std::sqrt(spread(variance_.router[static_cast<size_t>(l)]));
                    const double share = (key(mine) - key(other)) / allowed;
                    EXPECT_LE(share, 1) << "layer " << l << ", row " << r << ": expert " << other << " in place of "
                                        << mine;
                    shares.choices = std::max(shares.choices, share);
                }
            ++shares.rows;
            shares.rerouted += rerouted;
        }
    }

    /// The norm of what the router of layer l reads in row r.
    double input_norm(int l, size_t r, const std::vector<float>& weight) {
        const auto before = row_at(judge_.taps[l == 0 ? "tap.embed" : fmt::format("tap.{}.layer_out", l - 1)], r, D_);
        const auto attention = row_at(judge_.taps[fmt::format("tap.{}.attn_out", l)], r, D_);
        double squares = 0, scaled = 0;
        for (size_t i = 0; i < D_; ++i) {
            const double x = double{before[i]} + attention[i];
            squares += x * x;
            scaled += x * x * weight[i] * weight[i];
        }
        return std::sqrt(scaled / squares * static_cast<double>(D_));
    }
    double spread(double variance) const { return variance / static_cast<double>(D_); }

    const Checkpoint& checkpoint_;
    size_t D_;
    int layers_;
    Pass seen_, judge_;
    Variance plain_, variance_;
    std::map<std::string, std::vector<double>> tap_errors_;  // measured variances of rows' distances; empty: none
    std::vector<double> head_error_;                         // of logits, by |w|
};

class RoundedTest : public ::testing::TestWithParam<std::string> {
  protected:
    Fixture fixture{GetParam()};
    bool floats() const {
        return std::find(float_fixtures().begin(), float_fixtures().end(), fixture.name) != float_fixtures().end();
    }
    void compare(Family family, const OperandRounding& rounding, bool measured = false) {
        const auto session = fixture.session();
        const auto cpu = load_model(session->checkpoint());
        Shares shares;
        for (const Prompt& prompt : fixture.prompts) {
            Comparison comparison(*session, *cpu, prompt.tokens, family, rounding);
            if (measured) comparison.measure(prompt.tokens, rounding);
            comparison.judge(shares);
        }
        fmt::print(
            "{}: used {:.3f} of the bound on logits, {:.3f} on taps; {} of {} rows have other experts, {:.3f} of "
            "that bound\n",
            fixture.name, shares.logits, shares.taps, shares.rerouted, shares.rows, shares.choices);
        EXPECT_GT(shares.logits, 0.02) << "the bound is too loose to mean anything";
    }
};
INSTANTIATE_TEST_SUITE_P(All, RoundedTest, ::testing::ValuesIn(all_fixtures()), fixture_name);

TEST_P(RoundedTest, prefill_computes_what_the_cpu_computes) {
    RT_GPU_ONLY();
    compare(Family::prefill, OperandRounding::prefill(floats()), GetParam() == "qwen35_moe");
}

/// Weights that decoding multiplies with int8 activations; for all others fixture_test.cpp is the judge.
class Int8Test : public RoundedTest {};
INSTANTIATE_TEST_SUITE_P(All, Int8Test, ::testing::Values("laguna_int4", "laguna_nvfp4"), fixture_name);

TEST_P(Int8Test, decoding_computes_what_the_cpu_computes) {
    RT_GPU_ONLY();
    compare(Family::decode, OperandRounding::int8());
}

}  // namespace
}  // namespace riptide::testing
