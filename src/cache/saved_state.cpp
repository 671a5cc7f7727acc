#include "cache/saved_state.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace riptide {

namespace {

constexpr uint32_t kMagic = 0x54535452;  // "RTST"
constexpr uint32_t kVersion = 1;

struct SavedHeader {
    uint32_t magic = kMagic;
    uint32_t version = kVersion;
    uint64_t geometry = 0;
    int64_t length = 0;
    int64_t payload_bytes = 0;
};

/// FNV-1a over what the meaning of the payload depends on.
uint64_t geometry_of(const KvCache& cache) {
    uint64_t hash = 0xCBF29CE484222325u;
    const auto mix = [&](int64_t value) {
        for (int shift = 0; shift < 64; shift += 8)
            hash = (hash ^ ((static_cast<uint64_t>(value) >> shift) & 0xFF)) * 0x100000001B3u;
    };
    for (const KvView& view : cache.views()) {
        mix(view.window);
        mix(static_cast<int64_t>(view.k_dtype));
        mix(static_cast<int64_t>(view.v_dtype));
        mix(view.num_kv_heads);
        mix(view.head_dim);
    }
    return hash;
}

int64_t payload_bytes(const KvCache& cache, int64_t length) {
    int64_t bytes = 0;
    for (const KvView& view : cache.views())
        if (view.window > 0)
            bytes += std::min<int64_t>(length, view.window - 1) * (view.k_slot_bytes + view.v_slot_bytes);
    return bytes;
}

/// Calls copy(address in the ring, place in the payload, bytes) for each contiguous run of stored K or V slots.
template <class Copy>
void for_each_run(const KvCache& cache, int32_t slot, int64_t length, const Copy& copy) {
    int64_t offset = 0;
    for (const KvView& view : cache.views()) {
        if (view.window == 0) continue;
        const auto array = [&](void* base, int64_t bytes) {
            for (int64_t i = std::max<int64_t>(0, length - (view.window - 1)); i < length;) {
                const int64_t place = i % view.ring_rows;
                const int64_t run = std::min(length - i, view.ring_rows - place);
                copy(static_cast<std::byte*>(base) + (int64_t{slot} * view.ring_rows + place) * bytes, offset,
                     run * bytes);
                i += run;
                offset += run * bytes;
            }
        };
        array(view.k, view.k_slot_bytes);
        array(view.v, view.v_slot_bytes);
    }
}

}  // namespace

std::vector<std::byte> save_rings(const KvCache& cache, int32_t slot, int64_t length) {
    const SavedHeader header{kMagic, kVersion, geometry_of(cache), length, payload_bytes(cache, length)};
    std::vector<std::byte> saved(sizeof header + static_cast<size_t>(header.payload_bytes));
    std::memcpy(saved.data(), &header, sizeof header);
    std::byte* payload = saved.data() + sizeof header;
    for_each_run(cache, slot, length, [&](const std::byte* ring, int64_t offset, int64_t bytes) {
        if (cache.gpu() == nullptr) std::memcpy(payload + offset, ring, static_cast<size_t>(bytes));
        else cache.gpu()->to_host(payload + offset, ring, bytes);
    });
    return saved;
}

int64_t saved_bytes(const KvCache& cache, int64_t length) {
    return static_cast<int64_t>(sizeof(SavedHeader)) + payload_bytes(cache, length);
}

int64_t saved_length(const KvCache& cache, std::span<const std::byte> saved) {
    SavedHeader header;
    RT_CHECK(saved.size() >= sizeof header, "a saved state of {} bytes: its header alone takes {}", saved.size(),
             sizeof header);
    std::memcpy(&header, saved.data(), sizeof header);
    RT_CHECK(header.magic == kMagic, "not a saved state: it begins with {:#010x}, expected {:#010x}", header.magic,
             kMagic);
    RT_CHECK(header.version == kVersion, "a saved state of version {}, expected {}", header.version, kVersion);
    RT_CHECK(header.geometry == geometry_of(cache),
             "the saved state belongs to a cache with other layers or K/V types");
    RT_CHECK(header.length >= 0 && header.length <= INT32_MAX, "a saved state of {} tokens", header.length);
    const int64_t expected = payload_bytes(cache, header.length);
    RT_CHECK(header.payload_bytes == expected && saved.size() - sizeof header == static_cast<size_t>(expected),
             "a saved state of {} tokens has {} bytes after its header, expected {}", header.length,
             saved.size() - sizeof header, expected);
    return header.length;
}

void load_rings(KvCache& cache, int32_t slot, std::span<const std::byte> saved) {
    const std::byte* payload = saved.data() + sizeof(SavedHeader);
    for_each_run(cache, slot, saved_length(cache, saved), [&](std::byte* ring, int64_t offset, int64_t bytes) {
        if (cache.gpu() == nullptr) std::memcpy(ring, payload + offset, static_cast<size_t>(bytes));
        else cache.gpu()->to_device(ring, payload + offset, bytes);
    });
}

}  // namespace riptide
