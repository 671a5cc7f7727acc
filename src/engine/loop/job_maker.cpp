#include "engine/loop/job_maker.h"

#include <chrono>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/sha256.h"

namespace riptide {

namespace {

constexpr int32_t kMostAnswers = 128;

uint64_t random_number() {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
}

/// What a client names something by, as a number that others cannot aim at; `isolation` keeps clients apart.
uint64_t key_number(const std::string& isolation, const std::string& key, uint64_t secret) {
    const std::string text = fmt::format("{} {} {}{}", secret, isolation.size(), isolation, key);
    const Digest digest = sha256(std::as_bytes(std::span(text)));
    uint64_t number = 0;
    std::memcpy(&number, digest.data(), sizeof number);
    return number | 1;  // not 0
}

}  // namespace

JobMaker::JobMaker(const ModelText& text, const EngineOptions& options, const ModelInfo& model, int64_t context_length,
                   Compressor* compressor)
    : text_(text),
      options_(options),
      task_(model.task),
      vocab_(model.vocab_size),
      positions_(model.max_position_embeddings),
      context_(context_length),
      compressor_(compressor),
      secret_(random_number()) {}

/// A model that embeds has no logits to draw from, and one that writes text no state to show.
void JobMaker::check_task(const Request& request) const {
    if (task_ == Task::embed)
        RT_CHECK(request.read_row && request.row_columns.empty() && !request.prompt_logprobs, ErrorKind::usage,
                 "this is an embedding model, which writes no text: ask /v1/embeddings");
    if (task_ == Task::embed || !request.read_row) return;
    RT_CHECK(!request.row_columns.empty(), ErrorKind::usage,
             "this model writes text and makes no embeddings: serve an embedding model such as Qwen3-Embedding");
    for (const int32_t column : request.row_columns)
        RT_CHECK(column >= 0 && column < vocab_, ErrorKind::usage, "a logit of token {}, expected 0 to {}", column,
                 vocab_ - 1);
}

void JobMaker::check(const Request& request) const {
    check_task(request);
    RT_CHECK(request.n >= 1 && request.n <= kMostAnswers, "n is {}, expected 1 to {}", request.n, kMostAnswers);
    RT_CHECK(request.priority >= 0 && request.priority <= 2, "priority is {}, expected 0 to 2", request.priority);
    RT_CHECK(!request.deadline || request.deadline->count() > 0, "deadline is {} ms, expected more than 0",
             request.deadline->count());
    RT_CHECK(request.thinking_budget >= -1, "thinking_budget is {}, expected 0 or more", request.thinking_budget);
    check_sampling_params(request.sampling, vocab_);
    RT_CHECK(text_.tokenizer() != nullptr || request.sampling.stop_strings.empty(), ErrorKind::usage,
             "stop strings need a tokenizer, and this model has none");
}

std::unique_ptr<Job> JobMaker::make(Request&& request, Sink&& sink, WorkBudget* work) const {
    RT_CHECK(sink, "a request without a sink");
    check(request);
    if (work != nullptr && request.deadline) work->end_at(std::chrono::steady_clock::now() + *request.deadline);
    auto job = std::make_unique<Job>();
    job->sink = std::move(sink);
    job->prompt = text_.encode(request.prompt, work);
    job->constraint = text_.constraint(request, job->prompt, work);
    RT_CHECK(!job->constraint || request.sampling.min_tokens == 0,
             "min_tokens is {}, expected 0 where the form of the answer is given", request.sampling.min_tokens);
    check_tokens(*job);
    job->deterministic = request.deterministic.value_or(options_.deterministic);
    job->plan = plan(request, *job);
    job->show_kept = request.compression.show;
    job->prompt.rendered.reset();
    job->read_row = request.read_row;
    job->row_columns = std::move(request.row_columns);
    job->same_call = request.same_call;
    job->prompt_only = request.prompt_only || request.read_row;
    const int64_t size = job->plan ? job->plan->most_kept() : std::ssize(job->prompt.tokens);
    if (size + (job->prompt_only ? 0 : 1) > context_)
        throw PromptTooLong(fmt::format("the prompt has {} tokens, and the context holds {}{}", size, context_,
                                        job->prompt_only ? "" : ": no room for an answer"),
                            size, context_);
    job->sampling = std::move(request.sampling);
    job->stop_ids = job->sampling.stop_ids;
    if (!job->sampling.ignore_eos)
        job->stop_ids.insert(job->stop_ids.end(), text_.stop_ids().begin(), text_.stop_ids().end());
    job->thinking_budget = request.thinking_budget;
    job->priority = request.priority;
    job->side = request.side;
    job->want_tokens = request.want_tokens;
    job->prompt_logprobs = request.prompt_logprobs;
    job->hash_logits = request.hash_logits;
    job->deadline = request.deadline;
    job->salt.origin = job->deterministic ? "prefill" : "";
    job->salt.prompt = text_.fingerprint();
    job->salt.isolation = request.isolation;
    if (!request.session.empty()) job->cache_session = key_number(request.isolation, request.session, secret_);
    job->share = job->cache_session;
    job->open = request.n;
    if (!job->plan || !job->plan->needs_scores()) complete(*job, job->plan && compressor_->choose(*job->plan));
    return job;
}

void JobMaker::check_tokens(const Job& job) const {
    const std::vector<int32_t>& tokens = job.prompt.tokens;
    RT_CHECK(!tokens.empty(), ErrorKind::usage, "the prompt is empty: it needs at least one token");
    for (size_t i = 0; i < tokens.size(); ++i)
        RT_CHECK(tokens[i] >= 0 && tokens[i] < vocab_, ErrorKind::usage, "token {} of the prompt is {}, expected 0 to {}", i, tokens[i],
                 vocab_ - 1);
}

/// Whoever wants the prompt's own log-probabilities, the same answer whatever was asked before, or chose the tokens
/// himself gets the whole prompt, unless he says `always`.
std::shared_ptr<CompressionPlan> JobMaker::plan(const Request& request, const Job& job) const {
    const CompressMode asked = request.compression.mode.value_or(CompressMode::automatic);
    RT_CHECK(compressor_ != nullptr || asked != CompressMode::always,
             "compress: this server has no scorer, so it cannot shorten prompts (riptide serve --scorer FILE)");
    RT_CHECK(!request.prompt_logprobs || asked != CompressMode::always,
             "compress: log-probabilities of a prompt need all of it");
    const CompressionOptions options = request.compression.over(options_.compression);
    check_compression(options, "compress.");
    if (compressor_ == nullptr || options.mode == CompressMode::off || request.prompt_logprobs || request.read_row)
        return nullptr;
    const bool exact = job.deterministic || std::holds_alternative<TokenPrompt>(request.prompt);
    if (options.mode == CompressMode::automatic && (exact || std::ssize(job.prompt.tokens) <= options.above))
        return nullptr;
    const std::vector<ChatPart> parts = text_.parts(job.prompt);
    return compressor_->plan({job.prompt.tokens, parts, request.isolation, !job.deterministic}, options);
}

uint64_t JobMaker::share_of(RequestId id) const { return key_number({}, fmt::format("request {}", id), secret_); }

void JobMaker::complete(Job& job, bool chosen) const {
    if (const auto plan = std::exchange(job.plan, nullptr); plan && chosen) {
        job.prompt.message_ends = kept_counts(*plan, job.prompt.message_ends);
        job.prompt.tokens = kept_tokens(*plan);
        job.gaps = kept_gaps(*plan, vocab_, positions_);
        job.compression = plan->report;
        if (job.show_kept) job.compression.shown = show_kept(*plan);
    }
    const int64_t size = std::ssize(job.prompt.tokens), asked = job.prompt_only ? 0 : job.sampling.max_tokens;
    const int64_t room = std::min(context_, positions_ - (job.gaps ? job.gaps->last() : 0)) - size;
    job.until_full = asked < 0 || asked > room;
    job.max_tokens = job.until_full ? room : asked;
    job.cuts = choose_cuts(job.prompt, options_.checkpoint_every);
    for (int32_t i = 0; i < job.open; ++i) job.answers.push_back(std::make_unique<Answer>(job, i, text_, vocab_));
}

}  // namespace riptide
