// What the half-precision products for one row (kquant_f16_row1_sm90.cu) and for more (kquant_f16_mma_sm90.cu,
// kquant_f16_wgmma_sm90.cu) share: their arguments, and how weights come to shared memory.
//
// A strip is sixteen weight rows: rows g and g + 8 of an mma, which are neighbours, or eight rows of gate and the same
// of up. A quad is four blocks of 256 columns, one of each b mod 4. A team is the warps that have the chains of a strip
// that this CTA has; it has a ring of slots in shared memory, into which tensor copies bring a quad of a strip (its
// team's chains of it) in boxes of sixteen rows, of gate and up eight each: nibbles [box][chain][row][128 bytes], high
// bits of Q6_K [box][chain][row][64], headers [row][16 bytes of each chain], swizzled as wide as a row of the box. The
// warps of a team ask by turns (one row: one beside them); an mbarrier tells that a slot is full, another that all have
// used it.
#pragma once

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/device/tma_wgmma_gemm.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/shared/float.h"
#include "ops/cuda/linear/shared/float_rows_beside.cuh"
#include "ops/cuda/linear/shared/kquant_f16.cuh"
#include "ops/cuda/linear/shared/kquant_f16_schedule.h"
#include "ops/cuda/linear/shared/kquant_i8_wide_tile.cuh"

namespace riptide::ops::cuda::decode {

struct F16Matrix {
    const char* d;  // Q6_K
    float* y;
    int32_t rows, first;  // first strip
    int32_t q6;
};
struct F16Maps {
    CUtensorMap data[kMostF16], heads[kMostF16], high[kMostF16];
};
struct F16Args {
    F16Matrix m[kMostF16];
    int32_t matrices, strips;
    int32_t gate_up;  // 1: strip s has rows 8 s .. of m[0] and of m[1], m[0].y gets silu(first) * second; 2:
                      // silu(second) * first
    int32_t n, cols;
    int32_t quads;          // blocks of 256 columns / 4
    int32_t teams, stages;  // of a CTA; of a team
    int32_t slot_bytes;     // one row: of a slot; more: nibbles, headers and high bits lie apart
    int32_t sums_at, scales_at, data_at, high_at, heads_at, meeting_at, inbox_at, terms_at, floats_at,
        float_weights_at;      // in shared memory; x lies first. float_weights_at: 0: nowhere
    ActSource x;               // one row: as given; more: floats, if they are wanted
    const char *units, *sums;  // as kquant_f16_prepare_kernel() leaves them
    const float* scales;
    int32_t zero;      // 0, which the compiler does not know
    const float* rms;  // of rows, or null
    float* residual;
    F16Plan plan;    // more than one row
    float4* left;    // more than one row: sums that teams leave each other
    int32_t* flags;  // kquant_f16_wgmma_sm90.cu: that they are there
    WideFloats floats;
};

/// What the host knows of a group.
struct F16Group {
    F16Args a = {};
    const Weight* w[kMostF16] = {};
    bool q6 = false;

    void add(const Weight& weight, float* y);
    /// Of the same shape and type, which a tensor map spans; out gets silu(gate) * up.
    void add_gate_up(const Weight& gate, const Weight& up, float* out);
    /// Into strips of so many rows, of gate and up half of them each.
    void cut(int strip_rows);
    /// Boxes of a strip's rows and `chains` blocks.
    F16Maps maps(int chains, int strip_rows = kStripRows) const;
};

// Launches for a group, cut into strips of kStripRows.
/// One row of x (kquant_f16_row1_sm90.cu), kinds plain and norm.
void launch_f16_row(Context& ctx, F16Group& group, const ActSource& x);
/// Up to 24 rows (kquant_f16_mma_sm90.cu). Takes arena memory.
void launch_f16_rows(Context& ctx, F16Group& group, const ActSource& x);
/// The same for x that does not fit beside the weights there (kquant_f16_wgmma_sm90.cu), which cuts it anew.
void launch_f16_chain(Context& ctx, F16Group& group, const ActSource& x);

/// How rows of x lie as others want them. steps 0, for kquant_f16_mma_sm90.cu: blocks in the order [4 /
/// chains][quad][chains], of each its units [n][512], sums [n][32] and scales [columns]. Else, for
/// kquant_f16_wgmma_sm90.cu: blocks in the order [chain of eight][steps], all of a block at units: PieceUnits, sums
/// [columns][32], scales [columns].
struct F16Layout {
    int32_t columns = 0;  // of a tile: 8 for each eight rows, begun or full
    int32_t chains = 1, steps = 0;
    int32_t flag_count = 0;  // flags that are to be zero
};
struct F16PrepareArgs {
    ActSource x;  // kinds plain, norm
    F16Layout layout;
    char *units, *sums, *floats;
    float *scales, *rms;
    int32_t* flags;
    int32_t n, cols, float_bytes;  // float_bytes: 0: no floats
};
/// Puts a.n rows of x into arena memory in that layout, and tells `a` where.
void kquant_f16_prepare(Context& ctx, F16Args& a, const ActSource& x, const F16Layout& layout);

#ifdef __CUDACC__

#if __CUDA_ARCH__ >= 900

/// The place of a block of 256 columns among those of a row.
__device__ __forceinline__ int f16_place(int block, int quads) { return block % 4 * quads + block / 4; }

#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A quad of a strip, one matrix or gate and up.
__device__ __forceinline__ void f16_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int row, int block,
                                        int quad, bool does) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %7, 0;\n@p cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %3}], [%2];\n}" ::"r"(to),
        "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(block), "r"(quad), "r"(static_cast<int>(does))
        : "memory");
}
__device__ __forceinline__ void head_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int row,
                                         bool does) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes [%0], [%1, {%3, %4, %6}], [%2];\n}" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(static_cast<int>(does)), "r"(0)
        : "memory");
}
__device__ __forceinline__ void expect_if(uint32_t barrier, int bytes, bool does) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n}" ::"r"(
            barrier),
        "r"(bytes), "r"(static_cast<int>(does))
        : "memory");
}
__device__ __forceinline__ void wait_parity(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}

/// Where rows g (h = 0) and g + 8 (h = 1) of a strip are: the first of eight rows each.
struct StripRows {
    int matrix[2], row[2];

    __device__ __forceinline__ StripRows(const F16Args& a, int strip, int strip_rows = kStripRows) {
        if (a.gate_up != 0) {
            matrix[0] = 0, matrix[1] = 1, row[0] = row[1] = strip_rows / 2 * strip;
        } else {
            int i = 0;
            while (i + 1 < a.matrices && strip >= a.m[i + 1].first) ++i;
            matrix[0] = matrix[1] = i;
            row[0] = strip_rows * (strip - a.m[i].first), row[1] = row[0] + 8;
        }
    }
};

/// Addresses in shared memory: of a slot's nibbles, headers and high bits, and of the barrier that tells it is full.
struct F16Slot {
    uint32_t data, heads, high, full;
};

/// What a team asks for next: slots of T chains. All of a warp's lanes have the same.
template <int T>
struct F16Ring {
    static constexpr int kData = 2048 * T, kHigh = 1024 * T, kHeads = 256 * T;  // of a slot
    uint32_t data, high, heads, barriers;  // of slot 0, where slots lie apart; full and empty of a slot together
    int quad, row, matrix, bytes;          // what is asked for next
    bool q6;

    __device__ __forceinline__ F16Slot at(int slot) const {
        return {data + slot * kData, heads + slot * kHeads, high + slot * kHigh, barriers + 16 * slot};
    }
    __device__ __forceinline__ void enter(const F16Args& a, int strip, int first) {
        const StripRows rows(a, strip);
        quad = first, row = rows.row[0], matrix = rows.matrix[0];
        q6 = a.m[matrix].q6 != 0;
        bytes = kData + kHeads + (q6 ? kHigh : 0);
    }
    /// The quad to a slot; chain: the first of the team's. By a whole warp.
    __device__ __forceinline__ void ask(const F16Maps& maps, int chain, const F16Slot& to, bool does) const {
        expect_if(to.full, bytes, does);
        f16_box(to.data, &maps.data[matrix], to.full, row, chain, quad, does);
        head_box(to.heads, &maps.heads[matrix], to.full, 64 * quad + 16 * chain, row, does);
        if (q6) f16_box(to.high, &maps.high[matrix], to.full, row, chain, quad, does);
    }
};

/// The barriers of a team's slots, by one thread.
template <int T>
__device__ __forceinline__ void init_slots(uint32_t barriers, int slots) {
#pragma unroll 1
    for (int i = 0; i < slots; ++i) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers + 16 * i) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers + 16 * i + 8), "r"(32 * T) : "memory");
    }
}
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive_at(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Where a lane of a warp finds its rows of a slot. Bytes lie swizzled as the tensor copies leave them.
template <int T>
struct F16Lane {
    const char* data[2];  // of sub-blocks 2 t and 2 t + 1 in slot 0
    const char* high;
    const char* heads;
    int second;  // from rows g to rows g + 8, in units of a row's eight

    /// from: the team's slot 0 in each of the three.
    __device__ __forceinline__ F16Lane(const F16Args& a, const char* data0, const char* high0, const char* heads0,
                                       int of_team) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, each = a.gate_up != 0 ? 1 : 2;
        const int swizzled = T == 4 ? of_team ^ (g / 2) : T == 2 ? of_team ^ (g / 4) : 0;
        second = a.gate_up != 0 ? T : 1;
#pragma unroll
        for (int i = 0; i < 2; ++i) data[i] = data0 + each * of_team * 1024 + g * 128 + (((2 * t + i) ^ g) << 4);
        high = high0 + each * of_team * 512 + g * 64 + ((t ^ (g / 2)) << 4);
        heads = heads0 + g * (16 * T) + 16 * swizzled;
    }
    /// Of a slot so many bytes behind slot 0 in each of the three.
    __device__ __forceinline__ F16Tile tile(int data_at, int high_at, int heads_at, const uint32_t (&d)[2]) const {
        F16Tile tile;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 2; ++i) tile.data[h][i] = data[i] + (data_at + h * second * 1024);
            tile.high[h] = high + (high_at + h * second * 512);
            tile.head[h] = *reinterpret_cast<const uint4*>(heads + (heads_at + h * (F16Ring<T>::kHeads / 2)));
            tile.d[h] = d[h];
        }
        return tile;
    }
    __device__ __forceinline__ F16Tile tile(int slot, const uint32_t (&d)[2]) const {
        using R = F16Ring<T>;
        return tile(slot * R::kData, slot * R::kHigh, slot * R::kHeads, d);
    }
};

/// d of Q6_K of a lane's rows of a strip, quad after quad, loaded one ahead; nothing for Q4_K.
struct F16BlockScale {
    const char* at[2] = {};
    uint32_t d[2] = {};

    __device__ __forceinline__ void enter(const F16Args& a, const StripRows& rows, int chain, int quad) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const F16Matrix& m = a.m[rows.matrix[h]];
            const int row = min(rows.row[h] + static_cast<int>(threadIdx.x) % 32 / 4, m.rows - 1);
            at[h] = m.d + 2 * (static_cast<int64_t>(row) * (4 * a.quads) + chain) + 8 * quad;
            d[h] = load_weight16(at[h]);
        }
    }
    /// `by` quads further.
    __device__ __forceinline__ void next(int by) {
#pragma unroll
        for (int h = 0; h < 2; ++h) d[h] = load_weight16(at[h] += 8 * by);
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
