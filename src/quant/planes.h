// How quantised weights lie in device memory: the file's blocks taken apart into planes that can be read 16 bytes at a
// time.
//
// A sub-block is 32 consecutive columns. Its sixteen bytes of nibbles are four words: byte i of word t holds column
// 4 t + i in its low nibble and column 16 + 4 t + i in its high one, so that a word masked with 0x0F0F0F0F, or shifted
// right by 4 and masked, is four consecutive columns as bytes: what dp4a and an mma fragment want.
//
//   dtype        data [rows][cols/32]   high                   scales                               value
//   planes_q4_k  16 B nibbles           -                      [rows][cols/256] KHeader             d s u - dmin m
//   planes_q5_k  16 B nibbles           [rows][cols/32] u32    [rows][cols/256] KHeader             d s u - dmin m
//   planes_q6_k  16 B nibbles           [rows][cols/32] uint2  [rows][cols/256] 16 int8,            d s (u - 32)
//                                                              then f16 d [rows][cols/256]
//   planes_q2_k  8 B of two bits        -                      [rows][cols/256] 16 bytes s | m << 4,
//                                                              then f16 d, dmin [rows][cols/256]    d s u - dmin m
//   planes_int8  32 B int8, in order    -                      [rows][cols/scale_cols]              q p
//   planes_int4  16 B nibbles           -                      [rows][cols/scale_cols]              (u - 8) p
//   planes_levels 16 B nibbles          -                      [rows][cols/scale_cols]              kLevels[levels][u]
//   p
//
// p = plane entry (scale_dtype f16, bf16 or f32; scale_cols 16 or a multiple of 32) * Weight::scale. The 0.5 of E2M1 is
// in the plane. u of q5_k: bit 4 of column 4 t + i is bit 8 i + t of the high word, of column 16 + 4 t + i bit 8 i + 4
// + t. u of q6_k: bits 4, 5 of column 4 t + i are bits 8 i + 2 t, + 1 of high word 0, of column 16 + 4 t + i of high
// word 1; u of q2_k: the same bits of its two words. Scales of q6_k and q2_k are one for 16 columns. All planes are
// exact: the values are those of the file.
//
// From the file's types: q2_k, q4_k, q5_k, q6_k; q3_k -> planes_q6_k; q8_0, i8_pack and q5_0 (f16 plane) ->
// planes_int8; q4_0, i4_pack and tq1_0, tq2_0 (f16 plane, 256 columns) -> planes_int4. planes_levels: iq4_nl (f16
// plane), iq4_xs, iq1_s, iq2_xxs, iq3_xxs and iq3_s (f32 plane), iq1_m, iq2_xs and iq2_s (f32 plane, 16 columns), mxfp4
// (bf16 plane), nvfp4 and f4_pack (f16 plane, 16 columns). f32, f16, bf16 and f8_e4m3 keep their rows, each padded to
// 16 bytes (row_bytes says so); an f32 matrix whose values are all bf16 (a router) becomes bf16. q4_1 and q5_1 become
// f16.
#pragma once

#include <cstdint>

#include "quant/blocks.h"
#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace riptide {

/// The scales of 256 weights of planes_q4_k and planes_q5_k.
struct alignas(16) KHeader {
    uint32_t s_low;  // bits 4 g .. 4 g + 3: the low four bits of scale g
    uint32_t m_low;  // the same of minimum g
    uint32_t high;   // bits 2 g, 2 g + 1: the high two bits of scale g; 16 + 2 g, + 1: of minimum g
    uint16_t d;      // binary16
    uint16_t dmin;
};

RT_HD int k_scale(uint32_t low, uint32_t high, int g) {
    return static_cast<int>(((low >> (4 * g)) & 15u) | (((high >> (2 * g)) & 3u) << 4));
}

/// Whether rows of this type are multiplied with int8 activations (quant/act_rows.h) on a GPU (or, where
/// ops/cuda/linear/kquant_f16.h says so, f16 ones): all planes_* types.
bool is_planes(DType type);

/// Bytes that a placed weight takes, planes and padding included.
int64_t placed_bytes(const Weight& w);

}  // namespace riptide
