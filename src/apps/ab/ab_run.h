// What `riptide ab` measures: the same answers with and without drafts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "engine/speculation/speculation.h"

namespace riptide::apps {

struct AbPrompt {
    std::string id, kind;  // kind: "code", "chat", a suite's name
    std::vector<int32_t> tokens;
};

/// Prompts of a file with a JSON object a line: `messages` (a chat), `turns` (a chat's questions, of which the first is
/// asked) or `prompt` (text to go on with); `id` or `question_id`, `suite` or `category` name it; all else is passed
/// over. An empty path: a few that come with the program. At most `most`. Throws Error naming file and line.
std::vector<AbPrompt> ab_prompts(const Tokenizer& tokenizer, const ChatTemplate* chat_template, const std::string& path,
                                 int64_t most);

/// A way to decode.
struct AbMode {
    std::string name;  // "plain", "chain 3", "tree 16", "auto"
    std::optional<SpeculationOptions> speculation;
    bool operator==(const AbMode& other) const { return name == other.name; }
};
/// Plain decoding, then chains, trees and the adaptive chain. Throws Error (usage) for options out of range.
std::vector<AbMode> ab_modes(const std::string& drafter, const std::vector<int32_t>& widths,
                             const std::vector<int32_t>& trees);

/// One answer, in the fastest of its repeats.
struct AbAnswer {
    int64_t tokens = 0;  // decoded
    double seconds = 0;
    int64_t mismatches = 0;  // tokens that differ from those of plain decoding, in any repeat
    SpeculationStats speculation;

    double rate() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

/// answers[prompt][mode]; mode 0 is plain decoding.
struct AbResult {
    std::vector<AbPrompt> prompts;
    std::vector<AbMode> modes;
    std::vector<std::vector<AbAnswer>> answers;

    /// All answers of a mode together.
    AbAnswer total(size_t mode) const;
    int64_t mismatches() const;
};

struct AbOptions {
    SamplingParams sampling;
    int repeat = 1;
};

/// Every mode answers a prompt before the next prompt begins. Throws what ask() does; ends early, with the prompts that
/// are complete, if cancelled. REQUIRES that the engine has the modes' drafter (EngineOptions::speculation).
AbResult run_ab(Engine& engine, std::vector<AbPrompt> prompts, std::vector<AbMode> modes, const AbOptions& options,
                const std::function<void(int64_t done, int64_t total)>& on_progress, const std::atomic<bool>& cancel);

}  // namespace riptide::apps
