// The device side of WeightStore: host threads fill pinned buffers, one stream carries them over, another repacks.
//
// Bytes: a Q4_K_M checkpoint of 19 GB once over PCIe (Gen5: 50 GB/s and more), once written and once read again on the
// device. The host's copy out of the page cache is the slowest stage: it is spread over up to 16 threads and overlaps
// the rest. The repack kernel reads bytes one by one; that is far below the speed of the bus.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/repack.h"
#include "quant/weight_upload.h"
#include "tensor/cuda_check.cuh"

namespace riptide {

namespace {

constexpr int kSlots = 3;
constexpr int64_t kFirstBuffer = int64_t{1} << 20;  // small models do not pay for large buffers
constexpr int64_t kBuffer = int64_t{32} << 20;
constexpr int64_t kHostPiece = int64_t{1} << 20;  // what one host thread copies at a time
constexpr int64_t kAlignment = 256;
constexpr int kThreads = 256;

__global__ void repack_kernel(RepackTask task, uint32_t items_per_row, uint32_t items) {
    const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    if (i < items) repack_item(task, i / items_per_row, i % items_per_row);
}

/// A buffer on both sides, and when the device has done with it.
struct Slot {
    PinnedMemory pinned;
    std::byte* raw = nullptr;
    int64_t bytes = 0;
    cudaEvent_t copied = nullptr;
    cudaEvent_t done = nullptr;
};

struct HostPiece {
    int64_t offset;
    std::function<void(std::byte*)> fill;
};

/// Work on the device when the buffer has arrived: a repack, or a copy of `bytes` to `to`.
struct DevicePiece {
    int64_t offset;
    RepackTask task;
    void* to;
    int64_t bytes;
};

}  // namespace

struct WeightUpload::Impl {
    Gpu& gpu;
    std::function<void(int64_t)> on_progress;
    ThreadPool threads{std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16)};
    cudaStream_t copies = nullptr;
    cudaStream_t kernels = nullptr;
    Slot slots[kSlots];
    int64_t flushes = 0;
    int64_t used = 0;  // of the current slot
    int64_t taken = 0;
    std::vector<HostPiece> host;
    std::vector<DevicePiece> device;

    explicit Impl(Gpu& gpu_) : gpu(gpu_) {}
    ~Impl() {
        if (copies != nullptr) cudaStreamSynchronize(copies);
        if (kernels != nullptr) cudaStreamSynchronize(kernels);
        for (Slot& slot : slots) {
            gpu.free(slot.raw, slot.bytes);
            if (slot.copied != nullptr) cudaEventDestroy(slot.copied);
            if (slot.done != nullptr) cudaEventDestroy(slot.done);
        }
        if (copies != nullptr) cudaStreamDestroy(copies);
        if (kernels != nullptr) cudaStreamDestroy(kernels);
    }

    void open() {
        RT_CUDA(cudaSetDevice(gpu.info().ordinal));
        RT_CUDA(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
        RT_CUDA(cudaStreamCreateWithFlags(&kernels, cudaStreamNonBlocking));
        for (Slot& slot : slots) {
            RT_CUDA(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming));
            RT_CUDA(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
        }
    }

    Slot& current() { return slots[flushes % kSlots]; }

    /// An empty slot that takes at least `bytes`.
    void make_room(int64_t bytes) {
        Slot& slot = current();
        const int64_t wanted = std::max(bytes, flushes == 0 ? kFirstBuffer : kBuffer);
        if (slot.bytes >= wanted) return;
        gpu.free(std::exchange(slot.raw, nullptr), std::exchange(slot.bytes, 0));
        slot.pinned = PinnedMemory();
        slot.pinned = PinnedMemory(gpu, wanted);
        slot.raw = static_cast<std::byte*>(gpu.allocate(wanted, "weights on their way"));
        slot.bytes = wanted;
    }

    /// Room in the current slot for 1 to `most` units of `unit` bytes: where, and how many.
    std::pair<int64_t, int64_t> take(int64_t unit, int64_t most) {
        if (used + unit > current().bytes) {
            flush();
            make_room(unit);
        }
        const int64_t offset = used, count = std::min(most, (current().bytes - used) / unit);
        used = std::min(current().bytes, (used + count * unit + kAlignment - 1) / kAlignment * kAlignment);
        return {offset, count};
    }

    /// fill(begin, count, to) for units [begin, begin + count), in pieces for the host's threads. `unit` bytes here are
    /// file_unit in the file.
    template <class Fill>
    void add_host(int64_t offset, int64_t unit, int64_t file_unit, int64_t begin, int64_t count, const Fill& fill) {
        const int64_t step = std::max<int64_t>(1, kHostPiece / unit);
        for (int64_t i = 0; i < count; i += step) {
            const int64_t n = std::min(step, count - i);
            host.push_back({offset + i * unit, [=](std::byte* to) { fill(begin + i, n, to); }});
        }
        taken += count * file_unit;
    }

    void flush() {
        if (used == 0) return;
        Slot& slot = current();
        threads.parallel_for(static_cast<int64_t>(host.size()), 1, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; ++i) {
                const HostPiece& piece = host[static_cast<size_t>(i)];
                piece.fill(slot.pinned.data() + piece.offset);
            }
        });
        RT_CUDA(
            cudaMemcpyAsync(slot.raw, slot.pinned.data(), static_cast<size_t>(used), cudaMemcpyHostToDevice, copies));
        RT_CUDA(cudaEventRecord(slot.copied, copies));
        RT_CUDA(cudaStreamWaitEvent(kernels, slot.copied, 0));
        for (DevicePiece& piece : device) start(slot, piece);
        RT_CUDA(cudaEventRecord(slot.done, kernels));
        host.clear();
        device.clear();
        used = 0;
        ++flushes;
        if (on_progress) on_progress(taken);
        RT_CUDA(cudaEventSynchronize(current().done));  // at once, unless the slot is still on its way
    }

    void start(const Slot& slot, DevicePiece& piece) {
        const std::byte* from = slot.raw + piece.offset;
        if (piece.to != nullptr) {
            RT_CUDA(
                cudaMemcpyAsync(piece.to, from, static_cast<size_t>(piece.bytes), cudaMemcpyDeviceToDevice, kernels));
            return;
        }
        piece.task.from = reinterpret_cast<const uint8_t*>(from);
        const int64_t per_row = repack_items(piece.task.to), items = per_row * piece.task.rows;
        RT_ASSERT(items > 0 && items < int64_t{1} << 31);
        const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
        repack_kernel<<<blocks, kThreads, 0, kernels>>>(piece.task, static_cast<uint32_t>(per_row),
                                                        static_cast<uint32_t>(items));
        RT_CUDA(cudaGetLastError());
    }
};

WeightUpload::WeightUpload(Gpu& gpu, std::function<void(int64_t)> on_progress) : impl_(std::make_unique<Impl>(gpu)) {
    impl_->on_progress = std::move(on_progress);
    impl_->open();
}

WeightUpload::~WeightUpload() = default;

void WeightUpload::matrix(const Weight& host, const Placement& plan, const Weight& to) {
    struct Source {
        Weight host;
        Placement plan;
    };
    const auto source = std::make_shared<const Source>(Source{host, plan});
    const int64_t row = plan.staged_row_bytes;
    for (int64_t begin = 0; begin < host.rows;) {
        const auto [offset, count] = impl_->take(row, host.rows - begin);
        impl_->add_host(offset, row, host.row_bytes, begin, count, [source](int64_t first, int64_t n, std::byte* out) {
            stage_rows(source->host, source->plan, first, n, out);
        });
        DevicePiece piece{.offset = offset,
                          .task = {.from = nullptr,
                                   .from_row_bytes = row,
                                   .source = plan.staged,
                                   .to = to,
                                   .row_begin = begin,
                                   .rows = count},
                          .to = nullptr,
                          .bytes = count * row};
        if (plan.staged == to.dtype && row == to.row_bytes) piece.to = repack::at(to.data, begin * row);
        impl_->device.push_back(piece);
        begin += count;
    }
    const int64_t unit = plan.plane ? dtype_info(plan.w.scale_dtype).block_bytes : 1;
    const int64_t entries = plan.plane ? plan.scale_bytes / unit : 0;
    for (int64_t begin = 0; begin < entries;) {
        const auto [offset, count] = impl_->take(unit, entries - begin);
        const int64_t in_file = host.scales == nullptr ? 0 : dtype_info(host.scale_dtype).block_bytes;
        impl_->add_host(offset, unit, in_file, begin, count, [source](int64_t first, int64_t n, std::byte* out) {
            stage_scales(source->host, source->plan, first, n, out);
        });
        impl_->device.push_back(
            {.offset = offset, .task = {}, .to = repack::at(to.scales, begin * unit), .bytes = count * unit});
        begin += count;
    }
}

void WeightUpload::bytes(const void* host, int64_t count, void* to) {
    const auto* from = static_cast<const std::byte*>(host);
    for (int64_t begin = 0; begin < count;) {
        const auto [offset, n] = impl_->take(1, count - begin);
        impl_->add_host(offset, 1, 1, begin, n, [from](int64_t first, int64_t m, std::byte* out) {
            std::memcpy(out, from + first, static_cast<size_t>(m));
        });
        impl_->device.push_back({.offset = offset, .task = {}, .to = static_cast<std::byte*>(to) + begin, .bytes = n});
        begin += n;
    }
}

void WeightUpload::finish() {
    impl_->flush();
    RT_CUDA(cudaStreamSynchronize(impl_->copies));
    RT_CUDA(cudaStreamSynchronize(impl_->kernels));
}

}  // namespace riptide
