// Drafts from the text itself: what followed when the last few tokens stood there before.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/speculation/drafter.h"

namespace riptide {

struct NgramOptions {
    int32_t slots = 15;
    int32_t shortest = 2;           // tokens that must agree
    int32_t longest = 32;           // more than these are not compared
    int32_t looked_at = 32;         // earlier places, the most recent first
    int64_t most_tokens = 1 << 18;  // of a sequence that are remembered: the last
};

/// For each sequence its tokens and, for each run of `shortest` of them, where it stood last and the time before. A
/// draft copies what followed the earlier place that agrees with the end of the sequence for longest, the most recent
/// of equals; if that runs into the end, it goes on with its own drafts, as a period does. Other places that agree
/// with the draft so far give a slot's further choices. A draft is the more probable the longer its place agrees.
///
/// Memory: about 40 bytes a token. begin and extend: O(tokens); propose: O(looked_at * (longest + slots)).
class NgramDrafter : public Drafter {
  public:
    explicit NgramDrafter(const NgramOptions& options = {});

    int32_t slots() const override { return options_.slots; }
    void begin(uint64_t sequence, std::span<const int32_t> tokens) override;
    void extend(uint64_t sequence, std::span<const int32_t> tokens) override;
    void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override;
    void end(uint64_t sequence) override { texts_.erase(sequence); }

  private:
    struct Text {
        std::vector<int32_t> tokens;
        std::vector<int32_t> before;                 // for each end of a run: the end of the same run before it, or -1
        std::unordered_map<uint64_t, int32_t> last;  // by hash of a run: its last end
    };
    struct Place {
        int64_t next;    // the index of the token that followed
        int64_t agrees;  // tokens
    };

    void append(Text& text, std::span<const int32_t> tokens) const;
    uint64_t run_hash(const Text& text, int64_t end) const;
    std::vector<Place> places(const Text& text) const;
    void draft(const Text& text, const DraftRequest& request, Draft& draft) const;

    NgramOptions options_;
    std::unordered_map<uint64_t, Text> texts_;
};

}  // namespace riptide
