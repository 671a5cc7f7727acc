// Qwen's calls with tags that are missing or too many: the call that was meant, and no markup in its values.
#include <gtest/gtest.h>

#include "tests/text/qwen_answers.h"

namespace riptide {

using namespace testing_qwen;

namespace {

/// What a damaged answer becomes, the same however it is cut.
std::vector<std::string> read_damaged(const std::string& text) {
    const ParserOptions options = qwen_options(false, false);
    const auto read = [&](const std::vector<Piece>& pieces) {
        return joined(testing_stream::parse([&] { return make_qwen_parser(options); }, pieces));
    };
    const std::vector<std::string> whole = read({{text, false}});
    EXPECT_EQ(read(byte_by_byte({{text, false}})), whole) << text;
    for (std::size_t cut = 1; cut < text.size(); ++cut)
        EXPECT_EQ(read({{text.substr(0, cut), false}, {text.substr(cut), false}}), whole) << cut;
    return whole;
}

const std::string kEdit = "<function=edit>\n<parameter=path>\na\n</parameter>\n";
const std::string kEnd = "</function>\n</tool_call>";

TEST(qwen_damaged, a_call_whose_tool_call_is_missing_is_a_call) {
    const std::vector<std::string> whole = {"text: So:", "begin 0 call_0 edit", "args 0: {\"path\": \"a\"}", "end 0"};
    const auto with = [&](std::initializer_list<std::string> more) {
        std::vector<std::string> out = whole;
        out.insert(out.end(), more);
        return out;
    };
    EXPECT_EQ(read_damaged("So:\n\n" + kEdit + kEnd + "<|im_end|>"), with({"finish 1 closed"}));
    EXPECT_EQ(read_damaged("So:\n" + kEdit + "</function>"), with({"finish 1"}));
    EXPECT_EQ(read_damaged("So:\n" + kEdit + "</function>\nDone."), with({"text: Done.", "finish 1"}));
    EXPECT_EQ(read_damaged("<function=ping>\n</function>\n<function=ping></function>"),
              (std::vector<std::string>{"begin 0 call_0 ping", "args 0: {}", "end 0", "begin 1 call_1 ping",
                                        "args 1: {}", "end 1", "finish 2"}));
    EXPECT_EQ(read_damaged("<function=edit>\n<parameter=path>\na"),
              (std::vector<std::string>{"begin 0 call_0 edit", "args 0: {\"path\": \"a", "end 0 cut", "finish 1"}));
}

TEST(qwen_damaged, text_that_speaks_of_functions_is_text) {
    for (const std::string text : {"Write <function=edit>\n<parameter=path>", "<function=edit> is a tag",
                                   "<function=edit>", "<function=nobody>\n", "<function=edit>\n<parameter>", "a\n<func",
                                   " <function=edit>\n</function>", "<function=\n"}) {
        EXPECT_EQ(read_damaged(text + "<|im_end|>"), (std::vector<std::string>{"text: " + text, "finish 0 closed"}));
    }
    ParserOptions options = qwen_options(true, false);
    const auto parser = [&] { return make_qwen_parser(options); };
    EXPECT_EQ(joined(testing_stream::parse(parser, {{"<function=ping>\n</function></think>A", false}})),
              (std::vector<std::string>{"reasoning: <function=ping>\n</function>", "text: A", "finish 0"}));
}

TEST(qwen_damaged, an_answer_that_goes_on_does_not_begin_a_line) {
    ParserOptions options = qwen_options(false, false);
    options.continues = true;
    const std::string text = "<function=ping>\n</function>";
    EXPECT_EQ(joined(testing_stream::parse([&] { return make_qwen_parser(options); }, {{text, false}})),
              (std::vector<std::string>{"text: " + text, "finish 0"}));
}

TEST(qwen_damaged, each_function_of_one_tool_call_is_a_call) {
    const std::vector<std::string> both = {"begin 0 call_0 edit",
                                           "args 0: {\"path\": \"a\"}",
                                           "end 0",
                                           "begin 1 call_1 ping",
                                           "args 1: {\"host\": \"h\"}",
                                           "end 1",
                                           "finish 2"};
    const std::string ping = "<function=ping>\n<parameter=host>\nh\n</parameter>\n";
    EXPECT_EQ(read_damaged("<tool_call>\n" + kEdit + "</function>\n" + ping + kEnd), both);
    EXPECT_EQ(read_damaged("<tool_call>\n" + kEdit + ping + kEnd), both) << "without </function>";
    EXPECT_EQ(read_damaged("<tool_call>\n<function=edit>\n<parameter=path>\na\n</function>\n" + ping + kEnd), both)
        << "without </parameter>";
    EXPECT_EQ(read_damaged("<tool_call>\n<function=ping>\n" + kEdit + kEnd),
              (std::vector<std::string>{"begin 0 call_0 ping", "args 0: {}", "end 0", "begin 1 call_1 edit",
                                        "args 1: {\"path\": \"a\"}", "end 1", "finish 2"}));
    EXPECT_EQ(read_damaged("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": "
                           "{\"a\": 1}}\n</tool_call>"),
              (std::vector<std::string>{"begin 0 call_0 f", "args 0: {}", "end 0", "begin 1 call_1 g",
                                        "args 1: {\"a\": 1}", "end 1", "finish 2"}));
    EXPECT_EQ(read_damaged("<tool_call>\n" + kEdit + "</function>\n<function=pin"),
              (std::vector<std::string>{"begin 0 call_0 edit", "args 0: {\"path\": \"a\"}", "end 0", "finish 1"}));
}

TEST(qwen_damaged, a_function_that_nobody_offers_is_part_of_the_value) {
    const std::string text = "a\n</parameter>\n</function>\n<function=nobody>\n</function>";
    EXPECT_EQ(read_damaged("<tool_call>\n<function=edit>\n<parameter=path>\n" + text + "\n</parameter>\n" + kEnd),
              (std::vector<std::string>{
                  "begin 0 call_0 edit",
                  "args 0: {\"path\": \"a\\n</parameter>\\n</function>\\n<function=nobody>\\n</function>\"}", "end 0",
                  "finish 1"}));
}

TEST(qwen_damaged, a_value_whose_end_is_missing_ends_before_the_next_parameter) {
    const auto arguments = [&](const std::string& parameters) {
        const Collected got =
            collect(testing_stream::parse([&] { return make_qwen_parser(qwen_options(false, false)); },
                                          {{"<tool_call>\n<function=edit>\n" + parameters + kEnd, false}}));
        read_damaged("<tool_call>\n<function=edit>\n" + parameters + kEnd);
        return got.calls.size() == 1 && got.calls[0].complete ? got.calls[0].arguments : "no call";
    };
    EXPECT_EQ(arguments("<parameter=path>\na\n<parameter=line>\n3\n</parameter>\n"), "{\"path\": \"a\", \"line\": 3}");
    EXPECT_EQ(arguments("<parameter=text>\na\n\nb\n<parameter=path>\nc\n<parameter=line>\n3\n</parameter>\n"),
              "{\"text\": \"a\\n\\nb\", \"path\": \"c\", \"line\": 3}");
    // What the tool does not have, has already, or what does not begin a line belongs to the value.
    EXPECT_EQ(arguments("<parameter=path>\na\n<parameter=k>\n</parameter>\n"), "{\"path\": \"a\\n<parameter=k>\"}");
    EXPECT_EQ(arguments("<parameter=path>\na\n<parameter=path>\n</parameter>\n"),
              "{\"path\": \"a\\n<parameter=path>\"}");
    EXPECT_EQ(arguments("<parameter=path>\na <parameter=line>\n</parameter>\n"), "{\"path\": \"a <parameter=line>\"}");
    EXPECT_EQ(arguments("<parameter=path>\na\n<parameter=li<\n</parameter>\n"), "{\"path\": \"a\\n<parameter=li<\"}");
}

}  // namespace
}  // namespace riptide
