// What the tests of templates share.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "base/json.h"
#include "text/jinja/template.h"

namespace riptide {

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// 2026-11-21 12:34:56, the time in all reference cases.
inline jinja::RenderOptions reference_options() {
    jinja::RenderOptions options;
    std::tm now{};
    now.tm_year = 126;
    now.tm_mon = 10;
    now.tm_mday = 21;
    now.tm_hour = 12;
    now.tm_min = 34;
    now.tm_sec = 56;
    options.now = now;
    return options;
}

/// Equal, or a failure that shows the first difference with what stands round it.
inline ::testing::AssertionResult same_text(const std::string& found, const std::string& expected) {
    if (found == expected) return ::testing::AssertionSuccess();
    std::size_t at = 0;
    while (at < found.size() && at < expected.size() && found[at] == expected[at]) ++at;
    const std::size_t from = at < 40 ? 0 : at - 40;
    const auto shown = [&](const std::string& text) {
        return ::testing::PrintToString(text.substr(std::min(from, text.size()), 100));
    };
    return ::testing::AssertionFailure() << "first difference at byte " << at << "\n  found    ..." << shown(found)
                                         << "\n  expected ..." << shown(expected);
}

/// The law of a reference case: `expected` byte for byte, or an Error where the reference has `error`.
inline void check_case(const std::string& source, const json::object& item, const json::object& variables,
                       const std::string& where) {
    SCOPED_TRACE(where);
    std::string found, error;
    try {
        found = jinja::Template::parse(source, "t").render(variables, reference_options()).text;
    } catch (const Error& caught) {
        error = caught.what();
    }
    if (const json::value* expected = item.if_contains("expected")) {
        EXPECT_EQ(error, "");
        EXPECT_TRUE(same_text(found, std::string(expected->as_string())));
    } else {
        EXPECT_NE(error, "") << "should be refused: " << item.at("error");
    }
}

/// Renders; the template's name is "t".
inline jinja::Rendered render(const std::string& source, const json::object& variables = {},
                              const jinja::Limits& limits = {}) {
    return jinja::Template::parse(source, "t", limits).render(variables, reference_options());
}

/// The message of the Error that rendering ends in, or "".
inline std::string render_error(const std::string& source, const json::object& variables = {},
                                const jinja::Limits& limits = {}) {
    try {
        render(source, variables, limits);
    } catch (const Error& caught) {
        return caught.what();
    }
    return "";
}

}  // namespace riptide
