// Compressor: what must stay, and what is known from before.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/compression/compressor.h"

namespace riptide {

namespace {

using Kind = ChatPart::Kind;

/// Of the last user message if it is too long to be kept whole: shares of the room, and tokens at most.
constexpr int64_t kMostWhole = 4096, kMostHead = 64, kMostTail = 256;
/// Contents so short are kept whole while there is room for them, also before the last turn.
constexpr int64_t kShort = 128;
/// Tokens of the queries: the end of the prompt, of the last user message, of those before it.
constexpr int64_t kEndQuery = 8, kQuery = 64, kEarlierQuery = 32, kEarlierQueries = 3;
constexpr int64_t kQuestion = 96;

bool is_content(Kind kind) { return kind == Kind::user || kind == Kind::assistant || kind == Kind::tool; }

struct Content {
    TokenRun tokens;  // between cuts
    Kind kind;
    bool known = false;  // decided by an earlier turn
};

}  // namespace

/// A plan while it is made.
struct Compressor::Work {
    const LongPrompt& prompt;
    CompressionPlan& plan;
    std::vector<Content> contents;
    int64_t last_user = -1;  // of contents; -1: there is none
    int64_t quota = 0;       // of tokens that are kept because they are recent

    void find_contents(std::span<const ChatPart> parts, const Tokenizer& target);
    void add_content(const ChatPart& part);
    int64_t force(TokenRun run);
    void share_out(const CompressionOptions& options);
    TokenRun question_of(TokenRun run) const;
    void keep_last_user();
    void keep_recent();
    void keep_beginnings();
    void add_queries();
    void add_window(TokenRun run, float weight);
    void find_open();
    void count();
};

void Compressor::Work::add_content(const ChatPart& part) {
    const std::vector<bool>& cuts = plan.text.cuts;
    TokenRun run = part.tokens;
    while (run.begin < run.end && !cuts[static_cast<size_t>(run.begin)]) ++run.begin;
    while (run.begin < run.end && !cuts[static_cast<size_t>(run.end)]) --run.end;
    if (run.begin < run.end) contents.push_back({run, part.kind});
}

/// Whatever is not content is kept, and so are control tokens.
void Compressor::Work::find_contents(std::span<const ChatPart> parts, const Tokenizer& target) {
    const ChatPart whole{Kind::user, 0, {0, std::ssize(plan.tokens)}};
    if (parts.empty()) parts = {&whole, 1};
    for (const ChatPart& part : parts)
        if (is_content(part.kind)) add_content(part);
    plan.kept.assign(plan.tokens.size(), true);
    for (size_t c = 0; c < contents.size(); ++c) {
        const TokenRun& run = contents[c].tokens;
        for (int64_t at = run.begin; at < run.end; ++at)
            plan.kept[static_cast<size_t>(at)] = target.is_added(plan.tokens[static_cast<size_t>(at)]);
        if (contents[c].kind == Kind::user) last_user = static_cast<int64_t>(c);
    }
}

/// Keeps a run, grown to cuts; returns how many tokens that took.
int64_t Compressor::Work::force(TokenRun run) {
    run = grow_to_cuts(plan.text.cuts, run);
    int64_t fresh = 0;
    for (int64_t at = run.begin; at < run.end; ++at) {
        fresh += !plan.kept[static_cast<size_t>(at)];
        plan.kept[static_cast<size_t>(at)] = true;
    }
    return fresh;
}

/// What contents may take, and all. Behind find_contents().
void Compressor::Work::share_out(const CompressionOptions& options) {
    const int64_t size = std::ssize(plan.kept), fixed = std::count(plan.kept.begin(), plan.kept.end(), true);
    const auto share = static_cast<int64_t>(options.keep * static_cast<double>(size - fixed));
    plan.report.budget = options.keep_tokens > 0 ? std::min(options.keep_tokens, size)
                                                 : fixed + std::min(size - fixed, std::max(share, options.least));
    plan.room = std::max<int64_t>(0, plan.report.budget - fixed);
    quota = plan.room / 2;
}

/// The last paragraph of a run of at most kQuestion tokens, or all of them.
TokenRun Compressor::Work::question_of(TokenRun run) const {
    run.begin = std::max(run.begin, run.end - kQuestion);
    const size_t blank = plan.text.bytes(run).rfind("\n\n");
    if (blank == std::string_view::npos) return run;
    const auto line = plan.text.spans[static_cast<size_t>(run.begin)].begin + static_cast<int64_t>(blank) + 2;
    TokenRun last = run;
    while (last.begin < last.end && plan.text.spans[static_cast<size_t>(last.begin)].begin < line) ++last.begin;
    return last.size() >= kAnchor ? last : run;
}

void Compressor::Work::keep_last_user() {
    if (last_user < 0) return;
    const Content& content = contents[static_cast<size_t>(last_user)];
    const TokenRun run = content.tokens;
    const int64_t quarter = plan.room / 4;
    if (run.size() <= std::clamp<int64_t>(quarter, kShort / 4, kMostWhole)) {
        if (!content.known) quota -= force(run);
        plan.question = question_of(run);
        add_window({std::max(run.begin, run.end - kQuery), run.end}, 1);
        return;
    }
    const int64_t head = std::clamp<int64_t>(quarter / 4, 1, kMostHead),
                  tail = std::clamp<int64_t>(quarter, kEndQuery, kMostTail);
    const TokenRun first{run.begin, std::min(run.end, run.begin + head)}, last{run.end - tail, run.end};
    if (!content.known) quota -= force(first) + force(last);
    plan.question = question_of(last);
    add_window(first, 1);
    add_window({std::max(last.begin, run.end - kQuery), run.end}, 1);
}

/// From the end back, what fits into the quota: of the last turn contents of any length, before it short ones.
void Compressor::Work::keep_recent() {
    for (int64_t c = std::ssize(contents) - 1; c >= 0; --c) {
        const Content& content = contents[static_cast<size_t>(c)];
        const int64_t size = content.tokens.size();
        if (content.known || c == last_user || size > quota || (size > kShort && c < last_user)) continue;
        quota -= force(content.tokens);
    }
}

/// Of what tools returned the first unit, from the end back: a result without anything looks like a call that failed,
/// and is made again.
void Compressor::Work::keep_beginnings() {
    int64_t most = plan.room / 4;
    for (int64_t c = std::ssize(contents) - 1; c >= 0; --c) {
        const Content& content = contents[static_cast<size_t>(c)];
        if (content.known || content.kind != Kind::tool) continue;
        const std::vector<TokenRun> units = split_units(plan.text, content.tokens);
        if (units.front().size() <= most) most -= force(units.front());
    }
}

/// Only over tokens that are kept: queries have no scores.
void Compressor::Work::add_window(TokenRun run, float weight) {
    if (run.begin >= run.end) return;
    const auto first = plan.kept.begin() + run.begin;
    if (std::all_of(first, first + run.size(), [](bool kept) { return kept; })) plan.windows.push_back({run, weight});
}

void Compressor::Work::add_queries() {
    const int64_t size = std::ssize(plan.tokens);
    const TokenRun end{std::max<int64_t>(0, size - kEndQuery), size};
    if (last_user < 0 || contents[static_cast<size_t>(last_user)].tokens.end < size) force(end);
    add_window(end, 1);
    float weight = 0.5f;
    int64_t left = kEarlierQueries;
    for (int64_t c = last_user - 1; c >= 0 && left > 0; --c) {
        const Content& content = contents[static_cast<size_t>(c)];
        if (content.kind != Kind::user) continue;
        const TokenRun run{std::max(content.tokens.begin, content.tokens.end - kEarlierQuery), content.tokens.end};
        if (!content.known) force(run);
        add_window(run, weight);
        weight /= 2;
        --left;
    }
    // Where two overlap they become one, with the larger weight.
    auto& windows = plan.windows;
    std::sort(windows.begin(), windows.end(),
              [](const auto& a, const auto& b) { return a.tokens.begin < b.tokens.begin; });
    std::vector<CompressionPlan::Window> merged;
    for (const auto& window : windows) {
        if (merged.empty() || merged.back().tokens.end <= window.tokens.begin) {
            merged.push_back(window);
            continue;
        }
        merged.back().tokens.end = std::max(merged.back().tokens.end, window.tokens.end);
        merged.back().weight = std::max(merged.back().weight, window.weight);
    }
    windows = std::move(merged);
}

/// The tokens that compete, and the contents whose fate is remembered: not those that are whole for being recent.
void Compressor::Work::find_open() {
    for (int64_t c = 0; c < std::ssize(contents); ++c) {
        const Content& content = contents[static_cast<size_t>(c)];
        bool open = false;
        for (int64_t at = content.tokens.begin; at < content.tokens.end && !content.known; ++at) {
            if (plan.kept[static_cast<size_t>(at)]) continue;
            if (open && plan.open.back().end == at) ++plan.open.back().end;
            else plan.open.push_back({at, at + 1});
            open = true;
        }
        if (content.known || open || c == last_user || content.tokens.size() <= kShort)
            plan.decided.push_back(content.tokens);
    }
}

void Compressor::Work::count() {
    CompressionReport& report = plan.report;
    report.kept = std::count(plan.kept.begin(), plan.kept.end(), true);
    report.remembered = 0;
    for (const Content& content : contents) {
        if (!content.known) continue;
        const auto first = plan.kept.begin() + content.tokens.begin;
        report.remembered += std::count(first, first + content.tokens.size(), true);
    }
    report.forced = report.kept - report.remembered;
}

/// A name for each place where a message begins, the answer among them: of all tokens before it, and of what else
/// decides what is kept.
std::vector<std::string> Compressor::names_of(const LongPrompt& prompt, const CompressionOptions& options) const {
    std::vector<std::string> names;
    if (!prompt.remember) return names;
    std::string chain = fmt::format("{} {} {} {} {} {}{}", fingerprint_, scorer_.name, options.keep, options.least,
                                    options.keep_tokens, prompt.owner.size(), prompt.owner);
    int64_t at = 0;
    for (size_t p = 1; p < prompt.parts.size(); ++p) {
        if (prompt.parts[p].message == prompt.parts[p - 1].message) continue;
        const int64_t end = prompt.parts[p].tokens.begin;
        const auto message =
            std::as_bytes(prompt.tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)));
        chain.append(reinterpret_cast<const char*>(message.data()), message.size());
        chain = to_hex(sha256(std::as_bytes(std::span(chain))));
        names.push_back(chain);
        at = end;
    }
    return names;
}

/// What the longest beginning that is known kept of its contents. False if there is none.
bool Compressor::recall(Work& work, const std::vector<std::string>& names) {
    std::shared_ptr<const KeptContents> known;
    for (auto name = names.rbegin(); name != names.rend() && !known; ++name) known = memory_.find(*name);
    if (!known) return false;
    bool any = false;
    for (Content& content : work.contents) {
        const auto found = std::find_if(known->begin(), known->end(),
                                        [&](const KeptContent& k) { return k.content == content.tokens; });
        if (found == known->end()) continue;
        content.known = any = true;
        for (const TokenRun& run : found->kept)
            std::fill(work.plan.kept.begin() + run.begin, work.plan.kept.begin() + run.end, true);
    }
    return any;
}

std::shared_ptr<CompressionPlan> Compressor::plan(const LongPrompt& prompt, const CompressionOptions& options) {
    check_compression(options, "");
    const int64_t size = std::ssize(prompt.tokens);
    if (options.keep_tokens > 0 ? options.keep_tokens >= size : options.keep >= 1) return nullptr;
    const std::vector<std::string> names = names_of(prompt, options);
    auto plan = std::make_shared<CompressionPlan>(target_, prompt.tokens);
    plan->positions = options.positions;
    for (const bool remembering : {true, false}) {
        plan->report = {.original = size};
        plan->open.clear();
        plan->decided.clear();
        plan->windows.clear();
        Work work{prompt, *plan, {}};
        work.find_contents(prompt.parts, target_);
        work.share_out(options);
        const bool known = remembering && recall(work, names);
        work.keep_last_user();
        work.add_queries();
        work.keep_recent();
        work.keep_beginnings();
        work.find_open();
        work.count();
        if (!known || plan->report.kept <= plan->report.budget + plan->room / 4) break;
    }
    if (!names.empty()) plan->name = names.back();
    int64_t open = 0;
    for (const TokenRun& run : plan->open) open += run.size();
    if (plan->report.kept + open <= plan->report.budget) {
        for (const TokenRun& run : plan->open)
            std::fill(plan->kept.begin() + run.begin, plan->kept.begin() + run.end, true);
        plan->report.kept += open;
        plan->report.forced += open;
        plan->open.clear();
    }
    return plan->report.kept < size ? plan : nullptr;
}

}  // namespace riptide
