#include "tensor/arena.h"

#include <algorithm>

namespace riptide {

namespace {
constexpr int64_t kAlignment = 256;
/// Blocks are twice as large as the one before, but no larger than this if nobody asks for so much at once: what lies
/// in a block behind its use is memory that plans have not counted.
constexpr int64_t kMostAhead = int64_t{64} << 20;
}

Arena::Arena(int64_t first_block_bytes, Gpu* gpu) : gpu_(gpu) { blocks_.push_back({{}, first_block_bytes}); }

void* Arena::allocate(int64_t bytes) {
    RT_ASSERT(bytes >= 0);
    bytes = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    while (used_ + bytes > blocks_[current_].bytes) {
        if (current_ + 1 == blocks_.size())
            blocks_.push_back({{}, std::max(bytes, std::min(kMostAhead, 2 * blocks_.back().bytes))});
        ++current_;
        used_ = 0;
    }
    Block& block = blocks_[current_];
    if (block.memory.data() == nullptr) block.memory = DeviceMemory(gpu_, block.bytes, "temporaries");
    void* result = block.memory.data() + used_;
    used_ += bytes;
    int64_t in_use = used_;
    for (size_t i = 0; i < current_; ++i) in_use += blocks_[i].bytes;
    peak_ = std::max(peak_, in_use);
    return result;
}

int64_t Arena::capacity() const {
    int64_t total = 0;
    for (const Block& block : blocks_) total += block.memory.bytes();
    return total;
}

void Arena::restore(Mark mark) {
    current_ = mark.block;
    used_ = mark.used;
}

}  // namespace riptide
