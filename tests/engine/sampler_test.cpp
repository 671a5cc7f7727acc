// The sampler draws exactly from the distribution that its header defines.
#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <span>

#include "base/error.h"
#include "engine/sampling/logits_hash.h"
#include "ops/noise.h"
#include "tests/engine/distribution.h"

namespace riptide::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
std::vector<float> random_logits(size_t n, unsigned seed, double spread = 2) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, spread);
    std::vector<float> logits(n);
    for (float& logit : logits) logit = static_cast<float>(normal(random));
    return logits;
}

std::vector<double> widened(const std::vector<float>& logits) { return {logits.begin(), logits.end()}; }

Distribution distribution(Sampler& sampler, const std::vector<float>& logits) {
    const auto pairs = sampler.distribution(logits);
    return {pairs.begin(), pairs.end()};
}

void expect_equal_weights(const Distribution& a, const Distribution& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [token, p] : b) {
        ASSERT_TRUE(a.contains(token)) << token;
        EXPECT_NEAR(a.at(token), p, 1e-12) << token;
    }
}

/// Draws at positions 0 .. n-1 and compares with p; tokens of expected count below 20 are pooled.
void expect_drawn_from(Sampler& sampler, const std::vector<float>& logits, const Distribution& p,
                       int64_t first_position = 0) {
    constexpr int kDraws = 300000;
    std::map<int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits, first_position + i).token];
    for (const auto& [token, n] : counts)
        ASSERT_TRUE(p.contains(token)) << "token " << token << " was drawn " << n << " times";
    ChiSquare test;
    test.add(counts, p, kDraws);
    ASSERT_GE(test.cells, 2);
    EXPECT_LT(test.value, test.limit()) << test.cells << " cells";
}

std::vector<SamplingParams> many_params() {
    std::vector<SamplingParams> all;
    for (const double temperature : {0.3, 1.0, 1.7})
        for (const int64_t top_k : {0, 1, 5, 40})
            for (const double top_p : {0.1, 0.5, 0.9, 1.0})
                for (const double min_p : {0.0, 0.02, 0.3}) {
                    SamplingParams s;
                    s.temperature = temperature;
                    s.top_k = top_k;
                    s.top_p = top_p;
                    s.min_p = min_p;
                    all.push_back(s);
                }
    return all;
}

TEST(Sampler, filters_give_the_defined_distribution) {
    for (const size_t size : {1u, 2u, 33u, 500u}) {
        const std::vector<float> logits = random_logits(size, static_cast<unsigned>(size));
        for (const SamplingParams& s : many_params()) {
            Sampler sampler(s, std::ssize(logits));
            expect_equal_weights(distribution(sampler, logits), exact(widened(logits), s));
        }
    }
}

TEST(Sampler, draws_follow_the_distribution) {
    const std::vector<float> logits = random_logits(64, 5, 1);
    unsigned i = 0;
    for (const double temperature : {0.5, 1.0, 2.0})
        for (const int64_t top_k : {0, 8}) {
            SamplingParams s;
            s.temperature = temperature;
            s.top_k = top_k;
            s.top_p = i % 2 == 0 ? 1.0 : 0.9;
            s.seed = 1000 + i++;
            Sampler sampler(s, 64);
            expect_drawn_from(sampler, logits, exact(widened(logits), s));
        }
}

// Two draws at neighbouring positions are independent: a joint table of 8 x 8.
TEST(Sampler, draws_at_neighbouring_positions_are_independent) {
    const std::vector<float> logits = random_logits(8, 9, 0.7);
    SamplingParams s;
    s.seed = 77;
    Sampler sampler(s, 8);
    const Distribution p = exact(widened(logits), s);
    constexpr int kPairs = 300000;
    std::map<std::pair<int32_t, int32_t>, int> counts;
    for (int i = 0; i < kPairs; ++i)
        ++counts[{sampler.sample(logits, 2 * i).token, sampler.sample(logits, 2 * i + 1).token}];
    double chi2 = 0;
    for (const auto& [a, pa] : p)
        for (const auto& [b, pb] : p) {
            const double expected = pa * pb * kPairs;
            chi2 += std::pow(counts[{a, b}] - expected, 2) / expected;
        }
    EXPECT_LT(chi2, chi2_limit(63));
}

TEST(Sampler, seeds_are_independent_too) {
    const std::vector<float> logits = random_logits(16, 4);
    std::map<int32_t, int> counts;
    SamplingParams s;
    const Distribution p = exact(widened(logits), s);
    constexpr int kDraws = 100000;
    for (int i = 0; i < kDraws; ++i) {
        s.seed = static_cast<uint64_t>(i);
        ++counts[Sampler(s, 16).sample(logits, 3).token];
    }
    double chi2 = 0;
    for (const auto& [token, probability] : p)
        chi2 += std::pow(counts[token] - probability * kDraws, 2) / (probability * kDraws);
    EXPECT_LT(chi2, chi2_limit(15));
}

TEST(Sampler, a_draw_depends_on_seed_and_position_alone) {
    const std::vector<float> logits = random_logits(200, 11);
    SamplingParams s;
    s.seed = 3;
    Sampler forward(s, 200), backward(s, 200);
    std::vector<int32_t> a, b;
    for (int i = 0; i < 200; ++i) a.push_back(forward.sample(logits, i).token);
    for (int i = 199; i >= 0; --i) b.insert(b.begin(), backward.sample(logits, i).token);
    EXPECT_EQ(a, b);
    s.seed = 4;
    std::vector<int32_t> c;
    Sampler other(s, 200);
    for (int i = 0; i < 200; ++i) c.push_back(other.sample(logits, i).token);
    EXPECT_NE(a, c);
}

// The coupling that speculation builds on: where truncation keeps the drawn token, it stays the drawn token.
TEST(Sampler, a_truncated_distribution_draws_the_same_token_if_it_still_can) {
    const std::vector<float> logits = random_logits(100, 12);
    SamplingParams s, truncated;
    s.seed = truncated.seed = 9;
    truncated.top_k = 20;
    Sampler all(s, 100), some(truncated, 100);
    const Distribution kept = exact(widened(logits), truncated);
    int compared = 0;
    for (int i = 0; i < 2000; ++i) {
        const int32_t token = all.sample(logits, i).token;
        if (!kept.contains(token)) continue;
        EXPECT_EQ(some.sample(logits, i).token, token);
        ++compared;
    }
    EXPECT_GT(compared, 1000);
}

TEST(Sampler, temperature_0_is_the_largest_logit_and_the_lowest_id_of_equals) {
    SamplingParams s;
    s.temperature = 0;
    s.top_k = 3;
    s.top_p = 0.1;
    s.logprobs = 0;
    Sampler sampler(s, 5);
    const std::vector<float> logits = {1, 4, 2, 4, -kInfinity};
    for (int position = 0; position < 50; ++position) EXPECT_EQ(sampler.sample(logits, position).token, 1);
    EXPECT_EQ(sampler.sample(logits, 0).sampling_logprob, 0);
    expect_equal_weights(distribution(sampler, logits), {{1, 1.0}});
}

TEST(Sampler, ties_with_the_kth_logit_stay) {
    SamplingParams s;
    s.top_k = 2;
    Sampler sampler(s, 5);
    expect_equal_weights(distribution(sampler, {3, 1, 1, 0, 1}), exact({3, 1, 1, 0, 1}, s));
    EXPECT_EQ(distribution(sampler, {3, 1, 1, 0, 1}).size(), 4u);
}

TEST(Sampler, top_p_takes_lower_ids_first_among_equals) {
    SamplingParams s;
    s.top_p = 0.5;
    Sampler sampler(s, 4);
    expect_equal_weights(distribution(sampler, {1, 1, 1, 1}), {{0, 0.5}, {1, 0.5}});
}

// With the filters in another order these would differ.
TEST(Sampler, top_k_comes_before_top_p_and_temperature_between) {
    const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
    SamplingParams s;
    s.top_k = 2;
    s.top_p = 0.55;  // of all four tokens two, of the best two (4/7, 3/7) one
    Sampler first(s, 4);
    expect_equal_weights(distribution(first, logits), {{0, 1.0}});
    s.top_k = 0;
    s.top_p = 0.5;
    s.temperature = 2;  // p ~ sqrt: 0.325, 0.282, ..: the best two are needed; before temperature 0.4 + 0.3
    Sampler second(s, 4);
    EXPECT_EQ(distribution(second, logits).size(), 2u);
    s.temperature = 0.5;  // p ~ squares: 0.533: one is enough
    Sampler third(s, 4);
    EXPECT_EQ(distribution(third, logits).size(), 1u);
}

TEST(Sampler, penalties_come_before_everything_and_use_the_right_history) {
    const std::vector<float> logits = {2, 1, -1, 0.5f, 0};
    const std::vector<int32_t> prompt = {0, 2, 2};
    SamplingParams s;
    s.repetition_penalty = 1.5;
    s.frequency_penalty = 0.25;
    s.presence_penalty = 0.5;
    s.logit_bias = {{4, 1.25}};
    Sampler sampler(s, 5, {}, prompt);
    sampler.accept(1);
    sampler.accept(1);
    sampler.accept(2);
    // Repetition: prompt and answer, once. Frequency and presence: the answer alone.
    const std::vector<double> penalised = {2 / 1.5, 1 / 1.5 - 0.25 * 2 - 0.5, -1 * 1.5 - 0.25 - 0.5, 0.5, 1.25};
    expect_equal_weights(distribution(sampler, logits), exact(penalised, s));
    SamplingParams greedy = s;
    greedy.temperature = 0;
    greedy.presence_penalty = 2;
    Sampler g(greedy, 5);
    for (const int32_t expected : {0, 4, 1, 3}) {  // each is pushed below the next
        EXPECT_EQ(g.sample(logits, 0).token, expected);
        g.accept(expected);
    }
}

TEST(Sampler, sampling_does_not_change_the_history) {
    SamplingParams s;
    s.presence_penalty = 2;
    Sampler sampler(s, 8);
    const std::vector<float> logits = random_logits(8, 1);
    const Distribution before = distribution(sampler, logits);
    for (int i = 0; i < 10; ++i) sampler.sample(logits, i);
    expect_equal_weights(distribution(sampler, logits), before);
}

TEST(Sampler, stop_ids_wait_for_min_tokens) {
    SamplingParams s;
    s.temperature = 0;
    s.min_tokens = 2;
    const std::vector<int32_t> stops = {1};
    Sampler sampler(s, 3, stops);
    const std::vector<float> logits = {0, 5, 1};
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(sampler.sample(logits, i).token, 2);
        sampler.accept(2);
    }
    EXPECT_EQ(sampler.sample(logits, 2).token, 1);
}

TEST(Sampler, logprobs_are_those_of_the_raw_logits_and_of_the_draw) {
    const std::vector<float> logits = random_logits(50, 21);
    SamplingParams s;
    s.temperature = 0.7;
    s.top_k = 5;
    s.logprobs = 3;
    Sampler sampler(s, 50);
    const Sampled drawn = sampler.sample(logits, 0);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    const auto raw = [&](int32_t token) { return double{logits[static_cast<size_t>(token)]} - std::log(sum); };
    EXPECT_NEAR(drawn.logprob, raw(drawn.token), 1e-6);
    EXPECT_NEAR(drawn.sampling_logprob, std::log(exact(widened(logits), s).at(drawn.token)), 1e-6);
    ASSERT_EQ(drawn.top.size(), 3u);
    for (const TokenLogprob& t : drawn.top) EXPECT_NEAR(t.logprob, raw(t.token), 1e-6);
    EXPECT_EQ(drawn.top[0].token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_GE(drawn.top[1].logprob, drawn.top[2].logprob);
    s.logprobs = 1000;  // more than there are
    EXPECT_EQ(Sampler(s, 50).sample(logits, 0).top.size(), 50u);
}

TEST(Sampler, extreme_logits_are_sampled_without_overflow) {
    SamplingParams s;
    s.temperature = 0.01;
    Sampler sampler(s, 4);
    expect_equal_weights(distribution(sampler, {3e38f, -3e38f, 3e38f, -kInfinity}), {{0, 0.5}, {2, 0.5}});
    s.temperature = 1e-300;
    Sampler cold(s, 3);
    expect_equal_weights(distribution(cold, {1, 2, 2}), {{1, 0.5}, {2, 0.5}});
}

TEST(Sampler, damaged_logits_are_errors) {
    for (const double temperature : {0.0, 1.0}) {
        SamplingParams s;
        s.temperature = temperature;
        Sampler sampler(s, 3);
        for (const std::vector<float>& bad :
             {std::vector<float>{0, NAN, 0}, {0, kInfinity, 0}, {-kInfinity, -kInfinity, -kInfinity}}) {
            EXPECT_THROW(sampler.sample(bad, 0), Error);
            EXPECT_THROW(sampler.distribution(bad), Error);
        }
    }
}

TEST(SamplingParams, every_value_out_of_range_is_named_with_the_range) {
    const double nan = NAN, inf = INFINITY;
    struct Bad {
        std::string field;
        std::function<void(SamplingParams&)> set;
        std::string range;
    };
    std::vector<Bad> cases;
    const auto add = [&](const std::string& field, auto member, auto values, const std::string& range) {
        for (const auto& value : values) cases.push_back({field, [=](SamplingParams& p) { p.*member = value; }, range});
    };
    add("temperature", &SamplingParams::temperature, std::vector<double>{-1, -1e-9, 1e9, nan, inf},
        "expected 0 to 100");
    add("top_k", &SamplingParams::top_k, std::vector<int64_t>{-1, -2, int64_t{1} << 31, INT64_MAX, INT64_MIN},
        "expected 0 to 2147483647");
    add("top_p", &SamplingParams::top_p, std::vector<double>{0, -0.1, 1.5, nan}, "expected more than 0 and at most 1");
    add("min_p", &SamplingParams::min_p, std::vector<double>{-0.1, 1.1, nan}, "expected 0 to 1");
    add("repetition_penalty", &SamplingParams::repetition_penalty, std::vector<double>{0, -1, 101, nan}, "at most 100");
    add("frequency_penalty", &SamplingParams::frequency_penalty, std::vector<double>{-2.1, 2.1, nan},
        "expected -2 to 2");
    add("presence_penalty", &SamplingParams::presence_penalty, std::vector<double>{-2.1, 2.1, nan}, "expected -2 to 2");
    add("logprobs", &SamplingParams::logprobs, std::vector<int64_t>{-2, 1001}, "expected -1 to 1000");
    add("max_tokens", &SamplingParams::max_tokens, std::vector<int64_t>{0, -2, int64_t{1} << 32},
        "expected 1 to 2147483647");
    add("min_tokens", &SamplingParams::min_tokens, std::vector<int64_t>{-1, int64_t{1} << 32},
        "expected 0 to 2147483647");
    add("stop_ids", &SamplingParams::stop_ids, std::vector<std::vector<int32_t>>{{-1}, {10}}, "expected 0 to 9");
    add("stop_strings", &SamplingParams::stop_strings,
        std::vector<std::vector<std::string>>{{""}, {std::string(1025, 'x')}, std::vector<std::string>(65, "x")},
        "expected");
    using Bias = std::vector<std::pair<int32_t, double>>;
    add("logit_bias", &SamplingParams::logit_bias, std::vector<Bias>{{{10, 1.0}}, {{-1, 1.0}}}, "expected 0 to 9");
    add("logit_bias", &SamplingParams::logit_bias, std::vector<Bias>{{{0, 101.0}}, {{0, nan}}}, "expected -100 to 100");
    add("logit_bias", &SamplingParams::logit_bias, std::vector<Bias>{{{3, 1.0}, {3, 2.0}}}, "token 3 twice");
    for (const Bad& bad : cases) {
        SamplingParams params;
        bad.set(params);
        try {
            Sampler sampler(params, 10);
            ADD_FAILURE() << bad.field << ": no error";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            EXPECT_NE(std::string(error.what()).find(bad.field), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find(bad.range), std::string::npos) << error.what();
        }
    }
    SamplingParams params;
    params.max_tokens = 5;
    params.min_tokens = 6;
    EXPECT_THROW(check_sampling_params(params, 10), Error);
    params.min_tokens = 5;
    check_sampling_params(params, 10);
}

// Asking for log-probabilities takes the way through the whole chain.
TEST(Sampler, the_short_way_of_greedy_sampling_finds_the_token_of_the_long_one) {
    SamplingParams greedy;
    greedy.temperature = 0;
    SamplingParams reported = greedy;
    reported.logprobs = 0;
    for (const size_t n : {1, 2, 15, 16, 17, 33, 257, 1000}) {
        Sampler fast(greedy, static_cast<int64_t>(n)), slow(reported, static_cast<int64_t>(n));
        for (unsigned seed = 0; seed < 40; ++seed) {
            std::vector<float> logits = random_logits(n, seed);
            for (float& logit : logits) {
                if (seed % 2 == 0) logit = std::round(logit);  // many equals
                if (seed % 5 == 0 && logit < 1) logit = -kInfinity;
            }
            if (std::count(logits.begin(), logits.end(), -kInfinity) == std::ssize(logits)) logits[n / 2] = -3;
            EXPECT_EQ(fast.sample(logits, 9).token, slow.sample(logits, 9).token) << n << " " << seed;
        }
        for (const float damaged : {kInfinity, std::numeric_limits<float>::quiet_NaN()})
            for (const size_t place : {size_t{0}, n / 2, n - 1}) {
                std::vector<float> logits = random_logits(n, 3);
                logits[place] = damaged;
                EXPECT_THROW(fast.sample(logits, 9), Error) << n << " " << place;
            }
        EXPECT_THROW(fast.sample(std::vector<float>(n, -kInfinity), 9), Error);
    }
}

TEST(Sampler, the_draw_is_the_smallest_key_of_the_definition) {
    const std::vector<float> logits = random_logits(500, 11);
    SamplingParams params;
    params.seed = 77;
    Sampler sampler(params, 500);
    for (int64_t position = 0; position < 300; ++position) {
        int32_t best = -1;
        double best_key = INFINITY;
        for (int32_t token = 0; token < 500; ++token) {
            const double weight = std::exp(double{logits[static_cast<size_t>(token)]});
            const double key =
                -std::log(sampling_noise(77, static_cast<uint64_t>(position), static_cast<uint32_t>(token))) / weight;
            if (key >= best_key) continue;
            best = token;
            best_key = key;
        }
        EXPECT_EQ(sampler.sample(logits, position).token, best) << position;
    }
}

TEST(Sampler, tokens_that_are_not_allowed_are_as_if_their_logits_were_minus_infinity) {
    std::mt19937 random(17);
    for (int round = 0; round < 200; ++round) {
        std::vector<float> logits = random_logits(150, 100 + static_cast<unsigned>(round)), masked = logits;
        std::vector<uint64_t> allowed(3, 0);
        for (size_t token = 0; token < logits.size(); ++token) {
            if (random() % 4 == 0 || token == 7) allowed[token / 64] |= uint64_t{1} << (token % 64);
            else masked[token] = -kInfinity;
        }
        SamplingParams p;
        p.temperature = round % 3 == 0 ? 0 : 1.3;
        p.top_k = round % 4 == 0 ? 12 : 0;
        p.top_p = round % 5 == 0 ? 0.8 : 1;
        p.min_p = round % 7 == 0 ? 0.05 : 0;
        p.repetition_penalty = round % 2 == 0 ? 1.4 : 1;
        p.presence_penalty = 0.3;
        p.logit_bias = {{3, 20.0}, {7, -2.0}};
        p.seed = static_cast<uint64_t>(round);
        Sampler some(p, 150), all(p, 150);
        for (Sampler* sampler : {&some, &all})
            for (const int32_t token : {7, 3, 7}) sampler->accept(token);
        EXPECT_EQ(some.sample(logits, round, allowed).token, all.sample(masked, round).token) << round;
        EXPECT_EQ(some.distribution(logits, allowed), all.distribution(masked)) << round;
    }
    Sampler sampler({}, 150);
    EXPECT_THROW(sampler.sample(random_logits(150, 1), 0, std::vector<uint64_t>(3, 0)), Error);
}

TEST(LogitsHash, is_eight_fnv_hashes_and_their_hash) {
    const std::vector<float> row = random_logits(21, 5);
    LogitsHash hash;
    hash.add(row);
    hash.add(std::span(row).first(3));
    std::vector<uint64_t> lanes(8, 0xcbf29ce484222325u);
    const auto feed = [](uint64_t& h, uint64_t word) { h = (h ^ word) * 0x100000001b3u; };
    for (size_t i = 0; i < 21; ++i) feed(lanes[i % 8], std::bit_cast<uint32_t>(row[i]));
    for (size_t i = 0; i < 3; ++i) feed(lanes[i], std::bit_cast<uint32_t>(row[i]));
    uint64_t expected = 0xcbf29ce484222325u;
    for (const uint64_t lane : lanes) feed(expected, lane);
    EXPECT_EQ(hash.value(), expected);
    EXPECT_NE(LogitsHash().value(), expected);
}

}  // namespace
}  // namespace riptide::testing
