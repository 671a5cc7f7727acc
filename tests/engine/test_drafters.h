// Drafters that are right, wrong or random on purpose.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/speculation/drafter.h"
#include "tensor/dtype.h"

namespace riptide::testing {

/// A model to draft for, and the type of its K/V.
struct ModelAndKv {
    std::string model;
    DType kv;
};

inline std::string model_and_kv_name(const ::testing::TestParamInfo<ModelAndKv>& info) {
    return info.param.model + "_" + dtype_name(info.param.kv);
}

/// Keeps what it is told. What it drafts is up to `rule`.
class TestDrafter : public Drafter {
  public:
    /// The drafts for a slot: of a sequence's tokens so far, slot and number of choices.
    using Rule =
        std::function<std::vector<DraftToken>(const std::vector<int32_t>& tokens, int32_t slot, int32_t choices)>;

    TestDrafter(int32_t slots, Rule rule) : slots_(slots), rule_(std::move(rule)) {}

    int32_t slots() const override { return slots_; }
    void begin(uint64_t sequence, std::span<const int32_t> tokens) override {
        texts[sequence].assign(tokens.begin(), tokens.end());
    }
    void extend(uint64_t sequence, std::span<const int32_t> tokens) override {
        auto& text = texts.at(sequence);
        text.insert(text.end(), tokens.begin(), tokens.end());
    }
    void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override {
        for (size_t i = 0; i < requests.size(); ++i) {
            out[i].clear();
            for (int32_t d = 0; d < requests[i].slots; ++d) {
                std::vector<DraftToken> drafts = rule_(texts.at(requests[i].sequence), d, requests[i].choices);
                if (drafts.empty()) break;
                out[i].slots.push_back(std::move(drafts));
            }
        }
    }
    void end(uint64_t sequence) override { texts.erase(sequence); }

    std::map<uint64_t, std::vector<int32_t>> texts;

  private:
    int32_t slots_;
    Rule rule_;
};

/// `count` different tokens, `first` among them at place `at`.
inline std::vector<DraftToken> drafts_with(int32_t first, int32_t at, int32_t count, int64_t vocab) {
    std::vector<DraftToken> all;
    for (int32_t i = 0; i < count; ++i) {
        const int64_t token = i == at ? first : (first + 1 + i) % vocab;
        all.push_back({static_cast<int32_t>(token), -0.3f - 0.7f * static_cast<float>(i)});
    }
    return all;
}

/// Knows `whole` (prompt and answer). right(slot) says where among the choices the true token is; beyond them it is
/// none.
inline TestDrafter::Rule oracle(std::vector<int32_t> whole, int64_t vocab, std::function<int32_t(int32_t slot)> right) {
    return [=](const std::vector<int32_t>& tokens, int32_t slot, int32_t choices) {
        const size_t index = tokens.size() + static_cast<size_t>(slot);
        const int32_t truth = index < whole.size() ? whole[index] : 0;
        return drafts_with(truth, right(slot), choices, vocab);
    };
}

inline TestDrafter::Rule random_drafts(uint32_t seed, int64_t vocab) {
    return [random = std::mt19937(seed), vocab](const std::vector<int32_t>&, int32_t, int32_t choices) mutable {
        const auto any = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
        const auto count = static_cast<int32_t>(random() % static_cast<uint32_t>(choices + 1));
        return drafts_with(any, static_cast<int32_t>(random() % 3), count, vocab);
    };
}

/// That the last token comes again and again.
inline TestDrafter::Rule repeating(int64_t vocab) {
    return [vocab](const std::vector<int32_t>& tokens, int32_t, int32_t choices) {
        return drafts_with(tokens.back(), 0, choices, vocab);
    };
}

}  // namespace riptide::testing
