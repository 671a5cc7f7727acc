#include "text/tokenizer/pretokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/utf8.h"

namespace riptide {
namespace {

constexpr std::string_view kLineBreaks = R"((?:\r?\n)+(?!\r?\n))";
constexpr std::string_view kNumberClass = R"(\p{N})";
// clang-format off
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// clang-format on

struct Family {
    std::string_view name;
    std::string_view first, second;  // patterns; `first` may be empty
};
constexpr std::array kFamilies = {
    Family{"laguna", kLineBreaks, kQwen2},
    Family{"qwen2", "", kQwen2},
    Family{"deepseek-r1-qwen", "", kQwen2},
    Family{"stablelm2", "", kQwen2},
    Family{"qwen35", "", kQwen35},
    Family{"gpt-2", "", kGpt2},
    Family{"gpt2", "", kGpt2},
    Family{"phi-2", "", kGpt2},
    Family{"olmo", "", kGpt2},
    Family{"llama-bpe", "", kLlama3},
    Family{"llama3", "", kLlama3},
    Family{"llama-v3", "", kLlama3},
    Family{"falcon3", "", kLlama3},
    Family{"dbrx", "", kLlama3},
    Family{"smaug-bpe", "", kLlama3},
    Family{"starcoder", kNumberClass, kGpt2},
    Family{"refact", kNumberClass, kGpt2},
    Family{"command-r", kNumberClass, kGpt2},
    Family{"codeshell", kNumberClass, kGpt2},
    Family{"smollm", kNumberClass, kGpt2},
};

// A stretch between two cuts, and whether the rule's pattern matched it.
struct RegexStretch {
    TextSpan span;
    bool match;
};

template <class Emit>
void regex_stretches(std::string_view text, const Regex& regex, Regex::Scratch& scratch, WorkBudget* work, Emit emit) {
    constexpr int64_t kBytesOfMatch = 16;
    const auto span = [](std::size_t b, std::size_t e) { return TextSpan{int64_t(b), int64_t(e)}; };
    std::size_t done = 0;
    std::size_t from = 0;
    bool any = false;
    Regex::Match match;
    while (from <= text.size() && regex.find(text, from, scratch, match)) {
        if (work != nullptr) work->spend_bytes(kBytesOfMatch + static_cast<int64_t>(match.end - from));
        const bool empty = match.begin == match.end;
        if (!(empty && any && match.begin == done)) {  // an empty match right behind a match does not count
            if (match.begin > done) emit({span(done, match.begin), false});
            emit({span(match.begin, match.end), true});
            done = match.end;
            any = true;
        }
        from = match.end;
        if (empty) from += from < text.size() ? static_cast<std::size_t>(utf8_at(text, from).length) : 1;
    }
    if (done < text.size()) emit({span(done, text.size()), false});
}

// Maximal runs of \n and \r\n. By hand, since a regex engine needs stack for each repeat of the group.
template <class Emit>
void line_break_stretches(std::string_view text, Emit emit) {
    std::size_t done = 0;
    for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', done)) {
        const std::size_t begin = at > done && text[at - 1] == '\r' ? at - 1 : at;
        std::size_t end = at + 1;
        while (end < text.size() && (text[end] == '\n' || text.substr(end, 2) == "\r\n"))
            end += text[end] == '\n' ? 1 : 2;
        if (begin > done) emit({{int64_t(done), int64_t(begin)}, false});
        emit({{int64_t(begin), int64_t(end)}, true});
        done = end;
    }
    if (done < text.size()) emit({{int64_t(done), int64_t(text.size())}, false});
}

// Joins stretches as the behaviour says; not for `removed` and `isolated`.
std::vector<RegexStretch> join(std::vector<RegexStretch> in, SplitBehaviour behaviour) {
    const bool backwards = behaviour == SplitBehaviour::merged_with_next;
    if (backwards) std::reverse(in.begin(), in.end());
    std::vector<RegexStretch> out;
    for (const RegexStretch& s : in) {
        const bool before = !out.empty() && out.back().match;
        const bool joins =
            !out.empty() && (behaviour == SplitBehaviour::contiguous ? s.match == before : s.match && !before);
        if (!joins) {
            out.push_back(s);
            continue;
        }
        TextSpan& span = out.back().span;
        span = {std::min(span.begin, s.span.begin), std::max(span.end, s.span.end)};
        out.back().match = s.match;
    }
    if (backwards) std::reverse(out.begin(), out.end());
    return out;
}

}  // namespace

void PreTokenizer::Rule::apply(std::string_view text, TextSpan piece, Regex::Scratch& scratch,
                               std::vector<TextSpan>& out, WorkBudget* work) const {
    const std::string_view part =
        text.substr(static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.end - piece.begin));
    const auto keep = [&](const RegexStretch& s) {
        if (s.span.begin == s.span.end || (s.match && behaviour == SplitBehaviour::removed)) return;
        out.push_back({piece.begin + s.span.begin, piece.begin + s.span.end});
    };
    const bool alone = behaviour == SplitBehaviour::isolated || behaviour == SplitBehaviour::removed;
    std::vector<RegexStretch> to_join;  // a text may have as many stretches as bytes: none are kept without need
    const auto take = [&](RegexStretch s) {
        s.match = s.match != invert;
        if (alone) keep(s);
        else to_join.push_back(s);
    };
    if (line_breaks) line_break_stretches(part, take);
    else regex_stretches(part, *regex, scratch, work, take);
    for (const RegexStretch& s : join(std::move(to_join), behaviour)) keep(s);
}

void PreTokenizer::add(std::string_view pattern, SplitBehaviour behaviour, bool invert, std::string_view what) {
    Rule rule;
    rule.line_breaks = pattern == kLineBreaks;
    rule.pattern = pattern;
    rule.behaviour = behaviour;
    rule.invert = invert;
    if (!rule.line_breaks) rule.regex = std::make_shared<const Regex>(pattern, what);
    rules_.push_back(std::move(rule));
}

PreTokenizer PreTokenizer::from_ggml(std::string_view name, std::string_view what) {
    const auto family =
        std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.name == name; });
    if (family == kFamilies.end()) {
        std::string known;
        for (const Family& f : kFamilies) known.append(known.empty() ? "" : ", ").append(f.name);
        fail("{}: unknown pre-tokenizer {:?}; known are {} (a folder with tokenizer.json can stand in: --tokenizer)",
             what, name, known);
    }
    PreTokenizer out;
    const bool breaks = family->first == kLineBreaks;
    if (!family->first.empty()) {
        out.add(family->first, breaks ? SplitBehaviour::merged_with_next : SplitBehaviour::isolated, false, what);
    }
    out.add(family->second, SplitBehaviour::isolated, false, what);
    return out;
}

void PreTokenizer::split(std::string_view text, std::vector<TextSpan>& pieces, WorkBudget* work) const {
    Regex::Scratch scratch;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t valid = utf8_valid_prefix(text.substr(at));
        std::vector<TextSpan> now;
        if (valid > 0) now.push_back({int64_t(at), int64_t(at + valid)});
        for (const Rule& rule : rules_) {
            std::vector<TextSpan> next;
            next.reserve(now.size() * 2);
            for (const TextSpan& piece : now) rule.apply(text, piece, scratch, next, work);
            now.swap(next);
        }
        if (pieces.empty()) pieces.swap(now);  // the usual case: nothing is copied
        else pieces.insert(pieces.end(), now.begin(), now.end());
        at += valid;
        const std::size_t bad = at;
        while (at < text.size() && utf8_at(text, at).kind != Utf8Char::Kind::character) {
            at += static_cast<std::size_t>(utf8_at(text, at).length);
        }
        if (at > bad) pieces.push_back({int64_t(bad), int64_t(at)});
    }
}

std::string PreTokenizer::description() const {
    std::string out;
    for (const Rule& rule : rules_) {
        out += fmt::format("{}{} {}\n", rule.invert ? "not " : "", static_cast<int>(rule.behaviour), rule.pattern);
    }
    return out;
}

bool PreTokenizer::is_laguna() const {
    return !rules_.empty() && rules_[0].line_breaks && rules_[0].behaviour == SplitBehaviour::merged_with_next;
}

}  // namespace riptide
