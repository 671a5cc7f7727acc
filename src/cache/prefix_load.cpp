// The part of PrefixCache that brings state back into a sequence: attach, and loading from the tiers.
#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/error.h"
#include "cache/prefix_cache.h"
#include "cache/prefix_tree.h"

namespace riptide {

PrefixMatch PrefixCache::attach(const PrefixRequest& request, SequenceState& sequence) {
    RT_ASSERT(sequence.length() == 0 && sequence.reserved() == 0 && &sequence.cache() == &cache_);
    tell_all_if_asked();
    Plan best = plan(request, true);
    PrefixMatch match = explain(best, request);
    match.cached = 0;
    // A record that a tier has lost leaves a shorter plan; no room leaves the tiers out, and so does bad luck.
    for (int attempts = 0; best.length > 0; ++attempts) {
        Loaded loaded = Loaded::done;
        if (best.checkpoint != nullptr) {
            restore_held(best, sequence);
            touch(*best.node, best.checkpoint, request.side);
        } else {
            loaded = restore_loaded(best, request, sequence);
        }
        if (loaded == Loaded::done) {
            match.cached = best.length;
            match.loaded = best.checkpoint == nullptr;
            break;
        }
        best = plan(request, loaded == Loaded::lost && attempts < 100);
    }
    stats_.prompts += 1;
    stats_.hits += match.cached > 0;
    stats_.prompt_tokens += static_cast<int64_t>(request.tokens.size());
    stats_.cached_tokens += match.cached;
    return match;
}

void PrefixCache::restore_held(const Plan& best, SequenceState& sequence) {
    std::vector<int32_t> pages;
    if (cache_.has_pages()) {
        for (size_t i = 1; i <= best.depth; ++i) pages.push_back(best.path[i]->page);
        if (best.checkpoint->page >= 0) pages.push_back(best.checkpoint->page);
    }
    sequence.adopt(best.length, pages);
    transfer_.load_state(sequence.slot(), best.length, *best.checkpoint->state);
}

/// Loads the missing pages and the checkpoint of the plan, restores from them, and keeps them.
PrefixCache::Loaded PrefixCache::restore_loaded(const Plan& best, const PrefixRequest& request,
                                                SequenceState& sequence) {
    const size_t held = best.held();
    const auto tail = best.length - static_cast<int64_t>(best.depth * page_rows_);
    const auto sizes = {transfer_.page_bytes(tail), transfer_.state_bytes(best.length)};
    // All records are looked up first: making room must not drive out of a tier what is about to be loaded. From the
    // last to the first, so that in the tiers too the beginnings are what was used last.
    std::optional<Found> checkpoint = look_up(best.checkpoint_id, sizes);
    if (!checkpoint) return Loaded::lost;
    std::vector<Found> found(best.depth - held);
    for (size_t i = found.size(); i > 0; --i) {
        std::optional<Found> one = look_up(best.below[i - 1], {transfer_.page_bytes(static_cast<int64_t>(page_rows_))});
        if (!one) return Loaded::lost;
        found[i - 1] = std::move(*one);
    }

    PagePool& pool = cache_.pool();
    std::vector<int32_t> pages;  // one reference each, so that nothing below evicts them
    struct Release {
        PagePool& pool;
        std::vector<int32_t>& pages;
        ~Release() {
            for (const int32_t page : pages) pool.release(page);
        }
    } const release{pool, pages};
    if (cache_.has_pages()) {
        for (size_t i = 1; i <= held; ++i) {
            pool.retain(best.path[i]->page);
            pages.push_back(best.path[i]->page);
        }
        if (!make_room(best.pages_to_load, request.side)) return Loaded::no_room;
        for (int32_t i = 0; i < best.pages_to_load; ++i) pages.push_back(pool.acquire());
        if (!load_pages(found, std::span(pages).subspan(held, found.size()))) return Loaded::lost;
    }
    if (!load_checkpoint(*checkpoint, sizes)) return Loaded::lost;
    if (tail > 0 && cache_.has_pages()) {
        const std::byte* const from = checkpoint->parts[0]->data;
        transfer_.load_pages({&pages.back(), 1}, tail, {&from, 1}, nullptr);
        transfer_.mark(*checkpoint->parts[0]);
    }
    sequence.adopt(best.length, pages);
    transfer_.load_state(sequence.slot(), best.length, *checkpoint->parts[1]);
    ++stats_.loaded_checkpoints;
    keep(request, sequence, best.length, checkpoint->parts[1], static_cast<Mark>(checkpoint->tag));
    return Loaded::done;
}

/// Where a record of parts of these sizes is. One of other sizes is of no use to anybody: it is removed.
std::optional<PrefixCache::Found> PrefixCache::look_up(const RecordKey& id, std::initializer_list<int64_t> sizes) {
    if (host_ != nullptr)
        if (std::optional<Record> record = host_->get(id)) {
            const bool fits = std::equal(record->parts.begin(), record->parts.end(), sizes.begin(), sizes.end(),
                                         [](const HostBytes& part, int64_t size) { return part->bytes == size; });
            if (fits) return Found{&id, std::move(record->parts), record->tag};
            discard(id);
            return std::nullopt;
        }
    int64_t bytes = 0;
    for (const int64_t size : sizes) bytes += size;
    if (disk_ == nullptr || !disk_->touch(id)) return std::nullopt;
    if (disk_->payload_bytes(id) == bytes) return Found{&id, {}, 0};
    discard(id);
    return std::nullopt;
}

/// Fills whole pages. False, with some of them filled, when a record could not be read.
/// Batch by batch: while the device copies one, the next is read from disk.
bool PrefixCache::load_pages(std::span<const Found> found, std::span<const int32_t> pages) {
    const auto rows = static_cast<int64_t>(page_rows_);
    const int64_t bytes = transfer_.page_bytes(rows);
    const auto batch = static_cast<size_t>(transfer_.batch_pages());
    std::array<HostBytes, 2> buffers;
    for (size_t begin = 0, turn = 0; begin < found.size(); begin += batch, ++turn) {
        const std::span<const Found> part = found.subspan(begin, std::min(batch, found.size() - begin));
        HostBytes& buffer = buffers[turn % 2];
        std::vector<DiskStore::Read> reads;
        std::vector<const std::byte*> from;
        for (const Found& one : part) {
            if (!one.parts.empty()) {
                from.push_back(one.parts[0]->data);
                continue;
            }
            if (buffer == nullptr) buffer = heap_->take_for_host(static_cast<int64_t>(batch) * bytes);
            if (buffer == nullptr) return false;
            const auto to =
                buffer->span().subspan(from.size() * static_cast<size_t>(bytes), static_cast<size_t>(bytes));
            reads.push_back({one.id, {to}});
            from.push_back(to.data());
        }
        const bool copies = cache_.gpu() == nullptr;
        ThreadPool* const team = copies || !reads.empty() ? threads(bytes * std::ssize(part)) : nullptr;
        if (!reads.empty()) {
            heap_->wait(*buffer);
            disk_->read(reads, team);
            if (!std::all_of(reads.begin(), reads.end(), [](const DiskStore::Read& read) { return read.done; }))
                return false;
        }
        transfer_.load_pages(pages.subspan(begin, part.size()), rows, from, team);
        const uint64_t point = heap_->clock().mark();
        if (buffer != nullptr) buffer->ready = point;
        for (const Found& one : part)
            if (!one.parts.empty()) one.parts[0]->ready = point;
        stats_.loaded_pages += std::ssize(part);
    }
    return true;
}

/// Brings its parts into host memory. False when it cannot be read, or makes no sense.
bool PrefixCache::load_checkpoint(Found& found, std::initializer_list<int64_t> sizes) {
    if (found.parts.empty()) {
        DiskStore::Read read{found.id, {}};
        for (const int64_t size : sizes) {
            found.parts.push_back(heap_->take_for_host(size));
            if (found.parts.back() == nullptr) return false;
            read.to.push_back(found.parts.back()->span());
        }
        disk_->read({&read, 1});
        if (!read.done) return false;
        found.tag = read.tag;
    }
    if (found.tag >= 0 && found.tag <= static_cast<int32_t>(Mark::pinned)) return true;
    discard(*found.id);
    return false;
}

/// A few threads for work on so many bytes; null when they would not help.
ThreadPool* PrefixCache::threads(int64_t bytes) {
    if (bytes < (int64_t{1} << 20)) return nullptr;
    if (threads_ == nullptr)
        threads_ =
            std::make_unique<ThreadPool>(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8));
    return threads_->size() > 1 ? threads_.get() : nullptr;
}

void PrefixCache::discard(const RecordKey& id) {
    if (host_ != nullptr) host_->erase(id);
    if (disk_ != nullptr) disk_->erase(id);
    ++stats_.damaged;
}

}  // namespace riptide
