#include "ops/advance.h"

#include "ops/op_cost.h"
#include "tensor/launch.cuh"

namespace riptide::ops {

namespace {

__global__ void advance_kernel(const int32_t* next, int32_t* tokens, int32_t* positions, int32_t* committed,
                               int32_t* slots, int32_t* next_slots, int32_t* held, int n, TokenRing ring) {
    pdl_trigger();
    pdl_wait();
    const int64_t step = *ring.step;
    const int r = static_cast<int>(threadIdx.x);
    if (r < n) {
        const int32_t token = next[r];
        const int64_t forced = *ring.forced_size;
        tokens[r] = forced > 0 ? ring.forced[step % forced] : max(token, 0);  // no token: an embeddable one
        ++positions[r];
        const int32_t before = committed[r];
        committed[r] = before + 1;
        if (held != nullptr) held[r] = before;
        if (next_slots != nullptr) {
            const int32_t used = slots[r];
            slots[r] = next_slots[r];
            next_slots[r] = used;
        }
        const uint64_t entry = static_cast<uint64_t>(step + 1) << 32 | static_cast<uint32_t>(token);
        *reinterpret_cast<volatile uint64_t*>(ring.entries + step % ring.size * n + r) = entry;
    }
    __syncthreads();
    if (r == 0) *ring.step = step + 1;
}

}  // namespace

void advance(Context& ctx, const Tensor& next, const Batch& batch, const TokenRing& ring,
             std::span<const int32_t> next_slot, std::span<const int32_t> held) {
    const int64_t n = batch.rows();
    announce(ctx, "advance", n);
    RT_ASSERT(ctx.gpu != nullptr && n >= 1 && n <= 1024 && batch.parent.empty() && n == batch.sequences());
    launch(*ctx.gpu, advance_kernel, dim3(1), dim3(static_cast<unsigned>((n + 31) / 32 * 32)), 0, next.row<int32_t>(0),
           const_cast<int32_t*>(batch.tokens.data()), const_cast<int32_t*>(batch.positions.data()),
           const_cast<int32_t*>(batch.committed.data()), const_cast<int32_t*>(batch.state_slot.data()),
           const_cast<int32_t*>(next_slot.data()), const_cast<int32_t*>(held.data()), static_cast<int>(n), ring);
}

}  // namespace riptide::ops
