// Strings of a schema: words, patterns, formats and lengths, all at once, and without others.
#include <algorithm>
#include <array>

#include "text/grammar/text_set.h"
#include "text/json/json_schema.h"

namespace riptide {

namespace {

constexpr std::array kStandardFormats = {
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex",
    // ajv-formats and OpenAPI
    "url", "byte", "iso-time", "iso-date-time", "json-pointer-uri-fragment",
    // zod
    "jwt", "emoji", "nanoid", "cuid", "cuid2", "ulid", "cidrv4", "cidrv6", "base64", "base64url", "e164"};

/// Formats of no standard that zod writes beside the pattern that says what they are.
constexpr std::array kSaidByPattern = {"emoji",     "nanoid",    "guid",   "cuid",   "cuid2",     "ulid",
                                       "xid",       "ksuid",     "cidrv4", "cidrv6", "base64url", "e164",
                                       "lowercase", "uppercase", "jwt",    "mac",    "base64"};

}  // namespace

bool is_known_format(std::string_view format) {
    return std::find(kStandardFormats.begin(), kStandardFormats.end(), format) != kStandardFormats.end();
}

bool is_said_by_pattern(std::string_view format) {
    return std::find(kSaidByPattern.begin(), kSaidByPattern.end(), format) != kSaidByPattern.end();
}

bool StringRules::free() const { return only_lengths() && least == 0 && most == Grammar::kUnbounded; }

bool StringRules::only_lengths() const {
    return !words && patterns.empty() && formats.empty() && not_patterns.empty() && excluded.empty();
}

/// All but the lengths.
static TextSet set_of_any_length(const StringRules& rules, WorkBudget* work) {
    if (rules.words) return TextSet::of_words(*rules.words);
    TextSet all = TextSet::all();
    for (const std::string& pattern : rules.patterns) all = all & TextSet::of_regex(pattern, true, work);
    for (const std::string& format : rules.formats) all = all & TextSet::of_regex(regex_of_format(format), false, work);
    for (const std::string& pattern : rules.not_patterns) all = all - TextSet::of_regex(pattern, true, work);
    return rules.excluded.empty() ? all : all - TextSet::of_words(rules.excluded);
}

TextSet string_set(const StringRules& rules, WorkBudget* work) {
    const TextSet all = set_of_any_length(rules, work);
    const bool any_length = rules.words || (rules.least == 0 && rules.most == Grammar::kUnbounded);
    return any_length ? all : all & TextSet::of_length(rules.least, rules.most);
}

Grammar::Expr add_string_inside(Grammar& grammar, const StringRules& rules, const CharWriter& write) {
    if (rules.words) return set_of_any_length(rules, grammar.work()).add_to(grammar, write);
    if (rules.most != Grammar::kUnbounded && rules.least > rules.most) return grammar.choice({});
    if (!rules.not_patterns.empty() || !rules.excluded.empty())
        return set_of_any_length(rules, grammar.work()).add_to(grammar, write, rules.least, rules.most);
    TextRules texts{.patterns = rules.patterns, .wholes = {}, .least = rules.least, .most = rules.most};
    const bool counted = rules.least > 0 || rules.most != Grammar::kUnbounded;
    for (const std::string& format : rules.formats) texts.wholes.push_back(regex_of_format(format, counted));
    return add_text(grammar, texts, write);
}

}  // namespace riptide
