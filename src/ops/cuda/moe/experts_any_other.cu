// Decode-family SwiGLU layers with weights other than Q4_K and Q6_K: see moe_decode.cu.
// Bytes and floor: those of the weights; a sparse layer of Laguna XS.2 in bf16 58 MB, 12.4 us at 4.65 TB/s.
#include "ops/cuda/moe/experts_any.cuh"

namespace riptide::ops::cuda::decode {

GateUpKernel other_gate_up_kernel(bool floats) {
    return floats ? experts_any_gate_up_kernel<FloatBatch<AllFloats, 2, 4>>
                  : experts_any_gate_up_kernel<PlaneBatch<AllPlanes, 2, 2, false>>;
}

DownKernel other_down_kernel(bool floats, bool halves) {
    if (floats) return experts_any_float_down_kernel<4>;
    return halves ? experts_any_down_kernel<AllPlanes, 5, true> : experts_any_down_kernel<AllPlanes, 4, false>;
}

}  // namespace riptide::ops::cuda::decode
