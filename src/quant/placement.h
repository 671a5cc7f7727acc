// What becomes of one matrix of a file on a GPU: type, planes, bytes. Host code; the engine room of WeightStore.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace riptide {

struct PlacementRules {
    bool bf16 = true;         // an f32 matrix that bf16 can hold becomes bf16
    bool f16 = false;         // becomes f16, whatever it is
    bool fold_scale = false;  // Weight::scale goes into an f32 scale plane, for stacks whose experts differ in it
};

/// A placed matrix is one stretch of memory: data, high, scales, each beginning at a multiple of 256 bytes.
struct Placement {
    Weight w;                   // as it will be, without memory
    DType staged = DType::f32;  // the rows that repack_item() takes: as in the file, or what stage_rows() makes of them
    int64_t staged_row_bytes = 0;
    int64_t data_bytes = 0;
    int64_t high_bytes = 0;
    int64_t scale_bytes = 0;
    bool scaled = false;    // Weight::scale, a power of two, goes into the values
    bool plane = false;     // the scale plane does not come from the rows but from stage_scales()
    std::string converted;  // why the values were rounded to f16; empty: they were not

    int64_t bytes() const;
    Weight at(const std::byte* base) const;
};
/// A power of two as Weight::scale goes where it is exact, so that kernels need not know of it: into values of f32 and
/// bf16, and into planes of f32 and bf16. In f16, and in other scales, it stays.
Placement plan_placement(const Weight& host, const PlacementRules& rules = {});
/// Whether the two differ in where they lie and what they hold alone.
bool same_layout(const Placement& a, const Placement& b);

/// Rows [begin, begin + count) as repack_item() wants them, staged_row_bytes each. Throws Error if a value does not fit
/// f16. Thread-safe.
void stage_rows(const Weight& host, const Placement& plan, int64_t begin, int64_t count, std::byte* to);
/// Entries [begin, begin + count) of the scale plane in their final form. REQUIRES plan.plane. Thread-safe.
void stage_scales(const Weight& host, const Placement& plan, int64_t begin, int64_t count, std::byte* to);

/// The whole matrix into the host memory at base, plan.bytes(), 16-byte aligned: what a GPU must hold, byte for byte.
Weight place_on_host(const Weight& host, const Placement& plan, std::byte* base);

}  // namespace riptide
