#include "io/gguf.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"

namespace riptide {

namespace {

std::string part_suffix(int64_t part, int64_t parts) { return fmt::format("-{:05}-of-{:05}.gguf", part, parts); }

int64_t split_key(const json::object& metadata, std::string_view key, const std::string& file) {
    const json::value* value = metadata.if_contains(key);
    const int64_t* number = value ? value->if_int64() : nullptr;
    RT_CHECK(number && *number >= 0, "{}: a part of a split model without a usable {}", file, key);
    return *number;
}

/// Not so where nobody can say: then opening it tells why.
bool is_missing(const std::string& file) {
    std::error_code error;
    return !std::filesystem::exists(file, error) && !error;
}

}  // namespace

GgufFile::GgufFile(std::string path, std::span<const std::byte> image)
    : path_(std::move(path)), image_(parse_gguf(image, path_)) {}

std::unique_ptr<GgufFile> GgufFile::open(const std::string& path) { return open(MappedFile(path)); }

std::unique_ptr<GgufFile> GgufFile::open(MappedFile file) {
    std::unique_ptr<GgufFile> opened(new GgufFile(file.path(), file.bytes()));
    opened->files_.push_back(std::move(file));
    if (const std::string first = opened->first_part(); first != opened->path_) {
        RT_CHECK(!is_missing(first), ErrorKind::no_input, "{}: a part of a split model, whose first part {} is missing",
                 opened->path_, first);
        return open(first);
    }
    opened->open_parts();
    opened->table_ = TensorTable(std::move(opened->image_.tensors));
    return opened;
}

std::unique_ptr<GgufFile> GgufFile::from_memory(std::span<const std::byte> image, const std::string& name) {
    std::unique_ptr<GgufFile> opened(new GgufFile(name, image));
    const json::value* parts = opened->image_.metadata.if_contains("split.count");
    RT_CHECK(!parts || (parts->is_int64() && parts->as_int64() <= 1),
             "{}: a part of a split model cannot be read from memory", name);
    opened->table_ = TensorTable(std::move(opened->image_.tensors));
    return opened;
}

int64_t GgufFile::parts() const {
    return image_.metadata.contains("split.count") ? split_key(image_.metadata, "split.count", path_) : 1;
}

// Of a split model there are split.count files named alike, numbered from 1; each says split.no from 0, and the first
// alone carries the model's metadata. Who names another part means the model.
std::string GgufFile::first_part() const {
    if (parts() <= 1) return path_;
    const int64_t number = split_key(image_.metadata, "split.no", path_);
    const std::string suffix = part_suffix(number + 1, parts());
    RT_CHECK(number < parts() && path_.ends_with(suffix),
             "{}: part {} of {} of a split model, whose name should end in {}", path_, number + 1, parts(), suffix);
    return path_.substr(0, path_.size() - suffix.size()) + part_suffix(1, parts());
}

void GgufFile::open_parts() {
    const int64_t parts = this->parts();
    if (parts <= 1) return;
    const std::string stem = path_.substr(0, path_.size() - part_suffix(1, parts).size());
    for (int64_t part = 1; part < parts; ++part) {
        const std::string file = stem + part_suffix(part + 1, parts);
        RT_CHECK(!is_missing(file), ErrorKind::no_input, "{}: part {} of {} of the split model is missing", file,
                 part + 1, parts);
        MappedFile map(file);
        GgufImage more = parse_gguf(map.bytes(), file);
        RT_CHECK(split_key(more.metadata, "split.count", file) == parts &&
                     split_key(more.metadata, "split.no", file) == part,
                 "{}: is not part {} of {} of a split model, as its name says", file, part + 1, parts);
        std::move(more.tensors.begin(), more.tensors.end(), std::back_inserter(image_.tensors));
        files_.push_back(std::move(map));
    }
    if (!image_.metadata.contains("split.tensors.count")) return;
    const int64_t expected = split_key(image_.metadata, "split.tensors.count", path_);
    RT_CHECK(expected == std::ssize(image_.tensors),
             "{}: the {} parts hold {} tensors, expected {}: parts of different models?", path_, parts,
             image_.tensors.size(), expected);
}

void GgufFile::check_intact() const {
    for (const MappedFile& file : files_) file.check_intact();
}

GgufValueType GgufFile::type_of(std::string_view key) const {
    const auto entry = image_.metadata.find(key);
    RT_CHECK(entry != image_.metadata.end(), "{}: missing key {}", path_, printable(key));
    return image_.types[static_cast<size_t>(entry - image_.metadata.begin())];
}

}  // namespace riptide
