// Chat templates of released models and small templates, against what Jinja2 3.1.6 made of them.
#include <algorithm>
#include <filesystem>

#include "tests/source_dir.h"
#include "tests/text/jinja_cases.h"

#include "base/json.h"

namespace riptide {
namespace {

namespace fs = std::filesystem;

TEST(JinjaConformance, released_chat_templates_render_as_in_transformers) {
    const fs::path folder = fs::path(conformance_dir()) / "templates";
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    int expected = 0, refused = 0;
    for (const fs::path& file : files) {
        std::string name = file.filename().string();
        name.resize(name.size() - std::string(".cases.json").size());
        const std::string source = read_text((folder / (name + ".jinja")).string());
        const json::value cases = parse_json(read_text(file.string()), name);
        std::size_t index = 0;
        for (const json::value& item : cases.as_array()) {
            const json::object& object = item.as_object();
            check_case(source, object, object.at("variables").as_object(), fmt::format("{} case {}", name, index++));
            ++(object.contains("expected") ? expected : refused);
        }
    }
    EXPECT_GE(expected, 297);
    EXPECT_GE(refused, 18);
}

TEST(JinjaConformance, small_templates_render_as_in_jinja2) {
    const json::value groups =
        parse_json(read_text(source_dir() + "/tests/text/data/jinja_language.json"), "jinja_language.json");
    std::size_t count = 0;
    for (const json::value& group : groups.as_array()) {
        const json::object& variables = group.at("variables").as_object();
        for (const json::value& item : group.at("cases").as_array()) {
            const std::string source(item.at("template").as_string());
            check_case(source, item.as_object(), variables, source);
            ++count;
        }
    }
    EXPECT_GT(count, 600u);
}

}  // namespace
}  // namespace riptide
