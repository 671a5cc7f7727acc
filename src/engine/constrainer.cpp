#include "engine/constrainer.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

std::string key_of(const AnswerFormat& format) {
    return fmt::format("{} {} {}", static_cast<int>(format.kind), json::serialize(*format.schema), format.text);
}

}  // namespace

std::shared_ptr<Constraint> Constrainer::get(const Tokenizer& tokenizer, const AnswerFormat& format, WorkBudget* work) {
    return find_or_make(tokenizer, "text " + key_of(format), [&] {
        Grammar grammar(work);
        grammar.set_root(add_format(grammar, format));
        return grammar;
    });
}

std::shared_ptr<Constraint> Constrainer::get(const Tokenizer& tokenizer, const Dialect& dialect, const AnswerForm& form,
                                             WorkBudget* work) {
    const ToolChoice& choice = form.choice;
    const std::string key =
        fmt::format("{} {}{:d} {}{:d} {} {} {} {}", dialect.name, static_cast<int>(form.thinking), form.newline_framing,
                    static_cast<int>(choice.kind), choice.single, choice.name.size(), choice.name,
                    json::serialize(form.tools), key_of(form.format));
    return find_or_make(tokenizer, key, [&] { return dialect.grammar(form, work); });
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

void AllowedSet::write(std::span<uint64_t> words) const {
    const std::size_t shared = std::min(words.size(), mask->words.size());
    std::copy_n(mask->words.begin(), shared, words.begin());
    std::fill(words.begin() + static_cast<std::ptrdiff_t>(shared), words.end(), uint64_t{0});
    for (const int32_t id : stop_ids) {
        const uint64_t bit = uint64_t{1} << (id % 64);
        uint64_t& word = words[static_cast<std::size_t>(id) / 64];
        word = can_end ? word | bit : word & ~bit;
    }
}

AllowedSet AllowedTokens::at(ConstraintState& state) const {
    AllowedSet set{state.mask(), state.can_end(), stop_ids_, {}};
    if (set.can_end) return set;
    for (std::size_t w = 0; w < std::min(words_.size(), set.mask->words.size()); ++w) {
        uint64_t word = set.mask->words[w];  // found at once, as a rule: there are few words without any token
        for (const int32_t id : stop_ids_)
            if (static_cast<std::size_t>(id) / 64 == w) word &= ~(uint64_t{1} << (id % 64));
        if (word != 0) return set;
    }
    throw GrammarError("the form that was asked for allows no further token, and is not complete");
}

std::span<const uint64_t> AllowedTokens::next() {
    place().write(words_);
    return words_;
}

void AllowedTokens::rows(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                         std::vector<AllowedSet>& out) const {
    std::vector<std::optional<ConstraintState>> states(tokens.size());  // none: the form does not come here
    for (std::size_t r = 0; r < tokens.size(); ++r) {
        if (r == 0) states[r] = state_;
        else states[r] = states[parents.empty() ? r - 1 : static_cast<std::size_t>(parents[r])];
        AllowedSet set;
        try {
            if (states[r] && r > 0 && !states[r]->accept(tokens[r])) states[r].reset();
            if (states[r]) set = at(*states[r]);
        } catch (const GrammarError& error) {
            states[r].reset();
            set.error = error.what();
        }
        out.push_back(std::move(set));
    }
}

void AllowedTokens::accept(int32_t token) {
    RT_CHECK(state_.accept(token), ErrorKind::system,
             "token {} does not fit the form that was asked for: this is a bug", token);
}

}  // namespace riptide
