// The bytes of K/V events, as vLLM's servers publish them and routers read them.
#pragma once

#include <span>
#include <string>

#include "cache/usable_pages.h"

namespace riptide::apps {

/// How an event is written. Routers older than mid-2026 know arrays alone, and some drop maps with their whole batch;
/// newer servers of vLLM write maps.
enum class KvEventForm { array, map };

/// One message in MessagePack: [time, [event, ...], 0], the last being the rank of a data-parallel worker. Events are
///   ["BlockStored", [hash, ...], parent's hash or nil, [token, ...], block_size, nil, medium, nil, extra keys or nil]
///   ["BlockRemoved", [hash, ...], medium]
///   ["AllBlocksCleared"]
/// or maps with "type" for the tag and vLLM's names for the rest ("block_hashes", "parent_block_hash", "token_ids",
/// "block_size", "lora_id", "medium", "lora_name", "extra_keys"), in the same order. With a medium "GPU" (memory of the
/// device that the model runs on, also if that is the CPU), "CPU" or "DISK". Extra keys are [[cache_salt], nil, ...],
/// one for each block, where a request's cache_salt belongs to the first block. Hashes are 64-bit integers in their
/// long form, whatever their value: readers go by the width. Other integers are as short as they can be. `time`:
/// seconds since 1970.
std::string kv_event_batch(std::span<const PageNews> news, double time, KvEventForm form = KvEventForm::array);

}  // namespace riptide::apps
