#include "apps/bench/bench_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/support/svg.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

using Kind = BenchRow::Kind;

constexpr double kPlotWidth = 760, kLabel = 150, kRoom = 90, kBar = 16, kBetween = 8, kHead = 30;
constexpr size_t kColours = 4;

double number_at(const json::object& row, std::string_view key) {
    const json::value* value = row.if_contains(key);
    return value != nullptr && value->is_number() ? value->to_number<double>() : 0;
}

/// A row of `riptide bench --json`; rate 0: not one that is drawn.
BenchSeries::Figure own_figure(const json::object& row) {
    const json::value* kind = row.if_contains("kind");
    if (kind == nullptr || !kind->is_string() || number_at(row, "sequences") > 1) return {};
    const auto rate = number_at(row, "median");
    if (kind->get_string() == "prefill") return {Kind::prefill, static_cast<int64_t>(number_at(row, "tokens")), rate};
    if (kind->get_string() == "decode") return {Kind::decode, static_cast<int64_t>(number_at(row, "depth")), rate};
    return {};
}

/// A row of `llama-bench -o json`: a prompt without answer, or an answer without prompt.
BenchSeries::Figure llama_figure(const json::object& row) {
    const auto prompt = static_cast<int64_t>(number_at(row, "n_prompt")),
               gen = static_cast<int64_t>(number_at(row, "n_gen")),
               depth = static_cast<int64_t>(number_at(row, "n_depth"));
    const double rate = number_at(row, "avg_ts");
    if (prompt > 0 && gen == 0 && depth == 0) return {Kind::prefill, prompt, rate};
    if (prompt == 0 && gen > 0) return {Kind::decode, depth, rate};
    return {};
}

/// A group of bars: for each length that anybody measured, one bar a series.
struct Group {
    std::string head;
    Kind kind;
    bool seconds;  // of a prompt, less is better; else tok/s
};

double value_of(const BenchSeries& series, const Group& group, int64_t tokens) {
    for (const auto& figure : series.figures)
        if (figure.kind == group.kind && figure.tokens == tokens && figure.rate > 0)
            return group.seconds ? static_cast<double>(tokens) / figure.rate : figure.rate;
    return 0;
}

std::string figure_text(double value, bool seconds) {
    if (seconds) return value < 1 ? fmt::format("{:.0f} ms", value * 1e3) : fmt::format("{:.1f} s", value);
    return grouped(std::llround(value));
}

/// The bars of a group from `y` on, which moves behind them.
std::string drawn(std::span<const BenchSeries> series, const Group& group, double& y) {
    std::set<int64_t> lengths;
    double most = 0;
    for (const BenchSeries& one : series)
        for (const auto& figure : one.figures)
            if (figure.kind == group.kind) {
                lengths.insert(figure.tokens);
                most = std::max(most, value_of(one, group, figure.tokens));
            }
    if (most == 0) return "";
    std::string out = svg_text(12, y, group.head, "start", "head");
    y += 12;
    for (const int64_t tokens : lengths) {
        const double top = y;
        for (size_t s = 0; s < series.size(); ++s) {
            const double value = value_of(series[s], group, tokens);
            if (value == 0) continue;
            const double width = (kPlotWidth - kLabel - kRoom) * value / most;
            out += svg_bar(kLabel, y, width, kBar - 2, fmt::format("s{}", s % kColours)) +
                   svg_text(kLabel + width + 6, y + 11.5, figure_text(value, group.seconds), "start");
            y += kBar;
        }
        const std::string label = group.kind == Kind::prefill ? fmt::format("{} tokens", grouped(tokens))
                                                              : fmt::format("behind {}", grouped(tokens));
        out += svg_text(kLabel - 8, (top + y) / 2 + 3, label, "end", "faint");
        y += kBetween;
    }
    y += kHead - kBetween;
    return out;
}

}  // namespace

BenchSeries bench_series(std::string name, std::span<const BenchRow> rows) {
    BenchSeries series{std::move(name), {}};
    for (const BenchRow& row : rows)
        if (row.kind != Kind::verify && row.sequences == 1)
            series.figures.push_back({row.kind, row.kind == Kind::prefill ? row.tokens : row.depth, row.median()});
    return series;
}

BenchSeries bench_series(std::string name, std::string_view text, const std::string& file) {
    const json::value parsed = parse_json(text, file);
    const bool own = parsed.is_object() && parsed.get_object().contains("rows") && parsed.at("rows").is_array();
    RT_CHECK(own || parsed.is_array(), ErrorKind::data,
             "{}: expected what `riptide bench --json` or `llama-bench -o json` writes, found {}", file,
             kind_of(parsed));
    BenchSeries series{std::move(name), {}};
    for (const json::value& row : own ? parsed.at("rows").get_array() : parsed.get_array()) {
        if (!row.is_object()) continue;
        const auto figure = own ? own_figure(row.get_object()) : llama_figure(row.get_object());
        if (figure.rate > 0) series.figures.push_back(figure);
    }
    RT_CHECK(!series.figures.empty(), ErrorKind::data,
             "{}: holds no prompt and no answer of one sequence that was timed", file);
    return series;
}

std::string bench_svg(std::span<const BenchSeries> series, std::string_view title, std::string_view caption) {
    double y = 48;
    std::string bars;
    if (series.size() > 1) {
        double x = 12;
        for (size_t s = 0; s < series.size(); ++s) {
            bars += svg_bar(x, y - 10, 12, 12, fmt::format("s{}", s % kColours)) +
                    svg_text(x + 18, y, series[s].name, "start");
            x += 40 + 7.0 * static_cast<double>(series[s].name.size());
        }
        y += kHead;
    }
    for (const Group& group : {Group{"Decoding, tokens a second", Kind::decode, false},
                               Group{"Reading a prompt, tokens a second", Kind::prefill, false},
                               Group{"First token of a prompt (less is better)", Kind::prefill, true}})
        bars += drawn(series, group, y);
    bars += svg_text(12, y, caption, "start", "faint");
    return svg_begin(kPlotWidth, y + 16, title) + bars + "</svg>\n";
}

}  // namespace riptide::apps
