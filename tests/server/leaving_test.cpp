// Clients that end their side of the connection: those that still read get their answers, those that are gone free
// their places.
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerLeaving : public ServerTest {
  protected:
    void SetUp() override {
        server::ServerOptions options = server_options();
        options.http.heartbeat_time = std::chrono::milliseconds(20);
        start(options);
    }
    static std::string body(int tokens, bool stream) {
        return json::serialize(
            json::object{{"prompt", "x"}, {"max_tokens", tokens}, {"ignore_eos", true}, {"stream", stream}});
    }
};

TEST_F(ServerLeaving, a_client_that_has_ended_its_side_gets_its_answer) {
    for (const bool stream : {true, false}) {
        for (const char* behind : {"", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
            const int64_t before = engine->stats().submitted;
            engine->pause();  // so that the end of its side comes before the answer
            Client client(port());
            client.send("POST", "/v1/completions", body(3, stream));
            client.send(behind);
            client.finish_sending();
            EXPECT_TRUE(becomes([&] { return engine->stats().submitted > before; }));
            if (!stream && *behind == 0) {
                EXPECT_EQ(client.receive().status, 100) << "to see whether anybody reads";
            }
            engine->resume();
            Answer answer = client.receive();
            while (answer.status == 100) answer = client.receive();
            EXPECT_EQ(answer.status, 200);
            EXPECT_EQ(answer.body.find("[DONE]") != std::string::npos, stream) << answer.body;
            if (*behind != 0) {
                EXPECT_EQ(client.receive().status, 200);
            }
            EXPECT_TRUE(client.closed());
            EXPECT_EQ(engine->stats().cancelled, 0);
        }
    }
}

TEST_F(ServerLeaving, a_client_that_ends_its_side_and_then_goes_frees_its_place) {
    for (const bool stream : {true, false}) {
        const int64_t before = engine->stats().cancelled;
        engine->pause();
        Client client(port());
        client.send("POST", "/v1/completions", body(1000, stream));
        client.finish_sending();
        if (stream) {
            int status = client.receive_header().status;
            if (status == 100) status = client.receive_header().status;  // it ended before the answer had begun
            EXPECT_EQ(status, 200);
        } else {
            EXPECT_EQ(client.receive().status, 100);
        }
        client.close();
        engine->resume();
        EXPECT_TRUE(becomes([&] { return engine->stats().cancelled == before + 1; })) << "stream " << stream;
        expect_alive();
    }
}

}  // namespace
}  // namespace riptide::testing
