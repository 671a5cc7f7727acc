// What readers of notations share: a place in a text, and what may be taken there. Private to the readers of src/text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/grammar/grammar.h"

namespace riptide {

/// "line 3 column 5": of a byte, both from 1 on; columns are bytes.
std::string line_and_column(std::string_view text, std::size_t at);

/// A base of readers. Each says in its own words where it is.
class TextReader {
  protected:
    explicit TextReader(std::string_view text) : text_(text) {}
    virtual ~TextReader() = default;
    TextReader(const TextReader&) = default;
    TextReader& operator=(const TextReader&) = delete;

    /// What is read, and where: "grammar, line 3 column 5", of at_.
    virtual std::string place() const = 0;
    /// Throws GrammarError about what stands at at_.
    [[noreturn]] void wrong(std::string_view what) const { throw GrammarError(fmt::format("{}: {}", place(), what)); }
    [[noreturn]] void wrong_at(std::size_t at, std::string_view what) {
        at_ = at;
        wrong(what);
    }

    bool more() const { return at_ < text_.size(); }
    char peek() const { return more() ? text_[at_] : '\0'; }
    bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
    bool take(std::string_view what) {
        const bool is = next_is(what);
        at_ += is ? what.size() : 0;
        return is;
    }

    /// Refuses texts of more bytes than `most`, and what is no UTF-8. `kind`: "a grammar".
    void check_text(std::size_t most, std::string_view kind);
    /// One character, as it is. REQUIRES: more(), valid UTF-8.
    char32_t character();
    /// The digits of a number of repetitions, which may be none (0). Refuses more than Grammar::kMostRepeats.
    int64_t count();
    /// So many hexadecimal digits.
    char32_t hex(int digits);
    /// The same, of a character that there is.
    char32_t hex_character(int digits);
    /// Behind a backslash: \n \r \t \xHH \uHHHH \UHHHHHHHH. None, with nothing taken, for others.
    std::optional<char32_t> plain_escape();

    std::string_view text_;
    std::size_t at_ = 0;
};

}  // namespace riptide
