#include "engine/prompt/generation_defaults.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "text/chat/chat_messages.h"

namespace riptide {

namespace {

constexpr std::string_view kConfig = "generation_config.json";
constexpr std::string_view kGgufKeys = "general.sampling";

/// Calls f(name, GGUF's name, choice, parameter) for each value that a file may have.
template <class F>
void for_each_value(F&& f) {
    using Choice = SamplingChoice;
    using Params = SamplingParams;
    f("temperature", "temp", &Choice::temperature, &Params::temperature);
    f("top_k", "top_k", &Choice::top_k, &Params::top_k);
    f("top_p", "top_p", &Choice::top_p, &Params::top_p);
    f("min_p", "min_p", &Choice::min_p, &Params::min_p);
    f("repetition_penalty", "penalty_repeat", &Choice::repetition_penalty, &Params::repetition_penalty);
}

/// Null is as good as absent.
const json::value* present_field(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::string shown(const json::value& value) { return json::serialize(value).substr(0, 80); }

/// 0.699999988 was written as 0.7.
double shortest_decimal(double value) {
    const auto narrow = static_cast<float>(value);
    if (static_cast<double>(narrow) != value) return value;  // a f64, or NaN
    const std::string text = fmt::format("{}", narrow);
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

void read_number(const json::value& found, const std::string& where, double& out) {
    RT_CHECK(found.is_number(), "{} is {}, expected a number", where, shown(found));
    out = found.to_number<double>();
}

void read_number(const json::value& found, const std::string& where, int64_t& out) {
    constexpr double kMost = std::numeric_limits<int32_t>::max();
    double value = 0.5;
    if (found.is_number()) value = found.to_number<double>();
    RT_CHECK(value == std::floor(value) && std::abs(value) <= kMost, "{} is {}, expected a whole number", where,
             shown(found));
    out = value == -1 ? 0 : static_cast<int64_t>(value);  // -1: others' way to say "all"
}

/// `where`: file and key.
template <class T>
void read_value(const json::value& found, const std::string& where, std::string_view name, bool gguf,
                std::optional<T>& choice, T SamplingParams::*param) {
    SamplingParams checked;
    read_number(found, where, checked.*param);
    if constexpr (std::is_same_v<T, double>)
        if (gguf) checked.*param = shortest_decimal(checked.*param);
    try {
        check_sampling_params(checked, std::numeric_limits<int32_t>::max());
    } catch (const Error& error) {  // "top_p is 2, expected ..."
        fail("{}{}", where, std::string_view(error.what()).substr(name.size()));
    }
    choice = checked.*param;
}

void read_gguf(const Checkpoint& checkpoint, GenerationDefaults& out) {
    out.source = kGgufKeys;
    for_each_value([&](std::string_view name, std::string_view gguf_name, auto choice, auto param) {
        const std::string key = fmt::format("{}.{}", kGgufKeys, gguf_name);
        if (const json::value* found = present_field(checkpoint.metadata(), key))
            read_value(*found, fmt::format("{}: {}", checkpoint.path(), key), name, true, out.sampling.*choice, param);
    });
}

void read_eos(const json::value& eos, const std::string& file, std::vector<int32_t>& out) {
    const auto add = [&](const json::value& id) {
        RT_CHECK(id.is_int64(), "{}: eos_token_id is {}, expected an integer", file, shown(id));
        out.push_back(static_cast<int32_t>(id.get_int64()));
    };
    if (!eos.is_array()) return add(eos);
    for (const json::value& id : eos.get_array()) add(id);
}

void read_template_kwargs(const json::value& kwargs, const std::string& file, json::object& out) {
    RT_CHECK(kwargs.is_object(), "{}: default_chat_template_kwargs is {}, expected an object", file, shown(kwargs));
    for (const auto& [key, value] : kwargs.get_object())
        if (value.is_bool() || value.is_number() || value.is_string()) out[key] = value;
    try {
        check_template_kwargs(out);
    } catch (const Error& error) {  // "chat_template_kwargs.enable_thinking: ..."
        fail("{}: default_{}", file, error.what());
    }
}

void read_config(const json::object& config, const std::string& file, GenerationDefaults& out) {
    for_each_value([&](std::string_view name, std::string_view, auto choice, auto param) {
        if (const json::value* found = present_field(config, name))
            read_value(*found, fmt::format("{}: {}", file, name), name, false, out.sampling.*choice, param);
    });
    if (const json::value* sample = present_field(config, "do_sample")) {
        RT_CHECK(sample->is_bool(), "{}: do_sample is {}, expected true or false", file, shown(*sample));
        if (!sample->get_bool()) out.sampling.temperature = 0;
    }
    if (const json::value* kwargs = present_field(config, "default_chat_template_kwargs"))
        read_template_kwargs(*kwargs, file, out.template_kwargs);
    if (const json::value* eos = present_field(config, "eos_token_id")) read_eos(*eos, file, out.eos_ids);
}

}  // namespace

GenerationDefaults generation_defaults(const Checkpoint& checkpoint) {
    GenerationDefaults out;
    const json::value* found = present_field(checkpoint.metadata(), "generation_config");
    const json::object* config = found != nullptr ? found->if_object() : nullptr;
    if (checkpoint.format() == Checkpoint::Format::gguf && config == nullptr) {
        read_gguf(checkpoint, out);
        return out;
    }
    out.source = kConfig;
    if (config != nullptr) read_config(*config, fmt::format("{}: {}", checkpoint.path(), kConfig), out);
    return out;
}

SettledSampling settle_sampling(const SamplingParams& otherwise, const SamplingChoice& command_line,
                                const GenerationDefaults& makers) {
    SettledSampling out{otherwise, {}};
    for_each_value([&](std::string_view name, std::string_view, auto choice, auto param) {
        const auto& said = command_line.*choice;
        const auto& published = makers.sampling.*choice;
        auto& value = out.params.*param;
        value = said ? *said : published.value_or(value);
        out.values.push_back({name, static_cast<double>(value),
                              said        ? "command line"
                              : published ? makers.source
                                          : "built in"});
    });
    return out;
}

std::string describe(const SettledSampling& sampling) {
    std::string out, source;
    for (const SettledValue& value : sampling.values) {
        if (value.name == "repetition_penalty" && value.value == 1) continue;
        if (!source.empty()) out += value.source == source ? ", " : fmt::format(" ({}), ", source);
        out += fmt::format("{} {}", value.name, value.value);
        source = value.source;
    }
    return fmt::format("{} ({})", out, source);
}

}  // namespace riptide
