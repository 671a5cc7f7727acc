#include "ops/cuda/linear/fit.h"

#include <algorithm>

#include "ops/cuda/linear/shared/row_formats.h"

namespace riptide::ops::cuda::decode {

namespace {

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Places in shared memory, one behind the other.
struct Places {
    int64_t at = 0;

    int32_t take(int64_t bytes) {
        const int64_t from = at;
        at += up(bytes, 16) * 16;
        return static_cast<int32_t>(from);
    }
    void align(int64_t to) { at = up(at, to) * to; }
};

int64_t row1_limit(const Chip& chip) { return chip.shared_bytes - (1 << 10); }

std::optional<Bf16SmallFit> line_of(const Chip& chip, int64_t cols, int64_t batches, bool singles, int windows,
                                    int quads) {
    const int64_t ctas = std::min<int64_t>(chip.sms, up(batches, quads)), most = up(batches, ctas);
    if (up(most, quads) > kBf16SmallBatches / (windows * quads)) return {};
    const int64_t need = most * kQuadRows * (2 * cols + 16) + (singles ? int64_t{windows} * kWindowPieces * 32 : 0);
    if (need > bf16_small_room(chip)) return {};
    return Bf16SmallFit{windows, quads, ctas, need};
}

template <int NT>
std::optional<TileFit> tile_of(const Chip& chip, int64_t x_stride, int64_t stage_bytes) {
    for (int partials = 2; partials > 0; --partials) {
        const TilePlan plan =
            plan_tiles(chip, 1, partials * partial_bytes(NT, kTileWarps) + int64_t{8} * NT * x_stride, stage_bytes);
        if (plan.stages > 2 || (plan.stages == 2 && partials == 1)) return TileFit{NT, partials, plan};
    }
    return {};
}

template <int NT>
std::optional<TileFit> q8_of(const Chip& chip, int64_t x_stride, bool normed, bool pairs) {
    const int64_t fixed_static = (normed ? Q8Shape::kNormedRows * 32 : 0) + (pairs ? 2 * Q8Shape::tile_sums(NT) : 0);
    const int64_t fixed = 2 * partial_bytes(NT, Q8Shape::kUsers) + int64_t{8} * NT * x_stride;
    TileFit fit{NT, 2, plan_tiles(chip, 1, fixed + fixed_static, Q8Shape::kStageBytes)};
    if (fit.plan.stages == 0) return {};
    fit.plan.shared -= fixed_static;
    return fit;
}

template <int NT, int C, int B>
std::optional<NarrowFit> narrow_of(const Chip& chip, int64_t stage_bytes) {
    constexpr int64_t kFixed = NarrowShape<NT, C, B>::kFixed;
    const int64_t room = chip.shared_bytes - (1 << 10) - kFixed;
    const auto stages = static_cast<int32_t>(std::clamp<int64_t>(room / stage_bytes, 0, kMostNarrowStages));
    if (stages < 2) return {};
    return NarrowFit{NT, C, B, stages, kFixed + stages * stage_bytes};
}

template <int C, int NT>
std::optional<WideFit> wide_of(const Chip& chip, int64_t cols, DType type, bool q6) {
    constexpr int64_t kSums = WideFinish<C, NT>::kBytes;
    const int64_t room = chip.shared_bytes - (1 << 10);  // static shared memory
    WideFit fit{NT, C};
    fit.groups = static_cast<int32_t>(8 * up(cols / 256, C));
    fit.stage_bytes = static_cast<int32_t>(wide_stage_bytes<C>(type));
    const int64_t x = WideX::of(fit.groups, 8 * NT, q6).bytes;
    for (fit.buffers = 2; fit.buffers > 0; --fit.buffers) {
        const int64_t stages = (room - x - fit.buffers * kSums) / fit.stage_bytes;
        fit.stages = static_cast<int32_t>(std::clamp<int64_t>(stages, 0, kMostWideStages));
        if (fit.stages > 2 || (fit.stages == 2 && fit.buffers == 1)) {
            fit.shared = int64_t{fit.stages} * fit.stage_bytes + fit.buffers * kSums + x;
            return fit;
        }
    }
    return {};
}
template <int NT>
std::optional<WideFit> wide_clusters(const Chip& chip, int64_t cols, DType type, bool q6) {
    const auto two = wide_of<2, NT>(chip, cols, type, q6);
    return two ? two : wide_of<4, NT>(chip, cols, type, q6);
}

template <int NT, int C>
std::optional<F16Fit> half_of(const Chip& chip, int64_t cols, int64_t n, bool q6) {
    using S = F16Shape<NT, C>;
    constexpr int64_t kStatic = (2 * kMostF16Stages * S::kRings + 2 + 3 * kF16Warps) * 8 + kF16Warps * 64,
                      kAlign = 1024;
    const int64_t blocks = cols / 1024 * S::T, beyond = 8 * NT - n;  // rows that are read, of no use
    const int64_t stage = S::T * (2048 + 256 + (q6 ? 1024 : 0));
    for (int teams = S::kTeams; teams >= S::kTeams / 2; --teams) {
        F16Fit fit{NT, C, teams};
        Places places;
        places.take(kF16Units * (n * blocks + beyond));
        fit.sums_at = places.take(kF16Sums * (n * blocks + beyond));
        fit.scales_at = places.take(4 * 8 * NT * blocks);
        fit.meeting_at = places.take(int64_t{teams} * S::kMeeting * kPieceBytes);
        fit.inbox_at = places.take(int64_t{teams} * S::kInbox * kPieceBytes);
        places.align(kAlign);
        const int64_t room = chip.shared_bytes - kStatic - kAlign - kBesideF16 - places.at;
        const int64_t rings = teams * S::W / S::T;
        fit.stages = static_cast<int32_t>(std::min<int64_t>(kMostF16Stages, room / (rings * stage)));
        if (room < 0 || fit.stages < (S::T == 1 ? 1 : 2)) continue;
        const int64_t slots = rings * fit.stages;
        fit.data_at = places.take(slots * 2048 * S::T);
        fit.high_at = places.take(q6 ? slots * 1024 * S::T : 0);
        fit.heads_at = places.take(slots * 256 * S::T);
        fit.shared = places.at + kAlign;
        return fit;
    }
    return {};
}

template <int NT>
std::optional<F16Fit> chain_of(const Chip& chip, int64_t cols, bool q6) {
    constexpr int64_t G = kChainGroups, kAlign = 1024,
                      kStatic = (2 * kMostChainStages * G + 2 + 12 * G) * 8 + G * 256 + 64;
    const int64_t steps = up(cols / 1024, 2);
    F16Fit fit{NT, kChainCtas};
    Places places;
    places.take(steps * ChainX<NT>::kBlock);
    fit.inbox_at = places.take(G * kChainPieces<NT> * kChainParts * kPieceBytes);
    places.align(kAlign);
    const int64_t room = chip.shared_bytes - kStatic - kAlign - kBesideF16 - places.at;
    const int64_t stage = kChainData + kChainHeads + (q6 ? kChainHigh : 0);
    fit.stages = static_cast<int32_t>(std::min<int64_t>(kMostChainStages, room / (G * stage)));
    if (room < 0 || fit.stages < 1 || chip.sms < kChainCtas) return {};
    const int64_t slots = G * fit.stages;
    fit.data_at = places.take(slots * kChainData);
    fit.high_at = places.take(q6 ? slots * kChainHigh : 0);
    fit.heads_at = places.take(slots * kChainHeads);
    fit.shared = places.at + kAlign;
    return fit;
}

}  // namespace

std::optional<Row1Fit> fit_row1_whole(const Chip& chip, int64_t n, int64_t batches, bool any_q6, int batch,
                                      int batch6) {
    constexpr int kGroups = 64;
    const int q4 = batch * 18 * kGroups, q6 = batch6 * (26 * kGroups + kGroups / 4);
    Row1Fit fit;
    fit.warp_bytes = any_q6 ? std::max(q4, q6) : q4;
    fit.shared = std::max<int64_t>(kRow1Large, n * staged_bytes(32 * kGroups) + kRow1Warps * fit.warp_bytes);
    if (fit.shared > row1_limit(chip) || batches > int64_t{kRow1Warps} * chip.sms) return {};
    return fit;
}

std::optional<int64_t> fit_row1_split(const Chip& chip, int64_t n, int64_t rows, int steps) {
    const int groups = 32 * steps;
    const int row = 18 * groups + steps * 32 * (n == 1 ? 12 : 2 * 4);  // a float3 each, or floats of two rows of x
    const int64_t shared = std::max<int64_t>(kRow1Large, n * staged_bytes(32 * groups) + kRow1Warps * row);
    if (shared > row1_limit(chip) || rows > int64_t{kRow1Warps} * chip.sms) return {};
    return shared;
}

namespace {

std::optional<int64_t> fit_planes(const Chip& chip, int64_t warps, int64_t fixed, int64_t bytes) {
    const int64_t shared = std::max<int64_t>(kRow1Large, fixed + kRow1Warps * bytes);
    if (shared > row1_limit(chip) || warps > int64_t{kRow1Warps} * chip.sms) return {};
    return shared;
}

}  // namespace

std::optional<int64_t> fit_planes_whole(const Chip& chip, int64_t n, int64_t batches, int64_t bytes) {
    return fit_planes(chip, batches, n * staged_bytes(2048), bytes);
}
std::optional<int64_t> fit_planes_split(const Chip& chip, int64_t n, int64_t rows, int steps, int64_t bytes) {
    const int64_t values = int64_t{4} * steps * kRow1Threads * (n == 1 ? 1 : 2);
    return fit_planes(chip, rows, n * staged_bytes(1024 * steps) + values, bytes);
}
int64_t planes_rows(const Chip& chip, int64_t cols, int64_t n, std::span<const Weight* const> weights, int64_t batch) {
    int64_t batches = 0, bytes = 0;
    for (const Weight* w : weights) {
        batches += up(w->rows, batch);
        bytes = std::max<int64_t>(bytes, batch * row_bytes(row_format(*w), static_cast<int>(cols)));
    }
    int64_t rows = std::min<int64_t>(n, kPlanesRows);
    const auto fits = [&] {
        return cols == 2048 ? fit_planes_whole(chip, rows, batches, bytes)
                            : fit_planes_split(chip, rows, batches, static_cast<int>(cols / 1024), bytes);
    };
    while (rows > 0 && !fits()) --rows;
    return rows;
}

int64_t bf16_small_room(const Chip& chip) { return chip.shared_bytes - (2 << 10); }

std::optional<Bf16SmallFit> fit_bf16_small(const Chip& chip, int64_t cols, int64_t batches, bool singles) {
    const int64_t windows = up(cols / 8, kWindowPieces);
    // Half as many quads where four would leave SMs without work, or where a lane's columns take many registers.
    const bool few = batches < int64_t{4} * chip.sms;
    if (windows == 1) return line_of(chip, cols, batches, singles, 1, few ? 2 : 4);
    if (windows == 2) return line_of(chip, cols, batches, singles, 2, few ? 2 : 4);
    return line_of(chip, cols, batches, singles, 4, 2);
}

int64_t float_shared(const Chip& chip, int64_t need, bool large) {
    constexpr int64_t kStatic = 16 << 10;
    const int64_t most = chip.shared_bytes - kStatic;
    if (need > most) return 0;
    const int64_t want = !chip.programmatic() ? 0 : large ? kRow1Large : kRow1Small;
    return std::max(need, std::min(want, most));
}

std::optional<FloatFit> fit_float_row(const Chip& chip, int64_t cols, ActKind kind, int64_t batches) {
    const int64_t groups = up(batches, kQuads), sms = chip.sms;
    FloatFit fit;
    fit.huge = groups > 16 * sms;
    fit.ctas = std::max(std::min((fit.huge ? 2 : 1) * sms, groups), up(groups, kMostFloatRounds));
    const int64_t sums = up(groups, fit.ctas) * kQuads * kQuadRows * int64_t{4 * sizeof(float)};
    const ActLayout layout = act_layout(cols, false, true);
    const int64_t need = layout.bytes() + norm_bytes(kind, layout.cols) + sums;
    fit.shared = float_shared(chip, need, !fit.huge && 2 * fit.ctas > sms);
    if (fit.shared == 0) return {};
    return fit;
}

std::optional<FloatFit> fit_float_pair(const Chip& chip, int64_t cols, ActKind kind, int64_t rows) {
    const int64_t duos = rows / 2;
    FloatFit fit;
    fit.ctas = std::min<int64_t>(chip.sms, up(duos, kQuads));
    const ActLayout layout = act_layout(cols, false, true);
    fit.shared = float_shared(
        chip, layout.bytes() + norm_bytes(kind, layout.cols) + up(duos, std::max<int64_t>(1, fit.ctas)) * kDuoBytes,
        true);
    if (fit.shared == 0) return {};
    return fit;
}

std::optional<FloatFit> fit_float_rows(const Chip& chip, int64_t cols, ActKind kind, int64_t n, int64_t batches,
                                       bool one) {
    const int64_t groups = up(batches, kQuads);
    FloatFit fit;
    fit.ctas = std::max(std::min<int64_t>(chip.sms, groups), up(groups, kMostFloatRounds));
    const int64_t sums = up(groups, fit.ctas) * kQuads * kQuadRows * int64_t{4 * sizeof(float)};
    const ActLayout layout = act_layout(cols, false, true);
    const int64_t norm = n > 4 ? 0 : norm_bytes(kind, layout.cols);
    for (fit.rows = !one ? 4 : n <= 2 ? 2 : n <= 4 ? 4 : 8; fit.rows > 1; fit.rows /= 2) {
        fit.shared =
            float_shared(chip, std::min<int64_t>(fit.rows, n) * layout.bytes() + norm + sums * fit.rows, false);
        if (fit.shared != 0) return fit;
    }
    return {};
}

std::optional<int64_t> fit_wide_row(const Chip& chip, int64_t cols, bool floats, bool q4) {
    constexpr int64_t kStatic = 6 << 10;  // static, and what the system takes
    const int64_t shared =
        up(act_layout(cols, true, floats).bytes(), 128) * 128 + int64_t{kRowWarps} * row_slots(q4) * row_slot_bytes(q4);
    if (shared + kStatic > chip.shared_bytes) return {};
    return shared;
}

TilePlan plan_tiles(const Chip& chip, int32_t most_ctas, int64_t fixed, int64_t stage_bytes) {
    constexpr int64_t kReserved = 1 << 10, kStatic = 256;  // of an SM's memory, for each CTA
    TilePlan plan;
    for (int64_t ctas = most_ctas; ctas > 0; --ctas) {
        const int64_t room = (chip.shared_bytes + kReserved) / ctas - kReserved - kStatic - fixed;
        const int64_t stages = room < 0 ? 0 : std::min(kMostTileStages, room / stage_bytes);
        if (stages < 2) continue;
        plan.stages = static_cast<int32_t>(stages);
        plan.ctas = static_cast<int32_t>(ctas * chip.sms);
        plan.shared = fixed + stages * stage_bytes;
        break;
    }
    return plan;
}

std::optional<TileFit> fit_tile(const Chip& chip, int64_t cols, int64_t n, int64_t stage_bytes, bool q6) {
    const int64_t x_stride = tile_x_stride(act_layout(cols, true, false), q6);
    std::optional<TileFit> fit;
    if (n > 16) fit = tile_of<4>(chip, x_stride, stage_bytes);
    if (!fit && n > 8) fit = tile_of<2>(chip, x_stride, stage_bytes);
    return fit ? fit : tile_of<1>(chip, x_stride, stage_bytes);
}

std::optional<TileFit> fit_q8(const Chip& chip, int64_t cols, int64_t n, bool normed, bool pairs) {
    constexpr int64_t kMostStatic = 8192;
    const int64_t x_stride = tile_x_stride(act_layout(cols, true, false), false);
    const int64_t least = 2 * partial_bytes(1, Q8Shape::kUsers) + int64_t{8} * x_stride + kMostStatic;
    if (plan_tiles(chip, 1, least, Q8Shape::kStageBytes).stages == 0) return {};
    std::optional<TileFit> fit;
    if (n > 8) fit = q8_of<2>(chip, x_stride, normed, pairs);
    return fit ? fit : q8_of<1>(chip, x_stride, normed, pairs);
}

std::optional<NarrowFit> fit_narrow(const Chip& chip, int64_t cols, int64_t n, int64_t stage_bytes) {
    const int64_t blocks = up(n, 32), rows = up(n, blocks);
    if (cols == 2048)
        return rows <= 8    ? narrow_of<1, 1, 8>(chip, stage_bytes)
               : rows <= 16 ? narrow_of<2, 1, 8>(chip, stage_bytes)
                            : narrow_of<4, 1, 8>(chip, stage_bytes);
    if (cols == 6144) return rows > 16 ? narrow_of<4, 4, 6>(chip, stage_bytes) : narrow_of<2, 4, 6>(chip, stage_bytes);
    return rows > 16 ? narrow_of<4, 4, 8>(chip, stage_bytes) : narrow_of<2, 4, 8>(chip, stage_bytes);
}

std::optional<WideFit> fit_wide(const Chip& chip, int64_t cols, int64_t n, DType type, bool q6) {
    if (!wide_of<4, 1>(chip, cols, type, q6)) return {};
    // As few reads of the weights as possible; then as few columns of x as possible.
    const int64_t row_blocks = up(n, 32), tiles = up(up(n, row_blocks), 8);
    std::optional<WideFit> fit;
    if (tiles > 3) fit = wide_clusters<4>(chip, cols, type, q6);
    if (tiles == 3) fit = wide_clusters<3>(chip, cols, type, q6);
    if (!fit && tiles > 1) fit = wide_clusters<2>(chip, cols, type, q6);
    return fit ? fit : wide_clusters<1>(chip, cols, type, q6);
}

std::optional<F16Fit> fit_f16_rows(const Chip& chip, int64_t cols, int64_t n, bool q6) {
    if (n > 16) return half_of<3, 2>(chip, cols, n, q6);
    const auto fit = n <= 8 ? half_of<1, 1>(chip, cols, n, q6) : half_of<2, 2>(chip, cols, n, q6);
    if (fit) return fit;
    return n <= 8 ? half_of<1, 4>(chip, cols, n, q6) : half_of<2, 4>(chip, cols, n, q6);
}

std::optional<F16Fit> fit_f16_chain(const Chip& chip, int64_t cols, int64_t n, bool q6) {
    return n <= 16 ? chain_of<2>(chip, cols, q6) : chain_of<3>(chip, cols, q6);
}

std::optional<F16Fit> fit_f16_row(const Chip& chip, int64_t cols, ActKind kind, bool q6, int64_t floats,
                                  int64_t float_row) {
    constexpr int64_t kMostFloatRow = 32 << 10, kStatic = 1 << 10, kAlign = 1 << 10, kMoreInQ6 = 4096;
    if (kind == ActKind::norm && cols > int64_t{2048} * kWholeRow) return {};
    const int64_t quads = cols / 1024, blocks = 4 * quads, each = kF16Slot + (q6 ? kMoreInQ6 : 0);
    F16Fit fit{1, 1, kF16RowTeams};
    Places places;
    places.take(kF16Block * blocks);
    fit.scales_at = places.take(4 * blocks);
    fit.meeting_at = places.take(kF16RowTeams * 512);
    fit.terms_at = places.take(kF16RowTeams * quads * 256);
    fit.floats_at = places.take(floats);
    fit.float_weights_at = float_row == 0 || float_row > kMostFloatRow ? 0 : places.take(float_row);
    places.align(kAlign);
    const int64_t room = chip.shared_bytes - kStatic - kAlign - places.at;
    fit.stages = static_cast<int32_t>(std::min<int64_t>(kF16RowStages, room / (kF16RowTeams * each)));
    if (room < 0 || fit.stages < 2) return {};
    fit.slot_bytes = static_cast<int32_t>(each);
    fit.data_at = places.take(kF16RowTeams * fit.stages * each);
    fit.shared = places.at + kAlign;
    return fit;
}

}  // namespace riptide::ops::cuda::decode
