#include "engine/constrainer.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

namespace {

std::string key_of(const AnswerFormat& format) {
    return fmt::format("{} {} {}", static_cast<int>(format.kind), json::serialize(format.schema), format.text);
}

}  // namespace

std::shared_ptr<Constraint> Constrainer::get(const Tokenizer& tokenizer, const AnswerFormat& format) {
    return find_or_make(tokenizer, "text " + key_of(format), [&] {
        Grammar grammar;
        grammar.set_root(add_format(grammar, format));
        return grammar;
    });
}

std::shared_ptr<Constraint> Constrainer::get(const Tokenizer& tokenizer, const Dialect& dialect,
                                             const AnswerForm& form) {
    const ToolChoice& choice = form.choice;
    const std::string key =
        fmt::format("{} {}{:d} {}{:d} {} {} {} {}", dialect.name, static_cast<int>(form.thinking), form.newline_framing,
                    static_cast<int>(choice.kind), choice.single, choice.name.size(), choice.name,
                    json::serialize(form.tools), key_of(form.format));
    return find_or_make(tokenizer, key, [&] { return dialect.grammar(form); });
}

std::shared_ptr<Constraint> Constrainer::find_or_make(const Tokenizer& tokenizer, const std::string& key,
                                                      const std::function<Grammar()>& make) {
    std::shared_ptr<const TokenTrie> vocabulary;
    {
        const std::lock_guard lock(mutex_);
        if (!vocabulary_) vocabulary_ = std::make_shared<TokenTrie>(tokenizer);
        vocabulary = vocabulary_;
        for (auto it = kept_.begin(); it != kept_.end(); ++it)
            if (it->first == key) {
                kept_.splice(kept_.begin(), kept_, it);
                return it->second;
            }
    }
    std::shared_ptr<Constraint> made = Constraint::compile(make(), vocabulary);  // others need not wait for it
    made->start().mask();                                                        // here, and not on the engine's thread
    const std::lock_guard lock(mutex_);
    kept_.emplace_front(key, made);
    std::size_t bytes = 0, count = 0;
    const auto too_many = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) {
        bytes += entry.second->bytes() + entry.first.size();
        return ++count > 1 && (count > kMostKept || bytes > kMostBytes);
    });
    kept_.erase(too_many, kept_.end());
    return made;
}

AllowedTokens::AllowedTokens(const std::shared_ptr<Constraint>& constraint, std::span<const int32_t> stop_ids,
                             int64_t vocab_size)
    : state_(constraint->start()),
      stop_ids_(stop_ids.begin(), stop_ids.end()),
      words_((static_cast<std::size_t>(vocab_size) + 63) / 64) {
    std::erase_if(stop_ids_, [&](int32_t id) { return id < 0 || id >= vocab_size; });
    RT_CHECK(!stop_ids_.empty(), "an answer of a given form needs a stop id to end with: it excludes ignore_eos");
}

std::span<const uint64_t> AllowedTokens::next() {
    const std::shared_ptr<const TokenMask> mask = state_.mask();
    const std::size_t shared = std::min(words_.size(), mask->words.size());
    std::copy_n(mask->words.begin(), shared, words_.begin());
    std::fill(words_.begin() + static_cast<std::ptrdiff_t>(shared), words_.end(), uint64_t{0});
    const bool can_end = state_.can_end();
    for (const int32_t id : stop_ids_) {
        const uint64_t bit = uint64_t{1} << (id % 64);
        uint64_t& word = words_[static_cast<std::size_t>(id) / 64];
        word = can_end ? word | bit : word & ~bit;
    }
    if (std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; }))
        throw GrammarError("the form that was asked for allows no further token, and is not complete");
    return words_;
}

void AllowedTokens::accept(int32_t token) {
    RT_CHECK(state_.accept(token), ErrorKind::system,
             "token {} does not fit the form that was asked for: this is a bug", token);
}

}  // namespace riptide
