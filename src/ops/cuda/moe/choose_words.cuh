// Choosing the experts of one row inside a kernel from the sums that a router leaves (router_words.h), while the other
// half of the CTA normalises the row.
#pragma once

#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/shared/router_words.cuh"
#include "ops/cuda/moe/route_row1.cuh"
#include "ops/cuda/moe/share.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

static_assert(kRow1Experts == kWordExperts && kRow1Experts == kThreads && kRow1Hidden == kWordCols);

/// The row that experts are chosen for, and its words.
struct WordChoice {
    const float* x = nullptr;  // [kRow1Hidden], to be normalised
    const float* norm = nullptr;
    float eps = 0;
    RouterWords* words = nullptr;
    float* logits = nullptr;  // [kRow1Experts], by CTA 0
};

struct WordRoute : Row1Route {
    float partial[kWarps];
    float s[kRow1Experts];  // scores
    float chains[kShareChains];
};

/// What a thread of 512 asks for above pdl_wait(): the lower half of them chooses, the upper normalises.
struct WordEarly {
    float norm[8], bias;

    __device__ __forceinline__ WordEarly(const RouteArgs& route, const WordChoice& c) : bias(0.0f) {
        if (threadIdx.x >= kThreads) row1_weights8(c.norm, threadIdx.x - kThreads, norm);
        else if (route.bias != nullptr) bias = __uint_as_float(load_weight32(route.bias + threadIdx.x));
    }
};

/// Barriers of a CTA of 512 threads: of its lower half, of its upper half, and of both, at which the upper half alone
/// waits.
__device__ __forceinline__ void choosers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }
__device__ __forceinline__ void normers_meet() { asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory"); }
__device__ __forceinline__ void let_normers_go() { asm volatile("bar.arrive 3, %0;" ::"n"(2 * kThreads) : "memory"); }
__device__ __forceinline__ void await_choosers() { asm volatile("bar.sync 3, %0;" ::"n"(2 * kThreads) : "memory"); }

/// The lower half of choose_by_words.
template <class Chosen>
__device__ __forceinline__ void words_choose(const RouteArgs& route, const WordChoice& c, float bias, WordRoute& m,
                                             const Chosen& chosen) {
    const int t = threadIdx.x;
    ReadWords<RouterWords::kSets> read;
    read.ask(*c.words, 0, t);
    const uint64_t word = read.word();
    let_normers_go();
    const float logit = logit_of(word, read.scale(c.eps)), s = route_score(route.softmax, logit);
    m.s[t] = s;
    row1_rank_own(route_key(route.bias == nullptr ? s : __fadd_rn(s, bias)), m);
    choosers_meet();
    row1_rank_best(route.top_k, m);
    choosers_meet();
    if (blockIdx.x == 0 && t < route.top_k) post_id(c.words->posted + t, m.chosen[t]);
    pdl_trigger();  // not earlier: loads of the kernel behind would get in the way of those that choose
    chosen();
    if (blockIdx.x != 0) return;
    c.logits[t] = logit;
    if (t >= route.top_k) return;
    route.chosen[t] = m.chosen[t];
    route.weights[t] = route_weight(route, t, [&](int k) { return m.s[m.chosen[k]]; });
}

/// The upper half: the row, normalised and as `layout` says. It asks for x behind the words, which are waited for.
__device__ __forceinline__ void words_norm(const RouteArgs& route, const WordChoice& c, const float (&norm)[8],
                                           const ActLayout& layout, WordRoute& m, char* staged) {
    const int u = threadIdx.x - kThreads;
    float x[8];
    await_choosers();
    row1_load8(c.x, u, x);
    const float sum = warp_sum(add_squares(x, 0.0f));
    if (u % 32 == 0) m.partial[u / 32] = sum;
    normers_meet();
    const float scale = row_scale(m.partial, kRow1Hidden, c.eps);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = rms_value(x[k], scale, norm[k]);
    put8(layout, staged, u, x);
    if (route.share == nullptr || blockIdx.x != gridDim.x - 1) return;
    const float logit = share_logit(route.share, x, u, m.chains, m.partial, normers_meet);
    if (u == 0) *route.share_logits = logit;
}

/// Behind pdl_wait(), by all of a CTA of 512 threads: the experts to m.chosen; the next kernel may start; chosen() by
/// the lower half, which alone may read m.chosen before the CTA synchronises; the row to `staged`, likewise to be read
/// behind a barrier. CTA 0 posts the ids and leaves ids, weights and logits in memory, the last the share's.
template <class Chosen>
__device__ __forceinline__ void choose_by_words(const RouteArgs& route, const WordChoice& c, const WordEarly& early,
                                                const ActLayout& layout, WordRoute& m, char* staged,
                                                const Chosen& chosen) {
    if (threadIdx.x < kThreads) words_choose(route, c, early.bias, m, chosen);
    else words_norm(route, c, early.norm, layout, m, staged);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
