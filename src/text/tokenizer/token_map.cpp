#include "text/tokenizer/token_map.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer/nfc.h"
#include "text/utf8.h"

namespace riptide {

namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

/// A stretch of the text and what the tokens spell for it.
struct NormalStretch {
    TextSpan text, spelled;
    bool same = true;
};

/// An ASCII character composes with nothing before it, so NFC works on each stretch from one to the next by itself.
/// Neighbouring stretches that are the same on both sides are one.
std::vector<NormalStretch> align(std::string_view text, std::string_view spelled, const Tokenizer& tokenizer) {
    std::vector<NormalStretch> out;
    size_t at = 0, there = 0;
    while (at < text.size()) {
        size_t end = at + 1;
        while (end < text.size() && !is_ascii(text[end])) ++end;
        const std::string_view raw = text.substr(at, end - at);
        const std::string made = raw.size() > 1 ? to_nfc(raw) : std::string(raw);
        const bool changed = made != raw && spelled.substr(there).starts_with(made);
        RT_CHECK(changed || spelled.substr(there).starts_with(raw),
                 "the tokens of a text (vocabulary of {}) do not spell it at byte {} of {}", tokenizer.vocab_size(), at,
                 text.size());
        const size_t size = changed ? made.size() : raw.size();
        const TextSpan from{static_cast<int64_t>(at), static_cast<int64_t>(end)};
        const TextSpan to{static_cast<int64_t>(there), static_cast<int64_t>(there + size)};
        if (!changed && !out.empty() && out.back().same) {
            out.back().text.end = from.end;
            out.back().spelled.end = to.end;
        } else {
            out.push_back({from, to, !changed});
        }
        at = end;
        there += size;
    }
    RT_CHECK(there == spelled.size(), "the tokens of a text spell {} bytes more than it has", spelled.size() - there);
    return out;
}

/// Where the spelled stretch lies in the text. `from` moves on with ascending calls.
TextSpan in_text(const std::vector<NormalStretch>& stretches, size_t& from, TextSpan spelled) {
    while (from + 1 < stretches.size() && stretches[from].spelled.end <= spelled.begin) ++from;
    const auto place = [](const NormalStretch& s, int64_t at, bool begin) {
        return s.same ? s.text.begin + (at - s.spelled.begin) : begin ? s.text.begin : s.text.end;
    };
    TextSpan out{place(stretches[from], spelled.begin, true), 0};
    size_t last = from;
    while (last + 1 < stretches.size() && stretches[last].spelled.end < spelled.end) ++last;
    out.end = place(stretches[last], spelled.end, false);
    return out;
}

}  // namespace

std::vector<TextSpan> token_spans(const Tokenizer& tokenizer, std::span<const int32_t> tokens, std::string_view text) {
    std::vector<TextSpan> spans(tokens.size());
    std::string spelled;
    spelled.reserve(text.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        spans[i].begin = static_cast<int64_t>(spelled.size());
        spelled += tokenizer.piece(tokens[i]);
        spans[i].end = static_cast<int64_t>(spelled.size());
    }
    if (spelled == text) return spans;
    const std::vector<NormalStretch> stretches = align(text, spelled, tokenizer);
    size_t from = 0;
    for (TextSpan& span : spans)
        if (!stretches.empty()) span = in_text(stretches, from, span);
    return spans;
}

TokenRun tokens_at(std::span<const TextSpan> spans, TextSpan bytes) {
    const auto first =
        std::partition_point(spans.begin(), spans.end(), [&](const TextSpan& span) { return span.end <= bytes.begin; });
    const auto last =
        std::partition_point(first, spans.end(), [&](const TextSpan& span) { return span.begin < bytes.end; });
    return {first - spans.begin(), last - spans.begin()};
}

std::vector<float> deal_scores(std::span<const TextSpan> from, std::span<const float> scores,
                               std::span<const TextSpan> to) {
    RT_ASSERT(from.size() == scores.size());
    std::vector<float> out(to.size());
    size_t first = 0;
    for (size_t i = 0; i < to.size(); ++i) {
        while (first < from.size() && from[first].end <= to[i].begin) ++first;
        double sum = 0;
        for (size_t f = first; f < from.size() && from[f].begin < to[i].end; ++f) {
            const int64_t shared = std::min(from[f].end, to[i].end) - std::max(from[f].begin, to[i].begin);
            if (shared <= 0) continue;
            sum += double{scores[f]} * static_cast<double>(shared) / static_cast<double>(from[f].end - from[f].begin);
        }
        out[i] = static_cast<float>(sum);
    }
    return out;
}

namespace {

struct Range {
    char32_t low, high;
};

/// Characters beyond ASCII that belong to no word: white space, punctuation, symbols.
constexpr Range kBetweenWords[] = {
    {0x80, 0xA9},     {0xAB, 0xB4},     {0xB6, 0xB9},     {0xBB, 0xBF},     {0xD7, 0xD7},     {0xF7, 0xF7},
    {0x1680, 0x1680}, {0x2000, 0x200B}, {0x200E, 0x203E}, {0x2041, 0x2053}, {0x2055, 0x2BFF}, {0x2E00, 0x2E7F},
    {0x3000, 0x3004}, {0x3008, 0x3020}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF20}, {0xFFFD, 0xFFFD}};
/// Scripts that put no space between words: Thai and Lao, Myanmar, Khmer, kana, Han.
constexpr Range kWithoutSpaces[] = {{0x0E01, 0x0E30},  {0x0E40, 0x0E46}, {0x0E81, 0x0EB0}, {0x1000, 0x102A},
                                    {0x1780, 0x17B3},  {0x3005, 0x3007}, {0x3021, 0x3029}, {0x3041, 0x3096},
                                    {0x309D, 0x30FF},  {0x3400, 0x9FFF}, {0xF900, 0xFAFF}, {0xFF66, 0xFF9D},
                                    {0x20000, 0x3FFFF}};

bool in_any(std::span<const Range> ranges, char32_t c) {
    return std::any_of(ranges.begin(), ranges.end(), [c](const Range& r) { return c >= r.low && c <= r.high; });
}

/// What a character is to the words around it: outside of all, part of one, or one by itself.
enum class Letter { none, word, alone };

Letter letter_of(char32_t c) {
    if (c < 0x80) {
        const bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        return word ? Letter::word : Letter::none;
    }
    if (in_any(kWithoutSpaces, c)) return Letter::alone;
    return in_any(kBetweenWords, c) ? Letter::none : Letter::word;
}

/// Marks that belong to what stands before them, whatever that is: joiners, variation selectors, combining marks.
bool is_mark(char32_t c) {
    constexpr Range kMarks[] = {{0x0300, 0x036F},   {0x0E31, 0x0E31},   {0x0E33, 0x0E3A},  {0x0E47, 0x0E4E},
                                {0x0EB1, 0x0EBC},   {0x102B, 0x103E},   {0x17B4, 0x17D3},  {0x200C, 0x200D},
                                {0x20D0, 0x20F0},   {0x302A, 0x302F},   {0x3099, 0x309C},  {0xFE00, 0xFE0F},
                                {0x1F3FB, 0x1F3FF}, {0xE0020, 0xE007F}, {0xE0100, 0xE01EF}};
    return c >= 0x300 && in_any(kMarks, c);
}

}  // namespace

std::vector<bool> word_cuts(std::string_view text, std::span<const TextSpan> spans) {
    std::vector<bool> cuts(spans.size() + 1, false);
    cuts.front() = cuts.back() = true;
    Letter before = Letter::none;
    char32_t last = 0;
    int64_t word = 0;  // where the word that `before` belongs to begins
    size_t next = 1;   // the token before which a cut is considered
    for (size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        const bool valid = c.kind == Utf8Char::Kind::character;
        const Letter letter = valid ? letter_of(c.code_point) : Letter::none;
        const auto here = static_cast<int64_t>(at);
        const bool mark = valid && is_mark(c.code_point), glued = mark || last == 0x200D;
        const bool joined = glued || (letter == Letter::word && before == Letter::word);
        if (!joined) word = here;
        const bool free =
            (!joined || (!glued && here - word > kLongestWord)) && !(last == '\r' && c.code_point == '\n');
        while (next < spans.size() && spans[next].begin < here) ++next;
        for (; next < spans.size() && spans[next].begin == here; ++next)
            cuts[next] = free && spans[next - 1].end <= here;
        if (!mark) before = letter;
        last = valid ? c.code_point : 0;
        at += static_cast<size_t>(c.length);
    }
    return cuts;
}

TokenRun grow_to_cuts(const std::vector<bool>& cuts, TokenRun run) {
    if (run.begin >= run.end) return run;
    while (!cuts[static_cast<size_t>(run.begin)]) --run.begin;
    while (!cuts[static_cast<size_t>(run.end)]) ++run.end;
    return run;
}

}  // namespace riptide
