#include "ops/kv/kv_append.h"

#include <algorithm>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "quant/kv_codec.h"

namespace riptide::ops {

namespace {

/// Encodes `heads` rows of d values one after the other. `work` holds d values.
void encode_token(DType type, const float* x, int64_t heads, int64_t d, char* out, int64_t row_bytes, float* work) {
    for (int64_t h = 0; h < heads; ++h, x += d, out += row_bytes) {
        const float* source = x;
        if (kv_rotated(type)) {
            std::copy_n(x, d, work);
            kv_rotate(work, d);
            source = work;
        }
        encode_kv_row(type, source, out, d);
    }
}

void check_input(const KvView& view, const Tensor& x, const Batch& batch) {
    RT_ASSERT(x.dtype == DType::f32 && x.contiguous() && x.rank == 3 && x.rows() == batch.rows());
    RT_ASSERT(x.shape[1] == view.num_kv_heads && x.shape[2] == view.head_dim);
}

}  // namespace

void kv_append(Context& ctx, const KvView& view, const Tensor& k, const Tensor& v, const Batch& batch) {
    check_input(view, k, batch);
    check_input(view, v, batch);
    if (ctx.gpu != nullptr) return cuda::kv_append(ctx, view, k, v, batch);
    if (view.window > 0)
        for (size_t s = 0; s < batch.committed.size(); ++s)
            RT_ASSERT(batch.row_begin[s + 1] - batch.row_begin[s] <= view.ring_rows - (view.window - 1));
    const int64_t heads = view.num_kv_heads, d = view.head_dim;
    parallel_rows(ctx, batch.rows(), 8 * heads * d, [&](int64_t begin, int64_t end, int) {
        std::vector<float> work(kv_rotated(view.k_dtype) || kv_rotated(view.v_dtype) ? static_cast<size_t>(d) : 0);
        for (int64_t r = begin; r < end; ++r) {
            const int64_t sequence = batch.row_sequence[static_cast<size_t>(r)];
            const int64_t slot = view.slot(batch, sequence, batch.storage_index(r));
            RT_ASSERT(slot >= 0);
            char* k_out = static_cast<char*>(view.k) + slot * view.k_slot_bytes;
            char* v_out = static_cast<char*>(view.v) + slot * view.v_slot_bytes;
            encode_token(view.k_dtype, k.row(r), heads, d, k_out, view.k_slot_bytes / heads, work.data());
            encode_token(view.v_dtype, v.row(r), heads, d, v_out, view.v_slot_bytes / heads, work.data());
        }
    });
}

void kv_move(Gpu* gpu, const KvView& view, int64_t from_slot, int64_t to_slot) {
    RT_ASSERT(from_slot >= 0 && to_slot >= 0);
    if (from_slot == to_slot) return;
    const auto move = [=](void* base, int64_t bytes) {
        char* memory = static_cast<char*>(base);
        copy_bytes(gpu, memory + to_slot * bytes, memory + from_slot * bytes, bytes);
    };
    move(view.k, view.k_slot_bytes);
    move(view.v, view.v_slot_bytes);
}

}  // namespace riptide::ops
