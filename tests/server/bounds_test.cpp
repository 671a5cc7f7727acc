// What one request may cost others: its work can be stopped.
#include "tests/server/http_client.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

class ServerBounds : public ServerTest {
  protected:
    /// One piece of text that is merged letter by letter: seconds of a worker's time.
    static std::string long_work() {
        return json::serialize(json::object{{"content", std::string(std::size_t{30} << 20, 'a')}});
    }
    void start_with_one_worker() {
        server::ServerOptions options = server_options();
        options.http.worker_threads = 1;
        start(options);
    }
};

TEST_F(ServerBounds, a_client_that_leaves_stops_the_work_that_it_asked_for) {
    start_with_one_worker();
    Client client(port());
    client.send("POST", "/tokenize", long_work());
    client.close();
    const std::string stopped = "riptide_http_replies_total{route=\"/tokenize\",status=\"503\"} 1\n";
    EXPECT_TRUE(becomes([&] { return get("/metrics").body.find(stopped) != std::string::npos; }))
        << get("/metrics").body;
    expect_alive();
}

TEST_F(ServerBounds, a_server_that_ends_stops_its_workers_and_says_so) {
    start_with_one_worker();
    Client busy(port());
    busy.send("POST", "/tokenize", long_work());
    EXPECT_EQ(get("/health").status, 200);  // behind it, so that most of its body has been read
    server->drain(std::chrono::milliseconds(500));
    EXPECT_EQ(busy.receive().status, 503);
    server.reset();
}

}  // namespace
}  // namespace riptide::testing
