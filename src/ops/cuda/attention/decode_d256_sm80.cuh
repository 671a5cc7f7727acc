// Decode attention for heads of 256 on tensor cores: arguments, shared memory, and the parts of a tile of 64 keys.
//
// The canonical order of a row, whatever the kernel's shape: its keys by rank in chunks of 512, a chunk in tiles of 64.
// Score: of each half of the head the products with q's 16 bits and with what their rounding left, eight steps of 16
// elements each in ascending order; (high + low) + (high + low). Weights: 2^(s - m), m the largest so far; sums of
// weights in 32 lanes (lane i: keys 2 i and 2 i + 1 of a tile), of values one after the other in steps of 16 keys, high
// then low part of the weights. Chunks: see merge in decode_d256_sm80.cu. So a row's bits do not say which rows
// shared its keys.
#pragma once

#include "ops/cuda/attention/decode_d128_sm80.cuh"
#include "ops/cuda/kv/append.cuh"

namespace riptide::ops {

namespace {

using cuda::attn::kQuerySteps, cuda::attn::kScoreStride, cuda::attn::kWeightStep, cuda::attn::kTile,
    cuda::attn::kTileSteps, cuda::attn::kWide, cuda::attn::kWideChunk;
constexpr int kWideRegs = kWide / 32;  // of a warp that holds a head
constexpr int kWideThreads = 256;

struct WideArgs {
    DecodeAttentionArgs a;
    const uint4* queries = nullptr;  // [row][head][kQuerySteps][4]: what lane 4 g + t of a group takes of head g
    float* sums = nullptr;           // [row - row0][head][most_chunks][kWide]
    float2* ml = nullptr;            // [row - row0][head][most_chunks]
    int row0 = 0, rows = 0;          // of this launch
    int sequences = 0;
    int shared_rows = 1;  // of a sequence, that read its keys together
    int most_chunks = 1;
    __device__ __forceinline__ int64_t chunk_at(int row, int head, int chunk) const {
        return (int64_t{row - row0} * a.heads + head) * most_chunks + chunk;
    }
};

// ---- shared memory -------------------------------------------------------------------------------------------------

template <DType T>
constexpr int kRowPieces = static_cast<int>(kv_row_bytes(T, kWide) / 16);
template <DType T>
constexpr int kStagedRow = static_cast<int>(cuda::attn::staged_row_bytes(T));

/// What all shapes of a kernel share: a tile of keys at hand and one on its way, and where the chunk's keys lie.
template <DType TK, DType TV>
struct WideShared {
    alignas(16) unsigned char k[2][kTile][kStagedRow<TK>];
    alignas(16) unsigned char v[2][kTile][kStagedRow<TV>];
    int32_t slots[kWideChunk];
    int32_t first_unit[kMostDecodeRows + 1];  // of each sequence; a unit is an item of all KV heads
    int32_t path[kMostDecodeRows];
};
/// kGroups: of eight (row, query head) pairs each.
template <int kGroups>
struct WideGroups {
    uint4 queries[kGroups][kQuerySteps][32];
    alignas(16) unsigned char weights[kGroups][kTileSteps][kWeightStep];
    float scores[kGroups == 1 ? 2 : kGroups][8][kScoreStride];  // one group: of each half of the head
    float factors[kGroups][8];
};

/// 16 bytes to shared memory while the caller goes on; K and V of earlier steps: allowed above pdl_wait().
__device__ __forceinline__ void stage16(void* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#endif
}
__device__ __forceinline__ void stage_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void stage_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

/// What a CTA does at a time: rows of one sequence over a chunk of one KV head.
struct WideWork {
    int sequence, first, rows;  // rows [first, first + rows) of the step
    int head, chunk, keys;      // keys <= 0: nothing to do
    int committed;
    bool shared;  // all keys were committed before the step
};

/// Neighbouring threads take neighbouring pieces: a warp asks for 512 bytes of one row and the next. (A row by four
/// threads takes fewer instructions, but half again as many sectors, as rows are not aligned to them.)
template <DType T>
__device__ __forceinline__ void stage_rows(unsigned char (*to)[kStagedRow<T>], const unsigned char* head,
                                           int64_t slot_bytes, const int32_t* slots, int last, int count) {
    constexpr int kPieces = kRowPieces<T>;
    int key = static_cast<int>(threadIdx.x) / kPieces, piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll
    for (int i = 0; i < kTile * kPieces; i += kWideThreads) {
        if (key < count) stage16(to[key] + 16 * piece, slot_row(head, slot_bytes, slots[min(key, last)]) + 16 * piece);
        key += kWideThreads / kPieces;
        piece += kWideThreads % kPieces;
        if (piece >= kPieces) piece -= kPieces, ++key;
    }
}
/// A tile's K and V on their way, keys behind the chunk's end repeating its last. Always one group of copies.
template <DType TK, DType TV>
__device__ __forceinline__ void stage_tile(const DecodeAttentionArgs& a, WideShared<TK, TV>& s, const WideWork& w,
                                           int tile) {
    const int left = w.keys - tile * kTile, count = min(kTile, (left + kStepKeys - 1) / kStepKeys * kStepKeys);
    const int32_t* const slots = s.slots + tile * kTile;
    if (left > 0) {
        stage_rows<TK>(s.k[tile % 2], a.k_cache + w.head * kv_row_bytes(TK, kWide), a.k_slot_bytes, slots, left - 1,
                       count);
        stage_rows<TV>(s.v[tile % 2], a.v_cache + w.head * kv_row_bytes(TV, kWide), a.v_slot_bytes, slots, left - 1,
                       count);
    }
    stage_commit();
}

// ---- queries -------------------------------------------------------------------------------------------------------

/// A rotated query head, by a warp: scaled, to(step, t, f): what lane 4 g + t of a group takes of it, of each of
/// kQuerySteps steps, if it is head g. buffer: kWide floats of the warp's own in shared memory.
template <class To>
__device__ __forceinline__ void query_fragments(DType type, float scale, float (&x)[kWideRegs], float* buffer,
                                                const To& to) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (type == DType::tq3_0) kv_rotate_lanes(x, kWide, false);
#pragma unroll
    for (int k = 0; k < kWideRegs; ++k) buffer[32 * k + lane] = __fmul_rn(x[k], scale);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kQuerySteps * 4; i += 32) {
        const int step = i / 4;
        const ScoreColumn c = score_column(step % 8, i % 4);
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = buffer[128 * (step / 8) + kv_unit_element(type, c.unit, c.first + j)];
        uint4 f;
        if (type == DType::bf16) {
            split_pair<true>(v[0], v[1], f.x, f.z);
            split_pair<true>(v[2], v[3], f.y, f.w);
        } else {
            split_pair<false>(v[0], v[1], f.x, f.z);
            split_pair<false>(v[2], v[3], f.y, f.w);
        }
        to(step, i % 4, f);
    }
}

// ---- scores --------------------------------------------------------------------------------------------------------

/// Sixteen values of half `half` of a stored row: elements 128 half + kv_unit_element(T, u, 0..15).
template <DType T>
__device__ __forceinline__ void wide_unit(KvUnit<T>& unit, const unsigned char* row, int half, int u) {
    if constexpr (T == DType::tq3_0) {
        unit.w[0] = PlainLoad::one(row + 32 * half + 4 * u);
        unit.w[1] = PlainLoad::one(row + 64 + 16 * half + 4 * (u / 2));
    } else {
        constexpr int kHalf = T == DType::f16 || T == DType::bf16 ? 256 : T == DType::q4_0 ? 64 : 128;
        kv_load_codes<T, PlainLoad, true>(unit, row + kHalf * half, u);
    }
    if constexpr (kv_has_scales(T))
        unit.w[unit.kWords - 1] = PlainLoad::one(row + kv_scales_at(T, kWide) + 8 * half + 4 * (u / 4));
}

/// K of 16 keys and half a head as the A operand: [step][register].
template <DType T>
__device__ __forceinline__ void key_fragments(const unsigned char (*rows)[kStagedRow<T>], int half,
                                              uint32_t (&f)[8][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            KvUnit<T> unit;
            wide_unit<T>(unit, rows[lane / 4 + 8 * j], half, t + 4 * k);
            uint32_t h[8];
            kv_unit_decode(unit, t + 4 * k, h);
#pragma unroll
            for (int i = 0; i < 4; ++i) f[4 * k + i][j] = h[2 * i], f[4 * k + i][2 + j] = h[2 * i + 1];
        }
}

/// Scores of 16 keys over half a head for every second of 2 N groups: keys g and g + 8 (c[0], c[1] and c[2], c[3]),
/// heads 2 t and 2 t + 1.
template <DType TK, int N>
__device__ __forceinline__ void half_scores(const uint32_t (&k)[8][4], const uint4 (*queries)[kQuerySteps][32],
                                            int step, float (&c)[N][4]) {
    float low[N][4] = {};
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[j][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const uint4 q = queries[2 * j][step + i][threadIdx.x % 32];
            mma<TK == DType::bf16>(c[j], k[i][0], k[i][1], k[i][2], k[i][3], q.x, q.y);
            mma<TK == DType::bf16>(low[j], k[i][0], k[i][1], k[i][2], k[i][3], q.z, q.w);
        }
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[j][i] = __fadd_rn(c[j][i], low[j][i]);
}

__device__ __forceinline__ void put_scores(float (*to)[kScoreStride], int key, const float (&c)[4]) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    to[2 * t][key + g] = c[0];
    to[2 * t + 1][key + g] = c[1];
    to[2 * t][key + g + 8] = c[2];
    to[2 * t + 1][key + g + 8] = c[3];
}

/// Groups are done four at a time, so that products of one need not wait for each other.
constexpr int kGroupBlock = 4;

/// The scores of a tile to shared memory, by all warps. Keys that are not there get what the memory holds.
template <DType TK, int kGroups>
__device__ __forceinline__ void score_tile(const unsigned char (*keys)[kStagedRow<TK>], WideGroups<kGroups>& s,
                                           int groups) {
    const int warp = static_cast<int>(threadIdx.x / 32), key = warp % 4 * 16;
    if constexpr (kGroups == 1) {  // a warp: 16 keys, half a head
        const int half = warp / 4;
        uint32_t k[8][4];
        float c[1][4];
        key_fragments<TK>(keys + key, half, k);
        half_scores<TK>(k, s.queries, 8 * half, c);
        put_scores(s.scores[half], key, c[0]);
    } else {  // a warp: 16 keys, every second group
        constexpr int kBlocks = kGroups / kGroupBlock, kOwn = kGroupBlock / 2;
        static_assert(kGroups % kGroupBlock == 0);
        const int mine = warp / 4;
        float sum[kBlocks][kOwn][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t k[8][4];
            key_fragments<TK>(keys + key, half, k);
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                if (b * kGroupBlock >= groups) break;
                float c[kOwn][4];
                half_scores<TK>(k, s.queries + b * kGroupBlock + mine, 8 * half, c);
#pragma unroll
                for (int j = 0; j < kOwn; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[b][j][i] = half == 0 ? c[j][i] : __fadd_rn(sum[b][j][i], c[j][i]);
            }
        }
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
            if (b * kGroupBlock >= groups) break;
#pragma unroll
            for (int j = 0; j < kOwn; ++j) put_scores(s.scores[b * kGroupBlock + mine + 2 * j], key, sum[b][j]);
        }
    }
}

// ---- weights -------------------------------------------------------------------------------------------------------

/// The largest of a float over the warp, a NaN with a clear sign above all.
__device__ __forceinline__ float warp_largest(float x) {
    const auto bits = static_cast<int32_t>(__float_as_uint(x));
    const uint32_t ordered = kv_warp_max(static_cast<uint32_t>(bits ^ (bits >> 31 | INT32_MIN)));
    return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

/// Scores to weights and factors, in shared memory; m, l: of head `warp` of a group, l this lane's part.
template <bool kBf16, int kGroups>
__device__ __forceinline__ void weigh_group(WideGroups<kGroups>& s, int q, int left, float& m, float& l) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    float2 x = *reinterpret_cast<const float2*>(&s.scores[q][warp][2 * lane]);
    if constexpr (kGroups == 1) {
        const float2 y = *reinterpret_cast<const float2*>(&s.scores[1][warp][2 * lane]);
        x = {__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y)};
    }
    if (2 * lane >= left) x.x = -INFINITY;
    if (2 * lane + 1 >= left) x.y = -INFINITY;
    const float most = fmaxf(m, warp_largest(fmaxf(x.x, x.y)));
    const float factor = fast_exp2(__fsub_rn(m, most));
    const float p0 = fast_exp2(__fsub_rn(x.x, most)), p1 = fast_exp2(__fsub_rn(x.y, most));
    m = most;
    l = __fadd_rn(__fmul_rn(l, factor), __fadd_rn(p0, p1));
    if (lane == 0) s.factors[q][warp] = factor;
    uint32_t high, low;
    split_pair<kBf16>(p0, p1, high, low);
    auto* to = reinterpret_cast<uint32_t*>(s.weights[q][lane / 8]) + 4 * (4 * warp + lane % 4) + lane / 4 % 2;
    to[0] = high;
    to[2] = low;
}
template <bool kBf16, int kGroups>
__device__ __forceinline__ void weigh_tile(WideGroups<kGroups>& s, int left, int groups, float (&m)[kGroups],
                                           float (&l)[kGroups]) {
#pragma unroll
    for (int q = 0; q < kGroups; ++q) {
        if (q % kGroupBlock == 0 && q >= groups) break;
        weigh_group<kBf16>(s, q, left, m[q], l[q]);
    }
}

// ---- values --------------------------------------------------------------------------------------------------------

/// Element j (0..3) of a block of 32 that lane 4 g + t of the block's warp takes.
RT_HD constexpr int wide_value_element(DType type, int g, int j) {
    return type == DType::q4_0 ? 2 * g + j % 2 + 16 * (j / 2) : 4 * g + j;
}

/// The lane's four values of block w of two rows, side by side: h[j] = (a, b), as kv_pair_decode gives them.
template <DType T>
__device__ __forceinline__ void wide_pair(const unsigned char* a, const unsigned char* b, int w, uint32_t (&h)[4]) {
    const int g = static_cast<int>(threadIdx.x % 32 / 4);
    if constexpr (T == DType::f16 || T == DType::bf16) {
        const uint2 x = PlainLoad::two(a + 64 * w + 8 * g), y = PlainLoad::two(b + 64 * w + 8 * g);
        h[0] = __byte_perm(x.x, y.x, 0x5410);
        h[1] = __byte_perm(x.x, y.x, 0x7632);
        h[2] = __byte_perm(x.y, y.y, 0x5410);
        h[3] = __byte_perm(x.y, y.y, 0x7632);
        return;
    }
    uint32_t d = 0;
    if constexpr (kv_has_scales(T)) {
        const auto scale = [w](const unsigned char* row) {
            return uint32_t{reinterpret_cast<const uint16_t*>(row + kv_scales_at(T, kWide))[w]};
        };
        d = scale(a) | scale(b) << 16;
    }
    if constexpr (T == DType::f8_e4m3 || T == DType::q8_0) {
        const uint32_t x = PlainLoad::one(a + 32 * w + 4 * g), y = PlainLoad::one(b + 32 * w + 4 * g);
        const uint32_t z[2] = {__byte_perm(x, y, 0x5140), __byte_perm(x, y, 0x7362)};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (T == DType::f8_e4m3) {
                const auto pair = static_cast<__nv_fp8x2_storage_t>(z[j / 2] >> (16 * (j % 2)));
                const __half2_raw v = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
                h[j] = static_cast<uint32_t>(v.x) | static_cast<uint32_t>(v.y) << 16;
            } else {
                h[j] = kv_scaled(__byte_perm(z[j / 2] ^ 0x80808080u, 0x64646464u, j % 2 == 0 ? 0x4140 : 0x4342),
                                 0x64806480u, d);
            }
        }
    } else if constexpr (T == DType::q4_0) {
        const auto two = [w, g](const unsigned char* row) {
            return uint32_t{*reinterpret_cast<const uint16_t*>(row + 16 * w + 2 * g)};
        };
        const uint32_t x = two(a) | two(b) << 16;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            h[j] = kv_scaled(__byte_perm(x >> (4 * (j / 2)) & 0x0F0F0F0Fu, 0x64646464u, j % 2 == 0 ? 0x4240 : 0x4341),
                             0x64086408u, d);
    } else {
        constexpr uint32_t kLow0 = 0x7E358B1Au, kLow1 = 0x1A8B357Eu, kHigh0 = 0xA5ACAFB2u, kHigh1 = 0x322F2C25u;
        const auto bits = [g](uint32_t byte) { return byte >> (4 * (g % 2)) & 15u; };
        const uint32_t two = uint32_t{a[8 * w + g]} | uint32_t{b[8 * w + g]} << 8;
        const uint32_t sign = bits(a[64 + 4 * w + g / 2]) | bits(b[64 + 4 * w + g / 2]) << 4;
        const uint32_t codes = kv_spread2(two) | kv_spread1(sign) << 2;
        uint32_t x[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t four = codes >> (16 * i);
            const uint32_t low = __byte_perm(kLow0, kLow1, four), high = __byte_perm(kHigh0, kHigh1, four);
            x[i][0] = __byte_perm(low, high, 0x5140);
            x[i][1] = __byte_perm(low, high, 0x7362);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
            h[j] = kv_scaled(__byte_perm(x[0][j / 2], x[1][j / 2], j % 2 == 0 ? 0x5410 : 0x7632), 0, d);
    }
}

/// V of 16 keys and the warp's 32 elements, turned, as the A operand: rows g and g + 8 of tile i are elements 2 i and
/// 2 i + 1 of the lane's four.
template <DType T>
__device__ __forceinline__ void value_fragments(const unsigned char (*rows)[kStagedRow<T>], uint32_t (&f)[2][4]) {
    const int t = static_cast<int>(threadIdx.x % 4), warp = static_cast<int>(threadIdx.x / 32);
    uint32_t first[4], second[4];
    wide_pair<T>(rows[value_key(t, 0)], rows[value_key(t, 1)], warp, first);
    wide_pair<T>(rows[value_key(t, 2)], rows[value_key(t, 3)], warp, second);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        f[i][0] = first[2 * i], f[i][1] = first[2 * i + 1];
        f[i][2] = second[2 * i], f[i][3] = second[2 * i + 1];
    }
}

/// x <- x * factors + weights V over N groups. Lane 4 g + t: x[q][i] holds elements 2 i (x[0], x[1]) and 2 i + 1 of the
/// lane's four for pairs 2 t and 2 t + 1 of group q.
template <bool kBf16, int N, int kGroups>
__device__ __forceinline__ void add_groups(const WideGroups<kGroups>& s, int first,
                                           const uint32_t (&v)[kTileSteps][2][4], int steps, float (*x)[2][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int q = 0; q < N; ++q) {
        const float2 factor = *reinterpret_cast<const float2*>(&s.factors[first + q][2 * (lane % 4)]);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) x[q][i][c] = __fmul_rn(x[q][i][c], c % 2 == 0 ? factor.x : factor.y);
    }
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
        if (step >= steps) break;
        uint4 p[N];
#pragma unroll
        for (int q = 0; q < N; ++q) p[q] = reinterpret_cast<const uint4*>(s.weights[first + q][step])[lane];
#pragma unroll
        for (int part = 0; part < 2; ++part)
#pragma unroll
            for (int q = 0; q < N; ++q)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t(&f)[4] = v[step][i];
                    mma<kBf16>(x[q][i], f[0], f[1], f[2], f[3], part == 0 ? p[q].x : p[q].z,
                               part == 0 ? p[q].y : p[q].w);
                }
    }
}
template <bool kBf16, int kGroups>
__device__ __forceinline__ void add_tile(const WideGroups<kGroups>& s, const uint32_t (&v)[kTileSteps][2][4], int steps,
                                         int groups, float (&x)[kGroups][2][4]) {
    constexpr int kTogether = kGroups == 1 ? 1 : kGroupBlock;
#pragma unroll
    for (int q = 0; q < kGroups; q += kTogether) {
        if (q >= groups) break;
        if (steps == kTileSteps) add_groups<kBf16, kTogether>(s, q, v, kTileSteps, x + q);
        else add_groups<kBf16, kTogether>(s, q, v, steps, x + q);
    }
}

// ---- a chunk -------------------------------------------------------------------------------------------------------

/// The chunk's states to device memory.
template <DType TV, int kGroups>
__device__ __forceinline__ void store_chunk(const WideArgs& args, const WideWork& w, const float (&m)[kGroups],
                                            const float (&l)[kGroups], const float (&x)[kGroups][2][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int group = args.a.heads / args.a.kv_heads, pairs = w.rows * group;
    const auto place = [&](int pair) {
        return args.chunk_at(w.first + pair / group, w.head * group + pair % group, w.chunk);
    };
#pragma unroll
    for (int q = 0; q < kGroups; ++q) {
        if (8 * q >= pairs) break;
        const float sum = warp_sum(l[q]);
        if (lane == 0 && 8 * q + warp < pairs) args.ml[place(8 * q + warp)] = {m[q], sum};
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int pair = 8 * q + 2 * (lane % 4) + c;
            if (pair >= pairs) continue;
            float* to = args.sums + place(pair) * kWide + 32 * warp;
            if constexpr (TV == DType::q4_0) {
                *reinterpret_cast<float2*>(to + wide_value_element(TV, lane / 4, 0)) = {x[q][0][c], x[q][0][2 + c]};
                *reinterpret_cast<float2*>(to + wide_value_element(TV, lane / 4, 2)) = {x[q][1][c], x[q][1][2 + c]};
            } else {
                *reinterpret_cast<float4*>(to + wide_value_element(TV, lane / 4, 0)) = {x[q][0][c], x[q][0][2 + c],
                                                                                        x[q][1][c], x[q][1][2 + c]};
            }
        }
    }
}

/// A chunk whose first two tiles are on their way and whose queries are on their way to shared memory. Between two
/// barriers the values of a tile are added and the next tile's scores are made.
template <DType TK, DType TV, int kGroups>
__device__ __forceinline__ void attend_wide(const WideArgs& args, WideShared<TK, TV>& s, WideGroups<kGroups>& of,
                                            const WideWork& w, int groups) {
    float m[kGroups], l[kGroups], x[kGroups][2][4] = {};
#pragma unroll
    for (int q = 0; q < kGroups; ++q) m[q] = -INFINITY, l[q] = 0.0f;
    stage_wait<1>();
    __syncthreads();
    score_tile<TK>(s.k[0], of, groups);
#pragma unroll 1
    for (int tile = 0; tile * kTile < w.keys; ++tile) {
        const int left = w.keys - tile * kTile, steps = min(kTileSteps, (left + kStepKeys - 1) / kStepKeys);
        __syncthreads();
        weigh_tile<TV == DType::bf16>(of, left, groups, m, l);
        uint32_t v[kTileSteps][2][4];
#pragma unroll
        for (int step = 0; step < kTileSteps; ++step)
            if (step < steps) value_fragments<TV>(s.v[tile % 2] + step * kStepKeys, v[step]);
        stage_wait<0>();
        __syncthreads();
        stage_tile(args.a, s, w, tile + 2);  // in the place of this one, which is in registers now
        add_tile<TV == DType::bf16>(of, v, steps, groups, x);
        if (left > kTile) score_tile<TK>(s.k[(tile + 1) % 2], of, groups);
    }
    store_chunk<TV>(args, w, m, l, x);
    __syncthreads();  // before the next item takes the place of slots and queries
}

}  // namespace

}  // namespace riptide::ops
