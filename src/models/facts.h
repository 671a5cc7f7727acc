// What the models of all architectures share: counting what one token costs, naming a model, reading flags.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "models/binder.h"
#include "models/model.h"
#include "tensor/tensor.h"

namespace riptide {

/// Of any one dimension in a config: products of two stay far from overflow.
inline constexpr int64_t kMaxSize = int64_t{1} << 24;

/// Parameters and weight bytes that one token uses.
struct TokenCost {
    int64_t parameters = 0;
    int64_t bytes = 0;

    /// `times` matrices like w.
    void add(const Weight& w, int64_t times = 1);
    /// One row of w.
    void add_row(const Weight& w);
    void add(std::span<const float> values);
};

/// What every model says of itself: sizes from its config, and what was bound and stored.
template <class Config>
void describe(ModelInfo& info, const Config& config, const Binder& bind, const WeightStore& store) {
    info.config = config_text(config);
    info.num_hidden_layers = config.num_hidden_layers;
    info.hidden_size = config.hidden_size;
    info.vocab_size = config.vocab_size;
    info.max_position_embeddings = config.max_position_embeddings;
    info.parameters = bind.parameters();
    info.weight_bytes = bind.weight_bytes();
    info.device_bytes = store.device_bytes();
    info.conversions = store.conversions();
}

/// general.name of a GGUF file, else the last part of the path.
std::string model_name(const Checkpoint& checkpoint);

/// 0 and 1 per layer, as numbers or as booleans. Throws Error that names the key.
std::vector<char> read_flags(const ConfigReader& keys, std::string_view key, int64_t layers);

/// One number that must hold for all layers, be it written once or for each. Throws Error that names the key.
int64_t read_uniform(const ConfigReader& keys, std::string_view key, int64_t layers);

}  // namespace riptide
