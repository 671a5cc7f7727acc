// A model that recites: what it says next stands in a script, and it finds its place by reading the prompt back out of
// its K/V. So real clients can be led through turns that no small model masters, over the real tokenizer, template,
// cache, scheduler and server; a page, ring or token that went wrong makes it say nothing more.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "models/model.h"
#include "tests/cache/fake_forward.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide::testing {

/// The first line whose `has` are all, and whose `lacks` are none of what stands behind the last `<user>` (or, with
/// `anywhere`, in the whole prompt) is what the model says.
struct ScriptLine {
    std::vector<std::string> has, lacks;
    bool anywhere = false;
    std::string reasoning;  // if the prompt opens a place for it
    std::string answer;     // with the dialect's markup
    int64_t numbers = 0;    // so many more words behind it: "0 1 2 ..."
};

struct ScriptOptions {
    std::vector<ScriptLine> lines;
    int64_t context = 32768;
    std::chrono::microseconds row_time{0};   // of a prompt's row
    std::chrono::microseconds step_time{0};  // of a step with answers' rows only
};

class ScriptModel final : public Model {
  public:
    ScriptModel(const Tokenizer& tokenizer, ScriptOptions options)
        : tokenizer_(tokenizer), options_(std::move(options)) {
        specs_ = {{StateSpec::Kind::paged, 1, 2, 0}, {StateSpec::Kind::window, 1, 2, 64}};
        info_.architecture = "script";
        info_.name = "a model that recites";
        info_.num_hidden_layers = std::ssize(specs_);
        info_.vocab_size = tokenizer.vocab_size();
        info_.max_position_embeddings = options_.context;
        user_ = tokenizer.id_of("<user>");
        assistant_ = tokenizer.id_of("<assistant>");
        think_ = tokenizer.id_of("<think>");
    }
    const ModelInfo& info() const override { return info_; }
    std::span<const StateSpec> state_specs() const override { return specs_; }
    Workspace workspace() const override { return {}; }

    Tensor embed(Context& ctx, const Batch& batch) const override { return ctx.alloc(DType::f32, {batch.rows(), 1}); }
    void layer(Context&, int64_t l, Tensor& x, const Batch& batch, const States& states) const override {
        fake_append(states.kv.subspan(static_cast<size_t>(l), 1), batch);
        if (l != info_.num_hidden_layers - 1) return;
        const int64_t answers = std::ssize(batch.row_begin);
        std::this_thread::sleep_for(batch.rows() > answers + 1 ? options_.row_time * batch.rows() : options_.step_time);
        for (const int32_t row : batch.logit_rows) {
            const std::vector<int32_t> seen = fake_read(states.kv[0], batch, row),
                                       recent = fake_read(states.kv[1], batch, row);
            const bool intact = std::equal(recent.rbegin(), recent.rend(), seen.rbegin()) &&
                                std::find(seen.begin(), seen.end(), -1) == seen.end();
            static_cast<float*>(x.data)[row] = intact ? static_cast<float>(next(seen)) : -1.0f;
        }
    }
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override {
        const Tensor logits = ctx.alloc(DType::f32, {std::ssize(batch.logit_rows), info_.vocab_size});
        auto* out = static_cast<float*>(logits.data);
        std::fill_n(out, logits.shape[0] * info_.vocab_size, -100.0f);
        for (const int32_t row : batch.logit_rows) {
            const auto token = static_cast<int64_t>(static_cast<const float*>(x.data)[row]);
            out[token >= 0 ? token : tokenizer_.eos()] = 100;
            out += info_.vocab_size;
        }
        return logits;
    }

  private:
    /// What follows `seen`: the next token of the line that fits the prompt.
    int32_t next(const std::vector<int32_t>& seen) const {
        const auto last = std::find(seen.rbegin(), seen.rend(), assistant_);
        if (last == seen.rend()) return tokenizer_.eos();
        // <assistant>, a newline, and <think> or </think> are the prompt's; what comes then has been said.
        const auto spoken = std::min<ptrdiff_t>(last.base() - seen.begin() + 2, std::ssize(seen));
        const std::vector<int32_t> prompt(seen.begin(), seen.begin() + spoken);
        const std::span said(seen.begin() + spoken, seen.end());
        if (plans_.size() > kPlans) plans_.clear();
        const auto [found, is_new] = plans_.try_emplace(prompt);
        if (is_new) found->second = plan(prompt);
        const std::vector<int32_t>& all = found->second;
        if (said.size() >= all.size() || !std::equal(said.begin(), said.end(), all.begin())) return tokenizer_.eos();
        return all[said.size()];
    }
    std::vector<int32_t> plan(const std::vector<int32_t>& prompt) const {
        const auto user = std::find(prompt.rbegin(), prompt.rend(), user_);
        const std::string whole = tokenizer_.decode(prompt);
        const std::string turn = user == prompt.rend() ? whole : tokenizer_.decode({user.base(), prompt.end()});
        for (const ScriptLine& line : options_.lines) {
            const std::string& text = line.anywhere ? whole : turn;
            const auto in = [&](const std::string& words) { return text.find(words) != std::string::npos; };
            if (!std::all_of(line.has.begin(), line.has.end(), in) ||
                std::any_of(line.lacks.begin(), line.lacks.end(), in))
                continue;
            const bool thinks = prompt.back() == think_;
            const std::string opening = thinks ? "\n" + line.reasoning + "\n</think>\n" : "\n";
            std::string answer = line.answer;
            for (int64_t i = 0; i < line.numbers; ++i) answer += std::to_string(i) + " ";
            return tokenizer_.encode(opening + answer + "\n</assistant>", {.parse_special = true});
        }
        return {};
    }

    const Tokenizer& tokenizer_;
    ScriptOptions options_;
    ModelInfo info_;
    std::vector<StateSpec> specs_;
    int32_t user_ = -1, assistant_ = -1, think_ = -1;
    static constexpr size_t kPlans = 256;
    mutable std::map<std::vector<int32_t>, std::vector<int32_t>> plans_;  // by prompt; one thread runs a model
};

}  // namespace riptide::testing
