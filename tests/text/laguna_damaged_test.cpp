// Laguna's calls with tags that are missing: the call that was meant, and no markup in its values.
#include <gtest/gtest.h>

#include "tests/text/laguna_answers.h"

namespace riptide {

using namespace testing_laguna;

namespace {

/// The arguments of the one call of an answer, the same however it is cut; or what came instead.
std::string damaged_arguments(const std::string& call, bool newlines) {
    const ParserOptions options = laguna_options(false, newlines, false);
    const std::string text = "<tool_call>" + call + "</tool_call>";
    const auto read = [&](const std::vector<Piece>& pieces) {
        return testing_stream::parse([&] { return make_laguna_parser(options); }, pieces);
    };
    const StreamEvents whole = read({{text, false}});
    EXPECT_EQ(joined(read(byte_by_byte({{text, false}}))), joined(whole)) << text;
    const Collected got = collect(whole);
    return got.calls.size() == 1 && got.calls[0].complete ? got.calls[0].arguments : joined(whole).back();
}

std::string argument_of(const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}

TEST(laguna_damaged, a_value_whose_end_is_missing_ends_before_the_next_key) {
    const std::string line = argument_of("line", "3");
    for (const bool newlines : {false, true}) {
        const std::string nl = newlines ? "\n" : "",
                          head = "edit" + nl + "<arg_key>path</arg_key>" + nl + "<arg_value>";
        const auto arguments = [&](const std::string& rest) { return damaged_arguments(head + rest, newlines); };
        EXPECT_EQ(arguments("a" + nl + line), "{\"path\": \"a\", \"line\": 3}");
        EXPECT_EQ(arguments("a\nb\n" + nl + line), "{\"path\": \"a\\nb\\n\", \"line\": 3}");
        EXPECT_EQ(arguments("a" + nl + "<arg_key>text</arg_key>" + nl + "<arg_value>b" + nl + line),
                  "{\"path\": \"a\", \"text\": \"b\", \"line\": 3}");
        EXPECT_EQ(arguments("a\n</arg_value>" + nl + line), "{\"path\": \"a\\n\", \"line\": 3}")
            << "nothing is missing";
        // What the tool does not have, has already, or what is no whole key belongs to the value.
        for (const std::string text : {"a<arg_key>k</arg_key>", "a<arg_key>path</arg_key>", "a<arg_key>li",
                                       "<arg_key><arg_key>", "<arg_key>li<ne", "<arg_key>k</arg_value>x"}) {
            EXPECT_EQ(arguments(text + "</arg_value>"), "{\"path\": \"" + text + "\"}");
        }
    }
}

TEST(laguna_damaged, each_name_in_one_tool_call_is_a_call) {
    for (const bool newlines : {false, true}) {
        const auto read = [&](const std::string& text) {
            const ParserOptions options = laguna_options(false, newlines, false);
            const auto parse = [&](const std::vector<Piece>& pieces) {
                return joined(testing_stream::parse([&] { return make_laguna_parser(options); }, pieces));
            };
            const auto whole = parse({{text, false}});
            EXPECT_EQ(parse(byte_by_byte({{text, false}})), whole) << text;
            return whole;
        };
        const std::string nl = newlines ? "\n" : "", head = "<tool_call>edit" + nl + argument_of("path", "a") + "\n";
        const auto both = [](const std::string& arguments) {
            return std::vector<std::string>{"begin 0 call_0 edit",
                                            "args 0: {\"path\": \"a\"}",
                                            "end 0",
                                            "begin 1 call_1 ping",
                                            "args 1: " + arguments,
                                            "end 1",
                                            "finish 2"};
        };
        EXPECT_EQ(read(head + "ping" + nl + argument_of("host", "h") + nl + "</tool_call>"), both("{\"host\": \"h\"}"));
        EXPECT_EQ(read(head + "ping" + nl + "</tool_call>"), both("{}"));
        EXPECT_EQ(read(head + "nobody\n</arg_value></tool_call>"),
                  (std::vector<std::string>{"begin 0 call_0 edit", "args 0: {\"path\": \"a</arg_value>\\nnobody\\n\"}",
                                            "end 0", "finish 1"}));
    }
}

TEST(laguna_damaged, a_key_whose_end_is_missing_ends_before_its_value) {
    for (const std::string key : {"path", "path\n"})
        EXPECT_EQ(damaged_arguments("edit\n<arg_key>" + key + "<arg_value>a</arg_value>", true), "{\"path\": \"a\"}");
}

}  // namespace
}  // namespace riptide
