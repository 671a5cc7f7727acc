// What /set changes.
#pragma once

#include <cstdint>
#include <string>

#include "engine/sampling/sampling_params.h"

namespace riptide::apps {

struct ChatSettings {
    SamplingParams sampling;
    bool think = false;
    int64_t vocab_size = 0;  // of the model, for checks
};

/// "temperature 0.7  top_k 20 ...".
std::string describe_settings(const ChatSettings& settings);
/// Throws Error that names the settings there are, or the values that this one may have; nothing has changed then.
void change_setting(ChatSettings& settings, const std::string& name, const std::string& value);

}  // namespace riptide::apps
