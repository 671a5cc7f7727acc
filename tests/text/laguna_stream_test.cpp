// Laguna's stream parser: generated answers, cut everywhere; and each rule of the header.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/text/laguna_answers.h"
#include "base/json.h"
#include "text/utf8.h"

namespace riptide {
namespace {

using namespace testing_laguna;

constexpr unsigned kLagunaSeed = 20260731;
constexpr int kLagunaAnswers = 300;

StreamEvents parse_laguna(const ParserOptions& options, const std::vector<Piece>& pieces) {
    return testing_stream::parse([&] { return make_laguna_parser(options); }, pieces);
}

TEST(laguna_stream, generated_answers_survive_every_split) {
    LagunaGenerator generator(kLagunaSeed);
    int loose = 0;
    int calls = 0;
    for (int n = 0; n < kLagunaAnswers; ++n) {
        const Answer answer = generator.answer();
        SCOPED_TRACE("seed " + std::to_string(kLagunaSeed) + " answer " + std::to_string(n) + ": " +
                     as_text(answer.pieces)[0].text);
        calls += static_cast<int>(answer.calls.size());
        for (const bool strict : {true, false}) {
            if (!strict && answer.spells_markers) continue;
            loose += strict ? 0 : 1;
            const auto options = laguna_options(answer.thinking, answer.newlines, strict);
            const std::vector<Piece> pieces = strict ? answer.pieces : as_text(answer.pieces);
            const StreamEvents whole = parse_laguna(options, pieces);
            expect_answer(answer, whole);
            expect_sound(whole);
            const auto expected = joined(whole);
            EXPECT_EQ(joined(parse_laguna(options, byte_by_byte(pieces))), expected);
            for_each_cut(pieces, false,
                         [&](const auto& cut) { EXPECT_EQ(joined(parse_laguna(options, cut)), expected); });
            if (HasFailure()) return;
        }
    }
    EXPECT_GE(loose, 100);
    EXPECT_GE(calls, 200);
}

TEST(laguna_stream, generated_answers_survive_every_truncation) {
    LagunaGenerator generator(kLagunaSeed + 1);
    for (int n = 0; n < kLagunaAnswers; ++n) {
        const Answer answer = generator.answer();
        SCOPED_TRACE("seed " + std::to_string(kLagunaSeed + 1) + " answer " + std::to_string(n) + ": " +
                     as_text(answer.pieces)[0].text);
        for (const bool strict : {true, false}) {
            if (!strict && answer.spells_markers) continue;
            const auto options = laguna_options(answer.thinking, answer.newlines, strict);
            const std::vector<Piece> pieces = strict ? answer.pieces : as_text(answer.pieces);
            for_each_cut(pieces, true, [&](const auto& cut) {
                const StreamEvents events = parse_laguna(options, cut);
                expect_truncation(answer, strict, events);
                EXPECT_EQ(joined(parse_laguna(options, byte_by_byte(cut))), joined(events));
            });
            if (HasFailure()) return;
        }
    }
}

TEST(laguna_stream, any_bytes_give_sound_events_however_they_are_cut) {
    static const char* const parts[] = {"<tool_call>",
                                        "</tool_call>",
                                        "<think>",
                                        "</think>",
                                        "</assistant>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "\n",
                                        " ",
                                        "f",
                                        "<",
                                        "\xE2",
                                        "\x82",
                                        "\xAC",
                                        "\xFF",
                                        "\"",
                                        "{",
                                        "1",
                                        "path",
                                        "edit"};
    std::mt19937 random(kLagunaSeed);
    for (int n = 0; n < 4000; ++n) {
        std::vector<Piece> pieces;
        for (unsigned k = random() % 24; k > 0; --k)
            pieces.push_back({parts[random() % std::size(parts)], random() % 2 == 0});
        for (const bool strict : {true, false}) {
            const bool second = random() % 2 == 0, first = random() % 2 == 0;
            const auto options = laguna_options(first, second, strict);
            const StreamEvents events = parse_laguna(options, pieces);
            expect_sound(events);
            if (strict) {
                std::vector<Piece> split;
                for (const Piece& p : pieces) {
                    const auto bytes = p.special ? std::vector<Piece>{p} : byte_by_byte({p});
                    split.insert(split.end(), bytes.begin(), bytes.end());
                }
                EXPECT_EQ(joined(parse_laguna(options, split)), joined(events));
            } else {
                const auto text = as_text(pieces);
                EXPECT_EQ(joined(parse_laguna(options, byte_by_byte(text))), joined(parse_laguna(options, text)));
            }
        }
        if (HasFailure()) return;
    }
}

// Loose mode with newline framing: what `text` becomes.
std::vector<std::string> read_laguna(const std::string& text, bool thinking = false) {
    return joined(parse_laguna(laguna_options(thinking, true, false), {{text, false}}));
}
using Lines = std::vector<std::string>;

TEST(laguna_stream, v5_answer_with_thinking_and_a_call) {
    EXPECT_EQ(read_laguna(
                  "\nI think.\n</think>\nHello.\n<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a b</arg_value>\n"
                  "<arg_key>line</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n</assistant>",
                  true),
              (Lines{"reasoning: I think.", "text: Hello.", "begin 0 call_0 edit",
                     "args 0: {\"path\": \"a b\", \"line\": 3}", "end 0", "finish 1 closed"}));
}

TEST(laguna_stream, v8_answer_is_verbatim) {
    const auto options = laguna_options(true, false, false);
    EXPECT_EQ(
        joined(parse_laguna(options, {{"\nR\n</think>\nC\n<tool_call>f</tool_call>\n", false}})),
        (Lines{"reasoning: \nR\n", "text: \nC\n", "begin 0 call_0 f", "args 0: {}", "end 0", "text: \n", "finish 1"}));
}

TEST(laguna_stream, only_one_framing_newline_is_dropped) {
    EXPECT_EQ(read_laguna("\n\nA\n\n</assistant>"), (Lines{"text: \nA\n", "finish 0 closed"}));
}

TEST(laguna_stream, an_answer_that_goes_on_keeps_its_first_newlines) {
    ParserOptions options = laguna_options(false, true, true);
    EXPECT_EQ(joined(parse_laguna(options, {{"\nA", false}})), (Lines{"text: A", "finish 0"}));
    options.continues = true;
    EXPECT_EQ(joined(parse_laguna(options, {{"\nA", false}})), (Lines{"text: \nA", "finish 0"}));
    EXPECT_EQ(joined(parse_laguna(options, {{"<think>", true}, {"A", false}})), (Lines{"text: <think>A", "finish 0"}));
    EXPECT_EQ(
        joined(parse_laguna(options, {{"\n", false}, {"<tool_call>", true}, {"f", false}, {"</tool_call>", true}})),
        (Lines{"begin 0 call_0 f", "args 0: {}", "end 0", "finish 1"}));
}

TEST(laguna_stream, zero_argument_calls_with_and_without_newline) {
    for (const char* call :
         {"<tool_call>f</tool_call>", "<tool_call>f\n</tool_call>", "<tool_call>\nf \n</tool_call>"}) {
        EXPECT_EQ(read_laguna(call), (Lines{"begin 0 call_0 f", "args 0: {}", "end 0", "finish 1"})) << call;
    }
}

TEST(laguna_stream, call_inside_thinking_ends_thinking) {
    EXPECT_EQ(read_laguna("Hm.\n<tool_call>f</tool_call>\nDone", true),
              (Lines{"reasoning: Hm.", "begin 0 call_0 f", "args 0: {}", "end 0", "text: Done", "finish 1"}));
}

TEST(laguna_stream, stray_tags_outside_calls) {
    EXPECT_EQ(read_laguna("</think>\nA</think>B</tool_call>C"), (Lines{"text: AB</tool_call>C", "finish 0"}));
    EXPECT_EQ(read_laguna("<think>\nR</think>\nA <think>b</think> c"),
              (Lines{"reasoning: R", "text: A <think>b</think> c", "finish 0"}));
    EXPECT_EQ(read_laguna("<think>R <think> S</think>A", true),
              (Lines{"reasoning: R <think> S", "text: A", "finish 0"}));
}

TEST(laguna_stream, unterminated_thinking_is_reasoning) {
    EXPECT_EQ(read_laguna("never ends", true), (Lines{"reasoning: never ends", "finish 0"}));
}

TEST(laguna_stream, what_is_no_call_is_text) {
    EXPECT_EQ(read_laguna("a\n<tool_call></tool_call>b"), (Lines{"text: a\n<tool_call></tool_call>b", "finish 0"}));
    EXPECT_EQ(read_laguna("<tool_call>not a name\n"), (Lines{"text: <tool_call>not a name", "finish 0"}));
    EXPECT_EQ(read_laguna("<tool_call>{\"name\": 1}</tool_call>"),
              (Lines{"text: <tool_call>{\"name\": 1}</tool_call>", "finish 0"}));
    EXPECT_EQ(read_laguna("<tool_call>get_wea</assistant>"), (Lines{"text: <tool_call>get_wea", "finish 0 closed"}))
        << "the model has ended its turn";
    EXPECT_EQ(read_laguna("<tool_call><arg_key>k</arg_key>"),
              (Lines{"text: <tool_call><arg_key>k</arg_key>", "finish 0"}));
    EXPECT_EQ(read_laguna("use <tool_call> in tags</think>A", true),
              (Lines{"reasoning: use <tool_call> in tags", "text: A", "finish 0"}));
    EXPECT_EQ(
        collect(parse_laguna(laguna_options(false, true, false), {{"<tool_call>" + std::string(1000, 'x'), false}}))
            .content,
        "<tool_call>" + std::string(1000, 'x'));
}

TEST(laguna_stream, a_name_that_no_tool_can_have_is_text) {
    for (const std::string name : {"r\xC3\xA9sum\xC3\xA9", "a@b", "f()", "<f>", "\x7f", "$"})
        for (const std::string end : {"\n</tool_call>", "</tool_call>", "<arg_key>a</arg_key>"})
            EXPECT_EQ(read_laguna("<tool_call>" + name + end), (Lines{"text: <tool_call>" + name + end, "finish 0"}));
    const std::string longest(128, 'a');
    EXPECT_EQ(read_laguna("<tool_call>" + longest + "</tool_call>").at(0), "begin 0 call_0 " + longest);
    EXPECT_EQ(read_laguna("<tool_call>" + longest + "a</tool_call>").size(), 2u);
    EXPECT_EQ(read_laguna("<tool_call>A-z/_0.9:</tool_call>").at(0), "begin 0 call_0 A-z/_0.9:");
    ParserOptions options = laguna_options(false, true, false);
    options.tools = ToolSchemas(json::parse(R"([{"name": "a@b"}])").as_array());
    EXPECT_EQ(joined(parse_laguna(options, {{"<tool_call>a@b</tool_call>", false}})).at(0), "begin 0 call_0 a@b")
        << "who offers it can take it";
}

TEST(laguna_stream, without_tools_there_are_no_calls) {
    for (const bool strict : {false, true}) {
        ParserOptions options = laguna_options(true, true, strict);
        options.calls = false;
        const std::vector<Piece> pieces = {
            {"\nHm <", false},      {"tool_call>", false},
            {"<tool_call>", true},  {"f\n</", false},
            {"</think>", true},     {"\nSo:\n", false},
            {"<tool_call>", true},  {"f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n", false},
            {"</tool_call>", true}, {"\n", false}};
        EXPECT_EQ(joined(parse_laguna(options, pieces)),
                  (Lines{"reasoning: Hm <tool_call><tool_call>f\n</",
                         "text: So:\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
                         "finish 0"}));
    }
}

TEST(laguna_stream, closing_tags_inside_values) {
    const std::string head = "<tool_call>edit\n<arg_key>text</arg_key>\n<arg_value>";
    const auto value_of = [&](const std::string& tail) {
        const Collected got = collect(parse_laguna(laguna_options(false, true, false), {{head + tail, false}}));
        return got.calls.size() == 1
                   ? parse_json(got.calls[0].arguments, "arguments").as_object().at("text").as_string().c_str()
                   : std::to_string(got.calls.size()) + " calls";
    };
    EXPECT_EQ(value_of("a</arg_value>b</arg_value>\n</tool_call>"), "a</arg_value>b");
    EXPECT_EQ(value_of("a</arg_value></arg_value></tool_call>"), "a</arg_value>");
    EXPECT_EQ(value_of("a</tool_call> b</arg_value></tool_call>"), "a</tool_call> b");
    EXPECT_EQ(value_of("a</tool_call></arg_value></tool_call>"), "a</tool_call>");
    EXPECT_EQ(value_of("a</tool_call>\n</assistant>"), "a");
    EXPECT_EQ(value_of("a</tool_call>\n"), "a");
    EXPECT_EQ(value_of("a</tool_call>\n<tool_call>f</tool_call>"), "2 calls");
    EXPECT_EQ(value_of("<tool_call>a</arg_value><tool_call>f</tool_call>"), "2 calls");
    EXPECT_EQ(value_of("\n a\n </arg_value></tool_call>"), "\n a\n ");
}

TEST(laguna_stream, keys_that_do_not_count) {
    EXPECT_EQ(
        read_laguna(
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key> a </arg_key><arg_value>2</arg_value>"
            "<arg_key></arg_key><arg_value>3</arg_value><arg_key>no "
            "value</arg_key><arg_key>b</arg_key><arg_value>4</arg_value></tool_call>"),
        (Lines{"begin 0 call_0 f", "args 0: {\"a\": 1, \"b\": 4}", "end 0", "finish 1"}));
}

TEST(laguna_stream, text_between_the_parts_of_a_call_is_delivered_behind_it) {
    EXPECT_EQ(read_laguna("<tool_call>f\njunk here<arg_key>a</arg_key>: <arg_value>1</arg_value></tool_call>\nDone"
                          "<tool_call>g</tool_call>"),
              (Lines{"begin 0 call_0 f", "args 0: {\"a\": 1}", "end 0", "text: junk here: Done", "begin 1 call_1 g",
                     "args 1: {}", "end 1", "finish 2"}));
}

TEST(laguna_stream, a_call_that_is_cut_before_it_has_a_name_is_not_shown) {
    for (const std::string cut :
         {"<tool_call>", "<tool_call>\n", "<tool_call>get_wea", "<tool_call>edit<arg", "<tool_call>a</too"}) {
        EXPECT_EQ(read_laguna(cut), Lines{"finish 0"}) << cut;
        EXPECT_EQ(read_laguna("Let me see.\n" + cut), (Lines{"text: Let me see.", "finish 0"})) << cut;
        EXPECT_EQ(read_laguna("Hm.\n" + cut, true), (Lines{"reasoning: Hm.", "finish 0"})) << cut;
        EXPECT_EQ(read_laguna("<tool_call>f</tool_call>\n" + cut),
                  (Lines{"begin 0 call_0 f", "args 0: {}", "end 0", "finish 1"}));
    }
    const auto strict = laguna_options(false, true, true);
    EXPECT_EQ(joined(parse_laguna(strict, {{"A\n", false}, {"<tool_call>", true}, {"ed", false}})),
              (Lines{"text: A", "finish 0"}));
    EXPECT_EQ(joined(parse_laguna(strict, {{"<tool_call>", true}, {"\xC3", false}})), Lines{"finish 0"});
}

TEST(laguna_stream, cut_calls_stay_open_and_are_marked) {
    EXPECT_EQ(read_laguna("<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>/tmp/\"x</arg_va"),
              (Lines{"begin 0 call_0 edit", "args 0: {\"path\": \"/tmp/\\\"x", "end 0 cut", "finish 1"}));
    EXPECT_EQ(read_laguna("<tool_call>edit\n<arg_key>list</arg_key>\n<arg_value>[1, 2"),
              (Lines{"begin 0 call_0 edit", "args 0: {\"list\": ", "end 0 cut", "finish 1"}));
    EXPECT_EQ(read_laguna("<tool_call>edit\n<arg_key>li"),
              (Lines{"begin 0 call_0 edit", "args 0: {", "end 0 cut", "finish 1"}));
    EXPECT_EQ(read_laguna("<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n"),
              (Lines{"begin 0 call_0 edit", "args 0: {\"path\": \"a", "end 0 cut", "finish 1"}))
        << "another argument could have come";
}

TEST(laguna_stream, a_turn_that_ends_closes_its_call) {
    const std::string head = "<tool_call>edit\n", value = "<arg_key>path</arg_key>\n<arg_value>a";
    const Lines empty = {"begin 0 call_0 edit", "args 0: {}", "end 0", "finish 1 closed"};
    const Lines whole = {"begin 0 call_0 edit", "args 0: {\"path\": \"a\"}", "end 0", "finish 1 closed"};
    const Lines open = {"begin 0 call_0 edit", "args 0: {\"path\": \"a", "end 0 cut", "finish 1 closed"};
    EXPECT_EQ(read_laguna(head + "</assistant>"), empty);
    EXPECT_EQ(read_laguna(head + value + "</arg_value>\n</assistant>"), whole);
    EXPECT_EQ(read_laguna(head + value + "</assistant>"), open);
    StreamEvents events;  // the engine does not push what ends a turn
    const auto parser = make_laguna_parser(laguna_options(false, true, false));
    parser->push(head + value + "</arg_value>\n", events);
    parser->end_turn(events);
    parser->finish(events);
    EXPECT_EQ(joined(events), whole);
}

TEST(laguna_stream, nothing_after_the_end_of_the_turn_counts) {
    EXPECT_EQ(read_laguna("A</assistant>B<tool_call>f</tool_call>"), (Lines{"text: A", "finish 0 closed"}));
}

TEST(laguna_stream, spelled_tags_are_text_with_strict_specials) {
    const auto options = laguna_options(false, true, true);
    EXPECT_EQ(joined(parse_laguna(options, {{"say <tool_call>f</tool_call></assistant> now", false}})),
              (Lines{"text: say <tool_call>f</tool_call></assistant> now", "finish 0"}));
    EXPECT_EQ(joined(parse_laguna(options, {{"<tool_call>", true}, {"f", false}, {"</tool_call>", true}})),
              (Lines{"begin 0 call_0 f", "args 0: {}", "end 0", "finish 1"}));
}

TEST(laguna_stream, string_values_stream_before_they_end) {
    StreamEvents events;
    const auto parser = make_laguna_parser(laguna_options(false, true, false));
    parser->push("<tool_call>edit\n<arg_key>text</arg_key>\n<arg_value>one two", events);
    EXPECT_EQ(joined(events).back(), "args 0: {\"text\": \"one two");
    parser->push(" three </arg", events);
    EXPECT_EQ(joined(events).back(), "args 0: {\"text\": \"one two three ");
    parser->finish(events);
}

TEST(laguna_stream, time_is_linear_in_hard_inputs) {
    const std::string head = "<tool_call>edit\n<arg_key>text</arg_key>\n<arg_value>";
    const std::vector<std::string> units = {"<",  "</arg_value>", "</arg_value>\n", "</tool_call> ",
                                            "\n", "<tool_call>",  "</arg_value><",  "a"};
    for (const std::string& unit : units) {
        for (const std::string& start : {std::string(), head}) {
            std::string text = start;
            while (text.size() < 400000) text += unit;
            const auto begin = std::chrono::steady_clock::now();
            const StreamEvents events = parse_laguna(laguna_options(false, true, false), byte_by_byte({{text, false}}));
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            EXPECT_LT(took.count(), 5.0) << unit;  // a quadratic parser takes minutes
            expect_sound({events.back()});
        }
    }
}

TEST(tool_arguments, raw_values_become_json) {
    using Type = ToolSchemas::Type;
    EXPECT_EQ(json_of_raw(" 12 ", Type::any), "12");
    EXPECT_EQ(json_of_raw("True", Type::any), "true");
    EXPECT_EQ(json_of_raw("\nNone\n", Type::any), "null");
    EXPECT_EQ(json_of_raw("[1, {\"a\": 2}]", Type::any), "[1, {\"a\": 2}]");
    EXPECT_EQ(json_of_raw("1 2", Type::any), "\"1 2\"");
    EXPECT_EQ(json_of_raw("", Type::any), "\"\"");
    EXPECT_EQ(json_of_raw("None", Type::nullable_string), "null");
    EXPECT_EQ(json_of_raw("12", Type::nullable_string), "\"12\"");
    const std::string deep = std::string(200000, '[');
    EXPECT_EQ(json_of_raw(deep, Type::any), "\"" + deep + "\"");
}

TEST(tool_arguments, types_come_from_the_schemas) {
    using Type = ToolSchemas::Type;
    const ToolSchemas tools(json::parse(kTools).as_array());
    EXPECT_EQ(tools.type_of("edit", "path"), Type::string);
    EXPECT_EQ(tools.type_of("edit", "mode"), Type::string);
    EXPECT_EQ(tools.type_of("edit", "note"), Type::nullable_string);
    EXPECT_EQ(tools.type_of("edit", "line"), Type::any);
    EXPECT_EQ(tools.type_of("edit", "absent"), Type::any);
    EXPECT_EQ(tools.type_of("ping", "host"), Type::string);
    EXPECT_EQ(tools.type_of("nobody", "host"), Type::any);
    const ToolSchemas odd(
        json::parse(R"([1, {}, {"name": 2}, {"function": []}, {"name": "f", "parameters": {"properties": {"a": 1}}}])")
            .as_array());
    EXPECT_EQ(odd.type_of("f", "a"), Type::any);
}

}  // namespace
}  // namespace riptide
