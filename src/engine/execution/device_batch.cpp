#include "engine/execution/device_batch.h"

#include <algorithm>
#include <span>

#include "base/error.h"

namespace riptide {

namespace {

// Per sequence (row_begin has one entry more), the page table, then six per row. Packed: a step copies what it has.
int64_t words(int64_t rows, int64_t sequences, int64_t pages) {
    return 3 * sequences + 1 + sequences * pages + 6 * rows;
}

}  // namespace

DeviceBatch::DeviceBatch(Gpu& gpu, int64_t rows, int64_t sequences, int64_t pages)
    : gpu_(gpu),
      rows_(rows),
      sequences_(sequences),
      pages_(std::max<int64_t>(1, pages)),
      memory_(&gpu, words(rows, sequences, pages_) * int64_t{sizeof(int32_t)}, "step arrays"),
      staging_(static_cast<size_t>(words(rows, sequences, pages_))) {}

const Batch& DeviceBatch::upload(const Batch& host) {
    RT_CHECK(host.rows() <= rows_ && host.sequences() <= sequences_ && host.max_pages <= pages_,
             "a step of {} rows, {} sequences and {} pages, but there is room for {}, {} and {}", host.rows(),
             host.sequences(), host.max_pages, rows_, sequences_, pages_);
    auto* const base = reinterpret_cast<int32_t*>(memory_.data());
    int64_t next = 0;
    const auto put = [&](std::span<const int32_t> values) {
        std::copy(values.begin(), values.end(), staging_.begin() + next);
        const std::span<const int32_t> on_device(base + next, values.size());
        next += std::ssize(values);
        return on_device;
    };
    batch_.row_begin = put(host.row_begin);
    batch_.committed = put(host.committed);
    batch_.state_slot = put(host.state_slot);
    for (int64_t s = 0; s < host.sequences(); ++s) {
        const auto row =
            host.page_table.subspan(static_cast<size_t>(s * host.max_pages), static_cast<size_t>(host.max_pages));
        const auto at = staging_.begin() + next + s * pages_;
        std::fill(std::copy(row.begin(), row.end(), at), at + pages_, -1);
    }
    batch_.page_table = {base + next, static_cast<size_t>(host.sequences() * pages_)};
    batch_.max_pages = static_cast<int32_t>(pages_);
    batch_.far = host.far;
    next += host.sequences() * pages_;
    batch_.tokens = put(host.tokens);
    batch_.positions = put(host.positions);
    batch_.row_sequence = put(host.row_sequence);
    batch_.parent = put(host.parent);
    batch_.logit_rows = put(host.logit_rows);
    batch_.gaps = put(host.gaps);  // the last: where the others lie does not depend on it
    gpu_.to_device(base, staging_.data(), next * int64_t{sizeof(int32_t)});
    return batch_;
}

}  // namespace riptide
