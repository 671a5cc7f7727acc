#include "engine/compression/prompt_choice.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "base/error.h"

namespace riptide {

PromptText::PromptText(const Tokenizer& tokenizer, std::span<const int32_t> tokens)
    : text(tokenizer.decode(tokens)), spans(token_spans(tokenizer, tokens, text)), cuts(word_cuts(text, spans)) {
    // A control token is no word of the text, whatever it spells.
    for (size_t i = 0; i < tokens.size(); ++i)
        if (tokenizer.is_added(tokens[i])) cuts[i] = cuts[i + 1] = true;
}

std::string_view PromptText::bytes(TokenRun run) const {
    if (run.begin >= run.end) return {};
    const int64_t begin = spans[static_cast<size_t>(run.begin)].begin,
                  end = spans[static_cast<size_t>(run.end - 1)].end;
    return std::string_view(text).substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

namespace {

/// What ends before a cut: the stronger, the better a place to cut.
enum class Border { word, sentence, line, paragraph };

/// A line ends at its break, not behind the next line's indent, unless one token spells both.
/// REQUIRES a cut before token `at`, inside the prompt.
Border border_before(const PromptText& prompt, int64_t at) {
    const TextSpan last = prompt.spans[static_cast<size_t>(at - 1)];
    const std::string_view before = std::string_view(prompt.text).substr(0, static_cast<size_t>(last.end));
    size_t end = before.size(), breaks = 0;
    while (end > static_cast<size_t>(last.begin) && (before[end - 1] == ' ' || before[end - 1] == '\t')) --end;
    if (end == static_cast<size_t>(last.begin) && end < before.size()) return Border::word;  // an indent
    for (; end > 0 && breaks < 2 && (before[end - 1] == '\n' || before[end - 1] == '\r'); --end)
        breaks += before[end - 1] == '\n';
    if (breaks > 0) return breaks > 1 ? Border::paragraph : Border::line;
    // Byte-level vocabularies put the space in front of the next word, so a sentence's mark stands at the very end.
    // Objects and arrays of JSON in one line end where a person would break it.
    for (const std::string_view mark : {".", "!", "?", ";", "。", "！", "？", "},", "],", "}"})
        if (before.ends_with(mark)) return Border::sentence;
    return Border::word;
}

/// A stretch between two borders of at least some strength, of which the first cut begins it.
template <class Take>
void for_each_piece(const PromptText& prompt, TokenRun run, Border least, const Take& take) {
    int64_t begin = run.begin;
    for (int64_t at = run.begin + 1; at <= run.end; ++at) {
        const bool ends = at == run.end || (prompt.cuts[static_cast<size_t>(at)] && border_before(prompt, at) >= least);
        if (!ends) continue;
        take(TokenRun{begin, at});
        begin = at;
    }
}

/// Pieces that end at borders of `least`, joined while they stay small.
void split(const PromptText& prompt, TokenRun run, Border least, std::vector<TokenRun>& units) {
    if (run.size() <= kMostUnit) {
        units.push_back(run);
        return;
    }
    const size_t first = units.size();
    for_each_piece(prompt, run, least, [&](TokenRun piece) {
        const bool mine = units.size() > first;
        const int64_t joined = mine ? units.back().size() + piece.size() : 0;
        const bool join = mine && joined <= kMostUnit &&
                          (least == Border::word || units.back().size() < kLeastUnit || piece.size() < kLeastUnit);
        if (join) units.back().end = piece.end;
        else if (piece.size() <= kMostUnit || least == Border::word) units.push_back(piece);
        else split(prompt, piece, static_cast<Border>(static_cast<int>(least) - 1), units);
    });
}

bool has_letter(std::string_view bytes) {
    return std::any_of(bytes.begin(), bytes.end(), [](char c) {
        return static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
               (c >= 'a' && c <= 'z');
    });
}

bool in_word(char c) { return has_letter({&c, 1}) || c == '_'; }

/// Calls take(word) for each word of some bytes, in lower case.
template <class Take>
void for_each_word(std::string_view bytes, const Take& take) {
    std::string word;
    for (size_t i = 0; i <= bytes.size(); ++i) {
        if (i < bytes.size() && in_word(bytes[i])) {
            const char c = bytes[i];
            word += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
            continue;
        }
        if (std::ssize(word) >= kLeastWord) take(word);
        word.clear();
    }
}

/// In how many places of which units something stands; more than kMostHits are not counted.
struct Hits {
    std::vector<size_t> units;
    void add(size_t unit) {
        if (std::ssize(units) <= kMostHits) units.push_back(unit);
    }
};

std::string_view gram_at(std::span<const int32_t> tokens, int64_t at) {
    return {reinterpret_cast<const char*>(tokens.data() + at), kAnchor * sizeof(int32_t)};
}

}  // namespace

std::vector<TokenRun> split_units(const PromptText& prompt, TokenRun run) {
    std::vector<TokenRun> units;
    if (run.begin >= run.end) return units;
    if (run.size() <= kWholeRun) return {run};
    split(prompt, run, Border::paragraph, units);
    return units;
}

std::vector<double> unit_scores(std::span<const TokenRun> units, std::span<const float> scores) {
    std::vector<double> density(units.size()), out(units.size());
    for (size_t u = 0; u < units.size(); ++u) {
        const auto first = scores.begin() + units[u].begin;
        density[u] = std::accumulate(first, first + units[u].size(), 0.0) / static_cast<double>(units[u].size());
    }
    for (size_t u = 0; u < units.size(); ++u) {
        const bool before = u > 0 && units[u - 1].end == units[u].begin;
        const bool behind = u + 1 < units.size() && units[u].end == units[u + 1].begin;
        const double own = 1 - 0.25 * (before + behind);
        out[u] = own * density[u] + (before ? 0.25 * density[u - 1] : 0) + (behind ? 0.25 * density[u + 1] : 0);
    }
    return out;
}

std::vector<size_t> anchored_units(const PromptText& prompt, std::span<const int32_t> tokens, TokenRun question,
                                   std::span<const TokenRun> units) {
    std::map<std::string_view, Hits> places;  // of each of the question's runs
    std::map<std::string, Hits> words;
    for_each_word(prompt.bytes(question), [&](const std::string& word) { words[word]; });
    for (int64_t at = question.begin; at + kAnchor <= question.end; ++at) {
        int spelled = 0;
        for (int64_t i = at; i < at + kAnchor; ++i) spelled += has_letter(prompt.bytes({i, i + 1}));
        if (spelled > 0) places[gram_at(tokens, at)];
    }
    for (size_t u = 0; u < units.size(); ++u) {
        if (units[u].begin < question.end && units[u].end > question.begin) continue;
        for_each_word(prompt.bytes(units[u]), [&](const std::string& word) {
            if (const auto found = words.find(word); found != words.end()) found->second.add(u);
        });
    }
    for (size_t u = 0; u < units.size() && !places.empty(); ++u)
        for (int64_t at = units[u].begin; at < units[u].end && at + kAnchor <= std::ssize(tokens); ++at) {
            if (at < question.end && at + kAnchor > question.begin) continue;
            const auto found = places.find(gram_at(tokens, at));
            if (found != places.end()) found->second.add(u);
        }
    std::vector<std::pair<size_t, size_t>> ranked;  // hits, unit
    const auto rank = [&](const auto& found) {
        for (const auto& [what, hits] : found)
            if (std::ssize(hits.units) <= kMostHits)
                for (const size_t unit : hits.units) ranked.emplace_back(hits.units.size(), unit);
    };
    rank(places);
    rank(words);
    std::sort(ranked.begin(), ranked.end());
    std::vector<size_t> out;
    std::vector<bool> taken(units.size());
    for (const auto& [hits, unit] : ranked) {
        if (!taken[unit]) out.push_back(unit);
        taken[unit] = true;
    }
    return out;
}

std::vector<size_t> choose_units(std::span<const TokenRun> units, std::span<const double> scores,
                                 std::span<const size_t> anchored, int64_t budget) {
    RT_ASSERT(units.size() == scores.size());
    std::vector<bool> taken(units.size());
    int64_t left = budget;
    const auto take = [&](size_t unit, int64_t room) {
        const int64_t size = units[unit].size();
        if (taken[unit] || size > room) return int64_t{0};
        taken[unit] = true;
        left -= size;
        return size;
    };
    int64_t room = budget / 2;
    for (const size_t unit : anchored) room -= take(unit, room);
    std::vector<size_t> order(units.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    for (const size_t unit : order) take(unit, left);
    std::vector<size_t> out;
    for (size_t unit = 0; unit < units.size(); ++unit)
        if (taken[unit]) out.push_back(unit);
    return out;
}

}  // namespace riptide
