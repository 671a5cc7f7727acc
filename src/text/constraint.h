// Constrained output: which tokens may come next so that the answer stays within a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "text/grammar.h"
#include "text/token_trie.h"

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

class ConstraintState;

/// A grammar compiled for a vocabulary, with all that has been found out about its masks: compile once, share among
/// answers. All its functions, and those of its states, may be called from any thread.
///
/// Cost. A mask that is known is a lookup. A new one walks the vocabulary's tree as far as the grammar allows: short
/// where few bytes may follow. Where most tokens fit (inside a string), what a token does within the innermost rule is
/// found out once for each place in the grammar (about a millisecond for 100,000 tokens), and only tokens that end the
/// rule are walked again for what surrounds it. docs/results/constraints.md has figures.
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

    /// Throws GrammarError; see Automaton.
    static std::shared_ptr<Constraint> compile(const Grammar& grammar, std::shared_ptr<const TokenTrie> vocabulary,
                                               const Limits& limits);
    static std::shared_ptr<Constraint> compile(const Grammar& grammar, std::shared_ptr<const TokenTrie> vocabulary) {
        return compile(grammar, std::move(vocabulary), Limits());
    }
    ~Constraint();
    Constraint(const Constraint&) = delete;
    Constraint& operator=(const Constraint&) = delete;

    /// Where an answer begins.
    ConstraintState start();
    /// Memory that it holds, about.
    std::size_t bytes() const;

  private:
    friend class ConstraintState;
    struct Impl;
    explicit Constraint(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

/// How far one answer has come. Cheap to copy, e.g. for each node of a draft tree.
class ConstraintState {
  public:
    /// The tokens that may come next: normal ones and the grammar's markup; never another added token. Empty only if
    /// exhausted(). Throws GrammarError if it cannot be found out within the limits of Recognizer.
    std::shared_ptr<const TokenMask> mask();
    /// Goes on behind a token. False, with nothing changed, if it may not come.
    bool accept(int32_t token);
    /// What has been said is complete: the answer may end here.
    bool can_end() const;
    /// Nothing may follow.
    bool exhausted() const;

  private:
    friend class Constraint;
    struct Table;
    ConstraintState(std::shared_ptr<Constraint> constraint, std::shared_ptr<Table> table, int32_t state);
    void follow();

    std::shared_ptr<Constraint> constraint_;
    std::shared_ptr<Table> table_;  // whose number state_ is
    int32_t state_ = 0;
};

}  // namespace riptide
