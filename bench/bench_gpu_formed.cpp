// Answers of a given form on a GPU: tokens a second where the device draws them, and where the host does; and of
// answers of no form. The model's weights are random, its vocabulary is made up: words of lower-case letters, and
// single bytes.
//
// bench_gpu_formed SHAPE:TYPE TOKENS ANSWERS
#include <algorithm>
#include <chrono>

#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "engine/loop/engine_loop.h"
#include "engine/loop/job_maker.h"

namespace riptide {
namespace {

struct Form {
    const char* name;
    AnswerFormat format;
};

struct Bench {
    Machine& machine;
    ModelText text;
    JobMaker maker;

    explicit Bench(Machine& machine_)
        : machine(machine_),
          text(*machine.checkpoint()),
          maker(text, machine.options(), machine.model().info(), machine.context_length(), nullptr) {}

    /// `answers` at a time, each of `tokens`; tokens a second behind the first ones.
    void time(const Form& form, const char* how, const SamplingParams& sampling, int64_t tokens, int64_t answers,
              bool show) const {
        EngineLoop loop(machine, [] { return false; });
        using Clock = std::chrono::steady_clock;
        int64_t drawn = 0, counted = 0, waiting = answers;
        Clock::time_point start, last;
        std::string failure;
        for (int64_t i = 0; i < answers; ++i) {
            Request request;
            request.prompt = TokenPrompt{std::vector<int32_t>{2, 100, static_cast<int32_t>(200 + i)}};
            request.sampling = sampling;
            request.sampling.seed = static_cast<uint64_t>(i);
            request.sampling.max_tokens = tokens;
            request.format = form.format;
            request.want_tokens = true;
            auto job = maker.make(std::move(request), [&, first = true](const Event& event) mutable {
                if (const auto* failed = std::get_if<Failed>(&event.body)) failure = failed->message;
                if (!std::holds_alternative<TokensDrawn>(event.body)) return;
                ++drawn;
                last = Clock::now();
                if (std::exchange(first, false) && --waiting == 0) start = last;  // all have begun
                else if (waiting == 0) ++counted;
            });
            job->id = i + 1;
            if (job->share == 0) job->share = maker.share_of(job->id);
            ++loop.waiting;
            loop.add(std::move(job));
        }
        while (!loop.idle()) loop.step();
        RT_CHECK(failure.empty(), "{}", failure);
        if (!show) return;
        EngineStats stats;
        loop.report(stats);
        const double seconds = std::chrono::duration<double>(last - start).count();
        fmt::print(
            "{:28} {:7} {:2} answers: {:8.1f} tok/s, {:7.3f} ms a step, host {:6.3f} ms; {} tokens, {} drawn for a "
            "form by the device\n",
            form.name, how, answers, static_cast<double>(counted) / seconds,
            1e3 * seconds * static_cast<double>(answers) / static_cast<double>(std::max<int64_t>(1, counted)),
            1e3 * stats.host_seconds / static_cast<double>(stats.steps), drawn, stats.formed_rows);
    }
};

void run(const std::string& shape, int64_t tokens, int64_t answers) {
    EngineOptions options;
    options.gpu = GpuOptions();
    options.context = 4096;
    options.chunk_rows = 512;
    options.max_running = 8;
    options.prefix_cache = false;
    Machine machine(apps::random_checkpoint(shape, 8), options);
    const DecodeDevice device = *machine.decoder();
    DecodeDevice host = device;
    host.forward = {}, host.draw = {}, host.draw_rows = {};
    const Bench bench(machine);
    const auto regex = [](const char* text) { return AnswerFormat{.kind = AnswerFormat::Kind::regex, .text = text}; };
    const Form forms[] = {{"none", {}},
                          {"numbers (10 tokens fit)", regex("([0-9]{3},)*Z{500}")},
                          {"words (nearly all fit)", regex("([a-z]+ )*Z{500}")},
                          {"counted (a mask a token)", regex("[0-9 ]{1000}")}};
    fmt::print("{}, vocabulary of {}\n", shape, machine.model().info().vocab_size);
    for (const bool greedy : {true, false}) {
        SamplingParams sampling;
        sampling.temperature = greedy ? 0 : 0.8;
        sampling.top_p = greedy ? 1 : 0.95;
        fmt::print("{}\n", greedy ? "temperature 0" : "temperature 0.8, top_p 0.95");
        for (const Form& form : forms)
            for (const bool show : {false, true}) {  // the first meets masks and records graphs
                const int64_t length = show ? tokens : std::min<int64_t>(tokens, 12);
                machine.use_decoder(device);
                bench.time(form, "device", sampling, length, answers, show);
                if (form.format.kind == AnswerFormat::Kind::any) continue;
                machine.use_decoder(host);
                bench.time(form, "host", sampling, length, answers, show);
            }
    }
}

}  // namespace
}  // namespace riptide

int main(int argc, char** argv) {
    try {
        RT_CHECK(argc == 4, "usage: bench_gpu_formed SHAPE:TYPE TOKENS ANSWERS");
        riptide::run(argv[1], std::stoll(argv[2]), std::stoll(argv[3]));
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
