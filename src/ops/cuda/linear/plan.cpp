#include "ops/cuda/linear/plan.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/shared/router_words.h"
#include "ops/cuda/linear/shared/row_formats.h"
#include "quant/planes.h"

namespace riptide::ops::cuda::linear {

using namespace decode;

namespace {

constexpr DType kQ4 = DType::planes_q4_k, kQ5 = DType::planes_q5_k, kQ6 = DType::planes_q6_k;
constexpr int64_t kFewFloats = 256;  // rows of float matrices that others may take along

/// What the rows of the table ask of a group.
struct Group {
    const Case& c;
    int64_t rows = 0, plane_rows = 0, float_rows = 0;  // of weights
    bool q4 = true, q6 = false;                        // all planes are Q4_K; any is Q6_K
    DType largest = kQ4;                               // of K-quants

    explicit Group(const Case& of) : c(of) {
        for (const Weight* w : c.weights) {
            rows += w->rows;
            (is_planes(w->dtype) ? plane_rows : float_rows) += w->rows;
            if (is_planes(w->dtype)) q4 = q4 && w->dtype == kQ4;
            q6 = q6 || w->dtype == kQ6;
            if (w->dtype == kQ5 && largest == kQ4) largest = kQ5;
            if (w->dtype == kQ6) largest = kQ6;
        }
    }
    template <class F>
    bool all(const F& f) const {
        return std::all_of(c.weights.begin(), c.weights.end(), [&](const Weight* w) { return f(*w); });
    }
    template <class F>
    int64_t count(const F& f) const {
        return std::count_if(c.weights.begin(), c.weights.end(), [&](const Weight* w) { return f(*w); });
    }
    int64_t matrices() const { return static_cast<int64_t>(c.weights.size()); }
    int64_t batches(int64_t each, int64_t each6) const {
        int64_t n = 0;
        for (const Weight* w : c.weights)
            n += (w->rows + (w->dtype == kQ6 ? each6 : each) - 1) / (w->dtype == kQ6 ? each6 : each);
        return n;
    }
    /// kquant_i8_sm80.cu is made for rows of 2,048 columns and for small matrices.
    bool small() const { return c.cols % 2048 == 0 && (c.cols <= 2048 || plane_rows < 4096); }
};

bool plain_float(const Weight& w) {
    return (w.dtype == DType::f32 || w.dtype == DType::f16 || w.dtype == DType::bf16) && w.scales == nullptr &&
           w.rows > 0;
}
bool row1_weight(const Weight& w) {
    return (w.dtype == kQ4 || w.dtype == kQ6) && w.scale == 1.0f && w.rows * w.cols <= int64_t{1} << 31;
}

// ---- What the rows of the table say.

bool drafts(const Group& g) {
    const Weight* const first = g.c.weights.empty() ? nullptr : g.c.weights[0];
    return g.c.family == Family::draft && first != nullptr && g.c.floats_as_given() && g.c.aligned &&
           g.all([&](const Weight& w) { return draft_weight(g.c.chip, w) && w.dtype == first->dtype; });
}

bool f16_row1(const Group& g) {
    int64_t longest = 0;
    for (const Weight* w : g.c.weights)
        if (!is_planes(w->dtype)) longest = std::max(longest, w->row_bytes);
    const int64_t floats = g.float_rows > 0 ? act_layout(g.c.cols, false, true).float_bytes : 0;
    return g.c.rows == 1 && fit_f16_row(g.c.chip, g.c.cols, g.c.x, g.q6, floats, longest).has_value();
}
bool f16_mma(const Group& g) { return fit_f16_rows(g.c.chip, g.c.cols, g.c.rows, g.q6).has_value(); }
bool f16_wgmma(const Group& g) { return fit_f16_chain(g.c.chip, g.c.cols, g.c.rows, g.q6).has_value(); }

/// Rows that sixteen warps share: the inputs of o of Laguna's layers and of Qwen3.5-35B-A3B's.
bool split_cols(int64_t cols) { return cols == 4096 || cols == 6144 || cols == 8192; }

template <int Batch>
bool row1_whole(const Group& g) {
    return g.c.cols == 2048 && g.matrices() <= kRow1Matrices && g.all(row1_weight) &&
           fit_row1_whole(g.c.chip, g.c.rows, g.batches(Batch, 3), g.q6, Batch, 3).has_value();
}
bool row1_split(const Group& g) {
    return split_cols(g.c.cols) && g.matrices() == 1 && g.all(row1_weight) && g.q4 && g.c.x != ActKind::norm &&
           fit_row1_split(g.c.chip, g.c.rows, g.rows, static_cast<int>(g.c.cols / 1024)).has_value();
}
bool routed_split(const Group& g) { return g.c.router && g.c.residual && g.rows == kWordCols && row1_split(g); }
bool row1_stream(const Group& g) {
    return g.c.rows == 1 && (g.c.cols == 2048 || g.c.cols == 6144 || g.c.cols == 8192) &&
           g.matrices() <= kRow1Matrices && g.all(row1_weight);
}
bool planes(const Group& g) {
    return g.c.chip.programmatic() && g.c.rows > 0 && g.c.x != ActKind::staged && g.matrices() > 0 &&
           g.matrices() <= kRow1Matrices && g.all([](const Weight& w) { return row_format(w) != RowFormat::none; });
}
template <int Batch>
bool planes_whole(const Group& g) {
    return g.c.cols == 2048 && planes(g) && planes_rows(g.c.chip, g.c.cols, g.c.rows, g.c.weights, Batch) > 0;
}
bool planes_split(const Group& g) {
    return split_cols(g.c.cols) && g.matrices() == 1 && g.c.x != ActKind::norm && planes(g) &&
           planes_rows(g.c.chip, g.c.cols, g.c.rows, g.c.weights, 1) > 0;
}
bool routed_planes(const Group& g) { return g.c.router && g.c.residual && g.rows == kWordCols && planes_split(g); }
bool one(const Group& g) { return g.c.rows == 1; }
bool two_to_four(const Group& g) {
    return g.c.rows >= 2 && g.c.rows <= 4 && g.c.x != ActKind::staged && !g.c.chip.portable;
}

bool small_bf16(const Group& g) {
    if (g.c.rows != 1 || g.matrices() > kBf16SmallMatrices || !g.c.small_bf16_source()) return false;
    int64_t batches = 0;
    bool singles = false;  // f32, behind the others
    for (const Weight* w : g.c.weights) {
        const bool single = w->dtype == DType::f32;
        if ((w->dtype != DType::bf16 && (!single || batches == 0)) || (singles && !single) || !float_weight(*w) ||
            w->rows < kQuadRows || w->row_bytes != g.c.cols * (single ? 4 : 2))
            return false;
        singles = singles || single;
        const int64_t each = bf16_small_batch_rows(w->dtype);
        batches += (w->rows + each - 1) / each;
    }
    return batches > 0 && fit_bf16_small(g.c.chip, g.c.cols, batches, singles).has_value();
}

bool floats(const Group& g) {
    return g.matrices() > 0 && g.matrices() <= kFloatMatrices && g.c.floats_as_given() &&
           g.all([](const Weight& w) { return float_weight(w) && w.rows >= kQuadRows; });
}
int64_t float_batches(const Group& g) { return g.batches(kQuadRows, kQuadRows); }
bool float_row1(const Group& g) {
    return g.c.rows == 1 && floats(g) && fit_float_row(g.c.chip, g.c.cols, g.c.x, float_batches(g)).has_value();
}
bool float_rows(const Group& g) {
    const auto are = [&](DType type) { return g.all([&](const Weight& w) { return w.dtype == type; }); };
    return g.c.rows > 1 && floats(g) &&
           fit_float_rows(g.c.chip, g.c.cols, g.c.x, g.c.rows, float_batches(g),
                          are(DType::bf16) || are(DType::f8_e4m3))
               .has_value();
}

/// All wide_weight()s, but for a few float matrices that they take along.
bool wide_with_floats(const Group& g) {
    const int64_t wide = g.count([&](const Weight& w) { return wide_weight(g.c.chip, w); });
    const int64_t along = g.matrices() - wide;
    return wide > 0 && g.c.wide_source() &&
           (along == 0 || (along <= kMostFloats && !g.c.residual && g.c.x != ActKind::int8)) &&
           g.all([&](const Weight& w) { return wide_weight(g.c.chip, w) || plain_float(w); });
}
bool wide_row1(const Group& g) {
    const auto wide = [&](const Weight& w) { return wide_weight(g.c.chip, w); };
    return g.c.rows == 1 && wide_with_floats(g) && g.count(wide) <= kMostPlanes &&
           fit_wide_row(g.c.chip, g.c.cols, g.float_rows > 0, g.q4).has_value();
}
bool wide(const Group& g) {
    return g.c.rows > 1 && wide_with_floats(g) && g.matrices() <= kMostWide &&
           fit_wide(g.c.chip, g.c.cols, g.c.rows, g.largest, g.q6).has_value();
}
bool wide_mixed(const Group& g) {
    return g.plane_rows > 0 && g.float_rows > 0 && g.float_rows <= kFewFloats && !g.small() && wide(g);
}

bool tiles(const Group& g) {
    return g.c.rows > 1 && g.matrices() > 0 && g.matrices() <= kMaxMatrices && g.c.x != ActKind::staged &&
           g.all([&](const Weight& w) { return tile_weight(g.c.chip, w); });
}
bool narrow(const Group& g) {
    constexpr int64_t kLeast = 5, kLeastWide = 9;  // rows of x; of more than 2,048 columns
    const bool wide = g.c.cols == 6144 || g.c.cols == 8192;
    if (g.c.rows < (wide ? kLeastWide : kLeast) || g.c.rows > 256 || !(wide || g.c.cols == 2048) || !g.small() ||
        g.c.chip.major < 9 || !tiles(g) ||
        !g.all([&](const Weight& w) { return w.dtype == kQ4 || (w.dtype == kQ6 && !wide); }))
        return false;
    const auto fit = fit_narrow(g.c.chip, g.c.cols, g.c.rows, stage_bytes<2048>(g.q6 ? kQ6 : kQ4));
    return fit && g.c.chip.sms / fit->cluster >= (g.c.rows + 8 * fit->tiles - 1) / (8 * fit->tiles);
}
bool sm80(const Group& g) {
    const bool q5 = g.count([](const Weight& w) { return w.dtype == kQ5; }) > 0;
    const bool with_q4 = g.count([](const Weight& w) { return w.dtype == kQ4; }) > 0;
    return tiles(g) && !(q5 && with_q4) &&
           fit_tile(g.c.chip, g.c.cols, g.c.rows, stage_bytes<2048>(g.largest), g.q6).has_value();
}
bool sm80_small(const Group& g) { return g.small() && sm80(g); }

bool eight(const Group& g) {
    const bool normed = q8_norms(g.c);
    return g.c.rows > 1 && g.matrices() > 0 && g.matrices() <= static_cast<int64_t>(kQ8Matrices) &&
           g.all([&](const Weight& w) { return q8_weight(g.c.chip, w); }) &&
           fit_q8(g.c.chip, g.c.cols, g.c.rows, normed, false).has_value();
}

bool always(const Group&) { return true; }

template <bool (*... F)(const Group&)>
bool both(const Group& g) {
    return (F(g) && ...);
}

// ---- The table.

/// Who is asked: a drafter's group; of others the f16_weight()s with few floats beside; the rest; of these one kind.
enum class Of { drafter, halves, group, kind };

struct Row {
    Of of;
    Kernel kernel;
    bool (*when)(const Group&);
};

// clang-format off
constexpr Row kTable[] = {
    // who is asked, kernel, when; in words: rows of x: types of weights, their columns and size; what it takes of the chip
    {Of::drafter, Kernel::draft_f16_sm90,           drafts},                           // any: drafts. bf16, f16 or Q8_0, x 256; Hopper
    {Of::halves,  Kernel::kquant_f16_row1_sm90,     f16_row1},                        // 1: Q4_K, Q6_K, x 1,024, large; Hopper
    {Of::halves,  Kernel::kquant_f16_mma_sm90,      f16_mma},                         // to 24: the same, x beside the weights
    {Of::halves,  Kernel::kquant_f16_wgmma_sm90,    f16_wgmma},                       // to 24: the same, wider
    {Of::group,   Kernel::kquant_i8_whole5,         both<one, row1_whole<5>>},         // 1: Q4_K, Q6_K, 2,048; 117 KB
    {Of::group,   Kernel::kquant_i8_whole6,         both<one, row1_whole<6>>},         // 1: the same, more rows
    {Of::group,   Kernel::kquant_i8_split_router,   both<one, routed_split>},          // 1: the next, of 2,048 rows, before a router
    {Of::group,   Kernel::kquant_i8_split,          both<one, row1_split>},            // 1: one Q4_K, 4,096, 6,144 or 8,192; 117 KB
    {Of::group,   Kernel::planes_i8_whole5,         both<one, planes_whole<5>>},        // 1: planes of any type, 2,048; sm_90
    {Of::group,   Kernel::planes_i8_whole6,         both<one, planes_whole<6>>},        // 1: the same, more rows
    {Of::group,   Kernel::planes_i8_split_router,   both<one, routed_planes>},          // 1: the next, of 2,048 rows, before a router
    {Of::group,   Kernel::planes_i8_split,          both<one, planes_split>},           // 1: planes of any type, 4,096, 6,144 or 8,192
    {Of::group,   Kernel::kquant_i8_stream,         row1_stream},                      // 1: Q4_K, Q6_K, 2,048, 6,144, 8,192
    {Of::group,   Kernel::bf16_small_sm90,          small_bf16},                       // 1: bf16, then f32, to 4,096, small; sm_90
    {Of::group,   Kernel::float_row1,               float_row1},                       // 1: f32, f16, bf16, fp8
    {Of::group,   Kernel::kquant_i8_wide_row1_sm90, wide_row1},                        // 1: Q4_K, Q5_K, Q6_K, few floats, x 256; sm_90
    {Of::group,   Kernel::kquant_i8_rows4_whole5,   both<two_to_four, row1_whole<5>>}, // 2 to 4: Q4_K, Q6_K, 2,048; 117 KB
    {Of::group,   Kernel::kquant_i8_rows4_whole6,   both<two_to_four, row1_whole<6>>}, // 2 to 4: the same, more rows
    {Of::group,   Kernel::kquant_i8_rows4_split_router, both<two_to_four, routed_split>}, // 2 to 4: the next, of 2,048 rows, before a router
    {Of::group,   Kernel::kquant_i8_rows4_split,    both<two_to_four, row1_split>},    // 2 to 4: one Q4_K, 4,096, 6,144 or 8,192; 117 KB
    {Of::group,   Kernel::kquant_i8_wide_sm90,      wide_mixed},                       // 2 up: K-quants, few floats, x 256, large; sm_90
    {Of::kind,    Kernel::kquant_i8_narrow_sm90,    narrow},                           // 5 to 256 (9 up): Q4_K; Q6_K at 2,048; sm_90
    {Of::kind,    Kernel::kquant_i8_sm80,           sm80_small},                       // 2 up: K-quants, x 2,048, small; sm_80
    {Of::kind,    Kernel::kquant_i8_wide_sm90,      wide},                             // 2 up: K-quants, x 256; sm_90
    {Of::kind,    Kernel::kquant_i8_sm80,           sm80},                             // 2 up: K-quants, x 2,048; sm_80
    {Of::kind,    Kernel::q8_i8_sm80,               eight},                            // 2 up: Q8_0, x 2,048; sm_80
    {Of::kind,    Kernel::planes_i8_whole5,         planes_whole<5>},                  // 2 up: planes of any type, 2,048; sm_90
    {Of::kind,    Kernel::planes_i8_whole6,         planes_whole<6>},                  // 2 up: the same, more rows
    {Of::kind,    Kernel::planes_i8_split,          planes_split},                     // 2 up: one of any type, 4,096, 6,144 or 8,192
    {Of::kind,    Kernel::float_rows,               float_rows},                       // 2 up: f32, f16, bf16, fp8
    {Of::kind,    Kernel::any,                      always},                           // all else
};
// clang-format on

/// The first row for them that matches, or null.
const Row* find(Of of, const Case& c) {
    const Group group(c);
    const auto* const row =
        std::find_if(std::begin(kTable), std::end(kTable), [&](const Row& r) { return r.of == of && r.when(group); });
    return row == std::end(kTable) ? nullptr : row;
}

/// The weights `which` of a case, as a case of their own.
struct SubCase {
    std::vector<const Weight*> weights;
    Case c;

    SubCase(const Case& of, std::span<const size_t> which) : c(of) {
        for (const size_t i : which) weights.push_back(of.weights[i]);
        c.weights = weights;
    }
};

void choose_some(const Case& all, std::span<const size_t> which, Choice& launches);

/// The f16_weight()s, with few floats; then the others. Whether there are any.
bool divide_halves(const Case& all, std::span<const size_t> which, Choice& launches) {
    const auto half = [&](size_t i) { return f16_weight(all.chip, *all.weights[i]); };
    if (std::none_of(which.begin(), which.end(), half)) return false;
    std::vector<size_t> taken, rest;
    int halves = 0, floats = 0;
    for (const size_t i : which) {
        const Weight& w = *all.weights[i];
        const bool few =
            !is_planes(w.dtype) && w.dtype != DType::f8_e4m3 && w.scales == nullptr && w.rows <= kFewFloats;
        int& count = half(i) ? halves : floats;
        const bool fits = (half(i) || few) && count < kMostF16;
        (fits ? taken : rest).push_back(i);
        count += fits ? 1 : 0;
    }
    for (Launch& launch : choose_halves(SubCase(all, taken).c)) {
        launch.weights = taken;
        launches.push_back(std::move(launch));
    }
    if (!rest.empty()) choose_some(all, rest, launches);
    return true;
}

/// Kernels that let the next one start when they have waited for x, and not before.
bool waits_first(Kernel kernel) {
    switch (kernel) {
        case Kernel::kquant_i8_whole5:
        case Kernel::kquant_i8_whole6:
        case Kernel::kquant_i8_rows4_whole5:
        case Kernel::kquant_i8_rows4_whole6:
        case Kernel::planes_i8_whole5:
        case Kernel::planes_i8_whole6:
            return true;
        default:
            return false;
    }
}

/// Planes of few rows whose kernel takes no floats, beside few of these (DeltaNet's b and a); then the floats. Whether
/// that is so.
bool divide_floats(const Case& all, std::span<const size_t> which, Choice& launches) {
    std::vector<size_t> planes, floats;
    int64_t rows = 0;  // of floats
    for (const size_t i : which) {
        const Weight& w = *all.weights[i];
        (is_planes(w.dtype) ? planes : floats).push_back(i);
        if (!is_planes(w.dtype)) rows += w.rows;
    }
    if (planes.empty() || floats.empty() || rows > kFewFloats) return false;
    const SubCase group(all, planes);
    const Row* const row = find(Of::group, group.c);
    if (row == nullptr || row->kernel == Kernel::kquant_i8_wide_row1_sm90 || row->kernel == Kernel::kquant_i8_stream)
        return false;
    launches.push_back({row->kernel, 0, all.rows, planes});
    SubCase few(all, floats);
    few.c.rows = 1;  // each for itself
    if (waits_first(row->kernel) && small_bf16(Group(few.c)))
        launches.push_back({Kernel::bf16_small_sm90, 0, all.rows, floats, true});
    else choose_some(all, floats, launches);
    return true;
}

void choose_some(const Case& all, std::span<const size_t> which, Choice& launches) {
    const SubCase group(all, which);
    const auto launch = [&](const Row& row, std::span<const size_t> weights) {
        launches.push_back({row.kernel, 0, all.rows, {weights.begin(), weights.end()}});
    };
    if (const Row* const row = find(Of::drafter, group.c)) return launch(*row, which);
    if (divide_halves(all, which, launches) || divide_floats(all, which, launches)) return;
    if (const Row* const row = find(Of::group, group.c)) return launch(*row, which);
    struct Kind {
        size_t most;  // in one launch
        std::vector<size_t> which = {};
    };
    Kind kinds[] = {{kMaxMatrices}, {kQ8Matrices}, {kMaxMatrices}};
    for (const size_t i : which) {
        const Weight& w = *all.weights[i];
        const bool tiled = all.rows > 1 && (tile_weight(all.chip, w) || wide_weight(all.chip, w));
        kinds[tiled ? 0 : all.rows > 1 && q8_weight(all.chip, w) ? 1 : 2].which.push_back(i);
    }
    for (const Kind& kind : kinds)
        for (size_t i = 0; i < kind.which.size(); i += kind.most) {
            const std::span<const size_t> some =
                std::span(kind.which).subspan(i).first(std::min(kind.most, kind.which.size() - i));
            const Row& row = *find(Of::kind, SubCase(all, some).c);
            const size_t each = row.kernel == Kernel::any ? size_t{kMaxMatrices} : kind.most;
            for (size_t j = 0; j < some.size(); j += each)
                launch(row, some.subspan(j, std::min(each, some.size() - j)));
        }
}

/// Those that have a copy in FP8, then the others.
void choose_prefill(const Case& c, Choice& launches) {
    std::vector<size_t> fp8, others;
    for (size_t i = 0; i < c.weights.size(); ++i) (c.weights[i]->fp8 != nullptr ? fp8 : others).push_back(i);
    if (!fp8.empty()) launches.push_back({Kernel::gemm_fp8_sm90, 0, c.rows, fp8});
    if (!others.empty()) launches.push_back({gemm_kernel(c.chip), 0, c.rows, others});
}

}  // namespace

bool Case::wide_source() const {
    return x != ActKind::staged && (x != ActKind::norm || cols <= int64_t{2048} * kWholeRow);
}
bool Case::small_bf16_source() const {
    return chip.programmatic() && cols % 8 == 0 && cols <= 4096 &&
           (x == ActKind::plain || (x == ActKind::norm && cols <= 2048));
}

Kernel gemm_kernel(const Chip& chip) { return chip.hopper() ? Kernel::gemm_bf16_sm90 : Kernel::gemm_bf16_sm80; }

Choice choose(const Case& c) {
    Choice launches;
    std::vector<size_t> all(c.weights.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    if (c.rows == 0 || all.empty()) return launches;
    if (c.family == Family::prefill) choose_prefill(c, launches);
    else choose_some(c, all, launches);
    return launches;
}

Choice choose_halves(const Case& c) {
    RT_CHECK(c.floats_as_given(), "no kernel for rows of {} values of this kind", c.cols);
    std::vector<size_t> all(c.weights.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    Choice launches;
    Case some = c;
    for (int64_t row = 0; row < c.rows; row += some.rows) {
        const Row* found = nullptr;
        for (const int64_t most : {int64_t{24}, int64_t{16}, int64_t{8}, int64_t{1}}) {
            some.rows = std::min(most, c.rows - row);
            found = find(Of::halves, some);
            if (found != nullptr) break;
        }
        RT_CHECK(found != nullptr, "rows of {} values do not fit in the {} bytes of shared memory of this GPU", c.cols,
                 c.chip.shared_bytes);
        launches.push_back({found->kernel, row, some.rows, all});
    }
    return launches;
}

bool float_row1_fits(const Case& c) { return float_row1(Group(c)); }

bool q8_norms(const Case& c) {
    return c.x == ActKind::norm && c.cols == Q8Shape::kCols && c.rows <= Q8Shape::kNormedRows && c.aligned;
}

}  // namespace riptide::ops::cuda::linear
