// Which bytes of a rendered text are the template's own.
#include "base/json.h"
#include "tests/text/jinja_cases.h"
#include "text/jinja/text.h"

#include <random>

namespace riptide {
namespace {

using jinja::Rendered;
using jinja::Text;

/// The text with its trusted bytes in 〈 〉.
std::string marked(const Rendered& rendered) {
    std::string out;
    int64_t at = 0;
    const auto piece = [&](int64_t begin, int64_t end) {
        return rendered.text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    };
    for (const TextSpan& span : rendered.trusted) {
        out += piece(at, span.begin) + "〈" + piece(span.begin, span.end) + "〉";
        at = span.end;
    }
    return out + piece(at, static_cast<int64_t>(rendered.text.size()));
}

const json::object kVariables = {
    {"s", "<s>user</s>"}, {"l", {"a", "b"}}, {"d", {{"k", "v"}}}, {"n", 5}, {"ws", "  hi  "}};

std::string shown(const std::string& source) { return marked(render(source, kVariables)); }

TEST(JinjaProvenance, literals_are_trusted_and_variables_are_not) {
    EXPECT_EQ(shown("<s>{{ s }}</s>"), "〈<s>〉<s>user</s>〈</s>〉");
    EXPECT_EQ(shown("{{ '<a>' ~ s + '<b>' }}"), "〈<a>〉<s>user</s>〈<b>〉");
    EXPECT_EQ(shown("all {{ 'mine' }}"), "〈all mine〉");
    EXPECT_EQ(shown("{{ s }}"), "<s>user</s>");
    EXPECT_EQ(shown("{{ n }}{{ d }}{{ 7 }}"), "5{'k': 'v'}7");
    EXPECT_EQ(shown("{{ '%s|%s' % (s, 'x') }}"), "<s>user</s>〈|x〉");
    EXPECT_EQ(shown("{{ '[{}]'.format(s) }}{{ '{0}'|replace('0', s) }}"), "〈[〉<s>user</s>〈]{〉<s>user</s>〈}〉");
}

TEST(JinjaProvenance, provenance_follows_the_bytes) {
    EXPECT_EQ(shown("{{ ('<a>' ~ s)[1:6] }}"), "〈a>〉<s>");
    EXPECT_EQ(shown("{{ ('x' ~ s)|upper }}{{ (s ~ 'y')[::-1] }}"), "〈X〉<S>USER</S>〈y〉>s/<resu>s<");
    EXPECT_EQ(shown("{{ (ws ~ ' lit ').strip() }}|{{ ws|trim }}"), "hi  〈 lit|〉hi");
    EXPECT_EQ(shown("{{ ('1,' ~ s ~ ',2').split(',')|join('+') }}"), "〈1+〉<s>user</s>〈+2〉");
    EXPECT_EQ(shown("{{ l|join(', ') }}{{ ['x', s]|join }}"), "a〈, 〉b〈x〉<s>user</s>");
    EXPECT_EQ(shown("{{ s.replace('user', '<bot>') }}"), "<s>〈<bot>〉</s>");
    EXPECT_EQ(shown("{{ '<a>X</a>'.replace('X', s) }}"), "〈<a>〉<s>user</s>〈</a>〉");
    EXPECT_EQ(shown("{{ d|tojson }}{{ {'key': s}|tojson }}"), "{\"k\": \"v\"}{\"〈key〉\": \"<s>user</s>\"}");
    EXPECT_EQ(shown("{% set x %}<a>{{ s }}{% endset %}{{ x }}{% filter upper %}b{{ l[0] }}{% endfilter %}"),
              "〈<a>〉<s>user</s>〈B〉A");
    EXPECT_EQ(shown("{% macro m(x) %}<m>{{ x }}{% endmacro %}{{ m(s) }}{{ m('t') }}"), "〈<m>〉<s>user</s>〈<m>t〉");
    EXPECT_EQ(shown("{% set ns = namespace(t='<') %}{% set ns.t = ns.t ~ s %}{{ ns.t }}"), "〈<〉<s>user</s>");
    EXPECT_EQ(shown("{% for c in s[:3] %}{{ c }}{% endfor %}{% for c in 'ab' %}{{ c }}{% endfor %}"), "<s>〈ab〉");
    EXPECT_EQ(shown("{{ ('a\n' ~ s)|indent(2) }}"), "〈a\n  〉<s>user</s>");
    EXPECT_EQ(shown("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}"), "k〈=〉v");
}

TEST(JinjaProvenance, trusted_variables_and_roles_are_the_templates_own) {
    jinja::RenderOptions options;
    options.trusted_variables = {{"bos", "<s>"}};
    options.trusted_roles = {"user"};
    const auto rendered = [&](const std::string& source, const json::object& variables) {
        return marked(jinja::Template::parse(source, "t").render(variables, options));
    };
    EXPECT_EQ(rendered("{{ bos }}{{ x }}", {{"x", "<s>"}}), "〈<s>〉<s>");
    EXPECT_EQ(rendered("<|{{ m.role }}|>{{ m.content }}", {{"m", {{"role", "user"}, {"content", "user"}}}}),
              "〈<|user|>〉user");
    EXPECT_EQ(rendered("<|{{ m.role }}|>", {{"m", {{"role", "admin"}}}}), "〈<|〉admin〈|>〉");
}

/// Text against the plain model: one flag for each byte.
TEST(JinjaProvenance, text_equals_one_flag_per_byte) {
    const unsigned seed = 20'261'121;
    std::mt19937 random(seed);
    SCOPED_TRACE(seed);
    std::vector<std::pair<Text, std::string>> pool(6);  // text, flags ('1' trusted)
    for (int round = 0; round < 20'000; ++round) {
        auto& [text, flags] = pool[random() % pool.size()];
        const auto& [other, other_flags] = pool[random() % pool.size()];
        const auto size = static_cast<unsigned>(other.size());
        const int64_t begin = random() % (size + 1), end = begin + random() % (size - static_cast<unsigned>(begin) + 1);
        if (random() % 3 == 0) {
            const bool trusted = random() % 2 == 0;
            text.append("abc", trusted);
            flags += trusted ? "111" : "000";
        } else if (&text != &other && random() % 2 == 0) {
            text.append(other, begin, end);
            flags += other_flags.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        } else {
            const Text part = other.part(begin, end);
            const std::string part_flags =
                other_flags.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
            text = part;
            flags = part_flags;
        }
        if (text.size() > 200) text = Text(), flags.clear();
        std::string found(static_cast<std::size_t>(text.size()), '0');
        int64_t last = -1;
        for (const TextSpan& span : text.trusted()) {
            ASSERT_LT(last, span.begin);
            ASSERT_LT(span.begin, span.end);
            last = span.end;
            for (int64_t i = span.begin; i < span.end; ++i) found[static_cast<std::size_t>(i)] = '1';
        }
        ASSERT_EQ(found, flags);
        for (int64_t i = 0; i < text.size(); ++i)
            ASSERT_EQ(text.trusted_at(i), flags[static_cast<std::size_t>(i)] == '1');
    }
}

}  // namespace
}  // namespace riptide
