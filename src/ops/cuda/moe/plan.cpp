#include "ops/cuda/moe/plan.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ops/cuda/linear/shared/router_words.h"
#include "ops/cuda/moe/fit.h"
#include "quant/fp8_copy.h"
#include "quant/planes.h"

namespace riptide::ops::cuda::moe {

using namespace decode;

namespace {

using S512 = SparseShape512;

/// What the rows of the table ask.
struct SparseLayer {
    const Case& c;
    const Weight &gate, &up, &down;  // of expert 0
    bool separate = false;           // the shared expert is of another shape or kind
    bool share = false;              // it counts in part
    bool shared = false;             // it goes with the others

    explicit SparseLayer(const Case& of)
        : c(of), gate(of.experts->gate[0]), up(of.experts->up[0]), down(of.experts->down[0]) {
        separate = shared_apart(*of.experts, of.shared);
        share = of.shared.share != nullptr;
        shared = of.shared.gate != nullptr && !separate;
    }
    int64_t experts() const { return std::ssize(c.experts->gate); }
    bool mma() const { return c.chip.major >= 8 && !c.chip.portable; }
    /// f of gate and up, and of those of the shared expert that goes with them; of down.
    template <class F>
    bool ups(const F& f) const {
        return f(gate) && f(up) && (!shared || (f(*c.shared.gate) && f(*c.shared.up)));
    }
    template <class F>
    bool downs(const F& f) const {
        return f(down) && (!shared || f(*c.shared.down));
    }
    bool router_is(std::initializer_list<DType> types) const {
        return std::find(types.begin(), types.end(), c.router->dtype) != types.end();
    }
};

bool is_of(const Weight& w, DType type, int64_t rows, int64_t cols) {
    return w.dtype == type && w.rows == rows && w.cols == cols && w.scale == 1.0f;
}
int64_t stride_of(const std::vector<Weight>& each) {
    return each.size() < 2 ? 0 : static_cast<const char*>(each[1].data) - static_cast<const char*>(each[0].data);
}

// ---- Experts.

/// The router that router_row1.cuh has, and router_words_row1.cuh.
bool row1_router(const SparseLayer& l) {
    const Weight& w = *l.c.router;
    return w.cols == kWordCols && w.dtype == DType::bf16 && w.rows == kWordExperts && w.row_bytes == 2 * kWordCols &&
           w.scales == nullptr && w.scale == 1.0f && l.c.top_k <= S512::kTopK;
}

/// What share.cuh multiplies, where rows are normalised on their way to the experts.
bool row1_share(const SparseLayer& l) {
    if (!l.share) return true;
    const Weight& w = *l.c.shared.share;
    return w.dtype == DType::bf16 && w.rows == 1 && w.cols == kWordCols && w.scales == nullptr && w.scale == 1.0f;
}

/// Planes of experts of 2,048 x 512 that kernels fetch as whole rows, each matrix in a format of its own; of Q4_K_M
/// files also on chips without bulk copies.
bool whole_rows(const SparseLayer& l, const LayerFormats& f) {
    const SharedExpert& s = l.c.shared;
    const auto is = [](const Weight& w, RowFormat format, int64_t rows, int64_t cols) {
        return format != RowFormat::none && row_format(w) == format && w.rows == rows && w.cols == cols;
    };
    const auto layer = [&](const Weight& gate, const Weight& up, const Weight& down, RowFormat ups, RowFormat downs) {
        return is(gate, ups, S512::kFf, S512::kHidden) && is(up, ups, S512::kFf, S512::kHidden) &&
               gate.levels == up.levels && is(down, downs, l.down.rows, S512::kFf);
    };
    const int64_t stride = planes_stride(l.c.experts->gate);
    return (f.q4_k_m() || l.c.chip.programmatic()) && l.experts() <= S512::kExperts && l.c.top_k <= S512::kTopK &&
           stride != 0 && planes_stride(l.c.experts->up) == stride && planes_stride(l.c.experts->down) != 0 &&
           layer(l.gate, l.up, l.down, f.up, f.down) &&
           (s.gate == nullptr || layer(*s.gate, *s.up, *s.down, f.shared_up, f.shared_down));
}

/// The layers of experts_row1_sm90.cu: the logits of any number of rows are those of router_words.h.
bool words_law(const SparseLayer& l) {
    if (l.c.router == nullptr || l.c.shared.gate == nullptr || !l.c.normed || !row1_router(l) || !row1_share(l) ||
        l.experts() != S512::kExperts || l.down.rows % kRow1Warps != 0)
        return false;
    const LayerFormats f = formats_of(*l.c.experts, l.c.shared);
    return whole_rows(l, f) && (f.down == f.shared_down || l.c.top_k % 2 == 0) &&
           fit_row1(l.c.chip, f.up, f.shared_up).has_value();
}
bool experts_row1(const SparseLayer& l) { return l.c.rows == 1 && words_law(l); }

/// Any number of rows, by eights.
bool rows8(const SparseLayer& l) {
    constexpr int64_t kOutputs = 16, kMost = S512::kRows8;  // of down, that a CTA has; rows
    const LayerFormats f = formats_of(*l.c.experts, l.c.shared);
    return l.mma() && l.c.rows >= 2 && l.down.rows % kOutputs == 0 && whole_rows(l, f) &&
           fit_rows8(l.c.chip, std::min(l.c.rows, kMost), l.c.top_k, f).has_value();
}

bool grouped(const SparseLayer& l) {
    return l.mma() && l.c.rows > 1 && l.c.rows <= 256 && l.experts() <= S512::kExperts && l.c.top_k <= S512::kTopK &&
           l.down.rows % 64 == 0 && is_tile_type(l.gate.dtype) && is_tile_type(l.down.dtype) &&
           l.ups([&](const Weight& w) { return is_of(w, l.gate.dtype, S512::kFf, S512::kHidden); }) &&
           l.downs([&](const Weight& w) { return is_of(w, l.down.dtype, l.down.rows, S512::kFf); }) &&
           fit_groups(l.c.chip, l.c.rows, l.c.top_k, l.gate.dtype, l.down.dtype).has_value();
}

/// x: how gate and up get their rows. A shared expert that counts in part has launches of its own then.
bool floats(const SparseLayer& l, ActKind x) {
    const bool shared = l.shared && !l.share;
    const auto pair = [](const Weight& g, const Weight& u) {
        return linear::float_weight(g) && linear::alike(g, u) && g.rows % 2 == 0;
    };
    const SharedExpert& s = l.c.shared;
    const int outputs = float_down_outputs(l.down.dtype, l.down.cols);
    return l.c.top_k + (shared ? 1 : 0) <= kFloatSlots && pair(l.gate, l.up) && linear::float_weight(l.down) &&
           outputs > 0 &&
           (!shared || (pair(*s.gate, *s.up) && s.gate->rows == l.gate.rows && linear::alike(l.down, *s.down))) &&
           fit_float_experts(l.c.chip, l.gate.cols, x, l.c.rows, l.c.top_k, l.gate.rows / 2,
                             shared ? l.gate.rows / 2 : 0, l.down.cols, l.down.rows, outputs)
               .has_value();
}

// ---- Routers, and the experts that they need or that stand behind them.

bool plain_router(const SparseLayer& l) {
    return l.router_is({DType::f32, DType::f16, DType::bf16}) && l.c.router->scales == nullptr;
}
/// router_kernel of moe_decode.cu reads such rows, and float.cu.
bool float_router(const SparseLayer& l) { return !is_planes(l.c.router->dtype) && l.c.router->dtype != DType::f8_e4m3; }

bool router_norms(const SparseLayer& l) {
    return plain_router(l) && l.c.rows > 1 && (l.c.rows <= 8 || words_law(l)) && !l.separate &&
           l.c.router->cols == S512::kHidden && l.c.normed && l.c.aligned;
}
/// experts_grouped_sm80.cu is faster from four rows on, but for Q4_K_M files.
bool router_rows8(const SparseLayer& l) {
    const bool first = l.c.rows <= 3 || !grouped(l) || formats_of(*l.c.experts, l.c.shared).q4_k_m();
    return l.c.rows <= 8 && router_norms(l) && first && rows8(l);
}
bool router_rows_grouped(const SparseLayer& l) { return l.c.rows <= 8 && router_norms(l) && grouped(l); }
bool router_eights(const SparseLayer& l) { return l.c.rows > 8 && router_norms(l) && !grouped(l) && rows8(l); }
bool rows_up(const SparseLayer& l) { return plain_router(l) && l.c.rows > 2; }
bool row1_words(const SparseLayer& l) { return l.c.words && experts_row1(l); }
bool rows_words(const SparseLayer& l) {
    return l.c.words && l.c.rows <= kMostWordRows && words_law(l) && router_rows8(l) &&
           formats_of(*l.c.experts, l.c.shared).q4_k_m();
}
bool row1_floats(const SparseLayer& l) {
    return l.c.rows == 1 && float_router(l) && !l.separate && !l.share && l.c.normed && row1_router(l) &&
           floats(l, ActKind::staged);
}
bool product_floats(const SparseLayer& l) {
    if (l.c.rows != 1 || !float_router(l) || l.separate || l.share || (l.c.normed && row1_router(l))) return false;
    const ActKind x = l.c.normed ? ActKind::norm : ActKind::plain;
    const Weight* const w = l.c.router;
    return floats(l, x) &&
           linear::float_row1_fits({.rows = 1, .cols = w->cols, .x = x, .weights = {&w, 1}, .chip = l.c.chip});
}
bool no_float_router(const SparseLayer& l) { return !float_router(l); }
bool chosen(const SparseLayer& l) { return l.c.router == nullptr; }
bool else_any(const SparseLayer&) { return true; }

struct RouterRow {
    Router router;
    std::optional<Experts> experts;  // that go with it; else those of kExperts
    bool (*when)(const SparseLayer&);
};

// clang-format off
constexpr RouterRow kRouters[] = {
    // rows: what the router is, what the experts are, what it takes of the chip
    {Router::none,          {},                     chosen},               // any: moe_swiglu
    {Router::words,         Experts::rows8,         rows_words},           // 2 to 4: of Q4_K_M, as the next, behind a product that knew of it
    {Router::rows_norm,     Experts::rows8,         router_rows8},         // 2 to 8: of 2,048 columns; Q4_K, down Q4_K or Q6_K, 512; sm_80; any planes; sm_90 up
    {Router::rows_norm,     Experts::rows8,         router_eights},        // 9 up: what experts_grouped_sm80 does not take, by eights; sm_90
    {Router::rows_norm,     Experts::grouped_sm80,  router_rows_grouped},  // 2 to 8: of 2,048 columns; K-quants, 512; sm_80
    {Router::words,         Experts::row1_sm90,     row1_words},           // 1: as the next, behind a product that knew of it
    {Router::words_row1,    Experts::row1_sm90,     experts_row1},         // 1: bf16, 256 of 2,048; Q4_K, down Q4_K or Q6_K, 512; 124 KB; any planes; sm_90
    {Router::words_rows,    {},                     words_law},            // 9 up: the same
    {Router::rows,          {},                     rows_up},              // 3 up: f32, f16, bf16
    {Router::product,       {},                     no_float_router},      // any: other types
    {Router::row1,          Experts::float_experts, row1_floats},          // 1: bf16, 256 of 2,048; floats, down of 512
    {Router::float_product, Experts::float_experts, product_floats},       // 1: floats; floats, down of 512
    {Router::any,           {},                     else_any},             // 1, 2
};
// clang-format on

/// Of experts that are chosen, for rows that are prepared (several) or as given.
Experts experts_of(const SparseLayer& l) {
    const bool staged = l.c.rows > 1 || l.c.router != nullptr;
    if (grouped(l)) return Experts::grouped_sm80;
    if (floats(l, staged ? ActKind::staged : ActKind::plain)) return Experts::float_experts;
    return Experts::any;
}

// ---- Prefill.

bool same_planes(const Weight& a, const Weight& b) {
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && a.scale == b.scale;
}

Experts grouped_gemm(const SparseLayer& l, std::span<const std::vector<Weight>* const> each) {
    const Weight& first = each[0]->front();
    for (const std::vector<Weight>* const kind : each)
        if (!dequant_weight(l.c.chip, kind->front(), stride_of(*kind)) || !same_planes(kind->front(), first))
            return l.c.chip.hopper() ? Experts::bf16_sm90 : Experts::bf16_sm80;
    return Experts::dequant_sm90;
}

Choice choose_prefill(const SparseLayer& l) {
    Choice choice;
    choice.router = l.c.router == nullptr ? Router::none : prefill_router(l.c.chip, *l.c.router);
    if (fp8_experts(*l.c.experts, l.c.shared)) {
        choice.up = choice.down = Experts::fp8_sm90;
        return choice;
    }
    choice.separate = l.c.shared.gate != nullptr && l.c.shared.gate->rows != l.gate.rows;
    const std::vector<Weight>* const ups[] = {&l.c.experts->gate, &l.c.experts->up};
    const std::vector<Weight>* const downs[] = {&l.c.experts->down};
    choice.up = grouped_gemm(l, ups);
    choice.down = grouped_gemm(l, downs);
    return choice;
}

}  // namespace

Choice choose(const Case& c) {
    const SparseLayer l(c);
    if (c.family == Family::prefill) return choose_prefill(l);
    const RouterRow* const row =
        std::find_if(std::begin(kRouters), std::end(kRouters), [&](const RouterRow& r) { return r.when(l); });
    const Experts experts = row->experts ? *row->experts : experts_of(l);
    const bool apart = l.separate || (l.share && (experts == Experts::float_experts || experts == Experts::any));
    const bool norms = row->router == Router::words || row->router == Router::words_row1 ||
                       row->router == Router::rows_norm || row->router == Router::words_rows;
    return {row->router, experts, experts, apart, words_law(l), l.share && norms && row1_share(l)};
}

bool takes_words(Case c) {
    c.words = true;
    return c.family != Family::prefill && choose(c).router == Router::words;
}
Router prefill_router(const Chip& chip, const Weight& router) {
    const bool tensor_cores = chip.major >= 8 && !chip.portable;
    const bool bf16 = router.dtype == DType::bf16 && router.scale == 1.0f && router.scales == nullptr &&
                      router.row_bytes == 2 * router.cols;
    if (chip.hopper() && bf16 && router.cols % 64 == 0) return Router::prefill_sm90;
    return tensor_cores && router.cols % 32 == 0 ? Router::prefill_tensor : Router::prefill_any;
}
bool dequant_weight(const Chip& chip, const Weight& w, int64_t stride) {
    constexpr int64_t kMostQ6 = 2048;  // columns, whose d lie in shared memory
    return chip.hopper() && is_tile_type(w.dtype) && w.scale == 1.0f && w.rows % 64 == 0 && stride % 16 == 0 &&
           (w.dtype != DType::planes_q6_k || w.cols <= kMostQ6);
}
bool fp8_experts(const ExpertWeights& w, const SharedExpert& shared) {
    const auto stack = [](const std::vector<Weight>& each) {
        const Weight& first = each.front();
        if (first.fp8 == nullptr) return false;
        const int64_t bytes = fp8_rows(first.rows) * first.cols;
        for (size_t e = 0; e < each.size(); ++e)
            if (each[e].fp8 != static_cast<const char*>(first.fp8) + static_cast<int64_t>(e) * bytes) return false;
        return true;
    };
    return stack(w.gate) && stack(w.up) && stack(w.down) && w.gate[0].rows % 128 == 0 &&
           (shared.gate == nullptr || (shared.gate->rows == w.gate[0].rows && shared.gate->fp8 != nullptr &&
                                       shared.up->fp8 != nullptr && shared.down->fp8 != nullptr));
}
bool shared_apart(const ExpertWeights& experts, const SharedExpert& shared) {
    const Weight &gate = experts.gate[0], &down = experts.down[0];
    return shared.gate != nullptr && (shared.gate->rows != gate.rows || !same_kind(*shared.gate, gate) ||
                                      !same_kind(*shared.up, gate) || !same_kind(*shared.down, down));
}
bool same_kind(const Weight& a, const Weight& b) { return is_planes(a.dtype) == is_planes(b.dtype); }

namespace {

struct Name {
    const char *name, *file;
};
constexpr Name kRouterNames[] = {
    {"none", ""},
    {"router_words", "linear/gemv/kquant_i8.cu"},
    {"router_words_row1", "moe/router_words_row1.cuh"},
    {"router_row1", "moe/router_row1.cuh"},
    {"float_row1", "linear/gemv/float.cu"},
    {"router_rows_norm", "moe/router_rows.cu"},
    {"router_words_rows", "moe/router_rows.cu"},
    {"router_rows", "moe/router_rows.cu"},
    {"product", "linear/linear.cu"},
    {"router_any", "moe/moe_decode.cu"},
    {"router_prefill_sm90", "moe/router_prefill_sm90.cu"},
    {"router_prefill_sm80", "moe/router_prefill.cu"},
    {"router_prefill_any", "moe/router_prefill.cu"},
};
constexpr Name kExpertsNames[] = {
    {"experts_row1_sm90", "moe/experts_row1_sm90.cu"},
    {"experts_rows8", "moe/experts_rows8.cu"},
    {"experts_grouped_sm80", "moe/experts_grouped_sm80.cu"},
    {"experts_float", "moe/experts_float.cu"},
    {"experts_any", "moe/experts_any.cuh"},
    {"experts_fp8_sm90", "moe/experts_fp8_sm90.cu"},
    {"grouped_gemm_dequant_sm90", "moe/grouped_gemm_dequant_sm90.cu"},
    {"gemm_bf16_sm90", "linear/gemm/bf16_sm90.cu"},
    {"gemm_bf16_sm80", "linear/gemm/bf16_sm80.cu"},
};

}  // namespace

const char* router_name(Router router) { return kRouterNames[static_cast<int>(router)].name; }
const char* router_file(Router router) { return kRouterNames[static_cast<int>(router)].file; }
const char* experts_name(Experts experts) { return kExpertsNames[static_cast<int>(experts)].name; }
const char* experts_file(Experts experts) { return kExpertsNames[static_cast<int>(experts)].file; }

}  // namespace riptide::ops::cuda::moe
