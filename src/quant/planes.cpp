#include "quant/planes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/int8_block.h"
#include "quant/placement.h"
#include "quant/repack.h"
#include "tensor/half.h"

namespace riptide {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t align(int64_t bytes, int64_t to) { return ceil_div(bytes, to) * to; }
constexpr int64_t kPlaneAlignment = 256;

int64_t high_bytes(const Weight& w) {
    const int64_t each = w.dtype == DType::planes_q5_k ? 4 : w.dtype == DType::planes_q6_k ? 8 : 0;
    return each * w.rows * (w.cols / 32);
}

int64_t scale_entries(const Weight& w) { return ceil_div(w.rows, w.scale_rows) * ceil_div(w.cols, w.scale_cols); }

/// Of types that have scales whenever they are placed.
int64_t plane_scale_bytes(const Weight& w) {
    if (w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q5_k) return w.rows * (w.cols / 256) * 16;
    if (w.dtype == DType::planes_q6_k) return w.rows * (w.cols / 256) * 18;
    if (w.dtype == DType::planes_q2_k) return w.rows * (w.cols / 256) * 20;
    return row_bytes(w.scale_dtype, scale_entries(w));
}

bool all_bf16(const Weight& w) {
    constexpr int64_t kAtOnce = 1024;
    const auto* bytes = static_cast<const std::byte*>(w.data);
    const int64_t n = w.rows * w.cols;
    for (int64_t i = 0; i < n; i += kAtOnce) {
        uint32_t values[kAtOnce] = {}, low = 0;
        std::memcpy(values, bytes + 4 * i, static_cast<size_t>(4 * std::min(kAtOnce, n - i)));
        for (const uint32_t value : values) low |= value;
        if ((low & 0xFFFFu) != 0) return false;
    }
    return true;
}

/// Blocks whose codes and scales are staged apart.
void plan_int8_blocks(Placement& plan) {
    const int group = int8_group(plan.staged);
    const bool ternary = group == kSuperBlock;
    plan.w.levels = static_cast<uint8_t>(plan.staged == DType::iq3_s     ? LevelSet::iq3_s
                                         : plan.staged == DType::iq3_xxs ? LevelSet::iq3_xxs
                                                                         : LevelSet::iq1_iq2);
    plan.w.dtype = ternary ? DType::planes_int4 : DType::planes_levels;
    plan.w.scale_dtype = ternary ? DType::f16 : DType::f32;
    plan.w.scale_cols = group;
    plan.staged = ternary ? DType::i4_pack : DType::f4_pack;
    plan.plane = true;
}

/// The type of the planes, with scale_dtype and scale_cols if the rows themselves hold the scales.
bool plan_blocks(Placement& plan) {
    const auto set = [&plan](DType type, DType scale_dtype = DType::f32, int64_t scale_cols = 1,
                             LevelSet levels = LevelSet::iq4) {
        plan.w.dtype = type;
        plan.w.scale_dtype = scale_dtype;
        plan.w.scale_cols = scale_cols;
        plan.w.levels = static_cast<uint8_t>(levels);
        return true;
    };
    if (int8_group(plan.staged) > 0) {
        plan_int8_blocks(plan);
        return true;
    }
    switch (plan.staged) {
        case DType::q2_k:
            return set(DType::planes_q2_k);
        case DType::q4_k:
            return set(DType::planes_q4_k);
        case DType::q5_k:
            return set(DType::planes_q5_k);
        case DType::q3_k:
            plan.staged = DType::q6_k;
            return set(DType::planes_q6_k);
        case DType::q6_k:
            return set(DType::planes_q6_k);
        case DType::q5_0:
            plan.staged = DType::q8_0;
            return set(DType::planes_int8, DType::f16, 32);
        case DType::q8_0:
            return set(DType::planes_int8, DType::f16, 32);
        case DType::q4_0:
            return set(DType::planes_int4, DType::f16, 32);
        case DType::iq4_nl:
            return set(DType::planes_levels, DType::f16, 32);
        case DType::iq4_xs:
            return set(DType::planes_levels, DType::f32, 32);
        case DType::mxfp4:
            return set(DType::planes_levels, DType::bf16, 32, LevelSet::e2m1);
        case DType::nvfp4:
            return set(DType::planes_levels, DType::f16, 16, LevelSet::e2m1);
        default:
            return false;
    }
}

/// Codes whose scales lie apart. Empty if they can be planes, else why not.
std::string plan_packed(const Weight& host, Placement& plan) {
    if (host.scales == nullptr) return "they have no scales";
    if (host.cols % 32 != 0) return fmt::format("rows of {} columns are not whole groups of 32", host.cols);
    if (host.scale_rows != 1 || (host.scale_cols != 16 && host.scale_cols % 32 != 0))
        return fmt::format("no GPU kernels for groups of {} x {}", host.scale_rows, host.scale_cols);
    plan.w.dtype = host.dtype == DType::i4_pack   ? DType::planes_int4
                   : host.dtype == DType::i8_pack ? DType::planes_int8
                                                  : DType::planes_levels;
    plan.w.levels = static_cast<uint8_t>(LevelSet::e2m1);
    plan.w.scale_dtype = host.scale_dtype == DType::f8_e4m3 ? DType::f16 : host.scale_dtype;
    plan.plane = true;
    return {};
}

/// An f32 plane that holds Weight::scale too, for types that can have one.
void fold_scale(const Weight& host, Placement& plan) {
    if (host.dtype == DType::nvfp4) plan.staged = DType::f4_pack;  // its codes alone: the plane is stage_scales()'
    else if (host.dtype == DType::f8_e4m3 && !plan.plane) plan.w.scale_rows = host.rows, plan.w.scale_cols = host.cols;
    else if (!plan.plane) return;
    plan.plane = true;
    plan.w.scale_dtype = DType::f32;
    plan.w.scale = 1.0f;
}

/// Weight::scale where it costs no bits: see plan_placement().
void fold_power(const Weight& host, Placement& plan) {
    int exponent = 0;
    if (plan.w.scale == 1.0f || std::frexp(host.scale, &exponent) != 0.5f) return;
    plan.scaled = plan.staged == host.dtype && (host.dtype == DType::f32 || host.dtype == DType::bf16);
    const bool plane = plan.plane && (plan.w.scale_dtype == DType::f32 || plan.w.scale_dtype == DType::bf16);
    if (plan.scaled || plane) plan.w.scale = 1.0f;
}

void plan_f16(Placement& plan, std::string reason) {
    Weight w;
    w.dtype = DType::f16;
    w.rows = plan.w.rows;
    w.cols = plan.w.cols;
    plan.w = w;
    plan.staged = DType::f16;
    plan.plane = false;
    plan.converted = std::move(reason);
}

}  // namespace

bool is_planes(DType type) { return type >= DType::planes_q4_k && type <= DType::planes_levels; }

int64_t placed_bytes(const Weight& w) {
    const bool scaled = is_planes(w.dtype) || w.scales != nullptr;
    return w.bytes() + high_bytes(w) + (scaled ? plane_scale_bytes(w) : 0);
}

int64_t Placement::bytes() const {
    return align(data_bytes, kPlaneAlignment) + align(high_bytes, kPlaneAlignment) +
           align(scale_bytes, kPlaneAlignment);
}

Weight Placement::at(const std::byte* base) const {
    Weight placed = w;
    const std::byte* high = base + align(data_bytes, kPlaneAlignment);
    placed.data = base;
    placed.high = high_bytes > 0 ? high : nullptr;
    placed.scales = scale_bytes > 0 ? high + align(high_bytes, kPlaneAlignment) : nullptr;
    return placed;
}

Placement plan_placement(const Weight& host, const PlacementRules& rules) {
    Placement plan;
    plan.w = host;
    plan.w.data = plan.w.scales = plan.w.high = nullptr;
    plan.staged = host.dtype;
    const bool floats = host.dtype == DType::f32 || host.dtype == DType::f16 || host.dtype == DType::bf16;
    RT_ASSERT(!floats || host.scales == nullptr);
    if (rules.f16) {
        if (host.dtype != DType::f16 || host.scale != 1.0f) plan_f16(plan, "its experts are of several types");
    } else if (host.dtype == DType::f32 && rules.bf16 && all_bf16(host)) {
        plan.w.dtype = DType::bf16;
    } else if (host.dtype == DType::f8_e4m3) {
        plan.plane = host.scales != nullptr;
    } else if (host.dtype == DType::i4_pack || host.dtype == DType::i8_pack || host.dtype == DType::f4_pack) {
        std::string reason = plan_packed(host, plan);
        if (!reason.empty()) plan_f16(plan, std::move(reason));
    } else if (!floats && !plan_blocks(plan)) {
        plan_f16(plan, fmt::format("no GPU kernels for {}", dtype_name(host.dtype)));
    }
    fold_power(host, plan);
    if (rules.fold_scale) fold_scale(host, plan);
    plan.staged_row_bytes = row_bytes(plan.staged, host.cols);
    plan.w.row_bytes = align(row_bytes(plan.w.dtype, host.cols), 16);
    plan.data_bytes = plan.w.bytes();
    plan.high_bytes = high_bytes(plan.w);
    plan.scale_bytes = is_planes(plan.w.dtype) || plan.plane ? plane_scale_bytes(plan.w) : 0;
    return plan;
}

bool same_layout(const Placement& a, const Placement& b) {
    return a.w.dtype == b.w.dtype && a.w.levels == b.w.levels && a.w.rows == b.w.rows && a.w.cols == b.w.cols &&
           a.plane == b.plane && a.w.scale_dtype == b.w.scale_dtype && a.w.scale_rows == b.w.scale_rows &&
           a.w.scale_cols == b.w.scale_cols && a.scale_bytes == b.scale_bytes;
}

namespace {

/// The codes of a row of NVFP4 blocks as f4_pack has them: columns 2 i and 2 i + 1 in the low and high nibble of byte
/// i.
void pack_nvfp4_codes(const void* row, int64_t cols, std::byte* to) {
    const auto* blocks = static_cast<const BlockNvfp4*>(row);
    for (int64_t b = 0; b < cols / 64; ++b)
        for (int i = 0; i < 32; ++i) {  // eight bytes hold sixteen columns: the first eight of them in low nibbles
            const uint8_t* q = blocks[b].qs + i / 8 * 8 + i % 4 * 2;
            const int shift = i % 8 < 4 ? 0 : 4;
            *to++ = static_cast<std::byte>((q[0] >> shift & 15) | (q[1] >> shift & 15) << 4);
        }
}

/// As many of a row of blocks with an Int8Block, as i4_pack or, by the set of levels, as f4_pack.
void pack_int8_codes(const Weight& host, int64_t row, const Placement& plan, std::byte* to) {
    uint8_t code_of[256] = {};
    for (int u = 0; u < 16; ++u) {
        const int level = plan.staged == DType::i4_pack ? u - 8 : kLevels[plan.w.levels][u];
        code_of[static_cast<uint8_t>(level)] = static_cast<uint8_t>(u);
    }
    const auto* from = static_cast<const std::byte*>(host.row(row));
    Int8Block block;
    for (int64_t b = 0; b < host.cols / kSuperBlock; ++b) {
        make_int8_block(host.dtype, from + b * dtype_info(host.dtype).block_bytes, block);
        for (int i = 0; i < kSuperBlock; i += 2)
            *to++ = static_cast<std::byte>(code_of[static_cast<uint8_t>(block.codes[i])] |
                                           code_of[static_cast<uint8_t>(block.codes[i + 1])] << 4);
    }
}

/// A row of Q5_0 as Q8_0.
void widen_q5_0(const void* row, int64_t cols, std::byte* to) {
    const auto* blocks = static_cast<const BlockQ5_0*>(row);
    for (int64_t b = 0; b < cols / kBlock; ++b, to += sizeof(BlockQ8_0)) {
        BlockQ8_0 out{.d = blocks[b].d, .qs = {}};
        for (int i = 0; i < kBlock; ++i) {
            const int low = blocks[b].qs[i % 16] >> (i / 16 * 4) & 15, high = blocks[b].qh[i / 8] >> (i % 8) & 1;
            out.qs[i] = static_cast<int8_t>((low | high << 4) - 16);
        }
        std::memcpy(to, &out, sizeof out);
    }
}

/// A row of Q3_K as Q6_K: the same d and scales, and q - 4 = (q + 28) - 32.
void widen_q3_k(const void* row, int64_t cols, std::byte* to) {
    const auto* blocks = static_cast<const BlockQ3K*>(row);
    for (int64_t b = 0; b < cols / kSuperBlock; ++b, to += sizeof(BlockQ6K)) {
        BlockQ6K out{};
        out.d = blocks[b].d;
        unpack_q3k_scales(blocks[b].scales, out.scales);
        for (int i = 0; i < kSuperBlock; ++i) {
            const int half = i / 128, s = i / 32 % 4, l = i % 32;
            const int low = blocks[b].qs[32 * half + l] >> (2 * s) & 3, high = blocks[b].hmask[l] >> (i / 32) & 1;
            const int q = (low | high << 2) + 28;
            out.ql[64 * half + 32 * (s & 1) + l] |= static_cast<uint8_t>((q & 15) << (s < 2 ? 0 : 4));
            out.qh[32 * half + l] |= static_cast<uint8_t>(q >> 4 << (2 * s));
        }
        std::memcpy(to, &out, sizeof out);
    }
}

/// A row of the file as one of plan.staged, which is another type.
void restage_row(const Weight& host, const Placement& plan, int64_t row, std::byte* to) {
    if (host.dtype == DType::nvfp4) pack_nvfp4_codes(host.row(row), host.cols, to);
    else if (host.dtype == DType::q5_0) widen_q5_0(host.row(row), host.cols, to);
    else if (host.dtype == DType::q3_k) widen_q3_k(host.row(row), host.cols, to);
    else pack_int8_codes(host, row, plan, to);
}

/// Entries of the plane of blocks that have an Int8Block, asked for one after the other.
class Int8Scales {
  public:
    Int8Scales(const Weight& host, const Placement& plan)
        : host_(host), per_block_(kSuperBlock / plan.w.scale_cols), per_row_(host.cols / plan.w.scale_cols) {}

    float operator()(int64_t i) {
        if (i / per_block_ != at_) {
            at_ = i / per_block_;
            const auto* row = static_cast<const std::byte*>(host_.row(i / per_row_));
            make_int8_block(host_.dtype, row + i % per_row_ / per_block_ * dtype_info(host_.dtype).block_bytes, block_);
        }
        return block_.scales[i % per_block_ * (16 / per_block_)];
    }

  private:
    const Weight& host_;
    const int64_t per_block_, per_row_;
    int64_t at_ = -1;
    Int8Block block_;
};

/// Entry i of the plane that NVFP4 blocks hold, halved as the plane wants it.
float nvfp4_scale(const Weight& host, int64_t i) {
    const int64_t groups = host.cols / 16, g = i % groups;
    const auto* block = static_cast<const BlockNvfp4*>(host.row(i / groups)) + g / 4;
    return f16_to_f32(repack::ue4m3_halved_f16(block->d[g % 4]));
}

}  // namespace

void stage_rows(const Weight& host, const Placement& plan, int64_t begin, int64_t count, std::byte* to) {
    if (plan.converted.empty() && plan.staged != host.dtype) {
        for (int64_t r = begin; r < begin + count; ++r, to += plan.staged_row_bytes) restage_row(host, plan, r, to);
        return;
    }
    if (plan.converted.empty() && !plan.scaled) {
        std::memcpy(to, host.row(begin), static_cast<size_t>(count * host.row_bytes));
        return;
    }
    std::vector<float> row(static_cast<size_t>(host.cols));
    for (int64_t r = begin; plan.scaled && r < begin + count; ++r, to += host.row_bytes) {
        dequantize_row(host, r, row.data());
        quantize(host.dtype, row.data(), to, host.cols);
    }
    if (plan.scaled) return;
    for (int64_t r = begin; r < begin + count; ++r) {
        dequantize_row(host, r, row.data());
        for (size_t c = 0; c < row.size(); ++c, to += 2) {
            RT_CHECK(!(std::fabs(row[c]) >= 65520.0f),
                     "a matrix of {} holds {} in row {}: too large for f16, and a GPU has no kernels for {}",
                     dtype_name(host.dtype), row[c], r, dtype_name(host.dtype));
            const uint16_t half = f32_to_f16(row[c]);
            std::memcpy(to, &half, 2);
        }
    }
}

void stage_scales(const Weight& host, const Placement& plan, int64_t begin, int64_t count, std::byte* to) {
    RT_ASSERT(plan.plane);
    const float halved = host.dtype == DType::f4_pack ? 0.5f : 1.0f;
    const float factor = plan.w.scale == host.scale ? 1.0f : host.scale;
    const int64_t size = dtype_info(plan.w.scale_dtype).block_bytes;
    if (host.scales != nullptr && host.scale_dtype == plan.w.scale_dtype && halved == 1.0f && factor == 1.0f) {
        std::memcpy(to, static_cast<const std::byte*>(host.scales) + begin * size, static_cast<size_t>(count * size));
        return;
    }
    Weight entries = host;  // its plane as one row
    entries.cols = scale_entries(plan.w);
    entries.scale_rows = entries.scale_cols = 1;
    Int8Scales of_blocks(host, plan);
    const bool blocks = int8_group(host.dtype) > 0;
    for (int64_t i = begin; i < begin + count; ++i, to += size) {
        const float stored = blocks                       ? of_blocks(i)
                             : host.dtype == DType::nvfp4 ? nvfp4_scale(host, i)
                                                          : entries.plane_scale(0, i) * halved;
        const float value = stored * factor;
        const uint16_t bits = plan.w.scale_dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
        if (size == 4) std::memcpy(to, &value, 4);
        else std::memcpy(to, &bits, 2);
    }
}

Weight place_on_host(const Weight& host, const Placement& plan, std::byte* base) {
    const Weight placed = plan.at(base);
    std::vector<std::byte> rows(static_cast<size_t>(plan.staged_row_bytes * host.rows));
    stage_rows(host, plan, 0, host.rows, rows.data());
    const RepackTask task{.from = reinterpret_cast<const uint8_t*>(rows.data()),
                          .from_row_bytes = plan.staged_row_bytes,
                          .source = plan.staged,
                          .to = placed,
                          .row_begin = 0,
                          .rows = host.rows};
    for (int64_t r = 0; r < host.rows; ++r)
        for (int64_t j = 0; j < repack_items(placed); ++j) repack_item(task, r, j);
    if (plan.plane)
        stage_scales(host, plan, 0, scale_entries(plan.w),
                     base + (static_cast<const std::byte*>(placed.scales) - base));
    return placed;
}

}  // namespace riptide
