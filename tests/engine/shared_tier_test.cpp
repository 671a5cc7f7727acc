// Engines that share a folder: a conversation goes on at another replica with the words that it would have had.
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "tests/engine/engine_world.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

class SharedTier : public ::testing::Test {
  protected:
    SharedTier() {
        std::string name = ::testing::TempDir() + "/riptide-shared-XXXXXX";
        folder = ::mkdtemp(name.data());
        write_file_atomic(folder + "/secret", std::string(64, 's') + "\n");
        write_file_atomic(folder + "/other", std::string(64, 'o') + "\n");
    }
    ~SharedTier() override { fs::remove_all(folder); }

    /// A replica that knows its weights by what they hold.
    std::unique_ptr<Engine> open(const std::string& secret = "secret", int32_t attention_window = 0) {
        EngineOptions o = demo_options();
        o.model.attention_window = attention_window;
        o.digests = folder + "/digests";
        o.shared_cache = "dir:" + folder + "/place";
        o.shared_cache_key = folder + "/" + secret;
        auto engine = Engine::open(demo_path(), o);
        for (int i = 0; i < 2000 && engine->stats().shared_ready == 0; ++i) {
            ask(*engine, continuation({1, 2, 3}, 1));
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        EXPECT_EQ(engine->stats().shared_ready, 1);
        return engine;
    }
    static Request turn(const json::array& messages) {
        Request request;
        request.prompt = ChatPrompt{messages, {}, {}};
        request.session = "one";
        request.deterministic = true;
        request.sampling.temperature = 0;
        request.sampling.max_tokens = 40;
        return request;
    }
    static json::array opening() {
        std::string rules;
        for (int i = 0; i < 40; ++i) rules += fmt::format("Rule {}: say what you mean, and be kind. ", i);
        return {{{"role", "system"}, {"content", rules}}, {{"role", "user"}, {"content", "Hello, who are you?"}}};
    }
    static void go_on(json::array& messages, const Heard& answer) {
        messages.push_back({{"role", "assistant"}, {"content", answer.text}});
        messages.push_back({{"role", "user"}, {"content", "Tell me more."}});
    }
    std::vector<fs::path> files() const {
        std::vector<fs::path> out;
        for (const auto& entry : fs::recursive_directory_iterator(folder + "/place"))
            if (entry.is_regular_file()) out.push_back(entry.path());
        return out;
    }

    std::string folder;
};

TEST_F(SharedTier, a_conversation_goes_on_at_another_replica_with_the_same_words) {
    RT_CPU_ONLY("a GPU reads such a prompt faster than files");
    json::array messages = opening();
    const Heard first = ask(*open(), turn(messages));
    ASSERT_TRUE(first.done);
    EXPECT_GT(files().size(), 10U) << "written at the latest when the engine ended";
    go_on(messages, first);

    EngineOptions alone = demo_options();
    const Heard expected = ask(*Engine::open(demo_path(), alone), turn(messages));
    int64_t fetched = 0;
    for (int i = 0; i < 20 && fetched == 0; ++i) {  // a machine that is busy may answer too late to be waited for
        const auto second = open();
        const Heard moved = ask(*second, turn(messages));
        ASSERT_TRUE(moved.done && expected.done);
        EXPECT_EQ(moved.tokens, expected.tokens);
        const EngineStats stats = second->stats();
        fetched = stats.shared_fetched;
        EXPECT_EQ(fetched + stats.shared_late, 1);
        if (fetched == 0) continue;
        EXPECT_GE(moved.done->usage.cached * 10, first.done->usage.prompt * 9);
        EXPECT_GE(stats.shared_tokens * 10, first.done->usage.prompt * 9);
        EXPECT_GT(stats.shared_read_bytes, 0);
    }
    EXPECT_EQ(fetched, 1);
}

TEST_F(SharedTier, a_replica_with_a_window_over_full_layers_goes_on_from_its_own_state_alone) {
    RT_CPU_ONLY("a GPU reads such a prompt faster than files");
    const json::array messages = opening();
    ask(*open(), turn(messages));
    for (const int32_t window : {64, 96}) {
        EngineOptions alone = demo_options();
        alone.model.attention_window = window;
        const Heard expected = ask(*Engine::open(demo_path(), alone), turn(messages));
        const auto engine = open("secret", window);
        const Heard heard = ask(*engine, turn(messages));
        ASSERT_TRUE(heard.done && expected.done);
        EXPECT_EQ(heard.tokens, expected.tokens);
        EXPECT_EQ(heard.done->usage.cached, 0);
        EXPECT_EQ(engine->stats().shared_hits, 0);
    }
}

TEST_F(SharedTier, a_place_that_lies_or_is_another_fleets_is_a_miss_and_the_words_are_the_same) {
    RT_CPU_ONLY("a GPU reads such a prompt faster than files");
    json::array messages = opening();
    const Heard first = ask(*open(), turn(messages));
    go_on(messages, first);
    const Heard expected = ask(*Engine::open(demo_path(), demo_options()), turn(messages));

    EXPECT_EQ(ask(*open("other"), turn(messages)).tokens, expected.tokens);
    const auto spoil = [&](const std::function<void(const fs::path&)>& how) {
        for (const fs::path& file : files()) how(file);
        EngineStats stats;
        for (int i = 0; i < 20 && stats.shared_rejected + stats.shared_misses == 0; ++i) {
            const auto engine = open();
            const Heard heard = ask(*engine, turn(messages));
            EXPECT_EQ(heard.tokens, expected.tokens);
            EXPECT_EQ(heard.done->usage.cached, 0);
            stats = engine->stats();
        }
        return stats;
    };
    EXPECT_GT(spoil([](const fs::path& file) {
                  std::fstream io(file, std::ios::in | std::ios::out | std::ios::binary);
                  io.seekp(100);
                  io.put('\x55').put('\xAA').put('\x55');
              }).shared_rejected,
              0);
    fs::remove_all(folder + "/place");
    ask(*open(), turn(opening()));
    EXPECT_GT(spoil([](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }).shared_misses, 0);
    fs::remove_all(folder + "/place");
    ask(*open(), turn(opening()));
    const auto engine = open();
    fs::remove_all(folder + "/place");
    write_file_atomic(folder + "/place", "no folder");
    EXPECT_EQ(ask(*engine, turn(messages)).tokens, expected.tokens) << "gone while it is used";
}

// While weights are loaded the machine is another thread's; requests come meanwhile, and long ones would fetch.
TEST_F(SharedTier, requests_that_come_while_weights_are_loaded_get_their_words) {
    json::array messages = opening();
    const Heard first = ask(*open(), turn(messages));
    go_on(messages, first);
    const Heard expected = ask(*Engine::open(demo_path(), demo_options()), turn(messages));
    const auto engine = open();
    std::atomic<bool> over = false;
    std::thread loader([&] {
        for (int i = 0; i < 3; ++i) engine->reload(demo_path());
        over = true;
    });
    int answers = 0;
    for (; !over || answers < 4; ++answers) {
        Listener listener;
        Request request = turn(messages);
        request.want_tokens = true;
        engine->submit(std::move(request), listener.sink(0));
        EXPECT_EQ(listener.answer(0).tokens, expected.tokens);
    }
    loader.join();
}

TEST_F(SharedTier, what_cannot_be_shared_is_said_before_anything_is_loaded) {
    const auto refused = [&](const std::string& place, const std::string& key, int64_t host_bytes = 1 << 20) {
        EngineOptions o = demo_options();
        o.shared_cache = place;
        o.shared_cache_key = key;
        o.host_cache_bytes = host_bytes;
        try {
            Engine::open(demo_path(), o);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    const std::string secret = folder + "/secret";
    write_file_atomic(folder + "/short", "abc");
    EXPECT_NE(refused(folder + "/place", "").find("secret"), std::string::npos);
    EXPECT_NE(refused(folder + "/place", folder + "/short").find(folder + "/short"), std::string::npos);
    EXPECT_NE(refused(folder + "/place", folder + "/none").find(folder + "/none"), std::string::npos);
    EXPECT_NE(refused("ftp://host/place", secret).find("ftp://host/place"), std::string::npos);
    EXPECT_NE(refused("dir:" + secret, secret).find(secret), std::string::npos);
    EXPECT_NE(refused(folder + "/place", secret, 0).find("main memory"), std::string::npos);
}

}  // namespace
}  // namespace riptide::testing
