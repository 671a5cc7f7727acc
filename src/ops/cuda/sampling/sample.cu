// Drawing tokens: the scan over a row, and everything that needs few of its tokens.
//
// Bytes: a row of 100352 f32 logits, 401 KB, from L2; as much again of marks with penalties or biases. Floor on the
// H200: a launch and an exchange between CTAs, about 2 us. Design: CTAs of 1024 tokens, one 16-byte load a thread, keep
// for each group of 64 tokens the largest value (the upper 32 bits of a double in an order of integers); the last CTA
// of the row to finish looks only into the groups that can hold what it seeks:
//   greedy  the groups whose largest value is the row's
//   all     no filter: the scan also keeps the largest score value / T - ln(-ln u), which orders tokens as the draw
//   does;
//           groups within its rounding of the best score are looked into with the exact formula
//   few     top_k <= 256: k groups have a largest value of at least t, so do at least k tokens; tokens below t are out;
//           and every filter where a mask leaves few groups with a token that is possible
// A row's mask is read by the scan, a nibble a thread, and again for tokens that are looked into: 12.5 KB beside 401.
// and leaves all else to filter.cu. Limited by latency: loads behind loads, and barriers of the last CTA.
#include "ops/sample.h"

#include "ops/cuda/sampling/filter.cuh"
#include "ops/cuda/sampling/sample_row.cuh"
#include "ops/op_cost.h"

namespace riptide::ops {

using namespace drawing;

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTokensPerThread = 4;
constexpr int kTokensPerCta = kThreads * kTokensPerThread;

struct Shared {
    double values[kFew], weights[kFew], by_id[kFew], by_weight[kFew];
    int32_t tokens[kFew];
    int32_t ranks[kFew];
    Best best[kWarps];
    uint32_t words[2][kWarps];
    int last;
    int selected;  // groups in the list
    int found;
    int kept;
};

__device__ __forceinline__ Best shuffle_xor(Best v, int mask) {
    v.key = __shfl_xor_sync(0xFFFFFFFFu, v.key, mask);
    v.token = __shfl_xor_sync(0xFFFFFFFFu, v.token, mask);
    return v;
}

/// Over the CTA, in every thread.
__device__ Best block_best(Best v, Shared& shared) {
    for (int mask = 16; mask > 0; mask /= 2) v = Best::better(v, shuffle_xor(v, mask));
    if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared.best[0];
    for (int w = 1; w < kWarps; ++w) v = Best::better(v, shared.best[w]);
    __syncthreads();
    return v;
}

/// The sum over the CTA, in every thread; one barrier. `turn` alternates between calls.
__device__ uint32_t block_sum(uint32_t v, Shared& shared, int turn) {
    for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, mask);
    if (threadIdx.x % 32 == 0) shared.words[turn][threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < kWarps; ++w) v += shared.words[turn][w];
    return v;
}

/// What the last CTA of a row works with.
struct Finish {
    const Draw& draw;
    const Row& row;
    Shared& shared;
    uint32_t* keys;  // [groups], shared memory
    uint32_t* list;  // [groups]

    /// Fetches the keys of all groups; returns the largest.
    __device__ uint32_t load_keys(const uint32_t* from) {
        Best top;
        for (int g = static_cast<int>(threadIdx.x); g < draw.groups; g += kThreads) {
            keys[g] = __ldcg(from + g);
            if (keys[g] > top.key) top.key = keys[g];
        }
        return static_cast<uint32_t>(block_best(top, shared).key);
    }

    /// Lists the groups whose key satisfies `wanted`, in any order.
    template <class Wanted>
    __device__ void select(const Wanted& wanted) {
        if (threadIdx.x == 0) shared.selected = 0;
        __syncthreads();
        for (int g = static_cast<int>(threadIdx.x); g < draw.groups; g += kThreads)
            if (wanted(keys[g])) list[atomicAdd(&shared.selected, 1)] = static_cast<uint32_t>(g);
        __syncthreads();
    }

    /// visit(token, value) for all tokens of the listed groups.
    template <class Visit>
    __device__ void each_selected(const Visit& visit) {
        const int count = shared.selected * kGroup;
#pragma unroll 4
        for (int e = static_cast<int>(threadIdx.x); e < count; e += kThreads) {
            const int token = static_cast<int>(list[e / kGroup]) * kGroup + e % kGroup;
            if (token < draw.vocab) visit(token, row.value(token));
        }
    }

    /// The largest value, the lowest id of equals; `top` is the largest key.
    __device__ Best largest(uint32_t top) {
        select([&](uint32_t key) { return key == top; });
        Best best;
        each_selected([&](int token, double value) { best = Best::better(best, {order_key(value), token}); });
        return block_best(best, shared);
    }

    /// The draw from all tokens. A score's error is below 1e-5 (logf of a number from 1e-16 to 37) plus some units in
    /// the last place of value / T.
    __device__ int draw_from_all(uint32_t top, const uint32_t* score_keys) {
        const double largest_value = from_order_key(largest(top).key);
        const double score = from_order_key(uint64_t{load_keys(score_keys)} << 32);
        const double least = score - (1e-4 + 1e-12 * fabs(score));
        select([&](uint32_t key) { return from_order_key(uint64_t{key} << 32 | 0xFFFFFFFFu) >= least; });
        Best best;
        each_selected([&](int token, double value) {
            const double weight = row.weight(value, largest_value);
            if (weight > 0) best = Best::better(best, Best::drawn(row, token, weight));
        });
        return block_best(best, shared).token;
    }

    /// A key that at least k groups reach, if there are so many, and not many more.
    __device__ uint32_t threshold(uint32_t k, uint32_t top) {
        uint32_t low = 0, high = top + 1;  // at least k groups reach low, fewer reach high
        for (int turn = 0; high - low > 1; turn ^= 1) {
            const uint32_t middle = low + (high - low) / 2;
            uint32_t count = 0;
            for (int g = static_cast<int>(threadIdx.x); g < draw.groups; g += kThreads) count += keys[g] >= middle;
            count = block_sum(count, shared, turn);
            if (count >= k) low = middle;
            else high = middle;
            if (count >= k && count <= k + k / 4) break;
        }
        return low;
    }

    /// Of as many tokens as top_k may keep.
    __device__ uint32_t few_threshold(uint32_t top) {
        return threshold(static_cast<uint32_t>(limits(row.params, draw.vocab) ? row.params.top_k : draw.vocab), top);
    }

    /// Puts all possible tokens that reach the threshold into shared.values and shared.tokens, in any order. Returns
    /// their number, which may be more than fit.
    __device__ int gather(uint32_t least) {
        least = max(least, kHighImpossible + 1);
        if (threadIdx.x == 0) shared.found = 0;
        select([&](uint32_t key) { return key >= least; });
        each_selected([&](int token, double value) {
            if (high_key(value) < least) return;
            const int at = atomicAdd(&shared.found, 1);
            if (at >= kFew) return;
            shared.values[at] = value;
            shared.tokens[at] = token;
        });
        __syncthreads();
        return shared.found;
    }

    /// Fills shared.weights: 0 for tokens behind the k-th largest value.
    __device__ void weigh(int found, int k) {
        Best top;
        for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads)
            top = Best::better(top, {order_key(shared.values[i]), shared.tokens[i]});
        const double largest_value = from_order_key(block_best(top, shared).key);
        for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads) {
            int larger = 0;
            for (int j = 0; j < found; ++j) larger += shared.values[j] > shared.values[i];
            shared.weights[i] = larger < k ? row.weight(shared.values[i], largest_value) : 0.0;
        }
        __syncthreads();
    }

    /// Fills shared.ranks, the order of top_p, and shared.kept, how many of that order stay. The sums are the CPU's:
    /// all weights in order of id, then the prefix in order of weight.
    __device__ void keep_top_p(int found) {
        for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads) {
            const double weight = shared.weights[i];
            const int32_t token = shared.tokens[i];
            int before = 0, lower = 0, present = 0;
            for (int j = 0; j < found; ++j) {
                const double other = shared.weights[j];
                if (other <= 0) continue;
                const bool lower_id = shared.tokens[j] < token;
                ++present;
                lower += lower_id;
                before += other > weight || (other == weight && lower_id);
            }
            shared.ranks[i] = before;
            if (i == 0) shared.found = present;
            if (weight <= 0) continue;
            shared.by_id[lower] = weight;
            shared.by_weight[before] = weight;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            const int present = shared.found;
            double total = 0, sum = 0;
            for (int i = 0; i < present; ++i) total += shared.by_id[i];
            const double enough = row.params.top_p * total;
            int kept = 0;
            while (kept < present && (kept == 0 || sum < enough)) sum += shared.by_weight[kept++];
            shared.kept = kept;
        }
        __syncthreads();
    }

    /// Whether so few groups have a possible token that a look at each of their tokens is cheap. False where none is
    /// likely to be out: without a mask.
    __device__ bool few_possible() {
        if (row.mask == nullptr) return false;
        uint32_t count = 0;
        for (int g = static_cast<int>(threadIdx.x); g < draw.groups; g += kThreads) count += keys[g] > kHighImpossible;
        return block_sum(count, shared, 0) <= kFew;
    }

    /// The draw from at most kFew tokens, those whose key reaches `least`. False: there are more.
    __device__ bool draw_from_few(uint32_t least, int* token) {
        const int k = limits(row.params, draw.vocab) ? static_cast<int>(row.params.top_k) : draw.vocab;
        const int found = gather(least);
        if (found > kFew) return false;
        weigh(found, k);
        const bool prefix = row.params.top_p < 1;
        if (prefix) keep_top_p(found);
        Best best;
        for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads) {
            const double weight = shared.weights[i];
            if (weight <= 0 || weight < row.params.min_p || (prefix && shared.ranks[i] >= shared.kept)) continue;
            best = Best::better(best, Best::drawn(row, shared.tokens[i], weight));
        }
        *token = block_best(best, shared).token;
        return true;
    }

    /// False: left to the filter kernel.
    __device__ bool run(Mode mode, const uint32_t* value_keys, const uint32_t* score_keys, int* token) {
        const uint32_t top = load_keys(value_keys);
        *token = -1;
        if (top >= kHighInfinite || top <= kHighImpossible) return true;
        if (mode == Mode::greedy) *token = largest(top).token;
        else if (mode == Mode::all) *token = draw_from_all(top, score_keys);
        else if (mode == Mode::few) return draw_from_few(few_threshold(top), token);
        else return few_possible() && draw_from_few(0, token);
        return true;
    }
};

/// CTA (p, r): tokens [p * kTokensPerCta, ...) of row r.
__global__ void __launch_bounds__(kThreads, 2) sample_scan_kernel(Draw draw) {
    __shared__ Shared shared;
    extern __shared__ uint32_t group_words[];
    pdl_trigger();
    pdl_wait();
    const int r = static_cast<int>(blockIdx.y);
    const int first = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kTokensPerThread;
    const Row row(draw, r);
    float4 logits = {};
    uint4 marks = {};
    if (draw.aligned != 0 && first + 3 < draw.vocab) {
        logits = *reinterpret_cast<const float4*>(row.logits + first);
    } else {
        if (first < draw.vocab) logits.x = row.logits[first];
        if (first + 1 < draw.vocab) logits.y = row.logits[first + 1];
        if (first + 2 < draw.vocab) logits.z = row.logits[first + 2];
        if (first + 3 < draw.vocab) logits.w = row.logits[first + 3];
    }
    if (row.marks != nullptr) {
        if (first < draw.vocab) marks.x = row.marks[first];
        if (first + 1 < draw.vocab) marks.y = row.marks[first + 1];
        if (first + 2 < draw.vocab) marks.z = row.marks[first + 2];
        if (first + 3 < draw.vocab) marks.w = row.marks[first + 3];
    }
    uint32_t allowed = 0xF;
    if (row.mask != nullptr && first < draw.vocab)
        allowed = static_cast<uint32_t>(row.mask[first / 64] >> (first % 64));
    const float logit[kTokensPerThread] = {logits.x, logits.y, logits.z, logits.w};
    const uint32_t mark[kTokensPerThread] = {marks.x, marks.y, marks.z, marks.w};
    const Mode mode = mode_of(row.params, draw.vocab);
    uint32_t value_key = 0, score_key = 0;
#pragma unroll
    for (int j = 0; j < kTokensPerThread; ++j) {
        const int token = first + j;
        if (token >= draw.vocab) continue;
        if (!(logit[j] < __int_as_float(0x7F800000))) {
            value_key = kHighBad;
            continue;
        }
        if ((allowed >> j & 1) == 0) {
            value_key = max(value_key, kHighImpossible);
            continue;
        }
        const double value = row.penalized(logit[j], mark[j], token);
        value_key = max(value_key, high_key(value));
        if (mode != Mode::all) continue;
        const float noise = logf(static_cast<float>(row.exponential(token)));
        score_key = max(score_key, high_key(value / row.params.temperature - static_cast<double>(noise)));
    }
    constexpr int kLanes = kGroup / kTokensPerThread;
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
        value_key = max(value_key, __shfl_xor_sync(0xFFFFFFFFu, value_key, mask));
        score_key = max(score_key, __shfl_xor_sync(0xFFFFFFFFu, score_key, mask));
    }
    const int64_t keys_begin = int64_t{r} * draw.groups;
    if (threadIdx.x % kLanes == 0 && first < draw.vocab) {
        __stcg(draw.value_keys + keys_begin + first / kGroup, value_key);
        if (mode == Mode::all) __stcg(draw.score_keys + keys_begin + first / kGroup, score_key);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = atomicAdd(draw.counters + r, 1) == static_cast<int>(gridDim.x) - 1;
        __threadfence();
    }
    __syncthreads();
    if (shared.last == 0) return;
    Finish finish{draw, row, shared, group_words, group_words + draw.groups};
    int token = -1;
    const bool finished = finish.run(mode, draw.value_keys + keys_begin, draw.score_keys + keys_begin, &token);
    if (threadIdx.x != 0) return;
    draw.counters[r] = 0;
    draw.unfinished[r] = finished ? 0 : 1;
    if (finished) finish_row(draw, row, r, token);
}

}  // namespace

Tensor sample(Context& ctx, const Tensor& logits, const SampleState& state, std::span<const int32_t> positions,
              std::span<const int32_t> slots, bool accept, const SampleMasks& masks) {
    const int64_t n = logits.rows(), vocab = logits.row_elements();
    const OpScope told = announce(ctx, "sample", n);
    RT_ASSERT(ctx.gpu != nullptr && logits.dtype == DType::f32 && logits.rank == 2 && n >= 1 && n <= 256);
    RT_ASSERT(vocab == state.vocab && vocab >= 1 && vocab <= SampleState::kMostVocab && std::ssize(positions) == n);
    RT_ASSERT(slots.empty() ? n <= state.count : std::ssize(slots) == n);
    RT_ASSERT(masks.of_row.empty() || (masks.words != nullptr && std::ssize(masks.of_row) == n));
    const int64_t groups = (vocab + kGroup - 1) / kGroup;
    int bits = 0;
    while (int64_t{1} << bits < vocab) ++bits;
    Tensor tokens = ctx.alloc(DType::i32, {n});
    const ArenaScope scope(*ctx.arena);
    Draw draw = {};
    draw.logits = logits.row(0);
    draw.row_stride = logits.row_stride;
    draw.positions = positions.data();
    draw.slots = slots.empty() ? nullptr : slots.data();
    draw.masks = masks.words;
    draw.mask_of = masks.of_row.empty() ? nullptr : masks.of_row.data();
    draw.mask_words = SampleMasks::words_of(vocab);
    draw.state = state;
    draw.value_keys = ctx.alloc(DType::i32, {n, groups}).row<uint32_t>(0);
    draw.score_keys = ctx.alloc(DType::i32, {n, groups}).row<uint32_t>(0);
    draw.unfinished = ctx.alloc(DType::i32, {n}).row<int32_t>(0);
    draw.counters = ctx.gpu->counters();
    draw.tokens = tokens.row<int32_t>(0);
    draw.vocab = static_cast<int>(vocab);
    draw.groups = static_cast<int>(groups);
    draw.accept = accept ? 1 : 0;
    draw.aligned = logits.row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(logits.data) % 16 == 0 ? 1 : 0;
    draw.mass_scale = static_cast<double>(int64_t{1} << (62 - bits));
    double* scratch = nullptr;
    if (filter_needs_scratch(*ctx.gpu, vocab)) scratch = static_cast<double*>(ctx.alloc(DType::f64, {n, vocab}).data);
    const auto parts = static_cast<unsigned>((vocab + kTokensPerCta - 1) / kTokensPerCta);
    const auto shared_bytes = static_cast<size_t>(2 * groups * int64_t{sizeof(uint32_t)});
    allow_shared(reinterpret_cast<const void*>(sample_scan_kernel), shared_bytes);
    launch(*ctx.gpu, sample_scan_kernel, dim3(parts, static_cast<unsigned>(n)), dim3(kThreads), shared_bytes, draw);
    launch_filter(*ctx.gpu, draw, n, scratch);
    return tokens;
}

}  // namespace riptide::ops
