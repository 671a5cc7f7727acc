// What it would do to answers to keep recurrent state in bf16: rounded here, from outside, after every token. A
// measurement for docs/results/qwen35.md (--full: 4,096 tokens a text), and a check that state is f32 now.
#include <bit>
#include <cmath>
#include <random>

#include "engine/session/session.h"
#include "tests/models/fixture.h"
#include "tests/test_device.h"

namespace riptide::testing {
namespace {

float round_to(float x, int dropped_bits) {
    const auto bits = std::bit_cast<uint32_t>(x), unit = uint32_t{1} << dropped_bits;
    const uint32_t rounded = bits + unit / 2 - 1 + ((bits >> dropped_bits) & 1);
    return std::bit_cast<float>(rounded & ~(unit - 1));
}

/// Every S of the session's sequence, to a float with so many bits less: 16 is bf16. Returns how many values changed.
int64_t round_state(Session& session, int dropped_bits) {
    int64_t changed = 0;
    for (const DeltaView& view : session.cache().delta().layers()) {
        float* const s = static_cast<float*>(view.state) + session.sequence().slot() * view.state_elements();
        for (int64_t i = 0; i < view.state_elements(); ++i) {
            const float rounded = round_to(s[i], dropped_bits);
            changed += rounded != s[i];
            s[i] = rounded;
        }
    }
    return changed;
}

/// ln of the probabilities.
std::vector<double> logprobs(std::span<const float> logits) {
    double largest = -INFINITY, sum = 0;
    for (const float v : logits) largest = std::max(largest, double{v});
    for (const float v : logits) sum += std::exp(v - largest);
    std::vector<double> out;
    for (const float v : logits) out.push_back(v - largest - std::log(sum));
    return out;
}

class StateRounding : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, StateRounding, ::testing::Values("qwen35_tied", "qwen35_moe"), fixture_name);

TEST_P(StateRounding, bf16_after_every_token_against_f32) {
    RT_CPU_ONLY("state is rounded in the host's memory");
    const int64_t count = full_counts() ? 4096 : 200;
    const Fixture fixture(GetParam());
    SessionOptions o;
    o.threads = 1;
    o.context = count + 8;
    o.k_dtype = o.v_dtype = DType::f32;
    const auto open = [&] { return Session::open(fixture.model_path(), o); };
    struct Text {
        const char* name;
        int noise;  // one of so many tokens is any other; 0: none
    };
    struct Kind {
        const char* name;
        int dropped_bits;
    };
    for (const Text& text : {Text{"its own greedy text", 0}, Text{"the same, every 30th token another", 30}}) {
        const auto exact = open();
        const Kind kinds[] = {{"bf16", 16}, {"f32 less 8 bits", 8}};
        std::vector<std::unique_ptr<Session>> rounded;
        for (size_t k = 0; k < std::size(kinds); ++k) rounded.push_back(open());
        std::mt19937 random(5);
        struct Sum {
            double kl = 0, worst = 0, loss = 0;
            int64_t agree = 0, changed = 0;
        };
        Sum sums[std::size(kinds)];
        double loss = 0;
        int32_t token = 3;
        for (int64_t t = 0; t < count; ++t) {
            const std::vector<double> p = logprobs(exact->decode(token));
            const auto best = static_cast<int32_t>(std::max_element(p.begin(), p.end()) - p.begin());
            const bool other = text.noise > 0 && random() % static_cast<uint32_t>(text.noise) == 0;
            const int32_t next = other ? static_cast<int32_t>(3 + random() % (p.size() - 3)) : best;
            loss -= p[static_cast<size_t>(next)];
            for (size_t k = 0; k < std::size(kinds); ++k) {
                const std::vector<double> q = logprobs(rounded[k]->decode(token));
                sums[k].changed += round_state(*rounded[k], kinds[k].dropped_bits);
                double kl = 0;
                for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
                sums[k].kl += kl;
                sums[k].worst = std::max(sums[k].worst, kl);
                sums[k].loss -= q[static_cast<size_t>(next)];
                sums[k].agree += std::max_element(q.begin(), q.end()) - q.begin() == best;
            }
            token = next;
        }
        const auto n = static_cast<double>(count);
        fmt::print("{}, {}, {} tokens: loss {:.6f}\n", GetParam(), text.name, count, loss / n);
        for (size_t k = 0; k < std::size(kinds); ++k) {
            fmt::print("  {}: loss {:+.2e}, KL {:.2e} a token, at most {:.2e}; {} of {} first choices alike\n",
                       kinds[k].name, (sums[k].loss - loss) / n, sums[k].kl / n, sums[k].worst, sums[k].agree, count);
            EXPECT_GT(sums[k].changed, 0);
            EXPECT_GE(sums[k].kl, 0);
            EXPECT_TRUE(std::isfinite(sums[k].kl));
        }
        EXPECT_GT(sums[0].kl, sums[1].kl) << "more digits should lose less";
    }
}

}  // namespace
}  // namespace riptide::testing
