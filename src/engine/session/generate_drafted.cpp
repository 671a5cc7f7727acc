// Session::generate with a drafter: one step verifies the drafts, one more token comes for free.
//
// The token of each row on the way is drawn exactly as plain decoding would draw it: from the same logits (a row of the
// decode family has the same bits in any company), with the same noise (a function of seed, position and token) and the
// same history. The draft only decides whether the next row is there already.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/sampling/device_sampling.h"
#include "engine/session/session.h"

namespace riptide {

namespace {

constexpr int64_t kMostRows = 256;  // of a step of the decode family
constexpr int64_t kMostHeld = 64;   // rows that the drafter is shown later

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Session::speculate(std::shared_ptr<Drafter> drafter, const SpeculationOptions& options) {
    check_speculation(options);
    speculate(drafter ? std::make_unique<Speculator>(std::move(drafter), options) : nullptr);
}

std::unique_ptr<Speculator> Session::speculate(std::unique_ptr<Speculator> speculator) {
    if (speculator) {
        runner_->capture(speculator->drafter().capture_layers());
        DflashDrafter* dflash = speculator->drafter().dflash();
        if (wants_rounds(*speculator) && (!rounds_ || &rounds_->drafter() != dflash))
            rounds_ = std::make_unique<DraftRounds>(*model_, *cache_, runner_->context(), speculator->shared_drafter());
    }
    return std::exchange(speculator_, std::move(speculator));
}

DraftTarget Session::draft_target() {
    return {.model = model_.get(),
            .gpu = gpu_.get(),
            .threads = threads_.get(),
            .context = context_,
            .chunk_rows = options_.chunk_rows};
}

/// Tells a drafter that reads layers of a prompt. Returns how many of its tokens it need not be fed.
int64_t Session::begin_drafter(std::span<const int32_t> tokens) {
    if (!speculator_ || speculator_->drafter().capture_layers().empty()) return std::ssize(tokens);
    speculator_->begin(kSequence, tokens);
    return speculator_->drafter().fed(kSequence);
}

/// Shows such a drafter what the last step captured: the tokens from `position` on were fed by these rows.
void Session::feed_drafter(int64_t position, std::span<const int32_t> rows) {
    if (speculator_ && !speculator_->drafter().capture_layers().empty())
        speculator_->drafter().feed(kSequence, position, runner_->captured(), rows);
}

/// Keeps what the last step, of one row, captured: to show many rows at once costs the CPU much less than one at a
/// time.
void Session::hold_for_drafter(int64_t position) {
    const Tensor& row = runner_->captured();
    if (held_rows_ == kMostHeld || held_from_ + held_rows_ != position) show_held();
    if (held_rows_ == 0) held_features_.clear(), held_from_ = position;
    held_features_.insert(held_features_.end(), row.row(0), row.row(0) + row.row_elements());
    ++held_rows_;
}

void Session::show_held() {
    if (held_rows_ == 0) return;
    const int64_t rows = std::exchange(held_rows_, 0);
    const Tensor features(held_features_.data(), DType::f32, {rows, std::ssize(held_features_) / rows});
    speculator_->drafter().feed(kSequence, held_from_, features, {});
}

/// The step of `token` and the drafts below it. Asks take() for the tokens that follow the rows on the way, and makes
/// these rows (`path`) part of the sequence, also if take() throws.
void Session::verify(int32_t token, const DraftTree& tree, const RowDraws& draws, std::vector<int32_t>& path) {
    std::vector<int32_t> tokens = {token}, parents;
    tokens.insert(tokens.end(), tree.tokens.begin(), tree.tokens.end());
    row_parents(tree, parents);
    const StepItem item{&*sequence_, tokens, parents, StepRows::Logits::all, {}};
    const Tensor logits = runner_->step(std::span(&item, 1), Family::decode);
    Tensor host;
    std::span<const int32_t> drawn;
    std::vector<AllowedSet> allowed;  // found out while the step runs
    try {
        if (draws.on_device && draws.allowed != nullptr) draws.allowed->rows(tokens, parents, allowed);
        if (draws.on_device) drawn = decoder_->draw_rows(logits, draws.how, allowed);
        else host = on_host(logits);
        if (!gpu_) checkpoint_->check_intact();
    } catch (...) {
        sequence_->commit_prefix(0);
        throw;
    }
    const auto vocab = static_cast<size_t>(model_->info().vocab_size);
    const int64_t length = sequence_->length();
    try {
        walk(tree, path, [&](int32_t row) {
            tokens_.push_back(tokens[static_cast<size_t>(row)]);
            if (!allowed.empty()) allowed[static_cast<size_t>(row)].check();
            return draws.on_device ? draws.take({}, drawn[static_cast<size_t>(row)])
                                   : draws.take({host.row(row), vocab}, -1);
        });
    } catch (...) {
        sequence_->commit(path);
        throw;
    }
    sequence_->commit(path);
    if (gpu_ || !tree.empty() || speculator_->drafter().capture_layers().empty()) feed_drafter(length, path);
    else hold_for_drafter(length);
}

/// A step of the host's: drafts, checks, and tells who drafts.
void Session::verify_drafts(GenerationResult& result, const RowDraws& draws, int64_t wanted) {
    Speculator& speculator = *speculator_;
    const std::vector<int32_t>& answer = result.tokens;
    const auto known = answer.size();
    const int64_t idle = speculator.idle_steps();
    if (idle == 0) show_held();
    const Speculator::Wanted request_one{
        kSequence, std::min({context_ - sequence_->length(), wanted, int64_t{options_.chunk_rows}, kMostRows}) - 1};
    static const DraftTree kNothing;
    const DraftTree& tree = idle > 0 ? kNothing : speculator.propose(std::span(&request_one, 1))[0];
    std::vector<int32_t> path;
    const auto start = std::chrono::steady_clock::now();
    verify(answer.back(), tree, draws, path);
    ++result.decode_steps;
    const auto fresh = std::span(answer).subspan(known);
    if (idle > 0) {
        speculator.idled(1, seconds_since(start));
        speculator.extend(kSequence, fresh);
        return;
    }
    speculator.stepped(1 + tree.size(), seconds_since(start));
    speculator.settle(kSequence, tree, path, fresh);
}

void Session::decode_drafted(const GenerateRequest& request, GenerationResult& result,
                             std::span<const int32_t> stop_ids, int64_t max_tokens, const TakeToken& take,
                             AllowedTokens* allowed) {
    Speculator& speculator = *speculator_;
    const SamplingParams& sampling = request.sampling;
    const bool greedy = plainly_greedy(sampling) && allowed == nullptr,
               device = gpu_ && device_draws(sampling, model_->info().vocab_size);
    std::vector<int32_t>& answer = result.tokens;
    speculator.clear_stats();
    held_rows_ = 0;
    speculator.begin(kSequence, tokens_);
    speculator.extend(kSequence, std::span(answer).last(1));
    bool more = true, started = false;
    const auto take_token = [&](std::span<const float> logits, int32_t drawn) {
        more = take(logits, drawn);
        return more ? answer.back() : -1;
    };
    RowDraws draws{false, greedy ? GpuDecoder::Draw::largest : GpuDecoder::Draw::sampled, take_token, allowed};
    // Steps that the device runs by itself capture no layers.
    const bool may_run_ahead = device && speculator.drafter().capture_layers().empty();
    const auto start_drawing = [&] {
        if (device && !greedy && !std::exchange(started, true))
            decoder_->start_answer(0, sample_start(sampling, stop_ids, request.prompt, answer));
    };
    while (more) {
        const auto known = std::ssize(answer);
        const auto fresh = [&] { return std::span(answer).subspan(static_cast<size_t>(known)); };
        const int64_t idle = speculator.idle_steps(), wanted = max_tokens - known;
        if (allowed == nullptr && wants_rounds(speculator) && device_draws(sampling, model_->info().vocab_size) &&
            draws_rows(sampling, known) && can_run_rounds()) {
            start_drawing();
            RoundSpan span{round_draws(request, stop_ids), take, answer, wanted};
            const bool ran = run_rounds(span);
            result.decode_steps += span.steps;
            more = span.more;
            if (ran) continue;
        }
        const auto start = std::chrono::steady_clock::now();
        if (idle > 0 && may_run_ahead) {
            const ops::SampleStart from = sample_start(sampling, stop_ids, request.prompt, answer);
            const int64_t before = std::ssize(tokens_);
            std::function<AllowedSet()> place;
            if (allowed != nullptr) place = [&] { return allowed->place(); };
            decode_ahead(
                answer.back(), std::min(idle, wanted), [&](int32_t drawn) { return take_token({}, drawn) >= 0; },
                greedy ? nullptr : &from, {}, place);
            const int64_t steps = std::ssize(tokens_) - before;
            result.decode_steps += steps;
            speculator.idled(steps, seconds_since(start));
            speculator.extend(kSequence, fresh());
            continue;
        }
        draws.on_device = device && draws_rows(sampling, known);
        if (draws.on_device) start_drawing();
        verify_drafts(result, draws, wanted);
    }
    show_held();
    result.speculation = speculator.stats();
}

}  // namespace riptide
