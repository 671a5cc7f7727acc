#include "apps/support/demo_model.h"

#include <cstddef>
#include <span>

#include "apps/support/model_store.h"
#include "base/error.h"

extern "C" const std::byte riptide_demo_model_begin[];
extern "C" const std::byte riptide_demo_model_end[];
extern "C" const std::byte riptide_demo_drafter_begin[];
extern "C" const std::byte riptide_demo_drafter_end[];
extern "C" const std::byte riptide_demo_scorer_begin[];
extern "C" const std::byte riptide_demo_scorer_end[];
extern "C" const char riptide_demo_template_begin[];
extern "C" const char riptide_demo_template_end[];

namespace riptide::apps {

std::unique_ptr<Checkpoint> open_model_or_demo(const std::string& path) {
    if (!path.empty()) return open_checkpoint(resolve_model(path));
    const std::span<const std::byte> image(riptide_demo_model_begin, riptide_demo_model_end);
    if (image.empty())
        fail(ErrorKind::unavailable, "this build contains no demo model: name a GGUF file or a safetensors folder");
    return open_gguf_memory(image, "(demo model)");
}

SpeculationOptions drafted_by(const std::string& name) {
    SpeculationOptions options;
    options.drafter = name == "demo" || name == "ngram" ? name : resolve_model(name);
    if (name == "demo")
        options.open = [] {
            const std::span<const std::byte> image(riptide_demo_drafter_begin, riptide_demo_drafter_end);
            if (image.empty()) fail(ErrorKind::unavailable, "this build contains no drafter for the demo model");
            return open_gguf_memory(image, "(demo drafter)");
        };
    return options;
}

std::unique_ptr<Checkpoint> open_scorer_checkpoint(const std::string& name) {
    if (name != "demo") return open_checkpoint(resolve_model(name));
    const std::span<const std::byte> image(riptide_demo_scorer_begin, riptide_demo_scorer_end);
    if (image.empty()) fail(ErrorKind::unavailable, "this build contains no scorer for the demo model");
    return open_gguf_memory(image, "(demo scorer)");
}

std::string_view demo_chat_template() {
    return {riptide_demo_template_begin, static_cast<size_t>(riptide_demo_template_end - riptide_demo_template_begin)};
}

}  // namespace riptide::apps
