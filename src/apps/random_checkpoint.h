// A checkpoint of a real shape with random weights that lies in memory: to measure speed without a file.
#pragma once

#include <memory>
#include <string>

#include "io/checkpoint.h"

namespace riptide::apps {

/// `what`: SHAPE or SHAPE:TYPE, a shape of `riptide synth` and one of its mixes (q4_k_m if left out), or fp8: Laguna's
/// official layout, feed-forward layers in e4m3 with a scale for each 128 x 128 block, all else in bf16. All tensors of
/// a type are overlapping views of one buffer of seeded values: layers resemble each other, a device's copies of them
/// are apart all the same. The vocabulary is made up. Memory: a little more than the largest tensor of each type.
/// Throws Error (usage) that names what is known.
std::unique_ptr<Checkpoint> random_checkpoint(const std::string& what, int threads);

}  // namespace riptide::apps
