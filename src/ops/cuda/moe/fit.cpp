#include "ops/cuda/moe/fit.h"

#include <algorithm>

namespace riptide::ops::cuda::decode {

namespace {

using S512 = SparseShape512;

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <DType Type, int Cols>
TilePlan group_plan(const Chip& chip, int64_t lists) {
    constexpr bool kA0 = Cols == S512::kFf || Type == DType::planes_q6_k;  // put8() writes it, needed or not
    const int64_t stride = tile_x_stride({Cols, Cols / 32, 44 * (Cols / 32), 0}, kA0);
    const int64_t fixed =
        2 * partial_bytes(1, kWarps) + S512::kGroupRows * stride + lists + kMostTileStages * kTileStageBarriers;
    return plan_tiles(chip, 2, fixed, Tile<Type, Cols>::kBytes);
}
template <int Cols>
TilePlan group_plan(const Chip& chip, int64_t lists, DType type) {
    return type == DType::planes_q4_k   ? group_plan<DType::planes_q4_k, Cols>(chip, lists)
           : type == DType::planes_q5_k ? group_plan<DType::planes_q5_k, Cols>(chip, lists)
                                        : group_plan<DType::planes_q6_k, Cols>(chip, lists);
}

}  // namespace

std::optional<int64_t> fit_row1(const Chip& chip, RowFormat experts, RowFormat shared) {
    constexpr int64_t kPairs = 32, kSharedPairs = 4,
                      kStatic = 9 << 10;  // pairs of a CTA; static, and what the chip keeps
    const auto pair = [](RowFormat format) { return int64_t{2} * row_bytes(format, S512::kHidden); };
    const int64_t bytes = std::max<int64_t>(kRow1Large, kPairs * pair(experts) + kSharedPairs * pair(shared));
    if (chip.shared_bytes < bytes + kStatic) return {};
    return bytes;
}

LayerFormats formats_of(const ExpertWeights& experts, const SharedExpert& shared) {
    const RowFormat up = row_format(experts.gate[0]), down = row_format(experts.down[0]);
    if (shared.gate == nullptr) return {up, down, up, down};
    return {up, down, row_format(*shared.gate), row_format(*shared.down)};
}

std::optional<RowsFit> fit_rows8(const Chip& chip, int64_t n, int64_t top_k, const LayerFormats& formats) {
    constexpr int64_t kTiles = S512::kFf / 32, kStatic = 3 << 10, kLeastCtas = 128, kUpTasks = 2, kOutputs = 8;
    constexpr int64_t kUnit = 4 * 32 * 4;
    const auto longest = [](RowFormat a, RowFormat b, int cols) {
        return int64_t{std::max(row_bytes(a, cols), row_bytes(b, cols))};
    };
    const auto tasks = [&](int64_t fixed, int64_t bytes) {
        return (chip.shared_bytes - kStatic - fixed) / (kRow1Warps * bytes);
    };
    RowsFit fit;
    fit.up_ctas = std::max<int64_t>(kLeastCtas, chip.sms);
    fit.units = ceil_of(n * top_k * kTiles, fit.up_ctas);
    // A group of a row of x: without the sums of halves for Q4_K alone.
    const bool q4_up = formats.up == RowFormat::q4_k && formats.shared_up == RowFormat::q4_k;
    const bool q4_down = formats.down == RowFormat::q4_k && formats.shared_down == RowFormat::q4_k;
    const int64_t up_fixed = n * (q4_up ? 40 : 44) * (S512::kHidden / 32) + fit.units * kUnit;
    const int64_t down_fixed = n * (S512::kTopK + 1) * ((q4_down ? 40 : 44) * kTiles + 4 * 16);
    const int64_t up_row = longest(formats.up, formats.shared_up, S512::kHidden);
    if (!q4_up && tasks(up_fixed, 4 * up_row) < kUpTasks) fit.pairs = 1;
    fit.up_task = 2 * fit.pairs * up_row;
    fit.down_task = kOutputs * longest(formats.down, formats.shared_down, S512::kFf);
    if (tasks(up_fixed, fit.up_task) < kUpTasks || tasks(down_fixed, fit.down_task) < 2) return {};
    fit.up_shared = up_fixed + kUpTasks * kRow1Warps * fit.up_task;
    fit.down_tasks = std::min<int64_t>(3, tasks(down_fixed, fit.down_task));
    fit.down_shared = down_fixed + fit.down_tasks * kRow1Warps * fit.down_task;
    return fit;
}

int64_t group_list_bytes(int64_t n, int64_t top_k) {
    const int64_t chosen = n * top_k, spread = S512::kExperts + chosen / S512::kGroupRows;
    const int64_t most = ceil_of(n, S512::kGroupRows) + std::min(chosen, spread);
    return ceil_of(n, 32) * S512::kExperts * 4 + ceil_of(8 * most + 4 + chosen, 16) * 16;
}

std::optional<GroupFit> fit_groups(const Chip& chip, int64_t n, int64_t top_k, DType up, DType down) {
    const int64_t lists = group_list_bytes(n, top_k);
    const GroupFit fit{group_plan<S512::kHidden>(chip, lists, up), group_plan<S512::kFf>(chip, lists, down)};
    if (fit.up.stages == 0 || fit.down.stages == 0) return {};
    return fit;
}

std::optional<FloatExpertsFit> fit_float_experts(const Chip& chip, int64_t cols, ActKind kind, int64_t n, int64_t top_k,
                                                 int64_t duos, int64_t shared_duos, int64_t ff, int64_t rows,
                                                 int64_t outputs) {
    const int64_t slots = top_k + (shared_duos > 0 ? 1 : 0), sms = chip.sms;
    FloatExpertsFit fit;
    fit.down_ctas = std::min<int64_t>(sms, ceil_of(rows, outputs));
    const int64_t rounds = ceil_of(rows, fit.down_ctas * outputs);
    fit.down_shared = float_shared(
        chip, act_layout(slots * ff, false, true).bytes() + rounds * kFloatWarps * kFloatSlots * int64_t{sizeof(float)},
        false);
    fit.up_ctas = std::min<int64_t>(sms, ceil_of(slots * duos, kQuads));
    fit.most_duos = ceil_of(top_k * duos, fit.up_ctas) + ceil_of(shared_duos, fit.up_ctas);
    const ActLayout layout = act_layout(cols, false, true);
    fit.up_shared =
        float_shared(chip, layout.bytes() + norm_bytes(kind, layout.cols) + fit.most_duos * kDuoBytes, n == 1);
    if (fit.down_shared == 0 || fit.up_shared == 0) return {};
    return fit;
}

}  // namespace riptide::ops::cuda::decode
