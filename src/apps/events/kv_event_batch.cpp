#include "apps/events/kv_event_batch.h"

#include <bit>
#include <string_view>
#include <utility>

#include "server/access.h"

namespace riptide::apps {

namespace {

/// MessagePack, what is needed of it.
class Packer {
  public:
    void nil() { out += '\xc0'; }
    void real(double value) { wide('\xcb', std::bit_cast<uint64_t>(value), 8); }
    /// In nine bytes, always.
    void hash(uint64_t value) { wide('\xcf', value, 8); }
    void number(uint64_t value) {
        if (value < 0x80) out += static_cast<char>(value);
        else if (value <= UINT8_MAX) wide('\xcc', value, 1);
        else if (value <= UINT16_MAX) wide('\xcd', value, 2);
        else if (value <= UINT32_MAX) wide('\xce', value, 4);
        else wide('\xcf', value, 8);
    }
    void text(std::string_view value) {
        if (value.size() < 32) out += static_cast<char>(0xa0 | value.size());
        else if (value.size() <= UINT8_MAX) wide('\xd9', value.size(), 1);
        else if (value.size() <= UINT16_MAX) wide('\xda', value.size(), 2);
        else wide('\xdb', value.size(), 4);
        out += value;
    }
    /// What follows are its members.
    void array(size_t size) {
        if (size < 16) out += static_cast<char>(0x90 | size);
        else if (size <= UINT16_MAX) wide('\xdc', size, 2);
        else wide('\xdd', size, 4);
    }
    /// What follows are so many pairs. REQUIRES size < 16.
    void map(size_t size) { out += static_cast<char>(0x80 | size); }
    std::string out;

  private:
    void wide(char type, uint64_t value, int bytes) {
        out += type;
        for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
    }
};

std::string_view medium_of(CacheTier tier) {
    return tier == CacheTier::device ? "GPU" : tier == CacheTier::host ? "CPU" : "DISK";
}

/// Of an event: its tag, then its fields in their order.
class EventPacker {
  public:
    EventPacker(Packer& to, KvEventForm form, std::string_view tag, size_t fields)
        : to_(to), map_(form == KvEventForm::map) {
        if (map_) to.map(1 + fields);
        else to.array(1 + fields);
        field("type").text(tag);
    }
    /// What is packed next is its value.
    Packer& field(std::string_view name) {
        if (map_) to_.text(name);
        return to_;
    }

  private:
    Packer& to_;
    bool map_;
};

void pack_hashes(Packer& to, std::span<const uint64_t> pages) {
    to.array(pages.size());
    for (const uint64_t page : pages) to.hash(page);
}

void pack_extra_keys(Packer& to, const PageNews& news) {
    const std::string salt = news.parent == 0 ? server::salt_in(news.isolation) : "";
    if (salt.empty()) return to.nil();
    to.array(news.pages.size());
    to.array(1);
    to.text(salt);
    for (size_t i = 1; i < news.pages.size(); ++i) to.nil();
}

void pack_stored(Packer& to, const PageNews& news, KvEventForm form) {
    EventPacker event(to, form, "BlockStored", 8);
    pack_hashes(event.field("block_hashes"), news.pages);
    event.field("parent_block_hash");
    if (news.parent == 0) to.nil();
    else to.hash(news.parent);
    event.field("token_ids").array(news.tokens.size());
    for (const int32_t token : news.tokens) to.number(static_cast<uint32_t>(token));
    event.field("block_size").number(news.tokens.size() / news.pages.size());
    event.field("lora_id").nil();
    event.field("medium").text(medium_of(news.tier));
    event.field("lora_name").nil();
    pack_extra_keys(event.field("extra_keys"), news);
}

void pack_removed(Packer& to, const PageNews& news, KvEventForm form) {
    EventPacker event(to, form, "BlockRemoved", 2);
    pack_hashes(event.field("block_hashes"), news.pages);
    event.field("medium").text(medium_of(news.tier));
}

}  // namespace

std::string kv_event_batch(std::span<const PageNews> news, double time, KvEventForm form) {
    Packer to;
    to.array(3);
    to.real(time);
    to.array(news.size());
    for (const PageNews& one : news) {
        switch (one.kind) {
            case PageNews::Kind::stored:
                pack_stored(to, one, form);
                break;
            case PageNews::Kind::removed:
                pack_removed(to, one, form);
                break;
            case PageNews::Kind::cleared:
                EventPacker(to, form, "AllBlocksCleared", 0);
                break;
        }
    }
    to.number(0);
    return std::move(to.out);
}

}  // namespace riptide::apps
