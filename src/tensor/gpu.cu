#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "tensor/cuda_check.cuh"
#include "tensor/gpu.h"
#include "tensor/gpu_thread.h"

namespace riptide {

void fail_cuda(cudaError_t error, const char* call, const char* file, int line) {
    const ErrorKind kind = error == cudaErrorMemoryAllocation ? ErrorKind::unavailable : ErrorKind::system;
    fail(kind, "CUDA: {} ({}) in {} at {}:{}", cudaGetErrorString(error), cudaGetErrorName(error), call, file, line);
}

void fail_launch(cudaError_t error, const Gpu& gpu, dim3 grid, dim3 block, size_t shared_bytes) {
    const ErrorKind kind = error == cudaErrorMemoryAllocation ? ErrorKind::unavailable : ErrorKind::system;
    fail(kind,
         "CUDA: {} ({}) at the launch of a kernel with {} x {} x {} blocks of {} threads and {} bytes of shared memory "
         "(at most {}) on {}",
         cudaGetErrorString(error), cudaGetErrorName(error), grid.x, grid.y, grid.z, block.x * block.y * block.z,
         shared_bytes, gpu.info().shared_bytes, gpu.info().name);
}

std::string kernel_name(const void* kernel) {
#if CUDART_VERSION >= 12030
    const char* mangled = nullptr;
    RT_CUDA(cudaFuncGetName(&mangled, kernel));
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                      &std::free);
    std::string name = status == 0 ? text.get() : mangled;  // "void space::(anonymous namespace)::name<...>(...)"
    constexpr std::string_view kAnonymous = "(anonymous namespace)::";
    for (size_t at = name.find(kAnonymous); at != std::string::npos; at = name.find(kAnonymous))
        name.erase(at, kAnonymous.size());
    name.erase(std::min(name.find_first_of("<("), name.size()));
    return name.substr(name.find_last_of(" :") + 1);
#else
    return "?";
#endif
}

void allow_shared(const void* kernel, int64_t bytes) {
    constexpr int64_t kDefault = 8 << 10;  // of 48 KB, which static memory (up to 40 KB in a kernel here) counts to
    if (bytes <= kDefault) return;
    static std::mutex mutex;
    static std::map<std::pair<int, const void*>, int64_t> allowed;
    int device = 0;
    RT_CUDA(cudaGetDevice(&device));
    const std::scoped_lock lock(mutex);
    int64_t& most = allowed[{device, kernel}];
    if (bytes <= most) return;
    RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    most = bytes;
}

bool nvidia_driver_installed() {
    int driver = 0;
    return cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
}

namespace {

GpuInfo info_of(int ordinal) {
    cudaDeviceProp p;
    RT_CUDA(cudaGetDeviceProperties(&p, ordinal));
    GpuInfo info;
    info.ordinal = ordinal;
    info.name = p.name;
    info.major = p.major;
    info.minor = p.minor;
    info.sm_count = p.multiProcessorCount;
    info.shared_bytes = static_cast<int64_t>(p.sharedMemPerBlockOptin);
    info.l2_bytes = p.l2CacheSize;
    info.memory_bytes = static_cast<int64_t>(p.totalGlobalMem);
    int kilohertz = 0;
    RT_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, ordinal));
    info.clock_hz = 1e3 * kilohertz;
    RT_CUDA(cudaDriverGetVersion(&info.driver));
    RT_CUDA(cudaRuntimeGetVersion(&info.runtime));
    return info;
}

__global__ void probe_kernel() {}

}  // namespace

std::vector<GpuInfo> list_gpus() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return {};
    }
    std::vector<GpuInfo> all;
    for (int i = 0; i < count; ++i) all.push_back(info_of(i));
    return all;
}

struct Gpu::Impl {
    GpuInfo info;
    GpuOptions options;
    cudaStream_t stream = nullptr;
    int32_t* counters = nullptr;
    uint64_t* sums = nullptr;
    int64_t allocated = 0;
    int64_t peak = 0;
};

Gpu::Gpu() : impl_(std::make_unique<Impl>()) {}

std::unique_ptr<Gpu> Gpu::open(const GpuOptions& options) {
    int driver = 0, runtime = 0, count = 0;
    RT_CUDA(cudaRuntimeGetVersion(&runtime));
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        fail(ErrorKind::unavailable,
             "no NVIDIA driver is installed, and this riptide needs one for CUDA {}.{}: use --device cpu",
             runtime / 1000, runtime % 1000 / 10);
    if (driver / 1000 < runtime / 1000)
        fail(ErrorKind::unavailable,
             "the NVIDIA driver supports CUDA {}.{}, this riptide needs {}.{}: update the driver", driver / 1000,
             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess || count == 0)
        fail(ErrorKind::unavailable, "the NVIDIA driver shows no GPU ({}): use --device cpu",
             cudaGetErrorString(found));
    if (options.ordinal < 0 || options.ordinal >= count)
        fail(ErrorKind::usage, "GPU {} was asked for, but there are {} (numbered from 0)", options.ordinal, count);

    std::unique_ptr<Gpu> gpu(new Gpu);
    Impl& g = *gpu->impl_;
    RT_CUDA(cudaSetDevice(options.ordinal));
    g.info = info_of(options.ordinal);
    g.options = options;
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
        cudaGetLastError();
        fail(ErrorKind::unavailable,
             "{} has compute capability {}.{}, for which this riptide holds no code: build with "
             "-DCMAKE_CUDA_ARCHITECTURES={}{}, or use --device cpu",
             g.info.name, g.info.major, g.info.minor, g.info.major, g.info.minor);
    }
    RT_CUDA(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    g.counters = static_cast<int32_t*>(gpu->allocate(kCounters * sizeof(int32_t), "counters"));
    gpu->fill(g.counters, 0, kCounters * sizeof(int32_t));
    g.sums = static_cast<uint64_t*>(gpu->allocate(kSums * sizeof(uint64_t), "sums"));
    gpu->fill(g.sums, 0, kSums * sizeof(uint64_t));
    return gpu;
}

Gpu::~Gpu() {
    if (impl_->counters != nullptr) cudaFree(impl_->counters);
    if (impl_->sums != nullptr) cudaFree(impl_->sums);
    if (impl_->stream != nullptr) cudaStreamDestroy(impl_->stream);
}

const GpuInfo& Gpu::info() const { return impl_->info; }
const GpuOptions& Gpu::options() const { return impl_->options; }
void use_on_this_thread(const Gpu& gpu) { RT_CUDA(cudaSetDevice(gpu.info().ordinal)); }
CUstream_st* Gpu::stream() const { return impl_->stream; }
bool Gpu::programmatic() const { return impl_->info.major >= 9 && !impl_->options.portable; }
bool Gpu::hopper() const { return impl_->info.major == 9 && !impl_->options.portable; }
int64_t Gpu::allocated() const { return impl_->allocated; }
int64_t Gpu::peak_allocated() const { return impl_->peak; }
int32_t* Gpu::counters() const { return impl_->counters; }
uint64_t* Gpu::sums() const { return impl_->sums; }

int64_t Gpu::available() const {
    size_t free = 0, total = 0;
    RT_CUDA(cudaMemGetInfo(&free, &total));
    const auto on_device = static_cast<int64_t>(free);
    const int64_t budget = impl_->options.memory_budget;
    return budget > 0 ? std::min(on_device, std::max<int64_t>(0, budget - impl_->allocated)) : on_device;
}

void* Gpu::allocate(int64_t bytes, const char* what) {
    RT_ASSERT(bytes > 0);
    const int64_t budget = impl_->options.memory_budget;
    if (budget > 0 && impl_->allocated + bytes > budget)
        fail(ErrorKind::unavailable, "{} need {} bytes of GPU memory, but {} of the budget of {} are left", what, bytes,
             budget - impl_->allocated, budget);
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        fail(ErrorKind::unavailable, "{} need {} bytes of GPU memory, but {} has {} free", what, bytes,
             impl_->info.name, available());
    }
    RT_CUDA(error);
    impl_->allocated += bytes;
    impl_->peak = std::max(impl_->peak, impl_->allocated);
    return p;
}

void Gpu::free(void* pointer, int64_t bytes) noexcept {
    if (pointer == nullptr) return;
    cudaFree(pointer);
    impl_->allocated -= bytes;
}

void Gpu::to_device(void* device, const void* host, int64_t bytes) {
    RT_CUDA(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, impl_->stream));
    RT_CUDA(cudaStreamSynchronize(impl_->stream));
}

void Gpu::to_host(void* host, const void* device, int64_t bytes) {
    RT_CUDA(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, impl_->stream));
    RT_CUDA(cudaStreamSynchronize(impl_->stream));
}

void Gpu::copy(void* device_to, const void* device_from, int64_t bytes) {
    RT_CUDA(cudaMemcpyAsync(device_to, device_from, static_cast<size_t>(bytes), cudaMemcpyDefault, impl_->stream));
}

void Gpu::fill(void* device, int byte, int64_t bytes) {
    RT_CUDA(cudaMemsetAsync(device, byte, static_cast<size_t>(bytes), impl_->stream));
}

void Gpu::synchronize() { RT_CUDA(cudaStreamSynchronize(impl_->stream)); }

void Gpu::check() {
    const cudaError_t error = cudaStreamQuery(impl_->stream);
    if (error != cudaErrorNotReady) RT_CUDA(error);
}

PinnedMemory::PinnedMemory(Gpu&, int64_t bytes) : bytes_(bytes) {
    constexpr int64_t kLarge = int64_t{4} << 20, kPage = 4096;
    if (bytes >= kLarge) {
        HostMemory own(bytes, "memory that a GPU copies to and from");
        for (int64_t at = 0; at < bytes; at += kPage) own.data()[at] = std::byte{0};
        if (cudaHostRegister(own.data(), static_cast<size_t>(bytes), cudaHostRegisterPortable) == cudaSuccess) {
            own_ = std::move(own);
            data_ = own_.data();
            return;
        }
        cudaGetLastError();  // then the driver's own
    }
    void* p = nullptr;
    const cudaError_t error = cudaMallocHost(&p, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        fail(ErrorKind::unavailable, "{} bytes of pinned host memory are not to be had", bytes);
    }
    RT_CUDA(error);
    data_ = static_cast<std::byte*>(p);
}

void PinnedMemory::give_back() {
    if (own_.data() != nullptr) cudaHostUnregister(own_.data());
    else if (data_ != nullptr) cudaFreeHost(data_);
}

PinnedMemory::~PinnedMemory() { give_back(); }

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : own_(std::move(other.own_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
    std::swap(own_, other.own_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

GpuGraph::GpuGraph(Gpu& gpu, const std::function<void()>& body) : gpu_(&gpu) {
    RT_CUDA(cudaStreamBeginCapture(gpu.stream(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
        body();
    } catch (...) {
        cudaStreamEndCapture(gpu.stream(), &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        throw;
    }
    RT_CUDA(cudaStreamEndCapture(gpu.stream(), &graph));
    const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    RT_CUDA(error);
}

GpuGraph::~GpuGraph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
}

GpuGraph::GpuGraph(GpuGraph&& other) noexcept : gpu_(other.gpu_), exec_(std::exchange(other.exec_, nullptr)) {}

GpuGraph& GpuGraph::operator=(GpuGraph&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(exec_, other.exec_);
    return *this;
}

void GpuGraph::launch() { RT_CUDA(cudaGraphLaunch(exec_, gpu_->stream())); }

namespace {

__global__ void read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
    uint32_t sum = 0;
    const int64_t stride = int64_t{gridDim.x} * blockDim.x;
    int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < count; i += 4 * stride) {
        const uint4 a = data[i], b = data[i + stride], c = data[i + 2 * stride], d = data[i + 3 * stride];
        sum += (a.x ^ b.y) + (c.z ^ d.w);
    }
    for (; i < count; i += stride) sum += data[i].x;
    if (sum == 0x9E3779B9u) *sink = sum;
}

}  // namespace

double measure_read_bandwidth(Gpu& gpu) {
    const int64_t bytes = std::min<int64_t>(int64_t{1} << 30, gpu.available() / 2) / 4096 * 4096;
    if (bytes == 0) return 0;
    DeviceMemory memory(&gpu, bytes, "bandwidth probe");
    double best = 0;
    for (int pass = 0; pass < 6; ++pass) {
        GpuTimer timer(gpu);
        timer.start();
        read_kernel<<<static_cast<unsigned>(gpu.info().sm_count * 8), 512, 0, gpu.stream()>>>(
            reinterpret_cast<const uint4*>(memory.data()), bytes / 16, reinterpret_cast<uint32_t*>(memory.data()));
        RT_CUDA(cudaGetLastError());
        timer.stop();
        best = std::max(best, static_cast<double>(bytes) / (timer.milliseconds() * 1e-3));
    }
    return best;
}

GpuMarks::~GpuMarks() {
    for (void* event : events_) cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void GpuMarks::add() {
    if (used_ == events_.size()) {
        cudaEvent_t event = nullptr;
        RT_CUDA(cudaEventCreate(&event));
        events_.push_back(event);
    }
    RT_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(events_[used_]), gpu_.stream()));
    ++used_;
}

void GpuMarks::hold() {
    // A sleep, not a wait for the host: a full launch queue would make the two wait for each other.
    RT_CUDA(cudaLaunchHostFunc(
        gpu_.stream(), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }, nullptr));
}

std::vector<double> GpuMarks::take() {
    std::vector<double> seconds;
    if (used_ > 0) RT_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(events_[used_ - 1])));
    for (size_t i = 1; i < used_; ++i) {
        float ms = 0;
        RT_CUDA(
            cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(events_[i - 1]), static_cast<cudaEvent_t>(events_[i])));
        seconds.push_back(1e-3 * static_cast<double>(ms));
    }
    used_ = 0;
    return seconds;
}

GpuClock::~GpuClock() {
    for (void* event : events_) cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

uint64_t GpuClock::mark() {
    if (gpu_ == nullptr) return 0;
    while (events_.size() < kEvents) {
        cudaEvent_t event = nullptr;
        RT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        events_.push_back(event);
    }
    RT_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(events_[(last_ + 1) % kEvents]), gpu_->stream()));
    return ++last_;
}

void GpuClock::wait(uint64_t point) {
    RT_ASSERT(point <= last_);
    if (point <= done_) return;
    if (last_ >= kEvents) point = std::max(point, last_ - kEvents + 1);  // its event means a later point by now
    RT_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(events_[point % kEvents])));
    done_ = point;
}

GpuTimer::GpuTimer(Gpu& gpu) : gpu_(gpu) {
    RT_CUDA(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(&start_)));
    RT_CUDA(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(&stop_)));
}

GpuTimer::~GpuTimer() {
    cudaEventDestroy(static_cast<cudaEvent_t>(start_));
    cudaEventDestroy(static_cast<cudaEvent_t>(stop_));
}

void GpuTimer::start() { RT_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(start_), gpu_.stream())); }
void GpuTimer::stop() { RT_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(stop_), gpu_.stream())); }

double GpuTimer::milliseconds() {
    float ms = 0;
    RT_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(stop_)));
    RT_CUDA(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start_), static_cast<cudaEvent_t>(stop_)));
    return ms;
}

}  // namespace riptide
