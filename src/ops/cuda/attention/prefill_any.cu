// Prefill attention for what the tensor-core kernels do not take: head_dim other than 64 and 128, f32 caches, trees,
// chips before 8.0, softmax scales that are not positive. Correct first.
//
// A warp takes one row of one head: 4 * d FLOPs a key. Keys go by blocks of 32 at absolute ranks: scores with a key in
// each lane, weights times values with a column in each lane. f32 throughout; each product fused into its sum.
#include "ops/cuda/attention/prefill.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 4;
constexpr int kMostColumns = kMostDim / 32;  // in a lane

/// Storage index of the key of rank `rank` that row r sees. Ranks count the committed tokens, then the row's ancestors.
__device__ __forceinline__ int index_of_rank(const Batch& batch, int r, int first_row, int committed, int position,
                                             int rank) {
    if (rank < committed || batch.parent.empty()) return rank;
    int row = r;
    for (int p = position; p > rank; --p) row = batch.parent[static_cast<size_t>(row)];
    return committed + row - first_row;
}

/// The sum over keys so far of one row and head.
struct Sums {
    float m = -INFINITY;  // the largest score
    float total = 0.0f;   // of exp(score - m)
    float o[kMostColumns] = {};
};

/// Adds one block of keys: the lane's key lies at k (not read if !seen), the block's values at v(j).
template <class Values>
__device__ __forceinline__ void add_block(Sums& sums, const float* q, const float* k, bool seen, float scale, int d,
                                          const Values& values) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float score = -INFINITY;
    if (seen) {
        float dot = 0.0f;
        for (int e = 0; e < d; ++e) dot = __fmaf_rn(q[e], k[e], dot);
        score = __fmul_rn(dot, scale);
    }
    float largest = score;
    bool broken = score != score;
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, mask));
    const float m = fmaxf(sums.m, largest), base = m == -INFINITY ? 0.0f : m;
    const float factor = expf(__fsub_rn(sums.m, base));
    const float weight = broken ? score : expf(__fsub_rn(score, base));
    sums.m = m;
    sums.total = __fmaf_rn(sums.total, factor, warp_sum(weight));
    const unsigned some = __ballot_sync(0xFFFFFFFFu, seen);
    for (int i = 0; i < kMostColumns; ++i) sums.o[i] = __fmul_rn(sums.o[i], factor);
    for (int j = 0; j < 32; ++j) {
        if ((some >> j & 1u) == 0) continue;
        const float w = __shfl_sync(0xFFFFFFFFu, weight, j);
        const float* v = values(j);
        for (int i = 0; i < kMostColumns; ++i)
            if (lane + 32 * i < d) sums.o[i] = __fmaf_rn(w, v[lane + 32 * i], sums.o[i]);
    }
}

/// Grid: (row, groups of kWarps heads).
__global__ void __launch_bounds__(kWarps * 32) prefill_any_kernel(const AttendArgs args) {
    pdl_trigger();
    pdl_wait();
    const Plan& plan = args.plan;
    const int lane = static_cast<int>(threadIdx.x % 32), d = args.head_dim, r = static_cast<int>(blockIdx.x);
    const int head = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
    if (head >= args.heads) return;
    const int s = plan.batch.row_sequence[static_cast<size_t>(r)];
    if (s < plan.first || s >= plan.end) return;
    const int first_row = plan.batch.row_begin[static_cast<size_t>(s)];
    const int committed = plan.batch.committed[static_cast<size_t>(s)];
    const int position = plan.batch.positions[static_cast<size_t>(r)];
    // Key tiles before the sequence's.
    int before = 0;
    for (int i = plan.first + lane; i < s; i += 32)
        before += count_key_tiles(
            plan.batch.row_begin[static_cast<size_t>(i) + 1] - plan.batch.row_begin[static_cast<size_t>(i)],
            plan.batch.committed[static_cast<size_t>(i)], plan.window);
    for (int mask = 16; mask > 0; mask /= 2) before += __shfl_xor_sync(0xFFFFFFFFu, before, mask);
    const int origin = first_key_tile(committed, plan.window) * kTile;
    const int kv_head = head / (args.heads / args.kv_heads);
    const int64_t image = int64_t{kTile} * d;
    const float* const scratch =
        static_cast<const float*>(args.scratch) + (int64_t{kv_head} * plan.key_tiles + before) * 2 * image;
    const auto key_row = [&](int index) {  // of K; V lies one image further
        const int i = index - origin;
        return scratch + int64_t{i / kTile} * 2 * image + int64_t{i % kTile} * d;
    };

    const float* q = static_cast<const float*>(args.q) + (int64_t{r} * args.heads + head) * d;
    const int first = plan.window > 0 && position >= plan.window ? position - plan.window + 1 : 0;
    Sums sums;
    const auto add = [&](int block) {
        const int rank = block + lane;
        const bool seen = rank >= first && rank <= position;
        const int index = seen ? index_of_rank(plan.batch, r, first_row, committed, position, rank) : origin;
        add_block(sums, q, key_row(index), seen, args.scale, d,
                  [&](int j) { return key_row(__shfl_sync(0xFFFFFFFFu, index, j)) + image; });
    };
    if (args.lists == nullptr) {
        for (int block = first / 32 * 32; block <= position; block += 32) add(block);
    } else {
        const int32_t* const list =
            args.lists + (int64_t{(r - first_row) / kTile} * args.heads + head) * args.list_stride;
        for (int i = 1; i <= list[0]; ++i)
            for (int block = list[i] * kTile; block < (list[i] + 1) * kTile && block <= position; block += 32)
                add(block);
    }
    float* out = args.out + (int64_t{r} * args.heads + head) * d;
    for (int i = 0; i < kMostColumns; ++i) {
        const int e = lane + 32 * i;
        if (e >= d) continue;
        float y = __fdiv_rn(sums.o[i], sums.total);
        if (args.gate.data != nullptr)
            y = __fmul_rn(y, softplus(args.gate.data[int64_t{r} * args.gate.stride +
                                                     (args.gate.elements ? int64_t{head} * d + e : head)]));
        out[e] = y;
    }
}

}  // namespace

void attend_generic(const Gpu& gpu, const AttendArgs& args) {
    const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>((args.heads + kWarps - 1) / kWarps));
    launch(gpu, prefill_any_kernel, grid, dim3(kWarps * 32), 0, args);
}

}  // namespace riptide::ops::cuda::prefill
