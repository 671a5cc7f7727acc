#include "text/jinja/lexer.h"

#include <algorithm>

#include "text/jinja/unicode.h"
#include "text/utf8.h"

namespace riptide::jinja {
namespace {

std::string normalize_newlines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') out += source[i];
        else if (i + 1 == source.size() || source[i + 1] != '\n') out += '\n';
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0; }
bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_decimal(c); }

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(source) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) root();
        push(Tok::end, "");
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void fail_here(const std::string& message) {
        sync();
        throw SourceFault(message, line_, column_);
    }
    /// Brings line and column up to at_.
    void sync() {
        for (; synced_ < at_; ++synced_) {
            if (source_[synced_] == '\n') ++line_, column_ = 1;
            else if ((source_[synced_] & 0xC0) != 0x80) ++column_;
        }
    }
    void push(Tok type, std::string text) {
        sync();
        tokens_.push_back({type, std::move(text), line_, column_});
    }
    bool starts(std::string_view text) const { return source_.substr(at_).starts_with(text); }
    void skip_space() {
        while (at_ < source_.size()) {
            const Char c = char_at(source_, static_cast<int64_t>(at_));
            if (!is_space(c.code)) break;
            at_ += static_cast<std::size_t>(c.bytes);
        }
    }

    void root();
    void data(std::string_view text, char sign, bool lstrip);
    void comment();
    bool raw_block();
    void inside(Tok end_type, std::string_view end_mark);
    bool tag_end(Tok end_type, std::string_view end_mark);
    void string_token();
    char32_t hex_escape(int digits);
    void escape(std::string& out);
    void number_token();
    void operator_token();

    std::string_view source_;
    std::size_t at_ = 0;
    std::size_t synced_ = 0;
    int line_ = 1, column_ = 1;
    bool line_start_ = true;  // the last thing matched ended a line
    std::vector<Token> tokens_;
    std::string brackets_;
};

/// Text up to the next tag, then the tag.
void Lexer::root() {
    std::size_t open = at_;
    while (true) {
        open = source_.find('{', open);
        if (open == std::string_view::npos || open + 1 >= source_.size()) {
            data(source_.substr(at_), 0, false);
            at_ = source_.size();
            return;
        }
        const char kind = source_[open + 1];
        if (kind == '{' || kind == '%' || kind == '#') break;
        ++open;
    }
    const char kind = source_[open + 1];
    const char sign =
        open + 2 < source_.size() && (source_[open + 2] == '-' || source_[open + 2] == '+') ? source_[open + 2] : '\0';
    data(source_.substr(at_, open - at_), sign, kind != '{');
    at_ = open;
    if (kind == '#') return comment();
    if (kind == '%' && raw_block()) return;
    push(kind == '{' ? Tok::print_begin : Tok::block_begin, "");
    at_ += sign == '\0' ? 2 : 3;
    line_start_ = false;
    inside(kind == '{' ? Tok::print_end : Tok::block_end, kind == '{' ? "}}" : "%}");
}

/// A piece of text, its end stripped as the tag behind it asks.
void Lexer::data(std::string_view text, char sign, bool lstrip) {
    const std::size_t full = text.size();
    if (sign == '-') {
        text = text.substr(0, static_cast<std::size_t>(strip_range(text, nullptr, false, true).end));
    } else if (sign != '+' && lstrip) {
        const std::size_t newline = text.rfind('\n');
        const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
        if (start > 0 || line_start_) {
            const Kept kept = strip_range(text.substr(start), nullptr, true, false);
            if (kept.begin == kept.end) text = text.substr(0, start);
        }
    }
    if (!text.empty()) push(Tok::data, std::string(text));
    if (full > 0) line_start_ = false;
}

void Lexer::comment() {
    const std::size_t begin = at_ + 2 + (starts("{#-") || starts("{#+") ? 1 : 0);
    const std::size_t close = source_.find("#}", begin);
    if (close == std::string_view::npos) fail_here("a comment is not closed by '#}'");
    const char sign = close > begin ? source_[close - 1] : '\0';
    at_ = close + 2;
    const std::size_t before = at_;
    if (sign == '-') skip_space();
    else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') ++at_;
    line_start_ = at_ > before && source_[at_ - 1] == '\n';
}

/// {% raw %} ... {% endraw %}, if one begins here.
bool Lexer::raw_block() {
    const auto word = [&](std::size_t from, std::string_view name, std::size_t& close) {
        std::size_t i = from;
        if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
        while (i < source_.size() && is_space(static_cast<unsigned char>(source_[i]))) ++i;
        if (!source_.substr(i).starts_with(name)) return false;
        i += name.size();
        while (i < source_.size() && is_space(static_cast<unsigned char>(source_[i]))) ++i;
        close = i;
        if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
        return source_.substr(i).starts_with("%}");
    };
    std::size_t close = 0;
    if (!word(at_ + 2, "raw", close) || source_[close] == '+') return false;
    const std::size_t begun = at_;
    at_ = close + (source_[close] == '-' ? 3 : 2);
    if (source_[close] == '-') skip_space();
    line_start_ = source_[at_ - 1] == '\n';
    if (at_ == source_.size()) return true;  // Jinja does not mind one that is never closed if it is empty
    for (std::size_t open = source_.find("{%", at_); open != std::string_view::npos;
         open = source_.find("{%", open + 2)) {
        if (!word(open + 2, "endraw", close)) continue;
        data(source_.substr(at_, open - at_), source_[open + 2], true);
        const char sign = source_[close];
        at_ = close + (sign == '%' ? 2 : 3);
        if (sign == '-') skip_space();
        else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') ++at_;
        line_start_ = source_[at_ - 1] == '\n';
        return true;
    }
    at_ = begun;
    fail_here("a raw block is not closed by '{% endraw %}'");
}

/// The end of the tag, with its white space control.
bool Lexer::tag_end(Tok end_type, std::string_view end_mark) {
    char sign = source_[at_];
    if (sign != '-' && !(sign == '+' && end_type == Tok::block_end)) sign = '\0';
    const std::size_t length = sign == '\0' ? 0 : 1;
    if (!source_.substr(at_ + length).starts_with(end_mark)) return false;
    push(end_type, "");
    at_ += length + 2;
    if (sign == '-') skip_space();
    else if (sign == '\0' && end_type == Tok::block_end && at_ < source_.size() && source_[at_] == '\n') ++at_;
    line_start_ = source_[at_ - 1] == '\n';
    return true;
}

void Lexer::inside(Tok end_type, std::string_view end_mark) {
    brackets_.clear();
    while (true) {
        skip_space();
        if (at_ >= source_.size()) {
            fail_here(fmt::format("the template ends inside a tag, which should be closed by '{}'", end_mark));
        }
        if (brackets_.empty() && tag_end(end_type, end_mark)) return;
        const char c = source_[at_];
        if (is_decimal(c)) {
            number_token();
        } else if (is_name_start(c)) {
            std::size_t end = at_;
            while (end < source_.size() && is_name_part(source_[end])) ++end;
            push(Tok::name, std::string(source_.substr(at_, end - at_)));
            at_ = end;
        } else if (c == '"' || c == '\'') {
            string_token();
        } else {
            operator_token();
        }
    }
}

void Lexer::operator_token() {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
        if (!starts(op)) continue;
        const char c = op[0];
        if (c == '(' || c == '[' || c == '{') brackets_ += c == '(' ? ')' : static_cast<char>(c + 2);
        if (c == ')' || c == ']' || c == '}') {
            if (brackets_.empty()) fail_here(fmt::format("unexpected '{}'", c));
            if (brackets_.back() != c) fail_here(fmt::format("unexpected '{}', expected '{}'", c, brackets_.back()));
            brackets_.pop_back();
        }
        push(Tok::op, std::string(op));
        at_ += op.size();
        return;
    }
    const int bytes = char_at(source_, static_cast<int64_t>(at_)).bytes;
    fail_here(fmt::format("unexpected character '{}'", source_.substr(at_, static_cast<std::size_t>(bytes))));
}

void Lexer::number_token() {
    std::size_t end = at_;
    const auto digits = [&](auto accepts) {  // digits with single underscores between them
        while (end < source_.size() && (accepts(source_[end]) ||
                                        (source_[end] == '_' && end + 1 < source_.size() && accepts(source_[end + 1]))))
            ++end;
    };
    const char kind = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
    const auto hex = [](char c) { return is_decimal(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); };
    if (source_[at_] == '0' && (kind == 'x' || kind == 'o' || kind == 'b')) {
        end += 2;
        if (kind == 'x') digits(hex);
        else if (kind == 'o') digits([](char c) { return c >= '0' && c <= '7'; });
        else digits([](char c) { return c == '0' || c == '1'; });
        if (end == at_ + 2) fail_here("a number has no digits");
        push(Tok::integer, std::string(source_.substr(at_, end - at_)));
        at_ = end;
        return;
    }
    digits(is_decimal);
    bool real = false;
    const auto digit_at = [&](std::size_t i) { return i < source_.size() && is_decimal(source_[i]); };
    if (at_ == 0 || source_[at_ - 1] != '.') {
        if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
            real = true;
            ++end;
            digits(is_decimal);
        }
        if (end < source_.size() && (source_[end] | 0x20) == 'e') {
            const bool sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
            if (digit_at(end + (sign ? 2 : 1))) {
                real = true;
                end += sign ? 2 : 1;
                digits(is_decimal);
            }
        }
    }
    push(real ? Tok::floating : Tok::integer, std::string(source_.substr(at_, end - at_)));
    at_ = end;
}

void Lexer::string_token() {
    push(Tok::string, "");
    const char quote = source_[at_++];
    std::string& out = tokens_.back().text;
    const Token& token = tokens_.back();
    while (true) {
        if (at_ >= source_.size()) throw SourceFault("a string is not closed", token.line, token.column);
        const char c = source_[at_++];
        if (c == quote) return;
        if (c == '\\') escape(out);
        else out += c;
    }
}

char32_t Lexer::hex_escape(int digits) {
    char32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
        const char c = at_ < source_.size() ? source_[at_] : '\0';
        if (is_decimal(c)) code = code * 16 + static_cast<char32_t>(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            code = code * 16 + static_cast<char32_t>((c | 0x20) - 'a' + 10);
        else fail_here("a string has an unfinished escape");
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        fail_here("a string escapes something that is no character");
    return code;
}

/// What stands after a backslash. An escape that Python does not know keeps its backslash.
void Lexer::escape(std::string& out) {
    if (at_ >= source_.size()) return;
    const char c = source_[at_++];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    const std::size_t simple = kFrom.find(c);
    if (simple != std::string_view::npos) {
        out += kTo[simple];
    } else if (c == 'x' || c == 'u' || c == 'U') {
        append_utf8(out, hex_escape(c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c >= '0' && c <= '7') {
        char32_t code = static_cast<char32_t>(c - '0');
        for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7'; ++i, ++at_) {
            code = code * 8 + static_cast<char32_t>(source_[at_] - '0');
        }
        append_utf8(out, code);
    } else if (c == 'N') {
        fail_here("characters by name (\\N{...}) are not supported");
    } else if (c != '\n') {
        out += '\\';
        out += c;
    }
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
    const std::size_t valid = utf8_valid_prefix(source);
    if (valid != source.size()) {
        const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(valid), '\n');
        throw SourceFault(fmt::format("byte {} is not UTF-8", valid), static_cast<int>(line), 1);
    }
    const std::string text = normalize_newlines(source);
    return Lexer(text).run();
}

}  // namespace riptide::jinja
