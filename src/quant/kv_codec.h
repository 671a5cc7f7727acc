// K and V rows as the cache stores them: encode, decode, and the rotation that TQ3_0 lives behind.
//
// A row is one head of one token (head_dim values). Encoding is a pure function of the row: never of its neighbours,
// the batch or the page. Types: f32, f16, bf16, f8_e4m3, q8_0, q4_0, tq3_0.
//
// Domains. kv_rotated(type) says that a cache of this type holds rotated rows. The codec itself never rotates: for such
// a type the caller rotates the row before encode_kv_row, and decode_kv_row gives rotated values back. R is
// orthonormal, so q . k = (R q) . (R k): rotate q once, compare it with decoded keys, and unrotate the sum of decoded
// values once.
// All functions are thread-safe and allocate nothing.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace riptide {

/// Whether KV rows can be stored in this type.
bool can_hold_kv(DType type);
/// Whether rows of this type are stored in the rotated domain: true for tq3_0 alone.
bool kv_rotated(DType type);

/// Encodes n values into row_bytes(type, n) bytes, placed as quant/kv_row.h says. Blocks hold 32 values; M is the
/// largest magnitude of a block.
///   f32         as is
///   f16, bf16   nearest even; f16 overflows to infinity
///   f8_e4m3     x / scale, nearest even, saturating at +-448; `scale` is a checkpoint's per-tensor scale
///   q8_0        d = f16(M / 127), q = round(x / d). |error| <= M / 254 (1 + 2^-10) + 2^-18
///   q4_0        the value of magnitude M becomes -8 d. |error| <= M / 16, or M / 8 for values of the other sign, which
///               have one level less; plus M 2^-11 + 2^-22 for the f16 rounding of d
///   tq3_0       eight Lloyd-Max levels of a Gaussian times d, the d of least squared error; relative mean squared
///               error on Gaussian values 0.0255 (0.0345 with d known in advance)
/// A block that is all zero decodes to zeros. Finite values never decode to NaN: a scale beyond f16 saturates at 65504.
/// A block of q8_0, q4_0 or tq3_0 that holds an infinity or a NaN decodes to NaN, so that it cannot pass for a result.
/// REQUIRES can_hold_kv(type) and n to be whole blocks. src and dst must not overlap; dst needs no alignment.
void encode_kv_row(DType type, const float* src, void* dst, int64_t n, float scale = 1.0f);

/// The inverse up to rounding: the values of the formats' blocks (quant/blocks.h), times `scale` (f8_e4m3 only). n as
/// given to encode_kv_row: a part of a row of a block type is not a row.
void decode_kv_row(DType type, const void* src, float* dst, int64_t n, float scale = 1.0f);

/// x <- R x in place. R acts on consecutive groups of g = 128 values, and on the rest in the largest powers of two:
///   R = S2 H S1 / sqrt(g), H the Sylvester-Hadamard matrix of size g, S1 and S2 diagonal matrices of fixed signs.
/// Sign i of S1 is bit 0, and of S2 bit 1, of output i of SplitMix64 started at 0x5249505449444521; a set bit is -1.
/// Every group uses the same signs. Cost: n log2(g) additions.
void kv_rotate(float* x, int64_t n);
/// x <- R^-1 x = R^T x in place.
void kv_unrotate(float* x, int64_t n);

}  // namespace riptide
