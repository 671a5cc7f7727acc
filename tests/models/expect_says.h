// EXPECT_SAYS(action, part, ...): the action throws Error, whose message has all these parts.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "base/error.h"

namespace riptide::testing {

/// What an action that fails says.
template <class F>
std::string message_of(const F& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

#define EXPECT_SAYS(action, ...)                                                                      \
    do {                                                                                              \
        const std::string message = message_of([&] { action; });                                      \
        for (const std::string part : std::initializer_list<std::string>{__VA_ARGS__})                \
            EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message; \
    } while (0)

}  // namespace riptide::testing
