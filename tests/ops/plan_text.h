// Tables of choices as text: runs of rows with the same kernels, chips with the same runs, types with the same chips.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/plan_world.h"
#include "tests/source_dir.h"

namespace riptide::ops::cuda {

inline constexpr int64_t kPlanRows[] = {1, 2, 3, 4, 5, 8, 9, 16, 24, 25, 64, 256, 257, 1024, 4096};

inline Family family_for(int64_t rows) { return rows <= 256 ? Family::decode : Family::prefill; }

/// "1 a; 2-8 b": rows that follow each other in kPlanRows and have the same kernels are one run.
inline std::string plan_runs(const std::function<std::string(int64_t)>& of) {
    std::string text, last;
    int64_t from = 0, to = 0;
    const auto end = [&] {
        if (last.empty()) return;
        text += (text.empty() ? "" : "; ") + std::to_string(from) + (to > from ? "-" + std::to_string(to) : "") + " " +
                last;
    };
    for (const int64_t rows : kPlanRows) {
        const std::string now = of(rows);
        if (now != last) end(), from = rows, last = now;
        to = rows;
    }
    end();
    return text;
}

/// Chips with the same text are one line.
inline std::string by_chip(const std::function<std::string(const Chip&)>& of) {
    std::vector<std::pair<std::string, std::string>> lines;
    for (const NamedChip& chip : kNamedChips) {
        const std::string text = of(chip.chip);
        const auto same =
            std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.second == text; });
        if (same == lines.end()) lines.emplace_back(chip.name, text);
        else same->first += std::string(" ") + chip.name;
    }
    std::string all;
    for (const auto& [chips, text] : lines) all += "    " + chips + ": " + text + "\n";
    return all;
}

/// Types with the same lines are one paragraph.
inline std::string by_type(const std::function<std::string(DType)>& of, std::span<const NamedType> types = kPlanTypes) {
    std::vector<std::pair<std::string, std::string>> parts;
    for (const NamedType& type : types) {
        const std::string text = of(type.type);
        const auto same =
            std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.second == text; });
        if (same == parts.end()) parts.emplace_back(type.name, text);
        else same->first += std::string(" ") + type.name;
    }
    std::string all;
    for (const auto& [names, text] : parts) all += "  " + names + "\n" + text;
    return all;
}

/// Compares with tests/ops/plan/NAME.txt; RIPTIDE_WRITE_PLANS writes it first.
inline void hold_plan(const std::string& name, const std::string& text) {
    const std::string path = source_dir() + "/tests/ops/plan/" + name + ".txt";
    if (std::getenv("RIPTIDE_WRITE_PLANS") != nullptr) std::ofstream(path) << text;
    std::ifstream file(path);
    ASSERT_TRUE(file) << path << " is not there";
    std::ostringstream held;
    held << file.rdbuf();
    EXPECT_EQ(held.str(), text) << "another choice than " << path << " has";
}

}  // namespace riptide::ops::cuda
