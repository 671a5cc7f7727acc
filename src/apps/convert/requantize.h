// Weights that are quantised while a model is opened: --weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "io/checkpoint.h"

namespace riptide::apps {

/// What --weights did to a model.
struct RequantizeReport {
    std::string mix;                         // by its own name
    std::map<DType, int64_t> before, after;  // bytes of tensors by their types
    int64_t tensors = 0;                     // of the model
    int64_t stayed = 0;                      // of them: already no larger than the mix makes them
    std::string kept_whole;                  // why nothing was changed; empty: something was
    /// By type: sum over its tensors of n sqrt(sum (w - w')^2 / sum w^2), and of n, the tensor's values.
    struct Loss {
        double weighted = 0;
        int64_t values = 0;
        double relative() const { return values == 0 ? 0 : weighted / static_cast<double>(values); }
    };
    std::map<DType, Loss> loss;
    double seconds = 0;
};

/// How a model is requantised. `mix` as quant_mix_type knows it.
struct RequantizeOptions {
    std::string mix;
    int threads = 0;     // 0: all
    bool values = true;  // false: for reckoning; what would be made is zeros that take no memory
    std::function<void(int64_t done, int64_t total)> on_progress = {};  // bytes made
};

/// `checkpoint` (safetensors or GGUF) as the file that `riptide quantize` would write of it in `mix`: the same keys and
/// the same bytes of every tensor (quantize_jobs.h), in memory. But nothing becomes larger: a tensor stays as it is
/// where its bits a value, scales included, are fewer than the mix's (or as many, below 16), unless the mix wants it
/// exact (f32: norms, routers). Codes with scales apart (FP8, INT4, INT8, NVFP4 of a folder) cannot stand in a GGUF:
/// they are compared with the type that the mix has for rows of any width, and where one should stay, or nothing would
/// change, the result is the checkpoint itself and `report` says why.
/// Memory: the tensors that are made, and pieces of 32 MiB; those that stay are views of the files, and files that were
/// read leave this process's memory piece by piece.
/// The name of the weights (Checkpoint::made) says the mix. Throws Error: before any work for a mix that cannot be
/// written, for a model that cannot be loaded and when the machine has less memory than what would be made takes;
/// for values that no block can hold; when interrupted().
std::unique_ptr<Checkpoint> requantize(std::unique_ptr<Checkpoint> checkpoint, const RequantizeOptions& options,
                                       RequantizeReport& report);

/// For people, a line or two: types and sizes before and after, seconds, what stayed, and the relative errors.
std::string describe(const RequantizeReport& report);

}  // namespace riptide::apps
