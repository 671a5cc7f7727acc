// riptide kernels: which kernels a GPU runs for a model, by the plans; for any chip, on any machine.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/terminal.h"
#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "base/json.h"
#include "models/model.h"
#include "ops/cuda/kernel_plan.h"
#include "ops/op_cost.h"

namespace riptide::apps {

namespace {

struct KernelsFlags {
    ModelFlags model;
    std::string chip = "sm_90";
    std::vector<int64_t> rows = {1, 2, 4, 8, 16, 64, 256, 4096};
    int64_t keys = 4096;
    bool together = false, as_json = false;
};

/// Rows that take the same kernels for an op, and what a step of the fewest of them reads.
struct Run {
    int64_t first = 0, last = 0;
    std::vector<ops::PlannedKernel> kernels;
    double bytes = 0;
};
struct OpLine {
    std::string op, shape;
    int64_t calls = 0;
    std::vector<Run> runs;
};

/// One of kNamedChips; h200 is sm_90 with the memory of an H200.
ops::cuda::NamedChip find_chip(const std::string& name) {
    std::string known;
    for (ops::cuda::NamedChip chip : ops::cuda::kNamedChips) {
        if (name == chip.name) return chip;
        if (name == "h200" && chip.name == std::string_view("sm_90")) {
            chip.card = "H200", chip.bandwidth = 4800e9;
            return chip;
        }
        known += std::string(chip.name) + ", ";
    }
    fail(ErrorKind::usage, "--chip {}: expected one of {}h200", name, known);
}

bool same(const std::vector<ops::PlannedKernel>& a, const std::vector<ops::PlannedKernel>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.name == y.name; });
}

/// The step of a model without rows: its ops tell what they are, and do nothing. Then a row of zeros through the head.
void visit_ops(const Model& model, DType k, DType v, const std::function<void(const OpCost&)>& visit) {
    Arena arena(int64_t{1} << 20);
    Context ctx;
    ctx.arena = &arena;
    ctx.on_op = [&](const OpCost& cost) {
        if (!cost.name.empty()) visit(cost);
    };
    float nothing = 0;
    std::vector<KvView> kv;
    std::vector<DeltaView> delta;
    for (const StateSpec& spec : model.state_specs()) {
        KvView& view = kv.emplace_back();
        if (spec.has_kv()) {
            view.k_dtype = k, view.v_dtype = v;
            view.num_kv_heads = spec.num_kv_heads, view.head_dim = spec.head_dim, view.window = spec.window;
            view.k_slot_bytes = spec.num_kv_heads * row_bytes(k, spec.head_dim);
            view.v_slot_bytes = spec.num_kv_heads * row_bytes(v, spec.head_dim);
            view.page_rows = view.ring_rows = 1;
        }
        DeltaView& recurrent = delta.emplace_back(spec.delta);
        recurrent.conv = recurrent.stash = &nothing;
        recurrent.state = &nothing;
    }
    const int32_t none = 0;
    Batch batch;
    batch.row_begin = {&none, 1};
    Tensor x = model.embed(ctx, batch);
    for (int64_t l = 0; l < model.info().num_hidden_layers; ++l)
        model.layer(ctx, l, x, batch, {.kv = kv, .delta = delta});
    Tensor last = ctx.alloc(DType::f32, {1, model.info().hidden_size});  // a head that nobody wants tells nothing
    std::fill_n(last.row(0), last.elements(), 0.0f);
    batch.logit_rows = {&none, 1};
    model.logits(ctx, last, batch);
}

/// What `rows` rows read: weights, and (of each sequence) keys.
double bytes_of(const OpCost& cost, const ops::PlannedStep& step) {
    if (cost.experts != nullptr)
        return ops::experts_cost(cost.name, step.rows, *cost.router, *cost.experts, *cost.shared).weight_bytes;
    const int64_t seen = cost.window > 0 ? std::min(cost.window, step.keys) : step.keys;
    return cost.weight_bytes + static_cast<double>(step.sequences * seen * cost.key_bytes);
}

std::vector<OpLine> plan_ops(const Model& model, const KernelsFlags& flags, DType k, DType v,
                             const ops::cuda::Chip& chip) {
    std::vector<OpLine> lines;
    std::map<std::string, size_t> known;
    visit_ops(model, k, v, [&](const OpCost& cost) {
        OpLine line{std::string(cost.name), cost.shape, 0, {}};
        std::string key = line.op + "\n" + line.shape;
        for (const int64_t rows : flags.rows) {
            const bool together = flags.together || rows > 256;
            const ops::PlannedStep step{
                .rows = rows, .sequences = together ? 1 : rows, .keys = flags.keys, .k = k, .v = v, .chip = chip};
            std::vector<ops::PlannedKernel> kernels = ops::planned_kernels(cost, step);
            if (kernels.empty()) return;
            for (const ops::PlannedKernel& kernel : kernels) key += "\n" + kernel.name;
            key += "\n";
            if (!line.runs.empty() && same(line.runs.back().kernels, kernels)) line.runs.back().last = rows;
            else line.runs.push_back({rows, rows, std::move(kernels), bytes_of(cost, step)});
        }
        const auto [at, fresh] = known.try_emplace(key, lines.size());
        if (fresh) lines.push_back(std::move(line));
        ++lines[at->second].calls;
    });
    return lines;
}

std::string rows_text(const Run& run) {
    return run.first == run.last ? fmt::format("{}", run.first) : fmt::format("{} to {}", run.first, run.last);
}

void print_table(const std::vector<OpLine>& lines, double bandwidth) {
    for (const OpLine& line : lines) {
        tell("\n{}{} · {} a step\n", line.op, line.shape.empty() ? "" : " · " + line.shape, line.calls);
        for (const Run& run : line.runs) {
            std::string names, files;
            for (const ops::PlannedKernel& kernel : run.kernels) {
                names += (names.empty() ? "" : ", ") + kernel.name;
                if (files.find(kernel.file) == std::string::npos) files += (files.empty() ? "" : ", ") + kernel.file;
            }
            const std::string reads =
                run.bytes == 0 ? ""
                               : fmt::format("{:>9} {:>9.1f} us", human_bytes(static_cast<int64_t>(run.bytes)),
                                             run.bytes / bandwidth * 1e6);
            tell("  {:>12}  {:<62} {:<22}  {}\n", rows_text(run), names, reads, files);
        }
    }
}

json::array table_json(const std::vector<OpLine>& lines, double bandwidth) {
    json::array out;
    for (const OpLine& line : lines) {
        json::array runs;
        for (const Run& run : line.runs) {
            json::array kernels;
            for (const ops::PlannedKernel& kernel : run.kernels)
                kernels.push_back({{"name", kernel.name}, {"file", "src/ops/cuda/" + kernel.file}});
            runs.push_back({{"rows", {run.first, run.last}},
                            {"kernels", std::move(kernels)},
                            {"bytes", run.bytes},
                            {"floor_seconds", run.bytes / bandwidth}});
        }
        out.push_back({{"op", line.op}, {"shape", line.shape}, {"calls", line.calls}, {"runs", std::move(runs)}});
    }
    return out;
}

int kernels(const KernelsFlags& flags) {
    const ops::cuda::NamedChip& chip = find_chip(flags.chip);
    RT_CHECK(std::is_sorted(flags.rows.begin(), flags.rows.end()), ErrorKind::usage,
             "--rows: expected ascending numbers such as 1,4,16");
    const auto [k, v] = flags.model.kv == "auto" ? std::pair{DType::q8_0, DType::q8_0} : kv_types(flags.model.kv);
    const auto checkpoint = flags.model.random_weights.empty() ? open_model(flags.model)
                                                               : checkpoint_without_values(flags.model.random_weights);
    const auto model = load_model(*checkpoint);
    const std::vector<OpLine> lines = plan_ops(*model, flags, k, v, chip.chip);
    if (flags.as_json) {
        tell("{}\n", json::serialize(json::object{{"model", model->info().name},
                                                  {"chip", chip.name},
                                                  {"card", chip.card},
                                                  {"kv", kv_name(k, v)},
                                                  {"keys", flags.keys},
                                                  {"together", flags.together},
                                                  {"ops", table_json(lines, chip.bandwidth)}}));
        return 0;
    }
    tell("{} · {} ({}, {:.2f} TB/s) · K/V {} · {} keys · {}\n", model->info().name, chip.name, chip.card,
         chip.bandwidth * 1e-12, kv_name(k, v), flags.keys,
         flags.together ? "rows of one sequence" : "a row of each sequence, above 256 rows one prompt");
    tell("rows, kernels, what the fewest of these rows read, how long that takes at least, files below src/ops/cuda\n");
    print_table(lines, chip.bandwidth);
    return 0;
}

}  // namespace

void add_kernels(Command& app, Action& action) {
    auto options = std::make_shared<KernelsFlags>();
    Command* cmd = app.add_subcommand("kernels", "Show which GPU kernels a model runs, and where they are");
    cmd->add_option("MODEL", options->model.model, "Model file, folder or name; the built-in demo if left out");
    Flag* random = cmd->add_option("--random-weights", options->model.random_weights,
                                   "Instead of MODEL: SHAPE:TYPE as `riptide synth` names them, without a file");
    random->excludes(cmd->get_option("MODEL"));
    cmd->add_option("--chip", options->chip, "sm_75, sm_80, sm_86, sm_89, sm_90, sm_120 or h200; no GPU is needed")
        ->suggest({"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "h200"})
        ->capture_default_str();
    cmd->add_option("--rows", options->rows, "Rows of a step: tokens of all sequences, or of a prompt (above 256)")
        ->delimiter(',')
        ->check(Range(int64_t{1}, int64_t{1} << 20))
        ->capture_default_str();
    cmd->add_option("--keys", options->keys, "Tokens that a row sees")
        ->check(Range(int64_t{1}, int64_t{1} << 24))
        ->capture_default_str();
    cmd->add_option("--kv", options->model.kv, "How K and V are stored: TYPE or TYPE/TYPE; auto: q8_0")
        ->capture_default_str();
    cmd->add_flag("--together", options->together, "Rows are of one sequence: drafts that are verified");
    cmd->add_flag("--json", options->as_json, "Print JSON");
    cmd->footer(
        "Examples:\n  riptide kernels laguna-xs.2-q4_k_m.gguf --chip sm_86 --rows 1,4,16,64,4096\n"
        "  riptide kernels --random-weights qwen3.5-27b:q4_k_m --together\n"
        "The tables behind it: src/ops/cuda/{linear,moe,attention}/plan.cpp. Norms, rotations, embeddings and the like "
        "have one kernel each (elementwise.cu) and are left out. Gated DeltaNet chooses where the device's room is "
        "known: that file is named.");
    cmd->callback([options, &action] { action = [options] { return kernels(*options); }; });
}

}  // namespace riptide::apps
