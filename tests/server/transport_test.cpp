// Ways to the server beside plain TCP: a Unix socket, TLS, pages of other origins.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

namespace net = boost::asio;

class ServerTransport : public ServerTest {
  protected:
    void SetUp() override { std::filesystem::create_directories(folder); }
    void TearDown() override {
        server.reset();
        std::filesystem::remove_all(folder);
    }
    const std::string folder = ::testing::TempDir() + fmt::format("riptide-{}", ::getpid());
};

/// A reply over a stream that ends with it.
template <class Stream>
std::string ask_over(Stream& stream, const std::string& request) {
    net::write(stream, net::buffer(request));
    std::string reply;
    boost::system::error_code ec;
    net::read(stream, net::dynamic_buffer(reply), ec);
    return reply;
}

std::string completion_request(bool stream) {
    const std::string body = json::serialize(
        json::object{{"prompt", "x"}, {"max_tokens", 3}, {"ignore_eos", true}, {"stream", stream}, {"seed", 1}});
    return fmt::format(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n\r\n{}",
        body.size(), body);
}

/// Opens one, gets a response, and says goodbye.
template <class Stream>
void expect_web_socket(Stream& stream) {
    boost::beast::websocket::stream<Stream&> socket(stream);
    socket.handshake("localhost", "/v1/responses");
    const std::string ask = R"({"type": "response.create", "input": "x", "max_output_tokens": 2, "temperature": 0})";
    socket.write(net::buffer(ask));
    std::string event;
    while (event.find(R"("type":"response.completed")") == std::string::npos &&
           event.find(R"("type":"response.incomplete")") == std::string::npos) {
        event.clear();
        auto buffer = net::dynamic_buffer(event);
        socket.read(buffer);
    }
    EXPECT_NE(event.find("output_text"), std::string::npos) << event;
    boost::beast::error_code ec;
    socket.close(boost::beast::websocket::close_code::normal, ec);
    EXPECT_EQ(socket.reason().code, boost::beast::websocket::close_code::normal);
}

TEST_F(ServerTransport, a_unix_socket_is_private_and_goes_with_its_server) {
    server::ServerOptions options = server_options();
    options.http.unix_socket = folder + "/s";
    start(options);
    struct stat facts {};
    ASSERT_EQ(::stat(options.http.unix_socket.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
    EXPECT_EQ(port(), 0);
    net::io_context io;
    for (const bool stream : {false, true}) {
        net::local::stream_protocol::socket socket(io);
        socket.connect(net::local::stream_protocol::endpoint(options.http.unix_socket));
        const std::string reply = ask_over(socket, completion_request(stream));
        EXPECT_TRUE(reply.starts_with("HTTP/1.1 200")) << reply;
        EXPECT_EQ(reply.find("[DONE]") != std::string::npos, stream);
    }
    net::local::stream_protocol::socket socket(io);
    socket.connect(net::local::stream_protocol::endpoint(options.http.unix_socket));
    expect_web_socket(socket);
    EXPECT_THROW(server::Server{options}, Error) << "another server has it";
    server.reset();
    EXPECT_FALSE(std::filesystem::exists(options.http.unix_socket));
    // What a killed server leaves is no obstacle; what is no socket is not touched.
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options.http.unix_socket.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ::close(fd);
    EXPECT_NO_THROW(server::Server{options});
    std::ofstream(options.http.unix_socket) << "mine";
    EXPECT_THROW(server::Server{options}, Error);
    EXPECT_EQ(read_file(options.http.unix_socket, 10), "mine");
    options.http.unix_socket = folder + "/" + std::string(200, 'x');
    EXPECT_THROW(server::Server{options}, Error);
}

TEST_F(ServerTransport, tls_carries_the_same_and_a_client_that_leaves_is_noticed) {
    const std::string certificate = folder + "/cert.pem", key = folder + "/key.pem";
    const std::string make = fmt::format(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout {} "
        "-out {} 2>/dev/null",
        key, certificate);
    if (std::system(make.c_str()) != 0) GTEST_SKIP() << "no openssl program to make a certificate with";
    server::ServerOptions options = server_options();
    options.http.tls_certificate = certificate;
    options.http.tls_key = key;
    start(options);
    net::io_context io;
    net::ssl::context context(net::ssl::context::tls_client);
    context.load_verify_file(certificate);
    context.set_verify_mode(net::ssl::verify_peer);
    using Stream = net::ssl::stream<net::ip::tcp::socket>;
    const auto connect = [&] {
        auto stream = std::make_unique<Stream>(io, context);
        stream->lowest_layer().connect({net::ip::address_v4::loopback(), static_cast<uint16_t>(port())});
        stream->handshake(net::ssl::stream_base::client);
        return stream;
    };
    for (const bool stream : {false, true}) {
        const std::string reply = ask_over(*connect(), completion_request(stream));
        EXPECT_TRUE(reply.starts_with("HTTP/1.1 200")) << reply;
        EXPECT_EQ(reply.find("[DONE]") != std::string::npos, stream);
    }
    expect_web_socket(*connect());
    EXPECT_TRUE(Client(port()).ask("GET", "/health").status == 0) << "no plain HTTP";
    const auto speaks = [&](int version, const char* ciphers) {
        net::ssl::context other(net::ssl::context::tls_client);
        SSL_CTX* const raw = other.native_handle();
        SSL_CTX_set_security_level(raw, 0);
        SSL_CTX_set_min_proto_version(raw, version);
        SSL_CTX_set_max_proto_version(raw, version);
        EXPECT_EQ(SSL_CTX_set_cipher_list(raw, ciphers), 1) << ciphers;
        Stream to(io, other);
        to.lowest_layer().connect({net::ip::address_v4::loopback(), static_cast<uint16_t>(port())});
        boost::system::error_code ec;
        to.handshake(net::ssl::stream_base::client, ec);
        return !ec;
    };
    EXPECT_TRUE(speaks(TLS1_3_VERSION, "DEFAULT"));
    for (const char* good :
         {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"})
        EXPECT_TRUE(speaks(TLS1_2_VERSION, good)) << good;
    for (const char* bad : {"ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA"})
        EXPECT_FALSE(speaks(TLS1_2_VERSION, bad)) << bad << ": not authenticated with the data";
    for (const int old : {TLS1_VERSION, TLS1_1_VERSION}) EXPECT_FALSE(speaks(old, "ALL:@SECLEVEL=0")) << old;
    engine->pause();
    auto leaving = connect();
    net::write(*leaving, net::buffer(completion_request(false)));
    EXPECT_TRUE(becomes([&] { return engine->stats().waiting == 1; }));
    boost::system::error_code ignored;
    leaving->lowest_layer().cancel(ignored);
    SSL_shutdown(leaving->native_handle());
    leaving.reset();
    engine->resume();
    EXPECT_TRUE(becomes([&] { return engine->stats().waiting + engine->stats().running == 0; }));
    server.reset();
    options.http.tls_key = certificate;
    EXPECT_THROW(server::Server{options}, Error);
    options.http.tls_certificate = folder + "/none";
    EXPECT_THROW(server::Server{options}, Error);
}

TEST_F(ServerTransport, pages_of_named_origins_may_ask_and_no_others) {
    server::ServerOptions options = server_options();
    options.cors_origins = {"https://app.example"};
    start(options);
    const auto ask = [&](const std::string& method, const std::string& origin) {
        return Client(port()).ask(method, "/v1/models", "",
                                  "Origin: " + origin + "\r\nAccess-Control-Request-Headers: authorization\r\n");
    };
    const Answer invited = ask("GET", "https://app.example");
    EXPECT_EQ(invited.status, 200);
    EXPECT_EQ(invited.headers.at("Access-Control-Allow-Origin"), "https://app.example");
    EXPECT_EQ(invited.headers.at("Vary"), "Origin");
    const Answer preflight = ask("OPTIONS", "https://app.example");
    EXPECT_EQ(preflight.status, 204);
    EXPECT_EQ(preflight.headers.at("Access-Control-Allow-Headers"), "authorization");
    for (const char* foreign : {"https://app.example.evil", "http://app.example", "null"}) {
        const Answer refused = ask("GET", foreign);
        EXPECT_EQ(refused.status, 403) << foreign;
        EXPECT_FALSE(refused.headers.contains("Access-Control-Allow-Origin"));
    }
    const Answer streamed =
        Client(port()).ask("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1, "stream": true})",
                           "Content-Type: application/json\r\nOrigin: https://app.example\r\n");
    EXPECT_EQ(streamed.headers.at("Access-Control-Allow-Origin"), "https://app.example");
    options.cors_origins = {"*"};
    options.api_keys = {"key"};
    EXPECT_THROW(server::Server{options}, Error);
    options.cors_origins = {"app.example"};
    EXPECT_THROW(server::Server{options}, Error);
}

}  // namespace
}  // namespace riptide::testing
