// riptide quantize: safetensors or GGUF to GGUF in another type, or a folder to a folder in FP8 or NVFP4.
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "apps/commands/commands.h"
#include "apps/convert/packed_folder.h"
#include "apps/convert/quantize_jobs.h"
#include "apps/convert/tensor_rules.h"
#include "apps/flags/flags.h"
#include "apps/support/terminal.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/prompt/generation_defaults.h"
#include "io/importance_matrix.h"
#include "quant/codec.h"
#include "quant/quant_mix.h"

namespace riptide::apps {

namespace {

struct QuantizeFlags {
    std::string in, out, type = "q4_k_m", name, imatrix;
    std::vector<std::string> rules;
    int threads = 0;
};

/// Says in one line how many tensors are not of the types that the mix asks for, and why. Nothing if there are none.
void print_fallbacks(const std::vector<QuantizeJob>& jobs, const std::string& mix) {
    std::map<std::pair<DType, DType>, int64_t> narrow, precise;  // asked, used instead
    int64_t all = 0;
    for (const QuantizeJob& job : jobs) {
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

/// The types that --tensor asks for. Vectors, norms, routers and convolutions stay as they are.
void apply_rules(std::vector<QuantizeJob>& jobs, TensorRules& rules) {
    for (QuantizeJob& job : jobs) {
        const LayoutTensor& t = job.tensor;
        if (job.fixed || !job.bytes.empty() || quant_mix_asks("q8_0", t.name, t.shape, t.layer, 0) == DType::f32)
            continue;
        if (const std::optional<DType> type = rules.find(t.name)) {
            job.asked = *type;
            job.dtype = quant_mix_fit(*type, t.shape.back());
        }
    }
    rules.check_all_used();
}

/// Gives the jobs what `path` says of their columns, and the file the keys that tell of it.
void apply_importance(std::vector<QuantizeJob>& jobs, const std::string& path, GgufWriter& writer) {
    const ImportanceMatrix matrix = read_importance(path);
    std::set<std::string_view> names;
    for (const QuantizeJob& job : jobs) names.insert(job.tensor.name);
    for (const auto& [name, entry] : matrix.entries)
        RT_CHECK(names.contains(name) || name == "output.weight",
                 "{}: {} is not in the model: an importance matrix of another one", path, name);
    int64_t used = 0, unreached = 0;
    for (QuantizeJob& job : jobs) {
        const std::vector<int64_t>& shape = job.tensor.shape;
        if (!heeds_importance(job.dtype) || shape.size() < 2) continue;
        const std::string& name = job.tensor.name;
        if (!matrix.entries.contains(name)) {  // other programs leave the head out, and an embedding multiplies nothing
            RT_CHECK(name == "token_embd.weight" || name == "output.weight",
                     "{}: {} is missing among {} matrices: an importance matrix of another model", path, name,
                     matrix.entries.size());
            continue;
        }
        job.importance = mean_squares(matrix, path, name, shape.size() == 3 ? shape[0] : 1, shape.back(), unreached);
        ++used;
    }
    writer.set_string("quantize.imatrix.file", std::filesystem::path(path).filename().string());
    if (!matrix.datasets.empty()) writer.set_string("quantize.imatrix.dataset", matrix.datasets.front());
    writer.set_i32("quantize.imatrix.entries_count", static_cast<int32_t>(matrix.entries.size()));
    writer.set_i32("quantize.imatrix.chunks_count", static_cast<int32_t>(matrix.chunk_count));
    tell("{}: columns of {} tensors weighed{}\n", path, used,
         unreached == 0 ? "" : fmt::format("; all alike in {} experts that its text did not reach", unreached));
}

/// Says in one line which types should not be without an importance matrix: those of fewer than 2.5 bits, but for TQ,
/// which models are trained for.
void print_unweighed(const std::vector<QuantizeJob>& jobs) {
    std::set<std::string_view> types;
    for (const QuantizeJob& job : jobs) {
        const DTypeInfo& info = dtype_info(job.dtype);
        const bool ternary = job.dtype == DType::tq1_0 || job.dtype == DType::tq2_0;
        if (heeds_importance(job.dtype) && !ternary && 16 * info.block_bytes < 5 * info.block_elements)
            types.insert(info.name);
    }
    if (!types.empty())
        say("{} without an importance matrix: the model loses more than it has to (riptide imatrix, --imatrix)\n",
            fmt::join(types, ", "));
}

/// FP8 and NVFP4 of a folder.
int quantize_folder(const QuantizeFlags& options, PackedType type) {
    RT_CHECK(options.imatrix.empty() && options.rules.empty() && options.name.empty(), ErrorKind::usage,
             "--type {}: writes a folder, for which there is no --imatrix, --tensor or --name", options.type);
    const auto checkpoint = open_checkpoint(options.in);
    catch_interrupts();
    ThreadPool threads(options.threads);
    Progress progress("quantising", "B");
    const PackedReport report = write_packed_folder(*checkpoint, type, options.out, threads,
                                                    [&](int64_t done, int64_t all) { progress.update(done, all); });
    tell("{}: {} matrices in {}, {} tensors as they are{}; {} in {} file{}, from {}\n", options.out,
         grouped(report.matrices), options.type, grouped(report.copied),
         report.odd > 0 ? fmt::format(" ({} of them with columns that are no multiple of 16)", report.odd) : "",
         human_bytes(report.bytes), report.shards, report.shards == 1 ? "" : "s",
         human_bytes(checkpoint->tensor_bytes()));
    return 0;
}

int quantize_file(const QuantizeFlags& options) {
    if (const std::optional<PackedType> type = packed_type(options.type)) return quantize_folder(options, *type);
    check_mix_writable(options.type);  // such a mix is an error before anything is opened
    TensorRules rules(options.rules);
    const auto checkpoint = open_checkpoint(options.in);
    RT_CHECK(!std::filesystem::exists(options.out) || !std::filesystem::equivalent(options.in, options.out),
             ErrorKind::usage, "{}: input and output are the same file", options.out);
    catch_interrupts();
    GgufWriter writer(options.out);
    write_quantized_metadata(*checkpoint, options.type, options.name, writer);
    std::vector<QuantizeJob> jobs = quantize_jobs(*checkpoint, options.type);
    apply_rules(jobs, rules);
    if (options.imatrix.empty()) print_unweighed(jobs);
    else apply_importance(jobs, options.imatrix, writer);
    for (const QuantizeJob& job : jobs) writer.add_tensor(job.tensor.name, job.dtype, job.tensor.shape);
    ThreadPool threads(options.threads);
    Progress progress("quantising", "B");
    int64_t done = 0;
    for (const QuantizeJob& job : jobs) {
        run_quantize_job(job, *checkpoint, threads, [&](std::span<const std::byte> piece) {
            writer.write(piece);
            progress.update(done += std::ssize(piece), writer.tensor_bytes());
        });
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
    Command* cmd =
        app.add_subcommand("quantize", "Convert safetensors or GGUF to GGUF in another type, or to FP8 or NVFP4");
    auto options = std::make_shared<QuantizeFlags>();
    cmd->add_option("IN", options->in, "Safetensors folder or GGUF file")->required();
    cmd->add_option("OUT", options->out, "GGUF file to write; for fp8 and nvfp4 a new folder")->required();
    cmd->add_option("--type", options->type,
                    "Quantisation mix: " + quant_mix_names() + "; or fp8 or nvfp4, which write a folder (safetensors)")
        ->capture_default_str();
    cmd->add_option(
        "--imatrix", options->imatrix,
        "Importance matrix (riptide imatrix, or llama.cpp's): errors in columns with large inputs count more");
    cmd->add_option("--tensor", options->rules,
                    "REGEX=TYPE: tensors whose names it is found in get this type; several: the first that fits")
        ->allow_extra_args(false);
    cmd->add_option("--name", options->name, "general.name of the output; default: the folder's name");
    cmd->add_option("--threads", options->threads, "Threads; 0: all")->capture_default_str();
    cmd->footer(
        "Examples:\n  riptide quantize ./Laguna-XS.2 laguna-q4_k_m.gguf --type q4_k_m\n"
        "  riptide quantize laguna-bf16.gguf laguna-q8_0.gguf --type q8_0\n"
        "  riptide quantize laguna-bf16.gguf laguna-iq3_m.gguf --type iq3_m --imatrix laguna.imatrix.gguf\n"
        "  riptide quantize laguna-bf16.gguf mine.gguf --type q2_k --tensor 'attn_[qk]=q4_k' --tensor _shexp=q6_k\n"
        "  riptide quantize ./Laguna-XS.2 ./Laguna-XS.2-FP8 --type fp8    a folder, as compressed-tensors lays it out\n"
        "  riptide quantize ./Qwen3.5-27B qwen3.5-27b-q4_k_m.gguf --type q4_k_m    the text model\n"
        "  riptide quantize ./Laguna-XS.2-speculator.dflash drafter-q8_0.gguf --type q8_0    a DFlash drafter");
    cmd->callback([options, &action] { action = [options] { return quantize_file(*options); }; });
}

}  // namespace riptide::apps
