// The page of metrics has what docs/server.md says, and nothing else.
#include <sstream>

#include "base/file.h"
#include "cache/cache_feed.h"
#include "tests/server/http_client.h"
#include "tests/source_dir.h"

namespace riptide::testing {
namespace {

/// What is known of each metric: its type and meaning.
using MetricFacts = std::map<std::string, std::pair<std::string, std::string>>;

/// Rows of the table: | `riptide_NAME` or `vllm:NAME` | type | unit | meaning (labels) |
MetricFacts metrics_in_table(const std::string& page) {
    MetricFacts out;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("| `riptide_") && !line.starts_with("| `vllm:")) continue;
        std::vector<std::string> cells;
        std::istringstream row(line.substr(2));
        for (std::string cell; std::getline(row, cell, '|');)
            cells.push_back(cell.substr(0, cell.find_last_not_of(' ') + 1).substr(cells.empty() ? 0 : 1));
        EXPECT_EQ(cells.size(), 4u) << line;
        if (cells.size() != 4) continue;
        const std::string name = cells[0].substr(1, cells[0].size() - 2);
        EXPECT_FALSE(cells[2].empty()) << name << " has no unit";
        for (const char* unit : {"seconds", "bytes"})
            EXPECT_EQ(name.find(std::string("_") + unit) != std::string::npos, cells[2] == unit) << line;
        EXPECT_TRUE(out.emplace(name, std::pair(cells[1], cells[3].substr(0, cells[3].find(" (`")))).second) << name;
    }
    return out;
}

/// # HELP NAME MEANING, # TYPE NAME TYPE; and each sample belongs to one of them.
MetricFacts metrics_on_page(const std::string& page) {
    MetricFacts out;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string hash, kind, name, rest;
        if (!line.starts_with('#')) {
            std::string sample = line.substr(0, line.find_first_of("{ "));
            for (const char* part : {"_bucket", "_sum", "_count"})
                if (const std::string of = sample.substr(0, sample.rfind(part));
                    of != sample && out.contains(of) && out.at(of).first == "histogram")
                    sample = of;
            EXPECT_TRUE(out.contains(sample)) << line;
            continue;
        }
        words >> hash >> kind >> name >> std::ws;
        std::getline(words, rest);
        (kind == "TYPE" ? out[name].first : out[name].second) = rest;
    }
    return out;
}

class ServerMetrics : public ServerTest {};

TEST_F(ServerMetrics, are_those_of_the_table_in_the_documentation) {
    EngineOptions drafts = demo_options();
    drafts.speculation.drafter = "ngram";
    drafts.cache_feed = std::make_shared<CacheFeed>();
    drafts.shared_cache = ::testing::TempDir() + "riptide-metrics-shared";
    drafts.shared_cache_key = drafts.shared_cache + ".key";
    write_file_atomic(drafts.shared_cache_key, std::string(64, 'k'));
    start(server_options(), drafts);
    EXPECT_EQ(post("/v1/completions", {{"prompt", "one two one two one"}, {"max_tokens", 20}}).status, 200);
    const MetricFacts page = metrics_on_page(get("/metrics").body),
                      table = metrics_in_table(read_file(source_dir() + "/docs/server.md", 1 << 20));
    for (const auto& [name, facts] : page) {
        const auto row = table.find(name);
        ASSERT_NE(row, table.end()) << name << " is not in the table";
        EXPECT_EQ(facts, row->second) << name;
    }
    for (const auto& [name, facts] : table) EXPECT_TRUE(page.contains(name)) << name << " is not on the page";
}

/// The one sample of this name.
double metric(const std::string& page, const std::string& name) {
    std::istringstream lines(page);
    double value = -1;
    int found = 0;
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with(name + " ") || line.starts_with(name + "{")) {
            value = std::stod(line.substr(line.rfind(' ') + 1));
            ++found;
        }
    EXPECT_EQ(found, 1) << name;
    return value;
}

TEST_F(ServerMetrics, pages_are_used_by_answers_not_by_the_cache) {
    start();
    Listener listener;
    const RequestId held = stop_midway(listener);
    std::string page = get("/metrics").body;
    EXPECT_EQ(metric(page, "riptide_requests_running"), 1);
    EXPECT_EQ(metric(page, "riptide_kv_pages_used"), 2) << "20 tokens of prompt, in pages of 16";
    EXPECT_DOUBLE_EQ(metric(page, "riptide_kv_usage_ratio"), 2 / metric(page, "riptide_kv_pages"));
    engine->cancel(held);
    engine->resume();
    ask(*engine, continuation(std::vector<int32_t>(50, 7), 10));
    engine->drain();
    page = get("/metrics").body;
    EXPECT_EQ(metric(page, "riptide_kv_usage_ratio"), 0);
    EXPECT_EQ(metric(page, "riptide_kv_pages_used"), 0);
    EXPECT_GT(metric(page, "riptide_kv_pages_cached"), 0);
    EXPECT_EQ(metric(page, "riptide_kv_pages_free") + metric(page, "riptide_kv_pages_cached"),
              metric(page, "riptide_kv_pages"));
}

TEST_F(ServerMetrics, timings_say_what_was_drafted_and_why_not_more_was_cached) {
    EngineOptions drafts = demo_options();
    drafts.speculation.drafter = "ngram";
    drafts.speculation.adaptive = false;
    start(server_options(), drafts);
    const json::object body = {
        {"messages", user_says("Count: one two three one two three one two")}, {"max_tokens", 30}, {"temperature", 0}};
    int64_t drafted = 0, accepted = 0;
    for (const char* words : {"nothing is held", " from the cache"}) {
        const json::object timings = post("/v1/chat/completions", body).object().at("timings").as_object();
        EXPECT_GT(timings.at("draft_n").to_number<int64_t>(), 0);
        drafted += timings.at("draft_n").to_number<int64_t>();
        accepted += timings.at("draft_n_accepted").to_number<int64_t>();
        const std::string note(timings.at("cache_note").as_string());
        EXPECT_NE(note.find(words), std::string::npos) << note;
    }
    // The engine's own count comes at the end of its step.
    EXPECT_TRUE(becomes([&] { return engine->stats().drafted_rows == drafted; })) << drafted;
    EXPECT_EQ(engine->stats().accepted_rows, accepted);
}

}  // namespace
}  // namespace riptide::testing
