// Items of a JSON array that must all differ ("uniqueItems"): what has been said, which no grammar remembers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/structured/earley.h"
#include "text/tokenizer/token_trie.h"

namespace riptide {

/// What an answer has said of the array that it is in, between two tokens. Items are written in one way each, without
/// spaces, so that equal texts are equal values; of what holds objects also the order of members may differ.
/// Where the grammar has another way to read the array, items may be the same in that one.
struct DistinctItems {
    enum class At : uint8_t { outside, between, inside };
    struct Said {
        std::vector<std::string> texts;  // sorted
        std::vector<std::string> keys;   // of those with brackets: with members in order; sorted
    };
    At at = At::outside;
    bool quoted = false, escaped = false;  // inside: in a string; behind a backslash there
    int32_t depth = 0;                     // inside: brackets that are open within the item
    Recognizer::State origin = 0;          // inside: the state in which the item began
    std::string text;                      // inside: of the item so far
    std::shared_ptr<const Said> said;      // null: nothing
};

/// Follows answers byte by byte from what a DistinctItems says, to and fro as a walk through a vocabulary does. Not
/// thread-safe.
class DistinctReader {
  public:
    using State = Recognizer::State;
    using At = DistinctItems::At;
    /// Where it is. Copies are places to go back to.
    struct Place {
        At at = At::outside;
        bool quoted = false, escaped = false;
        bool same_array = true;  // as where the walk began
        int32_t depth = 0;
        State origin = 0;                    // where the item began
        uint32_t length = 0, start = 0;      // of the bytes so far; where the item began
        uint32_t first_item = 0, items = 0;  // of this array that have ended on the way: [first_item, items)
    };

    /// Both must outlive this.
    DistinctReader(const Automaton& automaton, Recognizer& recognizer)
        : automaton_(automaton), recognizer_(recognizer) {}

    /// Null: outside.
    Place begin(std::shared_ptr<const DistinctItems> from);
    /// The state behind a byte, where no item that has been said can end once more; kDead if it cannot come.
    State advance(Place& place, State state, uint8_t byte);
    /// Whether an answer at this place can be completed. REQUIRES: the grammar can be in `state`. Cost: a few hundred
    /// transitions, unless nearly all that may be said has been.
    bool goes_on(const Place& place, State state);
    /// Whether texts of these kinds behind this place could be refused though the grammar takes them.
    bool may_matter(const Place& place, State state, TokenTrie::Kinds kinds) const;
    /// What it has read on the way to this place; null: it is outside.
    std::shared_ptr<const DistinctItems> at(const Place& place) const;

  private:
    std::string_view text_of(const Place& place) const {
        return std::string_view(bytes_).substr(place.start, place.length - place.start);
    }
    /// Item number i that has ended on the way.
    std::string_view item(uint32_t i) const {
        return std::string_view(bytes_).substr(items_[i].first, items_[i].second - items_[i].first);
    }
    void follow(Place& place, State state, uint8_t byte);
    void begin_item(Place& place, State state, uint8_t byte);
    void end_item(Place& place, uint32_t end);
    bool is_said(const Place& place) const;
    bool begins_said(const Place& place) const;

    const DistinctItems::Said& said_before() const;

    const Automaton& automaton_;
    Recognizer& recognizer_;
    std::shared_ptr<const DistinctItems> from_;
    std::string bytes_;
    std::vector<std::pair<uint32_t, uint32_t>> items_;  // in bytes_
};

/// Throws GrammarError if an array needs more items than there are texts for them.
void check_distinct(const Grammar& grammar, const Automaton& automaton, Recognizer& recognizer);

}  // namespace riptide
