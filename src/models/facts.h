// Counting what one token costs, and naming a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint.h"
#include "tensor/tensor.h"

namespace riptide {

/// Parameters and weight bytes that one token uses.
struct TokenCost {
    int64_t parameters = 0;
    int64_t bytes = 0;

    /// `times` matrices like w.
    void add(const Weight& w, int64_t times = 1);
    /// One row of w.
    void add_row(const Weight& w);
    void add(std::span<const float> values);
};

/// general.name of a GGUF file, else the last part of the path.
std::string model_name(const Checkpoint& checkpoint);

}  // namespace riptide
