// Grammars in Lark's notation: judged by hand, construct by construct.
#include "text/structured/grammar_lark.h"

#include "tests/text/constraint_world.h"
#include "text/dialects/response_format.h"
#include "text/json/json_grammar.h"

namespace riptide::testing {
namespace {

std::shared_ptr<Constraint> lark_constraint(std::string_view text) {
    Grammar grammar;
    grammar.set_root(add_lark(grammar, text));
    return Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
}

struct LarkCase {
    const char* grammar;
    std::vector<const char*> yes, no;
    unsigned walks = 10;  // random answers, where such come to an end
};

void expect_taken(const LarkCase& c) {
    const auto constraint = lark_constraint(c.grammar);
    for (const char* text : c.yes) EXPECT_TRUE(takes(constraint, text)) << c.grammar << "\n" << text;
    for (const char* text : c.no) EXPECT_FALSE(takes(constraint, text)) << c.grammar << "\n" << text;
    for (unsigned seed = 0; seed < c.walks; ++seed) {
        std::mt19937 random(seed);
        const std::string text = random_answer(constraint, random, 10, nullptr, "\n");
        EXPECT_TRUE(takes(constraint, text)) << c.grammar << "\n" << text;
    }
}

TEST(GrammarLark, rules_and_terminals_take_what_is_written_here) {
    const LarkCase cases[] = {
        {"start: \"a\" b* // a comment\nb: \"x\" | \"y\" # another\n | \"-\" start \"-\"",
         {"a", "axy", "a-a-", "a-ay-x"},
         {"", "b", "a-a", "a-"}},
        {"start: A B?\nA: \"a\"\n  | \"aa\" \"b\"+\nB: A~2", {"a", "aabb", "aaa", "aaabaab"}, {"", "aa", "b"}},
        {"start: (\"a\" |\n  \"b\"\n)~2..3 [\"c\"]", {"ab", "bbbc", "aac"}, {"a", "abab", "c"}},
        {"start: \"a\"{2} \"b\"{1,} \"c\"{,2} \"d\"{1,2}", {"aabd", "aabbccdd"}, {"abd", "aad", "aabcccd"}},
        {"start: \"a\" ~ 0 .. 2 \"b\" ~ 2", {"bb", "abb", "aabb"}, {"b", "aaabb"}},
        {"start: \"\\x41\\u00e4\\n\\\"\\\\\" \"0\"..\"3\"", {"A\xC3\xA4\n\"\\0"}, {"A\xC3\xA4\n\"\\4"}},
        {"start: \"Select\"i \"x\"", {"selectx", "SELECTx", "sElEcTx"}, {"selectX", "elect"}},
        {"start: e\ne: e \"+\" e | \"(\" e \")\" | DIGITS\nDIGITS: /[0-9]/+",
         {"1", "1+2", "(1+2)+3", "((4))"},
         {"+", "1+", "(1", "()"}},
        {"start: list\nlist: list \",\" item | item\nitem: \"a\"", {"a", "a,a,a"}, {"", ",a", "a,"}},
        {"start: x x x\nx: \"a\"?", {"", "a", "aa", "aaa"}, {"aaaa", "b"}},
        {"start: a\na: b | a\nb: a | \"x\"", {"x"}, {"xx", ""}},
        {"start: | \"a\"", {"", "a"}, {"b"}},
        {"start: \"a\" \\\n \"b\"", {"ab"}, {"a"}},
        {"start: LETTER-x\nLETTER-x: \"q\"\n", {"q"}, {""}},
    };
    for (const LarkCase& c : cases) expect_taken(c);
}

TEST(GrammarLark, what_builds_trees_and_what_sets_priorities_changes_nothing) {
    expect_taken({"?start.2: _pair -> both\n    | \"c\" -> single\n!_pair.-1: A B -> ab\nA.10: \"a\"\n_B: \"b\"\nB: _B",
                  {"ab", "c"},
                  {"a", "abc"}});
}

TEST(GrammarLark, regular_expressions_are_read_as_rust_and_python_read_them) {
    const LarkCase cases[] = {
        {"start: /a.c/ /b+?/",
         {"abcb", "a\rcbb",
          "a\xE2\x82\xAC"
          "cb"},
         {"a\ncb", "ac"}},
        {"start: /a.c/s", {"a\nc"}, {"ac"}},
        {"start: /[a-c]x/i", {"ax", "BX", "cX"}, {"dx"}},
        {"start: /[^k]/i", {"a"}, {"k", "K", "\xE2\x84\xAA"}},
        {"start: / a b # not this\n  [ ] /x", {"ab "}, {"ab", " a b"}},
        {"start: /\\d\\w\\s/u", {"1a ", "\xD9\xA1\xC3\xA4\t"}, {"aa ", "1- "}},
        {"start: /a\\/b\\-\\[/m", {"a/b-["}, {"a\\/b"}},
        {"start: /(?i)ab(?-i:c)(?s:.)(?P<n>d)/", {"ABc\nD", "abcxd"}, {"ABC\nD"}},
        {"start: /(a(?i)b|c)d/", {"aBd", "Cd", "cd"}, {"ABd", "cD"}},
        {"start: /[[:digit:]_[:^alpha:]]\\x{41}\\p{Lu}/", {"1AB", "-AB"}, {"aAB", "1Ab"}},
        {"start: /(?:a|b){2,3}x{1}/", {"abx", "babx"}, {"ax", "ababx"}},
    };
    for (const LarkCase& c : cases) expect_taken(c);
}

TEST(GrammarLark, ignored_terminals_stand_round_terminals_and_not_inside_them) {
    expect_taken({"start: \"a\" \"b\" NUM\nNUM: \"1\" \"2\"\n%ignore \" \"\n%ignore /#[^\\n]*/ \"\\n\"",
                  {"ab12", " a  b 12 ", "a#x\n b12#\n"},
                  {"ab1 2", "a#xb12", ""}});
    expect_taken(
        {"%import common.WS -> SPACE\n%ignore SPACE\nstart: item*\nitem: \"x\"", {"", " ", "x x", "xx\n"}, {"y"}});
}

TEST(GrammarLark, the_common_library_has_all_its_terminals) {
    const struct {
        const char* name;
        std::vector<const char*> yes, no;
    } cases[] = {
        {"DIGIT", {"0", "9"}, {"", "10", "a"}},
        {"HEXDIGIT", {"0", "f", "A"}, {"g", "ff"}},
        {"INT", {"0", "0123"}, {"", "-1"}},
        {"SIGNED_INT", {"1", "-1", "+12"}, {"--1", "+"}},
        {"DECIMAL", {"1.", ".5", "1.5"}, {"1", "."}},
        {"FLOAT", {"1e5", "1.E-5", ".5"}, {"1", "e5"}},
        {"SIGNED_FLOAT", {"-1e5", "+.5"}, {"1", "-"}},
        {"NUMBER", {"1", "1.5e+3", ".5", "2e1"}, {"-1", "e1", "."}},
        {"SIGNED_NUMBER", {"-1", "+1.5", "2e-1"}, {"+", "1e"}},
        {"ESCAPED_STRING", {"\"\"", "\"a\\\"b\"", "\"\\\\\""}, {"\"\\\"", "\"a\"b\"", "\"\n\""}},
        {"LCASE_LETTER", {"a"}, {"A", "ab"}},
        {"UCASE_LETTER", {"A"}, {"a"}},
        {"LETTER", {"a", "Z"}, {"_", "1"}},
        {"WORD", {"aZ"}, {"", "a1"}},
        {"CNAME", {"_a1", "B"}, {"1a", "a-b"}},
        {"WS_INLINE", {" \t"}, {"", "\n"}},
        {"WS", {" \t\f\r\n"}, {"", "a"}},
        {"CR", {"\r"}, {"\n"}},
        {"LF", {"\n"}, {"\r", "\n\n"}},
        {"NEWLINE", {"\n", "\r\n\n"}, {"\r", ""}},
        {"SH_COMMENT", {"#", "# a"}, {"#\n", "//"}},
        {"CPP_COMMENT", {"//", "// a"}, {"/", "//\n"}},
        {"C_COMMENT", {"/**/", "/* a\n* */", "/***/"}, {"/*/", "/**/ */"}},
        {"SQL_COMMENT", {"-- a"}, {"-", "--\n"}},
    };
    for (const auto& c : cases) {
        const std::string name = c.name;
        for (const std::string& import : {"common." + name, "common (" + name + ")"}) {
            const auto constraint = lark_constraint("start: " + name + "\n%import " + import);
            for (const char* text : c.yes) EXPECT_TRUE(takes(constraint, text)) << import << ": " << text;
            for (const char* text : c.no) EXPECT_FALSE(takes(constraint, text)) << import << ": " << text;
        }
    }
    expect_taken({"%import common (INT, WORD)\n%import common.LF -> END\nstart: INT WORD END", {"12ab\n"}, {"12\n"}});
}

TEST(GrammarLark, templates_are_rules_for_each_use) {
    expect_taken(
        {"start: \"[\" _sep{NUM, \",\"} \"]\" _sep{pair{\"<\", \">\"}, \";\"}?\n_sep{x, sep}: x (sep x)*\n"
         "pair{open, close}: open pair{open, close}? close\nNUM: /[0-9]/",
         {"[1]", "[1,2,3]", "[1]<>", "[1]<<>>;<>"},
         {"[]", "[1,]", "[1;2]", "[1]<<>"}});
}

TEST(GrammarLark, terminals_are_overridden_and_extended) {
    expect_taken(
        {"%import common (INT, LF)\n%override LF: \";\"\n%extend INT: \"x\"\n%extend INT: \"y\" | \"z\"\nstart: INT LF",
         {"12;", "x;", "z;"},
         {"12\n", "xy;"}});
}

/// What a coding agent sends to change files with.
constexpr const char* kApplyPatch = R"(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
)";

TEST(GrammarLark, patches_of_coding_agents) {
    expect_taken(
        {kApplyPatch,
         {"*** Begin Patch\n*** Add File: a b.txt\n+one\n+\n*** End Patch",
          "*** Begin Patch\n*** Delete File: \xC3\xA4\n*** End Patch\n",
          "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n-x<y>\n+z\r\n  \n*** End of File\n*** End Patch\n",
          "*** Begin Patch\n*** Update File: a\n@@ class A\n x\n@@ f()\n-y\n*** Delete File: c\n*** End Patch"},
         {"", "*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\n*** End Patch",
          "*** Begin Patch\n*** Add File: \n+x\n*** End Patch", "*** Begin Patch\n*** Update File: a\nx\n*** End Patch",
          "*** Begin Patch\n*** Delete File: a"},
         0});
}

TEST(GrammarLark, a_calculator_and_json) {
    expect_taken({R"lark(?start: sum
          | NAME "=" sum    -> assign_var
    ?sum: product
        | sum "+" product   -> add
        | sum "-" product   -> sub
    ?product: atom
        | product "*" atom  -> mul
        | product "/" atom  -> div
    ?atom: NUMBER           -> number
         | "-" atom         -> neg
         | NAME             -> var
         | "(" sum ")"
    %import common.CNAME -> NAME
    %import common.NUMBER
    %import common.WS_INLINE
    %ignore WS_INLINE)lark",
                  {"1", "x = 1 + 2*(3 - y)/-4.5e1", "--1", "( 1)"},
                  {"", "1 +", "x = = 1", "(1", "1\n"}});
    expect_taken({R"(?start: value
    ?value: object | array | string | SIGNED_NUMBER -> number
          | "true" -> true | "false" -> false | "null" -> null
    array  : "[" [value ("," value)*] "]"
    object : "{" [pair ("," pair)*] "}"
    pair   : string ":" value
    string : ESCAPED_STRING
    %import common.ESCAPED_STRING
    %import common.SIGNED_NUMBER
    %import common.WS
    %ignore WS)",
                  {"null", "[]", "{\"a\": [1, -2.5e3, \"x\\\"y\"],\n \"b\":{}}", " [ true ] "},
                  {"", "[1,]", "{a:1}", "nul", "[1 2"}});
}

TEST(GrammarLark, mistakes_are_named_with_line_and_column) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "there is no rule 'start'"},
        {"a: \"b\"", "there is no rule 'start'"},
        {"start: x", "line 1 column 8: there is no rule 'x'"},
        {"start: \"a\"\n  | \"b\" X", "line 2 column 9: there is no terminal 'X'"},
        {"start: \"a\"\nstart: \"b\"", "line 2 column 1: 'start' is defined twice"},
        {"start: \"a\"\n\"b\"", "line 2 column 1: expected the name of a rule or of a terminal"},
        {"start: \"a\"\n  b c", "expected : behind the name 'b'"},
        {"start: \"a", "line 1 column 8: a \" without its second"},
        {"start: \"\\q\"", "this escape is not supported"},
        {"start: \"\\ud800\"", "no such character"},
        {"start: /a", "line 1 column 8: a / without its second"},
        {"start: /a\n/", "expected the flag x"},
        {"start: /a/l", "the flag l (a locale) is not supported"},
        {"start: (\"a\"", "line 1 column 8: a ( without its )"},
        {"start: [\"a\"", "line 1 column 8: a [ without its ]"},
        {"start: \"a\" )", "')' does not belong here"},
        {"start: \"a\" b: \"c\"", "a definition ('b:') begins in the middle of a line"},
        {"start: \"a\"**", "two repetitions in a row"},
        {"start: \"a\"~5000000", "more than 1000000 repetitions"},
        {"start: \"a\"~3..2", "at least 3 repetitions and at most 2"},
        {"start: \"a\"~", "expected a number of repetitions"},
        {"start: \"z\"..\"a\"", "a range that is none"},
        {"start: \"ab\"..\"c\"", "a range is of two single characters"},
        {"start: A\nA: \"a\" | B\nB: \"b\" A", "line 3 column 8: terminal 'A' is part of itself"},
        {"start: A\nA: a\na: \"b\"", "line 2 column 4: rule 'a' in a terminal"},
        {"start: \"a\"\nb: c", "line 2 column 4: there is no rule 'c'"},
        {"\nstart: \"a\" start", "line 2 column 1: no text is a 'start'"},
        {"start: start", "no text is a 'start'"},
        {"start: /[^\\x00-\\U0010FFFF]/", "no text is a 'start'"},
        {"start: /(?<=a)b/", "line 1 column 8: regular expression, at byte 1: look-behind is not supported"},
        {"start: /a(?=b)/", "line 1 column 8: ^, $, \\b, \\B and look-ahead are not supported"},
        {"start: /^a$/", "^, $, \\b, \\B and look-ahead are not supported"},
        {"start: /(a)\\1/", "\\1 is not supported"},
        {"start: /[a&&b]/", "&& inside a class is not supported"},
        {"start: /[[a]]/", "[ inside a class is not supported; expected \\["},
        {"start: a{\"x\"}\na{x, y}: x y", "rule 'a' is used with 1 parameters, expected 2"},
        {"start: a{\"x\"}\na{x}: x | a{(x x)}", "templates are used in more than 1000 different ways"},
        {"start: A{\"x\"}\nA{x}: x", "templates of terminals are not supported"},
        {"start: INT\n%import common.INTEGER", "line 2 column 16: %import: there is no common.INTEGER"},
        {"start: INT\n%import python.INT", "the only library is common, found 'python'"},
        {"start: A\n%declare A", "line 2 column 1: %declare: a terminal without a text cannot be held"},
        {"start: \"a\"\n%frob", "%frob is not supported"},
        {"start: \"a\"\n%ignore start", "rule 'start' in a terminal, or in what is ignored"},
        {"start: \"a\"\n%override b: \"c\"", "there is no 'b' yet to override"},
        {"start: <|im_end|>", "special tokens (<...>) are not supported"},
        {"start: %json {}", "%json is not supported here"},
        {"start[lazy]: /a/", "attributes of a rule ('start[...]') are not supported"},
        {"start: \"a\xFF\"", "line 1 column 10: not valid UTF-8"},
        {"start: " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "groups nest deeper than 64"},
        {"start: " + std::string(1 << 20, 'a'), "a grammar of 1048583 bytes, expected at most 262144"},
    };
    for (const auto& [grammar, message] : cases) {
        try {
            lark_constraint(grammar);
            ADD_FAILURE() << grammar.substr(0, 300) << " is taken";
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << grammar.substr(0, 300) << "\n"
                                                                                  << error.what();
        }
    }
}

TEST(GrammarLark, hostile_grammars_are_refused_soon) {
    std::string doubling = "start: A40\nA0: \"a\"\n", chain = "start: r0\n", templates = "a{x}: x\nstart: ";
    for (int i = 0; i < 40; ++i) doubling += fmt::format("A{}: A{} A{}\n", i + 1, i, i);
    for (int i = 0; i < 10'000; ++i) chain += fmt::format("r{}: r{}\n", i, i + 1);
    for (int i = 0; i < 20'000; ++i) templates += "a{a{";
    std::string properties = "start: \"a\"\n", words = "start: \"a\"\n", nested = "start: A0\n";
    for (int i = 0; i < 5000; ++i) properties += fmt::format("A{}: /\\p{{Lu}}\\p{{Ll}}\\p{{Lt}}\\pN\\pP\\pZ/\n", i);
    for (int i = 0; i < 5000; ++i) words += fmt::format("A{}: /\\w[\\w-]\\W\\w{{3}}/i\n", i);
    for (int i = 0; i < 5000; ++i) nested += fmt::format("A{}: A{} \"a\"\n", i, i + 1);
    std::string classes = "start: \"a\"";
    for (int i = 0; i < 8000; ++i) classes += fmt::format("|/[\\w\\u{:04x}]/", 0x2190 + i);
    for (const std::string& grammar : {doubling, chain, templates, nested, classes})
        EXPECT_THROW(lark_constraint(grammar), GrammarError) << grammar.substr(0, 60);
    for (const std::string& grammar : {properties, words}) {  // large, and not wrong
        Grammar into;
        EXPECT_NO_THROW(add_lark(into, grammar)) << grammar.substr(0, 60);
    }
}

TEST(GrammarLark, is_told_from_ebnf_by_its_first_definition) {
    for (const char* text :
         {"start: \"::=\"", "// c ::=\nstart: a", "# c\n\n?start : a", "%import common.INT\nstart: INT", "a{x}: x",
          "a.2: x", "!a: b", "%llguidance {}\nstart: \"a\""})
        EXPECT_TRUE(looks_like_lark(text)) << text;
    for (const char* text : {"root ::= \":\"", "# start: a\nroot\n::= \"b\"", "", "root = \"a\"", "\"a\": b", "# only"})
        EXPECT_FALSE(looks_like_lark(text)) << text;
    Grammar grammar;
    grammar.set_root(
        add_format(grammar, {.kind = AnswerFormat::Kind::grammar, .text = "%llguidance {}\nstart: \"a\""}));
    EXPECT_TRUE(takes(Constraint::compile(grammar, crossing_trie(), kNoShortWalks), "a"));
}

TEST(GrammarLark, texts_are_written_as_they_are_asked_for) {
    Grammar grammar;
    JsonGrammar json(grammar);
    grammar.set_root(add_lark(grammar, "start: \"a\\n\" /[\"\\\\]/ \"B\"i /.*/", json.writer()));
    const auto constraint = Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
    EXPECT_TRUE(takes(constraint, "a\\n\\\"bx\xC3\xA4"));
    EXPECT_TRUE(takes(constraint, "a\\n\\\\B\\r"));
    EXPECT_FALSE(takes(constraint, "a\n\"b"));
    EXPECT_FALSE(takes(constraint, "a\\n\\\"b\\n"));
}

}  // namespace
}  // namespace riptide::testing
