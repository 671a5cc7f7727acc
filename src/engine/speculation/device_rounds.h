// Rounds of drafting, checking and accepting that the model's device runs by itself.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "engine/execution/graph_cache.h"
#include "engine/speculation/dflash_drafter.h"
#include "engine/speculation/draft_tree.h"
#include "models/model.h"
#include "ops/draft_round.h"

namespace riptide {

/// Decodes one sequence in rounds, each of which a device runs without the host, on a GPU as one graph:
///
///     the drafter's block -> rows to check -> the model's step over them -> a token for each row -> the accepted way
///     -> K/V of the way moved together, the drafter's K/V of it made -> where the next round begins
///
/// The host learns of rounds from a ring in pinned memory, while further ones are under way; how far they came it
/// learns late, so there must be room for all rows of all rounds that are under way. A plain round has one row and no
/// draft; the drafter is not told of it, and what the model's layers put out is kept for it instead.
///
/// Recurrent state is committed in the round too, by the accepted way, so it describes where the device is, rounds that
/// the host does not keep included: who keeps less than all must bring back an older state (EngineLoop::keep_rounds).
///
/// A round says what plain decoding says: rows of the decode family have the same bits in any company, and tokens are
/// drawn for all rows as they would be one at a time. Not thread-safe. Runs on the CPU too, for tests.
class DraftRounds {
  public:
    /// All must outlive this; the drafter must work for this model. A sequence has at most so many tokens.
    DraftRounds(const Model& model, KvCache& cache, Context& context, std::shared_ptr<Drafter> drafter,
                int64_t sequence_tokens);

    DflashDrafter& drafter() { return *dflash_; }

    /// How the tokens that follow rows are drawn; on a GPU with kernels that can be recorded. Ways of one number draw
    /// alike.
    using DrawRows = std::function<Tensor(const Tensor& logits, std::span<const int32_t> positions)>;
    struct Draws {
        int32_t way = 0;
        DrawRows draw;
    };
    /// Starts at the sequence's end, with a token that is not part of it yet. Both states must have the rows of all
    /// rounds reserved, the drafter's also a block more; the caller keeps what it wants (state_is_committed). REQUIRES
    /// that they are equally long, and nothing pending.
    void begin(const SequenceState& sequence, const SequenceState& drafted, int32_t token, Draws draws);
    /// Starts one more round; plan.rows == 1: a plain one, of which there may be kMostPlain behind a begin(). REQUIRES
    /// pending() < kMostPending.
    void launch(const ops::DraftPlan& plan);
    /// To measure what drafting costs: rounds that check made-up words (the drafter's first ones, a chain of
    /// plan.rows - 1), with all that the drafter has to do in a round, or without any of it. REQUIRES as launch(), and
    /// plan.rows > 1.
    enum class Measured { with_drafter, without };
    void launch(const ops::DraftPlan& plan, Measured how);
    struct Round {
        DraftTree tree;              // what was checked
        std::vector<int32_t> drawn;  // the token that follows each row, -1 if none can be drawn
        int32_t kept = 0;            // rows on the way: the next round begins behind them
    };
    /// Waits for the oldest round not yet asked for; valid until the next call. Throws Error if the device fails.
    const Round& next();
    int64_t pending() const { return std::ssize(pending_); }
    /// Waits for all that was launched and forgets it.
    void end();
    /// What the model's layers put out in plain rounds: a row for each token since begin(), f32, on the device.
    Tensor features(int64_t rows) const;

    static constexpr int64_t kMostPending = 8, kMostPlain = DflashDrafter::kAheadRows;

  private:
    int32_t* take(int64_t words);
    void put(void* to, const void* from, int64_t bytes);
    Batch batch_of(int64_t rows, const int32_t* tokens, const int32_t* positions, bool drafted) const;
    Tensor plain_round();
    Tensor round(const ops::DraftPlan& plan);
    Tensor measured_round(const ops::DraftPlan& plan, bool drafted);
    void append(const Tensor& features);
    void draft(const ops::DraftPlan& plan);
    Tensor check(int64_t rows, bool tree, Tensor* features);

    const Model& model_;
    KvCache& cache_;
    Context& context_;
    std::shared_ptr<Drafter> drafter_;
    DflashDrafter* dflash_;
    int64_t block_, pages_, drafted_pages_;

    DeviceMemory memory_, feature_memory_, ring_memory_;
    PinnedMemory pinned_ring_;
    int64_t taken_words_ = 0;
    ops::RoundState state_;
    ops::RoundRing ring_;
    // Constants, then what begin() writes, in one piece.
    int32_t *zeros_ = nullptr, *counting_ = nullptr, *begins_ = nullptr, *words_ = nullptr, *start_ = nullptr;
    int32_t* gaps_ = nullptr;  // of the model's rows, one sum for all
    bool gapped_ = false;      // of the running begin()
    int32_t *slot_ = nullptr, *drafted_slot_ = nullptr, *page_table_ = nullptr, *drafted_page_table_ = nullptr;
    std::vector<int32_t> staging_;

    Draws draws_;
    std::map<std::tuple<bool, int32_t, int32_t, int32_t, int32_t, int32_t>, RecordedStep> rounds_;  // by way and plan
    std::map<std::pair<int32_t, bool>, RecordedStep> measured_;  // by rows and whether with the drafter
    std::deque<int32_t> pending_;                                // rows of each
    int64_t taken_ = 0;
    Round round_;
};

}  // namespace riptide
