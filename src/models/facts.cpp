#include "models/facts.h"

#include "base/error.h"
#include "base/json.h"
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

int64_t read_uniform(const ConfigReader& keys, std::string_view key, int64_t layers) {
    const std::vector<int64_t> values = keys.get_per_layer(key, layers);
    for (const int64_t value : values)
        RT_CHECK(value == values[0], "{} differs between layers ({} and {}), expected one value", keys.name_of(key),
                 values[0], value);
    return values[0];
}

std::vector<char> read_flags(const ConfigReader& keys, std::string_view key, int64_t layers) {
    const json::value& value = keys.raw(key);
    RT_CHECK(value.is_array() && std::ssize(value.as_array()) == layers, "{}: expected one value for each of {} layers",
             keys.name_of(key), layers);
    std::vector<char> flags;
    for (const json::value& flag : value.as_array()) {
        const bool number = flag.is_int64() && (flag.as_int64() == 0 || flag.as_int64() == 1);
        RT_CHECK(flag.is_bool() || number, "{}[{}] is {}, expected 0 or 1", keys.name_of(key), flags.size(),
                 json::serialize(flag));
        flags.push_back(flag.is_bool() ? flag.as_bool() : flag.as_int64() == 1);
    }
    return flags;
}

}  // namespace riptide
