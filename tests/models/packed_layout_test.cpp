// One quantised model under every publisher's names gives the same logits, bit for bit.
#include <random>

#include "quant/blocks.h"
#include "quant/codec.h"
#include "tests/models/laguna_layouts.h"

namespace riptide::testing {
namespace {

bool ends(const std::string& name, std::string_view end) { return name.ends_with(end); }
void rename_end(Renamed& tensor, std::string_view end, std::string_view to) {
    if (ends(tensor.name, end)) tensor.name.replace(tensor.name.size() - end.size(), end.size(), to);
}
float f32_of(const Renamed& tensor) {
    float value;
    RT_CHECK(tensor.dtype == DType::f32 && tensor.bytes.size() == 4, "{} is not one f32", tensor.name);
    std::memcpy(&value, tensor.bytes.data(), 4);
    return value;
}
Renamed floats(const std::string& name, const std::vector<float>& values) {
    Renamed out{name, DType::f32, {std::ssize(values)}, std::vector<std::byte>(4 * values.size())};
    std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
    return out;
}

class Packed : public LayoutTest {
  protected:
    explicit Packed(const std::string& name) : LayoutTest(name) {}
    /// The fixture as a folder, each tensor as `change` leaves it.
    template <class Change>
    std::unique_ptr<Checkpoint> changed(const Change& change) const {
        std::vector<Renamed> tensors;
        for (const TensorInfo& tensor : source->tensors()) change(tensors.emplace_back(copy(tensor.name, tensor.name)));
        return open_folder(config, tensors);
    }
};

class PackedFp8 : public Packed {
  protected:
    PackedFp8() : Packed("laguna_fp8") {}
};

TEST_F(PackedFp8, scales_called_inverse_multiply_all_the_same) {
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    int renamed = 0;
    auto file = changed([&](Renamed& t) {
        renamed += ends(t.name, ".weight_scale");
        rename_end(t, ".weight_scale", ".weight_scale_inv");
    });
    EXPECT_GT(renamed, 10);
    expect_same_bits(logits(std::move(file)), expected());
}

class PackedNvfp4 : public Packed {
  protected:
    PackedNvfp4() : Packed("laguna_nvfp4") {}
};

TEST_F(PackedNvfp4, global_scales_may_have_no_dimension) {
    int changes = 0;
    expect_same_bits(logits(changed([&](Renamed& t) {
                         if (!ends(t.name, "_global_scale")) return;
                         t.shape.clear();
                         ++changes;
                     })),
                     expected());
    EXPECT_GT(changes, 10);
}

// ModelOpt stores the reciprocal of compressed-tensors' global scale, rounded as the loader rounds it.
TEST_F(PackedNvfp4, modelopt_multiplies_where_compressed_tensors_divides) {
    config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}};
    for (const bool dimension : {false, true}) {
        auto file = changed([&](Renamed& t) {
            if (ends(t.name, ".weight_global_scale")) t = floats(t.name, {1.0f / f32_of(t)});
            if (ends(t.name, "_global_scale") && !dimension) t.shape.clear();
            rename_end(t, ".weight_global_scale", ".weight_scale_2");
            rename_end(t, ".input_global_scale", ".input_scale");
            rename_end(t, ".weight_packed", ".weight");
        });
        expect_same_bits(logits(std::move(file)), expected());
    }
}

/// As llama.cpp's converter writes NVFP4: blocks of 64 with ModelOpt's scales, and X.scale beside X.weight.
class GgufNvfp4 : public Packed {
  protected:
    GgufNvfp4() : Packed("laguna_nvfp4") {}

    enum class Scales { of_the_model, powers_apart, powers_inside };
    Scales scales = Scales::of_the_model;

    /// A factor for expert e that binary exponents can take in.
    static int power(int64_t e) { return static_cast<int>(1 + e % 3); }

    /// Rows of blocks, and the factor.
    std::pair<std::vector<BlockNvfp4>, float> blocks(const std::string& from, int64_t e) const {
        const std::string stem = from.substr(0, from.size() - std::string_view(".weight").size());
        const Renamed codes = copy(stem + ".weight_packed", ""), d = copy(stem + ".weight_scale", "");
        const auto* code = reinterpret_cast<const uint8_t*>(codes.bytes.data());
        const auto element = [&](size_t i) { return code[i / 2] >> (4 * (i % 2)) & 15; };
        std::vector<BlockNvfp4> rows(codes.bytes.size() / 32);
        for (size_t b = 0; b < rows.size(); ++b) {
            for (size_t g = 0; g < 4; ++g) {
                auto scale = static_cast<int>(d.bytes[4 * b + g]);
                if (scales == Scales::powers_inside && scale != 0) {
                    scale -= 8 * power(e);
                    RT_CHECK(scale >= 8, "{}: a scale is too small for this test", from);
                }
                rows[b].d[g] = static_cast<uint8_t>(scale);
                for (size_t j = 0; j < 8; ++j) {
                    const size_t at = 64 * b + 16 * g + j;
                    rows[b].qs[8 * g + j] = static_cast<uint8_t>(element(at) | element(at + 8) << 4);
                }
            }
        }
        const float factor = scales == Scales::of_the_model ? 1.0f / f32_of(copy(stem + ".weight_global_scale", ""))
                                                            : std::ldexp(1.0f, -power(e));
        return {rows, factor};
    }
    void add(std::vector<Renamed>& out, const std::string& to, std::vector<int64_t> shape,
             const std::vector<BlockNvfp4>& rows, const std::vector<float>& factors) const {
        Renamed weight{to, DType::nvfp4, std::move(shape), std::vector<std::byte>(rows.size() * sizeof(BlockNvfp4))};
        std::memcpy(weight.bytes.data(), rows.data(), weight.bytes.size());
        out.push_back(std::move(weight));
        const std::string stem = to.substr(0, to.size() - std::string_view(".weight").size());
        if (scales != Scales::powers_inside) out.push_back(floats(stem + ".scale", factors));
        out.push_back(floats(stem + ".input_scale", factors));
    }
    std::vector<int64_t> shape_of(const std::string& from) const {
        const TensorInfo* packed = source->find(from + "_packed");
        RT_CHECK(packed != nullptr, "the fixture has no {}_packed", from);
        return {packed->shape[0], 2 * packed->shape[1]};
    }
    void add_matrix(std::vector<Renamed>& out, const std::string& from, const std::string& to) const override {
        const auto [rows, factor] = blocks(from, 0);
        add(out, to, shape_of(from), rows, {factor});
    }
    void add_stack(std::vector<Renamed>& out, int64_t layer, const std::string& part,
                   const std::string& to) const override {
        std::vector<BlockNvfp4> all;
        std::vector<float> factors;
        std::vector<int64_t> shape;
        for (int64_t e = 0; e < experts; ++e) {
            const std::string from = fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, e, part);
            const auto [rows, factor] = blocks(from, e);
            all.insert(all.end(), rows.begin(), rows.end());
            factors.push_back(factor);
            shape = shape_of(from);
        }
        shape.insert(shape.begin(), experts);
        add(out, to, shape, all, factors);
    }
    std::vector<std::byte> image(Scales how) {
        scales = how;
        return write_gguf(gguf_metadata('U', config), gguf_tensors("attn_gate"));
    }
};

TEST_F(GgufNvfp4, holds_the_values_of_the_folder) {
    const std::vector<std::byte> file = image(Scales::of_the_model);
    const auto gguf = open_gguf_memory(file, "m.gguf");
    const auto same = [](const Weight& a, const Weight& b) {
        std::vector<float> x(static_cast<size_t>(a.cols)), y(x);
        for (int64_t r = 0; r < a.rows; ++r) {
            dequantize_row(a, r, x.data());
            dequantize_row(b, r, y.data());
            expect_same_bits(x, y);
        }
    };
    Binder bind(*gguf), folder(*source);
    const std::string dense = "model.layers.0.mlp.up_proj.weight",
                      each = "model.layers.1.mlp.experts.{}.up_proj.weight";
    const std::vector<int64_t> d = shape_of(dense), s = shape_of("model.layers.1.mlp.experts.0.up_proj.weight");
    same(bind.matrix({{"blk.0.ffn_up.weight"}, {}}, d[0], d[1]), folder.matrix({{}, {dense}}, d[0], d[1]));
    const ExpertNames names = {.gguf = "blk.1.ffn_up_exps.weight", .hf_each = each, .hf_stack = ""};
    const std::vector<Weight> a = bind.experts(names, experts, s[0], s[1]),
                              b = folder.experts(names, experts, s[0], s[1]);
    for (size_t e = 0; e < a.size(); ++e) same(a[e], b[e]);
    const Session session(open_gguf_memory(file, "m.gguf"), fixture.options());  // nothing is left over
}

// A power of two changes no rounding: it may stand apart or in the blocks' own scales.
TEST_F(GgufNvfp4, a_factor_apart_equals_one_inside_the_blocks) {
    RT_CPU_ONLY("planes of f32 for experts that differ in their factors, of f16 for others");
    const std::vector<std::byte> apart = image(Scales::powers_apart), inside = image(Scales::powers_inside);
    const std::vector<float> got = logits(open_gguf_memory(apart, "m.gguf"));
    for (const float logit : got) ASSERT_TRUE(std::isfinite(logit));
    expect_same_bits(got, logits(open_gguf_memory(inside, "m.gguf")));
    const std::vector<std::byte> other = image(Scales::of_the_model);
    EXPECT_NE(got, logits(open_gguf_memory(other, "m.gguf")));
}

TEST_F(GgufNvfp4, greedy_tokens_are_those_of_the_folder) {
    const std::vector<std::byte> file = image(Scales::of_the_model);
    Session session(open_gguf_memory(file, "m.gguf"), fixture.options());
    for (const Prompt& prompt : fixture.prompts) {
        EXPECT_EQ(draw_greedily(session, prompt.tokens, std::ssize(prompt.greedy)).tokens, prompt.greedy);
    }
}

// ---- as Qwen3.5 and 3.6 are published: FP8 attention, NVFP4 experts and head, BF16 --------------------------------

enum class Form { modelopt, compressed, inverse };

/// The mixture of the fixtures with codes drawn at random where its published relatives are quantised.
class MixedQwen35 {
  public:
    std::vector<float> logits(Form form) {
        form_ = form;
        random_.seed(5);  // the same codes in every form
        tensors_.clear();
        for (const TensorInfo& t : source_->tensors()) add(t);
        Session session(open_folder(source_->metadata().at("config").as_object(), tensors_), fixture_.options());
        return all_logits(session, fixture_.prompts.back().tokens);
    }

  private:
    void add(const TensorInfo& t) {
        const std::string_view name = t.name;
        const auto holds = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
        if (holds(".experts.gate_up_proj")) {
            const std::string stem(name.substr(0, name.find("gate_up_proj")));
            for (int64_t e = 0; e < t.shape[0]; ++e)
                for (const char* part : {"gate_proj", "up_proj"})
                    nvfp4(fmt::format("{}{}.{}", stem, e, part), t.shape[1] / 2, t.shape[2]);
        } else if (holds("shared_expert.") || name == "lm_head.weight") {
            nvfp4(stem_of(name), t.shape[0], t.shape[1]);
        } else if (holds("_proj.weight") || holds("in_proj_qkv") || holds("in_proj_z")) {
            fp8(stem_of(name), t.shape[0], t.shape[1]);
        } else {
            put(t.name, t.dtype, t.shape, t.bytes);
        }
    }
    static std::string stem_of(std::string_view name) {
        return std::string(name.substr(0, name.size() - std::string_view(".weight").size()));
    }
    void put(const std::string& name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
        tensors_.push_back({name, dtype, std::move(shape), {bytes.begin(), bytes.end()}});
    }
    void one(const std::string& name, float value) { put(name, DType::f32, {}, std::as_bytes(std::span(&value, 1))); }
    /// Bytes of which the bits of `free` are random and the others those of `fixed`.
    std::vector<std::byte> draw(int64_t count, int free, int fixed) {
        std::vector<std::byte> bytes(static_cast<size_t>(count));
        for (std::byte& b : bytes)
            b = static_cast<std::byte>((random_() & static_cast<uint32_t>(free)) | static_cast<uint32_t>(fixed));
        return bytes;
    }
    void fp8(const std::string& stem, int64_t rows, int64_t cols) {
        constexpr float kScale = 0.17f;
        put(stem + ".weight", DType::f8_e4m3, {rows, cols}, draw(rows * cols, 0x87, 0x30));
        if (form_ == Form::modelopt) {
            one(stem + ".weight_scale", kScale);
            one(stem + ".input_scale", 3);
            return;
        }
        const bool inverse = form_ == Form::inverse;
        const std::vector<int64_t> shape = {inverse ? (rows + 127) / 128 : rows, 1};
        const std::vector<float> scales(static_cast<size_t>(shape[0]), kScale);
        put(stem + (inverse ? ".weight_scale_inv" : ".weight_scale"), DType::f32, shape,
            std::as_bytes(std::span(scales)));
    }
    void nvfp4(const std::string& stem, int64_t rows, int64_t cols) {
        const float factor = std::ldexp(1.0f, -3 - static_cast<int>(rows % 3));
        const bool modelopt = form_ == Form::modelopt;
        put(stem + (modelopt ? ".weight" : ".weight_packed"), DType::u8, {rows, cols / 2},
            draw(rows * cols / 2, 0xFF, 0));
        put(stem + ".weight_scale", DType::f8_e4m3, {rows, cols / 16}, draw(rows * cols / 16, 0x07, 0x30));
        if (modelopt) one(stem + ".weight_scale_2", factor);
        else one(stem + ".weight_global_scale", 1 / factor);
        one(stem + (modelopt ? ".input_scale" : ".input_global_scale"), 3);
    }

    Fixture fixture_{"qwen35_moe"};
    std::unique_ptr<Checkpoint> source_ = open_checkpoint(fixture_.model_path());
    std::vector<Renamed> tensors_;
    std::mt19937 random_;
    Form form_ = Form::modelopt;
};

TEST(MixedPrecision, every_publishers_names_give_the_same_bits) {
    RT_CPU_ONLY("one scale and a plane of equal ones may take different kernels");
    MixedQwen35 model;
    const std::vector<float> expected = model.logits(Form::modelopt);
    for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_NE(expected.front(), expected.back());
    for (const Form form : {Form::compressed, Form::inverse}) EXPECT_EQ(model.logits(form), expected);
}

}  // namespace
}  // namespace riptide::testing
