// From the tokens of one decode step to the next.
//
// Bytes: some words a row; with the choice of the token its logits, 1 MB at 248,320 words, from the L2 cache. What
// counts is the chain: nothing of the next step but its first weights can be under way meanwhile. So what a row's next
// step is made of is read along with its logits, by all of its CTAs, and the last of them only stores.
#include "ops/advance.h"

#include "ops/cuda/device/argmax.cuh"
#include "ops/op_cost.h"
#include "tensor/launch.cuh"

namespace riptide::ops {

namespace {

struct AdvanceArgs {
    int32_t *tokens, *positions, *committed, *held;
    int n;
    TokenRing ring;
};

/// What a row's step was, as far as the next one depends on it.
struct LastStep {
    int64_t step, forced_size;
    int32_t forced = 0, position, committed;
    uint64_t* entry;

    __device__ __forceinline__ LastStep(const AdvanceArgs& a, int r)
        : step(*a.ring.step), forced_size(*a.ring.forced_size), position(a.positions[r]), committed(a.committed[r]) {
        if (forced_size > 0) forced = a.ring.forced[static_cast<uint32_t>(step) % static_cast<uint32_t>(forced_size)];
        entry = a.ring.entries + (step & (a.ring.size - 1)) * a.n + r;
    }
    /// All but the counter of steps.
    __device__ __forceinline__ void advance(const AdvanceArgs& a, int r, int32_t token) const {
        a.tokens[r] = forced_size > 0 ? forced : max(token, 0);  // no token: an embeddable one
        a.positions[r] = position + 1;
        a.committed[r] = committed + 1;
        if (a.held != nullptr) a.held[r] = committed;
        *reinterpret_cast<volatile uint64_t*>(entry) =
            static_cast<uint64_t>(step + 1) << 32 | static_cast<uint32_t>(token);
    }
};

__global__ void advance_kernel(const int32_t* next, AdvanceArgs a) {
    pdl_trigger();
    pdl_wait();
    const int r = static_cast<int>(threadIdx.x);
    const LastStep last(a, min(r, a.n - 1));
    if (r < a.n) last.advance(a, r, next[r]);
    __syncthreads();
    if (r == 0) *a.ring.step = last.step + 1;
}

/// CTA (r, p): part p of row r. counters: one for each row and one more, zero.
__global__ void __launch_bounds__(cuda::kArgmaxThreads)
    advance_most_likely_kernel(const float* logits, int64_t m, int piece, uint64_t* partial, int32_t* counters,
                               AdvanceArgs a) {
    __shared__ cuda::ArgmaxShared shared;
    pdl_trigger();
    pdl_wait();
    const int r = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.y);
    const LastStep last(a, r);
    uint64_t key = 0;
    if (!cuda::row_argmax(logits + r * m, m, piece, true, static_cast<int>(blockIdx.y), parts, partial + r * parts,
                          counters + r, shared, &key))
        return;
    last.advance(a, r, cuda::chosen(key, true));
    if (a.n > 1) {  // the last row counts the step, which all have read
        __threadfence();
        if (atomicAdd(counters + a.n, 1) < a.n - 1) return;
        counters[a.n] = 0;
    }
    *a.ring.step = last.step + 1;
}

AdvanceArgs arguments(const Batch& batch, const TokenRing& ring, std::span<const int32_t> held) {
    const int64_t n = batch.rows();
    RT_ASSERT(n >= 1 && n <= 1024 && batch.parent.empty() && n == batch.sequences());
    RT_ASSERT(ring.size > 0 && (ring.size & (ring.size - 1)) == 0);
    return {const_cast<int32_t*>(batch.tokens.data()),
            const_cast<int32_t*>(batch.positions.data()),
            const_cast<int32_t*>(batch.committed.data()),
            const_cast<int32_t*>(held.data()),
            static_cast<int>(n),
            ring};
}

}  // namespace

void advance(Context& ctx, const Tensor& next, const Batch& batch, const TokenRing& ring,
             std::span<const int32_t> held) {
    const int64_t n = batch.rows();
    const OpScope told = announce(ctx, "advance", n);
    RT_ASSERT(ctx.gpu != nullptr);
    launch(*ctx.gpu, advance_kernel, dim3(1), dim3(static_cast<unsigned>((n + 31) / 32 * 32)), 0, next.row<int32_t>(0),
           arguments(batch, ring, held));
}

void advance_most_likely(Context& ctx, const Tensor& logits, const Batch& batch, const TokenRing& ring,
                         std::span<const int32_t> held) {
    const int64_t n = batch.rows(), m = logits.row_elements();
    const OpScope told = announce(ctx, "advance_most_likely", n);
    RT_ASSERT(ctx.gpu != nullptr && logits.dtype == DType::f32 && logits.rank == 2 && logits.contiguous());
    RT_ASSERT(logits.rows() == n && m >= 1);
    const ArenaScope scope(*ctx.arena);
    const cuda::ArgmaxGrid grid(ctx.gpu->info().sm_count, n, m);
    void* partial = grid.parts > 1 ? ctx.arena->allocate(n * grid.parts * int64_t{sizeof(uint64_t)}) : nullptr;
    launch(*ctx.gpu, advance_most_likely_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(grid.parts)),
           cuda::kArgmaxThreads, 0, logits.row(0), m, static_cast<int>(grid.piece), static_cast<uint64_t*>(partial),
           ctx.gpu->counters(), arguments(batch, ring, held));
}

}  // namespace riptide::ops
