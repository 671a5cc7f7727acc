// Names that a stranger chose so that std::hash makes the same of all of them: containers of names must not mind.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/json/json_schema.h"
#include "text/json/tool_arguments.h"

namespace riptide {
namespace {

// libstdc++'s std::hash is MurmurHash64A, which takes eight bytes at a time. Behind its mixing these two blocks differ
// in the highest bit of the hash alone, which the same once more takes back: so either, twice, may stand anywhere.
constexpr std::string_view kOne = "ǘ{Mńԥ", kOther = "ǘ8g`j|4", kNeither = "ǘ8g`j|5";
static_assert(kOne.size() == 8 && kOther.size() == 8);

/// 2^bits names of 16 bytes a bit, with one hash or, of the same length, with others.
std::vector<std::string> names(int bits, bool colliding) {
    const std::string one(kOne), other(kOther);
    const std::string symbols[] = {one + one, other + (colliding ? other : std::string(kNeither))};
    std::vector<std::string> out(std::size_t{1} << bits);
    for (std::size_t i = 0; i < out.size(); ++i)
        for (int b = 0; b < bits; ++b) out[i] += symbols[i >> b & 1];
    return out;
}

/// Seconds of the fastest of three.
double fastest(const std::function<void()>& work) {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
        const auto begun = std::chrono::steady_clock::now();
        work();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    }
    return best;
}

TEST(HashFlood, the_names_collide) {
    const std::vector<std::string> same = names(6, true), others = names(6, false);
    std::vector<std::size_t> hashes;
    for (const std::string& name : others) hashes.push_back(std::hash<std::string>()(name));
    std::sort(hashes.begin(), hashes.end());
    EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
    for (const std::string& name : same) EXPECT_EQ(std::hash<std::string>()(name), std::hash<std::string>()(same[0]));
}

TEST(HashFlood, parameters_of_a_tool) {
    const auto seconds = [](bool colliding) {
        json::object properties;
        for (const std::string& name : names(13, colliding)) properties[name] = json::object{{"type", "integer"}};
        const json::array tools = {
            json::object{{"name", "f"}, {"parameters", json::object{{"properties", std::move(properties)}}}}};
        return fastest([&] { ToolSchemas{tools}; });
    };
    EXPECT_LT(seconds(true), 4 * seconds(false));
}

TEST(HashFlood, values_of_an_enum) {
    const auto seconds = [](bool colliding) {
        json::array words;
        // They are kept as JSON: seven bytes and the quotation mark are a block, too.
        for (const std::string& name : names(13, colliding)) words.emplace_back("seven b" + name);
        const json::value schema = {
            {"oneOf", {json::object{{"enum", std::move(words)}}, json::object{{"enum", {"x", 1}}}}}};
        return fastest([&] {
            Grammar grammar;
            add_json_schema(grammar, schema);
        });
    };
    EXPECT_LT(seconds(true), 4 * seconds(false));
}

}  // namespace
}  // namespace riptide
