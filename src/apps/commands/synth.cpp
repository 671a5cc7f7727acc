// riptide synth: a GGUF of a real shape with seeded random weights, to measure speed and memory without the real file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "apps/synth/synth_shapes.h"
#include "apps/synth/synth_vocab.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/quant_mix.h"
#include "quant/random_fill.h"

namespace riptide::apps {

namespace {

struct SynthFlags {
    std::string out, shape = "laguna-xs.2", type = "q4_k_m", routing = "uniform";
    uint64_t seed = 1;
    int threads = 0;
};

constexpr int64_t kRandomPieceBytes = int64_t{64} << 20;

bool is_norm(const std::string& name) { return name.find("norm.weight") != std::string::npos; }

/// Standard deviation of a matrix that keeps activations near unit size: 1 / sqrt(columns).
float sigma_of(const LayoutTensor& tensor) { return 1.0f / std::sqrt(static_cast<float>(tensor.shape.back())); }

/// Norm weights are one. The router's bias is zero (uniform) or falls off steeply over the experts in a seeded order
/// (skewed), so that a few experts take most rows, as trained routers have it.
void fill_vector(const LayoutTensor& tensor, const SynthFlags& options, std::vector<float>& values) {
    if (is_norm(tensor.name)) {
        std::fill(values.begin(), values.end(), 1.0f);
        return;
    }
    const auto n = static_cast<int64_t>(values.size());
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t mixed = (static_cast<uint64_t>(i) + 7) * 0x9E3779B97F4A7C15u ^
                               (options.seed + static_cast<uint64_t>(tensor.layer)) * 0xD1B54A32D192ED03u;
        const double u = static_cast<double>(mixed >> 11) * 0x1p-53;
        values[static_cast<size_t>(i)] = options.routing == "skewed" ? static_cast<float>(0.5 * u * u * u * u) : 0.0f;
    }
}

void write_matrix(GgufWriter& writer, const LayoutTensor& tensor, DType type, uint64_t seed, ThreadPool& threads,
                  const std::function<void(int64_t)>& advance) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    const int64_t cols = tensor.shape.back(), bytes = row_bytes(type, cols);
    const int64_t per_piece = std::max<int64_t>(1, kRandomPieceBytes / bytes);
    std::vector<std::byte> piece(static_cast<size_t>(std::min(rows, per_piece) * bytes));
    const float sigma = sigma_of(tensor);
    for (int64_t first = 0; first < rows; first += per_piece) {
        const int64_t count = std::min(per_piece, rows - first);
        threads.parallel_for(count, 16, [&](int64_t begin, int64_t end, int) {
            for (int64_t r = begin; r < end; ++r)
                random_fill(type, piece.data() + r * bytes, cols, sigma,
                            seed + static_cast<uint64_t>(first + r) * 0x9E37u);
        });
        writer.write({piece.data(), static_cast<size_t>(count * bytes)});
        advance(count * bytes);
        if (interrupted()) fail(ErrorKind::io, "interrupted; nothing was left behind");
    }
}

int synth(const SynthFlags& options) {
    RT_CHECK(options.routing == "uniform" || options.routing == "skewed", ErrorKind::usage,
             "--routing {}: expected uniform or skewed", options.routing);
    const GgufLayout& shape = find_synth_shape(options.shape);
    const std::vector<LayoutTensor> tensors = layout_tensors(shape);
    catch_interrupts();
    GgufWriter writer(options.out);
    write_layout_metadata(shape, writer);
    writer.set_string("general.name", shape.name + " (random weights)");
    writer.set_string("riptide.weights",
                      "random, seed " + std::to_string(options.seed) + ", routing " + options.routing);
    writer.set_u32("general.file_type", quant_mix_file_type(options.type));
    write_synth_vocabulary(writer, shape.vocab_size, demo_chat_template());
    std::vector<DType> types;
    for (const LayoutTensor& tensor : tensors) {
        types.push_back(quant_mix_type(options.type, tensor.name, tensor.shape, tensor.layer, shape.num_hidden_layers,
                                       shape.tie_word_embeddings));
        writer.add_tensor(tensor.name, types.back(), tensor.shape);
    }
    ThreadPool threads(options.threads);
    Progress progress("writing", "B");
    int64_t done = 0;
    const auto advance = [&](int64_t bytes) { progress.update(done += bytes, writer.tensor_bytes()); };
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].shape.size() == 1) {
            std::vector<float> values(static_cast<size_t>(tensors[i].shape[0]));
            fill_vector(tensors[i], options, values);
            writer.write_tensor(tensors[i].name, std::as_bytes(std::span(values)));
            advance(static_cast<int64_t>(values.size() * 4));
        } else {
            write_matrix(writer, tensors[i], types[i], (options.seed << 32) + i * 0x51ED27u, threads, advance);
        }
    }
    writer.finish();
    tell("{}: {} tensors, {} bytes of tensor data ({}), random weights, seed {}\n", options.out, tensors.size(),
         grouped(writer.tensor_bytes()), human_bytes(writer.tensor_bytes()), options.seed);
    return 0;
}

}  // namespace

void add_synth(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("synth", "Write a GGUF of a real shape with seeded random weights");
    auto options = std::make_shared<SynthFlags>();
    std::string names;
    for (const GgufLayout& shape : synth_shapes()) names += (names.empty() ? "" : ", ") + shape.name;
    cmd->add_option("OUT", options->out, "File to write")->required();
    cmd->add_option("--shape", options->shape, "Shape: " + names)->capture_default_str();
    cmd->add_option("--type", options->type, "Quantisation mix: " + quant_mix_names(true))->capture_default_str();
    cmd->add_option("--routing", options->routing, "Experts are chosen: uniform | skewed")->capture_default_str();
    cmd->add_option("--seed", options->seed, "Seed of all weights")->capture_default_str();
    cmd->add_option("--threads", options->threads, "Threads; 0: all")->capture_default_str();
    cmd->footer(
        "Examples:\n  riptide synth xs2.gguf --shape laguna-xs.2 --type q4_k_m\n"
        "  riptide synth tiny.gguf --shape laguna-tiny --type q8_0 --seed 7");
    cmd->callback([options, &action] { action = [options] { return synth(*options); }; });
}

}  // namespace riptide::apps
