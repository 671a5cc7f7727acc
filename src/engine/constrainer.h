// Constraints of a model's answers: made once for each form that is asked for, and kept for a while.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "text/constraint.h"
#include "text/dialect.h"

namespace riptide {

/// Thread-safe. Keeps what was asked for last, up to kMostKept and about kMostBytes.
class Constrainer {
  public:
    static constexpr std::size_t kMostKept = 64, kMostBytes = std::size_t{128} << 20;

    /// Of plain text. Throws GrammarError. The tokenizer must be the same in all calls.
    std::shared_ptr<Constraint> get(const Tokenizer& tokenizer, const AnswerFormat& format);
    /// Of a chat's answer.
    std::shared_ptr<Constraint> get(const Tokenizer& tokenizer, const Dialect& dialect, const AnswerForm& form);

  private:
    std::shared_ptr<Constraint> find_or_make(const Tokenizer& tokenizer, const std::string& key,
                                             const std::function<Grammar()>& make);

    std::mutex mutex_;
    std::shared_ptr<const TokenTrie> vocabulary_;  // from the first call on: a fraction of a second for large ones
    std::list<std::pair<std::string, std::shared_ptr<Constraint>>> kept_;  // the last used first
};

/// What may be drawn for one answer that is held to a form.
class AllowedTokens {
  public:
    /// `stop_ids`, not empty, may come exactly where the form is complete. Throws Error if they are.
    AllowedTokens(const std::shared_ptr<Constraint>& constraint, std::span<const int32_t> stop_ids, int64_t vocab_size);

    /// One bit for each token, as Sampler::sample takes them; valid until the next call. Throws GrammarError if the
    /// form cannot be followed further.
    std::span<const uint64_t> next();
    /// Goes on behind a token that was allowed.
    void accept(int32_t token);

  private:
    ConstraintState state_;
    std::vector<int32_t> stop_ids_;
    std::vector<uint64_t> words_;
};

}  // namespace riptide
