// The bounded state of a sequence as bytes. Internal to cache: SequenceState::save and restore are the way in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"

namespace riptide {

// Layout: SavedHeader; then the packed bounded state (ops/kv/kv_pack.h). Bytes of this process only: the formats are
// those of the machine. On a GPU these wait for the device; KvTransfer does not.

/// The state in slot `slot` for a sequence of `length` tokens.
std::vector<std::byte> save_state(const KvCache& cache, int32_t slot, int64_t length);
/// The length named by the header. Throws Error unless the bytes are a whole state saved from a cache of the same
/// layers.
int64_t saved_length(const KvCache& cache, std::span<const std::byte> saved);
/// Writes a state that saved_length accepts into slot `slot`.
void load_state(KvCache& cache, int32_t slot, std::span<const std::byte> saved);

}  // namespace riptide
