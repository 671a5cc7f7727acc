#include "cache/delta_states.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "ops/kv/kv_pack.h"

namespace riptide {

namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr size_t kPathWords = 3;  // for each sequence, in front of the rows

void check_sizes(const DeltaView& d, size_t layer) {
    RT_CHECK(d.key_heads >= 1 && d.value_heads >= 1 && d.value_heads % d.key_heads == 0,
             "layer {}: {} value heads, expected a multiple of the {} key heads", layer, d.value_heads, d.key_heads);
    RT_CHECK(d.key_dim >= 1 && d.value_dim >= 1 && d.conv_width >= 1,
             "layer {}: heads of {} and {} values and a convolution of width {}, expected at least 1 of each", layer,
             d.key_dim, d.value_dim, d.conv_width);
}

}  // namespace

DeltaStates::DeltaStates(std::span<const StateSpec> specs, int32_t slots, int64_t step_rows, Gpu* gpu,
                         ThreadPool* threads) {
    any_ = std::any_of(specs.begin(), specs.end(),
                       [](const StateSpec& spec) { return spec.kind == StateSpec::Kind::delta; });
    if (!any_) return;
    spares_ = std::min(slots, kSpares);
    for (int32_t i = spares_; i > 0; --i) free_spares_.push_back(slots + i - 1);
    context_.gpu = gpu;
    context_.threads = threads;
    context_.arena = &arena_;
    const int64_t stash_rows = std::min<int64_t>(kStashRows, step_rows);
    views_.resize(specs.size());
    for (size_t l = 0; l < specs.size(); ++l)
        if (specs[l].kind == StateSpec::Kind::delta) add_layer(specs[l], l, int64_t{slots} + spares_, stash_rows);
    if (gpu != nullptr)
        path_memory_ = DeviceMemory(gpu, static_cast<int64_t>((kPathWords + 1) * kStashRows * sizeof(int32_t)),
                                    "rows of recurrent state");
}

void DeltaStates::add_layer(const StateSpec& spec, size_t layer, int64_t slots, int64_t stash_rows) {
    check_sizes(spec.delta, layer);
    DeltaView view = spec.delta;
    const auto memory = [&](int64_t count, int64_t bytes) {
        const int64_t all = checked_mul(count, bytes, "recurrent state");
        total_bytes_ = checked_add(total_bytes_, all, "recurrent state");
        return memory_.emplace_back(context_.gpu, all, "recurrent state").data();
    };
    view.conv = reinterpret_cast<float*>(memory(slots, view.conv_floats() * kFloat));
    view.state = memory(slots, view.state_bytes());
    view.stash = reinterpret_cast<float*>(memory(stash_rows, view.stash_floats() * kFloat));
    view.stash_rows = stash_rows;
    slot_bytes_ += spec.delta_bytes();
    views_[layer] = view;
    layers_.push_back(view);
}

int64_t DeltaStates::follow_rows() const {
    const auto follows = [this](const DeltaView& view) { return ops::delta_follows(context_.gpu, view); };
    if (!any_ || !std::all_of(layers_.begin(), layers_.end(), follows)) return 0;
    return layers_.front().stash_rows / 2;  // ops::delta_follow_row
}

int32_t DeltaStates::acquire_spare() {
    if (free_spares_.empty())
        fail(ErrorKind::unavailable, "the state of more than {} sequences would be overwritten in one step", spares_);
    const int32_t slot = free_spares_.back();
    free_spares_.pop_back();
    return slot;
}

void DeltaStates::copy(int32_t from, int32_t to) {
    ops::copy_state(context_.gpu, {.kv = {}, .delta = views_}, from, to, 1);
}

void DeltaStates::commit(int32_t slot, int64_t committed, std::span<const int32_t> rows) {
    RT_ASSERT(any_ && std::ssize(rows) <= layers_.front().stash_rows);
    if (rows.empty()) return;
    path_words_.assign({slot, static_cast<int32_t>(committed), static_cast<int32_t>(rows.size())});
    path_words_.insert(path_words_.end(), rows.begin(), rows.end());
    commit_paths(1);
}

void DeltaStates::commit_rows(std::span<const Row> rows) {
    RT_ASSERT(any_ && std::ssize(rows) <= layers_.front().stash_rows);
    if (rows.empty()) return;
    path_words_.clear();
    for (const Row& row : rows) path_words_.push_back(row.slot);
    for (const Row& row : rows) path_words_.push_back(static_cast<int32_t>(row.committed));
    path_words_.resize(kPathWords * rows.size(), 1);
    for (const Row& row : rows) path_words_.push_back(static_cast<int32_t>(row.row));
    commit_paths(rows.size());
}

/// What path_words_ says: the slots, how much they describe, how many rows, the rows.
void DeltaStates::commit_paths(size_t n) {
    const int32_t* words = path_words_.data();
    const size_t rows = path_words_.size() - kPathWords * n;
    if (context_.gpu != nullptr) {
        context_.gpu->to_device(path_memory_.data(), words, static_cast<int64_t>(path_words_.size() * sizeof(int32_t)));
        words = reinterpret_cast<const int32_t*>(path_memory_.data());
    }
    arena_.reset();
    ops::gated_delta_commit(context_, layers_,
                            {.state_slot = {words, n},
                             .committed = {words + n, n},
                             .count = {words + 2 * n, n},
                             .rows = {words + kPathWords * n, rows},
                             .most = static_cast<int64_t>(rows / n)});
}

}  // namespace riptide
