// The parts of JSON as grammars.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "text/grammar.h"
#include "text/grammar_regex.h"

namespace riptide {

/// One end of a range of numbers, in decimal.
struct NumberBound {
    std::string whole = "0", fraction;      // digits; no leading zeros, no trailing ones
    bool negative = false, strict = false;  // strict: the bound itself is outside
};

/// JSON, written so that every parser takes it: valid UTF-8, surrogates in pairs, numbers of at most 18 digits before
/// the point and 16 behind it, exponents of two digits. Behind a colon stands a space or nothing; between other parts
/// also a line's end with up to 64 spaces and tabs. Each part is made once and shared.
class JsonGrammar {
  public:
    using Expr = Grammar::Expr;

    explicit JsonGrammar(Grammar& grammar) : g_(grammar) {}

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
    /// A character of a set inside a string, in one way of writing it: as itself, or \" \\ \n \r \t.
    static Expr write_character(Grammar& grammar, const CharSet& set);
    /// A string of `least` to `most` characters.
    Expr string_of_length(int64_t least, int64_t most);
    /// A string that is none of `texts`, as append_json_escaped writes them; escapes as in write_character.
    Expr other_string(const std::vector<std::string>& texts);
    /// A value as it is, without spaces.
    Expr literal(const json::value& value);

    /// Whole numbers between two, or of at most 18 digits.
    Expr integer_between(std::optional<int64_t> low, std::optional<int64_t> high);
    /// Numbers between two, without exponents, or of at most 18 digits before the point. Throws GrammarError if both
    /// bounds lie strictly inside the same unit.
    Expr number_between(const std::optional<NumberBound>& low, const std::optional<NumberBound>& high);

    Expr array_of(Expr item, int64_t least, int64_t most);
    /// `key`: with its quotes.
    Expr member(Expr key, Expr value) { return g_.sequence({key, g_.text(":"), g_.optional(g_.text(" ")), value}); }

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

    Grammar& g_;
    std::optional<Expr> space_, string_, number_, integer_, fraction_, any_, object_, array_, character_;
};

/// `least` to `most` (or Grammar::kUnbounded) times, up to a million, with about the square root of so many nodes.
/// Throws GrammarError beyond. REQUIRES: `part` takes something.
Grammar::Expr add_counted(Grammar& grammar, Grammar::Expr part, int64_t least, int64_t most);

/// A value as JSON text: keys in order, nothing between parts, whole doubles without exponent.
std::string json_text(const json::value& value);

}  // namespace riptide
