// Which kernels a GPU runs for the ops of a model, as the plans in ops/cuda/*/plan.h say: for any chip, on any machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/cuda/device/chip.h"
#include "tensor/context.h"

namespace riptide::ops {

/// A step: rows of so many sequences, which see at most `keys` keys. More than 256 rows are of the prefill family.
struct PlannedStep {
    int64_t rows = 1, sequences = 1, keys = 4096;
    DType k = DType::f8_e4m3, v = DType::f8_e4m3;
    cuda::Chip chip;
};
/// file: below src/ops/cuda.
struct PlannedKernel {
    std::string name, file;
};

/// The kernels that a GPU runs for an op that Context::on_op was told of on the CPU, in order, each once. Weights count
/// as placed on a GPU, and x as its op before leaves it. Those that the plans choose alone: kernels that prepare rows,
/// sort or add up belong to them. Gated DeltaNet chooses by the device's room: the file that does is named. Empty: the
/// op has no plan (norms, rotations, embeddings, elementwise: one kernel each).
std::vector<PlannedKernel> planned_kernels(const OpCost& op, const PlannedStep& step);

}  // namespace riptide::ops
