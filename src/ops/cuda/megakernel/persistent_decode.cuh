// Arguments of the persistent kernel, and its phases but for attention.
#pragma once

#include "ops/cuda/device/heads.cuh"
#include "ops/cuda/gated_delta/prepare_rows.cuh"
#include "ops/cuda/megakernel/persistent_rows.cuh"

namespace riptide::ops {

inline constexpr int kPersistentLayers = 64;
inline constexpr int kPersistentKeyDim = 128, kPersistentValueDim = 128;  // of Gated DeltaNet, at most
inline constexpr int kOwnRows = 64;                                       // of the residual stream, of a CTA at most

struct PersistentLayerArgs {
    const char* in[4];
    const char *out, *gate, *up, *down;
    const float *attn_norm, *ffn_norm, *head_norm, *k_norm;
    const float *conv_weights, *decay, *dt_bias;
    float *conv, *state, *stash;
    unsigned char *k_cache, *v_cache;
    bool linear;
};

/// Where the projections' rows stand among all rows of a layer's first product; behind the last: their number.
struct InputRows {
    int begin[5];
    __device__ __forceinline__ int matrix(int row) const {
        return (row >= begin[1] ? 1 : 0) + (row >= begin[2] ? 1 : 0) + (row >= begin[3] ? 1 : 0);
    }
};

/// What all layers share.
struct PersistentCommon {
    RopeParams rope;
    KeyPlaces places;
    InputRows linear_rows, attention_rows;
    DeltaSizes delta;
    const char *embed_tokens, *lm_head;
    const float* norm;
    const int32_t *tokens, *next_slot;  // next_slot null: the state stays, the row goes to the stash
    float* logits;
    Word *x_mid, *x_end;  // the residual stream behind a layer's first half, behind the layer
    Word *in, *mixed, *act, *chunks;
    uint32_t* numbers;  // [0] the number before this step's first, [1] CTAs that are done
    int64_t* clocks;
    int watched;
    int layer_count, hidden, ffn, vocab;
    int heads, kv_heads, d;
    DType k_dtype, v_dtype;
    int64_t k_slot_bytes, v_slot_bytes;
    float eps, scale;  // of scores, to units of log2
    int most_chunks;
    int slots_at;  // where pieces of weights begin in shared memory
    /// Lines of 128 bytes of a CTA's own weights that warps without rows fetch to L2: [0] of gate and up while `out`
    /// waits, [1] of `down` while gate and up wait, [2] of the next layer's first product while `down` waits.
    int ahead[4];
};

struct PersistentArgs {
    PersistentCommon common;
    PersistentLayerArgs layers[kPersistentLayers];
};

/// What of something a CTA has.
struct Share {
    int begin, end;
};

#ifdef __CUDACC__

/// Of one warp with columns of a state.
struct DeltaScratch {
    float q[kPersistentKeyDim], k[kPersistentKeyDim], v[kWarpColumns], gate[4];
};
struct AttentionScratch {
    float x[kPersistentWarps][kMostHeadDim];
    float2 ml[kPersistentWarps];
    float q[kMostHeadDim];
    alignas(16) unsigned char own_k[kMostHeadDim * 4], own_v[kMostHeadDim * 4];
};

/// Shared memory of a CTA; rows of x stand behind it. Arguments are in it, too, for the phases are functions that are
/// called: inlined into one loop over layers they take each other's registers.
struct PersistentShared {
    PersistentCommon a;
    PersistentLayerArgs layers[2];  // by turns
    Share linear_rows, attention_rows, hidden, ffn, vocab;
    uint32_t number;                                 // of the words of this layer
    int layer, position, rotation, slot, next_slot;  // rotation: the position that queries and keys are rotated by
    const char* embedding;                           // of the token; null: there is no such token
    alignas(16) float partial[8];
    float own[kOwnRows];  // rows of the residual stream that this CTA adds to, as they are now
    union {
        AttentionScratch attention;
        DeltaScratch delta[kPersistentWarps];
    };
};
extern __shared__ float4 persistent_dynamic[];
__device__ __forceinline__ PersistentShared& persistent_shared() {
    return *reinterpret_cast<PersistentShared*>(persistent_dynamic);
}
inline constexpr int kPersistentFixed = (static_cast<int>(sizeof(PersistentShared)) + 127) / 128 * 128;

/// What all phases of a CTA know.
struct Phase {
    PersistentShared& s;
    const PersistentCommon& a;
    const PersistentLayerArgs& w;
    uint32_t number;
    int position;

    __device__ __forceinline__ Phase()
        : s(persistent_shared()), a(s.a), w(s.layers[s.layer % 2]), number(s.number), position(s.position) {}
    __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x / 32); }
    __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x % 32); }
    /// Rows of x: those of `hidden` columns, and the others.
    __device__ __forceinline__ float* narrow() const {
        return reinterpret_cast<float*>(persistent_dynamic) + kPersistentFixed / 4;
    }
    __device__ __forceinline__ float* wide() const { return narrow() + (a.hidden + 15) / 16 * 16; }
    /// Behind them: pieces of weights.
    __device__ __forceinline__ uint4* slots() const {
        return reinterpret_cast<uint4*>(reinterpret_cast<char*>(persistent_dynamic) + a.slots_at);
    }
    __device__ __forceinline__ void stamp(int place) const {
        if (a.clocks != nullptr && static_cast<int>(blockIdx.x) == a.watched && threadIdx.x == 0)
            a.clocks[8 * s.layer + place] = clock64();
    }
};

// ---- The first product of a layer of Gated DeltaNet: what a row of it becomes, and where that goes.

/// Before the sums are there: lane 8 g + i holds, of row g, tap i of the convolution (i > 0) and its weight; of a row
/// of alpha lane 8 g holds dt_bias and decay.
struct InputAside {
    float x = 0.0f, weight = 0.0f;
};

__device__ __forceinline__ InputAside load_aside(const Phase& p, int row, bool there) {
    const DeltaSizes& z = p.a.delta;
    const int i = p.lane() % 8;
    InputAside aside;
    if (!there || !p.w.linear) return aside;
    if (row < z.channels) {
        if (i < z.width && p.position - i >= 0) {
            aside.weight = p.w.conv_weights[int64_t{row} * z.width + z.width - 1 - i];
            if (i > 0)
                aside.x = p.w.conv[p.s.slot * z.conv_floats + int64_t{(p.position - i) % z.width} * z.channels + row];
        }
    } else if (const int h = row - p.a.linear_rows.begin[3]; h >= 0 && i == 0) {
        aside.x = p.w.dt_bias[h];
        aside.weight = p.w.decay[h];
    }
    return aside;
}

/// u: the row's product, in its eight lanes. All lanes.
__device__ __forceinline__ void put_linear_row(const Phase& p, int row, bool there, float u, InputAside aside) {
    const DeltaSizes& z = p.a.delta;
    const int i = p.lane() % 8, group = p.lane() & 24;
    const bool channel = row < z.channels;
    if (channel && i == 0) aside.x = u;
    float sum = 0.0f;
#pragma unroll
    for (int tap = kDeltaTaps - 1; tap >= 0; --tap) {
        const float w = __shfl_sync(kAllLanes, aside.weight, group + tap),
                    x = __shfl_sync(kAllLanes, aside.x, group + tap);
        sum = __fmaf_rn(w, x, sum);
    }
    if (!there) return;
    if (channel && p.a.next_slot != nullptr && i < z.width) {
        // The whole ring: the slot may be another, or hold nothing yet.
        const int column = (p.position + z.width - i) % z.width;
        p.w.conv[p.s.next_slot * z.conv_floats + int64_t{column} * z.channels + row] = aside.x;
    }
    if (i != 0) return;
    float* const stash = p.a.next_slot == nullptr ? p.w.stash : nullptr;
    float value;
    if (channel) {
        value = __fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum)));
        if (stash != nullptr) {
            stash[row] = u;
            if (row >= 2 * z.keys()) stash[z.channels - z.keys() + row] = value;
        }
    } else if (row < p.a.linear_rows.begin[2]) {
        value = __fdiv_rn(u, __fadd_rn(1.0f, expf(-u)));  // the gate of z
    } else if (row < p.a.linear_rows.begin[3]) {
        value = sigmoid(u);  // beta
        if (stash != nullptr) stash[z.stash_floats - z.value_heads + row - p.a.linear_rows.begin[2]] = value;
    } else {
        value = expf(__fmul_rn(softplus(__fadd_rn(u, aside.x)), aside.weight));  // e^g
        if (stash != nullptr) stash[z.stash_floats - 2 * z.value_heads + row - p.a.linear_rows.begin[3]] = value;
    }
    put_word(p.a.in + row, value, p.number);
}

/// The state's columns that a CTA's warps will want, to the L2 cache.
__device__ __forceinline__ void fetch_states(const Phase& p) {
    const DeltaSizes& z = p.a.delta;
    const int groups = (z.value_dim + kWarpColumns - 1) / kWarpColumns;
    const int item = static_cast<int>(blockIdx.x) + (kPersistentWarps - 1 - p.warp()) * static_cast<int>(gridDim.x);
    if (item >= z.value_heads * groups || p.position == 0) return;
    const float* state = p.w.state + p.s.slot * z.state_elements + int64_t{item / groups} * z.key_dim * z.value_dim +
                         item % groups * kWarpColumns;
    for (int i = p.lane(); i < z.key_dim; i += 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(state + int64_t{i} * z.value_dim));
}

/// h = RMSNorm(x), then the rows of the layer's projections. x: the words of the layer before, or the embedding (of a
/// token that there is; else NaN, as embed()).
static __device__ __noinline__ void project() {
    const Phase p;
    const PersistentCommon& a = p.a;
    const InputRows& rows = p.w.linear ? a.linear_rows : a.attention_rows;
    const Share share = p.w.linear ? p.s.linear_rows : p.s.attention_rows;
    const int pieces = a.hidden / 8, end = share.end;
    int first = share.begin + 4 * p.warp();
    InputAside aside;
    const auto row_of = [&](int g) {
        const int row = first + g, m = rows.matrix(row);
        return p.w.in[m] + int64_t{row - rows.begin[m]} * 2 * a.hidden;
    };
    const auto load = [&] {
        if (first >= end) return;
        copy_rows(p.slots(), row_of, min(4, end - first), pieces);
        const int row = first + p.lane() / 8;
        aside = load_aside(p, row, row < end);
    };
    load();
    if (p.w.linear) fetch_states(p);
    if (share.begin == end) return __syncthreads();
    const auto piece = [&](int c, float(&v)[8]) {
        if (p.s.layer > 0) return await_words<4>(a.x_end + 8 * c, p.number - 1, v);
        const uint4 w = load_weights((p.s.embedding != nullptr ? p.s.embedding : a.embed_tokens) + 16 * c);
        const uint32_t raw[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const float4 x = cuda::decode::decode4(DType::bf16, raw, t);
            v[4 * t] = x.x, v[4 * t + 1] = x.y, v[4 * t + 2] = x.z, v[4 * t + 3] = x.w;
        }
        if (p.s.embedding != nullptr) return;
#pragma unroll
        for (float& x : v) x = __uint_as_float(0x7FC00000u);
    };
    stage_normed(piece, p.w.attn_norm, a.hidden, a.eps, p.s.partial, p.narrow());
    p.stamp(1);
#pragma unroll 1
    for (; first < end; first += 4 * kPersistentWarps, load()) {
        const float sum =
            multiply_rows(p.slots(), reinterpret_cast<const float4*>(p.narrow()), min(4, end - first), pieces);
        const int row = first + p.lane() / 8;
        if (p.w.linear) put_linear_row(p, row, row < end, sum, aside);
        else if (row < end && p.lane() % 8 == 0) put_word(a.in + row, sum, p.number);
    }
    p.stamp(2);
}

// ---- The delta rule.

/// Eight columns of a head's state, by one warp. scratch: of this warp.
__device__ __forceinline__ void delta_columns(const Phase& p, int item, DeltaScratch& scratch) {
    constexpr int kRows = kPersistentKeyDim / 16, kEach = kPersistentKeyDim / 32;
    const PersistentCommon& a = p.a;
    const DeltaSizes& z = a.delta;
    const int groups = (z.value_dim + kWarpColumns - 1) / kWarpColumns, h = item / groups;
    const int column = item % groups * kWarpColumns, key = z.key_head(h), lane = p.lane();
    const int own = DeltaTile<kRows>::first_column(), columns = z.value_dim - column - own;
    const int64_t at = int64_t{h} * z.key_dim * z.value_dim + column + own;
    DeltaTile<kRows> tile;
    tile.clear();
    if (p.position > 0)
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (const int row = DeltaTile<kRows>::row(i); row < z.key_dim && columns > 0) {
                tile.s[i] = tile.load_piece(p.w.state + p.s.slot * z.state_elements + at + int64_t{row} * z.value_dim);
            }

    // Each lane: q and k, elements lane, lane + 32, ...; lanes 0 to 7 v of the columns, 8 and 9 the gates.
    const int elements = z.key_dim > lane ? (z.key_dim - lane + 31) / 32 : 0;
    const Word* from = a.in + 2 * z.keys() + h * z.value_dim + column + lane;
    if (lane == 8) from = a.in + a.linear_rows.begin[3] + h;
    if (lane == 9) from = a.in + a.linear_rows.begin[2] + h;
    const bool single = lane < 8 ? column + lane < z.value_dim : lane < 10;
    float q[kEach], k[kEach], value[1];
    await_strided<kEach>(a.in + key * z.key_dim + lane, 32, elements, p.number, q);
    await_strided<kEach>(a.in + z.keys() + key * z.key_dim + lane, 32, elements, p.number, k);
    await_strided<1>(from, 0, single ? 1 : 0, p.number, value);

    // As delta_prepare_key, delta_unit_factor and delta_dot.
    float squares_q = 0.0f, squares_k = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        if (i < elements) {
            squares_q = __fmaf_rn(q[i], q[i], squares_q);
            squares_k = __fmaf_rn(k[i], k[i], squares_k);
        }
    const auto unit = [](float squares) { return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(squares), 1e-6f))); };
    const float factor_q = __fmul_rn(unit(squares_q), __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(z.key_dim))));
    const float factor_k = unit(squares_k);
    float* const kept =
        a.next_slot == nullptr && column == 0 && z.writes_keys(h) ? p.w.stash + z.channels + key * z.key_dim : nullptr;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int e = lane + 32 * i;
        q[i] = i < elements ? __fmul_rn(q[i], factor_q) : 0.0f;
        k[i] = i < elements ? __fmul_rn(k[i], factor_k) : 0.0f;
        if (i < elements) dot = __fmaf_rn(k[i], q[i], dot);
        scratch.q[e] = q[i];
        scratch.k[e] = k[i];
        if (kept != nullptr && i < elements) kept[e] = k[i];
    }
    dot = warp_sum(dot);
    if (lane < 8) scratch.v[lane] = value[0];
    else if (lane < 10) scratch.gate[lane - 8] = value[0];
    else if (lane == 10) scratch.gate[2] = dot;
    __syncwarp();
    const float o = tile.template step<true>(scratch.q, scratch.k,
                                             *reinterpret_cast<const DeltaPiece<kLaneColumns>*>(scratch.v + own),
                                             *reinterpret_cast<const float4*>(scratch.gate));
    const int out = column + own + DeltaTile<kRows>::output_column();
    if (DeltaTile<kRows>::has_output() && out < z.value_dim) put_word(a.mixed + h * z.value_dim + out, o, p.number);
    if (a.next_slot != nullptr)
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (const int row = DeltaTile<kRows>::row(i); row < z.key_dim && columns > 0) {
                float* const to = p.w.state + p.s.next_slot * z.state_elements + at + int64_t{row} * z.value_dim;
                tile.store_piece(to, tile.s[i]);
            }
    __syncwarp();
}

static __device__ __noinline__ void delta_rule() {
    const Phase p;
    const int groups = (p.a.delta.value_dim + kWarpColumns - 1) / kWarpColumns, ctas = static_cast<int>(gridDim.x);
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x) + (kPersistentWarps - 1 - p.warp()) * ctas;
         item < p.a.delta.value_heads * groups; item += kPersistentWarps * ctas)
        delta_columns(p, item, p.s.delta[p.warp()]);
}

/// RMSNorm(o) * gate of all heads to shared memory, a warp for each head: delta_finish_head.
__device__ __forceinline__ void stage_finished_heads(const Phase& p, float* staged) {
    constexpr int kEach = kPersistentValueDim / 32;
    const PersistentCommon& a = p.a;
    const int d = a.delta.value_dim, lane = p.lane(), count = d > lane ? (d - lane + 31) / 32 : 0;
    float norm[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) norm[i] = i < count ? p.w.head_norm[lane + 32 * i] : 0.0f;
#pragma unroll 1
    for (int h = p.warp(); h < a.delta.value_heads; h += kPersistentWarps) {
        float o[kEach], gate[kEach];
        await_strided<kEach>(a.in + a.linear_rows.begin[1] + h * d + lane, 32, count, p.number, gate);
        await_strided<kEach>(a.mixed + h * d + lane, 32, count, p.number, o);
        const float scale = warp_rms_scale([&](int j) { return o[j]; }, d, a.eps);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (i < count)
                put_staged(staged, h * d + lane + 32 * i, __fmul_rn(rms_value(o[i], scale, norm[i]), gate[i]));
    }
}

// ---- Products that are added to the residual stream: `out` and `down`.

/// x[rows of this CTA] += matrix times what stage() puts into `staged`; the new x to `to`.
template <class Stage>
__device__ __forceinline__ void add_product(const Phase& p, const char* matrix, int cols, float* staged, Word* to,
                                            const Stage& stage, int stamp) {
    const int pieces = cols / 8, begin = p.s.hidden.begin, end = p.s.hidden.end;
    int row = begin + p.warp();
    const auto load = [&] {
        if (row < end) copy_row(p.slots(), matrix + int64_t{row} * 2 * cols, pieces);
    };
    load();
    if (begin < end) stage();
    __syncthreads();
    p.stamp(stamp);
#pragma unroll 1
    for (; row < end; row += kPersistentWarps, load()) {
        const float sum = multiply_row(p.slots(), reinterpret_cast<const float4*>(staged), pieces);
        if (p.lane() != 0) continue;
        float& own = p.s.own[row - begin];
        own = __fadd_rn(own, sum);
        put_word(to + row, own, p.number);
    }
    p.stamp(stamp + 1);
}

static __device__ __noinline__ void add_mixed() {
    const Phase p;
    const int cols = p.w.linear ? p.a.delta.value_heads * p.a.delta.value_dim : p.a.heads * p.a.d;
    add_product(
        p, p.w.out, cols, p.wide(), p.a.x_mid,
        [&] {
            if (p.w.linear) stage_finished_heads(p, p.wide());
            else stage_words(p.a.mixed, cols, p.number, p.wide());
        },
        3);
}
static __device__ __noinline__ void add_down() {
    const Phase p;
    add_product(
        p, p.w.down, p.a.ffn, p.wide(), p.a.x_end, [&] { stage_words(p.a.act, p.a.ffn, p.number, p.wide()); }, 6);
}

// ---- Gate and up.

static __device__ __noinline__ void gate_up() {
    const Phase p;
    const PersistentCommon& a = p.a;
    const int pieces = a.hidden / 8, begin = p.s.ffn.begin, end = p.s.ffn.end;
    int first = begin + 2 * p.warp();
    const auto row_of = [&](int g) {  // two rows of gate, the same of up
        return (g < 2 ? p.w.gate : p.w.up) + int64_t{min(first + g % 2, end - 1)} * 2 * a.hidden;
    };
    const auto load = [&] {
        if (first < end) copy_rows(p.slots(), row_of, 4, pieces);
    };
    load();
    if (begin == end) return __syncthreads();
    stage_normed([&](int c, float(&v)[8]) { await_words<4>(a.x_mid + 8 * c, p.number, v); }, p.w.ffn_norm, a.hidden,
                 a.eps, p.s.partial, p.narrow());
    p.stamp(5);
#pragma unroll 1
    for (; first < end; first += 2 * kPersistentWarps, load()) {
        const float gate = multiply_rows(p.slots(), reinterpret_cast<const float4*>(p.narrow()), 4, pieces);
        const float up = __shfl_xor_sync(kAllLanes, gate, 16);
        const int row = first + p.lane() / 8;
        if (p.lane() % 8 == 0 && p.lane() < 16 && row < end) put_word(a.act + row, swiglu_value(gate, up), p.number);
    }
}

// ---- The head.

/// logits = W RMSNorm(x): each register is asked for again as soon as its piece is used.
static __device__ __noinline__ void head_product() {
    const Phase p;
    const PersistentCommon& a = p.a;
    const int pieces = a.hidden / 8, end = p.s.vocab.end;
    int first = p.s.vocab.begin + 4 * p.warp();
    if (p.s.vocab.begin == end) return;
    HeadTile tile;
    const int lane = p.lane();
    const auto row_of = [&](int g) { return a.lm_head + int64_t{min(first + g, end - 1)} * 2 * a.hidden + 16 * lane; };
    if (first < end)
#pragma unroll
        for (int g = 0; g < 4; ++g)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (32 * j + lane < pieces) tile.w[g][j] = load_weights(row_of(g) + 512 * j);
    stage_normed([&](int c, float(&v)[8]) { await_words<4>(a.x_end + 8 * c, p.number - 1, v); }, a.norm, a.hidden,
                 a.eps, p.s.partial, p.narrow());
    p.stamp(1);
    const auto* const x = reinterpret_cast<const float4*>(p.narrow());
#pragma unroll 1
    while (first < end) {
        const int now = first;
        first += 4 * kPersistentWarps;
        const char* next[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) next[g] = row_of(g);
        float acc[4][4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (32 * j + lane >= pieces) continue;
            const float4 v[2] = {x[cuda::decode::float_piece(2 * (32 * j + lane))],
                                 x[cuda::decode::float_piece(2 * (32 * j + lane) + 1)]};
#pragma unroll
            for (int g = 0; g < 4; ++g) {
                const uint32_t raw[4] = {tile.w[g][j].x, tile.w[g][j].y, tile.w[g][j].z, tile.w[g][j].w};
#pragma unroll
                for (int t = 0; t < 2; ++t)
                    acc[g][j] = cuda::decode::fma4(cuda::decode::decode4(DType::bf16, raw, t), v[t], acc[g][j]);
            }
            if (first < end)
#pragma unroll
                for (int g = 0; g < 4; ++g) tile.w[g][j] = load_weights(next[g] + 512 * j);
        }
        const float sum = row_sums(acc, lane);
        const int row = now + lane / 8;
        if (lane % 8 == 0 && row < end) a.logits[row] = sum;
    }
    p.stamp(2);
}

#endif

}  // namespace riptide::ops
