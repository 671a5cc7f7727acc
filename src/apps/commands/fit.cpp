// riptide fit: which models run on this machine, and with how long a context, before anything is downloaded.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/environment.h"
#include "apps/support/known_models.h"
#include "apps/support/model_store.h"
#include "apps/support/terminal.h"
#include "apps/synth/random_checkpoint.h"
#include "apps/synth/synth_shapes.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "engine/execution/memory_plan.h"
#include "models/model.h"
#include "quant/dot.h"
#include "quant/placement.h"
#include "tensor/gpu.h"

namespace riptide::apps {

namespace {

constexpr std::array kKvTypes = {DType::f32, DType::f16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0};
constexpr int64_t kLeastContext = 8192;  // of NEEDS
constexpr int32_t kCpuChunkRows = 512;

struct FitFlags {
    ModelFlags model;
    std::string memory;
    bool as_json = false;
};

/// Where a model is to run.
struct Place {
    std::string name;  // "main memory", or the GPU's
    int64_t bytes = 0;
    bool gpu = false;
};

/// What one model makes of it.
struct Fit {
    std::string name;  // as the command line takes it
    int64_t weights = 0, needs = 0, trained_context = 0;
    std::array<int64_t, kKvTypes.size()> context{};  // by type of K/V; 0: it does not fit
};

Place find_place(const FitFlags& o) {
    const bool on_gpu = wants_gpu(o.model);
    Place place{on_gpu ? "a GPU" : "main memory", on_gpu ? 0 : available_memory(), on_gpu};
    if (place.gpu && (o.memory.empty() || !list_gpus().empty())) {
        const auto gpu = Gpu::open({.ordinal = o.model.gpu, .memory_budget = 0, .portable = false});
        place.name = gpu->info().name;
        place.bytes = gpu->available();
    }
    if (!o.memory.empty()) place.bytes = parse_bytes("--memory", o.memory);
    RT_CHECK(place.bytes > 0, ErrorKind::unavailable,
             "this system does not say how much memory is free: --memory 24GiB does");
    return place;
}

/// What the weights take there: on a GPU some types of blocks take more than in the file.
int64_t placed_weights(const Place& place, const Model& model, const Checkpoint& checkpoint) {
    int64_t bytes = model.info().weight_bytes;
    if (!place.gpu) return bytes;
    for (const TensorInfo& tensor : checkpoint.tensors()) {
        if (tensor.shape.size() < 2 || !uses_int8_activations(tensor.dtype)) continue;
        Weight w;
        w.dtype = tensor.dtype;
        w.cols = tensor.shape.back();
        w.rows = std::accumulate(tensor.shape.begin(), tensor.shape.end() - 1, int64_t{1}, std::multiplies<>());
        w.row_bytes = row_bytes(w.dtype, w.cols);
        bytes += plan_placement(w).bytes() - w.bytes();
    }
    return bytes;
}

/// Of one answer at a time, as run and chat have it. nullopt: it does not fit.
std::optional<MemoryPlan> plan_for(const Model& model, int64_t weights, DType kv, const Place& place, int64_t context) {
    MemoryRequest request;
    request.context = context;
    request.max_context = model.info().max_position_embeddings;
    request.available = place.bytes - weights - (place.gpu ? kUnplannedBytes : 0);
    request.weights = weights;
    request.specs = model.state_specs();
    request.k_dtype = request.v_dtype = kv;
    if (place.gpu) request.workspace = model.workspace();
    else request.chunk_rows = kCpuChunkRows;
    try {
        return plan_gpu_memory(request);
    } catch (const Error&) {
        return std::nullopt;
    }
}

Fit fit_of(std::string name, const Checkpoint& checkpoint, const Place& place) {
    const std::unique_ptr<Model> model = load_model(checkpoint);
    Fit out{std::move(name), placed_weights(place, *model, checkpoint), 0, model->info().max_position_embeddings, {}};
    for (size_t i = 0; i < kKvTypes.size(); ++i)
        if (const auto plan = plan_for(*model, out.weights, kKvTypes[i], place, 0)) out.context[i] = plan->context;
    const Place vast{"", int64_t{1} << 60, place.gpu};
    const auto least = plan_for(*model, out.weights, DType::q8_0, vast, std::min(kLeastContext, out.trained_context));
    if (least) out.needs = vast.bytes - least->spare;
    return out;
}

/// `checkpoint` with the sizes of --weights; of one model that has none smaller, stderr hears it.
std::unique_ptr<Checkpoint> resized(std::unique_ptr<Checkpoint> checkpoint, const ModelFlags& flags) {
    auto made = with_weight_sizes(std::move(checkpoint), flags);
    if (!flags.weights.empty() && !flags.model.empty() && made->made().empty())
        say("--weights {}: the model stays as it is: its tensors are no larger, or cannot stand beside others\n",
            flags.weights);
    return made;
}

/// SHAPE:TYPE with the sizes of --weights.
std::unique_ptr<Checkpoint> shape_of(const std::string& shape, const ModelFlags& flags) {
    RT_CHECK(flags.weights.empty() || !shape.ends_with(":fp8"), ErrorKind::usage,
             "{} --weights {}: a shape in fp8 cannot be requantised; {}:{} has the same sizes", shape, flags.weights,
             shape.substr(0, shape.find(':')), flags.weights);
    return resized(checkpoint_without_values(shape), flags);
}

/// MODEL, or all that are known by a shape.
std::vector<Fit> all_fits(const FitFlags& o, const Place& place) {
    const std::string& what = o.model.model;
    std::vector<Fit> out;
    const KnownModels known = known_models();
    for (const KnownModel& model : known.models) {
        if (model.shape.empty() || (!what.empty() && what != model.alias)) continue;
        out.push_back(fit_of(model.alias, *shape_of(model.shape, o.model), place));
    }
    if (!out.empty()) return out;
    std::error_code ec;
    const bool is_path = std::filesystem::exists(what, ec);
    const std::optional<ModelName> name = is_path ? std::nullopt : parse_model_name(what);
    if (!name && !is_path) {
        const std::string shape = what.substr(0, what.find(':'));
        const auto& shapes = synth_shapes();
        RT_CHECK(std::any_of(shapes.begin(), shapes.end(), [&](const GgufLayout& s) { return s.name == shape; }),
                 ErrorKind::no_input,
                 "{}: no file, no alias and no shape of that name; riptide fit alone shows the aliases, riptide synth "
                 "--help the shapes",
                 what);
        out.push_back(fit_of(what, *shape_of(what, o.model), place));
        return out;
    }
    ModelFlags flags = o.model;
    flags.weights.clear();
    if (name) {
        const auto stored = find_stored(models_folder(), *name);
        RT_CHECK(stored.has_value(), ErrorKind::no_input,
                 "{}: not here, and its shape is not known: riptide pull {} fetches it; riptide fit alone shows those "
                 "whose shapes are known",
                 what, what);
        flags.model = stored->path;
    }
    out.push_back(fit_of(what, *resized(open_model(flags), o.model), place));
    return out;
}

/// The best type that holds the whole context, else the one that holds most.
size_t best_type(const Fit& fit) {
    size_t best = 0;
    for (size_t i = 1; i < kKvTypes.size(); ++i)
        if (fit.context[i] > fit.context[best]) best = i;
    return best;
}

void print_fits(const std::vector<Fit>& fits, const Place& place) {
    tell("{} of {}; the longest context in tokens by type of K/V (--kv), for one answer at a time\n\n",
         human_bytes(place.bytes), place.name);
    std::string head = fmt::format("{:<20} {:>10} {:>10}", "MODEL", "WEIGHTS", "NEEDS");
    for (const DType kv : kKvTypes) head += fmt::format(" {:>9}", dtype_name(kv));
    tell("{}\n", head);
    for (const Fit& fit : fits) {
        std::string line =
            fmt::format("{:<20} {:>10} {:>10}", fit.name, human_bytes(fit.weights), human_bytes(fit.needs));
        for (const int64_t context : fit.context)
            line += fmt::format(" {:>9}", context > 0 ? grouped(context) : std::string("-"));
        tell("{}\n", line);
    }
    tell("\nNEEDS: with {} tokens of q8_0. - : it does not fit.\n", grouped(kLeastContext));
    if (fits.size() != 1) return;
    const Fit& fit = fits.front();
    const size_t best = best_type(fit);
    if (fit.context[best] > 0)
        tell("For the longest context: --kv {} --ctx {}\n", dtype_name(kKvTypes[best]), fit.context[best]);
}

json::value fits_json(const std::vector<Fit>& fits, const Place& place) {
    json::array models;
    for (const Fit& fit : fits) {
        json::object context;
        for (size_t i = 0; i < kKvTypes.size(); ++i) context[dtype_name(kKvTypes[i])] = fit.context[i];
        models.push_back({{"name", fit.name},
                          {"weight_bytes", fit.weights},
                          {"needed_bytes", fit.needs},
                          {"trained_context", fit.trained_context},
                          {"context", std::move(context)}});
    }
    return {{"place", place.name}, {"memory_bytes", place.bytes}, {"models", std::move(models)}};
}

int fit(const FitFlags& o) {
    check_weights(o.model);
    const Place place = find_place(o);
    const std::vector<Fit> fits = all_fits(o, place);
    if (o.as_json) tell("{}\n", json::serialize(fits_json(fits, place)));
    else print_fits(fits, place);
    return 0;
}

}  // namespace

void add_fit(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("fit", "Show which models run on this machine, with how long a context");
    auto options = std::make_shared<FitFlags>();
    cmd->add_option(
        "MODEL", options->model.model,
        "An alias, a file, OWNER/NAME that was pulled, or SHAPE:TYPE of riptide synth; left out: all known");
    cmd->add_option("--weights", options->model.weights,
                    "Reckon with weights that are quantised while they are loaded, as run --weights does");
    cmd->add_option("--device", options->model.device, "auto | cpu | cuda")
        ->check(IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    cmd->add_option("--gpu", options->model.gpu, "Which GPU, from 0")->check(Sign::non_negative)->capture_default_str();
    cmd->add_option("--memory", options->memory, "Reckon with so much, e.g. 24GiB; left out: what is free here");
    cmd->add_flag("--json", options->as_json, "For scripts");
    cmd->footer(
        "Examples:\n  riptide fit\n  riptide fit laguna-xs.2 --memory 24GiB\n  riptide fit qwen3.5-27b:q5_k_m --device "
        "cpu");
    cmd->callback([options, &action] { action = [options] { return fit(*options); }; });
}

}  // namespace riptide::apps
