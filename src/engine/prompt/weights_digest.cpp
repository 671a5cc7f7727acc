#include "engine/prompt/weights_digest.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace riptide {

namespace {

using DigestClock = std::chrono::steady_clock;

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

Digest digest_of_tensors(const Checkpoint& checkpoint) {
    Sha256 all;
    for (const TensorInfo& tensor : checkpoint.tensors()) {
        all.add(bytes_of(fmt::format("{} {} {} {};", tensor.name, dtype_name(tensor.dtype),
                                     fmt::join(tensor.shape, "x"), tensor.bytes.size())));
        all.add(tensor.bytes);
    }
    return all.digest();
}

}  // namespace

WeightsDigest::WeightsDigest(const Checkpoint& checkpoint, std::vector<DigestMemo> memos)
    : checkpoint_(checkpoint), memos_(std::move(memos)) {
    for (const MappedFile& file : checkpoint.files()) {
        const FileStamp& s = file.stamp();
        local_name_ += fmt::format("file {} {} {} {} {};", s.device, s.inode, s.size, s.modified_ns, s.changed_ns);
        known_.push_back(remembered(file));
    }
    if (known_.empty()) {
        digest_ = digest_of_tensors(checkpoint);
        local_name_ = to_hex(*digest_);
        settled_ = true;
    } else if (std::all_of(known_.begin(), known_.end(), [](const auto& one) { return one.has_value(); })) {
        settle();
    } else {
        thread_ = std::thread([this] { run(); });
    }
}

WeightsDigest::~WeightsDigest() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    stop_.notify_one();
    if (thread_.joinable()) thread_.join();
}

/// REQUIRES that all files are known.
void WeightsDigest::settle() {
    Sha256 all;
    for (const std::optional<Digest>& one : known_) all.add(std::as_bytes(std::span(*one)));
    digest_ = all.digest();
    settled_ = true;
}

std::optional<Digest> WeightsDigest::remembered(const MappedFile& file) const {
    std::optional<Digest> found;
    for (const DigestMemo& memo : memos_)
        if (!found) found = memo.find(file.path(), file.stamp());
    return found;
}

/// Gives what went wrong, for the note.
std::string WeightsDigest::remember(const MappedFile& file, const Digest& digest) const {
    std::string problem;
    for (const DigestMemo& memo : memos_) {
        try {
            memo.add(file.path(), file.stamp(), digest);
        } catch (const Error& error) {
            problem += fmt::format("; it is not remembered: {}", error.what());
        }
    }
    return problem;
}

void WeightsDigest::run() {
    ::setpriority(PRIO_PROCESS, 0, 19);  // of this thread alone
    const auto begun = DigestClock::now();
    int64_t bytes = 0;
    std::string forgotten;
    try {
        for (size_t i = 0; i < known_.size(); ++i) {
            if (known_[i]) continue;
            const MappedFile& file = checkpoint_.files()[i];
            known_[i] = read(file, begun, bytes);
            if (!known_[i]) return;
            forgotten = remember(file, *known_[i]);
        }
        note_ = fmt::format("{}: read {:.2f} GB in {:.0f} s for the SHA-256 that the disk cache knows it by{}",
                            checkpoint_.path(), static_cast<double>(bytes) / 1e9,
                            std::chrono::duration<double>(DigestClock::now() - begun).count(), forgotten);
        settle();
    } catch (const std::exception& error) {
        note_ = fmt::format("{}; so there is no SHA-256 of the weights, and the disk cache keeps to this copy of them",
                            error.what());
        settled_ = true;
    }
}

/// Nothing when it is to stop. `bytes`: that were read since `begun`, of all files.
std::optional<Digest> WeightsDigest::read(const MappedFile& file, DigestClock::time_point begun, int64_t& bytes) {
    const int64_t size = file.stamp().size;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(size, kPieceBytes)));
    Sha256 hash;
    for (int64_t at = 0; at < size; at += std::ssize(piece)) {
        piece.resize(static_cast<size_t>(std::min(size - at, kPieceBytes)));
        file.read(at, piece);
        hash.add(piece);
        bytes += std::ssize(piece);
        const std::chrono::duration<double> least(static_cast<double>(bytes) / kBytesPerSecond);
        const auto due = begun + std::chrono::duration_cast<DigestClock::duration>(least);
        std::unique_lock lock(mutex_);
        if (stop_.wait_until(lock, due, [this] { return stopping_; })) return std::nullopt;
    }
    return hash.digest();
}

}  // namespace riptide
