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
    void text(double at_x, double at_y, const std::string& content, const char* anchor) {
        out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at_x, at_y, anchor,
                           svg_escaped(content));
    }
    void line(double x1, double y1, double x2, double y2, const char* style) {
        out +=
            fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
    }
    void axes(const std::string& title, const std::string& below, double y_step) {
        text(left + kWidth / 2, kTop - 14, title, "middle");
        text(left + kWidth / 2, kTop + kHeight + 36, below, "middle");
        for (double v = 0; v <= y_most * 1.0001; v += y_step) {
            line(left, y(v), left + kWidth, y(v), "stroke=\"#ddd\"");
            text(left - 6, y(v) + 4, fmt::format("{:.1f}", v), "end");
        }
        line(left, kTop, left, kTop + kHeight, "stroke=\"#333\"");
        line(left, kTop + kHeight, left + kWidth, kTop + kHeight, "stroke=\"#333\"");
    }
    void curve(const std::vector<std::pair<double, double>>& points, const char* colour) {
        std::string list;
        for (const auto& [px, py] : points) list += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
        out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", list, colour);
        for (const auto& [px, py] : points)
            out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x(px), y(py), colour);
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
    panel.curve(chains, "#1f6fb4");
    if (!trees.empty()) panel.curve(trees, "#d1632a");
    if (adaptive > 0) {
        panel.line(kLeft, panel.y(adaptive), kLeft + kWidth, panel.y(adaptive),
                   "stroke=\"#2a8f4f\" stroke-width=\"2\" stroke-dasharray=\"6 4\"");
        panel.text(kLeft + kWidth - 4, panel.y(adaptive) - 5, "adaptive", "end");
    }
    panel.out += "<g fill=\"#1f6fb4\">";
    panel.text(kLeft + 10, kTop + 16, "chains", "start");
    panel.out += "</g><g fill=\"#d1632a\">";
    panel.text(kLeft + 60, kTop + 16, trees.empty() ? "" : "trees", "start");
    panel.out += "</g>";
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
        panel.out +=
            fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#1f6fb4\"/>\n", x,
                        panel.y(value), width, kTop + kHeight - panel.y(value));
        panel.text(x + width / 2, kTop + kHeight + 18, fmt::format("{}", i + 1), "middle");
    }
    return panel.out;
}

}  // namespace

std::string ab_svg(const AbResult& result, const std::string& title) {
    const double second = 2 * kLeft + kWidth + 20;
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        second + kWidth + 20, kTop + kHeight + 60);
    out += fmt::format("<text x=\"{:.0f}\" y=\"20\" font-size=\"14\">{}</text>\n", kLeft, svg_escaped(title));
    if (!result.answers.empty()) out += speed_panel(result) + slot_panel(result, second);
    return out + "</svg>\n";
}

}  // namespace riptide::apps
