// RT_CUDA: every CUDA call, checked.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace riptide {
class Gpu;
/// Throws Error (system, or unavailable when out of memory) naming the call, the place and CUDA's words.
[[noreturn]] void fail_cuda(cudaError_t error, const char* call, const char* file, int line);
/// Throws Error (system, or unavailable when out of memory) naming what was launched on which device.
[[noreturn]] void fail_launch(cudaError_t error, const Gpu& gpu, dim3 grid, dim3 block, size_t shared_bytes);
/// Lets a kernel use so many bytes of dynamic shared memory (up to 8 KB, and 40 KB of static memory, need no asking).
/// What was allowed stays allowed: another engine's thread may be about to launch the same kernel with more.
void allow_shared(const void* kernel, int64_t bytes);
/// "kv_append_kernel"; "?" from runtimes before CUDA 12.3.
std::string kernel_name(const void* kernel);
}  // namespace riptide

/// Runs a CUDA runtime call; throws riptide::Error if it fails. Also right after a launch: RT_CUDA(cudaGetLastError()).
#define RT_CUDA(call)                                                                         \
    do {                                                                                      \
        const cudaError_t rt_error = (call);                                                  \
        if (rt_error != cudaSuccess) ::riptide::fail_cuda(rt_error, #call, __FILE__, __LINE__); \
    } while (0)
