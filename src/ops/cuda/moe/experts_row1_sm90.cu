// A sparse layer of Laguna XS.2 for one row: 256 experts of 2048 x 512, up to eight of them and a shared one, in planes
// of any type. Kernels of its own for Q4_K_M, and ones that ask each matrix for its format (RowFormat). The general
// kernels of moe_decode.cu take everything else, with the same bits.
//
// Bytes: router 1.0 MB (bf16), gate and up of nine experts 10.6 MB (Q4_K), down 5.3 MB (Q6_K: 7.7); at 4.65 TB/s 0.23,
// 2.3 and 1.1 us. The product before leaves the router's words (kquant_i8.cu, planes_i8_sm90.cu in ../linear/gemv),
// or else router_words_row1_kernel does (router_words_row1.cuh). Then two kernels:
//   experts_row1_gate_up_kernel  every CTA normalises the row, half of it, while the other half chooses the experts
//                        from the 256 words; then it fetches 32 pairs of rows of one and leaves silu(gate) * up,
//                        quantised. Before it waits for the words it fetches its rows of the shared expert.
//   experts_row1_down_kernel     one output a warp, all slots; fetches its weights while gate and up are still
//                        being computed, and zeroes the words.
// What down reads before its wait: x, complete since gate_up lets it start only behind its own wait; and the ids of the
// experts: whoever leaves the words makes them -1, CTA 0 of gate_up posts them, and down asks until they are there.
// (CTA 0 used to let down start behind a fence only, which took 1 to 2 us while weights streamed in, and all CTAs of
// down started so much later.)
// What limits it: nothing can be fetched until the experts are known: router, choice, memory latency and gate_up's
// bytes follow one another. Tried on an H200: down's weights, or the next layer's projections, sent to the L2 cache in
// the meantime: 1 to 2 % slower (a later kernel's own early loads do as well); a row a copy instead of runs of rows:
// slower (the copy engine takes about 20 ns a piece); down choosing for itself instead of reading the ids: slower; down
// let go before the choice: 0.7 % slower. Without the ranking a token would take 0.4 us a layer less; with down's loads
// behind its wait it takes 3.2 us more, with the next kernel let go behind it 0.8 more. docs/results/gpu.md has when
// each step of a layer is done.
#include "ops/cuda/moe/experts_row1_sm90.h"

#include <algorithm>

#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/linear/shared/row_formats.cuh"
#include "ops/cuda/moe/experts_any.cuh"
#include "ops/cuda/moe/fit.h"
#include "ops/cuda/moe/router_words_row1.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kExperts = kRow1Experts, kHidden = kRow1Hidden, kFf = 512, kMostChosen = kRow1Chosen,
              kSlots = kMostChosen + 1;

/// What the kernels of a layer leave for one another.
struct Row1Middle {
    alignas(16) char act[staged_bytes(kSlots * kFf)];  // silu(gate) * up, staged: rank r at columns kFf r ..
    alignas(16) float shared[kFf];                     // of the shared expert, whose staged part nobody writes
};

// ---- Gate and up.

struct Row1GateUpArgs {
    RowPlanes m[4];  // gate and up of the experts, gate and up of the shared expert
    int64_t stride;  // from expert to expert
    RouteArgs route;
    WordChoice choice;
    Row1Middle* middle;
};

constexpr int kGateUpCtas = kMostChosen * kFf / 32, kSharedPairs = kFf / kGateUpCtas, kPairs = kSharedPairs + 32;

/// `pairs` rows of gate and as many of up, in shared memory: a plane of gate, of up, the next plane of gate, of up.
RT_HD constexpr int pair_bytes(const PlaneBytes& bytes, int pairs) { return 2 * pairs * (kHidden / 256) * bytes.all(); }

/// CTA b has 32 pairs (gate row, up row) of an expert, which become one group of `act`, and kSharedPairs pairs of the
/// shared expert. Pairs of an expert come in two halves, each in few copies (the copy engine takes few large pieces
/// much faster than many small ones), so that the first is multiplied while the second arrives; before them, the
/// shared ones. A warp multiplies a pair at a time.
template <class Formats>
__global__ void __launch_bounds__(kRow1Threads, 2)
    experts_row1_gate_up_kernel(const __grid_constant__ Row1GateUpArgs a) {
    constexpr int kGroups = kHidden / 32, kHalf = 16;
    extern __shared__ uint4 dynamic[];
    __shared__ alignas(16) char staged[staged_bytes(kHidden)];
    __shared__ float results[2][kPairs];
    __shared__ WordRoute route;
    __shared__ uint64_t barriers[3];  // of the halves and of the shared pairs
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, b = blockIdx.x, slot = b / (kFf / 32);
    const bool routed = slot < a.route.top_k;
    const PlaneBytes of_experts = Formats::bytes(a.m[0].format), of_shared = Formats::bytes(a.m[2].format);
    char* memory = reinterpret_cast<char*>(dynamic);
    char* shared_memory = memory + 2 * pair_bytes(of_experts, kHalf);
    if (t == 0)
        for (int i = 0; i < 3; ++i)
            Row1Fetch{barriers + i}.init(i == 2   ? pair_bytes(of_shared, kSharedPairs)
                                         : routed ? pair_bytes(of_experts, kHalf)
                                                  : 0);
    // Of warps 0 to 7 and 8 to 11 a lane makes a copy: a plane of gate or up, behind `from` that of an expert. The
    // first plane is one warp's, the others, which are small, another's.
    const int up = warp & 1, plane = warp % 4 < 2 ? 0 : 1 + lane, group = warp / 4;
    const int pairs = group < 2 ? kHalf : kSharedPairs;
    const PlaneBytes mine = group < 2 ? of_experts : of_shared;
    const int row_bytes = lane < (warp % 4 < 2 ? 1 : 3) ? kHidden / 256 * mine.of(plane) : 0;
    const int first = group < 2 ? b % (kFf / 32) * 32 + group * kHalf : b * kSharedPairs;
    const char* from = row_bytes == 0 ? nullptr : a.m[(group < 2 ? 0 : 2) + up].plane[plane] + first * row_bytes;
    char* to = (group < 2 ? memory + group * pair_bytes(of_experts, kHalf) : shared_memory) +
               pairs * (2 * (kHidden / 256) * (row_bytes == 0 ? 0 : mine.before(plane)) + up * row_bytes);
    __syncthreads();
    if (group == 2 && row_bytes != 0) Row1Fetch{barriers + 2}.copy(to, from, pairs * row_bytes);
    __syncwarp();
    const WordEarly early(a.route, a.choice);
    pdl_wait();
    choose_by_words(a.route, a.choice, early, row1_layout(kHidden), route, staged, [&] {
        if (routed && group < 2 && row_bytes != 0)
            Row1Fetch{barriers + group}.copy(to, from + route.chosen[slot] * a.stride, pairs * row_bytes);
        __syncwarp();
    });
#if __CUDA_ARCH__ < 900
    copy_async_wait();
#endif
    __syncthreads();
    const KShifts at(lane);
#pragma unroll 1
    for (int i = 0; i < 3; ++i) {
        const int n = i == 0 ? kSharedPairs : kHalf;
        if (warp >= n || (i > 0 && !routed)) continue;
        char* part = i == 0 ? shared_memory : memory + (i - 1) * pair_bytes(of_experts, kHalf);
        Row1Fetch{barriers + (i + 2) % 3}.wait();
        float acc[2] = {};
        const RowPlanes& m = a.m[i == 0 ? 2 : 0];
        Formats::with(m.format, [&](auto format) {
            const SharedRows<format.value> rows{part, kGroups, 2 * n};
#pragma unroll
            for (int s = 0; s < kHidden / 1024; ++s) {
                const int j = 32 * s + lane;
                const KActs x = row_acts<format.value>(staged, kGroups, j);
#pragma unroll
                for (int g = 0; g < 2; ++g) {
                    const int index = (g * n + warp) * kGroups + j;
                    acc[g] = fmaf(rows.value(index, x, rows.scales(index, at), m.levels), x.d, acc[g]);
                }
            }
        });
        row1_reduce<2>(acc, lane, [&](int g, float sum) {
            results[g][(i == 0 ? 0 : kSharedPairs + (i - 1) * kHalf) + warp] = sum;
        });
    }
    __syncthreads();
    const int pair = warp == 0 ? kSharedPairs + lane : lane;
    if (warp > 1 || (warp == 0 ? !routed : lane >= kSharedPairs)) return;
    const float v = swiglu_value(results[0][pair], results[1][pair]);
    if (warp == 0) put_group<kSlots * kFf / 32>(a.middle->act, b, v);
    else a.middle->shared[b * kSharedPairs + lane] = v;
}

// ---- Down.

struct Row1DownArgs {
    RowPlanes routed, shared;
    int64_t stride;
    RouterWords* words;  // read by gate and up, but for the ids
    const float* weights;
    int32_t top_k;
    const float* share_logit;  // of RouteArgs
    const Row1Middle* middle;
    int32_t rows;
    float* y;
    float* residual;  // null: none
};

/// The weights of an output in all slots are sixteen rows behind one another in each: of each slot, a CTA's rows in
/// shared memory, those of the shared expert last.
constexpr int slot_bytes(RowFormat format) { return kRow1Warps * row_bytes(format, kFf); }

/// As experts_any_down_kernel: an output a warp, a slot for each half of it, ten slots at once. One warp asks for the
/// ids and, as soon as each is there, for the weights of its slot, by bulk copies: loads by all warps, each of which
/// asked for the ids, kept gate and up waiting and took 2 us to issue.
template <class Formats>
__global__ void __launch_bounds__(kRow1Threads, 2) experts_row1_down_kernel(const __grid_constant__ Row1DownArgs a) {
    constexpr ActLayout l = row1_layout(kSlots * kFf);
    constexpr int kGroups = kFf / 32, kPasses = (kSlots + 1) / 2;
    extern __shared__ uint4 dynamic[];
    __shared__ alignas(16) char staged[staged_bytes(kSlots * kFf)];
    __shared__ float terms[kRow1Warps][2 * kPasses];
    __shared__ uint64_t barrier;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / 16, j = lane % 16;
    const int o = blockIdx.x * kRow1Warps + warp, slots = a.top_k + 1, at_row = warp * kGroups + j;
    // Sixteen bytes of the staged row that gate and up leave: not of the shared expert's sub-blocks, the last of each
    // plane.
    constexpr int kPieces = staged_bytes(kSlots * kFf) / 16;
    static_assert(kPieces <= kRow1Threads - kFf / 8 && l.groups % 4 == 0);
    const int t = threadIdx.x, plane_at = t < 2 * l.groups       ? t % l.groups
                                          : t < 5 * l.groups / 2 ? 2 * (t - 2 * l.groups)
                                                                 : 4 * (t - 5 * l.groups / 2);
    const bool stages = t < kPieces && plane_at < kMostChosen * kGroups;
    char* const memory = reinterpret_cast<char*>(dynamic);
    const int slot_bytes = kRow1Warps * (kFf / 256) * Formats::bytes(a.routed.format).all();
    const auto of_slot = [&](int slot) -> const RowPlanes& { return slot < a.top_k ? a.routed : a.shared; };
    const Row1Fetch fetch{&barrier};
    if (t == 0) fetch.init(a.top_k * slot_bytes + kRow1Warps * (kFf / 256) * Formats::bytes(a.shared.format).all());
    const auto ask = [&](int slot, int64_t offset, const auto& copy) {
        Formats::with(of_slot(slot).format, [&](auto format) {
            SharedRows<format.value>{memory + slot * slot_bytes, kGroups, kRow1Warps}.each(
                of_slot(slot), offset, blockIdx.x * kRow1Warps, kRow1Warps, copy);
        });
    };
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (warp == 0) {
        const auto copy = [&](char* to, const char* from, int bytes) { fetch.copy(to, from, bytes); };
        if (lane == a.top_k) ask(lane, 0, copy);
        if (lane < a.top_k) ask(lane, await_id(a.words->posted + lane) * a.stride, copy);
        __syncwarp();
        pdl_trigger();  // now: the next kernel's weights queue up behind these
    }
#else
    for (int slot = 0; slot < slots; ++slot) {
        ask(slot, slot < a.top_k ? await_id(a.words->posted + slot) * a.stride : 0,
            [&](char* to, const char* from, int bytes) { row1_fetch(to, from, bytes, t, kRow1Threads); });
    }
    copy_async_wait();
    __syncthreads();
#endif
    const float old =
        a.residual != nullptr && lane == 0 ? load_shared_f32(a.residual + o) : 0.0f;  // older than gate_up
    fetch.wait();
    // While gate and up are being computed: everything that needs the weights alone.
    const KShifts at(lane);
    const auto rows_of = [&](auto format, int slot) {
        return SharedRows<decltype(format)::value>{memory + slot * slot_bytes, kGroups, kRow1Warps};
    };
    [[maybe_unused]] float2 by[kPasses];
    if constexpr (Formats::kAhead) {
        constexpr std::integral_constant<RowFormat, Formats::kFormat> kFormat;
#pragma unroll
        for (int b = 0; b < kPasses; ++b) by[b] = rows_of(kFormat, min(2 * b + half, slots - 1)).scales(at_row, at);
    }
    pdl_wait();
    float weight = lane < a.top_k ? a.weights[lane] : 1.0f;
    if (a.share_logit != nullptr && lane == a.top_k) weight = sigmoid(load_shared_f32(a.share_logit));
    if (stages)
        *reinterpret_cast<float4*>(staged + 16 * threadIdx.x) =
            load_shared_f32x4(reinterpret_cast<const float*>(a.middle->act) + 4 * threadIdx.x);
    if (const int c = threadIdx.x - (kRow1Threads - kFf / 8); c >= 0) {
        float v[8];
        row1_load8(a.middle->shared, c, v);
        put8(l, staged, kMostChosen * kFf / 8 + c, v);
    }
    clear_words(*a.words, 1);
    __syncthreads();
    const auto product = [&](auto format, int b) {
        const int slot = min(2 * b + half, slots - 1);
        const auto rows = rows_of(format, slot);
        const KActs x =
            row_acts<decltype(format)::value>(staged, l.groups, (slot < a.top_k ? slot : kMostChosen) * kGroups + j);
        if constexpr (Formats::kAhead) return fmaf(rows.value(at_row, x, by[b], {}), x.d, 0.0f);
        else return fmaf(rows.value(at_row, x, rows.scales(at_row, at), of_slot(slot).levels), x.d, 0.0f);
    };
    float acc[kPasses];
    Formats::with(a.routed.format, [&](auto format) {
#pragma unroll
        for (int b = 0; b < kPasses; ++b) acc[b] = product(format, b);
    });
    if constexpr (!Formats::kAhead)
        if (a.shared.format != a.routed.format)  // then top_k is even, and both halves of its pass have the shared one
            Formats::with(a.shared.format, [&](auto format) {
                const float of_shared = product(format, a.top_k / 2);
#pragma unroll
                for (int b = 0; b < kPasses; ++b) acc[b] = b == a.top_k / 2 ? of_shared : acc[b];
            });
    row1_reduce<kPasses, 16>(acc, lane, [&](int b, float sum) { terms[warp][2 * b + half] = sum; });
    __syncwarp();
    const float term = lane < slots ? __fmul_rn(weight, terms[warp][lane]) : 0.0f;
    float y = __shfl_sync(~0u, term, 0);
#pragma unroll
    for (int slot = 1; slot < kSlots; ++slot) {
        const float next = __shfl_sync(~0u, term, slot);
        if (slot < slots) y = __fadd_rn(y, next);
    }
    if (lane != 0) return;
    a.y[o] = y;
    if (a.residual != nullptr) a.residual[o] = __fadd_rn(old, y);
}

}  // namespace

void experts_row1(Context& ctx, const Tensor& x, const Norm& norm, const Weight& router, const RouteArgs& route,
                  const ExpertWeights& weights, const SharedExpert& shared, bool summed, MoeResult& result,
                  float* residual) {
    const Weight* const ups[] = {&weights.gate[0], &weights.up[0], shared.gate, shared.up};
    const int64_t out = weights.down[0].rows, stride = planes_stride(weights.gate);
    const RowFormat ups_format = row_format(*ups[0]), shared_format = row_format(*ups[2]);
    const auto fit = fit_row1(chip_of(*ctx.gpu), ups_format, shared_format);
    RT_ASSERT(fit && weights.gate.size() == kExperts &&
              *fit >= pair_bytes(plane_bytes(ups_format), kPairs - kSharedPairs) +
                          pair_bytes(plane_bytes(shared_format), kSharedPairs));
    const ArenaScope scope(*ctx.arena);
    auto* middle = static_cast<Row1Middle*>(ctx.arena->allocate(sizeof(Row1Middle)));
    const WordChoice choice{x.row(0), norm.weight.data(), norm.eps, router_words(*ctx.gpu), result.logits.row(0)};
    if (!summed) launch_router_words(ctx, router, choice);

    Row1GateUpArgs a = {};
    for (size_t i = 0; i < 4; ++i) a.m[i] = row_planes(*ups[i]);
    a.stride = stride;
    a.route = route;
    a.choice = choice;
    a.middle = middle;
    const bool q4 = ups_format == RowFormat::q4_k && shared_format == RowFormat::q4_k;
    const auto gate_up =
        q4 ? experts_row1_gate_up_kernel<OneFormat<RowFormat::q4_k>> : experts_row1_gate_up_kernel<AnyFormat>;
    allow_shared(reinterpret_cast<const void*>(gate_up), *fit);
    launch(*ctx.gpu, gate_up, kGateUpCtas, kRow1Threads, static_cast<size_t>(*fit), a);

    Row1DownArgs d = {};
    d.routed = row_planes(weights.down[0]);
    d.shared = row_planes(*shared.down);
    d.stride = planes_stride(weights.down);
    d.words = choice.words;
    d.weights = a.route.weights;
    d.top_k = a.route.top_k;
    d.share_logit = route.share_logits;
    d.middle = middle;
    d.rows = static_cast<int32_t>(out);
    d.y = result.y.row(0);
    d.residual = residual;
    const bool one = d.routed.format == d.shared.format;
    const auto kernel = one && d.routed.format == RowFormat::q6_k ? experts_row1_down_kernel<OneFormat<RowFormat::q6_k>>
                        : one && d.routed.format == RowFormat::q4_k
                            ? experts_row1_down_kernel<OneFormat<RowFormat::q4_k>>
                            : experts_row1_down_kernel<AnyFormat>;
    const int bytes = std::max(kRow1Small, kSlots * std::max(slot_bytes(d.routed.format), slot_bytes(d.shared.format)));
    allow_shared(reinterpret_cast<const void*>(kernel), bytes);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(out / kRow1Warps)), kRow1Threads, bytes, d);
    ctx.gpu->sums_open = false;
}

}  // namespace riptide::ops::cuda::decode
