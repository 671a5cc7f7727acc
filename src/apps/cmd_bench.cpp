// riptide bench: prefill and decode speed, and what share of the memory bandwidth decoding uses.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "base/memory_bandwidth.h"

namespace riptide::apps {

namespace {

struct Options {
    ModelFlags model;
    std::vector<int64_t> prompts = {512}, depths = {0};
    int64_t gen = 64;
    int repeat = 3;
    bool as_json = false;
};

struct Row {
    std::string what;
    int64_t tokens = 0;
    std::vector<double> rates;  // tok/s of each repeat, sorted
    double median() const { return rates.empty() ? 0 : rates[rates.size() / 2]; }
    double spread() const { return rates.empty() || median() == 0 ? 0 : (rates.back() - rates.front()) / median(); }
};

/// Token ids that differ from place to place, the same in each run; small ids (special tokens) are left out where there
/// are others.
std::vector<int32_t> made_up_tokens(int64_t count, int64_t vocab_size) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    const int64_t first = vocab_size > 512 ? 256 : 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t mixed = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
        ids[static_cast<size_t>(i)] = static_cast<int32_t>(
            first + static_cast<int64_t>((mixed >> 33) % static_cast<uint64_t>(vocab_size - first)));
    }
    return ids;
}

Row measure(Session& session, const Options& o, int64_t prompt, int64_t gen, const std::string& what, int64_t shown) {
    const std::vector<int32_t> ids = made_up_tokens(prompt, session.model().info().vocab_size);
    Row row{what, shown, {}};
    for (int i = 0; i < o.repeat && !interrupted(); ++i) {
        session.clear();
        GenerateRequest request;
        request.prompt = ids;
        request.sampling.temperature = 0;
        request.sampling.max_tokens = gen;
        request.sampling.ignore_eos = true;
        request.cancel = &interrupted();
        Progress progress(what, "tok");
        request.on_prefill = [&](int64_t done, int64_t total) { progress.update(done, total); };
        const GenerationResult result = session.generate(request);
        if (result.reason != FinishReason::cancelled)
            row.rates.push_back(gen == 1 ? result.prefill_rate() : result.decode_rate());
    }
    std::sort(row.rates.begin(), row.rates.end());
    return row;
}

void print_rows(const Session& session, const std::vector<Row>& rows, double roof) {
    const ModelInfo& info = session.model().info();
    fmt::print("{} · {} · {} weights ({} a token) · {} threads · {:.1f} GB/s read bandwidth measured\n", info.name,
               info.architecture, human_bytes(info.weight_bytes), human_bytes(info.bytes_per_token), session.threads(),
               roof * 1e-9);
    fmt::print("{:<22} {:>8} {:>12} {:>9} {:>9} {:>8}\n", "", "tokens", "tok/s median", "spread", "GB/s", "share");
    for (const Row& row : rows) {
        const bool decode = row.what.rfind("decode", 0) == 0;
        const double bytes = decode ? row.median() * static_cast<double>(info.bytes_per_token) : 0;
        fmt::print("{:<22} {:>8} {:>12.1f} {:>8.1f}% {:>9} {:>8}\n", row.what, row.tokens, row.median(),
                   100 * row.spread(), decode ? fmt::format("{:.1f}", bytes * 1e-9) : "",
                   decode ? fmt::format("{:.0f}%", 100 * bytes / roof) : "");
    }
}

int bench(const Options& o) {
    RT_CHECK(o.repeat >= 1 && o.gen >= 2, ErrorKind::usage, "--repeat {} --gen {}: expected at least 1 and at least 2",
             o.repeat, o.gen);
    catch_interrupts();
    const auto session = open_session(o.model);
    ThreadPool threads(session->threads());
    const double roof = measure_read_bandwidth(threads, int64_t{512} << 20);
    std::vector<Row> rows;
    for (int64_t prompt : o.prompts)
        rows.push_back(measure(*session, o, prompt, 1, fmt::format("prefill {}", prompt), prompt));
    for (int64_t depth : o.depths)
        rows.push_back(
            measure(*session, o, std::max<int64_t>(1, depth), o.gen, fmt::format("decode at {}", depth), o.gen));
    if (!o.as_json) {
        print_rows(*session, rows, roof);
        return interrupted() ? 130 : 0;
    }
    json::array list;
    for (const Row& row : rows)
        list.push_back({{"what", row.what},
                        {"tokens", row.tokens},
                        {"tok_s", json::value_from(row.rates)},
                        {"median", row.median()}});
    const json::object out = {{"model", session->model().info().name},
                              {"threads", session->threads()},
                              {"bytes_per_token", session->model().info().bytes_per_token},
                              {"read_bandwidth_gb_s", roof * 1e-9},
                              {"rows", list}};
    std::puts(json::serialize(out).c_str());
    return interrupted() ? 130 : 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
    CLI::App* cmd = app.add_subcommand("bench", "Measure prefill and decode speed");
    auto options = std::make_shared<Options>();
    add_model_flags(*cmd, options->model);
    cmd->add_option("--prompt", options->prompts, "Prompt lengths to prefill")
        ->delimiter(',')
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    cmd->add_option("--depth", options->depths, "Contexts to decode at")
        ->delimiter(',')
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    cmd->add_option("--gen", options->gen, "Tokens to decode")->capture_default_str();
    cmd->add_option("--repeat", options->repeat, "Repeats; the median is shown")->capture_default_str();
    cmd->add_flag("--json", options->as_json, "Print JSON");
    cmd->footer(
        "Examples:\n  riptide bench\n  riptide bench model.gguf --prompt 512,2048 --depth 0,4096 --gen 128\n"
        "Prompts are made-up token ids. Decoding is greedy and includes sampling.");
    cmd->callback([options, &action] { action = [options] { return bench(*options); }; });
}

}  // namespace riptide::apps
