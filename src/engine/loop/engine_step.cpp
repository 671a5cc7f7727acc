// EngineLoop: a step.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "engine/loop/engine_loop.h"
#include "engine/sampling/device_sampling.h"
#include "engine/scheduler/waiting.h"

namespace riptide {

namespace {

/// Steps that the device may be ahead of the host, without and with recurrent state, and that settle may be behind the
/// device.
constexpr int64_t kStepsAhead = 3, kStepsAheadWithState = 2, kMostStepsAhead = 256;

int64_t rows_of(std::span<const StepItem> items) {
    int64_t rows = 0;
    for (const StepItem& item : items) rows += std::ssize(item.tokens);
    return rows;
}

}  // namespace

void EngineLoop::step() {
    double seconds = 0;
    waited_ = 0;
    results_.clear();
    {
        const Waiting whole(seconds);
        run_step();
    }
    ++stats_.steps;
    stats_.step_seconds += seconds;
    stats_.host_seconds += seconds - waited_;
}

void EngineLoop::run_step() {
    begin_masks();
    propose_drafts();
    scheduler_.read_beside(rows_beside());
    const StepPlan& plan = scheduler_.plan(now_us());
    if (fault_) {
        scheduler_.abandon();
        std::rethrow_exception(fault_);
    }
    close_departed();  // past their deadline
    begin_prompts(plan);
    const bool nothing = plan.decode.empty() && plan.prefill.empty() && scheduler_.reading() == 0;
    if (!plan.stalled) {
        evict_anything_ = false;
        if (nothing) wait_for_masks();
        else run(plan);
    }
    const bool stalled = plan.stalled;
    scheduler_.settle(results_, prompt_items_.empty());
    if (fault_) std::rethrow_exception(fault_);
    if (std::exchange(damage_, false)) forget();
    if (stalled) relieve();
    for (const auto& [id, job] : jobs_)
        if (job->prompt_kept && job->held_from < std::ssize(job->answers)) release_held(*job);
    close_departed();
}

/// The parts of a step, one behind the other.
void EngineLoop::run(const StepPlan& plan) {
    if (run_rounds(plan)) return;
    const int64_t start_us = now_us();
    split(plan);
    stats_.decode_rows += rows_of(plan.decode);
    stats_.prefill_rows += rows_of(plan.prefill);
    rows_on_device_ = device_draws_rows();
    const bool alone = host_items_.empty() && prompt_items_.empty() && !device_rows_.empty();
    int64_t most = kMostStepsAhead;
    if (speculator_) most = resting_ ? std::clamp<int64_t>(speculator_->idle_steps(), 1, kMostStepsAhead) : 1;
    for (const DeviceRow& row : device_rows_) most = std::min(most, row.answer->free_draws());
    if (machine_.cache().delta().any() && !steps_follow()) most = 1;  // each is committed before the next
    int64_t steps = alone ? scheduler_.run_ahead(most) : 1, decoded_us = -1;
    if (!device_rows_.empty() && !begin_on_device()) steps = 1;
    if (!host_items_.empty()) {
        run_part(host_items_, host_ids_, Family::decode);
        decoded_us = now_us();
    }
    const Prompts prompts = run_prompts(std::ssize(plan.decode));
    if (!device_rows_.empty()) {
        steps = run_on_device(steps);  // its tokens come while prompts are still being read
        decoded_us = now_us();
    }
    keep_pace(decoded_us, steps, prompts != Prompts::none);
    finish_prompts(prompts);
    const double seconds = prompts == Prompts::none ? static_cast<double>(now_us() - start_us) * 1e-6 : 0;
    tell_drafter(plan, steps, seconds);
    commit_followed();
}

/// Which rows of the decode part the device draws for.
void EngineLoop::split(const StepPlan& plan) {
    device_rows_.clear();
    decode_rows_.clear();
    host_items_.clear();
    host_ids_.clear();
    for (size_t i = 0; i < plan.decode.size(); ++i) {
        const StepItem& item = plan.decode[i];
        Answer& answer = answer_of(plan.decode_ids[i]);
        answer.begin_step();
        if (device_can_draw(answer, item)) {
            device_rows_.push_back({&answer});
            decode_rows_.push_back({item.sequence, item.tokens[0], item.sequence->slot()});
        } else {
            host_items_.push_back(item);
            host_ids_.push_back(plan.decode_ids[i]);
        }
    }
    if (machine_.cache().delta().any() && !device_rows_.empty() && !host_items_.empty()) {
        // One step, so that all rows are stashed together.
        device_rows_.clear();
        decode_rows_.clear();
        host_items_ = plan.decode;
        host_ids_ = plan.decode_ids;
    }
    for (const RequestId id : plan.prefill_ids) answer_of(id).begin_step();
}

bool EngineLoop::device_can_draw(const Answer& answer, const StepItem& item) {
    // Steps that the device runs by itself show a drafter nothing: while drafts do not pay, answers leave it behind.
    const bool wants_layers = reads_layers() && !resting_;
    return machine_.decoder() != nullptr && item.tokens.size() == 1 && item.parents.empty() &&
           (!answer.constrained() || machine_.decoder()->forward) && answer.free_draws() > 0 &&
           item.logits == StepRows::Logits::last && !(wants_layers && follows(answer, item)) &&
           device_draws(answer.sampling(), machine_.model().info().vocab_size);
}

/// Starts the first step of device_rows_. False if an answer has ended.
bool EngineLoop::begin_on_device() {
    const DecodeDevice& decoder = *machine_.decoder();
    device_formed_ = std::any_of(device_rows_.begin(), device_rows_.end(),
                                 [](const DeviceRow& row) { return row.answer->constrained(); });
    device_samples_ = device_formed_ || std::any_of(device_rows_.begin(), device_rows_.end(), [](const DeviceRow& row) {
                          return !plainly_greedy(row.answer->sampling());
                      });
    for (size_t r = 0; device_samples_ && r < device_rows_.size(); ++r) {
        const Answer& answer = *device_rows_[r].answer;
        start_slot(answer, decode_rows_[r].slot, std::ssize(answer.tokens()));
    }
    decoder.begin(decode_rows_, device_samples_ ? GpuDecoder::Draw::sampled : GpuDecoder::Draw::largest,
                  steps_follow() ? GpuDecoder::Recurrent::follows : GpuDecoder::Recurrent::waits);
    device_steps_ = 1;
    if (device_formed_) {
        decoder.forward();
        return draw_formed();
    }
    decoder.launch();
    return true;
}

/// Makes the device's sampler know an answer, unless it does with at least so many of its tokens.
void EngineLoop::start_slot(const Answer& answer, int32_t slot, int64_t least) {
    SlotUse& use = slots_[static_cast<size_t>(slot)];
    if (use.scheduled == answer.scheduled && use.tokens >= least) return;
    const Job& job = answer.job();
    machine_.decoder()->start_answer(slot,
                                     sample_start(answer.sampling(), job.stop_ids, job.prompt.tokens, answer.tokens()));
    use = {answer.scheduled, std::ssize(answer.tokens())};
}

/// Takes the tokens of the oldest step from the device. False if an answer has ended.
bool EngineLoop::next_from_device() {
    std::span<const int32_t> tokens;
    {
        const Waiting waiting_for(waited_);
        tokens = machine_.decoder()->next();
    }
    bool all = true;
    for (size_t r = 0; r < device_rows_.size(); ++r) {
        DeviceRow& row = device_rows_[r];
        if (row.over) continue;
        if (row.next >= 0) row.answer->ahead.push_back(row.next);
        row.next = tokens[r];
        if (row.next < 0) damaged(*row.answer, no_token(row.answer->usage.prompt + std::ssize(row.answer->tokens())));
        Sampled drawn;
        drawn.token = row.next;
        ++row.answer->usage.steps;
        row.over = row.next < 0 || !take(*row.answer, drawn);
        all = all && !row.over;
    }
    return all;
}

/// One step, or as many as there is room for, each launched before its predecessors' tokens are known here; its draw
/// behind them, where what may be drawn depends on them. Returns how many.
int64_t EngineLoop::run_on_device(int64_t steps) {
    const DecodeDevice& decoder = *machine_.decoder();
    const int64_t deadline = steps > 1 ? nearest_deadline() : 0,
                  ahead = steps_follow() ? kStepsAheadWithState : kStepsAhead;
    bool more = true;
    int64_t taken = 0;
    for (int64_t launched = 1; taken < launched; ++taken) {
        const bool formed = device_formed_ && more && launched < steps;
        if (formed) {
            decoder.forward();
            ++device_steps_;
        }
        for (; !device_formed_ && more && launched < std::min(steps, taken + ahead); ++launched, ++device_steps_)
            decoder.launch();
        more = next_from_device() && more;
        if (more && steps > 1) more = !interrupted_() && now_us() < deadline;
        if (!formed || !more) continue;
        more = draw_formed();
        ++launched;
    }
    stats_.steps += taken - 1;  // step() counts the first
    stats_.decode_rows += (taken - 1) * std::ssize(device_rows_);
    for (const DeviceRow& row : device_rows_) {
        conclude(*row.answer, row.next);
        if (device_samples_ && !row.over)
            slots_[static_cast<size_t>(decode_rows_[static_cast<size_t>(&row - device_rows_.data())].slot)].tokens =
                std::ssize(row.answer->tokens());
    }
    return taken;
}

/// Whether the steps of device_rows_ are to follow each other (GpuDecoder::Recurrent::follows).
bool EngineLoop::steps_follow() const {
    return machine_.decoder() != nullptr && machine_.cache().delta().any() &&
           std::ssize(device_rows_) <= machine_.decoder()->follow_rows;
}

/// Recurrent state: all steps but the last are part of it, and of an answer that ended before the last, which was fed
/// something all the same, nothing more may be.
void EngineLoop::commit_followed() {
    std::vector<SequenceState::Followed> all;
    for (size_t r = 0; r < device_rows_.size(); ++r) {
        const Answer& answer = *device_rows_[r].answer;
        all.push_back({decode_rows_[r].sequence, answer.undrawn ? 0 : 1 + std::ssize(answer.ahead)});
    }
    SequenceState::commit_followed_states(all, device_steps_);
}

bool EngineLoop::try_step(std::span<const StepItem> items, Family family) {
    return try_run([&] { machine_.step(items, family); });
}

/// Runs something on the machine; step_error_ says why not. Throws what must end the engine.
bool EngineLoop::try_run(const std::function<void()>& run) {
    const Waiting waiting_for(waited_);
    try {
        run();
    } catch (const Error& error) {
        machine_.check();
        if (error.kind() == ErrorKind::system) throw;
        step_error_.emplace(error);
        return false;
    }
    machine_.check();
    return true;
}

void EngineLoop::run_part(std::span<const StepItem> items, std::span<const RequestId> ids, Family family) {
    if (!try_step(items, family)) return run_each(items, ids, family);
    draw_all(items, ids, family == Family::decode && rows_on_device_);
    feed_drafter(items, ids);
}

/// After a step that failed: each alone, so that only those that cannot run fail.
void EngineLoop::run_each(std::span<const StepItem> items, std::span<const RequestId> ids, Family family) {
    for (size_t i = 0; i < items.size(); ++i) {
        if (!answers_.contains(ids[i])) continue;  // it has left since its prompt's step began
        if (!try_step(items.subspan(i, 1), family)) {
            fail(answer_of(ids[i]), step_error_->kind(), step_error_->what());
            continue;
        }
        draw_all(items.subspan(i, 1), ids.subspan(i, 1), family == Family::decode && rows_on_device_);
        feed_drafter(items.subspan(i, 1), ids.subspan(i, 1));
        if (family == Family::decode) commit_state(items[i], ids[i]);
    }
}

/// Recurrent state: the next step stashes its rows where these are.
void EngineLoop::commit_state(const StepItem& item, RequestId id) {
    const auto found = answers_.find(id);
    if (found == answers_.end()) return;
    std::vector<int32_t> path = found->second->path;
    if (path.empty()) {
        const size_t again = !found->second->undrawn                 ? 0
                             : item.logits == StepRows::Logits::last ? 1
                                                                     : item.tokens.size();
        path.resize(item.tokens.size() - again);
        std::iota(path.begin(), path.end(), 0);
    }
    item.sequence->commit_state(path);
}

/// The tokens that follow a step's rows, drawn here or, `on_device`, by the device for all of them.
void EngineLoop::draw_all(std::span<const StepItem> items, std::span<const RequestId> ids, bool on_device) {
    find_undrawn(items, ids);
    const DrawnRows drawn = drawn_rows(items, ids, on_device);
    int64_t row = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        const StepItem& item = items[i];
        const auto found = answers_.find(ids[i]);
        if (found == answers_.end()) {  // it has left since its prompt's step began
            row += item.logits != StepRows::Logits::none;
            continue;
        }
        Answer& answer = *found->second;
        const int64_t end = item.sequence->length() + std::ssize(item.tokens);
        if (end <= answer.usage.prompt)
            answer.job().emit(answer, PromptProgress{end, answer.usage.cached, answer.usage.prompt});
        const bool all = item.logits == StepRows::Logits::all;
        const int64_t rows = all ? std::ssize(item.tokens) : item.logits == StepRows::Logits::last ? 1 : 0;
        row += rows;
        if (answer.undrawn) {
            conclude(answer, -1);
            continue;
        }
        if (all && item.sequence->length() >= answer.usage.prompt) {
            draw_drafted(answer, item, drawn, row - rows);
            continue;
        }
        if (all) answer.score(item.sequence->length(), drawn.logits, row - rows, rows);
        if (rows == 0 || end < answer.usage.prompt) {
            if (answer.job().sink_failed) cancel(answer.job());
            continue;
        }
        Sampled sampled;
        try {
            if (answer.job().read_row) {
                take_row(answer, drawn, row - 1);
                continue;
            }
            sampled = draw_row(answer, drawn, row - 1, end);
        } catch (const GrammarError& error) {  // the model is as it should be
            fail(answer, error.kind(), error.what());
            continue;
        } catch (const Error& error) {
            damaged(answer, error.what());
            continue;
        }
        answer.usage.steps += end > answer.usage.prompt;
        take(answer, sampled);
        conclude(answer, sampled.token);
    }
}

/// In place of a draw: what the model put out is the answer.
void EngineLoop::take_row(Answer& answer, const DrawnRows& rows, int64_t row) {
    answer.first_us = now_us();
    answer.take_row({rows.logits.row(row), static_cast<size_t>(rows.logits.row_elements())});
    if (answer.job().sink_failed) cancel(answer.job());
    conclude(answer, -1);
}

/// True if another token is wanted.
bool EngineLoop::take(Answer& answer, const Sampled& sampled) {
    if (answer.first_us < 0) answer.first_us = now_us();
    bool more = false;
    try {
        more = answer.take(sampled);
    } catch (const std::exception& error) {
        fail(answer, ErrorKind::system, error.what());
    }
    ++stats_.answer_tokens;
    recent_.add(now_us());
    if (answer.job().sink_failed) cancel(answer.job());
    answer.ends = !more;
    return more && !answer.job().sink_failed;
}

/// Tells the scheduler what came of an answer's row, unless it has been cancelled for it.
void EngineLoop::conclude(Answer& answer, int32_t next) {
    if (answer.failure || answer.job().sink_failed) return;
    if (answer.undrawn) return results_.push_back({.id = answer.scheduled, .undrawn = true});
    const bool stop = answer.ends && answer.reason == FinishReason::stop_id;
    results_.push_back({.id = answer.scheduled,
                        .path = answer.path,
                        .ahead = answer.ahead,
                        .next = stop ? -1 : next,
                        .end = answer.ends});
    if (!answer.ends) expect_slow_mask(answer);
}

std::string EngineLoop::no_token(int64_t position) {
    return fmt::format(
        "no token can be drawn for position {}: a logit is NaN or +infinity, or none is above "
        "-infinity; the model's weights or its K/V are damaged",
        position);
}

/// K/V may hold what is no number, and so may what was kept of it.
void EngineLoop::damaged(Answer& answer, const std::string& message) {
    damage_ = true;
    fail(answer, ErrorKind::system, message);
}

int64_t EngineLoop::nearest_deadline() const {
    int64_t nearest = std::numeric_limits<int64_t>::max();
    for (const auto& [id, job] : jobs_) nearest = std::min(nearest, job->deadline_us);
    return nearest;
}

}  // namespace riptide
