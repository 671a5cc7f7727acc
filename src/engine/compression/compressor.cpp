#include "engine/compression/compressor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

constexpr int64_t kMostKeep = int64_t{1} << 31;

std::string grouped(int64_t number) {
    std::string digits = std::to_string(number);
    for (auto at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
    return digits;
}

/// What the scorer reads: the tokens that are kept so far or open, and where each of them stands in it.
struct ScorerText {
    std::string text;
    std::vector<TextSpan> spans;  // of each token of the prompt; empty ones for what is left out
    std::vector<int32_t> tokens;  // of the target, that spell it
};

ScorerText scorer_text(const CompressionPlan& plan) {
    std::vector<bool> in = plan.kept;
    for (const TokenRun& run : plan.open) std::fill(in.begin() + run.begin, in.begin() + run.end, true);
    ScorerText out;
    out.text.reserve(plan.text.text.size());
    out.spans.resize(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        out.spans[i].begin = static_cast<int64_t>(out.text.size());
        if (in[i]) {
            out.text += plan.text.bytes({at, at + 1});
            out.tokens.push_back(plan.tokens[i]);
        }
        out.spans[i].end = static_cast<int64_t>(out.text.size());
    }
    return out;
}

/// The plan's windows in the scorer's tokens: ascending, disjoint, none empty.
std::vector<QueryWindow> scorer_windows(const CompressionPlan& plan, const ScorerText& text,
                                        std::span<const TextSpan> scorer_spans) {
    std::vector<QueryWindow> out;
    for (const CompressionPlan::Window& window : plan.windows) {
        const TextSpan bytes{text.spans[static_cast<size_t>(window.tokens.begin)].begin,
                             text.spans[static_cast<size_t>(window.tokens.end - 1)].end};
        TokenRun run = tokens_at(scorer_spans, bytes);
        if (!out.empty()) run.begin = std::max(run.begin, out.back().end);
        if (run.begin < run.end) out.push_back({run.begin, run.end, window.weight});
    }
    return out;
}

void check_scores(const PromptScorer& scorer, std::span<const float> scores, size_t tokens) {
    RT_CHECK(scores.size() == tokens, ErrorKind::system, "the scorer {} gave {} scores for {} tokens", scorer.name,
             scores.size(), tokens);
    for (size_t i = 0; i < scores.size(); ++i)
        RT_CHECK(std::isfinite(scores[i]) && scores[i] >= 0, ErrorKind::system,
                 "the scorer {} gave {} for token {} of {}, expected a number from 0 on", scorer.name, scores[i], i,
                 tokens);
}

bool is_set(const std::atomic<bool>* cancel) { return cancel != nullptr && *cancel; }

}  // namespace

CompressionOptions CompressionRequest::over(const CompressionOptions& options) const {
    CompressionOptions out = options;
    out.mode = mode.value_or(out.mode);
    out.above = above.value_or(out.above);
    out.positions = positions.value_or(out.positions);
    if (keep || keep_tokens) out.keep_tokens = 0;
    out.keep = keep.value_or(out.keep);
    out.keep_tokens = keep_tokens.value_or(out.keep_tokens);
    return out;
}

void check_compression(const CompressionOptions& o, const std::string& what) {
    RT_CHECK(o.keep > 0 && o.keep <= 1, ErrorKind::usage, "{}keep is {}, expected more than 0 and at most 1", what,
             o.keep);
    RT_CHECK(o.keep_tokens >= 0 && o.keep_tokens <= kMostKeep, ErrorKind::usage,
             "{}keep_tokens is {}, expected 0 to {}", what, o.keep_tokens, kMostKeep);
    RT_CHECK(o.least >= 0, ErrorKind::usage, "{}least is {}, expected 0 or more", what, o.least);
    RT_CHECK(o.above >= 0, ErrorKind::usage, "{}above is {}, expected 0 or more", what, o.above);
}

std::string CompressionReport::sentence() const {
    if (original == 0) return {};
    std::string out =
        fmt::format("kept {} of {} tokens ({} had to stay", grouped(kept), grouped(original), grouped(forced));
    if (remembered > 0) out += fmt::format(", {} as before", grouped(remembered));
    out += scored > 0 ? fmt::format("; scored {} in {:.2f} s)", grouped(scored), seconds) : "; nothing was scored)";
    if (over()) out += fmt::format("; that is more than the budget of {}", grouped(budget));
    return out;
}

json::object CompressionReport::facts() const {
    return {{"original_tokens", original}, {"kept_tokens", kept},     {"budget_tokens", budget},
            {"forced_tokens", forced},     {"scored_tokens", scored}, {"remembered_tokens", remembered},
            {"scoring_seconds", seconds}};
}

Compressor::Compressor(const Tokenizer& target, std::string fingerprint, PromptScorer scorer)
    : target_(target), fingerprint_(std::move(fingerprint)), scorer_(std::move(scorer)) {
    RT_CHECK(scorer_, ErrorKind::usage, "prompts cannot be compressed without a scorer");
}

std::vector<float> Compressor::scores_of(CompressionPlan& plan, const std::atomic<bool>* cancel,
                                         const std::function<void(int64_t, int64_t)>& on_progress) {
    ScorerText text = scorer_text(plan);
    const Tokenizer& tokenizer = scorer_.tokenizer ? *scorer_.tokenizer : target_;
    // What spells a control token is text for another vocabulary; for the target's own it stays what it is.
    const std::vector<int32_t> tokens =
        scorer_.tokenizer ? tokenizer.encode(text.text) : std::exchange(text.tokens, {});
    RT_CHECK(std::ssize(tokens) <= scorer_.most_tokens,
             "the prompt has {} tokens for the scorer {}, which can read {}; ask without compression", tokens.size(),
             scorer_.name, scorer_.most_tokens);
    const std::vector<TextSpan> spans = token_spans(tokenizer, tokens, text.text);
    const std::vector<QueryWindow> windows = scorer_windows(plan, text, spans);
    plan.report.scored = std::ssize(tokens);
    if (is_set(cancel)) return {};
    const std::vector<float> scores = scorer_.score({tokens, windows, on_progress, cancel});
    if (is_set(cancel)) return {};
    check_scores(scorer_, scores, tokens.size());
    return deal_scores(spans, scores, text.spans);
}

bool Compressor::choose(CompressionPlan& plan, const std::atomic<bool>* cancel,
                        const std::function<void(int64_t, int64_t)>& on_progress) {
    const auto start = std::chrono::steady_clock::now();
    CompressionReport& report = plan.report;
    if (plan.needs_scores()) {
        const std::vector<float> scores = scores_of(plan, cancel, on_progress);
        if (is_set(cancel)) return false;
        std::vector<TokenRun> units;
        for (const TokenRun& run : plan.open)
            for (const TokenRun& unit : split_units(plan.text, run)) units.push_back(unit);
        const std::vector<size_t> anchored = anchored_units(plan.text, plan.tokens, plan.question, units);
        for (const size_t u : choose_units(units, unit_scores(units, scores), anchored, report.budget - report.kept)) {
            std::fill(plan.kept.begin() + units[u].begin, plan.kept.begin() + units[u].end, true);
            report.kept += units[u].size();
        }
    }
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!plan.name.empty()) remember(plan);
    return true;
}

void Compressor::remember(const CompressionPlan& plan) {
    KeptContents contents;
    for (const TokenRun& content : plan.decided) {
        KeptContent& entry = contents.emplace_back(KeptContent{content, {}});
        for (int64_t at = content.begin; at < content.end; ++at) {
            if (!plan.kept[static_cast<size_t>(at)]) continue;
            if (!entry.kept.empty() && entry.kept.back().end == at) ++entry.kept.back().end;
            else entry.kept.push_back({at, at + 1});
        }
    }
    memory_.keep(plan.name, std::move(contents));
}

std::vector<int32_t> kept_tokens(const CompressionPlan& plan) {
    std::vector<int32_t> out;
    out.reserve(static_cast<size_t>(plan.report.kept));
    for (size_t i = 0; i < plan.tokens.size(); ++i)
        if (plan.kept[i]) out.push_back(plan.tokens[i]);
    return out;
}

std::vector<int64_t> kept_counts(const CompressionPlan& plan, std::span<const int64_t> counts) {
    std::vector<int64_t> out;
    int64_t kept = 0, at = 0;
    for (const int64_t count : counts) {
        for (; at < count; ++at) kept += plan.kept[static_cast<size_t>(at)];
        if (kept > 0 && (out.empty() || out.back() < kept)) out.push_back(kept);
    }
    return out;
}

std::shared_ptr<const PromptGaps> kept_gaps(const CompressionPlan& plan, int64_t vocab, int64_t positions) {
    if (plan.positions == KeptPositions::compact || std::ssize(plan.tokens) > positions) return nullptr;
    auto gaps = std::make_shared<PromptGaps>(plan.kept, PromptGaps::step_for(vocab, positions));
    if (gaps->empty()) return nullptr;
    return gaps;
}

std::string show_kept(const CompressionPlan& plan) {
    std::string out;
    bool dropped = false;
    for (size_t i = 0; i <= plan.kept.size(); ++i) {
        const bool drop = i < plan.kept.size() && !plan.kept[i];
        if (drop != dropped) out += drop ? "[-" : "-]";
        dropped = drop;
        const auto at = static_cast<int64_t>(i);
        if (i < plan.kept.size()) out += plan.text.bytes({at, at + 1});
    }
    return out;
}

}  // namespace riptide
