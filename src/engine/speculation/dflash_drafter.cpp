#include "engine/speculation/dflash_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/embed.h"
#include "ops/topk.h"

namespace riptide {

namespace {

constexpr int32_t kPageRows = 64;
constexpr int32_t kFeedRows = 512;                  // in one step of the drafter
constexpr int64_t kMostHeld = 64;                   // rows
constexpr int64_t kDecodeRows = 16;                 // fewer take the kernels that read weights once for few rows
constexpr int64_t kArenaBytes = int64_t{16} << 20;  // on the CPU, to begin with

/// Of the first block of a drafter's arena; on a GPU all that it may need, so that nothing of it lies idle.
int64_t arena_bytes(const Checkpoint& checkpoint, const DraftTarget& target) {
    if (target.gpu == nullptr || !is_dflash(checkpoint)) return kArenaBytes;
    return Dflash::workspace(dflash_config(checkpoint), target.model->info(), kFeedRows);
}

}  // namespace

DrafterMemory drafter_memory(const SpeculationOptions& options, const ModelInfo& target, int32_t sequences) {
    if (!options.on() || options.make || options.drafter == "ngram") return {};
    const auto checkpoint = options.open ? options.open() : open_checkpoint(options.drafter);
    if (!is_dflash(*checkpoint)) return {};
    const DflashConfig config = dflash_config(*checkpoint);
    DrafterMemory memory;
    memory.fixed = Dflash::workspace(config, target, kFeedRows);
    for (const TensorInfo& tensor : checkpoint->tensors()) memory.fixed += static_cast<int64_t>(tensor.bytes.size());
    memory.per_row = std::ssize(config.taps) * target.hidden_size * int64_t{sizeof(float)};
    memory.fixed += DflashDrafter::kAheadRows * memory.per_row;  // of plain rounds, until it is told
    const int64_t token = 2 * config.num_key_value_heads * row_bytes(DType::f16, config.head_dim);
    const int64_t ring =
        config.sliding_window + std::max<int64_t>(kFeedRows, DflashDrafter::kAheadRows + config.block_size);
    for (const char sliding : config.is_sliding)
        (sliding != 0 ? memory.fixed : memory.per_token) += sliding != 0 ? ring * token * sequences : token;
    return memory;
}

DflashDrafter::DflashDrafter(std::unique_ptr<Checkpoint> checkpoint, const DraftTarget& target)
    : checkpoint_(std::move(checkpoint)), arena_(arena_bytes(*checkpoint_, target), target.gpu) {
    ModelOptions options;
    options.gpu = target.gpu;
    model_ = load_drafter(*checkpoint_, *target.model, options);
    const int64_t block = model_->block_size();
    KvCacheOptions kv;
    kv.k_dtype = kv.v_dtype = target.gpu != nullptr ? DType::f16 : DType::f32;
    kv.page_rows = kPageRows;
    kv.max_sequences = target.sequences + target.kept;
    kv.max_step_rows =
        static_cast<int32_t>(std::max<int64_t>(std::min(kFeedRows, target.chunk_rows), kAheadRows + block));
    const int64_t tokens = target.kv_tokens > 0 ? target.kv_tokens : target.context * target.sequences;
    const int64_t tails = (block + kPageRows - 1) / kPageRows + 1;  // pages that a sequence has for its block
    kv.pages = static_cast<int32_t>((tokens + kPageRows - 1) / kPageRows + tails * target.sequences);
    most_kept_ = static_cast<size_t>(target.kept);
    cache_ = std::make_unique<KvCache>(model_->state_specs(), kv, target.gpu);
    context_.gpu = target.gpu;
    context_.threads = target.threads;
    context_.arena = &arena_;
    if (target.gpu != nullptr)
        device_batch_.emplace(*target.gpu, kv.max_step_rows, 1, cache_->pages_for(target.context + block));
    for (int64_t j = model_->first_slot(); j < block; ++j) block_rows_.push_back(static_cast<int32_t>(j));
}

void DflashDrafter::begin(uint64_t sequence, std::span<const int32_t> tokens) {
    auto at = texts_.find(sequence);
    if (at == texts_.end()) at = texts_.emplace(sequence, start(tokens)).first;
    Text& text = at->second;
    show_held(text);
    const auto common = std::mismatch(text.tokens.begin(), text.tokens.end(), tokens.begin(), tokens.end());
    int64_t keep = std::min<int64_t>(common.first - text.tokens.begin(), text.state.length());
    if (keep < text.state.length()) {
        if (!text.state.can_truncate(keep)) keep = 0;
        text.state.truncate(keep);
    }
    text.tokens.assign(tokens.begin(), tokens.end());
}

/// A text that has as much as possible of another that begins alike.
DflashDrafter::Text DflashDrafter::start(std::span<const int32_t> tokens) {
    while (cache_->free_slots() == 0 && !kept_.empty()) kept_.pop_front();
    for (auto& [number, text] : texts_) show_held(text);
    const Text* best = nullptr;
    int64_t most = 0;
    const auto look = [&](const Text& text) {
        const auto common = std::mismatch(text.tokens.begin(), text.tokens.end(), tokens.begin(), tokens.end());
        const int64_t length = std::min<int64_t>(common.first - text.tokens.begin(), text.state.length());
        if (length > most && text.state.can_truncate(length)) best = &text, most = length;
    };
    for (const auto& [number, text] : texts_) look(text);
    for (const Text& text : kept_) look(text);
    if (best == nullptr) return {{}, SequenceState(*cache_), {}};
    return {best->tokens, best->state.fork(most), {}};
}

void DflashDrafter::end(uint64_t sequence) {
    const auto at = texts_.find(sequence);
    if (at == texts_.end()) return;
    Text& text = at->second;
    show_held(text);
    text.tokens.resize(std::min(text.tokens.size(), static_cast<size_t>(text.state.length())));
    if (most_kept_ > 0 && !text.tokens.empty()) kept_.push_back(std::move(text));
    if (kept_.size() > most_kept_) kept_.pop_front();
    texts_.erase(at);
}

/// Makes room, by forgetting ended texts if need be.
bool DflashDrafter::reserve(SequenceState& state, int64_t rows) {
    while (!state.try_reserve(rows)) {
        if (kept_.empty()) return false;
        kept_.pop_front();
    }
    return true;
}

void DflashDrafter::extend(uint64_t sequence, std::span<const int32_t> tokens) {
    Text& text = texts_.at(sequence);
    text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
}

int64_t DflashDrafter::fed(uint64_t sequence) const {
    const auto at = texts_.find(sequence);
    return at == texts_.end() ? 0 : at->second.fed();
}

SequenceState* DflashDrafter::state(uint64_t sequence) {
    const auto at = texts_.find(sequence);
    if (at == texts_.end()) return nullptr;
    show_held(at->second);
    return &at->second.state;
}

const Batch& DflashDrafter::build(const StepRows& rows) {
    const Batch& host = builder_.build(std::span(&rows, 1));
    return device_batch_ ? device_batch_->upload(host) : host;
}

/// The rows of features that count, one after the other.
Tensor DflashDrafter::rows_of(const Tensor& features, std::span<const int32_t> rows) {
    Tensor first = features;
    if (!rows.empty()) first.shape[0] = std::ssize(rows);
    bool in_order = true;
    for (size_t i = 0; i < rows.size(); ++i) in_order = in_order && rows[i] == static_cast<int32_t>(i);
    if (in_order) return first;
    if (context_.gpu == nullptr) return ops::gather_rows(context_, features, rows);
    const Tensor on_device = context_.alloc(DType::i32, {std::ssize(rows)});
    context_.gpu->to_device(on_device.data, rows.data(), static_cast<int64_t>(rows.size_bytes()));
    return ops::gather_rows(context_, features, {static_cast<const int32_t*>(on_device.data), rows.size()});
}

void DflashDrafter::feed(uint64_t sequence, int64_t position, const Tensor& features, std::span<const int32_t> rows) {
    Text& text = texts_.at(sequence);
    const int64_t behind = text.fed() - position;
    if (behind < 0) return;  // something was not fed: what follows it is of no use
    const int64_t count = rows.empty() ? features.rows() : std::ssize(rows);
    if (context_.gpu == nullptr && count == 1 && behind == 0) {
        const float* const row = features.row(rows.empty() ? 0 : rows[0]);
        text.held.insert(text.held.end(), row, row + features.row_elements());
        if (++text.held_rows == kMostHeld) show_held(text);
        return;
    }
    show_held(text);
    arena_.reset();
    append(text, rows_of(features, rows), behind);
}

void DflashDrafter::show_held(Text& text) {
    if (text.held_rows == 0) return;
    const int64_t rows = std::exchange(text.held_rows, 0);
    arena_.reset();
    append(text, Tensor(text.held.data(), DType::f32, {rows, std::ssize(text.held) / rows}), 0);
    text.held.clear();
}

/// Makes K/V of the rows from `from` on.
void DflashDrafter::append(Text& text, const Tensor& all, int64_t from) {
    const int64_t most = cache_->options().max_step_rows;
    const std::vector<int32_t> nothing(static_cast<size_t>(most), 0);  // append() does not look at tokens
    for (int64_t at = from; at < all.rows();) {
        const ArenaScope scope(arena_);
        const int64_t n = std::min(most, all.rows() - at);
        if (!reserve(text.state, n)) return;
        const Batch& batch =
            build({&text.state, std::span(nothing).first(static_cast<size_t>(n)), {}, StepRows::Logits::none, {}});
        Tensor part = all;
        part.data = const_cast<float*>(all.row(at));
        part.shape[0] = n;
        context_.family = n <= kDecodeRows ? Family::decode : Family::prefill;
        model_->append(context_, part, batch, States{cache_->views()});
        text.state.commit_prefix(n);
        at += n;
    }
}

bool DflashDrafter::draft(Text& text, const DraftRequest& request, Draft& out) {
    const int64_t block = model_->block_size();
    show_held(text);
    if (text.tokens.empty() || text.state.length() != std::ssize(text.tokens) - 1) return false;  // not all was fed
    if (!reserve(text.state, block)) return false;
    block_tokens_.assign(static_cast<size_t>(block), model_->mask_token_id());
    block_tokens_[0] = text.tokens.back();
    const Batch& batch = build({&text.state, block_tokens_, {}, StepRows::Logits::list, block_rows_});
    context_.family = Family::decode;
    const auto vocab = std::ssize(model_->target_ids());
    block_.run(context_, [&] {
        const Tensor logits = model_->draft(context_, batch, States{cache_->views()});
        best_ = ops::top_k(context_, logits, std::min(kChoices, vocab));
        return logits;
    });
    const auto size = static_cast<size_t>(best_.indices.elements());
    best_tokens_.resize(size);
    best_logits_.resize(size);
    const auto to_host = [&](void* host, const void* data, size_t bytes) {
        if (context_.gpu != nullptr) context_.gpu->to_host(host, data, static_cast<int64_t>(bytes));
        else std::copy_n(static_cast<const std::byte*>(data), bytes, static_cast<std::byte*>(host));
    };
    to_host(best_tokens_.data(), best_.indices.data, size * sizeof(int32_t));
    to_host(best_logits_.data(), best_.values.data, size * sizeof(float));
    text.state.commit_prefix(0);
    const auto k = static_cast<size_t>(best_.k);
    const auto slots = std::min<size_t>(static_cast<size_t>(request.slots), block_rows_.size());
    for (size_t s = 0; s < slots; ++s) {
        const auto logits = std::span(best_logits_).subspan(s * k, k);
        double sum = 0;
        for (const float logit : logits) sum += std::exp(double{logit} - double{logits[0]});
        std::vector<DraftToken>& drafts = out.slots.emplace_back();
        for (size_t c = 0; c < std::min<size_t>(k, static_cast<size_t>(request.choices)); ++c) {
            const auto token = best_tokens_[s * k + c];
            if (token < 0 || token >= vocab) break;
            drafts.push_back({model_->target_ids()[static_cast<size_t>(token)],
                              static_cast<float>(double{logits[c]} - double{logits[0]} - std::log(sum))});
        }
    }
    return true;
}

void DflashDrafter::propose(std::span<const DraftRequest> requests, std::span<Draft> out) {
    RT_ASSERT(requests.size() == out.size());
    for (size_t i = 0; i < requests.size(); ++i) {
        out[i].clear();
        const auto at = texts_.find(requests[i].sequence);
        if (at != texts_.end() && requests[i].slots > 0) draft(at->second, requests[i], out[i]);
    }
}

}  // namespace riptide
