#include "ops/cpu/attention_kernels.h"

#include <string_view>

#include "quant/dot.h"

namespace riptide::ops {

const AttentionKernels* attention_kernels(const char* name) {
    const std::string_view wanted = name;
    if (wanted == "base") return &kAttentionBase;
#if defined(__x86_64__)
    if (wanted == "avx2" && isa_available(Isa::avx2)) return &kAttentionAvx2;
    if (wanted == "avx512" && isa_available(Isa::avx512)) return &kAttentionAvx512;
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
