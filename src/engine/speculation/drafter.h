// Who drafts what comes next, so that one step of the model can check several tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace riptide {

class DflashDrafter;

/// A token that may come, and ln of how probable the drafter thinks it is where its slot is reached.
struct DraftToken {
    int32_t token = -1;
    float logprob = 0;
};

/// Drafts for the tokens behind the last one of a sequence: slots[d] has those for the token d + 1 places behind it,
/// best first, no token twice. Empty: no idea.
struct Draft {
    std::vector<std::vector<DraftToken>> slots;
    void clear() { slots.clear(); }
};

/// Whose draft is wanted, and how much of it.
struct DraftRequest {
    uint64_t sequence = 0;
    int32_t slots = 1;    // at most so many
    int32_t choices = 1;  // drafts in a slot, at most
};

/// Follows any number of sequences, each with a number of its own. Its drafts never change what is drawn, only how
/// fast: it may be wrong in any way, and throws only what ends the device. Not thread-safe.
class Drafter {
  public:
    virtual ~Drafter() = default;
    /// Layers of the model, from 0, whose output (the residual stream) it wants of every token.
    virtual std::span<const int32_t> capture_layers() const { return {}; }
    /// Slots that it can fill at most.
    virtual int32_t slots() const = 0;
    /// The sequence is now `tokens`, whatever it was.
    virtual void begin(uint64_t sequence, std::span<const int32_t> tokens) = 0;
    /// These follow.
    virtual void extend(uint64_t sequence, std::span<const int32_t> tokens) = 0;
    /// From begin() on, for a drafter that wants layers: how many tokens, from the first, it knows the outputs of. The
    /// next feed() is that of the token behind them.
    virtual int64_t fed(uint64_t) const { return 0; }
    /// What the wanted layers have put out for the tokens at `position` and behind it: `features`, f32
    /// [n, capture_layers().size() * hidden_size] on the model's device, has a row for each row of the sequence in a
    /// step; those numbered `rows` count (empty: all). Valid during the call.
    virtual void feed(uint64_t, [[maybe_unused]] int64_t position, const Tensor&, std::span<const int32_t>) {}
    /// One draft for each request, of sequences that have begun; `out` has as many.
    virtual void propose(std::span<const DraftRequest> requests, std::span<Draft> out) = 0;
    /// Itself, if the model's device can run it by itself (device_rounds.h).
    virtual DflashDrafter* dflash() { return nullptr; }
    /// Forgets a sequence, if it knows it.
    virtual void end(uint64_t sequence) = 0;
};

}  // namespace riptide
