// Replies that cannot be made of what the engine says: the client is told, in its words, and so is the log.
#include "base/json.h"
#include "server/api/api.h"
#include "server/http/server.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

using server::ErrorShape;

/// An HTTP server whose replies fail: at an event, or at the end.
class ServerMistakes : public ServerTest {
  protected:
    Answer ask(bool stream, bool at_end, ErrorShape shape) {
        engine = Engine::open(demo_path(), demo_options());
        const server::ServerOptions options = server_options();
        server::Metrics metrics;
        server::ResponseStore responses(1 << 20);
        server::LiveRequests live;
        server::Traces traces({});
        const server::RequestLog log({[&](const std::string& line) { lines.push_back(line); }, false, false});
        const auto handle = [&](server::HttpRequest&& request) -> server::Outcome {
            server::PendingReply reply;
            reply.stream = stream;
            reply.take = [at_end](const server::Item& item, std::string&) {
                if (!at_end) throw std::runtime_error("no sense in this");
                return item.event.last;
            };
            reply.heartbeat = [](std::string&) {};
            reply.abort = [](int status, const std::string& message, std::string& out) {
                out += fmt::format("abort {} {}", status, message);
            };
            reply.finish = []() -> server::HttpReply { throw std::runtime_error("no sense in all of it"); };
            server::GenerationRequest asked;
            asked.prompts.emplace_back(chat("Hi")).sampling.max_tokens = 3;
            WorkBudget work;
            const auto model = std::make_shared<const server::ServedModel>(
                server::ServedModel{.name = "x", .own = nullptr, .engine = engine.get(), .defaults = {}});
            const server::ApiContext ctx{.model = model,
                                         .engine = *engine,
                                         .options = options,
                                         .defaults = options.defaults,
                                         .metrics = metrics,
                                         .responses = responses,
                                         .live = live,
                                         .traces = traces,
                                         .trace = {},
                                         .log = log,
                                         .isolation = "",
                                         .session = "",
                                         .request_id = "",
                                         .socket = nullptr,
                                         .route = "/x",
                                         .body = request.body,
                                         .work = work};
            server::start(ctx, asked, shape, "messages", "id", reply);
            return reply;
        };
        Answer answer;
        {
            server::HttpServer http({}, {.door = [](const server::HttpRequest&) { return std::nullopt; },
                                         .handle = handle,
                                         .headers = {},
                                         .error_body = [](const auto&, int, const std::string& text) { return text; }});
            answer = Client(http.port()).ask("POST", "/x", "{}");
        }
        page = metrics.page(true, {}, 0, {}, "x");
        EXPECT_TRUE(live.list("").empty());
        return answer;
    }

    std::vector<std::string> lines;
    std::string page;
};

TEST_F(ServerMistakes, are_logged_counted_and_told_in_the_clients_words) {
    for (const bool at_end : {false, true}) {
        for (const ErrorShape shape : {ErrorShape::openai, ErrorShape::anthropic}) {
            const Answer answer = ask(false, at_end, shape);
            EXPECT_EQ(answer.status, 500);
            const json::object body = answer.object();
            EXPECT_EQ(body.contains("type"), shape == ErrorShape::anthropic) << answer.body;
            EXPECT_EQ(body.at("error").at("type").as_string(),
                      shape == ErrorShape::anthropic ? "api_error" : "server_error");
            EXPECT_EQ(body.at("error").at("message").as_string(), "the server has made a mistake");
            EXPECT_NE(page.find("riptide_http_failed_total 1\n"), std::string::npos);
            EXPECT_NE(page.find("riptide_http_abandoned_total 0\n"), std::string::npos);
            ASSERT_FALSE(lines.empty());
            EXPECT_NE(lines.back().find("failed: no sense in "), std::string::npos) << lines.back();
        }
    }
    const Answer streamed = ask(true, false, ErrorShape::anthropic);
    EXPECT_EQ(streamed.status, 200);
    EXPECT_EQ(streamed.body, "abort 500 the server has made a mistake");
    EXPECT_NE(page.find("riptide_http_failed_total 1\n"), std::string::npos);
    EXPECT_NE(lines.back().find("no sense in this"), std::string::npos);
}

TEST(ServerErrors, a_full_queue_is_an_overload_in_anthropics_words) {
    using server::ApiError;
    const ApiError full = server::from_engine(QueueFull("full", 20'000)), often(429, "too often");
    const auto type_of = [](const server::HttpReply& reply) {
        return std::string(parse_json(reply.body, "error").at("error").at("type").as_string());
    };
    const server::HttpReply theirs = error_reply(full, ErrorShape::anthropic);
    EXPECT_EQ(theirs.status, 529);
    EXPECT_EQ(type_of(theirs), "overloaded_error");
    EXPECT_EQ(theirs.headers, (server::Headers{{"Retry-After", "1"}}));
    EXPECT_EQ(error_reply(often, ErrorShape::anthropic).status, 429);
    EXPECT_EQ(type_of(error_reply(often, ErrorShape::anthropic)), "rate_limit_error");
    EXPECT_EQ(error_reply(full, ErrorShape::openai).status, 429);
    EXPECT_EQ(type_of(error_reply(full, ErrorShape::openai)), "rate_limit_error");
}

}  // namespace
}  // namespace riptide::testing
