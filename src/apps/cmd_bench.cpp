// riptide bench: prefill and decode speed, and what share of the memory bandwidth decoding uses.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "ops/topk.h"

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

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Prompt tokens per second, from an empty sequence to the logits behind the last one.
Row measure_prefill(Session& session, const Options& o, int64_t prompt) {
    const std::vector<int32_t> ids = made_up_tokens(prompt, session.model().info().vocab_size);
    Row row{fmt::format("prefill {}", prompt), prompt, {}};
    Progress progress(row.what, "tok");
    const int warm_up = session.gpu() != nullptr ? 1 : 0;
    for (int i = -warm_up; i < o.repeat && !interrupted(); ++i) {
        session.clear();
        const auto start = std::chrono::steady_clock::now();
        const auto logits = session.prefill(
            ids, [&](int64_t done, int64_t total) { progress.update(done, total); }, &interrupted());
        if (!logits.empty() && i >= 0) row.rates.push_back(static_cast<double>(prompt) / seconds_since(start));
    }
    std::sort(row.rates.begin(), row.rates.end());
    return row;
}

/// Tokens per second of decoding `gen` tokens behind `depth` others. The tokens fed are made up, so that a model with
/// random weights does not fall into a loop that its caches hold; each is drawn (greedily) all the same.
Row measure_decode(Session& session, const Options& o, int64_t depth) {
    const std::vector<int32_t> ids =
        made_up_tokens(std::max<int64_t>(1, depth) + GpuDecoder::kForced, session.model().info().vocab_size);
    const auto prompt = std::span(ids).first(static_cast<size_t>(std::max<int64_t>(1, depth)));
    const auto forced = std::span(ids).subspan(prompt.size());
    Row row{fmt::format("decode at {}", depth), o.gen, {}};
    Progress progress(row.what, "tok");
    const int warm_up = session.gpu() != nullptr ? 1 : 0;
    for (int i = -warm_up; i < o.repeat && !interrupted(); ++i) {
        // Continues from the last repeat while the context allows: depth grows by `gen` each time.
        const bool room = std::ssize(session.tokens()) + o.gen <= session.context_length();
        if (i == -warm_up || session.gpu() == nullptr || !room)
            if (session
                    .prefill(
                        prompt, [&](int64_t d, int64_t n) { progress.update(d, n); }, &interrupted())
                    .empty())
                break;
        const auto start = std::chrono::steady_clock::now();
        if (session.gpu() != nullptr) {
            session.decode_ahead(
                forced.back(), o.gen, [](int32_t) { return !interrupted(); }, nullptr, forced);
        } else {
            for (int64_t t = 0; t < o.gen && !interrupted(); ++t)
                ops::argmax(session.decode(forced[static_cast<size_t>(t % std::ssize(forced))]));
        }
        if (i >= 0 && !interrupted()) row.rates.push_back(static_cast<double>(o.gen) / seconds_since(start));
    }
    std::sort(row.rates.begin(), row.rates.end());
    return row;
}

void print_rows(Session& session, const std::vector<Row>& rows, double roof) {
    const ModelInfo& info = session.model().info();
    const std::string where =
        session.gpu() != nullptr ? session.gpu()->info().name : fmt::format("{} threads", session.threads());
    fmt::print("{} · {} · {} weights ({} a token) · {} · {:.1f} GB/s read bandwidth measured\n", info.name,
               info.architecture, human_bytes(info.weight_bytes), human_bytes(info.bytes_per_token), where,
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
    const double roof = session->memory_bandwidth();
    std::vector<Row> rows;
    for (int64_t prompt : o.prompts) rows.push_back(measure_prefill(*session, o, prompt));
    for (int64_t depth : o.depths) rows.push_back(measure_decode(*session, o, depth));
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
                              {"device", session->gpu() != nullptr ? session->gpu()->info().name : "cpu"},
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
        "Prompts and the tokens fed while decoding are made-up ids. Decoding is greedy and includes the choice of the "
        "token.");
    cmd->callback([options, &action] { action = [options] { return bench(*options); }; });
}

}  // namespace riptide::apps
