#include "engine/execution/prompt_pace.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace riptide {

namespace {

/// Of what is new: each decode step, each part.
constexpr double kDecodeGain = 0.25, kPartGain = 0.5;
/// Attention may always be at least this share of an error, or it would never be found out.
constexpr double kLeastShare = 0.1;
/// One decode step counts at most as so many times the mean: the engine may have been paused.
constexpr double kOutlier = 4;

}  // namespace

size_t PromptPace::bucket(int64_t rows) {
    return static_cast<size_t>(
        std::min<int>(31, std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, rows) - 1))));
}

void PromptPace::decoded(double seconds, int64_t steps) {
    double each = seconds / static_cast<double>(steps);
    if (!(each > 0)) return;
    if (decode_ == 0) decode_ = each;
    each = std::min(each, kOutlier * decode_);
    decode_ += (each - decode_) * (1 - std::pow(1 - kDecodeGain, static_cast<double>(steps)));
}

/// t(rows), 0 if nothing is known: of this number of rows, or of more, or (growing with the rows) of fewer.
double PromptPace::base(int64_t rows) const {
    const size_t own = bucket(rows);
    const auto is_known = [](const Known& k) { return k.rows > 0; };
    auto known = std::find_if(known_.begin() + static_cast<ptrdiff_t>(own), known_.end(), is_known);
    if (known == known_.end()) {
        const auto below = std::find_if(known_.rend() - static_cast<ptrdiff_t>(own), known_.rend(), is_known);
        if (below == known_.rend()) return 0;
        known = below.base() - 1;
    }
    return known->seconds * std::max(1.0, static_cast<double>(rows) / static_cast<double>(known->rows));
}

void PromptPace::read(const PromptPart& part) {
    RT_ASSERT(part.layers > 0 && part.rows > 0);
    if (!(part.seconds > 0)) return;
    const auto layers = static_cast<double>(part.layers);
    const double row_keys = static_cast<double>(part.full_layers) * static_cast<double>(part.row_keys);
    Known& own = known_[bucket(part.rows)];
    const double before = base(part.rows);
    if (before == 0) {
        own = {part.rows, part.seconds / layers};
        return;
    }
    // The error goes to both terms as the squares of what they say: relative errors of equal size.
    const double linear = layers * before, attention = row_keys * per_key_;
    const double error = (part.seconds - linear - attention) * (own.rows > 0 ? kPartGain : 1.0);
    const double may = row_keys > 0 ? std::max(attention, kLeastShare * linear) : 0;
    const double share = linear * linear / (linear * linear + may * may);
    own = {part.rows, std::max(before / 8, before + error * share / layers)};
    if (row_keys > 0) per_key_ = std::max(0.0, per_key_ + error * (1 - share) / row_keys);
}

int64_t PromptPace::layers(std::span<const char> full, int64_t rows, int64_t row_keys, double slowdown) const {
    RT_ASSERT(!full.empty() && slowdown >= 1);
    const double each = base(rows), more = keys(row_keys), most = (slowdown - 1) * decode_;
    if (each == 0 || decode_ == 0) return 1;
    const int64_t left = std::ssize(full);
    int64_t fits = 0;
    for (double sum = 0; fits < left; ++fits) {
        sum += each + (full[static_cast<size_t>(fits)] != 0 ? more : 0);
        if (sum > most) break;
    }
    fits = std::max<int64_t>(1, fits);
    const int64_t parts = (left + fits - 1) / fits;
    return (left + parts - 1) / parts;
}

int32_t PromptPace::rows(int32_t few, int32_t many, int64_t keys, double slowdown) const {
    RT_ASSERT(few > 0 && many > 0 && slowdown >= 1);
    const bool known = decode_ > 0 && base(many) > 0;
    return known && layer_seconds(many, many * keys) <= (slowdown - 1) * decode_ ? many : few;
}

}  // namespace riptide
