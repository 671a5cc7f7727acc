#include "engine/session_options.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

void check_option(std::string_view name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) fail(ErrorKind::usage, "{} is {}, expected {} to {}", name, value, low, high);
}

void check_session_options(const SessionOptions& o) {
    check_option("threads", o.threads, 0, 4096);
    check_option("context", o.context, 0, INT32_MAX - 1);
    check_option("chunk_rows", o.chunk_rows, 0, 65536);
    check_option("page_rows", o.page_rows, 1, 65536);
    check_option("attention_window", o.model.attention_window, 0, INT32_MAX);
    check_speculation(o.speculation);
}

void fit_to_model(SessionOptions& options, const Model& model) {
    const ModelInfo& info = model.info();
    if (options.context > info.max_position_embeddings)
        fail(ErrorKind::usage, "context is {}, but {} has positions for {} tokens", options.context, info.name,
             info.max_position_embeddings);
    if (options.choose_kv)
        options.k_dtype = options.v_dtype = default_kv_type(model.state_specs(), options.gpu.has_value());
}

DType default_kv_type(std::span<const StateSpec> specs, bool on_gpu) {
    if (!on_gpu) return DType::f32;
    const bool fits = std::all_of(specs.begin(), specs.end(), [](const StateSpec& spec) {
        return !spec.has_kv() || spec.head_dim % dtype_info(DType::q8_0).block_elements == 0;
    });
    return fits ? DType::q8_0 : DType::f16;
}

}  // namespace riptide
