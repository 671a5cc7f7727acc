#include "io/importance_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"

namespace riptide {

namespace {

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

void check_entry(const std::string& path, const std::string& name, const ImportanceMatrix::Entry& entry) {
    const auto check = [&](const char* what, const std::vector<float>& values) {
        for (size_t i = 0; i < values.size(); ++i)
            RT_CHECK(std::isfinite(values[i]) && values[i] >= 0,
                     "{}: {} {} of {} is {}, expected a finite number from 0 on", path, what, i, name, values[i]);
    };
    RT_CHECK(!entry.sums.empty(), "{}: {} has no sums of squares ({}{})", path, name, name, kSums);
    RT_CHECK(!entry.counts.empty(), "{}: {} has no counts ({}{})", path, name, name, kCounts);
    check("sum", entry.sums);
    check("count", entry.counts);
    RT_CHECK(std::any_of(entry.counts.begin(), entry.counts.end(), [](float c) { return c > 0; }),
             "{}: the counts of {} are all 0, expected rows that were added up", path, name);
    RT_CHECK(entry.sums.size() % entry.counts.size() == 0, "{}: {} has {} sums for {} counts, expected a multiple",
             path, name, entry.sums.size(), entry.counts.size());
}

std::vector<float> floats_of(const std::string& path, const TensorInfo& tensor) {
    RT_CHECK(tensor.dtype == DType::f32, "{}: {} is of type {}, expected f32", path, tensor.name,
             dtype_name(tensor.dtype));
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), values.size() * sizeof(float));
    return values;
}

ImportanceMatrix from_gguf(const std::string& path, MappedFile mapped) {
    const auto file = GgufFile::open(std::move(mapped));
    const json::object& keys = file->metadata();
    const json::value* type = keys.if_contains("general.type");
    RT_CHECK(type != nullptr && type->is_string() && type->get_string() == "imatrix",
             "{}: general.type is {}, expected \"imatrix\": this GGUF is no importance matrix", path,
             type == nullptr ? "missing" : json::serialize(*type));
    ImportanceMatrix matrix;
    const auto number = [&](const char* key) -> int64_t {
        const json::value* value = keys.if_contains(key);
        return value != nullptr && value->is_int64() ? value->get_int64() : 0;
    };
    matrix.chunk_count = number("imatrix.chunk_count");
    matrix.chunk_size = number("imatrix.chunk_size");
    if (const json::value* names = keys.if_contains("imatrix.datasets"); names != nullptr && names->is_array())
        for (const json::value& name : names->get_array())
            if (name.is_string()) matrix.datasets.emplace_back(name.get_string());
    for (const TensorInfo& tensor : file->tensors())
        for (const auto& [suffix, values] :
             {std::pair{kSums, &ImportanceMatrix::Entry::sums}, std::pair{kCounts, &ImportanceMatrix::Entry::counts}})
            if (tensor.name.ends_with(suffix))
                matrix.entries[tensor.name.substr(0, tensor.name.size() - suffix.size())].*values =
                    floats_of(path, tensor);
    file->check_intact();
    return matrix;
}

/// The older form, piece by piece.
class OldForm {
  public:
    OldForm(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

    ImportanceMatrix read() {
        ImportanceMatrix matrix;
        const int32_t entries = number("the number of entries");
        RT_CHECK(entries > 0, "{}: {} entries, expected some: neither GGUF nor an importance matrix of the older form",
                 path_, entries);
        for (int32_t i = 0; i < entries; ++i) {
            const std::string name = text(fmt::format("the name of entry {}", i));
            ImportanceMatrix::Entry entry;
            entry.counts = {static_cast<float>(number(name))};
            entry.sums = values(name);
            RT_CHECK(matrix.entries.emplace(name, std::move(entry)).second, "{}: two entries are named {}", path_,
                     name);
        }
        if (at_ == bytes_.size()) return matrix;
        matrix.chunk_count = number("the number of chunks");
        if (at_ < bytes_.size()) matrix.datasets = {text("the data set")};
        RT_CHECK(at_ == bytes_.size(), "{}: {} bytes behind the end", path_, bytes_.size() - at_);
        return matrix;
    }

  private:
    const std::byte* take(int64_t count, const std::string& what) {
        RT_CHECK(count >= 0 && static_cast<uint64_t>(count) <= bytes_.size() - at_,
                 "{}: cut short, or no importance matrix: {} would be {} bytes, {} are left", path_, what, count,
                 bytes_.size() - at_);
        const std::byte* from = bytes_.data() + at_;
        at_ += static_cast<size_t>(count);
        return from;
    }
    int32_t number(const std::string& what) {
        int32_t n;
        std::memcpy(&n, take(sizeof n, what), sizeof n);
        return n;
    }
    std::string text(const std::string& what) {
        const int32_t length = number(what);
        return {reinterpret_cast<const char*>(take(length, what)), static_cast<size_t>(length)};
    }
    std::vector<float> values(const std::string& name) {
        const int64_t count = number(name);
        const std::byte* from = take(count * int64_t{sizeof(float)}, name);
        std::vector<float> out(static_cast<size_t>(count));
        std::memcpy(out.data(), from, out.size() * sizeof(float));
        return out;
    }

    const std::string& path_;
    std::span<const std::byte> bytes_;
    size_t at_ = 0;
};

}  // namespace

ImportanceMatrix read_importance(const std::string& path) {
    MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    const bool gguf = bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
    ImportanceMatrix matrix = gguf ? from_gguf(path, std::move(file)) : OldForm(path, bytes).read();
    RT_CHECK(!matrix.entries.empty(), "{}: an importance matrix without entries", path);
    for (const auto& [name, entry] : matrix.entries) check_entry(path, name, entry);
    return matrix;
}

void write_importance(const ImportanceMatrix& matrix, GgufWriter& writer) {
    writer.set_string("general.type", "imatrix");
    writer.set_strings("imatrix.datasets", matrix.datasets);
    writer.set_u32("imatrix.chunk_count", static_cast<uint32_t>(matrix.chunk_count));
    writer.set_u32("imatrix.chunk_size", static_cast<uint32_t>(matrix.chunk_size));
    for (const auto& [name, entry] : matrix.entries) {
        const auto matrices = static_cast<int64_t>(entry.counts.size());
        writer.add_tensor(name + std::string(kSums), DType::f32,
                          std::vector<int64_t>{matrices, static_cast<int64_t>(entry.sums.size()) / matrices});
        writer.add_tensor(name + std::string(kCounts), DType::f32, std::vector<int64_t>{matrices, 1});
    }
    for (const auto& [name, entry] : matrix.entries) {
        writer.write_tensor(name + std::string(kSums), std::as_bytes(std::span(entry.sums)));
        writer.write_tensor(name + std::string(kCounts), std::as_bytes(std::span(entry.counts)));
    }
    writer.finish();
}

std::vector<float> mean_squares(const ImportanceMatrix& matrix, const std::string& path, const std::string& name,
                                int64_t matrices, int64_t cols, int64_t& unreached) {
    const auto found = matrix.entries.find(name);
    RT_ASSERT(found != matrix.entries.end());
    const auto& [sums, counts] = found->second;
    const auto stored = static_cast<int64_t>(counts.size());
    RT_CHECK(std::ssize(sums) == matrices * cols && (stored == matrices || stored == 1),
             "{}: {} has {} sums and {} counts, expected {} of {} columns each: an importance matrix of another model",
             path, name, sums.size(), stored, matrices, cols);
    std::vector<float> means(sums.size());
    for (int64_t m = 0; m < matrices; ++m) {
        const float count = counts[static_cast<size_t>(stored == 1 ? 0 : m)];
        unreached += count > 0 ? 0 : 1;
        for (auto i = static_cast<size_t>(m * cols); i < static_cast<size_t>((m + 1) * cols); ++i)
            means[i] = count > 0 ? sums[i] / count : 1.0f;
    }
    return means;
}

}  // namespace riptide
