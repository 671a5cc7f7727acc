// What kquant_f16_wgmma_sm90.cu is made of: weights by boxes of 64 rows, tiles by wgmma, sums that cross CTAs.
//
// wgmma has the bits of mma.sync, sum for sum (the tests hold both to one definition). Its fragment of A is that of
// four mma.sync of sixteen rows each, so a warp of a group decodes its weights as F16Tile says; x lies in shared
// memory once for all four.
#pragma once

#include "ops/cuda/linear/shared/kquant_f16_epilogue.cuh"

namespace riptide::ops::cuda::decode {

/// Where the teams of all clusters begin in the strips; a step of a strip is two quads. [teams]: the end.
struct ChainPlan {
    F16Begin begin[kMostChainTeams + 1];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Where rows g (h = 0) and g + 8 (h = 1) of a warp's sixteen are; slab: of the four of a strip.
struct ChainRows : StripRows {
    __device__ __forceinline__ ChainRows(const F16Args& a, int strip, int slab) : StripRows(a, strip, kChainRows) {
        const int by = a.gate_up != 0 ? 8 : 16;
        row[0] += by * slab, row[1] += by * slab;
    }
};

/// A group's slots of one block of 256 columns of a strip each: nibbles [matrix][row][128 bytes], high bits of Q6_K
/// [matrix][row][64], headers [matrix][row][16], as tensor copies leave them.
struct ChainRing {
    uint32_t base, barriers;
    int first_slot;

    __device__ __forceinline__ ChainRing(const F16Args& a, const char* x, const uint64_t* bars, int group)
        : base(shared_address(x)),
          barriers(shared_address(bars) + 16 * group * a.stages),
          first_slot(group * a.stages) {}
    __device__ __forceinline__ uint32_t full(int slot) const { return barriers + 16 * slot; }
    __device__ __forceinline__ uint32_t empty(int slot) const { return barriers + 16 * slot + 8; }
    /// By one thread.
    __device__ __forceinline__ void init(int slots) const {
#pragma unroll 1
        for (int i = 0; i < slots; ++i) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(full(i)) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 4;" ::"r"(empty(i)) : "memory");
        }
    }
    /// By a whole warp.
    __device__ __forceinline__ void ask(const F16Args& a, const F16Maps& maps, int slot, const ChainRows& rows,
                                        int block, int quad, bool does) const {
        const int at = first_slot + slot, matrix = rows.matrix[0], row = rows.row[0];
        const bool q6 = a.m[matrix].q6 != 0;
        expect_if(full(slot), kChainData + kChainHeads + (q6 ? kChainHigh : 0), does);
        f16_box(base + a.data_at + at * kChainData, &maps.data[matrix], full(slot), row, block, quad, does);
        head_box(base + a.heads_at + at * kChainHeads, &maps.heads[matrix], full(slot), 64 * quad + 16 * block, row,
                 does);
        if (q6) f16_box(base + a.high_at + at * kChainHigh, &maps.high[matrix], full(slot), row, block, quad, does);
    }
};

/// Where a lane of a warp finds its rows of a slot.
struct ChainLane {
    const char* data[2];  // of sub-blocks 2 t and 2 t + 1 in slot 0
    const char *high, *heads;
    int second;  // from rows g to rows g + 8, in units of a row's eight

    __device__ __forceinline__ ChainLane(const F16Args& a, const char* x, int first_slot, int slab)
        : second(a.gate_up != 0 ? kChainRows / 16 : 1) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, eights = a.gate_up != 0 ? slab : 2 * slab;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            data[i] = x + a.data_at + first_slot * kChainData + 1024 * eights + 128 * g + (((2 * t + i) ^ g) << 4);
        high = x + a.high_at + first_slot * kChainHigh + 512 * eights + 64 * g + ((t ^ (g / 2)) << 4);
        heads = x + a.heads_at + first_slot * kChainHeads + 128 * eights + 16 * g;
    }
    __device__ __forceinline__ F16Tile tile(int slot, const uint32_t (&d)[2]) const {
        F16Tile tile;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 2; ++i) tile.data[h][i] = data[i] + (slot * kChainData + h * second * 1024);
            tile.high[h] = high + (slot * kChainHigh + h * second * 512);
            tile.head[h] = *reinterpret_cast<const uint4*>(heads + (slot * kChainHeads + h * second * 128));
            tile.d[h] = d[h];
        }
        return tile;
    }
};

/// d of Q6_K of a lane's rows of a strip, asked for two blocks ahead.
struct ChainD {
    const char* at[2] = {};
    uint32_t d[2] = {}, later[2] = {};

    __device__ __forceinline__ void enter(const F16Args& a, const StripRows& rows) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const F16Matrix& m = a.m[rows.matrix[h]];
            const int row = min(rows.row[h] + static_cast<int>(threadIdx.x) % 32 / 4, m.rows - 1);
            at[h] = m.d + static_cast<int64_t>(row) * (8 * a.quads);
        }
    }
    /// Takes what was asked for last, asks for that of a block of the rows.
    __device__ __forceinline__ void next(int block) {
#pragma unroll
        for (int h = 0; h < 2; ++h) d[h] = later[h], later[h] = load_weight16(at[h] + 2 * block);
    }
};

/// The low word of the descriptor of units of x at an address (whose high bits tell the CTA of a cluster): pieces of 8
/// rows x 16 bytes, those of rows 8 nt .. side by side, then those of the next eight columns.
template <int NT>
__device__ __forceinline__ uint32_t units_descriptor(uint32_t address) {
    return uint32_t{(128 * NT) >> 4} << 16 | (address & 0x3FFFFu) >> 4;
}
constexpr uint32_t kUnitsHigh = 128 >> 4;  // the high word

// f16_wgmma: d += A (64 x 16) B (16 x 8 NT), f16. b: the low word of its descriptor.

__device__ __forceinline__ void f16_wgmma(float (&d)[8], const uint32_t* a, uint32_t b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%12, %13};\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, b, 1, 1, 1, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kUnitsHigh));
}
__device__ __forceinline__ void f16_wgmma(float (&d)[12], const uint32_t* a, uint32_t b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%16, %17};\n"
        "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, b, 1, 1, 1, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kUnitsHigh));
}

/// What multiply_tile() computes, by the four warps of a group: the tile times all rows of x but for x's scales. x: the
/// descriptor of the block's units; sums: the lane's of its row of x. loaded(bits) comes when all of the tile is in
/// registers, with bits of all that was loaded. The compiler keeps wgmma asynchronous only if nothing branches from the
/// first one to the last wait, and writes to their registers stay before the fence: hence the pins.
template <bool Q6, int NT, class Loaded>
__device__ __forceinline__ void multiply_chain_tile(const F16Tile& w, uint32_t x, const char* sums,
                                                    const Loaded& loaded, float (&v)[NT][4]) {
    const int t = threadIdx.x % 4;
    F16Words<Q6> words;
    words.load(w, 0), words.load(w, 1);
    const TileScales<Q6> scales(w, t);
    float first[4 * NT] = {}, second[4 * NT] = {};
    uint32_t fragment[2][16];  // of two steps of sixteen pairs of columns, by turns
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        uint32_t(&to)[16] = fragment[pair % 2];
        if (pair >= 2) {
            prefill::wgmma_wait<1>();  // all but the pair before this one
            prefill::pin(to);
        }
        const SubScales<Q6> sub(scales, w, pair / 2, t);
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint32_t part[4];
                sub.decode(words, pair / 2, pair % 2 * 2 + s, h, part);
                to[8 * s + h] = part[0], to[8 * s + 2 + h] = part[1];
                to[8 * s + 4 + h] = part[2], to[8 * s + 6 + h] = part[3];
            }
        if (pair == 0) {
            loaded(words.of_each_load() | w.head[0].w | w.head[1].w);
            prefill::pin(first), prefill::pin(second);
        }
        prefill::pin(to);
        prefill::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const uint32_t b = x + 32 * NT * (2 * pair + s);
            f16_wgmma(first, to + 8 * s, b);
            f16_wgmma(second, to + 8 * s + 4, b + 16 * NT);
        }
        prefill::wgmma_commit();
    }
    const TileEnd<Q6> end(w, t);
    float minimums[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) end.minimums(minimums[nt], sums + 8 * kF16Sums * nt);
    prefill::wgmma_wait<0>();
    prefill::pin(fragment[0]), prefill::pin(fragment[1]), prefill::pin(first), prefill::pin(second);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int e = 0; e < 4; ++e) v[nt][e] = end.value(e, first[4 * nt + e], second[4 * nt + e], minimums[nt][e]);
}

/// A warp's sums of a part of a strip, of one chain: what the team before left, and what the next one finds. Teams of
/// different CTAs tell each other by flags, those of one by barriers, one for each warp.
template <int NT>
struct ChainSums {
    static constexpr int kWarps = 4 * kChainGroups;
    float c[NT][4];

    __device__ __forceinline__ void begin(const F16Args& a, const F16Part& part, const uint64_t* left) {
        const int warp = threadIdx.x / 32, cta = static_cast<int>(blockIdx.x);
#pragma unroll
        for (int j = 0; j < 4 * NT; ++j) c[j / 4][j % 4] = 0.0f;
        if (part.from == 0) return;
        const float4* const from = warp >= 4 ? place(a, cta, warp - 4) : place(a, cta - kChainCtas, kWarps - 4 + warp);
        if (warp >= 4) {
            wait_parity(shared_address(left + warp - 4), 0);
        } else {
            const int32_t* const flag = a.flags + 4 * (cta - kChainCtas) + warp;
            int there = 0;
            while (there == 0) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(flag) : "memory");
            __syncwarp();
        }
#pragma unroll
        for (int j = 0; j < NT; ++j) set_piece(c[j], __ldcg(from + 32 * j));
    }
    /// For the next team.
    __device__ __forceinline__ void leave(const F16Args& a, uint64_t* left) const {
        const int warp = threadIdx.x / 32, cta = static_cast<int>(blockIdx.x);
        float4* const to = place(a, cta, warp);
#pragma unroll
        for (int j = 0; j < NT; ++j) to[32 * j] = piece_of(c[j]);
        if (warp < kWarps - 4) {
            arrive_at(shared_address(left + warp));
            return;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(a.flags + 4 * cta + warp % 4), "r"(1) : "memory");
    }

  private:
    static __device__ __forceinline__ float4* place(const F16Args& a, int cta, int warp) {
        return a.left + (static_cast<int64_t>(cta) * kWarps + warp) * (NT * 32) + threadIdx.x % 32;
    }
};

/// What a strip's chains make together, and where it goes. Of the NT pieces of a warp's sixteen rows at most one is
/// finished by this CTA, which gets the other chains' parts of it into the group's inbox.
template <int NT>
struct ChainFinish {
    static_assert(NT > 1, "each warp sends something");
    float4* inbox;   // of the group: [piece of this CTA][sender]
    uint32_t there;  // the barrier that counts what comes there; behind it one of acknowledgements
    int rank, slab;
    uint32_t there_parity = 0, read_parity = 1;

    /// barriers: two for each warp.
    __device__ __forceinline__ ChainFinish(const F16Args& a, char* shared, uint64_t* barriers, int warp, int rank_)
        : inbox(
              reinterpret_cast<float4*>(shared + a.inbox_at + warp / 4 * kChainPieces<NT> * kChainParts * kPieceBytes) +
              threadIdx.x % 32),
          there(shared_address(barriers + 2 * warp)),
          rank(rank_),
          slab(warp % 4) {}
    /// By one lane; a barrier of the cluster comes before run().
    __device__ __forceinline__ void init() const {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(there) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(there + 8), "r"(NT - (finishes() ? 1 : 0)) : "memory");
        publish_barriers();
        if (finishes()) expect_bytes(there, kChainParts * kPieceBytes);
    }

    /// c: of this CTA's chain. last: of the kernel, for this group in all CTAs of the cluster.
    __device__ __forceinline__ void run(const F16Args& a, const StripRows& rows, const float (&c)[NT][4], bool last) {
        wait_parity(there + 8, read_parity);  // what was sent before was read
        read_parity ^= 1;
#pragma unroll
        for (int j = 0; j < NT; ++j)
            if (const int to = finisher(j); to != rank)
                send(in_cta(shared_address(place_of(j, rank, to)), static_cast<uint32_t>(to)), piece_of(c[j]),
                     in_cta(there, static_cast<uint32_t>(to)));
#pragma unroll
        for (int j = 0; j < NT; ++j)
            if (finisher(j) == rank) end(a, rows, j, c[j], last);
    }

  private:
    __device__ __forceinline__ int finisher(int j) const { return (NT * slab + j) % kChainCtas; }
    __device__ __forceinline__ bool finishes() const { return (rank - NT * slab + 4 * kChainCtas) % kChainCtas < NT; }
    /// In the inbox of CTA `to`.
    __device__ __forceinline__ float4* place_of(int j, int from, int to) const {
        const int sender = (from - to + kChainCtas) % kChainCtas - 1;
        return inbox + 32 * ((NT * slab + j) / kChainCtas * kChainParts + sender);
    }

    __device__ __forceinline__ void end(const F16Args& a, const StripRows& rows, int j, const float (&c)[4],
                                        bool last) {
        const PiecePlace place(a, rows, j);
        float old[4], rms[2], sum[4][4];
        place.load(a.residual, old);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int col = 8 * j + 2 * (static_cast<int>(threadIdx.x) % 4) + e;
            rms[e] = a.rms != nullptr && col < a.n ? a.rms[col] : 1.0f;
        }
        wait_cluster(there, there_parity);
        there_parity ^= 1;
        const auto part = [&](int from) { return from == rank ? piece_of(c) : *place_of(j, from, rank); };
#pragma unroll
        for (int k = 0; k < 4; ++k) set_piece(sum[k], part(k)), add_piece(sum[k], part(k + 4));
        __syncwarp();
        if (threadIdx.x % 32 == 0 && !last) acknowledge<kChainCtas>(there, kChainParts * kPieceBytes, rank);
        add_piece(sum[0], piece_of(sum[1])), add_piece(sum[2], piece_of(sum[3])), add_piece(sum[0], piece_of(sum[2]));
        place.store(a, rows, sum[0], rms, old);
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace riptide::ops::cuda::decode
