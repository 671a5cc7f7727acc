// riptide quantize: safetensors or GGUF to GGUF in another type.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "apps/commands/commands.h"
#include "apps/convert/convert.h"
#include "apps/convert/convert_drafter.h"
#include "apps/convert/convert_qwen35.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/prompt/generation_defaults.h"
#include "io/gguf.h"
#include "quant/codec.h"
#include "quant/quant_mix.h"

namespace riptide::apps {

namespace {

struct QuantizeFlags {
    std::string in, out, type = "q4_k_m", name;
    int threads = 0;
};

/// One tensor to write: where its rows come from, and in what type they go out.
struct Job {
    LayoutTensor tensor;
    DType asked = DType::f32;  // by the mix; dtype is another where rows do not fit, or precision counts
    DType dtype = DType::f32;
    std::vector<Weight> parts;     // experts in order, or one matrix
    std::vector<float> vector;     // instead of parts
    std::vector<std::byte> bytes;  // instead of both: as they are
    std::vector<int64_t> columns;  // of parts: the column that each comes from; empty: as they are
};

constexpr int64_t kConvertedPieceBytes = int64_t{32} << 20;

/// Rows [first, first + count) of a matrix in the wanted type. Unchanged bytes where the type stays.
void convert_rows(const Weight& source, const Job& job, int64_t first, int64_t count, std::byte* out,
                  ThreadPool& threads) {
    const DType dtype = job.dtype;
    const int64_t bytes = row_bytes(dtype, source.cols);
    threads.parallel_for(count, 4, [&](int64_t begin, int64_t end, int) {
        std::vector<float> row(static_cast<size_t>(source.cols)), ordered(job.columns.size());
        for (int64_t r = begin; r < end; ++r) {
            if (source.dtype == dtype && job.columns.empty() && source.scales == nullptr && source.scale == 1.0f) {
                std::copy_n(static_cast<const std::byte*>(source.row(first + r)), bytes, out + r * bytes);
                continue;
            }
            dequantize_row(source, first + r, row.data());
            for (size_t c = 0; c < ordered.size(); ++c) ordered[c] = row[static_cast<size_t>(job.columns[c])];
            quantize(dtype, ordered.empty() ? row.data() : ordered.data(), out + r * bytes, source.cols);
        }
    });
}

void write_job(const Job& job, GgufWriter& writer, ThreadPool& threads, const std::function<void(int64_t)>& advance) {
    if (!job.bytes.empty()) {
        writer.write_tensor(job.tensor.name, job.bytes);
        return advance(static_cast<int64_t>(job.bytes.size()));
    }
    if (job.parts.empty()) {
        std::vector<std::byte> out(static_cast<size_t>(row_bytes(job.dtype, static_cast<int64_t>(job.vector.size()))));
        quantize(job.dtype, job.vector.data(), out.data(), static_cast<int64_t>(job.vector.size()));
        writer.write_tensor(job.tensor.name, out);
        return advance(static_cast<int64_t>(out.size()));
    }
    std::vector<std::byte> piece;
    for (const Weight& part : job.parts) {
        const int64_t bytes = row_bytes(job.dtype, part.cols),
                      step = std::max<int64_t>(1, kConvertedPieceBytes / bytes);
        for (int64_t first = 0; first < part.rows; first += step) {
            const int64_t count = std::min(step, part.rows - first);
            piece.resize(static_cast<size_t>(count * bytes));
            convert_rows(part, job, first, count, piece.data(), threads);
            writer.write(piece);
            advance(count * bytes);
            if (interrupted()) fail(ErrorKind::io, "interrupted; {} was left as it was", job.tensor.name);
        }
    }
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
void choose_type(Job& job, const std::string& mix, int64_t layers, bool tied_head, bool keeps_precision = false) {
    const LayoutTensor& t = job.tensor;
    job.asked = quant_mix_asks(mix, t.name, t.shape, t.layer, layers, tied_head);
    job.dtype = quant_mix_fit(job.asked, t.shape.back());
    if (keeps_precision) job.dtype = drafter_type(job.dtype);
}

bool holds_integers(DType type) {
    return type == DType::i8 || type == DType::i16 || type == DType::i32 || type == DType::i64;
}

/// GGUF in: every tensor under its own name, every key kept.
std::vector<Job> jobs_from_gguf(const GgufFile& file, const std::string& mix, GgufWriter& writer) {
    writer.copy_metadata(file);
    int64_t layers = 0;
    for (const TensorInfo& tensor : file.tensors()) layers = std::max(layers, layer_of(tensor.name) + 1);
    std::vector<Job> jobs;
    for (const TensorInfo& tensor : file.tensors()) {
        Job job;
        job.tensor = {tensor.name, tensor.shape, layer_of(tensor.name)};
        if (holds_integers(tensor.dtype)) {
            job.asked = job.dtype = tensor.dtype;
            job.bytes.assign(tensor.bytes.begin(), tensor.bytes.end());
            jobs.push_back(std::move(job));
            continue;
        }
        choose_type(job, mix, layers, file.find("output.weight") == nullptr,
                    is_dflash(file) && (tensor.name.ends_with("fc.weight") || tensor.name == "output.weight"));
        job.parts = {whole(tensor)};
        jobs.push_back(std::move(job));
    }
    return jobs;
}

std::vector<Job> jobs_from_safetensors(const Checkpoint& checkpoint, const QuantizeFlags& options, GgufWriter& writer) {
    const std::string name =
        options.name.empty() ? std::filesystem::path(checkpoint.path()).filename().string() : options.name;
    const GgufLayout layout = layout_of(checkpoint, name);
    write_layout_metadata(layout, writer);
    write_tokenizer_metadata(checkpoint, layout.vocab_size, writer);
    write_sampling_metadata(checkpoint, writer);
    Binder binder(checkpoint);
    const bool beside_vision = binder.has({{}, {"model.language_model.embed_tokens.weight"}});
    const std::string text = beside_vision ? "model.language_model." : "model.";
    std::vector<Job> jobs;
    for (const LayoutTensor& tensor : layout_tensors(layout)) {
        Job job;
        job.tensor = tensor;
        choose_type(job, options.type, layout.num_hidden_layers, layout.tie_word_embeddings);
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

std::vector<Job> jobs_from_drafter(const Checkpoint& checkpoint, const QuantizeFlags& options, GgufWriter& writer) {
    const DflashConfig config = dflash_config(checkpoint);
    write_drafter_metadata(
        config, options.name.empty() ? std::filesystem::path(checkpoint.path()).filename().string() : options.name,
        writer);
    Binder binder(checkpoint);
    std::vector<Job> jobs;
    for (const DrafterTensor& source : drafter_tensors(checkpoint, config)) {
        const LayoutTensor& tensor = source.tensor;
        Job job;
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
        choose_type(job, options.type, config.num_hidden_layers, false, source.keeps_precision);
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

std::vector<Job> make_jobs(const Checkpoint& checkpoint, const QuantizeFlags& options, GgufWriter& writer) {
    if (const auto* gguf = dynamic_cast<const GgufFile*>(&checkpoint))
        return jobs_from_gguf(*gguf, options.type, writer);
    return is_dflash(checkpoint) ? jobs_from_drafter(checkpoint, options, writer)
                                 : jobs_from_safetensors(checkpoint, options, writer);
}

/// Says in one line how many tensors are not of the types that the mix asks for, and why. Nothing if there are none.
void print_fallbacks(const std::vector<Job>& jobs, const std::string& mix) {
    std::map<std::pair<DType, DType>, int64_t> narrow, precise;  // asked, used instead
    int64_t all = 0;
    for (const Job& job : jobs) {
        if (job.dtype == job.asked) continue;
        ++all;
        const bool by_width = quant_mix_fit(job.asked, job.tensor.shape.back()) == job.dtype;
        ++(by_width ? narrow : precise)[{job.asked, job.dtype}];
    }
    std::string reasons;
    const auto add = [&](const auto& counts, const char* why) {
        std::string types;
        for (const auto& [key, count] : counts)
            types += fmt::format("{}{} {} for {}", types.empty() ? "" : ", ", count, dtype_name(key.second),
                                 dtype_name(key.first));
        if (!types.empty()) reasons += fmt::format("{}{} ({})", reasons.empty() ? "" : "; ", types, why);
    };
    add(narrow, "rows are no whole blocks");
    add(precise, "a drafter's fc and head keep precision");
    if (all > 0) tell("{} of {} tensors in other types than {} asks for: {}\n", all, jobs.size(), mix, reasons);
}

int quantize_file(const QuantizeFlags& options) {
    check_mix_writable(options.type);  // such a mix is an error before anything is opened
    const auto checkpoint = open_checkpoint(options.in);
    RT_CHECK(!std::filesystem::exists(options.out) || !std::filesystem::equivalent(options.in, options.out),
             ErrorKind::usage, "{}: input and output are the same file", options.out);
    catch_interrupts();
    GgufWriter writer(options.out);
    const std::vector<Job> jobs = make_jobs(*checkpoint, options, writer);
    writer.set_u32("general.quantization_version", 2);
    writer.set_u32("general.file_type", quant_mix_file_type(options.type));
    for (const Job& job : jobs) writer.add_tensor(job.tensor.name, job.dtype, job.tensor.shape);
    ThreadPool threads(options.threads);
    Progress progress("quantising", "B");
    int64_t done = 0;
    for (const Job& job : jobs) {
        write_job(job, writer, threads, [&](int64_t bytes) { progress.update(done += bytes, writer.tensor_bytes()); });
        checkpoint->check_intact();
    }
    writer.finish();
    tell("{}: {} tensors, {} bytes of tensor data ({}), from {}\n", options.out, jobs.size(),
         grouped(writer.tensor_bytes()), human_bytes(writer.tensor_bytes()), human_bytes(checkpoint->tensor_bytes()));
    print_fallbacks(jobs, options.type);
    if (const json::object variables = generation_defaults(*checkpoint).template_kwargs; !variables.empty())
        say("not in the file, for GGUF has no key for it: default_chat_template_kwargs {}\n",
            json::serialize(variables));
    return 0;
}

}  // namespace

void add_quantize(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("quantize", "Convert safetensors or GGUF to GGUF in another type");
    auto options = std::make_shared<QuantizeFlags>();
    cmd->add_option("IN", options->in, "Safetensors folder or GGUF file")->required();
    cmd->add_option("OUT", options->out, "GGUF file to write")->required();
    cmd->add_option("--type", options->type, "Quantisation mix: " + quant_mix_names())->capture_default_str();
    cmd->add_option("--name", options->name, "general.name of the output; default: the folder's name");
    cmd->add_option("--threads", options->threads, "Threads; 0: all")->capture_default_str();
    cmd->footer(
        "Examples:\n  riptide quantize ./Laguna-XS.2 laguna-q4_k_m.gguf --type q4_k_m\n"
        "  riptide quantize laguna-bf16.gguf laguna-q8_0.gguf --type q8_0\n"
        "  riptide quantize ./Qwen3.5-27B qwen3.5-27b-q4_k_m.gguf --type q4_k_m    the text model\n"
        "  riptide quantize ./Laguna-XS.2-speculator.dflash drafter-q8_0.gguf --type q8_0    a DFlash drafter");
    cmd->callback([options, &action] { action = [options] { return quantize_file(*options); }; });
}

}  // namespace riptide::apps
