// What a model's makers publish: both formats, every key, and what comes before it.
#include "engine/prompt/generation_defaults.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/json.h"
#include "io/gguf_writer.h"
#include "io/safetensors_writer.h"
#include "tests/io/test_files.h"

namespace riptide {
namespace {

/// A folder with one tensor and this generation_config.json; "": without the file.
class Folder {
  public:
    explicit Folder(const std::string& generation_config) {
        const std::vector<float> values = {1, 2};
        const NamedTensor tensor = {"a", DType::f32, {2}, std::as_bytes(std::span(values))};
        write_safetensors(files_.file("model.safetensors"), {&tensor, 1});
        files_.put("config.json", std::string_view("{}"));
        if (!generation_config.empty()) files_.put("generation_config.json", std::string_view(generation_config));
    }
    GenerationDefaults read() const { return generation_defaults(*open_checkpoint(files_.path())); }

  private:
    test::TempFolder files_;
};

GenerationDefaults of_folder(const std::string& generation_config) { return Folder(generation_config).read(); }

GenerationDefaults of_gguf(const std::function<void(GgufWriter&)>& fill) {
    std::vector<std::byte> image;
    GgufWriter writer(image);
    writer.set_string("general.architecture", "laguna");
    fill(writer);
    const int64_t shape = 2;
    writer.add_tensor("a", DType::f32, {&shape, 1});
    writer.write(std::vector<std::byte>(8));
    writer.finish();
    return generation_defaults(*open_gguf_memory(image, "m.gguf"));
}

TEST(GenerationDefaults, a_folder_says_every_value_and_what_is_missing_or_null_is_absent) {
    const GenerationDefaults all = of_folder(
        R"({"temperature": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "do_sample": true,
            "max_new_tokens": 2048, "eos_token_id": [2, 24],
            "default_chat_template_kwargs": {"enable_thinking": true, "effort": "high", "turns": 3,
                                             "list": [1], "nothing": null, "object": {"a": 1}}})");
    EXPECT_EQ(all.source, "generation_config.json");
    EXPECT_EQ(all.sampling.temperature, 1.0);
    EXPECT_EQ(all.sampling.top_p, 0.9);
    EXPECT_EQ(all.sampling.top_k, 20);
    EXPECT_EQ(all.sampling.min_p, 0.05);
    EXPECT_EQ(all.sampling.repetition_penalty, 1.1);
    EXPECT_EQ(all.eos_ids, (std::vector<int32_t>{2, 24}));
    EXPECT_EQ(all.template_kwargs, (json::object{{"enable_thinking", true}, {"effort", "high"}, {"turns", 3}}))
        << "scalars only";
    for (const char* config : {"", "{}",
                               R"({"temperature": null, "top_p": null, "top_k": null, "min_p": null, "do_sample": null,
                                   "repetition_penalty": null, "eos_token_id": null,
                                   "default_chat_template_kwargs": null})"}) {
        const GenerationDefaults none = of_folder(config);
        EXPECT_FALSE(none.sampling.temperature || none.sampling.top_p || none.sampling.top_k || none.sampling.min_p ||
                     none.sampling.repetition_penalty);
        EXPECT_TRUE(none.template_kwargs.empty() && none.eos_ids.empty());
    }
    EXPECT_EQ(of_folder(R"({"eos_token_id": 7})").eos_ids, std::vector<int32_t>{7});
    EXPECT_EQ(of_folder(R"({"top_k": 20.0})").sampling.top_k, 20);
    EXPECT_EQ(of_folder(R"({"top_k": -1})").sampling.top_k, 0) << "all";
}

TEST(GenerationDefaults, a_folder_that_does_not_sample_is_greedy_as_transformers_is) {
    EXPECT_EQ(of_folder(R"({"do_sample": false})").sampling.temperature, 0.0);
    EXPECT_EQ(of_folder(R"({"do_sample": false, "temperature": 0.8, "top_k": 9})").sampling.temperature, 0.0);
    EXPECT_EQ(of_folder(R"({"do_sample": false, "top_k": 9})").sampling.top_k, 9) << "for who gives a temperature";
    EXPECT_EQ(of_folder(R"({"do_sample": true, "temperature": 0.8})").sampling.temperature, 0.8);
    EXPECT_EQ(of_folder(R"({"temperature": 0.8})").sampling.temperature, 0.8);
    EXPECT_FALSE(of_folder(R"({"do_sample": true})").sampling.temperature);
}

TEST(GenerationDefaults, a_gguf_says_the_decimals_that_its_floats_were_written_from) {
    const GenerationDefaults all = of_gguf([](GgufWriter& w) {
        w.set_f32("general.sampling.temp", 0.7F);
        w.set("general.sampling.top_p", {GgufType::f64}, 0.95);
        w.set_i32("general.sampling.top_k", 64);
        w.set_f32("general.sampling.min_p", 0.01F);
        w.set_f32("general.sampling.penalty_repeat", 1.05F);
        w.set_i32("general.sampling.mirostat", 2);
    });
    EXPECT_EQ(all.source, "general.sampling");
    EXPECT_EQ(all.sampling.temperature, 0.7) << "not 0.699999988";
    EXPECT_EQ(all.sampling.top_p, 0.95);
    EXPECT_EQ(all.sampling.top_k, 64);
    EXPECT_EQ(all.sampling.min_p, 0.01);
    EXPECT_EQ(all.sampling.repetition_penalty, 1.05);
    EXPECT_TRUE(all.template_kwargs.empty() && all.eos_ids.empty());
    const GenerationDefaults some = of_gguf([](GgufWriter& w) { w.set_u32("general.sampling.temp", 1); });
    EXPECT_EQ(some.sampling.temperature, 1.0);
    EXPECT_FALSE(some.sampling.top_p || some.sampling.top_k || some.sampling.min_p || some.sampling.repetition_penalty);
}

TEST(GenerationDefaults, a_value_of_another_type_or_out_of_range_is_an_error_that_names_it) {
    const struct {
        const char *config, *found;
    } wrong[] = {
        {R"({"temperature": "hot"})", "temperature is \"hot\", expected a number"},
        {R"({"temperature": -0.5})", "temperature is -0.5, expected 0 to 100"},
        {R"({"top_p": 0})", "top_p is 0, expected more than 0 and at most 1"},
        {R"({"top_p": true})", "top_p is true, expected a number"},
        {R"({"top_k": 1.5})", "top_k is 1.5"},
        {R"({"top_k": [20]})", "top_k is [20], expected a whole number"},
        {R"({"top_k": -2})", "top_k is -2, expected 0 to"},
        {R"({"top_k": 1e300})", "expected a whole number"},
        {R"({"min_p": 2})", "min_p is 2, expected 0 to 1"},
        {R"({"repetition_penalty": 0})", "repetition_penalty is 0, expected more than 0"},
        {R"({"do_sample": 1})", "do_sample is 1, expected true or false"},
        {R"({"eos_token_id": "</s>"})", "eos_token_id is \"</s>\", expected an integer"},
        {R"({"eos_token_id": [1, null]})", "eos_token_id is null, expected an integer"},
        {R"({"default_chat_template_kwargs": [1]})", "default_chat_template_kwargs is [1], expected an object"},
        {R"({"default_chat_template_kwargs": {"enable_thinking": "yes"}})",
         "default_chat_template_kwargs.enable_thinking: expected true or false, found a string"},
        {R"({"default_chat_template_kwargs": {"bos_token": "x"}})", "default_chat_template_kwargs.bos_token"},
    };
    for (const auto& [config, found] : wrong) {
        const Folder folder(config);
        EXPECT_EQ(test::expect_error([&] { folder.read(); }, {"generation_config.json: ", found}), ErrorKind::data);
    }
    const auto gguf_error = [](const std::function<void(GgufWriter&)>& fill, std::string_view found) {
        EXPECT_EQ(test::expect_error([&] { of_gguf(fill); }, {"m.gguf: general.sampling.", found}), ErrorKind::data);
    };
    gguf_error([](GgufWriter& w) { w.set_string("general.sampling.temp", "1.0"); },
               "temp is \"1.0\", expected a number");
    gguf_error([](GgufWriter& w) { w.set_f32("general.sampling.temp", NAN); }, "temp is ");
    gguf_error([](GgufWriter& w) { w.set_f32("general.sampling.top_p", 1.5F); }, "top_p is 1.5, expected more than 0");
    gguf_error([](GgufWriter& w) { w.set_bool("general.sampling.top_k", true); }, "top_k is true, expected a whole");
}

TEST(GenerationDefaults, the_command_line_comes_before_the_file_and_the_file_before_what_is_built_in_for_each_value) {
    SamplingParams otherwise;
    otherwise.temperature = 0.7;
    otherwise.top_k = 20;
    otherwise.max_tokens = 5;
    const auto values = [&](const SamplingChoice& command_line, const SamplingChoice& file) {
        const SettledSampling out = settle_sampling(otherwise, command_line, {"the file", file, {}, {}});
        EXPECT_EQ(out.params.max_tokens, 5) << "the rest stays";
        EXPECT_EQ(out.values.at(0).value, out.params.temperature);
        EXPECT_EQ(out.values.at(1).value, static_cast<double>(out.params.top_k));
        return describe(out);
    };
    EXPECT_EQ(values({}, {}), "temperature 0.7, top_k 20, top_p 1, min_p 0 (built in)");
    SamplingChoice file;
    file.temperature = 1.0;
    file.top_p = 0.9;
    EXPECT_EQ(values({}, file),
              "temperature 1 (the file), top_k 20 (built in), top_p 0.9 (the file), min_p 0 (built in)");
    SamplingChoice flags;
    flags.temperature = 0;
    flags.repetition_penalty = 1.2;
    EXPECT_EQ(values(flags, file),
              "temperature 0 (command line), top_k 20 (built in), top_p 0.9 (the file), min_p 0 "
              "(built in), repetition_penalty 1.2 (command line)");
    flags = {.temperature = 0.1, .top_p = 0.2, .min_p = 0.3, .repetition_penalty = 1, .top_k = 4};
    file = {.temperature = 0.5, .top_p = 0.6, .min_p = 0.7, .repetition_penalty = 1.5, .top_k = 8};
    EXPECT_EQ(values(flags, file), "temperature 0.1, top_k 4, top_p 0.2, min_p 0.3 (command line)");
    EXPECT_EQ(values({}, file), "temperature 0.5, top_k 8, top_p 0.6, min_p 0.7, repetition_penalty 1.5 (the file)");
}

}  // namespace
}  // namespace riptide
