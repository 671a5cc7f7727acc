// Prefill attention: the order of the kernels.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/attention/sparse_choose.cuh"
#include "ops/cuda/backend.h"
#include "ops/cuda/backend_scoring.h"
#include "ops/cuda/device/heads.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int64_t kScratchBytes = int64_t{1} << 30;  // of K/V at once, unless one sequence needs more

attn::Kernel choose_kernel(const Gpu& gpu, const KvView& view, const Batch& batch, float softmax_scale, bool sparse) {
    return attn::choose({.family = Family::prefill,
                         .head_dim = view.head_dim,
                         .k = view.k_dtype,
                         .v = view.v_dtype,
                         .plain = batch.parent.empty() && softmax_scale > 0,
                         .sparse = sparse,
                         .chip = chip_of(gpu)})
        .kernel;
}
/// What the scratch holds. bf16 rows keep their range; a mixture with other types goes to f16, saturating.
Storage storage_of(attn::Kernel kernel, const KvView& view) {
    if (kernel == attn::Kernel::prefill_any) return Storage::f32;
    return view.k_dtype == DType::bf16 && view.v_dtype == DType::bf16 ? Storage::bf16 : Storage::f16;
}

/// Where the step's K and V go.
StoredRows stored_rows(const KvView& view, const Batch& batch, const Tensor& v) {
    return {key_places(view, batch), view.k,   view.v,      view.k_dtype, view.v_dtype, view.k_slot_bytes,
            view.v_slot_bytes,       v.row(0), v.row_stride};
}

void attend(const Gpu& gpu, const AttendArgs& args, attn::Kernel kernel, Storage storage) {
    if (kernel == attn::Kernel::prefill_any) attend_generic(gpu, args);
    else if (kernel == attn::Kernel::prefill_sm90) attend_wgmma(gpu, args, storage);
    else attend_mma(gpu, args, storage);
}

/// K/V of as many sequences at a time as the scratch holds, and the rows that read them.
void attend_in_groups(Context& ctx, AttendArgs args, const KvView& view, attn::Kernel kernel, Storage storage) {
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
        attend(*ctx.gpu, args, kernel, storage);
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

/// Prepared queries, and K and V in the cache.
PrepareArgs prepare_rows(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                         Storage storage) {
    PrepareArgs args = queries_of(in.q, view, batch, storage);
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
    if (in.k.data != nullptr) args.stored = stored_rows(view, batch, in.v);
    if (!prepare(*ctx.gpu, args)) kv_append(ctx, view, in.k, in.v, batch);
    return args;
}

AttendArgs attend_args(const PrepareArgs& prepared, const KvView& view, float softmax_scale, Tensor& out) {
    AttendArgs args{};
    args.plan.batch = prepared.batch;
    args.plan.window = view.window;
    args.q = prepared.to;
    if (out.dtype == DType::bf16) args.out_bf16 = out.row<uint16_t>(0);
    else args.out = out.row(0);
    args.rows = static_cast<int32_t>(prepared.batch.rows());
    args.heads = prepared.heads;
    args.kv_heads = prepared.kv_heads;
    args.head_dim = prepared.head_dim;
    args.scale = softmax_scale;
    return args;
}

}  // namespace

Tensor attention(Context& ctx, const Tensor& q, const KvView& view, const Batch& batch, float softmax_scale) {
    AttentionInput in;
    in.q = q;
    in.softmax_scale = softmax_scale;
    return prefill::gated_attention(ctx, in, view, batch);
}

Tensor gated_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch) {
    const attn::Kernel kernel = choose_kernel(*ctx.gpu, view, batch, in.softmax_scale, false);
    const Storage storage = storage_of(kernel, view);
    const bool bf16 = in.bf16 && kernel != attn::Kernel::prefill_any;
    Tensor out = ctx.alloc(bf16 ? DType::bf16 : DType::f32, {in.q.rows(), in.q.shape[1] * view.head_dim});
    if (in.q.rows() == 0) return out;
    const ArenaScope scope(*ctx.arena);
    const PrepareArgs args = prepare_rows(ctx, in, view, batch, storage);
    AttendArgs attend = attend_args(args, view, in.softmax_scale, out);
    if (in.gate.data != nullptr) {
        RT_ASSERT(in.gate.dtype == DType::f32 && in.gate.rows() == in.q.rows());
        attend.gate = {in.gate.row(0), in.gate.row_stride, in.gate.row_elements() != in.q.shape[1]};
    }
    attend_in_groups(ctx, attend, view, kernel, storage);
    return out;
}

}  // namespace riptide::ops::cuda::prefill

namespace riptide::ops::cuda {

void sparse_attention(Context& ctx, const AttentionInput& in, const KvView& view, const Batch& batch,
                      const SparseOptions& options, SparseResult& result) {
    using namespace prefill;
    const ArenaScope scope(*ctx.arena);
    const attn::Kernel kernel = choose_kernel(*ctx.gpu, view, batch, in.softmax_scale, true);
    const Storage storage = storage_of(kernel, view);
    const PrepareArgs prepared = prepare_rows(ctx, in, view, batch, storage);
    const int64_t element = storage == Storage::f32 ? 4 : 2, d = view.head_dim, columns = result.lists.shape[2] - 1;
    ChooseArgs args{};
    args.attend = attend_args(prepared, view, in.softmax_scale, result.o);
    args.attend.plan.end = 1;
    args.attend.plan.query_tiles = static_cast<int32_t>(result.lists.rows());
    args.attend.plan.key_tiles = static_cast<int32_t>(columns);
    args.attend.lists = result.lists.row<int32_t>(0);
    args.attend.list_stride = static_cast<int32_t>(columns + 1);
    args.attend.counter = ctx.gpu->counters();
    args.options = options;
    const int64_t items = result.lists.rows() * args.attend.heads;
    void* const scratch = ctx.arena->allocate(columns * 2 * view.num_kv_heads * kTile * d * element);
    args.attend.scratch = scratch;
    args.means = ctx.arena->allocate(view.num_kv_heads * args.mean_tiles() * kTile * d * element);
    args.mass = static_cast<float*>(ctx.arena->allocate(items * args.mass_stride() * 4));
    args.bases = static_cast<float*>(ctx.arena->allocate(items * args.steps() * 4));
    gather(*ctx.gpu, args.attend.plan, view, storage, scratch);
    choose_tiles(*ctx.gpu, args, storage);
    attend(*ctx.gpu, args.attend, kernel, storage);
}

}  // namespace riptide::ops::cuda
