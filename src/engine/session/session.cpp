#include "engine/session/session.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

namespace {

constexpr int64_t kKeptBefore = 16;                 // tokens before the end at which recurrent state is kept
constexpr int64_t kScoreBytes = int64_t{64} << 20;  // of logits in one step of score()

EngineOptions alone(const SessionOptions& options) {
    EngineOptions o;
    static_cast<SessionOptions&>(o) = options;
    o.speculation = {};
    o.max_running = 1;
    o.prefix_cache = false;
    return o;
}

}  // namespace

std::unique_ptr<Session> Session::open(const std::string& path, const SessionOptions& options) {
    check_session_options(options);
    return std::make_unique<Session>(open_checkpoint(path), options);
}

Session::Session(std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options)
    : machine_(std::move(checkpoint), alone(options)), sequence_(machine_.cache()) {
    RT_CHECK(model().info().task != Task::embed, ErrorKind::usage,
             "{}: this is an embedding model, which writes no text: riptide serve has /v1/embeddings for it",
             machine_.checkpoint()->path());
}

void Session::clear() {
    sequence_.truncate(0);
    tokens_.clear();
    is_saved_ = false;
}

void Session::check_tokens(std::span<const int32_t> tokens) const {
    if (tokens.empty()) fail(ErrorKind::usage, "the prompt is empty: it needs at least one token");
    const auto size = std::ssize(tokens);
    RT_CHECK(size <= context_length(), ErrorKind::usage, "the prompt has {} tokens, but the context holds {}", size,
             context_length());
    const int64_t vocab = model().info().vocab_size;
    for (int64_t i = 0; i < size; ++i) {
        const int32_t token = tokens[static_cast<size_t>(i)];
        if (token < 0 || token >= vocab)
            fail(ErrorKind::usage, "token {} of the prompt is {}, expected 0 to {}", i, token, vocab - 1);
    }
}

/// Runs one step and makes its rows part of the sequence.
Tensor Session::feed(std::span<const int32_t> tokens, StepRows::Logits logits, Family family) {
    const StepItem item{&sequence_, tokens, {}, logits, {}};
    machine_.step(std::span(&item, 1), family);
    Tensor result;
    try {
        result = machine_.logits();
        machine_.check();  // before the rows count: what a shrunken file gave may be zeros
    } catch (...) {
        sequence_.commit_prefix(0);
        throw;
    }
    sequence_.commit_prefix(std::ssize(tokens));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return result;
}

/// Shortens the sequence to what it shares with `tokens`, so that at least one token is left to feed; returns that
/// length. Rings may have overwritten what a shorter sequence would need: then everything is computed again, or, with
/// recurrent state, what lies behind the state that was kept.
int64_t Session::rewind_to_common(std::span<const int32_t> tokens) {
    const auto [mine, theirs] = std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end());
    int64_t common = std::min<int64_t>(mine - tokens_.begin(), std::ssize(tokens) - 1);
    if (common == sequence_.length()) return common;
    if (!sequence_.can_truncate(common)) {
        common = is_saved_ && saved_.length() <= common ? saved_.length() : 0;
        if (common > 0) sequence_.restore(saved_);
    }
    sequence_.truncate(common);
    is_saved_ = is_saved_ && saved_.length() <= common;
    tokens_.resize(static_cast<size_t>(common));
    return common;
}

/// For a later prompt that ends otherwise; without memory for it that one is read from its beginning.
void Session::keep_state() {
    is_saved_ = false;
    try {
        saved_ = sequence_.save(std::move(saved_));
        is_saved_ = true;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::unavailable) throw;
    }
}

std::span<const float> Session::prefill(std::span<const int32_t> tokens,
                                        const std::function<void(int64_t, int64_t)>& on_progress,
                                        const std::atomic<bool>* cancel) {
    check_tokens(tokens);
    const int64_t reused = rewind_to_common(tokens), total = std::ssize(tokens);
    const int64_t keep_at = cache().delta().any() ? total - kKeptBefore : 0;
    Tensor logits;
    for (int64_t begin = reused; begin < total;) {
        if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return {};
        const int64_t rows = std::min<int64_t>(options().chunk_rows, (begin < keep_at ? keep_at : total) - begin);
        const bool last = begin + rows == total;
        logits = feed(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)),
                      last ? StepRows::Logits::last : StepRows::Logits::none);
        begin += rows;
        if (begin == keep_at) keep_state();
        if (on_progress) on_progress(begin - reused, total - reused);
    }
    return {logits.row(0), static_cast<size_t>(model().info().vocab_size)};
}

std::span<const float> Session::decode(int32_t token) {
    RT_CHECK(sequence_.length() < context_length(), "the context is full: it holds {} tokens", context_length());
    const Tensor logits = feed(std::span(&token, 1), StepRows::Logits::last, Family::decode);
    return {logits.row(0), static_cast<size_t>(model().info().vocab_size)};
}

void Session::decode_ahead(int32_t token, int64_t steps, const std::function<bool(int32_t)>& on_token,
                           std::span<const int32_t> forced) {
    RT_ASSERT(gpu() != nullptr);
    using Recurrent = GpuDecoder::Recurrent;
    GpuDecoder& decoder = *machine_.gpu_decoder();
    const bool alone = !runner().context().on_op && !runner().context().tap;
    const Recurrent state = alone && decoder.follow_rows() > 0 ? Recurrent::follows : Recurrent::waits;
    // Rows reserved at a time, so that the rings hold them, and steps that the device may be ahead. Recurrent state is
    // committed step by step, unless the device does it by itself.
    const int64_t most = cache().delta().any() && state == Recurrent::waits ? 1 : 256,
                  ahead = state == Recurrent::waits ? 3 : 2;
    for (bool more = true; more && steps > 0 && sequence_.length() < context_length();) {
        const int64_t span =
            std::min({most, steps, context_length() - sequence_.length(), int64_t{options().chunk_rows}});
        RT_ASSERT(sequence_.try_reserve(span));
        const DecodeRow row{&sequence_, token};
        decoder.begin(std::span(&row, 1), GpuDecoder::Draw::largest, forced, state);
        int64_t fed = 0;
        for (int64_t launched = 0; more && fed < span;) {
            for (; launched < span && launched < fed + ahead; ++launched) decoder.launch();
            const int32_t next = decoder.next()[0];
            tokens_.push_back(token);
            ++fed;
            token = next;
            more = token >= 0 && on_token(token);
        }
        decoder.end();
        if (state == Recurrent::follows) sequence_.commit_followed(fed, decoder.run());
        else sequence_.commit_prefix(fed);
        steps -= fed;
        if (token >= 0) continue;
        clear();
        fail(
            "no token can be drawn: a logit is NaN or +infinity, or none is above -infinity; the model's weights or "
            "its K/V are damaged");
    }
}

void Session::score(std::span<const int32_t> tokens, const std::function<void(int64_t, const Tensor&)>& on_rows,
                    const std::atomic<bool>* cancel) {
    check_tokens(tokens);
    clear();
    const int64_t row_size = model().info().vocab_size * static_cast<int64_t>(sizeof(float));
    const int64_t chunk = std::clamp<int64_t>(kScoreBytes / row_size, 1, options().chunk_rows);
    for (int64_t begin = 0; begin < std::ssize(tokens); begin += chunk) {
        if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return;
        const int64_t rows = std::min(chunk, std::ssize(tokens) - begin);
        on_rows(begin,
                feed(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)), StepRows::Logits::all));
    }
}

}  // namespace riptide
