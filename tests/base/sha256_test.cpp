#include "base/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace riptide {
namespace {

std::string hex_of(const std::string& text) { return to_hex(sha256(std::as_bytes(std::span(text)))); }

TEST(sha256, gives_the_published_digests) {  // FIPS 180-2, appendix B, and the empty message
    EXPECT_EQ(hex_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hex_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(hex_of(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, does_not_depend_on_the_pieces_that_bytes_come_in) {
    std::string text(200'001, 'x');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
    const auto bytes = std::as_bytes(std::span(text));
    for (const size_t piece : {size_t{1}, size_t{63}, size_t{64}, size_t{4096}, text.size()}) {
        Sha256 hash;
        for (size_t at = 0; at < bytes.size(); at += piece)
            hash.add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
        EXPECT_EQ(hash.digest(), sha256(bytes)) << piece;
    }
}

TEST(sha256, a_digest_is_read_as_it_was_written_and_nothing_else_is_one) {
    const Digest digest = sha256({});
    const std::string hex = to_hex(digest);
    EXPECT_EQ(digest_of_hex(hex), digest);
    std::string upper = hex, letter = hex;
    upper[0] = 'E';
    letter[63] = 'g';
    for (const std::string& other : {std::string(), hex.substr(1), hex + "0", upper, letter})
        EXPECT_EQ(digest_of_hex(other), std::nullopt) << other;
}

}  // namespace
}  // namespace riptide
