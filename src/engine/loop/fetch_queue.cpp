#include "engine/loop/fetch_queue.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

namespace riptide {

namespace {

constexpr int64_t kLeastTokens = 256;  // that a fetch must be able to spare
constexpr size_t kMostEnds = 64;       // checkpoints that are asked for: the longest
/// An answer's end is kept where its last token was computed; what a template puts behind it, up to the message's end,
/// is so many tokens or fewer.
constexpr int64_t kBehindAnswer = 4;
/// Of the time that reading the prompt takes: what a fetch that comes to nothing may cost, and how long one may take at
/// most when it is begun: it leaves the device to others.
constexpr double kMostLost = 0.05, kMostTime = 1.5;
/// Where nobody knows how long reading takes.
constexpr double kUnknownSeconds = 0.2;
constexpr int64_t kLeastWait = 10'000, kLookAgain = 20'000;

int64_t longest_wait(double read_seconds) {
    return std::max(kLeastWait, static_cast<int64_t>(1e6 * kMostLost * read_seconds));
}

std::vector<int64_t> lengths_of(const Job& job) {
    std::vector<int64_t> lengths = job.cuts;
    for (const int64_t end : job.prompt.message_ends)
        for (int64_t behind = 0; behind <= kBehindAnswer; ++behind) lengths.push_back(end - behind);
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    return lengths;
}

}  // namespace

bool FetchQueue::add(std::unique_ptr<Job>& job, int64_t vocab, int64_t now_us) {
    if (job->prompt_logprobs) return false;  // reads it whole
    Fetch fetch;
    fetch.vocab = vocab;
    fetch.wanted = prefix_.wanted(job->prefix(job->prompt.tokens, vocab), lengths_of(*job));
    std::vector<PrefixCache::Wanted::End>& ends = fetch.wanted.ends;
    if (ends.size() > kMostEnds) ends.erase(ends.begin(), ends.end() - kMostEnds);
    if (ends.empty() || ends.back().length - fetch.wanted.held < kLeastTokens) return false;
    fetch.read_seconds = read_seconds_(ends.back().length - fetch.wanted.held);
    if (fetch.read_seconds == 0) fetch.read_seconds = kUnknownSeconds;
    if (1e6 * store_.lookup_seconds() > static_cast<double>(longest_wait(fetch.read_seconds))) {
        ++stats_.slower;
        return false;
    }
    fetch.lookup = prefix_.lookup_of(fetch.wanted);
    store_.look(fetch.lookup);
    fetch.begun_us = now_us;
    fetch.look_us = now_us + longest_wait(fetch.read_seconds);
    fetch.job = std::move(job);
    const RequestId id = fetch.job->id;
    fetches_.emplace(id, std::move(fetch));
    return true;
}

/// Whether memory and the tiers here still lack the end: since the place was asked another request may have fetched it,
/// or a part of it, which then is not wanted again.
bool FetchQueue::still_wanted(Fetch& fetch) {
    const Job& job = *fetch.job;
    const PrefixRequest request = job.prefix(job.prompt.tokens, fetch.vocab);
    if (prefix_.find(request).cached <= fetch.wanted.held) return true;
    const int64_t length = fetch.end->length;
    fetch.wanted = prefix_.wanted(request, std::span(&length, 1));
    if (fetch.wanted.ends.empty()) return false;
    fetch.end = &fetch.wanted.ends.back();
    return true;
}

/// Whether the store has what is worth fetching.
bool FetchQueue::begin_load(Fetch& fetch) {
    if (fetch.lookup->failed) return false;
    const std::vector<char>& there = fetch.lookup->there;
    const auto last = std::find(there.rbegin(), there.rend(), 1);
    if (last == there.rend()) return false;
    fetch.end = &fetch.wanted.ends[static_cast<size_t>(there.rend() - last) - 1];
    prefix_.found(fetch.wanted, *fetch.end);
    if (!still_wanted(fetch)) return false;
    const int64_t tokens = fetch.end->length - fetch.wanted.held;
    if (tokens < kLeastTokens) return false;
    const double reading = read_seconds_(tokens), rate = store_.read_rate();
    if (reading > 0) fetch.read_seconds = reading;
    const auto bytes = static_cast<double>(prefix_.load_bytes(fetch.wanted, *fetch.end));
    if (reading > 0 && rate > 0 && bytes / rate > kMostTime * reading) {
        ++stats_.slower;
        return false;
    }
    for (const auto& [id, other] : fetches_)
        if (other.load != nullptr && other.end->id.name == fetch.end->id.name && !other.load->cancel) {
            fetch.load = other.load;
            fetch.own = false;
            return true;
        }
    fetch.load = prefix_.load_of(fetch.wanted, *fetch.end, loading_bytes());
    if (fetch.load == nullptr) return false;
    store_.load(fetch.load);
    return true;
}

int64_t FetchQueue::loading_bytes() const {
    int64_t bytes = 0;
    for (const auto& [id, fetch] : fetches_)
        if (fetch.load != nullptr && fetch.own) bytes += prefix_.load_bytes(fetch.wanted, *fetch.end);
    return bytes;
}

void FetchQueue::give_up(Fetch& fetch) {
    if (fetch.load != nullptr && fetch.own) fetch.load->cancel = true;
    store_.give_up();
    ++stats_.late;
}

/// Whether the request waits no longer.
bool FetchQueue::goes_on(Fetch& fetch, int64_t now_us) {
    const double waited = static_cast<double>(now_us - fetch.begun_us) * 1e-6;
    if (fetch.load == nullptr && fetch.lookup->done) {
        if (!begin_load(fetch)) return true;
        fetch.begun_us = now_us;
        fetch.look_us = now_us + longest_wait(fetch.read_seconds);
        return false;
    }
    if (fetch.load != nullptr && fetch.load->done) {
        if (fetch.load->failed) return true;
        if (fetch.own) prefix_.take(fetch.wanted, *fetch.end, *fetch.load);
        ++stats_.fetched;
        stats_.tokens += fetch.end->length - fetch.wanted.held;
        return true;
    }
    if (fetch.job->deadline_us <= now_us) {
        if (fetch.load != nullptr && fetch.own) fetch.load->cancel = true;
        return true;
    }
    if (now_us < fetch.look_us) return false;
    if (fetch.load != nullptr) {
        const auto done = static_cast<double>(fetch.load->bytes),
                   all = static_cast<double>(prefix_.load_bytes(fetch.wanted, *fetch.end));
        if (waited * all <= kMostTime * fetch.read_seconds * done) {
            fetch.look_us = now_us + kLookAgain;
            return false;
        }
    }
    give_up(fetch);
    return true;
}

std::vector<std::unique_ptr<Job>> FetchQueue::take_ready(int64_t now_us) {
    std::vector<std::unique_ptr<Job>> out;
    for (auto entry = fetches_.begin(); entry != fetches_.end();) {
        bool over = true;
        try {
            over = goes_on(entry->second, now_us);
        } catch (const std::exception&) {  // the device: its next step says so
        }
        if (!over) {
            ++entry;
            continue;
        }
        out.push_back(std::move(entry->second.job));
        entry = fetches_.erase(entry);
    }
    store_.reap();
    return out;
}

std::unique_ptr<Job> FetchQueue::remove(RequestId id) {
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) return nullptr;
    if (found->second.load != nullptr && found->second.own) found->second.load->cancel = true;
    std::unique_ptr<Job> job = std::move(found->second.job);
    fetches_.erase(found);
    return job;
}

std::vector<std::unique_ptr<Job>> FetchQueue::remove_all() {
    std::vector<std::unique_ptr<Job>> out;
    while (!fetches_.empty()) out.push_back(remove(fetches_.begin()->first));
    return out;
}

int64_t FetchQueue::look_us() const {
    int64_t soonest = std::numeric_limits<int64_t>::max();
    for (const auto& [id, fetch] : fetches_) soonest = std::min({soonest, fetch.look_us, fetch.job->deadline_us});
    return soonest;
}

}  // namespace riptide
