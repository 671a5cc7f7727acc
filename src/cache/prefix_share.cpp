// The part of PrefixCache that gives state to other replicas, and takes theirs.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cache/prefix_cache.h"
#include "cache/prefix_tree.h"

namespace riptide {

namespace {

constexpr int64_t kShareAtOnce = int64_t{16} << 20;

}  // namespace

void PrefixCache::use_shared(SharedStore* shared) {
    shared_ = shared;
    unshared_.clear();
    shared_next_.clear();
    share_anew();
}

/// What is in memory goes to the store again when the next turn is published on top of it.
void PrefixCache::share_anew() {
    shared_losses_ = shared_ == nullptr ? 0 : shared_->losses();
    for (Node* node : all_nodes()) {
        node->shared = false;
        for (const auto& one : node->checkpoints) one->shared = false;
    }
}

/// A record's name holds its salt and all tokens; what the bytes are of, the weights say.
Digest PrefixCache::shared_name(const RecordKey& id) const {
    std::array<std::byte, 2 * sizeof(Digest)> text;
    std::memcpy(text.data(), weights_.data(), sizeof(Digest));
    std::memcpy(text.data() + sizeof(Digest), id.name.data(), sizeof(Digest));
    return sha256(text);
}

/// The pages of a prefix, then its checkpoint: whoever finds that should find these.
void PrefixCache::share(Node& node, Checkpoint& checkpoint) {
    if (shared_ == nullptr || checkpoint.shared) return;
    std::vector<Node*> path;
    for (Node* at = &node; at->parent != nullptr && !at->shared; at = at->parent) path.push_back(at);
    for (size_t i = path.size(); i > 0; --i) {
        path[i - 1]->shared = true;
        unshared_.emplace_back(path[i - 1], nullptr);
    }
    checkpoint.shared = true;
    unshared_.emplace_back(&node, &checkpoint);
}

bool PrefixCache::share_some() {
    if (shared_ == nullptr) return false;
    shared_->reap();
    if (!shared_->usable()) return false;
    if (unshared_.empty() && shared_next_.empty() && shared_->losses() != shared_losses_) share_anew();
    size_t given = 0;
    for (; given < shared_next_.size(); ++given) {
        Record& record = shared_next_[given];
        const int64_t waiting = shared_->pending_bytes();
        if (waiting > 0 && waiting + record.payload_bytes() > SharedStore::kMostPending) break;
        for (const HostBytes& part : record.parts) heap_->wait(*part);
        shared_->put_later(shared_name(record.id), record.tag, std::move(record.parts));
    }
    shared_next_.erase(shared_next_.begin(), shared_next_.begin() + static_cast<ptrdiff_t>(given));
    if (!shared_next_.empty()) return given > 0;
    for (int64_t bytes = 0; !unshared_.empty() && bytes < kShareAtOnce; unshared_.pop_front()) {
        const auto [node, checkpoint] = unshared_.front();
        if (shared_->known(shared_name(key_of(*node, checkpoint)))) continue;
        std::optional<Record> record = record_of(*node, checkpoint);
        if (!record) break;
        bytes += record->payload_bytes();
        shared_next_.push_back(std::move(*record));
    }
    return given > 0 || !shared_next_.empty();
}

PrefixCache::Wanted PrefixCache::wanted(const PrefixRequest& request, std::span<const int64_t> lengths) const {
    Wanted wanted;
    if (host_ == nullptr || !shares()) return wanted;
    Plan best = plan(request, true);
    wanted.held = best.length;
    wanted.time = forgotten_;
    std::vector<Digest>& names = best.names;
    const size_t held = names.size() - 1;
    for (size_t begin = held * page_rows_; begin + page_rows_ <= request.tokens.size(); begin += page_rows_) {
        const std::span<const int32_t> page = request.tokens.subspan(begin, page_rows_);
        wanted.pages.push_back(RecordKey::of(names.back(), record_key('P', best.salt, page)));
        names.push_back(wanted.pages.back().name);
    }
    size_t pages = 0;
    for (const int64_t length : lengths) {
        if (length <= best.length || length >= std::ssize(request.tokens)) continue;
        const size_t depth = static_cast<size_t>(length) / page_rows_;
        const auto tail = request.tokens.subspan(depth * page_rows_, static_cast<size_t>(length) - depth * page_rows_);
        pages = depth > held ? depth - held : 0;
        wanted.ends.push_back({RecordKey::of(names[depth], record_key('C', best.salt, tail)), length, pages});
    }
    wanted.pages.resize(pages);
    return wanted;
}

std::shared_ptr<SharedLookup> PrefixCache::lookup_of(const Wanted& wanted) const {
    auto lookup = std::make_shared<SharedLookup>();
    for (const Wanted::End& end : wanted.ends) lookup->names.push_back(shared_name(end.id));
    return lookup;
}

void PrefixCache::found(const Wanted& wanted, const Wanted::End& end) const {
    if (wanted.time != forgotten_ || shared_ == nullptr) return;
    std::vector<Digest> names;
    for (size_t i = 0; i < end.pages; ++i) names.push_back(shared_name(wanted.pages[i]));
    shared_->assume(names);
}

int64_t PrefixCache::load_bytes(const Wanted&, const Wanted::End& end) const {
    const auto rows = static_cast<int64_t>(page_rows_);
    return static_cast<int64_t>(end.pages) * transfer_.page_bytes(rows) + transfer_.page_bytes(end.length % rows) +
           transfer_.state_bytes(end.length);
}

std::shared_ptr<SharedLoad> PrefixCache::load_of(const Wanted& wanted, const Wanted::End& end, int64_t beside) {
    if (wanted.time != forgotten_ || shared_ == nullptr || load_bytes(wanted, end) + beside > host_->budget())
        return nullptr;
    const auto rows = static_cast<int64_t>(page_rows_);
    auto load = std::make_shared<SharedLoad>();
    const auto add = [&](const RecordKey& id, std::initializer_list<int64_t> sizes) {
        SharedPiece& piece = load->pieces.emplace_back(SharedPiece{shared_name(id), {}});
        for (const int64_t size : sizes) piece.parts.push_back(heap_->take_for_host(size));
        return std::none_of(piece.parts.begin(), piece.parts.end(), [](const HostBytes& p) { return p == nullptr; });
    };
    for (size_t i = 0; i < end.pages; ++i)
        if (!add(wanted.pages[i], {transfer_.page_bytes(rows)})) return nullptr;
    if (!add(end.id, {transfer_.page_bytes(end.length % rows), transfer_.state_bytes(end.length)})) return nullptr;
    return load;
}

/// From the last to the first, so that the beginnings are what was used last.
void PrefixCache::take(const Wanted& wanted, const Wanted::End& end, SharedLoad& load) {
    if (wanted.time != forgotten_ || host_ == nullptr) return;
    for (size_t i = load.pieces.size(); i > 0; --i) {
        SharedPiece& piece = load.pieces[i - 1];
        const RecordKey& id = i == load.pieces.size() ? end.id : wanted.pages[i - 1];
        sink(host_->put({.id = id, .rank = 1, .tag = piece.tag, .parts = std::move(piece.parts)}));
    }
}

}  // namespace riptide
