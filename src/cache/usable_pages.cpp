#include "cache/usable_pages.h"

#include <algorithm>
#include <utility>

namespace riptide {

namespace {

uint8_t bit_of(CacheTier tier) { return static_cast<uint8_t>(1U << static_cast<unsigned>(tier)); }

}  // namespace

void UsablePages::hear(const CacheChanges& changes) {
    if (changes.lost || changes.fresh) {
        nodes_.clear();
        checkpoints_.clear();
        dirty_.clear();
        told_ = 0;
    }
    for (const CacheChange& change : changes.list) {
        const uint8_t tier = bit_of(change.tier);
        switch (change.kind) {
            case CacheChange::Kind::page:
                change.held ? hold(change, changes) : drop(change.name, tier);
                break;
            case CacheChange::Kind::checkpoint:
                change.held ? hold_checkpoint(change) : drop_checkpoint(change.name, tier);
                break;
            case CacheChange::Kind::cleared:
                clear_tier(tier);
                break;
        }
    }
}

// --- What is held ---

void UsablePages::hold(const CacheChange& change, const CacheChanges& changes) {
    const auto tier = static_cast<uint8_t>(bit_of(change.tier) & told_tiers_);
    if (tier == 0) return;
    Node& node = nodes_[change.name];
    if (node.tokens.empty()) {
        const auto from = changes.tokens.begin() + static_cast<ptrdiff_t>(change.tokens);
        node.tokens.assign(from, from + static_cast<ptrdiff_t>(change.rows));
        node.first = change.first;
        node.parent = change.parent;
        if (change.owner > 0) node.isolation = changes.owners[change.owner - 1];
        if (!node.first) nodes_[node.parent].children.push_back(change.name);
    }
    node.tiers |= tier;
    mark(change.name, node);
    if (!node.linked && (node.first || nodes_[node.parent].linked)) link(change.name);
}

void UsablePages::drop(uint64_t name, uint8_t tiers) {
    const auto at = nodes_.find(name);
    if (at == nodes_.end()) return;
    at->second.tiers &= static_cast<uint8_t>(~tiers);
    mark(name, at->second);
    if (at->second.linked && at->second.tiers == 0) unlink(name);
}

void UsablePages::hold_checkpoint(const CacheChange& change) {
    Checkpoint& checkpoint = checkpoints_[change.name];
    if (checkpoint.tiers == 0) {
        checkpoint.page = change.parent;
        count(checkpoint.page, 1);
    }
    checkpoint.tiers |= bit_of(change.tier);
}

void UsablePages::drop_checkpoint(uint64_t name, uint8_t tiers) {
    const auto at = checkpoints_.find(name);
    if (at == checkpoints_.end()) return;
    at->second.tiers &= static_cast<uint8_t>(~tiers);
    if (at->second.tiers != 0) return;
    count(at->second.page, -1);
    checkpoints_.erase(at);
}

void UsablePages::clear_tier(uint8_t tier) {
    for (const auto& [name, node] : nodes_)
        if ((node.tiers & tier) != 0) drop(name, tier);
    std::vector<uint64_t> held;
    for (const auto& [name, checkpoint] : checkpoints_) held.push_back(name);
    for (const uint64_t name : held) drop_checkpoint(name, tier);
}

// --- What is usable. No recursion: a chain may be thousands of pages long ---

/// REQUIRES that nothing before it is missing.
void UsablePages::link(uint64_t name) {
    std::vector<uint64_t> some{name};
    while (!some.empty()) {
        const uint64_t at = some.back();
        some.pop_back();
        Node& node = nodes_.at(at);
        if (node.linked || node.tiers == 0) continue;
        node.linked = true;
        node.depth = node.first ? 1 : nodes_.at(node.parent).depth + 1;
        mark(at, node);
        if (node.checkpoints > 0) add_below(at, node.checkpoints);
        some.insert(some.end(), node.children.begin(), node.children.end());
    }
}

void UsablePages::unlink(uint64_t name) {
    std::vector<uint64_t> some{name};
    while (!some.empty()) {
        const uint64_t at = some.back();
        some.pop_back();
        Node& node = nodes_.at(at);
        if (!node.linked) continue;
        if (node.checkpoints > 0) add_below(at, -node.checkpoints);
        node.linked = false;
        mark(at, node);
        some.insert(some.end(), node.children.begin(), node.children.end());
    }
}

void UsablePages::count(uint64_t page, int64_t checkpoints) {
    Node& node = nodes_[page];
    node.checkpoints += checkpoints;
    mark(page, node);
    if (node.linked) add_below(page, checkpoints);
}

/// At the page and all before it.
void UsablePages::add_below(uint64_t name, int64_t checkpoints) {
    for (;;) {
        Node& node = nodes_.at(name);
        const bool before = node.below > 0;
        node.below += checkpoints;
        if (before != (node.below > 0)) mark(name, node);
        if (node.first) return;
        name = node.parent;
    }
}

uint8_t UsablePages::wanted(const Node& node) const { return node.linked && node.below > 0 ? node.tiers : uint8_t{0}; }

// --- What others are told ---

void UsablePages::mark(uint64_t name, Node& node) {
    if (!std::exchange(node.dirty, true)) dirty_.push_back(name);
}

void UsablePages::forget_told() {
    for (auto& [name, node] : nodes_) {
        if (node.told != 0) mark(name, node);
        node.told = 0;
    }
    told_ = 0;
}

std::vector<PageNews> UsablePages::news() {
    std::vector<PageNews> news;
    std::vector<uint64_t> changed = std::exchange(dirty_, {});
    for (const uint64_t name : changed) nodes_.at(name).dirty = false;
    std::stable_sort(changed.begin(), changed.end(),
                     [this](uint64_t a, uint64_t b) { return nodes_.at(a).depth < nodes_.at(b).depth; });
    for (const uint64_t name : changed)
        for (int tier = 0; tier < kCacheTiers; ++tier)
            if (const auto t = static_cast<CacheTier>(tier); is_new(nodes_.at(name), t))
                news.push_back(run_from(name, t));
    std::reverse(changed.begin(), changed.end());
    const bool any = told_ > 0;
    for (int tier = 0; tier < kCacheTiers; ++tier) remove_from(news, changed, static_cast<CacheTier>(tier));
    if (any && told_ == 0) news.assign(1, {.kind = PageNews::Kind::cleared});
    for (const uint64_t name : changed) forget_if_empty(name);
    return news;
}

bool UsablePages::is_new(const Node& node, CacheTier tier) const {
    return (wanted(node) & ~node.told & bit_of(tier)) != 0;
}

/// The page, and from page to page one behind it that is new too.
PageNews UsablePages::run_from(uint64_t name, CacheTier tier) {
    const Node* node = &nodes_.at(name);
    PageNews run{.tier = tier, .parent = node->first ? 0 : node->parent, .isolation = node->isolation};
    for (;;) {
        Node& at = nodes_.at(name);
        at.told |= bit_of(tier);
        ++told_;
        run.pages.push_back(name);
        run.tokens.insert(run.tokens.end(), at.tokens.begin(), at.tokens.end());
        const auto next = std::find_if(at.children.begin(), at.children.end(),
                                       [&](uint64_t child) { return is_new(nodes_.at(child), tier); });
        if (next == at.children.end() || run.pages.size() == kMostPages) return run;
        name = *next;
    }
}

void UsablePages::remove_from(std::vector<PageNews>& news, std::span<const uint64_t> pages, CacheTier tier) {
    PageNews removed{.kind = PageNews::Kind::removed, .tier = tier};
    for (const uint64_t name : pages) {
        Node& node = nodes_.at(name);
        if ((node.told & ~wanted(node) & bit_of(tier)) == 0) continue;
        node.told &= static_cast<uint8_t>(~bit_of(tier));
        --told_;
        removed.pages.push_back(name);
        if (removed.pages.size() == kMostPages)
            news.push_back(std::exchange(removed, {.kind = PageNews::Kind::removed, .tier = tier}));
    }
    if (!removed.pages.empty()) news.push_back(std::move(removed));
}

/// And those before it that were there for its sake.
void UsablePages::forget_if_empty(uint64_t name) {
    for (auto at = nodes_.find(name); at != nodes_.end(); at = nodes_.find(name)) {
        const Node& node = at->second;
        if (node.tiers != 0 || node.told != 0 || node.checkpoints != 0 || !node.children.empty()) return;
        const bool known = !node.tokens.empty() && !node.first;
        const uint64_t parent = node.parent;
        nodes_.erase(at);
        if (!known) return;
        std::erase(nodes_.at(parent).children, name);
        name = parent;
    }
}

}  // namespace riptide
