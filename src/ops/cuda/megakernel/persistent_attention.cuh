// The persistent kernel's attention: the order of decode_any.cu, for one row.
//
// A CTA has a chunk of 1,024 keys of one query head; warp w of sixteen takes keys w, w + 16, ... of it, two at a time;
// warps are merged in order, then (long contexts) the chunks, by the CTA of the head's first chunk.
#pragma once

#include "ops/cuda/megakernel/persistent_decode.cuh"

namespace riptide::ops {

#ifdef __CUDACC__

inline constexpr int kPersistentChunk = 1024, kHeadRegs = kMostHeadDim / 32;

template <DType T>
__device__ __forceinline__ DType kv_type_of(DType said) {
    return T == DType::f32 ? said : T;
}

/// kv_value; of a type that only the arguments know, it is not put into every place.
static __device__ __noinline__ float any_kv_value(DType type, const unsigned char* row, int d, int i) {
    return kv_value(type, row, d, i);
}
template <DType T>
__device__ __forceinline__ float value_of_row(DType type, const unsigned char* row, int d, int i) {
    return T == DType::f32 ? any_kv_value(type, row, d, i) : kv_value(T, row, d, i);
}

/// q, and the own key's K and V as they are stored, from the projections; the CTA that has the last chunk of a K/V
/// head's first query head stores them. Synchronises.
template <DType T>
__device__ __forceinline__ void prepare_row(const Phase& p, int head, bool stores, AttentionScratch& s) {
    const PersistentCommon& a = p.a;
    const int lane = p.lane(), warp = p.warp(), kv = head / (a.heads / a.kv_heads);
    const DType k_type = kv_type_of<T>(a.k_dtype), v_type = kv_type_of<T>(a.v_dtype);
    if (warp < 3) {
        const int count = a.d > lane ? (a.d - lane + 31) / 32 : 0;
        const int row = warp == 0 ? head * 2 * a.d : a.attention_rows.begin[warp] + kv * a.d;
        float x[kHeadRegs];
        await_strided<kHeadRegs>(a.in + row + lane, 32, count, p.number, x);
        if (warp < 2) {
            norm_head(x, HeadNorm{warp == 0 ? p.w.head_norm : p.w.k_norm, a.eps}, a.d);
            rope_head(x, a.rope, p.s.rotation, a.d, s.x[warp]);
        }
        if (warp == 0) {
#pragma unroll
            for (int i = 0; i < kHeadRegs; ++i)
                if (i < count) s.q[32 * i + lane] = x[i];
        } else {
            const DType type = warp == 1 ? k_type : v_type;
            unsigned char* const own = warp == 1 ? s.own_k : s.own_v;
            kv_encode_lanes(type, x, a.d, own);
            __syncwarp();
            if (stores) {
                const int64_t slot = a.places.slot(0, 0, a.places.committed[0]), bytes = kv_row_bytes(type, a.d);
                unsigned char* to =
                    warp == 1 ? p.w.k_cache + slot * a.k_slot_bytes : p.w.v_cache + slot * a.v_slot_bytes;
#pragma unroll 1
                for (int i = lane; i < bytes; i += 32) to[kv * bytes + i] = own[i];
            }
        }
    }
    __syncthreads();
}

template <DType T>
__device__ __forceinline__ SoftmaxState<kHeadRegs> attend_keys(const Phase& p, int head, int first, int end,
                                                               const AttentionScratch& s) {
    constexpr int kTogether = 2;
    const PersistentCommon& a = p.a;
    const int lane = p.lane(), kv = head / (a.heads / a.kv_heads);
    const DType k_type = kv_type_of<T>(a.k_dtype), v_type = kv_type_of<T>(a.v_dtype);
    const int64_t k_row = kv_row_bytes(k_type, a.d), v_row = kv_row_bytes(v_type, a.d);
    float q[kHeadRegs];
    load_head(q, s.q, a.d);
    SoftmaxState<kHeadRegs> state = {-INFINITY, 0.0f, {}};
#pragma unroll 1
    for (int key = first + p.warp(); key < end; key += kTogether * kPersistentWarps) {
        float score[kTogether] = {}, value[kTogether][kHeadRegs];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int index = min(key + j * kPersistentWarps, end - 1);
            const bool own = index == p.position;
            const int64_t slot = own ? 0 : a.places.slot(0, 0, index);
            const unsigned char* k = own ? s.own_k : p.w.k_cache + slot * a.k_slot_bytes + kv * k_row;
            const unsigned char* v = own ? s.own_v : p.w.v_cache + slot * a.v_slot_bytes + kv * v_row;
#pragma unroll
            for (int i = 0; i < kHeadRegs; ++i) {
                const int e = 32 * i + lane;
                if (e < a.d) score[j] = __fmaf_rn(q[i], value_of_row<T>(k_type, k, a.d, e), score[j]);
                value[j][i] = e < a.d ? value_of_row<T>(v_type, v, a.d, e) : 0.0f;
            }
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2)
#pragma unroll
            for (int j = 0; j < kTogether; ++j)
                score[j] = __fadd_rn(score[j], __shfl_xor_sync(kAllLanes, score[j], mask));
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            if (key + j * kPersistentWarps >= end) break;
            SoftmaxState<kHeadRegs> one = {__fmul_rn(score[j], a.scale), 1.0f, {}};
#pragma unroll
            for (int i = 0; i < kHeadRegs; ++i) one.x[i] = value[j][i];
            if (j == 0 && key == first + p.warp()) state = one;
            else merge(state, one);
        }
    }
    return state;
}

/// The head's result to words: o = x / l, times the sigmoid of its gate. Thread e has element e.
__device__ __forceinline__ void finish_element(const Phase& p, int head, int e, const SoftmaxState<1>& state) {
    const PersistentCommon& a = p.a;
    const float gate = await_word(a.in + head * 2 * a.d + a.d + e, p.number);
    put_word(a.mixed + head * a.d + e, __fmul_rn(__fdiv_rn(state.x[0], state.l), sigmoid(gate)), p.number);
}

template <DType T>
__device__ __forceinline__ void attend_chunk(const Phase& p, int head, int chunk, int count, AttentionScratch& s) {
    const PersistentCommon& a = p.a;
    const int lane = p.lane(), first = chunk * kPersistentChunk, end = min(first + kPersistentChunk, count);
    prepare_row<T>(p, head, end == count && head % (a.heads / a.kv_heads) == 0, s);
    const SoftmaxState<kHeadRegs> state = attend_keys<T>(p, head, first, end, s);
#pragma unroll
    for (int i = 0; i < kHeadRegs; ++i) s.x[p.warp()][32 * i + lane] = state.x[i];
    if (lane == 0) s.ml[p.warp()] = {state.m, state.l};
    __syncthreads();
    // Warp after warp, as merge() of whole states: an element needs no other.
    if (const int e = static_cast<int>(threadIdx.x); e < a.d) {
        SoftmaxState<1> sum = {s.ml[0].x, s.ml[0].y, {s.x[0][e]}};
#pragma unroll 1
        for (int other = 1; other < kPersistentWarps && s.ml[other].y != 0.0f; ++other)
            merge(sum, SoftmaxState<1>{s.ml[other].x, s.ml[other].y, {s.x[other][e]}});
        if (count <= kPersistentChunk) {
            finish_element(p, head, e, sum);
        } else {
            Word* const to = a.chunks + (int64_t{head} * a.most_chunks + chunk) * (2 + kMostHeadDim);
            if (e == 0) {
                put_word(to, sum.m, p.number);
                put_word(to + 1, sum.l, p.number);
            }
            put_word(to + 2 + e, sum.x[0], p.number);
        }
    }
    __syncthreads();
}

template <DType T>
__device__ __noinline__ void attention() {
    const Phase p;
    AttentionScratch& s = p.s.attention;
    const PersistentCommon& a = p.a;
    const int count = p.position + 1, chunks = (count + kPersistentChunk - 1) / kPersistentChunk;
    const int ctas = static_cast<int>(gridDim.x);
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < a.heads * chunks; item += ctas)
        attend_chunk<T>(p, item % a.heads, item / a.heads, count, s);
    if (chunks == 1) return;
    const int e = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int head = static_cast<int>(blockIdx.x); head < a.heads && e < a.d; head += ctas) {
        SoftmaxState<1> sum;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const Word* const from = a.chunks + (int64_t{head} * a.most_chunks + chunk) * (2 + kMostHeadDim);
            const SoftmaxState<1> next = {
                await_word(from, p.number), await_word(from + 1, p.number), {await_word(from + 2 + e, p.number)}};
            if (chunk == 0) sum = next;
            else merge(sum, next);
        }
        finish_element(p, head, e, sum);
    }
}

#endif

}  // namespace riptide::ops
