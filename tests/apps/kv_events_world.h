// A router as the tests have one: it knows what K/V events told it, and nothing else.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/events/kv_event_log.h"

namespace riptide::apps {

/// Reads the MessagePack of a batch as strict routers do: by place and width.
class BatchReader {
  public:
    explicit BatchReader(std::string_view bytes) : rest_(bytes) {}

    bool nil() {
        if (rest_.empty() || rest_[0] != '\xc0') return false;
        rest_.remove_prefix(1);
        return true;
    }
    double real() {
        EXPECT_EQ(take(1), 0xcbU);
        return std::bit_cast<double>(take(8));
    }
    uint64_t hash() {
        EXPECT_EQ(take(1), 0xcfU) << "a hash of another width";
        return take(8);
    }
    uint64_t number() {
        const uint64_t type = take(1);
        if (type < 0x80) return type;
        EXPECT_TRUE(type >= 0xcc && type <= 0xce) << type;
        return take(1 << (type - 0xcc));
    }
    std::string text() {
        const uint64_t type = take(1);
        const uint64_t size = type == 0xd9 ? take(1) : type == 0xda ? take(2) : type - 0xa0;
        EXPECT_LE(size, rest_.size());
        const std::string out(rest_.substr(0, size));
        rest_.remove_prefix(std::min<size_t>(size, rest_.size()));
        return out;
    }
    size_t array() {
        const uint64_t type = take(1);
        if (type == 0xdc) return take(2);
        EXPECT_EQ(type & 0xf0, 0x90U) << type;
        return type & 0xf;
    }
    bool done() const { return rest_.empty(); }

  private:
    uint64_t take(int bytes) {
        uint64_t value = 0;
        for (int i = 0; i < bytes; ++i) {
            EXPECT_FALSE(rest_.empty());
            if (rest_.empty()) return 0;
            value = value << 8 | static_cast<uint8_t>(rest_[0]);
            rest_.remove_prefix(1);
        }
        return value;
    }
    std::string_view rest_;
};

struct KnownBlock {
    std::vector<int32_t> path;  // tokens up to and with it
    std::set<std::string> media;
    std::string salt;
    bool operator==(const KnownBlock&) const = default;
};

class Router {
  public:
    explicit Router(size_t block) : block_(block) {}

    void hear(const KvEventMessage& message) {
        // Number 0 is a server that begins; else nothing may be missing.
        EXPECT_EQ(message.sequence, message.sequence == 0 ? 0 : next_);
        next_ = message.sequence + 1;
        BatchReader in(*message.payload);
        EXPECT_EQ(in.array(), 3U);
        EXPECT_EQ(in.real(), 12.5);
        size_t pages = 0;
        const size_t events = in.array();
        for (size_t i = 0; i < events; ++i) {
            const size_t size = in.array();
            const std::string tag = in.text();
            EXPECT_TRUE(message.sequence > 0 || i > 0 || tag == "AllBlocksCleared");
            if (tag == "BlockStored") pages += stored(in, size);
            else if (tag == "BlockRemoved") pages += removed(in, size);
            else cleared(tag, size);
        }
        EXPECT_LE(pages, UsablePages::kMostPages);
        EXPECT_EQ(in.number(), 0U);
        EXPECT_TRUE(in.done());
    }

    std::map<uint64_t, KnownBlock> blocks;

  private:
    size_t stored(BatchReader& in, size_t size) {
        EXPECT_EQ(size, 9U);
        std::vector<uint64_t> hashes(in.array());
        for (uint64_t& hash : hashes) hash = in.hash();
        std::vector<int32_t> path;
        const bool first = in.nil();
        if (!first) {
            const uint64_t parent = in.hash();
            EXPECT_TRUE(blocks.contains(parent)) << "a parent that was not told";
            path = blocks[parent].path;
        }
        EXPECT_EQ(in.array(), hashes.size() * block_);
        std::vector<int32_t> tokens(hashes.size() * block_);
        for (int32_t& token : tokens) token = static_cast<int32_t>(in.number());
        EXPECT_EQ(in.number(), block_);
        EXPECT_TRUE(in.nil());
        const std::string medium = in.text();
        EXPECT_TRUE(in.nil());
        std::string salt;
        if (!in.nil()) {
            EXPECT_TRUE(first);
            EXPECT_EQ(in.array(), hashes.size());
            EXPECT_EQ(in.array(), 1U);
            salt = in.text();
            for (size_t i = 1; i < hashes.size(); ++i) EXPECT_TRUE(in.nil());
        }
        for (size_t i = 0; i < hashes.size(); ++i) {
            const auto from = tokens.begin() + static_cast<ptrdiff_t>(i * block_);
            path.insert(path.end(), from, from + static_cast<ptrdiff_t>(block_));
            KnownBlock& block = blocks[hashes[i]];
            EXPECT_TRUE(block.path.empty() || block.path == path) << "one hash, two texts";
            EXPECT_TRUE(block.media.insert(medium).second) << "told twice";
            block.path = path;
            if (i == 0) block.salt = salt;
        }
        return hashes.size();
    }
    size_t removed(BatchReader& in, size_t size) {
        EXPECT_EQ(size, 3U);
        std::vector<uint64_t> hashes(in.array());
        for (uint64_t& hash : hashes) hash = in.hash();
        const std::string medium = in.text();
        for (const uint64_t hash : hashes) {
            EXPECT_EQ(blocks[hash].media.erase(medium), 1U) << "was not there";
            if (blocks[hash].media.empty()) blocks.erase(hash);
        }
        return hashes.size();
    }
    void cleared(const std::string& tag, size_t size) {
        EXPECT_EQ(tag, "AllBlocksCleared");
        EXPECT_EQ(size, 1U);
        blocks.clear();
    }

    size_t block_;
    uint64_t next_ = 0;
};

}  // namespace riptide::apps
