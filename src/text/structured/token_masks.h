// Constrained output: which tokens may come next so that the answer stays within a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer/token_trie.h"

namespace riptide {

/// A set of tokens.
struct TokenMask {
    std::vector<uint64_t> words;  // bit i % 64 of word i / 64: token i may come
    bool any = false;

    explicit TokenMask(int32_t vocab_size) : words((static_cast<std::size_t>(vocab_size) + 63) / 64) {}
    bool has(int32_t token) const {
        const auto word = static_cast<std::size_t>(token) / 64;
        return token >= 0 && word < words.size() && (words[word] >> (token % 64) & 1);
    }
    void set(int32_t token) {
        words[static_cast<std::size_t>(token) / 64] |= uint64_t{1} << (token % 64);
        any = true;
    }
};

/// What may come at one place of an answer.
struct NextTokens {
    std::shared_ptr<const TokenMask> mask;  // null: a token on the way here does not fit
    bool can_end = false;                   // what has been said is complete
};

class ConstraintState;
struct DistinctItems;

/// A grammar compiled for a vocabulary, with all that has been found out about its masks: compile once, share among
/// answers. All its functions, and those of its states, may be called from any thread.
///
/// Cost. A mask that is known is a lookup. A new one walks the vocabulary's tree as far as the grammar allows: short
/// where few bytes may follow. Where most tokens fit (inside a string), what a token does within the innermost rule is
/// found out once for each place in the grammar (about a millisecond for 100,000 tokens), and only tokens that end the
/// rule are walked again for what surrounds it. docs/structured-output.md has figures.
/// Memory is bounded: beyond Limits::bytes what was found out is forgotten and found out again.
class Constraint : public std::enable_shared_from_this<Constraint> {
  public:
    /// `bytes`: beyond them what was found out is forgotten. `short_walk`: nodes of the vocabulary's tree up to which a
    /// mask is found by walking it, without what is known of places in the grammar. `work`: steps that the mask or the
    /// next state may take, along transitions known or new.
    struct Limits {
        std::size_t bytes = std::size_t{32} << 20;
        int64_t short_walk = 4000;
        int64_t work = 20'000'000;
    };

    /// With what may come first. Throws GrammarError, see Automaton and ConstraintState::mask; and what the grammar's
    /// WorkBudget does.
    static std::shared_ptr<Constraint> compile(const Grammar& grammar, std::shared_ptr<const TokenTrie> vocabulary,
                                               const Limits& limits);
    static std::shared_ptr<Constraint> compile(const Grammar& grammar, std::shared_ptr<const TokenTrie> vocabulary) {
        return compile(grammar, std::move(vocabulary), Limits());
    }
    ~Constraint();
    Constraint(const Constraint&) = delete;
    Constraint& operator=(const Constraint&) = delete;

    /// Where an answer begins. Never waits for another thread; what may come there is known.
    ConstraintState start();
    /// Memory that it holds, about. Never waits.
    std::size_t bytes() const;

  private:
    friend class ConstraintState;
    struct Impl;
    explicit Constraint(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

/// How far one answer has come. Cheap to copy, e.g. for each node of a draft tree. `work` (or null) counts what is
/// done, and may end it: what has been found out by then is kept, and the state is what it was. While one thread finds
/// something out, others that ask for the same constraint wait for it.
class ConstraintState {
  public:
    /// The tokens that may come next: normal ones and the grammar's markup; never another added token. Empty only if
    /// exhausted(). Throws GrammarError if it cannot be found out within the limits of Recognizer.
    std::shared_ptr<const TokenMask> mask() { return next({}, nullptr).mask; }
    /// Goes on behind a token. False, with nothing changed, if it may not come.
    bool accept(int32_t token);
    /// Both: goes on behind `tokens`, unless one of them may not come, and says what may come there.
    NextTokens next(std::span<const int32_t> tokens, WorkBudget* work);
    /// The same for who must not wait: throws TooMuchWork also if another thread is at it.
    NextTokens try_next(std::span<const int32_t> tokens, WorkBudget* work);
    /// What has been said is complete: the answer may end here.
    bool can_end() const;
    /// Nothing may follow.
    bool exhausted() const;

  private:
    friend class Constraint;
    struct Table;
    explicit ConstraintState(std::shared_ptr<Constraint> constraint) : constraint_(std::move(constraint)) {}
    NextTokens go(std::span<const int32_t> tokens, WorkBudget* work);
    void follow(WorkBudget* work);

    std::shared_ptr<Constraint> constraint_;
    std::shared_ptr<Table> table_;  // whose number state_ is; null: where answers begin
    int32_t state_ = 0;
    std::shared_ptr<const DistinctItems> items_;  // of the array that the answer is in, if they differ; else null
};

}  // namespace riptide
