// Small models with the values that transformers computed for them (tests/fixtures, made by python/fixtures).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "engine/sampling/form_cache.h"
#include "engine/sampling/logits_hash.h"
#include "engine/sampling/sampler.h"
#include "engine/session/session.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "tensor/half.h"
#include "tests/models/rounding.h"
#include "tests/source_dir.h"
#include "tests/test_device.h"

namespace riptide::testing {

inline std::string fixture_path(const std::string& name) { return source_dir() + "/tests/fixtures/" + name; }
/// Its config.json.
inline json::object fixture_config(const std::string& name) {
    return parse_json(read_file(fixture_path(name) + "/config.json", 1 << 20), "config.json").as_object();
}
/// The target that a drafter of the fixtures was made for.
inline std::string target_of(const std::string& drafter) {
    return drafter == "dflash_hybrid" || drafter == "dflash_grammar" ? "qwen35_tied" : "laguna_xs2";
}

/// A tensor of expected values.
struct Expected {
    std::vector<int64_t> shape;
    std::vector<float> f32;
    std::vector<int32_t> i32;
    std::span<const float> row(int64_t r) const {
        const auto width = static_cast<size_t>(shape[1]);
        return std::span(f32).subspan(static_cast<size_t>(r) * width, width);
    }
};

struct Prompt {
    std::vector<int32_t> tokens, greedy;
};

struct Fixture {
    std::string name;
    std::unique_ptr<Checkpoint> expected;
    std::vector<Prompt> prompts;
    size_t tap_prompt = 0;  // without taps: just some prompt

    explicit Fixture(const std::string& name_) : name(name_) {
        expected = open_checkpoint(fixture_path(name) + "/expected.safetensors");
        std::string text = read_file(fixture_path(name) + "/prompts.json", 1 << 20);
        const json::value parsed = parse_json(text, "prompts.json");
        for (const json::value& prompt : parsed.at("prompts").as_array())
            prompts.push_back({json::value_to<std::vector<int32_t>>(prompt.at("tokens")),
                               json::value_to<std::vector<int32_t>>(prompt.at("greedy"))});
        if (parsed.at("tap_prompt").is_number()) tap_prompt = parsed.at("tap_prompt").to_number<size_t>();
    }

    std::string model_path() const { return fixture_path(name) + "/model.safetensors"; }

    bool has(const std::string& tensor) const { return expected->find(tensor) != nullptr; }
    Expected get(const std::string& tensor) const {
        const TensorInfo* info = expected->find(tensor);
        RT_CHECK(info != nullptr, "{} has no {}", name, tensor);
        Expected out;
        out.shape = info->shape;
        if (info->dtype == DType::f32) {
            out.f32.resize(info->bytes.size() / 4);
            std::memcpy(out.f32.data(), info->bytes.data(), info->bytes.size());
        } else {
            RT_CHECK(info->dtype == DType::i32, "{}: {} is {}", name, tensor, dtype_name(info->dtype));
            out.i32.resize(info->bytes.size() / 4);
            std::memcpy(out.i32.data(), info->bytes.data(), info->bytes.size());
        }
        return out;
    }

    /// On the device that the tests run on, with K and V in f32, as transformers has them here. Small pages and chunks,
    /// so that every border is crossed.
    SessionOptions options(int32_t chunk_rows = 64) const {
        SessionOptions o;
        o.threads = 2;
        o.context = 512;
        o.k_dtype = o.v_dtype = DType::f32;
        o.chunk_rows = chunk_rows;
        o.page_rows = 16;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        return o;
    }
    std::unique_ptr<Session> session(int32_t chunk_rows = 64) const {
        return Session::open(model_path(), options(chunk_rows));
    }
};

inline const std::vector<std::string>& float_fixtures() {
    static const std::vector<std::string> names = {"laguna_xs2",  "laguna_xs2_factor1", "laguna_xs21", "laguna_m1",
                                                   "laguna_odd",  "laguna_odd_element", "qwen3_tied",  "qwen3_untied",
                                                   "qwen35_tied", "qwen35_odd",         "qwen35_moe"};
    return names;
}
inline const std::vector<std::string>& packed_fixtures() {
    static const std::vector<std::string> names = {"laguna_fp8", "laguna_int4", "laguna_nvfp4"};
    return names;
}
inline std::vector<std::string> all_fixtures() {
    std::vector<std::string> names = float_fixtures();
    names.insert(names.end(), packed_fixtures().begin(), packed_fixtures().end());
    return names;
}
inline std::string fixture_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

/// The rows of a contiguous f32 tensor of a model on `gpu` (null: the CPU), one after the other.
inline std::vector<float> host_values(Gpu* gpu, const Tensor& t) {
    std::vector<float> values(static_cast<size_t>(t.elements()));
    if (gpu == nullptr) std::memcpy(values.data(), t.data, values.size() * sizeof(float));
    else gpu->to_host(values.data(), t.data, static_cast<int64_t>(values.size() * sizeof(float)));
    return values;
}

inline void expect_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0) << what << ": value " << i;
}

/// What one forward pass over some tokens computed.
struct Pass {
    std::vector<float> logits;                       // of every position, row after row
    std::map<std::string, std::vector<float>> taps;  // f32 ones, by the fixture's names: "tap.embed", "tap.3.attn_out"
    /// What sparse layers chose, in the order in which they did: layer by layer for each step.
    struct Choice {
        int layer;
        std::vector<int32_t> experts;  // [rows, top_k]
    };
    std::vector<Choice> choices;
    /// Those of a layer, row after row.
    std::vector<int32_t> experts(int layer) const {
        std::vector<int32_t> all;
        for (const Choice& c : choices)
            if (c.layer == layer) all.insert(all.end(), c.experts.begin(), c.experts.end());
        return all;
    }
};

/// Runs tokens in steps of 64 rows. `gpu`: where the model lies. `follow` (the CPU only): use the experts that this
/// pass chose.
inline Pass forward_pass(const Model& model, Gpu* gpu, std::span<const int32_t> tokens, Family family,
                         const Pass* follow = nullptr, DType kv = DType::f32) {
    constexpr int64_t kStep = 64;
    KvCacheOptions options;
    options.k_dtype = options.v_dtype = kv;
    options.page_rows = 16;
    options.pages = static_cast<int32_t>((std::ssize(tokens) + 15) / 16);
    options.max_step_rows = kStep;
    KvCache cache(model.state_specs(), options, gpu);
    ThreadPool threads(2);
    Runner runner(model, cache, &threads);
    SequenceState sequence(cache);
    Pass pass;
    runner.context().tap = [&](std::string_view name, int layer, const Tensor& value) {
        const std::string key = layer < 0 ? fmt::format("tap.{}", name) : fmt::format("tap.{}.{}", layer, name);
        if (name == "router_experts")
            pass.choices.push_back({layer, {value.row<int32_t>(0), value.row<int32_t>(0) + value.elements()}});
        if (value.dtype != DType::f32) return;
        auto& rows = pass.taps[key];
        for (int64_t r = 0; r < value.rows(); ++r)
            rows.insert(rows.end(), value.row(r), value.row(r) + value.row_elements());
    };
    size_t next = 0;
    if (follow != nullptr)
        runner.context().reroute = [&](Tensor& experts) {
            const std::vector<int32_t>& chosen = follow->choices.at(next++).experts;
            RT_ASSERT(std::ssize(chosen) == experts.elements());
            std::copy(chosen.begin(), chosen.end(), experts.row<int32_t>(0));
        };
    for (int64_t begin = 0; begin < std::ssize(tokens); begin += kStep) {
        const auto rows = static_cast<size_t>(std::min(kStep, std::ssize(tokens) - begin));
        const StepItem item{&sequence, tokens.subspan(static_cast<size_t>(begin), rows), {}, StepRows::Logits::all, {}};
        const std::vector<float> logits = host_values(gpu, runner.step(std::span(&item, 1), family));
        pass.logits.insert(pass.logits.end(), logits.begin(), logits.end());
        sequence.commit_prefix(static_cast<int64_t>(rows));
    }
    return pass;
}
inline Pass forward_pass(Session& session, std::span<const int32_t> tokens, Family family) {
    return forward_pass(session.model(), session.gpu(), tokens, family);
}

/// What follows a prompt where each token is drawn here from a session's logits, one at a time: the judge of whoever is
/// faster. Ends at max_tokens, or behind a stop id of `sampling`. `allowed`: the answer's form, or null.
struct Drawn {
    std::vector<int32_t> tokens;
    uint64_t logits_hash = 0;
};
inline Drawn draw(Session& session, std::span<const int32_t> prompt, const SamplingParams& sampling,
                  AllowedTokens* allowed = nullptr) {
    Drawn out;
    LogitsHash hash;
    Sampler sampler(sampling, session.model().info().vocab_size, sampling.stop_ids, prompt);
    std::span<const float> logits = session.prefill(prompt);
    for (;;) {
        hash.add(logits);
        const std::span<const uint64_t> fitting = allowed != nullptr ? allowed->next() : std::span<const uint64_t>();
        const int32_t token = sampler.sample(logits, std::ssize(session.tokens()), fitting).token;
        if (std::ranges::find(sampling.stop_ids, token) != sampling.stop_ids.end()) break;
        out.tokens.push_back(token);
        if (std::ssize(out.tokens) == sampling.max_tokens) break;
        sampler.accept(token);
        if (allowed != nullptr) allowed->accept(token);
        logits = session.decode(token);
    }
    out.logits_hash = hash.value();
    return out;
}
inline Drawn draw_greedily(Session& session, std::span<const int32_t> prompt, int64_t tokens) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = tokens;
    return draw(session, prompt, sampling);
}

/// The logits of every position, row after row.
inline std::vector<float> all_logits(Session& session, std::span<const int32_t> tokens) {
    std::vector<float> logits;
    session.score(tokens, [&](int64_t, const Tensor& rows) {
        for (int64_t r = 0; r < rows.rows(); ++r)
            logits.insert(logits.end(), rows.row(r), rows.row(r) + rows.row_elements());
    });
    return logits;
}

}  // namespace riptide::testing
