// Which characters have a property of Unicode: asked of PCRE2.
#include <optional>
#include <string>

#include "text/grammar/pattern.h"
#include "text/tokenizer/regex.h"
#include "text/utf8.h"

namespace riptide {

namespace {

/// ECMAScript's long names of general categories.
constexpr std::pair<std::string_view, std::string_view> kCategories[] = {
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Combining_Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"punct", "P"},
    {"Connector_Punctuation", "Pc"},
    {"Dash_Punctuation", "Pd"},
    {"Open_Punctuation", "Ps"},
    {"Close_Punctuation", "Pe"},
    {"Initial_Punctuation", "Pi"},
    {"Final_Punctuation", "Pf"},
    {"Other_Punctuation", "Po"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Modifier_Symbol", "Sk"},
    {"Other_Symbol", "So"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Line_Separator", "Zl"},
    {"Paragraph_Separator", "Zp"},
    {"Control", "Cc"},
    {"cntrl", "Cc"},
    {"Format", "Cf"},
    {"Private_Use", "Co"},
};

std::string_view category(std::string_view name) {
    for (const auto& [full, brief] : kCategories)
        if (name == full) return brief;
    return name;
}

std::optional<Regex> runs_of(const std::string& property) {
    try {
        return Regex(fmt::format("\\p{{{}}}+", property), "property");
    } catch (const Error&) {
        return std::nullopt;  // PCRE2 does not know it
    }
}

}  // namespace

CharSet unicode_property(std::string_view name) {
    const std::size_t equals = name.find('=');
    const std::string_view kind = equals == std::string_view::npos ? "" : name.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? name : name.substr(equals + 1);
    if (value.empty() || value.size() > 64) return {};
    for (const char c : value)
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '_') return {};
    std::optional<Regex> runs;
    const bool is_category = kind.empty() || kind == "General_Category" || kind == "gc";
    if (is_category) runs = runs_of(std::string(category(value)));
    // PCRE2 takes a script's name alone for its extensions.
    if (kind == "Script" || kind == "sc" || (kind.empty() && value.size() > 2))
        if (std::optional<Regex> script = runs_of(fmt::format("sc:{}", value))) runs = std::move(script);
    if (kind == "Script_Extensions" || kind == "scx") runs = runs_of(fmt::format("scx:{}", value));
    if (!runs) return {};
    CharSet out;
    std::string all;
    all.reserve(std::size_t{4} << 20);
    for (const auto& [first, last] : all_characters())
        for (char32_t c = first; c <= last; ++c) append_utf8(all, c);
    Regex::Scratch scratch;
    Regex::Match match;
    for (std::size_t at = 0; runs->find(all, at, scratch, match); at = match.end) {
        std::size_t last = match.end - 1;
        while ((static_cast<uint8_t>(all[last]) & 0xC0) == 0x80) --last;
        out.emplace_back(utf8_at(all, match.begin).code_point, utf8_at(all, last).code_point);
    }
    return normalized(std::move(out));
}

}  // namespace riptide
