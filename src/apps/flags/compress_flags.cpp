#include "apps/flags/compress_flags.h"

#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "engine/compression/model_scorer.h"

namespace riptide::apps {

namespace {

/// "0.1", "4096", "32K", "1M"; -1 if it is none of them.
double parse_amount(const std::string& text) {
    size_t used = 0;
    double value = -1;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception&) {
        return -1;
    }
    const std::string unit = text.substr(used);
    const double factor = unit.empty() ? 1 : unit == "K" ? 1024 : unit == "M" ? 1024 * 1024 : -1;
    return value >= 0 && value < 1e9 && factor > 0 ? value * factor : -1;
}

}  // namespace

void add_compress_flags(Command& cmd, CompressFlags& flags) {
    cmd.add_option("--scorer", flags.scorer,
                   "A small Qwen3 model (GGUF file or folder; demo: the demo model's own) that reads long prompts "
                   "first; the model then reads only "
                   "what matters to the question. Loses the rest. How it reads: --score-layers, --alpha, --blocks, as "
                   "`riptide niah --help` says");
    cmd.add_option("--compress", flags.mode,
                   "Which prompts: auto (those above --compress-above TOKENS, 32K) | off | always")
        ->check(IsMember({"auto", "off", "always"}))
        ->capture_default_str();
    cmd.add_option("--keep", flags.keep,
                   "What is kept of them: a share (0.1) of what can be left out, or so many tokens of all (4096, 8K)")
        ->capture_default_str();
    add_positions_flag(cmd, flags);
    cmd.add_option("--compress-above", flags.above, "Tokens from which on auto compresses (8192, 32K)")
        ->capture_default_str();
    add_scoring_flags(cmd, flags);
    for (const char* flag : {"--score-layers", "--alpha", "--blocks", "--compress-positions"})
        cmd.get_option(flag)->group("");  // told by niah: help is one screen
}

CompressionOptions compression_options(const CompressFlags& flags) {
    CompressionOptions out;
    out.mode = flags.mode == "off"      ? CompressMode::off
               : flags.mode == "always" ? CompressMode::always
                                        : CompressMode::automatic;
    RT_CHECK(!flags.scorer.empty() || out.mode != CompressMode::always, ErrorKind::usage,
             "--compress always needs --scorer FILE");
    const double keep = parse_amount(flags.keep), above = parse_amount(flags.above);
    RT_CHECK(keep > 0, ErrorKind::usage, "--keep {}: expected a share such as 0.1, or tokens such as 4096 or 8K",
             flags.keep);
    RT_CHECK(above >= 0, ErrorKind::usage, "--compress-above {}: expected tokens such as 8192 or 32K", flags.above);
    if (keep <= 1) out.keep = keep;
    else out.keep_tokens = static_cast<int64_t>(keep);
    out.above = static_cast<int64_t>(above);
    out.positions = flags.positions == "original" ? KeptPositions::original : KeptPositions::compact;
    check_compression(out, "--");
    return out;
}

void add_positions_flag(Command& cmd, CompressFlags& flags) {
    cmd.add_option("--compress-positions", flags.positions,
                   "Where the model sees what is kept: compact (one behind the other) | original (where it stood)")
        ->check(IsMember({"compact", "original"}))
        ->capture_default_str();
}

void add_scoring_flags(Command& cmd, CompressFlags& flags) {
    const std::string group = "How the scorer reads (--scorer)";
    cmd.add_option("--score-layers", flags.score_layers,
                   "Layers that score, 0-based, -1: the last; left out: all, of the demo's scorer the last. Those "
                   "behind the last of them do not run")
        ->delimiter(',')
        ->group(group);
    cmd.add_option("--alpha", flags.alpha, "Blocks of keys are read from this share of the largest mass on")
        ->check(Range(0.0, 1.0))
        ->capture_default_str()
        ->group(group);
    cmd.add_option("--blocks", flags.blocks,
                   "Blocks of 128 keys that a block of queries reads besides sinks and window")
        ->check(Sign::non_negative)
        ->capture_default_str()
        ->group(group);
}

PromptScorer open_scorer(const CompressFlags& flags, const ModelFlags& model) {
    if (flags.scorer.empty()) return {};
    ModelScorerOptions options;
    options.scorer.score_layers = flags.score_layers;
    // Trained on what its last layer attends to, and better so at every length: models/demo/scorer_report.json.
    if (flags.score_layers.empty() && flags.scorer == "demo") options.scorer.score_layers = {-1};
    options.scorer.sparse.alpha = flags.alpha;
    options.scorer.sparse.most_blocks = flags.blocks;
    const SessionOptions session = session_options(model);
    options.threads = session.threads;
    options.gpu = session.gpu;
    return riptide::open_scorer(open_scorer_checkpoint(flags.scorer), options);
}

PromptScorer with_progress(PromptScorer scorer) {
    if (!scorer) return scorer;
    scorer.score = [score = std::move(scorer.score)](ScoreCall call) {
        Progress progress("scoring the prompt", "tok");
        call.on_progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
        return score(call);
    };
    return scorer;
}

EngineOptions compressing(const CompressFlags& flags, const ModelFlags& model) {
    EngineOptions options;
    options.compression = compression_options(flags);  // what is wrong is said before anything is loaded
    options.scorer = with_progress(open_scorer(flags, model));
    options.on_compressed = [](const CompressionReport& report) { say("{}\n", report.sentence()); };
    return options;
}

}  // namespace riptide::apps
