// One call of Scorer::score(). Internal to the scorer.
#pragma once

#include <span>
#include <vector>

#include "models/scored_prefix.h"
#include "models/scorer.h"

namespace riptide {

/// One call of score(): rows [start, N) of the prompt through the layers, one layer after the other.
class ScorerRun {
  public:
    ScorerRun(const Scorer& scorer, Context& ctx, std::span<const int32_t> tokens, std::span<const QueryWindow> windows,
              ScoredPrefix::State* prefix);
    std::vector<float> run();

  private:
    struct Chunk {
        Batch batch;
        int64_t first, rows;                 // of the rows that this call computes
        std::span<const int32_t> questions;  // rows of the chunk that lie in windows
        int64_t question = 0;                // the first of them, among those of all windows
    };

    void send(void* to, std::span<const int32_t> host);
    int64_t new_rows() const { return N_ - start_; }
    void prepare();
    void find_start();
    void make_chunks();
    void take_kept_queries();
    void open_stores();
    KvView kv(int64_t l) const;
    Tensor rows_of(const Tensor& x, int64_t first, int64_t count) const;
    void layer(int64_t l, const Chunk& chunk, Tensor& x, bool scores);
    void store_keys(int64_t l, const Chunk& chunk, const Tensor& k);
    void last_keys(int64_t l, const Chunk& chunk, const Tensor& x);
    void store_queries(int64_t l, size_t index, const Chunk& chunk, const Tensor& x);
    void mass_of_windows(size_t index);
    std::vector<float> mix();
    void keep();

    const Scorer& scorer_;
    const Qwen3& model_;
    const Qwen3Config& config_;
    Context& ctx_;
    std::span<const int32_t> tokens_;
    std::span<const QueryWindow> windows_;
    ScoredPrefix::State* prefix_;
    ops::SparseOptions sparse_;
    int64_t N_, start_ = 0, final_ = 0;  // final_: tokens that a longer prompt can take over
    float scale_;
    std::vector<int32_t> questions_;  // positions of all windows' rows, ascending
    std::vector<Chunk> chunks_;
    std::span<const int32_t> new_tokens_;  // on the device
    std::vector<Tensor> queries_;          // of each scoring layer, f32 [questions, H, d]
    Tensor k_, v_, keys_, mass_;           // K, V, keys: one layer's, without a prefix. mass: f32 [W, N]
};

}  // namespace riptide
