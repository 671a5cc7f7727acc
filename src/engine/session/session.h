// A model to measure with: one sequence, fed and decoded as its owner says. Whoever wants answers asks an Engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/loop/resources.h"
#include "engine/session_options.h"

namespace riptide {

/// Owns the model, its K/V and its threads, and keeps the tokens that it was fed: what begins as they do is computed
/// only from where it differs. Nobody drafts, whatever options say. Not thread-safe.
class Session {
  public:
    /// Opens the model at `path`; see open_checkpoint and load_model for errors.
    static std::unique_ptr<Session> open(const std::string& path, const SessionOptions& options = {});
    explicit Session(std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options = {});

    const Checkpoint& checkpoint() const { return *machine_.checkpoint(); }
    const Model& model() const { return machine_.model(); }
    /// With what was chosen where they left a choice.
    const SessionOptions& options() const { return machine_.options(); }
    int64_t context_length() const { return machine_.context_length(); }
    /// The device; null on the CPU.
    Gpu* gpu() { return machine_.gpu(); }
    /// Bytes per second that the device can read, measured at the first call (a fraction of a second).
    double memory_bandwidth() { return machine_.memory_bandwidth(); }
    /// Of a GPU: what its memory is used for.
    std::string memory() const { return machine_.facts().memory; }
    KvCache& cache() { return machine_.cache(); }
    Runner& runner() { return machine_.runner(); }
    int threads() const { return machine_.threads(); }
    /// The tokens whose K/V are held.
    std::span<const int32_t> tokens() const { return tokens_; }
    /// Where in cache() they lie. REQUIRES tokens; between steps.
    const SequenceState& sequence() const { return sequence_; }

    /// Makes the sequence equal to `tokens`, reusing the common beginning (at least the last token is computed), and
    /// returns the logits [vocab_size] that follow the last one, valid until the next step; an empty span if cancelled.
    /// Throws Error for tokens that are none, more than the context holds or outside the vocabulary, and for a
    /// checkpoint that changed on disk. on_progress: after each chunk, of the tokens that must be computed.
    std::span<const float> prefill(std::span<const int32_t> tokens,
                                   const std::function<void(int64_t done, int64_t total)>& on_progress = {},
                                   const std::atomic<bool>* cancel = nullptr);
    /// Appends one token; returns the logits that follow it, valid until the next step.
    std::span<const float> decode(int32_t token);
    /// On a GPU: decodes after `token`, up to `steps` tokens, always the largest logit, calling on_token with each;
    /// stops when it returns false. The device runs ahead of the host. The last token given is not yet part of the
    /// sequence. Throws Error if no token can be drawn. `forced`: see GpuDecoder::begin.
    void decode_ahead(int32_t token, int64_t steps, const std::function<bool(int32_t)>& on_token,
                      std::span<const int32_t> forced = {});
    /// Forgets everything, then runs `tokens` and shows the logits of every position: on_rows(first position, [rows,
    /// vocab_size]), in order. Stops early if cancelled.
    void score(std::span<const int32_t> tokens, const std::function<void(int64_t, const Tensor&)>& on_rows,
               const std::atomic<bool>* cancel = nullptr);
    /// Forgets everything.
    void clear();

  private:
    void check_tokens(std::span<const int32_t> tokens) const;
    int64_t rewind_to_common(std::span<const int32_t> tokens);
    void keep_state();
    Tensor feed(std::span<const int32_t> tokens, StepRows::Logits logits, Family family = Family::prefill);

    Machine machine_;
    SequenceState sequence_;
    std::vector<int32_t> tokens_;
    SavedState saved_;       // with recurrent state: that of its first tokens
    bool is_saved_ = false;  // whether these are the first of tokens_
};

}  // namespace riptide
