#include "engine/session_options.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace riptide {

void check_session_options(const SessionOptions& o) {
    const auto range = [](std::string_view name, int64_t value, int64_t low, int64_t high) {
        if (value < low || value > high) fail(ErrorKind::usage, "{} is {}, expected {} to {}", name, value, low, high);
    };
    range("threads", o.threads, 0, 4096);
    range("context", o.context, 0, INT32_MAX - 1);
    range("chunk_rows", o.chunk_rows, 0, 65536);
    range("page_rows", o.page_rows, 1, 65536);
}

DType default_kv_type(std::span<const StateSpec> specs, bool on_gpu) {
    if (!on_gpu) return DType::f32;
    const bool fits = std::all_of(specs.begin(), specs.end(), [](const StateSpec& spec) {
        return spec.kind == StateSpec::Kind::none || spec.head_dim % dtype_info(DType::q8_0).block_elements == 0;
    });
    return fits ? DType::q8_0 : DType::f16;
}

}  // namespace riptide
