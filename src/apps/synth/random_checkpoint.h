// A checkpoint of a real shape with random weights that lies in memory: to measure speed without a file.
#pragma once

#include <memory>
#include <string>

#include "io/checkpoint.h"

namespace riptide::apps {

/// Which experts rows choose.
enum class RandomRouting {
    alike,    // small embeddings: rows of one text have much in common, and choose 20 different experts for four rows
    uniform,  // large ones, which outweigh what layers add: rows choose by themselves, 256 (1 - (31/32)^n) of Laguna
              // XS.2's
    /// The same with biases in routers that fall off exponentially over the experts, in another order in each layer:
    /// by the perplexity of how often each is chosen about 160 of 256 experts count (of a trained Laguna XS.2 158), and
    /// 4, 8 and 16 rows choose 28.8, 51 and 84.
    skewed,
};

/// `what`: SHAPE or SHAPE:TYPE, a shape of `riptide synth` and one of its mixes (q4_k_m if left out), or fp8: Laguna's
/// official layout, feed-forward layers in e4m3 with a scale for each 128 x 128 block, all else in bf16. All tensors of
/// a type are overlapping views of one buffer of seeded values: layers resemble each other, a device's copies of them
/// are apart all the same. The vocabulary is made up. Memory: a little more than the largest tensor of each type.
/// Throws Error (usage) that names what is known.
std::unique_ptr<Checkpoint> random_checkpoint(const std::string& what, int threads,
                                              RandomRouting routing = RandomRouting::alike);

/// The same names, types and shapes without values: all weights are zeros that take no memory until somebody reads them.
/// For what follows from a model's shape: kernels, memory.
std::unique_ptr<Checkpoint> checkpoint_without_values(const std::string& what);

/// A DFlash drafter, in the same way: SHAPE:TYPE, of which SHAPE is the target's (find_drafter_shape()). TYPE: q8_0 if
/// left out, or what quantize makes drafters of; fc and the head are q8_0 at least.
std::unique_ptr<Checkpoint> random_drafter(const std::string& what, int threads);

}  // namespace riptide::apps
