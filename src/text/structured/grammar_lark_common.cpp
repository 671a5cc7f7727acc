// Lark's library `common`.
#include <array>
#include <utility>

#include "text/structured/grammar_lark_syntax.h"

namespace riptide {

namespace {

// Each is complete in itself: the same texts as Lark's definition, which is made of others there.
constexpr std::array kCommonTerminals = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"DIGIT", R"([0-9])"},
    {"HEXDIGIT", R"([0-9A-Fa-f])"},
    {"INT", R"([0-9]+)"},
    {"SIGNED_INT", R"([+-]?[0-9]+)"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"NUMBER", R"(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
    {"LCASE_LETTER", R"([a-z])"},
    {"UCASE_LETTER", R"([A-Z])"},
    {"LETTER", R"([A-Za-z])"},
    {"WORD", R"([A-Za-z]+)"},
    {"CNAME", R"([A-Za-z_][A-Za-z_0-9]*)"},
    {"WS_INLINE", R"([ \t]+)"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"CR", R"(\r)"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"CPP_COMMENT", R"(//[^\n]*)"},
    {"C_COMMENT", R"(/\*([^*]|\*+[^*/])*\*+/)"},
    {"SQL_COMMENT", R"(--[^\n]*)"},
});

}  // namespace

std::string_view lark_common_terminal(std::string_view name) {
    for (const auto& [known, expression] : kCommonTerminals)
        if (known == name) return expression;
    return {};
}

}  // namespace riptide
