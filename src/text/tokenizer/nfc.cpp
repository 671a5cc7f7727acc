#include "text/tokenizer/nfc.h"

#include <algorithm>
#include <map>
#include <vector>

#include "text/generated/nfc_tables.h"
#include "text/utf8.h"

namespace riptide {
namespace {

// Hangul syllables are composed by arithmetic (Unicode 15, section 3.12).
constexpr char32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

struct CombiningMark {
    char32_t code;
    int combining_class;
};

int class_of(char32_t c) {
    const auto after = std::upper_bound(nfc::kClasses.begin(), nfc::kClasses.end(), c,
                                        [](char32_t value, const nfc::ClassRange& range) { return value < range.low; });
    if (after == nfc::kClasses.begin()) return 0;
    const nfc::ClassRange& range = *(after - 1);
    return c <= range.high ? range.combining_class : 0;
}

template <class Table>
const nfc::Decomposition* find_decomposition(const Table& table, char32_t c) {
    const auto at = std::lower_bound(table.begin(), table.end(), c,
                                     [](const nfc::Decomposition& d, char32_t value) { return d.code < value; });
    return at != table.end() && at->code == c ? &*at : nullptr;
}

// Canonical decompositions nest at most a few deep, so the recursion is shallow.
void decompose(char32_t c, std::vector<CombiningMark>& out) {
    if (c >= kS && c < kS + kSCount) {
        const char32_t index = c - kS;
        out.push_back({kL + index / (kVCount * kTCount), 0});
        out.push_back({kV + index % (kVCount * kTCount) / kTCount, 0});
        if (index % kTCount != 0) out.push_back({kT + index % kTCount, 0});
        return;
    }
    const nfc::Decomposition* found = find_decomposition(nfc::kComposed, c);
    if (found == nullptr) found = find_decomposition(nfc::kOnlyDecomposed, c);
    if (found == nullptr) {
        out.push_back({c, class_of(c)});
        return;
    }
    decompose(found->first, out);
    if (found->second != 0) decompose(found->second, out);
}

// The composition of two characters, or 0.
char32_t compose(char32_t a, char32_t b) {
    static const std::map<std::pair<char32_t, char32_t>, char32_t> pairs = [] {
        std::map<std::pair<char32_t, char32_t>, char32_t> out;
        for (const nfc::Decomposition& d : nfc::kComposed) out.emplace(std::pair(d.first, d.second), d.code);
        return out;
    }();
    if (a >= kL && a < kL + kLCount && b >= kV && b < kV + kVCount) return kS + ((a - kL) * kVCount + b - kV) * kTCount;
    if (a >= kS && a < kS + kSCount && (a - kS) % kTCount == 0 && b > kT && b < kT + kTCount) return a + b - kT;
    const auto found = pairs.find({a, b});
    return found == pairs.end() ? 0 : found->second;
}

void sort_marks(std::vector<CombiningMark>& marks) {
    for (auto at = marks.begin(); at != marks.end();) {
        const auto is_mark = [](const CombiningMark& m) { return m.combining_class != 0; };
        const auto begin = std::find_if(at, marks.end(), is_mark);
        at = std::find_if_not(begin, marks.end(), is_mark);
        std::stable_sort(begin, at, [](const CombiningMark& a, const CombiningMark& b) {
            return a.combining_class < b.combining_class;
        });
    }
}

// UAX #15: a character joins the last starter unless something of its own class or higher (or another starter) stands
// between.
void compose_all(const std::vector<CombiningMark>& marks, std::vector<char32_t>& out) {
    std::ptrdiff_t starter = -1;
    int last_class = -1;  // of what was kept since the starter; -1: nothing
    for (const CombiningMark& mark : marks) {
        if (starter >= 0 && last_class < mark.combining_class) {
            char32_t& base = out[static_cast<std::size_t>(starter)];
            if (const char32_t joined = compose(base, mark.code); joined != 0) {
                base = joined;
                continue;
            }
        }
        if (mark.combining_class == 0) {
            starter = static_cast<std::ptrdiff_t>(out.size());
            last_class = -1;
        } else {
            last_class = mark.combining_class;
        }
        out.push_back(mark.code);
    }
}

void append_nfc(std::string_view valid, std::string& out) {
    std::vector<CombiningMark> marks;
    for (std::size_t at = 0; at < valid.size();) {
        const Utf8Char c = utf8_at(valid, at);
        decompose(c.code_point, marks);
        at += static_cast<std::size_t>(c.length);
    }
    sort_marks(marks);
    std::vector<char32_t> codes;
    compose_all(marks, codes);
    for (const char32_t code : codes) append_utf8(out, code);
}

}  // namespace

std::string to_nfc(std::string_view text) {
    // The lead bytes of code points below U+0300 are at most 0xCB; none of those characters changes or combines.
    const auto is_low = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
    if (std::all_of(text.begin(), text.end(), is_low)) return std::string(text);
    std::string out;
    while (!text.empty()) {
        const std::size_t valid = utf8_valid_prefix(text);
        append_nfc(text.substr(0, valid), out);
        text.remove_prefix(valid);
        if (text.empty()) break;
        const auto bad = static_cast<std::size_t>(utf8_at(text, 0).length);
        out.append(text.substr(0, bad));
        text.remove_prefix(bad);
    }
    return out;
}

}  // namespace riptide
