// Rounds that the device runs by itself, of a target whose products Hopper takes in half precision
// (wide_hybrid_test.cpp): they say what plain decoding says.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "engine/speculation/device_rounds.h"
#include "quant/random_fill.h"
#include "tests/engine/ahead_world.h"
#include "tests/engine/solo.h"
#include "tests/models/fake_checkpoint.h"

namespace riptide::testing {
namespace {

/// The drafter of a fixture made as wide as the target, with weights drawn at random: its drafts are bad, but drafts.
std::unique_ptr<FakeCheckpoint> wide_drafter(const ModelInfo& target) {
    const auto small = open_checkpoint(fixture_path("dflash_zlab") + "/model.safetensors");
    auto out = std::make_unique<FakeCheckpoint>();
    out->metadata() = small->metadata();
    json::object& config = out->metadata().at("config").as_object();
    const auto narrow = config.at("hidden_size").to_number<int64_t>();
    config["hidden_size"] = target.hidden_size;
    config["vocab_size"] = target.vocab_size;
    config["num_target_layers"] = target.num_hidden_layers;
    config.at("dflash_config").as_object()["target_layer_ids"] = {0, 1, 1};
    uint64_t seed = 1;
    for (const TensorInfo& t : small->tensors()) {
        std::vector<int64_t> shape = t.shape;
        const bool head = t.name.find("_proj") != std::string::npos;
        for (size_t i = 0; i < shape.size(); ++i) {
            const bool input = i + 1 == shape.size();
            if (t.name.find("q_norm") != std::string::npos || t.name.find("k_norm") != std::string::npos) continue;
            const bool ours = !head || input != (t.name.find("o_proj") != std::string::npos ||
                                                 t.name.find("down_proj") != std::string::npos);
            if (ours && shape[i] % narrow == 0) shape[i] = shape[i] / narrow * target.hidden_size;
        }
        int64_t elements = 1;
        for (const int64_t extent : shape) elements *= extent;
        std::vector<uint16_t> values(static_cast<size_t>(elements), f32_to_bf16(1.0f));
        if (shape.size() > 1)
            random_fill(DType::bf16, values.data(), elements, 1 / std::sqrt(static_cast<float>(shape[1])), seed++);
        out->add(t.name, DType::bf16, shape, values);
    }
    return out;
}

TEST(WideRounds, say_what_plain_decoding_says) {
    SessionOptions o;
    o.threads = 2;
    o.context = 512;
    o.k_dtype = o.v_dtype = DType::q8_0;
    o.chunk_rows = 64;
    o.page_rows = 16;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    Solo engine(SeededHybrid::open("wide"), o);
    if (Gpu* gpu = engine.machine().gpu()) limit_multiprocessors(*gpu);
    const auto drafter =
        std::make_shared<DflashDrafter>(wide_drafter(engine.info()), engine.machine().draft_target());
    const std::vector<int32_t> prompt = some_tokens(20, 3);
    const bool gpu = test_gpu() != nullptr && !brief_counts();
    for (const double temperature : gpu ? std::vector<double>{0.0, 0.9} : std::vector<double>{0.0}) {
        Question r = greedily(prompt, gpu ? 90 : 12);
        r.sampling.temperature = temperature;
        r.sampling.seed = 3;
        const auto answer = [&](const SpeculationOptions* how) {
            if (how != nullptr) engine.speculate(drafter, *how);
            else engine.speculate(nullptr, {});
            engine.forget();
            Answered result = engine.answer(r);
            const Solo::Kept kept = engine.kept(prompt, result);
            return std::pair(std::move(result), kept);
        };
        const auto [truth, state] = answer(nullptr);
        using Size = std::pair<int32_t, int32_t>;
        for (const auto& [width, tree] :
             gpu ? std::vector<Size>{{1, 0}, {3, 0}, {7, 0}, {7, 1}, {7, 6}, {7, 20}, {7, 40}}
                 : std::vector<Size>{{3, 0}, {7, 12}}) {
            SpeculationOptions how;
            how.width = width, how.tree = tree, how.adaptive = false, how.rounds = SpeculationOptions::Rounds::device;
            const auto what = fmt::format("temperature {}, width {}, tree {}", temperature, width, tree);
            const auto [result, after] = answer(&how);
            EXPECT_EQ(result.tokens, truth.tokens) << what;
            EXPECT_GT(result.speculation.drafted, result.speculation.steps / 2) << what;
            EXPECT_EQ(after, state) << what;
        }
    }
    engine.speculate(nullptr, {});
}

}  // namespace
}  // namespace riptide::testing
