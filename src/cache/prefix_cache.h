// From tokens to the longest state that was computed before: shared pages, checkpoints of the windows, tiers below.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/disk_store.h"
#include "cache/host_heap.h"
#include "cache/host_store.h"
#include "cache/kv_cache.h"
#include "cache/kv_transfer.h"
#include "cache/sequence_state.h"
#include "cache/shared/store.h"

namespace riptide {

class CacheFeed;
enum class CacheTier : uint8_t;

/// What besides the tokens and the weights decides the values of K/V, and who may share them. Entries under different
/// salts never meet.
struct PrefixSalt {
    std::string origin;     // who computed them, where that matters: what prefill alone has
    std::string prompt;     // tokenizer and chat template
    std::string isolation;  // whoever must not see, nor time, the others' entries; empty: everybody shares
};

/// One prompt, or one sequence to be kept, and on whose behalf.
struct PrefixRequest {
    const PrefixSalt& salt;
    std::span<const int32_t> tokens;
    std::span<const int64_t> message_ends;  // ascending token counts; the last message may be followed by more tokens
    uint64_t session = 0;                   // 0: none
    bool side = false;  // a title, a sub-agent: shares what is there, but never drives out what a live session uses
};

/// How much of a prompt need not be computed, and why not more.
struct PrefixMatch {
    enum class Rest {
        new_tokens,  // the cache knows no other way to go on: the prompt is longer than what was computed
        differs,     // something that was computed goes on with another token
        evicted,     // the first first_difference tokens were computed before, but what is held of them is less
        nothing,     // there is no entry under this salt
    };
    int64_t cached = 0;         // tokens restored; a prompt's last token is always computed again
    int64_t known = 0;          // leading tokens whose pages are held; the newest checkpoint inside them gives `cached`
    int32_t pages_to_load = 0;  // pages that attach takes from the pool for state in lower tiers
    bool loaded = false;        // attach has restored state from a lower tier
    Rest rest = Rest::nothing;
    int64_t first_difference = -1;  // differs, evicted: index of the token,
    int32_t message = -1;           // the message that it is in (message_ends.size(): after the last),
    int32_t cached_token = -1;      // and what was there before
    int32_t prompt_token = -1;
    /// One sentence for a log or a reply.
    std::string why() const;
};

struct PrefixCacheOptions {
    int64_t checkpoint_every = 4096;          // tokens; the most that a match computes again
    int64_t state_budget = int64_t{4} << 30;  // bytes of checkpoints held beside the pages
    int64_t ready_ahead = 0;                  // bytes of host memory that are kept ready: HostHeap::keep_ready
    int64_t ready_most = 0;                   // of these, in all
    int64_t live_sessions = 64;               // beyond them the one unused for longest counts as ended
    CacheFeed* feed = nullptr;                // who is told what is held from now on, and what no longer; null: nobody
};

/// State of one set of weights at a time: a tree of full pages for each salt. A page is found by its parent and its
/// tokens, compared in full; a checkpoint hangs at the page before it with the tokens of the last, partly filled page.
/// The tree holds a reference to each of its pages; sequences share them and copy on write (SequenceState).
///
/// Classes of what may go when room is wanted, least recently used and leaves first: what no live session uses; then,
/// never for a side request, the prefixes of live sessions and what is pinned for ended ones; last the pinned
/// checkpoints of live sessions. What goes is kept in `host`, what falls out there in `disk`; either may be null.
///
/// On a GPU copies between its memory and the host's are put on the stream and nobody waits for them (KvTransfer).
/// Files are read on a few threads while the engine thread waits, and written on another one while it does not. (With
/// `disk` but no `host` it waits for the device before each write.)
///
/// Deterministic, but for what a slow or full disk drops. Not thread-safe: the engine thread owns it. Never throws for
/// anything that a tier returns: what does not fit is removed, and counts as absent.
class PrefixCache {
  public:
    enum class Mark {
        interval,  // every checkpoint_every tokens; the first to go
        message,   // the end of a message or of a turn
        pinned,    // the end of system prompt and tools
    };
    struct Stats {
        int64_t prompts = 0, hits = 0, prompt_tokens = 0, cached_tokens = 0;
        int64_t pages = 0, checkpoints = 0, state_bytes = 0;  // held now; pages: nodes of the trees
        int64_t evicted_pages = 0, evicted_checkpoints = 0, loaded_pages = 0, loaded_checkpoints = 0;
        int64_t refused = 0;  // checkpoints that would have driven out something of a higher class
        int64_t damaged = 0;  // records of the tiers that did not fit
    };

    /// All must outlive the cache; sequences passed in must be of `cache`. On a GPU it takes KvTransfer::kStagingBytes
    /// of device memory; throws Error (unavailable) when they are not there.
    PrefixCache(KvCache& cache, const PrefixCacheOptions& options, HostStore* host = nullptr,
                DiskStore* disk = nullptr);
    ~PrefixCache();
    PrefixCache(const PrefixCache&) = delete;
    PrefixCache& operator=(const PrefixCache&) = delete;

    /// What attach would find; changes nothing. Cost: one comparison of the tokens.
    PrefixMatch find(const PrefixRequest& request) const;
    /// Restores the longest held state into an empty sequence; `cached` is then its length.
    PrefixMatch attach(const PrefixRequest& request, SequenceState& sequence);
    /// Keeps the pages of a sequence and a checkpoint at its length, which becomes the prefix in use of the session
    /// unless the request is a side one. REQUIRES tokens to begin with the sequence's tokens and no step running.
    /// False when the checkpoint was not worth, or had no right to, the room.
    /// The sequence's partly filled page becomes shared: its next try_reserve takes a page to copy it.
    bool publish(const PrefixRequest& request, const SequenceState& sequence, Mark mark) {
        return publish(request, sequence, mark, sequence.length());
    }
    /// The same for what the sequence was at an earlier length, which its rings must still hold: a step may go through
    /// a place that is worth keeping and need not end there (recurrent state: it must). REQUIRES
    /// sequence.can_truncate(length), length >= 1.
    bool publish(const PrefixRequest& request, const SequenceState& sequence, Mark mark, int64_t length);
    /// Evicts until the pool has `pages` free ones, and when it has to begin, 1/128 of the pool more of no higher
    /// class: finding what may go costs a walk over all nodes. False, with as much evicted as the class allows, if it
    /// cannot.
    bool make_room(int32_t pages, bool side);

    /// The session's prefix is from now on like any other entry.
    void end_session(uint64_t session);
    /// Drops all entries from memory. The tiers keep theirs.
    void forget();
    /// And all that `host` holds.
    void flush();
    /// From now on all state is of these weights: drops what is in memory and in `host`; in `disk` nothing of others is
    /// found. Names what decides K/V values: content and config of weights, chip, numerics.
    void use_weights(const Digest& name);
    /// The weights in use are known by another name from now on, in `disk`; the tiers above have none.
    void rename_weights(const Digest& name);
    /// Writes everything held here and in the host tier to the disk tier, for the next start.
    void persist();

    /// From now on what is published (but for side requests and Mark::interval) goes to `shared` too, under names that
    /// begin with that of the weights, and others' state may be fetched from there; null: neither.
    void use_shared(SharedStore* shared);
    /// Whether there is one, and it answers.
    bool shares() const { return shared_ != nullptr && shared_->usable(); }
    /// State that a prompt could start from, and that neither memory nor the tiers here hold.
    struct Wanted {
        struct End {
            RecordKey id;
            int64_t length = 0;  // of the prefix
            size_t pages = 0;    // of `pages` that it needs
        };
        int64_t held = 0;              // tokens that attach would restore without them
        std::vector<RecordKey> pages;  // behind those that are held, in order
        std::vector<End> ends;         // checkpoints, ascending
        uint64_t time = 0;             // when it was asked: forget() ends it
    };
    /// lengths: at which there may be checkpoints, ascending. Empty without a shared store that is usable.
    Wanted wanted(const PrefixRequest& request, std::span<const int64_t> lengths) const;
    /// What to look for: the ends. Their pages were written before them; one that has gone since fails the load.
    std::shared_ptr<SharedLookup> lookup_of(const Wanted& wanted) const;
    /// This end is there, and so are most likely its pages: they need not be written again, fetched or not.
    void found(const Wanted& wanted, const Wanted::End& end) const;
    /// Bytes of what `end` needs, and blocks of memory for it; null when it and `beside`, bytes that are on their way,
    /// are more than the host tier may hold.
    int64_t load_bytes(const Wanted& wanted, const Wanted::End& end) const;
    std::shared_ptr<SharedLoad> load_of(const Wanted& wanted, const Wanted::End& end, int64_t beside = 0);
    /// What was loaded to the host tier, where attach finds it.
    void take(const Wanted& wanted, const Wanted::End& end, SharedLoad& load);
    /// Gives the shared store some of what is to be written: up to 16 MiB, at a time when nobody waits. Whether it took
    /// any: there may be more.
    bool share_some();

    const Stats& stats() const { return stats_; }

  private:
    struct Node;
    struct Checkpoint;
    struct Session;
    struct Plan;
    struct Found;
    struct Victim;

    std::string salt_text(const PrefixSalt& salt) const;
    static std::string record_key(char kind, const std::string& salt, std::span<const int32_t> tokens);
    static Node* child_of(const Node& node, std::span<const int32_t> tokens);
    static Checkpoint* checkpoint_of(const Node& node, std::span<const int32_t> tail);

    Plan plan(const PrefixRequest& request, bool tiers) const;
    void consider(Plan& plan, const PrefixRequest& request, size_t depth, bool tiers) const;
    bool in_tiers(const RecordKey& id) const;
    int64_t shared_beyond(const Plan& plan, std::span<const int32_t> tokens, int32_t& other) const;
    PrefixMatch explain(const Plan& plan, const PrefixRequest& request) const;

    enum class Loaded { done, lost, no_room };
    void restore_held(const Plan& plan, SequenceState& sequence);
    Loaded restore_loaded(const Plan& plan, const PrefixRequest& request, SequenceState& sequence);
    std::optional<Found> look_up(const RecordKey& id, std::initializer_list<int64_t> sizes);
    bool load_pages(std::span<const Found> found, std::span<const int32_t> pages);
    bool load_checkpoint(Found& found, std::initializer_list<int64_t> sizes);
    ThreadPool* threads(int64_t bytes);
    void discard(const RecordKey& id);

    bool keep(const PrefixRequest& request, const SequenceState& sequence, int64_t length, HostBytes state, Mark mark);
    Node& grow(const PrefixRequest& request, std::span<const int32_t> pages, int64_t length);
    void share_tails(Node& parent, const Node& child);
    void touch(Node& node, Checkpoint* checkpoint, bool side);
    void set_head(const PrefixRequest& request, Node& node);
    void move_head(Session& session, Node* head);

    bool unused(int32_t page) const;
    void hold(int32_t page);
    void drop(int32_t page);
    int32_t class_of(const Node& node, const Checkpoint* checkpoint) const;
    void add_victims(Node& node, std::vector<Victim>& heap) const;
    bool make_state_room(int64_t bytes, bool side);
    void evict(Node& node, Checkpoint& checkpoint);
    void evict(Node& node);
    void prune(Node* node);
    void forget_head(const Node& node);
    std::vector<Node*> all_nodes() const;
    void erase_tree(std::unique_ptr<Node> root);
    RecordKey key_of(const Node& node, const Checkpoint* checkpoint) const;
    std::optional<Record> record_of(const Node& node, const Checkpoint* checkpoint);
    void spill(const Node& node, const Checkpoint* checkpoint);
    void sink(std::vector<Record> down);
    Digest shared_name(const RecordKey& id) const;
    void share(Node& node, Checkpoint& checkpoint);
    void share_anew();

    // prefix_tell.cpp
    void hear_tiers();
    void tell_held(const Node& node, const Checkpoint* checkpoint);
    void tell_gone(const Node& node, const Checkpoint* checkpoint);
    void tell_record(CacheTier tier, const Digest& group, const std::string& key, bool held);
    void tell_cleared(CacheTier tier);
    void tell_disk();
    void tell_all_if_asked();

    KvCache& cache_;
    PrefixCacheOptions options_;
    HostStore* host_;
    DiskStore* disk_;
    SharedStore* shared_ = nullptr;
    Digest weights_{};                                    // their name
    std::deque<std::pair<Node*, Checkpoint*>> unshared_;  // are to be written to `shared_`; of a page: null
    std::vector<Record> shared_next_;                     // on their way into host memory
    int64_t shared_losses_ = 0;                           // of `shared_`, that are made good
    uint64_t forgotten_ = 0;                              // how often
    size_t page_rows_;
    std::string geometry_;  // SHA-256 of what the bytes of pages and checkpoints mean
    std::shared_ptr<HostHeap> heap_;
    KvTransfer transfer_;
    std::unique_ptr<ThreadPool> threads_;
    std::map<std::string, std::unique_ptr<Node>> roots_;  // by the whole salt
    std::map<uint64_t, Session> sessions_;
    std::vector<std::pair<Node*, Checkpoint*>> checkpoints_;  // all of them
    uint64_t clock_ = 0;
    Stats stats_;
};

}  // namespace riptide
