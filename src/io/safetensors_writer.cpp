#include "io/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/json.h"
#include "io/content.h"
#include "io/tensor_table.h"

namespace riptide {

namespace {

std::string json_quoted(std::string_view text) { return json::serialize(json::string(text)); }

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path) : path_(path), file_(std::in_place, path) {}

SafetensorsWriter::SafetensorsWriter(std::vector<std::byte>& out) : path_("memory"), memory_(&out) {}

void SafetensorsWriter::set_metadata(std::string_view key, std::string_view value) {
    RT_CHECK(!header_written_, "{}: the header is written already, nothing can be added to it", path_);
    metadata_.insert_or_assign(std::string(key), std::string(value));
}

void SafetensorsWriter::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> shape) {
    const std::string what = fmt::format("{}: tensor {}", path_, printable(name));
    RT_CHECK(!header_written_, "{}: the header is written already, nothing can be added to it", path_);
    RT_CHECK(!name.empty() && name != "__metadata__", "{}: a tensor cannot be named \"{}\"", path_, name);
    RT_CHECK(!names_.contains(name), "{} is added twice", what);
    const std::string_view stored = dtype_info(dtype).safetensors;
    RT_CHECK(!stored.empty(), "{} is {}, which safetensors cannot hold", what, dtype_name(dtype));
    RT_CHECK(std::all_of(shape.begin(), shape.end(), [](int64_t dim) { return dim > 0; }),
             "{} has shape {}, expected no dimension below 1", what, shape_text(shape));
    const int64_t end = checked_add(declared_, stored_bytes(what, dtype, shape), "tensor data");
    names_.emplace(name);
    entries_ += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                            entries_.empty() ? "" : ",", json_quoted(name), stored, fmt::join(shape, ","), declared_, end);
    declared_ = end;
}

void SafetensorsWriter::write_header() {
    header_written_ = true;
    std::string text = "{";
    if (!metadata_.empty()) {
        text += "\"__metadata__\":{";
        for (const auto& [key, value] : metadata_)
            text += fmt::format("{}{}:{}", text.back() == '{' ? "" : ",", json_quoted(key), json_quoted(value));
        text += entries_.empty() ? "}" : "},";
    }
    text += entries_ + "}";
    text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data, and each tensor of 8-byte values, is aligned
    const uint64_t length = text.size();
    emit(std::as_bytes(std::span(&length, 1)));
    emit(std::as_bytes(std::span(text.data(), text.size())));
}

void SafetensorsWriter::emit(std::span<const std::byte> bytes) {
    if (file_) {
        file_->write(bytes);
    } else {
        memory_->insert(memory_->end(), bytes.begin(), bytes.end());
    }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
    RT_CHECK(!finished_, "{}: written after finish", path_);
    if (!header_written_) write_header();
    RT_CHECK(std::ssize(bytes) <= declared_ - written_, "{}: {} bytes of data were declared, {} were written", path_,
             declared_, written_ + std::ssize(bytes));
    emit(bytes);
    written_ += std::ssize(bytes);
}

void SafetensorsWriter::finish() {
    write({});
    RT_CHECK(written_ == declared_, "{}: {} bytes of data were declared, only {} were written", path_, declared_,
             written_);
    if (file_) file_->commit();
    finished_ = true;
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
    SafetensorsWriter writer(path);
    for (const auto& [key, value] : metadata) writer.set_metadata(key, value);
    for (const NamedTensor& tensor : tensors) {
        const std::string what = fmt::format("{}: tensor {}", path, printable(tensor.name));
        const int64_t expected = stored_bytes(what, tensor.dtype, tensor.shape);
        RT_CHECK(std::ssize(tensor.bytes) == expected, "{} {} has {} bytes, expected {}", what,
                 shape_text(tensor.shape), tensor.bytes.size(), expected);
        writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    }
    for (const NamedTensor& tensor : tensors) writer.write(tensor.bytes);
    writer.finish();
}

}  // namespace riptide
