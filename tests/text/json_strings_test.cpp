// Strings by pattern, format and lengths, all at once.
#include "tests/text/constraint_world.h"
#include "tests/text/schema_judge.h"
#include "text/json/json_grammar.h"

namespace riptide::testing {
namespace {

struct StringCase {
    const char* schema;  // words beside the type
    std::vector<std::string> yes, no;
};

void check_strings(std::span<const StringCase> cases) {
    for (const StringCase& c : cases) {
        const json::value schema = parse_json(fmt::format(R"({{"type": "string", {}}})", c.schema), "schema");
        try {
            const auto constraint = schema_constraint(schema);
            const auto is_taken = [&](const std::string& text) {
                return takes(constraint, json::serialize(json::value(text)));
            };
            for (const std::string& text : c.yes) EXPECT_TRUE(is_taken(text)) << c.schema << "\n" << text;
            for (const std::string& text : c.no) EXPECT_FALSE(is_taken(text)) << c.schema << "\n" << text;
        } catch (const GrammarError& error) {
            ADD_FAILURE() << c.schema << "\n" << error.what();
        }
    }
}

TEST(JsonStrings, what_json_text_writes_is_taken_whatever_holds_the_string) {
    const json::value text = "a\b\f\n\r\t\x01\x1F\"\\/\x7F\xC3\xA4";
    const json::object schemas[] = {{{"type", "string"}},
                                    {{"type", "string"}, {"maxLength", 20}},
                                    {{"type", "string"}, {"pattern", "^a[^]*$"}},
                                    {{"not", {{"const", "b"}}}},
                                    {{"const", text}},
                                    {{"enum", {text, "b"}}}};
    for (const json::object& schema : schemas) {
        EXPECT_TRUE(takes(schema_constraint(schema), json_text(text))) << json::serialize(schema);
        const json::object names = {{"propertyNames", schema}, {"minProperties", 1}};
        EXPECT_TRUE(takes(schema_constraint(names), "{" + json_text(text) + ":1}")) << json::serialize(schema);
    }
    const json::object closed = {{"properties", json::object{{text.as_string(), true}}},
                                 {"additionalProperties", false}};
    EXPECT_TRUE(takes(schema_constraint(closed), "{" + json_text(text) + ":1}"));
}

TEST(JsonStrings, pattern_format_and_lengths_hold_together) {
    const StringCase cases[] = {
        {R"("format": "date", "pattern": "^(?:\\d{4})-(?:\\d{2})-(?:\\d{2})$")", {"2024-02-29"}, {"2023-02-29", "x"}},
        {R"("pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4)", {"ab", "abcd"}, {"a", "abcde", "AB"}},
        {R"("pattern": "b", "maxLength": 3)", {"b", "abb", "\"b\n"}, {"aaab", "aab!", ""}},
        {R"("pattern": "^x", "minLength": 3, "maxLength": 100000)", {"xyz", "x\xC3\xA4\xC3\xA4"}, {"xy", "yyy"}},
        {R"("pattern": "^\\S+$", "maxLength": 1000000)", {"a", "abc"}, {"", "a b"}},
        {R"("format": "email", "maxLength": 12)", {"ab@c.org"}, {"abcdefgh@c.org", "ab"}},
        {R"("format": "uuid", "maxLength": 36, "minLength": 1)", {"123e4567-e89b-12d3-a456-426614174000"}, {""}},
        {R"("format": "nanoid", "pattern": "^[a-c]{2}$")", {"ab"}, {"abc"}},
        {R"("pattern": "^(?=.*[A-Z])(?=.*\\d).+$", "minLength": 4, "maxLength": 6)",
         {"aB1x", "1aaaaB"},
         {"aB1", "aaaa", "1aaaaaB"}},
        {R"("pattern": "^\\cC\\t$")", {"\x03\t"}, {"\\cC\t"}},
    };
    check_strings(cases);
}

TEST(JsonStrings, what_zod_writes_is_taken) {
    const StringCase cases[] = {
        {R"("format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$")",
         {"a.b@example.org"},
         {".a@example.org", "a..b@example.org", "a@b", "a@example.c0"}},
        {R"("format": "uuid", "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$")",
         {"123e4567-e89b-12d3-a456-426614174000"},
         {"123e4567-e89b-92d3-a456-426614174000"}},
        {R"("format": "ipv4", "pattern": "^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$")",
         {"127.0.0.1"},
         {"127.0.0.256"}},
        {R"("format": "base64", "contentEncoding": "base64", "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$")",
         {"", "YWI=", "YWJj"},
         {"YW", "a==="}},
        {R"("format": "date-time", "pattern": "^(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)-02-29|\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|(?:02)-(?:0[1-9]|1\\d|2[0-8])))T(?:(?:[01]\\d|2[0-3]):[0-5]\\d(?::[0-5]\\d(?:\\.\\d+)?)?(?:Z))$")",
         {"2024-02-29T10:11:12Z", "2024-01-31T10:11:12.5Z"},
         {"2024-02-30T10:11:12Z", "2024-02-29T10:11Z", "2024-02-29T10:11:12+01:00"}},
        {R"("format": "emoji", "pattern": "^(\\p{Extended_Pictographic}|\\p{Emoji_Component})+$")",
         {"\xF0\x9F\x98\x80"},
         {"a", ""}},
        {R"("format": "ulid", "pattern": "^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$")",
         {"01ARZ3NDEKTSV4RRFFQ69G5FAV"},
         {"x"}},
    };
    check_strings(cases);
}

TEST(JsonStrings, formats_are_what_their_standards_say) {
    const StringCase cases[] = {
        {R"("format": "date")",
         {"2020-02-29", "0400-02-29", "1999-12-31"},
         {"2100-02-29", "2021-02-29", "2020-04-31", "0000-01-01"}},
        {R"("format": "time")",
         {"08:30:06Z", "23:59:60Z", "23:20:50.52z", "08:30:06-08:00"},
         {"24:00:00Z", "22:59:60Z", "08:30:06", "08:30:06+24:00", "12:00:60Z"}},
        {R"("format": "date-time")",
         {"1985-04-12T23:20:50.52Z", "1998-12-31T23:59:60Z"},
         {"1998-12-31T23:58:60Z", "1998-12-31 23:58:00Z"}},
        {R"("format": "iso-time")", {"08:30:06", "08:30:06.5Z", "23:59:60Z"}, {"08:30", "24:00:00"}},
        {R"("format": "iso-date-time")", {"1985-04-12 23:20:50", "1985-04-12T23:20:50Z"}, {"1985-04-12", "23:20:50"}},
        {R"("format": "byte")",
         {"", "YWI=", "YWJj", "-----BEGIN A KEY-----\nYWJj\nYWI=\n-----END A KEY-----"},
         {"YWI", "YW I", "="}},
        {R"("format": "jwt")", {"eyJhIjoxfQ.eyJiIjoyfQ.c2ln", "ewo.e30.x"}, {"a.b.c", "eyJhIjoxfQ.eyJiIjoyfQ"}},
        {R"("format": "json-pointer-uri-fragment")", {"#", "#/a%20b/~1"}, {"/a", "#/ ", "#a", "#/~2"}},
        {R"("format": "hostname")",
         {"a", "www.example.com", "a--b.com", "a-b"},
         {"-a", "a-", "xn--x", "ab--c", "a..b", "a.", ""}},
        {R"("format": "email")", {"te~st@example.com", "a.b@x-y.org"}, {".a@b.org", "a.@b.org", "a..b@c.org", "a@b"}},
        {R"("format": "ipv6")",
         {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "::ffff:192.168.0.1", "1:2:3:4:5:6:7::", "1:2:3::6:7:8",
          "fe80::a"},
         {"1", ":::", "1::2::3", "1:2:3:4:5:6:7", "12345::", "::ffff:192.168.0.01", "1:2:3:4:5:6:7:8:9", "::%eth0"}},
        {R"("format": "uri")",
         {"http://foo.bar/?baz=qux#quux", "urn:oasis:names", "http://[2001:db8::7]:80/c?d", "mailto:a@b.org",
          "file:/etc", "http://-.~_!$&'()*+,;=:%40:80%2f::::::@example.com"},
         {"//foo.bar/", "abc", "http:// a", ":// a", "https://[@example.org/", "http://a/%6G", "1http://a",
          "http://a:b/c", "a:", "a:?b"}},
        {R"("format": "uri-reference")",
         {"", "/abc", "//foo/bar", "a/b:c", "./a:b", "#f"},
         {"1:b", "\\a", "#a\\b", "/%zz"}},
        {R"("format": "iri")", {"http://\xC6\x92\xC3\xB8.\xC3\x9F/?\xE2\x88\x82#\xCF\x80"}, {"/abc", "http://a/\n"}},
        {R"("format": "uri-template")",
         {"a/{term:1}/{x,y}{?q*}", "{a.b}", ""},
         {"{}", "{a,,b}", "{v:0}", "a}b", "a b", "{v:10000}"}},
        {R"("format": "json-pointer")", {"", "/", "/a~0b/~1", "/a\"\\"}, {"a", "#/a", "/~", "/~2"}},
        {R"("format": "relative-json-pointer")", {"0", "1#", "2/a", "0//"}, {"-1", "01", "1#/a", ""}},
        {R"("format": "duration")", {"P1Y2M3DT4H5M6S", "PT1M", "P4W"}, {"P", "PT", "P1D2H", "P1Y4W", "P1YT"}},
        {R"("format": "regex")", {"^a+\\d*b?$", "\\(x\\)"}, {"a**", "(", "[a", "*"}},
        {R"("format": "cidrv4")", {"10.0.0.0/8", "1.2.3.4/32"}, {"10.0.0.0", "1.2.3.4/33", "1.2.3.4/08"}},
        {R"("format": "url")",
         {"https://a.org/b?c=d#e", "http://a.b.co:80"},
         {"https://localhost", "ftp:a", "a.org", "http://a.1", "http://a.org?b", "http://a--b.org"}},
    };
    check_strings(cases);
}

TEST(JsonStrings, walks_keep_pattern_and_lengths) {
    const char* const schemas[] = {
        R"({"type": "string", "pattern": "^[a-c]+\\d*x?$", "minLength": 3, "maxLength": 9})",
        R"({"type": "string", "pattern": "ab|b$", "maxLength": 5})",
        R"re({"type": "string", "pattern": "^(?!ab)[ab]*(?=1)", "minLength": 4})re",
        R"re({"type": "string", "pattern": "(^| )ab( |$)", "minLength": 6, "maxLength": 12})re",
    };
    for (const char* text : schemas) {
        const json::value schema = parse_json(text, "schema");
        const SchemaJudge judge(schema);
        const auto constraint = schema_constraint(schema);
        for (unsigned seed = 0; seed < 40; ++seed) {
            std::mt19937 random(seed);
            const std::string answer = random_answer(constraint, random, static_cast<int>(seed));
            ASSERT_TRUE(judge.valid(parse_json(answer, "answer"))) << text << "\nseed " << seed << "\n" << answer;
        }
    }
}

TEST(JsonStrings, what_pydantic_writes_is_held) {
    const StringCase cases[] = {
        {R"("format": "uri", "minLength": 1, "maxLength": 2083)", {"https://a.org/b?c#d"}, {"", "a b", "//a.org"}},
        {R"re("pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$")re",
         {"1", "-0012.50", "+.5", "5."},
         {"", "-", ".", "1e5"}},
        {R"("format": "password", "writeOnly": true)", {"", "a b"}, {}},
    };
    check_strings(cases);
}

TEST(JsonStrings, what_cannot_be_held_is_refused_with_its_limit) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("pattern": "^(ab|cd)*$", "maxLength": 1000000)", "#/pattern: counting up to 1000000 characters in"},
        {R"("maxLength": 1000001)", "#: 1000001 repetitions, expected at most 1000000"},
        {R"("minLength": 3, "maxLength": 2)", "#: 'minLength' is more than 'maxLength'"},
        {R"("pattern": "(?<!a)b")", "#/pattern: regular expression, at byte 1: look-behind"},
        {R"("pattern": "^a$", "minLength": 2)", "nothing can match"},
        {R"("pattern": 5)", "#: 'pattern' is not a string"},
        {R"("format": "idn-hostname")", "#: format 'idn-hostname' is not supported"},
    };
    for (const auto& [words, message] : cases) {
        try {
            schema_constraint(parse_json(fmt::format(R"({{"type": "string", {}}})", words), "schema"));
            ADD_FAILURE() << words << " is taken";
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << words << "\n" << error.what();
        }
    }
}

}  // namespace
}  // namespace riptide::testing
