// The name under which K/V are kept covers whatever of a model decides their values.
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "engine/loop/resources.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

EngineOptions small_options() {
    EngineOptions options;
    options.threads = 1;
    options.context = options.kv_tokens = 64;
    options.page_rows = options.chunk_rows = 16;
    options.max_running = 1;
    options.prefix_cache = false;
    if (Gpu* gpu = test_gpu()) options.gpu = gpu->options();
    return options;
}

/// A folder with a fixture's weights, which never change, and a config that does.
struct EditedModel {
    explicit EditedModel(const std::string& fixture) : path(::testing::TempDir() + "riptide_cache_name_" + fixture) {
        fs::remove_all(path);
        fs::create_directories(path);
        fs::copy(fixture_path(fixture) + "/model.safetensors", path + "/model.safetensors");
    }
    ~EditedModel() { fs::remove_all(path); }

    std::string name(const json::object& config) const {
        write_file_atomic(path + "/config.json", json::serialize(config));
        return Machine(open_checkpoint(path), small_options()).weights_name();
    }
    /// Of all logits that some tokens lead to, with the config that was written last.
    uint64_t logits() const {
        std::vector<int32_t> prompt;
        for (int32_t i = 0; i < 40; ++i) prompt.push_back(3 + i * 7 % 50);
        return draw_greedily(*Session::open(path, small_options()), prompt, 4).logits_hash;
    }
    std::string path;
};

/// The same value but for one place; every place in turn, in two ways each.
void each_edit(json::value& value, const std::string& name, const std::function<void(const std::string& where)>& look) {
    if (json::object* object = value.if_object()) {
        for (auto& [key, inner] : *object) each_edit(inner, name + "." + std::string(key), look);
        return;
    }
    if (json::array* array = value.if_array(); array != nullptr && !array->empty()) {
        each_edit(array->front(), name + "[0]", look);
        each_edit(array->back(), name + "[last]", look);
        return;
    }
    const json::value before = value;
    std::vector<json::value> others = {"another", nullptr};
    if (before.is_bool()) others = {!before.as_bool()};
    else if (before.is_int64()) others = {before.as_int64() + 1, 2 * before.as_int64()};
    else if (before.is_double()) others = {1.5 * before.as_double(), 2 * before.as_double() + 1};
    else if (before == "sliding_attention") others = {"full_attention"};
    else if (before == "full_attention") others = {"sliding_attention", "linear_attention"};
    for (const json::value& other : others) {
        value = other;
        look(fmt::format("{}: {} for {}", name, json::serialize(other), json::serialize(before)));
    }
    value = before;
}

class CacheName : public ::testing::TestWithParam<std::string> {};

TEST_P(CacheName, another_config_has_another_name_or_the_same_logits) {
    const EditedModel model(GetParam());
    json::value config = fixture_config(GetParam());
    const std::string name = model.name(config.as_object());
    const uint64_t logits = model.logits();
    int refused = 0, renamed = 0, same = 0;
    each_edit(config, "config", [&](const std::string& where) {
        std::string other;
        try {
            other = model.name(config.as_object());
        } catch (const Error&) {
            ++refused;
            return;
        }
        if (other != name) {
            ++renamed;
            return;
        }
        ++same;
        EXPECT_EQ(model.logits(), logits) << where;
    });
    EXPECT_EQ(model.name(config.as_object()), name) << "all is as it was";
    EXPECT_GT(refused, 10);
    EXPECT_GT(renamed, 3) << "rotations, norms";
    EXPECT_GT(same, 5) << "what says nothing about values";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CacheName,
                         ::testing::Values("laguna_xs2", "laguna_odd", "qwen3_tied", "qwen35_tied", "qwen35_moe"),
                         fixture_name);

TEST(CacheNameOf, a_magnitude_of_yarn_asked_for_has_another_name) {
    EngineOptions options = small_options();
    const auto name = [&](double factor) {
        options.model.yarn_attention_factor = factor;
        return Machine(open_checkpoint(fixture_path("laguna_xs2") + "/model.safetensors"), options).weights_name();
    };
    EXPECT_NE(name(1.0), name(1.25));
    EXPECT_EQ(name(1.25), name(1.25));
}

}  // namespace
}  // namespace riptide::testing
