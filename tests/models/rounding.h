// How far apart two correct forward passes may be.
//
// Sums in f32 (u = 2^-24) from the same stored weights in different orders: with rounding errors as independent random
// variables (Higham and Mary 2019), a sum of K products is off by about u sqrt(K) |w| |x|, relative to the norms of its
// operands; errors of consecutive sums add in quadrature, and the residual stream passes them on with gain about 1.
// After sums of K_1, K_2, ... products a vector x is then off by u sqrt(K_1 + K_2 + ...) |x|.
//
// Operands that are rounded to fewer bits add to that: a vector whose elements are rounded with relative errors of
// standard deviation s is off by s |x|, and so is a product with it (each output by s |w| |x| at most; by s |w| |x| /
// sqrt(K) if the error has no preferred direction).
#pragma once

#include <cmath>
#include <vector>

#include "io/hf_config.h"
#include "models/binder.h"
#include "quant/codec.h"
#include "tensor/context.h"

namespace riptide::testing {

/// Relative standard deviations of what the operands of products are rounded by.
struct OperandRounding {
    double activations = 0, weights = 0;  // of matrix products
    double attention = 0;                 // queries, keys, weights and values
    double results = 0;                   // of experts, before they are added up

    double product() const { return activations * activations + weights * weights; }

    /// Only f32.
    static OperandRounding none() { return {}; }
    /// A GPU's prefill family. bf16 has eight digits: a relative error of at most 2^-8, and uniform. Weights that are
    /// not bf16 in the file are rounded too, as are the results of experts. K/V in f32 are multiplied as f16.
    static OperandRounding prefill(bool weights_are_bf16) {
        const double bf16 = 0x1p-8 / std::sqrt(3.0);
        return {bf16, weights_are_bf16 ? 0 : bf16, 0x1p-11 / std::sqrt(3.0), bf16};
    }
    /// Activations in int8, 32 with one scale: steps of amax / 127, uniform errors, and amax at most the norm of
    /// the 32.
    static OperandRounding int8() { return {std::sqrt(32.0 / 12.0) / 127, 0, 0x1p-11 / std::sqrt(3.0)}; }
    /// Of two passes that round independently.
    friend OperandRounding operator+(const OperandRounding& a, const OperandRounding& b) {
        return {std::hypot(a.activations, b.activations), std::hypot(a.weights, b.weights),
                std::hypot(a.attention, b.attention), std::hypot(a.results, b.results)};
    }
};

/// The relative variance of the residual stream, layer by layer.
struct Variance {
    static constexpr double kRoundoff = 0x1p-24;

    std::vector<double> router;   // of what layer l's feed-forward network reads
    std::vector<double> through;  // at the end of layer l
    double head = 0;              // of the logits

    /// `heads[l]` query heads of head_dim d, hidden size D, feed-forward width F, at most `keys` keys.
    Variance(const std::vector<double>& heads, double D, double d, double F, double keys,
             const OperandRounding& rounding) {
        constexpr double kSquare = kRoundoff * kRoundoff;
        double sum = 0;
        for (const double H : heads) {
            sum += kSquare * (D + D + d + keys + H * d);  // norm, q k v, scores, values, o_proj
            sum += 2 * rounding.product() + 4 * rounding.attention * rounding.attention;
            router.push_back(sum + kSquare * D);
            // Norm, gate and up, down (or experts: fewer products).
            sum += kSquare * (D + D + F) + 2 * rounding.product() + rounding.results * rounding.results;
            through.push_back(sum);
        }
        head = sum + kSquare * (D + D) + rounding.product();
    }
    /// Of the model in a Hugging Face folder. A linear layer counts as attention of its value heads: its state is a sum
    /// over the keys, as the value of a row is there.
    static Variance of(const Checkpoint& checkpoint, int64_t keys, const OperandRounding& rounding = {}) {
        const ConfigReader outer = hf_config(checkpoint);
        const ConfigReader c = outer.has("text_config") ? outer.child("text_config") : outer;
        const auto layers = c.get<int64_t>("num_hidden_layers");
        const char* per_layer =
            c.has("num_attention_heads_per_layer") ? "num_attention_heads_per_layer" : "num_attention_heads";
        std::vector<double> heads;
        for (const auto H : c.get_per_layer(per_layer, layers)) heads.push_back(static_cast<double>(H));
        for (size_t l = 0; l < heads.size() && c.has("linear_num_value_heads"); ++l)
            if (c.get<std::vector<std::string>>("layer_types")[l] == "linear_attention")
                heads[l] = c.get<double>("linear_num_value_heads");
        return {heads,
                c.get<double>("hidden_size"),
                c.get<double>("head_dim"),
                c.get<double>(c.has("intermediate_size") ? "intermediate_size" : "shared_expert_intermediate_size"),
                static_cast<double>(keys),
                rounding};
    }
};

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
/// Row r of rows of `width` values.
template <class T>
std::span<const T> row_at(const std::vector<T>& rows, size_t r, size_t width) {
    return std::span(rows).subspan(r * width, width);
}

/// The rows of a matrix, in f32.
inline std::vector<std::vector<float>> matrix_rows(const Weight& w) {
    std::vector<std::vector<float>> rows(static_cast<size_t>(w.rows), std::vector<float>(static_cast<size_t>(w.cols)));
    for (int64_t r = 0; r < w.rows; ++r) dequantize_row(w, r, rows[static_cast<size_t>(r)].data());
    return rows;
}
/// The head of a checkpoint, tied or not: [vocabulary][hidden].
inline std::vector<std::vector<float>> head_rows(const Checkpoint& checkpoint) {
    Binder bind(checkpoint);
    TensorNames embedding = {{"token_embd.weight"}, {"model.embed_tokens.weight"}};
    if (!bind.has(embedding)) embedding.hf = {"model.language_model.embed_tokens.weight"};
    TensorNames head = {{"output.weight"}, {"lm_head.weight"}};
    if (!bind.has(head)) head = embedding;
    const bool gguf = checkpoint.format() == Checkpoint::Format::gguf;
    const int64_t vocab = bind.rows_of(head);
    return matrix_rows(bind.matrix(head, vocab, checkpoint.find((gguf ? head.gguf : head.hf)[0])->shape[1]));
}

}  // namespace riptide::testing
