// Folders and records of which every byte is known.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "cache/disk_store.h"
#include "cache/host_store.h"

namespace riptide {

namespace fs = std::filesystem;

/// A fresh folder, removed at the end.
struct StoreFolder {
    std::string path;
    StoreFolder() {
        std::string name = ::testing::TempDir() + "/riptide-disk-XXXXXX";
        path = ::mkdtemp(name.data());
    }
    ~StoreFolder() { fs::remove_all(path); }
    std::vector<fs::path> files() const {
        std::vector<fs::path> files;
        for (const auto& one : fs::directory_iterator(path))
            if (one.path().filename() != "lock") files.push_back(one.path());
        std::sort(files.begin(), files.end());
        return files;
    }
};

inline const std::shared_ptr<HostHeap>& heap() {
    static const std::shared_ptr<HostHeap> one = HostHeap::make(nullptr);
    return one;
}

/// Record number i: everything about it follows from i, so a wrong byte is seen. One part or two.
inline Record record(uint32_t i, int32_t rank = 0, int64_t bytes = -1) {
    std::mt19937 rng(i);
    Digest group;
    group.fill(static_cast<uint8_t>(i % 7));
    Record r{.id = RecordKey::of(group, "record " + std::to_string(i)), .rank = rank, .tag = static_cast<int32_t>(i)};
    if (bytes < 0) bytes = static_cast<int64_t>(rng() % 3000);
    const int64_t first = i % 2 == 0 ? bytes : bytes / 3;
    for (const int64_t size : {first, bytes - first}) {
        if (size == 0 && !r.parts.empty()) break;
        r.parts.push_back(heap()->take(size));
        for (std::byte& b : r.parts.back()->span()) b = static_cast<std::byte>(rng());
    }
    return r;
}

inline std::string payload_of(const Record& record) {
    std::string bytes;
    for (const HostBytes& part : record.parts)
        bytes.append(reinterpret_cast<const char*>(part->data), static_cast<size_t>(part->bytes));
    return bytes;
}

/// Whether the record is there; fails the test if it is there with other bytes.
inline bool held(DiskStore& store, const Record& expected) {
    Record got = expected;
    DiskStore::Read read{.id = &expected.id};
    for (HostBytes& part : got.parts) {
        part = heap()->take(part->bytes);
        read.to.push_back(part->span());
    }
    store.read({&read, 1});
    EXPECT_TRUE(!read.done || (payload_of(got) == payload_of(expected) && read.tag == expected.tag)) << expected.id.key;
    EXPECT_EQ(store.touch(expected.id), read.done);
    return read.done;
}
inline bool held(DiskStore& store, uint32_t i) { return held(store, record(i)); }

inline std::string slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
inline void spit(const fs::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace riptide
