// How many layers of a prompts' step run between two decode steps.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace riptide {

/// Some layers of a prompts' step, and how long they took.
struct PromptPart {
    int64_t layers = 0;
    int64_t full_layers = 0;  // of them, with attention over all keys
    int64_t rows = 0;         // of the step
    int64_t row_keys = 0;     // keys that its rows see on a full layer, all rows together
    double seconds = 0;
};

/// Holds the time between two tokens of an answer, while prompts are read, to `slowdown` times what it is without:
/// the part of a prompt between two decode steps may take (slowdown - 1) decode steps. Both times are learnt. The model
/// of a part's time: layers * t(rows) + full_layers * row_keys * c, with t known for powers of two of rows; where a
/// number of rows has not been seen yet, t is taken too large rather than too small. Pure arithmetic; not thread-safe.
class PromptPace {
  public:
    /// So many decode steps took so long in all, without what ran between them. Nothing is learnt from 0 and less.
    void decoded(double seconds, int64_t steps);
    /// A part has run. Its seconds are its own.
    void read(const PromptPart& part);

    /// How many layers to run now: the next of `full`, which says for each layer that is left whether it attends to all
    /// keys. At least 1, and 1 as long as a time is unknown; parts are made even, so that the last is not much smaller.
    /// REQUIRES !full.empty() and slowdown >= 1.
    int64_t layers(std::span<const char> full, int64_t rows, int64_t row_keys, double slowdown) const;

    /// Rows of the next step: `many`, if a layer of so many that see up to `keys` keys each takes no longer than a part
    /// may; else, or while a time is unknown, `few`.
    int32_t rows(int32_t few, int32_t many, int64_t keys, double slowdown) const;

    /// Seconds; 0: unknown.
    double decode_seconds() const { return decode_; }
    double layer_seconds(int64_t rows, int64_t row_keys) const { return base(rows) + keys(row_keys); }

  private:
    /// t for steps of up to 2^i rows, as it was with `rows`.
    struct Known {
        int64_t rows = 0;  // 0: not seen
        double seconds = 0;
    };
    static size_t bucket(int64_t rows);
    double base(int64_t rows) const;
    double keys(int64_t row_keys) const { return static_cast<double>(row_keys) * per_key_; }

    double decode_ = 0;
    double per_key_ = 0;
    std::array<Known, 32> known_;
};

}  // namespace riptide
