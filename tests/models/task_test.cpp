// What a model is for: what its files say, and what they must not say.
#include "models/task.h"

#include "base/json.h"
#include "tests/models/expect_says.h"
#include "tests/models/fake_checkpoint.h"

namespace riptide::testing {
namespace {

FakeCheckpoint gguf_with(const json::value& pooling) {
    FakeCheckpoint file(Checkpoint::Format::gguf);
    file.metadata()["general.architecture"] = "qwen3";
    if (!pooling.is_null()) file.metadata()["qwen3.pooling_type"] = pooling;
    return file;
}

FakeCheckpoint folder_with(const std::vector<std::string>& modules, const json::value& pooling) {
    FakeCheckpoint folder;
    json::array list;
    for (const std::string& kind : modules)
        list.push_back(json::object{{"type", "sentence_transformers.models." + kind}});
    folder.metadata()["modules"] = list;
    if (!pooling.is_null()) folder.metadata()["pooling"] = pooling;
    return folder;
}

TEST(Task, names_go_both_ways) {
    for (const Task task : {Task::generate, Task::embed, Task::rerank})
        EXPECT_EQ(task_from_name(task_name(task)), task);
    EXPECT_EQ(task_from_name("auto"), std::nullopt);
}

TEST(Task, a_gguf_file_says_it_by_its_pooling) {
    EXPECT_EQ(task_of(gguf_with(nullptr), {}), Task::generate);
    EXPECT_EQ(task_of(gguf_with(0), {}), Task::generate);
    EXPECT_EQ(task_of(gguf_with(3), {}), Task::embed);
    EXPECT_SAYS(task_of(gguf_with(1), {}), "qwen3.pooling_type", "is 1", "only 3");
    EXPECT_SAYS(task_of(gguf_with(4), {}), "qwen3.pooling_type", "--task rerank");
}

TEST(Task, a_folder_says_it_by_its_modules) {
    const json::value last = {{"pooling_mode_cls_token", false}, {"pooling_mode_lasttoken", true}};
    EXPECT_EQ(task_of(FakeCheckpoint(), {}), Task::generate);
    EXPECT_EQ(task_of(folder_with({"Transformer"}, nullptr), {}), Task::generate);
    EXPECT_EQ(task_of(folder_with({"Transformer", "Pooling", "Normalize"}, last), {}), Task::embed);
    EXPECT_EQ(task_of(folder_with({"Transformer", "pooling.Pooling"}, {{"pooling_mode", "lasttoken"}}), {}),
              Task::embed);
}

TEST(Task, pooling_that_is_not_done_is_refused) {
    const json::value last = {{"pooling_mode_lasttoken", true}};
    EXPECT_SAYS(task_of(folder_with({"Pooling"}, nullptr), {}), "1_Pooling/config.json", "--task embed");
    EXPECT_SAYS(task_of(folder_with({"Pooling"}, {{"pooling_mode_mean_tokens", true}}), {}),
                "pooling_mode_mean_tokens");
    EXPECT_SAYS(
        task_of(folder_with({"Pooling"}, {{"pooling_mode_mean_tokens", true}, {"pooling_mode_lasttoken", true}}), {}),
        "pooling_mode_mean_tokens");
    EXPECT_SAYS(task_of(folder_with({"Pooling"}, {{"pooling_mode", "mean"}}), {}), "pooling_mode_lasttoken");
    EXPECT_SAYS(task_of(folder_with({"Pooling", "Dense"}, last), {}), "modules.json", "Dense");
    FakeCheckpoint broken;
    broken.metadata()["modules"] = json::array{1};
    EXPECT_SAYS(task_of(broken, {}), "modules.json", "objects");
}

TEST(Task, what_is_asked_for_holds) {
    EXPECT_EQ(task_of(folder_with({"Pooling"}, nullptr), Task::embed), Task::embed);
    EXPECT_EQ(task_of(gguf_with(3), Task::generate), Task::generate);
    EXPECT_EQ(task_of(FakeCheckpoint(), Task::rerank), Task::rerank);
}

}  // namespace
}  // namespace riptide::testing
