// What both of Python's ways to format share: "%5.2f" % x and "{:5.2f}".format(x).
#pragma once

#include "text/jinja/interpreter.h"

namespace riptide::jinja {

/// What a conversion asks for, in both languages.
struct Spec {
    std::string fill = " ";
    char align = 0;  // < > ^ =
    char sign = '-';
    bool alternate = false;
    bool zero = false;
    char grouping = 0;  // , or _
    int64_t width = 0;
    int64_t precision = -1;
    char type = 0;
};

/// The digits at `at`, which moves behind them; 0 if there are none. Fault beyond 31 bits.
int64_t read_number(std::string_view text, std::size_t& at);
/// `body` in a field of the asked width. `prefix` (sign, 0x) stays in front of zeros.
void append_field(TextBuilder& out, const Spec& spec, std::string_view prefix, const Text& body, char default_align);
void append_whole(TextBuilder& out, const Spec& spec, int64_t value);
void append_real(TextBuilder& out, const Spec& spec, double value);
/// The first `chars` characters, all if negative.
Text cut(const Text& text, int64_t chars);

}  // namespace riptide::jinja
