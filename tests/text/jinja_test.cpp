// What the reference cases do not show: messages, places, differences from Jinja2 that are meant, threads.
#include <atomic>
#include <thread>

#include "tests/text/jinja_cases.h"

#include "base/json.h"

namespace riptide {
namespace {

TEST(Jinja, parse_errors_name_line_and_column) {
    EXPECT_EQ(render_error("a\nb {% if x %}\n{{ 1 + }}"), "t:3:8: expected an expression, found '}}'");
    EXPECT_EQ(render_error("{% for x in y %}"), "t:1:17: expected '{% endfor %}', found the end of the template");
    EXPECT_EQ(render_error("é {{ 'abc }}"), "t:1:6: a string is not closed");
    EXPECT_EQ(render_error("{{ (1] }}"), "t:1:6: unexpected ']', expected ')'");
    EXPECT_EQ(render_error("{{ x|nothing }}"), "t:1:6: there is no filter 'nothing'");
    EXPECT_EQ(render_error("{% include 'other' %}"), "t:1:4: the tag 'include' is not supported");
    EXPECT_EQ(render_error("{% frobnicate %}"), "t:1:4: unknown tag 'frobnicate'");
    EXPECT_EQ(render_error("ok\n\xff"), "t:2:1: byte 3 is not UTF-8");
}

TEST(Jinja, render_errors_name_the_line) {
    EXPECT_EQ(render_error("\n\n{{ x.y.z }}", {{"x", json::object()}}), "t:3: 'dict object' has no attribute 'y'");
    EXPECT_EQ(render_error("{{ 'a' + 1 }}"), "t:1: can only concatenate str (not \"int\") to str");
    EXPECT_EQ(render_error("{{ [1].append(2) }}"), "t:1: access to attribute 'append' of 'list' object is unsafe");
}

TEST(Jinja, raise_exception_gives_the_templates_own_message) {
    try {
        render("\n{{ raise_exception('no ' ~ 'tools' ~ '!' * 2000) }}");
        FAIL() << "nothing was raised";
    } catch (const jinja::RaisedError& raised) {
        EXPECT_EQ(raised.template_message().substr(0, 9), "no tools!");
        EXPECT_EQ(raised.template_message().size(), 1000u);
        EXPECT_EQ(std::string(raised.what()).substr(0, 50), "t:2: the template refuses this conversation: no to");
    }
}

TEST(Jinja, whole_numbers_beyond_64_bits_are_shown_but_not_calculated_with) {
    const json::object variables = {{"n", 18446744073709551615u}};
    EXPECT_EQ(render("{{ n }} {{ n|tojson }} {{ n > 1 }} {{ n == n }}", variables).text,
              "18446744073709551615 18446744073709551615 True True");
    EXPECT_NE(render_error("{{ n + 1 }}", variables), "");
    EXPECT_NE(render_error("{{ 9223372036854775807 + 1 }}"), "");
    EXPECT_NE(render_error("{{ 2 ** 64 }}"), "");
    EXPECT_NE(render_error("{{ -9223372036854775807 - 2 }}"), "");
    EXPECT_EQ(render("{{ (-9223372036854775807 - 1) // -1 if false else (-9223372036854775807 - 1) % -1 }}").text, "0");
    EXPECT_NE(render_error("{{ (-9223372036854775807 - 1) // -1 }}"), "");
}

TEST(Jinja, nothing_of_the_host_can_be_reached) {
    const json::object variables = {{"s", "text"}, {"d", {{"k", 1}}}, {"l", {1, 2}}};
    for (const std::string value :
         {"s", "d", "l", "1", "1.5", "none", "range", "s.upper", "namespace()", "dict", "cycler(1)"}) {
        for (const std::string name :
             {"__class__", "__init__", "__globals__", "__subclasses__", "mro", "gi_frame", "func_code", "_x"}) {
            EXPECT_EQ(render("{{ (" + value + ")." + name + " is defined }}", variables).text, "False")
                << value << "." << name;
            EXPECT_EQ(render("{{ (" + value + ")['" + name + "'] is defined }}", variables).text, "False")
                << value << "." << name;
        }
    }
    EXPECT_EQ(render("{{ '{0.__class__}'.format(s) }}", variables).text, "");
}

TEST(Jinja, variables_hide_functions_and_trusted_variables_hide_variables) {
    EXPECT_EQ(render("{{ range }}", {{"range", "mine"}}).text, "mine");
    jinja::RenderOptions options;
    options.trusted_variables = {{"bos_token", "<s>"}};
    EXPECT_EQ(jinja::Template::parse("{{ bos_token }}", "t").render({{"bos_token", "evil"}}, options).text, "<s>");
}

TEST(Jinja, a_loop_that_was_kept_lets_its_items_go) {
    EXPECT_EQ(render("{% set ns = namespace(l=none) %}{% for x in [1,2] %}{% set ns.l = loop %}{% endfor %}"
                     "{{ ns.l.index }}{{ ns.l.last }}{{ ns.l.previtem is defined }}")
                  .text,
              "2TrueFalse");
    EXPECT_NE(render_error("{% set ns = namespace(l=none) %}{% for x in [1] recursive %}{% set ns.l = loop %}{% endfor "
                           "%}{{ ns.l([1]) }}"),
              "");
}

TEST(Jinja, values_that_hold_each_other_are_freed) {  // seen by the leak checker
    render(
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{% macro m() %}{{ m }}{% endmacro %}{% "
        "set a.m = m %}"
        "{% for x in [1] %}{{ loop.changed(loop) }}{% set a.l = loop %}{% endfor %}");
    EXPECT_NE(render_error("{% set a = namespace() %}{% set a.a = a %}{{ a }}"), "");
}

TEST(Jinja, one_template_renders_in_many_threads) {
    const jinja::Template shared = jinja::Template::parse(
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for x in l %}{{ m(x ~ 'lit') }}{% endfor %}", "t");
    const std::string expected = shared.render({{"l", {1, 2, 3}}}).text;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 500; ++i) wrong += shared.render({{"l", {1, 2, 3}}}).text != expected;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace riptide
