// The inside of ScoredPrefix. Internal to the scorer.
#pragma once

#include <vector>

#include "models/scorer.h"

namespace riptide {

struct ScoredPrefix::State {
    Gpu* gpu = nullptr;
    int64_t kv_token_bytes = 0;     // of K, and of V, in a layer
    int64_t score_token_bytes = 0;  // of the keys of a scoring layer
    int64_t query_bytes = 0;        // of a row in a scoring layer
    int64_t capacity = 0;           // tokens that the memory holds
    int64_t length = 0;             // tokens that are final; tokens.size() may be more
    std::vector<int32_t> tokens;
    std::vector<DeviceMemory> k, v;     // of each layer run
    std::vector<DeviceMemory> keys;     // of each scoring layer
    std::vector<int32_t> query_rows;    // positions, ascending
    std::vector<DeviceMemory> queries;  // f32 [query_rows, H * d], of each scoring layer

    /// Room for n tokens; what [0, length) holds stays.
    void reserve(int64_t n);
    /// Place of a row in `queries`; -1 if it is not there.
    int64_t find_query(int64_t position) const;
};

}  // namespace riptide
