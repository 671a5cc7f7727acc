// One NVIDIA GPU: what it is, its stream, its memory, copies. Without CUDA headers, so that every layer may name it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/host_memory.h"

struct CUstream_st;     // cudaStream_t points to it
struct CUgraphExec_st;  // cudaGraphExec_t points to it

namespace riptide {

struct GpuInfo {
    int ordinal = 0;
    std::string name;
    int major = 0;  // compute capability
    int minor = 0;
    int sm_count = 0;
    int64_t shared_bytes = 0;  // the most that one block may use
    int64_t l2_bytes = 0;
    int64_t memory_bytes = 0;
    double clock_hz = 0;  // the highest of the SMs
    int driver = 0;   // 13000 means 13.0
    int runtime = 0;  // what this program was built with
};

struct GpuOptions {
    int ordinal = 0;
    /// No more device memory than this for weights, K/V and temporaries together; 0: what is free.
    int64_t memory_budget = 0;
    /// Kernels behave as on the oldest supported chip: no programmatic launches, no sm_90 instructions. For tests.
    bool portable = false;
};

/// Whether the machine has an NVIDIA driver. False in builds without CUDA.
bool nvidia_driver_installed();
/// The devices that the driver shows. Empty without a driver or a device, and in builds without CUDA.
std::vector<GpuInfo> list_gpus();

/// An open device with one stream. All work of Riptide on a device goes through its stream, in order. One thread at a
/// time. A failed CUDA call throws Error (system) that names the call; after a failed kernel the device is
/// broken: every later call throws, and the process should end with a non-zero code.
class Gpu {
  public:
    /// Throws Error (unavailable) if the program was built without CUDA, no driver or device is there, the driver is
    /// older than the runtime, or the program holds no code for the device's compute capability.
    static std::unique_ptr<Gpu> open(const GpuOptions& options = {});
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    const GpuInfo& info() const;
    const GpuOptions& options() const;
    CUstream_st* stream() const;
    /// Kernels may be launched programmatically dependent: compute capability 9 and not portable.
    bool programmatic() const;
    /// May use instructions of sm_90a (wgmma, TMA).
    bool hopper() const;

    /// Device memory; throws Error (unavailable) that names `what`, the bytes, and what is free or left of the budget.
    void* allocate(int64_t bytes, const char* what);
    void free(void* pointer, int64_t bytes) noexcept;
    int64_t allocated() const;
    int64_t peak_allocated() const;
    /// Bytes that allocate() can still give: of the budget, or free on the device.
    int64_t available() const;

    /// In stream order. Host memory may be pageable; to_host and to_device return when the host memory may be reused.
    void to_device(void* device, const void* host, int64_t bytes);
    void to_host(void* host, const void* device, int64_t bytes);
    void copy(void* device_to, const void* device_from, int64_t bytes);
    void fill(void* device, int byte, int64_t bytes);
    void synchronize();
    /// Throws Error if the device has failed; does not wait.
    void check();

    /// 4096 int32 counters in device memory, all zero between kernels: a kernel that uses some sets them back to zero.
    /// Kernels of one stream may all use the same ones.
    int32_t* counters() const;
    static constexpr int kCounters = 4096;
    /// kSums 64-bit words in device memory that kernels add to for a later one to read, all zero before the first of
    /// them and again behind the kernel that follows the reader. sums_open: one that adds has been launched or
    /// recorded, and not yet the one that zeroes; who finds it so has a step before it that failed, and zeroes them.
    uint64_t* sums() const;
    bool sums_open = false;
    static constexpr int kSums = 8192;

    /// Told the name of each kernel of Riptide before it is launched or recorded: "kv_append_kernel". For measuring.
    std::function<void(const std::string& kernel)> on_launch = {};

  private:
    Gpu();
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Copies within the memory of a device, in stream order, or (gpu null) of the host.
void copy_bytes(Gpu* gpu, void* to, const void* from, int64_t bytes);

/// Zeroed memory of the host (gpu null; resident only where written) or of a device. Move-only.
class DeviceMemory {
  public:
    DeviceMemory() = default;
    DeviceMemory(Gpu* gpu, int64_t bytes, const char* what);
    ~DeviceMemory();
    DeviceMemory(DeviceMemory&& other) noexcept;
    DeviceMemory& operator=(DeviceMemory&& other) noexcept;

    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    Gpu* gpu_ = nullptr;
    std::byte* data_ = nullptr;
    int64_t bytes_ = 0;
};

/// Host memory that the device copies to and from at full speed and asynchronously. Large pieces are resident before the
/// driver hears of them: it lets no other thread launch or copy while it pins, which is most of the 50 to 67 ms that
/// 128 MiB take where pages must be found first. Move-only.
class PinnedMemory {
  public:
    PinnedMemory() = default;
    PinnedMemory(Gpu& gpu, int64_t bytes);
    ~PinnedMemory();
    PinnedMemory(PinnedMemory&& other) noexcept;
    PinnedMemory& operator=(PinnedMemory&& other) noexcept;

    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    void give_back();

    HostMemory own_;  // empty: the driver's
    std::byte* data_ = nullptr;
    int64_t bytes_ = 0;
};

/// A recorded series of kernels and copies that is launched as one. Move-only.
class GpuGraph {
  public:
    GpuGraph() = default;
    /// Records what `body` puts on the stream. body must not synchronise nor allocate device memory.
    GpuGraph(Gpu& gpu, const std::function<void()>& body);
    ~GpuGraph();
    GpuGraph(GpuGraph&& other) noexcept;
    GpuGraph& operator=(GpuGraph&& other) noexcept;

    explicit operator bool() const { return exec_ != nullptr; }
    void launch();

  private:
    Gpu* gpu_ = nullptr;
    CUgraphExec_st* exec_ = nullptr;
};

/// Bytes per second of reading device memory: the best of a few passes over as much as is free, 1 GiB at most.
double measure_read_bandwidth(Gpu& gpu);

/// Points of the stream in time. What stands behind a mark starts when all in front of it has ended: programmatic
/// launches do not overlap across it.
class GpuMarks {
  public:
    explicit GpuMarks(Gpu& gpu) : gpu_(gpu) {}
    ~GpuMarks();
    GpuMarks(const GpuMarks&) = delete;
    GpuMarks& operator=(const GpuMarks&) = delete;
    void add();
    /// Keeps the stream waiting for some milliseconds, so that the host gets ahead of it and times are the device's.
    void hold();
    /// Waits; the seconds from each mark to the next. Forgets the marks.
    std::vector<double> take();

  private:
    Gpu& gpu_;
    std::vector<void*> events_;  // kept for later marks
    size_t used_ = 0;
};

/// Numbered points of the stream that the host can wait for. On a null Gpu everything has always happened already.
class GpuClock {
  public:
    explicit GpuClock(Gpu* gpu) : gpu_(gpu) {}
    ~GpuClock();
    GpuClock(const GpuClock&) = delete;
    GpuClock& operator=(const GpuClock&) = delete;

    /// The stream as it is now. Numbers grow from 1.
    uint64_t mark();
    /// Returns when all that was in the stream at mark() has ended; it may wait for somewhat more. 0: at once.
    void wait(uint64_t point);

  private:
    static constexpr uint64_t kEvents = 64;  // marks further back are waited for by a later one
    Gpu* gpu_;
    std::vector<void*> events_;  // point n has events_[n % kEvents]
    uint64_t last_ = 0;
    uint64_t done_ = 0;
};

/// Milliseconds between two points of the stream.
class GpuTimer {
  public:
    explicit GpuTimer(Gpu& gpu);
    ~GpuTimer();
    GpuTimer(const GpuTimer&) = delete;
    GpuTimer& operator=(const GpuTimer&) = delete;
    void start();
    void stop();
    /// Waits for stop().
    double milliseconds();

  private:
    Gpu& gpu_;
    void* start_ = nullptr;
    void* stop_ = nullptr;
};

}  // namespace riptide
