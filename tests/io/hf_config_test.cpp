#include "io/hf_config.h"

#include "base/json.h"
#include "io/gguf_writer.h"
#include "io/safetensors_writer.h"
#include "tests/io/test_files.h"

namespace riptide {
namespace {

using test::expect_error;

const json::object& config_json() {
    static const json::object config =
        parse_json(
            R"({"hidden_size": 2048, "eps": 1e-6, "tie": false, "type": "laguna", "none": null, "big": 18446744073709551615,
            "layers": ["full", "sliding"], "heads": [48, 64], "flags": [true, false], "mixed": [1, "a"], "theta": 10000,
            "many": [1,2,3,4,5,6,7,8,9], "rope": {"full": {"theta": 500000.0, "factor": "x"}}})",
            "config.json")
            .as_object();
    return config;
}

TEST(ConfigReader, reads_each_type) {
    const HfConfig config(config_json(), "config.json");
    EXPECT_EQ(config.get<int64_t>("hidden_size"), 2048);
    EXPECT_EQ(config.get<int>("hidden_size"), 2048);
    EXPECT_EQ(config.get<double>("eps"), 1e-6);
    EXPECT_EQ(config.get<float>("eps"), 1e-6f);
    EXPECT_EQ(config.get<double>("theta"), 10000.0);
    EXPECT_EQ(config.get<bool>("tie"), false);
    EXPECT_EQ(config.get<std::string>("type"), "laguna");
    EXPECT_EQ(config.get<std::vector<std::string>>("layers"), (std::vector<std::string>{"full", "sliding"}));
    EXPECT_EQ(config.get<std::vector<int64_t>>("heads"), (std::vector<int64_t>{48, 64}));
    EXPECT_EQ(config.get<std::vector<double>>("heads"), (std::vector<double>{48, 64}));
    EXPECT_EQ(config.get<std::vector<bool>>("flags"), (std::vector<bool>{true, false}));
    EXPECT_EQ(config.child("rope").child("full").get<double>("theta"), 500000.0);
    EXPECT_EQ(config.get_or<int64_t>("none", 7), 7);
    EXPECT_EQ(config.get_or<int64_t>("absent", 7), 7);
    EXPECT_EQ(config.get_or<int64_t>("hidden_size", 7), 2048);
    EXPECT_EQ(config.find<bool>("absent"), std::nullopt);
    EXPECT_EQ(config.find<bool>("tie"), false);
    EXPECT_FALSE(config.has("none"));
    EXPECT_EQ(config.get_per_layer("heads", 2), (std::vector<int64_t>{48, 64}));
    EXPECT_EQ(config.get_per_layer("hidden_size", 3), (std::vector<int64_t>{2048, 2048, 2048}));
}

TEST(ConfigReader, errors_name_key_value_and_wish) {
    const HfConfig config(config_json(), "config.json");
    const auto get_int = [&](const char* key) { return [&config, key] { (void)config.get<int64_t>(key); }; };
    expect_error(get_int("absent"), {"config.json: missing key absent (expected an integer)"});
    expect_error(get_int("none"), {"config.json: missing key none (expected an integer)"});
    expect_error(get_int("type"), {"config.json: type is \"laguna\", expected an integer"});
    expect_error(get_int("eps"), {"expected an integer"});
    expect_error(get_int("tie"), {"tie is false, expected an integer"});
    expect_error(get_int("big"), {"18446744073709551615"});
    expect_error(get_int("rope"), {"rope is an object"});
    expect_error(get_int("many"), {"many is an array of 9"});
    expect_error([&] { (void)config.get<std::vector<int64_t>>("mixed"); },
                 {"mixed is [1,\"a\"], expected an array of integers"});
    expect_error([&] { (void)config.get<bool>("hidden_size"); }, {"expected true or false"});
    expect_error([&] { (void)config.get_or<double>("type", 1.0); }, {"expected a number"});
    expect_error([&] { (void)config.child("rope").child("full").get<double>("factor"); },
                 {"config.json: rope.full.factor is \"x\", expected a number"});
    expect_error([&] { (void)config.child("type"); }, {"type is \"laguna\", expected an object"});
    expect_error([&] { (void)config.child("rope").child("swa"); }, {"missing key rope.swa"});
    expect_error([&] { (void)config.get_per_layer("heads", 3); }, {"config.json: heads has 2 values", "3 layers"});
}

TEST(ConfigReader, reads_gguf_metadata_under_a_prefix) {
    test::Bytes image;
    GgufWriter writer(image);
    writer.set_string("general.architecture", "laguna");
    writer.set_u32("laguna.block_count", 40);
    writer.set_f32("laguna.rope.freq_base", 500000.0f);
    writer.set_array("laguna.attention.head_count", GgufType::i32, {48, 64});
    writer.finish();
    const auto file = open_gguf_memory(image, "m.gguf");
    const ConfigReader laguna = gguf_config(*file, "laguna.");
    EXPECT_EQ(laguna.get<int64_t>("block_count"), 40);
    EXPECT_EQ(laguna.get<double>("rope.freq_base"), 500000.0);
    EXPECT_EQ(laguna.get_per_layer("attention.head_count", 2), (std::vector<int64_t>{48, 64}));
    EXPECT_EQ(gguf_config(*file).get<std::string>("general.architecture"), "laguna");
    expect_error([&] { (void)laguna.get<int64_t>("vocab_size"); },
                 {"m.gguf: missing key laguna.vocab_size (expected an integer)"});
    expect_error([&] { (void)laguna.get<std::string>("block_count"); },
                 {"m.gguf: laguna.block_count is 40, expected a string"});
    expect_error([&] { (void)hf_config(*file); }, {"m.gguf", "no config.json"});
}

TEST(ConfigReader, finds_config_json_of_a_folder) {
    test::TempFolder folder;
    write_safetensors(folder.file("model.safetensors"), {});
    expect_error([&] { (void)hf_config(*open_checkpoint(folder.path())); }, {folder.path(), "no config.json"});
    folder.put("config.json", R"({"hidden_size": 64})");
    const auto model = open_checkpoint(folder.path());
    EXPECT_EQ(hf_config(*model).get<int64_t>("hidden_size"), 64);
    expect_error([&] { (void)gguf_config(*model); }, {"not a GGUF file"});
}

}  // namespace
}  // namespace riptide
