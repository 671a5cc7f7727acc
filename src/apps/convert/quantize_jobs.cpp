#include "apps/convert/quantize_jobs.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <utility>

#include "apps/convert/convert.h"
#include "apps/convert/convert_drafter.h"
#include "apps/convert/convert_qwen35.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"
#include "io/gguf.h"
#include "quant/codec.h"
#include "quant/quant_mix.h"

namespace riptide::apps {

namespace {

constexpr int64_t kConvertedPieceBytes = int64_t{32} << 20;

/// Whether rows of `source` are the job's as they are.
bool unchanged_rows(const Weight& source, const QuantizeJob& job) {
    return source.dtype == job.dtype && job.columns.empty() && source.scales == nullptr && source.scale == 1.0f;
}

/// Rows [first, first + count) of a matrix in the wanted type; before it come `before` rows of other parts. Unchanged
/// bytes where the type stays.
void convert_rows(const Weight& source, const QuantizeJob& job, int64_t before, int64_t first, int64_t count,
                  std::byte* out, ThreadPool& threads, QuantizeLoss* loss) {
    const DType dtype = job.dtype;
    const int64_t cols = source.cols, bytes = row_bytes(dtype, cols);
    const bool same = unchanged_rows(source, job);
    std::atomic<double> lost = 0, all = 0;
    threads.parallel_for(count, 4, [&](int64_t begin, int64_t end, int) {
        std::vector<float> row(static_cast<size_t>(cols)), ordered(job.columns.size()), made(row.size());
        double piece_lost = 0, piece_all = 0;
        for (int64_t r = begin; r < end; ++r) {
            if (same) {
                std::copy_n(static_cast<const std::byte*>(source.row(first + r)), bytes, out + r * bytes);
                continue;
            }
            const std::vector<float>& values = ordered.empty() ? row : ordered;
            try {
                dequantize_row(source, first + r, row.data());
                for (size_t c = 0; c < ordered.size(); ++c) ordered[c] = row[static_cast<size_t>(job.columns[c])];
                quantize(dtype, values.data(), out + r * bytes, cols, job.importance_of(before + first + r));
            } catch (const Error& error) {
                fail(error.kind(), "{}, row {}: {}", job.tensor.name, before + first + r, error.what());
            }
            if (loss == nullptr) continue;
            dequantize(dtype, out + r * bytes, made.data(), cols);
            for (size_t c = 0; c < made.size(); ++c) {
                const double w = values[c], d = w - made[c];
                piece_lost += d * d;
                piece_all += w * w;
            }
        }
        lost.fetch_add(piece_lost, std::memory_order_relaxed);
        all.fetch_add(piece_all, std::memory_order_relaxed);
    });
    if (loss == nullptr) return;
    loss->lost += lost;
    loss->all += all;
}

/// Rows that have been read need not stay in this process's memory.
void let_go(const Checkpoint& checkpoint, const Weight& part, int64_t first, int64_t count) {
    const std::span<const std::byte> rows(static_cast<const std::byte*>(part.row(first)),
                                          static_cast<size_t>(count * part.row_bytes));
    for (const MappedFile& file : checkpoint.files()) file.let_go(rows);
}

Weight whole(const TensorInfo& tensor) {
    Weight w;
    w.data = tensor.bytes.data();
    w.dtype = tensor.dtype;
    w.cols = tensor.shape.back();
    w.rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) w.rows *= tensor.shape[i];
    w.row_bytes = row_bytes(w.dtype, w.cols);
    return w;
}

/// "blk.12.attn_q.weight" -> 12, others -1.
int64_t layer_of(const std::string& name) {
    if (name.rfind("blk.", 0) != 0) return -1;
    int64_t layer = 0;
    for (size_t i = 4; i < name.size() && name[i] >= '0' && name[i] <= '9' && layer < 100000; ++i)
        layer = layer * 10 + (name[i] - '0');
    return layer;
}

/// The types of job.tensor. keeps_precision: a drafter's fc or head.
void choose_type(QuantizeJob& job, const std::string& mix, int64_t layers, bool tied_head,
                 bool keeps_precision = false) {
    const LayoutTensor& t = job.tensor;
    job.asked = quant_mix_asks(mix, t.name, t.shape, t.layer, layers, tied_head);
    job.dtype = quant_mix_fit(job.asked, t.shape.back());
    if (keeps_precision) job.dtype = drafter_type(job.dtype);
}

bool holds_integers(DType type) {
    return type == DType::i8 || type == DType::i16 || type == DType::i32 || type == DType::i64;
}

/// Whether X.scale, a factor of the product, stands beside X.weight. Loaders know it beside NVFP4 alone.
bool has_product_scale(const Checkpoint& file, const std::string& name) {
    constexpr std::string_view kWeight = ".weight";
    return name.ends_with(kWeight) && file.find(name.substr(0, name.size() - kWeight.size()) + ".scale") != nullptr;
}

/// GGUF in: every tensor under its own name.
std::vector<QuantizeJob> jobs_from_gguf(const Checkpoint& file, const std::string& mix) {
    int64_t layers = 0;
    for (const TensorInfo& tensor : file.tensors()) layers = std::max(layers, layer_of(tensor.name) + 1);
    std::vector<QuantizeJob> jobs;
    for (const TensorInfo& tensor : file.tensors()) {
        QuantizeJob job;
        job.tensor = {tensor.name, tensor.shape, layer_of(tensor.name)};
        if (holds_integers(tensor.dtype)) {
            job.asked = job.dtype = tensor.dtype;
            job.bytes.assign(tensor.bytes.begin(), tensor.bytes.end());
            jobs.push_back(std::move(job));
            continue;
        }
        choose_type(job, mix, layers, file.find("output.weight") == nullptr,
                    is_dflash(file) && (tensor.name.ends_with("fc.weight") || tensor.name == "output.weight"));
        job.fixed = has_product_scale(file, tensor.name);
        if (job.fixed) job.asked = job.dtype = tensor.dtype;
        job.parts = {whole(tensor)};
        jobs.push_back(std::move(job));
    }
    return jobs;
}

std::vector<QuantizeJob> jobs_from_safetensors(const Checkpoint& checkpoint, const std::string& mix) {
    const GgufLayout layout = layout_of(checkpoint, "");
    Binder binder(checkpoint);
    const bool beside_vision = binder.has({{}, {"model.language_model.embed_tokens.weight"}});
    const std::string text = beside_vision ? "model.language_model." : "model.";
    std::vector<QuantizeJob> jobs;
    for (const LayoutTensor& tensor : layout_tensors(layout)) {
        QuantizeJob job;
        job.tensor = tensor;
        choose_type(job, mix, layout.num_hidden_layers, layout.tie_word_embeddings);
        if (is_expert_stack(tensor))
            job.parts = binder.experts(expert_names(tensor, text), tensor.shape[0], tensor.shape[1], tensor.shape[2]);
        else if (tensor.shape.size() == 2 && !is_convolution(tensor))
            job.parts = {binder.matrix(source_names(tensor), tensor.shape[0], tensor.shape[1])};
        else job.vector = binder.values(source_names(tensor), tensor.shape);
        if (layout.hybrid()) {
            HybridTensor values{std::move(job.parts), std::move(job.vector), {}};
            to_gguf_form(layout, tensor, values);
            job.parts = std::move(values.parts);
            job.vector = std::move(values.vector);
            job.columns = std::move(values.columns);
        }
        jobs.push_back(std::move(job));
    }
    for (const char* beside : {"model.visual.", "mtp.", "model.mtp."})
        if (layout.hybrid()) binder.skip(beside);
    binder.finish();
    return jobs;
}

std::vector<QuantizeJob> jobs_from_drafter(const Checkpoint& checkpoint, const std::string& mix) {
    const DflashConfig config = dflash_config(checkpoint);
    Binder binder(checkpoint);
    std::vector<QuantizeJob> jobs;
    for (const DrafterTensor& source : drafter_tensors(checkpoint, config)) {
        const LayoutTensor& tensor = source.tensor;
        QuantizeJob job;
        job.tensor = tensor;
        if (source.integers) {
            const std::vector<int64_t> values = binder.integers(source.source, tensor.shape[0]);
            const std::vector<int32_t> narrow(values.begin(), values.end());  // offsets within a vocabulary
            const auto bytes = std::as_bytes(std::span(narrow));
            job.asked = job.dtype = DType::i32;
            job.bytes.assign(bytes.begin(), bytes.end());
            jobs.push_back(std::move(job));
            continue;
        }
        choose_type(job, mix, config.num_hidden_layers, false, source.keeps_precision);
        if (tensor.shape.size() == 1) {
            job.vector = binder.vector(source.source, tensor.shape[0]);
        } else {
            const int64_t rows = source.source_rows > 0 ? source.source_rows : tensor.shape[0];
            job.parts = {
                binder.matrix(source.source, rows, tensor.shape[1]).slice_rows(source.first_row, tensor.shape[0])};
        }
        jobs.push_back(std::move(job));
    }
    const TensorNames t2d = {{}, {"t2d", "model.t2d"}};  // d2t says the same
    if (binder.has(t2d)) binder.integers(t2d, binder.rows_of(t2d));
    binder.finish();
    return jobs;
}

}  // namespace

int64_t QuantizeJob::made_bytes() const {
    int64_t sum = std::ssize(bytes);
    if (!vector.empty()) sum += row_bytes(dtype, std::ssize(vector));
    for (const Weight& part : parts) sum += part.rows * row_bytes(dtype, part.cols);
    return sum;
}

const float* QuantizeJob::importance_of(int64_t r) const {
    if (importance.empty()) return nullptr;
    const std::vector<int64_t>& shape = tensor.shape;
    return importance.data() + r / shape[shape.size() - 2] * shape.back();
}

std::vector<QuantizeJob> quantize_jobs(const Checkpoint& checkpoint, const std::string& mix) {
    if (checkpoint.format() == Checkpoint::Format::gguf) return jobs_from_gguf(checkpoint, mix);
    return is_dflash(checkpoint) ? jobs_from_drafter(checkpoint, mix) : jobs_from_safetensors(checkpoint, mix);
}

void write_quantized_metadata(const Checkpoint& checkpoint, const std::string& mix, const std::string& name,
                              GgufWriter& writer) {
    const std::string given = name.empty() ? std::filesystem::path(checkpoint.path()).filename().string() : name;
    if (checkpoint.format() == Checkpoint::Format::gguf) {
        const auto* gguf = dynamic_cast<const GgufFile*>(&checkpoint);
        RT_ASSERT(gguf != nullptr);
        writer.copy_metadata(*gguf, kImportanceKeys);
    } else if (is_dflash(checkpoint)) {
        write_drafter_metadata(dflash_config(checkpoint), given, writer);
    } else {
        const GgufLayout layout = layout_of(checkpoint, given);
        write_layout_metadata(layout, writer);
        write_tokenizer_metadata(checkpoint, layout.vocab_size, writer);
        write_sampling_metadata(checkpoint, writer);
    }
    writer.set_u32("general.quantization_version", 2);
    writer.set_u32("general.file_type", quant_mix_file_type(mix));
}

void run_quantize_job(const QuantizeJob& job, const Checkpoint& checkpoint, ThreadPool& threads,
                      const std::function<void(std::span<const std::byte>)>& take, QuantizeLoss* loss) {
    std::vector<std::byte> piece;
    if (!job.bytes.empty()) return take(job.bytes);
    if (job.parts.empty()) {
        piece.resize(static_cast<size_t>(job.made_bytes()));
        quantize(job.dtype, job.vector.data(), piece.data(), std::ssize(job.vector));
        return take(piece);
    }
    int64_t before = 0;
    for (const Weight& part : job.parts) {
        const int64_t bytes = row_bytes(job.dtype, part.cols),
                      step = std::max<int64_t>(1, kConvertedPieceBytes / bytes);
        for (int64_t first = 0; first < part.rows; first += step) {
            const int64_t count = std::min(step, part.rows - first);
            piece.resize(static_cast<size_t>(count * bytes));
            convert_rows(part, job, before, first, count, piece.data(), threads, loss);
            take(piece);
            let_go(checkpoint, part, first, count);
            if (interrupted()) fail(ErrorKind::io, "interrupted at tensor {}", job.tensor.name);
        }
        before += part.rows;
    }
}

}  // namespace riptide::apps
