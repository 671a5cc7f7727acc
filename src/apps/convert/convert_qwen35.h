// What GGUF stores otherwise than Hugging Face in Qwen3.5 models.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/convert/gguf_layout.h"
#include "tensor/tensor.h"

namespace riptide::apps {

/// A tensor on its way: rows of matrices one behind the other, or a vector; `columns`: for each column the one that it
/// comes from, empty: as they are.
struct HybridTensor {
    std::vector<Weight> parts;
    std::vector<float> vector;
    std::vector<int64_t> columns;
};

/// From Hugging Face's form to GGUF's: RMSNorm's factors with their 1 (but for ssm_norm), ssm_a = -exp(A_log), and in
/// all that has value heads these in tiled order, so that head h reads key head h % key_heads (ops/delta_view.h). Does
/// nothing to tensors that both store alike. Source: llama.cpp, conversion/qwen.py.
void to_gguf_form(const GgufLayout& layout, const LayoutTensor& tensor, HybridTensor& values);

/// Whether the values are read as a vector although they have two dimensions.
bool is_convolution(const LayoutTensor& tensor);

}  // namespace riptide::apps
