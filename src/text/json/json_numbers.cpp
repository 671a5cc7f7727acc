// JsonGrammar: numbers within bounds, as regular expressions over their digits.
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "text/grammar/text_automaton.h"
#include "text/json/decimal.h"
#include "text/json/json_grammar.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr std::size_t kWholeDigits = 18, kDecimals = 16, kMostDigits = 40;
constexpr int64_t kMostExponent = 307;  // every mantissa then is a double that is neither 0 nor infinite
constexpr std::string_view kNone = "[]";

std::string times(std::string_view one, std::size_t least, std::size_t most) {
    if (most == 0) return "";
    return least == 1 && most == 1 ? std::string(one) : fmt::format("{}{{{},{}}}", one, least, most);
}
std::string digit(char low, char high) { return low > high ? std::string(kNone) : fmt::format("[{}-{}]", low, high); }
char above(char c) { return static_cast<char>(c + 1); }
char below(char c) { return static_cast<char>(c - 1); }

std::string any_of(const std::vector<std::string>& ways) {
    return ways.empty() ? std::string(kNone) : fmt::format("({})", fmt::join(ways, "|"));
}

/// Texts of the same length as `low` and `high`, between them.
std::string same_length(std::string_view low, std::string_view high) {
    const bool all_low = low.find_first_not_of('0') == std::string_view::npos;
    const bool all_high = high.find_first_not_of('9') == std::string_view::npos;
    if (all_low && all_high) return times("\\d", low.size(), low.size());
    const std::size_t rest = low.size() - 1;
    if (low[0] == high[0]) return low[0] + same_length(low.substr(1), high.substr(1));
    const std::string nines(rest, '9'), zeros(rest, '0');
    std::vector<std::string> ways = {low[0] + same_length(low.substr(1), nines),
                                     high[0] + same_length(zeros, high.substr(1))};
    if (above(low[0]) < high[0]) ways.push_back(digit(above(low[0]), below(high[0])) + times("\\d", rest, rest));
    return any_of(ways);
}

/// Whole numbers from low to high, 0 <= low.
std::string whole_between(const std::string& low, const std::string& high) {
    if (low.size() > high.size() || (low.size() == high.size() && low > high)) return std::string(kNone);
    if (low.size() == high.size()) return same_length(low, high);
    std::vector<std::string> ways = {same_length(low, std::string(low.size(), '9')),
                                     same_length("1" + std::string(high.size() - 1, '0'), high)};
    if (low.size() + 1 < high.size()) ways.push_back("[1-9]" + times("\\d", low.size(), high.size() - 2));
    return any_of(ways);
}

/// Digits behind the point, `left` at most, that make at least `bound`; `none`: there may be none if none are needed.
std::string fraction_above(std::string_view bound, std::size_t left, bool none) {
    if (bound.empty()) return times("\\d", none ? 0 : 1, left);
    if (bound.size() == left && bound.find_first_not_of('0') == left - 1 && bound.back() == '1')  // anything but 0
        return times("0", 0, left - 1) + "[1-9]" + times("\\d", 0, left - 1);
    std::vector<std::string> ways = {bound[0] + fraction_above(bound.substr(1), left - 1, true)};
    if (bound[0] < '9') ways.push_back(digit(above(bound[0]), '9') + times("\\d", 0, left - 1));
    return any_of(ways);
}

/// The same, that make at most `bound`.
std::string fraction_below(std::string_view bound, std::size_t left, bool none) {
    if (bound.empty()) return times("0", none ? 0 : 1, left);
    if (bound.size() == left && bound.find_first_not_of('9') == std::string_view::npos)
        return times("\\d", none ? 0 : 1, left);
    std::vector<std::string> ways = {bound[0] + fraction_below(bound.substr(1), left - 1, true)};
    if (bound[0] > '0') ways.push_back(digit('0', below(bound[0])) + times("\\d", 0, left - 1));
    return any_of(ways) + (none ? "?" : "");
}

/// The same, between two.
std::string fraction_between(std::string_view low, std::string_view high, std::size_t left, bool none) {
    if (low.empty()) return fraction_below(high, left, none);
    if (high.empty() || low[0] > high[0]) return std::string(kNone);
    const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
    if (low[0] == high[0]) return low[0] + fraction_between(low_rest, high_rest, left - 1, true);
    std::vector<std::string> ways = {low[0] + fraction_above(low_rest, left - 1, true),
                                     high[0] + fraction_below(high_rest, left - 1, true)};
    if (above(low[0]) < high[0]) ways.push_back(digit(above(low[0]), below(high[0])) + times("\\d", 0, left - 1));
    return any_of(ways);
}

/// Without exponent, from low to high, neither negative; with at most `left` decimals.
/// REQUIRES: so many are enough for both.
std::string plain_between(const Decimal& low, const Decimal& high, std::size_t left) {
    if (high < low) return std::string(kNone);
    const auto with = [&](const std::string& whole, const std::string& fraction, bool none) {
        return fmt::format("{}(\\.{}){}", whole, fraction, none ? "?" : "");
    };
    if (low.whole == high.whole)
        return with(low.whole, fraction_between(low.fraction, high.fraction, left, false), low.is_whole());
    const Decimal first = next_whole(low, true), last = next_whole(high, false);
    std::vector<std::string> ways = {with(low.whole, fraction_above(low.fraction, left, false), low.is_whole()),
                                     with(high.whole, fraction_below(high.fraction, left, false), true)};
    if (const std::string middle = whole_between(first.whole, last.whole); middle != kNone)
        ways.push_back(with(middle, times("\\d", 1, left), true));
    return any_of(ways);
}

/// m times 10 to the exponent, 1 <= m < 10.
struct Scientific {
    Decimal mantissa;
    int64_t exponent = 0;
};

Scientific scientific_of(const Decimal& number) {
    const std::string all = number.whole + number.fraction;
    const std::size_t first = all.find_first_not_of('0');
    const std::string text = fmt::format("{}.{}0", all[first], all.substr(first + 1));
    return {decimal_of(text), std::ssize(number.whole) - 1 - static_cast<int64_t>(first)};
}

std::string exponent_between(int64_t low, int64_t high) {
    const auto texts = [](int64_t from, int64_t to) { return whole_between(std::to_string(from), std::to_string(to)); };
    std::vector<std::string> ways;
    if (high >= 0) ways.push_back("\\+?0?" + texts(std::max<int64_t>(0, low), high));
    if (low < 0) ways.push_back("-0?" + texts(std::max<int64_t>(1, -high), -low));
    return "[eE]" + any_of(ways);
}

/// With exponents, from low to high, 0 < low.
std::string scientific_between(const Decimal& low, const Decimal& high) {
    const Decimal one = decimal_of("1"), most = decimal_of("9." + std::string(kDecimals, '9'));
    Scientific first = scientific_of(low), last = scientific_of(high);
    if (first.exponent < -kMostExponent) first = {one, -kMostExponent};
    if (last.exponent > kMostExponent) last = {most, kMostExponent};
    if (last.exponent < -kMostExponent || first.exponent > kMostExponent) return std::string(kNone);
    const auto part = [&](const Decimal& from, const Decimal& to, int64_t exponent) {
        const std::size_t left = std::max({kDecimals, from.fraction.size(), to.fraction.size()});
        return plain_between(from, to, left) + exponent_between(exponent, exponent);
    };
    if (first.exponent == last.exponent) return part(first.mantissa, last.mantissa, first.exponent);
    std::vector<std::string> ways = {part(first.mantissa, most, first.exponent),
                                     part(one, last.mantissa, last.exponent)};
    if (first.exponent + 1 < last.exponent)
        ways.push_back(fmt::format("[1-9](\\.\\d{{1,{}}})?", kDecimals) +
                       exponent_between(first.exponent + 1, last.exponent - 1));
    return any_of(ways);
}

const Decimal kHuge = decimal_of("1e350"), kTiny = decimal_of("1e-350");

/// How a number may be written.
struct Form {
    bool whole = false;  // without a point
    bool exponents = true;
    std::size_t digits = kWholeDigits;  // before the point, unless bounds ask for more
    std::size_t decimals = kDecimals;
};

/// From low to high, neither negative.
std::string magnitude(const Decimal& low, const Decimal& high, const Form& form) {
    if (form.whole) {
        Decimal first = rounded_up(low, 0), last = cut(high, 0);
        const std::size_t most = std::clamp(first.whole.size() + 1, form.digits, kMostDigits);
        if (first.whole.size() > kMostDigits)
            throw GrammarError(fmt::format("whole numbers of more than {} digits are not supported", kMostDigits));
        if (high == kHuge) last.whole = std::string(most, '9');
        if (last.whole.size() > kMostDigits) last.whole = std::string(kMostDigits, '9');
        return whole_between(first.whole, last.whole);
    }
    std::vector<std::string> ways;
    std::size_t left = form.decimals;
    for (const Decimal* bound : {&low, &high})
        if (bound->fraction.size() <= kMostDigits) left = std::max(left, bound->fraction.size());
    Decimal first = rounded_up(low, left), last = cut(high, left);
    const bool reachable = !(high == kHuge) && last.whole.size() <= kMostDigits;
    const std::size_t digits = reachable ? std::max(form.digits, last.whole.size()) : form.digits;
    if (last.whole.size() > digits) last = {std::string(digits, '9'), std::string(left, '9')};
    if (const std::string plain = plain_between(first, last, left); plain != kNone) ways.push_back(plain);
    if (form.exponents && !high.is_zero() && !(high < low))
        ways.push_back(scientific_between(low.is_zero() ? kTiny : low, high));
    return any_of(ways);
}

/// From low to high.
std::string range(const Decimal& low, const Decimal& high, const Form& form) {
    const Decimal zero;
    std::vector<std::string> ways;
    if (high >= zero) ways.push_back(magnitude(std::max(low, zero), high, form));
    // Below zero, as the mirror image.
    if (low < zero) {
        const Decimal nearest = form.whole ? decimal_of("1") : kTiny;
        const Decimal from = high < zero ? negated(high) : nearest;
        if (std::string text = magnitude(std::max(from, nearest), negated(low), form); text != kNone)
            ways.push_back("-" + text);
    }
    return any_of(ways);
}

/// What takes the digits of multiples of a number, whether or not they are well written: the remainder so far, in the
/// number's last decimal, and how many decimals have come.
TextAutomaton multiples_of(const Decimal& number, WorkBudget* work) {
    constexpr std::size_t kMostRemainders = 8'000;
    const std::size_t decimals = number.fraction.size(), phases = decimals + 2;  // before the point; behind it
    const std::string digits = number.whole + number.fraction;
    if (digits.size() > 9 || std::stoul(digits) * phases > kMostRemainders)
        throw GrammarError(fmt::format("'multipleOf' needs a state for each remainder of {} and decimal, more than {}",
                                       digits.substr(0, 40), kMostRemainders));
    const std::size_t divisor = std::stoul(digits);
    TextAutomaton out;
    out.states.resize(divisor * phases);
    for (std::size_t phase = 0; phase < phases; ++phase)
        for (std::size_t rest = 0; rest < divisor; ++rest) {
            TextAutomaton::State& state = out.states[phase * divisor + rest];
            const std::size_t known = phase == 0 ? 0 : phase - 1;
            std::size_t scaled = rest;
            for (std::size_t i = known; i < decimals; ++i) scaled = scaled * 10 % divisor;
            state.accepts = scaled == 0;
            const auto go = [&](char c, std::size_t to_phase, std::size_t to) {
                state.edges.push_back({{{static_cast<char32_t>(c), static_cast<char32_t>(c)}},
                                       static_cast<int32_t>(to_phase * divisor + to)});
            };
            const bool last = phase + 1 == phases;
            for (std::size_t d = 0; d < (last ? 1 : 10); ++d)
                go(static_cast<char>('0' + d), phase == 0 ? 0 : phase + !last, last ? rest : (rest * 10 + d) % divisor);
            if (phase == 0) go('-', 0, rest), go('.', 1, rest);
        }
    const TextCondition only{.automaton = &out};
    return text_automaton({&only, 1}, work);
}

struct Bounds {
    std::optional<Decimal> low, high;
};

/// The bounds that a schema sets, themselves allowed, beside those that are there.
void add_bounds(const json::object& schema, bool whole, Bounds& out) {
    for (const std::string_view word : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
        const json::value* value = schema.if_contains(word);
        if (value == nullptr) continue;
        bool strict = word.starts_with("exclusive");
        const bool is_low = word.ends_with("inimum");
        if (strict && value->is_bool()) {  // draft 4
            if (!value->get_bool()) continue;
            value = schema.if_contains(is_low ? "minimum" : "maximum");
            if (value == nullptr) continue;
        }
        if (!value->is_number()) throw GrammarError(fmt::format("'{}' is not a number", word));
        Decimal bound = decimal_of(*value, is_low);
        if (strict && !whole) bound = decimal_beside(bound, is_low);
        else if (strict && bound.is_whole()) bound = whole_beside(bound, is_low);
        std::optional<Decimal>& known = is_low ? out.low : out.high;
        if (!known) known = bound;
        else known = is_low ? std::max(*known, bound) : std::min(*known, bound);
    }
}

/// The one number that all must be a multiple of, if any.
std::optional<Decimal> multiple_of(std::span<const json::object* const> schemas) {
    std::optional<Decimal> out;
    for (const json::object* schema : schemas) {
        const json::value* multiple = schema->if_contains("multipleOf");
        if (multiple == nullptr) continue;
        if (!multiple->is_number()) throw GrammarError("'multipleOf' is not a number");
        const Decimal number = decimal_of(*multiple, false);
        if (number.is_zero() || number.negative) throw GrammarError("'multipleOf' is not above 0");
        if (out && *out != number) throw GrammarError("'multipleOf' of several numbers at once is not supported");
        out = number;
    }
    return out;
}

}  // namespace

Expr JsonGrammar::number_of(std::span<const json::object* const> schemas, bool whole) {
    const std::optional<Decimal> multiple = multiple_of(schemas);
    whole = whole || multiple == decimal_of("1");
    const bool counted = multiple && *multiple != decimal_of("1");
    Bounds bounds;
    for (const json::object* schema : schemas) add_bounds(*schema, whole, bounds);
    if (bounds.low && bounds.high && *bounds.low > *bounds.high) {
        if (schemas.size() > 1) return g_.choice({});
        throw GrammarError("the lowest number allowed is above the highest");
    }
    if (!counted && !bounds.low && !bounds.high) return whole ? integer() : number();
    Form form{.whole = whole};
    std::string key;
    std::optional<TextAutomaton> multiples;
    if (counted) {
        key = "%" + multiple->whole + "." + multiple->fraction;
        multiples = multiples_of(*multiple, g_.work());
        // Each digit is counted for each remainder. Readers that divide, and look whether the quotient is whole as it
        // is written, fail from 1e21 on.
        form.exponents = false;
        const std::size_t most = std::min<std::size_t>(kWholeDigits, 21 - multiple->fraction.size());
        form.digits = std::clamp<std::size_t>(6000 / multiples->states.size(), 6, most);
        form.decimals = multiple->fraction.size() + 2;
    }
    if (one_way_) form.exponents = false;
    const std::string text = range(bounds.low.value_or(negated(kHuge)), bounds.high.value_or(kHuge), form);
    key = text + key;
    const auto [known, is_new] = numbers_.try_emplace(key, 0);
    if (!is_new) return known->second;
    if (!multiples && !one_way_) return known->second = g_.named(add_regex(g_, text, false));
    const Pattern read = parse_pattern(text), one_way = parse_pattern(one_way_number(whole));
    const TextCondition conditions[] = {{.pattern = &read}, {.pattern = &one_way}};
    TextAutomaton all = text_automaton(std::span(conditions).first(one_way_ ? 2 : 1), g_.work());
    if (multiples) all = intersection(all, *multiples, g_.work());
    return known->second = g_.named(add_text_automaton(g_, all, 0, Grammar::kUnbounded, {}));
}

}  // namespace riptide
