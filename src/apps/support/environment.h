// What the machine says about itself: systemd's socket, folders, programs, where traces go. Never options of ours.
#pragma once

#include <string>

namespace riptide::apps {

/// "" if it is not set. The one place where src/ reads the environment.
std::string environment(const char* name);

/// A program on PATH, or "".
std::string find_program(const std::string& name);

/// Riptide's own cache: $XDG_CACHE_HOME/riptide, or ~/.cache/riptide; "" if neither is set.
std::string cache_folder();
/// Where downloaded models are: `models` in the cache. Throws Error (usage): there is none.
std::string models_folder();
/// Where the SHA-256 of weights are remembered (base/digest_memo.h): `digests` in the cache; "": nowhere.
std::string digests_file();
/// What riptide remembers between runs: $XDG_STATE_HOME/riptide, or ~/.local/state/riptide; "" if neither is set.
std::string state_folder();

}  // namespace riptide::apps
