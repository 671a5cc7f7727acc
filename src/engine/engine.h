// The engine: many requests, one model, one device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/shared/place.h"
#include "engine/compression/prompt_scorer.h"
#include "engine/prompt/generation_defaults.h"
#include "engine/request.h"
#include "engine/session_options.h"
#include "io/checkpoint.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

class CacheFeed;
class Speculator;

/// `chunk_rows` is also the room that each running request has in the rings of window layers: more is faster for long
/// prompts and costs memory; 0: 512 on the CPU, up to 4096 on a GPU.
/// `kv_tokens` 0: on a GPU as many contexts as requests may run, or what the memory holds; on the CPU what 4 GiB hold,
/// from one context to four.
/// `slowdown`: beside decoding requests a step of prompts runs in parts, some layers between two tokens, and what a
/// token may take longer is the prompts' share: at 2 half of the device. At least one layer runs each time. 0: 2, and
/// more, up to 8, where more answers wait for their prompts than decode: all of them get equal shares.
struct EngineOptions : SessionOptions {
    int32_t max_running = 0;          // requests that hold K/V at a time; 0: 8 on the CPU, 32 on a GPU, or fewer if
                                      // a context of 32K tokens would not fit beside them
    int64_t kv_tokens = 0;            // K/V of all of them and of the cache; 0: see above
    int32_t max_queue = 512;          // answers that wait for their turn
    int32_t prefill_rows_beside = 0;  // of a step of prompts beside decoding requests; 0: 64 on the CPU, on a GPU 2048,
                                      // and chunk_rows where a layer of so many takes no longer than `slowdown` allows
    double slowdown = 0;              // how much longer a token may take while prompts are read; see above
    bool deterministic = false;       // Request::deterministic
    /// How reload() opens a file; empty: open_checkpoint.
    std::function<std::unique_ptr<Checkpoint>(const std::string& path)> open_weights;

    PromptScorer scorer;             // empty: prompts are never compressed
    CompressionOptions compression;  // where a request does not say
    /// Who hears what was left out of a prompt, before it is read; on the engine's thread.
    std::function<void(const CompressionReport&)> on_compressed;

    bool prefix_cache = true;
    int32_t checkpoint_every = 4096;              // tokens; the most that a hit computes again
    int64_t checkpoint_bytes = int64_t{4} << 30;  // host memory for checkpoints of what is held on the device
    int64_t host_cache_bytes = int64_t{4} << 30;  // second tier; 0: none
    std::string disk_cache;                       // third tier: a folder; empty: none
    int64_t disk_cache_bytes = int64_t{64} << 30;
    std::string shared_cache;      // fourth tier, of all replicas: open_shared_place; empty: none
    std::string shared_cache_key;  // the file with the fleet's secret: SealKey::of_file
    int64_t shared_cache_bytes = int64_t{256} << 30;
    SharedAccess shared_access;
    /// Who hears what somebody must see to at that place (a password that is wrong): each sentence once, on the
    /// engine's thread, or the one that ends the engine.
    std::function<void(const std::string& problem)> on_shared_problem;
    /// Who is told what the prefix cache holds from now on, and what no longer (cache/cache_feed.h); null: nobody.
    std::shared_ptr<CacheFeed> cache_feed;
    /// Who hears why the third tier is not what it should be: when the engine is made (another process has the folder,
    /// or it cannot be listed), and for each record that cannot be saved, on the engine's thread and at times often.
    std::function<void(const std::string& problem)> on_disk_problem;
    /// The third tier knows weights by their content, wherever they lie; until it is known, by their files on this
    /// machine. Its SHA-256 is remembered in this file (base/digest_memo.h) and in `digests` in the tier's folder;
    /// empty: there alone.
    std::string digests;
    /// Who hears that it has been computed, or why not. This and on_disk_problem: on the engine's thread, or on one
    /// that loads other weights, never on both at a time.
    std::function<void(const std::string& news)> on_disk_news;
};

/// Facts for whoever offers the model to others.
struct EngineInfo {
    ModelInfo model;
    std::string path;            // of the checkpoint
    int64_t version = 1;         // of the weights: 1, and one more with each reload
    int64_t context_length = 0;  // tokens of prompt and answer together
    int64_t kv_tokens = 0;
    int32_t page_rows = 0;     // tokens in a page of K/V
    int64_t memory_bytes = 0;  // of weights and K/V; on a GPU of all that the engine has there
    int32_t max_running = 0, chunk_rows = 0;
    int threads = 0;
    DType k_dtype = DType::f16, v_dtype = DType::f16;
    std::string device;         // "NVIDIA H200", "CPU, 8 threads"
    bool shares_cache = false;  // EngineOptions::shared_cache
    bool chat = false;          // there is a template in a dialect that the engine can parse
    std::string no_chat;        // else why not
    std::string chat_dialect;   // its name, text/dialects/dialect.h
    ChatTraits chat_traits;
    std::vector<int32_t> stop_ids;
    GenerationDefaults makers;       // those of the first weights, also after a reload
    std::string scorer;              // its name; empty: there is none
    CompressionOptions compression;  // where a request does not say
    std::string memory;              // of a GPU: what it is used for, the scorer's part too
};

struct EngineStats {
    int64_t waiting = 0, running = 0;  // answers, now
    int64_t scoring = 0;               // of the waiting: requests whose prompts are with the scorer
    int64_t waiting_tokens = 0;        // of the waiting, once scorer and shared tier are done: tokens no cache has
    int64_t compressed = 0, scored_tokens = 0, dropped_tokens = 0;  // prompts that were compressed, tokens of them
    int64_t submitted = 0, finished = 0, cancelled = 0, failed = 0, refused = 0;
    int64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
    double answer_rate = 0;  // tokens of answers a second, of the last five seconds
    int64_t preempted = 0, recomputed_rows = 0;
    int64_t pages = 0, free_pages = 0;
    int64_t used_pages = 0, cached_pages = 0;  // that answers need now, that the prefix cache holds; some are both
    int64_t checkpoints = 0, checkpoint_bytes = 0;
    int64_t host_tier_bytes = 0, disk_tier_bytes = 0, damaged_records = 0, failed_writes = 0;
    int64_t shared_ready = 0;  // 1: the weights' digest is known and the shared tier answers
    int64_t fetching = 0;      // of the waiting: requests whose state is looked for in the shared tier
    int64_t shared_hits = 0, shared_misses = 0, shared_errors = 0, shared_rejected = 0, shared_written = 0;  // records
    int64_t shared_dropped = 0;                               // records that were to be written faster than they could
    int64_t shared_read_bytes = 0, shared_written_bytes = 0;  // of records
    int64_t shared_fetched = 0, shared_tokens = 0;            // requests whose state came from there; tokens of it
    int64_t shared_late = 0, shared_slower = 0;               // requests that went on without: FetchQueue::Stats
    int64_t steps = 0, decode_rows = 0, prefill_rows = 0;
    int64_t prompt_parts = 0;                     // in which the prompts' rows ran
    int64_t drafted_rows = 0, accepted_rows = 0;  // drafted tokens that were verified, and that were right
    int64_t rounds = 0;           // steps that the device drafted for and checked by itself, and plain ones between
    int64_t formed_rows = 0;      // of answers of a given form, that the device drew for
    int64_t masks_aside = 0;      // of what such answers may say next: found out beside the engine's thread
    int64_t most_mask_steps = 0;  // of WorkBudget, on the engine's thread in one step
    struct DraftSlot {
        int64_t reached = 0, accepted = 0;  // times that drafts for this many tokens ahead were looked at; were right
    };
    std::vector<DraftSlot> draft_slots;
    int64_t device_peak = 0;  // most bytes of a GPU's memory, without the scorer's
    double step_seconds = 0;  // of all steps
    double host_seconds = 0;  // of them, not spent in the model or waiting for the device
    int64_t version = 1;
    /// Of what routers are told of the cache, if they are (EngineOptions::cache_feed).
    int64_t kv_events = 0, kv_events_lost = 0, kv_event_epochs = 0;
    bool tells_kv_events = false;
    bool paused = false;
    bool broken = false;  // the engine has ended: submit throws
};

/// Owns model, device, K/V and a thread that runs them. **Thread safety:** all functions, from any thread, except that
/// a Sink may call submit and cancel only.
///
/// **Determinism.** An answer is a function of its request and the weights: its tokens do not depend on other requests,
/// their arrival, preemption or cancellation; except that on a GPU what was found in the prefix cache can change
/// rounding, unless the request is deterministic.
/// **Failure.** What goes wrong with one request fails that request alone. When the device fails, or the checkpoint's
/// file shrinks, every request gets Failed and later calls of submit throw: the process should end.
class Engine {
  public:
    /// Loads the model and starts. Throws Error; see open_checkpoint, load_model, plan_gpu_memory.
    static std::unique_ptr<Engine> open(const std::string& path, const EngineOptions& options = {});
    explicit Engine(std::unique_ptr<Checkpoint> checkpoint, const EngineOptions& options = {});
    /// A model without checkpoint, on the CPU. For tests. `text`: whose tokenizer and template it has; null:
    /// TokenPrompt only.
    explicit Engine(std::unique_ptr<Model> model, const EngineOptions& options, const Checkpoint* text = nullptr);
    /// Cancels what is left, writes the cache to the disk tier, stops.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Renders, tokenises and checks the request on the caller's thread, and queues it; a long prompt goes to the
    /// scorer's thread first. What must stay of it is known here: it is too long if that and the budget are. Throws
    /// QueueFull, PromptTooLong, Error (unavailable) while draining, Error (system) after a failure, or Error that
    /// names the field, its value and the limit: a prompt that is empty or holds ids outside the vocabulary, messages
    /// that the template refuses, parameters out of range, stop strings or text without a tokenizer.
    /// `work` counts what is done before it returns, and ends it at the request's deadline (WorkLate); null: budgets of
    /// their own.
    RequestId submit(Request request, Sink sink, WorkBudget* work = nullptr);
    /// Ends a request within one step, also one that is being scored, and while the engine is paused or loads other
    /// weights: Done with reason cancelled for each answer not complete. An id that has ended is ignored. A request's
    /// deadline is heard in the same way.
    void cancel(RequestId id);

    EngineStats stats() const;
    EngineInfo info() const;
    /// Null if the model has none. They live as long as the engine.
    const Tokenizer* tokenizer() const;
    const ChatTemplate* chat_template() const;
    /// The tokens that submit would feed if it compressed no prompts.
    std::vector<int32_t> tokenize(const Prompt& prompt, WorkBudget* work = nullptr) const;

    /// Stops between two steps; requests keep their K/V and their place. Returns when no step runs.
    void pause();
    /// Goes on after pause, takes requests again after drain.
    void resume();
    /// Refuses new requests, lets the others end (a paused engine goes on), returns when none is left. `work` ends the
    /// wait (WorkStopped), and then requests are taken again; null: nobody does.
    void drain(WorkBudget* work = nullptr);
    /// Other weights of the same model (sizes, vocabulary), in place of these. Running answers end with the old weights
    /// first (even if paused), waiting requests start with the new ones; what the prefix cache holds is forgotten.
    /// Returns the new version. Throws Error with the old weights back in place if the new ones cannot be used.
    /// `work` ends the wait (WorkStopped) until they are being loaded, and then nothing has changed; null: nobody does.
    int64_t reload(const std::string& path, WorkBudget* work = nullptr);
    int64_t reload(std::unique_ptr<Checkpoint> checkpoint, WorkBudget* work = nullptr);
    /// Forgets what the prefix cache holds in device and host memory; the disk tier keeps its own. Running answers end
    /// first. `work` as in reload.
    void forget_cache(WorkBudget* work = nullptr);
    /// For measurements: once no answer has begun, `speculator` drafts for those that follow (null: nobody does);
    /// returns who did. It may leave the engine only until that ends.
    std::unique_ptr<Speculator> speculate(std::unique_ptr<Speculator> speculator);
    /// Bytes per second that the device can read, measured at the first call, between requests (a fraction of a
    /// second).
    double memory_bandwidth();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide
