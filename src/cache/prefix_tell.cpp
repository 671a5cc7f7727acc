// The part of PrefixCache that tells its feed what the tiers hold.
#include <cstring>

#include "cache/prefix_cache.h"
#include "cache/prefix_tree.h"

namespace riptide {

namespace {

/// What salt_text() was made of.
struct SaltFields {
    std::string_view origin, prompt, isolation, geometry;
};

/// Takes a text that add_text() has put in front. False when there is none.
bool take_text(std::string_view& from, std::string_view& text) {
    uint64_t size = 0;
    if (from.size() < sizeof size) return false;
    std::memcpy(&size, from.data(), sizeof size);
    from.remove_prefix(sizeof size);
    if (from.size() < size) return false;
    text = from.substr(0, static_cast<size_t>(size));
    from.remove_prefix(text.size());
    return true;
}

std::optional<SaltFields> salt_fields(std::string_view salt) {
    SaltFields out;
    for (std::string_view* field : {&out.origin, &out.prompt, &out.isolation, &out.geometry})
        if (!take_text(salt, *field)) return std::nullopt;
    return out;
}

CacheChange::Kind kind_of(bool page) { return page ? CacheChange::Kind::page : CacheChange::Kind::checkpoint; }

}  // namespace

void PrefixCache::hear_tiers() {
    const auto hear = [this](CacheTier tier) {
        return [this, tier](const Digest& group, const std::string& key, bool held) {
            tell_record(tier, group, key, held);
        };
    };
    if (host_ != nullptr) host_->on_change(hear(CacheTier::host));
    if (disk_ != nullptr) disk_->on_change(hear(CacheTier::disk));
    tell_disk();
}

void PrefixCache::tell_held(const Node& node, const Checkpoint* checkpoint) {
    if (options_.feed == nullptr) return;
    if (checkpoint != nullptr) {
        options_.feed->checkpoint(CacheTier::device, key_of(node, checkpoint).name, node.name);
        return;
    }
    const bool first = node.parent->parent == nullptr;
    const std::optional<SaltFields> salt = first ? salt_fields(*node.salt) : std::nullopt;
    options_.feed->page(CacheTier::device, node.name, node.parent->name, node.tokens, first,
                        salt ? salt->isolation : std::string_view());
}

void PrefixCache::tell_gone(const Node& node, const Checkpoint* checkpoint) {
    if (options_.feed == nullptr) return;
    options_.feed->gone(kind_of(checkpoint == nullptr), CacheTier::device,
                        checkpoint == nullptr ? node.name : key_of(node, checkpoint).name);
}

/// Of a tier below. What state of another geometry left on disk is never asked for.
void PrefixCache::tell_record(CacheTier tier, const Digest& group, const std::string& key, bool held) {
    std::string_view rest = key, salt;
    if (key.empty() || (key[0] != 'P' && key[0] != 'C')) return;
    rest.remove_prefix(1);
    if (!take_text(rest, salt)) return;
    const std::optional<SaltFields> fields = salt_fields(salt);
    if (!fields || fields->geometry != geometry_) return;
    const bool page = key[0] == 'P';
    const Digest name = RecordKey::of(group, key).name;
    if (!held) return options_.feed->gone(kind_of(page), tier, name);
    if (!page) return options_.feed->checkpoint(tier, name, group);
    if (rest.size() != page_rows_ * sizeof(int32_t)) return;
    std::vector<int32_t> tokens(page_rows_);
    std::memcpy(tokens.data(), rest.data(), rest.size());
    const bool first = RecordKey::of({}, std::string(salt)).name == group;
    options_.feed->page(tier, name, group, tokens, first, fields->isolation);
}

void PrefixCache::tell_cleared(CacheTier tier) {
    if (options_.feed != nullptr) options_.feed->cleared(tier);
}

/// Of the weights in use. What is more than the feed holds it is told with the first request.
void PrefixCache::tell_disk() {
    if (options_.feed == nullptr || disk_ == nullptr) return;
    disk_->list([this](const Digest& group, const std::string& key, bool held) {
        tell_record(CacheTier::disk, group, key, held);
    });
}

void PrefixCache::tell_all_if_asked() {
    if (options_.feed == nullptr || !options_.feed->wants_all()) return;
    options_.feed->begin_all();
    for (const Node* node : all_nodes()) {
        if (node->parent != nullptr) tell_held(*node, nullptr);
        for (const auto& one : node->checkpoints) tell_held(*node, one.get());
    }
    if (host_ != nullptr)
        for (const Record& record : host_->all()) tell_record(CacheTier::host, record.id.group, record.id.key, true);
    tell_disk();
    options_.feed->end_all();
}

}  // namespace riptide
