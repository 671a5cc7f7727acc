// Everything but some texts.
#include <algorithm>

#include "text/grammar/grammar_regex.h"
#include "text/utf8.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr std::size_t kLongestExcluded = 256;
const CharSet kNotAscii = {{0x80, 0x10FFFF}};

class OtherText {
  public:
    OtherText(Grammar& grammar, const CharSet& allowed, const CharWriter& write, Expr end)
        : g_(grammar), allowed_(allowed), write_(write), end_(end) {}

    Expr build(const std::vector<std::string>& texts) {
        for (const std::string& text : texts) {
            if (text.size() > kLongestExcluded)
                throw GrammarError(
                    fmt::format("a name of {} bytes, expected at most {}", text.size(), kLongestExcluded));
            std::u32string& word = words_.emplace_back();
            for (std::size_t at = 0; at < text.size();) {
                const Utf8Char c = utf8_at(text, at);
                word += c.code_point;
                at += static_cast<std::size_t>(c.length);
            }
        }
        std::sort(words_.begin(), words_.end());
        words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
        rest_ = g_.named(g_.sequence({g_.repeat(write_(g_, allowed_), 0, Grammar::kUnbounded), end_}));
        not_ascii_ = g_.named(write_(g_, intersection(allowed_, kNotAscii)));
        return words_.empty() ? rest_ : behind(0, words_.size(), 0);
    }

  private:
    /// What may follow where all that came is the first `at` characters of words [first, last).
    Expr behind(std::size_t first, std::size_t last, std::size_t at) {
        std::vector<Expr> ways;
        CharSet next;
        const bool is_word = words_[first].size() == at;  // the shortest comes first
        if (!is_word) ways.push_back(end_);
        for (std::size_t i = is_word ? first + 1 : first; i < last;) {
            const char32_t c = words_[i][at];
            std::size_t end = i;
            while (end < last && words_[end][at] == c) ++end;
            next.emplace_back(c, c);
            const CharSet here = intersection({{c, c}}, allowed_);
            if (!here.empty()) ways.push_back(g_.sequence({write_(g_, here), behind(i, end, at + 1)}));
            i = end;
        }
        next = normalized(std::move(next));
        const bool ascii = intersection(next, kNotAscii).empty();  // the usual case; the others are in one place then
        CharSet others = intersection(complement(next), allowed_);
        if (ascii) others = intersection(others, {{0, 0x7F}});
        const Expr one = write_(g_, others);
        ways.push_back(g_.sequence({ascii ? g_.choice({one, not_ascii_}) : one, rest_}));
        return g_.choice(std::move(ways));
    }

    Grammar& g_;
    const CharSet& allowed_;
    const CharWriter& write_;
    const Expr end_;
    Expr rest_ = 0, not_ascii_ = 0;
    std::vector<std::u32string> words_;
};

}  // namespace

Expr other_text(Grammar& grammar, const std::vector<std::string>& texts, const CharSet& allowed,
                const CharWriter& write, Expr end) {
    return OtherText(grammar, allowed, write, end).build(texts);
}

}  // namespace riptide
