// Decode-family products with weights other than Q4_K and Q6_K: see linear.cu.
// Bytes and floor: those of the weights; Laguna XS.2 in bf16 5.2 GB a token, 1.12 ms at 4.65 TB/s, in fp8 0.57 ms.
#include "ops/cuda/linear/gemv/any.cuh"

namespace riptide::ops::cuda::decode {

MatmulKernel any_plane_kernel(int p) {
    return p == 1 ? any_planes_kernel<AllPlanes, 2, 2, false, 1> : any_planes_kernel<AllPlanes, 2, 2, false, 4>;
}

MatmulKernel float_kernel(int p) {
    return p == 1 ? any_float_kernel<1> : p == 2 ? any_float_kernel<2> : any_float_kernel<4>;
}

}  // namespace riptide::ops::cuda::decode
