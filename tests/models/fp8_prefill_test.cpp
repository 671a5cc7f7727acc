// Prompts in FP8 (--prefill fp8): the demo model on a Hopper GPU.
#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "engine/session/session.h"
#include "ops/topk.h"
#include "tests/models/fixture.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide::testing {
namespace {

std::string demo_path() { return source_dir() + "/models/demo/laguna-demo.gguf"; }

std::string refusal(const ModelOptions& options) {
    const auto checkpoint = open_checkpoint(demo_path());
    try {
        load_model(*checkpoint, options);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    return {};
}

TEST(Fp8Prefill, is_refused_in_a_sentence_where_there_are_no_kernels) {
    ModelOptions options;
    options.prefill = PrefillKind::fp8;
    EXPECT_NE(refusal(options).find("on a GPU only"), std::string::npos);
    if (test_gpu() == nullptr) return;
    options.gpu = test_gpu();
    const std::string said = refusal(options);
    EXPECT_EQ(said.find("needs a Hopper GPU") == std::string::npos, test_gpu()->hopper()) << said;
    EXPECT_EQ(said.empty(), test_gpu()->hopper()) << said;
}

std::unique_ptr<Session> open(PrefillKind prefill, int32_t chunk) {
    SessionOptions options;
    options.context = 2048;
    options.chunk_rows = chunk;
    options.gpu = test_gpu()->options();
    options.model.prefill = prefill;
    return Session::open(demo_path(), options);
}

/// Some C++.
std::vector<int32_t> some_text(const Session& session) {
    const Tokenizer tokenizer = Tokenizer::from_gguf(session.checkpoint().metadata(), demo_path());
    std::vector<int32_t> ids = tokenizer.encode(read_file(source_dir() + "/tests/models/demo_test.cpp", 1 << 20));
    ids.resize(std::min<size_t>(ids.size(), 1000));
    return ids;
}

TEST(Fp8Prefill, chunks_do_not_change_a_bit) {
    if (test_gpu() == nullptr || !test_gpu()->hopper()) GTEST_SKIP() << "needs a Hopper GPU";
    const auto session = open(PrefillKind::fp8, 1024);
    const std::vector<int32_t> ids = some_text(*session);
    const std::vector<float> all = all_logits(*session, ids);
    for (const int32_t chunk : {64, 300}) {
        const std::vector<float> some = all_logits(*open(PrefillKind::fp8, chunk), ids);
        ASSERT_EQ(some.size(), all.size());
        EXPECT_EQ(std::memcmp(some.data(), all.data(), 4 * all.size()), 0) << "chunks of " << chunk;
    }
    EXPECT_NE(all_logits(*open(PrefillKind::bf16, 1024), ids), all) << "nothing was rounded";
}

// e4m3 has four digits: a relative error of at most 2^-4, and uniform, of both operands of every product but the
// head's.
TEST(Fp8Prefill, logits_are_those_of_bf16_within_the_rounding) {
    if (test_gpu() == nullptr || !test_gpu()->hopper()) GTEST_SKIP() << "needs a Hopper GPU";
    const auto wide = open(PrefillKind::bf16, 1024), narrow = open(PrefillKind::fp8, 1024);
    const std::vector<int32_t> ids = some_text(*wide);
    std::vector<float> x;  // normalised hidden states
    const auto collect = [&x](std::string_view name, int, const Tensor& value) {
        if (name == "norm") x.insert(x.end(), value.row(0), value.row(0) + value.elements());
    };
    wide->runner().context().tap = collect;
    const std::vector<float> expected = all_logits(*wide, ids);
    wide->runner().context().tap = nullptr;
    const std::vector<float> got = all_logits(*narrow, ids);
    const json::object& m = wide->checkpoint().metadata();
    const auto number = [&](const char* key) { return m.at(std::string("laguna.") + key).to_number<double>(); };
    const double e4m3 = 0x1p-4 / std::sqrt(3.0);
    const OperandRounding rounding = OperandRounding{e4m3, e4m3, 0} + OperandRounding::prefill(false);
    std::vector<double> heads;
    for (const json::value& count : m.at("laguna.attention.head_count").as_array())
        heads.push_back(count.to_number<double>());
    const double D = number("embedding_length");
    const Variance variance(heads, D, number("attention.key_length"), number("feed_forward_length"),
                            static_cast<double>(ids.size()), rounding);
    const double deviation = std::sqrt(variance.through.back() / D);
    const auto head = head_rows(wide->checkpoint());
    const size_t V = head.size(), width = static_cast<size_t>(D);
    ASSERT_EQ(x.size(), ids.size() * width);
    size_t differ = 0;
    double worst = 0;
    for (size_t r = 0; r < ids.size(); ++r) {
        const auto a = row_at(expected, r, V), b = row_at(got, r, V);
        const auto best = static_cast<size_t>(ops::argmax(a)), other = static_cast<size_t>(ops::argmax(b));
        if (best == other) continue;
        ++differ;
        const double allowed = 5 * deviation * norm2(row_at(x, r, width)) * distance(head[best], head[other]);
        worst = std::max(worst, (double{a[best]} - a[other]) / allowed);
    }
    fmt::print("{} of {} first choices differ, {:.3f} of the bound on their margins\n", differ, ids.size(), worst);
    EXPECT_LE(worst, 1);
}

}  // namespace
}  // namespace riptide::testing
