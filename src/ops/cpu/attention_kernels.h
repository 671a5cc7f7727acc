// The inner loops of CPU attention, compiled once for each instruction set. All give the same bits: they add in the
// order that attention.h fixes, fused where it says so.
#pragma once

#include <cstdint>

namespace riptide::ops {

/// Vectors have `dp` floats, a multiple of 16, the tail beyond head_dim zero, and begin at 64-byte boundaries.
/// A state is what a set of keys leaves behind: acc[dp], then m and s (attention.h). s == 0: no keys yet.
/// Several queries at a time share what is loaded of a key: q [n, dp], s [n, kAttentionSplit], states [n, state
/// floats].
struct AttentionKernels {
    /// s[i][j] = scale * (q_i . k_j) for i in [0, n), j in [0, nk), nk a multiple of 4.
    void (*scores)(const float* q, int64_t n, const float* k, int64_t nk, int64_t dp, float scale, float* s);
    /// s[j] <- exp(s[j] - m) for j in [begin, end); m and the sum go to state[dp], state[dp + 1], acc is zeroed.
    /// Entries of s outside [begin, end) are lost.
    void (*softmax)(float* s, int64_t begin, int64_t end, int64_t dp, float* state);
    /// acc_i += sum_j p[i][j] * v_j for i in [0, n), j in [0, nv), in that order. p strides like s.
    void (*accumulate)(const float* p, int64_t n, const float* v, int64_t nv, int64_t dp, float* states);
    /// into <- the state of the keys of `into` followed by those of `from`.
    void (*merge)(float* into, const float* from, int64_t dp);
    /// Exact f16 -> f32 of d values (no padding), or nullptr: then decode_kv_row does it.
    void (*decode_f16)(const void* from, float* to, int64_t d);
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
