#include "text/structured/distinct_items.h"

#include <algorithm>
#include <map>

#include "base/json.h"

namespace riptide {

namespace {

bool is_json_space(uint8_t byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

bool has_brackets(std::string_view text) { return text[0] == '[' || text[0] == '{'; }

/// The same for equal values.
std::string key_of(std::string_view text) { return json::serialize(sorted_members(parse_json(text, "an item"))); }

void insert_sorted(std::vector<std::string>& list, std::string text) {
    list.insert(std::upper_bound(list.begin(), list.end(), text), std::move(text));
}

}  // namespace

DistinctReader::Place DistinctReader::begin(std::shared_ptr<const DistinctItems> from) {
    from_ = std::move(from);
    bytes_ = from_ ? from_->text : "";
    if (!from_) return {};
    return {.at = from_->at,
            .quoted = from_->quoted,
            .escaped = from_->escaped,
            .depth = from_->depth,
            .origin = from_->origin,
            .length = static_cast<uint32_t>(bytes_.size())};
}

/// By the time that the walk began.
const DistinctItems::Said& DistinctReader::said_before() const {
    static const DistinctItems::Said nothing;
    return from_ && from_->said ? *from_->said : nothing;
}

DistinctReader::State DistinctReader::advance(Place& place, State state, uint8_t byte) {
    const uint16_t symbol = automaton_.class_of(byte);
    const State next = recognizer_.advance(state, symbol);
    if (next == Recognizer::kDead) return next;
    bytes_.resize(place.length);
    bytes_.push_back(static_cast<char>(byte));
    ++place.length;
    const uint32_t ended = place.items;
    follow(place, state, byte);
    const bool whole = place.items != ended || (place.at == At::inside && !place.quoted && place.depth == 0);
    return whole && is_said(place) ? recognizer_.advance_within(state, symbol, place.origin) : next;
}

/// The place behind a byte.
void DistinctReader::follow(Place& place, State state, uint8_t byte) {
    if (place.at == At::inside && recognizer_.at_item(state) && !recognizer_.in_item(state, place.origin))
        place.at = At::outside;  // what differs here are the items of an array within this one
    if (place.at == At::inside && place.quoted) {
        if (place.escaped) place.escaped = false;
        else if (byte == '\\') place.escaped = true;
        else if (byte == '"') place.quoted = false;
        if (!place.quoted && place.depth == 0) end_item(place, place.length);
        return;
    }
    if (place.at == At::inside && place.depth == 0 && (byte == ',' || byte == ']' || is_json_space(byte)))
        end_item(place, place.length - 1);  // a number or a word
    if (place.at == At::inside) {
        if (byte == '"') place.quoted = true;
        else if (byte == '[' || byte == '{') ++place.depth;
        else if ((byte == ']' || byte == '}') && --place.depth == 0) end_item(place, place.length);
        return;
    }
    if (byte == ',' || is_json_space(byte)) return;
    if (byte != ']' && recognizer_.at_item(state) && recognizer_.begins_item(state, automaton_.class_of(byte)))
        return begin_item(place, state, byte);
    place.at = At::outside;
}

void DistinctReader::begin_item(Place& place, State state, uint8_t byte) {
    if (place.at == At::outside) {
        place.same_array = false;
        place.first_item = place.items;
    }
    place.at = At::inside;
    place.origin = state;
    place.start = place.length - 1;
    place.quoted = byte == '"';
    place.depth = byte == '[' || byte == '{';
}

void DistinctReader::end_item(Place& place, uint32_t end) {
    items_.resize(place.items);
    items_.emplace_back(place.start, end);
    ++place.items;
    place.at = At::between;
}

/// Whether the item has been said before that has ended, or whose text so far may be all of it.
bool DistinctReader::is_said(const Place& place) const {
    const bool over = place.at != At::inside;
    const uint32_t others = over ? place.items - 1 : place.items;
    const std::string_view text = over ? item(others) : text_of(place);
    const bool brackets = has_brackets(text);
    const std::string key = brackets ? key_of(text) : "";
    if (place.same_array) {
        const std::vector<std::string>& known = brackets ? said_before().keys : said_before().texts;
        if (std::binary_search(known.begin(), known.end(), brackets ? std::string_view(key) : text)) return true;
    }
    for (uint32_t i = place.first_item; i < others; ++i)
        if (item(i) == text || (brackets && has_brackets(item(i)) && key_of(item(i)) == key)) return true;
    return false;
}

/// Whether an item that has been said begins with what has been said of this one.
bool DistinctReader::begins_said(const Place& place) const {
    const std::string_view text = text_of(place);
    if (place.same_array) {
        const std::vector<std::string>& texts = said_before().texts;
        const auto found = std::lower_bound(texts.begin(), texts.end(), text);
        if (found != texts.end() && found->starts_with(text)) return true;
    }
    for (uint32_t i = place.first_item; i < place.items; ++i)
        if (item(i).starts_with(text)) return true;
    return false;
}

bool DistinctReader::goes_on(const Place& place, State state) {
    struct Open {
        Place place;
        State state;
        int next = 0;  // byte to try
    };
    // What is no beginning of an item that has been said can end, as the grammar's states do. Else depth first, along
    // the items that have been said.
    const auto free = [&](const Place& at) {
        return at.at == At::outside || (at.at == At::inside && !begins_said(at));
    };
    if (free(place)) return true;
    if (place.at == At::between &&
        recognizer_.advance(state, automaton_.class_of(']')) != Recognizer::kDead)  // and so may the array
        return true;
    std::vector<Open> open = {{place, state}};
    while (!open.empty()) {
        Open& top = open.back();
        if (top.next == 256) {
            open.pop_back();
            continue;
        }
        const auto byte = static_cast<uint8_t>(top.next++);
        if (!top.place.quoted && is_json_space(byte)) continue;  // never needed
        recognizer_.count_work(1);
        Place to = top.place;
        const State next = advance(to, top.state, byte);
        if (next == Recognizer::kDead) continue;
        // An item has ended that may, or has left those that have been said.
        if (free(to) || (top.place.at == At::inside && to.at == At::between)) return true;
        open.push_back({to, next});
    }
    return false;
}

bool DistinctReader::may_matter(const Place& place, State state, TokenTrie::Kinds kinds) const {
    const auto has = [&](char c) { return (kinds & TokenTrie::kind_of(static_cast<uint8_t>(c))) != 0; };
    if (place.at == At::outside) return has(',') && (has('[') || recognizer_.at_item(state));
    return place.at == At::between || !place.quoted || has('"') || begins_said(place);
}

std::shared_ptr<const DistinctItems> DistinctReader::at(const Place& place) const {
    if (place.at == At::outside) return nullptr;
    auto out = std::make_shared<DistinctItems>();
    out->at = place.at;
    out->quoted = place.quoted;
    out->escaped = place.escaped;
    out->depth = place.depth;
    out->origin = place.origin;
    if (place.at == At::inside) out->text = text_of(place);
    if (place.same_array) out->said = from_->said;
    if (place.first_item == place.items) return out;
    auto said = std::make_shared<DistinctItems::Said>(out->said ? *out->said : DistinctItems::Said{});
    for (uint32_t i = place.first_item; i < place.items; ++i) {
        std::string text(item(i));
        if (has_brackets(text)) insert_sorted(said->keys, key_of(text));
        insert_sorted(said->texts, std::move(text));
    }
    out->said = std::move(said);
    return out;
}

void check_distinct(const Grammar& grammar, const Automaton& automaton, Recognizer& recognizer) {
    using State = Recognizer::State;
    constexpr int32_t kLongest = 4096;  // bytes; and steps: what has more texts than they show has enough
    constexpr int64_t kMostSteps = 200'000;
    std::vector<int64_t> bytes(static_cast<std::size_t>(automaton.byte_classes()));  // of each class
    for (int byte = 0; byte < 256; ++byte) ++bytes[automaton.class_of(static_cast<uint8_t>(byte))];
    for (const auto& [rule, least] : grammar.distinct_rules()) {
        if (least < 2 || automaton.start_of(rule) < 0) continue;
        int64_t ended = 0, steps = 0;
        const int32_t start = automaton.start_of(rule);
        std::map<State, int64_t> now = {{recognizer.local({&start, 1}), 1}};  // states, and how many texts lead there
        for (int32_t length = 0; length < kLongest && !now.empty() && ended < least && steps < kMostSteps; ++length) {
            std::map<State, int64_t> next;
            for (const auto& [state, texts] : now)
                for (uint16_t c = 0; c < bytes.size(); ++c) {
                    const State to = recognizer.advance(state, c);
                    ++steps;
                    if (to == Recognizer::kDead) continue;
                    const int64_t more = std::min(least, texts * bytes[c]);
                    if (!recognizer.escapes(to).empty()) ended += more;
                    if (!recognizer.exhausted(to)) next[to] = std::min(least, next[to] + more);
                }
            now = std::move(next);
        }
        if (ended < least && now.empty())
            throw GrammarError(fmt::format("an array needs {} items that differ, and there are {}", least, ended));
    }
}

}  // namespace riptide
