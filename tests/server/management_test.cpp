// The port that tells how the server is, and what routers of other fleets read there.
#include <ctime>
#include <set>
#include <sstream>

#include "base/file.h"
#include "server/management.h"
#include "server/openapi/openapi.h"
#include "tests/server/http_client.h"
#include "tests/source_dir.h"

namespace riptide::testing {
namespace {

class ServerManagement : public ServerTest {
  protected:
    static server::ServerOptions keyed() {
        server::ServerOptions options = server_options();
        options.api_keys = {"secret"};
        options.management_port = 0;
        return options;
    }
    Answer told(const std::string& path, const std::string& method = "GET", const std::string& headers = "") {
        return Client(server->management_port()).ask(method, path, "", headers);
    }
    Answer with_key(const std::string& path) {
        return Client(port()).ask("GET", path, "", "Authorization: Bearer secret\r\n");
    }
};

const std::vector<std::string> kTold = {"/health",  "/livez",       "/readyz",    "/metrics",
                                        "/version", "/server_info", "/v1/models", "/v1/loads"};

TEST_F(ServerManagement, it_tells_without_a_key_what_the_port_of_the_api_tells_with_one) {
    start(keyed());
    const std::set<std::string> open = {"/health", "/livez", "/readyz"};
    for (const std::string& path : kTold) {
        const Answer answer = told(path);
        EXPECT_EQ(answer.status, 200) << path;
        EXPECT_EQ(get(path).status, open.contains(path) ? 200 : 401) << path;
        EXPECT_EQ(with_key(path).status, 200) << path;
        EXPECT_EQ(told(path, "HEAD").status, 200) << path;
        const bool changes = path == "/metrics" || path == "/v1/loads";
        EXPECT_TRUE(changes || answer.body == with_key(path).body) << path;
    }
}

TEST_F(ServerManagement, it_generates_and_changes_nothing) {
    server::ServerOptions options = keyed();
    options.admin = true;
    start(options);
    for (const std::string method : {"GET", "POST", "DELETE", "OPTIONS", "PUT"})
        for (const std::string path :
             {"/", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/props",
              "/openapi.json", "/pause", "/resume", "/update_weights", "/models/load", "/v1/requests", "/v1/requests/x",
              "/v1/models/laguna-demo", "/v1/mcp/x", "/api/chat", "/api/tags", "/none"}) {
            const Answer answer = told(path, method, "Authorization: Bearer secret\r\n");
            EXPECT_EQ(answer.status, 404) << method << " " << path;
            EXPECT_NE(answer.body.find("at the port of the API"), std::string::npos) << answer.body;
        }
    for (const std::string& path : kTold) {
        const Answer answer = Client(server->management_port()).ask("POST", path, "{}");
        EXPECT_EQ(answer.status, 405) << path;
        EXPECT_EQ(answer.headers.at("Allow"), "GET, HEAD");
    }
    EXPECT_FALSE(engine->stats().paused);
}

TEST_F(ServerManagement, web_pages_of_others_learn_nothing) {
    start(keyed());
    for (const std::string& path : kTold) {
        EXPECT_EQ(told(path, "GET", "Origin: https://elsewhere.example\r\n").status, 403) << path;
        EXPECT_EQ(told(path, "GET", "Host: elsewhere.example\r\n").status, 403) << path;
        EXPECT_FALSE(told(path).headers.contains("Access-Control-Allow-Origin")) << path;
    }
}

TEST_F(ServerManagement, it_is_there_while_the_model_is_loaded_and_is_live) {
    server::Server loading(keyed());
    const auto ask = [&](const std::string& path) {
        return Client(loading.management_port()).ask("GET", path, "", "").status;
    };
    EXPECT_EQ(ask("/livez"), 200);
    EXPECT_EQ(ask("/readyz"), 503);
    EXPECT_EQ(ask("/health"), 503);
    EXPECT_EQ(ask("/version"), 200);
    EXPECT_EQ(ask("/metrics"), 200);
    for (const char* path : {"/v1/loads", "/v1/models", "/server_info"}) EXPECT_EQ(ask(path), 503) << path;
}

TEST_F(ServerManagement, it_outlives_the_port_of_the_api_when_that_drains) {
    start(keyed());
    server->drain(std::chrono::milliseconds(0));
    EXPECT_EQ(told("/readyz").status, 503);
    EXPECT_EQ(told("/livez").status, 200);
    EXPECT_EQ(told("/metrics").status, 200);
}

TEST_F(ServerManagement, a_port_that_is_taken_is_named_with_its_flag) {
    start(keyed());
    server::ServerOptions options = keyed();
    options.management_port = server->management_port();
    try {
        server::Server second(options);
        FAIL() << "two servers on one port";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("--management-port"), std::string::npos) << error.what();
    }
    options.management_port = 0;
    options.management_host = "nowhere";
    try {
        server::Server second(options);
        FAIL() << "no address";
    } catch (const Error& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with("--management-host nowhere")) << error.what();
    }
}

TEST_F(ServerManagement, without_it_there_is_no_such_port) {
    start();
    EXPECT_EQ(server->management_port(), 0);
}

TEST_F(ServerManagement, open_metrics_opens_the_metrics_alone) {
    server::ServerOptions options = keyed();
    options.open_metrics = true;
    start(options);
    for (const std::string path : {"/version", "/server_info", "/v1/models", "/v1/loads", "/props", "/v1/requests"})
        EXPECT_EQ(get(path).status, 401) << path;
    EXPECT_EQ(get("/metrics").status, 200);
    EXPECT_EQ(Client(port()).ask("POST", "/metrics", "{}").status, 405);
    EXPECT_EQ(Client(port()).ask("GET", "/metrics", "", "Origin: https://elsewhere.example\r\n").status, 403);
}

// What SMG does to register a worker: health, models, version; its load is then read from the metrics.
TEST_F(ServerManagement, a_router_finds_what_registers_a_worker) {
    const int64_t before = std::time(nullptr);
    start(keyed());
    const json::object model = told("/v1/models").object().at("data").at(0).as_object();
    EXPECT_EQ(model.at("id").as_string(), "laguna-demo");
    EXPECT_EQ(model.at("root").as_string(), "laguna-demo.gguf");
    EXPECT_TRUE(model.at("parent").is_null());
    EXPECT_EQ(model.at("max_model_len").as_int64(), 1024);
    EXPECT_GE(model.at("created").as_int64(), before) << "when the server was started";
    EXPECT_LE(model.at("created").as_int64(), std::time(nullptr));
    EXPECT_EQ(told("/version").object().at("version").as_string(), server::program_version());
    EXPECT_NE(server::openapi_text().find(fmt::format("\"version\": \"{}\"", server::program_version())),
              std::string_view::npos);
    const json::object info = told("/server_info").object();
    EXPECT_EQ(info.at("model_path").as_string(), "laguna-demo.gguf") << "no folders of this machine";
    EXPECT_EQ(info.at("served_model_name").as_string(), "laguna-demo");
    EXPECT_EQ(info.at("context_length").as_int64(), 1024);
    EXPECT_EQ(info.at("max_running_requests").as_int64(), 8);
    EXPECT_FALSE(info.contains("kv_events")) << "nobody is told";
}

TEST_F(ServerManagement, where_kv_events_are_told_is_told) {
    server::Server serving(keyed());
    serving.tell_kv_events({"*", 5557, "kv@10.0.0.1:8000@laguna-demo"});
    engine = Engine::open(demo_path(), demo_options());
    serving.serve(*engine);
    const json::object info = Client(serving.management_port()).ask("GET", "/server_info", "", "").object();
    EXPECT_EQ(json::serialize(info.at("kv_events")),
              R"({"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,)"
              R"("topic":"kv@10.0.0.1:8000@laguna-demo","block_size":16,"dp_size":1})");
}

TEST_F(ServerManagement, loads_are_those_of_the_engine) {
    start(keyed());
    Listener listener;
    const RequestId held = stop_midway(listener);
    engine->submit(continuation({1, 2, 3}, 5), listener.sink(1));
    const json::object reply = told("/v1/loads").object();
    EXPECT_EQ(reply.at("dp_rank_count").as_int64(), 1);
    const json::object load = reply.at("loads").as_array().at(0).as_object();
    EXPECT_EQ(load.at("num_running_reqs").as_int64(), 1);
    EXPECT_EQ(load.at("num_waiting_reqs").as_int64(), 1);
    EXPECT_EQ(load.at("num_waiting_uncached_tokens").as_int64(), 3);
    EXPECT_EQ(load.at("num_total_reqs").as_int64(), 2);
    EXPECT_GE(load.at("gen_throughput").as_double(), 1. / 5) << "one token is there, drawn in the last five seconds";
    EXPECT_EQ(load.at("num_used_tokens").as_int64(), 2 * 16);
    EXPECT_EQ(load.at("max_total_num_tokens").as_int64(), 8 * 1024);
    EXPECT_DOUBLE_EQ(load.at("token_usage").as_double(), 2. * 16 / (8 * 1024));
    EXPECT_DOUBLE_EQ(load.at("utilization").as_double(), 1. / 8);
    engine->cancel(held);
    engine->resume();
    engine->drain();
    const json::object idle = told("/v1/loads").object().at("loads").as_array().at(0).as_object();
    EXPECT_EQ(idle.at("token_usage").as_double(), 0);
    EXPECT_EQ(idle.at("num_total_reqs").as_int64(), 0);
    EXPECT_EQ(idle.at("num_waiting_uncached_tokens").as_int64(), 0);
}

// Of two that wait for the same beginning nobody knows yet who reads it; once it is cached it is nobody's.
TEST_F(ServerManagement, what_waiting_answers_find_in_the_cache_is_no_load) {
    start(keyed());
    Listener listener;
    const std::vector<int32_t> talk(200, 9);
    engine->submit(continuation(talk, 1), listener.sink(1));
    engine->drain();
    engine->resume();
    const RequestId held = stop_midway(listener);
    std::vector<int32_t> more = talk;
    more.insert(more.end(), 50, 7);
    engine->submit(continuation(more, 1), listener.sink(2));
    engine->submit(continuation(std::vector<int32_t>(30, 5), 1), listener.sink(3));
    const auto waits = [&] {
        return told("/v1/loads").object().at("loads").at(0).at("num_waiting_uncached_tokens").as_int64();
    };
    int64_t left = 0;
    EXPECT_TRUE(becomes([&] { return (left = waits()) > 30; }));
    EXPECT_GE(left, 50 + 30);
    EXPECT_LE(left, 50 + 30 + 16) << "the rest of a page, at most";
    engine->cancel(held);
    engine->resume();
    engine->drain();
    EXPECT_EQ(waits(), 0);
}

/// All that a connection to the agent's port is told.
std::string agent_says(int port) {
    boost::asio::io_context io;
    boost::asio::ip::tcp::socket socket(io);
    socket.connect({boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
    std::string text;
    boost::system::error_code ec;
    boost::asio::read(socket, boost::asio::dynamic_buffer(text), ec);
    EXPECT_EQ(ec, boost::asio::error::eof);
    return text;
}

TEST_F(ServerManagement, haproxy_is_told_in_a_line) {
    server::ServerOptions options = server_options();
    options.agent_port = 0;
    start(options);
    EXPECT_EQ(agent_says(server->agent_port()), "up ready 100%\n");
    EXPECT_EQ(agent_says(server->agent_port()), "up ready 100%\n");
    server->drain(std::chrono::milliseconds(0));
    EXPECT_EQ(agent_says(server->agent_port()), "drain\n");
    const server::Server loading(options);
    EXPECT_EQ(agent_says(loading.agent_port()), "down\n");
    EXPECT_EQ(loading.management_port(), 0);
}

TEST(FreeWeight, changes_when_another_has_been_due_for_a_while) {
    using std::chrono::seconds;
    server::FreeWeight weight;
    server::EngineFacts all;
    all.pages = 100;
    all.max_running = 8;
    const server::FreeWeight::Clock::time_point begin{};
    const auto at = [&](int second, int64_t used, int64_t running) {
        all.used_pages = used;
        all.running = running;
        return weight.next(all, begin + seconds(second));
    };
    EXPECT_EQ(at(0, 0, 0), 100);
    EXPECT_EQ(at(1, 24, 1), 100);
    EXPECT_EQ(at(2, 60, 1), 100) << "50 is due";
    EXPECT_EQ(at(6, 60, 1), 100);
    EXPECT_EQ(at(7, 60, 1), 50);
    EXPECT_EQ(at(8, 10, 1), 50) << "100 is due";
    EXPECT_EQ(at(12, 60, 1), 50) << "but not any more";
    EXPECT_EQ(at(14, 10, 1), 50);
    EXPECT_EQ(at(18, 10, 1), 50);
    EXPECT_EQ(at(19, 10, 1), 100);
    EXPECT_EQ(at(20, 0, 8), 100) << "no place is free";
    EXPECT_EQ(at(25, 0, 8), 25) << "never 0: that would be a drain";
    EXPECT_EQ(at(26, 100, 0), 25);
}

TEST(FreeWeight, is_the_free_share_in_quarters) {
    for (const auto& [used, expected] : std::map<int64_t, int>{
             {0, 100}, {24, 100}, {25, 75}, {49, 75}, {50, 50}, {74, 50}, {75, 25}, {99, 25}, {100, 25}}) {
        server::FreeWeight weight;
        server::EngineFacts all;
        all.pages = 100;
        all.used_pages = used;
        weight.next(all, {});
        EXPECT_EQ(weight.next(all, server::FreeWeight::Clock::time_point(std::chrono::seconds(5))), expected) << used;
    }
    server::FreeWeight weight;
    server::EngineFacts without_pages;
    without_pages.max_running = 4;
    without_pages.running = 2;
    weight.next(without_pages, {});
    EXPECT_EQ(weight.next(without_pages, server::FreeWeight::Clock::time_point(std::chrono::seconds(5))), 50);
}

/// The metrics as an endpoint picker reads them: gauges and counters that are typed, the first series of each name.
std::map<std::string, std::pair<std::string, double>> picked(const std::string& page) {
    std::map<std::string, std::string> types;
    std::map<std::string, std::pair<std::string, double>> out;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string hash, kind, name, type;
        if (line.starts_with('#')) {
            words >> hash >> kind >> name >> type;
            EXPECT_TRUE(kind != "TYPE" || types.emplace(name, type).second) << name << " comes twice";
            continue;
        }
        name = line.substr(0, line.find_first_of("{ "));
        const auto at = types.find(name);
        if (at == types.end() || (at->second != "gauge" && at->second != "counter")) continue;
        const std::string labels = line.substr(name.size(), line.rfind(' ') - name.size());
        const bool first = out.emplace(name, std::pair(labels, std::stod(line.substr(line.rfind(' '))))).second;
        EXPECT_TRUE(first || !name.starts_with("vllm:")) << name << " has a second series";
    }
    return out;
}

TEST_F(ServerManagement, metrics_have_the_names_of_vllm_too) {
    server::ServerOptions options = keyed();
    options.model = "a \"name\" \\ with\nall";
    start(options);
    Listener listener;
    stop_midway(listener);
    engine->submit(continuation({1, 2, 3}, 5), listener.sink(1));
    auto metrics = picked(told("/metrics").body);
    const std::string model = R"({model_name="a \"name\" \\ with\nall",engine="0")";
    EXPECT_EQ(metrics["vllm:num_requests_waiting"], std::pair(model + "}", 1.));
    EXPECT_EQ(metrics["vllm:num_requests_running"].second, 1);
    EXPECT_DOUBLE_EQ(metrics["vllm:kv_cache_usage_perc"].second, 2. * 16 / (8 * 1024));
    EXPECT_EQ(metrics["vllm:gpu_cache_usage_perc"], metrics["vllm:kv_cache_usage_perc"]);
    EXPECT_EQ(metrics["vllm:cache_config_info"], std::pair(model + R"(,block_size="16",num_gpu_blocks="512"})", 1.));
    EXPECT_GT(metrics["vllm:lora_requests_info"].second, 1.6e9);
    const std::map<std::string, std::string> same = {
        {"vllm:prompt_tokens_total", "riptide_prompt_tokens_total"},
        {"vllm:prefix_cache_queries_total", "riptide_prompt_tokens_total"},
        {"vllm:gpu_prefix_cache_queries_total", "riptide_prompt_tokens_total"},
        {"vllm:prefix_cache_hits_total", "riptide_prompt_cached_tokens_total"},
        {"vllm:gpu_prefix_cache_hits_total", "riptide_prompt_cached_tokens_total"},
        {"vllm:generation_tokens_total", "riptide_answer_tokens_total"},
        {"vllm:num_preemptions_total", "riptide_preemptions_total"}};
    for (const auto& [name, own] : same) EXPECT_EQ(metrics.at(name).second, metrics.at(own).second) << name;
    EXPECT_GE(metrics["vllm:generation_tokens_total"].second, 1);
    EXPECT_EQ(metrics["vllm:prompt_tokens_total"].second, 20);
}

/// Lines of a histogram without its name and the labels that all have.
std::vector<std::string> histogram(const std::string& page, const std::string& name, const std::string& labels) {
    std::vector<std::string> out;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(name + "_")) continue;
        line.erase(0, name.size());
        if (const size_t at = line.find(labels); at != std::string::npos && !labels.empty())
            line.erase(at, labels.size());
        for (const char* rest : {"{}", "{,"})
            if (const size_t at = line.find(rest); at != std::string::npos)
                line.replace(at, 2, rest[1] == '}' ? "" : "{");
        out.push_back(line);
    }
    return out;
}

TEST_F(ServerManagement, what_dashboards_for_vllm_draw_is_what_we_measure) {
    start(keyed());
    const auto key = std::string("Content-Type: application/json\r\nAuthorization: Bearer secret\r\n");
    const std::string body = R"({"prompt": "one two", "max_tokens": 5, "ignore_eos": true})";
    EXPECT_EQ(Client(port()).ask("POST", "/v1/completions", body, key).status, 200);
    const std::string page = told("/metrics").body;
    const std::map<std::string, std::string> same = {
        {"vllm:time_to_first_token_seconds", "riptide_time_to_first_token_seconds"},
        {"vllm:request_time_per_output_token_seconds", "riptide_time_per_output_token_seconds"},
        {"vllm:request_queue_time_seconds", "riptide_queue_seconds"},
        {"vllm:request_prefill_time_seconds", "riptide_prefill_seconds"},
        {"vllm:request_decode_time_seconds", "riptide_decode_seconds"},
        {"vllm:e2e_request_latency_seconds", "riptide_answer_seconds"}};
    for (const auto& [name, own] : same) {
        const std::vector<std::string> lines = histogram(page, name, R"(model_name="laguna-demo",engine="0")");
        EXPECT_EQ(lines, histogram(page, own, "")) << name;
        ASSERT_GT(lines.size(), 3u) << name;
        EXPECT_EQ(lines.back(), "_count 1") << name;
    }
    const auto sum = [&](const std::string& name) {
        const size_t at = page.find("\nriptide_" + name + "_seconds_sum ");
        return std::stod(page.substr(page.find(' ', at)));
    };
    EXPECT_NEAR(sum("answer"), sum("queue") + sum("prefill") + sum("decode"), 1e-6);
    EXPECT_NEAR(sum("time_to_first_token"), sum("queue") + sum("prefill"), 1e-6);
    EXPECT_GT(sum("decode"), 0);
}

}  // namespace
}  // namespace riptide::testing
