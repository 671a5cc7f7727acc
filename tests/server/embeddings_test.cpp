// Vectors and scores over HTTP: judged by transformers (tests/fixtures/qwen3_embed), and the same whatever else is
// asked.
#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "tests/models/rounding.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

constexpr double kEmbedDeviations = 4;

std::string embedding_folder() { return source_dir() + "/tests/fixtures/qwen3_embed"; }

/// K and V in f32, as transformers has them here.
EngineOptions embedding_options(Task task) {
    EngineOptions o = demo_options();
    o.choose_kv = false;
    o.k_dtype = o.v_dtype = DType::f32;
    o.model.task = task;
    return o;
}

class ServerEmbeddings : public ServerTest {
  protected:
    void SetUp() override { begin(Task::embed); }
    void begin(Task task, const server::ServerOptions& options = server_options()) {
        start(options, embedding_options(task), embedding_folder());
    }

    json::object ok(const std::string& path, const json::object& body) {
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object();
    }
    /// Of one input: the vector's JSON.
    std::string vector_of(const json::value& input) {
        return json::serialize(ok("/v1/embeddings", {{"input", input}}).at("data").at(0).at("embedding"));
    }

    /// The standard deviation of what the head would read, relative to its norm, behind so many keys.
    double deviation(int64_t keys) const {
        const OperandRounding rounding =
            test_gpu() != nullptr ? OperandRounding::prefill(true) : OperandRounding::none();
        return std::sqrt(Variance::of(*checkpoint, keys, rounding).head);
    }

    const json::value expected = parse_json(read_file(embedding_folder() + "/expected.json", 1 << 20), "expected.json");
    const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(embedding_folder());
};

std::vector<float> floats_of(const json::value& list) {
    std::vector<float> out;
    for (const json::value& value : list.as_array()) out.push_back(value.to_number<float>());
    return out;
}

TEST_F(ServerEmbeddings, vectors_are_those_of_transformers) {
    const json::array& cases = expected.at("embeddings").as_array();
    json::array texts;
    int64_t tokens = 0;
    for (const json::value& each : cases) {
        texts.push_back(each.at("text"));
        tokens += std::ssize(each.at("tokens").as_array());
        const json::object asked = {{"content", each.at("text")}, {"add_special", true}};
        EXPECT_EQ(ok("/tokenize", asked).at("tokens"), each.at("tokens")) << each.at("text");
    }
    const json::object whole = ok("/v1/embeddings", {{"input", texts}}),
                       first = ok("/v1/embeddings", {{"input", texts}, {"dimensions", 24}});
    EXPECT_EQ(whole.at("object"), "list");
    EXPECT_EQ(whole.at("model"), "laguna-demo");
    EXPECT_EQ(whole.at("usage").at("prompt_tokens").to_number<int64_t>(), tokens);
    EXPECT_EQ(whole.at("usage").at("total_tokens").to_number<int64_t>(), tokens);
    ASSERT_EQ(whole.at("data").as_array().size(), cases.size());
    double most = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
        const json::value& item = whole.at("data").at(i);
        EXPECT_EQ(item.at("object"), "embedding");
        EXPECT_EQ(item.at("index").to_number<size_t>(), i);
        const double bound = kEmbedDeviations * deviation(std::ssize(cases[i].at("tokens").as_array()));
        const std::vector<float> vector = floats_of(item.at("embedding")), wanted = floats_of(cases[i].at("embedding"));
        ASSERT_EQ(vector.size(), wanted.size());
        EXPECT_NEAR(norm2(vector), 1, 1e-6);
        most = std::max(most, distance(vector, wanted) / bound);
        const std::vector<float> part = floats_of(first.at("data").at(i).at("embedding"));
        EXPECT_EQ(part.size(), 24u);
        EXPECT_NEAR(norm2(part), 1, 1e-6);
        const double share = norm2(std::span(wanted).first(24));  // of the vector's length: what is left of it grows
        EXPECT_LE(distance(part, floats_of(cases[i].at("first_24"))), 2 * bound / share);
    }
    fmt::print("embeddings: used {:.3f} of the bound\n", most);
    EXPECT_LE(most, 1);
    if (test_gpu() == nullptr) {
        EXPECT_GT(most, 0.02) << "the bound is too loose to mean anything";
    }
}

TEST_F(ServerEmbeddings, token_ids_are_fed_as_they_are) {
    const json::value& any = expected.at("embeddings").at(1);
    EXPECT_EQ(vector_of(any.at("tokens")), vector_of(any.at("text")));
    json::array without_end = any.at("tokens").as_array();
    without_end.pop_back();
    EXPECT_NE(vector_of(without_end), vector_of(any.at("text")));
    const json::array lists = {any.at("tokens"), without_end};
    EXPECT_EQ(vector_of(lists), vector_of(any.at("tokens")));
}

TEST_F(ServerEmbeddings, one_input_alone_is_what_it_is_among_64) {
    json::array inputs;
    for (int i = 0; i < 64; ++i)
        inputs.push_back(
            json::string("text number " + std::to_string(i) + std::string(static_cast<size_t>(5 * i), 'x')));
    const json::object together = ok("/v1/embeddings", {{"input", inputs}});
    begin(Task::embed);
    for (const size_t i : {0u, 1u, 17u, 63u}) {
        const std::string alone = vector_of(inputs[i]);
        if (test_gpu() != nullptr) continue;
        EXPECT_EQ(alone, json::serialize(together.at("data").at(i).at("embedding"))) << i;
    }
}

TEST_F(ServerEmbeddings, a_cached_prefix_changes_no_bit) {
    const std::string text(300, 'a');
    const json::object cold = ok("/v1/embeddings", {{"input", text}}), warm = ok("/v1/embeddings", {{"input", text}});
    const auto cached = [](const json::object& reply) {
        return reply.at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
    };
    EXPECT_EQ(cached(cold), 0);
    EXPECT_GT(cached(warm), 0);
    EXPECT_EQ(cold.at("data"), warm.at("data"));
}

TEST_F(ServerEmbeddings, base64_holds_the_same_floats) {
    const json::object plain = ok("/v1/embeddings", {{"input", "a"}}),
                       coded = ok("/v1/embeddings", {{"input", "a"}, {"encoding_format", "base64"}});
    const std::string text(coded.at("data").at(0).at("embedding").as_string());
    const std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    uint32_t bits = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        bits = bits << 6 | static_cast<uint32_t>(text[i] == '=' ? 0 : alphabet.find(text[i]));
        for (int shift = 16; i % 4 == 3 && shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> shift);
    }
    const std::vector<float> wanted = floats_of(plain.at("data").at(0).at("embedding"));
    ASSERT_EQ(text.size(), (wanted.size() * 4 + 2) / 3 * 4);
    EXPECT_EQ(std::memcmp(bytes.data(), wanted.data(), wanted.size() * 4), 0);
}

TEST_F(ServerEmbeddings, ollama_gets_the_same_vectors) {
    const json::object both = ok("/api/embed", {{"model", "x"}, {"input", {"a", "bc"}}});
    EXPECT_EQ(json::serialize(both.at("embeddings").at(0)), vector_of("a"));
    EXPECT_EQ(json::serialize(both.at("embeddings").at(1)), vector_of("bc"));
    EXPECT_EQ(both.at("prompt_eval_count").to_number<int64_t>(), 2 + 3);
    EXPECT_GT(both.at("total_duration").to_number<int64_t>(), 0);
    EXPECT_EQ(json::serialize(ok("/api/embed", {{"input", "a"}}).at("embeddings").at(0)), vector_of("a"));
    EXPECT_EQ(json::serialize(ok("/api/embeddings", {{"prompt", "a"}}).at("embedding")), vector_of("a"));
    const json::object small = ok("/api/embed", {{"input", "a"}, {"dimensions", 16}});
    EXPECT_EQ(small.at("embeddings").at(0).as_array().size(), 16u);
    EXPECT_EQ(ok("/api/embed", {{"input", json::array()}}).at("embeddings"), json::value(json::array()));
    EXPECT_EQ(ok("/api/embeddings", {{"prompt", ""}}).at("embedding"), json::value(json::array()));
    const json::array capability = {"embedding"};
    EXPECT_EQ(ok("/api/show", {{"model", "x"}}).at("capabilities"), json::value(capability));
}

TEST_F(ServerEmbeddings, ollama_cuts_what_is_too_long_unless_told_not_to) {
    const auto context = static_cast<size_t>(engine->info().context_length);
    const std::string most(context - 1, 'z'), longer(3 * context, 'z');
    const json::object cut = ok("/api/embed", {{"input", longer}});
    EXPECT_EQ(json::serialize(cut.at("embeddings").at(0)), vector_of(json::string(most))) << "the end mark stays";
    EXPECT_EQ(json::serialize(ok("/api/embeddings", {{"prompt", longer}}).at("embedding")),
              vector_of(json::string(most)));
    const Answer refused = post("/api/embed", {{"input", longer}, {"truncate", false}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("maximum context length"), std::string::npos) << refused.body;
    const Answer openai = post("/v1/embeddings", {{"input", longer}});
    EXPECT_EQ(openai.status, 400);
    EXPECT_EQ(openai.param(), "input");
}

TEST_F(ServerEmbeddings, a_call_may_ask_for_more_than_the_queue_holds) {
    EngineOptions options = embedding_options(Task::embed);
    options.max_queue = 4;
    start(server_options(), options, embedding_folder());
    const json::array inputs(100, json::value("a"));
    EXPECT_EQ(ok("/v1/embeddings", {{"input", inputs}}).at("data").as_array().size(), 100u);
}

TEST_F(ServerEmbeddings, a_timeout_ends_it) {
    engine->pause();
    const Answer late = post("/v1/embeddings", {{"input", {"a", "b"}}, {"timeout", 0.02}});
    engine->resume();
    EXPECT_EQ(late.status, 503) << late.body;
    EXPECT_NE(late.body.find("deadline"), std::string::npos) << late.body;
    EXPECT_TRUE(becomes([&] { return engine->stats().running == 0 && engine->stats().waiting == 0; }));
    EXPECT_FALSE(vector_of("a").empty());
}

TEST_F(ServerEmbeddings, what_is_wrong_is_named) {
    const json::array many(2049, json::value("a"));
    const std::tuple<const char*, json::object, const char*> wrong[] = {
        {"/v1/embeddings", {}, "input"},
        {"/v1/embeddings", {{"input", 5}}, "input"},
        {"/v1/embeddings", {{"input", json::array()}}, "input"},
        {"/v1/embeddings", {{"input", {"a", 5}}}, "input"},
        {"/v1/embeddings", {{"input", {1, "a"}}}, "input"},
        {"/v1/embeddings", {{"input", {1, -1}}}, "input"},
        {"/v1/embeddings", {{"input", {1, 1.5}}}, "input"},
        {"/v1/embeddings", {{"input", json::array{json::array()}}}, "input"},
        {"/v1/embeddings", {{"input", many}}, "input"},
        {"/v1/embeddings", {{"input", "a"}, {"dimensions", 0}}, "dimensions"},
        {"/v1/embeddings", {{"input", "a"}, {"dimensions", 65}}, "dimensions"},
        {"/v1/embeddings", {{"input", "a"}, {"encoding_format", "hex"}}, "encoding_format"},
        {"/v1/embeddings", {{"input", "a"}, {"truncate_prompt_tokens", 5}}, "truncate_prompt_tokens"}};
    for (const auto& [path, body, param] : wrong) {
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 400) << json::serialize(body).substr(0, 80) << answer.body;
        EXPECT_EQ(answer.param(), param) << answer.body;
        EXPECT_NE(answer.object().at("error").at("message").as_string().find(param), json::string::npos);
    }
    const Answer outside = post("/v1/embeddings", {{"input", {1, 99999}}});
    EXPECT_EQ(outside.status, 400);
    EXPECT_NE(outside.body.find("token 1 of the prompt is 99999"), std::string::npos) << outside.body;
    for (const json::object& body : {json::object{{"input", 5}}, {{"input", "a"}, {"dimensions", 65}}})
        EXPECT_EQ(post("/api/embed", body).status, 400);
    EXPECT_EQ(post("/api/embeddings", {{"prompt", 5}}).status, 400);
    EXPECT_FALSE(vector_of("a").empty());
}

TEST_F(ServerEmbeddings, an_embedding_model_writes_no_text_and_ranks_nothing) {
    const json::array says = user_says("Hi");
    const std::pair<const char*, json::object> texts[] = {{"/v1/chat/completions", {{"messages", says}}},
                                                          {"/v1/completions", {{"prompt", "Hi"}}},
                                                          {"/v1/responses", {{"input", "Hi"}}},
                                                          {"/v1/messages", {{"messages", says}, {"max_tokens", 5}}},
                                                          {"/api/chat", {{"messages", says}}},
                                                          {"/api/generate", {{"prompt", "Hi"}}}};
    for (const auto& [path, body] : texts) {
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 400) << path << answer.body;
        EXPECT_NE(answer.body.find("embedding model"), std::string::npos) << answer.body;
    }
    const Answer ranked = post("/v1/rerank", {{"query", "a"}, {"documents", {"b"}}});
    EXPECT_EQ(ranked.status, 400);
    for (const char* part : {"an embedding model", "Qwen3-Reranker", "--task rerank"})
        EXPECT_NE(ranked.body.find(part), std::string::npos) << ranked.body;
    EXPECT_EQ(get("/v1/models").object().at("data").at(0).at("task"), "embed");
}

TEST_F(ServerEmbeddings, a_chat_model_says_what_to_serve) {
    start();
    for (const auto& [path, body] : {std::pair<const char*, json::object>{"/v1/embeddings", {{"input", "a"}}},
                                     {"/api/embed", {{"input", "a"}}},
                                     {"/api/embeddings", {{"prompt", "a"}}}}) {
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 400) << path;
        for (const char* part : {"a chat model", "no embeddings", "Qwen3-Embedding", "--task embed"})
            EXPECT_NE(answer.body.find(part), std::string::npos) << answer.body;
    }
    const Answer ranked = post("/v1/rerank", {{"query", "a"}, {"documents", {"b"}}});
    EXPECT_EQ(ranked.status, 400);
    EXPECT_NE(ranked.body.find("a chat model"), std::string::npos) << ranked.body;
    EXPECT_EQ(get("/v1/models").object().at("data").at(0).at("task"), "generate");
    expect_alive();
}

TEST_F(ServerEmbeddings, nobody_else_may_ask) {
    const std::string json_type = "Content-Type: application/json\r\n";
    const std::pair<const char*, const char*> routes[] = {{"/v1/embeddings", R"({"input":"a"})"},
                                                          {"/v1/rerank", R"({"query":"a","documents":["b"]})"},
                                                          {"/api/embed", R"({"input":"a"})"},
                                                          {"/api/embeddings", R"({"prompt":"a"})"}};
    for (const auto& [path, body] : routes) {
        const auto ask = [&, route = path, sent = body](const std::string& headers, const char* method = "POST") {
            return Client(port()).ask(method, route, sent, headers).status;
        };
        EXPECT_EQ(ask(json_type + "Origin: https://evil.example\r\n"), 403) << path;
        EXPECT_EQ(ask(json_type + "Host: evil.example\r\n"), 403) << path;
        EXPECT_EQ(ask("Content-Type: text/plain\r\n"), 415) << path;
        EXPECT_EQ(ask(json_type, "PUT"), 405) << path;
    }
    server::ServerOptions options = server_options();
    options.api_keys = {"secret"};
    begin(Task::embed, options);
    for (const auto& [path, body] : routes) {
        EXPECT_EQ(Client(port()).ask("POST", path, body, json_type).status, 401) << path;
        const bool ranks = std::string_view(path) == "/v1/rerank";
        EXPECT_EQ(Client(port()).ask("POST", path, body, json_type + "Authorization: Bearer secret\r\n").status,
                  ranks ? 400 : 200)
            << path;
    }
}

class ServerRerank : public ServerEmbeddings {
  protected:
    void SetUp() override { begin(Task::rerank); }
};

TEST_F(ServerRerank, scores_are_those_of_transformers) {
    const ModelInfo model = engine->info().model;
    const Tokenizer& tokenizer = *engine->tokenizer();
    Binder bind(*checkpoint);
    const auto head = matrix_rows(bind.matrix({{}, {"embed_tokens.weight"}}, model.vocab_size, model.hidden_size));
    const double rows = distance(head.at(static_cast<size_t>(tokenizer.id_of("yes"))),
                                 head.at(static_cast<size_t>(tokenizer.id_of("no"))));
    double state = 0;  // the norm of what the head reads, at most: values of mean square 1, times the norm's weights
    for (const float weight : bind.vector({{}, {"norm.weight"}}, model.hidden_size))
        state = std::max(state, std::abs(double{weight}));
    state *= std::sqrt(static_cast<double>(model.hidden_size));
    double most = 0;
    for (const json::value& each : expected.at("scores").as_array()) {
        json::object asked = {{"query", each.at("query")}, {"documents", {each.at("document")}}};
        if (!each.at("instruction").is_null()) asked["instruction"] = each.at("instruction");
        const json::object reply = ok("/v1/rerank", asked);
        const auto tokens = std::ssize(each.at("tokens").as_array());
        EXPECT_EQ(reply.at("usage").at("prompt_tokens").to_number<int64_t>(), tokens);
        const double score = reply.at("results").at(0).at("relevance_score").as_double();
        // The difference of the logits is off by the share of |state| |yes - no|, the score by its slope times that.
        const double wanted = each.at("score").to_number<double>(), slope = wanted * (1 - wanted);
        const double bound = kEmbedDeviations * deviation(tokens) * state * rows * slope;
        most = std::max(most, std::abs(score - wanted) / bound);
    }
    fmt::print("scores: used {:.3f} of the bound\n", most);
    EXPECT_LE(most, 1);
    if (test_gpu() == nullptr) {
        EXPECT_GT(most, 0.001) << "the bound is too loose to mean anything";
    }
}

TEST_F(ServerRerank, the_most_relevant_comes_first_and_top_n_of_them) {
    const json::array documents = {"one", json::object{{"text", "two"}}, "three and more", "one"};
    const json::object all = ok("/v1/rerank", {{"query", "q"}, {"documents", documents}, {"return_documents", true}});
    const json::array& results = all.at("results").as_array();
    ASSERT_EQ(results.size(), 4u);
    std::vector<double> scores(4);
    for (size_t i = 0; i < 4; ++i) {
        const auto index = results[i].at("index").to_number<size_t>();
        scores.at(index) = results[i].at("relevance_score").as_double();
        const json::value& sent = documents[index];
        EXPECT_EQ(results[i].at("document").at("text"), sent.is_string() ? sent : sent.at("text"));
        if (i == 0) continue;
        EXPECT_GE(results[i - 1].at("relevance_score").as_double(), results[i].at("relevance_score").as_double());
    }
    EXPECT_EQ(scores[0], scores[3]);
    for (size_t i = 0; i < 4; ++i) {  // alone as among others
        const json::object alone = ok("/rerank", {{"query", "q"}, {"documents", {documents[i]}}});
        if (test_gpu() != nullptr) continue;
        EXPECT_EQ(alone.at("results").at(0).at("relevance_score").as_double(), scores[i]);
        EXPECT_FALSE(alone.at("results").at(0).as_object().contains("document"));
    }
    const json::object best = ok("/v1/rerank", {{"query", "q"}, {"documents", documents}, {"top_n", 2}});
    ASSERT_EQ(best.at("results").as_array().size(), 2u);
    EXPECT_EQ(best.at("results").at(0).at("index"), results[0].at("index"));
}

TEST_F(ServerRerank, a_document_cannot_write_markup) {
    const auto tokens = [&](const std::string& document) {
        const json::object reply = ok("/v1/rerank", {{"query", "q"}, {"documents", {document}}});
        return reply.at("usage").at("prompt_tokens").to_number<int64_t>();
    };
    EXPECT_EQ(tokens("a<|im_end|>") - tokens("a"), 10) << "a token a byte: it is text";
}

TEST_F(ServerRerank, what_is_wrong_with_it_is_named) {
    const json::array many(2049, json::value("a")), one = {"b"};
    const std::pair<json::object, const char*> wrong[] = {
        {{{"documents", one}}, "query"},
        {{{"query", ""}, {"documents", one}}, "query"},
        {{{"query", "a"}}, "documents"},
        {{{"query", "a"}, {"documents", "b"}}, "documents"},
        {{{"query", "a"}, {"documents", json::array()}}, "documents"},
        {{{"query", "a"}, {"documents", many}}, "documents"},
        {{{"query", "a"}, {"documents", {5}}}, "documents"},
        {{{"query", "a"}, {"documents", {json::object{{"image", "x"}}}}}, "documents"},
        {{{"query", "a"}, {"documents", one}, {"top_n", 0}}, "top_n"},
        {{{"query", "a"}, {"documents", one}, {"instruction", 5}}, "instruction"},
        {{{"query", "a"}, {"documents", {std::string(2000, 'x')}}}, "documents"}};
    for (const auto& [body, param] : wrong) {
        const Answer answer = post("/v1/rerank", body);
        EXPECT_EQ(answer.status, 400) << json::serialize(body).substr(0, 80) << answer.body;
        EXPECT_EQ(answer.param(), param) << answer.body;
    }
    const Answer embedded = post("/v1/embeddings", {{"input", "a"}});
    EXPECT_EQ(embedded.status, 400);
    EXPECT_NE(embedded.body.find("a reranker"), std::string::npos) << embedded.body;
    EXPECT_EQ(get("/v1/models").object().at("data").at(0).at("task"), "rerank");
}

}  // namespace
}  // namespace riptide::testing
