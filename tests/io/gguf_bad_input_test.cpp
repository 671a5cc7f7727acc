// Files that are not what they claim. Run under AddressSanitizer these also prove that nothing is read outside the
// image: each image is copied to a heap block of its exact size.
#include <algorithm>
#include <random>

#include "io/gguf.h"
#include "tests/io/test_files.h"

namespace riptide {
namespace {

using test::Bytes;
using test::expect_error;
using test::RawGguf;
using test::TempFolder;
using Role = RawGguf::Role;

void open_exact_gguf(std::span<const std::byte> image) {
    const auto exact = std::make_unique<std::byte[]>(std::max<size_t>(image.size(), 1));
    std::copy(image.begin(), image.end(), exact.get());
    (void)open_gguf_memory({exact.get(), image.size()}, "bad.gguf");
}

void expect_gguf_refused(const Bytes& image, std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(expect_error([&] { open_exact_gguf(image); }, parts), ErrorKind::data);
}

template <class T>
Bytes with(const RawGguf& raw, const RawGguf::Field& field, T value) {
    Bytes bytes = raw.bytes;
    std::memcpy(bytes.data() + field.at, &value, std::min(field.size, sizeof value));
    return bytes;
}

std::vector<RawGguf::Field> fields_of(const RawGguf& raw, Role role) {
    std::vector<RawGguf::Field> found;
    for (const auto& field : raw.fields)
        if (field.role == role) found.push_back(field);
    return found;
}

TEST(GgufBadInput, a_cut_at_any_byte_is_an_error) {
    const RawGguf raw = test::small_gguf();
    for (size_t length = 0; length < raw.bytes.size(); ++length) {
        SCOPED_TRACE(length);
        const Bytes cut(raw.bytes.begin(), raw.bytes.begin() + static_cast<std::ptrdiff_t>(length));
        expect_gguf_refused(cut, {"bad.gguf: "});
        if (length > 24) expect_gguf_refused(cut, {"truncated"});
    }
}

TEST(GgufBadInput, a_tensor_cut_off_is_named_with_its_bytes) {
    const RawGguf raw = test::small_gguf();
    const size_t end = raw.bytes.size(), data = end - 160;
    const auto cut = [&](size_t length) {
        return Bytes(raw.bytes.begin(), raw.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    };
    for (const size_t off : {data - 1, data, data + 1, data + 39})
        expect_gguf_refused(cut(off), {"truncated: tensor a.weight needs bytes", fmt::format("file has {}", off)});
    for (const size_t off : {data + 40, data + 41, data + 63, data + 64, data + 99})
        expect_gguf_refused(cut(off), {fmt::format("truncated: tensor b.weight needs bytes {}-{}, file has {}",
                                                   data + 64, data + 100, off)});
    for (const size_t off : {data + 100, data + 128, end - 1})
        expect_gguf_refused(cut(off), {"truncated: tensor c.weight"});
    Bytes longer = raw.bytes;
    longer.resize(end + 1);
    expect_gguf_refused(longer, {"1 bytes too many"});
    longer.resize(end + 4096);
    expect_gguf_refused(longer, {"4096 bytes too many"});
}

TEST(GgufBadInput, zero_where_something_must_be) {
    const RawGguf raw = test::small_gguf();
    for (const auto& field : fields_of(raw, Role::dim))
        expect_gguf_refused(with(raw, field, uint64_t{0}), {"dimension", "= 0"});
    for (const auto& field : fields_of(raw, Role::dims))
        expect_gguf_refused(with(raw, field, 0u), {"0 dimensions, expected 1 to 4"});
    for (const auto& field : fields_of(raw, Role::dims)) expect_gguf_refused(with(raw, field, 5u), {"5 dimensions"});
    for (const auto& field : fields_of(raw, Role::dim))
        expect_gguf_refused(with(raw, field, ~uint64_t{0}), {"dimension", "= -1"});
    expect_gguf_refused(with(raw, fields_of(raw, Role::length)[0], uint64_t{0}), {"key 0 of 5 is empty"});
    expect_gguf_refused(with(raw, fields_of(raw, Role::count)[0], uint64_t{0}), {"bytes too many"});
}

TEST(GgufBadInput, products_that_overflow) {
    for (const std::vector<uint64_t>& dims : std::vector<std::vector<uint64_t>>{{uint64_t{1} << 32, uint64_t{1} << 32},
                                                                                {uint64_t{1} << 62},
                                                                                {1 << 16, 1 << 16, 1 << 16, 1 << 16},
                                                                                {4, uint64_t{1} << 60, 4}}) {
        RawGguf raw;
        raw.header(1, 0);
        raw.tensor("w", dims, 0, 0);
        raw.pad(32);
        raw.data(64);
        expect_gguf_refused(raw.bytes, {"tensor w", "overflows"});
    }
    RawGguf raw;  // bytes fit, their end does not
    raw.header(2, 0);
    raw.tensor("w", {16}, 0, 0);
    raw.tensor("v", {(uint64_t{1} << 61) - 1}, 0, 64);
    raw.pad(32);
    raw.data(128);
    expect_gguf_refused(raw.bytes, {"truncated: tensor v needs bytes"});
}

TEST(GgufBadInput, alignment) {
    const RawGguf raw = test::small_gguf();
    const auto field = fields_of(raw, Role::alignment).at(0);
    for (const uint32_t bad : {0u, 1u, 3u, 4u, 24u, 48u, 1u << 21, 1u << 31})
        expect_gguf_refused(with(raw, field, bad), {"general.alignment is", fmt::format("{}", bad), "power of two"});
    Bytes wrong_type = raw.bytes;
    wrong_type[field.at - 4] = std::byte{5};
    expect_gguf_refused(wrong_type, {"general.alignment is i32, expected a u32"});
}

RawGguf two_tensors(uint64_t second_offset, const char* second_name = "v", uint32_t type = 0, uint64_t dim = 16) {
    RawGguf raw;
    raw.header(2, 0);
    raw.tensor("w", {16}, 0, 0);
    raw.tensor(second_name, {dim}, type, second_offset);
    raw.pad(32);
    raw.data(128);
    return raw;
}

TEST(GgufBadInput, tensors_that_overlap_leave_gaps_or_share_a_name) {
    open_exact_gguf(two_tensors(64).bytes);
    expect_gguf_refused(two_tensors(0).bytes, {"overlaps"});
    expect_gguf_refused(two_tensors(32).bytes, {"tensor v overlaps tensor w"});
    expect_gguf_refused(two_tensors(96).bytes, {"32 unused bytes between tensor w and tensor v"});
    expect_gguf_refused(two_tensors(65).bytes, {"tensor v has offset 65, expected a multiple of 32"});
    expect_gguf_refused(two_tensors(uint64_t{1} << 40).bytes, {"unused bytes"});
    expect_gguf_refused(two_tensors(64, "w").bytes, {"tensor w is there twice"});
}

TEST(GgufBadInput, tensors_may_lie_in_another_order_than_the_header) {
    RawGguf raw;
    raw.header(2, 0);
    raw.tensor("w", {16}, 0, 64);
    raw.tensor("v", {16}, 0, 0);
    raw.pad(32);
    raw.data(128);
    const auto file = open_gguf_memory(raw.bytes, "memory");
    EXPECT_EQ(file->find("v")->bytes[0], std::byte{1});
    EXPECT_EQ(file->find("w")->bytes[0], std::byte{65});
}

TEST(GgufBadInput, tensor_types) {
    expect_gguf_refused(two_tensors(64, "v", 999).bytes, {"tensor v has the unknown type 999"});
    expect_gguf_refused(two_tensors(64, "v", 0xffffffff).bytes, {"unknown type 4294967295"});
    expect_gguf_refused(two_tensors(64, "v", 4).bytes, {"tensor v has type q4_2 (4), which GGUF has removed"});
    expect_gguf_refused(two_tensors(64, "v", 31).bytes, {"q4_0_4_4 (31)", "removed"});
    expect_gguf_refused(two_tensors(64, "v", 15).bytes, {"q8_k (15)", "not supported"});
    expect_gguf_refused(two_tensors(64, "v", 2, 33).bytes, {"tensor v [33]", "q4_0", "32"});
}

TEST(GgufBadInput, value_types) {
    const auto value = [](uint32_t type, std::initializer_list<uint64_t> words, uint64_t tail = 0) {
        RawGguf raw;
        raw.header(0, 1);
        raw.string("k\n");
        raw.append(type);
        for (const uint64_t word : words) raw.append(word);
        raw.append(tail);
        return raw.bytes;
    };
    expect_gguf_refused(value(13, {}), {"key k\\x0a has value type 13"});
    expect_gguf_refused(value(9, {13, 0}), {"value type 13"});
    expect_gguf_refused(value(9, {9 | uint64_t{1} << 32, 0}), {"array of arrays"});
    expect_gguf_refused(value(7, {}, 2), {"bool with the value 2"});
    expect_gguf_refused(value(9, {8 | uint64_t{1000} << 32, 0}), {"truncated: claims 1000 elements of key k\\x0a"});
    expect_gguf_refused(value(8, {1000}), {"truncated: k\\x0a claims 1000 bytes"});
}

TEST(GgufBadInput, keys_that_are_there_twice) {
    RawGguf raw;
    raw.header(0, 2);
    raw.key_u32("a", 1);
    raw.key_u32("a", 2);
    expect_gguf_refused(raw.bytes, {"key a is there twice"});
}

TEST(GgufBadInput, an_array_of_more_elements_than_any_model_has) {
    RawGguf raw;
    raw.header(0, 1);
    raw.string("a");
    raw.append<uint32_t>(9);
    raw.append<uint32_t>(0);
    raw.append<uint64_t>((1 << 24) + 1);
    raw.bytes.resize(raw.bytes.size() + (1 << 24) + 1);
    expect_gguf_refused(raw.bytes, {"key a", "16777216 elements"});
}

TEST(GgufBadInput, versions) {
    auto raw = test::small_gguf();
    const auto version = [&](uint32_t v) { return with(raw, raw.fields[0], v); };
    expect_gguf_refused(version(1), {"GGUF version 1, supported are 2 and 3"});
    expect_gguf_refused(version(4), {"GGUF version 4, supported are 2 and 3"});
    expect_gguf_refused(version(0), {"GGUF version 0"});
    expect_gguf_refused(version(0x03000000), {"big-endian"});
}

TEST(GgufBadInput, other_contents_are_recognised) {
    TempFolder folder;
    const auto expect = [&](std::string_view content, std::string_view part) {
        const std::string path = folder.put("x.gguf", content);
        EXPECT_EQ(expect_error([&] { (void)open_checkpoint(path); }, {path, "not a GGUF file: ", part}),
                  ErrorKind::data);
    };
    expect("", "empty");
    expect("abc", "begins with the text \"abc\"");
    expect("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 20\n", "Git LFS pointer: run git lfs pull");
    expect("<!DOCTYPE html>\n<html>", "HTML");
    expect("PK\x03\x04 archive/data.pkl", "pickle");
    expect(std::string("\x80\x02}q", 4), "pickle");
    expect("{\"a\": 1}", "JSON");
    expect(std::string(100, '\0'), "zeros");
    expect("\x01\x02\x03\x04\x05", "01 02 03 04");
    expect("ggjt\x01\x02", "older than GGUF");
    expect_error(
        [&] { (void)GgufFile::open(folder.put("y.gguf", std::string("\x10\0\0\0\0\0\0\0{}              ", 24))); },
        {"safetensors"});
    std::mt19937_64 random(1);
    std::string noise(4096, ' ');
    for (char& c : noise) c = static_cast<char>(random() | 0x80);
    expect(noise, "it begins with the bytes");
}

}  // namespace
}  // namespace riptide
