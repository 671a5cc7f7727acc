#include "apps/ab/ab_report.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/support/svg.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

double speed_up(const AbAnswer& answer, const AbAnswer& plain) {
    return plain.rate() > 0 ? answer.rate() / plain.rate() : 0;
}

double share(int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// Drafts in a step, at most; 0 where the mode chooses itself.
int32_t nodes(const AbMode& mode) {
    if (!mode.speculation || mode.speculation->adaptive) return 0;
    return mode.speculation->tree > 0 ? mode.speculation->tree : mode.speculation->width;
}

json::object ab_answer_json(const AbMode& mode, const AbAnswer& a, const AbAnswer& plain) {
    json::object out = {{"mode", mode.name},
                        {"tokens", a.tokens},
                        {"seconds", a.seconds},
                        {"tok_s", a.rate()},
                        {"speed_up", speed_up(a, plain)},
                        {"mismatches", a.mismatches}};
    if (!mode.speculation) return out;
    const SpeculationStats& s = a.speculation;
    out["tokens_per_step"] = s.tokens_per_step();
    out["steps"] = s.steps;
    out["drafted"] = s.drafted;
    out["accepted"] = s.accepted;
    out["draft_seconds"] = s.draft_seconds;
    json::array& slots = out["slots"].emplace_array();
    for (const auto& slot : s.slots) slots.push_back({{"reached", slot.reached}, {"accepted", slot.accepted}});
    return out;
}

}  // namespace

std::string ab_table(const AbResult& result) {
    std::string out = fmt::format("{:<10} {:>10} {:>9} {:>12} {:>12} {:>11}\n", "", "tok/s", "speed-up", "tokens/step",
                                  "accepted", "mismatches");
    if (result.answers.empty()) return out;
    const AbAnswer plain = result.total(0);
    for (size_t m = 0; m < result.modes.size(); ++m) {
        const AbAnswer a = result.total(m);
        const bool drafts = result.modes[m].speculation.has_value();
        out += fmt::format(
            "{:<10} {:>10.1f} {:>8.2f}x {:>12} {:>12} {:>11}\n", result.modes[m].name, a.rate(), speed_up(a, plain),
            drafts ? fmt::format("{:.2f}", a.speculation.tokens_per_step()) : "1.00",
            drafts ? fmt::format("{:.0f} %", 100 * share(a.speculation.accepted, a.speculation.drafted)) : "-",
            a.mismatches);
    }
    out += fmt::format("\n{:<16} {:<10} {:>7} {:>10}", "prompt", "kind", "tokens", "plain");
    for (size_t m = 1; m < result.modes.size(); ++m) out += fmt::format(" {:>9}", result.modes[m].name);
    out += '\n';
    for (size_t p = 0; p < result.prompts.size(); ++p) {
        const auto& row = result.answers[p];
        out += fmt::format("{:<16.16} {:<10.10} {:>7} {:>10.1f}", result.prompts[p].id, result.prompts[p].kind,
                           row[0].tokens, row[0].rate());
        for (size_t m = 1; m < row.size(); ++m) out += fmt::format(" {:>8.2f}x", speed_up(row[m], row[0]));
        out += '\n';
    }
    return out;
}

json::object ab_json(const AbResult& result) {
    json::array modes, prompts;
    for (size_t m = 0; m < result.modes.size(); ++m)
        modes.push_back(ab_answer_json(result.modes[m], result.total(m), result.total(0)));
    for (size_t p = 0; p < result.prompts.size(); ++p) {
        json::object prompt = {{"id", result.prompts[p].id},
                               {"kind", result.prompts[p].kind},
                               {"prompt_tokens", result.prompts[p].tokens.size()}};
        json::array rows;
        for (size_t m = 0; m < result.modes.size(); ++m)
            rows.push_back(ab_answer_json(result.modes[m], result.answers[p][m], result.answers[p][0]));
        prompt["modes"] = std::move(rows);
        prompts.push_back(std::move(prompt));
    }
    return {{"modes", std::move(modes)}, {"prompts", std::move(prompts)}, {"mismatches", result.mismatches()}};
}

namespace {

constexpr double kWidth = 420, kHeight = 260, kLeft = 50, kTop = 50;  // of a panel's inside, and around it

/// One diagram: x from 0 to x_most, y from 0 to y_most, at `left`.
struct Panel {
    double left, x_most, y_most;
    std::string out = {};

    double x(double value) const { return left + kWidth * value / x_most; }
    double y(double value) const { return kTop + kHeight * (1 - value / y_most); }
    void text(double at_x, double at_y, const std::string& content, const char* anchor, const char* kind = "") {
        out += svg_text(at_x, at_y, content, anchor, kind);
    }
    void axes(const std::string& title, const std::string& below, double y_step) {
        text(left + kWidth / 2, kTop - 14, title, "middle");
        text(left + kWidth / 2, kTop + kHeight + 36, below, "middle");
        for (double v = 0; v <= y_most * 1.0001; v += y_step) {
            out += svg_line(left, y(v), left + kWidth, y(v), "grid");
            text(left - 6, y(v) + 4, fmt::format("{:.1f}", v), "end", "faint");
        }
        out +=
            svg_line(left, kTop, left, kTop + kHeight) + svg_line(left, kTop + kHeight, left + kWidth, kTop + kHeight);
    }
    void curve(const std::vector<std::pair<double, double>>& points, int series) {
        std::string list;
        for (const auto& [px, py] : points) list += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
        out += fmt::format("<polyline points=\"{}\" class=\"l{}\"/>\n", list, series);
        for (const auto& [px, py] : points)
            out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"s{}\"/>\n", x(px), y(py), series);
        if (points.size() > 1)
            text(x(points.back().first) - 4, y(points.back().second) - 8, series == 0 ? "chains" : "trees", "end");
    }
};

std::string speed_panel(const AbResult& result) {
    const AbAnswer plain = result.total(0);
    std::vector<std::pair<double, double>> chains = {{0, 1}}, trees;
    double widest = 1, fastest = 1.5, adaptive = 0;
    for (size_t m = 1; m < result.modes.size(); ++m) {
        const double speed = speed_up(result.total(m), plain), n = nodes(result.modes[m]);
        fastest = std::max(fastest, speed);
        widest = std::max(widest, n);
        if (n == 0) adaptive = speed;
        else (result.modes[m].speculation->tree > 0 ? trees : chains).emplace_back(n, speed);
    }
    for (auto* points : {&chains, &trees}) std::sort(points->begin(), points->end());
    Panel panel{kLeft, widest * 1.05, fastest * 1.1};
    panel.axes("speed-up over plain decoding", "drafts in a step", 0.5);
    for (const auto* points : {&chains, &trees})
        for (const auto& [n, speed] : *points)
            panel.text(panel.x(n), kTop + kHeight + 18, fmt::format("{:.0f}", n), "middle");
    panel.out += svg_line(kLeft, panel.y(1), kLeft + kWidth, panel.y(1));
    panel.text(kLeft + 4, panel.y(1) + 14, "plain decoding", "start", "faint");
    panel.curve(chains, 0);
    panel.curve(trees, 1);
    if (adaptive > 0) {
        panel.out += svg_line(kLeft, panel.y(adaptive), kLeft + kWidth, panel.y(adaptive), "l2");
        panel.text(kLeft + kWidth - 4, panel.y(adaptive) - 5, "adaptive", "end");
    }
    return panel.out;
}

/// The widest chain's.
std::string slot_panel(const AbResult& result, double left) {
    size_t widest = 0;
    for (size_t m = 1; m < result.modes.size(); ++m) {
        const auto& mode = result.modes[m];
        if (mode.speculation->tree == 0 && nodes(mode) > (widest == 0 ? 0 : nodes(result.modes[widest]))) widest = m;
    }
    const AbAnswer total = result.total(widest);
    const auto& slots = total.speculation.slots;
    Panel panel{left, std::max<double>(1, static_cast<double>(slots.size())), 1};
    panel.axes(widest == 0 ? "no chain was measured"
                           : "steps in which a slot's draft was accepted, " + result.modes[widest].name,
               "slot", 0.2);
    for (size_t i = 0; i < slots.size(); ++i) {
        const double value = share(slots[i].accepted, total.speculation.steps);
        const double x = panel.x(static_cast<double>(i) + 0.15),
                     width = 0.7 * kWidth / static_cast<double>(slots.size());
        panel.out += svg_bar(x, panel.y(value), width, kTop + kHeight - panel.y(value), "s0");
        panel.text(x + width / 2, kTop + kHeight + 18, fmt::format("{}", i + 1), "middle");
    }
    return panel.out;
}

}  // namespace

std::string ab_svg(const AbResult& result, const std::string& title) {
    const double second = 2 * kLeft + kWidth + 20;
    std::string out = svg_begin(second + kWidth + 20, kTop + kHeight + 60, title);
    if (!result.answers.empty()) out += speed_panel(result) + slot_panel(result, second);
    return out + "</svg>\n";
}

}  // namespace riptide::apps
