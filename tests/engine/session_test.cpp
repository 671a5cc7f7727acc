// A session: what it is fed, what it reuses, what it refuses.
#include "engine/session/session.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

class SessionTest : public ::testing::Test {
  protected:
    Fixture fixture{"laguna_xs2"};
    const std::vector<int32_t>& prompt = fixture.prompts.back().tokens;
    const std::vector<int32_t>& greedy = fixture.prompts.back().greedy;
    std::unique_ptr<Session> session = fixture.session();
};

template <class F>
void expect_refused(const F& action, const std::string& message) {
    try {
        action();
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_EQ(std::string(error.what()), message);
    }
}

TEST_F(SessionTest, bad_tokens_and_options_are_errors) {
    expect_refused([&] { session->prefill({}); }, "the prompt is empty: it needs at least one token");
    const std::vector<int32_t> outside = {1, 2, 128}, negative = {-1};
    expect_refused([&] { session->prefill(outside); }, "token 2 of the prompt is 128, expected 0 to 127");
    expect_refused([&] { session->prefill(negative); }, "token 0 of the prompt is -1, expected 0 to 127");
    EXPECT_FALSE(session->prefill(prompt).empty());  // good ones still work
    SessionOptions options = fixture.options();
    options.context = std::ssize(prompt) - 1;
    expect_refused(
        [&] { Session::open(fixture.model_path(), options)->prefill(prompt); },
        fmt::format("the prompt has {} tokens, but the context holds {}", prompt.size(), prompt.size() - 1));
    options.context = std::ssize(prompt);
    const auto full = Session::open(fixture.model_path(), options);
    full->prefill(prompt);
    EXPECT_THROW(full->decode(1), Error);
    options.context = int64_t{1} << 20;
    expect_refused([&] { Session::open(fixture.model_path(), options); },
                       "context is 1048576, but model.safetensors has positions for 131072 tokens");
    options = fixture.options();
    options.chunk_rows = -1;
    expect_refused([&] { Session::open(fixture.model_path(), options); }, "chunk_rows is -1, expected 0 to 65536");
    options = fixture.options();
    options.k_dtype = DType::q4_k;
    EXPECT_THROW(Session::open(fixture.model_path(), options), Error);
}

TEST_F(SessionTest, what_begins_alike_is_computed_only_from_where_it_differs) {
    int64_t computed = 0;
    const auto read = [&](Session& by, std::span<const int32_t> tokens) {
        const std::span<const float> logits = by.prefill(tokens, [&](int64_t, int64_t total) { computed = total; });
        return std::vector<float>(logits.begin(), logits.end());
    };
    read(*session, prompt);
    EXPECT_EQ(computed, std::ssize(prompt));
    for (size_t i = 0; i < 7; ++i) session->decode(greedy[i]);
    std::vector<int32_t> turn = prompt;
    turn.insert(turn.end(), greedy.begin(), greedy.begin() + 8);
    const std::vector<float> warm = read(*session, turn);
    EXPECT_EQ(computed, 1) << "the eighth token was not fed";
    if (test_gpu() == nullptr) {  // there, decoding rounds otherwise than prefill
        EXPECT_EQ(warm, read(*fixture.session(), turn));
    }
    for (const size_t keep : {prompt.size() - 1, prompt.size() - 30, size_t{100}, size_t{40}, size_t{1}}) {
        std::vector<int32_t> other(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(keep));
        other.push_back((prompt[keep] + 1) % 128);
        const std::vector<float> back = read(*session, other);
        EXPECT_GE(computed, 1);
        EXPECT_EQ(back, read(*fixture.session(), other)) << keep;
        read(*session, prompt);
    }
    read(*session, prompt);
    EXPECT_EQ(computed, 1) << "the very same: its last token is computed again";
}

TEST_F(SessionTest, a_checkpoint_that_shrinks_is_an_error) {
    RT_CPU_ONLY("a GPU has its own copy");
    const std::string folder = ::testing::TempDir() + "/riptide_shrink_" + std::to_string(getpid());
    std::filesystem::create_directories(folder);
    for (const char* file : {"model.safetensors", "config.json"})
        std::filesystem::copy_file(fixture_path(fixture.name) + "/" + file, folder + "/" + file,
                                   std::filesystem::copy_options::overwrite_existing);
    auto doomed = Session::open(folder + "/model.safetensors", fixture.options());
    EXPECT_EQ(draw_greedily(*doomed, prompt, 4).tokens, std::vector<int32_t>(greedy.begin(), greedy.begin() + 4));
    std::filesystem::resize_file(folder + "/model.safetensors", 5000);
    try {
        draw_greedily(*doomed, prompt, 8);
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io) << error.what();
        EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos);
    }
    std::filesystem::remove_all(folder);
}

TEST_F(SessionTest, scoring_shows_every_position_once) {
    std::vector<int64_t> firsts;
    int64_t rows = 0;
    session->score(prompt, [&](int64_t first_position, const Tensor& logits) {
        EXPECT_EQ(first_position, rows);
        firsts.push_back(first_position);
        rows += logits.rows();
    });
    EXPECT_EQ(rows, std::ssize(prompt));
    EXPECT_EQ(firsts[1], 64);
}

TEST(SessionOptions, the_default_kv_type_fits_the_heads) {
    const StateSpec wide{.kind = StateSpec::Kind::paged, .num_kv_heads = 8, .head_dim = 128};
    const StateSpec odd{.kind = StateSpec::Kind::window, .num_kv_heads = 2, .head_dim = 24, .window = 16};
    const std::vector<StateSpec> both = {wide, odd}, one = {wide, StateSpec{}};
    EXPECT_EQ(default_kv_type(one, true), DType::q8_0);
    EXPECT_EQ(default_kv_type(both, true), DType::f16);
    EXPECT_EQ(default_kv_type(one, false), DType::f32);
}

}  // namespace
}  // namespace riptide::testing
