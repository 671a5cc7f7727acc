#include "engine/compression/model_scorer.h"

#include <filesystem>

#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/prompt/loaded_text.h"
#include "models/dflash_config.h"
#include "tensor/arena.h"
#include "tensor/context.h"
#include "tensor/gpu_thread.h"

namespace riptide {

namespace {

/// Thrown through a scorer whose result nobody wants any more.
struct Cancelled {};

/// Everything that a scorer needs; members in the order in which they need each other.
class ModelScorer {
  public:
    ModelScorer(std::unique_ptr<Checkpoint> checkpoint, const ModelScorerOptions& options)
        : gpu_(options.gpu ? Gpu::open(*options.gpu) : nullptr),
          checkpoint_(std::move(checkpoint)),
          scorer_(*checkpoint_, options.scorer, gpu_.get()),
          threads_(options.threads),
          arena_(fit_chunk(options.reserved_tokens), gpu_.get()) {
        context_.gpu = gpu_.get();
        context_.family = Family::prefill;
        context_.threads = &threads_;
        context_.arena = &arena_;
        if (gpu_) arena_.allocate(1);  // takes the block now, before others share out the memory
    }

    std::vector<float> score(const ScoreCall& call) {
        if (gpu_) use_on_this_thread(*gpu_);
        arena_.reset();
        const int64_t size = std::ssize(call.tokens), layers = scorer_.options().score_layers.back();
        int64_t rows = 0;
        context_.on_op = [&](const OpCost& op) {
            if (call.cancel != nullptr && *call.cancel) throw Cancelled();
            if (!call.on_progress || op.name != "sparse_attention") return;
            rows += op.rows;
            call.on_progress(rows / layers, size);
        };
        try {
            return scorer_.score(context_, call.tokens, call.windows);
        } catch (const Cancelled&) {
            return {};
        }
    }

    int64_t device_bytes() const { return gpu_ ? gpu_->peak_allocated() : 0; }
    std::string memory(int64_t tokens) const {
        if (!gpu_) return {};
        return fmt::format(
            "scorer {:.2f} GiB: weights and temporaries for prompts of {} tokens in chunks of {}, no K/V kept",
            static_cast<double>(gpu_->allocated()) / (1 << 30), tokens, scorer_.options().chunk_rows);
    }

  private:
    int64_t workspace(int64_t tokens) const {
        const Workspace space = scorer_.workspace();
        return space.fixed + space.per_row * scorer_.options().chunk_rows + space.per_token * tokens;
    }
    /// Chooses the chunk; returns the bytes of all temporaries.
    int64_t fit_chunk(int64_t tokens) {
        constexpr int64_t kShare = 12, kLeastChunk = 2048;
        if (!gpu_) return int64_t{1} << 20;
        const int64_t most = gpu_->available() / kShare;
        for (int64_t rows = scorer_.options().chunk_rows; workspace(tokens) > most && rows >= 2 * kLeastChunk;)
            scorer_.set_chunk_rows(rows = rows / 2 / ops::kSparseBlock * ops::kSparseBlock);
        return workspace(tokens);
    }

    std::unique_ptr<Gpu> gpu_;
    std::unique_ptr<Checkpoint> checkpoint_;
    Scorer scorer_;
    ThreadPool threads_;
    Arena arena_;
    Context context_;
};

}  // namespace

PromptScorer open_scorer(std::unique_ptr<Checkpoint> checkpoint, const ModelScorerOptions& options) {
    refuse_dflash(*checkpoint);
    PromptScorer out;
    out.name = std::filesystem::path(checkpoint->path()).filename().string();
    out.tokenizer = std::make_shared<const Tokenizer>(load_tokenizer(*checkpoint));
    out.most_tokens = options.most_tokens;
    const auto scorer = std::make_shared<ModelScorer>(std::move(checkpoint), options);
    out.device_bytes = [scorer] { return scorer->device_bytes(); };
    out.memory = scorer->memory(options.reserved_tokens);
    out.score = [scorer](const ScoreCall& call) { return scorer->score(call); };
    return out;
}

}  // namespace riptide
