#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"
#include "io/foreign_format.h"

namespace riptide {

static_assert(std::endian::native == std::endian::little,
              "safetensors is read and written as the machine's own byte order");

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxDims = 8;
constexpr int kMaxDepth = 8;

// The JSON parser keeps the last of two equal keys. In text that is known to be valid JSON, an object's keys are the
// strings before a colon, so the keys at depth 1 can be read off and compared.
void refuse_duplicate_names(std::string_view text, size_t members, const std::string& file) {
    std::set<std::string, std::less<>> seen;
    size_t names = 0;
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c != '"') continue;
        const size_t start = i++;
        while (text[i] != '"') i += text[i] == '\\' ? 2 : 1;
        const size_t colon = text.find_first_not_of(" \t\r\n", i + 1);
        if (depth != 1 || text[colon] != ':') continue;
        ++names;
        if (!seen.emplace(text.substr(start + 1, i - start - 1)).second)
            fail("{}: tensor {} is there twice", file, printable(text.substr(start + 1, i - start - 1)));
    }
    RT_CHECK(names == members, "{}: two tensors have one name, spelled with different escapes", file);
}

std::string_view header_text(std::span<const std::byte> image, const std::string& file) {
    RT_CHECK(image.size() >= 8, "{}: not a safetensors file: {}", file, describe_content(image));
    uint64_t length = 0;
    std::memcpy(&length, image.data(), sizeof length);
    if (!looks_like_safetensors(image)) {
        const bool too_long = length > kMaxHeader && image.size() > 8 && static_cast<char>(image[8]) == '{';
        RT_CHECK(!too_long, "{}: its header claims {} bytes, at most {} are allowed", file, length, kMaxHeader);
        fail("{}: not a safetensors file: {}", file, describe_content(image));
    }
    RT_CHECK(length <= image.size() - 8, "{}: truncated: the header needs bytes 8-{}, file has {}", file, length + 8,
             image.size());
    return {reinterpret_cast<const char*>(image.data()) + 8, static_cast<size_t>(length)};
}

const json::value& member(const json::object& entry, std::string_view key, const std::string& what) {
    const json::value* value = entry.if_contains(key);
    RT_CHECK(value, "{} has no {}", what, key);
    return *value;
}

int64_t whole_number(const json::value& value, std::string_view key, const std::string& what) {
    const int64_t* number = value.if_int64();
    RT_CHECK(number && *number >= 0, "{}: {} contains {}, expected whole numbers from 0", what, key,
             printable(json::serialize(value)));
    return *number;
}

std::vector<int64_t> whole_numbers(const json::object& entry, std::string_view key, const std::string& what) {
    const json::array* values = member(entry, key, what).if_array();
    RT_CHECK(values, "{}: {} is not an array", what, key);
    std::vector<int64_t> numbers;
    for (const json::value& value : *values) numbers.push_back(whole_number(value, key, what));
    return numbers;
}

struct HeaderEntry {
    size_t index = 0;
    int64_t begin = 0;
    int64_t end = 0;
};

HeaderEntry read_entry(const json::value& value, TensorInfo& tensor) {
    const std::string what = fmt::format("{}: tensor {}", tensor.file, printable(tensor.name));
    const json::object* entry = value.if_object();
    RT_CHECK(entry, "{} is not described by an object", what);
    const json::string* dtype = member(*entry, "dtype", what).if_string();
    RT_CHECK(dtype, "{}: dtype is not a string", what);
    const auto known = dtype_from_safetensors(*dtype);
    RT_CHECK(known, "{} has dtype {}, which is not supported{}{}", what, printable(*dtype),
             *dtype == "U32" ? " (MLX packs its quantised weights so): " : "", *dtype == "U32" ? kReadableInstead : "");
    tensor.dtype = *known;
    tensor.shape = whole_numbers(*entry, "shape", what);
    RT_CHECK(tensor.shape.size() <= kMaxDims, "{} has {} dimensions, at most {} are supported", what,
             tensor.shape.size(), kMaxDims);
    RT_CHECK(std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim > 0; }),
             "{} has shape {}, expected no dimension of 0", what, shape_text(tensor.shape));
    const std::vector<int64_t> offsets = whole_numbers(*entry, "data_offsets", what);
    RT_CHECK(offsets.size() == 2 && offsets[0] <= offsets[1], "{}: data_offsets is {}, expected [begin, end]", what,
             shape_text(offsets));
    const int64_t bytes = stored_bytes(what, tensor.dtype, tensor.shape);
    RT_CHECK(bytes == offsets[1] - offsets[0], "{} {} {} has {} bytes, expected {}", what, dtype_name(tensor.dtype),
             shape_text(tensor.shape), offsets[1] - offsets[0], bytes);
    return {0, offsets[0], offsets[1]};
}

// Gives each tensor its bytes, after checking that together they are the data, whole and once.
void place_listed_tensors(std::span<const std::byte> image, int64_t data, std::vector<HeaderEntry> entries, const std::string& file,
                   std::vector<TensorInfo>& tensors) {
    std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) { return a.begin < b.begin; });
    int64_t end = 0;
    std::string previous = "the header";
    for (const HeaderEntry& entry : entries) {
        TensorInfo& tensor = tensors[entry.index];
        const std::string name = "tensor " + printable(tensor.name);
        RT_CHECK(entry.begin >= end, "{}: {} overlaps {}", file, name, previous);
        RT_CHECK(entry.begin == end, "{}: {} unused bytes between {} and {}", file, entry.begin - end, previous, name);
        end = entry.end;
        RT_CHECK(end <= std::ssize(image) - data, "{}: truncated: {} needs bytes {}-{}, file has {}", file, name,
                 data + entry.begin, static_cast<uint64_t>(data) + static_cast<uint64_t>(end), image.size());
        tensor.bytes = image.subspan(static_cast<size_t>(data + entry.begin), static_cast<size_t>(end - entry.begin));
        previous = name;
    }
    RT_CHECK(data + end == std::ssize(image), "{}: {} bytes too many: the last tensor ends at byte {}, file has {}",
             file, std::ssize(image) - data - end, data + end, image.size());
}

}  // namespace

SafetensorsImage parse_safetensors(std::span<const std::byte> image, const std::string& file) {
    const std::string_view text = header_text(image, file);
    const json::value root = parse_json(text, file + ": header", kMaxDepth);
    const json::object* header = root.if_object();
    RT_CHECK(header, "{}: its header is not a JSON object", file);
    refuse_duplicate_names(text, header->size(), file);
    SafetensorsImage parsed;
    std::vector<HeaderEntry> entries;
    for (const auto& [name, value] : *header) {
        if (name == "__metadata__") {
            RT_CHECK(value.is_object(), "{}: __metadata__ is not an object", file);
            for (const auto& [key, word] : value.as_object())
                RT_CHECK(word.is_string(), "{}: __metadata__ {} is not a string", file, printable(key));
            parsed.metadata = value.as_object();
            continue;
        }
        TensorInfo& tensor = parsed.tensors.emplace_back();
        tensor.name = name;
        tensor.file = file;
        entries.push_back(read_entry(value, tensor));
        entries.back().index = parsed.tensors.size() - 1;
    }
    place_listed_tensors(image, static_cast<int64_t>(text.size()) + 8, std::move(entries), file, parsed.tensors);
    return parsed;
}

void SafetensorsModel::add_image(SafetensorsImage image, std::vector<TensorInfo>& tensors) {
    std::move(image.tensors.begin(), image.tensors.end(), std::back_inserter(tensors));
    if (image.metadata.empty()) return;
    json::object& all = metadata_["__metadata__"].is_object() ? metadata_["__metadata__"].as_object()
                                                              : metadata_["__metadata__"].emplace_object();
    for (const auto& entry : image.metadata) all.emplace(entry.key(), entry.value());
}

std::unique_ptr<SafetensorsModel> SafetensorsModel::from_memory(std::span<const std::byte> image,
                                                                const std::string& name) {
    std::unique_ptr<SafetensorsModel> model(new SafetensorsModel(name));
    std::vector<TensorInfo> tensors;
    model->add_image(parse_safetensors(image, name), tensors);
    model->table_ = TensorTable(std::move(tensors));
    return model;
}

std::unique_ptr<SafetensorsModel> SafetensorsModel::open(MappedFile file) {
    std::unique_ptr<SafetensorsModel> model(new SafetensorsModel(file.path()));
    SafetensorsImage image = parse_safetensors(file.bytes(), file.path());
    const std::string folder = std::filesystem::path(file.path()).parent_path().string();
    model->metadata_ = load_hf_metadata(folder.empty() ? "." : folder);
    std::vector<TensorInfo> tensors;
    model->add_image(std::move(image), tensors);
    model->table_ = TensorTable(std::move(tensors));
    model->files_.push_back(std::move(file));
    return model;
}

std::unique_ptr<SafetensorsModel> SafetensorsModel::open(const std::string& path) {
    std::error_code ignored;  // MappedFile reports whatever is wrong with the path
    if (!std::filesystem::is_directory(path, ignored)) return open(MappedFile(path));
    std::unique_ptr<SafetensorsModel> model(new SafetensorsModel(path));
    json::object expected;
    const std::vector<std::string> shards = list_shards(path, expected);
    model->metadata_ = load_hf_metadata(path);
    std::vector<TensorInfo> tensors;
    size_t mapped = 0;
    for (const std::string& shard : shards) {
        MappedFile file((std::filesystem::path(path) / shard).string());
        SafetensorsImage image = parse_safetensors(file.bytes(), file.path());
        for (const TensorInfo& tensor : image.tensors) {
            if (expected.empty()) break;
            const json::value* where = expected.if_contains(tensor.name);
            RT_CHECK(where && where->as_string() == shard,
                     "{}: tensor {} should be in {} by the index: a shard of another model?", file.path(),
                     printable(tensor.name), where ? printable(where->as_string()) : "no file");
            ++mapped;
        }
        model->add_image(std::move(image), tensors);
        model->files_.push_back(std::move(file));
    }
    model->table_ = TensorTable(std::move(tensors));
    if (mapped != expected.size())
        for (const auto& [name, shard] : expected)
            RT_CHECK(model->find(name), "{}: tensor {} is missing, by the index it is in {}", path, printable(name),
                     printable(shard.as_string()));
    return model;
}

void SafetensorsModel::check_intact() const {
    for (const MappedFile& file : files_) file.check_intact();
}

}  // namespace riptide
