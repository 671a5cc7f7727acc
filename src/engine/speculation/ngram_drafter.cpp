#include "engine/speculation/ngram_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace riptide {

namespace {

/// How probable it is that what followed a place follows again. No more than a start: whoever drafts by it learns how
/// often it is right (engine/speculation/draft_width.h).
double confidence(int64_t agrees) { return 1 - 1 / (1 + 0.5 * static_cast<double>(agrees)); }

}  // namespace

NgramDrafter::NgramDrafter(const NgramOptions& options) : options_(options) {
    RT_ASSERT(options.slots >= 1 && options.shortest >= 1 && options.longest >= options.shortest);
    RT_ASSERT(options.looked_at >= 1 && options.most_tokens >= 2 * options.shortest && options.most_tokens < INT32_MAX);
}

void NgramDrafter::begin(uint64_t sequence, std::span<const int32_t> tokens) {
    Text& text = texts_[sequence];
    const auto known = std::ssize(text.tokens);
    const bool goes_on =
        known <= std::ssize(tokens) && std::equal(text.tokens.begin(), text.tokens.end(), tokens.begin());
    if (!goes_on) text = {};
    append(text, tokens.subspan(text.tokens.size()));
}

void NgramDrafter::extend(uint64_t sequence, std::span<const int32_t> tokens) { append(texts_.at(sequence), tokens); }

/// Of the `shortest` tokens that end before `end`.
uint64_t NgramDrafter::run_hash(const Text& text, int64_t end) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (int64_t i = end - options_.shortest; i < end; ++i) {
        hash = (hash ^ static_cast<uint32_t>(text.tokens[static_cast<size_t>(i)])) * 0xff51afd7ed558ccd;
        hash ^= hash >> 32;
    }
    return hash;
}

void NgramDrafter::append(Text& text, std::span<const int32_t> tokens) const {
    if (std::ssize(text.tokens) + std::ssize(tokens) > options_.most_tokens) {  // keep half, so that this is rare
        const auto half = static_cast<size_t>(options_.most_tokens / 2);
        std::vector<int32_t> kept = std::move(text.tokens);
        kept.insert(kept.end(), tokens.begin(), tokens.end());
        kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(std::min(half, kept.size())));
        text = {};
        return append(text, kept);
    }
    for (const int32_t token : tokens) {
        text.tokens.push_back(token);
        const auto end = std::ssize(text.tokens);
        if (end < options_.shortest) {
            text.before.push_back(-1);
            continue;
        }
        const auto [at, fresh] = text.last.try_emplace(run_hash(text, end), -1);
        text.before.push_back(at->second);
        at->second = static_cast<int32_t>(end);
    }
}

/// Earlier places that the end of the text stands at, the best first.
std::vector<NgramDrafter::Place> NgramDrafter::places(const Text& text) const {
    std::vector<Place> found;
    const auto size = std::ssize(text.tokens);
    if (size == 0) return found;
    int64_t end = text.before.back();
    for (int32_t tries = options_.looked_at; tries > 0 && end > 0; --tries) {
        const int64_t most = std::min<int64_t>(options_.longest, end);
        int64_t agrees = 0;
        while (agrees < most && text.tokens[static_cast<size_t>(end - 1 - agrees)] ==
                                    text.tokens[static_cast<size_t>(size - 1 - agrees)])
            ++agrees;
        if (agrees >= options_.shortest) found.push_back({end, agrees});  // else only their hashes agree
        end = text.before[static_cast<size_t>(end - 1)];
    }
    std::stable_sort(found.begin(), found.end(), [](const Place& a, const Place& b) { return a.agrees > b.agrees; });
    return found;
}

void NgramDrafter::draft(const Text& text, const DraftRequest& request, Draft& draft) const {
    std::vector<Place> agreeing = places(text);
    if (agreeing.empty()) return;
    std::vector<int32_t> chain;
    const auto size = std::ssize(text.tokens);
    const auto token_at = [&](int64_t index) {  // behind the end of the text stands the draft
        return index < size ? text.tokens[static_cast<size_t>(index)] : chain[static_cast<size_t>(index - size)];
    };
    const int64_t slots = std::min(request.slots, options_.slots);
    for (int64_t d = 0; d < slots; ++d) {
        std::vector<DraftToken>& choices = draft.slots.emplace_back();
        double left = 1;  // what no better place has claimed
        for (const Place& place : agreeing) {
            const int32_t token = token_at(place.next + d);
            if (std::ssize(choices) >= request.choices) break;
            if (std::any_of(choices.begin(), choices.end(), [&](const DraftToken& g) { return g.token == token; }))
                continue;
            const double p = left * confidence(std::min<int64_t>(place.agrees + d, options_.longest));
            choices.push_back({token, static_cast<float>(std::log(p))});
            left -= p;
        }
        chain.push_back(choices[0].token);
        std::erase_if(agreeing, [&](const Place& place) { return token_at(place.next + d) != chain.back(); });
    }
}

void NgramDrafter::propose(std::span<const DraftRequest> requests, std::span<Draft> out) {
    RT_ASSERT(requests.size() == out.size());
    for (size_t i = 0; i < requests.size(); ++i) {
        out[i].clear();
        if (requests[i].slots > 0 && requests[i].choices > 0)
            draft(texts_.at(requests[i].sequence), requests[i], out[i]);
    }
}

}  // namespace riptide
