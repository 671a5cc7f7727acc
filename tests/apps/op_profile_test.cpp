// What a profile counts is what the model reads and computes, and watching changes nothing.
#include "apps/bench/op_profile.h"

#include <gtest/gtest.h>

#include <set>

#include "apps/support/demo_model.h"
#include "engine/session/session.h"
#include "tests/test_device.h"

namespace riptide::apps {
namespace {

constexpr int32_t kChunk = 64;

std::unique_ptr<Session> demo_session() {
    SessionOptions o;
    o.threads = 2;
    o.context = 1024;
    o.chunk_rows = kChunk;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    return std::make_unique<Session>(open_model_or_demo(""), o);
}

std::vector<int32_t> tokens(int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>(300 + i * 37 % 7000);
    return ids;
}

/// Keys that rows [begin, end) of a sequence see, and those that are read at least once in steps of kChunk rows.
struct Keys {
    double seen = 0, read = 0;
    Keys(int64_t begin, int64_t end, int64_t window) {
        std::set<int64_t> step;
        for (int64_t p = begin; p < end; ++p) {
            for (int64_t key = window > 0 ? std::max<int64_t>(0, p - window + 1) : 0; key <= p; ++key) {
                step.insert(key);
                ++seen;
            }
            if ((p - begin) % kChunk == kChunk - 1 || p + 1 == end) {
                read += static_cast<double>(step.size());
                step.clear();
            }
        }
    }
};

double expected_kv_bytes(Session& session, int64_t begin, int64_t end) {
    double bytes = 0;
    for (const KvView& view : session.cache().views())
        bytes += static_cast<double>(view.k_slot_bytes + view.v_slot_bytes) * Keys(begin, end, view.window).read;
    return bytes;
}

TEST(OpProfile, a_decoded_token_reads_the_weights_and_keys_that_the_model_counts) {
    const auto session = demo_session();
    session->prefill(tokens(700));
    OpProfile profile(session->runner().context(), OpProfile::Mode::count);
    profile.start(700);
    session->decode(5);
    const OpProfile::Line total = profile.total();
    EXPECT_EQ(profile.steps(), 1);
    EXPECT_EQ(total.kv_bytes, expected_kv_bytes(*session, 700, 701));
    // Norm weights and routing biases are in the model's count only.
    const auto counted = static_cast<double>(session->model().info().bytes_per_token);
    EXPECT_LE(total.weight_bytes, counted);
    EXPECT_GE(total.weight_bytes, 0.99 * counted);
}

TEST(OpProfile, a_prompt_in_chunks_counts_each_key_and_product) {
    const auto session = demo_session();
    OpProfile profile(session->runner().context(), OpProfile::Mode::count);
    profile.start(0);
    session->prefill(tokens(300));
    EXPECT_EQ(profile.steps(), (300 + kChunk - 1) / kChunk);
    EXPECT_EQ(profile.total().kv_bytes, expected_kv_bytes(*session, 0, 300));
    bool all = false, window = false;
    for (const OpProfile::Line& line : profile.lines()) {
        if (line.op != "gated_attention") continue;
        // models/demo/README.md: three layers with 6 heads see all, six with 4 heads a window of 256.
        const bool full = line.shape == "6 heads, all";
        (full ? all : window) = true;
        const double layers = full ? 3 : 6, heads = full ? 6 : 4;
        EXPECT_EQ(line.flops, layers * 4 * heads * 128 * Keys(0, 300, full ? 0 : 256).seen) << line.shape;
    }
    EXPECT_TRUE(all && window);
}

TEST(OpProfile, watching_changes_no_bit) {
    const auto session = demo_session();
    const std::vector<int32_t> ids = tokens(100);
    const auto answer = [&] {
        session->clear();
        session->prefill(ids);
        std::vector<float> all;
        for (const int32_t token : {7, 300, 4000, 12}) {
            const auto logits = session->decode(token);
            all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
    };
    const std::vector<float> plain = answer();
    {
        OpProfile profile(session->runner().context(), OpProfile::Mode::time);
        profile.start(0);
        EXPECT_EQ(answer(), plain);
        const OpProfile::Line total = profile.total();
        EXPECT_EQ(profile.steps(), 2 + 4);
        EXPECT_GT(total.seconds, 0);
        for (const OpProfile::Line& line : profile.lines()) EXPECT_GE(line.seconds, 0) << line.op;
    }
    EXPECT_EQ(answer(), plain) << "and afterwards, from graphs again";
}

}  // namespace
}  // namespace riptide::apps
