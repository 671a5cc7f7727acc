#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace riptide {

namespace {

/// Looked up once: OpenSSL takes longer to find it than to hash a page's key.
const EVP_MD* sha256_method() {
    static const EVP_MD* const method = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    RT_CHECK(method != nullptr, ErrorKind::system, "OpenSSL has no SHA-256");
    return method;
}

void check_sha256(int result) { RT_CHECK(result == 1, ErrorKind::system, "OpenSSL cannot compute a SHA-256"); }

}  // namespace

struct Sha256::State {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
    check_sha256(state_->context == nullptr ? 0 : EVP_DigestInit_ex(state_->context, sha256_method(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
    check_sha256(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

Digest Sha256::digest() {
    Digest digest;
    check_sha256(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr));
    return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.add(bytes);
    return hash.digest();
}

std::string to_hex(const Digest& digest) {
    std::string text;
    for (const uint8_t byte : digest) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

std::optional<Digest> digest_of_hex(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    Digest digest{};
    if (text.size() != 2 * digest.size()) return std::nullopt;
    for (size_t i = 0; i < text.size(); ++i) {
        const size_t digit = kDigits.find(text[i]);
        if (digit == std::string_view::npos) return std::nullopt;
        digest[i / 2] = static_cast<uint8_t>(digest[i / 2] << 4 | digit);
    }
    return digest;
}

}  // namespace riptide
