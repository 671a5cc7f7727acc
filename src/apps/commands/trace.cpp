// riptide trace: token ids in, logits out; or every layer's results against a fixture. The first command for any wrong
// output.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "io/safetensors_writer.h"

namespace riptide::apps {

namespace {

struct TraceFlags {
    ModelFlags model;
    std::string tokens, logits, taps, against;
    int64_t prompt = 0;
    double bound = 1e-4;
};

/// Observed tensors in the order of the forward pass, rows of all chunks one below the other.
class Recorder {
  public:
    void add(const std::string& name, const Tensor& value) {
        if (value.dtype != DType::f32) return;  // expert numbers; the values that they lead to are compared
        auto [entry, fresh] = index_.try_emplace(name, entries_.size());
        if (fresh) entries_.push_back({name, 0, value.row_elements(), {}});
        Entry& e = entries_[entry->second];
        for (int64_t r = 0; r < value.rows(); ++r)
            e.values.insert(e.values.end(), value.row(r), value.row(r) + value.row_elements());
        e.rows += value.rows();
    }

    struct Entry {
        std::string name;
        int64_t rows = 0, cols = 0;
        std::vector<float> values;
    };
    const std::vector<Entry>& entries() const { return entries_; }

  private:
    std::map<std::string, size_t> index_;
    std::vector<Entry> entries_;
};

void save(const std::string& path, const std::vector<Recorder::Entry>& entries, bool only_logits) {
    std::vector<NamedTensor> tensors;
    for (const Recorder::Entry& e : entries) {
        if (only_logits != (e.name == "logits")) continue;
        tensors.push_back({e.name, DType::f32, {e.rows, e.cols}, std::as_bytes(std::span(e.values))});
    }
    write_safetensors(path, tensors, {{"made_by", "riptide trace"}});
}

struct Difference {
    double largest = 0, relative = 0;  // max |a - b|; |a - b| / |b| over the whole tensor
};

Difference difference_of(const Recorder::Entry& ours, const TensorInfo& theirs) {
    double difference = 0, norm = 0;
    Difference d;
    for (size_t i = 0; i < ours.values.size(); ++i) {
        float expected;
        std::memcpy(&expected, theirs.bytes.data() + 4 * i, 4);
        const double delta = static_cast<double>(ours.values[i]) - static_cast<double>(expected);
        d.largest = std::isnan(delta) ? delta : std::max(d.largest, std::abs(delta));
        difference += delta * delta;
        norm += static_cast<double>(expected) * static_cast<double>(expected);
    }
    d.relative = std::sqrt(difference / std::max(norm, 1e-300));
    return d;
}

/// Prints each tensor that both have, in the order of the forward pass; stops at the first beyond the bound. Returns
/// the exit code.
int compare_all(const TraceFlags& o, const std::vector<Recorder::Entry>& entries) {
    const auto expected = open_checkpoint(o.against);
    int compared = 0;
    tell("{:<24} {:>14} {:>12} {:>12}\n", "tensor", "shape", "max error", "relative");
    for (const Recorder::Entry& e : entries) {
        const TensorInfo* theirs = expected->find(e.name == "logits" ? fmt::format("logits.{}", o.prompt) : e.name);
        if (theirs == nullptr || theirs->dtype != DType::f32 || theirs->shape != std::vector<int64_t>{e.rows, e.cols})
            continue;
        const Difference d = difference_of(e, *theirs);
        const bool good = d.relative <= o.bound;
        tell("{:<24} {:>14} {:>12.3e} {:>12.3e}{}\n", e.name, fmt::format("[{}, {}]", e.rows, e.cols), d.largest,
             d.relative, good ? "" : "  <- beyond the bound");
        ++compared;
        if (!good) return static_cast<int>(ErrorKind::data);
    }
    RT_CHECK(compared > 0, "{}: no tensor fits these tokens (is --prompt {} right?)", o.against, o.prompt);
    tell("{} tensors within {:.0e}\n", compared, o.bound);
    return 0;
}

std::string tap_name(std::string_view name, int layer) {
    if (layer >= 0) return fmt::format("tap.{}.{}", layer, name);
    return fmt::format("tap.{}", name);
}

int trace(const TraceFlags& o) {
    RT_CHECK(!o.logits.empty() || !o.taps.empty() || !o.against.empty(), ErrorKind::usage,
             "nothing to do: give --logits OUT, --taps OUT or --against EXPECTED");
    catch_interrupts();
    const std::vector<int32_t> ids = read_token_file(o.tokens);
    const auto session = open_session(o.model);
    Recorder recorder;
    if (!o.taps.empty() || !o.against.empty())
        session->runner().context().tap = [&](std::string_view name, int layer, const Tensor& value) {
            recorder.add(tap_name(name, layer), value);
        };
    Progress progress("tracing", "tok");
    session->score(
        ids,
        [&](int64_t first, const Tensor& logits) {
            recorder.add("logits", logits);
            progress.update(first + logits.rows(), static_cast<int64_t>(ids.size()));
        },
        &interrupted());
    if (interrupted()) return 130;
    if (!o.logits.empty()) save(o.logits, recorder.entries(), true);
    if (!o.taps.empty()) save(o.taps, recorder.entries(), false);
    return o.against.empty() ? 0 : compare_all(o, recorder.entries());
}

}  // namespace

void add_trace(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("trace", "Token ids in, logits out; or compare every layer with a fixture");
    auto options = std::make_shared<TraceFlags>();
    options->model.kv = "f32";  // for comparing: nothing rounded on any device
    add_model_flags(*cmd, options->model);
    cmd->add_option("--tokens", options->tokens, "File with a JSON array of token ids")->required();
    cmd->add_option("--logits", options->logits,
                    "Write f32 `logits` [n, vocab] of all positions to this safetensors file");
    cmd->add_option("--taps", options->taps,
                    "Write every layer's results (attn_out, ffn_out, layer_out) to this safetensors file");
    cmd->add_option("--against", options->against,
                    "Compare with this safetensors file, tensor by tensor; stop at the first that is off");
    cmd->add_option("--prompt", options->prompt, "--against: which `logits.N` of the file belongs to the tokens")
        ->capture_default_str();
    cmd->add_option("--bound", options->bound, "--against: largest relative error |a - b| / |b|")
        ->capture_default_str();
    cmd->footer(
        "Examples:\n  riptide trace model.gguf --tokens ids.json --logits out.safetensors --chunk 64\n"
        "  riptide trace tests/fixtures/laguna_xs2 --tokens ids.json --against "
        "tests/fixtures/laguna_xs2/expected.safetensors --prompt 2");
    cmd->callback([options, &action] { action = [options] { return trace(*options); }; });
}

}  // namespace riptide::apps
