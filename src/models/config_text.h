// A config as text that tells any two apart: part of the name under which K/V are kept.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <concepts>
#include <string>
#include <vector>

#include "models/rope_config.h"
#include "ops/delta_view.h"

namespace riptide {

template <class T>
requires std::integral<T> || std::floating_point<T> std::string field_text(const T& value) {
    return fmt::format("{} ", value);  // doubles: the shortest text that gives the same bits
}

template <class T>
std::string field_text(const std::vector<T>& values) {
    return fmt::format("[{}] ", fmt::join(std::vector<int64_t>(values.begin(), values.end()), " "));
}

template <class... Fields>
std::string text_of_fields(const Fields&... fields) {
    return (std::string() + ... + field_text(fields));
}

// The structured bindings here and in the config_text() of each config do not compile while a field is missing.

inline std::string field_text(const RopeConfig& rope) {
    const auto& [theta, rotary_dim, factor, original_context, beta_fast, beta_slow, magnitude] = rope;
    return text_of_fields(theta, rotary_dim, factor, original_context, beta_fast, beta_slow, magnitude);
}

/// Sizes alone.
inline std::string field_text(const DeltaView& d) {
    return text_of_fields(static_cast<int>(d.heads), d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.conv_width,
                          static_cast<int>(d.state_dtype), d.by_chunks);
}

}  // namespace riptide
