#include "cache/shared/seal.h"

#include "base/error.h"
#include "tests/cache/disk_world.h"

namespace riptide {
namespace {

using Bytes = std::vector<std::byte>;

Bytes of_hex(std::string_view hex) {
    Bytes bytes;
    for (size_t i = 0; i < hex.size(); i += 2)
        bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
    return bytes;
}

SealKey key_of(uint8_t first) {
    Bytes secret(32);
    for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(first + i);
    return SealKey::of_secret(secret);
}

Digest name_of(uint8_t byte) {
    Digest name;
    name.fill(byte);
    return name;
}

Bytes seal_one(const SealKey& key, const Digest& name, int32_t tag, const Bytes& payload) {
    const std::span<const std::byte> part = payload;
    return seal(key, name, tag, {&part, 1});
}

/// The payload, or nothing. Into a part of its own size, for a sanitizer to see one byte too many.
std::optional<Bytes> open_one(const SealKey& key, const Digest& name, const Bytes& sealed, int64_t bytes) {
    Bytes payload(static_cast<size_t>(bytes));
    const std::span<std::byte> part = payload;
    int32_t tag = 0;
    if (!unseal(key, name, sealed, {&part, 1}, tag)) return std::nullopt;
    EXPECT_EQ(tag, -7);
    return payload;
}

// Made by Node.js' crypto: hkdfSync('sha256', secret, '', info, 32), createCipheriv('aes-256-gcm').
TEST(seal, is_what_other_software_computes) {
    const SealKey key = key_of(0);
    EXPECT_EQ(to_hex(key.bytes), "d77fcca9ad46fdece9d267f118eeb888779df2c26ab6920aa40cf6af6d44518c");
    const auto opened = open_one(key, name_of(0xab),
                                 of_hex("52504b56010000001300000000000000f9ffffff000102030405060708090a0b6d48f1f9879c51"
                                        "b9dbf0e1ed419da83676b0d856784a52de0173dcce735848a8a37b02"),
                                 19);
    ASSERT_TRUE(opened);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(opened->data()), 19), "the quick brown fox");
}

TEST(seal, opens_into_parts_what_was_sealed_from_others) {
    const SealKey key = key_of(1);
    const Record one = record(8, 0, 5000);
    const auto all = one.parts.at(0)->span();
    const std::span<const std::byte> from[] = {all.first(1), all.subspan(1, 0), all.subspan(1)};
    const Bytes sealed = seal(key, name_of(1), 42, from);
    EXPECT_EQ(std::ssize(sealed), sealed_bytes(5000));
    EXPECT_NE(sealed, seal(key, name_of(1), 42, from));  // another nonce
    Bytes got(5000);
    const std::span<std::byte> to[] = {std::span(got).first(4000), std::span(got).subspan(4000), {}};
    int32_t tag = 0;
    ASSERT_TRUE(unseal(key, name_of(1), sealed, to, tag));
    EXPECT_EQ(tag, 42);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin()));
    EXPECT_TRUE(open_one(key, name_of(1), seal_one(key, name_of(1), -7, {}), 0));
}

TEST(seal, opens_nothing_that_was_changed_cut_moved_or_sealed_by_others) {
    constexpr unsigned kSeed = 5;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const SealKey key = key_of(0);
    const Bytes payload = of_hex(std::string(600, '7')), sealed = seal_one(key, name_of(2), -7, payload);
    EXPECT_EQ(open_one(key, name_of(2), sealed, 300), payload);
    for (int flip = 0; flip < 1000; ++flip) {
        Bytes changed = sealed;
        changed[flip < 32 ? static_cast<size_t>(flip) : rng() % changed.size()] ^= std::byte{1} << rng() % 8;
        EXPECT_FALSE(open_one(key, name_of(2), changed, 300)) << flip;
    }
    for (size_t size = 0; size < sealed.size(); ++size) {
        const Bytes cut(sealed.begin(), sealed.begin() + static_cast<int64_t>(size));
        EXPECT_FALSE(open_one(key, name_of(2), cut, 300)) << size;
        EXPECT_FALSE(open_one(key, name_of(2), cut, std::max<int64_t>(std::ssize(cut) - sealed_bytes(0), 0))) << size;
    }
    EXPECT_FALSE(open_one(key, name_of(2), sealed, 299));
    EXPECT_FALSE(open_one(key, name_of(2), sealed, 301));
    EXPECT_FALSE(open_one(key, name_of(3), sealed, 300));
    EXPECT_FALSE(open_one(key_of(1), name_of(2), sealed, 300));
}

TEST(seal, a_secret_is_32_bytes_of_a_file_without_its_blanks) {
    const StoreFolder folder;
    const std::string path = folder.path + "/secret", secret = "0123456789abcdef0123456789abcdef";
    spit(path, secret);
    const SealKey key = SealKey::of_file(path);
    spit(path, "\n " + secret + " \r\n");
    EXPECT_EQ(SealKey::of_file(path).bytes, key.bytes);
    EXPECT_EQ(SealKey::of_secret(std::as_bytes(std::span(secret))).bytes, key.bytes);
    for (const std::string& text : {std::string(), std::string("\n\n"), secret.substr(1) + " \n"}) {
        spit(path, text);
        try {
            SealKey::of_file(path);
            ADD_FAILURE() << text;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
            EXPECT_NE(std::string(error.what()).find("openssl rand"), std::string::npos) << error.what();
        }
    }
    EXPECT_THROW(SealKey::of_file(folder.path + "/none"), Error);
}

}  // namespace
}  // namespace riptide
