// Where and how a model runs: what a Session and an Engine are both told.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cache/state_spec.h"
#include "engine/speculation/speculation_options.h"
#include "models/model.h"
#include "tensor/dtype.h"
#include "tensor/gpu.h"

namespace riptide {

struct SessionOptions {
    int threads = 0;             // 0: one for each hardware thread
    int64_t context = 0;         // tokens of prompt and answer together; 0: the model's max_position_embeddings
    DType k_dtype = DType::f16;  // how K and V are stored (quant/kv_codec.h)
    DType v_dtype = DType::f16;
    bool choose_kv = false;  // by default_kv_type() instead
    int32_t chunk_rows = 0;  // prompt tokens of a sequence in a step; 0: CPU 512, GPU up to 8192 (many answers: 4096)
    int32_t page_rows = 64;  // tokens in a K/V page
    ModelOptions model;
    std::optional<GpuOptions> gpu;  // run on this GPU
    SpeculationOptions speculation;
};

/// Throws Error (usage) for an option out of range.
void check_session_options(const SessionOptions& options);
/// The same for one option.
void check_option(std::string_view name, int64_t value, int64_t low, int64_t high);
/// What depends on the model: chooses K/V types if asked to. Throws Error (usage) for a context that it has no
/// positions for.
void fit_to_model(SessionOptions& options, const Model& model);

/// How K and V are stored unless someone says otherwise. On a GPU, whose memory is scarce and read for each token, the
/// cheapest type without measurable loss (docs/results/kv.md): q8_0, or f16 where heads are no whole blocks of it. On
/// the CPU f32: exact, and memory is only touched as it is used.
DType default_kv_type(std::span<const StateSpec> specs, bool on_gpu);

}  // namespace riptide
