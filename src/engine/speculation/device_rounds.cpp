#include "engine/speculation/device_rounds.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "ops/embed.h"
#include "ops/kv/kv_compact.h"

namespace riptide {

namespace {

constexpr int64_t kRows = ops::kMostRoundRows;
constexpr int64_t kRingBytes = DraftRounds::kMostPending * ops::RoundRing::kEntryWords * int64_t{sizeof(uint64_t)};

}  // namespace

DraftRounds::DraftRounds(const Model& model, KvCache& cache, Context& context, std::shared_ptr<Drafter> drafter,
                         int64_t sequence_tokens)
    : model_(model),
      cache_(cache),
      context_(context),
      drafter_(std::move(drafter)),
      dflash_(drafter_->dflash()),
      block_(dflash_->model().block_size()),
      pages_(std::min(cache.options().pages, cache.pages_for(sequence_tokens))),
      drafted_pages_(
          std::min(dflash_->cache().options().pages, dflash_->cache().pages_for(sequence_tokens + block_))) {
    RT_ASSERT(block_ <= kRows);
    const auto words = std::ssize(dflash_->model().target_ids());
    const int64_t each = 14 * kRows + 2 * (kRows + 1) + words + pages_ + drafted_pages_ + 16;
    memory_ = DeviceMemory(context.gpu, each * int64_t{sizeof(int32_t)}, "rounds of drafts");
    const int64_t row_bytes = dflash_->model().feature_columns() * int64_t{sizeof(float)};
    feature_memory_ = DeviceMemory(context.gpu, kMostPlain * row_bytes, "features for the drafter");

    ring_.step = reinterpret_cast<int64_t*>(take(2));
    state_.committed = take(1);
    state_.behind = take(1);
    state_.line_rows = static_cast<int32_t>(kRows);
    state_.line = take(kRows);
    state_.block_tokens = take(kRows);
    state_.rows = {take(kRows), take(kRows), take(kRows), reinterpret_cast<float*>(take(kRows)), take(1)};
    state_.path = take(kRows);
    state_.kept = take(1);
    zeros_ = take(kRows);
    counting_ = take(kRows);
    begins_ = take(2 * (kRows + 1));
    words_ = take(words);
    gaps_ = take(kRows);
    start_ = take(5 + pages_ + drafted_pages_);
    state_.length = start_, state_.token = start_ + 1, state_.origin = start_ + 2;
    slot_ = start_ + 3, drafted_slot_ = start_ + 4;
    page_table_ = start_ + 5, drafted_page_table_ = page_table_ + pages_;

    std::vector<int32_t> values(kRows);
    std::iota(values.begin(), values.end(), 0);
    put(counting_, values.data(), kRows * 4);
    std::fill(values.begin(), values.end(), dflash_->model().mask_token_id());
    put(state_.block_tokens, values.data(), kRows * 4);
    std::vector<int32_t> begins(2 * (kRows + 1), 0);
    for (size_t n = 0; n <= static_cast<size_t>(kRows); ++n) begins[2 * n + 1] = static_cast<int32_t>(n);
    put(begins_, begins.data(), std::ssize(begins) * 4);
    put(words_, dflash_->model().target_ids().data(), words * 4);

    if (context.gpu != nullptr) pinned_ring_ = PinnedMemory(*context.gpu, kRingBytes);
    else ring_memory_ = DeviceMemory(nullptr, kRingBytes, "ring of rounds");
    std::byte* const ring = context.gpu != nullptr ? pinned_ring_.data() : ring_memory_.data();
    std::memset(ring, 0, static_cast<size_t>(kRingBytes));
    ring_.entries = reinterpret_cast<uint64_t*>(ring);
    ring_.size = kMostPending;
}

int32_t* DraftRounds::take(int64_t words) {
    int32_t* const at = reinterpret_cast<int32_t*>(memory_.data()) + taken_words_;
    taken_words_ += words;
    RT_ASSERT(taken_words_ * int64_t{sizeof(int32_t)} <= memory_.bytes());
    return at;
}

/// From the host to the device's memory.
void DraftRounds::put(void* to, const void* from, int64_t bytes) {
    if (context_.gpu != nullptr) context_.gpu->to_device(to, from, bytes);
    else std::memcpy(to, from, static_cast<size_t>(bytes));
}

void DraftRounds::begin(const SequenceState& sequence, const SequenceState& drafted, int32_t token, Draws draws) {
    RT_ASSERT(pending() == 0 && sequence.length() == drafted.length());
    const auto length = static_cast<int32_t>(sequence.length());
    staging_.assign(static_cast<size_t>(5 + pages_ + drafted_pages_), -1);
    const int32_t head[] = {length, token, length, sequence.slot(), drafted.slot()};
    std::copy(std::begin(head), std::end(head), staging_.begin());
    std::copy(sequence.pages().begin(), sequence.pages().end(), staging_.begin() + 5);
    std::copy(drafted.pages().begin(), drafted.pages().end(), staging_.begin() + 5 + pages_);
    put(start_, staging_.data(), std::ssize(staging_) * 4);
    gapped_ = sequence.gaps() != nullptr;
    if (gapped_) {
        const int32_t sum = sequence.gaps()->at(length);
        RT_ASSERT(sum == sequence.gaps()->last());  // rounds begin behind the prompt
        const std::vector<int32_t> sums(kRows, sum);
        put(gaps_, sums.data(), kRows * 4);
    }
    draws_ = std::move(draws);
}

/// A chain of rows of the model (or of the drafter) behind what is committed; without logits.
Batch DraftRounds::batch_of(int64_t rows, const int32_t* tokens, const int32_t* positions, bool drafted) const {
    const auto n = static_cast<size_t>(rows);
    const int64_t pages = drafted ? drafted_pages_ : pages_;
    Batch batch;
    batch.tokens = {tokens, n};
    batch.positions = {positions, n};
    batch.row_sequence = {zeros_, n};
    batch.row_begin = {begins_ + 2 * rows, 2};
    batch.committed = {state_.committed, 1};
    batch.page_table = {drafted ? drafted_page_table_ : page_table_, static_cast<size_t>(pages)};
    batch.max_pages = static_cast<int32_t>(pages);
    batch.state_slot = {drafted ? drafted_slot_ : slot_, 1};
    if (!drafted && gapped_) batch.gaps = {gaps_, n};
    return batch;
}

/// The drafter's block, and the rows that check its drafts.
void DraftRounds::draft(const ops::DraftPlan& plan) {
    const Dflash& model = dflash_->model();
    const ArenaScope scope(*context_.arena);
    Batch block = batch_of(block_, state_.block_tokens, state_.line, true);
    block.logit_rows = {counting_ + model.first_slot(), static_cast<size_t>(block_ - model.first_slot())};
    const Tensor logits = model.draft(context_, block, States{dflash_->cache().views()});
    const auto words = std::ssize(model.target_ids());
    const ops::TopK best = ops::top_k(context_, logits, std::min(DflashDrafter::kChoices, words));
    const Tensor logprobs = ops::choice_logprobs(context_, best);
    ops::DraftPlan fitting = plan;
    fitting.choices = static_cast<int32_t>(std::min<int64_t>(plan.choices, best.k));
    ops::draft_rows(context_, best.indices, logprobs, {words_, static_cast<size_t>(words)}, fitting, state_.rows);
}

/// The model's step over the rows, and the token that follows each of them; what the drafter reads of it, if wanted.
Tensor DraftRounds::check(int64_t rows, bool tree, Tensor* features) {
    Batch batch = batch_of(rows, state_.rows.tokens, state_.rows.positions, false);
    if (tree) batch.parent = {state_.rows.parents, static_cast<size_t>(rows)};
    batch.logit_rows = {counting_, static_cast<size_t>(rows)};
    FeatureCapture capture{dflash_->model().taps(), {}};
    if (features != nullptr)
        capture.out = *features = context_.alloc(DType::f32, {rows, dflash_->model().feature_columns()});
    const Tensor logits = model_.forward(context_, batch, States{cache_.views(), cache_.delta().views()},
                                         features != nullptr ? &capture : nullptr);
    const Tensor drawn = draws_.draw(logits, batch.positions);
    ops::accept_rows(context_, drawn, state_, ring_);
    if (cache_.delta().any())
        ops::gated_delta_commit(context_, cache_.delta().layers(),
                                {.state_slot = batch.state_slot,
                                 .committed = batch.committed,
                                 .count = {state_.kept, 1},
                                 .rows = {state_.path, static_cast<size_t>(rows)},
                                 .most = rows});
    return drawn;
}

Tensor DraftRounds::plain_round() {
    ops::begin_round(context_, state_);
    Tensor features;
    const Tensor drawn = check(1, false, &features);
    Tensor kept = this->features(kMostPlain);
    ops::store_rows(context_, features, state_.behind, kept);
    return drawn;
}

Tensor DraftRounds::round(const ops::DraftPlan& plan) {
    const int64_t rows = plan.rows;
    const bool tree = plan.choices > 1;
    ops::begin_round(context_, state_);
    draft(plan);
    Tensor features;
    const Tensor drawn = check(rows, tree, &features);
    if (tree) {
        const Batch batch = batch_of(rows, state_.rows.tokens, state_.rows.positions, false);
        ops::kv_compact(context_, cache_.views(), batch, state_.path, state_.kept);
        features = ops::gather_rows(context_, features, {state_.path, static_cast<size_t>(rows)});
    }
    append(features);
    return drawn;
}

/// The drafter's K/V of all rows: those behind the accepted way are overwritten before anything reads them.
void DraftRounds::append(const Tensor& features) {
    dflash_->model().append(context_, features, batch_of(features.rows(), zeros_, state_.line, true),
                            States{dflash_->cache().views()});
}

Tensor DraftRounds::measured_round(const ops::DraftPlan& plan, bool drafted) {
    ops::begin_round(context_, state_);
    if (drafted) draft(plan);
    const auto words = std::ssize(dflash_->model().target_ids());
    const int32_t drafts = plan.rows - 1;
    const Tensor first(counting_, DType::i32, {drafts, 1}), certain(zeros_, DType::f32, {drafts, 1});
    ops::draft_rows(context_, first, certain, {words_, static_cast<size_t>(words)},
                    {.rows = plan.rows, .chain = drafts, .slots = drafts, .choices = 1}, state_.rows);
    Tensor features;
    const Tensor drawn = check(plan.rows, false, drafted ? &features : nullptr);
    if (drafted) append(features);
    return drawn;
}

void DraftRounds::launch(const ops::DraftPlan& plan, Measured how) {
    RT_ASSERT(pending() < kMostPending && plan.rows > 1 && plan.rows <= kRows);
    context_.family = Family::decode;
    if (cache_.delta().any()) cache_.delta().begin_step();
    const bool drafted = how == Measured::with_drafter;
    measured_[{plan.rows, drafted}].run(context_, [&] { return measured_round(plan, drafted); });
    pending_.push_back(plan.rows);
}

void DraftRounds::launch(const ops::DraftPlan& plan) {
    RT_ASSERT(pending() < kMostPending && plan.rows >= 1 && plan.rows <= kRows);
    context_.family = Family::decode;
    if (cache_.delta().any()) cache_.delta().begin_step();
    rounds_[{gapped_, draws_.way, plan.rows, plan.chain, plan.slots, plan.choices}].run(
        context_, [&] { return plan.rows == 1 ? plain_round() : round(plan); });
    pending_.push_back(plan.rows);
}

const DraftRounds::Round& DraftRounds::next() {
    RT_ASSERT(pending() > 0);
    const int32_t rows = pending_.front();
    const auto wanted = static_cast<uint32_t>(taken_ + 1);
    uint64_t* const entry = ring_.entries + taken_ % ring_.size * ops::RoundRing::kEntryWords;
    int64_t polls = 0;
    const auto word = [&](int64_t i) {
        const std::atomic_ref<uint64_t> at(entry[i]);
        uint64_t value = at.load(std::memory_order_acquire);
        while (value >> 32 != wanted) {
            if (++polls % 4096 == 0 && context_.gpu != nullptr) context_.gpu->check();
            value = at.load(std::memory_order_acquire);
        }
        return static_cast<uint32_t>(value & 0xFFFFFFFFu);
    };
    round_.tree.clear();
    round_.drawn.clear();
    for (int32_t r = 0; r < rows; ++r) {
        const int64_t at = r * ops::RoundRing::kWords;
        round_.drawn.push_back(static_cast<int32_t>(word(at)));
        const auto token = static_cast<int32_t>(word(at + 1));
        const uint32_t place = word(at + 2), logprob = word(at + 3);
        round_.kept = static_cast<int32_t>(place >> 8 & 0xFF);
        if (r > 0 && r < static_cast<int32_t>(place >> 16))
            round_.tree.add(static_cast<int32_t>(place & 0xFF) - 2, {token, std::bit_cast<float>(logprob)});
    }
    pending_.pop_front();
    ++taken_;
    return round_;
}

void DraftRounds::end() {
    if (context_.gpu != nullptr) context_.gpu->synchronize();
    taken_ += pending();
    pending_.clear();
}

Tensor DraftRounds::features(int64_t rows) const {
    return Tensor(feature_memory_.data(), DType::f32, {rows, dflash_->model().feature_columns()});
}

}  // namespace riptide
