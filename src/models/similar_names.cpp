#include "models/similar_names.h"

#include <algorithm>

namespace riptide {

namespace {

/// Levenshtein distance of a and b, one row of the table at a time.
size_t edits(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
            diagonal = above;
        }
    }
    return row[b.size()];
}

}  // namespace

std::vector<std::string> similar_names(std::string_view name, std::span<const std::string> known, size_t limit) {
    const size_t most = name.size() / 3;
    std::vector<std::pair<size_t, size_t>> ranked;  // edits, index
    for (size_t i = 0; i < known.size(); ++i) {
        const size_t longer = std::max(known[i].size(), name.size()), shorter = std::min(known[i].size(), name.size());
        if (longer - shorter > most) continue;
        const size_t distance = edits(name, known[i]);
        if (distance <= most) ranked.emplace_back(distance, i);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) names.push_back(known[ranked[i].second]);
    return names;
}

}  // namespace riptide
