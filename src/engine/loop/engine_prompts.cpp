// EngineLoop: the prompts' step, in parts.
#include <algorithm>

#include "base/error.h"
#include "engine/loop/engine_loop.h"
#include "engine/scheduler/waiting.h"

namespace riptide {

namespace {

constexpr double kLeastShared = 2, kMostShared = 8;
constexpr int32_t kCpuBeside = 64, kGpuBeside = 2048;

}  // namespace

/// Takes over what is planned, or gives up what is under way and has nobody left.
void EngineLoop::begin_prompts(const StepPlan& plan) {
    if (scheduler_.reading() > 0) return;
    machine_.prompts().drop();
    prompt_items_ = plan.prefill;
    prompt_ids_ = plan.prefill_ids;
    prompts_begun_ = false;
}

/// How much longer a token may take: what was asked for, else as if each answer whose prompt is not read yet had the
/// right to as much of the device as each that decodes.
double EngineLoop::slowdown(int64_t decoding) const {
    const double asked = machine_.options().slowdown;
    const auto answers = static_cast<double>(scheduler_.running()), written = static_cast<double>(decoding);
    return asked > 0 ? asked : std::clamp(answers / written, kLeastShared, kMostShared);
}

/// Prompt rows of a step beside answers. The more, the faster they are read (4,096 by a tenth faster than 2,048), but a
/// step is cut by layers only.
int32_t EngineLoop::rows_beside() const {
    const EngineOptions& o = machine_.options();
    if (o.prefill_rows_beside > 0) return std::min(o.prefill_rows_beside, o.chunk_rows);
    if (machine_.cache().gpu() == nullptr) return std::min(kCpuBeside, o.chunk_rows);
    return pace_.rows(std::min(kGpuBeside, o.chunk_rows), o.chunk_rows, scheduler_.longest_prompt(),
                      o.slowdown > 0 ? o.slowdown : kLeastShared);
}

/// Puts the next layers behind what runs: some if answers decode beside, else all.
EngineLoop::Prompts EngineLoop::run_prompts(int64_t decoding) {
    if (prompt_items_.empty()) return Prompts::none;
    PromptStep& step = machine_.prompts();
    const bool ran = try_run([&] {
        if (!std::exchange(prompts_begun_, true)) step.begin(prompt_items_);
        const std::span<const char> left = step.layers_left();
        step.run(decoding == 0  ? std::ssize(left)
                 : part_layers_ ? part_layers_()
                                : pace_.layers(left, step.rows(), step.row_keys(), slowdown(decoding)));
        if (step.complete()) machine_.finish_prompts();
    });
    stats_.prompt_parts += ran;
    return !ran ? Prompts::failed : step.complete() ? Prompts::complete : Prompts::under_way;
}

/// Draws what follows the prompts that have been read to their end.
void EngineLoop::finish_prompts(Prompts prompts) {
    if (prompts == Prompts::none || prompts == Prompts::under_way) return;
    if (prompts == Prompts::complete) {
        draw_all(prompt_items_, prompt_ids_);
        feed_drafter(prompt_items_, prompt_ids_);
    } else {
        run_each(prompt_items_, prompt_ids_, Family::prefill);
    }
    prompt_items_.clear();
    prompt_ids_.clear();
}

double EngineLoop::read_seconds(int64_t tokens) const {
    const PromptStep& step = machine_.prompts();
    const int64_t rows = std::min<int64_t>(tokens, machine_.options().chunk_rows);
    const double each = pace_.layer_seconds(rows, 0);
    const double keys = pace_.layer_seconds(rows, tokens * (tokens / 2)) - each;
    return static_cast<double>(step.layers()) * each * static_cast<double>(tokens) / static_cast<double>(rows) +
           static_cast<double>(step.full_layers()) * keys;
}

/// Learns from the step: `decoded_us` is when `steps` decode steps had their tokens, or -1. On a GPU, and here too, the
/// tokens come when the part of the step before has run and that of this step has not: the newest is left for later.
void EngineLoop::keep_pace(int64_t decoded_us, int64_t steps, bool parts_run) {
    double reading = 0;
    {
        const Waiting waiting_for(waited_);  // where nothing decodes, for all but the newest part: no further ahead
        while (const auto part = machine_.prompts().time(parts_run ? 1 : 0)) {
            pace_.read(*part);
            reading += part->seconds;
        }
    }
    if (decoded_us >= 0 && decoded_us_ >= 0)
        pace_.decoded(static_cast<double>(decoded_us - decoded_us_) * 1e-6 - reading, steps);
    decoded_us_ = decoded_us;
}

}  // namespace riptide
