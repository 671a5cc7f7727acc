#include "engine/session/session.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory_bandwidth.h"

namespace riptide {

namespace {

constexpr int32_t kCpuChunkRows = 512;
constexpr int64_t kKeptBefore = 16;                 // tokens: more than a template writes behind the last message
constexpr int64_t kScoreBytes = int64_t{64} << 20;  // of logits in one step of score()

bool has_delta(const Model& model) {
    const auto specs = model.state_specs();
    return std::any_of(specs.begin(), specs.end(),
                       [](const StateSpec& spec) { return spec.kind == StateSpec::Kind::delta; });
}

}  // namespace

std::unique_ptr<Session> Session::open(const std::string& path, const SessionOptions& options) {
    check_session_options(options);
    return std::make_unique<Session>(open_checkpoint(path), options);
}

Session::Session(std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options)
    : options_(options), checkpoint_(std::move(checkpoint)) {
    check_session_options(options);
    if (options.gpu) gpu_ = Gpu::open(*options.gpu);
    options_.model.gpu = gpu_.get();
    model_ = load_model(*checkpoint_, options_.model);
    options_.model.on_progress = {};  // belongs to whoever opens the session
    fit_to_model(options_, *model_);
    plan_memory();
    threads_ = std::make_unique<ThreadPool>(options.threads);
    KvCacheOptions kv;
    kv.k_dtype = options_.k_dtype;
    kv.v_dtype = options_.v_dtype;
    kv.page_rows = options.page_rows;
    kv.pages = static_cast<int32_t>((context_ + options.page_rows - 1) / options.page_rows);
    kv.max_step_rows = options_.chunk_rows;
    if (has_delta(*model_)) {  // kept_, which shares all pages but perhaps its last
        kv.max_sequences = 2;
        ++kv.pages;
    }
    cache_ = std::make_unique<KvCache>(model_->state_specs(), kv, gpu_.get(), threads_.get());
    runner_ = std::make_unique<Runner>(*model_, *cache_, threads_.get(), 0, kWorkspaceFixed);
    if (options.one_launch) runner_->decode_in_one_launch();
    if (gpu_)
        decoder_ = std::make_unique<GpuDecoder>(*model_, *cache_, runner_->context(), runner_->device_batch(),
                                                kv.max_sequences);
    sequence_.emplace(*cache_);
    if (options.speculation.on()) speculate(make_drafter(options.speculation, draft_target()), options.speculation);
}

/// Decides context and chunk.
void Session::plan_memory() {
    const ModelInfo& info = model_->info();
    if (!gpu_) {
        context_ = options_.context > 0 ? options_.context : info.max_position_embeddings;
        if (options_.chunk_rows == 0) options_.chunk_rows = kCpuChunkRows;
        return;
    }
    MemoryRequest request;
    request.context = options_.context;
    request.max_context = info.max_position_embeddings;
    request.chunk_rows = options_.chunk_rows;
    request.page_rows = options_.page_rows;
    request.sequences = has_delta(*model_) ? 2 : 1;
    request.available = std::max<int64_t>(0, gpu_->available() - kUnplannedBytes);
    request.weights = gpu_->allocated();
    request.specs = model_->state_specs();
    request.k_dtype = options_.k_dtype;
    request.v_dtype = options_.v_dtype;
    request.workspace = model_->workspace();
    request.workspace.fixed += DeviceMasks::bytes(info.vocab_size);
    add_drafter(request, drafter_memory(options_.speculation, info, 1));
    plan_ = plan_gpu_memory(request);
    context_ = plan_.context;
    options_.chunk_rows = plan_.chunk_rows;
}

double Session::memory_bandwidth() {
    if (memory_bandwidth_ == 0)
        memory_bandwidth_ = gpu_ ? measure_read_bandwidth(*gpu_) : measure_read_bandwidth(*threads_);
    return memory_bandwidth_;
}

void Session::clear() {
    sequence_->truncate(0);
    sequence_->set_gaps(nullptr);
    tokens_.clear();
    kept_.reset();
}

void Session::check_tokens(std::span<const int32_t> tokens) const {
    if (tokens.empty()) fail(ErrorKind::usage, "the prompt is empty: it needs at least one token");
    const auto size = std::ssize(tokens);
    if (size > context_) fail(ErrorKind::usage, "the prompt has {} tokens, but the context holds {}", size, context_);
    const int64_t vocab = model_->info().vocab_size;
    for (int64_t i = 0; i < size; ++i) {
        const int32_t token = tokens[static_cast<size_t>(i)];
        if (token < 0 || token >= vocab)
            fail(ErrorKind::usage, "token {} of the prompt is {}, expected 0 to {}", i, token, vocab - 1);
    }
}

/// The logits of a step where the host can read them.
Tensor Session::on_host(const Tensor& logits) {
    if (!gpu_ || logits.rows() == 0) return logits;
    host_logits_.resize(static_cast<size_t>(logits.elements()));
    gpu_->to_host(host_logits_.data(), logits.data, logits.elements() * int64_t{sizeof(float)});
    Tensor host = logits;
    host.data = host_logits_.data();
    return host;
}

/// Runs one step of prompt tokens and makes its rows part of the sequence.
Tensor Session::feed(std::span<const int32_t> tokens, StepRows::Logits logits, Family family) {
    const StepItem item{&*sequence_, tokens, {}, logits, {}};
    const Tensor result = on_host(runner_->step(std::span(&item, 1), family));
    try {
        if (!gpu_) checkpoint_->check_intact();  // before the rows count: what a shrunken file gave may be zeros
    } catch (...) {
        sequence_->commit_prefix(0);
        throw;
    }
    sequence_->commit_prefix(std::ssize(tokens));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return result;
}

/// Shortens the sequence to what it shares with `tokens`, so that at least one token is left to feed; returns that
/// length, `most` at most. Rings may have overwritten what a shorter sequence would need: then everything is computed
/// again, or, with recurrent state, what lies behind the state that was kept.
int64_t Session::rewind_to_common(std::span<const int32_t> tokens, int64_t most,
                                  std::shared_ptr<const PromptGaps> gaps) {
    static const PromptGaps none;
    const auto of = [](const auto& some) -> const PromptGaps& { return some ? *some : none; };
    most = of(gaps).shared(of(sequence_->gaps()), most);
    const auto [mine, theirs] = std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end());
    int64_t common = std::min({mine - tokens_.begin(), std::ssize(tokens) - 1, most});
    if (common < sequence_->length()) {
        if (!sequence_->can_truncate(common) && kept_ && kept_->length() <= common) {
            common = kept_->length();
            sequence_.reset();
            sequence_.emplace(kept_->fork());
        }
        if (!sequence_->can_truncate(common)) common = 0;
        sequence_->truncate(common);
        if (kept_ && common < kept_->length()) kept_.reset();
        tokens_.resize(static_cast<size_t>(common));
    }
    sequence_->set_gaps(std::move(gaps));
    return common;
}

std::span<const float> Session::prefill(std::span<const int32_t> tokens,
                                        const std::function<void(int64_t, int64_t)>& on_progress,
                                        const std::atomic<bool>* cancel, std::shared_ptr<const PromptGaps> gaps) {
    check_tokens(tokens);
    reused_ = rewind_to_common(tokens, begin_drafter(tokens), std::move(gaps));
    const int64_t total = std::ssize(tokens);
    const int64_t keep_at = cache_->delta().any() ? total - kKeptBefore : 0;
    Tensor logits;
    for (int64_t begin = reused_; begin < total;) {
        if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return {};
        const int64_t rows = std::min<int64_t>(options_.chunk_rows, (begin < keep_at ? keep_at : total) - begin);
        const bool last = begin + rows == total;
        logits = feed(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)),
                      last ? StepRows::Logits::last : StepRows::Logits::none);
        feed_drafter(begin, {});
        begin += rows;
        if (begin == keep_at) {
            kept_.reset();
            kept_.emplace(sequence_->fork());
        }
        if (on_progress) on_progress(begin - reused_, total - reused_);
    }
    return {logits.row(0), static_cast<size_t>(model_->info().vocab_size)};
}

std::span<const float> Session::decode(int32_t token) {
    RT_CHECK(sequence_->length() < context_, "the context is full: it holds {} tokens", context_);
    const Tensor logits = feed(std::span(&token, 1), StepRows::Logits::last, Family::decode);
    return {logits.row(0), static_cast<size_t>(model_->info().vocab_size)};
}

void Session::decode_ahead(int32_t token, int64_t steps, const std::function<bool(int32_t)>& on_token,
                           const ops::SampleStart* sampling, std::span<const int32_t> forced,
                           const std::function<AllowedSet()>& allowed) {
    RT_ASSERT(gpu_ != nullptr && (!allowed || sampling != nullptr));
    const auto draw = sampling != nullptr ? GpuDecoder::Draw::sampled : GpuDecoder::Draw::largest;
    if (sampling != nullptr) decoder_->start_answer(0, *sampling);
    // Rows reserved at a time, so that the rings hold them, and steps that the device may be ahead.
    constexpr int64_t kSpan = 256, kAhead = 3, kAheadWithState = 2;
    using Recurrent = GpuDecoder::Recurrent;
    const bool alone = !allowed && !runner_->context().on_op && !runner_->context().tap;
    const Recurrent state = alone && decoder_->follow_rows() > 0 ? Recurrent::follows : Recurrent::waits;
    const int64_t ahead = state == Recurrent::waits ? kAhead : kAheadWithState;
    bool damaged = false;
    for (bool more = true; more && steps > 0 && sequence_->length() < context_;) {
        // Recurrent state is committed step by step, unless the device does it by itself.
        const int64_t most = cache_->delta().any() && state == Recurrent::waits ? 1 : kSpan;
        const int64_t span = std::min({most, steps, context_ - sequence_->length(), int64_t{options_.chunk_rows}});
        RT_ASSERT(sequence_->try_reserve(span));
        int64_t fed = 0, launched = 0;
        const auto settle = [&] {
            decoder_->end();
            if (state == Recurrent::follows) sequence_->commit_followed(fed, decoder_->run());
            else sequence_->commit_prefix(fed);
        };
        const DecodeRow row{&*sequence_, token};
        decoder_->begin(std::span(&row, 1), draw, forced, state);
        try {
            if (allowed) decoder_->forward();
            while (more && fed < span) {
                if (allowed) {  // found out while the step's layers run
                    const AllowedSet set = allowed();
                    decoder_->draw(std::span(&set, 1));
                    if (fed + 1 < span) decoder_->forward();
                }
                for (; !allowed && launched < span && launched < fed + ahead; ++launched) decoder_->launch();
                const int32_t next = decoder_->next()[0];
                tokens_.push_back(token);
                ++fed;
                damaged = next < 0;
                RT_CHECK(!damaged,
                         "no token can be drawn for position {}: a logit is NaN or +infinity, or none is above "
                         "-infinity; the model's weights or its K/V are damaged",
                         tokens_.size());
                token = next;
                more = on_token(token);
            }
        } catch (...) {  // of on_token: what was fed stays fed
            settle();
            if (damaged) clear();
            throw;
        }
        settle();
        steps -= fed;
    }
}

void Session::score(std::span<const int32_t> tokens, const std::function<void(int64_t, const Tensor&)>& on_rows,
                    const std::atomic<bool>* cancel) {
    check_tokens(tokens);
    clear();
    const int64_t row_size = model_->info().vocab_size * static_cast<int64_t>(sizeof(float));
    const int64_t chunk = std::clamp<int64_t>(kScoreBytes / row_size, 1, options_.chunk_rows);
    for (int64_t begin = 0; begin < std::ssize(tokens); begin += chunk) {
        if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return;
        const int64_t rows = std::min(chunk, std::ssize(tokens) - begin);
        on_rows(begin,
                feed(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)), StepRows::Logits::all));
    }
}

}  // namespace riptide
