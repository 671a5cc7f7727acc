#include "apps/convert/packed_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "apps/convert/float_rounding.h"
#include "apps/convert/packed_config.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"
#include "io/content.h"
#include "io/safetensors_writer.h"
#include "io/tensor_table.h"
#include "models/dflash_config.h"
#include "models/model.h"
#include "quant/codec.h"

namespace riptide::apps {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kRoundedPiece = int64_t{32} << 20;  // of values, as f32
constexpr int64_t kMostText = int64_t{128} << 20;     // tokenizer.json

/// A folder that has another name until it is complete, and is gone if it never is.
class NewFolder {
  public:
    explicit NewFolder(const std::string& path) : path_(path) {
        while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
        std::error_code error;
        RT_CHECK(!fs::exists(fs::symlink_status(path_, error)), ErrorKind::usage,
                 "{}: is there already; name a folder that is not", path_);
        const std::string temp = fmt::format("{}.{}.part", path_, ::getpid());
        RT_CHECK(fs::create_directory(temp, error), ErrorKind::io, "{}: cannot be made: {}", temp,
                 error ? error.message() : "it is there already");
        temp_ = temp;
    }
    ~NewFolder() {
        std::error_code ignored;
        if (!temp_.empty()) fs::remove_all(temp_, ignored);
    }
    NewFolder(const NewFolder&) = delete;
    NewFolder& operator=(const NewFolder&) = delete;

    std::string file(const std::string& name) const { return temp_ + "/" + name; }
    const std::string& temporary() const { return temp_; }
    void commit() {
        std::error_code error;
        fs::rename(temp_, path_, error);
        RT_CHECK(!error, ErrorKind::io, "{}: cannot be renamed to {}: {}", temp_, path_, error.message());
        temp_.clear();
    }

  private:
    std::string path_, temp_;
};

// ---- writing --------------------------------------------------------------------------------------------------------

class FolderWriter {
  public:
    FolderWriter(const Checkpoint& checkpoint, PackedType type, ThreadPool& threads,
                 const std::function<void(int64_t, int64_t)>& on_progress)
        : checkpoint_(checkpoint), type_(type), threads_(threads), on_progress_(on_progress) {}

    /// The largest magnitudes behind each global scale.
    void measure(const std::vector<PackedItem>& items) {
        for (const PackedItem& item : items) total_ += source_bytes(item) * (needs_global(item) ? 2 : 1);
        for (const PackedItem& item : items) {
            if (!needs_global(item)) continue;
            float& largest = largest_[item.shares];
            pieces(item, [&](int64_t first, int64_t count) {
                std::atomic<float> most = largest;
                threads_.parallel_for(count, 16, [&](int64_t begin, int64_t end, int) {
                    std::vector<float> row(static_cast<size_t>(item.w.cols));
                    float here = 0;
                    for (int64_t r = first + begin; r < first + end; ++r) here = std::max(here, read(item, r, row));
                    float seen = most;
                    while (seen < here && !most.compare_exchange_weak(seen, here)) {
                    }
                });
                largest = most;
            });
        }
    }

    void write(const PackedItem& item, SafetensorsWriter& file) {
        if (item.shares.empty()) return copy(item, file);
        const float global = needs_global(item) ? nvfp4_global_scale(largest_.at(item.shares)) : 1.0f;
        std::vector<std::byte> scales(static_cast<size_t>(item.made[1].bytes()));
        std::vector<std::byte> codes;
        const int64_t per_row = row_bytes(item.made[0].dtype, item.made[0].shape[1]);
        pieces(item, [&](int64_t first, int64_t count) {
            codes.resize(static_cast<size_t>(count * per_row));
            auto* const to = reinterpret_cast<uint8_t*>(codes.data());
            auto* const beside = reinterpret_cast<uint8_t*>(scales.data());
            threads_.parallel_for((count + kFp8Block - 1) / kFp8Block, 1, [&](int64_t begin, int64_t end, int) {
                for (int64_t b = begin; b < end; ++b) {
                    const int64_t at = b * kFp8Block, rows = std::min(kFp8Block, count - at);
                    if (needs_global(item)) four_bits(item, first + at, rows, global, to + at * per_row, beside);
                    else eight_bits(item, first + at, rows, to + at * per_row, beside);
                }
            });
            file.write(codes);
        });
        file.write(scales);
        if (needs_global(item)) file.write(std::as_bytes(std::span(&global, 1)));
    }

  private:
    bool needs_global(const PackedItem& item) const { return type_ == PackedType::nvfp4 && !item.shares.empty(); }
    static std::span<const std::byte> source(const PackedItem& item) {
        if (!item.w) return item.from->bytes;
        return {static_cast<const std::byte*>(item.w.data), static_cast<size_t>(item.w.bytes())};
    }
    static int64_t source_bytes(const PackedItem& item) { return std::ssize(source(item)); }

    void seen(const PackedItem& item, std::span<const std::byte> part) {
        for (const MappedFile& file : checkpoint_.files()) file.let_go(part);
        checkpoint_.check_intact();
        if (on_progress_) on_progress_(done_ += std::ssize(part), total_);
        if (interrupted()) fail(ErrorKind::io, "interrupted at tensor {}", printable(item.from->name));
    }

    /// Calls take(first row, rows) for pieces of whole blocks.
    template <class Take>
    void pieces(const PackedItem& item, const Take& take) {
        const int64_t step = std::max<int64_t>(1, kRoundedPiece / (4 * kFp8Block * item.w.cols)) * kFp8Block;
        for (int64_t first = 0; first < item.w.rows; first += step) {
            const int64_t count = std::min(step, item.w.rows - first);
            take(first, count);
            seen(item,
                 {static_cast<const std::byte*>(item.w.row(first)), static_cast<size_t>(count * item.w.row_bytes)});
        }
    }

    void copy(const PackedItem& item, SafetensorsWriter& file) {
        const std::span<const std::byte> bytes = source(item);
        for (size_t at = 0; at < bytes.size(); at += kRoundedPiece) {
            const auto part = bytes.subspan(at, std::min<size_t>(kRoundedPiece, bytes.size() - at));
            file.write(part);
            seen(item, part);
        }
    }

    /// Row r as f32; its largest magnitude.
    static float read(const PackedItem& item, int64_t r, std::span<float> row) {
        dequantize_row(item.w, r, row.data());
        float largest = 0;
        for (const float value : row) {
            RT_CHECK(std::isfinite(value), "{}: tensor {} holds {} in row {} of {}, expected finite numbers",
                     item.from->file, printable(item.from->name), value, r, item.made[0].name);
            largest = std::max(largest, std::fabs(value));
        }
        return largest;
    }

    static void four_bits(const PackedItem& item, int64_t first, int64_t rows, float global, uint8_t* codes,
                          uint8_t* scales) {
        const int64_t cols = item.w.cols;
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t r = 0; r < rows; ++r) {
            read(item, first + r, row);
            round_to_nvfp4(row, global, codes + r * cols / 2, scales + (first + r) * (cols / kNvfp4Group));
        }
    }

    /// A row of blocks.
    static void eight_bits(const PackedItem& item, int64_t first, int64_t rows, uint8_t* codes, uint8_t* scales) {
        const int64_t cols = item.w.cols, blocks = (cols + kFp8Block - 1) / kFp8Block;
        std::vector<float> values(static_cast<size_t>(rows * cols));
        for (int64_t r = 0; r < rows; ++r)
            read(item, first + r, std::span(values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols)));
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t begin = b * kFp8Block, width = std::min(kFp8Block, cols - begin);
            float largest = 0;
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = begin; c < begin + width; ++c)
                    largest = std::max(largest, std::fabs(values[static_cast<size_t>(r * cols + c)]));
            const uint16_t scale = fp8_block_scale(largest);
            std::memcpy(scales + 2 * (first / kFp8Block * blocks + b), &scale, 2);
            for (int64_t r = 0; r < rows; ++r)
                round_to_fp8({values.data() + r * cols + begin, static_cast<size_t>(width)}, scale,
                             codes + r * cols + begin);
        }
    }

    const Checkpoint& checkpoint_;
    PackedType type_;
    ThreadPool& threads_;
    const std::function<void(int64_t, int64_t)>& on_progress_;
    std::map<std::string, float> largest_;
    int64_t done_ = 0, total_ = 0;
};

/// Where each shard begins among the items, and their end.
std::vector<size_t> shard_borders(const std::vector<PackedItem>& items, int64_t most) {
    std::vector<size_t> borders = {0};
    int64_t bytes = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        const int64_t more = items[i].bytes();
        if (bytes > 0 && bytes + more > most) {
            borders.push_back(i);
            bytes = 0;
        }
        bytes += more;
    }
    borders.push_back(items.size());
    return borders;
}

void write_index(const NewFolder& folder, const std::map<std::string, std::string>& files, int64_t bytes) {
    std::string text = fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", bytes);
    const char* comma = "";
    for (const auto& [name, file] : files) {
        text += fmt::format("{}\n    {}: \"{}\"", comma, json::serialize(json::string(name)), file);
        comma = ",";
    }
    write_file_atomic(folder.file("model.safetensors.index.json"), text + "\n  }\n}\n");
}

void write_tensors(PackedPlan& plan, FolderWriter& writer, const NewFolder& folder, int64_t shard_bytes) {
    const std::vector<size_t> borders = shard_borders(plan.items, shard_bytes);
    const size_t shards = borders.size() - 1;
    std::map<std::string, std::string> files;
    for (size_t s = 0; s < shards; ++s) {
        const std::string name =
            shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards);
        SafetensorsWriter file(folder.file(name));
        file.set_metadata("format", "pt");
        const auto items = std::span(plan.items).subspan(borders[s], borders[s + 1] - borders[s]);
        for (const PackedItem& item : items)
            for (const PackedTensor& part : item.made) {
                file.add_tensor(part.name, part.dtype, part.shape);
                files[part.name] = name;
            }
        for (const PackedItem& item : items) writer.write(item, file);
        file.finish();
    }
    if (shards > 1) write_index(folder, files, plan.report.bytes);
    plan.report.shards = static_cast<int64_t>(shards);
}

/// What else lies in the folder: tokenizer, templates, generation config, pooling, code that config.json names,
/// licences, byte for byte.
void copy_texts(const std::string& from, const NewFolder& to) {
    constexpr std::string_view kEnds[] = {".json", ".jinja", ".txt", ".py", ".model"};
    for (const auto& entry : fs::directory_iterator(from)) {
        const std::string name = entry.path().filename().string();
        const bool text = std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); }) ||
                          name.starts_with("LICENSE") || name.starts_with("NOTICE");
        if (text && entry.is_regular_file() && name != "config.json" && !name.ends_with(".index.json"))
            write_file_atomic(to.file(name), read_file(entry.path().string(), kMostText));
    }
    const std::string pooling = "1_Pooling/config.json";
    if (!fs::is_regular_file(from + "/" + pooling)) return;
    fs::create_directory(to.file("1_Pooling"));
    write_file_atomic(to.file(pooling), read_file(from + "/" + pooling, kMostText));
}

}  // namespace

std::optional<PackedType> packed_type(std::string_view name) {
    std::string lower(name);
    std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
    if (lower == "fp8") return PackedType::fp8;
    if (lower == "nvfp4") return PackedType::nvfp4;
    return std::nullopt;
}

PackedReport write_packed_folder(const Checkpoint& checkpoint, PackedType type, const std::string& out,
                                 ThreadPool& threads, const std::function<void(int64_t, int64_t)>& on_progress,
                                 int64_t shard_bytes) {
    RT_CHECK(checkpoint.format() == Checkpoint::Format::safetensors, ErrorKind::usage,
             "{}: is a GGUF file, expected a safetensors folder: its config.json and tokenizer go into the new one",
             checkpoint.path());
    refuse_dflash(checkpoint);
    const json::value* config = checkpoint.metadata().if_contains("config");
    const json::value* old = config == nullptr ? nullptr : config->as_object().if_contains("quantization_config");
    RT_CHECK(old == nullptr || old->is_null(), "{}: its config.json has a quantization_config: it is quantised already",
             checkpoint.path());
    load_model(checkpoint);
    const fs::path path = checkpoint.path();
    const std::string from = fs::is_directory(path)   ? path.string()
                             : path.has_parent_path() ? path.parent_path().string()
                                                      : ".";
    PackedPlan plan(checkpoint, type);
    const std::string made_config = packed_config(read_file(from + "/config.json", kMostText), type, plan);
    NewFolder folder(out);
    write_file_atomic(folder.file("config.json"), made_config);
    copy_texts(from, folder);
    FolderWriter writer(checkpoint, type, threads, on_progress);
    writer.measure(plan.items);
    write_tensors(plan, writer, folder, shard_bytes);
    load_model(*open_checkpoint(folder.temporary()));
    folder.commit();
    return plan.report;
}

}  // namespace riptide::apps
