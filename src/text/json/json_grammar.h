// The parts of JSON as grammars.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_regex.h"

namespace riptide {

/// JSON, written so that every parser takes it: valid UTF-8, surrogates in pairs, numbers without bounds of at most 18
/// digits before the point and 16 behind it, exponents of two digits. Behind a colon stands a space or nothing; between
/// other parts also a line's end with up to 64 spaces and tabs. Each part is made once and shared.
class JsonGrammar {
  public:
    using Expr = Grammar::Expr;

    /// `one_way`: each value in one way of writing only, without spaces (but members of open objects in any order):
    /// characters as write_character() does, numbers without exponents, or zeros at the end of a fraction.
    explicit JsonGrammar(Grammar& grammar, bool one_way = false) : g_(grammar), one_way_(one_way) {}

    Expr space();
    Expr string();
    Expr number();
    Expr integer();
    Expr fraction();  // a number that is not whole
    Expr boolean();
    Expr any();     // a value
    Expr object();  // of any values
    Expr array();

    /// One character inside a string, in any way of writing it.
    Expr character();
    /// A character of a set inside a string, in one way of writing it: as itself, \" \\ \b \f \n \r \t, or \u00XX.
    Expr write_character(const CharSet& set);
    /// The same, as a function. Valid as long as this.
    CharWriter writer() {
        return [this](Grammar&, const CharSet& set) { return write_character(set); };
    }
    /// A string that is none of `texts`, as append_json_escaped writes them; escapes as in write_character.
    Expr other_string(const std::vector<std::string>& texts);
    /// A value as it is, without spaces.
    Expr literal(const json::value& value);

    /// A number (`whole`: an integer, written without a point) by minimum, maximum, exclusiveMinimum, exclusiveMaximum
    /// and multipleOf of all of the schemas, exact in decimal. What is let through is also valid where both it and the
    /// bound are read as doubles. Between bounds, numbers have at most 18 digits before the point (integers: 40) and 16
    /// behind it (40, if a bound does), or one digit before the point and an exponent of at most 307; with multipleOf
    /// there are no exponents. Nothing, where several schemas contradict each other. Throws GrammarError that names the
    /// word.
    Expr number_of(std::span<const json::object* const> schemas, bool whole);
    /// A string of `least` to `most` characters, written in any way.
    Expr string_of_length(int64_t least, int64_t most);

    Expr array_of(Expr item, int64_t least, int64_t most);
    /// `key`: with its quotes.
    Expr member(Expr key, Expr value) {
        return g_.sequence({key, g_.text(":"), one_way_ ? g_.empty() : g_.optional(g_.text(" ")), value});
    }

  private:
    Expr once(std::optional<Expr>& known, Expr (JsonGrammar::*make)());
    Expr make_space();
    Expr make_string();
    Expr make_number();
    Expr make_integer();
    Expr make_fraction();
    Expr make_any();
    Expr make_object();
    Expr make_array();
    Expr make_character();
    Expr escapes(const CharSet& set);

    Grammar& g_;
    const bool one_way_;
    std::optional<Expr> space_, string_, number_, integer_, fraction_, any_, object_, array_, character_;
    std::map<std::string, Expr, std::less<>> numbers_;  // with bounds: by what they are
    std::map<CharSet, Expr> escapes_;                   // of some characters
};

/// A regular expression of numbers (`whole`: integers) in one way of writing, with so few digits that different texts
/// are different numbers: 18, which 64-bit integers tell apart, or 15 with a fraction, which doubles do.
std::string one_way_number(bool whole);

/// A value as JSON text: keys in order, nothing between parts, whole doubles without exponent.
std::string json_text(const json::value& value);

}  // namespace riptide
