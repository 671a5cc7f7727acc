#include "cache/shared/seal.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace riptide {

namespace {

constexpr uint32_t kSealMagic = 0x564B5052;  // "RPKV"
constexpr uint32_t kSealVersion = 1;
constexpr size_t kSealTagBytes = 16;
constexpr size_t kLeastSecretBytes = 32;

struct SealHeader {
    uint32_t magic = kSealMagic;
    uint32_t version = kSealVersion;
    int64_t payload_bytes = 0;
    int32_t tag = 0;
    std::array<uint8_t, 12> nonce{};
};
static_assert(sizeof(SealHeader) == 32);

void check_seal(bool done) { RT_CHECK(done, ErrorKind::system, "OpenSSL cannot seal or open a record"); }

unsigned char* raw(std::byte* at) { return reinterpret_cast<unsigned char*>(at); }
const unsigned char* raw(const std::byte* at) { return reinterpret_cast<const unsigned char*>(at); }

/// HKDF-SHA-256 (RFC 5869) without a salt.
std::array<uint8_t, 32> hkdf(std::span<const std::byte> secret, std::span<const std::byte> info) {
    static EVP_KDF* const method = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
    const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(method), EVP_KDF_CTX_free);
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(secret.data()), secret.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<std::byte*>(info.data()), info.size()),
        OSSL_PARAM_construct_end()};
    std::array<uint8_t, 32> key;
    check_seal(context != nullptr && EVP_KDF_derive(context.get(), key.data(), key.size(), params) == 1);
    return key;
}

/// One record under AES-256-GCM. Each name has a key of its own, so random nonces only ever meet those of its own
/// values, and a fleet need not count what it has written.
class RecordCipher {
  public:
    RecordCipher(const SealKey& key, const Digest& name, const SealHeader& header, bool seals) : seals_(seals) {
        static const EVP_CIPHER* const method = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
        const auto own = hkdf(std::as_bytes(std::span(key.bytes)), std::as_bytes(std::span(name)));
        check_seal(method != nullptr && context_ != nullptr &&
                   EVP_CipherInit_ex2(context_.get(), method, own.data(), header.nonce.data(), seals, nullptr) == 1);
        update(nullptr, std::as_bytes(std::span(&header, 1)));
        update(nullptr, std::as_bytes(std::span(name)));
    }
    /// `to` null: authenticated only.
    void update(std::byte* to, std::span<const std::byte> from) {
        while (!from.empty()) {  // OpenSSL counts with int
            const auto some = from.first(std::min(from.size(), size_t{1} << 30));
            int written = 0;
            check_seal(EVP_CipherUpdate(context_.get(), to == nullptr ? nullptr : raw(to), &written, raw(some.data()),
                                        static_cast<int>(some.size())) == 1);
            if (to != nullptr) to += some.size();
            from = from.subspan(some.size());
        }
    }
    /// Gives the tag, or says whether it is this one.
    bool finish(std::span<std::byte, kSealTagBytes> tag) {
        int written = 0;
        const auto control = [&](int what) {
            return EVP_CIPHER_CTX_ctrl(context_.get(), what, static_cast<int>(tag.size()), tag.data()) == 1;
        };
        if (!seals_) check_seal(control(EVP_CTRL_AEAD_SET_TAG));
        const bool done = EVP_CipherFinal_ex(context_.get(), nullptr, &written) == 1;
        if (seals_) check_seal(done && control(EVP_CTRL_AEAD_GET_TAG));
        return done;
    }

  private:
    const bool seals_;
    const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context_{EVP_CIPHER_CTX_new(),
                                                                                   EVP_CIPHER_CTX_free};
};

template <class Parts>
int64_t bytes_of_parts(const Parts& parts) {
    int64_t bytes = 0;
    for (const auto& part : parts) bytes += std::ssize(part);
    return bytes;
}

}  // namespace

SealKey SealKey::of_secret(std::span<const std::byte> secret) {
    constexpr std::string_view kUse = "riptide shared cache 1";
    return {hkdf(secret, std::as_bytes(std::span(kUse.data(), kUse.size())))};
}

SealKey SealKey::of_file(const std::string& path) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const std::string text = read_file(path, 1 << 16);
    const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
    const auto secret = std::string_view(text).substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
    RT_CHECK(secret.size() >= kLeastSecretBytes,
             "{}: holds a secret of {} bytes, expected at least {}; make one with: openssl rand -hex 32 > {}", path,
             secret.size(), kLeastSecretBytes, path);
    return of_secret(std::as_bytes(std::span(secret.data(), secret.size())));
}

std::string sealed_name(const SealKey& key, const Digest& name) {
    std::array<std::byte, sizeof key.bytes + sizeof name> text;
    std::memcpy(text.data(), key.bytes.data(), sizeof key.bytes);
    std::memcpy(text.data() + sizeof key.bytes, name.data(), sizeof name);
    return to_hex(sha256(text));
}

int64_t sealed_bytes(int64_t payload_bytes) {
    return static_cast<int64_t>(sizeof(SealHeader) + kSealTagBytes) + payload_bytes;
}

std::vector<std::byte> seal(const SealKey& key, const Digest& name, int32_t tag,
                            std::span<const std::span<const std::byte>> parts) {
    SealHeader header{.payload_bytes = bytes_of_parts(parts), .tag = tag};
    check_seal(RAND_bytes(header.nonce.data(), static_cast<int>(header.nonce.size())) == 1);
    std::vector<std::byte> sealed(static_cast<size_t>(sealed_bytes(header.payload_bytes)));
    std::memcpy(sealed.data(), &header, sizeof header);
    std::byte* at = sealed.data() + sizeof header;
    RecordCipher cipher(key, name, header, true);
    for (const std::span<const std::byte> part : parts) {
        cipher.update(at, part);
        at += part.size();
    }
    cipher.finish(std::span<std::byte, kSealTagBytes>(at, kSealTagBytes));
    return sealed;
}

bool unseal(const SealKey& key, const Digest& name, std::span<const std::byte> sealed,
            std::span<const std::span<std::byte>> parts, int32_t& tag) {
    const int64_t bytes = bytes_of_parts(parts);
    if (std::ssize(sealed) != sealed_bytes(bytes)) return false;
    SealHeader header;
    std::memcpy(&header, sealed.data(), sizeof header);
    if (header.magic != kSealMagic || header.version != kSealVersion || header.payload_bytes != bytes) return false;
    std::span<const std::byte> left = sealed.subspan(sizeof header);
    RecordCipher cipher(key, name, header, false);
    for (const std::span<std::byte> part : parts) {
        cipher.update(part.data(), left.first(part.size()));
        left = left.subspan(part.size());
    }
    std::array<std::byte, kSealTagBytes> end;
    std::copy(left.begin(), left.end(), end.begin());
    if (!cipher.finish(end)) return false;
    tag = header.tag;
    return true;
}

}  // namespace riptide
