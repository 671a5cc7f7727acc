// Weights of grids (IQ1, IQ2, IQ3) and of three values (TQ1_0, TQ2_0) as small integers with scales: what planes on a
// GPU are made of, and products by the baseline on the CPU.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace riptide {

/// 256 weights: number i is codes[i] * scales[i / 16], rounded to f32, the value that the format defines. As it lies in
/// memory it is a block of DType::int8_16; one of int8_32 has eight scales, one for 32 weights.
struct Int8Block {
    int8_t codes[256];
    float scales[16];
};
static_assert(sizeof(Int8Block) == 320);

/// How many weights share a scale: 16, 32 or 256; 0 for types that have no such form.
int int8_group(DType type);

/// REQUIRES int8_group(type) > 0.
void make_int8_block(DType type, const void* block, Int8Block& out);

}  // namespace riptide
