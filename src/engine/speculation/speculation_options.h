// Whether and how tokens are drafted ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace riptide {

class Checkpoint;
class Drafter;

/// Drafts never change what is drawn, only how many steps it takes.
struct SpeculationOptions {
    std::string drafter;  // who drafts: "ngram", or a DFlash model's path; empty: nobody
    std::function<std::unique_ptr<Checkpoint>()> open = {};  // where that model comes from, if not from this path
    std::function<std::unique_ptr<Drafter>()> make = {};     // or somebody else
    int32_t width = 15;                                      // drafts in a row, at most
    int32_t tree = 0;                                        // drafts in a tree, at most; 0: a chain
    bool adaptive =
        true;  // check fewer, or none, where that is expected to be faster; false: always as many as allowed
    /// Who runs a session's rounds of drafting and checking, with a drafter that can do both: the host, or the device
    /// by itself (device_rounds.h). choose: the device if it is a GPU.
    enum class Rounds { choose, host, device };
    Rounds rounds = Rounds::choose;

    bool on() const { return !drafter.empty() || make; }

    static constexpr int32_t kMostWidth = 63, kMostTree = 255;  // a step of the decode family has 256 rows
};

/// Throws Error (usage) for an option out of range.
void check_speculation(const SpeculationOptions& options);

}  // namespace riptide
