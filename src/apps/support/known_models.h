// Models that riptide knows by a short name: models/known.json, inside the program.
#pragma once

#include <string>
#include <vector>

namespace riptide::apps {

struct KnownModel {
    std::string alias;       // "laguna-xs.2"
    std::string name;        // OWNER/NAME:VARIANT; empty: no repository is recorded
    double gigabytes = 0;    // of its files; 0: not recorded
    std::string shape;       // SHAPE:TYPE of random_checkpoint() with its tensors; empty: not known
    std::string drafter;     // OWNER/NAME[:VARIANT]; empty: none is recorded
    std::string unverified;  // which of these nobody has checked, a comma between
};

struct KnownModels {
    std::string checked;  // the day, "2026-11-21"
    std::string how;
    std::vector<KnownModel> models;
};

KnownModels known_models();

}  // namespace riptide::apps
