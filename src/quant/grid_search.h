// The nearest entry of a grid of magnitudes. For the quantisers; not for other folders.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riptide::codec {

/// A grid of n entries, which are some of the kLevels^kDims combinations of kDims levels.
///
/// For each combination it knows the entries that lie nearest to it, at most kNear. A search rounds each magnitude to
/// its nearest level and weighs the entries of that combination: one if the grid has it, which is then the best there
/// is whatever the weights.
template <int n, int kDims, int kLevels>
class GridSearch {
  public:
    static constexpr int kNear = 16;

    /// grid: `bits` bits an element, indices into `levels`, which rise.
    GridSearch(const uint16_t* grid, int bits, const uint8_t* levels) : near_(kPoints * kNear), count_(kPoints) {
        for (int l = 0; l + 1 < kLevels; ++l) edges_[l] = 0.5f * static_cast<float>(levels[l] + levels[l + 1]);
        int16_t places[kDims][n];
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < kDims; ++j) {
                places[j][i] = static_cast<int16_t>(grid[i] >> (bits * j) & ((1 << bits) - 1));
                entries_[i][j] = levels[places[j][i]];
            }
        for (int p = 0; p < kPoints; ++p) find_near(p, places);
    }

    /// The code whose magnitudes m are best, by sum w_j (a_j - m_j)^2, of those near `a`; kDims values each, a_j >= 0.
    int nearest(const float* a, const float* w) const {
        int point = 0;
        for (int j = kDims - 1; j >= 0; --j) {
            int level = 0;
            for (float edge : edges_) level += a[j] > edge ? 1 : 0;
            point = kLevels * point + level;
        }
        const auto p = static_cast<size_t>(point);
        const uint16_t* near = near_.data() + p * kNear;
        int best = near[0];
        if (count_[p] == 1) return best;
        float least = INFINITY;
        for (int i = 0; i < count_[p]; ++i) {
            const float* m = magnitudes(near[i]);
            float cost = 0;
            for (int j = 0; j < kDims; ++j) cost += w[j] * (a[j] - m[j]) * (a[j] - m[j]);
            if (cost < least) least = cost, best = near[i];
        }
        return best;
    }
    const float* magnitudes(int code) const { return entries_[code]; }

  private:
    static constexpr int kPoints = [] {
        int points = 1;
        for (int j = 0; j < kDims; ++j) points *= kLevels;
        return points;
    }();

    /// By distances in levels.
    void find_near(int point, const int16_t (&places)[kDims][n]) {
        int16_t distance[n] = {};
        for (int j = 0, rest = point; j < kDims; ++j, rest /= kLevels) {
            const auto level = static_cast<int16_t>(rest % kLevels);
            for (int i = 0; i < n; ++i) {
                const auto d = static_cast<int16_t>(places[j][i] - level);
                distance[i] = static_cast<int16_t>(distance[i] + d * d);
            }
        }
        std::array<int, n> order;
        for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = distance[i] * n + i;
        std::partial_sort(order.begin(), order.begin() + kNear, order.end());
        const auto p = static_cast<size_t>(point);
        for (size_t i = 0; i < kNear; ++i) near_[p * kNear + i] = static_cast<uint16_t>(order[i] % n);
        count_[p] = order[0] < n ? 1 : kNear;
    }

    std::vector<uint16_t> near_;
    std::vector<uint8_t> count_;
    float edges_[kLevels - 1] = {};
    float entries_[n][kDims] = {};
};

}  // namespace riptide::codec
