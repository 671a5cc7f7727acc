// Tiles of Q4_K rows times one row of x by tensor cores: what decode_dense_diag.cu is made of. The bits are those of
// decode_dot.cuh.
//
// A tile is two halves of eight rows: sixteen neighbours, or eight rows of gate and the same of up. A step is a block
// of 256 columns of a tile, by one warp: mma.m16n8k32 whose COLUMN n is sub-block n of the block. Lane 4 g + t holds
// sub-blocks t and t + 4 of its two rows as they lie in memory, and word i of all lanes is A of product i. B has x of
// sub-block n in column n, in the k of the lanes that hold sub-block n, and zeros elsewhere. After eight products a
// lane has the exact sums of sub-blocks 2 t and 2 t + 1 of two rows, so that all lanes work in the floating-point part,
// too.
//
// The canonical sum has 32 chains, sub-blocks j mod 32: chain 8 q + n is column n of blocks q, q + 4, ... Four warps (a
// quad) share a tile, warp q has blocks q, q + 4, ... and so one accumulator for each product. They are added xor 16
// and 8 through shared memory, xor 4 and 2 from lane to lane, xor 1 in the lane.
#pragma once

#include "ops/decode_dense_one.cuh"
#include "ops/decode_dense_tile.cuh"

namespace riptide::ops::cuda::decode {

constexpr int kDiagRows = 16, kQuads = kRowWarps / 4;
/// Behind the warps that multiply, two ask for weights, each for half a tile, and one has float rows.
constexpr int kDiagThreads = kRowThreads + 96;
constexpr int kDiagPlanes = 4, kDiagFloats = 4;  // matrices of a group
constexpr int kDiagSlots = 8, kDiagBarriers = 16;

struct DiagMatrix {
    const char* data;
    const char* heads;
    float* y;
    int32_t rows, first;  // first tile, among those of the group
};

struct DiagArgs {
    DiagMatrix m[kDiagPlanes];
    Matrix floats[kDiagFloats];
    int32_t matrices;
    int32_t gate_up;       // tile i is rows 8 i .. of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t tiles, more;   // tiles of a CTA; the first `more` CTAs have one more
    int32_t blocks, cols;  // of a row
    int32_t slots, slot_start;
    int32_t float_rows, float_start, float_bytes;
    ActSource x;
    float* residual;
};

/// Where a tile lies in a slot. Rows of a half lie one behind the other; the halves are half a line of banks apart,
/// because lanes of even g read the first and of odd g the second.
struct DiagSlot {
    int blocks;
    RT_HD int data_half() const { return 1024 * blocks + 64; }
    RT_HD int heads() const { return 2 * data_half(); }
    RT_HD int head_half() const { return 128 * blocks + 64; }
    RT_HD int bytes() const { return heads() + 2 * head_half(); }
};

/// x in shared memory: 32 int8 of each sub-block, {d, A} of each; bytes a multiple of 16.
struct DiagX {
    int groups;
    RT_HD int pairs() const { return 32 * groups; }
    RT_HD int bytes() const { return 40 * groups; }
};

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void load_words(uint32_t (&w)[4], uint32_t at) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
}

/// c += A B: unsigned times signed bytes, a and b as mma_k32() of decode_tile.cuh has them.
__device__ __forceinline__ void mma_u8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// What a lane needs of x and of headers: shared addresses, masks, shifts.
struct DiagLane {
    uint32_t x, pairs;                    // of sub-block g; of sub-blocks 2 t and 2 t + 1
    uint32_t keep[2];                     // of x for products of sub-blocks t, of sub-blocks t + 4
    uint32_t bytes, even_high, odd_high;  // for two_scales()

    __device__ __forceinline__ DiagLane(const char* staged, const DiagX& l, int lane) {
        const auto g = static_cast<uint32_t>(lane) / 4, t = static_cast<uint32_t>(lane) % 4;
        x = shared_address(staged) + 32 * g;
        pairs = shared_address(staged) + static_cast<uint32_t>(l.pairs()) + 16 * t;
        keep[0] = g == t ? ~0u : 0u;
        keep[1] = g == t + 4 ? ~0u : 0u;
        bytes = 0x11 * t + 0x1100 * (4 + t);
        even_high = (4 * t + 28) & 31;
        odd_high = (4 * t + 30) & 31;
    }
};

/// Sixteenths of the scales, and minima, of sub-blocks 2 t and 2 t + 1 from a header; exact.
__device__ __forceinline__ void two_scales(const uint32_t (&head)[4], const DiagLane& at, float (&s)[2],
                                           float (&m)[2]) {
    constexpr uint32_t kLow = 0x000F000Fu, kSix = 0x003F003Fu, kTwo23 = 0x4B000000u;
    // Scale below, minimum above.
    const uint32_t low = __byte_perm(head[0], head[1], at.bytes);
    const uint32_t six[2] = {select_bits(kLow, low, __funnelshift_r(head[2], head[2], at.even_high)) & kSix,
                             select_bits(kLow, low >> 4, __funnelshift_r(head[2], head[2], at.odd_high)) & kSix};
    const float d = __fmul_rn(half_bits(head[3] & 0xFFFFu), 0.0625f), dmin = half_bits(head[3] >> 16);
    const float d23 = __fmul_rn(d, -8388608.0f), dmin23 = __fmul_rn(dmin, -8388608.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // as the last bits of 2^23
        s[i] = fmaf(d, __uint_as_float(__byte_perm(six[i], kTwo23, 0x7610)), d23);
        m[i] = fmaf(dmin, __uint_as_float(__byte_perm(six[i], kTwo23, 0x7632)), dmin23);
    }
}

/// A lane's rows g and g + 8 of a tile in a slot: shared addresses, and bytes from the one to the other.
struct DiagRowsAt {
    uint32_t data, heads, data_next, head_next;

    __device__ __forceinline__ DiagRowsAt(uint32_t slot, const DiagSlot& s, int lane) {
        const int g = lane / 4, half = g % 2, row = g / 2;
        data = slot + half * s.data_half() + row * (128 * s.blocks) + 16 * (lane % 4);
        heads = slot + s.heads() + half * s.head_half() + row * (16 * s.blocks);
        data_next = 512 * s.blocks, head_next = 64 * s.blocks;
    }
    /// Row of half a tile that is row g of an mma for next = 0, row g + 8 for next = 1.
    static __device__ __forceinline__ int row_of(int g, int next) { return 4 * next + g / 2; }
};

/// acc += block b of a tile times x. High nibbles are multiplied where they stand: the sum is 16 S, below 2^22, held as
/// the float 1.5 2^23 + 16 S, and the scale is a sixteenth: exact (see k_value() of decode_k_dot.cuh).
__device__ __forceinline__ void diag_step(const DiagRowsAt& rows, const DiagLane& at, int b, float (&acc)[4]) {
    constexpr uint32_t kLow = 0x0F0F0F0Fu;
    uint32_t w[2][2][4], lo[4], hi[4], pair[4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 2; ++j) load_words(w[h][j], rows.data + h * rows.data_next + 128 * b + 64 * j);
    load_words(lo, at.x + 256 * b);
    load_words(hi, at.x + 256 * b + 16);
    load_words(pair, at.pairs + 64 * b);
    int low[4] = {}, high[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t a[4] = {w[0][0][i] & kLow, w[1][0][i] & kLow, w[0][1][i] & kLow, w[1][1][i] & kLow};
        const uint32_t c[4] = {w[0][0][i] & ~kLow, w[1][0][i] & ~kLow, w[0][1][i] & ~kLow, w[1][1][i] & ~kLow};
        mma_u8(low, a, lo[i] & at.keep[0], lo[i] & at.keep[1]);
        mma_u8(high, c, hi[i] & at.keep[0], hi[i] & at.keep[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t head[4];
        load_words(head, rows.heads + h * rows.head_next + 16 * b);
        float s[2], m[2];
        two_scales(head, at, s, m);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float d = __uint_as_float(pair[2 * i]), sum = __uint_as_float(pair[2 * i + 1]);
            const int all = 16 * low[2 * h + i] + high[2 * h + i];
            const float v = __fmul_rn(s[i], __fsub_rn(__int_as_float(all), kMagic));
            acc[2 * h + i] = fmaf(fmaf(-m[i], sum, v), d, acc[2 * h + i]);
        }
    }
}

// ---- Weights: tile number i of a CTA comes to slot i mod slots by bulk copies. There are more barriers than tiles
// between the oldest that is in use and the newest that was asked for, so that who waits for a tile never meets the
// phase before the one before it.

struct DiagRing {
    uint32_t full, empty;  // kDiagBarriers each

    __device__ __forceinline__ explicit DiagRing(uint64_t* barriers)
        : full(shared_address(barriers)), empty(full + 8 * kDiagBarriers) {}
    /// By one warp, before a barrier of the CTA.
    __device__ __forceinline__ void init(int lane) const {
        if (lane < kDiagBarriers) {
            asm volatile("mbarrier.init.shared.b64 [%0], 2;" ::"r"(full + 8 * lane) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 128;" ::"r"(empty + 8 * lane) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    static __device__ __forceinline__ void wait(uint32_t barriers, int tile) {
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
                barriers + 8 * (tile % kDiagBarriers)),
            "r"(tile / kDiagBarriers & 1)
            : "memory");
    }
    /// This lane of the quad has read what it needs.
    __device__ __forceinline__ void used(int tile) const {
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty + 8 * (tile % kDiagBarriers)) : "memory");
    }
};

__device__ __forceinline__ void copy_bulk(uint32_t to, const char* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ const DiagMatrix& matrix_of_tile(const DiagArgs& a, int tile) {
    int i = 0;
    if (a.gate_up == 0)
#pragma unroll
        for (int k = 1; k < kDiagPlanes; ++k)
            if (k < a.matrices && tile >= a.m[k].first) i = k;
    return a.m[i];
}

/// Asks for half `half` of a tile of the group: rows that lie one behind the other. By one thread.
__device__ __forceinline__ void ask_half(const DiagArgs& a, int tile, int half, uint32_t slot, uint32_t barrier) {
    const DiagSlot s{a.blocks};
    const DiagMatrix& m = a.gate_up != 0 ? a.m[half] : matrix_of_tile(a, tile);
    const int row = a.gate_up != 0 ? 8 * tile : kDiagRows * (tile - m.first) + 8 * half;
    const int blocks = max(0, min(8, m.rows - row)) * a.blocks;
    expect_bytes(barrier, 144 * blocks);
    if (blocks == 0) return;
    const int64_t first = static_cast<int64_t>(row) * a.blocks;
    copy_bulk(slot + half * s.data_half(), m.data + 128 * first, 128 * blocks, barrier);
    copy_bulk(slot + s.heads() + half * s.head_half(), m.heads + 16 * first, 16 * blocks, barrier);
}

#endif  // __CUDA_ARCH__ >= 900
#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
