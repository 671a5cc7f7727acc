#include "io/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "base/json.h"
#include "io/content.h"

namespace riptide {

namespace {

using Bytes = std::vector<std::byte>;

template <class T>
void put(Bytes& out, T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), p, p + sizeof value);
}

void put_string(Bytes& out, std::string_view text) {
    put<uint64_t>(out, text.size());
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
bool put_number(Bytes& out, const json::value& value) {
    if constexpr (std::is_floating_point_v<T>) {
        if (!value.is_number()) return false;
        const auto wide = value.is_double() ? value.as_double() : value.to_number<double>();
        if (std::isfinite(wide) && std::abs(wide) > static_cast<double>(std::numeric_limits<T>::max())) return false;
        put(out, static_cast<T>(wide));
        return true;
    } else {
        json::error_code error;
        const T number = value.is_number() && !value.is_double() ? value.to_number<T>(error) : T{};
        if (error || !value.is_number() || value.is_double()) return false;
        put(out, number);
        return true;
    }
}

// False if `value` is not of that type or out of its range.
bool put_scalar(Bytes& out, GgufType type, const json::value& value) {
    switch (type) {
        case GgufType::u8:
            return put_number<uint8_t>(out, value);
        case GgufType::i8:
            return put_number<int8_t>(out, value);
        case GgufType::u16:
            return put_number<uint16_t>(out, value);
        case GgufType::i16:
            return put_number<int16_t>(out, value);
        case GgufType::u32:
            return put_number<uint32_t>(out, value);
        case GgufType::i32:
            return put_number<int32_t>(out, value);
        case GgufType::u64:
            return put_number<uint64_t>(out, value);
        case GgufType::i64:
            return put_number<int64_t>(out, value);
        case GgufType::f32:
            return put_number<float>(out, value);
        case GgufType::f64:
            return put_number<double>(out, value);
        case GgufType::boolean:
            if (!value.is_bool()) return false;
            put<uint8_t>(out, value.as_bool() ? 1 : 0);
            return true;
        case GgufType::string:
            if (!value.is_string()) return false;
            put_string(out, value.as_string());
            return true;
        case GgufType::array:
            return false;
    }
    return false;
}

Bytes encode(GgufValueType type, const json::value& value, const std::string& what) {
    Bytes out;
    put<uint32_t>(out, static_cast<uint32_t>(type.type));
    if (type.type != GgufType::array) {
        RT_CHECK(put_scalar(out, type.type, value), "{} is not a {}", what, gguf_type_name(type.type));
        return out;
    }
    RT_CHECK(value.is_array(), "{} is not an array", what);
    const json::array& values = value.as_array();
    put<uint32_t>(out, static_cast<uint32_t>(type.element));
    put<uint64_t>(out, values.size());
    for (size_t i = 0; i < values.size(); ++i)
        RT_CHECK(put_scalar(out, type.element, values[i]), "{}: element {} is not a {}", what, i,
                 gguf_type_name(type.element));
    return out;
}

}  // namespace

GgufWriter::GgufWriter(const std::string& path) : path_(path), file_(std::in_place, path) {}

GgufWriter::GgufWriter(std::vector<std::byte>& out) : path_("memory"), memory_(&out) {}

void GgufWriter::check_declaring() const {
    RT_CHECK(!header_written_, "{}: the header is written already, nothing can be added to it", path_);
}

void GgufWriter::set(std::string_view key, GgufValueType type, const json::value& value) {
    check_declaring();
    RT_CHECK(!key.empty() && key.size() <= 65535, "{}: a key of {} bytes, expected 1 to 65535", path_, key.size());
    Bytes encoded = encode(type, value, fmt::format("{}: key {}", path_, printable(key)));
    if (key == "general.alignment") {
        const json::value* number = type == GgufValueType::scalar(GgufType::u32) ? &value : nullptr;
        const auto alignment = number ? number->to_number<uint64_t>() : 0;
        RT_CHECK(std::has_single_bit(alignment) && alignment >= 8 && alignment <= (1u << 20),
                 "{}: general.alignment must be a u32 power of two from 8 to 1048576", path_);
        alignment_ = static_cast<int64_t>(alignment);
    }
    if (const auto known = key_index_.find(key); known != key_index_.end()) {
        key_values_[known->second].encoded = std::move(encoded);
        return;
    }
    key_index_.emplace(key, key_values_.size());
    key_values_.push_back({std::string(key), std::move(encoded)});
}

void GgufWriter::set_u32(std::string_view key, uint32_t value) {
    set(key, GgufValueType::scalar(GgufType::u32), value);
}
void GgufWriter::set_i32(std::string_view key, int32_t value) { set(key, GgufValueType::scalar(GgufType::i32), value); }
void GgufWriter::set_f32(std::string_view key, float value) {
    set(key, GgufValueType::scalar(GgufType::f32), static_cast<double>(value));
}
void GgufWriter::set_bool(std::string_view key, bool value) {
    set(key, GgufValueType::scalar(GgufType::boolean), json::value(value));
}
void GgufWriter::set_string(std::string_view key, std::string_view value) {
    set(key, GgufValueType::scalar(GgufType::string), json::value(json::string(value)));
}
void GgufWriter::set_strings(std::string_view key, std::span<const std::string> values) {
    json::array array;
    array.reserve(values.size());
    for (const std::string& value : values) array.emplace_back(json::string(value));
    set_array(key, GgufType::string, array);
}
void GgufWriter::set_array(std::string_view key, GgufType element, const json::array& values) {
    set(key, GgufValueType::array_of(element), values);
}

void GgufWriter::copy_metadata(const GgufFile& file, std::string_view without) {
    for (const auto& entry : file.metadata())
        if (const std::string_view key = entry.key(); !key.starts_with("split.") && !key.starts_with(without))
            set(entry.key(), file.type_of(entry.key()), entry.value());
}

void GgufWriter::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> shape) {
    check_declaring();
    const std::string shown = printable(name);
    RT_CHECK(!name.empty() && name.size() <= 65535, "{}: a tensor name of {} bytes, expected 1 to 65535", path_,
             name.size());
    RT_CHECK(!tensor_names_.contains(name), "{}: tensor {} is added twice", path_, shown);
    RT_CHECK(dtype_info(dtype).gguf_type >= 0, "{}: tensor {} is {}, which GGUF cannot hold", path_, shown,
             dtype_name(dtype));
    RT_CHECK(!shape.empty() && shape.size() <= 4, "{}: tensor {} has {} dimensions, expected 1 to 4", path_, shown,
             shape.size());
    RT_CHECK(std::all_of(shape.begin(), shape.end(), [](int64_t dim) { return dim > 0; }),
             "{}: tensor {} has shape {}, expected no dimension below 1", path_, shown, shape_text(shape));
    const int64_t bytes = stored_bytes(fmt::format("{}: tensor {}", path_, shown), dtype, shape);
    tensor_names_.emplace(name);
    tensors_.push_back({std::string(name), dtype, {shape.begin(), shape.end()}, bytes});
}

void GgufWriter::write_header() {
    header_written_ = true;
    Bytes header;
    for (const char c : {'G', 'G', 'U', 'F'}) put(header, c);
    put<uint32_t>(header, 3);
    put<uint64_t>(header, tensors_.size());
    put<uint64_t>(header, key_values_.size());
    for (const KeyValue& entry : key_values_) {
        put_string(header, entry.key);
        header.insert(header.end(), entry.encoded.begin(), entry.encoded.end());
    }
    int64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
        put_string(header, tensor.name);
        put<uint32_t>(header, static_cast<uint32_t>(tensor.shape.size()));
        for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) put<int64_t>(header, *dim);
        put<uint32_t>(header, static_cast<uint32_t>(dtype_info(tensor.dtype).gguf_type));
        put<uint64_t>(header, static_cast<uint64_t>(offset));
        offset = checked_add(offset, tensor.bytes, "tensor data");
        offset = checked_add(offset, alignment_ - 1, "tensor data") / alignment_ * alignment_;
    }
    emit(header);
    pad();
}

void GgufWriter::emit(std::span<const std::byte> bytes) {
    if (file_) {
        file_->write(bytes);
    } else {
        memory_->insert(memory_->end(), bytes.begin(), bytes.end());
    }
    position_ += std::ssize(bytes);
}

void GgufWriter::pad() {
    const int64_t rest = position_ % alignment_;
    if (rest != 0) emit(Bytes(static_cast<size_t>(alignment_ - rest)));
}

void GgufWriter::write(std::span<const std::byte> bytes) {
    RT_CHECK(!finished_, "{}: written after finish", path_);
    if (!header_written_) write_header();
    if (bytes.empty()) return;
    RT_CHECK(tensor_ < tensors_.size(), "{}: {} bytes of data after the last tensor", path_, bytes.size());
    const Tensor& tensor = tensors_[tensor_];
    RT_CHECK(std::ssize(bytes) <= tensor.bytes - tensor_written_, "{}: tensor {} has {} bytes, {} were written", path_,
             printable(tensor.name), tensor.bytes, tensor_written_ + std::ssize(bytes));
    emit(bytes);
    tensor_written_ += std::ssize(bytes);
    if (tensor_written_ < tensor.bytes) return;
    pad();
    ++tensor_;
    tensor_written_ = 0;
}

void GgufWriter::write_tensor(std::string_view name, std::span<const std::byte> bytes) {
    RT_CHECK(tensor_ < tensors_.size() && tensors_[tensor_].name == name && tensor_written_ == 0,
             "{}: tensor {} is not the next to be written", path_, printable(name));
    RT_CHECK(std::ssize(bytes) == tensors_[tensor_].bytes, "{}: tensor {} has {} bytes, {} were given", path_,
             printable(name), tensors_[tensor_].bytes, bytes.size());
    write(bytes);
}

void GgufWriter::finish() {
    write({});
    RT_CHECK(tensor_ == tensors_.size(), "{}: tensor {} is not complete", path_, printable(tensors_[tensor_].name));
    if (file_) file_->commit();
    finished_ = true;
}

int64_t GgufWriter::tensor_bytes() const {
    int64_t sum = 0;
    for (const Tensor& tensor : tensors_) sum = checked_add(sum, tensor.bytes, "tensor data");
    return sum;
}

}  // namespace riptide
