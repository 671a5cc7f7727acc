// Memory for the temporaries of one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/gpu.h"
#include "tensor/tensor.h"

namespace riptide {

/// A bump allocator: allocation moves a pointer, nothing is freed singly. Blocks stay where they are when it grows, and
/// a step that repeats the same allocations after reset() gets the same addresses. 256-byte alignment. Memory of the
/// host, or of a GPU. Not thread-safe.
class Arena {
  public:
    explicit Arena(int64_t first_block_bytes = int64_t{1} << 20, Gpu* gpu = nullptr);
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// Memory that nobody else has, also where `bytes` is 0.
    void* allocate(int64_t bytes);
    void reset() { restore({0, 0}); }
    /// Bytes reserved from the system.
    int64_t capacity() const;
    /// The most bytes ever in use at once.
    int64_t peak() const { return peak_; }

    struct Mark {
        size_t block;
        int64_t used;
    };
    Mark mark() const { return {current_, used_}; }
    void restore(Mark mark);

  private:
    struct Block {
        DeviceMemory memory;  // empty until it is needed
        int64_t bytes;
    };
    Gpu* gpu_;
    std::vector<Block> blocks_;
    size_t current_ = 0;
    int64_t used_ = 0;
    int64_t peak_ = 0;
};

/// Gives back at the end of a scope what was allocated inside it.
class ArenaScope {
  public:
    explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
    ~ArenaScope() { arena_.restore(mark_); }
    ArenaScope(const ArenaScope&) = delete;
    ArenaScope& operator=(const ArenaScope&) = delete;

  private:
    Arena& arena_;
    Arena::Mark mark_;
};

}  // namespace riptide
