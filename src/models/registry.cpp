#include <fmt/ranges.h>

#include <array>

#include "base/error.h"
#include "io/content.h"
#include "io/hf_config.h"
#include "models/dflash_config.h"
#include "models/laguna.h"
#include "models/model.h"
#include "models/qwen3.h"
#include "models/qwen35.h"

namespace riptide {

namespace {

template <class T>
std::unique_ptr<Model> make(const Checkpoint& checkpoint, const ModelOptions& options) {
    return std::make_unique<T>(checkpoint, options);
}

struct Architecture {
    const char* name;  // general.architecture in GGUF, model_type in config.json
    std::unique_ptr<Model> (*load)(const Checkpoint&, const ModelOptions&);
};

constexpr std::array kArchitectures = {
    Architecture{"laguna", make<Laguna>},
    Architecture{"qwen3", make<Qwen3>},
    Architecture{"qwen35", make<Qwen35>},  // GGUF
    Architecture{"qwen35moe", make<Qwen35>},
    Architecture{"qwen3_5", make<Qwen35>},  // Hugging Face: with a vision tower beside the text model, or without
    Architecture{"qwen3_5_text", make<Qwen35>},
    Architecture{"qwen3_5_moe", make<Qwen35>},
    Architecture{"qwen3_5_moe_text", make<Qwen35>},
};

std::string architecture_of(const Checkpoint& checkpoint) {
    if (checkpoint.format() == Checkpoint::Format::gguf)
        return gguf_config(checkpoint).get<std::string>("general.architecture");
    return hf_config(checkpoint).get<std::string>("model_type");
}

}  // namespace

std::unique_ptr<Model> load_model(const Checkpoint& checkpoint, const ModelOptions& options) {
    RT_CHECK(options.yarn_attention_factor < 0 ||
                 (options.yarn_attention_factor > 0 && options.yarn_attention_factor <= 100),
             "the YaRN attention factor is {}, expected more than 0 and at most 100", options.yarn_attention_factor);
    refuse_dflash(checkpoint);
    if (options.prefill == PrefillKind::fp8) {
        RT_CHECK(options.gpu != nullptr, ErrorKind::usage, "--prefill fp8: it runs on a GPU only");
        RT_CHECK(options.gpu->hopper(), ErrorKind::usage,
                 "--prefill fp8: it needs a Hopper GPU (compute capability 9.0) and no --portable; {} has {}.{}",
                 options.gpu->info().name, options.gpu->info().major, options.gpu->info().minor);
    }
    const std::string name = architecture_of(checkpoint);
    ModelOptions resolved = options;
    resolved.task = task_of(checkpoint, options.task);
    RT_CHECK(resolved.task == Task::generate || name == "qwen3",
             "{}: --task {} is for models of the architecture qwen3 (Qwen3-Embedding, Qwen3-Reranker), and this is {}",
             checkpoint.path(), task_name(*resolved.task), printable(name));
    std::vector<std::string> known;
    for (const Architecture& architecture : kArchitectures) {
        if (name == architecture.name) return architecture.load(checkpoint, resolved);
        known.push_back(architecture.name);
    }
    RT_CHECK(name != "clip", "{}: the part of a model that sees images (mmproj); the text model is another file",
             checkpoint.path());
    fail("{}: the architecture is \"{}\"; supported are {}", checkpoint.path(), printable(name),
         fmt::join(known, ", "));
}

}  // namespace riptide
