#include "text/dialects/dialect.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "text/dialects/laguna.h"
#include "text/dialects/qwen.h"

namespace riptide {

namespace {

constexpr std::array<std::string_view, 2> kLagunaTokens = {"<assistant>", "</think>"};
constexpr std::array<std::string_view, 3> kQwenTokens = {"<|im_end|>", "<tool_call>", "</tool_call>"};
constexpr std::array<std::string_view, 1> kLagunaStops = {"</assistant>"};
constexpr std::array<std::string_view, 2> kQwenStops = {"<|im_end|>", "<|endoftext|>"};

constexpr std::array<Dialect, 3> kDialects = {{
    {.name = "laguna",
     .tokens = kLagunaTokens,
     .stops = kLagunaStops,
     .line_before_end_think = false,
     .fits = [](const ChatTraits&) { return true; },
     .make_parser = make_laguna_parser,
     .grammar = laguna_grammar},
    {.name = "qwen-tags",
     .tokens = kQwenTokens,
     .stops = kQwenStops,
     .line_before_end_think = true,
     .fits = [](const ChatTraits& traits) { return traits.im_tags && traits.calls == CallForm::function_tags; },
     .make_parser = make_qwen_parser,
     .grammar = qwen_tags_grammar},
    {.name = "qwen-json",
     .tokens = kQwenTokens,
     .stops = kQwenStops,
     .line_before_end_think = true,
     .fits = [](const ChatTraits& traits) { return traits.im_tags; },
     .make_parser = make_qwen_parser,
     .grammar = qwen_json_grammar},
}};

}  // namespace

std::span<const Dialect> dialects() { return kDialects; }

const Dialect* find_dialect(const ChatTraits& traits, const Tokenizer& tokenizer) {
    const auto speaks = [&](const Dialect& dialect) {
        return dialect.fits(traits) &&
               std::all_of(dialect.tokens.begin(), dialect.tokens.end(), [&](std::string_view token) {
                   const int32_t id = tokenizer.id_of(token);
                   return id >= 0 && tokenizer.is_added(id);
               });
    };
    const auto found = std::find_if(kDialects.begin(), kDialects.end(), speaks);
    return found == kDialects.end() ? nullptr : &*found;
}

std::string known_dialects() {
    std::string out;
    for (const Dialect& dialect : kDialects)
        out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", dialect.name, fmt::join(dialect.tokens, ", "));
    return out;
}

}  // namespace riptide
