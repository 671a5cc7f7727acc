// What the io tests share: a folder that goes away, images of files built by hand, and "throws Error saying ...".
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace riptide::test {

using Bytes = std::vector<std::byte>;

/// A new empty folder, removed with everything in it at the end.
class TempFolder {
  public:
    TempFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "riptide-io-XXXXXX").string();
        if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
        path_ = name;
    }
    ~TempFolder() { std::filesystem::remove_all(path_); }
    std::string file(std::string_view name) const { return (path_ / name).string(); }
    std::string path() const { return path_.string(); }
    std::string put(std::string_view name, std::string_view text) const {
        write_file_atomic(file(name), text);
        return file(name);
    }
    std::string put(std::string_view name, const Bytes& bytes) const {
        write_file_atomic(file(name), std::span<const std::byte>(bytes));
        return file(name);
    }
    /// Names of everything in the folder.
    std::vector<std::string> list() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(path_))
            names.push_back(entry.path().filename().string());
        std::sort(names.begin(), names.end());
        return names;
    }

  private:
    std::filesystem::path path_;
};

/// Runs `body`; expects an Error of one line that contains all of `parts`, and returns its kind.
template <class Body>
ErrorKind expect_error(Body&& body, std::initializer_list<std::string_view> parts) {
    try {
        body();
    } catch (const Error& error) {
        const std::string what = error.what();
        for (const std::string_view part : parts)
            EXPECT_NE(what.find(part), std::string::npos) << part << " is not in: " << what;
        EXPECT_EQ(what.find('\n'), std::string::npos) << what;
        return error.kind();
    }
    ADD_FAILURE() << "no Error"
                  << (parts.size() ? std::string(", expected one with: ") + std::string(*parts.begin()) : "");
    return ErrorKind::usage;
}

inline Bytes to_bytes(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return {bytes.begin(), bytes.end()};
}

/// Bytes that differ from their neighbours, and with `seed`.
inline Bytes pattern(int64_t count, int seed) {
    Bytes bytes(static_cast<size_t>(count));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed));
    return bytes;
}

/// A GGUF built byte by byte, independent of the writer, that remembers where each number lies.
struct RawGguf {
    enum class Role { magic, count, length, type, alignment, dims, dim, dtype, offset };
    struct Field {
        Role role;
        size_t at;
        size_t size;
    };
    Bytes bytes;
    std::vector<Field> fields;

    template <class T>
    void number(T value, Role role) {
        fields.push_back({role, bytes.size(), sizeof value});
        append(value);
    }
    template <class T>
    void append(T value) {
        const auto* p = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), p, p + sizeof value);
    }
    void string(std::string_view text) {
        number<uint64_t>(text.size(), Role::length);
        for (const char c : text) append(c);
    }
    void header(uint64_t tensors, uint64_t key_values, uint32_t version = 3) {
        for (const char c : std::string_view("GGUF")) append(c);
        number(version, Role::magic);
        number(tensors, Role::count);
        number(key_values, Role::count);
    }
    void key_u32(std::string_view key, uint32_t value, Role role = Role::magic) {
        string(key);
        number<uint32_t>(4, Role::type);
        if (role == Role::alignment) {
            number(value, role);
        } else {
            append(value);
        }
    }
    void tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
        string(name);
        number<uint32_t>(static_cast<uint32_t>(dims.size()), Role::dims);
        for (const uint64_t dim : dims) number(dim, Role::dim);
        number(type, Role::dtype);
        number(offset, Role::offset);
    }
    void pad(size_t alignment) {
        while (bytes.size() % alignment) bytes.push_back(std::byte{0});
    }
    void data(size_t count) {
        for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i + 1));
    }
};

/// Every kind of thing a header can hold, in about 400 bytes, and three tensors: 40 bytes, 36 bytes, 32 bytes.
inline RawGguf small_gguf() {
    using Role = RawGguf::Role;
    RawGguf image;
    image.header(3, 5);
    image.string("general.architecture");
    image.number<uint32_t>(8, Role::type);
    image.string("laguna");
    image.key_u32("general.alignment", 32, Role::alignment);
    image.string("words");
    image.number<uint32_t>(9, Role::type);
    image.number<uint32_t>(8, Role::type);
    image.number<uint64_t>(2, Role::count);
    image.string("one");
    image.string("");
    image.string("numbers");
    image.number<uint32_t>(9, Role::type);
    image.number<uint32_t>(5, Role::type);
    image.number<uint64_t>(3, Role::count);
    for (const int32_t n : {48, -1, 64}) image.append(n);
    image.string("flag");
    image.number<uint32_t>(7, Role::type);
    image.append<uint8_t>(1);
    image.tensor("a.weight", {5, 2}, 0, 0);
    image.tensor("b.weight", {32, 1, 2}, 2, 64);
    image.tensor("c.weight", {2, 2, 2, 2}, 1, 128);
    image.pad(32);
    image.data(40);
    image.pad(32);
    image.data(36);
    image.pad(32);
    image.data(32);
    return image;
}

/// Two tensors, of 16 and 6 bytes.
inline constexpr std::string_view kSmallHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";

/// A safetensors image with this header text.
inline Bytes safetensors_image(std::string_view header, size_t data_bytes) {
    Bytes image(8 + header.size() + data_bytes);
    const uint64_t length = header.size();
    std::memcpy(image.data(), &length, 8);
    std::memcpy(image.data() + 8, header.data(), header.size());
    for (size_t i = 0; i < data_bytes; ++i) image[8 + header.size() + i] = static_cast<std::byte>(i + 1);
    return image;
}

}  // namespace riptide::test
