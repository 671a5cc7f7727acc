// riptide ppl: perplexity of a text, with its standard error.
#include <cmath>
#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/loaded_text.h"
#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "ops/topk.h"

namespace riptide::apps {

namespace {

struct Options {
    ModelFlags model;
    std::string file;
    int64_t window = 2048;
    bool as_json = false;
};

constexpr int64_t kMaxText = int64_t{256} << 20;

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

int ppl(const Options& o) {
    catch_interrupts();
    const auto session = open_session(o.model);
    const Tokenizer tokenizer = load_tokenizer(session->checkpoint());
    const std::vector<int32_t> ids = tokenizer.encode(read_file(o.file, kMaxText));
    RT_CHECK(ids.size() >= 2, "{}: {} tokens; at least 2 are needed", o.file, ids.size());
    const int64_t window = std::min<int64_t>(o.window, session->context_length()) - (tokenizer.adds_bos() ? 1 : 0);
    RT_CHECK(window >= 2, ErrorKind::usage, "--window {}: expected at least 3 tokens", o.window);
    Sum sum;
    Progress progress("scoring", "tok");
    for (size_t at = 0; at + 1 < ids.size() && !interrupted(); at += static_cast<size_t>(window)) {
        const size_t end = std::min(ids.size(), at + static_cast<size_t>(window));
        std::vector<int32_t> piece;
        piece.reserve(end - at + 1);
        if (tokenizer.adds_bos()) piece.push_back(tokenizer.bos());
        for (size_t i = at; i < end; ++i) piece.push_back(ids[i]);
        if (piece.size() >= 2) score_window(*session, piece, sum);
        progress.update(static_cast<int64_t>(end), static_cast<int64_t>(ids.size()));
    }
    RT_CHECK(sum.tokens > 0, ErrorKind::io, "interrupted before the first window was done");
    const double value = std::exp(sum.mean()), error = value * sum.error();
    if (o.as_json)
        std::puts(json::serialize(
                      json::object{
                          {"perplexity", value}, {"standard_error", error}, {"tokens", sum.tokens}, {"window", window}})
                      .c_str());
    else fmt::print("perplexity {:.4f} +- {:.4f} over {} tokens, windows of {}\n", value, error, sum.tokens, window);
    return interrupted() ? 130 : 0;
}

}  // namespace

void add_ppl(CLI::App& app, Action& action) {
    CLI::App* cmd = app.add_subcommand("ppl", "Perplexity of a text, with its standard error");
    auto options = std::make_shared<Options>();
    add_model_flags(*cmd, options->model);
    cmd->add_option("--text", options->file, "Text file")->required();
    cmd->add_option("--window", options->window, "Tokens in a window; each window starts afresh")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    cmd->add_flag("--json", options->as_json, "Print JSON");
    cmd->footer(
        "Examples:\n  riptide ppl --text src/models/laguna.cpp\n  riptide ppl model.gguf --text wiki.txt --window 4096 "
        "--kv q8_0");
    cmd->callback([options, &action] { action = [options] { return ppl(*options); }; });
}

}  // namespace riptide::apps
