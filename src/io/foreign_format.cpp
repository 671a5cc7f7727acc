#include "io/foreign_format.h"

#include <array>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "io/content.h"

namespace riptide {

namespace {

struct Method {
    std::string_view key;  // how quant_method begins
    std::string_view name;
};
constexpr std::array kMethods = {
    Method{"gptq", "GPTQ"},
    Method{"awq", "AWQ"},
    Method{"bitsandbytes", "bitsandbytes"},
};

struct Mark {
    std::string_view part;  // of a tensor's name
    std::string_view name;
};
constexpr std::array kMarks = {
    Mark{".g_idx", "GPTQ"},
    Mark{".qweight", "GPTQ or AWQ"},
    Mark{".weight.absmax", "bitsandbytes"},
    Mark{".weight.quant_state.", "bitsandbytes"},
    Mark{".mlp.switch_mlp.", "MLX"},
};

std::string_view quant_method(const Checkpoint& checkpoint) {
    const json::value* config = checkpoint.metadata().if_contains("config");
    const json::value* quantised =
        config && config->is_object() ? config->as_object().if_contains("quantization_config") : nullptr;
    const json::value* method =
        quantised && quantised->is_object() ? quantised->as_object().if_contains("quant_method") : nullptr;
    return method && method->is_string() ? std::string_view(method->as_string()) : std::string_view();
}

}  // namespace

void refuse_foreign_format(const Checkpoint& checkpoint) {
    if (checkpoint.format() != Checkpoint::Format::safetensors) return;
    const std::string_view method = quant_method(checkpoint);
    for (const Method& known : kMethods)
        RT_CHECK(!method.starts_with(known.key),
                 "{}: its weights are packed in {}'s format (config.json: quantization_config.quant_method is \"{}\"), "
                 "which is not supported: {}",
                 checkpoint.path(), known.name, printable(method), kReadableInstead);
    for (const Mark& mark : kMarks)
        for (const TensorInfo& tensor : checkpoint.tensors())
            RT_CHECK(tensor.name.find(mark.part) == std::string::npos,
                     "{}: its weights are packed in {}'s format (tensor {}), which is not supported: {}",
                     checkpoint.path(), mark.name, printable(tensor.name), kReadableInstead);
}

}  // namespace riptide
