// Products of the draft family on Hopper: bf16, f16 and Q8_0 matrices times up to 24 rows on tensor cores.
//
// What a drafter proposes is checked, so its products need no bits of one row alone; its blocks have 8 or 16 rows of
// 2,048 to 25,600 columns, and its weights come in bf16 as a rule. Bytes: those of the weights. The drafter of
// Qwen3.6-27B in bf16: q, k, v 63 MB, o 42, gate and up 357, down 178, fc 262 MB: at 4.65 TB/s 14, 9, 77, 38 and 56 us.
//
// Design. x does not fit into shared memory, so columns are cut into slices of at most 1,280, and a slice has a share
// of the CTAs. A slice's units, sixteen rows by one chunk (4 KB), strip after strip, are dealt out to its warps in
// equal runs, which begin and end anywhere; each warp has a ring of its own, filled by tensor copies, so that nothing
// waits for another warp. Every CTA rounds the columns of x that it needs while its first units come. What a run has of
// a strip goes to device memory (3 to 7 % of the weights' bytes), and a second kernel adds up and stores.
//
// Measured (H200, 2026-11-23, 16 rows, bench_gpu_draft; docs/results/speculation.md): q, k, v, o, feed-forward and fc
// 24, 19, 149 and 76 us in bf16 and 18, 16, 97 and 50 in Q8_0; the decode family's kernels 55 to 820. What limits it:
// some 8 us of an op between its kernels (x arrives and is rounded, sums go through L2). Tried: bulk copies of single
// rows with eight warps (feed-forward 147 and 166 us op by op instead of 106 and 158); the warp that ends a strip last
// adds it up, with a counter and fences, instead of a second kernel (969 us of products a pass instead of 729 in Q8_0);
// that kernel in one CTA an SM (771); slices of up to 2,560 columns (762); half as many warps (812).
#include "ops/cuda/linear/skinny/draft_f16_sm90.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cuda/linear/skinny/draft_f16_sm90.cuh"
#include "ops/cuda/linear/skinny/q8_i8_sm80.h"
#include "tensor/cuda_check.cuh"

namespace riptide::ops::cuda::decode {

namespace {

template <DType Type, int NT>
__global__ void __maxnreg__(kDraftRegisters)
    draft_kernel(const __grid_constant__ DraftArgs a, const __grid_constant__ DraftMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using U = DraftUnit<Type>;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[kWorkers * kMostStages];
    __shared__ alignas(16) float scales[U::kMostChunks * kMostX];
    __shared__ float squares[kMostX * (kMostColumns / 256)];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int block = blockIdx.x, number = ((block + 1) * a.slices - 1) / a.ctas;
    const DraftSlice slice(a, number);
    const int worker = kWorkers * (block - slice.cta) + warp;
    char* const units = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024 +
                        warp * a.stages * kUnitBytes;
    char* const by = units + (kWorkers - warp) * a.stages * kUnitBytes + warp * a.stages * U::kScales;
    char* const x = by + (kWorkers - warp) * a.stages * U::kScales;
    const DraftRing ring{shared_address(units), shared_address(by), shared_address(barriers + warp * kMostStages)};
    DraftUnits now(slice, worker), next(slice, worker);
    if (lane == 0) {
        for (int i = 0; i < a.stages; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(ring.full + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < a.stages && next.left > 0; ++i, next.next())
        if (lane == 0) ask_for_unit<Type>(a, maps, next, slice.chunk, ring, i);
    DraftStager<Type> stager(a, slice);
    pdl_trigger();
    pdl_wait();
    stager.run({x, scales, squares}, block == slice.cta, number);
    const char* rows[NT];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) rows[nt] = x + min(8 * nt + g, a.n - 1) * a.x_stride;
    float acc[NT][4] = {};
    int slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    while (now.left > 0) {
        const char* chunk[NT];
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) chunk[nt] = rows[nt] + 2 * U::kCols * now.chunk;
        wait_cluster(ring.full + 8 * slot, parity);
        multiply_unit<Type, NT>(units + slot * kUnitBytes, by + slot * U::kScales, chunk,
                                scales + kMostX * now.chunk + 2 * t, acc);
        __syncwarp();  // the slot has been read
        if (next.left > 0) {
            if (lane == 0) ask_for_unit<Type>(a, maps, next, slice.chunk, ring, slot);
            next.next();
        }
        if (++slot == a.stages) slot = 0, parity ^= 1;
        const int strip = now.strip;
        now.next();
        if (now.left > 0 && now.strip == strip) continue;
        const int part = worker - slice.first_worker(strip);
        float4* const to =
            a.sums + (static_cast<int64_t>(number * a.parts + part) * a.strips + strip) * (32 * NT) + lane;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            to[32 * nt] = make_float4(acc[nt][0], acc[nt][1], acc[nt][2], acc[nt][3]);
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[nt][e] = 0.0f;
        }
    }
#endif
}

/// Adds up what the runs have of each piece (sixteen rows, eight rows of x), a warp for each, and stores it.
template <int NT>
__global__ void __launch_bounds__(kFinishThreads, 4) draft_finish_kernel(const __grid_constant__ DraftArgs a) {
    constexpr int kPieces = kFinishThreads / 32, kBatch = 4;
    __shared__ float factors[kMostX];
    __shared__ int8_t parts[2][kPieces][kMostSlices];  // of the strip, and of that of up
    pdl_trigger();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int piece = blockIdx.x * kPieces + warp, nt = piece % NT, strip = piece / NT;
    const int strips = a.gate_up != 0 ? a.strips / 2 : a.strips;
    if (strip < strips && lane < a.slices) {
        const DraftSlice slice(a, lane);
        parts[0][warp][lane] = static_cast<int8_t>(slice.parts(strip));
        if (a.gate_up != 0) parts[1][warp][lane] = static_cast<int8_t>(slice.parts(strip + strips));
    }
    pdl_wait();
    if (a.x.kind == ActKind::norm && static_cast<int>(threadIdx.x) < a.n) {
        float sum = 0.0f;
#pragma unroll 4
        for (int s = 0; s < a.slices; ++s) sum = __fadd_rn(sum, a.squares[s * kMostX + threadIdx.x]);
        factors[threadIdx.x] = rms_scale(sum, a.cols, a.x.eps);
    }
    __syncthreads();
    if (strip >= strips) return;
    const int64_t next_part = static_cast<int64_t>(a.strips) * (32 * NT), next_slice = a.parts * next_part;
    const auto add_up = [&](int of, const int8_t(&counts)[kMostSlices], float(&v)[4]) {
        const float4* from = a.sums + static_cast<int64_t>(of) * (32 * NT) + 32 * nt + lane;
        const auto add = [&](const float4& sum) {
            v[0] = __fadd_rn(v[0], sum.x), v[1] = __fadd_rn(v[1], sum.y);
            v[2] = __fadd_rn(v[2], sum.z), v[3] = __fadd_rn(v[3], sum.w);
        };
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = 0.0f;
#pragma unroll 1
        for (int s = 0; s < a.slices; s += kBatch, from += kBatch * next_slice) {
            float4 first[kBatch], second[kBatch];
            int count[kBatch];
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                count[k] = s + k < a.slices ? counts[s + k] : 0;
                if (count[k] > 0) first[k] = from[k * next_slice];
                if (count[k] > 1) second[k] = from[k * next_slice + next_part];
            }
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                if (count[k] > 0) add(first[k]);
                if (count[k] > 1) add(second[k]);
#pragma unroll 1
                for (int part = 2; part < count[k]; ++part) add(from[k * next_slice + part * next_part]);
            }
        }
        if (a.x.kind == ActKind::norm)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (8 * nt + 2 * t + e % 2 < a.n) v[e] = __fmul_rn(v[e], factors[8 * nt + 2 * t + e % 2]);
    };
    int i = 0;
    while (i + 1 < a.matrices && strip >= a.m[i + 1].first) ++i;
    const DraftMatrix& m = a.m[i];
    const int first = kStrip * (strip - m.first) + g, col = 8 * nt + 2 * t;  // row of weights and of x of element 0
    const auto place = [&](int e) { return static_cast<int64_t>(col + e % 2) * m.rows + first + e / 2 * 8; };
    const auto there = [&](int e) { return col + e % 2 < a.n && first + e / 2 * 8 < m.rows; };
    float v[4], old[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (a.residual != nullptr && there(e)) old[e] = load_shared_f32(a.residual + place(e));
    add_up(strip, parts[0][warp], v);
    if (a.gate_up != 0) {
        float up[4];
        add_up(strip + strips, parts[1][warp], up);
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = swiglu_value(v[e], up[e]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (!there(e)) continue;
        m.y[place(e)] = v[e];
        if (a.residual != nullptr) a.residual[place(e)] = __fadd_rn(old[e], v[e]);
    }
}

// ---- The host's side.

/// Into how many slices columns are cut: so that the time of the slice with the most units for each CTA is least, with
/// the rows of x that a CTA reads (16 are assumed) and with the sums that it writes and reads.
int32_t cut_columns(int chunks, int most, int chunk, int strips, int ctas) {
    constexpr double kWeights = 35e3, kOther = 40e3;  // bytes a microsecond and CTA, from device memory and L2
    int32_t best = 0;
    double best_time = 1e30;
    for (int slices = (chunks + most - 1) / most; slices <= std::min({chunks, kMostSlices, ctas}); ++slices) {
        double units = 0;
        int longest = 0;
        for (int s = 0; s < slices; ++s) {
            const int length = chunks * (s + 1) / slices - chunks * s / slices;
            longest = std::max(longest, length);
            units =
                std::max(units, static_cast<double>(length) * strips / (ctas * (s + 1) / slices - ctas * s / slices));
        }
        const double time =
            units * kUnitBytes / kWeights + (16.0 * 4 * chunk * longest + 2.6 * slices * strips * 1024 / ctas) / kOther;
        if (time < best_time) best = slices, best_time = time;
    }
    return best;
}

CUtensorMap data_boxes(const Weight& w) {
    prefill::BoxedTensor t;
    t.data = static_cast<const char*>(w.data);
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    t.rank = 3;
    const auto bytes = static_cast<cuuint64_t>(w.row_bytes);
    t.extents[0] = 128, t.extents[1] = static_cast<cuuint64_t>(w.rows), t.extents[2] = bytes / 128;
    t.strides[0] = bytes, t.strides[1] = 128;
    t.box[0] = 128, t.box[1] = kStrip, t.box[2] = 2;
    return prefill::encode(t);
}
CUtensorMap scale_boxes(const Weight& w) {
    prefill::BoxedTensor t;
    t.data = static_cast<const char*>(w.scales);
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    t.extents[0] = static_cast<cuuint64_t>(w.cols / 16), t.extents[1] = static_cast<cuuint64_t>(w.rows);
    t.strides[0] = static_cast<cuuint64_t>(w.cols / 16);
    t.box[0] = DraftUnit<DType::planes_int8>::kScaleRow, t.box[1] = kStrip;
    return prefill::encode(t);
}

/// Matrices of one type that are multiplied at once.
struct DraftGroup {
    DraftArgs a = {};
    DraftMaps maps = {};
    DType type = DType::bf16;

    void add(const Weight& w, float* y) {
        if (a.matrices == 0) type = w.dtype;
        RT_ASSERT(w.dtype == type && a.matrices < kMostMatrices);
        maps.data[a.matrices] = data_boxes(w);
        if (type == DType::planes_int8) maps.scales[a.matrices] = scale_boxes(w);
        a.m[a.matrices++] = {y, static_cast<int32_t>(w.rows), a.strips};
        a.strips += static_cast<int32_t>((w.rows + kStrip - 1) / kStrip);
    }
};

template <DType Type, int NT>
void launch_draft(Context& ctx, DraftArgs& a, const DraftMaps& maps) {
    using U = DraftUnit<Type>;
    constexpr int64_t kStatic = 4 << 10, kAlign = 1024;
    const int64_t x = int64_t{a.n} * a.x_stride, stage = kWorkers * (kUnitBytes + U::kScales);
    a.stages = static_cast<int32_t>(
        std::min<int64_t>(kMostStages, (ctx.gpu->info().shared_bytes - kStatic - kAlign - x) / stage));
    RT_ASSERT(a.stages >= 1);
    const int64_t shared = kAlign + x + a.stages * stage;
    const ArenaScope scope(*ctx.arena);
    a.sums = static_cast<float4*>(
        ctx.arena->allocate(int64_t{a.slices} * a.parts * a.strips * (32 * NT) * int64_t{sizeof(float4)}));
    a.squares = static_cast<float*>(ctx.arena->allocate(int64_t{a.slices} * kMostX * int64_t{sizeof(float)}));
    const auto kernel = draft_kernel<Type, NT>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(a.ctas)), kDraftThreads, static_cast<size_t>(shared), a, maps);
    const int pieces = (a.gate_up != 0 ? a.strips / 2 : a.strips) * NT, each = kFinishThreads / 32;
    launch(*ctx.gpu, draft_finish_kernel<NT>, dim3(static_cast<unsigned>((pieces + each - 1) / each)), kFinishThreads,
           0, a);
}

template <DType Type>
void launch_draft_rows(Context& ctx, DraftArgs& a, const DraftMaps& maps) {
    if (a.n <= 16) launch_draft<Type, 2>(ctx, a, maps);
    else launch_draft<Type, 3>(ctx, a, maps);
}

/// All rows, 24 at a time.
void multiply_draft(Context& ctx, DraftGroup& group, const ActSource& x, int64_t cols, int64_t n) {
    DraftArgs& a = group.a;
    a.cols = static_cast<int32_t>(cols);
    a.ctas = ctx.gpu->info().sm_count;
    a.chunk = group.type == DType::planes_int8 ? 256 : 128;
    a.slices = cut_columns(a.cols / a.chunk, kMostColumns / a.chunk, a.chunk, a.strips, a.ctas);
    a.parts = 1;
    int longest = 0;
    for (int s = 0; s < a.slices; ++s) {
        const DraftSlice slice(a, s);
        RT_ASSERT(static_cast<int64_t>(slice.units) * slice.workers < int64_t{1} << 31);
        longest = std::max(longest, slice.chunks);
        const int least = slice.units / slice.workers;
        a.parts = std::max(a.parts, std::min(slice.chunks, (slice.chunks - 2) / std::max(1, least) + 2));
    }
    // Bank conflicts: neighbouring rows are 16 bytes apart, for int8 weights (whose x has another order) 64. Pieces of
    // 256 columns are written whole.
    a.x_stride =
        static_cast<int32_t>((a.chunk * longest + 255) / 256 * 512) + (group.type == DType::planes_int8 ? 64 : 16);
    for (int64_t row = 0; row < n; row += kMostX) {
        DraftArgs part = a;
        part.n = static_cast<int32_t>(std::min<int64_t>(kMostX, n - row));
        part.x = x;
        part.x.rows += row * x.stride;
        const int outputs = a.gate_up != 0 ? 1 : a.matrices;
        for (int i = 0; i < outputs; ++i) part.m[i].y += row * a.m[i].rows;
        if (a.residual != nullptr) part.residual += row * a.m[0].rows;
        if (group.type == DType::bf16) launch_draft_rows<DType::bf16>(ctx, part, group.maps);
        else if (group.type == DType::f16) launch_draft_rows<DType::f16>(ctx, part, group.maps);
        else launch_draft_rows<DType::planes_int8>(ctx, part, group.maps);
    }
}

}  // namespace

void draft_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    for (size_t i = 0; i < weights.size();) {
        DraftGroup group;
        for (; i < weights.size() && group.a.matrices < kMostMatrices; ++i) group.add(*weights[i], y[i].row(0));
        group.a.residual = residual == nullptr ? nullptr : residual->row(0);
        multiply_draft(ctx, group, x, cols, n);
    }
}

void draft_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate, const Weight& up,
                   float* out) {
    DraftGroup group;
    group.add(gate, out);
    group.add(up, nullptr);
    group.a.gate_up = 1;
    multiply_draft(ctx, group, x, cols, n);
}

}  // namespace riptide::ops::cuda::decode
