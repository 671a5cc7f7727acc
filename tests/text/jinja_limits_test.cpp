// Templates and variables that ask for too much end in an Error, in little stack and little time.
#include <pthread.h>

#include <chrono>
#include <functional>
#include <random>

#include "tests/sanitizers.h"
#include "tests/text/jinja_cases.h"

#include "base/json.h"

namespace riptide {
namespace {

using jinja::Limits;

std::string repeated(const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
}

/// Runs `work` on a thread with a small stack. Sanitizers make frames several times larger.
void with_small_stack(std::function<void()> work) {
    constexpr std::size_t kStack = std::size_t{kAddressSanitizer ? 4096 : 512} << 10;
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStack), 0);
    pthread_t thread;
    const auto entry = [](void* argument) -> void* {
        (*static_cast<std::function<void()>*>(argument))();
        return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, entry, &work), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
}

void expect_refused(const std::string& source, const std::string& part, const json::object& variables = {}) {
    with_small_stack([&] {
        const std::string error = render_error(source, variables);
        EXPECT_NE(error.find(part), std::string::npos) << source.substr(0, 80) << "\n" << error;
    });
}

TEST(JinjaLimits, nested_sources_are_refused_in_little_stack) {
    const int many = 200'000;
    const std::pair<std::string, std::string> kinds[] = {
        {"(", ")"},        {"[", "]"},    {"{1:", "}"},     {"-", ""},     {"not ", ""},
        {"[1][", "]"},     {"f(", ")"},   {"x|list(", ")"}, {"(1, ", ")"}, {"1 if 1 else ", ""},
        {"x is eq(", ")"}, {"f(a=", ")"}, {"f(**", ")"},    {"x[1:", "]"}};
    for (const auto& [open, close] : kinds) {
        const int count = many / static_cast<int>(open.size() + close.size());
        expect_refused("{{ " + repeated(open, count) + "1" + repeated(close, count) + " }}",
                       "nested more than 100 deep");
        expect_refused("{{ " + repeated(open, count), "the template ends inside a tag");
    }
    expect_refused(repeated("{% if 1 %}", 20'000), "nested more than 100 deep");
    expect_refused(repeated("{% for x in y %}", 20'000), "nested more than 100 deep");
    expect_refused(repeated("{% macro m() %}", 20'000), "nested more than 100 deep");
    expect_refused(repeated("{% call m() %}", 20'000), "nested more than 100 deep");
    expect_refused("{% set " + repeated("(", many) + "x" + repeated(")", many) + " = 1 %}",
                   "nested more than 100 deep");
}

TEST(JinjaLimits, long_chains_are_refused_or_rendered_in_little_stack) {
    with_small_stack([] {
        EXPECT_EQ(render("{{ 1" + repeated(" + 1", 10'000) + " }}").text, "10001");
        EXPECT_EQ(render("{{ 1" + repeated(" or 1", 10'000) + " }}").text, "1");
        EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'a'", 10'000) + " }}").text, std::string(10'001, 'a'));
    });
    expect_refused("{{ x" + repeated(".a", 40'000) + " }}", "evaluation is nested more than 400 deep");
    expect_refused("{{ x" + repeated("[0]", 40'000) + " }}", "evaluation is nested more than 400 deep");
    expect_refused("{{ x" + repeated("()", 40'000) + " }}", "evaluation is nested more than 400 deep");
    expect_refused("{{ x" + repeated("|list", 40'000) + " }}", "evaluation is nested more than 400 deep");
}

/// The deepest evaluation that is allowed: macros inside blocks inside brackets.
TEST(JinjaLimits, the_deepest_evaluation_fits_into_little_stack) {
    const std::string blocks = repeated("{% for i in [1] %}", 8), ends = repeated("{% endfor %}", 8);
    const std::string source = "{% macro m(n) %}" + blocks + "{{ " + repeated("[", 20) + "m(n)" + repeated("]", 20) +
                               " }}" + ends + "{% endmacro %}{{ m(1) }}";
    expect_refused(source, "evaluation is nested more than 400 deep");
    expect_refused(
        "{% macro m(n) %}" + blocks + "{{ m(n) ~ ([1]|map('string')|join) }}" + ends + "{% endmacro %}{{ m(1) }}",
        "more than");
}

TEST(JinjaLimits, macros_that_call_themselves_are_refused) {
    expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "macros call each other more than 32 deep");
    expect_refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursive loops are more than 32 deep");
    expect_refused(
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% call m() %}{{ m() }}{% endcall %}{% endcall %}",
        "no caller defined");
}

TEST(JinjaLimits, work_is_counted) {
    const std::string loops =
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% "
        "endfor %}";
    expect_refused(loops, "takes more than 2000000 steps");
    expect_refused("{% for x in range(99999) %}{% if s in s ~ 'x' %}{% endif %}{% endfor %}", "takes more than",
                   {{"s", std::string(1'000'000, 'a')}});
    expect_refused("{% for x in range(99999) %}{{ '' if s == t }}{% endfor %}", "takes more than",
                   {{"s", std::string(1'000'000, 'a')}, {"t", std::string(1'000'000, 'a')}});
    // a value that holds itself many times over, compared with another such
    const std::string grow =
        "{% set ns = namespace(a=[], b=[]) %}{% for x in range(100) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = "
        "[ns.b, ns.b] %}{% endfor %}";
    expect_refused(grow + "{{ ns.a == ns.b }}", "takes more than");
    expect_refused(grow + "{{ ns.a < ns.b }}", "takes more than");
    expect_refused(grow + "{{ ns.a }}", "more than");
    expect_refused(grow + "{{ ns.a|tojson }}", "more than");
}

TEST(JinjaLimits, work_is_counted_by_the_bytes_that_are_touched) {
    const json::object variables = {{"s", std::string(1'000'000, 'a')}, {"ends", std::string(100'000, '\n')}};
    for (const char* each : {"s|title",
                             "s.title()",
                             "s|upper",
                             "s.swapcase()",
                             "s|capitalize",
                             "s.strip(s)",
                             "s|wordcount",
                             "s is lower",
                             "s.isalpha()",
                             "s|escape",
                             "s|tojson",
                             "[s]|string",
                             "ends|indent",
                             "ends.splitlines()|length",
                             "s.split()",
                             "s[::2]",
                             "s|int",
                             "s|float",
                             "s in s",
                             "s|replace('b', '')",
                             "s.count('aa')",
                             "s.removeprefix(s)",
                             "[s, s, s]|map('lower')|list",
                             "[s ~ 1, s ~ 2]|sort",
                             "{s: 1}[s]",
                             "(s * 8)|length",
                             "'%s' % s",
                             "'{}'.format(s)",
                             "s.center(2000000)",
                             "s.expandtabs()",
                             "[s, s]|join(s)",
                             "s.find('b')",
                             "s.rfind('b')"}) {
        const auto program = jinja::Template::parse(
            fmt::format("{{% for i in range(500) %}}{{% set x = {} %}}{{% endfor %}}", each), "t");
        WorkBudget work(100'000);
        jinja::RenderOptions options;
        options.work = &work;
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_THROW(program.render(variables, options), TooMuchWork) << each;
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        EXPECT_LT(took.count(), 5.0) << each;
    }
}

TEST(JinjaLimits, substrings_are_found_in_linear_time) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(render("{{ ('a' * 7000000 ~ 'b') in ('a' * 15000000) }}").text, "False");
    const json::object variables = {{"s", std::string(2'000'000, 'a')},
                                    {"behind", std::string(1'000'000, 'a') + "b"},
                                    {"before", "b" + std::string(1'000'000, 'a')}};
    EXPECT_EQ(render("{{ s.find(behind) }} {{ s.rfind(before) }} {{ s.count(behind) }} {{ s.replace(behind, '')|length "
                     "}} {{ s.split(behind)|length }} {{ s.rsplit(before)|length }} {{ s.partition(behind)|length }} "
                     "{{ s.rpartition(before)|length }} {{ s|replace(behind, '')|length }}",
                     variables)
                  .text,
              "-1 -1 0 2000000 1 1 3 3 2000000");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 20.0);  // hours, if each place is compared anew
}

TEST(JinjaLimits, substrings_are_found_where_they_stand) {
    std::mt19937 random(7);
    const auto word = [&](std::size_t most) {
        std::string out;
        for (std::size_t size = 1 + random() % most; out.size() < size;) out += "aab"[random() % 3];
        return out;
    };
    for (int i = 0; i < 300; ++i) {
        const std::string s = word(40), w = word(6);
        std::string replaced;
        std::size_t at = 0;
        int64_t count = 0;
        for (std::size_t found = 0; (found = s.find(w, at)) != std::string::npos; at = found + w.size(), ++count)
            replaced += s.substr(at, found - at) + "-";
        replaced += s.substr(at);
        const auto place = [](std::size_t found) { return found == std::string::npos ? -1 : int64_t(found); };
        EXPECT_EQ(render("{{ s.find(w) }} {{ s.rfind(w) }} {{ s.count(w) }} {{ s.replace(w, '-') }} "
                         "{{ s.split(w)|join('-') }} {{ w in s }} {{ s.rsplit(w, 1)[0]|length }}",
                         {{"s", s}, {"w", w}})
                      .text,
                  fmt::format("{} {} {} {} {} {} {}", place(s.find(w)), place(s.rfind(w)), count, replaced, replaced,
                              count > 0 ? "True" : "False", count > 0 ? s.rfind(w) : s.size()))
            << s << " " << w;
    }
}

TEST(JinjaLimits, one_budget_is_shared_and_a_stop_ends_the_work) {
    const auto loops = jinja::Template::parse("{% for i in range(1000) %}{{ i }}{% endfor %}", "t");
    WorkBudget work(20'000);
    jinja::RenderOptions options;
    options.work = &work;
    loops.render({}, options);
    EXPECT_GT(work.steps_spent(), 2000);
    EXPECT_THROW(for (int i = 0; i < 20; ++i) loops.render({}, options), TooMuchWork);
    EXPECT_THROW(loops.render({}, options), TooMuchWork) << "nothing is left";
    std::stop_source stop;
    WorkBudget stopped(WorkBudget::kSteps, stop.get_token());
    options.work = &stopped;
    loops.render({}, options);
    stop.request_stop();
    EXPECT_THROW(loops.render({}, options), WorkStopped);
}

TEST(JinjaLimits, sizes_are_bounded) {
    expect_refused("{{ range(100001)|length }}", "range() would have more than 100000 items");
    expect_refused("{{ range(-9223372036854775807, 9223372036854775807) }}", "range() would have more than");
    expect_refused("{{ 'x' * 1000000000000 }}", "a text grows beyond");
    expect_refused("{{ [1] * 1000000000000 }}", "takes more than");
    expect_refused("{{ 'x'.center(10**12) }}", "a text grows beyond");
    expect_refused("{{ '%1000000000d' % 1 }}", "a text grows beyond");
    expect_refused("{{ '{:1000000000}'.format(1) }}", "a text grows beyond");
    expect_refused("{{ '%.1000000000f' % 1.0 }}", "precision");
    expect_refused("{{ ('x' * 10000).replace('x', 'y' * 10000) }}", "a text grows beyond");
    expect_refused("{{ ('x,' * 5000).split(',')|join('y' * 10000) }}", "a text grows beyond");
    expect_refused("{{ ('x\n' * 5000)|indent(10000) }}", "a text grows beyond");
    expect_refused("{{ [[1]]|tojson(indent=100000000000) }}", "a text grows beyond");
    expect_refused("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                   "a text grows beyond");
    expect_refused("{% for i in range(100000) %}{{ s }}{% endfor %}", "a text grows beyond 16777216 bytes",
                   {{"s", std::string(1000, 'a')}});
    expect_refused(
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + [s ~ i] %}{% endfor %}",
        "more than", {{"s", std::string(100'000, 'a')}});
    expect_refused("{% set ns = namespace(l=1) %}{% for i in range(500) %}{% set ns.l = [ns.l] %}{% endfor %}",
                   "values are nested more than 160 deep");
    expect_refused("{{ strftime_now('%9999Y') }}", "too long");
}

TEST(JinjaLimits, memory_counts_what_is_alive) {
    // 200 texts of 1 MB, one after the other, are fine; 200 at once are not.
    const json::object variables = {{"s", std::string(1'000'000, 'a')}};
    EXPECT_EQ(render("{% for i in range(200) %}{% set x = s ~ i %}{% endfor %}ok", variables).text, "ok");
    expect_refused("{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = ns.l + [s ~ i] %}{% endfor %}",
                   "values need more than 67108864 bytes of memory", variables);
    Limits limits;  // namespaces live until the end
    limits.value_bytes = 1 << 20;
    const std::string spaces = "{% for i in range(20000) %}{% set n = namespace(a=1, b=2) %}{% endfor %}";
    EXPECT_NE(render_error(spaces, {}, limits).find("values need more than 1048576"), std::string::npos);
    const std::string macros = "{% for i in range(20000) %}{% macro m() %}{% endmacro %}{% endfor %}";
    EXPECT_NE(render_error(macros, {}, limits).find("values need more than 1048576"), std::string::npos);
}

TEST(JinjaLimits, the_sizes_of_the_source_are_bounded) {
    EXPECT_NE(render_error(std::string((1 << 20) + 1, 'x')).find("more than 1048576"), std::string::npos);
    EXPECT_NE(render_error(repeated("{{ x }}", 100'000)).find("more than 100000 nodes"), std::string::npos);
    Limits limits;
    limits.nodes = 3;
    EXPECT_NE(render_error("{{ 1 }}{{ 2 }}", {}, limits), "");
}

TEST(JinjaLimits, deep_variables_are_refused) {
    json::value deep = 1;
    for (int i = 0; i < 170; ++i) deep = json::array{std::move(deep)};
    expect_refused("{{ x }}", "nested more than 160 deep", {{"x", deep}});
    json::value fine = 1;
    for (int i = 0; i < 150; ++i) fine = json::object{{"k", std::move(fine)}};
    with_small_stack([&] {
        EXPECT_EQ(render("{{ x|tojson|length > 0 }}{{ x == x }}{{ (x ~ '')|length > 0 }}", {{"x", fine}}).text,
                  "TrueTrueTrue");
    });
}

TEST(JinjaLimits, budgets_end_within_a_second_or_so) {
    const auto begin = std::chrono::steady_clock::now();
    render_error(
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ [a, b]|join('x')|upper }}{% endfor %}{% endfor %}");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(),
              30.0);  // far above any real machine, sanitizers included; it would run for hours without budgets
    RecordProperty("seconds", std::to_string(took.count()));
}

}  // namespace
}  // namespace riptide
