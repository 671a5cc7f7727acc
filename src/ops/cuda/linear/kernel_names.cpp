// What the kernels for matrix products are called, and where they are.
#include "base/error.h"
#include "ops/cuda/linear/plan.h"

namespace riptide::ops::cuda::linear {

namespace {

struct Name {
    const char *name, *file;
};

Name name_of(Kernel kernel) {
    switch (kernel) {
        case Kernel::draft_f16_sm90:
            return {"draft_f16_sm90", "skinny/draft_f16_sm90.cu"};
        case Kernel::kquant_f16_row1_sm90:
            return {"kquant_f16_row1_sm90", "gemv/kquant_f16_row1_sm90.cu"};
        case Kernel::kquant_f16_mma_sm90:
            return {"kquant_f16_mma_sm90", "skinny/kquant_f16_mma_sm90.cu"};
        case Kernel::kquant_f16_wgmma_sm90:
            return {"kquant_f16_wgmma_sm90", "skinny/kquant_f16_wgmma_sm90.cu"};
        case Kernel::kquant_i8_whole5:
            return {"kquant_i8_whole5", "gemv/kquant_i8.cu"};
        case Kernel::kquant_i8_whole6:
            return {"kquant_i8_whole6", "gemv/kquant_i8.cu"};
        case Kernel::kquant_i8_split_router:
            return {"kquant_i8_split_router", "gemv/kquant_i8.cu"};
        case Kernel::kquant_i8_split:
            return {"kquant_i8_split", "gemv/kquant_i8.cu"};
        case Kernel::kquant_i8_stream:
            return {"kquant_i8_stream", "gemv/kquant_i8.cu"};
        case Kernel::planes_i8_whole5:
            return {"planes_i8_whole5", "gemv/planes_i8_sm90.cu"};
        case Kernel::planes_i8_whole6:
            return {"planes_i8_whole6", "gemv/planes_i8_sm90.cu"};
        case Kernel::planes_i8_split_router:
            return {"planes_i8_split_router", "gemv/planes_i8_sm90.cu"};
        case Kernel::planes_i8_split:
            return {"planes_i8_split", "gemv/planes_i8_sm90.cu"};
        case Kernel::kquant_i8_rows4_whole5:
            return {"kquant_i8_rows4_whole5", "gemv/kquant_i8_rows4.cu"};
        case Kernel::kquant_i8_rows4_whole6:
            return {"kquant_i8_rows4_whole6", "gemv/kquant_i8_rows4.cu"};
        case Kernel::kquant_i8_rows4_split_router:
            return {"kquant_i8_rows4_split_router", "gemv/kquant_i8_rows4.cu"};
        case Kernel::kquant_i8_rows4_split:
            return {"kquant_i8_rows4_split", "gemv/kquant_i8_rows4.cu"};
        case Kernel::bf16_small_sm90:
            return {"bf16_small_sm90", "gemv/bf16_small_sm90.cu"};
        case Kernel::float_row1:
            return {"float_row1", "gemv/float.cu"};
        case Kernel::float_rows:
            return {"float_rows", "gemv/float.cu"};
        case Kernel::kquant_i8_wide_row1_sm90:
            return {"kquant_i8_wide_row1_sm90", "gemv/kquant_i8_wide_row1_sm90.cu"};
        case Kernel::kquant_i8_wide_sm90:
            return {"kquant_i8_wide_sm90", "skinny/kquant_i8_wide_sm90.cu"};
        case Kernel::kquant_i8_narrow_sm90:
            return {"kquant_i8_narrow_sm90", "skinny/kquant_i8_narrow_sm90.cu"};
        case Kernel::kquant_i8_sm80:
            return {"kquant_i8_sm80", "skinny/kquant_i8_sm80.cu"};
        case Kernel::q8_i8_sm80:
            return {"q8_i8_sm80", "skinny/q8_i8_sm80.cu"};
        case Kernel::any:
            return {"any", "gemv/any.cuh"};
        case Kernel::gemm_fp8_sm90:
            return {"gemm_fp8_sm90", "gemm/fp8_sm90.cu"};
        case Kernel::gemm_bf16_sm90:
            return {"gemm_bf16_sm90", "gemm/bf16_sm90.cu"};
        case Kernel::gemm_bf16_sm80:
            return {"gemm_bf16_sm80", "gemm/bf16_sm80.cu"};
    }
    RT_ASSERT(false);
    return {};
}

}  // namespace

bool leaves_words(Kernel kernel) {
    return kernel == Kernel::kquant_i8_split_router || kernel == Kernel::planes_i8_split_router ||
           kernel == Kernel::kquant_i8_rows4_split_router;
}

const char* kernel_name(Kernel kernel) { return name_of(kernel).name; }
const char* kernel_file(Kernel kernel) { return name_of(kernel).file; }

}  // namespace riptide::ops::cuda::linear
