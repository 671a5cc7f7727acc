// riptide quantize: safetensors or GGUF to GGUF in another type.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "apps/commands/commands.h"
#include "apps/convert/quantize_jobs.h"
#include "apps/flags/flags.h"
#include "apps/support/terminal.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/prompt/generation_defaults.h"
#include "quant/quant_mix.h"

namespace riptide::apps {

namespace {

struct QuantizeFlags {
    std::string in, out, type = "q4_k_m", name;
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

int quantize_file(const QuantizeFlags& options) {
    check_mix_writable(options.type);  // such a mix is an error before anything is opened
    const auto checkpoint = open_checkpoint(options.in);
    RT_CHECK(!std::filesystem::exists(options.out) || !std::filesystem::equivalent(options.in, options.out),
             ErrorKind::usage, "{}: input and output are the same file", options.out);
    catch_interrupts();
    GgufWriter writer(options.out);
    write_quantized_metadata(*checkpoint, options.type, options.name, writer);
    const std::vector<QuantizeJob> jobs = quantize_jobs(*checkpoint, options.type);
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
