#include "apps/niah/niah_report.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "apps/support/svg.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct Share {
    int64_t right = 0, of = 0;
    double value() const { return of > 0 ? static_cast<double>(right) / static_cast<double>(of) : 0; }
};

using Wanted = std::function<bool(const NiahAnswer&)>;

Share share_of(std::span<const NiahAnswer> answers, const Wanted& wanted) {
    Share out;
    for (const NiahAnswer& a : answers)
        if (wanted(a)) {
            ++out.of;
            out.right += a.right ? 1 : 0;
        }
    return out;
}

/// The middle of what `value` says of them; 0 of none.
double median_of(std::span<const NiahAnswer> answers, const Wanted& wanted,
                 const std::function<double(const NiahAnswer&)>& value) {
    std::vector<double> values;
    for (const NiahAnswer& a : answers)
        if (wanted(a)) values.push_back(value(a));
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::string percent(const Share& share) { return share.of == 0 ? "-" : fmt::format("{:.0f} %", 100 * share.value()); }

std::string table_row(const std::string& name, const NiahOptions& o, const std::function<std::string(int64_t)>& cell) {
    std::string out = fmt::format("{:<14}", name);
    for (const int64_t length : o.lengths) out += fmt::format(" {:>8}", cell(length));
    return out + '\n';
}

NiahTask recorded_task(std::string_view name, const std::string& what) {
    for (const NiahTask task : kNiahTasks)
        if (niah_task_name(task) == name) return task;
    fail(ErrorKind::data, "{}: no task is called {}", what, name);
}

}  // namespace

std::string keep_name(double keep) { return keep >= 1 ? "dense" : fmt::format("{:g}", keep); }

std::string length_name(int64_t length) {
    return length % 1024 == 0 ? fmt::format("{}K", length / 1024) : fmt::format("{}", length);
}

std::string niah_table(std::span<const NiahAnswer> answers, const NiahOptions& o) {
    std::string out;
    for (const double keep : o.keeps) {
        out += fmt::format("{}right, {}\n", out.empty() ? "" : "\n",
                           keep >= 1 ? "whole prompts" : "keep " + keep_name(keep));
        out += table_row("", o, [](int64_t length) { return length_name(length); });
        const auto in = [&](int64_t length) -> Wanted {
            return [keep, length](const NiahAnswer& a) { return a.keep == keep && a.length == length; };
        };
        for (const NiahTask task : o.tasks)
            out += table_row(std::string(niah_task_name(task)), o, [&](int64_t length) {
                return percent(share_of(
                    answers, [&, wanted = in(length)](const NiahAnswer& a) { return a.task == task && wanted(a); }));
            });
        if (o.tasks.size() > 1)
            out += table_row("all", o, [&](int64_t length) { return percent(share_of(answers, in(length))); });
        out += table_row("read", o, [&](int64_t length) {
            return fmt::format("{:.0f} %", 100 * median_of(answers, in(length), [](const NiahAnswer& a) {
                                               return static_cast<double>(a.kept) / static_cast<double>(a.tokens);
                                           }));
        });
        out += table_row("first token", o, [&](int64_t length) {
            return fmt::format("{:.3f} s", median_of(answers, in(length), [](const NiahAnswer& a) { return a.ttft; }));
        });
        if (keep < 1)
            out += table_row("of it scoring", o, [&](int64_t length) {
                return fmt::format("{:.3f} s",
                                   median_of(answers, in(length), [](const NiahAnswer& a) { return a.scoring; }));
            });
    }
    return out;
}

json::object niah_settings(const json::object& about, const NiahOptions& o) {
    json::object out = about;
    out["seed"] = o.seed;
    out["tokens_max"] = o.max_tokens;
    out["think"] = o.think;
    return out;
}

json::object niah_json(const json::object& settings, std::span<const NiahAnswer> answers, const NiahOptions& o) {
    json::array cells, all;
    for (const double keep : o.keeps)
        for (const NiahTask task : o.tasks)
            for (const int64_t length : o.lengths)
                for (const int depth : o.depths) {
                    const Share share = share_of(answers, [&](const NiahAnswer& a) {
                        return a.keep == keep && a.task == task && a.length == length && a.depth == depth;
                    });
                    cells.push_back({{"task", niah_task_name(task)},
                                     {"length", length},
                                     {"depth", depth},
                                     {"keep", keep_name(keep)},
                                     {"right", share.right},
                                     {"of", share.of}});
                }
    for (const NiahAnswer& a : answers)
        all.push_back({{"task", niah_task_name(a.task)},
                       {"length", a.length},
                       {"depth", a.depth},
                       {"keep", a.keep},
                       {"index", a.index},
                       {"right", a.right},
                       {"prompt_tokens", a.tokens},
                       {"kept_tokens", a.kept},
                       {"ttft_s", a.ttft},
                       {"scoring_s", a.scoring},
                       {"seconds", a.seconds},
                       {"expected", a.expected},
                       {"answer", a.answer}});
    return {{"settings", settings}, {"cells", std::move(cells)}, {"answers", std::move(all)}};
}

std::vector<NiahAnswer> niah_answers(const json::value& from, const json::object& settings, const std::string& what) {
    std::vector<NiahAnswer> out;
    try {
        RT_CHECK(from.at("settings").as_object() == settings, "{}: made with other settings: {}, now {}", what,
                 json::serialize(from.at("settings")), json::serialize(settings));
        for (const json::value& a : from.at("answers").as_array())
            out.push_back({.task = recorded_task(a.at("task").as_string(), what),
                           .length = a.at("length").as_int64(),
                           .depth = static_cast<int>(a.at("depth").as_int64()),
                           .keep = a.at("keep").to_number<double>(),
                           .index = static_cast<int>(a.at("index").as_int64()),
                           .tokens = a.at("prompt_tokens").as_int64(),
                           .kept = a.at("kept_tokens").as_int64(),
                           .right = a.at("right").as_bool(),
                           .expected = std::string(a.at("expected").as_string()),
                           .answer = std::string(a.at("answer").as_string()),
                           .ttft = a.at("ttft_s").to_number<double>(),
                           .seconds = a.at("seconds").to_number<double>(),
                           .scoring = a.at("scoring_s").to_number<double>()});
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {  // of Boost.JSON: a field that is not there, or of another type
        fail(ErrorKind::data, "{}: not what riptide niah has written: {}", what, error.what());
    }
    return out;
}

namespace {

constexpr double kCellWidth = 44, kCellHeight = 24, kLabel = 110, kMapTop = 94, kGap = 18;

/// Orange, nearly white, blue.
std::string colour(double share) {
    constexpr int kStops[3][3] = {{213, 94, 0}, {240, 240, 240}, {0, 114, 178}};
    const int low = share < 0.5 ? 0 : 1;
    const double part = share < 0.5 ? 2 * share : 2 * share - 1;
    int rgb[3];
    for (int c = 0; c < 3; ++c)
        rgb[c] = static_cast<int>(std::lround(kStops[low][c] + part * (kStops[low + 1][c] - kStops[low][c])));
    return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]);
}

/// Of the prompts' tokens, read by the model.
std::string read_share(std::span<const NiahAnswer> answers, double keep) {
    int64_t kept = 0, tokens = 0;
    for (const NiahAnswer& a : answers)
        if (a.keep == keep) kept += a.kept, tokens += a.tokens;
    if (tokens == 0) return "";
    return fmt::format("{:.0f} % read", 100 * static_cast<double>(kept) / static_cast<double>(tokens));
}

/// One map with its corner at x, y.
std::string map(std::span<const NiahAnswer> answers, const NiahOptions& o, double x, double y, const Wanted& wanted) {
    std::string out;
    for (size_t row = 0; row < o.depths.size(); ++row)
        for (size_t column = 0; column < o.lengths.size(); ++column) {
            const Share share = share_of(answers, [&](const NiahAnswer& a) {
                return wanted(a) && a.depth == o.depths[row] && a.length == o.lengths[column];
            });
            const double left = x + kCellWidth * static_cast<double>(column),
                         top = y + kCellHeight * static_cast<double>(row);
            out += fmt::format(
                "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"white\"/>\n", left,
                top, kCellWidth, kCellHeight, share.of == 0 ? "#ddd" : colour(share.value()));
            if (share.of > 0)
                out += svg_text(left + kCellWidth / 2, top + 16, fmt::format("{:.0f}", 100 * share.value()), "middle",
                                share.value() > 0.85 || share.value() < 0.15 ? "on-dark" : "on-light");
        }
    for (size_t column = 0; column < o.lengths.size(); ++column)
        out += svg_text(x + kCellWidth * (static_cast<double>(column) + 0.5),
                        y + kCellHeight * static_cast<double>(o.depths.size()) + 14, length_name(o.lengths[column]),
                        "middle");
    return out;
}

}  // namespace

std::string niah_svg(std::span<const NiahAnswer> answers, const NiahOptions& o, const std::string& title) {
    const double map_width = kCellWidth * static_cast<double>(o.lengths.size()) + kGap,
                 map_height = kCellHeight * static_cast<double>(o.depths.size()) + 2 * kGap;
    const size_t rows = o.tasks.size() + (o.tasks.size() > 1 ? 1 : 0);
    const double width = std::max(640.0, kLabel + map_width * static_cast<double>(o.keeps.size())),
                 height = kMapTop + map_height * static_cast<double>(rows) + kGap;
    std::string out = svg_begin(width, height, title);
    out += svg_text(12, 40, "Right answers in percent. Columns: tokens of prompt and answer together.", "start") +
           svg_text(12, 56, "Rows: depth of what answers, in percent of the text.", "start");
    for (size_t k = 0; k < o.keeps.size(); ++k) {
        const double middle = kLabel + map_width * static_cast<double>(k) + (map_width - kGap) / 2;
        out += svg_text(middle, kMapTop - 20, o.keeps[k] >= 1 ? "whole prompt" : "keep " + keep_name(o.keeps[k]),
                        "middle") +
               svg_text(middle, kMapTop - 6, read_share(answers, o.keeps[k]), "middle");
    }
    for (size_t row = 0; row < rows; ++row) {
        const double y = kMapTop + map_height * static_cast<double>(row);
        const bool all = row == o.tasks.size();
        out += svg_text(12, y + 16, all ? "all" : niah_task_name(o.tasks[row]), "start");
        for (size_t i = 0; i < o.depths.size(); ++i)
            out += svg_text(kLabel - 6, y + kCellHeight * static_cast<double>(i) + 16, fmt::format("{}", o.depths[i]),
                            "end");
        for (size_t k = 0; k < o.keeps.size(); ++k)
            out += map(answers, o, kLabel + map_width * static_cast<double>(k), y,
                       [&](const NiahAnswer& a) { return a.keep == o.keeps[k] && (all || a.task == o.tasks[row]); });
    }
    return out + "</svg>\n";
}

}  // namespace riptide::apps
