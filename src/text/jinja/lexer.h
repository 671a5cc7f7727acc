// From the source of a template to tokens, with Jinja's rules of white space (trim_blocks and lstrip_blocks on).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace riptide::jinja {

enum class Tok : uint8_t {
    data,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    floating,
    op,
    end
};

struct Token {
    Tok type = Tok::end;
    std::string text;  // of strings: without quotes, escapes resolved
    int line = 1;
    int column = 1;
};

/// A Fault with its place in the source.
class SourceFault : public Fault {
  public:
    SourceFault(const std::string& message, int at_line, int at_column)
        : Fault(message), line(at_line), column(at_column) {}
    int line, column;
};

/// The tokens, ended by one of type `end`. Newlines are made "\n" and one at the end of the source is dropped, as Jinja
/// does. Throws SourceFault. Time linear in the source.
std::vector<Token> tokenize(std::string_view source);

}  // namespace riptide::jinja
