// Constraints of a model's answers: made once for each form that is asked for, and kept for a while.
#pragma once

#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/sampling/mask_search.h"
#include "text/dialects/dialect.h"
#include "text/structured/token_masks.h"

namespace riptide {

/// Thread-safe. Keeps what was asked for last, up to kMostKept and about kMostBytes. Who asks for what another is
/// compiling waits for it. A form that is at fault (GrammarError) is so for all who wait; where its maker is stopped,
/// is late, or has too little work or memory, one of them makes it.
class Constrainer {
  public:
    static constexpr std::size_t kMostKept = 64, kMostBytes = std::size_t{128} << 20;

    /// Of plain text. Throws GrammarError. The tokenizer must be the same in all calls, and outlive this: the first
    /// call has the vocabulary's tree made of it, by a thread of its own. `work` counts what is done, and stops it, the
    /// waits too; null: nobody does.
    std::shared_ptr<Constraint> get(const Tokenizer& tokenizer, const AnswerFormat& format, WorkBudget* work = nullptr);
    /// Of a chat's answer.
    std::shared_ptr<Constraint> get(const Tokenizer& tokenizer, const Dialect& dialect, const AnswerForm& form,
                                    WorkBudget* work = nullptr);

  private:
    using Vocabulary = std::shared_ptr<const TokenTrie>;
    using Made = std::shared_future<std::shared_ptr<Constraint>>;
    using Kept = std::list<std::pair<std::string, std::shared_ptr<Constraint>>>;

    std::shared_ptr<Constraint> find_or_make(const Tokenizer& tokenizer, const std::string& key, WorkBudget* work,
                                             const std::function<Grammar()>& make);
    std::shared_ptr<Constraint> kept(const std::string& key);
    std::shared_ptr<Constraint> make_for_all(const std::string& key, const std::function<Grammar()>& make,
                                             const Vocabulary& tree, std::promise<std::shared_ptr<Constraint>> told);
    Vocabulary vocabulary(const Tokenizer& tokenizer, WorkBudget* work);

    std::mutex mutex_;  // held for lookups only
    std::shared_future<Vocabulary> vocabulary_;
    Kept kept_;                           // the last used first
    std::map<std::string, Made> making_;  // what is being compiled
    std::jthread builder_;                // of the vocabulary's tree; stopped and joined before all else goes
};

/// What may come at one place of an answer of a given form. Cheap to copy.
struct AllowedSet {
    std::shared_ptr<const TokenMask> mask;  // null: any token
    bool can_end = false;                   // whether the stop ids may come too
    std::span<const int32_t> stop_ids;      // the answer's
    std::string error;                      // why it could not be found out; then the mask is null
    ErrorKind error_kind = ErrorKind::data;
    bool unknown = false;  // it would have taken too long; then the mask is null

    bool any_token() const { return mask == nullptr; }
    /// One bit for each token, as Sampler::sample takes them. REQUIRES !any_token(); the size is the vocabulary's.
    void write(std::span<uint64_t> words) const;
    /// Throws the error as GrammarError, if there is one.
    void check() const;
};

/// What may be drawn for one answer that is held to a form. Tokens are taken at once; what may follow them is found out
/// by who asks for it: in place, in place if it does not take long, or by another thread.
class AllowedTokens {
  public:
    /// `stop_ids`, not empty, may come exactly where the form is complete. Throws Error if they are.
    AllowedTokens(const std::shared_ptr<Constraint>& constraint, std::span<const int32_t> stop_ids, int64_t vocab_size);
    ~AllowedTokens();
    AllowedTokens(const AllowedTokens&) = delete;
    AllowedTokens& operator=(const AllowedTokens&) = delete;

    /// One bit for each token, as Sampler::sample takes them; valid until the next call. Throws GrammarError if the
    /// form cannot be followed further.
    std::span<const uint64_t> next();
    /// The same, for whoever keeps masks. Valid as long as this.
    const AllowedSet& place();
    /// Finds out what place() says. False if that takes more than `work`, or another thread is at the form. Throws
    /// WorkStopped only.
    bool try_find(WorkBudget& work);
    /// What finds it out on any thread, once it has run. There is one for each place. REQUIRES that it is not known.
    std::shared_ptr<MaskSearch> search();
    /// Whether it is known, perhaps by the search.
    bool known();
    /// Whether the last place was found by a search that took more than so many steps of WorkBudget.
    bool took_more_than(int64_t steps) const { return search_steps_ > steps; }

    /// For the rows of a step that verifies drafts: tokens[0] is the answer's last token, which it knows; the others
    /// are drafts, each behind the row parents[r], or (`parents` empty) the one before it. Appends what may follow each
    /// row to `out`, valid as long as this. No draw depends on what follows a draft that the form does not allow: there
    /// it is any token. What takes more than is left of `work` is unknown. REQUIRES known(). Throws WorkStopped only;
    /// see AllowedSet::error.
    void rows(std::span<const int32_t> tokens, std::span<const int32_t> parents, WorkBudget& work,
              std::vector<AllowedSet>& out) const;
    /// Goes on behind a token that was allowed.
    void accept(int32_t token);

  private:
    void take(AllowedSet set, int64_t search_steps);
    AllowedSet set_of(const NextTokens& next) const;
    template <class Find>
    AllowedSet found(const Find& find) const;

    ConstraintState state_;
    std::vector<int32_t> behind_;    // accepted, and not yet part of state_
    std::optional<AllowedSet> set_;  // what may come next, if it is known; then behind_ is empty
    std::shared_ptr<MaskSearch> search_;
    int64_t search_steps_ = 0;
    std::vector<int32_t> stop_ids_;
    std::vector<uint64_t> words_;
};

}  // namespace riptide
