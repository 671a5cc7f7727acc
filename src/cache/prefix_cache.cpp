#include "cache/prefix_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cache/prefix_tree.h"

namespace riptide {

namespace {

void add_text(std::string& to, std::string_view text) {
    const auto size = static_cast<uint64_t>(text.size());
    to.append(reinterpret_cast<const char*>(&size), sizeof size);
    to += text;
}

/// A name for what the bytes of pages and checkpoints mean.
std::string geometry_digest(const KvCache& cache) {
    std::string text;
    for (const KvView& view : cache.views())
        text += fmt::format("{} {} {} {} {} {};", dtype_name(view.k_dtype), dtype_name(view.v_dtype), view.num_kv_heads,
                            view.head_dim, view.page_rows, view.window);
    for (const DeltaView& view : cache.delta().views())
        text += fmt::format("{} {} {} {} {} {} {};", dtype_name(view.state_dtype), static_cast<int>(view.heads),
                            view.key_heads, view.value_heads, view.key_dim, view.value_dim, view.conv_width);
    const Digest digest = sha256(std::as_bytes(std::span(text)));
    return {digest.begin(), digest.end()};
}

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
    const size_t n = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin();
}

}  // namespace

std::string PrefixMatch::why() const {
    const std::string start = fmt::format("{} tokens from the cache", cached);
    switch (rest) {
        case Rest::new_tokens:
            return start + "; the rest is new";
        case Rest::evicted:
            return fmt::format("{}; {} were computed before but had to go", start, first_difference);
        case Rest::nothing:
            return start + "; nothing is held for these weights, this template and this user";
        case Rest::differs:
            break;
    }
    return fmt::format("{}; message {} differs from what was computed before: its token {} is {}, was {}", start,
                       message, first_difference, prompt_token, cached_token);
}

PrefixCache::PrefixCache(KvCache& cache, const PrefixCacheOptions& options, HostStore* host, DiskStore* disk)
    : cache_(cache),
      options_(options),
      host_(host),
      disk_(disk),
      page_rows_(static_cast<size_t>(cache.options().page_rows)),
      geometry_(geometry_digest(cache)),
      heap_(HostHeap::make(cache.gpu())),
      transfer_(cache, *heap_) {
    RT_CHECK(options.checkpoint_every >= 1, "checkpoints every {} tokens: at least 1 is needed",
             options.checkpoint_every);
    heap_->keep_ready(options.ready_ahead, options.ready_most);
    if (options.feed != nullptr) hear_tiers();
}

PrefixCache::~PrefixCache() {
    forget();
    tell_cleared(CacheTier::host);  // which goes with the engine
    if (host_ != nullptr) host_->on_change({});
    if (disk_ != nullptr) disk_->on_change({});
}

std::string PrefixCache::salt_text(const PrefixSalt& salt) const {
    std::string text;
    add_text(text, salt.origin);
    add_text(text, salt.prompt);
    add_text(text, salt.isolation);
    add_text(text, geometry_);
    return text;
}

std::string PrefixCache::record_key(char kind, const std::string& salt, std::span<const int32_t> tokens) {
    std::string key(1, kind);
    add_text(key, salt);
    key.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
    return key;
}

PrefixCache::Node* PrefixCache::child_of(const Node& node, std::span<const int32_t> tokens) {
    for (const auto& child : node.children)
        if (std::equal(tokens.begin(), tokens.end(), child->tokens.begin(), child->tokens.end())) return child.get();
    return nullptr;
}

PrefixCache::Checkpoint* PrefixCache::checkpoint_of(const Node& node, std::span<const int32_t> tail) {
    for (const auto& one : node.checkpoints)
        if (std::equal(tail.begin(), tail.end(), one->tail.begin(), one->tail.end())) return one.get();
    return nullptr;
}

bool PrefixCache::in_tiers(const RecordKey& id) const {
    return (host_ != nullptr && host_->has(id)) || (disk_ != nullptr && disk_->has(id));
}

/// Improves the plan by the checkpoints that hang after `depth` pages. One in memory wins over one in a tier.
void PrefixCache::consider(Plan& plan, const PrefixRequest& request, size_t depth, bool tiers) const {
    const std::span<const int32_t> rest = request.tokens.subspan(depth * page_rows_);
    const auto fits = [&](std::span<const int32_t> tail) {
        return tail.size() < rest.size() && std::equal(tail.begin(), tail.end(), rest.begin());
    };
    const auto before = static_cast<int64_t>(depth * page_rows_);
    if (depth < plan.path.size())
        for (const auto& one : plan.path[depth]->checkpoints) {
            const int64_t length = before + static_cast<int64_t>(one->tail.size());
            if (length <= plan.length || !fits(one->tail)) continue;
            plan.length = length;
            plan.depth = depth;
            plan.node = plan.path[depth];
            plan.checkpoint = one.get();
        }
    if (!tiers) return;
    const std::string front = record_key('C', plan.salt, {});
    const auto look = [&](const std::vector<std::string>& keys) {
        for (const std::string& key : keys) {
            if ((key.size() - front.size()) % sizeof(int32_t) != 0) continue;
            std::vector<int32_t> tail((key.size() - front.size()) / sizeof(int32_t));
            if (tail.size() >= page_rows_) continue;
            if (!tail.empty()) std::memcpy(tail.data(), key.data() + front.size(), tail.size() * sizeof(int32_t));
            const int64_t length = before + static_cast<int64_t>(tail.size());
            if (length <= plan.length || !fits(tail)) continue;
            plan.length = length;
            plan.depth = depth;
            plan.node = nullptr;
            plan.checkpoint = nullptr;
            plan.checkpoint_id = RecordKey::of(plan.names[depth], key);
        }
    };
    if (host_ != nullptr) look(host_->keys(plan.names[depth], front));
    if (disk_ != nullptr) look(disk_->keys(plan.names[depth], front));
}

PrefixCache::Plan PrefixCache::plan(const PrefixRequest& request, bool tiers) const {
    Plan plan;
    plan.salt = salt_text(request.salt);
    const auto root = roots_.find(plan.salt);
    if (root != roots_.end()) plan.path.push_back(root->second.get());
    plan.names.push_back(root != roots_.end() ? root->second->name : RecordKey::of({}, plan.salt).name);
    for (size_t depth = 0;; ++depth) {
        consider(plan, request, depth, tiers);
        const size_t begin = depth * page_rows_;
        if (begin + page_rows_ > request.tokens.size()) break;
        const std::span<const int32_t> page = request.tokens.subspan(begin, page_rows_);
        Node* child = depth < plan.path.size() ? child_of(*plan.path[depth], page) : nullptr;
        if (child != nullptr) {
            plan.path.push_back(child);
            plan.names.push_back(child->name);
        } else {
            if (!tiers || (host_ == nullptr && disk_ == nullptr)) break;
            RecordKey id = RecordKey::of(plan.names.back(), record_key('P', plan.salt, page));
            if (!in_tiers(id)) break;
            plan.names.push_back(id.name);
            plan.below.push_back(std::move(id));
        }
        plan.known = static_cast<int64_t>(begin + page_rows_);
    }
    plan.known = std::max(plan.known, plan.length);
    if (plan.length > 0 && plan.checkpoint == nullptr && cache_.has_pages())
        plan.pages_to_load = cache_.pages_for(plan.length) - static_cast<int32_t>(plan.held());
    return plan;
}

/// How many tokens after the last page in memory the best continuation shares; `other` is its next token, or -1.
int64_t PrefixCache::shared_beyond(const Plan& plan, std::span<const int32_t> tokens, int32_t& other) const {
    int64_t best = -1;
    other = -1;
    if (plan.path.empty() || !plan.below.empty()) return 0;
    const Node& node = *plan.path.back();
    const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(node.length));
    const auto look = [&](std::span<const int32_t> known) {
        const int64_t same = common_prefix(known, rest);
        const int32_t next = same < static_cast<int64_t>(known.size()) ? known[static_cast<size_t>(same)] : -1;
        if (same < best || (same == best && other >= 0)) return;
        best = same;
        other = next;
    };
    for (const auto& child : node.children) look(child->tokens);
    for (const auto& one : node.checkpoints) look(one->tail);
    return std::max<int64_t>(best, 0);
}

PrefixMatch PrefixCache::explain(const Plan& plan, const PrefixRequest& request) const {
    PrefixMatch match;
    match.cached = plan.length;
    match.known = plan.known;
    match.pages_to_load = plan.pages_to_load;
    if (!plan.path.empty() || plan.known > 0) match.rest = PrefixMatch::Rest::new_tokens;
    const int64_t base = plan.path.empty() ? plan.known : std::max(plan.known, plan.path.back()->length);
    int64_t same = plan.path.empty() ? base : plan.path.back()->length;
    int32_t other = -1;
    same = std::max(base, same + shared_beyond(plan, request.tokens, other));
    const auto session = sessions_.find(request.session);
    if (request.session != 0 && session != sessions_.end() && session->second.salt == plan.salt) {
        const std::vector<int32_t>& last = session->second.tokens;
        const int64_t shared = common_prefix(last, request.tokens);
        if (shared >= same + static_cast<int64_t>(page_rows_)) {
            match.rest = PrefixMatch::Rest::evicted;
            match.first_difference = shared;
            return match;
        }
        if (shared >= same) other = shared < static_cast<int64_t>(last.size()) ? last[static_cast<size_t>(shared)] : -1;
        same = std::max(same, shared);
    }
    if (plan.known - plan.length > options_.checkpoint_every) {
        match.rest = PrefixMatch::Rest::evicted;
        match.first_difference = plan.known;
        return match;
    }
    if (other < 0 || same >= static_cast<int64_t>(request.tokens.size())) return match;
    match.rest = PrefixMatch::Rest::differs;
    match.first_difference = same;
    match.message =
        static_cast<int32_t>(std::upper_bound(request.message_ends.begin(), request.message_ends.end(), same) -
                             request.message_ends.begin());
    match.cached_token = other;
    match.prompt_token = request.tokens[static_cast<size_t>(same)];
    return match;
}

PrefixMatch PrefixCache::find(const PrefixRequest& request) const { return explain(plan(request, true), request); }

}  // namespace riptide
