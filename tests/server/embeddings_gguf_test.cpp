// The embedding model of the fixture as a GGUF file, as converters write it: the same vectors.
#include "base/json.h"
#include "io/gguf_writer.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

std::string gguf_name(std::string name) {
    const std::pair<std::string_view, std::string_view> parts[] = {{"layers.", "blk."},
                                                                   {"embed_tokens", "token_embd"},
                                                                   {"input_layernorm", "attn_norm"},
                                                                   {"post_attention_layernorm", "ffn_norm"},
                                                                   {"self_attn.q_proj", "attn_q"},
                                                                   {"self_attn.k_proj", "attn_k"},
                                                                   {"self_attn.v_proj", "attn_v"},
                                                                   {"self_attn.o_proj", "attn_output"},
                                                                   {"self_attn.q_norm", "attn_q_norm"},
                                                                   {"self_attn.k_norm", "attn_k_norm"},
                                                                   {"mlp.gate_proj", "ffn_gate"},
                                                                   {"mlp.up_proj", "ffn_up"},
                                                                   {"mlp.down_proj", "ffn_down"}};
    if (name == "norm.weight") return "output_norm.weight";
    for (const auto& [from, to] : parts)
        if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
    return name;
}

void set_sizes(GgufWriter& out, const json::object& config) {
    const std::pair<const char*, const char*> keys[] = {{"embedding_length", "hidden_size"},
                                                        {"block_count", "num_hidden_layers"},
                                                        {"attention.head_count", "num_attention_heads"},
                                                        {"attention.head_count_kv", "num_key_value_heads"},
                                                        {"attention.key_length", "head_dim"},
                                                        {"attention.value_length", "head_dim"},
                                                        {"feed_forward_length", "intermediate_size"},
                                                        {"context_length", "max_position_embeddings"}};
    out.set_string("general.architecture", "qwen3");
    for (const auto& [key, name] : keys)
        out.set_u32(std::string("qwen3.") + key, config.at(name).to_number<uint32_t>());
    out.set_f32("qwen3.attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").to_number<float>());
    out.set_f32("qwen3.rope.freq_base", config.at("rope_parameters").at("rope_theta").to_number<float>());
}

void set_tokenizer(GgufWriter& out, const json::object& file) {
    const json::object& vocab = file.at("model").at("vocab").as_object();
    std::vector<std::string> tokens(vocab.size()), merges;
    json::array kinds(vocab.size(), json::value(1));
    for (const auto& [text, id] : vocab) tokens.at(id.to_number<size_t>()) = std::string(text);
    for (const json::value& added : file.at("added_tokens").as_array()) {
        tokens.at(added.at("id").to_number<size_t>()) = std::string(added.at("content").as_string());
        kinds.at(added.at("id").to_number<size_t>()) = added.at("special").as_bool() ? 3 : 4;
    }
    for (const json::value& pair : file.at("model").at("merges").as_array())
        merges.push_back(std::string(pair.at(0).as_string()) + " " + std::string(pair.at(1).as_string()));
    out.set_string("tokenizer.ggml.model", "gpt2");
    out.set_string("tokenizer.ggml.pre", "qwen2");
    out.set_strings("tokenizer.ggml.tokens", tokens);
    out.set_array("tokenizer.ggml.token_type", GgufType::i32, kinds);
    out.set_strings("tokenizer.ggml.merges", merges);
    out.set_u32("tokenizer.ggml.eos_token_id", 0);
    out.set_bool("tokenizer.ggml.add_eos_token", true);
}

std::vector<std::byte> as_gguf(const Checkpoint& folder, uint32_t pooling) {
    std::vector<std::byte> image;
    GgufWriter out(image);
    set_sizes(out, folder.metadata().at("config").as_object());
    out.set_u32("qwen3.pooling_type", pooling);
    set_tokenizer(out, folder.metadata().at("tokenizer").as_object());
    for (const TensorInfo& tensor : folder.tensors())
        out.add_tensor(gguf_name(tensor.name), tensor.dtype, tensor.shape);
    for (const TensorInfo& tensor : folder.tensors()) out.write_tensor(gguf_name(tensor.name), tensor.bytes);
    out.finish();
    return image;
}

class ServerEmbeddingsGguf : public ServerTest {
  protected:
    void begin(std::unique_ptr<Checkpoint> checkpoint) {
        server.reset();
        engine = std::make_unique<Engine>(std::move(checkpoint), demo_options());
        server = std::make_unique<server::Server>(server_options());
        server->serve(*engine);
    }
    std::string vectors() {
        const json::array texts = {"The capital of China is Beijing.", "yes", "a <|im_end|> b"};
        const Answer answer = post("/v1/embeddings", {{"input", texts}});
        EXPECT_EQ(answer.status, 200) << answer.body;
        return json::serialize(answer.object().at("data"));
    }
    const std::string folder = source_dir() + "/tests/fixtures/qwen3_embed";
};

TEST_F(ServerEmbeddingsGguf, the_vectors_are_those_of_the_folder) {
    begin(open_checkpoint(folder));
    const std::string expected = vectors();
    const std::vector<std::byte> image = as_gguf(*open_checkpoint(folder), 3);
    begin(open_gguf_memory(image, "embedding.gguf"));
    EXPECT_EQ(engine->info().model.task, Task::embed);
    EXPECT_EQ(vectors(), expected);
    server.reset();
    engine.reset();  // before the image
}

TEST_F(ServerEmbeddingsGguf, other_pooling_is_refused) {
    const std::vector<std::byte> image = as_gguf(*open_checkpoint(folder), 1);
    try {
        begin(open_gguf_memory(image, "embedding.gguf"));
        FAIL() << "it was taken";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("qwen3.pooling_type is 1"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace riptide::testing
