#include "models/facts.h"

#include "models/binder.h"
#include "quant/planes.h"

namespace riptide {

void TokenCost::add(const Weight& w, int64_t times) {
    parameters += times * w.rows * w.cols;
    bytes += times * bytes_read(w);
}

void TokenCost::add_row(const Weight& w) {
    parameters += w.cols;
    bytes += is_planes(w.dtype) ? bytes_read(w) / w.rows : w.row_bytes;
}

void TokenCost::add(std::span<const float> values) {
    parameters += static_cast<int64_t>(values.size());
    bytes += static_cast<int64_t>(values.size() * sizeof(float));
}

std::string model_name(const Checkpoint& checkpoint) {
    const json::value* name = checkpoint.metadata().if_contains("general.name");
    if (name != nullptr && name->is_string() && !name->as_string().empty()) return std::string(name->as_string());
    std::string path = checkpoint.path();
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path.substr(path.rfind('/') + 1);
}

}  // namespace riptide
