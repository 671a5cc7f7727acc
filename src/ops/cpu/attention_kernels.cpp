#include "ops/cpu/attention_kernels.h"

#include <string_view>

namespace riptide::ops {

const AttentionKernels* attention_kernels(const char* name) {
    const std::string_view wanted = name;
    if (wanted == "base") return &kAttentionBase;
#if defined(__x86_64__)
    if (wanted == "avx2" && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))  // and with them F16C, which clang 14 cannot ask for
        return &kAttentionAvx2;
    if (wanted == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return &kAttentionAvx512;
#endif
    return nullptr;
}

const AttentionKernels& attention_kernels() {
    static const AttentionKernels* const best = [] {
        for (const char* name : {"avx512", "avx2"})
            if (const AttentionKernels* kernels = attention_kernels(name)) return kernels;
        return attention_kernels("base");
    }();
    return *best;
}

}  // namespace riptide::ops
