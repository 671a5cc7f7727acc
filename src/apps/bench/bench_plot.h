// The picture of `riptide bench --plot`: bars of decoding, prefill and the first token, beside other programs' figures.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/bench_rows.h"

namespace riptide::apps {

/// What one program did: a bar in each group that it was measured in.
struct BenchSeries {
    struct Figure {
        BenchRow::Kind kind = BenchRow::Kind::decode;
        int64_t tokens = 0;  // of the prompt, or before the first decoded token
        double rate = 0;     // tok/s
    };
    std::string name;
    std::vector<Figure> figures;
};

/// Prefill, and decoding of one sequence; the rest is left out.
BenchSeries bench_series(std::string name, std::span<const BenchRow> rows);
/// Figures out of a file: what `riptide bench --json` or `llama-bench -o json` wrote. `file` names it in errors.
/// Throws Error (data) for anything else.
BenchSeries bench_series(std::string name, std::string_view json, const std::string& file);

/// An SVG: groups "decode", "prefill" and "first token" (of each prompt: its length divided by its rate), one bar for
/// each series. The caption stands below: what was measured, on what, when.
std::string bench_svg(std::span<const BenchSeries> series, std::string_view title, std::string_view caption);

}  // namespace riptide::apps
