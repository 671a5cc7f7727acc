// The part of PrefixCache that keeps and lets go: publish, eviction, spilling.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "cache/prefix_cache.h"
#include "cache/prefix_tree.h"

namespace riptide {

// --- Keeping ---

bool PrefixCache::publish(const PrefixRequest& request, const SequenceState& sequence, Mark mark, int64_t length) {
    RT_ASSERT(sequence.reserved() == 0 && &sequence.cache() == &cache_);
    RT_ASSERT(length >= 1 && std::ssize(request.tokens) >= length && sequence.can_truncate(length));
    tell_all_if_asked();
    const bool kept = keep(request, sequence, length, nullptr, mark);
    const auto session = sessions_.find(request.session);
    if (kept && session != sessions_.end() && !request.side) {
        const auto tokens = request.tokens.first(static_cast<size_t>(length));
        session->second.tokens.assign(tokens.begin(), tokens.end());
    }
    return kept;
}

/// `state`: the sequence's packed bounded state, where they are at hand; null: they are saved when it turns out to be
/// wanted.
bool PrefixCache::keep(const PrefixRequest& request, const SequenceState& sequence, int64_t length, HostBytes state,
                       Mark mark) {
    const auto tokens = request.tokens.first(static_cast<size_t>(length));
    const size_t depth = tokens.size() / page_rows_;
    const std::span<const int32_t> tail = tokens.subspan(depth * page_rows_);
    // Room first: making it may remove nodes.
    const Plan there = plan({request.salt, tokens, {}}, false);
    const bool known = there.path.size() == depth + 1 && checkpoint_of(*there.path.back(), tail) != nullptr;
    if (!known) {
        const int64_t bytes = transfer_.state_bytes(length);
        const bool room = make_state_room(bytes, request.side);
        if (room && state == nullptr && (state = heap_->take(bytes)) != nullptr)
            transfer_.save_state(sequence.slot(), length, *state);
        if (!room || state == nullptr) {
            ++stats_.refused;
            return false;
        }
    }
    Node& node = grow(request, sequence.pages(), static_cast<int64_t>(depth * page_rows_));
    Checkpoint* checkpoint = checkpoint_of(node, tail);
    if (checkpoint == nullptr) {
        auto fresh = std::make_unique<Checkpoint>();
        fresh->tail.assign(tail.begin(), tail.end());
        fresh->state = std::move(state);
        fresh->mark = mark;
        if (!tail.empty() && cache_.has_pages()) hold(fresh->page = sequence.pages()[depth]);
        stats_.state_bytes += fresh->state->bytes;
        ++stats_.checkpoints;
        checkpoint = fresh.get();
        checkpoints_.emplace_back(&node, checkpoint);
        tell_held(node, checkpoint);
        node.checkpoints.push_back(std::move(fresh));
    }
    checkpoint->mark = std::max(checkpoint->mark, mark);
    touch(node, checkpoint, request.side);
    set_head(request, node);
    if (!request.side && checkpoint->mark != Mark::interval) share(node, *checkpoint);
    return true;
}

/// The node of the first `length` tokens; those that were missing share the sequence's pages.
PrefixCache::Node& PrefixCache::grow(const PrefixRequest& request, std::span<const int32_t> pages, int64_t length) {
    const auto [at, fresh_root] = roots_.try_emplace(salt_text(request.salt));
    if (fresh_root) {
        at->second = std::make_unique<Node>();
        at->second->salt = &at->first;
        at->second->name = RecordKey::of({}, at->first).name;
    }
    Node* node = at->second.get();
    for (size_t i = 0; i < static_cast<size_t>(length) / page_rows_; ++i) {
        const auto tokens = request.tokens.subspan(i * page_rows_, page_rows_);
        const int32_t page = cache_.has_pages() ? pages[i] : -1;
        Node* child = child_of(*node, tokens);
        if (child == nullptr) {
            auto fresh = std::make_unique<Node>();
            child = fresh.get();
            child->parent = node;
            child->tokens.assign(tokens.begin(), tokens.end());
            child->length = node->length + static_cast<int64_t>(page_rows_);
            child->salt = node->salt;
            child->name = RecordKey::of(node->name, record_key('P', *node->salt, tokens)).name;
            hold(child->page = page);
            ++stats_.pages;
            tell_held(*child, nullptr);
            node->children.push_back(std::move(fresh));
        } else if (child->page != page && unused(child->page)) {  // two copies of one content: keep the one in use
            hold(page);
            drop(std::exchange(child->page, page));
        }
        share_tails(*node, *child);
        node = child;
    }
    return *node;
}

/// Checkpoints whose tail this child's page begins with need no page of their own.
void PrefixCache::share_tails(Node& parent, const Node& child) {
    for (const auto& one : parent.checkpoints) {
        if (one->page < 0 || one->page == child.page || !unused(one->page)) continue;
        if (!std::equal(one->tail.begin(), one->tail.end(), child.tokens.begin())) continue;
        hold(child.page);
        drop(std::exchange(one->page, child.page));
    }
}

/// Parents become younger than their children, so leaves go first.
void PrefixCache::touch(Node& node, Checkpoint* checkpoint, bool side) {
    checkpoint->stamp = ++clock_;
    checkpoint->side = checkpoint->side && side;
    for (Node* at = &node; at != nullptr; at = at->parent) {
        at->stamp = ++clock_;
        at->side = at->side && side;
    }
}

// --- Sessions ---

void PrefixCache::set_head(const PrefixRequest& request, Node& node) {
    if (request.session == 0 || request.side) return;
    Session& session = sessions_[request.session];
    session.stamp = ++clock_;
    session.salt = *node.salt;
    move_head(session, &node);
    if (static_cast<int64_t>(sessions_.size()) <= options_.live_sessions) return;
    const auto oldest = std::min_element(sessions_.begin(), sessions_.end(),
                                         [](const auto& a, const auto& b) { return a.second.stamp < b.second.stamp; });
    end_session(oldest->first);
}

void PrefixCache::move_head(Session& session, Node* head) {
    for (Node* at = head; at != nullptr; at = at->parent) ++at->live;
    for (Node* at = session.head; at != nullptr; at = at->parent) --at->live;
    session.head = head;
}

void PrefixCache::end_session(uint64_t id) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end()) return;
    Node* head = at->second.head;
    move_head(at->second, nullptr);
    sessions_.erase(at);
    prune(head);
}

// --- Pages ---

bool PrefixCache::unused(int32_t page) const {
    return page < 0 || cache_.pool().refcount(page) == cache_.pool().kept(page);
}

void PrefixCache::hold(int32_t page) {
    if (page >= 0) cache_.pool().keep(page);
}

void PrefixCache::drop(int32_t page) {
    if (page >= 0) cache_.pool().drop(page);
}

// --- Letting go ---

/// 0: no live session needs it; 1: one does, or it is pinned; 2: both. Side requests pin nothing, and what is pinned
/// for sessions that have ended goes by age with what is live: else old system prompts would pile up above it.
int32_t PrefixCache::class_of(const Node& node, const Checkpoint* checkpoint) const {
    if (checkpoint == nullptr) return node.live > 0 ? 1 : 0;
    if (checkpoint->side) return 0;
    return (node.live > 0 ? 1 : 0) + (checkpoint->mark == Mark::pinned ? 1 : 0);
}

/// Adds what may go at this node when pages are wanted.
void PrefixCache::add_victims(Node& node, std::vector<Victim>& heap) const {
    const bool leaf = node.parent != nullptr && node.children.empty() && unused(node.page);
    for (const auto& one : node.checkpoints)
        if (one->page >= 0 ? unused(one->page) : leaf)
            heap.push_back({class_of(node, one.get()), one->stamp, &node, one.get()});
    if (leaf && node.checkpoints.empty()) heap.push_back({class_of(node, nullptr), node.stamp, &node, nullptr});
}

std::vector<PrefixCache::Node*> PrefixCache::all_nodes() const {
    std::vector<Node*> nodes;
    for (const auto& [salt, root] : roots_) nodes.push_back(root.get());
    for (size_t i = 0; i < nodes.size(); ++i)
        for (const auto& child : nodes[i]->children) nodes.push_back(child.get());
    return nodes;
}

bool PrefixCache::make_room(int32_t pages, bool side) {
    const PagePool& pool = cache_.pool();
    if (pool.free_count() >= pages) return true;
    const auto later = [](const Victim& a, const Victim& b) {
        return std::tie(a.rank, a.stamp) > std::tie(b.rank, b.stamp);
    };
    std::vector<Victim> heap;
    for (Node* node : all_nodes()) add_victims(*node, heap);
    std::make_heap(heap.begin(), heap.end(), later);
    const int32_t more = pages + pool.size() / 128;
    int32_t worst = 0;  // class that had to go
    while (pool.free_count() < more) {
        const bool enough = pool.free_count() >= pages;
        if (heap.empty() || (side && heap.front().rank > 0)) return enough;
        if (enough && heap.front().rank > worst) return true;
        worst = std::max(worst, heap.front().rank);
        std::pop_heap(heap.begin(), heap.end(), later);
        const Victim victim = heap.back();
        heap.pop_back();
        Node* changed = victim.node;  // becomes a leaf, or loses the last that kept it
        const size_t before = heap.size();
        if (victim.checkpoint != nullptr) {
            const bool last = changed->checkpoints.size() == 1 && changed->children.empty();
            evict(*changed, *victim.checkpoint);
            if (last && changed->parent != nullptr && unused(changed->page))
                heap.push_back({class_of(*changed, nullptr), changed->stamp, changed, nullptr});
        } else {
            changed = victim.node->parent;
            evict(*victim.node);
            if (changed->children.empty() && changed->parent != nullptr && unused(changed->page)) {
                // Its checkpoints with a page of their own are in the heap already.
                for (const auto& one : changed->checkpoints)
                    if (one->page < 0) heap.push_back({class_of(*changed, one.get()), one->stamp, changed, one.get()});
                if (changed->checkpoints.empty())
                    heap.push_back({class_of(*changed, nullptr), changed->stamp, changed, nullptr});
            }
        }
        if (changed->parent == nullptr) prune(changed);
        for (size_t i = before; i < heap.size(); ++i)
            std::push_heap(heap.begin(), heap.begin() + static_cast<ptrdiff_t>(i + 1), later);
    }
    return true;
}

bool PrefixCache::make_state_room(int64_t bytes, bool side) {
    if (bytes > options_.state_budget) return false;
    while (stats_.state_bytes + bytes > options_.state_budget) {
        const auto order = [this](const std::pair<Node*, Checkpoint*>& one) {
            return std::tuple(class_of(*one.first, one.second), one.second->mark != Mark::interval, one.second->stamp);
        };
        const auto [node, victim] =
            *std::min_element(checkpoints_.begin(), checkpoints_.end(),
                              [&](const auto& a, const auto& b) { return order(a) < order(b); });
        if (side && class_of(*node, victim) > 0) return false;
        evict(*node, *victim);
        prune(node);
    }
    return true;
}

void PrefixCache::evict(Node& node, Checkpoint& checkpoint) {
    spill(node, &checkpoint);
    tell_gone(node, &checkpoint);
    std::erase(unshared_, std::pair(&node, &checkpoint));
    drop(checkpoint.page);
    stats_.state_bytes -= checkpoint.state->bytes;
    --stats_.checkpoints;
    ++stats_.evicted_checkpoints;
    std::erase(checkpoints_, std::pair(&node, &checkpoint));
    std::erase_if(node.checkpoints, [&](const auto& one) { return one.get() == &checkpoint; });
}

void PrefixCache::evict(Node& node) {
    RT_ASSERT(node.children.empty() && node.checkpoints.empty() && node.parent != nullptr);
    spill(node, nullptr);
    tell_gone(node, nullptr);
    std::erase(unshared_, std::pair<Node*, Checkpoint*>(&node, nullptr));
    forget_head(node);
    drop(node.page);
    --stats_.pages;
    ++stats_.evicted_pages;
    std::erase_if(node.parent->children, [&](const auto& one) { return one.get() == &node; });
}

/// Sessions that ended here now end at the parent.
void PrefixCache::forget_head(const Node& node) {
    for (auto& [id, session] : sessions_)
        if (session.head == &node) move_head(session, node.parent);
}

/// Removes what nothing hangs at and no eviction of pages would find: roots, and nodes without pages.
void PrefixCache::prune(Node* node) {
    while (node != nullptr && node->children.empty() && node->checkpoints.empty() && node->live == 0) {
        Node* parent = node->parent;
        if (parent == nullptr) roots_.erase(roots_.find(*node->salt));
        else if (node->page < 0) evict(*node);
        else return;
        node = parent;
    }
}

void PrefixCache::erase_tree(std::unique_ptr<Node> root) {
    std::vector<std::unique_ptr<Node>> nodes;  // no recursion: a chain may be thousands of pages deep
    nodes.push_back(std::move(root));
    while (!nodes.empty()) {
        const std::unique_ptr<Node> node = std::move(nodes.back());
        nodes.pop_back();
        for (auto& child : node->children) nodes.push_back(std::move(child));
        for (const auto& one : node->checkpoints) {
            drop(one->page);
            stats_.state_bytes -= one->state->bytes;
            --stats_.checkpoints;
            std::erase(checkpoints_, std::pair(node.get(), one.get()));
        }
        if (node->parent != nullptr) --stats_.pages;
        node->parent = nullptr;
        drop(node->page);
    }
}

void PrefixCache::forget() {
    ++forgotten_;
    sessions_.clear();
    unshared_.clear();
    for (auto& [salt, root] : roots_) erase_tree(std::move(root));
    roots_.clear();
    tell_cleared(CacheTier::device);
}

// --- Tiers ---

void PrefixCache::flush() {
    forget();
    if (host_ != nullptr) host_->clear();
    tell_cleared(CacheTier::host);
}

void PrefixCache::use_weights(const Digest& name) {
    flush();
    weights_ = name;
    if (disk_ == nullptr) return;
    disk_->use_weights(name);
    tell_cleared(CacheTier::disk);
    tell_disk();
}

void PrefixCache::rename_weights(const Digest& name) {
    weights_ = name;
    if (disk_ == nullptr) return;
    disk_->rename_weights(name);
    tell_disk();
}

RecordKey PrefixCache::key_of(const Node& node, const Checkpoint* checkpoint) const {
    if (checkpoint == nullptr) return {node.parent->name, record_key('P', *node.salt, node.tokens), node.name};
    return RecordKey::of(node.name, record_key('C', *node.salt, checkpoint->tail));
}

/// A page's record is its K/V; a checkpoint's the K/V of its tail, then its state. Nothing when memory for it is
/// lacking.
std::optional<Record> PrefixCache::record_of(const Node& node, const Checkpoint* checkpoint) {
    const auto rows = static_cast<int64_t>(checkpoint == nullptr ? page_rows_ : checkpoint->tail.size());
    const int32_t page = checkpoint == nullptr ? node.page : checkpoint->page;
    const HostBytes stored = heap_->take(transfer_.page_bytes(rows));
    if (stored == nullptr) return std::nullopt;
    if (page >= 0) transfer_.save_page(page, rows, *stored);
    Record record{.id = key_of(node, checkpoint), .rank = class_of(node, checkpoint), .parts = {stored}};
    if (checkpoint != nullptr) {
        record.tag = static_cast<int32_t>(checkpoint->mark);
        record.parts.push_back(checkpoint->state);
    }
    return record;
}

/// Into the host tier if there is one, else onto disk. A record that is there already is only marked as used.
void PrefixCache::spill(const Node& node, const Checkpoint* checkpoint) {
    if (host_ == nullptr && disk_ == nullptr) return;
    const RecordKey id = key_of(node, checkpoint);
    const int32_t rank = class_of(node, checkpoint);
    if (host_ != nullptr ? host_->touch(id, rank) : disk_->touch(id, rank)) return;
    std::optional<Record> record = record_of(node, checkpoint);
    if (!record) return;
    std::vector<Record> down;
    if (host_ != nullptr) down = host_->put(std::move(*record));
    else down.push_back(std::move(*record));
    sink(std::move(down));
}

/// Records that the host tier has no room for.
void PrefixCache::sink(std::vector<Record> down) {
    if (disk_ == nullptr) return;
    for (Record& one : down) {
        for (const HostBytes& part : one.parts) heap_->wait(*part);
        disk_->put_later(std::move(one));
    }
}

void PrefixCache::persist() {
    if (disk_ == nullptr) return;
    const auto write = [&](const Record& record) {
        for (const HostBytes& part : record.parts) heap_->wait(*part);
        disk_->put(record);
    };
    if (host_ != nullptr)
        for (const Record& record : host_->all()) write(record);
    std::vector<Node*> nodes = all_nodes();
    std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->stamp < b->stamp; });
    const auto save = [&](const Node& node, const Checkpoint* checkpoint) {
        if (disk_->touch(key_of(node, checkpoint), class_of(node, checkpoint))) return;
        if (const std::optional<Record> record = record_of(node, checkpoint)) write(*record);
    };
    for (const Node* node : nodes) {
        for (const auto& one : node->checkpoints) save(*node, one.get());
        if (node->parent != nullptr) save(*node, nullptr);
    }
    disk_->flush();
}

}  // namespace riptide
