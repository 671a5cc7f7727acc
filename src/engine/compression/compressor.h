// A long prompt, made shorter: what must stay, what an earlier turn kept, what the scorer finds important.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/prompt_gaps.h"
#include "engine/compression/compression.h"
#include "engine/compression/kept_memory.h"
#include "engine/compression/prompt_choice.h"
#include "engine/compression/prompt_scorer.h"
#include "text/chat/chat_parts.h"

namespace riptide {

/// A prompt that may be compressed.
struct LongPrompt {
    std::span<const int32_t> tokens;
    std::span<const ChatPart> parts = {};  // empty: all of it is what a user said
    std::string_view owner = {};           // only prompts of the same owner share what is remembered
    bool remember = true;                  // false: a function of the prompt alone
};

/// What is to be done with one prompt: all that can be said without the scorer. Owns what it needs.
struct CompressionPlan {
    CompressionPlan(const Tokenizer& tokenizer, std::span<const int32_t> prompt)
        : tokens(prompt.begin(), prompt.end()), text(tokenizer, tokens) {}

    /// At most so many tokens will be kept.
    int64_t most_kept() const { return open.empty() ? report.kept : std::max(report.kept, report.budget); }

    /// Whether there is something to choose from, and room for some of it.
    bool needs_scores() const { return !open.empty() && report.kept < report.budget; }

    std::vector<int32_t> tokens;
    PromptText text;
    CompressionReport report;  // kept: forced and remembered so far
    int64_t room = 0;          // of the budget, for contents
    std::vector<bool> kept;    // for each token, so far
    std::vector<TokenRun>
        open;  // ascending: of them units are chosen, or (if there is room for all) everything is kept
    std::vector<TokenRun> decided;  // contents whose kept tokens are to be remembered
    TokenRun question;              // where anchors come from; it is kept
    struct Window {
        TokenRun tokens;
        float weight;
    };
    std::vector<Window> windows;  // ascending, disjoint, kept
    std::string name;             // under which it is remembered; empty: not at all
    KeptPositions positions = KeptPositions::compact;
};

/// Thread-safe: any number of threads plan while one chooses.
///
/// **What must stay** (forced): markup and everything the client wrote that is not content (system prompt, tool
/// schemas, tool calls); control tokens; of the contents' part of the budget (room): the last user message, or, if it
/// is longer than a quarter of the room (at most 4096 tokens), its first and last tokens; from the end of the prompt
/// back, contents of the last turn that fit into half of the room, and short ones before it; the queries. If all that
/// is more than the budget nothing else is kept, and the report says so.
/// **Queries**: the end of the prompt and of the last user message, the beginning of that if it is long, and the ends
/// of the three user messages before, with weights 1/2, 1/4, 1/8.
/// **The rest** is cut into units (split_units), which compete for what the budget leaves: those that repeat words of
/// the question first, then by score. The question is the last paragraph of the last user message.
/// **The next turn** keeps of earlier messages what was kept before, so that their K/V can be found again, and scores
/// only what is new; unless that is more than the budget and a quarter of the room: then all is chosen again.
///
/// Deterministic. The kept tokens are a subsequence of the prompt's.
class Compressor {
  public:
    /// `target`: the vocabulary of prompts; must outlive it. `fingerprint`: of what decides their tokens.
    Compressor(const Tokenizer& target, std::string fingerprint, PromptScorer scorer);

    const PromptScorer& scorer() const { return scorer_; }

    /// Null if there is nothing to leave out. Throws Error for options out of range. Time linear in the prompt.
    std::shared_ptr<CompressionPlan> plan(const LongPrompt& prompt, const CompressionOptions& options);

    /// Scores what is open and chooses; then plan.kept and plan.report are complete. Throws Error if the scorer cannot
    /// read the prompt, fails, or gives a value that is negative or no number. False if it was cancelled. One thread at
    /// a time for plans that need scores.
    bool choose(CompressionPlan& plan, const std::atomic<bool>* cancel = nullptr,
                const std::function<void(int64_t, int64_t)>& on_progress = {});

  private:
    struct Work;
    std::vector<std::string> names_of(const LongPrompt& prompt, const CompressionOptions& options) const;
    bool recall(Work& work, const std::vector<std::string>& names);
    std::vector<float> scores_of(CompressionPlan& plan, const std::atomic<bool>* cancel,
                                 const std::function<void(int64_t, int64_t)>& on_progress);
    void remember(const CompressionPlan& plan);

    const Tokenizer& target_;
    std::string fingerprint_;
    PromptScorer scorer_;
    KeptMemory memory_;
};

/// What the kept tokens of a prompt are, and where its first `count` tokens end among them.
std::vector<int32_t> kept_tokens(const CompressionPlan& plan);
std::vector<int64_t> kept_counts(const CompressionPlan& plan, std::span<const int64_t> counts);

/// Where the kept tokens stood, if the model is to see that and has so many positions; else null.
std::shared_ptr<const PromptGaps> kept_gaps(const CompressionPlan& plan, int64_t vocab, int64_t positions);

/// The prompt's text with what was dropped in marks: "kept [- dropped -] kept". For people.
std::string show_kept(const CompressionPlan& plan);

}  // namespace riptide
