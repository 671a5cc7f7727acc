// Rounds of speculative decoding on the device: draft_round.h.
//
// Bytes and FLOPs do not count: each op is one launch in a chain of some hundred (about 1 us), and a few dependent
// reads. draft_rows is one warp that takes one row after the other out of at most 128 open prefixes in shared memory,
// four for each lane; the order (logprob, then slot, then number) has no equals, so lanes may be merged in any order.
// accept_rows: a thread for each row finds whether it is the child that was drawn, one thread walks. Not timed yet.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/draft_round.h"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda {

namespace {

constexpr int kMost = kMostRoundRows;
constexpr unsigned kAll = 0xFFFFFFFFu;

__global__ void __launch_bounds__(kMost) begin_round_kernel(RoundState s) {
    pdl_trigger();
    pdl_wait();
    const int i = static_cast<int>(threadIdx.x);
    const int32_t length = *s.length;
    if (i < s.line_rows) s.line[i] = length + i;
    if (i != 0) return;
    *s.committed = length;
    *s.behind = length - *s.origin;
    s.block_tokens[0] = s.rows.tokens[0] = *s.token;
    s.rows.positions[0] = length;
    s.rows.parents[0] = -1;
    s.rows.logprobs[0] = 0;
    *s.rows.count = 1;
}

/// CTA r: row r, a lane for each choice. The sum is added in order, as on the host.
__global__ void __launch_bounds__(32) choice_logprobs_kernel(const float* values, int k, float* out) {
    pdl_trigger();
    pdl_wait();
    const int c = static_cast<int>(threadIdx.x);
    values += int64_t{blockIdx.x} * k;
    const double first = values[0], above = c < k ? values[c] - first : 0, weight = exp(above);
    double sum = 0;
    for (int j = 0; j < k; ++j) sum += __shfl_sync(kAll, weight, j);
    if (c < k) out[int64_t{blockIdx.x} * k + c] = static_cast<float>(above - log(sum));
}

/// Prefixes that may become rows; entry i was found i-th.
struct Open {
    static constexpr int kSize = 2 * kMost;  // found: one for each row of the chain, then two for each row at most
    double logprob[kSize], before[kSize];
    int slot[kSize], choice[kSize], parent[kSize];  // slot -1: taken
    int found;
};

struct DraftArgs {
    const int32_t* indices;
    const float* logprobs;
    const int32_t* words;  // or null
    int slots, k;
    DraftPlan plan;
    DraftRows rows;
};

__device__ __forceinline__ bool has(const DraftArgs& a, int slot, int choice, float& logprob) {
    if (slot >= a.slots || choice >= a.plan.choices) return false;
    logprob = a.logprobs[slot * a.k + choice];
    return logprob > -INFINITY;  // nor NaN
}
__device__ __forceinline__ void find(const DraftArgs& a, Open& open, int slot, int choice, int parent, double before) {
    float logprob;
    if (!has(a, slot, choice, logprob)) return;
    const int i = open.found++;
    open.logprob[i] = before + double{logprob};
    open.before[i] = before;
    open.slot[i] = slot, open.choice[i] = choice, open.parent[i] = parent;
}
__device__ __forceinline__ void add(const DraftArgs& a, int row, int slot, int choice, int parent) {
    const int at = slot * a.k + choice, word = a.indices[at];
    a.rows.tokens[row] = a.words != nullptr ? a.words[word] : word;
    a.rows.positions[row] = a.rows.positions[0] + slot + 1;
    a.rows.parents[row] = parent;
    a.rows.logprobs[row] = a.logprobs[at];
}

/// The number of the best open prefix, in all lanes; -1: none is left.
__device__ __forceinline__ int best_of(const Open& open) {
    int best = -1, slot = 0;
    double most = 0;
    const auto better = [&](int i, double l, int s) {
        return i >= 0 && (best < 0 || l > most || (l == most && (s < slot || (s == slot && i < best))));
    };
    for (int i = static_cast<int>(threadIdx.x); i < open.found; i += 32)
        if (open.slot[i] >= 0 && better(i, open.logprob[i], open.slot[i]))
            best = i, most = open.logprob[i], slot = open.slot[i];
    for (int mask = 16; mask > 0; mask /= 2) {
        const int i = __shfl_xor_sync(kAll, best, mask), s = __shfl_xor_sync(kAll, slot, mask);
        const double l = __shfl_xor_sync(kAll, most, mask);
        if (better(i, l, s)) best = i, most = l, slot = s;
    }
    return best;
}

__global__ void __launch_bounds__(32) draft_rows_kernel(DraftArgs a) {
    __shared__ Open open;
    __shared__ int used_shared;
    pdl_trigger();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x);
    if (lane == 0) {
        open.found = 0;
        double way = 0;
        int used = 1;
        float logprob;
        for (int s = 0; s < min(a.plan.chain, a.slots) && used < a.plan.rows && has(a, s, 0, logprob); ++s) {
            find(a, open, s, 1, used - 1, way);
            way += double{logprob};
            add(a, used, s, 0, used - 1);
            ++used;
        }
        find(a, open, used - 1, 0, used - 1, way);
        used_shared = used;
    }
    __syncwarp();
    int used = used_shared;
    for (; used < a.plan.rows; ++used) {
        const int best = best_of(open);
        if (best < 0) break;
        if (lane == 0) {
            const int slot = open.slot[best], choice = open.choice[best], parent = open.parent[best];
            open.slot[best] = -1;
            add(a, used, slot, choice, parent);
            find(a, open, slot, choice + 1, parent, open.before[best]);
            find(a, open, slot + 1, 0, used, open.logprob[best]);
        }
        __syncwarp();
    }
    if (lane == 0) {
        a.rows.parents[0] = -1;
        a.rows.logprobs[0] = 0;
        *a.rows.count = used;
    }
    for (int i = used + lane; i < a.plan.rows; i += 32) {
        a.rows.tokens[i] = a.rows.parents[i] = 0;
        a.rows.positions[i] = a.rows.positions[0] + 1;
        a.rows.logprobs[i] = -INFINITY;
    }
}

__global__ void __launch_bounds__(kMost) accept_rows_kernel(const int32_t* drawn, int n, RoundState s, RoundRing ring) {
    __shared__ int child[kMost];  // the first that was drawn; kMost: none
    __shared__ int kept_shared;
    pdl_trigger();
    pdl_wait();
    const int i = static_cast<int>(threadIdx.x);
    const int used = min(n, *s.rows.count);
    const int64_t step = *ring.step;
    child[i] = kMost;
    s.path[i] = 0;
    __syncthreads();
    int token = 0, parent = -1, next = -1;
    if (i < n) token = s.rows.tokens[i], parent = s.rows.parents[i], next = drawn[i];
    if (i > 0 && i < used && drawn[parent] >= 0 && drawn[parent] == token) atomicMin(&child[parent], i);
    __syncthreads();
    if (i == 0) {
        int kept = 0, last = 0;
        for (int row = 0; row < used; row = child[row]) s.path[kept++] = last = row;
        kept_shared = kept;
        *s.kept = kept;
        *s.length += kept;
        *s.token = max(drawn[last], 0);
        *ring.step = step + 1;
    }
    __syncthreads();
    if (i >= n) return;
    volatile uint64_t* const words = ring.entries + step % ring.size * RoundRing::kEntryWords + i * RoundRing::kWords;
    const uint64_t tag = static_cast<uint64_t>(step + 1) << 32;
    words[0] = tag | static_cast<uint32_t>(next);
    words[1] = tag | static_cast<uint32_t>(token);
    words[2] = tag | static_cast<uint32_t>((parent + 1) | kept_shared << 8 | used << 16);
    words[3] = tag | __float_as_uint(s.rows.logprobs[i]);
}

constexpr int kCopyThreads = 256;

__global__ void __launch_bounds__(kCopyThreads)
    store_rows_kernel(const float* x, const int32_t* at, int64_t width, int64_t elements, float* out) {
    pdl_trigger();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
    if (i < elements) out[*at * width + i] = x[i];
}

}  // namespace

void begin_round(Context& ctx, const RoundState& state) {
    launch(*ctx.gpu, begin_round_kernel, dim3(1), dim3(kMost), 0, state);
}

Tensor choice_logprobs(Context& ctx, const TopK& best) {
    Tensor out = ctx.alloc(DType::f32, {best.values.rows(), best.k});
    if (out.rows() == 0) return out;
    launch(*ctx.gpu, choice_logprobs_kernel, dim3(static_cast<unsigned>(out.rows())), dim3(32), 0, best.values.row(0),
           static_cast<int>(best.k), out.row(0));
    return out;
}

void draft_rows(Context& ctx, const Tensor& indices, const Tensor& logprobs, std::span<const int32_t> words,
                const DraftPlan& plan, const DraftRows& rows) {
    const DraftArgs args{indices.row<int32_t>(0),
                         logprobs.row(0),
                         words.empty() ? nullptr : words.data(),
                         static_cast<int>(std::min<int64_t>(indices.shape[0], plan.slots)),
                         static_cast<int>(indices.shape[1]),
                         plan,
                         rows};
    launch(*ctx.gpu, draft_rows_kernel, dim3(1), dim3(32), 0, args);
}

void accept_rows(Context& ctx, const Tensor& drawn, const RoundState& state, const RoundRing& ring) {
    launch(*ctx.gpu, accept_rows_kernel, dim3(1), dim3(kMost), 0, drawn.row<int32_t>(0), static_cast<int>(drawn.rows()),
           state, ring);
}

void store_rows(Context& ctx, const Tensor& x, const int32_t* at, Tensor& out) {
    if (x.elements() == 0) return;
    const auto blocks = static_cast<unsigned>((x.elements() + kCopyThreads - 1) / kCopyThreads);
    launch(*ctx.gpu, store_rows_kernel, dim3(blocks), dim3(kCopyThreads), 0, x.row(0), at, x.shape[1], x.elements(),
           out.row(0));
}

}  // namespace riptide::ops::cuda
