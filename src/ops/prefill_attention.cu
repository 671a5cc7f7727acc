// Prefill attention: the order of the kernels, and the one that prepares queries and keys.
//
// prepare: bytes n * ((H + Hkv) * d * 4 in, H * d * 2 + Hkv * d * 4 out): 0.17 ms at 16K rows of 48 + 8 heads of 128. A
// block takes a row, so that cos and sin are computed once for all heads; a warp takes a head at a time.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda.h"
#include "ops/prefill_attention.cuh"
#include "ops/row_math.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 8;
constexpr int64_t kScratchBytes = int64_t{1} << 30;  // of K/V at once, unless one sequence needs more

/// Writes one head of queries from `head` (shared memory) where the attention kernel looks for it.
template <class T, class Convert>
__device__ __forceinline__ void store_query(const float* head, T* to, int row, int d, const Convert& convert) {
    // Four neighbouring values of a row's 16-bit queries, the inverse of query_offset.
    for (int i = static_cast<int>(threadIdx.x % 32); i < d / 4; i += 32) {
        const int piece = i / 2 ^ (row % 2 * 4), e = 16 * (piece / 4 * 2 + i % 2) + piece % 4 * 2;
        alignas(8) const T x[4] = {convert(head[e]), convert(head[e + 1]), convert(head[e + 8]), convert(head[e + 9])};
        *reinterpret_cast<uint2*>(to + 4 * i) = *reinterpret_cast<const uint2*>(x);
    }
}

__global__ void __launch_bounds__(kWarps * 32) prepare_kernel(const PrepareArgs args) {
    pdl_trigger();
    pdl_wait();
    __shared__ float2 turns[kMostDim / 2];
    __shared__ float values[kWarps][kMostDim];
    const int row = static_cast<int>(blockIdx.x), d = args.head_dim, half = args.rotary_dim / 2;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t n = gridDim.x;
    for (int j = static_cast<int>(threadIdx.x); j < half; j += kWarps * 32)
        turns[j] = rope_turn(args.batch.positions[static_cast<size_t>(row)], args.inv_freq[j], args.magnitude);
    __syncthreads();
    float* const head = values[threadIdx.x / 32];
    const int heads = args.heads + (args.k != nullptr ? args.kv_heads : 0);
    for (int h = static_cast<int>(threadIdx.x / 32); h < heads; h += kWarps) {
        const bool is_key = h >= args.heads;
        const float* const from = is_key ? args.k + row * args.k_stride + int64_t{h - args.heads} * d
                                         : args.q + row * args.q_stride + int64_t{h} * d;
        const float* const weight = is_key ? args.k_weight : args.q_weight;
        float x[kMostDim / 32];
#pragma unroll
        for (int i = 0; i < kMostDim / 32; ++i) x[i] = lane + 32 * i < d ? from[lane + 32 * i] : 0.0f;
        if (weight != nullptr) {
            float squares = 0.0f;  // as warp_rms_scale
#pragma unroll
            for (int i = 0; i < kMostDim / 32; ++i)
                if (lane + 32 * i < d) squares = __fmaf_rn(x[i], x[i], squares);
            const float scale = rms_scale(warp_sum(squares), d, is_key ? args.k_eps : args.q_eps);
#pragma unroll
            for (int i = 0; i < kMostDim / 32; ++i)
                if (lane + 32 * i < d) x[i] = rms_value(x[i], scale, weight[lane + 32 * i]);
        }
#pragma unroll
        for (int i = 0; i < kMostDim / 32; ++i)
            if (lane + 32 * i < d) head[lane + 32 * i] = x[i];
        __syncwarp();
        for (int j = lane; j < half; j += 32) {
            const float2 y = rope_rotate(head[j], head[j + half], turns[j]);
            head[j] = y.x;
            head[j + half] = y.y;
        }
        __syncwarp();
        const int64_t at = (int64_t{h} * n + row) * d;
        if (is_key || args.storage == Storage::f32) {
            float* const to = is_key ? args.k + row * args.k_stride + int64_t{h - args.heads} * d
                                     : static_cast<float*>(args.to) + (row * int64_t{args.heads} + h) * d;
            for (int e = lane; e < d; e += 32) to[e] = head[e];
        } else if (args.storage == Storage::f16) {
            store_query(head, static_cast<__half*>(args.to) + at, row, d, [](float v) {
                return __float2half_rn(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
            });
        } else {
            store_query(head, static_cast<__nv_bfloat16*>(args.to) + at, row, d,
                        [](float v) { return __float2bfloat16_rn(v); });
        }
        __syncwarp();
    }
}

/// What the scratch holds. bf16 rows keep their range; a mixture with other types goes to f16, saturating.
Storage choose_storage(const Gpu& gpu, const KvView& view, const Batch& batch, float softmax_scale) {
    const bool f32 = view.k_dtype == DType::f32 || view.v_dtype == DType::f32;
    const bool tiles = (view.head_dim == 64 || view.head_dim == 128) && batch.parent.empty() && softmax_scale > 0;
    if (f32 || !tiles || gpu.info().major < 8) return Storage::f32;
    return view.k_dtype == DType::bf16 && view.v_dtype == DType::bf16 ? Storage::bf16 : Storage::f16;
}

/// K/V of as many sequences at a time as the scratch holds, and the rows that read them.
void attend_in_groups(Context& ctx, AttendArgs args, const KvView& view, Storage storage) {
    const int64_t sequences = args.plan.batch.sequences(), n = args.rows;
    const int64_t bytes = 2 * view.num_kv_heads * kTile * view.head_dim * (storage == Storage::f32 ? 4 : 2);  // a tile
    const auto tiles = [&](int64_t count) {
        return std::max<int64_t>(
            1, most_key_tiles(count, n, view.window, args.plan.batch.max_pages, std::max(view.page_rows, 1)));
    };
    int64_t group = sequences;
    while (group > 1 && tiles(group) * bytes > kScratchBytes) group = (group + 1) / 2;
    void* const scratch = ctx.arena->allocate(tiles(group) * bytes);
    args.scratch = scratch;
    for (int64_t first = 0; first < sequences; first += group) {
        const int64_t count = std::min(group, sequences - first);
        args.plan.first = static_cast<int32_t>(first);
        args.plan.end = static_cast<int32_t>(first + count);
        args.plan.query_tiles = static_cast<int32_t>(n / kTile + count);
        args.plan.key_tiles = static_cast<int32_t>(tiles(count));
        gather(*ctx.gpu, args.plan, view, storage, scratch);
        if (storage == Storage::f32) attend_generic(*ctx.gpu, args);
        else if (ctx.gpu->hopper()) attend_wgmma(*ctx.gpu, args, storage);
        else attend_mma(*ctx.gpu, args, storage);
    }
}

PrepareArgs queries_of(const Tensor& q, const KvView& view, const Batch& batch, Storage storage) {
    RT_ASSERT(q.dtype == DType::f32 && q.rank == 3 && q.rows() == batch.rows() && q.shape[2] == view.head_dim);
    RT_ASSERT(q.shape[1] % view.num_kv_heads == 0);
    if (view.head_dim > kMostDim)
        fail(ErrorKind::unavailable, "attention on a GPU takes heads of up to {} values, not {}", kMostDim,
             view.head_dim);
    PrepareArgs args{};
    args.batch = batch;
    args.q = q.row(0);
    args.q_stride = q.row_stride;
    args.heads = static_cast<int32_t>(q.shape[1]);
    args.kv_heads = static_cast<int32_t>(view.num_kv_heads);
    args.head_dim = static_cast<int32_t>(view.head_dim);
    args.storage = storage;
    return args;
}

/// Space for the prepared queries. The last tile of the last head is read as a whole.
void* query_space(Context& ctx, const PrepareArgs& args) {
    const int64_t rows = args.batch.rows() * args.heads;
    return ctx.arena->allocate(args.storage == Storage::f32 ? rows * args.head_dim * 4
                                                            : (rows + kTile) * args.head_dim * 2);
}

AttendArgs attend_args(const PrepareArgs& prepared, const KvView& view, float softmax_scale, Tensor& out) {
    AttendArgs args{};
    args.plan.batch = prepared.batch;
    args.plan.window = view.window;
    args.q = prepared.to;
    args.out = out.row(0);
    args.rows = static_cast<int32_t>(prepared.batch.rows());
    args.heads = prepared.heads;
    args.kv_heads = prepared.kv_heads;
    args.head_dim = prepared.head_dim;
    args.scale = softmax_scale;
    return args;
}

}  // namespace

void prepare(const Gpu& gpu, const PrepareArgs& args) {
    launch(gpu, prepare_kernel, dim3(static_cast<unsigned>(args.batch.rows())), dim3(kWarps * 32), 0, args);
}

Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    AttentionInput in;
    in.q = q;
    in.softmax_scale = softmax_scale;
    return prefill::gated_attention(ctx, in, view, batch);
}

Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    const Storage storage = choose_storage(*ctx.gpu, view, batch, in.softmax_scale);
    PrepareArgs args = queries_of(in.q, view, batch, storage);
    Tensor out = ctx.alloc(DType::f32, {in.q.rows(), in.q.shape[1] * view.head_dim});
    if (in.q.rows() == 0) return out;
    const ArenaScope scope(*ctx.arena);
    args.to = query_space(ctx, args);
    if (in.k.data != nullptr) {
        args.k = in.k.row(0);
        args.k_stride = in.k.row_stride;
    }
    RT_ASSERT(in.q_norm.weight.empty() || static_cast<int64_t>(in.q_norm.weight.size()) == view.head_dim);
    RT_ASSERT(in.k_norm.weight.empty() || static_cast<int64_t>(in.k_norm.weight.size()) == view.head_dim);
    args.q_weight = in.q_norm.weight.empty() ? nullptr : in.q_norm.weight.data();
    args.k_weight = in.k_norm.weight.empty() ? nullptr : in.k_norm.weight.data();
    args.q_eps = in.q_norm.eps;
    args.k_eps = in.k_norm.eps;
    if (in.rope != nullptr) {
        RT_ASSERT(in.rope->rotary_dim <= view.head_dim);
        std::ranges::copy(in.rope->inv_freq, args.inv_freq);
        args.magnitude = in.rope->magnitude;
        args.rotary_dim = static_cast<int32_t>(in.rope->rotary_dim);
    }
    prepare(*ctx.gpu, args);
    if (in.k.data != nullptr) kv_append(ctx, view, in.k, in.v, batch);
    AttendArgs attend = attend_args(args, view, in.softmax_scale, out);
    if (in.gate.data != nullptr) {
        RT_ASSERT(in.gate.dtype == DType::f32 && in.gate.rows() == in.q.rows());
        attend.gate = {in.gate.row(0), in.gate.row_stride, in.gate.row_elements() != in.q.shape[1]};
    }
    attend_in_groups(ctx, attend, view, storage);
    return out;
}

}  // namespace riptide::ops::cuda::prefill
