// What the files of a model's weights hold, by SHA-256: known from before, or found out while the engine works.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/digest_memo.h"
#include "io/checkpoint.h"

namespace riptide {

/// Finds the digest of a checkpoint's content: of the digests of its files, in order, wherever they lie and whatever
/// they are called; of its tensors, if it has no files. What no memo knows is read once, on a thread of low priority,
/// kPieceBytes at a time and at most kBytesPerSecond, and remembered.
class WeightsDigest {
  public:
    static constexpr int64_t kPieceBytes = int64_t{1} << 20, kBytesPerSecond = int64_t{512} << 20;

    /// The checkpoint must outlive it. Any of the memos may know, all are told. Without files: hashes the tensors
    /// before it returns.
    WeightsDigest(const Checkpoint& checkpoint, std::vector<DigestMemo> memos);
    /// Stops within a piece.
    ~WeightsDigest();
    WeightsDigest(const WeightsDigest&) = delete;
    WeightsDigest& operator=(const WeightsDigest&) = delete;

    /// What tells these files from all others on this machine, without reading them: their stamps.
    const std::string& local_name() const { return local_name_; }
    /// Whether there is no more to come: digest() and note() hold then. From any thread.
    bool settled() const { return settled_; }
    /// Nothing if the files cannot be read, or were changed since they were opened.
    const std::optional<Digest>& digest() const { return digest_; }
    /// What was done for it, or why it failed, in one line; empty if it was known.
    const std::string& note() const { return note_; }

  private:
    void run();
    std::optional<Digest> read(const MappedFile& file, std::chrono::steady_clock::time_point begun, int64_t& bytes);
    void settle();
    std::optional<Digest> remembered(const MappedFile& file) const;
    std::string remember(const MappedFile& file, const Digest& digest) const;

    const Checkpoint& checkpoint_;
    const std::vector<DigestMemo> memos_;
    std::string local_name_, note_;
    std::vector<std::optional<Digest>> known_;  // of each file
    std::optional<Digest> digest_;
    std::atomic<bool> settled_ = false;
    std::mutex mutex_;
    std::condition_variable stop_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace riptide
