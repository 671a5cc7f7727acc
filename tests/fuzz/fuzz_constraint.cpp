// Laws: any schema, regular expression or grammar gives a constraint or GrammarError; along any walk the mask holds
// just the tokens that are accepted, and there is one, or the answer may end; a text that may end is JSON if it came
// from a schema. Input: one byte for the kind (s, r, or another: a grammar in either notation), the text, a NUL byte,
// and the choices of the walk.
#include <cstdint>
#include <string_view>

#include "tests/fuzz/fuzz_input.h"
#include "tests/text/small_vocabulary.h"
#include "text/dialects/response_format.h"
#include "text/structured/token_masks.h"

namespace {

using namespace riptide;
using fuzz::require;

const Tokenizer& tokenizer() {
    static const Tokenizer made = [] {
        SmallVocabulary vocabulary;
        vocabulary.merges = {{"{", "\""},      {"\"", ":"},      {"\"", ","}, {"\"", "}"}, {"[", "["}, {"a", "b"},
                             {"\xC3", "\xA4"}, {"\xE2", "\x82"}, {" ", " "},  {"1", "2"},  {"}", "}"}};
        return vocabulary.tokenizer();
    }();
    return made;
}

AnswerFormat format_of(char kind, std::string_view text) {
    if (kind == 's') return {.kind = AnswerFormat::Kind::json_schema, .schema = parse_json(text, "schema", 70)};
    if (kind == 'r') return {.kind = AnswerFormat::Kind::regex, .text = std::string(text)};
    return {.kind = AnswerFormat::Kind::grammar, .text = std::string(text)};
}

void walk(Constraint& constraint, std::string_view choices, bool json) {
    ConstraintState state = constraint.start();
    std::string text;
    for (std::size_t step = 0; step < choices.size() && step < 40; ++step) {
        const auto mask = state.mask();
        std::vector<int32_t> fitting;
        for (int32_t id = 0; id < tokenizer().vocab_size(); ++id) {
            ConstraintState copy = state;
            require(copy.accept(id) == mask->has(id));
            if (mask->has(id)) fitting.push_back(id);
        }
        require(mask->any == !fitting.empty());
        const bool can_end = state.can_end();
        require(can_end || !fitting.empty());
        if (json && can_end) parse_json(text, "the answer", 1000);
        if (fitting.empty()) return;
        const int32_t token = fitting[static_cast<uint8_t>(choices[step]) % fitting.size()];
        require(state.accept(token));
        text += tokenizer().piece(token);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const auto trie = std::make_shared<const TokenTrie>(tokenizer());
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    if (input.size() < 2) return 0;
    const std::size_t end = std::min(input.find('\0'), input.size());
    const std::string_view text = input.substr(1, end - 1);
    const std::string_view choices = input.substr(std::min(end + 1, input.size()));
    std::shared_ptr<Constraint> constraint;
    try {
        Grammar grammar;
        grammar.set_root(add_format(grammar, format_of(input[0], text)));
        constraint = Constraint::compile(grammar, trie, {.bytes = std::size_t{1} << 20, .short_walk = 0});
    } catch (const Error&) {
        return 0;
    }
    try {
        walk(*constraint, choices, input[0] == 's');
    } catch (const GrammarError&) {  // too ambiguous
    }
    return 0;
}
