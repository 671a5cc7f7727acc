// Laws: any template, on any variables, renders within its budgets or throws Error; the trusted spans are sorted,
// disjoint and inside the text; rendering again gives the same. Input: the template, then (after a NUL byte) the JSON
// of the variables.
#include <cstdint>
#include <string_view>

#include "tests/fuzz/fuzz_input.h"
#include "text/jinja/template.h"

#include "base/json.h"

namespace {

using namespace riptide;
using fuzz::require;

const json::object& usual_variables() {
    static const json::object variables =
        parse_json(
            R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "héllo <a>"},
            {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]}],
            "tools": [{"type": "function", "function": {"name": "f"}}], "x": 3, "s": "text", "l": [3, 1, 2], "d": {"a": 1, "b": "two"}})",
            "variables")
            .as_object();
    return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::size_t cut = input.find('\0');
    jinja::Limits limits;
    constexpr int64_t kSteps = 20'000;
    limits.output_bytes = 1 << 16;
    limits.value_bytes = 1 << 20;
    limits.range_items = 1000;
    jinja::RenderOptions options;
    options.now.emplace();
    try {
        json::object variables = usual_variables();
        if (cut != std::string_view::npos) {
            const json::value given = parse_json(input.substr(cut + 1), "variables");
            if (given.is_object()) variables = given.get_object();
        }
        const jinja::Template parsed = jinja::Template::parse(input.substr(0, cut), "fuzz", limits);
        WorkBudget work(kSteps), same_work(kSteps);
        options.work = &work;
        const jinja::Rendered rendered = parsed.render(variables, options);
        int64_t last = -1;
        for (const TextSpan& span : rendered.trusted) {
            require(last < span.begin && span.begin < span.end);
            last = span.end;
        }
        require(last <= static_cast<int64_t>(rendered.text.size()));
        options.work = &same_work;
        const jinja::Rendered again = parsed.render(variables, options);
        require(again.text == rendered.text && again.trusted == rendered.trusted);
    } catch (const Error&) {
    }
    return 0;
}
