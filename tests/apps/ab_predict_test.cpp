#include "apps/ab/ab_predict.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace riptide::apps {
namespace {

TEST(AbPredict, tokens_and_times_are_those_of_the_formulas) {
    const std::vector<StepCost> costs = read_costs("1:1,3:2,5:2.5");
    const std::vector<Prediction> all = predict_chains(costs, 0.5, 0.25);
    ASSERT_EQ(all.size(), 5u);
    EXPECT_DOUBLE_EQ(all[0].tokens, 1);
    EXPECT_DOUBLE_EQ(all[0].ms, 1) << "no draft";
    EXPECT_DOUBLE_EQ(all[1].tokens, 1.5);
    EXPECT_DOUBLE_EQ(all[1].ms, 1.75) << "half way between measured rows, and the draft";
    EXPECT_DOUBLE_EQ(all[4].tokens, 1.9375);
    EXPECT_DOUBLE_EQ(all[4].ms, 2.75);
    EXPECT_DOUBLE_EQ(all[4].rate(), 1937.5 / 2.75);
    const std::string table = prediction_table(costs, all);
    EXPECT_NE(table.find("plain              1.00       1.00       1000     1.00x  the fastest\n"), std::string::npos)
        << table;
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4) << "measured widths only: " << table;
}

TEST(AbPredict, trees_have_the_most_probable_nodes) {
    const std::vector<StepCost> costs = read_costs("1:1,5:2");
    const std::vector<Prediction> all = predict_trees(costs, {0.5, 0.375}, 0);
    ASSERT_EQ(all.size(), 5u);
    EXPECT_DOUBLE_EQ(all[0].tokens, 1);
    EXPECT_FLOAT_EQ(static_cast<float>(all[1].tokens), 1.5f);
    EXPECT_FLOAT_EQ(static_cast<float>(all[2].tokens), 1.875f)
        << "the second choice is more probable than a chain of two";
    EXPECT_FLOAT_EQ(static_cast<float>(all[3].tokens), 2.125f)
        << "a chain of two, as half of it, and the second choice";
    EXPECT_FLOAT_EQ(static_cast<float>(all[4].tokens), 2.3125f);
    EXPECT_DOUBLE_EQ(all[4].ms, 2);
    const std::vector<Prediction> chains = predict_chains(costs, 0.5, 0), alone = predict_trees(costs, {0.5}, 0);
    for (size_t i = 0; i < chains.size(); ++i) EXPECT_DOUBLE_EQ(alone[i].tokens, chains[i].tokens);
}

TEST(AbPredict, costs_that_make_no_sense_are_errors) {
    for (const char* text : {"", "1", "1:", "1:x", "2:1", "1:1,", "1:1,1:2", "1:1,2:0", "1:1;2:2", "1:-1"})
        EXPECT_THROW(read_costs(text), Error) << text;
    EXPECT_EQ(read_costs("1:0.5,16:4").size(), 2u);
}

}  // namespace
}  // namespace riptide::apps
