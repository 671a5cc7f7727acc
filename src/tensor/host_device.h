// Functions that run on the CPU and in kernels.
#pragma once

#ifdef __CUDACC__
#define RT_HD __host__ __device__ __forceinline__
#else
#define RT_HD inline
#endif
