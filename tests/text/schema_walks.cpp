// Random answers that schemas' grammars let through, for another program to judge (tests/clients/schemas.mjs).
// usage: schema_walks WALKS < LINES > LINES    in: {"id", "schema"}; out: {"id", "us", "walks": [TEXT...]} or
// {"id", "us", "error"}, one JSON a line. `us`: what compiling took; "failed": walks that met a dead end or no end.
#include <chrono>
#include <iostream>

#include "base/error.h"
#include "tests/text/constraint_world.h"

namespace riptide::testing {
namespace {

/// What EXPECT and ADD_FAILURE say on a walk.
class Failures : public ::testing::EmptyTestEventListener {
  public:
    json::array told;

  private:
    void OnTestPartResult(const ::testing::TestPartResult& part) override { told.emplace_back(part.message()); }
};

json::object walk_schema(const json::value& line, unsigned walks, Failures& failures) {
    json::object out = {{"id", line.at("id")}};
    const auto began = std::chrono::steady_clock::now();
    std::shared_ptr<Constraint> constraint;
    try {
        constraint = schema_constraint(line.at("schema"));
    } catch (const std::exception& error) {
        out["error"] = error.what();
    }
    out["us"] = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count();
    if (constraint == nullptr) return out;
    json::array texts;
    failures.told.clear();
    for (unsigned seed = 0; seed < walks; ++seed) {
        std::mt19937 random(seed);
        const size_t before = failures.told.size();
        std::string text = random_answer(constraint, random, static_cast<int>(seed) * 3);
        if (failures.told.size() == before) texts.emplace_back(std::move(text));
    }
    out["failed"] = failures.told;
    out["walks"] = std::move(texts);
    return out;
}

}  // namespace

int walk_all(int count, char** words) try {
    RT_CHECK(count == 2, "usage: schema_walks WALKS < LINES > LINES");
    const auto walks = static_cast<unsigned>(std::stoul(words[1]));
    ::testing::InitGoogleTest();
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    auto* failures = new Failures;
    listeners.Append(failures);
    for (std::string line; std::getline(std::cin, line);)
        std::cout << json::serialize(walk_schema(parse_json(line, "standard input", 500), walks, *failures))
                  << std::endl;
    return 0;
} catch (const std::exception& error) {
    std::cerr << "schema_walks: " << error.what() << "\n";
    return 1;
}

}  // namespace riptide::testing

int main(int count, char** words) { return riptide::testing::walk_all(count, words); }
