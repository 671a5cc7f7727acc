// One row of x times large matrices by tensor cores (decode_dense_diag.cu): how tiles are shared out, how their weights
// come, and the arithmetic of a step. The bits are those of decode_dot.cuh.
//
// A tile is sixteen weight rows: two halves of eight neighbours, or eight rows of gate and the same of up. A step is a
// block of 256 columns of a tile, by one warp: an mma.m16n8k32 whose COLUMN n is sub-block n of the block. Lane 4 g + t
// holds sub-blocks t and t + 4 of its two rows as they lie in memory; word i of all lanes is A of product i. Its B is x
// of sub-block n in column n, in the four k of the lanes that hold sub-block n, and zero elsewhere (read from a place
// that holds zeros). After eight products a lane has the exact sums of four sub-blocks, two in each of its rows, and
// all lanes are busy with the floating-point part.
//
// The canonical sum has 32 chains, sub-blocks j mod 32: chain 8 q + n is column n of blocks q, q + 4, ... So four warps
// (a quad) have a tile, warp q blocks q, q + 4, ..., and one accumulator for each product; they are added xor 16 and 8
// through shared memory, xor 4 and 2 from lane to lane and xor 1 in a lane.
#pragma once

#include "ops/decode_batch.cuh"
#include "ops/decode_dense.cuh"
#include "ops/decode_dense_tile.cuh"
#include "ops/decode_matmul.cuh"

namespace riptide::ops::cuda::decode {

constexpr int kDiagRows = 16;
/// A CTA has so many quads, two warps that ask for weights (each for a half of a tile) and one for float rows.
constexpr int diag_multiplying(int quads) { return 128 * quads; }
constexpr int diag_threads(int quads) { return 128 * quads + 96; }
constexpr int kDiagPlanes = 4, kDiagFloats = 4;  // matrices of a group
constexpr int kDiagSlots = 8, kDiagBarriers = 16;

struct DiagMatrix {
    TilePlanes planes;
    float* y;
    int32_t rows, first;  // first tile, among those of the group
    DType type;
};

struct DiagArgs {
    DiagMatrix m[kDiagPlanes];
    Matrix floats[kDiagFloats];
    int32_t matrices, tiles, each, more, gate_up;  // a CTA has `each` tiles, the first `more` one more
    // gate_up: tile i is rows 8 i .. of m[0] and of m[1]
    int32_t blocks, parts, part;       // of a row: blocks; parts, of `part` blocks (the last may have fewer)
    int32_t slots, slot_bytes, slot_start, float_start;
    int32_t float_rows, float_bytes;
    int32_t cols, mode;
    ActSource x;
    float* residual;
};

/// Where a part of a tile lies in a slot. Rows of a half lie one behind the other, the halves half a bank line apart:
/// lanes of even g read the first, of odd g the second.
template <DType Type>
struct DiagSlot {
    static constexpr bool kQ6 = Type == DType::planes_q6_k, kQ5 = Type == DType::planes_q5_k;
    static constexpr int kHighEach = kQ6 ? 64 : kQ5 ? 32 : 0;  // bytes of a block
    int part, blocks;
    RT_HD int data_half() const { return 1024 * part + 64; }
    RT_HD int heads() const { return 2 * data_half(); }
    RT_HD int head_half() const { return 128 * part + 64; }
    RT_HD int high() const { return heads() + 2 * head_half(); }
    RT_HD int high_half() const { return 8 * kHighEach * part + 64; }
    RT_HD int d() const { return high() + (kHighEach > 0 ? 2 * high_half() : 0); }
    RT_HD int d_half() const { return 16 * blocks; }  // d comes whole: its rows begin at no multiple of sixteen
    RT_HD int bytes() const { return (d() + (kQ6 ? 2 * d_half() : 0) + 127) / 128 * 128; }
};
inline int32_t diag_slot_bytes(DType t, int part, int blocks) {
    return t == DType::planes_q4_k   ? DiagSlot<DType::planes_q4_k>{part, blocks}.bytes()
           : t == DType::planes_q5_k ? DiagSlot<DType::planes_q5_k>{part, blocks}.bytes()
                                     : DiagSlot<DType::planes_q6_k>{part, blocks}.bytes();
}

/// x in shared memory: 32 int8 of each sub-block, {d, A} of each, A0 of each, 32 zeros.
struct DiagX {
    int groups;
    RT_HD int pairs() const { return 32 * groups; }
    RT_HD int halves() const { return 40 * groups; }
    RT_HD int zeros() const { return 44 * groups; }
    RT_HD int bytes() const { return 44 * groups + 32; }
};

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900

/// c += A B: unsigned times signed bytes.
__device__ __forceinline__ void mma_u8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// A lane's places in x: of what it gives for sub-blocks t and t + 4 (or zeros), and of the sums it gets.
template <bool Masks>
struct DiagLane {
    uint32_t b[2], each[2];  // shared address; bytes from block to block. Masks: b[0] alone, and what to keep of it
    uint32_t pairs, halves;

    __device__ __forceinline__ DiagLane(const char* x, const DiagX& l, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const bool gives = g == 4 * j + t;
            b[j] = shared_address(x + (gives || Masks ? 32 * g : l.zeros()));
            each[j] = gives ? (Masks ? ~0u : 256) : 0;
        }
        pairs = shared_address(x + l.pairs() + 16 * t);
        halves = shared_address(x + l.halves() + 8 * t);
    }
};

__device__ __forceinline__ void load_words(uint32_t (&w)[4], uint32_t at) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void load_words(uint32_t (&w)[2], uint32_t at) {
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
    uint32_t w;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(at) : "memory");
    return w;
}
__device__ __forceinline__ uint32_t load_half_word(uint32_t at) {
    uint16_t w;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(w) : "r"(at) : "memory");
    return w;
}

/// Where a lane's rows begin in a slot (row h: `h` times .._row on), and what it needs for their headers.
template <DType Type>
struct DiagRows {
    using S = DiagSlot<Type>;
    uint32_t data, heads, high, d, data_row, head_row, high_row, d_row;

    __device__ __forceinline__ DiagRows(uint32_t slot, const S& s, int first, int lane) {
        const int g = lane / 4, t = lane % 4, half = g % 2, row = g / 2;
        data_row = 512 * s.part, head_row = 64 * s.part, high_row = 4 * S::kHighEach * s.part, d_row = 8 * s.blocks;
        data = slot + half * s.data_half() + row * (128 * s.part) + 16 * t;
        heads = slot + s.heads() + half * s.head_half() + row * (16 * s.part) + (S::kQ6 ? 4 * t : 0);
        high = slot + s.high() + half * s.high_half() + row * (S::kHighEach * s.part) + S::kHighEach / 8 * t;
        d = slot + s.d() + half * s.d_half() + 2 * (row * s.blocks + first);
    }
};

/// Scales and minima of sub-blocks 2 t and 2 t + 1 from a header, the scales times `by` of d; exact.
struct HeadShifts {
    uint32_t bytes, even, odd;
    __device__ __forceinline__ explicit HeadShifts(int t)
        : bytes(static_cast<uint32_t>(t * 0x11 + (4 + t) * 0x1100)),
          even(static_cast<uint32_t>(4 * t + 28) & 31),
          odd(static_cast<uint32_t>(4 * t + 30) & 31) {}
};
__device__ __forceinline__ void two_scales(const uint32_t (&head)[4], const HeadShifts& at, float by, float (&s)[2],
                                           float (&m)[2]) {
    constexpr uint32_t kLow = 0x000F000Fu, kSix = 0x003F003Fu, kTwo23 = 0x4B000000u;
    const uint32_t low = __byte_perm(head[0], head[1], at.bytes);
    const uint32_t six[2] = {select_bits(kLow, low, __funnelshift_r(head[2], head[2], at.even)) & kSix,
                             select_bits(kLow, low >> 4, __funnelshift_r(head[2], head[2], at.odd)) & kSix};
    const float d = __fmul_rn(half_bits(head[3] & 0xFFFFu), by), dmin = half_bits(head[3] >> 16);
    const float d23 = __fmul_rn(d, -8388608.0f), dmin23 = __fmul_rn(dmin, -8388608.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        s[i] = fmaf(d, __uint_as_float(__byte_perm(six[i], kTwo23, 0x7610)), d23);
        m[i] = fmaf(dmin, __uint_as_float(__byte_perm(six[i], kTwo23, 0x7632)), dmin23);
    }
}

/// acc += block k of a part, block b of x.
template <DType Type, bool Masks>
__device__ __forceinline__ void diag_step(const DiagRows<Type>& rows, int k, const DiagLane<Masks>& x, int b,
                                          const HeadShifts& at, float (&acc)[4]) {
    using S = DiagSlot<Type>;
    constexpr uint32_t kLow = 0x0F0F0F0Fu;
    uint32_t w[2][2][4], lo[2][4], hi[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            load_words(w[h][j], rows.data + h * rows.data_row + 128 * k + 64 * j);
    if constexpr (Masks) {
        uint32_t both[2][4];
        load_words(both[0], x.b[0] + 256 * b);
        load_words(both[1], x.b[0] + 256 * b + 16);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) lo[j][i] = both[0][i] & x.each[j], hi[j][i] = both[1][i] & x.each[j];
    } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t from = x.b[j] + static_cast<uint32_t>(b) * x.each[j];
            load_words(lo[j], from);
            load_words(hi[j], from + 16);
        }
    }
    uint32_t pair[4];
    load_words(pair, x.pairs + 64 * b);
    const float d[2] = {__uint_as_float(pair[0]), __uint_as_float(pair[2])};
    const float sum[2] = {__uint_as_float(pair[1]), __uint_as_float(pair[3])};
    int first[4], second[4];  // low nibbles, high nibbles
    if constexpr (S::kQ6) {
        uint32_t halves[2];
        load_words(halves, x.halves + 32 * b);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float a0 = __uint_as_float(halves[i]);
            first[i] = first[2 + i] = __float_as_int(fmaf(-32.0f, a0, kMagic));
            second[i] = second[2 + i] = __float_as_int(fmaf(-32.0f, sum[i] - a0, kMagic));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) first[i] = 0, second[i] = kMagicBits;
    }
    uint32_t high[2][2][2] = {};
    if constexpr (S::kHighEach > 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t from = rows.high + h * rows.high_row + S::kHighEach * k + S::kHighEach / 2 * j;
                if constexpr (S::kQ6) load_words(high[h][j], from);
                else high[h][j][0] = load_word(from);
            }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t a[2][2], c[2][2];  // row, sub-block
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t v = w[h][j][i];
                if constexpr (S::kQ6) {
                    const uint32_t one = high[h][j][0], two = high[h][j][1];
                    a[h][j] = select_bits(kLow, v, i < 2 ? one << (4 - 2 * i) : one >> (2 * i - 4)) & 0x3F3F3F3Fu;
                    c[h][j] = select_bits(kLow, v >> 4, i < 2 ? two << (4 - 2 * i) : two >> (2 * i - 4)) & 0x3F3F3F3Fu;
                } else if constexpr (S::kQ5) {
                    const uint32_t one = high[h][j][0];
                    a[h][j] = select_bits(kLow, v, one << (4 - i)) & 0x1F1F1F1Fu;
                    c[h][j] = select_bits(kLow, v >> 4, one >> i) & 0x1F1F1F1Fu;
                } else {
                    a[h][j] = v & kLow;
                    c[h][j] = v & ~kLow;  // multiplied where they stand
                }
            }
        mma_u8(first, a[0][0], a[1][0], a[0][1], a[1][1], lo[0][i], lo[1][i]);
        mma_u8(second, c[0][0], c[1][0], c[0][1], c[1][1], hi[0][i], hi[1][i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float s[2], m[2];
        const uint32_t from = rows.heads + h * rows.head_row + 16 * k;
        if constexpr (S::kQ6) {
            const uint32_t four = load_word(from);
            const float all = half_bits(load_half_word(rows.d + h * rows.d_row + 2 * k));
            s[0] = all * static_cast<float>(static_cast<int8_t>(four));
            m[0] = all * static_cast<float>(static_cast<int8_t>(four >> 8));
            s[1] = all * static_cast<float>(static_cast<int8_t>(four >> 16));
            m[1] = all * static_cast<float>(static_cast<int8_t>(four >> 24));
        } else {
            uint32_t head[4];
            load_words(head, from);
            two_scales(head, at, S::kQ5 ? 1.0f : 0.0625f, s, m);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int o = 2 * h + i;
            float v;
            if constexpr (S::kQ6) {
                v = __fmul_rn(s[i], __fsub_rn(__int_as_float(first[o]), kMagic));
                v = fmaf(m[i], __fsub_rn(__int_as_float(second[o]), kMagic), v);
            } else {
                const int all = S::kQ5 ? first[o] + second[o] : 16 * first[o] + second[o];
                v = __fmul_rn(s[i], __fsub_rn(__int_as_float(all), kMagic));
                v = fmaf(-m[i], sum[i], v);
            }
            acc[o] = fmaf(v, d[i], acc[o]);
        }
    }
}

/// This warp's blocks of the part at `slot`, which begins with block `first` of the rows.
template <DType Type, bool Masks, int Unroll>
__device__ __forceinline__ void diag_part(uint32_t slot, const DiagSlot<Type>& s, int first, int q,
                                          const DiagLane<Masks>& x, const HeadShifts& at, int lane, float (&acc)[4]) {
    const DiagRows<Type> rows(slot, s, first, lane);
    const int count = min(s.part, s.blocks - first);
    int k = (q - first) & 3;
    if constexpr (Unroll > 1)
#pragma unroll 1
        for (; k + 4 * (Unroll - 1) < count; k += 4 * Unroll)
#pragma unroll
            for (int u = 0; u < Unroll; ++u)
                diag_step<Type, Masks>(rows, k + 4 * u, x, first + k + 4 * u, at, acc);
#pragma unroll 1
    for (; k < count; k += 4) diag_step<Type, Masks>(rows, k, x, first + k, at, acc);
}

// ---- Weights: a warp asks for slots by bulk copies, in the order of `seq`; a quad uses them. Barriers outnumber slots
// by a round, so that whoever waits for number `seq` never meets the phase before the last.

struct DiagRing {
    uint32_t full, empty;  // kDiagBarriers each

    __device__ __forceinline__ explicit DiagRing(uint64_t* barriers)
        : full(shared_address(barriers)), empty(full + 8 * kDiagBarriers) {}
    __device__ __forceinline__ void init(int lane) const {
        if (lane < kDiagBarriers) {
            asm volatile("mbarrier.init.shared.b64 [%0], 2;" ::"r"(full + 8 * lane) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 128;" ::"r"(empty + 8 * lane) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    static __device__ __forceinline__ void wait(uint32_t barriers, int seq) {
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
                barriers + 8 * (seq % kDiagBarriers)),
            "r"(seq / kDiagBarriers & 1)
            : "memory");
    }
    __device__ __forceinline__ void used(int seq) const {
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty + 8 * (seq % kDiagBarriers)) : "memory");
    }
};

__device__ __forceinline__ void diag_copy(uint32_t to, const char* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ int matrix_of_tile(const DiagArgs& a, int tile) {
    int i = 0;
    if (a.gate_up == 0)
#pragma unroll
        for (int k = 1; k < kDiagPlanes; ++k)
            if (k < a.matrices && tile >= a.m[k].first) i = k;
    return i;
}

/// Asks for part `part` of half `half` of a tile. By one thread.
template <DType Type>
__device__ __forceinline__ void ask_part(const DiagArgs& a, const DiagMatrix& m, int tile, int half, int part,
                                         uint32_t slot, uint32_t barrier) {
    using S = DiagSlot<Type>;
    const S s{a.part, a.blocks};
    const TilePlanes& p = a.gate_up != 0 && half == 1 ? a.m[1].planes : m.planes;
    const int first = part * a.part, count = min(a.part, a.blocks - first);
    const int row0 = a.gate_up != 0 ? 8 * tile : 16 * (tile - m.first) + 8 * half, rows = max(0, min(8, m.rows - row0));
    expect_bytes(barrier, rows * count * (144 + S::kHighEach) + (S::kQ6 ? (2 * rows * a.blocks + 15) & ~15 : 0));
    if (rows == 0) return;
    const int64_t at = static_cast<int64_t>(row0) * a.blocks + first;
    const char *data = p.data + 128 * at, *scales = p.scales + 16 * at, *high = p.high + S::kHighEach * at;
    const uint32_t to = slot + half * s.data_half(), to_heads = slot + s.heads() + half * s.head_half(),
                   to_high = slot + s.high() + half * s.high_half();
    // In one part all rows lie one behind the other.
    const int each = a.parts == 1 ? rows * count : count, times = a.parts == 1 ? 1 : rows;
    if constexpr (S::kQ6)
        diag_copy(slot + s.d() + half * s.d_half(), p.d + 2 * static_cast<int64_t>(row0) * a.blocks,
                  (2 * rows * a.blocks + 15) & ~15, barrier);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        if (r >= times) break;
        diag_copy(to + r * (128 * s.part), data + 128 * r * a.blocks, 128 * each, barrier);
        diag_copy(to_heads + r * (16 * s.part), scales + 16 * r * a.blocks, 16 * each, barrier);
        if constexpr (S::kHighEach > 0)
            diag_copy(to_high + r * (S::kHighEach * s.part), high + S::kHighEach * r * a.blocks, S::kHighEach * each,
                      barrier);
    }
}

#endif  // __CUDA_ARCH__ >= 900
#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
