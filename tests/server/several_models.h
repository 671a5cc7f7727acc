// A server with three models, all of them the demo model, whose loading can be held up or fail.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {

/// Loads the demo model under any name, when it may, and counts.
class Loader {
  public:
    std::unique_ptr<Engine> operator()(const std::string& name) {
        {
            std::unique_lock lock(mutex_);
            ++loads_[name];
            changed_.notify_all();
            changed_.wait(lock, [&] { return !held_.contains(name); });
            if (broken_.contains(name)) fail(ErrorKind::data, "{}.gguf: no tensor of this name", name);
        }
        return Engine::open(demo_path(), demo_options());
    }
    int loads(const std::string& name) {
        const std::lock_guard lock(mutex_);
        return loads_[name];
    }
    void hold(const std::string& name) {
        change([&] { held_.insert(name); });
    }
    void release(const std::string& name) {
        change([&] { held_.erase(name); });
    }
    void breaks(const std::string& name) {
        change([&] { broken_.insert(name); });
    }
    void mend(const std::string& name) {
        change([&] { broken_.erase(name); });
    }

  private:
    void change(const std::function<void()>& what) {
        const std::lock_guard lock(mutex_);
        what();
        changed_.notify_all();
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, int> loads_;
    std::set<std::string> held_, broken_;
};

class ServerModels : public ::testing::Test {
  protected:
    static server::ServerOptions several() {
        server::ServerOptions o;
        o.several.models = {{"a"}, {"b"}, {"c"}};
        o.admin = true;
        return o;
    }
    void start(server::ServerOptions options = several()) {
        server.reset();
        options.several.load = [this](const std::string& name) { return loader(name); };
        server = std::make_unique<server::Server>(std::move(options));
    }
    void TearDown() override {
        for (const char* name : {"a", "b", "c"}) loader.release(name);
    }
    /// Of weights and K/V of one.
    static int64_t bytes_of_one() { return Engine::open(demo_path(), demo_options())->info().memory_bytes; }

    int port() const { return server->port(); }
    Answer post(const std::string& target, const json::object& body) { return Client(port()).post(target, body); }
    Answer get(const std::string& target) { return Client(port()).ask("GET", target); }
    static json::object short_answer(const std::string& model) {
        return {{"model", model}, {"prompt", "x"}, {"max_tokens", 1}};
    }
    Answer ask(const std::string& model) { return post("/v1/completions", short_answer(model)); }
    static json::object long_answer(const std::string& model) {
        return {{"model", model},     {"prompt", "x"},  {"max_tokens", 900},
                {"ignore_eos", true}, {"stream", true}, {"temperature", 1}};
    }
    std::string state(const std::string& model) {
        return std::string(get("/v1/models/" + model).object().at("state").as_string());
    }
    static std::string message(const Answer& answer) {
        return std::string(answer.object().at("error").at("message").as_string());
    }

    Loader loader;
    std::unique_ptr<server::Server> server;
};

}  // namespace riptide::testing
