// riptide ppl: perplexity of a text, with its standard error; what smaller K/V types cost.
#include <cmath>
#include <cstdio>
#include <memory>

#include "apps/bench/kv_quality.h"
#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "ops/topk.h"

namespace riptide::apps {

namespace {

struct PplFlags {
    ModelFlags model;
    std::string file, needles;
    std::vector<std::string> kv_types, files;
    std::vector<int64_t> attention_windows;
    int64_t window = 2048;
    bool as_json = false;
};

constexpr int64_t kMaxScoredText = int64_t{256} << 20;

struct Sum {
    int64_t tokens = 0;
    double loss = 0, squares = 0;
    double mean() const { return loss / static_cast<double>(tokens); }
    /// Standard error of the mean, tokens taken as independent.
    double error() const {
        const double n = static_cast<double>(tokens), variance = squares / n - mean() * mean();
        return std::sqrt(std::max(0.0, variance) / n);
    }
};

/// Adds -ln p(next token) of every position of `ids` but the last.
void score_window(Session& session, std::span<const int32_t> ids, Sum& sum) {
    session.score(
        ids,
        [&](int64_t first, const Tensor& logits) {
            for (int64_t r = 0; r < logits.rows(); ++r) {
                const auto next = static_cast<size_t>(first + r + 1);
                if (next >= ids.size()) break;
                const float* row = logits.row(r);
                const double loss = ops::log_sum_exp<double>({row, static_cast<size_t>(logits.shape[1])}) -
                                    static_cast<double>(row[ids[next]]);
                ++sum.tokens;
                sum.loss += loss;
                sum.squares += loss * loss;
            }
        },
        &interrupted());
}

/// The text cut into windows, each with BOS in front if the tokenizer adds it. Windows of one token are left out.
std::vector<std::vector<int32_t>> windows(const PplFlags& o, const Tokenizer& tokenizer, int64_t context) {
    const std::vector<int32_t> ids = tokenizer.encode(read_file(o.file, kMaxScoredText));
    RT_CHECK(ids.size() >= 2, "{}: {} tokens; at least 2 are needed", o.file, ids.size());
    const int64_t window = std::min<int64_t>(o.window, context) - (tokenizer.adds_bos() ? 1 : 0);
    RT_CHECK(window >= 2, ErrorKind::usage, "--window {}: expected at least 3 tokens", o.window);
    std::vector<std::vector<int32_t>> pieces;
    for (size_t at = 0; at + 1 < ids.size(); at += static_cast<size_t>(window)) {
        const size_t end = std::min(ids.size(), at + static_cast<size_t>(window));
        std::vector<int32_t> piece;
        piece.reserve(end - at + 1);
        if (tokenizer.adds_bos()) piece.push_back(tokenizer.bos());
        for (size_t i = at; i < end; ++i) piece.push_back(ids[i]);
        if (piece.size() >= 2) pieces.push_back(std::move(piece));
    }
    return pieces;
}

/// The table of K/V types, of files, or of attention windows.
int compare(const PplFlags& o) {
    const std::vector<Needle> needles = o.needles.empty() ? std::vector<Needle>() : read_needles(o.needles);
    std::vector<std::vector<int32_t>> pieces;
    {
        const auto session = open_session(o.model);
        pieces = windows(o, load_tokenizer(session->checkpoint()), session->context_length());
    }
    const bool files = !o.files.empty(), types = !o.kv_types.empty();
    const std::vector<KvQuality> rows = files   ? measure_files(o.model, pieces, o.files)
                                        : types ? measure_kv_quality(o.model, pieces, needles, o.kv_types)
                                                : measure_windows(o.model, pieces, needles, o.attention_windows);
    if (o.as_json) tell("{}\n", json::serialize(to_json(rows)));
    else if (files)
        tell("{} tokens in {} windows of at most {}, against the first\n\n{}", rows.front().tokens, pieces.size(),
             pieces.front().size(), Lines{files_markdown(rows)});
    else
        tell("{} tokens in {} windows of at most {}; needles: {}\n\n{}", rows.front().tokens, pieces.size(),
             pieces.front().size(), needles.size(),
             Lines{types ? markdown(rows, std::ssize(needles)) : windows_markdown(rows, std::ssize(needles))});
    return 0;
}

int ppl(const PplFlags& o) {
    catch_interrupts();
    const bool types = !o.kv_types.empty(), windows_too = !o.attention_windows.empty();
    RT_CHECK(o.needles.empty() || types || windows_too, ErrorKind::usage,
             "--needles needs --kv-types or --attention-windows");
    if (types || windows_too || !o.files.empty()) return compare(o);
    const auto session = open_session(o.model);
    const auto pieces = windows(o, load_tokenizer(session->checkpoint()), session->context_length());
    Sum sum;
    int64_t done = 0, total = 0, window = 0;
    for (const auto& piece : pieces) total += std::ssize(piece), window = std::max(window, std::ssize(piece));
    Progress progress("scoring", "tok");
    for (const auto& piece : pieces) {
        if (interrupted()) break;
        score_window(*session, piece, sum);
        progress.update(done += std::ssize(piece), total);
    }
    RT_CHECK(sum.tokens > 0, ErrorKind::io, "interrupted before the first window was done");
    const double value = std::exp(sum.mean()), error = value * sum.error();
    if (o.as_json)
        tell("{}\n", json::serialize(json::object{{"perplexity", value},
                                                  {"standard_error", error},
                                                  {"tokens", sum.tokens},
                                                  {"window", window},
                                                  {"kv", kv_name(*session)}}));
    else
        tell("perplexity {:.4f} +- {:.4f} over {} tokens, windows of {}, K/V {}\n", value, error, sum.tokens, window,
             kv_name(*session));
    return interrupted() ? 130 : 0;
}

}  // namespace

void add_ppl(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("ppl", "Perplexity of a text, with its standard error");
    auto options = std::make_shared<PplFlags>();
    add_model_flags(*cmd, options->model);
    cmd->add_option("--text", options->file, "Text file")->required();
    cmd->add_option("--window", options->window, "Tokens in a window; each window starts afresh")
        ->check(Sign::positive)
        ->capture_default_str();
    Flag* const kv_types =
        cmd->add_option(
               "--kv-types", options->kv_types,
               "Compare these K/V types with f16 in a Markdown table: perplexity, KL, needles; with --prefill fp8: "
               "they with it, f16 without")
            ->delimiter(',');
    cmd->add_option("--files", options->files,
                    "Compare these files with MODEL in a Markdown table: perplexity, KL of each token's distribution")
        ->delimiter(',')
        ->excludes(kv_types);
    cmd->add_option("--attention-windows", options->attention_windows,
                    "Compare these values of --attention-window with none in a Markdown table: perplexity, KL, needles")
        ->delimiter(',')
        ->excludes(kv_types)
        ->excludes(cmd->get_option("--files"));
    cmd->add_option("--needles", options->needles,
                    "With --kv-types or --attention-windows: JSON array of {prompt, answer}; an answer counts if the "
                    "greedy text contains it");
    cmd->add_flag("--json", options->as_json, "Print JSON");
    cmd->footer(
        "Examples:\n  riptide ppl --text src/models/laguna.cpp\n  riptide ppl model.gguf --text wiki.txt --window 4096 "
        "--kv q8_0\n  riptide ppl --text a.py --window 8192 --kv-types f32,f16,q8_0,q8_0/q4_0");
    cmd->callback([options, &action] { action = [options] { return ppl(*options); }; });
}

}  // namespace riptide::apps
