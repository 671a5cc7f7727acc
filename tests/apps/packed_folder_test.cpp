// riptide quantize --type fp8 and nvfp4: the published layout, the nearest values, and nothing left of what fails.
#include "apps/convert/packed_folder.h"

#include <cmath>
#include <filesystem>

#include "apps/commands/commands.h"
#include "apps/convert/packed_plan.h"
#include "apps/support/terminal.h"
#include "io/safetensors_writer.h"
#include "models/binder.h"
#include "quant/codec.h"
#include "tests/models/expect_says.h"
#include "tests/models/fake_checkpoint.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;
using apps::PackedType;

class PackedFolder : public ::testing::Test {
  protected:
    PackedFolder() {
        std::string name = ::testing::TempDir() + "/riptide-packed-XXXXXX";
        folder = ::mkdtemp(name.data());
    }
    ~PackedFolder() override { fs::remove_all(folder); }

    /// A quantised fixture as the folder in bf16 that it could have been made of. `last`: of its last matrix.
    std::string plain(const std::string& fixture, float last = 0) {
        const std::string out = folder + "/" + fixture;
        fs::create_directory(out);
        json::object config = fixture_config(fixture);
        if (fixture == "laguna_fp8") config["quantization_config"] = nullptr;
        else config.erase("quantization_config");
        write_file_atomic(out + "/config.json", json::serialize(config));
        write_file_atomic(out + "/tokenizer_config.json", std::string_view("{\"a\":  1}"));
        const auto file = open_checkpoint(fixture_path(fixture) + "/model.safetensors");
        Binder bind(*file);
        SafetensorsWriter writer(out + "/model.safetensors");
        std::vector<std::vector<std::byte>> data;
        for (const TensorInfo& t : file->tensors()) {
            std::string name = t.name;
            if (name.find("_scale") != std::string::npos) continue;
            if (name.ends_with("_packed")) name.resize(name.size() - 7);
            data.emplace_back(t.bytes.begin(), t.bytes.end());
            std::vector<int64_t> shape = t.shape;
            if (name != t.name || t.dtype == DType::f8_e4m3) {
                const Weight w = bind.matrix({{}, {name}}, shape[0], shape[1] * (name != t.name ? 2 : 1));
                shape[1] = w.cols;
                data.back().resize(static_cast<size_t>(2 * w.rows * w.cols));
                std::vector<float> row(static_cast<size_t>(w.cols));
                for (int64_t r = 0; r < w.rows; ++r) {
                    dequantize_row(w, r, row.data());
                    if (last != 0) row.back() = last;
                    quantize(DType::bf16, row.data(), data.back().data() + 2 * r * w.cols, w.cols);
                }
                writer.add_tensor(name, DType::bf16, shape);
            } else {
                writer.add_tensor(name, t.dtype, shape);
            }
        }
        for (const auto& bytes : data) writer.write(bytes);
        writer.finish();
        return out;
    }
    apps::PackedReport write(const std::string& in, PackedType type, int64_t shard_bytes = 1 << 30) {
        ThreadPool threads(3);
        return apps::write_packed_folder(*open_checkpoint(in), type, folder + "/out", threads, {}, shard_bytes);
    }
    std::vector<std::string> files(const std::string& in) const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(in)) names.push_back(entry.path().filename().string());
        std::ranges::sort(names);
        return names;
    }
    std::string folder;
};

std::string fixture_of(PackedType type) { return type == PackedType::fp8 ? "laguna_fp8" : "laguna_nvfp4"; }
constexpr PackedType kBoth[] = {PackedType::fp8, PackedType::nvfp4};

// But for what needs a calibration: scales of activations and of K and V. (The fixture's shared expert has f32 scales.)
TEST_F(PackedFolder, has_the_published_layout) {
    for (const PackedType type : kBoth) {
        const std::string in = plain(fixture_of(type));
        EXPECT_EQ(write(in, type).shards, 1);
        EXPECT_EQ(files(folder + "/out"),
                  (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer_config.json"}));
        EXPECT_EQ(read_file(folder + "/out/tokenizer_config.json", 100), "{\"a\":  1}");
        const std::string text = read_file(folder + "/out/config.json", 1 << 20), key = "\"quantization_config\"";
        EXPECT_EQ(text.find(key), text.rfind(key));
        const auto made = open_checkpoint(folder + "/out"), published = open_checkpoint(fixture_path(fixture_of(type)));
        size_t count = 0;
        for (const TensorInfo& t : published->tensors()) {
            if (t.name.ends_with("input_global_scale") || t.name.ends_with("k_scale") || t.name.ends_with("v_scale"))
                continue;
            const TensorInfo* mine = made->find(t.name);
            ASSERT_NE(mine, nullptr) << t.name;
            EXPECT_EQ(mine->shape, t.shape) << t.name;
            EXPECT_TRUE(mine->dtype == t.dtype || t.name.find("shared_expert") != std::string::npos) << t.name;
            ++count;
        }
        EXPECT_EQ(made->tensors().size(), count);
        json::object mine = made->metadata().at("config").as_object(), theirs = fixture_config(fixture_of(type));
        for (json::object* config : {&mine, &theirs}) {
            json::object& q = config->at("quantization_config").as_object();
            q["kv_cache_scheme"] = q["version"] = nullptr;
            std::ranges::sort(q["ignore"].as_array(), {}, [](const json::value& v) { return v.as_string(); });
            if (type == PackedType::nvfp4) q["config_groups"].at("group_0").as_object()["input_activations"] = nullptr;
        }
        EXPECT_EQ(mine, theirs);
        fs::remove_all(folder + "/out");
    }
}

/// The value of `all` nearest to x; of two, the one at an even place.
float nearest(const std::vector<float>& all, double x) {
    size_t best = 0;
    for (size_t i = 1; i < all.size(); ++i) {
        const double now = std::fabs(x - double{all[i]}), before = std::fabs(x - double{all[best]});
        if (now < before || (now == before && i % 2 == 0)) best = i;
    }
    return all[best];
}

std::vector<float> decoded_values(Binder& bind, const TensorInfo& t) {
    const Weight w = bind.matrix({{}, {t.name}}, t.shape[0], t.shape[1]);
    std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
    for (int64_t r = 0; r < w.rows; ++r) dequantize_row(w, r, values.data() + r * w.cols);
    return values;
}

/// What `values` [rows, cols] should become, block by block. `global`: NVFP4's divisor; 0: FP8.
std::vector<float> rounded(const std::vector<float>& values, int64_t rows, int64_t cols, float global) {
    static const std::vector<float> e2m1 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6}, e4m3 = [] {
        std::vector<float> magnitudes;
        for (uint8_t code = 0; code < 127; ++code) magnitudes.push_back(f8_e4m3_to_f32(code));
        return magnitudes;
    }();
    const bool fp8 = global == 0;
    const int64_t high = fp8 ? 128 : 1, wide = fp8 ? 128 : 16;
    std::vector<float> out(values.size());
    for (int64_t b = 0; b < rows / high * (cols / wide); ++b) {
        const int64_t r0 = b / (cols / wide) * high, c0 = b % (cols / wide) * wide;
        const auto each = [&](const auto& take) {
            for (int64_t i = 0; i < high * wide; ++i) take(static_cast<size_t>((r0 + i / wide) * cols + c0 + i % wide));
        };
        float most = 0;
        each([&](size_t i) { most = std::max(most, std::fabs(values[i])); });
        const float scale = fp8 ? bf16_to_f32(f32_to_bf16(most / 448)) : nearest(e4m3, most * global / 6);
        const float step = fp8 ? scale : scale / global;
        each([&](size_t i) {
            const float code = nearest(fp8 ? e4m3 : e2m1, std::fabs(values[i]) / step);
            const float magnitude = code * scale * (fp8 ? 1 : 1 / global);
            out[i] = fp8 || code > 0 ? std::copysign(magnitude, values[i]) : 0;
        });
    }
    return out;
}

TEST_F(PackedFolder, holds_the_nearest_values_and_says_what_they_say) {
    for (const PackedType type : kBoth) {
        const std::string in = plain(fixture_of(type));
        const apps::PackedReport report = write(in, type);
        const auto from = open_checkpoint(in), made = open_checkpoint(folder + "/out");
        EXPECT_EQ(made->tensor_bytes(), report.bytes);
        Binder bind(*made), old(*from);
        FakeCheckpoint decoded;  // what was made, in f32
        decoded.metadata()["config"] = from->metadata().at("config");
        int64_t matrices = 0;
        for (const TensorInfo& t : from->tensors()) {
            if (!t.name.ends_with("_proj.weight") || t.name.find(".mlp.") == std::string::npos) {
                const TensorInfo* same = made->find(t.name);
                ASSERT_TRUE(same != nullptr && std::ranges::equal(same->bytes, t.bytes)) << t.name;
                decoded.add(t.name, t.dtype, t.shape, std::vector<std::byte>(t.bytes.begin(), t.bytes.end()));
                continue;
            }
            ++matrices;
            const std::vector<float> values = decoded_values(old, t), got = decoded_values(bind, t);
            float global = 0;
            if (type == PackedType::nvfp4) {
                const std::string stem = t.name.substr(0, t.name.size() - 6);
                std::memcpy(&global, made->find(stem + "weight_global_scale")->bytes.data(), 4);
                float most = 0;  // gate and up share it: kernels that multiply both at once have one
                for (const char* const part : {"gate", "up", "down"}) {
                    if ((part == std::string("down")) != (stem.ends_with("down_proj."))) continue;
                    const std::string name = stem.substr(0, stem.rfind('.', stem.size() - 2) + 1) + part;
                    for (const float x : decoded_values(old, *from->find(name + "_proj.weight")))
                        most = std::max(most, std::fabs(x));
                }
                ASSERT_EQ(global, 2688 / most) << t.name;
            }
            expect_bits(got, rounded(values, t.shape[0], t.shape[1], global), t.name);
            decoded.add(t.name, DType::f32, t.shape, got);
        }
        EXPECT_EQ(report.matrices, matrices);
        const std::vector<int32_t> tokens = Fixture(fixture_of(type)).prompts[0].tokens;
        expect_bits(forward_pass(*load_model(*made), nullptr, tokens, Family::decode).logits,
                    forward_pass(*load_model(decoded), nullptr, tokens, Family::decode).logits, "the same in f32");
        fs::remove_all(folder + "/out");
    }
}

TEST_F(PackedFolder, of_several_files_has_an_index) {
    const std::string in = plain("laguna_fp8");
    write(in, PackedType::fp8);
    fs::rename(folder + "/out", folder + "/whole");
    const apps::PackedReport report = write(in, PackedType::fp8, 100'000);
    EXPECT_GT(report.shards, 3);
    const auto whole = open_checkpoint(folder + "/whole"), parts = open_checkpoint(folder + "/out");
    EXPECT_EQ(parts->tensors().size(), whole->tensors().size());
    for (const TensorInfo& t : whole->tensors()) EXPECT_TRUE(std::ranges::equal(parts->find(t.name)->bytes, t.bytes));
    EXPECT_EQ(files(folder + "/out")[1], fmt::format("model-00001-of-{:05}.safetensors", report.shards));
}

TEST_F(PackedFolder, takes_along_what_lies_beside) {
    const std::string in = plain("laguna_fp8");
    fs::create_directory(in + "/1_Pooling");
    for (const char* name : {"LICENSE", "modeling_x.py", "modules.json", "rest.bin"})
        write_file_atomic(in + "/" + name, std::string_view("[]"));
    write_file_atomic(in + "/1_Pooling/config.json", std::string_view("{\"a\": 1}"));
    write(in, PackedType::fp8);
    EXPECT_EQ(files(folder + "/out"),
              (std::vector<std::string>{"1_Pooling", "LICENSE", "config.json", "model.safetensors", "modeling_x.py",
                                        "modules.json", "tokenizer_config.json"}));
    EXPECT_EQ(read_file(folder + "/out/1_Pooling/config.json", 100), "{\"a\": 1}");
}

TEST_F(PackedFolder, stacks_of_what_predicts_tokens_stay) {
    FakeCheckpoint file;
    for (const char* of : {"model", "mtp"}) {
        file.add_zeros(fmt::format("{}.layers.0.mlp.experts.gate_up_proj", of), DType::bf16, {2, 4, 16});
        file.add_zeros(fmt::format("{}.layers.0.mlp.experts.down_proj", of), DType::bf16, {2, 16, 16});
    }
    const apps::PackedPlan plan(file, PackedType::nvfp4);
    EXPECT_EQ(plan.report.matrices, 6);
    EXPECT_EQ(plan.report.copied, 2);
    const apps::PackedItem& last = plan.items.back();
    EXPECT_EQ(last.made[0].name, "mtp.layers.0.mlp.experts.down_proj");
    EXPECT_EQ(last.bytes(), static_cast<int64_t>(last.from->bytes.size()));
}

// qwen35_moe has stacks, and gates above ups.
TEST_F(PackedFolder, makes_matrices_of_stacks) {
    const std::string in = fixture_path("qwen35_moe");
    const auto from = open_checkpoint(in);
    const apps::PackedReport report = write(in, PackedType::nvfp4);
    const auto made = open_checkpoint(folder + "/out");
    Binder old(*from), bind(*made);
    const TensorInfo* stack = nullptr;
    for (const TensorInfo& t : from->tensors())
        if (t.name.ends_with("experts.gate_up_proj")) stack = &t;
    ASSERT_NE(stack, nullptr);
    const int64_t E = stack->shape[0], rows = stack->shape[1] / 2, cols = stack->shape[2];
    EXPECT_GE(report.matrices, 3 * E);
    const std::string experts = stack->name.substr(0, stack->name.size() - 12);
    for (int half = 0; half < 2; ++half) {
        const ExpertNames names{.hf_each = experts + "{}." + (half == 0 ? "gate" : "up") + "_proj.weight",
                                .hf_stack = stack->name,
                                .hf_half = half};
        const std::vector<Weight> a = old.experts(names, E, rows, cols), b = bind.experts(names, E, rows, cols);
        std::vector<float> x(static_cast<size_t>(cols)), y(x);
        double lost = 0, all = 0;
        for (size_t e = 0; e < a.size(); ++e)
            for (int64_t r = 0; r < rows; ++r) {
                dequantize_row(a[e], r, x.data());
                dequantize_row(b[e], r, y.data());
                for (size_t c = 0; c < x.size(); ++c) lost += std::pow(x[c] - y[c], 2), all += std::pow(x[c], 2);
            }
        EXPECT_LT(lost, all / 50);  // Gaussian values lose 0.9 % so
    }
}

TEST_F(PackedFolder, refuses_in_words_and_leaves_nothing) {
    const std::string in = plain("laguna_fp8"), out = folder + "/out";
    EXPECT_SAYS(write(fixture_path("laguna_fp8"), PackedType::fp8), "has a quantization_config", "quantised already");
    EXPECT_SAYS(write(source_dir() + "/models/demo/laguna-demo.gguf", PackedType::fp8), "is a GGUF file");
    apps::interrupted() = true;
    EXPECT_SAYS(write(in, PackedType::fp8), "interrupted at tensor ");
    apps::interrupted() = false;
    EXPECT_EQ(files(folder), std::vector<std::string>{"laguna_fp8"});
    fs::remove_all(in);
    EXPECT_SAYS(write(plain("laguna_fp8", NAN), PackedType::fp8), "holds nan in row 0");
    EXPECT_EQ(files(folder), std::vector<std::string>{"laguna_fp8"});
    fs::create_directory(out);
    EXPECT_SAYS(write(in, PackedType::fp8), out + ": is there already");
    const char* words[] = {"riptide", "quantize", in.c_str(), out.c_str(), "--type", "fp8", "--name", "x"};
    EXPECT_EQ(apps::riptide_main(8, words), 64);
}

}  // namespace
}  // namespace riptide::testing
