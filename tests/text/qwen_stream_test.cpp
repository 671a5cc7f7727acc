// Qwen's stream parser: generated answers, cut everywhere; and each rule of the header.
#include <gtest/gtest.h>

#include <chrono>

#include "base/json.h"
#include "tests/text/qwen_answers.h"
#include "text/dialects/json_call.h"

namespace riptide {
namespace {

using namespace testing_qwen;

constexpr unsigned kQwenSeed = 20261122;
constexpr int kQwenAnswers = 300;

StreamEvents parse_qwen(const ParserOptions& options, const std::vector<Piece>& pieces) {
    return testing_stream::parse([&] { return make_qwen_parser(options); }, pieces);
}

/// Runs `f` on generated answers, as tokens and as text.
template <class F>
void for_each_answer(unsigned seed, F f) {
    QwenGenerator generator(seed);
    for (int n = 0; n < kQwenAnswers; ++n) {
        const Answer answer = generator.answer();
        SCOPED_TRACE("seed " + std::to_string(seed) + " answer " + std::to_string(n) + ": " +
                     as_text(answer.pieces)[0].text);
        for (const bool strict : {true, false})
            if (strict || !answer.spells_markers)
                f(answer, strict, qwen_options(answer.thinking, strict),
                  strict ? answer.pieces : as_text(answer.pieces));
        if (::testing::Test::HasFailure()) return;
    }
}

TEST(qwen_stream, generated_answers_survive_every_split) {
    int loose = 0;
    std::size_t calls = 0;
    for_each_answer(kQwenSeed, [&](const Answer& answer, bool strict, const ParserOptions& options,
                                   const auto& pieces) {
        loose += strict ? 0 : 1;
        calls += answer.calls.size();
        const StreamEvents whole = parse_qwen(options, pieces);
        expect_answer(answer, whole);
        expect_sound(whole);
        const auto expected = joined(whole);
        EXPECT_EQ(joined(parse_qwen(options, byte_by_byte(pieces))), expected);
        for_each_cut(pieces, false, [&](const auto& cut) { EXPECT_EQ(joined(parse_qwen(options, cut)), expected); });
    });
    EXPECT_GE(loose, 100);
    EXPECT_GE(calls, 400u);
}

TEST(qwen_stream, generated_answers_survive_every_truncation) {
    for_each_answer(kQwenSeed + 1,
                    [](const Answer& answer, bool strict, const ParserOptions& options, const auto& pieces) {
                        for_each_cut(pieces, true, [&](const auto& cut) {
                            const StreamEvents events = parse_qwen(options, cut);
                            expect_truncation(answer, strict, events, 2, true);
                            EXPECT_EQ(joined(parse_qwen(options, byte_by_byte(cut))), joined(events));
                        });
                    });
}

TEST(qwen_stream, any_bytes_give_sound_events_however_they_are_cut) {
    static const char* const parts[] = {"<tool_call>",
                                        "</tool_call>",
                                        "<think>",
                                        "</think>",
                                        "<|im_end|>",
                                        "<function=",
                                        ">",
                                        "</function>",
                                        "<parameter=",
                                        "path>",
                                        "edit>",
                                        "</parameter>",
                                        "\n",
                                        " ",
                                        "<",
                                        "\xE2",
                                        "\x82",
                                        "\xAC",
                                        "\xFF",
                                        "\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "1",
                                        "\\",
                                        "\\ud83e",
                                        "\\udd99",
                                        "\\u",
                                        "\"name\"",
                                        "\"arguments\"",
                                        "\"f\"",
                                        "{\"name\": \"f\", \"arguments\": {"};
    std::mt19937 random(kQwenSeed);
    for (int n = 0; n < 6000; ++n) {
        std::vector<Piece> pieces;
        if (random() % 2 == 0) pieces.push_back({"<tool_call>", true});
        for (unsigned k = random() % 24; k > 0; --k)
            pieces.push_back({parts[random() % std::size(parts)], random() % 2 == 0});
        for (const bool strict : {true, false}) {
            const auto options = qwen_options(random() % 2 == 0, strict);
            const auto fed = strict ? pieces : as_text(pieces);
            const StreamEvents events = parse_qwen(options, fed);
            expect_sound(events);
            std::vector<Piece> split;
            for (const Piece& p : fed) {
                const bool is_marker = p.special && p.text.front() == '<';
                const auto bytes = is_marker ? std::vector<Piece>{p} : byte_by_byte({{p.text, false}});
                split.insert(split.end(), bytes.begin(), bytes.end());
            }
            EXPECT_EQ(joined(parse_qwen(options, split)), joined(events)) << as_text(pieces)[0].text;
        }
        if (HasFailure()) return;
    }
}

// Loose mode: what `text` becomes.
std::vector<std::string> read_qwen(const std::string& text, bool thinking = false) {
    return joined(parse_qwen(qwen_options(thinking, false), {{text, false}}));
}
using Lines = std::vector<std::string>;

TEST(qwen_stream, an_answer_with_thinking_and_a_call_between_tags) {
    EXPECT_EQ(
        read_qwen("I think.\n</think>\n\nHello.\n\n<tool_call>\n<function=edit>\n<parameter=path>\na b\n</parameter>\n"
                  "<parameter=line>\n3\n</parameter>\n</function>\n</tool_call><|im_end|>",
                  true),
        (Lines{"reasoning: I think.", "text: Hello.", "begin 0 call_0 edit", "args 0: {\"path\": \"a b\", \"line\": 3}",
               "end 0", "finish 1 closed"}));
}

TEST(qwen_stream, an_answer_with_thinking_and_two_calls_in_json) {
    EXPECT_EQ(
        read_qwen(
            "<think>\nI think.\n</think>\n\n<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a b\", "
            "\"line\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>"),
        (Lines{"reasoning: I think.", "begin 0 call_0 edit", "args 0: {\"path\": \"a b\", \"line\": 3}", "end 0",
               "begin 1 call_1 f", "args 1: {}", "end 1", "finish 2 closed"}));
}

TEST(qwen_stream, framing_newlines_are_dropped_and_others_are_not) {
    EXPECT_EQ(read_qwen("\nA\n\n<|im_end|>"), (Lines{"text: \nA\n\n", "finish 0 closed"}));
    EXPECT_EQ(read_qwen("R\n</think>\n\n\nA\n\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n", true),
              (Lines{"reasoning: R", "text: \nA\n", "begin 0 call_0 f", "args 0: {}", "end 0", "finish 1"}));
}

TEST(qwen_stream, stray_tags_outside_calls) {
    EXPECT_EQ(read_qwen("</think>\n\nA</think>B</tool_call>C"), (Lines{"text: AB</tool_call>C", "finish 0"}));
    EXPECT_EQ(read_qwen("never ends", true), (Lines{"reasoning: never ends", "finish 0"}));
    EXPECT_EQ(read_qwen("Hm.\n<tool_call>\n<function=f>\n</function></tool_call>\nDone", true),
              (Lines{"reasoning: Hm.", "begin 0 call_0 f", "args 0: {}", "end 0", "text: Done", "finish 1"}));
}

TEST(qwen_stream, what_is_no_call_is_text) {
    for (const std::string text :
         {"a\n<tool_call></tool_call>b", "<tool_call>\nget_weather", "<tool_call><function=not a name>",
          "<tool_call><function=>x", "<tool_call>[1]</tool_call>", "<tool_call>{\"name\": 1}</tool_call>",
          "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
          "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
          "<tool_call>{\"name\": \"f\", \"arguments\": \"[1]\"}", "<tool_call>{\"name\": \"f\", garbage",
          "<tool_call>{}", "<tool_call>{\"name\": \"\", \"arguments\": {}}"})
        EXPECT_EQ(read_qwen(text), (Lines{"text: " + text, "finish 0"}));
    EXPECT_EQ(read_qwen("use <tool_call> in tags</think>A", true),
              (Lines{"reasoning: use <tool_call> in tags", "text: A", "finish 0"}));
    const std::string endless = "<tool_call><function=" + std::string(1000, 'x');
    EXPECT_EQ(read_qwen(endless), (Lines{"text: " + endless, "finish 0"}));
}

TEST(qwen_stream, a_call_that_is_cut_before_it_has_a_name_is_not_shown) {
    for (const std::string cut :
         {"<tool_call>", "<tool_call>\n", "<tool_call>\n<func", "<tool_call>\n<function=get_wea",
          "<tool_call>{\"name\": \"f", "<tool_call>\n{", "<tool_call>{\"name\": \"f\", \"argu",
          "<tool_call>{\"arguments\": {\"path\": \"/tm", "<tool_call>{\"arguments\": {}, \"na"}) {
        EXPECT_EQ(read_qwen(cut), Lines{"finish 0"}) << cut;
        EXPECT_EQ(read_qwen("Let me see.\n\n" + cut), (Lines{"text: Let me see.", "finish 0"})) << cut;
        EXPECT_EQ(read_qwen("Hm.\n" + cut, true), (Lines{"reasoning: Hm.", "finish 0"})) << cut;
        EXPECT_EQ(read_qwen(cut + "<|im_end|>"), (Lines{"text: " + cut, "finish 0 closed"}))
            << "the model has ended its turn";
    }
}

TEST(qwen_stream, a_name_that_no_tool_can_have_is_text) {
    for (const std::string name : {"r\xC3\xA9sum\xC3\xA9", "a@b", "f()", "$"})
        for (const std::string& call : {"<tool_call><function=" + name + ">\n</function>\n</tool_call>",
                                        "<tool_call>{\"name\": \"" + name + "\", \"arguments\": {}}</tool_call>"}) {
            EXPECT_EQ(read_qwen(call), (Lines{"text: " + call, "finish 0"}));
            ParserOptions options = qwen_options(false, false);
            options.tools = ToolSchemas(json::parse("[{\"name\": \"" + name + "\"}]").as_array());
            EXPECT_EQ(joined(parse_qwen(options, {{call, false}})).size(), 4u) << "who offers it can take it";
        }
}

TEST(qwen_stream, without_tools_there_are_no_calls) {
    ParserOptions options = qwen_options(false, false);
    options.calls = false;
    const std::string text = "So:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n";
    EXPECT_EQ(joined(parse_qwen(options, {{text + "<|im_end|>", false}})), (Lines{"text: " + text, "finish 0 closed"}));
}

TEST(qwen_stream, closing_tags_inside_values) {
    const std::string head = "<tool_call>\n<function=edit>\n<parameter=text>\n";
    const auto value_of = [&](const std::string& tail) {
        const Collected got = collect(parse_qwen(qwen_options(false, false), {{head + tail, false}}));
        return got.calls.size() == 1
                   ? parse_json(got.calls[0].arguments, "arguments").as_object().at("text").as_string().c_str()
                   : std::to_string(got.calls.size()) + " calls";
    };
    const std::string tail = "\n</parameter>\n</function>\n</tool_call>";
    EXPECT_EQ(value_of("a</parameter>b" + tail), "a</parameter>b");
    EXPECT_EQ(value_of("a</parameter>" + tail), "a</parameter>");
    EXPECT_EQ(value_of("a\n</parameter>\n</function>\nb" + tail), "a\n</parameter>\n</function>\nb");
    EXPECT_EQ(value_of("a</tool_call> b" + tail), "a</tool_call> b");
    EXPECT_EQ(value_of("a</tool_call>" + tail), "a</tool_call>");
    EXPECT_EQ(value_of("a</function>" + tail), "a</function>");
    EXPECT_EQ(value_of("a\n</function>\n</tool_call>\nb" + tail), "a\n</function>\n</tool_call>\nb");
    EXPECT_EQ(value_of("a\n</function>\n</tool_call><|im_end|>"), "a");
    EXPECT_EQ(value_of("a\n</function>\n</tool_call>"), "a");
    EXPECT_EQ(value_of("a</tool_call>\n<tool_call><function=f></function></tool_call>"), "2 calls");
    EXPECT_EQ(value_of("a\n</parameter></tool_call>"), "a");
    EXPECT_EQ(value_of("a\n</parameter>\n</function><tool_call><function=f>"), "2 calls");
    EXPECT_EQ(value_of("\n\n a\n \n" + tail), "\n\n a\n \n");
    EXPECT_EQ(value_of(tail), "");
    EXPECT_EQ(value_of("</parameter></function></tool_call>"), "");
}

TEST(qwen_stream, cut_calls_stay_open_and_are_marked) {
    const std::string tags = "<tool_call>\n<function=edit>\n";
    EXPECT_EQ(read_qwen(tags + "<parameter=path>\n/tmp/\"x\n</parame"),
              (Lines{"begin 0 call_0 edit", "args 0: {\"path\": \"/tmp/\\\"x", "end 0 cut", "finish 1"}));
    EXPECT_EQ(read_qwen(tags + "<parameter=li"), (Lines{"begin 0 call_0 edit", "args 0: {", "end 0 cut", "finish 1"}));
    EXPECT_EQ(read_qwen(tags + "<parameter=line>\n3\n</parameter>\n</function>"),
              (Lines{"begin 0 call_0 edit", "args 0: {\"line\": 3}", "end 0", "finish 1"}));
    const auto object = [&](const std::string& arguments) {
        return read_qwen("<tool_call>{\"name\": \"f\", \"arguments\": {" + arguments);
    };
    const auto cut = [](const std::string& arguments) {
        return Lines{"begin 0 call_0 f", "args 0: {" + arguments, "end 0 cut", "finish 1"};
    };
    EXPECT_EQ(object("\"a\": {\"b\": [1, \"tw"), cut("\"a\": {\"b\": [1, \"tw"));
    EXPECT_EQ(object("\"a\": 12"), cut(""));
    EXPECT_EQ(object("\"a\": 1, \"b"), cut("\"a\": 1"));
    EXPECT_EQ(object("\"a\": \"x\\ud83e"), cut("\"a\": \"x"));
    EXPECT_EQ(object("\"a\": \"x</tool_call>\n"), cut("\"a\": \"x"));
    EXPECT_EQ(object("\"a\": 1}"), (Lines{"begin 0 call_0 f", "args 0: {\"a\": 1}", "end 0", "finish 1"}));
}

TEST(qwen_stream, a_turn_that_ends_closes_its_call) {
    const std::string head = "<tool_call>\n<function=edit>\n", value = "<parameter=path>\na\n";
    const Lines whole = {"begin 0 call_0 edit", "args 0: {\"path\": \"a\"}", "end 0", "finish 1 closed"};
    EXPECT_EQ(read_qwen(head + "<|im_end|>"), (Lines{"begin 0 call_0 edit", "args 0: {}", "end 0", "finish 1 closed"}));
    EXPECT_EQ(read_qwen(head + value + "</parameter>\n<|im_end|>"), whole);
    EXPECT_EQ(read_qwen(head + value + "<|im_end|>"),
              (Lines{"begin 0 call_0 edit", "args 0: {\"path\": \"a", "end 0 cut", "finish 1 closed"}));
    StreamEvents events;  // the engine does not push what ends a turn
    const auto parser = make_qwen_parser(qwen_options(false, false));
    parser->push(head + value + "</parameter>\n", events);
    parser->end_turn(events);
    parser->finish(events);
    EXPECT_EQ(joined(events), whole);
}

TEST(qwen_stream, a_broken_object_stays_open_and_the_rest_is_text) {
    EXPECT_EQ(read_qwen("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, 'b': 2}}\n</tool_call>\nDone."),
              (Lines{"begin 0 call_0 f", "args 0: {\"a\": 1", "end 0 cut", "text: 'b': 2}}\nDone.", "finish 1"}));
    EXPECT_EQ(read_qwen("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}} // so\n</tool_call>"),
              (Lines{"begin 0 call_0 f", "args 0: {\"a\": 1}", "end 0", "text: // so\n", "finish 1"}));
}

TEST(qwen_stream, objects_are_mended) {
    const auto arguments = [](const std::string& object) {
        const Collected got =
            collect(parse_qwen(qwen_options(false, false), {{"<tool_call>" + object + "</tool_call>", false}}));
        return got.calls.size() == 1 && got.calls[0].complete ? got.calls[0].arguments : "no call";
    };
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\tz\"}}"), "{\"a\": \"x\\ny\\tz\"}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": {\"a\": \"\\d\\u12\\\"\"}}"),
              "{\"a\": \"\\\\d\\\\u12\\\"\"}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": {\"a\": [True, False, None,], }}"),
              "{\"a\": [true, false, null]}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": {\"a\": \"\\udd99\\ud83e\\udd99\\ud83e.\"}}"),
              "{\"a\": \"\\ufffd\\ud83e\\udd99\\ufffd.\"}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}"), "{\"a\": 1}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": null}"), "{}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": \"\"}"), "{}");
    EXPECT_EQ(arguments("{\"name\": \"f\"}"), "{}");
    EXPECT_EQ(arguments("{\"arguments\": {\"a\": 1}, \"name\": \"f\", \"name\": \"g\"}"), "{\"a\": 1}");
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": {\"a\": 1}\n"), "{\"a\": 1}") << "the last brace is missing";
    const std::string deep(200, '[');
    EXPECT_EQ(arguments("{\"name\": \"f\", \"arguments\": {\"a\": " + deep), "no call");
}

TEST(qwen_stream, spelled_tags_are_text_with_strict_specials) {
    const auto options = qwen_options(false, true);
    EXPECT_EQ(
        joined(parse_qwen(options, {{"say <tool_call><function=f></function></tool_call><|im_end|> now", false}})),
        (Lines{"text: say <tool_call><function=f></function></tool_call><|im_end|> now", "finish 0"}));
    EXPECT_EQ(joined(parse_qwen(options,
                                {{"<tool_call>", true}, {"<function=f></function>", false}, {"</tool_call>", true}})),
              (Lines{"begin 0 call_0 f", "args 0: {}", "end 0", "finish 1"}));
}

TEST(qwen_stream, strings_stream_before_they_end) {
    const auto streams = [](const std::string& head, const std::string& end) {
        StreamEvents events;
        const auto parser = make_qwen_parser(qwen_options(false, false));
        parser->push(head + "one two", events);
        EXPECT_EQ(joined(events).back(), "args 0: {\"text\": \"one two");
        parser->push(" three" + end, events);
        EXPECT_EQ(joined(events).back(), "args 0: {\"text\": \"one two three");
        parser->finish(events);
    };
    streams("<tool_call>\n<function=edit>\n<parameter=text>\n", "\n</para");
    streams("<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"text\": \"", "\\u12");
}

TEST(qwen_stream, time_is_linear_in_hard_inputs) {
    const std::vector<std::string> heads = {"", "<tool_call>\n<function=edit>\n<parameter=text>\n",
                                            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"",
                                            "<tool_call>{\"arguments\": {\"a\": [1",
                                            "<tool_call>{\"arguments\": {\"a\": \""};
    const std::vector<std::string> units = {"<",
                                            "</parameter>",
                                            "</parameter>\n",
                                            "</function>",
                                            "</tool_call> ",
                                            "\n",
                                            "<tool_call>",
                                            "</parameter><",
                                            "a",
                                            "\\",
                                            ",",
                                            "[",
                                            "1"};
    for (const std::string& head : heads) {
        for (const std::string& unit : units) {
            std::string text = head;
            while (text.size() < 200000) text += unit;
            const auto begin = std::chrono::steady_clock::now();
            const StreamEvents events = parse_qwen(qwen_options(false, false), byte_by_byte({{text, false}}));
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            EXPECT_LT(took.count(), 5.0) << head << unit;  // a quadratic parser takes minutes
            expect_sound({events.back()});
        }
    }
}

}  // namespace
}  // namespace riptide
