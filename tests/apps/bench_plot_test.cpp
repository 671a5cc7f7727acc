// The picture of `riptide bench --plot`.
#include "apps/bench/bench_plot.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace riptide::apps {
namespace {

int64_t times(std::string_view text, std::string_view part) {
    int64_t count = 0;
    for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

TEST(BenchPlot, figures_come_from_rows_and_from_files_alike) {
    const std::vector<BenchRow> rows = {{.kind = BenchRow::Kind::prefill, .tokens = 4096, .rates = {90, 100, 110}},
                                        {.kind = BenchRow::Kind::decode, .depth = 128, .tokens = 64, .rates = {50}},
                                        {.kind = BenchRow::Kind::decode, .depth = 128, .sequences = 8, .rates = {1}},
                                        {.kind = BenchRow::Kind::verify, .depth = 128, .rows = 4, .rates = {1}}};
    const BenchSeries own = bench_series("a", rows);
    const BenchSeries file =
        bench_series("b",
                     R"({"rows": [{"kind": "prefill", "tokens": 4096, "sequences": 1, "median": 100},
                     {"kind": "decode", "tokens": 64, "depth": 128, "sequences": 1, "median": 50},
                     {"kind": "decode", "tokens": 64, "depth": 128, "sequences": 8, "median": 1},
                     {"kind": "verify", "tokens": 64, "depth": 128, "sequences": 1, "median": 1}]})",
                     "b.json");
    const BenchSeries llama = bench_series(
        "c",
        R"([{"n_prompt": 4096, "n_gen": 0, "n_depth": 0, "avg_ts": 100}, {"n_prompt": 0, "n_gen": 64, "n_depth": 128, "avg_ts": 50},
            {"n_prompt": 512, "n_gen": 64, "avg_ts": 1}])",
        "c.json");
    for (const BenchSeries* series : {&own, &file, &llama}) {
        ASSERT_EQ(series->figures.size(), 2u) << series->name;
        EXPECT_EQ(series->figures[0].kind, BenchRow::Kind::prefill);
        EXPECT_EQ(series->figures[0].tokens, 4096);
        EXPECT_EQ(series->figures[0].rate, 100);
        EXPECT_EQ(series->figures[1].tokens, 128);
        EXPECT_EQ(series->figures[1].rate, 50);
    }
}

TEST(BenchPlot, other_files_are_refused_by_name) {
    for (const char* text : {"{}", "3", "[]", "[1, {}]", R"({"rows": [{"kind": 5}]})", "{"}) {
        try {
            bench_series("a", text, "figures.json");
            ADD_FAILURE() << text << " was taken";
        } catch (const Error& error) {
            EXPECT_NE(std::string_view(error.what()).find("figures.json"), std::string_view::npos) << error.what();
        }
    }
}

TEST(BenchPlot, a_bar_for_each_figure_and_none_for_what_was_not_measured) {
    const std::vector<BenchSeries> series = {
        {"ours", {{BenchRow::Kind::decode, 128, 960}, {BenchRow::Kind::prefill, 131072, 22100}}},
        {"<theirs>", {{BenchRow::Kind::decode, 128, 280}}}};
    const std::string svg = bench_svg(series, "a model & more", "random weights");
    EXPECT_EQ(times(svg, "<rect"), 2 + 2 + 1 + 1);  // legend, decoding, the prompt, its first token
    for (const char* text : {">960<", ">280<", ">22,100<", ">5.9 s<", ">131,072 tokens<", ">behind 128<",
                             ">&lt;theirs&gt;<", "a model &amp; more", ">random weights<"})
        EXPECT_EQ(times(svg, text) > 0, true) << text << '\n' << svg;
    EXPECT_EQ(times(bench_svg(std::span(series).first(1), "m", "c"), "<rect"), 3);
    EXPECT_EQ(times(bench_svg({}, "m", "c"), "<rect"), 0);
}

}  // namespace
}  // namespace riptide::apps
