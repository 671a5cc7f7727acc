// What an engine runs on: the model, its memory, its device and the prefix cache.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/engine.h"
#include "engine/execution/decode_ahead.h"
#include "engine/execution/memory_plan.h"
#include "engine/execution/prefill_step.h"
#include "engine/execution/runner.h"
#include "engine/prompt/weights_digest.h"
#include "engine/speculation/device_rounds.h"
#include "engine/speculation/dflash_drafter.h"
#include "tensor/gpu_thread.h"
#include "tensor/resident.h"

namespace riptide {

/// Decoding steps that draw their own tokens: the functions of a GpuDecoder, or a test's.
struct DecodeDevice {
    std::function<void(int64_t slot, const ops::SampleStart&)> start_answer;
    std::function<void(std::span<const DecodeRow>, GpuDecoder::Draw, GpuDecoder::Recurrent)> begin;
    std::function<void()> launch;
    std::function<std::span<const int32_t>()> next;
    /// The tokens that follow all rows of the last step; see GpuDecoder::draw_rows.
    std::function<std::span<const int32_t>(std::span<const int32_t> slots, GpuDecoder::Draw,
                                           std::span<const AllowedSet> allowed)>
        draw_rows = {};
    /// A step in two; without them answers of a given form are drawn on the host.
    std::function<void()> forward = {};
    std::function<void(std::span<const AllowedSet> allowed)> draw = {};
    int64_t follow_rows = 0;  // GpuDecoder::follow_rows()
    /// What draws for the rows of rounds, by a slot; without it the host's sampler does (then the device is the CPU).
    std::function<DraftRounds::DrawRows(int64_t slot, GpuDecoder::Draw)> round_draws = {};
};

/// Not thread-safe: whoever steps owns it.
class Machine {
  public:
    /// Loads the model and takes the memory. Throws Error; see load_model and plan_gpu_memory; also for a folder that
    /// cannot be the third tier at all (one that another process uses is only a pity).
    Machine(std::unique_ptr<Checkpoint> checkpoint, const EngineOptions& options);
    /// A model without checkpoint, on the CPU.
    Machine(std::unique_ptr<Model> model, const EngineOptions& options);

    /// With what was chosen where they left a choice.
    const EngineOptions& options() const { return options_; }
    const Model& model() const { return *model_; }
    const Checkpoint* checkpoint() const { return checkpoint_.get(); }
    int64_t context_length() const { return context_; }
    /// Of a GPU: what its memory is used for, and the most that was taken; else nothing.
    const MemoryPlan& memory_plan() const { return plan_; }
    int64_t device_peak() const { return gpu_ ? gpu_->peak_allocated() : 0; }
    /// For the thread that steps, once, if it is not the one that made the machine.
    void use_on_this_thread() const {
        if (gpu_) riptide::use_on_this_thread(*gpu_);
    }
    /// "NVIDIA H200", "CPU, 8 threads"
    std::string device() const;
    int threads() const { return threads_->size(); }
    /// What an engine on it says of it, without the text side.
    EngineInfo facts() const;
    /// The device, and who decodes ahead there; null on the CPU. Where steps run.
    Gpu* gpu() { return gpu_.get(); }
    GpuDecoder* gpu_decoder() { return decoder_.get(); }
    Runner& runner() { return *runner_; }
    /// Engine::memory_bandwidth.
    double memory_bandwidth();
    /// Null if options say so.
    PrefixCache* prefix() { return prefix_.get(); }
    const HostStore* host_tier() const { return host_ ? &*host_ : nullptr; }
    const DiskStore* disk_tier() const { return disk_ ? &*disk_ : nullptr; }
    /// Null if options name none. In use from when the weights' digest is known.
    SharedStore* shared_tier() { return shared_.get(); }
    /// A first question: what is wrong with the place is told before a request needs it. REQUIRES a shared tier.
    void try_shared();
    /// EngineOptions::on_shared_problem. REQUIRES a shared tier.
    void tell_shared_problem() const;
    /// Who hears, on threads of the shared tier's, that it has an answer; null: nobody any more.
    void hear_shared(std::function<void()> hear);
    /// Null on the CPU.
    const DecodeDevice* decoder() const { return device_ ? &*device_ : nullptr; }
    void use_decoder(DecodeDevice device) { device_ = std::move(device); }
    KvCache& cache() { return *cache_; }
    /// All that decides what the weights make of tokens: every field of the model's config, chip, numerics, and the
    /// content. The disk tier goes by it; in memory there is state of one set of weights at a time. The content's name
    /// is its SHA-256; until that is known, what tells its files from others on this machine; nothing without a disk
    /// tier.
    std::string weights_name() const;
    /// Gives the disk tier the name that the digest has come to, if it has, and says so. For whoever steps: between
    /// steps, and before the cache is saved. Whether the cache may now find something else. Costs an fstat for each
    /// file.
    bool learn_weights();

    /// Runs a step (Runner::step); on a GPU it may still run when this returns.
    void step(std::span<const StepItem> items, Family family) {
        logits_ = runner_->step(items, family);
        captured_ = runner_->captured();
    }
    /// The step of prompts, in parts, between which steps of others may run. Logits are those of finish_prompts().
    PromptStep& prompts() { return *prompts_; }
    void finish_prompts() {
        logits_ = prompts_->finish();
        captured_ = prompts_->captured();
    }
    /// What a drafter for the machine's sequences must know, and who runs rounds of it.
    DraftTarget draft_target();
    std::unique_ptr<DraftRounds> make_rounds(std::shared_ptr<Drafter> drafter);
    /// From now on steps keep what these layers put out (FeatureCapture), also after replace().
    void capture(std::span<const int32_t> layers);
    /// Of the last step, row by row; valid as long as its logits on the device.
    const Tensor& captured() const { return captured_; }
    /// Microseconds of a clock that does not go back. From any thread.
    int64_t now_us() const { return clock_(); }
    /// For tests, before anything runs.
    void use_clock(std::function<int64_t()> us) { clock_ = std::move(us); }
    /// The logits of the last step where the host can read them, [wanted rows, vocab_size], valid until the next step
    /// or call. Waits for the device.
    Tensor logits();
    /// Throws Error if nothing that was computed, or will be, can be trusted: the device has failed or the checkpoint's
    /// file has shrunk.
    void check() const;

    /// Swaps the weights. The K/V memory stays; nothing may run. Throws Error, with the old weights in place again, for
    /// a model of other sizes or another vocabulary, or what load_model throws.
    void replace(std::unique_ptr<Checkpoint> checkpoint);
    /// False after a replace() that could not even put the old weights back.
    bool usable() const { return runner_ != nullptr; }

  private:
    void open();
    void plan_memory();
    int64_t page_bytes_per_token() const;
    void open_disk_tier();
    void open_shared_tier();
    void make_prefix_cache();
    void make_runner();
    void name_weights();
    bool check_unchanged();
    void check_same_model(const Checkpoint& checkpoint, const Model& model) const;

    EngineOptions options_;
    std::function<int64_t()> clock_;
    std::unique_ptr<Gpu> gpu_;
    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<Model> model_;
    ModelInfo info_;  // of the first model: reloaded ones are alike
    int64_t context_ = 0;
    MemoryPlan plan_;
    double memory_bandwidth_ = 0;
    std::unique_ptr<ThreadPool> threads_;
    std::unique_ptr<KvCache> cache_;
    std::optional<ResidentBehind> resident_;  // what is fetched into the cache meets no memory that nobody has touched
    std::optional<HostStore> host_;
    std::unique_ptr<DiskStore> disk_;
    struct SharedNews {
        std::mutex mutex;
        std::function<void()> hear;
    };
    std::shared_ptr<SharedNews> shared_news_ = std::make_shared<SharedNews>();
    std::unique_ptr<SharedStore> shared_;
    std::unique_ptr<PrefixCache> prefix_;
    std::unique_ptr<Runner> runner_;
    std::unique_ptr<PromptStep> prompts_;
    std::unique_ptr<GpuDecoder> decoder_;
    std::optional<DecodeDevice> device_;
    Tensor logits_, captured_;
    std::vector<int32_t> capture_layers_;
    std::vector<float> host_logits_;
    std::unique_ptr<WeightsDigest> content_;  // null: nobody asks, or nobody can say
    bool learning_ = false;                   // it is not settled, or nobody has looked yet
    bool by_digest_ = false;                  // the disk tier knows the weights by its digest
};

}  // namespace riptide
