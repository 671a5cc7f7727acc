#include "engine/execution/prompt_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace riptide {
namespace {

/// A device: layers cost a base, rows, and (every fourth) attention over keys.
struct Device {
    double base = 0.4e-3, per_row = 0.35e-6, per_key = 4.4e-11, noise = 0;
    std::mt19937_64 rng{1};

    double layer(bool full, int64_t rows, int64_t row_keys) {
        const double t =
            base + per_row * static_cast<double>(rows) + (full ? per_key * static_cast<double>(row_keys) : 0);
        return t * (1 + noise * (static_cast<double>(rng() % 1000) / 500 - 1));
    }
};

const std::vector<char>& kinds() {
    static const std::vector<char> full = [] {
        std::vector<char> f(40, 0);
        for (size_t l = 0; l < f.size(); l += 4) f[l] = 1;
        return f;
    }();
    return full;
}

/// Runs a step of prompts; the times of its parts are added to `parts`.
int64_t read_step(PromptPace& pace, Device& device, int64_t rows, int64_t row_keys, std::vector<double>& parts) {
    int64_t count = 0;
    for (int64_t l = 0; l < 40; ++count) {
        const std::span<const char> left = std::span(kinds()).subspan(static_cast<size_t>(l));
        const int64_t n = pace.layers(left, rows, row_keys, 2);
        EXPECT_GE(n, 1);
        EXPECT_LE(n, std::ssize(left));
        PromptPart part{.layers = n, .rows = rows, .row_keys = row_keys};
        for (int64_t i = 0; i < n; ++i) {
            const bool full = left[static_cast<size_t>(i)] != 0;
            part.full_layers += full;
            part.seconds += device.layer(full, rows, row_keys);
        }
        pace.read(part);
        parts.push_back(part.seconds);
        l += n;
    }
    return count;
}

TEST(PromptPace, knowing_nothing_it_runs_one_layer) {
    PromptPace pace;
    EXPECT_EQ(pace.layers(kinds(), 2048, 1 << 20, 2), 1);
    pace.decoded(4e-3, 1);
    EXPECT_EQ(pace.layers(kinds(), 2048, 1 << 20, 2), 1);
    pace.read({.layers = 1, .full_layers = 0, .rows = 2048, .row_keys = 1 << 20, .seconds = 1e-3});
    EXPECT_EQ(pace.layers(kinds(), 2048, 1 << 20, 2), 4);
}

TEST(PromptPace, parts_of_a_long_prompt_keep_to_the_time_of_a_decode_step) {
    for (const double noise : {0.0, 0.1}) {
        Device device;
        device.noise = noise;
        PromptPace pace;
        pace.decoded(8 * 3.7e-3, 8);
        std::vector<double> parts;
        int64_t late = 0;
        for (int64_t done = 0; done < 32768; done += 2048) {
            const int64_t row_keys = 2048 * done + 2048 * 2049 / 2;
            const size_t before = parts.size();
            read_step(pace, device, 2048, row_keys, parts);
            const double longest = device.layer(true, 2048, row_keys);
            for (size_t i = std::max<size_t>(before, 3); i < parts.size(); ++i)
                late += parts[i] > std::max(3.7e-3, longest) * (1.15 + noise);
        }
        EXPECT_LE(late, std::ssize(parts) / 50) << "of " << parts.size();
        // and do not waste it
        const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
        EXPECT_GT(sum / static_cast<double>(parts.size()), 0.6 * 3.7e-3);
    }
}

TEST(PromptPace, more_rows_than_ever_seen_are_not_taken_for_cheap) {
    Device device;
    PromptPace pace;
    pace.decoded(8 * 3.7e-3, 8);
    std::vector<double> parts;
    for (const int64_t rows : {100, 2048, 60, 1000, 2048, 1}) {
        parts.clear();
        read_step(pace, device, rows, rows * rows / 2, parts);
        EXPECT_LE(*std::max_element(parts.begin(), parts.end()), 3.7e-3 * 1.1) << rows;
    }
}

TEST(PromptPace, the_mean_of_decode_steps_follows_them_and_survives_a_pause) {
    PromptPace pace;
    for (int i = 0; i < 20; ++i) pace.decoded(1e-3, 1);
    EXPECT_NEAR(pace.decode_seconds(), 1e-3, 1e-9);
    pace.decoded(60, 1);
    EXPECT_LE(pace.decode_seconds(), 2e-3);
    pace.decoded(-1, 1);  // nothing
    pace.decoded(100 * 4e-3, 100);
    EXPECT_NEAR(pace.decode_seconds(), 4e-3, 1e-5);
}

TEST(PromptPace, parts_are_even) {
    PromptPace pace;
    pace.decoded(8 * 3.5e-3, 8);
    for (int i = 0; i < 10; ++i) pace.read({.layers = 1, .rows = 512, .seconds = 0.1e-3});
    const std::vector<char> left(40, 0);  // 35 would fit
    EXPECT_EQ(pace.layers(left, 512, 0, 2), 20);
}

TEST(PromptPace, a_step_has_many_rows_where_a_layer_of_them_fits_between_two_tokens) {
    PromptPace pace;
    EXPECT_EQ(pace.rows(2048, 4096, 0, 2), 2048) << "nothing is known";
    pace.read({.layers = 4, .full_layers = 0, .rows = 2048, .row_keys = 0, .seconds = 4 * 1e-3});
    EXPECT_EQ(pace.rows(2048, 4096, 0, 2), 2048) << "the time between two tokens is not";
    pace.decoded(1.5e-3, 1);
    EXPECT_EQ(pace.rows(2048, 4096, 0, 2), 2048) << "2 ms in 1.5 ms";
    EXPECT_EQ(pace.rows(2048, 4096, 0, 2.5), 4096) << "2 ms in 2.25 ms";
    for (int i = 0; i < 64; ++i) pace.decoded(2.1e-3, 1);
    EXPECT_EQ(pace.rows(2048, 4096, 0, 2), 4096) << "2 ms in 2.1 ms";
    // A full layer whose rows see 1,000 keys each takes 1 ms more.
    for (int i = 0; i < 64; ++i)
        pace.read({.layers = 1, .full_layers = 1, .rows = 2048, .row_keys = 2048 * 1000, .seconds = 2e-3}),
            pace.read({.layers = 1, .full_layers = 0, .rows = 2048, .row_keys = 2048 * 1000, .seconds = 1e-3});
    EXPECT_EQ(pace.rows(2048, 4096, 1000, 2), 2048);
}

}  // namespace
}  // namespace riptide
