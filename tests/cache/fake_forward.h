// A model for cache tests: its K/V rows are the token and its position, and what it computes is everything it can
// reach.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "ops/kv/kv_view.h"

namespace riptide {

/// Writes every row of the step into every layer. Views hold f32 rows of two values.
inline void fake_append(std::span<const KvView> views, const Batch& batch) {
    for (const KvView& view : views)
        for (int64_t r = 0; view.num_kv_heads > 0 && r < batch.rows(); ++r) {
            const auto i = static_cast<size_t>(r);
            const int64_t slot = view.slot(batch, batch.row_sequence[i], batch.storage_index(r));
            for (int64_t h = 0; h < view.num_kv_heads; ++h) {
                const auto token = static_cast<float>(batch.tokens[i]),
                           position = static_cast<float>(batch.positions[i]);
                const float k[2] = {token, position}, v[2] = {-token, static_cast<float>(h)};
                std::memcpy(const_cast<char*>(view.k_row(slot, h)), k, sizeof k);
                std::memcpy(const_cast<char*>(view.v_row(slot, h)), v, sizeof v);
            }
        }
}

/// The tokens that row r reaches in a layer, ordered by position; -1 for one whose row is not what fake_append wrote
/// for it.
inline std::vector<int32_t> fake_read(const KvView& view, const Batch& batch, int64_t r) {
    const auto i = static_cast<size_t>(r), s = static_cast<size_t>(batch.row_sequence[i]);
    std::vector<int64_t> indices;  // of positions 0, 1, ...
    for (int64_t index = 0; index < batch.committed[s]; ++index) indices.push_back(index);
    std::vector<int64_t> path;
    for (int64_t row = r; row >= 0;) {
        path.push_back(batch.storage_index(row));
        if (batch.parent.empty()) row = row == batch.row_begin[s] ? -1 : row - 1;
        else row = batch.parent[static_cast<size_t>(row)];
    }
    indices.insert(indices.end(), path.rbegin(), path.rend());
    std::vector<int32_t> tokens;
    const size_t first = view.window > 0 && indices.size() > static_cast<size_t>(view.window)
                             ? indices.size() - static_cast<size_t>(view.window)
                             : 0;
    for (size_t position = first; position < indices.size(); ++position) {
        const int64_t slot = view.slot(batch, static_cast<int64_t>(s), indices[position]);
        bool intact = true;
        float k[2], v[2], token = 0;
        for (int64_t h = 0; h < view.num_kv_heads; ++h) {
            std::memcpy(k, view.k_row(slot, h), sizeof k);
            std::memcpy(v, view.v_row(slot, h), sizeof v);
            if (h == 0) token = k[0];
            intact = intact && k[0] == token && k[1] == static_cast<float>(position) && v[0] == -token &&
                     v[1] == static_cast<float>(h);
        }
        tokens.push_back(intact ? static_cast<int32_t>(token) : -1);
    }
    return tokens;
}

}  // namespace riptide
