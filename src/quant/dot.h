// Dot products of weight rows with activation rows on the CPU: one definition, one kernel set for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace riptide {

// The definition that every kernel computes, bit for bit, on every instruction set and for any number of rows:
//
// Float weights (f32, f16, bf16, f8_e4m3, i4_pack, i8_pack, f4_pack), activations f32:
//   w_c = stored * plane * scale, each product rounded to f32; missing columns up to a multiple of 16 count as zeros;
//   lane[c % 16] = fma(w_c, x_c, lane[c % 16]) in the order of c; then lanes i and i + 8 are added, i and i + 4, + 2,
//   + 1.
//
// Block weights (all other types of files), activations int8 with one f32 scale for 32 values (see Int8Row):
//   a weight is s * (u - z) - m with u an unsigned byte, z a constant of the format, s and m exact in f32 and shared by
//   a group of 32 values, or by each half of it (s0, s1, m0, m1). For group g with activation scale d: S = sum of u * a
//   (exact int32), A = sum of a (exact); v = s * (S - z A), then fma(s1, S1 - z A1, v) if there are halves; then
//   fma(-m, A, v) for each m; lane[g % 8] = fma(v, d, lane[g % 8]); missing groups up to a multiple of 8 count as
//   zeros; y = (((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))) * scale. Types with an Int8Block: u - z is its
//   code, s its scale, with halves if int8_group() is 16.
//
// Error against the exact product with f32 activations. Quantising x: |x_c - d a_c| <= (0.5 + 2^-16) d, d = amax_32 /
// 127, so sum_c |w_c| * 0.502 * amax(c) / 127. Rounding: (4 + ceil(K / 256) + 4) * 2^-24 * sum_g d_g (|s| |S - z A| +
// |m| |A|). Per-32 scales rather than per-256 ones: a single outlier then coarsens 31 neighbours instead of 255.

/// One activation row as int8: `padded` = cols rounded up to 256. In memory: int8 a[padded] (natural order, zeros
/// behind cols), f32 d[padded/32], f32 sum32[padded/32], f32 sum16[padded/16]. The sums are of a, without d; in each
/// run of 16 sums the first eight are those of the first halves of eight groups, the last eight those of their second
/// halves. d = amax / 127, a = round-to-even(x * (127 / amax)). A group below 2^-100 is zero; one that holds an
/// infinity or a NaN has d = NaN, so that it shows in the result. All f32: in late layers activations leave the range
/// of f16.
struct Int8Row {
    const int8_t* a;
    const float* d;
    const float* sum32;
    const float* sum16;

    static int64_t padded(int64_t cols) { return (cols + 255) / 256 * 256; }
    static int64_t bytes(int64_t cols) { return padded(cols) / 2 * 3; }
};
Int8Row int8_row(const void* row, int64_t cols);

/// Whether weights of this type are multiplied with Int8Row activations (block types) or f32 ones.
bool uses_int8_activations(DType type);
/// Whether there is a dot product for this weight type at all.
bool has_dot(DType type);

/// y[i * y_stride + o - row_begin] = W[o, :] . x_i for o in [row_begin, row_end), i in [0, n).
struct DotTask {
    const Weight* w = nullptr;
    int64_t row_begin = 0;
    int64_t row_end = 0;
    const void* x = nullptr;           // f32 rows, or Int8Row rows if uses_int8_activations(w->dtype)
    int64_t x_stride = 0;              // bytes from row to row
    const int32_t* x_index = nullptr;  // row i is x row x_index[i]; nullptr: row i
    int64_t n = 0;
    float* y = nullptr;
    int64_t y_stride = 0;     // floats
    void* scratch = nullptr;  // dot_scratch_bytes(*w), 64-byte aligned, one for each thread

    const void* x_row(int64_t i) const {
        return static_cast<const char*>(x) + (x_index == nullptr ? i : int64_t{x_index[i]}) * x_stride;
    }
};
/// By the columns alone, whatever the type: callers ask for one matrix of many.
int64_t dot_scratch_bytes(const Weight& w);

enum class Isa { baseline, avx2, avx512 };

/// The kernels of one instruction set. avx512 means F, BW, DQ, VL and VNNI; avx2 includes FMA and F16C.
struct DotKernels {
    Isa isa;
    const char* name;
    /// Writes values [begin, end) of the Int8Row of `cols` values at out; x points to value `begin`. begin is a
    /// multiple of 32, end one or cols. end == cols writes the padding too.
    void (*quantize)(const float* x, int64_t begin, int64_t end, int64_t cols, void* out);
    void (*dot)(const DotTask& task);
};
bool isa_available(Isa isa);
/// REQUIRES isa_available(isa).
const DotKernels& dot_kernels(Isa isa);
/// Those of the best instruction set that this CPU has.
const DotKernels& dot_kernels();

}  // namespace riptide
