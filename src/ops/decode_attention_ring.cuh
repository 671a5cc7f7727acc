// Long contexts in decode attention: keys two steps ahead on their way through shared memory.
//
// Registers hold one step of 16 keys for each warp; while it is multiplied there is room for half of the next one, and
// a step takes as long as a load (measured: 60 % of the bandwidth at 32K tokens of FP8). Here a warp has a ring of two
// steps in shared memory beside its registers: a step is copied to registers and its place filled again at once, so
// that two steps are always on their way. 64 KB (FP8) or 128 KB (f16) in flight for each CTA of 8 warps.
//
// A stage: 16 rows of K, then 16 of V, in pieces of 16 bytes; piece p of key k lies at p ^ ring_swizzle(k), so that
// both ways of reading (keys g and g + 8; keys 2 t, 2 t + 1, ...) are free of bank conflicts.
#pragma once

#include "ops/decode_attention_row.cuh"
#include "ops/decode_load.cuh"

namespace riptide::ops {

namespace {

RT_HD constexpr int ring_swizzle(int key) { return (key >> 1 & 3) << 1 ^ (key & 1) << 2; }

/// Types whose rows are whole pieces of 16 bytes.
template <DType T>
constexpr bool kWholePieces = T == DType::f16 || T == DType::bf16 || T == DType::f8_e4m3;
template <DType TK, DType TV>
constexpr bool kHasRing = kWholePieces<TK>&& kWholePieces<TV>;

constexpr int kRingSteps = 2;
template <DType T>
constexpr int kRowPieces = static_cast<int>(kv_row_bytes(T, kD) / 16);
template <DType TK, DType TV>
constexpr int kStageBytes = 16 * kStepKeys*(kRowPieces<TK> + kRowPieces<TV>);
/// Shared memory of a CTA's rings.
template <DType TK, DType TV>
constexpr int kRingBytes = kAttentionWarps* kRingSteps* kStageBytes<TK, TV>;

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// All but the newest group of this thread's copies are there.
__device__ __forceinline__ void wait_for_older_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
}

/// Sixteen rows of one head to a stage; slot: of key lane % 16.
template <DType T>
__device__ __forceinline__ void copy_rows(unsigned char* stage, const unsigned char* head, int64_t slot_bytes,
                                          int32_t slot) {
    constexpr int kPieces = kRowPieces<T>;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kStepKeys * kPieces / 32; ++i) {
        const int key = (32 * i + lane) / kPieces, piece = (32 * i + lane) % kPieces;
        const unsigned char* from = head + __shfl_sync(kAllLanes, slot, key) * slot_bytes + 16 * piece;
        cuda::decode::copy_async16(stage + 16 * (key * kPieces + (piece ^ ring_swizzle(key))), from);
    }
}

/// Unit u of key `key` of a stage.
template <DType T>
__device__ __forceinline__ void read_unit(KvUnit<T>& unit, const unsigned char* stage, int key, int u) {
    constexpr int kPieces = kRowPieces<T>;
    const auto put = [&](int at, int piece) {
        const uint4 v = *reinterpret_cast<const uint4*>(stage + 16 * (key * kPieces + (piece ^ ring_swizzle(key))));
        unit.w[at] = v.x, unit.w[at + 1] = v.y, unit.w[at + 2] = v.z, unit.w[at + 3] = v.w;
    };
    if constexpr (T == DType::f8_e4m3) {
        put(0, u);
    } else {
        put(0, 8 * (u / 4) + u % 4);
        put(4, 8 * (u / 4) + u % 4 + 4);
    }
}

/// One warp's ring.
template <DType TK, DType TV>
struct RingLoads {
    unsigned char* stages;

    __device__ __forceinline__ unsigned char* stage(int i) const {
        return stages + i % kRingSteps * kStageBytes<TK, TV>;
    }
    /// Sends step `step` of the chunk on its way, number i of this warp; an empty group behind the last one.
    template <class Load>
    __device__ __forceinline__ void send(const DecodeAttentionArgs& a, const Shared& s, const Item& item, int step,
                                         int i) const {
        if (step < item.steps()) {
            const int32_t slot = step_slot<Load>(a, s, item, step);
            copy_rows<TK>(stage(i), a.k_cache + item.head * kv_row_bytes(TK, kD), a.k_slot_bytes, slot);
            copy_rows<TV>(stage(i) + 16 * kStepKeys * kRowPieces<TK>, a.v_cache + item.head * kv_row_bytes(TV, kD),
                          a.v_slot_bytes, slot);
        }
        commit_copies();
    }
    __device__ __forceinline__ void read(int i, KeyUnits<TK>& k, ValueUnits<TV>& v) const {
        const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
        const unsigned char* values = stage(i) + 16 * kStepKeys * kRowPieces<TK>;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            read_unit(k.unit[j][0], stage(i), g + 8 * j, t);
            read_unit(k.unit[j][1], stage(i), g + 8 * j, t + 4);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) read_unit(v.unit[j], values, value_key(t, j), g);
    }
};

/// As for StepLoads.
template <class Load, DType TK, DType TV>
__device__ __forceinline__ void start_chunk(const DecodeAttentionArgs& a, const Shared& s, const Item& item,
                                            RingLoads<TK, TV>& ring) {
    const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int i = 0; i < kRingSteps; ++i) ring.template send<Load>(a, s, item, warp + i * kAttentionWarps, i);
}

/// The warp's state over its steps of a started chunk.
template <bool OneStep, DType TK, DType TV>
__device__ __forceinline__ void attend_steps(const DecodeAttentionArgs& a, const Shared& s, const Item& item,
                                             RingLoads<TK, TV>& ring, WarpState& w) {
    const int warp = static_cast<int>(threadIdx.x / 32), steps = item.steps();
    for (int step = warp, i = 0; step < steps; step += kAttentionWarps, ++i) {
        KeyUnits<TK> k;
        ValueUnits<TV> v;
        wait_for_older_copies();
        __syncwarp();
        ring.read(i, k, v);
        __syncwarp();
        ring.template send<PlainLoad>(a, s, item, step + kRingSteps * kAttentionWarps, i);
        if (item.own && (step + 1) * kStepKeys >= item.chunk.keys) take_own_row(k, v, s, step, item.chunk.keys);
        float p[4];
        scores(k, s, p);
        soften(p, item.chunk.keys - step * kStepKeys, w);
        add_values(v, p, w.x);
    }
}

}  // namespace

}  // namespace riptide::ops
