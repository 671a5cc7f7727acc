// What tensor/gpu.h means in a build without CUDA.
#include "base/error.h"
#include "tensor/gpu.h"
#include "tensor/gpu_energy.h"
#include "tensor/gpu_thread.h"
#include "tensor/host_memory.h"

namespace riptide {

namespace {
[[noreturn]] void no_cuda() {
    fail(ErrorKind::unavailable,
         "this riptide was built without CUDA: configure with the preset \"cuda\", or use --device cpu");
}
}  // namespace

struct Gpu::Impl {};

bool nvidia_driver_installed() { return false; }
std::vector<GpuInfo> list_gpus() { return {}; }

std::unique_ptr<Gpu> Gpu::open(const GpuOptions&) { no_cuda(); }
Gpu::Gpu() = default;
Gpu::~Gpu() = default;
const GpuInfo& Gpu::info() const { no_cuda(); }
const GpuOptions& Gpu::options() const { no_cuda(); }
void use_on_this_thread(const Gpu&) { no_cuda(); }
CUstream_st* Gpu::stream() const { no_cuda(); }
bool Gpu::programmatic() const { no_cuda(); }
bool Gpu::hopper() const { no_cuda(); }
void* Gpu::allocate(int64_t, const char*) { no_cuda(); }
void Gpu::free(void*, int64_t) noexcept {}
int64_t Gpu::allocated() const { no_cuda(); }
int64_t Gpu::peak_allocated() const { no_cuda(); }
int64_t Gpu::available() const { no_cuda(); }
void Gpu::to_device(void*, const void*, int64_t) { no_cuda(); }
void Gpu::to_host(void*, const void*, int64_t) { no_cuda(); }
void Gpu::copy(void*, const void*, int64_t) { no_cuda(); }
void Gpu::fill(void*, int, int64_t) { no_cuda(); }
void Gpu::synchronize() { no_cuda(); }
void Gpu::check() { no_cuda(); }
int32_t* Gpu::counters() const { no_cuda(); }
uint64_t* Gpu::sums() const { no_cuda(); }

PinnedMemory::PinnedMemory(Gpu&, int64_t) { no_cuda(); }
PinnedMemory::~PinnedMemory() = default;
PinnedMemory::PinnedMemory(PinnedMemory&&) noexcept = default;
PinnedMemory& PinnedMemory::operator=(PinnedMemory&&) noexcept = default;

GpuGraph::GpuGraph(Gpu&, const std::function<void()>&) { no_cuda(); }
GpuGraph::~GpuGraph() = default;
GpuGraph::GpuGraph(GpuGraph&&) noexcept = default;
GpuGraph& GpuGraph::operator=(GpuGraph&&) noexcept = default;
void GpuGraph::launch() { no_cuda(); }

double measure_read_bandwidth(Gpu&) { no_cuda(); }

GpuMarks::~GpuMarks() = default;
void GpuMarks::add() { no_cuda(); }
void GpuMarks::hold() { no_cuda(); }
std::vector<double> GpuMarks::take() { no_cuda(); }

GpuClock::~GpuClock() = default;
uint64_t GpuClock::mark() {
    if (gpu_ != nullptr) no_cuda();
    return 0;
}
void GpuClock::wait(uint64_t) {}

GpuTimer::GpuTimer(Gpu& gpu) : gpu_(gpu) { no_cuda(); }
GpuTimer::~GpuTimer() = default;
void GpuTimer::start() { no_cuda(); }
void GpuTimer::stop() { no_cuda(); }
double GpuTimer::milliseconds() { no_cuda(); }

GpuEnergy::GpuEnergy(const Gpu&) { no_cuda(); }
GpuEnergy::~GpuEnergy() = default;
GpuEnergy::GpuEnergy(GpuEnergy&&) noexcept = default;
double GpuEnergy::joules() const { no_cuda(); }

}  // namespace riptide
