// Records that leave the machine: sealed with a key of the fleet's, so that nobody else can read or make one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"

namespace riptide {

/// The fleet's key: HKDF-SHA-256 of a secret.
struct SealKey {
    std::array<uint8_t, 32> bytes{};

    /// Of the text of a file: at least 32 bytes without blanks at its ends. Throws Error that names the file and how to
    /// make one.
    static SealKey of_file(const std::string& path);
    static SealKey of_secret(std::span<const std::byte> secret);
};

/// What a record is called where it is sealed, 64 hexadecimal digits: SHA-256 of the key and its name. Who does not
/// have the key cannot ask whether somebody's prompt was here.
std::string sealed_name(const SealKey& key, const Digest& name);
/// Bytes of a sealed record of so many bytes of payload.
int64_t sealed_bytes(int64_t payload_bytes);
/// A header (magic, version, tag, size, nonce), the payload under AES-256-GCM, its tag. The header and `name` are
/// authenticated with it: a record is nothing under another name.
std::vector<std::byte> seal(const SealKey& key, const Digest& name, int32_t tag,
                            std::span<const std::span<const std::byte>> parts);
/// Opens `sealed` into parts of these sizes. False, with anything in them, unless it is what was sealed under this name
/// with this key.
bool unseal(const SealKey& key, const Digest& name, std::span<const std::byte> sealed,
            std::span<const std::span<std::byte>> parts, int32_t& tag);

}  // namespace riptide
