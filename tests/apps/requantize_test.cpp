// --weights: what is quantised while a model is loaded is what the file of `riptide quantize` would hold.
#include "apps/convert/requantize.h"

#include <filesystem>

#include "apps/commands/commands.h"
#include "apps/convert/quantize_jobs.h"
#include "apps/flags/model_flags.h"
#include "apps/synth/random_checkpoint.h"
#include "engine/loop/resources.h"
#include "engine/prompt/loaded_text.h"
#include "io/gguf_writer.h"
#include "models/qwen3.h"
#include "quant/codec.h"
#include "tests/engine/engine_world.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

class Requantize : public ::testing::Test {
  protected:
    Requantize() {
        std::string name = ::testing::TempDir() + "/riptide-requantize-XXXXXX";
        folder = ::mkdtemp(name.data());
    }
    ~Requantize() override { fs::remove_all(folder); }

    static void call(std::vector<std::string> words) {
        std::vector<const char*> arguments = {"riptide"};
        for (const std::string& word : words) arguments.push_back(word.c_str());
        ASSERT_EQ(apps::riptide_main(static_cast<int>(arguments.size()), arguments.data()), 0);
    }
    /// The file that quantize writes.
    std::string quantized(const std::string& in, const std::string& mix) const {
        const std::string out = folder + "/" + fs::path(in).filename().string() + "-" + mix;
        call({"quantize", in, out, "--type", mix});
        return out;
    }
    /// A seeded GGUF of laguna-tiny.
    std::string synth(const std::string& type) const {
        const std::string out = folder + "/tiny-" + type + ".gguf";
        call({"synth", out, "--shape", "laguna-tiny", "--type", type, "--seed", "5"});
        return out;
    }
    std::unique_ptr<Checkpoint> loaded(const std::string& in, const std::string& mix, bool values = true) {
        return apps::requantize(open_checkpoint(in), {.mix = mix, .threads = 3, .values = values}, report);
    }
    /// A copy of a fixture that a test changes.
    std::string copied(const std::string& fixture) const {
        const std::string out = folder + "/" + fixture;
        fs::copy(fixture_path(fixture), out, fs::copy_options::recursive);
        return out;
    }
    /// Merges `fields` into a JSON file of objects.
    static void change(const std::string& file, const json::object& fields) {
        json::object whole = parse_json(read_file(file, 1 << 20), file).as_object();
        for (const auto& [key, value] : fields) whole[key] = value;
        write_file_atomic(file, json::serialize(whole));
    }
    static std::string refusal(const std::function<void()>& work) {
        try {
            work();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
    static uint64_t logits(std::unique_ptr<Checkpoint> checkpoint) {
        SessionOptions o;
        o.threads = 2;
        o.context = 64;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        Session session(std::move(checkpoint), o);
        const std::vector<int32_t> prompt = {3, 17, 21, 8, 40, 33, 5};
        return draw_greedily(session, prompt, 6).logits_hash;
    }

    std::string folder;
    apps::RequantizeReport report;
};

void expect_same_tensors(const Checkpoint& a, const Checkpoint& b) {
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (size_t i = 0; i < a.tensors().size(); ++i) {
        const TensorInfo &x = a.tensors()[i], &y = b.tensors()[i];
        ASSERT_EQ(x.name, y.name);
        EXPECT_EQ(x.dtype, y.dtype) << x.name;
        EXPECT_EQ(x.shape, y.shape) << x.name;
        EXPECT_TRUE(std::ranges::equal(x.bytes, y.bytes)) << x.name;
        EXPECT_EQ(a.find(x.name), &x);
    }
}

TEST_F(Requantize, gives_keys_tensors_and_logits_of_the_file_that_quantize_writes) {
    const std::string fp8 = fixture_path("laguna_fp8");
    const std::vector<std::pair<std::string, std::string>> cases = {
        {fp8, "q4_k_m"},
        {fixture_path("laguna_xs2"), "q4_k_m"},
        {fixture_path("laguna_xs2"), "f16"},
        {fixture_path("laguna_odd"), "q6_k"},
        {fixture_path("qwen3_tied"), "q8_0"},
        {fixture_path("qwen35_odd"), "q4_0"},
        {fixture_path("qwen35_moe"), "q5_k_s"},
        {quantized(fp8, "f16"), "q5_k_m"},
        {quantized(fp8, "q8_0"), "q4_k_s"},
        {quantized(fp8, "bf16"), "q6_k"},
        {synth("f16"), "q4_k_m"},
        {synth("f16"), "iq2_xxs"},
    };
    for (const auto& [in, mix] : cases) {
        SCOPED_TRACE(in + " " + mix);
        const auto file = open_checkpoint(quantized(in, mix));
        auto made = loaded(in, mix);
        ASSERT_EQ(report.kept_whole, "");
        json::object keys = made->metadata();
        for (const char* own : {"tokenizer", "tokenizer_config", "chat_template", "generation_config"}) keys.erase(own);
        EXPECT_EQ(keys, file->metadata());
        expect_same_tensors(*made, *file);
        EXPECT_EQ(report.tensors, std::ssize(file->tensors()));
        EXPECT_EQ(report.stayed, 0);
        EXPECT_EQ(logits(std::move(made)), logits(open_checkpoint(file->path())));
    }
}

TEST_F(Requantize, a_folder_keeps_its_rope) {
    const std::string in = copied("qwen3_tied");
    change(in + "/config.json", {{"rope_parameters",
                                  {{"rope_theta", 5e5},
                                   {"rope_type", "yarn"},
                                   {"factor", 4.0},
                                   {"original_max_position_embeddings", 1024},
                                   {"beta_fast", 24.0},
                                   {"attention_factor", 1.25},
                                   {"partial_rotary_factor", 0.5}}}});
    const auto rope_of = [](const Checkpoint& checkpoint) {
        return dynamic_cast<const Qwen3&>(*load_model(checkpoint)).config().rope;
    };
    const RopeConfig own = rope_of(*open_checkpoint(in));
    ASSERT_EQ(own.factor, 4);
    for (const auto& made : {loaded(in, "q8_0"), open_checkpoint(quantized(in, "q8_0"))}) {
        const RopeConfig rope = rope_of(*made);
        EXPECT_EQ(rope.theta, own.theta);
        EXPECT_EQ(rope.rotary_dim, 12);
        EXPECT_EQ(rope.factor, own.factor);
        EXPECT_EQ(rope.original_context, own.original_context);
        EXPECT_EQ(rope.beta_fast, own.beta_fast);
        EXPECT_EQ(rope.beta_slow, own.beta_slow);
        EXPECT_NEAR(rope.magnitude, own.magnitude, 1e-6);
    }
    const std::string window = copied("laguna_xs2");
    json::object parameters = fixture_config("laguna_xs2").at("rope_parameters").as_object();
    parameters["sliding_attention"] = parameters.at("full_attention");
    ASSERT_EQ(parameters.at("full_attention").at("rope_type").as_string(), "yarn");
    change(window + "/config.json", {{"rope_parameters", parameters}});
    EXPECT_NE(refusal([&] { loaded(window, "q4_0"); }).find("sliding layers with YaRN"), std::string::npos);
}

TEST_F(Requantize, a_folder_keeps_its_tokenizer_and_what_its_makers_say) {
    const std::string in = copied("qwen35_moe");
    change(in + "/tokenizer.json", {{"normalizer", {{"type", "NFC"}}}});
    change(in + "/generation_config.json",
           {{"eos_token_id", {0, 1, 5}}, {"default_chat_template_kwargs", {{"enable_thinking", false}}}});
    const auto own = open_checkpoint(in), made = loaded(in, "q4_0");
    ASSERT_EQ(made->format(), Checkpoint::Format::gguf);
    const GenerationDefaults a = generation_defaults(*own), b = generation_defaults(*made);
    EXPECT_EQ(b.source, a.source);
    EXPECT_EQ(b.template_kwargs, a.template_kwargs);
    EXPECT_EQ(b.sampling.temperature, a.sampling.temperature);
    EXPECT_EQ(b.template_kwargs.size(), 1u);
    const Tokenizer x = load_tokenizer(*own), y = load_tokenizer(*made);
    EXPECT_EQ(stop_ids(*made, y), (std::vector<int32_t>{0, 1, 5}));
    EXPECT_EQ(y.fingerprint(), x.fingerprint());
    EXPECT_EQ(chat_template_source(*made), chat_template_source(*own));
}

TEST_F(Requantize, an_embedding_folder_stays_as_it_is) {
    const std::string in = fixture_path("qwen3_embed"), plain = copied("qwen3_embed");
    fs::remove(plain + "/modules.json");  // then only the names without "model." say it
    for (const std::string& path : {in, plain}) {
        const auto made = loaded(path, "q8_0");
        EXPECT_EQ(made->format(), Checkpoint::Format::safetensors);
        EXPECT_NE(apps::describe(report).find("embedding"), std::string::npos) << apps::describe(report);
        EXPECT_NE(refusal([&] { apps::quantize_jobs(*made, "q8_0"); }).find("embedding"), std::string::npos);
    }
}

TEST_F(Requantize, a_head_in_the_folder_counts_whatever_the_config_ties) {
    const std::string in = copied("qwen3_untied");
    const uint64_t own = logits(loaded(in, "q8_0"));
    change(in + "/config.json", {{"tie_word_embeddings", true}});
    EXPECT_EQ(logits(loaded(in, "q8_0")), own);
}

TEST_F(Requantize, nvfp4_with_a_factor_of_the_product_stays) {
    const std::string in = folder + "/scaled.gguf", name = "blk.1.attn_q.weight";
    {
        const auto file = GgufFile::open(synth("bf16"));
        GgufWriter writer(in);
        writer.copy_metadata(*file);
        writer.set_string("quantize.imatrix.file", "mine.gguf");
        for (const TensorInfo& t : file->tensors())
            writer.add_tensor(t.name, t.name == name ? DType::nvfp4 : t.dtype, t.shape);
        const auto zeros =
            static_cast<size_t>(file->find(name)->shape[0] * row_bytes(DType::nvfp4, file->find(name)->shape[1]));
        writer.add_tensor("blk.1.attn_q.scale", DType::f32, std::vector<int64_t>{1});
        const std::vector<std::byte> packed(zeros);
        for (const TensorInfo& t : file->tensors())
            writer.write_tensor(t.name, t.name == name ? std::span<const std::byte>(packed) : t.bytes);
        const float factor = 0.5f;
        writer.write_tensor("blk.1.attn_q.scale", std::as_bytes(std::span(&factor, 1)));
        writer.finish();
    }
    call({"quantize", in, folder + "/ruled.gguf", "--type", "q8_0", "--tensor", "attn_q=q4_0"});
    for (const auto& made : {loaded(in, "q8_0"), open_checkpoint(quantized(in, "q2_k")), loaded(in, "q2_k"),
                             open_checkpoint(folder + "/ruled.gguf")}) {
        EXPECT_EQ(made->find("blk.1.attn_q.weight")->dtype, DType::nvfp4);
        EXPECT_FALSE(made->metadata().contains("quantize.imatrix.file"));
        EXPECT_NO_THROW(load_model(*made));
    }
}

TEST_F(Requantize, sizes_without_values_are_the_sizes) {
    const std::string in = fixture_path("laguna_fp8");
    const auto made = loaded(in, "q4_k_m"), sizes = loaded(in, "q4_k_m", false);
    ASSERT_EQ(made->tensors().size(), sizes->tensors().size());
    for (size_t i = 0; i < made->tensors().size(); ++i) {
        EXPECT_EQ(made->tensors()[i].dtype, sizes->tensors()[i].dtype);
        EXPECT_EQ(made->tensors()[i].bytes.size(), sizes->tensors()[i].bytes.size());
    }
    EXPECT_LT(sizes->tensor_bytes(), open_checkpoint(in)->tensor_bytes());
}

TEST_F(Requantize, a_tensor_that_is_no_larger_stays_as_it_is) {
    const std::string in = synth("q4_k_m");
    const auto before = open_checkpoint(in), made = loaded(in, "q4_0");  // as many bits as q4_k, fewer than q6_k
    ASSERT_EQ(made->made(), "weights q4_0");
    int64_t stayed = 0, changed = 0;
    for (const TensorInfo& tensor : before->tensors()) {
        const TensorInfo& now = *made->find(tensor.name);
        EXPECT_LE(now.bytes.size(), tensor.bytes.size()) << tensor.name;
        if (tensor.dtype == DType::q4_k) {
            ++stayed;
            EXPECT_EQ(now.dtype, DType::q4_k);
            EXPECT_TRUE(std::ranges::equal(now.bytes, tensor.bytes)) << tensor.name;
        }
        changed += now.dtype != tensor.dtype ? 1 : 0;
    }
    EXPECT_GT(changed, 0);
    EXPECT_EQ(report.stayed, stayed);
    EXPECT_NE(apps::describe(report).find(fmt::format("{} of {} tensors are no larger", stayed, report.tensors)),
              std::string::npos)
        << apps::describe(report);
}

TEST_F(Requantize, a_model_that_would_not_become_smaller_is_left_as_it_is) {
    for (const auto& [in, mix] : {std::pair(synth("q4_0"), "q8_0"),
                                  {synth("bf16"), "f32"},
                                  {synth("q8_0"), "bf16"},
                                  {fixture_path("laguna_fp8"), "q8_0"},
                                  {fixture_path("laguna_nvfp4"), "q4_k_m"},
                                  {fixture_path("laguna_int4"), "q4_k_m"}}) {
        SCOPED_TRACE(in + " " + mix);
        const auto before = open_checkpoint(in), made = loaded(in, mix);
        EXPECT_EQ(made->made(), "");
        EXPECT_EQ(made->format(), before->format());
        expect_same_tensors(*made, *before);
        EXPECT_GT(report.stayed, 0);
        EXPECT_NE(apps::describe(report).find("the model stays as it is"), std::string::npos);
    }
}

TEST_F(Requantize, the_relative_error_is_that_of_the_weights) {
    const std::string in = quantized(fixture_path("laguna_fp8"), "f16");
    const auto before = open_checkpoint(in), made = loaded(in, "q4_k_m");
    std::map<DType, double> weighted, values;
    for (const TensorInfo& tensor : made->tensors()) {
        const TensorInfo& old = *before->find(tensor.name);
        if (tensor.dtype == DType::f32) continue;
        int64_t n = 1;
        for (const int64_t extent : tensor.shape) n *= extent;
        std::vector<float> x(static_cast<size_t>(n)), y(x);
        dequantize(old.dtype, old.bytes.data(), x.data(), n);
        dequantize(tensor.dtype, tensor.bytes.data(), y.data(), n);
        double lost = 0, all = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            lost += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
            all += double{x[i]} * x[i];
        }
        weighted[tensor.dtype] += static_cast<double>(n) * std::sqrt(lost / all);
        values[tensor.dtype] += static_cast<double>(n);
    }
    ASSERT_EQ(report.loss.size(), 3u);  // q5_0, q6_k, q8_0: rows of 128
    for (const auto& [type, loss] : report.loss)
        EXPECT_NEAR(loss.relative(), weighted[type] / values[type], 1e-9) << dtype_name(type);
    EXPECT_GT(report.loss[DType::q5_0].relative(), 4 * report.loss[DType::q8_0].relative());
}

TEST_F(Requantize, what_cannot_run_is_refused_before_the_work) {
    const auto refused = [&](std::unique_ptr<Checkpoint> checkpoint, const std::string& mix) -> std::string {
        int64_t work = 0;
        try {
            apps::requantize(std::move(checkpoint),
                             {.mix = mix, .on_progress = [&](int64_t done, int64_t) { work = done; }}, report);
        } catch (const Error& error) {
            EXPECT_EQ(work, 0);
            return error.what();
        }
        return "";
    };
    EXPECT_NE(refused(open_checkpoint(demo_path()), "q9").find("q4_k_m"), std::string::npos);
    EXPECT_NE(refused(open_checkpoint(demo_path()), "mixed").find("random weights"), std::string::npos);
    EXPECT_NE(refused(open_checkpoint(fixture_path("dflash_zlab")), "q8_0"), "");
    std::string bytes = read_file(synth("bf16"), int64_t{64} << 20);
    const std::string name = "blk.2.attn_q.weight";
    bytes.replace(bytes.find(name), name.size(), "blk.2.attn_Q.weight");
    write_file_atomic(folder + "/renamed.gguf", bytes);
    EXPECT_NE(refused(open_checkpoint(folder + "/renamed.gguf"), "q8_0").find("missing tensor blk.2.attn_q"),
              std::string::npos);
}

/// Engines with a disk tier.
EngineOptions with_tier(const std::string& folder) {
    EngineOptions o = demo_options();
    o.host_cache_bytes = 0;
    o.disk_cache = folder + "/tier";
    return o;
}

TEST_F(Requantize, the_cache_has_another_name_for_the_weights) {
    std::set<std::string> names;
    const std::string in = quantized(fixture_path("laguna_fp8"), "bf16");
    for (const char* mix : {"", "q8_0", "q4_k_m", "Q4_K"}) {
        auto checkpoint = *mix == '\0' ? open_checkpoint(in) : loaded(in, mix);
        EXPECT_EQ(report.kept_whole, "");
        Machine machine(std::move(checkpoint), with_tier(folder));
        names.insert(machine.weights_name());
    }
    EXPECT_EQ(names.size(), 3u) << "q4_k is q4_k_m, all others differ";
}

TEST_F(Requantize, nothing_is_found_that_other_weights_left_on_disk) {
    Request request = continuation(std::vector<int32_t>(300, 21), 8);
    request.deterministic = true;
    const auto cached = [&](std::unique_ptr<Checkpoint> checkpoint) {
        Engine engine(std::move(checkpoint), with_tier(folder));
        return ask(engine, request).done->usage.cached;
    };
    const std::string in = quantized(fixture_path("laguna_fp8"), "bf16");
    EXPECT_EQ(cached(open_checkpoint(in)), 0);
    EXPECT_GT(cached(open_checkpoint(in)), 200);
    EXPECT_EQ(cached(loaded(in, "q8_0")), 0);
    EXPECT_GT(cached(loaded(in, "q8_0")), 200);
    EXPECT_EQ(cached(loaded(in, "q4_0")), 0);
}

TEST_F(Requantize, weights_that_are_loaded_later_are_requantised_too) {
    apps::ModelFlags flags;
    flags.model = quantized(fixture_path("laguna_fp8"), "bf16");
    flags.device = "cpu";
    flags.threads = 2;
    flags.context = 128;
    const auto answer = [&](const std::string& weights, bool reload) {
        flags.weights = weights;
        const auto engine = apps::open_lone_engine(flags, {});
        if (reload) engine->reload(flags.model);
        Request request = continuation({3, 17, 21, 8}, 4);
        request.hash_logits = true;
        const Heard heard = ask(*engine, request);
        return heard.done->logits_hash;
    };
    EXPECT_EQ(answer("q4_0", true), answer("q4_0", false));
    EXPECT_NE(answer("", false), answer("q4_0", false));
}

}  // namespace
}  // namespace riptide::testing
