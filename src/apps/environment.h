// What the machine says about itself: systemd's socket, folders, programs. Never options of ours.
#pragma once

#include <string>

namespace riptide::apps {

/// "" if it is not set. The one place where src/ reads the environment.
std::string environment(const char* name);

/// A program on PATH, or "".
std::string find_program(const std::string& name);

/// Where downloaded models are: $XDG_CACHE_HOME/riptide/models, or ~/.cache/riptide/models.
std::string models_folder();

}  // namespace riptide::apps
