// What storing K/V or weights in a smaller type costs a model, or a window over its full-attention layers: perplexity,
// distance of the distributions, facts found in long texts.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/flags/model_flags.h"

#include "base/json.h"

namespace riptide::apps {

/// A question whose answer stands somewhere in its own prompt.
struct Needle {
    std::string prompt;  // rendered, control tokens written out
    std::string answer;  // right if the model's greedy answer contains it
};
/// Reads a JSON array of {"prompt", "answer"}. Throws Error naming the file.
std::vector<Needle> read_needles(const std::string& path);

struct KvQuality {
    std::string kv;      // "f16", "q8_0/q4_0"; of measure_files: the file; of measure_windows: "all", "2,048"
    double bits = 0;     // a stored value takes, K and V together; of measure_files: a weight; of measure_windows: 0
    int64_t tokens = 0;  // predicted
    double perplexity = 0;
    double loss = 0;        // nats a token more than the reference
    double loss_error = 0;  // standard error of it: of the differences token by token, taken as independent
    double divergence = 0;  // KL(reference || this), nats a token
    double agreement = 0;   // share of tokens with the reference's most likely one
    int64_t found = 0;      // needles

    /// The loss is more than two standard errors above 0, or fewer needles are found.
    bool measurably_worse(const KvQuality& reference) const;
};

/// One entry for each of `types`, behind the reference, f16 with prefill in bf16, which comes first. `pieces` are
/// scored each from an empty context. Keeps the reference's logits in memory: 4 bytes for each token and entry of the
/// vocabulary. Throws Error if interrupted.
std::vector<KvQuality> measure_kv_quality(ModelFlags flags, std::span<const std::vector<int32_t>> pieces,
                                          std::span<const Needle> needles, const std::vector<std::string>& types);

/// The model of `flags`, which is the reference, and behind it the same model in other files, each with K/V as the
/// flags say. Nothing is found in them. Throws Error if one has another vocabulary.
std::vector<KvQuality> measure_files(const ModelFlags& flags, std::span<const std::vector<int32_t>> pieces,
                                     const std::vector<std::string>& files);
/// Their Markdown table.
std::string files_markdown(std::span<const KvQuality> rows);

/// The model of `flags` with none, which is the reference, and behind it with each of `windows` over its
/// full-attention layers (--attention-window).
std::vector<KvQuality> measure_windows(const ModelFlags& flags, std::span<const std::vector<int32_t>> pieces,
                                       std::span<const Needle> needles, const std::vector<int64_t>& windows);
/// Their Markdown table.
std::string windows_markdown(std::span<const KvQuality> rows, int64_t needles);

/// A Markdown table, and a sentence that names the cheapest type that is not measurably worse.
std::string markdown(std::span<const KvQuality> rows, int64_t needles);
boost::json::array to_json(std::span<const KvQuality> rows);

}  // namespace riptide::apps
