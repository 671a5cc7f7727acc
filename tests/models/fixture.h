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
#include "engine/session.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "tensor/half.h"

namespace riptide::testing {

inline std::string fixture_path(const std::string& name) {
    return std::string(RIPTIDE_SOURCE_DIR) + "/tests/fixtures/" + name;
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

    /// With K and V in f32, as transformers has them here. Small pages and chunks, so that every border is crossed.
    SessionOptions options(int32_t chunk_rows = 64) const {
        SessionOptions o;
        o.threads = 2;
        o.context = 512;
        o.k_dtype = o.v_dtype = DType::f32;
        o.chunk_rows = chunk_rows;
        o.page_rows = 16;
        return o;
    }
    std::unique_ptr<Session> session(int32_t chunk_rows = 64) const {
        return Session::open(model_path(), options(chunk_rows));
    }
};

inline const std::vector<std::string>& float_fixtures() {
    static const std::vector<std::string> names = {"laguna_xs2", "laguna_xs2_factor1", "laguna_xs21", "laguna_m1",
                                                   "laguna_odd", "laguna_odd_element", "qwen3_tied",  "qwen3_untied"};
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

inline double norm2(std::span<const float> values) {
    double sum = 0;
    for (const float v : values) sum += double{v} * v;
    return std::sqrt(sum);
}
inline double distance(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    return std::sqrt(sum);
}

/// The rows of a tap, one after the other, over all steps of a run.
using Taps = std::map<std::string, std::vector<float>>;

/// Collects every f32 tap of a session under the fixture's name for it: "tap.embed", "tap.3.attn_out".
inline void collect_taps(Session& session, Taps& taps) {
    session.runner().context().tap = [&taps](std::string_view name, int layer, const Tensor& value) {
        const std::string key = layer < 0 ? fmt::format("tap.{}", name) : fmt::format("tap.{}.{}", layer, name);
        if (value.dtype != DType::f32) return;
        for (int64_t r = 0; r < value.rows(); ++r)
            taps[key].insert(taps[key].end(), value.row(r), value.row(r) + value.row_elements());
    };
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
