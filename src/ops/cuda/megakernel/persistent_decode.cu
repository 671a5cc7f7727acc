// A step of one row of a small dense hybrid in one launch. The words that phases exchange: persistent_words.cuh;
// products: persistent_rows.cuh; the phases: persistent_decode.cuh, persistent_attention.cuh.
//
// Bytes of Qwen3.5-0.8B (bf16): 24 layers 994 MB, head 508 MB, state 38 MB: floor 0.35 ms a token on an H200 at
// 4.4 TB/s. Five phases a layer: first product (norm, conv, gates) | delta rule or attention | out | gate and up (norm)
// | down. Measured as it was with weights in registers (persistent_rows.cuh; docs/results/qwen35.md): 1.64 ms, 21 % of
// the floor, op by op 1.14; the head alone 0.115 ms, its floor. What limits it: waits between phases, of 10 to 13 us
// each where 1.4 to 1.7 were measured for such words, and attention, 50 us a layer at 200 keys. Fetching the next
// phases' weights to the L2 cache (PersistentCommon::ahead) made it slower by 0 to 7 %. As it is now: not measured.
#include <algorithm>
#include <numbers>

#include "ops/cuda/megakernel/persistent_attention.cuh"
#include "ops/cuda/megakernel/persistent_decode.h"

namespace riptide::ops {

namespace {

/// This CTA's lines of the rows that row_of(i) begins, i < count, to the L2 cache: `lines` of them, by warps without
/// rows of their own.
template <class RowOf>
__device__ __forceinline__ void fetch_rows(const RowOf& row_of, int count, int row_bytes, int lines, int first_warp) {
    const int each = (row_bytes + 127) / 128, all = min(lines, count * each);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) - 32 * first_warp; i < all; i += kPersistentThreads - 32 * first_warp)
        if (i >= 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(i / each) + i % each * 128));
}

/// What the phases behind the next wait will read first.
__device__ __noinline__ void fetch_gate_up() {
    const Phase p;
    const Share share = p.s.ffn;
    const int spare = min(p.s.hidden.end - p.s.hidden.begin, kPersistentWarps / 2);
    fetch_rows([&](int i) { return (i % 2 == 0 ? p.w.gate : p.w.up) + int64_t{share.begin + i / 2} * 2 * p.a.hidden; },
               2 * (share.end - share.begin), 2 * p.a.hidden, p.a.ahead[0], spare);
}
__device__ __noinline__ void fetch_down() {
    const Phase p;
    const Share share = p.s.hidden;
    fetch_rows([&](int i) { return p.w.down + int64_t{share.begin + i} * 2 * p.a.ffn; }, share.end - share.begin,
               2 * p.a.ffn, p.a.ahead[1], 0);
}
__device__ __noinline__ void fetch_inputs() {
    const Phase p;
    const PersistentCommon& a = p.a;
    const int spare = min(p.s.hidden.end - p.s.hidden.begin, kPersistentWarps / 2);
    if (p.s.layer + 1 == a.layer_count) {
        fetch_rows([&](int i) { return a.lm_head + int64_t{p.s.vocab.begin + i} * 2 * a.hidden; },
                   p.s.vocab.end - p.s.vocab.begin, 2 * a.hidden, a.ahead[2], spare);
        return;
    }
    const PersistentLayerArgs& next = p.s.layers[(p.s.layer + 1) % 2];
    const InputRows& rows = next.linear ? a.linear_rows : a.attention_rows;
    const Share share = next.linear ? p.s.linear_rows : p.s.attention_rows;
    fetch_rows(
        [&](int i) {
            const int row = share.begin + i, m = rows.matrix(row);
            return next.in[m] + int64_t{row - rows.begin[m]} * 2 * a.hidden;
        },
        share.end - share.begin, 2 * a.hidden, a.ahead[2], spare);
}

template <class T>
__device__ __forceinline__ void copy_words(const T& from, T& to) {
    static_assert(sizeof(T) % 4 == 0);
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(T) / 4); i += kPersistentThreads)
        reinterpret_cast<uint32_t*>(&to)[i] = reinterpret_cast<const uint32_t*>(&from)[i];
}

/// KV: the type of K and V; f32: what the arguments say.
template <DType KV>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    persistent_kernel(const __grid_constant__ PersistentArgs args) {
    PersistentShared& s = persistent_shared();
    const PersistentCommon& a = args.common;
    const int ctas = static_cast<int>(gridDim.x), b = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
    copy_words(args.common, s.a);
    copy_words(args.layers[0], s.layers[0]);
    if (t == 0) {
        const auto share = [&](int count) {
            return Share{share_begin(count, b, ctas), share_begin(count, b + 1, ctas)};
        };
        s.linear_rows = share(a.linear_rows.begin[4]);
        s.attention_rows = share(a.attention_rows.begin[4]);
        s.hidden = share(a.hidden);
        s.ffn = share(a.ffn);
        s.vocab = share(a.vocab);
        uint32_t before;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(a.numbers) : "memory");
        s.number = before + 1;
        s.layer = 0;
        s.position = a.places.positions[0];
        s.rotation = a.places.rotary_position(0);
        s.slot = a.places.state_slot[0];
        s.next_slot = a.next_slot != nullptr ? a.next_slot[0] : s.slot;
        const int token = a.tokens[0];
        s.embedding = token >= 0 && token < a.vocab ? a.embed_tokens + int64_t{token} * 2 * a.hidden : nullptr;
    }
    __syncthreads();
    // By the lanes that will add to them.
    for (int i = t / 32; i < s.hidden.end - s.hidden.begin; i += kPersistentWarps)
        if (t % 32 == 0)
            s.own[i] =
                s.embedding == nullptr
                    ? __uint_as_float(0x7FC00000u)
                    : __uint_as_float(
                          static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(s.embedding)[s.hidden.begin + i])
                          << 16);
#pragma unroll 1
    for (int l = 0; l < a.layer_count; ++l) {
        Phase().stamp(0);
        project();
        if (s.layers[l % 2].linear) delta_rule();
        else attention<KV>();
        if (a.ahead[0] > 0) fetch_gate_up();
        if (l + 1 < a.layer_count) copy_words(args.layers[l + 1], s.layers[(l + 1) % 2]);
        add_mixed();
        if (a.ahead[1] > 0) fetch_down();
        gate_up();
        if (a.ahead[2] > 0) fetch_inputs();
        add_down();
        __syncthreads();
        if (t == 0) ++s.number, ++s.layer;
        __syncthreads();
    }
    Phase().stamp(0);
    head_product();
    __syncthreads();
    if (t != 0) return;
    if (atomicAdd(a.numbers + 1, 1u) + 1 != static_cast<uint32_t>(ctas)) return;
    a.numbers[1] = 0;  // everyone has read the other
    a.numbers[0] = s.number - 1;
}

using PersistentKernel = void (*)(PersistentArgs);

PersistentKernel kernel_for(DType k, DType v) {
    if (k == v && k == DType::q8_0) return persistent_kernel<DType::q8_0>;
    if (k == v && k == DType::f16) return persistent_kernel<DType::f16>;
    return persistent_kernel<DType::f32>;
}

/// All CTAs at once, or an error.
void launch_together(const Gpu& gpu, PersistentKernel kernel, size_t shared, const PersistentArgs& args) {
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(gpu.info().sm_count));
    config.blockDim = dim3(kPersistentThreads);
    config.dynamicSmemBytes = shared;
    config.stream = gpu.stream();
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args);
    if (error != cudaSuccess) fail_launch(error, gpu, config.gridDim, config.blockDim, shared);
}

int64_t wide_columns(const PersistentModel& m) {
    return std::max({m.ffn, m.heads * m.head_dim, m.delta.value_heads * m.delta.value_dim});
}
int64_t staged_bytes(const PersistentModel& m) { return ((m.hidden + 15) / 16 + (wide_columns(m) + 15) / 16) * 64; }

int64_t shared_bytes(const PersistentModel& m) {
    return kPersistentFixed + staged_bytes(m) + int64_t{kSlots} * kPersistentThreads * int64_t{sizeof(uint4)};
}

int64_t in_rows(const PersistentLayer& layer) {
    int64_t rows = 0;
    for (const Weight& w : layer.in) rows += w.data != nullptr ? w.rows : 0;
    return rows;
}

std::string matrix_refusal(const Weight& w, const char* name) {
    if (w.dtype != DType::bf16 || w.scales != nullptr || w.scale != 1.0f)
        return fmt::format("takes weights in bf16, and {} is {}", name, dtype_name(w.dtype));
    if (w.cols % 8 != 0 || w.row_bytes != 2 * w.cols)
        return fmt::format("takes rows of a multiple of eight weights, and {} has {} columns", name, w.cols);
    return {};
}

InputRows input_rows(const PersistentLayer& layer) {
    InputRows rows = {};
    for (int i = 0; i < 4; ++i)
        rows.begin[i + 1] = rows.begin[i] + static_cast<int>(layer.in[i].data != nullptr ? layer.in[i].rows : 0);
    return rows;
}

// Words of each exchange, and of the attention's chunks.
struct WordCounts {
    int64_t hidden, in, mixed, act, chunks, most_chunks;
    int64_t all() const { return 2 * hidden + in + mixed + act + chunks + 2; }
};
WordCounts word_counts(const PersistentModel& m) {
    WordCounts c = {};
    for (const PersistentLayer& layer : m.layers) c.in = std::max(c.in, in_rows(layer));
    c.hidden = m.hidden;
    c.in = (c.in + 1) / 2 * 2;
    c.mixed = (std::max(m.heads * m.head_dim, m.delta.value_heads * m.delta.value_dim) + 1) / 2 * 2;
    c.act = m.ffn;
    c.most_chunks = m.tokens / kPersistentChunk + 2;
    c.chunks = m.heads * c.most_chunks * (2 + kMostHeadDim);
    return c;
}

}  // namespace

std::string PersistentDecode::refusal(const Gpu& gpu, const PersistentModel& m, std::span<const KvView> kv) {
    for (const PersistentLayer& layer : m.layers) {
        const char* names[] = {"the first projection", "the second projection", "the third projection",
                               "the fourth projection"};
        for (int i = 0; i < 4; ++i)
            if (layer.in[i])
                if (std::string why = matrix_refusal(layer.in[i], names[i]); !why.empty()) return why;
        for (const auto& [w, name] : {std::pair{&layer.out, "the output projection"}, std::pair{&layer.gate, "gate"},
                                      std::pair{&layer.up, "up"}, std::pair{&layer.down, "down"}})
            if (std::string why = matrix_refusal(*w, name); !why.empty()) return why;
    }
    for (const auto& [w, name] : {std::pair{&m.embed_tokens, "the embedding"}, std::pair{&m.lm_head, "the head"}})
        if (std::string why = matrix_refusal(*w, name); !why.empty()) return why;
    if (m.hidden > std::min<int64_t>(kNarrowColumns, int64_t{kOwnRows} * gpu.info().sm_count))
        return fmt::format("takes hidden sizes up to {}, not {}", kNarrowColumns, m.hidden);
    if (wide_columns(m) > kWideColumns)
        return fmt::format("takes heads and feed-forward of up to {} values, not {}", kWideColumns, wide_columns(m));
    if (m.delta.value_dim % 4 != 0) return fmt::format("takes values of a multiple of four, not {}", m.delta.value_dim);
    if (std::ssize(m.layers) > kPersistentLayers)
        return fmt::format("takes up to {} layers, not {}", kPersistentLayers, m.layers.size());
    if (m.delta.key_dim > kPersistentKeyDim || m.delta.value_dim > kPersistentValueDim ||
        m.delta.conv_width > kDeltaTaps)
        return fmt::format("takes Gated DeltaNet with keys up to {}, values up to {} and {} taps, not {}, {} and {}",
                           kPersistentKeyDim, kPersistentValueDim, kDeltaTaps, m.delta.key_dim, m.delta.value_dim,
                           m.delta.conv_width);
    for (const KvView& view : kv)
        if (view.num_kv_heads > 0 && (view.k_dtype == DType::tq3_0 || view.v_dtype == DType::tq3_0))
            return "takes K/V of any type but tq3_0";
    if (m.head_dim > kMostHeadDim) return fmt::format("takes heads up to {} values, not {}", kMostHeadDim, m.head_dim);
    if (shared_bytes(m) > gpu.info().shared_bytes)
        return fmt::format("needs {} bytes of shared memory, and {} has {}", shared_bytes(m), gpu.info().name,
                           gpu.info().shared_bytes);
    return {};
}

PersistentDecode::PersistentDecode(Gpu& gpu, PersistentModel model)
    : gpu_(gpu),
      model_(std::move(model)),
      words_(&gpu, word_counts(model_).all() * int64_t{sizeof(Word)}, "words of the persistent kernel"),
      ahead_{0, 0, 0, 0} {}

void PersistentDecode::tune(std::span<const int> ahead) { std::copy(ahead.begin(), ahead.end(), ahead_); }

Tensor PersistentDecode::run(Context& ctx, const Batch& batch, std::span<const KvView> kv,
                             std::span<const DeltaView> delta) const {
    RT_ASSERT(takes(ctx, batch, DeltaMode::stash) && kv.size() == model_.layers.size());
    const PersistentModel& m = model_;
    Tensor logits = ctx.alloc(DType::f32, {1, m.vocab});
    PersistentArgs args = {};
    PersistentCommon& a = args.common;
    KvView any = {};
    for (size_t l = 0; l < m.layers.size(); ++l) {
        const PersistentLayer& from = m.layers[l];
        PersistentLayerArgs& to = args.layers[l];
        for (int i = 0; i < 4; ++i) to.in[i] = static_cast<const char*>(from.in[i].data);
        to.out = static_cast<const char*>(from.out.data);
        to.gate = static_cast<const char*>(from.gate.data);
        to.up = static_cast<const char*>(from.up.data);
        to.down = static_cast<const char*>(from.down.data);
        to.attn_norm = from.attn_norm.data();
        to.ffn_norm = from.ffn_norm.data();
        to.head_norm = from.head_norm.data();
        to.k_norm = from.k_norm.data();
        to.linear = from.linear;
        if (from.linear) {
            const DeltaView& view = delta[l];
            to.conv_weights = from.conv.data();
            to.decay = from.decay.data();
            to.dt_bias = from.dt_bias.data();
            to.conv = view.conv;
            to.state = static_cast<float*>(view.state);
            to.stash = view.stash;
            a.linear_rows = input_rows(from);
            a.delta = delta_sizes(view);
        } else {
            to.k_cache = static_cast<unsigned char*>(kv[l].k);
            to.v_cache = static_cast<unsigned char*>(kv[l].v);
            a.attention_rows = input_rows(from);
            any = kv[l];
        }
    }
    a.rope = rope_params(&m.rope);
    a.places = key_places(any, batch);
    a.embed_tokens = static_cast<const char*>(m.embed_tokens.data);
    a.lm_head = static_cast<const char*>(m.lm_head.data);
    a.norm = m.norm.data();
    a.tokens = batch.tokens.data();
    a.logits = logits.row(0);
    const WordCounts counts = word_counts(m);
    RT_ASSERT(batch.max_pages * any.page_rows <= counts.most_chunks * kPersistentChunk);
    Word* next = reinterpret_cast<Word*>(words_.data());
    const auto take = [&](int64_t count) { return std::exchange(next, next + count); };
    a.x_mid = take(counts.hidden);
    a.x_end = take(counts.hidden);
    a.in = take(counts.in);
    a.mixed = take(counts.mixed);
    a.act = take(counts.act);
    a.chunks = take(counts.chunks);
    a.numbers = reinterpret_cast<uint32_t*>(take(2));
    a.most_chunks = static_cast<int>(counts.most_chunks);
    a.slots_at = static_cast<int>(kPersistentFixed + staged_bytes(m));
    a.clocks = clocks_;
    a.watched = watched_;
    a.layer_count = static_cast<int>(m.layers.size());
    a.hidden = static_cast<int>(m.hidden);
    a.ffn = static_cast<int>(m.ffn);
    a.vocab = static_cast<int>(m.vocab);
    a.heads = static_cast<int>(m.heads);
    a.kv_heads = static_cast<int>(m.kv_heads);
    a.d = static_cast<int>(m.head_dim);
    a.k_dtype = any.k_dtype;
    a.v_dtype = any.v_dtype;
    a.k_slot_bytes = any.k_slot_bytes;
    a.v_slot_bytes = any.v_slot_bytes;
    a.eps = m.eps;
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(m.head_dim))) * std::numbers::log2e_v<float>;
    std::copy(std::begin(ahead_), std::end(ahead_), a.ahead);
    launch_together(gpu_, kernel_for(any.k_dtype, any.v_dtype), static_cast<size_t>(shared_bytes(m)), args);
    return logits;
}

}  // namespace riptide::ops
