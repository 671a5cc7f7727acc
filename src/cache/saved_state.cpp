#include "cache/saved_state.h"

#include <cstring>

#include "base/error.h"
#include "ops/kv/kv_pack.h"

namespace riptide {

namespace {

constexpr uint32_t kStateMagic = 0x54535452;  // "RTST"
constexpr uint32_t kStateVersion = 1;

struct SavedHeader {
    uint32_t magic = kStateMagic;
    uint32_t version = kStateVersion;
    uint64_t geometry = 0;
    int64_t length = 0;
    int64_t payload_bytes = 0;
};

/// FNV-1a over what the meaning of the payload depends on.
uint64_t geometry_hash(const KvCache& cache) {
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
    for (const DeltaView& view : cache.delta().views())
        for (const int64_t size : {static_cast<int64_t>(view.state_dtype), static_cast<int64_t>(view.heads),
                                   view.key_heads, view.value_heads, view.key_dim, view.value_dim, view.conv_width})
            mix(size);
    return hash;
}

}  // namespace

std::vector<std::byte> save_state(const KvCache& cache, int32_t slot, int64_t length) {
    const int64_t bytes = ops::packed_state_bytes(cache.bounded(), length);
    const SavedHeader header{kStateMagic, kStateVersion, geometry_hash(cache), length, bytes};
    std::vector<std::byte> saved(sizeof header + static_cast<size_t>(bytes));
    std::memcpy(saved.data(), &header, sizeof header);
    std::byte* const payload = saved.data() + sizeof header;
    if (cache.gpu() == nullptr || bytes == 0) {
        ops::pack_state(nullptr, cache.bounded(), slot, length, payload);
        return saved;
    }
    const DeviceMemory packed(cache.gpu(), bytes, "saved state");
    ops::pack_state(cache.gpu(), cache.bounded(), slot, length, packed.data());
    cache.gpu()->to_host(payload, packed.data(), bytes);
    return saved;
}

int64_t saved_length(const KvCache& cache, std::span<const std::byte> saved) {
    SavedHeader header;
    RT_CHECK(saved.size() >= sizeof header, "a saved state of {} bytes: its header alone takes {}", saved.size(),
             sizeof header);
    std::memcpy(&header, saved.data(), sizeof header);
    RT_CHECK(header.magic == kStateMagic, "not a saved state: it begins with {:#010x}, expected {:#010x}", header.magic,
             kStateMagic);
    RT_CHECK(header.version == kStateVersion, "a saved state of version {}, expected {}", header.version,
             kStateVersion);
    RT_CHECK(header.geometry == geometry_hash(cache),
             "the saved state belongs to a cache with other layers or K/V types");
    RT_CHECK(header.length >= 0 && header.length <= INT32_MAX, "a saved state of {} tokens", header.length);
    const int64_t expected = ops::packed_state_bytes(cache.bounded(), header.length);
    RT_CHECK(header.payload_bytes == expected && saved.size() - sizeof header == static_cast<size_t>(expected),
             "a saved state of {} tokens has {} bytes after its header, expected {}", header.length,
             saved.size() - sizeof header, expected);
    return header.length;
}

void load_state(KvCache& cache, int32_t slot, std::span<const std::byte> saved) {
    const int64_t length = saved_length(cache, saved);
    const std::span<const std::byte> payload = saved.subspan(sizeof(SavedHeader));
    if (cache.gpu() == nullptr || payload.empty())
        return ops::unpack_state(nullptr, cache.bounded(), slot, length, payload.data());
    const DeviceMemory packed(cache.gpu(), std::ssize(payload), "saved state");
    cache.gpu()->to_device(packed.data(), payload.data(), std::ssize(payload));
    ops::unpack_state(cache.gpu(), cache.bounded(), slot, length, packed.data());
    cache.gpu()->synchronize();  // before the memory goes
}

}  // namespace riptide
