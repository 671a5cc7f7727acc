#include "engine/loop/resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>

#include "base/error.h"
#include "base/memory_bandwidth.h"
#include "base/sha256.h"
#include "engine/prompt/loaded_text.h"

namespace riptide {

namespace {

constexpr int32_t kCpuChunk = 512, kGpuMostChunk = 4096;
constexpr int32_t kCpuRunning = 8, kGpuRunning = 32;
constexpr int64_t kWorthContext = 32768;
// Cached pages stay in memory: on the CPU as much as this, from one context up to four.
constexpr int64_t kCpuContexts = 4, kCpuPageBytes = int64_t{4} << 30;
/// Of a GPU's memory that no plan has claimed, for graphs, sampling and the temporaries of unusual steps.
constexpr double kSpare = 0.2;
/// Of what the prefix cache may take of the host's memory, this share is always ready, pinned by a thread of its own:
/// on an H200's host 128 MiB take 50 to 67 ms, which 32 clients with prompts of 1,024 tokens waited for after every
/// fourth answer. 4 + 4 GiB (the defaults) make 1 GiB.
constexpr int64_t kPinnedShare = 8, kMostPinnedAhead = int64_t{2} << 30;
/// On the CPU, where state comes from a shared tier, so much of K/V is made resident, and at most so much host memory
/// for what is fetched: a conversation of the whole context.
constexpr int64_t kMostResident = int64_t{1} << 30;
constexpr double kMostSlowdown = 1e6;
/// One more with every change of kernels, or of quantisers, that changes the bits of K/V.
constexpr int kNumerics = 3;

void check_options(const EngineOptions& o) {
    check_session_options(o);
    check_option("max_running", o.max_running, 0, 256);
    check_option("kv_tokens", o.kv_tokens, 0, INT32_MAX - o.page_rows);
    check_option("max_queue", o.max_queue, 1, 1 << 20);
    check_option("prefill_rows_beside", o.prefill_rows_beside, 0, 65536);
    RT_CHECK(o.slowdown == 0 || (o.slowdown >= 1 && o.slowdown <= kMostSlowdown), ErrorKind::usage,
             "slowdown is {}, expected 0, or 1 to {}", o.slowdown, kMostSlowdown);
    check_option("checkpoint_every", o.checkpoint_every, 1, INT32_MAX);
    check_option("checkpoint_bytes", o.checkpoint_bytes, 0, INT64_MAX);
    check_option("host_cache_bytes", o.host_cache_bytes, 0, INT64_MAX);
    check_option("disk_cache_bytes", o.disk_cache_bytes, 0, INT64_MAX);
}

/// kGpuRunning, or as many fewer as leave room for a context that is worth having.
int32_t fitting_sequences(const MemoryRequest& request, const std::function<MemoryPlan(int32_t)>& plan_for) {
    const int64_t worth = request.context > 0 ? request.context : std::min(kWorthContext, request.max_context);
    for (int32_t running = kGpuRunning; running > 1; running /= 2) {
        try {
            if (plan_for(running).context >= worth) return running;
        } catch (const Error&) {  // it does not fit at all
        }
    }
    return 1;
}

Digest name_digest(const std::string& name) { return sha256(std::as_bytes(std::span(name))); }

}  // namespace

Machine::Machine(std::unique_ptr<Checkpoint> checkpoint, const EngineOptions& options)
    : options_(options), checkpoint_(std::move(checkpoint)) {
    check_options(options);
    open_disk_tier();  // before the weights: what is wrong with it is said at once
    open_shared_tier();
    if (options.gpu) {
        GpuOptions gpu = *options.gpu;  // the scorer has taken its part of the budget
        if (gpu.memory_budget > 0 && options.scorer.device_bytes)
            gpu.memory_budget = std::max<int64_t>(1, gpu.memory_budget - options.scorer.device_bytes());
        gpu_ = Gpu::open(gpu);
    }
    options_.model.gpu = gpu_.get();
    // As long as the context it hides nothing, and pages are shared.
    if (options_.context > 0) options_.model.attention_window = options_.model.window_within(options_.context);
    options_.model.fp8_k = !options_.choose_kv && options_.k_dtype == DType::f8_e4m3;
    options_.model.fp8_v = !options_.choose_kv && options_.v_dtype == DType::f8_e4m3;
    model_ = load_model(*checkpoint_, options_.model);
    options_.model.on_progress = {};  // belongs to whoever opens the engine
    open();
}

Machine::Machine(std::unique_ptr<Model> model, const EngineOptions& options)
    : options_(options), model_(std::move(model)) {
    check_options(options);
    RT_CHECK(!options.gpu, ErrorKind::usage, "a model without checkpoint runs on the CPU");
    open_disk_tier();
    open();
}

void Machine::open() {
    clock_ = [epoch = std::chrono::steady_clock::now()] {
        return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - epoch).count();
    };
    info_ = model_->info();
    RT_CHECK(info_.task != Task::embed || !options_.speculation.on(), ErrorKind::usage,
             "an embedding model writes no text: --drafter is not for it");
    fit_to_model(options_, *model_);
    if (options_.max_running == 0 && !gpu_) options_.max_running = kCpuRunning;
    plan_memory();
    threads_ = std::make_unique<ThreadPool>(options_.threads);
    KvCacheOptions kv;
    kv.k_dtype = options_.k_dtype;
    kv.v_dtype = options_.v_dtype;
    kv.page_rows = options_.page_rows;
    kv.pages = static_cast<int32_t>((options_.kv_tokens + options_.page_rows - 1) / options_.page_rows);
    kv.max_sequences = options_.max_running;
    kv.max_step_rows = options_.chunk_rows;
    cache_ = std::make_unique<KvCache>(model_->state_specs(), kv, gpu_.get(), threads_.get());
    make_runner();
    make_prefix_cache();
    name_weights();
}

int64_t Machine::page_bytes_per_token() const {
    int64_t bytes = 1;
    for (const StateSpec& spec : model_->state_specs())
        if (spec.kind == StateSpec::Kind::paged)
            bytes += spec.num_kv_heads *
                     (row_bytes(options_.k_dtype, spec.head_dim) + row_bytes(options_.v_dtype, spec.head_dim));
    return bytes;
}

/// Decides context, chunk and the tokens that all requests and the cache hold together.
void Machine::plan_memory() {
    if (!gpu_) {
        context_ = options_.context > 0 ? options_.context : info_.max_position_embeddings;
        if (options_.chunk_rows == 0) options_.chunk_rows = kCpuChunk;
        if (options_.kv_tokens == 0)
            options_.kv_tokens = std::min<int64_t>(
                INT32_MAX - options_.page_rows,
                std::clamp(kCpuPageBytes / page_bytes_per_token(), context_, kCpuContexts * context_));
    } else {
        MemoryRequest request;
        request.context = options_.context;
        request.max_context = info_.max_position_embeddings;
        request.chunk_rows = options_.chunk_rows;
        if (options_.max_running != 1) request.max_chunk_rows = kGpuMostChunk;  // a ring for each that runs
        request.page_rows = options_.page_rows;
        request.available = std::max<int64_t>(0, gpu_->available() - kUnplannedBytes);
        request.weights = gpu_->allocated();
        request.specs = model_->state_specs();
        request.k_dtype = options_.k_dtype;
        request.v_dtype = options_.v_dtype;
        request.workspace = model_->workspace();
        request.workspace.fixed += DeviceMasks::bytes(info_.vocab_size);
        const auto plan_for = [&](int32_t running) {
            MemoryRequest wanted = request;
            wanted.sequences = running;
            add_drafter(wanted, drafter_memory(options_.speculation, info_, 2 * running));
            return plan_gpu_memory(wanted);
        };
        if (options_.max_running == 0) options_.max_running = fitting_sequences(request, plan_for);
        const MemoryPlan plan = plan_for(options_.max_running);
        plan_ = plan;
        context_ = plan.context;
        options_.chunk_rows = plan.chunk_rows;
        const auto spare = static_cast<int64_t>(static_cast<double>(plan.spare) * (1 - kSpare));
        const int64_t wanted = std::min<int64_t>(INT32_MAX - options_.page_rows, context_ * options_.max_running);
        const int64_t most = plan.per_token > 0 ? context_ + spare / plan.per_token : INT32_MAX - options_.page_rows;
        if (options_.kv_tokens > most)
            fail(ErrorKind::unavailable, "kv_tokens is {}, but beside the weights the GPU's memory holds {}",
                 options_.kv_tokens, most);
        if (options_.kv_tokens == 0) options_.kv_tokens = std::min(most, wanted);
    }
    if (options_.kv_tokens < context_)
        fail(ErrorKind::usage, "kv_tokens is {}: less than the context of {} tokens", options_.kv_tokens, context_);
}

void Machine::make_runner() {
    runner_ = std::make_unique<Runner>(*model_, *cache_, threads_.get(), context_, kWorkspaceFixed);
    prompts_ = std::make_unique<PromptStep>(*runner_, *cache_, context_, [this] { return now_us(); });
    capture(std::vector<int32_t>(capture_layers_));
    if (gpu_) {
        decoder_ = std::make_unique<GpuDecoder>(*model_, *cache_, runner_->context(), runner_->device_batch(),
                                                options_.max_running);
        use_decoder(
            {[this](int64_t slot, const ops::SampleStart& start) { decoder_->start_answer(slot, start); },
             [this](std::span<const DecodeRow> rows, GpuDecoder::Draw draw, GpuDecoder::Recurrent state) {
                 decoder_->begin(rows, draw, {}, state);
             },
             [this] { decoder_->launch(); }, [this] { return decoder_->next(); },
             [this](std::span<const int32_t> slots, GpuDecoder::Draw draw, std::span<const AllowedSet> allowed) {
                 return decoder_->draw_rows(logits_, slots, draw, allowed);
             },
             [this] { decoder_->forward(); }, [this](std::span<const AllowedSet> allowed) { decoder_->draw(allowed); },
             decoder_->follow_rows(),
             [this](int64_t slot, GpuDecoder::Draw how) -> DraftRounds::DrawRows {
                 decoder_->draw_for(slot);
                 return [this, how](const Tensor& logits, std::span<const int32_t> positions) {
                     return decoder_->draw(logits, positions, how);
                 };
             }});
    }
}

// The name of the weights.

std::string Machine::weights_name() const {
    std::string name = fmt::format("{} {} {} numerics {}", info_.architecture, model_->info().config,
                                   gpu_ ? gpu_->info().name : "cpu", kNumerics);
    if (options_.model.delta_by_chunks) name += " delta by chunks";
    if (gpu_ && gpu_->options().portable) name += " portable";
    if (options_.model.prefill == PrefillKind::fp8) name += " prefill fp8";
    if (!model_->info().kv_scales.empty()) name += " " + model_->info().kv_scales;
    if (checkpoint_ && !checkpoint_->made().empty()) name += fmt::format(" {}", checkpoint_->made());
    if (!content_) return name;
    return name + (by_digest_ ? " sha256 " + to_hex(*content_->digest()) : " local " + content_->local_name());
}

/// Of the weights as they have just been loaded. What the cache holds of others is gone.
void Machine::name_weights() {
    by_digest_ = false;
    const bool disk = disk_ && disk_->refusal() == 0;
    if (checkpoint_ && prefix_ && (disk || shared_)) {
        std::vector<DigestMemo> memos;
        memos.emplace_back(options_.digests);
        if (disk) memos.emplace_back(options_.disk_cache + "/digests", false);
        content_ = std::make_unique<WeightsDigest>(*checkpoint_, std::move(memos));
    }
    learning_ = content_ != nullptr;
    if (prefix_) prefix_->use_weights(name_digest(weights_name()));
    if (prefix_) prefix_->use_shared(nullptr);
    if (content_ && check_unchanged()) learn_weights();
}

bool Machine::learn_weights() {
    if (!content_) return false;
    if (!gpu_ && !check_unchanged()) return true;
    if (!learning_ || !content_->settled()) return false;
    learning_ = false;
    by_digest_ = content_->digest().has_value();
    if (by_digest_) {
        prefix_->rename_weights(name_digest(weights_name()));
        prefix_->use_shared(shared_.get());
    }
    if (!content_->note().empty() && options_.on_disk_news) options_.on_disk_news(content_->note());
    return by_digest_;
}

/// False, from then on without a name that anybody finds again, when a file is no longer what was opened: on the CPU
/// its bytes are the weights.
bool Machine::check_unchanged() {
    const auto changed = [](const MappedFile& file) { return !file.unchanged(); };
    const std::span<const MappedFile> files = checkpoint_->files();
    const auto file = std::find_if(files.begin(), files.end(), changed);
    if (file == files.end()) return true;
    content_.reset();
    prefix_->use_shared(nullptr);
    std::random_device random;
    prefix_->use_weights(name_digest(fmt::format("changed {:x}{:x}{:x}{:x}", random(), random(), random(), random())));
    if (options_.on_disk_problem)
        options_.on_disk_problem(fmt::format("{}: was changed while in use: what is saved now is lost", file->path()));
    return false;
}

DraftTarget Machine::draft_target() {
    return {.model = model_.get(),
            .gpu = gpu_.get(),
            .threads = threads_.get(),
            .context = context_,
            .chunk_rows = options_.chunk_rows,
            .sequences = options_.max_running,
            .kept = options_.max_running,
            .kv_tokens = options_.kv_tokens};
}

std::unique_ptr<DraftRounds> Machine::make_rounds(std::shared_ptr<Drafter> drafter) {
    return std::make_unique<DraftRounds>(*model_, *cache_, runner_->context(), std::move(drafter), context_);
}

void Machine::capture(std::span<const int32_t> layers) {
    capture_layers_.assign(layers.begin(), layers.end());
    runner_->capture(layers);
    prompts_->capture(layers);
}

void Machine::open_disk_tier() {
    if (!options_.prefix_cache || options_.disk_cache.empty()) return;
    disk_ = std::make_unique<DiskStore>(options_.disk_cache, options_.disk_cache_bytes);
    const int code = disk_->refusal();
    if (code != 0 && code != EWOULDBLOCK)
        throw Error(disk_->problem(), code == EACCES || code == EPERM     ? ErrorKind::permission
                                      : code == ENOENT || code == ENOTDIR ? ErrorKind::no_input
                                                                          : ErrorKind::io);
    if (!options_.on_disk_problem) return;
    if (!disk_->problem().empty()) options_.on_disk_problem(disk_->problem());
    disk_->on_failed_write(options_.on_disk_problem);
}

void Machine::open_shared_tier() {
    if (!options_.prefix_cache || options_.shared_cache.empty()) return;
    RT_CHECK(options_.host_cache_bytes > 0, ErrorKind::usage,
             "shared_cache {}: state is fetched into the cache in main memory, which has 0 bytes",
             without_password(options_.shared_cache));
    RT_CHECK(!options_.shared_cache_key.empty(), ErrorKind::usage,
             "shared_cache {}: a file with the secret of all who share it is needed",
             without_password(options_.shared_cache));
    const SealKey key = SealKey::of_file(options_.shared_cache_key);
    auto place = open_shared_place(options_.shared_cache, options_.shared_cache_bytes, options_.shared_access);
    shared_ = std::make_unique<SharedStore>(std::move(place), key, [news = shared_news_] {
        const std::lock_guard lock(news->mutex);
        if (news->hear) news->hear();
    });
}

void Machine::try_shared() {
    auto lookup = std::make_shared<SharedLookup>();
    lookup->names = {Digest{}};
    shared_->look(std::move(lookup));
}

void Machine::tell_shared_problem() const {
    const std::string problem = shared_->problem();
    if (!problem.empty() && options_.on_shared_problem) options_.on_shared_problem(problem);
}

void Machine::hear_shared(std::function<void()> hear) {
    const std::lock_guard lock(shared_news_->mutex);
    shared_news_->hear = std::move(hear);
}

void Machine::make_prefix_cache() {
    if (!options_.prefix_cache) return;
    if (options_.host_cache_bytes > 0) host_.emplace(options_.host_cache_bytes);
    PrefixCacheOptions o;
    o.checkpoint_every = options_.checkpoint_every;
    o.state_budget = options_.checkpoint_bytes;
    o.feed = options_.cache_feed.get();
    o.ready_most = options_.checkpoint_bytes + options_.host_cache_bytes;
    if (gpu_) o.ready_ahead = std::min(kMostPinnedAhead, o.ready_most / kPinnedShare);
    else if (shared_)
        o.ready_ahead = std::min(
            {kMostResident, o.ready_most, context_ * cache_->bytes_per_token() + cache_->bytes_per_sequence()});
    if (!gpu_ && shared_) resident_.emplace(cache_->used_first(kMostResident));
    prefix_ = std::make_unique<PrefixCache>(*cache_, o, host_ ? &*host_ : nullptr, disk_.get());
}

std::string Machine::device() const {
    return gpu_ ? gpu_->info().name : fmt::format("CPU, {} threads", threads_->size());
}

EngineInfo Machine::facts() const {
    EngineInfo facts;
    facts.model = model_->info();
    if (checkpoint_) facts.path = checkpoint_->path();
    facts.context_length = context_;
    facts.kv_tokens = options_.kv_tokens;
    facts.page_rows = options_.page_rows;
    facts.memory_bytes = gpu_ ? gpu_->allocated() : info_.weight_bytes + cache_->total_bytes();
    facts.max_running = options_.max_running;
    facts.chunk_rows = options_.chunk_rows;
    facts.threads = threads();
    facts.k_dtype = options_.k_dtype;
    facts.v_dtype = options_.v_dtype;
    facts.device = device();
    facts.compression = options_.compression;
    facts.shares_cache = shared_ != nullptr;
    if (!gpu_) return facts;
    facts.memory = describe(plan_, options_.k_dtype, options_.v_dtype);
    if (!options_.scorer.memory.empty()) facts.memory = options_.scorer.memory + "; " + facts.memory;
    return facts;
}

double Machine::memory_bandwidth() {
    if (memory_bandwidth_ == 0)
        memory_bandwidth_ = gpu_ ? measure_read_bandwidth(*gpu_) : measure_read_bandwidth(*threads_);
    return memory_bandwidth_;
}

Tensor Machine::logits() {
    if (!gpu_ || logits_.rows() == 0) return logits_;
    host_logits_.resize(static_cast<size_t>(logits_.elements()));
    gpu_->to_host(host_logits_.data(), logits_.data, logits_.elements() * int64_t{sizeof(float)});
    Tensor host = logits_;
    host.data = host_logits_.data();
    return host;
}

void Machine::check() const {
    if (gpu_) gpu_->check();
    else if (checkpoint_) checkpoint_->check_intact();
}

void Machine::check_same_model(const Checkpoint& checkpoint, const Model& model) const {
    const auto same = [&](const char* what, const auto& now, const auto& before) {
        RT_CHECK(now == before,
                 "{}: {} is {}, but the engine was opened with {}; reload takes other weights of the same "
                 "model",
                 checkpoint.path(), what, now, before);
    };
    const ModelInfo& info = model.info();
    same("the architecture", info.architecture, info_.architecture);
    same("the task", task_name(info.task), task_name(info_.task));
    same("the number of layers", info.num_hidden_layers, info_.num_hidden_layers);
    same("hidden_size", info.hidden_size, info_.hidden_size);
    same("vocab_size", info.vocab_size, info_.vocab_size);
    same("max_position_embeddings", info.max_position_embeddings, info_.max_position_embeddings);
    const auto views = cache_->views();
    for (size_t l = 0; l < views.size(); ++l) {
        const StateSpec& spec = model.state_specs()[l];
        if (spec.kind == StateSpec::Kind::delta) {
            const DeltaView& delta = cache_->delta().views()[l];
            same("the number of value heads", spec.delta.value_heads, delta.value_heads);
            same("the size of the recurrent state", spec.delta_bytes(), delta.conv_floats() * 4 + delta.state_bytes());
            same("the order of value heads", static_cast<int>(spec.delta.heads), static_cast<int>(delta.heads));
        }
        if (!spec.has_kv()) continue;
        same("the number of K/V heads", int64_t{spec.num_kv_heads}, int64_t{views[l].num_kv_heads});
        same("head_dim", int64_t{spec.head_dim}, int64_t{views[l].head_dim});
        same("the window of a layer", spec.kind == StateSpec::Kind::window ? int64_t{spec.window} : int64_t{0},
             int64_t{views[l].window});
    }
}

void Machine::replace(std::unique_ptr<Checkpoint> checkpoint) {
    RT_CHECK(checkpoint_, "an engine that was opened without a checkpoint cannot take one");
    if (has_tokenizer(*checkpoint) && has_tokenizer(*checkpoint_))
        RT_CHECK(load_tokenizer(*checkpoint).fingerprint() == load_tokenizer(*checkpoint_).fingerprint(),
                 "{}: another vocabulary than the engine was opened with", checkpoint->path());
    // One set of weights at a time: there may not be memory for two.
    const auto load = [&](const Checkpoint& from) {
        decoder_.reset();
        prompts_.reset();
        runner_.reset();
        model_.reset();
        model_ = load_model(from, options_.model);
        check_same_model(from, *model_);
        make_runner();
    };
    try {
        load(*checkpoint);
    } catch (...) {
        load(*checkpoint_);
        throw;
    }
    content_.reset();
    checkpoint_ = std::move(checkpoint);
    name_weights();
}

}  // namespace riptide
