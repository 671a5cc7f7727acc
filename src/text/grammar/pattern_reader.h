// Characters, classes and escapes of regular expressions. Private to pattern*.cpp.
#pragma once

#include <map>

#include "text/grammar/pattern.h"
#include "text/grammar/text_reader.h"

namespace riptide {

/// Reads what stands for one character of a regular expression.
class PatternReader : protected TextReader {
  protected:
    PatternReader(std::string_view text, const PatternStyle& style)
        : TextReader(text), style_(style), properties_(style.properties != nullptr ? *style.properties : own_) {}

    std::string place() const override { return fmt::format("regular expression, at byte {}", at_); }
    char32_t letter() {
        if (!more()) wrong("it ends too early");
        return character();
    }
    /// Also in its other case, where case is not told apart.
    CharSet cased(CharSet set) const { return style_.any_case ? with_both_cases(set) : set; }
    /// Behind the [.
    CharSet char_class();
    /// Behind the backslash.
    CharSet escape(bool in_class);

    PatternStyle style_;

  private:
    CharSet class_item();
    CharSet posix_class();
    CharSet property(bool not_in);
    char32_t unicode();
    char32_t braced();

    PropertySets own_;
    PropertySets& properties_;
};

}  // namespace riptide
