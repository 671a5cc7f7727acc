// Laws: a call that is written as a template writes it is parsed to the values that were written, whole and in pieces,
// and the grammar of the answer takes it; damaged, it gives sound arguments, and no text in them holds the end of a
// value and the beginning of the next. Input: choices, of which tools, a dialect, a call and a damage are made.
#include "tests/fuzz/call_maker.h"
#include "tests/fuzz/stream_laws.h"
#include "tests/text/crossing_vocabulary.h"
#include "tests/text/schema_judge.h"

namespace {

using namespace riptide;
using namespace riptide::fuzz;

std::string shown(const WrittenAnswer& answer, std::string_view input) {
    std::string out = json::serialize(answer.form.tools) + "\n";
    for (const char c : input) {
        const int k = static_cast<unsigned char>(c) - 0xF8;
        if (k >= 0) out += answer.markers[static_cast<std::size_t>(k)];
        else out += c;
    }
    return out;
}

void require_written(const WrittenAnswer& answer, const std::vector<Arguments>& parsed) {
    const std::string all = shown(answer, answer.input);
    require(parsed.size() == answer.calls.size(), "as many calls as were written", all);
    for (std::size_t i = 0; i < parsed.size(); ++i) {
        require(parsed[i].complete && parsed[i].name == answer.calls[i].name, "calls are those that were written", all);
        require(testing::SchemaJudge::equal(json::parse(parsed[i].text), answer.calls[i].arguments),
                "arguments are those that were written", all + "\n" + parsed[i].text);
    }
}

void require_by_grammar(const WrittenAnswer& answer) {
    const auto& tokenizer = testing::crossing_tokenizer();
    const auto constraint =
        Constraint::compile(answer.dialect->grammar(answer.form, nullptr), testing::crossing_trie(), testing::kNoShortWalks);
    ConstraintState state = constraint->start();
    for (std::size_t i = 0; i < answer.input.size(); ++i) {
        const int k = static_cast<unsigned char>(answer.input[i]) - 0xF8;
        const std::string_view text =
            k >= 0 ? answer.markers[static_cast<std::size_t>(k)] : std::string_view(answer.input).substr(i, 1);
        require(state.accept(tokenizer.id_of(text)), "the grammar takes what a template writes",
                shown(answer, std::string_view(answer.input).substr(0, i + 1)));
    }
    require(state.can_end(), "the grammar may end where a template does", shown(answer, answer.input));
}

/// Without some bytes, or with some twice.
std::string damaged(std::string text, ByteSource& bytes) {
    const auto up_to = [&](std::size_t most) {
        return static_cast<std::size_t>(bytes.next(256) * 256 + bytes.next(256)) % (most + 1);
    };
    const bool twice = bytes.next(2) == 1;
    const std::size_t from = up_to(text.size()), count = up_to(std::min<std::size_t>(text.size() - from, 80));
    if (twice) text.insert(from, text.substr(from, count));
    else text.erase(from, count);
    return text;
}

/// `end`, white space and `next` in a text of a call's own.
bool holds_border(std::string_view text, std::string_view end, std::string_view next) {
    for (std::size_t at = 0; (at = text.find(end, at)) != std::string_view::npos; ++at) {
        const std::size_t behind = text.find_first_not_of(kCallSpace, at + end.size());
        if (behind != std::string_view::npos && text.substr(behind).starts_with(next)) return true;
    }
    return false;
}

void require_no_borders(const WrittenAnswer& answer, const std::vector<Arguments>& parsed, const std::string& input) {
    const ToolSchemas tools(answer.form.tools);
    for (const Arguments& call : parsed) {
        if (!call.complete || answer.end.empty()) continue;
        const json::value value = json::parse(call.text);
        for (const auto& [key, one] : value.get_object())
            if (tools.type_of(call.name, key) == ToolSchemas::Type::string)
                require(!holds_border(one.as_string(), answer.end, answer.next), "a value ends where its tag is",
                        shown(answer, input) + "\n" + call.text);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    ByteSource bytes(data, size);
    const WrittenAnswer answer = CallMaker(bytes).answer();
    ParserOptions options;
    options.newline_framing = answer.form.newline_framing;
    options.strict_specials = bytes.next(2) == 0;
    options.tools = ToolSchemas(answer.form.tools);
    const auto parse = [&](std::string_view input) {
        return check_pieces(answer.dialect->make_parser, options, answer.markers, input);
    };
    require_written(answer, parse(answer.input));
    if (answer.by_grammar && bytes.next(3) == 0) require_by_grammar(answer);  // it takes long
    for (int i = 0; i < 3; ++i) {
        const std::string input = damaged(answer.input, bytes);
        require_no_borders(answer, parse(input), input);
    }
    return 0;
}
