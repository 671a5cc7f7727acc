#include "cache/sequence_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/kv/kv_compact.h"

namespace riptide {

SequenceState::SequenceState(KvCache& cache) : cache_(&cache), slot_(cache.acquire_slot()) {
    if (slot_ < 0)
        fail(ErrorKind::unavailable, "all {} sequence slots of the K/V cache are taken", cache.options().max_sequences);
}

SequenceState::~SequenceState() { release_all(); }

SequenceState::SequenceState(SequenceState&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      pages_(std::exchange(other.pages_, {})),
      gaps_(std::exchange(other.gaps_, {})),
      slot_(std::exchange(other.slot_, -1)),
      length_(std::exchange(other.length_, 0)),
      reserved_(std::exchange(other.reserved_, 0)),
      ring_base_(std::exchange(other.ring_base_, 0)),
      ring_high_(std::exchange(other.ring_high_, 0)),
      step_(std::exchange(other.step_, {})) {}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
    SequenceState taken(std::move(other));
    std::swap(cache_, taken.cache_);
    std::swap(pages_, taken.pages_);
    std::swap(gaps_, taken.gaps_);
    std::swap(slot_, taken.slot_);
    std::swap(length_, taken.length_);
    std::swap(reserved_, taken.reserved_);
    std::swap(ring_base_, taken.ring_base_);
    std::swap(ring_high_, taken.ring_high_);
    std::swap(step_, taken.step_);
    return *this;
}

void SequenceState::release_all() {
    if (cache_ == nullptr) return;
    end_rows();
    for (const int32_t page : pages_) cache_->pool().release(page);
    pages_.clear();
    cache_->release_slot(slot_);
}

/// Frees the pages beyond those that hold `tokens` tokens.
void SequenceState::resize_pages(int64_t tokens) {
    while (static_cast<int32_t>(pages_.size()) > cache_->pages_for(tokens)) {
        cache_->pool().release(pages_.back());
        pages_.pop_back();
    }
}

/// Whether the page that the next token falls into is shared and partly filled.
bool SequenceState::tail_is_shared() const {
    const int32_t page_rows = cache_->options().page_rows;
    if (length_ % page_rows == 0) return false;
    return cache_->pool().refcount(pages_[static_cast<size_t>(length_ / page_rows)]) > 1;
}

int32_t SequenceState::pages_needed(int64_t rows) const {
    if (!cache_->has_pages()) return 0;
    const int32_t more = cache_->pages_for(length_ + rows) - static_cast<int32_t>(pages_.size());
    return std::max(0, more) + (tail_is_shared() ? 1 : 0);
}

bool SequenceState::try_reserve(int64_t rows) {
    RT_ASSERT(rows >= 1 && rows <= cache_->options().max_step_rows && length_ + rows <= INT32_MAX);
    PagePool& pool = cache_->pool();
    if (pages_needed(rows) > pool.free_count()) return false;
    if (cache_->has_pages()) {
        if (tail_is_shared()) {
            const int32_t page_rows = cache_->options().page_rows;
            int32_t& tail = pages_[static_cast<size_t>(length_ / page_rows)];
            const int32_t own = pool.acquire();
            cache_->copy_page(tail, own, static_cast<int32_t>(length_ % page_rows));
            pool.release(tail);
            tail = own;
        }
        while (static_cast<int32_t>(pages_.size()) < cache_->pages_for(length_ + rows))
            pages_.push_back(pool.acquire());
    }
    reserved_ = std::max(reserved_, rows);
    ring_high_ = std::max(ring_high_, length_ + reserved_);
    return true;
}

void SequenceState::begin_rows(int64_t first_row, int64_t rows, ops::DeltaMode mode) {
    DeltaStates& delta = cache_->delta();
    if (!delta.any()) return;
    RT_ASSERT(rows >= 1 && rows <= reserved_);
    commit_delta({});  // of a step that has been begun and is run again
    step_ = {.number = delta.step(), .first_row = first_row, .rows = rows, .mode = mode};
    if (mode == ops::DeltaMode::stash || length_ == 0) return;
    step_.spare = delta.acquire_spare();
    delta.copy(slot_, step_.spare);
}

void SequenceState::begin_follow(int64_t row) {
    DeltaStates& delta = cache_->delta();
    RT_ASSERT(row >= 0 && row < delta.follow_rows() && reserved_ > 0);
    commit_delta({});
    step_ = {.number = delta.step(), .first_row = row, .rows = reserved_, .mode = ops::DeltaMode::follow};
}

void SequenceState::commit_followed(int64_t rows, int64_t run) {
    RT_ASSERT(step_.mode == ops::DeltaMode::follow);
    const Followed one{this, rows};
    commit_followed_states({&one, 1}, run);
    commit_prefix(rows);
}

void SequenceState::commit_followed_states(std::span<const Followed> all, int64_t run) {
    std::vector<DeltaStates::Row> last;
    for (const auto& [sequence, rows] : all) {
        DeltaStep& step = sequence->step_;
        if (step.mode != ops::DeltaMode::follow) continue;
        RT_ASSERT(rows >= 0 && run <= sequence->reserved_ && (run == rows || run == rows + 1));
        RT_ASSERT(step.number == sequence->cache_->delta().step() && step.committed < 0);
        step.committed = rows;
        if (run > rows || rows == 0) continue;
        const int64_t position = sequence->length_ + rows - 1;
        last.push_back({sequence->slot_, position, ops::delta_follow_row(step.first_row, position)});
    }
    if (!last.empty()) all.front().sequence->cache_->delta().commit_rows(last);
}

void SequenceState::end_rows() {
    if (step_.spare >= 0) cache_->delta().release_spare(step_.spare);
    step_ = {};
}

void SequenceState::commit_state(std::span<const int32_t> path) {
    if (!cache_->delta().any()) return;
    commit_delta(path);
    step_.committed = std::ssize(path);
}

/// Makes the rows of the path part of the recurrent state, or none.
void SequenceState::commit_delta(std::span<const int32_t> path) {
    if (!cache_->delta().any()) return;
    if (step_.committed >= 0) {  // or the sequence ends here, and nobody looks at its state again
        RT_ASSERT(path.empty() || std::ssize(path) == step_.committed);
        return end_rows();
    }
    RT_ASSERT(path.empty() || (step_.rows > 0 && step_.mode != ops::DeltaMode::follow));
    if (step_.mode == ops::DeltaMode::update) {
        RT_ASSERT(path.empty() || std::ssize(path) == step_.rows);
        if (path.empty() && step_.spare >= 0) cache_->delta().copy(step_.spare, slot_);
    } else if (!path.empty()) {
        RT_ASSERT(step_.number == cache_->delta().step());
        std::vector<int32_t> rows;
        for (const int32_t row : path) {
            RT_ASSERT(row < step_.rows);
            rows.push_back(static_cast<int32_t>(step_.first_row) + row);
        }
        cache_->delta().commit(slot_, length_, rows);
    }
    end_rows();
}

void SequenceState::commit(std::span<const int32_t> path) {
    for (size_t i = 0; i < path.size(); ++i)
        RT_ASSERT(path[i] >= 0 && path[i] < reserved_ && (i == 0 || path[i - 1] < path[i]));
    ops::kv_compact(cache_->gpu(), cache_->views(), {slot_, pages_, length_, path});
    commit_delta(path);
    keep(static_cast<int64_t>(path.size()));
}

void SequenceState::commit_prefix(int64_t rows) {
    RT_ASSERT(rows >= 0 && rows <= reserved_);
    if (cache_->delta().any()) {
        std::vector<int32_t> path(static_cast<size_t>(rows));
        std::iota(path.begin(), path.end(), 0);
        commit_delta(path);
    }
    keep(rows);
}

void SequenceState::state_is_committed(int64_t rows) {
    RT_ASSERT(rows >= 0 && rows <= reserved_ && step_.rows == 0);
    step_.committed = rows;
}

void SequenceState::keep(int64_t rows) {
    length_ += rows;
    reserved_ = 0;
    resize_pages(length_);
}

/// The slot has been filled with what a sequence of `length` tokens needs, and no more.
void SequenceState::adopt_slot(int64_t length) {
    length_ = length;
    ring_base_ = length;
    ring_high_ = length;
}

bool SequenceState::can_truncate(int64_t length) const {
    RT_ASSERT(length >= 0 && length <= length_);
    if (cache_->delta().any() && length != length_ && length != 0) return false;
    return std::all_of(cache_->views().begin(), cache_->views().end(), [&](const KvView& view) {
        if (view.window == 0) return true;
        const int64_t oldest = std::max<int64_t>(0, length - (view.window - 1));
        const bool copied_in = oldest >= ring_base_ - (view.window - 1),
                   overwritten = oldest + view.ring_rows < ring_high_;
        return oldest >= length || (copied_in && !overwritten);
    });
}

void SequenceState::truncate(int64_t length) {
    RT_ASSERT(reserved_ == 0);
    RT_CHECK(
        can_truncate(length),
        "cannot go back from {} to {} tokens: the window layers no longer hold what the tokens there see, or there is "
        "recurrent state",
        length_, length);
    length_ = length;
    if (length == 0) ring_base_ = ring_high_ = 0;
    resize_pages(length);
}

SavedState SequenceState::save(SavedState reused) const {
    RT_ASSERT(reserved_ == 0);
    SavedState saved = std::move(reused);
    saved.cache_ = cache_;
    saved.length_ = length_;
    saved.bytes_ = ops::packed_state_bytes(cache_->bounded(), length_);
    if (saved.packed_.bytes() < saved.bytes_) saved.packed_ = {cache_->gpu(), saved.bytes_, "saved state"};
    if (saved.bytes_ > 0) ops::pack_state(cache_->gpu(), cache_->bounded(), slot_, length_, saved.packed_.data());
    return saved;
}

void SequenceState::check_saved_here(const SavedState& saved) const {
    RT_CHECK(saved.cache_ == cache_, "the saved state belongs to another cache");
}

void SequenceState::load(const SavedState& saved) {
    if (saved.bytes_ > 0)
        ops::unpack_state(cache_->gpu(), cache_->bounded(), slot_, saved.length_, saved.packed_.data());
}

void SequenceState::restore(const SavedState& saved) {
    RT_ASSERT(reserved_ == 0);
    check_saved_here(saved);
    const int64_t length = saved.length();
    RT_CHECK(length <= length_, "a state of {} tokens cannot be restored into a sequence of {}", length, length_);
    load(saved);
    adopt_slot(length);
    resize_pages(length);
}

void SequenceState::restore(const SavedState& saved, std::span<const int32_t> pages) {
    RT_ASSERT(length_ == 0 && reserved_ == 0);
    check_saved_here(saved);
    const int64_t length = saved.length(), wanted = cache_->has_pages() ? cache_->pages_for(length) : 0;
    RT_CHECK(std::ssize(pages) == wanted, "a state of {} tokens comes with {} pages, expected {}", length, pages.size(),
             wanted);
    adopt(length, pages);
    load(saved);
}

void SequenceState::adopt(int64_t length, std::span<const int32_t> pages) {
    RT_ASSERT(length_ == 0 && reserved_ == 0 && pages_.empty());
    RT_ASSERT(std::ssize(pages) == (cache_->has_pages() ? cache_->pages_for(length) : 0));
    for (const int32_t page : pages) cache_->pool().retain(page);
    pages_.assign(pages.begin(), pages.end());
    adopt_slot(length);
}

SequenceState SequenceState::fork(int64_t length) const {
    RT_ASSERT(reserved_ == 0 && can_truncate(length));
    SequenceState copy(*cache_);
    const auto pages = static_cast<size_t>(cache_->has_pages() ? cache_->pages_for(length) : 0);
    copy.adopt(length, std::span(pages_).first(pages));
    cache_->copy_state(slot_, copy.slot_, length);
    copy.gaps_ = gaps_;
    return copy;
}

}  // namespace riptide
