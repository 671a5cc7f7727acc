// The inner loops of CPU attention, compiled once for each instruction set. All give the same bits: they add in the order
// that attention.h fixes and never contract a product with a sum.
#pragma once

#include <cstdint>

namespace riptide::ops {

/// Vectors have `dp` floats, a multiple of 16, the tail beyond head_dim zero. All pointers are 64-byte aligned at dp strides.
/// A state is what a set of keys leaves behind: acc[dp], then m and s (attention.h). s == 0: no keys yet.
struct AttentionKernels {
    /// s[j] = scale * (q . k_j) for j in [0, nk), nk a multiple of 4.
    void (*scores)(const float* q, const float* k, int64_t nk, int64_t dp, float scale, float* s);
    /// s[j] <- exp(s[j] - m) for j in [begin, end); m and the sum go to state[dp], state[dp + 1], acc is zeroed.
    /// s is readable and writable at [0, 256); entries outside [begin, end) are lost.
    void (*softmax)(float* s, int64_t begin, int64_t end, int64_t dp, float* state);
    /// acc += sum_j p[j] * v_j for j in [0, nv), in that order.
    void (*accumulate)(const float* p, const float* v, int64_t nv, int64_t dp, float* acc);
    /// into <- the state of the keys of `into` followed by those of `from`.
    void (*merge)(float* into, const float* from, int64_t dp);
};

inline int64_t attention_state_floats(int64_t dp) { return dp + 16; }

/// By name, for tests: "avx512", "avx2", "base"; nullptr if this CPU or build lacks it.
const AttentionKernels* attention_kernels(const char* name);
/// The fastest for this CPU.
const AttentionKernels& attention_kernels();

extern const AttentionKernels kAttentionBase;
#if defined(__x86_64__)
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
#endif

}  // namespace riptide::ops
