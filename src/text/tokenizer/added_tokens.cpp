#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace riptide {
namespace {

bool is_white_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Bytes of white space at the start of the text.
std::size_t white_space_at_start(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const Utf8Char c = utf8_at(text, at);
        if (c.kind != Utf8Char::Kind::character || !is_white_space(c.code_point)) break;
        at += static_cast<std::size_t>(c.length);
    }
    return at;
}

// Bytes of white space at the end of the text.
std::size_t white_space_at_end(std::string_view text) {
    std::size_t end = text.size();
    while (end > 0) {
        std::size_t begin = end - 1;
        while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
        const Utf8Char c = utf8_at(text.substr(0, end), begin);
        if (c.kind != Utf8Char::Kind::character || !is_white_space(c.code_point)) break;
        if (begin + static_cast<std::size_t>(c.length) != end) break;
        end = begin;
    }
    return text.size() - end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
    for (const AddedToken& token : tokens_) starts_[static_cast<unsigned char>(token.text[0])] = true;
}

// Narrows the sorted list byte by byte to the tokens that agree with the text so far.
const AddedToken* AddedTokens::longest_at(std::string_view text) const {
    const AddedToken* best = nullptr;
    auto low = tokens_.begin();
    auto high = tokens_.end();
    for (std::size_t depth = 0; depth < text.size() && low != high; ++depth) {
        const auto byte = static_cast<unsigned char>(text[depth]);
        const auto at = [&](const AddedToken& token) { return static_cast<unsigned char>(token.text[depth]); };
        low = std::partition_point(
            low, high, [&](const AddedToken& token) { return token.text.size() <= depth || at(token) < byte; });
        high = std::partition_point(low, high, [&](const AddedToken& token) { return at(token) <= byte; });
        if (low != high && low->text.size() == depth + 1) best = &*low;
    }
    return best;
}

void AddedTokens::find(std::string_view text, TextSpan where, std::vector<Found>& out) const {
    if (tokens_.empty()) return;
    auto at = static_cast<std::size_t>(where.begin);
    auto free = at;  // where the text behind the last token begins
    const auto end = static_cast<std::size_t>(where.end);
    while (at < end) {
        const AddedToken* token = nullptr;
        if (starts_[static_cast<unsigned char>(text[at])]) token = longest_at(text.substr(at, end - at));
        if (token == nullptr) {
            ++at;
            continue;
        }
        std::size_t begin = at;
        std::size_t stop = at + token->text.size();
        if (token->lstrip) begin -= white_space_at_end(text.substr(free, begin - free));
        if (token->rstrip) stop += white_space_at_start(text.substr(stop, end - stop));
        out.push_back({{static_cast<int64_t>(begin), static_cast<int64_t>(stop)}, token->id});
        at = free = stop;
    }
}

}  // namespace riptide
