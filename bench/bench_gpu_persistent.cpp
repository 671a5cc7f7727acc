// Decoding Qwen3.5-0.8B in one launch and op by op, on a GPU: bits, device time, and where the time goes.
//
// One launch has the bits of the ops with attention's sums in its order (Context::one_launch), so that is what it is
// compared with; what is timed beside it is the chain that a runner without the kernel runs, whose attention over heads
// of 256 adds in another order. Exits 1 unless all steps have the same logits and leave the same
// state, and all answers decoded ahead of the host leave the state of steps one by one.
//
// bench_gpu_persistent [--shape qwen3.5-0.8b:bf16] [--depth N] [--steps N] [--ahead G,D,I]...
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "cache/batch_builder.h"
#include "engine/execution/decode_ahead.h"
#include "engine/execution/device_batch.h"
#include "engine/execution/one_launch.h"
#include "engine/execution/runner.h"
#include "ops/topk.h"

namespace riptide {
namespace {

struct Run {
    const Model& model;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<ops::PersistentDecode> launch;
    std::unique_ptr<Runner> runner;
    std::unique_ptr<SequenceState> sequence;

    Run(Gpu& gpu, const Model& loaded, bool at_once, int64_t tokens) : model(loaded) {
        KvCacheOptions o;
        o.k_dtype = o.v_dtype = DType::q8_0;
        o.page_rows = 16;
        o.pages = static_cast<int32_t>(tokens / 16 + 16);
        o.max_sequences = 1;
        o.max_step_rows = 512;
        cache = std::make_unique<KvCache>(model.state_specs(), o, &gpu);
        if (at_once) launch = one_launch(model, *cache, int64_t{o.pages} * o.page_rows);
        new_runner();
        sequence = std::make_unique<SequenceState>(*cache);
    }
    /// One that has recorded nothing.
    void new_runner() {
        runner = std::make_unique<Runner>(model, *cache, nullptr);
        runner->context().one_launch = launch.get();
    }
    Tensor step(std::span<const int32_t> tokens, Family family) {
        const StepItem item{sequence.get(), tokens};
        const Tensor logits = runner->step(std::span(&item, 1), family);
        sequence->commit_prefix(std::ssize(tokens));
        return logits;
    }
};

std::vector<float> values(Gpu& gpu, const Tensor& t) {
    std::vector<float> all(static_cast<size_t>(t.elements()));
    gpu.to_host(all.data(), t.data, t.elements() * 4);
    return all;
}

/// The device's time of a step at this depth, as a graph: median of many, in microseconds.
std::vector<double> time_steps(Gpu& gpu, Run& run, int repeats) {
    // The sequence stays as long as it is: the rows are dropped.
    const int32_t token = 11;
    const StepItem item{run.sequence.get(), std::span(&token, 1)};
    std::vector<double> us;
    GpuTimer timer(gpu);
    for (int i = 0; i < repeats + 5; ++i) {
        timer.start();
        run.runner->step(std::span(&item, 1), Family::decode);
        timer.stop();
        const double t = timer.milliseconds() * 1e3;
        run.sequence->commit_prefix(0);
        if (i >= 5) us.push_back(t);
    }
    std::sort(us.begin(), us.end());
    return us;
}

/// Answers of 1 to 9 tokens that the device decodes ahead of the host, and the same tokens fed one by one, in turns
/// with the last step kept and dropped; how many left the same state.
int ahead_of_host(Run& ahead, Run& by_steps, int32_t token) {
    GpuDecoder decoder(ahead.model, *ahead.cache, ahead.runner->context(), ahead.runner->device_batch(), 1);
    int same = 0;
    for (int64_t answer = 1; answer < 10; ++answer) {
        const bool drop = answer % 2 == 0;
        SequenceState& s = *ahead.sequence;
        RT_ASSERT(s.try_reserve(answer + 1) && decoder.follow_rows() > 0);
        const DecodeRow row{&s, token};
        decoder.begin(std::span(&row, 1), GpuDecoder::Draw::largest, {}, GpuDecoder::Recurrent::follows);
        for (int64_t i = 0; i < answer; ++i) {
            if (i == 0) decoder.launch();
            if (i + 1 < answer || drop) decoder.launch();
            by_steps.step(std::span(&token, 1), Family::decode);
            token = decoder.next()[0];
        }
        decoder.end();
        s.commit_followed(answer, decoder.run());
        same += s.length() == by_steps.sequence->length() && s.save() == by_steps.sequence->save() ? 1 : 0;
    }
    return same;
}

int bench(const std::string& shape, int64_t depth, int64_t steps, const std::vector<std::vector<int>>& ahead) {
    const auto gpu = Gpu::open({});
    const auto checkpoint = apps::random_checkpoint(shape, 0);
    ModelOptions options;
    options.gpu = gpu.get();
    const auto model = load_model(*checkpoint, options);
    Run chain(*gpu, *model, false, depth + steps + 64), by_steps(*gpu, *model, false, depth + steps + 64),
        once(*gpu, *model, true, depth + steps), one_by_one(*gpu, *model, true, depth + steps);
    one_by_one.runner->context().tap = [](std::string_view, int, const Tensor&) {};  // watched steps go op by op
    std::mt19937 random(3);
    std::vector<int32_t> tokens(static_cast<size_t>(depth));
    const auto vocab = static_cast<uint32_t>(model->info().vocab_size);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
    for (size_t at = 0; at < tokens.size(); at += 512) {
        const std::span<const int32_t> part = std::span(tokens).subspan(at, std::min<size_t>(512, tokens.size() - at));
        for (Run* run : {&chain, &by_steps, &once, &one_by_one}) run->step(part, Family::prefill);
    }
    int64_t same = 0;
    for (int64_t t = 0; t < steps; ++t) {
        const auto token = static_cast<int32_t>(random() % vocab);
        for (Run* run : {&chain, &by_steps}) run->step(std::span(&token, 1), Family::decode);
        const std::vector<float> a = values(*gpu, one_by_one.step(std::span(&token, 1), Family::decode)),
                                 b = values(*gpu, once.step(std::span(&token, 1), Family::decode));
        if (std::memcmp(a.data(), b.data(), a.size() * 4) == 0) {
            ++same;
        } else {
            double most = 0;
            for (size_t i = 0; i < a.size(); ++i) most = std::max(most, static_cast<double>(std::abs(a[i] - b[i])));
            fmt::print("step {}: logits differ by {}\n", t, most);
        }
    }
    const bool same_state = one_by_one.sequence->save() == once.sequence->save();
    fmt::print("{} of {} steps have the logits of the ops one by one, bit for bit; same state: {}\n", same, steps,
               same_state);
    const int same_ahead = ahead_of_host(chain, by_steps, 17);
    fmt::print("{} of 9 answers decoded ahead of the host leave the same state\n", same_ahead);
    const auto report = [&](const std::string& name, Run& run) {
        const std::vector<double> us = time_steps(*gpu, run, 60);
        fmt::print("{:40} {:8.1f} us a step ({:.1f} .. {:.1f})\n", name, us[us.size() / 2], us.front(), us.back());
    };
    report("op by op (graph)", chain);
    ops::PersistentDecode& op = *once.launch;
    const int64_t layers = model->info().num_hidden_layers;
    DeviceMemory clocks(gpu.get(), (layers + 1) * 64, "clocks");
    for (const std::vector<int>& lines : ahead) {
        op.tune(lines);
        once.new_runner();
        report(fmt::format("one launch, lines ahead {}", fmt::join(lines, ",")), once);
    }
    for (const int cta : {0, 70}) {
        op.watch(reinterpret_cast<int64_t*>(clocks.data()), cta);
        once.new_runner();
        time_steps(*gpu, once, 10);
        std::vector<int64_t> at(static_cast<size_t>((layers + 1) * 8));
        gpu->to_host(at.data(), clocks.data(), (layers + 1) * 64);
        const auto specs = model->state_specs();
        for (const bool linear : {true, false}) {
            double sums[8] = {};
            int count = 0;
            for (int64_t l = 1; l < layers; ++l) {
                if ((specs[static_cast<size_t>(l)].kind == StateSpec::Kind::delta) != linear) continue;
                ++count;
                for (size_t i = 0; i < 7; ++i)
                    if (i != 4)
                        sums[i] += static_cast<double>(at[static_cast<size_t>(8 * l) + i + 1] -
                                                       at[static_cast<size_t>(8 * l) + i]);
                sums[4] += static_cast<double>(at[static_cast<size_t>(8 * l) + 5] - at[static_cast<size_t>(8 * l) + 4]);
                sums[7] += static_cast<double>(at[static_cast<size_t>(8 * (l + 1))] - at[static_cast<size_t>(8 * l)]);
            }
            fmt::print("CTA {} {}: ", cta, linear ? "delta" : "attention");
            const char* names[] = {"wait x", "first product", "delta or attention, wait mixed",
                                   "out",    "wait x",        "gate up, wait act",
                                   "down",   "layer"};
            for (int i = 0; i < 8; ++i)
                fmt::print("{} {:.2f}, ", names[i], sums[i] / count / gpu->info().clock_hz * 1e6);
            fmt::print("us at {:.0f} MHz\n", gpu->info().clock_hz * 1e-6);
        }
        fmt::print(
            "head: wait {:.1f}, product {:.1f} us\n",
            static_cast<double>(at[static_cast<size_t>(8 * layers) + 1] - at[static_cast<size_t>(8 * layers)]) /
                gpu->info().clock_hz * 1e6,
            static_cast<double>(at[static_cast<size_t>(8 * layers) + 2] - at[static_cast<size_t>(8 * layers) + 1]) /
                gpu->info().clock_hz * 1e6);
    }
    op.watch(nullptr, 0);
    return same == steps && same_state && same_ahead == 9 ? 0 : 1;
}

}  // namespace
}  // namespace riptide

int main(int argc, char** argv) {
    std::string shape = "qwen3.5-0.8b:bf16";
    int64_t depth = 128, steps = 20;
    std::vector<std::vector<int>> ahead;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        if (flag == "--shape") shape = value;
        else if (flag == "--depth") depth = std::stoll(value);
        else if (flag == "--steps") steps = std::stoll(value);
        else if (flag == "--ahead") {
            std::vector<int> lines;
            for (size_t at = 0; at < value.size();) {
                const size_t comma = std::min(value.find(',', at), value.size());
                lines.push_back(std::stoi(value.substr(at, comma - at)));
                at = comma + 1;
            }
            ahead.push_back(lines);
        }
    }
    if (ahead.empty()) ahead.push_back({0, 0, 0});
    try {
        return riptide::bench(shape, depth, steps, ahead);
    } catch (const riptide::Error& error) {
        fmt::print(stderr, "{}: {}\n", argv[0], error.what());
        return static_cast<int>(error.kind());
    }
}
