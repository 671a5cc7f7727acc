#include "engine/sampling/form_cache.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

std::string key_of(const AnswerFormat& format) {
    return fmt::format("{}{:d} {} {}", static_cast<int>(format.kind), format.lenient, json::serialize(*format.schema),
                       format.text);
}

/// Until somebody else has made it. Throws what `work` (or null) does.
template <class Value>
void wait_for(const std::shared_future<Value>& made, WorkBudget* work) {
    constexpr std::chrono::milliseconds kLook{1};
    while (made.wait_for(kLook) != std::future_status::ready)
        if (work != nullptr) work->look();
}

}  // namespace

std::shared_ptr<Constraint> Constrainer::get(const Tokenizer& tokenizer, const AnswerFormat& format, WorkBudget* work) {
    return find_or_make(tokenizer, "text " + key_of(format), work, [&] {
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
    return find_or_make(tokenizer, key, work, [&] { return dialect.grammar(form, work); });
}

/// Whoever asks waits, as long as somebody waits for him; the tree is made to its end for those who come later.
Constrainer::Vocabulary Constrainer::vocabulary(const Tokenizer& tokenizer, WorkBudget* work) {
    std::shared_future<Vocabulary> made;
    {
        const std::lock_guard lock(mutex_);
        if (!vocabulary_.valid()) {
            std::promise<Vocabulary> promise;
            made = promise.get_future().share();
            builder_ = std::jthread([&tokenizer, promise = std::move(promise)](const std::stop_token& stop) mutable {
                try {
                    WorkBudget steps(WorkBudget::kUnlimited, stop);
                    promise.set_value(std::make_shared<const TokenTrie>(tokenizer, &steps));
                } catch (...) {
                    promise.set_exception(std::current_exception());
                }
            });
            vocabulary_ = made;
        }
        made = vocabulary_;
    }
    wait_for(made, work);
    try {
        return made.get();
    } catch (...) {  // there was no memory for it: the next who asks may have more luck
        const std::lock_guard lock(mutex_);
        vocabulary_ = {};
        throw;
    }
}

std::shared_ptr<Constraint> Constrainer::find_or_make(const Tokenizer& tokenizer, const std::string& key,
                                                      WorkBudget* work, const std::function<Grammar()>& make) {
    const Vocabulary tree = vocabulary(tokenizer, work);
    for (;;) {
        std::promise<std::shared_ptr<Constraint>> told;
        Made others;
        {
            const std::lock_guard lock(mutex_);
            if (auto found = kept(key)) return found;
            const auto [entry, mine] = making_.try_emplace(key);
            if (mine) entry->second = told.get_future().share();
            else others = entry->second;
        }
        if (!others.valid()) return make_for_all(key, make, tree, std::move(told));
        wait_for(others, work);
        try {
            return others.get();
        } catch (const GrammarError&) {
            throw;
        } catch (const std::exception&) {  // its maker's own affair
        }
    }
}

/// Null if it is not kept. REQUIRES the mutex.
std::shared_ptr<Constraint> Constrainer::kept(const std::string& key) {
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.first == key; });
    if (found == kept_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, found);
    return found->second;
}

/// Compiles it without the mutex: only who asks for the same waits.
std::shared_ptr<Constraint> Constrainer::make_for_all(const std::string& key, const std::function<Grammar()>& make,
                                                      const Vocabulary& tree,
                                                      std::promise<std::shared_ptr<Constraint>> told) {
    std::shared_ptr<Constraint> made;
    try {
        made = Constraint::compile(make(), tree);
    } catch (...) {
        {
            const std::lock_guard lock(mutex_);
            making_.erase(key);
        }
        told.set_exception(std::current_exception());
        throw;
    }
    Kept dropped;  // outlives the lock: nobody waits for what goes
    {
        const std::lock_guard lock(mutex_);
        making_.erase(key);
        kept_.emplace_front(key, made);
        std::size_t bytes = 0, count = 0;
        const auto too_many = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) {
            bytes += entry.second->bytes() + entry.first.size();
            return ++count > 1 && (count > kMostKept || bytes > kMostBytes);
        });
        dropped.splice(dropped.end(), kept_, too_many, kept_.end());
    }
    told.set_value(made);
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

AllowedTokens::~AllowedTokens() {
    if (search_) search_->stop();
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

void AllowedSet::check() const {
    if (!error.empty()) throw GrammarError(error, error_kind);
}

/// Throws GrammarError if nothing may come.
AllowedSet AllowedTokens::set_of(const NextTokens& next) const {
    RT_CHECK(next.mask, ErrorKind::system, "a token does not fit the form that was asked for: this is a bug");
    AllowedSet set{.mask = next.mask, .can_end = next.can_end, .stop_ids = stop_ids_};
    if (set.can_end) return set;
    for (std::size_t w = 0; w < std::min(words_.size(), set.mask->words.size()); ++w) {
        uint64_t word = set.mask->words[w];  // found at once, as a rule: there are few words without any token
        for (const int32_t id : stop_ids_)
            if (static_cast<std::size_t>(id) / 64 == w) word &= ~(uint64_t{1} << (id % 64));
        if (word != 0) return set;
    }
    throw GrammarError("the form that was asked for allows no further token, and is not complete");
}

/// The set of what find() returns, with its error if it throws one. Throws what a WorkBudget does.
template <class Find>
AllowedSet AllowedTokens::found(const Find& find) const {
    AllowedSet failed;
    try {
        return set_of(find());
    } catch (const TooMuchWork&) {
        throw;
    } catch (const WorkStopped&) {
        throw;
    } catch (const Error& error) {
        failed.error = error.what();
        failed.error_kind = error.kind();
    } catch (const std::exception& error) {
        failed.error = error.what();
        failed.error_kind = ErrorKind::system;
    }
    return failed;
}

const AllowedSet& AllowedTokens::place() {
    if (!known()) {
        WorkBudget work(WorkBudget::kUnlimited);
        take(found([&] { return state_.next(behind_, &work); }), 0);
    }
    set_->check();
    return *set_;
}

std::span<const uint64_t> AllowedTokens::next() {
    place().write(words_);
    return words_;
}

bool AllowedTokens::try_find(WorkBudget& work) {
    if (known()) return true;
    if (search_) return false;
    try {
        take(found([&] { return state_.try_next(behind_, &work); }), 0);
    } catch (const TooMuchWork&) {
        return false;
    }
    return true;
}

std::shared_ptr<MaskSearch> AllowedTokens::search() {
    RT_ASSERT(!set_);
    if (!search_) search_ = std::make_shared<MaskSearch>(state_, behind_);
    return search_;
}

bool AllowedTokens::known() {
    if (!set_ && search_ && search_->done()) {
        state_ = search_->state();
        take(found([&] { return search_->next(); }), search_->steps());
        search_.reset();
    }
    return set_.has_value();
}

/// state_ has come behind all tokens, and `set` may come there.
void AllowedTokens::take(AllowedSet set, int64_t search_steps) {
    set_ = std::move(set);
    behind_.clear();
    search_steps_ = search_steps;
}

void AllowedTokens::rows(std::span<const int32_t> tokens, std::span<const int32_t> parents, WorkBudget& work,
                         std::vector<AllowedSet>& out) const {
    RT_ASSERT(set_);
    std::vector<std::optional<ConstraintState>> states(tokens.size());  // none: no draw depends on what follows
    states[0] = state_;
    out.push_back(*set_);
    for (std::size_t r = 1; r < tokens.size(); ++r) {
        AllowedSet& set = out.emplace_back();
        states[r] = states[parents.empty() ? r - 1 : static_cast<std::size_t>(parents[r])];
        if (!states[r]) continue;
        std::optional<NextTokens> next;
        try {
            set = found([&] {
                next = states[r]->try_next(tokens.subspan(r, 1), &work);
                return *next;
            });
        } catch (const TooMuchWork&) {
            set.unknown = true;
        }
        if (next && next->mask && set.error.empty()) continue;
        states[r].reset();
        if (next && !next->mask) set = {};  // the form does not allow the draft
    }
}

void AllowedTokens::accept(int32_t token) {
    if (search_) search_->stop();
    search_.reset();
    set_.reset();
    behind_.push_back(token);
}

}  // namespace riptide
