// Strings of a schema: pattern, format and lengths, all at once.
#include <algorithm>
#include <array>

#include "base/json.h"
#include "text/json_schema.h"
#include "text/pattern.h"

namespace riptide {

namespace {

/// Formats of no standard that zod writes beside the pattern that says what they are.
constexpr std::array kSaidByPattern = {"emoji",     "nanoid",    "guid",   "cuid",   "cuid2",     "ulid",
                                       "xid",       "ksuid",     "cidrv4", "cidrv6", "base64url", "e164",
                                       "lowercase", "uppercase", "jwt",    "mac",    "base64"};

}  // namespace

TextRules text_rules(const json::object& schema, const std::string& path) {
    TextRules rules;
    const auto text_of = [&](const char* word) -> std::optional<std::string> {
        const json::value* value = schema.if_contains(word);
        if (value == nullptr) return std::nullopt;
        if (!value->is_string()) throw GrammarError(fmt::format("{}: '{}' is not a string", path, word));
        return std::string(value->get_string());
    };
    const auto said = [](std::string_view format) {
        return std::find(kSaidByPattern.begin(), kSaidByPattern.end(), format) != kSaidByPattern.end();
    };
    const auto place = [&](const std::string& where, const auto& make) {
        try {
            make();
        } catch (const GrammarError& error) {
            throw GrammarError(fmt::format("{}: {}", where, error.what()));
        }
    };
    if (auto pattern = text_of("pattern")) {
        place(path + "/pattern", [&] { parse_pattern(*pattern); });
        rules.patterns.push_back(std::move(*pattern));
    }
    rules.least = schema_count(schema, "minLength", path).value_or(0);
    rules.most = schema_count(schema, "maxLength", path).value_or(Grammar::kUnbounded);
    if (std::max(rules.least, rules.most) > Grammar::kMostRepeats)
        throw GrammarError(fmt::format("{}: 'minLength' and 'maxLength' of more than {} are not supported", path,
                                       Grammar::kMostRepeats));
    if (rules.most != Grammar::kUnbounded && rules.least > rules.most)
        throw GrammarError(fmt::format("{}: 'minLength' is more than 'maxLength'", path));
    if (const auto format = text_of("format"); format && (rules.patterns.empty() || !said(*format)))
        place(path, [&] { rules.wholes.push_back(regex_of_format(*format, rules.least > 0 || rules.most >= 0)); });
    return rules;
}

Grammar::Expr JsonGrammar::string_of(const TextRules& rules) {
    const bool only_lengths = rules.patterns.empty() && rules.wholes.empty();
    if (only_lengths && rules.least == 0 && rules.most == Grammar::kUnbounded) return string();
    const Expr inside =
        only_lengths ? g_.repeat(character(), rules.least, rules.most) : add_text(g_, rules, write_character);
    return g_.named(g_.sequence({g_.text("\""), inside, g_.text("\"")}));
}

}  // namespace riptide
