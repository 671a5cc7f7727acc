#include "io/hf_config.h"

#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"

namespace riptide {

namespace {

// Reads `value` as T if it is one.
template <class T>
struct Kind;

template <>
struct Kind<bool> {
    static constexpr const char* kName = "true or false";
    static bool read(const json::value& value, bool& out) {
        if (!value.is_bool()) return false;
        out = value.as_bool();
        return true;
    }
};

template <>
struct Kind<int64_t> {
    static constexpr const char* kName = "an integer";
    static bool read(const json::value& value, int64_t& out) {
        if (!value.is_int64()) return false;  // uint64 holds only what is above int64's range
        out = value.as_int64();
        return true;
    }
};

template <>
struct Kind<int> {
    static constexpr const char* kName = "an integer of 32 bits";
    static bool read(const json::value& value, int& out) {
        int64_t wide = 0;
        if (!Kind<int64_t>::read(value, wide) || wide < std::numeric_limits<int>::min() ||
            wide > std::numeric_limits<int>::max())
            return false;
        out = static_cast<int>(wide);
        return true;
    }
};

template <>
struct Kind<double> {
    static constexpr const char* kName = "a number";
    static bool read(const json::value& value, double& out) {
        if (!value.is_number()) return false;
        out = value.is_double() ? value.as_double() : value.to_number<double>();
        return true;
    }
};

template <>
struct Kind<float> {
    static constexpr const char* kName = "a number";
    static bool read(const json::value& value, float& out) {
        double wide = 0;
        if (!Kind<double>::read(value, wide)) return false;
        out = static_cast<float>(wide);
        return true;
    }
};

template <>
struct Kind<std::string> {
    static constexpr const char* kName = "a string";
    static bool read(const json::value& value, std::string& out) {
        if (!value.is_string()) return false;
        out = value.as_string();
        return true;
    }
};

template <class T>
struct Kind<std::vector<T>> {
    static constexpr const char* kName = std::is_same_v<T, int64_t>  ? "an array of integers"
                                         : std::is_same_v<T, double> ? "an array of numbers"
                                         : std::is_same_v<T, bool>   ? "an array of true and false"
                                                                     : "an array of strings";
    static bool read(const json::value& value, std::vector<T>& out) {
        if (!value.is_array()) return false;
        out.reserve(value.as_array().size());
        for (const json::value& element : value.as_array()) {
            T one{};
            if (!Kind<T>::read(element, one)) return false;
            out.push_back(std::move(one));
        }
        return true;
    }
};

std::string shown(const json::value& value) {
    if (const json::array* array = value.if_array()) {
        if (array->size() > 8) return fmt::format("an array of {}", array->size());
    }
    if (value.is_object()) return "an object";
    return printable(json::serialize(value));
}

}  // namespace

const json::value* ConfigReader::lookup(std::string_view key) const {
    read_->insert(fmt::format("{}{}{}", path_, prefix_, key));
    const json::value* value =
        prefix_.empty() ? object_->if_contains(key) : object_->if_contains(prefix_ + std::string(key));
    return value && !value->is_null() ? value : nullptr;
}

std::string ConfigReader::name_of(std::string_view key) const {
    return fmt::format("{}: {}{}{}", source_, path_, prefix_, key);
}

void ConfigReader::fail_type(std::string_view key, const json::value& value, std::string_view expected) const {
    fail("{} is {}, expected {}", name_of(key), shown(value), expected);
}

template <class T>
T ConfigReader::get(std::string_view key) const {
    const json::value* value = lookup(key);
    RT_CHECK(value, "{}: missing key {}{}{} (expected {})", source_, path_, prefix_, key, Kind<T>::kName);
    T out{};
    if (!Kind<T>::read(*value, out)) fail_type(key, *value, Kind<T>::kName);
    return out;
}

template bool ConfigReader::get<bool>(std::string_view) const;
template int ConfigReader::get<int>(std::string_view) const;
template int64_t ConfigReader::get<int64_t>(std::string_view) const;
template float ConfigReader::get<float>(std::string_view) const;
template double ConfigReader::get<double>(std::string_view) const;
template std::string ConfigReader::get<std::string>(std::string_view) const;
template std::vector<int64_t> ConfigReader::get<std::vector<int64_t>>(std::string_view) const;
template std::vector<double> ConfigReader::get<std::vector<double>>(std::string_view) const;
template std::vector<bool> ConfigReader::get<std::vector<bool>>(std::string_view) const;
template std::vector<std::string> ConfigReader::get<std::vector<std::string>>(std::string_view) const;

std::vector<int64_t> ConfigReader::get_per_layer(std::string_view key, int64_t layers) const {
    if (!raw(key).is_array()) return std::vector<int64_t>(static_cast<size_t>(layers), get<int64_t>(key));
    std::vector<int64_t> values = get<std::vector<int64_t>>(key);
    RT_CHECK(std::ssize(values) == layers, "{} has {} values, expected one for each of {} layers", name_of(key),
             values.size(), layers);
    return values;
}

ConfigReader ConfigReader::child(std::string_view key) const {
    const json::value& value = raw(key);
    if (!value.is_object()) fail_type(key, value, "an object");
    ConfigReader nested(value.as_object(), source_);
    nested.path_ = fmt::format("{}{}{}.", path_, prefix_, key);
    nested.read_ = read_;
    return nested;
}

std::vector<std::pair<std::string, const json::value*>> ConfigReader::unread() const {
    std::vector<std::pair<std::string, const json::value*>> out;
    for (const auto& [key, value] : *object_) {
        if (value.is_null()) continue;
        if (!read_->contains(fmt::format("{}{}", path_, std::string_view(key)))) {
            out.emplace_back(key, &value);
        } else if (value.is_object()) {
            for (const auto& [inner, unread] : child(key).unread())
                out.emplace_back(fmt::format("{}.{}", std::string_view(key), inner), unread);
        }
    }
    return out;
}

const json::value& ConfigReader::raw(std::string_view key) const {
    const json::value* value = lookup(key);
    RT_CHECK(value, "{}: missing key {}{}{}", source_, path_, prefix_, key);
    return *value;
}

ConfigReader hf_config(const Checkpoint& checkpoint) {
    const json::value* config = checkpoint.metadata().if_contains("config");
    RT_CHECK(checkpoint.format() == Checkpoint::Format::safetensors && config, "{}: no config.json beside the weights",
             checkpoint.path());
    return ConfigReader(config->as_object(), "config.json");
}

ConfigReader gguf_config(const Checkpoint& checkpoint, std::string prefix) {
    RT_CHECK(checkpoint.format() == Checkpoint::Format::gguf, "{}: is not a GGUF file", checkpoint.path());
    return ConfigReader(checkpoint.metadata(), checkpoint.path(), std::move(prefix));
}

}  // namespace riptide
