#include "engine/sampling/device_masks.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

MaskPool::Place MaskPool::find(const AllowedSet& set) {
    RT_ASSERT(!set.any_token());
    Key key{{set.mask.get(), set.can_end}, {set.stop_ids.begin(), set.stop_ids.end()}};
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
        used_.splice(used_.begin(), used_, found->second);
        return {found->second->number, false};
    }
    auto number = static_cast<int32_t>(by_key_.size());
    if (number >= count_) {
        number = used_.back().number;
        by_key_.erase(used_.back().where);
        used_.pop_back();
    }
    used_.push_front({set.mask, number, {}});
    used_.front().where = by_key_.emplace(std::move(key), used_.begin()).first;
    return {number, true};
}

void MaskPool::clear() {
    used_.clear();
    by_key_.clear();
}

int64_t DeviceMasks::count(int64_t vocab_size) {
    const int64_t each = ops::SampleMasks::words_of(vocab_size) * int64_t{sizeof(uint64_t)};
    return std::clamp(kMostBytes / each, kMostRows, kMostKept);
}

int64_t DeviceMasks::bytes(int64_t vocab_size) {
    return count(vocab_size) * ops::SampleMasks::words_of(vocab_size) * int64_t{sizeof(uint64_t)} +
           2 * kMostRows * int64_t{sizeof(int32_t)};
}

void DeviceMasks::take_memory() {
    const int64_t words = ops::SampleMasks::words_of(vocab_size_);
    masks_ = DeviceMemory(&gpu_, count(vocab_size_) * words * int64_t{sizeof(uint64_t)}, "masks of allowed tokens");
    of_row_ = DeviceMemory(&gpu_, 2 * kMostRows * int64_t{sizeof(int32_t)}, "rows' masks");
    staged_ = PinnedMemory(gpu_, 2 * kMostRows * (words * int64_t{sizeof(uint64_t)} + int64_t{sizeof(int32_t)}));
}

ops::SampleMasks DeviceMasks::upload(std::span<const AllowedSet> rows, Use use) {
    RT_ASSERT(!rows.empty() && std::ssize(rows) <= kMostRows);
    if (masks_.data() == nullptr) take_memory();
    const auto words = static_cast<size_t>(ops::SampleMasks::words_of(vocab_size_));
    const auto number = static_cast<int64_t>(use);
    auto* const device_masks = reinterpret_cast<uint64_t*>(masks_.data());
    auto* const of_row = reinterpret_cast<int32_t*>(of_row_.data()) + number * kMostRows;
    auto* const staged = reinterpret_cast<uint64_t*>(staged_.data()) + static_cast<size_t>(number * kMostRows) * words;
    auto* const numbers = reinterpret_cast<int32_t*>(reinterpret_cast<uint64_t*>(staged_.data()) +
                                                     static_cast<size_t>(2 * kMostRows) * words) +
                          number * kMostRows;
    std::vector<int32_t>& known = known_[number];
    bool changed = known.size() != rows.size();
    known.resize(rows.size(), -1);
    size_t fresh = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
        MaskPool::Place place;
        if (!rows[r].any_token()) place = pool_.find(rows[r]);
        if (place.fresh) {
            uint64_t* const mask = staged + fresh++ * words;
            rows[r].write({mask, words});
            gpu_.copy(device_masks + static_cast<size_t>(place.number) * words, mask,
                      static_cast<int64_t>(words * sizeof(uint64_t)));
        }
        changed = changed || known[r] != place.number;
        known[r] = place.number;
    }
    if (changed) {
        std::copy(known.begin(), known.end(), numbers);
        gpu_.copy(of_row, numbers, static_cast<int64_t>(known.size() * sizeof(int32_t)));
    }
    return {device_masks, {of_row, rows.size()}};
}

}  // namespace riptide
