// From a row of a file's blocks to the planes of quant/planes.h: the same functions on the CPU and in the kernel.
//
// One item is a piece of one row that can be made independently: 32 columns of a plane type, 16 bytes of a float type.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/blocks.h"
#include "quant/decode.cuh"
#include "quant/planes.h"
#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace riptide {

/// Rows [row_begin, row_begin + rows) of the placed matrix `to`, from the consecutive rows at `from`.
struct RepackTask {
    const uint8_t* from = nullptr;
    int64_t from_row_bytes = 0;
    DType source = DType::f32;
    Weight to;  // its memory is written
    int64_t row_begin = 0;
    int64_t rows = 0;
};

namespace repack {

RT_HD uint8_t* at(const void* plane, int64_t offset) {
    return const_cast<uint8_t*>(static_cast<const uint8_t*>(plane)) + offset;
}
/// REQUIRES p aligned to 16 bytes.
RT_HD void store16(uint8_t* p, const uint32_t (&words)[4]) {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
#else
    std::memcpy(p, words, 16);
#endif
}
template <class T>
RT_HD void store(uint8_t* p, T value) {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<T*>(p) = value;
#else
    std::memcpy(p, &value, sizeof value);
#endif
}
/// Little-endian words at any address.
RT_HD uint32_t word16(const uint8_t* p) { return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8; }
RT_HD uint32_t word32(const uint8_t* p) { return word16(p) | word16(p + 2) << 16; }

/// The bits of 2^(e - 128) as bfloat16.
RT_HD uint16_t e8m0_halved_bf16(uint8_t e) {
    return static_cast<uint16_t>(e < 2 ? 0x0020u << e : static_cast<uint32_t>(e - 1) << 7);
}
/// Half of an unsigned E4M3 scale as binary16 bits; its NaN code stands for zero. Exact: exponents -10 to 7.
RT_HD uint16_t ue4m3_halved_f16(uint8_t v) {
    const uint32_t bits = v & 0x7Fu, exponent = bits >> 3;
    uint32_t mantissa = bits & 7u;
    if (bits == 0x7Fu) return 0;
    if (exponent > 0) return static_cast<uint16_t>((exponent + 7u) << 10 | mantissa << 7);
    if (mantissa == 0) return 0;
    uint32_t lowered = 8;  // mantissa * 2^-10 = 1.x * 2^(-10 + position of its highest bit)
    for (; mantissa < 8; mantissa *= 2) --lowered;
    return static_cast<uint16_t>(lowered << 10 | (mantissa & 7u) << 7);
}
/// The scales of a Q4_K or Q5_K block, from its first sixteen bytes.
RT_HD void k_header(const uint8_t* block, uint8_t* to) {
    uint32_t words[4] = {0, 0, 0, word32(block)};
    const uint8_t* packed = block + 4;
    for (int g = 0; g < 8; ++g) {
        const uint32_t a = packed[g % 4], b = packed[4 + g % 4], c = packed[8 + g % 4];
        const uint32_t s = g < 4 ? a & 63u : (c & 15u) | (a >> 6) << 4, m = g < 4 ? b & 63u : c >> 4 | (b >> 6) << 4;
        words[0] |= (s & 15u) << (4 * g);
        words[1] |= (m & 15u) << (4 * g);
        words[2] |= (s >> 4) << (2 * g) | (m >> 4) << (16 + 2 * g);
    }
    store16(to, words);
}

/// Codes code(c), c in [0, 32), as sixteen bytes of nibbles.
template <class Code>
RT_HD void store_nibbles(uint8_t* to, const Code& code) {
    uint32_t words[4];
    for (int t = 0; t < 4; ++t) {
        words[t] = 0;
        for (int i = 0; i < 4; ++i)
            words[t] |= ((code(4 * t + i) & 15u) | (code(16 + 4 * t + i) & 15u) << 4) << (8 * i);
    }
    store16(to, words);
}
RT_HD void copy_nibbles(const uint8_t* from, uint8_t* to) {
    const uint32_t words[4] = {word32(from), word32(from + 4), word32(from + 8), word32(from + 12)};
    store16(to, words);
}

/// Sub-block j of a row whose blocks hold 256 columns; `sub` counts the sub-blocks of the whole matrix.
RT_HD void super_block(DType source, const uint8_t* row, const Weight& to, int64_t sub, int64_t j) {
    const int g = static_cast<int>(j % 8);
    const int64_t b = sub / 8;
    uint8_t* nibbles = at(to.data, 16 * sub);
    if (source == DType::q4_k) {
        const uint8_t* block = row + j / 8 * static_cast<int64_t>(sizeof(BlockQ4K));
        const uint8_t* qs = block + 16 + 32 * (g / 2);
        store_nibbles(nibbles, [&](int c) { return uint32_t{qs[c]} >> (4 * (g % 2)); });
        if (g == 0) k_header(block, at(to.scales, 16 * b));
    } else if (source == DType::q5_k) {
        const uint8_t* block = row + j / 8 * static_cast<int64_t>(sizeof(BlockQ5K));
        const uint8_t *qh = block + 16, *qs = block + 48 + 32 * (g / 2);
        store_nibbles(nibbles, [&](int c) { return uint32_t{qs[c]} >> (4 * (g % 2)); });
        uint32_t high = 0;
        for (int c = 0; c < 32; ++c) high |= (uint32_t{qh[c]} >> g & 1u) << (8 * (c % 4) + 4 * (c / 16) + c / 4 % 4);
        store(at(to.high, 4 * sub), high);
        if (g == 0) k_header(block, at(to.scales, 16 * b));
    } else if (source == DType::q6_k) {
        const uint8_t* block = row + j / 8 * static_cast<int64_t>(sizeof(BlockQ6K));
        const uint8_t *ql = block + 64 * (g / 4) + 32 * (g % 2), *qh = block + 128 + 32 * (g / 4);
        store_nibbles(nibbles, [&](int c) { return uint32_t{ql[c]} >> (g % 4 < 2 ? 0 : 4); });
        for (int half = 0; half < 2; ++half) {
            uint32_t high = 0;
            for (int c = 0; c < 16; ++c)
                high |= (uint32_t{qh[16 * half + c]} >> (2 * (g % 4)) & 3u) << (8 * (c % 4) + 2 * (c / 4));
            store(at(to.high, 8 * sub + 4 * half), high);
        }
        store(at(to.scales, 2 * sub), static_cast<uint16_t>(word16(block + 192 + 2 * g)));
        if (g == 0)
            store(at(to.scales, to.rows * (to.cols / 256) * 16 + 2 * b), static_cast<uint16_t>(word16(block + 208)));
    } else if (source == DType::q2_k) {
        const uint8_t* block = row + j / 8 * static_cast<int64_t>(sizeof(BlockQ2K));
        const uint8_t* qs = block + 16 + 32 * (g / 4);
        for (int half = 0; half < 2; ++half) {
            uint32_t codes = 0;
            for (int c = 0; c < 16; ++c)
                codes |= (uint32_t{qs[16 * half + c]} >> (2 * (g % 4)) & 3u) << (8 * (c % 4) + 2 * (c / 4));
            store(at(to.data, 8 * sub + 4 * half), codes);
        }
        store(at(to.scales, 2 * sub), static_cast<uint16_t>(word16(block + 2 * g)));
        if (g == 0) store(at(to.scales, to.rows * (to.cols / 256) * 16 + 4 * b), word32(block + 80));
    } else {  // iq4_xs
        const uint8_t* block = row + j / 8 * static_cast<int64_t>(sizeof(BlockIQ4XS));
        copy_nibbles(block + 8 + 16 * g, nibbles);
        const uint32_t s = (uint32_t{block[4 + g / 2]} >> (4 * (g % 2)) & 15u) | (word16(block + 2) >> (2 * g) & 3u)
                                                                                     << 4;
        store(at(to.scales, 4 * sub),
              float_of_f16(static_cast<uint16_t>(word16(block))) * static_cast<float>(static_cast<int>(s) - 32));
    }
}

/// As super_block, for types with smaller blocks or none.
RT_HD void simple_block(DType source, const uint8_t* row, const Weight& to, int64_t sub, int64_t j) {
    uint8_t* codes = at(to.data, (to.dtype == DType::planes_int8 ? 32 : 16) * sub);
    if (source == DType::q8_0 || source == DType::i8_pack) {
        const uint8_t* q = source == DType::q8_0 ? row + 34 * j + 2 : row + 32 * j;
        const uint32_t flip = source == DType::q8_0 ? 0u : 0x80808080u;  // i8_pack holds q + 128
        for (int half = 0; half < 2; ++half) {
            uint32_t words[4];
            for (int t = 0; t < 4; ++t) words[t] = word32(q + 16 * half + 4 * t) ^ flip;
            store16(codes + 16 * half, words);
        }
        if (source == DType::q8_0) store(at(to.scales, 2 * sub), static_cast<uint16_t>(word16(row + 34 * j)));
    } else if (source == DType::i4_pack || source == DType::f4_pack) {
        const uint8_t* q = row + 16 * j;
        store_nibbles(codes, [&](int c) { return uint32_t{q[c / 2]} >> (4 * (c % 2)); });
    } else if (source == DType::nvfp4) {
        const uint8_t* block = row + j / 2 * static_cast<int64_t>(sizeof(BlockNvfp4));
        const uint8_t* q = block + 4 + j % 2 * 16;
        store_nibbles(codes, [&](int c) { return uint32_t{q[c / 16 * 8 + c % 8]} >> (4 * (c / 8 % 2)); });
        for (int half = 0; half < 2; ++half)
            store(at(to.scales, 4 * sub + 2 * half), ue4m3_halved_f16(block[j % 2 * 2 + half]));
    } else if (source == DType::mxfp4) {
        const uint8_t* block = row + j * static_cast<int64_t>(sizeof(BlockMxfp4));
        copy_nibbles(block + 1, codes);
        store(at(to.scales, 2 * sub), e8m0_halved_bf16(block[0]));
    } else {  // q4_0, iq4_nl
        const uint8_t* block = row + j * static_cast<int64_t>(sizeof(BlockQ4_0));
        copy_nibbles(block + 2, codes);
        store(at(to.scales, 2 * sub), static_cast<uint16_t>(word16(block)));
    }
}

/// Bytes [16 j, 16 j + 16) of a row of a float type; f32 may become bf16 (by dropping bits). Padding is zero.
RT_HD void float_piece(const RepackTask& task, const uint8_t* row, uint8_t* to_row, int64_t j) {
    uint32_t words[4];
    const bool shorten = task.source == DType::f32 && task.to.dtype == DType::bf16;
    for (int t = 0; t < 4; ++t) {
        words[t] = 0;
        for (int i = 0; i < 4; ++i) {
            const int64_t byte = 16 * j + 4 * t + i, from = shorten ? byte / 2 * 4 + 2 + byte % 2 : byte;
            if (from < task.from_row_bytes) words[t] |= uint32_t{row[from]} << (8 * i);
        }
    }
    store16(to_row + 16 * j, words);
}

}  // namespace repack

RT_HD int64_t repack_items(const Weight& to) {
    const bool floats =
        to.dtype == DType::f32 || to.dtype == DType::f16 || to.dtype == DType::bf16 || to.dtype == DType::f8_e4m3;
    return floats ? to.row_bytes / 16 : to.cols / 32;
}

/// Makes item j of row r of the task; 0 <= j < repack_items(task.to).
RT_HD void repack_item(const RepackTask& task, int64_t r, int64_t j) {
    const uint8_t* row = task.from + r * task.from_row_bytes;
    const int64_t to_row = task.row_begin + r;
    switch (task.source) {
        case DType::f32:
        case DType::f16:
        case DType::bf16:
        case DType::f8_e4m3:
            return repack::float_piece(task, row, repack::at(task.to.data, to_row * task.to.row_bytes), j);
        case DType::q2_k:
        case DType::q4_k:
        case DType::q5_k:
        case DType::q6_k:
        case DType::iq4_xs:
            return repack::super_block(task.source, row, task.to, to_row * (task.to.cols / 32) + j, j);
        default:
            return repack::simple_block(task.source, row, task.to, to_row * (task.to.cols / 32) + j, j);
    }
}

}  // namespace riptide
