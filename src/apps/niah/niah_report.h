// What `riptide niah` shows: a table, JSON that it can go on from, a heat map.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/niah/niah_run.h"

#include "base/json.h"

namespace riptide::apps {

/// "dense", "0.1"
std::string keep_name(double keep);
/// "1K", "1000"
std::string length_name(int64_t length);

/// For each keep: right answers by task and length, over all depths; then the share of the prompt that was read and
/// the median time to the first token.
std::string niah_table(std::span<const NiahAnswer> answers, const NiahOptions& options);

/// What decides the questions and the answers: `about` (model, scorer ...), then the options that every question
/// shares.
json::object niah_settings(const json::object& about, const NiahOptions& options);
/// {"settings", "cells": right of how many by task, length, depth and keep, "answers": each one}
json::object niah_json(const json::object& settings, std::span<const NiahAnswer> answers, const NiahOptions& options);
/// The answers of niah_json. Throws Error that names `what` (the file) if it is something else, or its settings are not
/// `settings`.
std::vector<NiahAnswer> niah_answers(const json::value& from, const json::object& settings, const std::string& what);

/// For each task, and for all together, one map for each keep: lengths from left to right, depths from top to bottom,
/// the share of right answers as colour and number. Well-formed SVG, without fonts or scripts of its own.
std::string niah_svg(std::span<const NiahAnswer> answers, const NiahOptions& options, const std::string& title);

}  // namespace riptide::apps
