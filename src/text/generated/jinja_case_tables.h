// Tables of letter case and character classes; made by make_case_tables.py.
#pragma once

#include <cstdint>

namespace riptide::jinja {

/// Codes first, first + step, ..., last map to code + delta.
struct CaseRun {
    uint32_t first, last;
    int32_t step, delta;
};
/// One code that maps to several (ended by 0). kind: 0 upper, 1 lower, 2 title.
struct SpecialCase {
    int32_t kind;
    uint32_t code;
    uint32_t to[3];
};
struct Range {
    uint32_t first, last;
};

// All sorted by code (kSpecial by kind, then code).
extern const CaseRun kUpper[], kLower[], kTitle[];
extern const int kUpperCount, kLowerCount, kTitleCount;
extern const SpecialCase kSpecial[];
extern const int kSpecialCount;
extern const Range kIsUpper[], kIsLower[], kIsAlpha[], kIsDigit[], kNotPrintable[];
extern const int kIsUpperCount, kIsLowerCount, kIsAlphaCount, kIsDigitCount, kNotPrintableCount;

}  // namespace riptide::jinja
