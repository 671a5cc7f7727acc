#include "apps/convert/requantize.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "apps/convert/convert.h"
#include "apps/convert/quantize_jobs.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "io/gguf.h"
#include "io/tensor_table.h"
#include "models/dflash_config.h"
#include "models/model.h"
#include "quant/quant_mix.h"
#include "tensor/host_memory.h"

namespace riptide::apps {

namespace {

constexpr int64_t kMadeAlignment = 64;

/// Bits that a value of `w` takes where it is stored, scales included.
double stored_bits(const Weight& w) {
    double bytes = static_cast<double>(w.row_bytes);
    if (w.scales != nullptr)
        bytes += static_cast<double>(row_bytes(w.scale_dtype, (w.cols + w.scale_cols - 1) / w.scale_cols)) /
                 static_cast<double>(w.scale_rows);
    return 8 * bytes / static_cast<double>(w.cols);
}

bool unchanged(const QuantizeJob& job) {
    return !job.parts.empty() && job.columns.empty() &&
           std::all_of(job.parts.begin(), job.parts.end(), [&](const Weight& part) {
               return part.dtype == job.dtype && part.scales == nullptr && part.scale == 1.0f;
           });
}

double bits_of(DType type) {
    const DTypeInfo& info = dtype_info(type);
    return 8 * static_cast<double>(info.block_bytes) / static_cast<double>(info.block_elements);
}

/// Whether the job would make its tensor no smaller; see requantize(). What cannot stay is asked whether the mix itself
/// is smaller, not what the mix falls back to for its width.
bool should_stay(const QuantizeJob& job, const std::string& mix) {
    if (job.parts.empty() || unchanged(job)) return false;
    double stored = 0;
    for (const Weight& part : job.parts) stored = std::max(stored, stored_bits(part));
    const bool exact = job.asked == DType::f32 && mix != "f32";
    if (exact && stored >= 16) return false;
    const double made = bits_of(dtype_info(job.parts[0].dtype).gguf_type >= 0 ? job.dtype : job.asked);
    return stored < made || (stored == made && stored < 16);
}

/// Makes the job leave its tensor as it is. False: a GGUF cannot hold it so.
bool let_stay(QuantizeJob& job) {
    job.dtype = job.parts[0].dtype;
    return unchanged(job) && dtype_info(job.dtype).gguf_type >= 0;
}

class RequantizedCheckpoint final : public Checkpoint {
  public:
    RequantizedCheckpoint(std::unique_ptr<Checkpoint> source, const std::string& mix,
                          const std::vector<QuantizeJob>& jobs)
        : source_(std::move(source)), made_("weights " + mix) {
        if (source_->format() == Format::gguf) copy_keys(mix);
        else make_keys(mix);
        int64_t bytes = 0;
        for (const QuantizeJob& job : jobs)
            if (!is_view(job)) bytes += place_of(job);
        memory_ = HostMemory(bytes, "requantised weights");
        std::vector<TensorInfo> tensors;
        std::byte* next = memory_.data();
        for (const QuantizeJob& job : jobs) {
            const std::byte* at = is_view(job) ? static_cast<const std::byte*>(job.parts[0].data) : next;
            if (!is_view(job)) next += place_of(job);
            tensors.push_back(
                {job.tensor.name, job.dtype, job.tensor.shape, {at, static_cast<size_t>(job.made_bytes())}, path()});
        }
        table_ = TensorTable(std::move(tensors));
    }

    /// Fills what is not a view of the source's files.
    void make(const std::vector<QuantizeJob>& jobs, const RequantizeOptions& options, RequantizeReport& report) {
        const auto bytes = memory_.bytes();
        RT_CHECK(bytes <= physical_memory(), ErrorKind::unavailable,
                 "{}: its weights in {} take {} of main memory, and this machine has {}", path(), report.mix,
                 human_bytes(bytes), human_bytes(physical_memory()));
        ThreadPool threads(options.threads);
        int64_t done = 0, total = 0;
        for (const QuantizeJob& job : jobs) total += is_view(job) ? 0 : job.made_bytes();
        std::byte* next = memory_.data();
        for (const QuantizeJob& job : jobs) {
            if (is_view(job)) continue;
            std::byte* to = next;
            next += place_of(job);
            QuantizeLoss loss;
            const auto take = [&](std::span<const std::byte> piece) {
                to = std::copy(piece.begin(), piece.end(), to);
                done += std::ssize(piece);
                if (options.on_progress) options.on_progress(done, total);
            };
            run_quantize_job(job, *source_, threads, take, &loss);
            source_->check_intact();
            if (loss.lost == 0) continue;
            int64_t values = 1;
            for (const int64_t extent : job.tensor.shape) values *= extent;
            report.loss[job.dtype].weighted += static_cast<double>(values) * std::sqrt(loss.lost / loss.all);
            report.loss[job.dtype].values += values;
        }
    }

    Format format() const override { return Format::gguf; }
    const std::string& path() const override { return source_->path(); }
    std::span<const TensorInfo> tensors() const override { return table_.all(); }
    const TensorInfo* find(std::string_view name) const override { return table_.find(name); }
    const json::object& metadata() const override { return metadata_; }
    void check_intact() const override { source_->check_intact(); }
    std::span<const MappedFile> files() const override { return source_->files(); }
    std::string_view made() const override { return made_; }

  private:
    static bool is_view(const QuantizeJob& job) { return job.parts.size() == 1 && unchanged(job); }
    static int64_t place_of(const QuantizeJob& job) {
        return (job.made_bytes() + kMadeAlignment - 1) / kMadeAlignment * kMadeAlignment;
    }

    void copy_keys(const std::string& mix) {
        for (const auto& entry : source_->metadata())
            if (const std::string_view key = entry.key();
                !key.starts_with("split.") && !key.starts_with(kImportanceKeys))
                metadata_.emplace(key, entry.value());
        metadata_["general.quantization_version"] = 2;
        metadata_["general.file_type"] = int64_t{quant_mix_file_type(mix)};
    }

    void make_keys(const std::string& mix) {
        std::vector<std::byte> image;
        GgufWriter writer(image);
        write_quantized_metadata(*source_, mix, "", writer);
        writer.finish();
        metadata_ = open_gguf_memory(image, path())->metadata();
        for (const char* key : {"tokenizer", "tokenizer_config", "chat_template", "generation_config"})
            if (const json::value* own = source_->metadata().if_contains(key)) metadata_.emplace(key, *own);
    }

    std::unique_ptr<Checkpoint> source_;
    std::string made_;
    json::object metadata_;
    HostMemory memory_;
    TensorTable table_;
};

std::map<DType, int64_t> bytes_by_type(const Checkpoint& checkpoint) {
    std::map<DType, int64_t> bytes;
    for (const TensorInfo& tensor : checkpoint.tensors()) bytes[tensor.dtype] += std::ssize(tensor.bytes);
    return bytes;
}

/// "q4_k 15.0 GiB, q6_k 3.2 GiB", the largest first.
std::string sizes_text(const std::map<DType, int64_t>& bytes) {
    std::vector<std::pair<int64_t, DType>> sorted;
    for (const auto& [type, count] : bytes) sorted.push_back({-count, type});
    std::sort(sorted.begin(), sorted.end());
    std::string text;
    for (const auto& [count, type] : sorted)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", dtype_name(type), human_bytes(-count));
    return text;
}

int64_t total(const std::map<DType, int64_t>& bytes) {
    int64_t sum = 0;
    for (const auto& [type, count] : bytes) sum += count;
    return sum;
}

/// Leaves as they are the tensors that are no larger than the mix makes them. Says why the whole model must stay as it
/// is; "": it need not.
std::string let_small_ones_stay(std::vector<QuantizeJob>& jobs, RequantizeReport& report) {
    std::map<DType, int64_t> apart;
    for (QuantizeJob& job : jobs) {
        if (!should_stay(job, report.mix)) continue;
        ++report.stayed;
        if (!let_stay(job)) ++apart[job.dtype];
    }
    std::string types;
    for (const auto& [type, count] : apart)
        types += fmt::format("{}{} in {}", types.empty() ? "" : ", ", count, dtype_name(type));
    if (!types.empty()) return fmt::format("{}, which cannot stand beside tensors of {}", types, report.mix);
    const auto changes = [](const QuantizeJob& job) {
        return !job.parts.empty() && !unchanged(job) && job.asked != DType::f32;
    };
    if (std::none_of(jobs.begin(), jobs.end(), changes)) return "no tensor would change";
    return "";
}

}  // namespace

std::unique_ptr<Checkpoint> requantize(std::unique_ptr<Checkpoint> checkpoint, const RequantizeOptions& options,
                                       RequantizeReport& report) {
    const auto begun = std::chrono::steady_clock::now();
    check_mix_writable(options.mix);
    refuse_dflash(*checkpoint);
    report = {};
    report.mix = quant_mix_name(options.mix);
    report.before = bytes_by_type(*checkpoint);
    std::vector<QuantizeJob> jobs;
    if (is_embedder(*checkpoint)) {
        report.kept_whole = "a folder of an embedding model cannot be quantised";
    } else {
        jobs = quantize_jobs(*checkpoint, report.mix);
        report.tensors = std::ssize(jobs);
        report.kept_whole = let_small_ones_stay(jobs, report);
    }
    if (!report.kept_whole.empty()) {
        report.after = report.before;
        return checkpoint;
    }
    auto made = std::make_unique<RequantizedCheckpoint>(std::move(checkpoint), report.mix, jobs);
    report.after = bytes_by_type(*made);
    load_model(*made);  // what cannot run is refused before the work
    if (options.values) made->make(jobs, options, report);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return made;
}

std::string describe(const RequantizeReport& r) {
    const std::string what =
        fmt::format("{} of {} tensors are no larger than {} makes them", r.stayed, r.tensors, r.mix);
    if (!r.kept_whole.empty())
        return fmt::format("--weights {}: the model stays as it is ({}): {}{}\n", r.mix, sizes_text(r.before),
                           r.stayed > 0 ? what + ": " : "", r.kept_whole);
    std::string text = fmt::format("--weights {}: {} ({}) became {} ({}) in {:.1f} s{}\n", r.mix,
                                   human_bytes(total(r.before)), sizes_text(r.before), human_bytes(total(r.after)),
                                   sizes_text(r.after), r.seconds, r.stayed > 0 ? "; " + what + " and stay" : "");
    std::string errors;
    for (const auto& [type, loss] : r.loss)
        errors += fmt::format("{}{} {:.2g} %", errors.empty() ? "" : ", ", dtype_name(type), 100 * loss.relative());
    if (!errors.empty())
        text += fmt::format("weights' relative error: {}; riptide ppl, with and without --weights, measures the rest\n",
                            errors);
    return text;
}

}  // namespace riptide::apps
