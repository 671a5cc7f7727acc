// DFlash drafters, judged by the float64 forward pass of python/fixtures/make_dflash.py, which has no cache.
#include "models/dflash.h"

#include <optional>

#include "base/json.h"
#include "engine/execution/device_batch.h"
#include "tests/models/expect_says.h"
#include "tests/models/fake_checkpoint.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

using Values = std::vector<float>;

constexpr int32_t kStep = 48;  // rows of a sequence in a step, at most

/// A target and a drafter with room for a few sequences.
class Drafting {
  public:
    explicit Drafting(const std::string& name, DType kv = DType::f32, int32_t page_rows = 16)
        : target_checkpoint_(open_checkpoint(fixture_path(target_of(name)) + "/model.safetensors")),
          checkpoint_(open_checkpoint(fixture_path(name) + "/model.safetensors")),
          arena_(int64_t{64} << 20, gpu_) {
        ModelOptions options;
        options.gpu = gpu_;
        target = load_model(*target_checkpoint_, options);
        drafter = load_drafter(*checkpoint_, *target, options);
        cache = std::make_unique<KvCache>(drafter->state_specs(),
                                          KvCacheOptions{.k_dtype = kv,
                                                         .v_dtype = kv,
                                                         .page_rows = page_rows,
                                                         .pages = 64,
                                                         .max_sequences = 4,
                                                         .max_step_rows = kStep},
                                          gpu_);
        if (gpu_ != nullptr) device_batch_.emplace(*gpu_, 4 * kStep, 4, 64);
        context.gpu = gpu_;
        context.threads = &threads_;
        context.arena = &arena_;
    }

    /// Rows [begin, end) of features, f32 [.., columns], as the context that follows.
    void append(SequenceState& state, std::span<const float> features, int64_t begin, int64_t end) {
        if (begin == end) return;
        arena_.reset();
        const std::vector<int32_t> tokens(static_cast<size_t>(end - begin), 0);
        ASSERT_TRUE(state.try_reserve(end - begin));
        const StepRows rows{&state, tokens, {}, StepRows::Logits::none, {}};
        const int64_t columns = drafter->feature_columns();
        Tensor x = context.alloc(DType::f32, {end - begin, columns});
        const auto part =
            features.subspan(static_cast<size_t>(begin * columns), static_cast<size_t>((end - begin) * columns));
        if (gpu_ != nullptr) gpu_->to_device(x.data, part.data(), static_cast<int64_t>(part.size_bytes()));
        else std::memcpy(x.data, part.data(), part.size_bytes());
        drafter->append(context, x, build({&rows, 1}), States{cache->views()});
        state.commit_prefix(end - begin);
    }

    struct Block {
        SequenceState* state;
        int32_t anchor;
    };
    /// The logits of each block's drafts.
    std::vector<Values> draft(std::span<const Block> blocks) {
        arena_.reset();
        const int64_t size = drafter->block_size();
        std::vector<std::vector<int32_t>> tokens;
        std::vector<int32_t> wanted;
        for (int64_t j = drafter->first_slot(); j < size; ++j) wanted.push_back(static_cast<int32_t>(j));
        for (const Block& block : blocks) {
            tokens.emplace_back(static_cast<size_t>(size), drafter->mask_token_id())[0] = block.anchor;
            EXPECT_TRUE(block.state->try_reserve(size));
        }
        std::vector<StepRows> rows;
        for (size_t i = 0; i < blocks.size(); ++i)
            rows.push_back({blocks[i].state, tokens[i], {}, StepRows::Logits::list, wanted});
        const Values all = host_values(gpu_, drafter->draft(context, build(rows), States{cache->views()}));
        std::vector<Values> out;
        const size_t each = all.size() / blocks.size();
        for (size_t i = 0; i < blocks.size(); ++i) {
            out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(i * each),
                             all.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
            blocks[i].state->commit_prefix(0);
        }
        return out;
    }
    Values draft(SequenceState& state, int32_t anchor) {
        const Block block{&state, anchor};
        return draft({&block, 1})[0];
    }

    std::unique_ptr<Model> target;
    std::unique_ptr<Dflash> drafter;
    std::unique_ptr<KvCache> cache;
    Context context;

  private:
    const Batch& build(std::span<const StepRows> rows) {
        const Batch& host = builder_.build(rows);
        return device_batch_ ? device_batch_->upload(host) : host;
    }

    Gpu* const gpu_ = test_gpu();
    std::unique_ptr<Checkpoint> target_checkpoint_, checkpoint_;
    ThreadPool threads_{2};
    Arena arena_;
    BatchBuilder builder_;
    std::optional<DeviceBatch> device_batch_;
};

/// What make_dflash.py computed.
struct ExpectedDrafts {
    explicit ExpectedDrafts(const std::string& name)
        : file(open_checkpoint(fixture_path(name) + "/expected.safetensors")), features(values<float>("features")) {
        for (int i = 0; file->find(fmt::format("draft.{}.logits", i)) != nullptr; ++i)
            drafts.push_back({values<int32_t>(fmt::format("draft.{}.context", i))[0],
                              values<int32_t>(fmt::format("draft.{}.anchor", i))[0],
                              values<float>(fmt::format("draft.{}.logits", i))});
    }
    template <class T>
    std::vector<T> values(const std::string& name) const {
        const TensorInfo* info = file->find(name);
        RT_CHECK(info != nullptr, "no {}", name);
        std::vector<T> out(info->bytes.size() / sizeof(T));
        std::memcpy(out.data(), info->bytes.data(), info->bytes.size());
        return out;
    }

    std::unique_ptr<Checkpoint> file;
    Values features;
    struct Draft {
        int64_t context;
        int32_t anchor;
        Values logits;
    };
    std::vector<Draft> drafts;
};

double relative_distance(const Values& a, const Values& b) {
    double off = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        off += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        size += double{b[i]} * b[i];
    }
    return std::sqrt(off / size);
}

class DflashTest : public ::testing::TestWithParam<std::string> {
  protected:
    ExpectedDrafts expected{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, DflashTest,
                         ::testing::Values("dflash_zlab", "dflash_speculators", "dflash_laguna", "dflash_hybrid"),
                         [](const auto& p) { return p.param; });

// Sums in f32 of some 1000 products in a row, as in rounding.h: u sqrt(sum of K), u = 2^-24, over fc (192), two layers
// of q, o, gate, up and down (64, 128, 64, 64, 96) and the head (64) is 2^-24 sqrt(1100) = 2e-6; four standard
// deviations.
constexpr double kBound = 8e-6;

TEST_P(DflashTest, drafts_are_those_of_the_formulas_whatever_the_chunks) {
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{kStep}}) {
        Drafting world(GetParam());
        SequenceState state(*world.cache);
        for (const ExpectedDrafts::Draft& draft : expected.drafts) {
            while (state.length() < draft.context)
                world.append(state, expected.features, state.length(), std::min(draft.context, state.length() + chunk));
            const Values logits = world.draft(state, draft.anchor);
            ASSERT_EQ(logits.size(), draft.logits.size());
            const double off = relative_distance(logits, draft.logits);
            fmt::print("{}: {} tokens of context, chunks of {}: off by {:.1e}\n", GetParam(), draft.context, chunk,
                       off);
            EXPECT_LE(off, kBound) << draft.context;
            EXPECT_EQ(state.length(), draft.context);
        }
    }
}

TEST_P(DflashTest, a_cached_context_has_the_bits_of_one_made_at_once) {
    const ExpectedDrafts::Draft& last = expected.drafts.back();
    Drafting grown(GetParam()), whole(GetParam(), DType::f32, 64);
    SequenceState a(*grown.cache), b(*whole.cache);
    for (int64_t p = 0; p < last.context; p += 3) {
        grown.append(a, expected.features, p, std::min(last.context, p + 3));
        grown.draft(a, 7);  // leaves no trace
    }
    whole.append(b, expected.features, 0, last.context);
    expect_bits(grown.draft(a, last.anchor), whole.draft(b, last.anchor), GetParam());
}

TEST_P(DflashTest, a_block_does_not_depend_on_its_company) {
    const int64_t columns = Drafting(GetParam()).drafter->feature_columns();
    Values other = expected.features;
    for (size_t i = 0; i < other.size(); ++i) other[i] *= 1 + static_cast<float>(i % 7);
    ASSERT_EQ(std::ssize(other) % columns, 0);
    const bool blocks = Drafting(GetParam()).drafter->config().head_dim % 32 == 0;
    for (const DType kv : {DType::f32, blocks ? DType::q8_0 : DType::f16}) {
        Drafting world(GetParam(), kv);
        SequenceState a(*world.cache), b(*world.cache), c(*world.cache);
        world.append(a, expected.features, 0, 30);
        world.append(b, other, 0, 11);
        const Values a_alone = world.draft(a, 3), b_alone = world.draft(b, 90), c_alone = world.draft(c, 5);
        const Drafting::Block together[] = {{&b, 90}, {&c, 5}, {&a, 3}};
        const std::vector<Values> drafts = world.draft(together);
        expect_bits(drafts[0], b_alone, "b");
        expect_bits(drafts[1], c_alone, "c, without context");
        expect_bits(drafts[2], a_alone, "a");
    }
}

TEST_P(DflashTest, a_context_cut_back_is_the_shorter_context) {
    Drafting world(GetParam());
    SequenceState state(*world.cache), shorter(*world.cache);
    world.append(shorter, expected.features, 0, 20);
    world.append(state, expected.features, 0, 20);
    SequenceState copy = state.fork();
    world.append(copy, expected.features, 20, 41);
    world.append(state, expected.features, 20, 22);
    ASSERT_TRUE(state.can_truncate(20));
    state.truncate(20);
    const Values wanted = world.draft(shorter, 9);
    expect_bits(world.draft(state, 9), wanted, "truncated");
    const auto& last = expected.drafts.back();
    EXPECT_LE(relative_distance(world.draft(copy, last.anchor), last.logits), kBound);
}

TEST(feature_capture, holds_the_streams_behind_the_layers_in_the_order_asked_for) {
    const Fixture fixture("laguna_xs2");
    const auto checkpoint = open_checkpoint(fixture.model_path());
    ModelOptions options;
    options.gpu = test_gpu();
    const auto model = load_model(*checkpoint, options);
    const std::vector<int32_t>& tokens = fixture.prompts[2].tokens;
    const auto n = std::ssize(tokens);
    KvCache cache(model->state_specs(),
                  {.k_dtype = DType::f32, .v_dtype = DType::f32, .page_rows = 16, .pages = 8, .max_step_rows = 64},
                  options.gpu);
    SequenceState state(cache);
    ASSERT_TRUE(state.try_reserve(n));
    const StepRows rows{&state, tokens, {}, StepRows::Logits::last, {}};
    BatchBuilder builder;
    std::optional<DeviceBatch> device;
    if (options.gpu != nullptr) device.emplace(*options.gpu, 64, 1, 8);
    const Batch& host = builder.build({&rows, 1});
    Arena arena(int64_t{64} << 20, options.gpu);
    Context ctx;
    ctx.gpu = options.gpu;
    ctx.arena = &arena;
    std::map<int, Values> taps;
    ctx.tap = [&](std::string_view name, int layer, const Tensor& x) {
        if (name == "layer_out" || name == "embed") taps[layer].assign(x.row(0), x.row(0) + x.elements());
    };
    const int32_t layers[] = {4, -1, 2};
    const int64_t D = model->info().hidden_size;
    FeatureCapture capture{layers, ctx.alloc(DType::f32, {n, 3 * D})};
    model->forward(ctx, device ? device->upload(host) : host, States{cache.views()}, &capture);
    const Values captured = host_values(options.gpu, capture.out);
    for (int64_t r = 0; r < n; ++r)
        for (size_t i = 0; i < 3; ++i)
            EXPECT_EQ(std::memcmp(captured.data() + r * 3 * D + static_cast<int64_t>(i) * D,
                                  taps[layers[i]].data() + r * D, static_cast<size_t>(D) * sizeof(float)),
                      0)
                << r << ", " << layers[i];
}

// ---- what is refused ----------------------------------------------------------------------------------------------

/// The fixture with other metadata and tensors.
struct Altered {
    explicit Altered(const std::string& name) : source(open_checkpoint(fixture_path(name) + "/model.safetensors")) {
        checkpoint.metadata()["config"] = fixture_config(name);
    }
    json::object& config() { return checkpoint.metadata()["config"].as_object(); }
    std::string load(const std::string& left_out = "") {
        for (const TensorInfo& t : source->tensors())
            if (t.name != left_out) checkpoint.add_view(t.name, t.dtype, t.shape, t.bytes);
        const auto target = open_checkpoint(fixture_path("laguna_xs2") + "/model.safetensors");
        return message_of([&] { load_drafter(checkpoint, *load_model(*target)); });
    }
    std::unique_ptr<Checkpoint> source;
    FakeCheckpoint checkpoint;
};

TEST(dflash, a_drafter_that_does_not_fit_is_refused_in_a_sentence) {
    EXPECT_EQ(Altered("dflash_zlab").load(), "no error");
    EXPECT_NE(Altered("dflash_zlab")
                  .load("layers.1.self_attn.k_norm.weight")
                  .find("missing tensor layers.1.self_attn.k_norm"),
              std::string::npos);
    Altered unused("dflash_laguna");
    unused.checkpoint.add_zeros("aux_hidden_norms.3.weight", DType::bf16, {64});
    EXPECT_NE(unused.load().find("does not use: aux_hidden_norms.3.weight"), std::string::npos);
    EXPECT_NE(Altered("dflash_laguna").load("aux_hidden_norms.0.weight").find("aux_hidden_norms"), std::string::npos);
    EXPECT_NE(Altered("dflash_laguna").load("layers.1.self_attn.g_proj.weight").find("some have none"),
              std::string::npos);
    EXPECT_NE(Altered("dflash_speculators").load("d2t").find("no d2t"), std::string::npos);
    Altered taps("dflash_zlab");
    taps.config()["dflash_config"].as_object()["target_layer_ids"] = {0, 2, 5};
    EXPECT_NE(taps.load().find("output of layer 5"), std::string::npos);
    Altered fewer("dflash_zlab");
    fewer.config()["dflash_config"].as_object()["target_layer_ids"] = {0, 2};
    EXPECT_NE(fewer.load().find("fc reads 192 columns"), std::string::npos);
    Altered words("dflash_zlab");
    words.config()["vocab_size"] = 256;
    EXPECT_NE(words.load().find("256 words"), std::string::npos);
    Altered layers("dflash_zlab");
    layers.config()["num_target_layers"] = 40;
    EXPECT_NE(layers.load().find("40 layers"), std::string::npos);
}

TEST(dflash, neither_is_taken_for_the_other) {
    const auto drafter = open_checkpoint(fixture_path("dflash_zlab") + "/model.safetensors"),
               target = open_checkpoint(fixture_path("laguna_xs2") + "/model.safetensors");
    const std::string refused = message_of([&] { load_model(*drafter); });
    EXPECT_NE(refused.find("is a DFlash drafter"), std::string::npos) << refused;
    EXPECT_NE(refused.find("with --drafter"), std::string::npos) << refused;
    const auto model = load_model(*target);
    EXPECT_NE(message_of([&] { load_drafter(*target, *model); }).find("is no DFlash drafter"), std::string::npos);
}

TEST(dflash, a_reduced_vocabulary_maps_to_the_targets) {
    const Drafting world("dflash_speculators");
    const auto ids = world.drafter->target_ids();
    ASSERT_EQ(ids.size(), 72u);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    EXPECT_LT(ids.back(), 128);
    const Drafting whole("dflash_zlab");
    EXPECT_EQ(whole.drafter->target_ids().size(), 128u);
    EXPECT_EQ(whole.drafter->target_ids()[77], 77);
}

}  // namespace
}  // namespace riptide::testing
