#include "apps/convert/convert_qwen35.h"

#include <cmath>
#include <numeric>

#include "base/error.h"

namespace riptide::apps {

namespace {

/// For each value head of GGUF's order the one of Hugging Face's.
std::vector<int64_t> tiled_heads(const DeltaView& d) {
    std::vector<int64_t> from;
    for (int64_t h = 0; h < d.value_heads; ++h)
        from.push_back(h % d.key_heads * (d.value_heads / d.key_heads) + h / d.key_heads);
    return from;
}

/// For `first` rows, then rows of value heads with `each` rows, the row that each comes from.
std::vector<int64_t> tiled_rows(const DeltaView& d, int64_t first, int64_t each) {
    std::vector<int64_t> from(static_cast<size_t>(first));
    std::iota(from.begin(), from.end(), 0);
    for (const int64_t head : tiled_heads(d))
        for (int64_t r = 0; r < each; ++r) from.push_back(first + head * each + r);
    return from;
}

/// The rows of a matrix in another order, runs of them as one part.
std::vector<Weight> reordered(const Weight& w, const std::vector<int64_t>& from) {
    RT_ASSERT(std::ssize(from) == w.rows);
    std::vector<Weight> parts;
    for (size_t begin = 0, end; begin < from.size(); begin = end) {
        for (end = begin + 1; end < from.size() && from[end] == from[end - 1] + 1;) ++end;
        parts.push_back(w.slice_rows(from[begin], static_cast<int64_t>(end - begin)));
    }
    return parts;
}

/// The same for rows of a vector.
std::vector<float> reordered(const std::vector<float>& values, const std::vector<int64_t>& from) {
    RT_ASSERT(values.size() % from.size() == 0);
    const auto width = static_cast<ptrdiff_t>(values.size() / from.size());
    std::vector<float> out;
    for (const int64_t row : from)
        out.insert(out.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
    return out;
}

}  // namespace

bool is_convolution(const LayoutTensor& tensor) { return tensor.name.ends_with(".ssm_conv1d.weight"); }

void to_gguf_form(const GgufLayout& layout, const LayoutTensor& tensor, HybridTensor& values) {
    const DeltaView& d = layout.delta;
    const auto is = [&](std::string_view suffix) { return tensor.name.ends_with(suffix); };
    const int64_t keys = 2 * d.key_heads * d.key_dim;
    if (is("norm.weight") && !is(".ssm_norm.weight"))
        for (float& factor : values.vector) factor += 1.0f;
    if (is(".ssm_a"))
        for (float& value : values.vector) value = -std::exp(value);
    if (is(".ssm_a") || is(".ssm_dt.bias")) values.vector = reordered(values.vector, tiled_rows(d, 0, 1));
    if (is_convolution(tensor)) values.vector = reordered(values.vector, tiled_rows(d, keys, d.value_dim));
    if (is(".attn_qkv.weight")) values.parts = reordered(values.parts.at(0), tiled_rows(d, keys, d.value_dim));
    if (is(".attn_gate.weight")) values.parts = reordered(values.parts.at(0), tiled_rows(d, 0, d.value_dim));
    if (is(".ssm_alpha.weight") || is(".ssm_beta.weight"))
        values.parts = reordered(values.parts.at(0), tiled_rows(d, 0, 1));
    if (is(".ssm_out.weight")) values.columns = tiled_rows(d, 0, d.value_dim);
}

}  // namespace riptide::apps
