// Loads from any address. For the files of AVX2 and AVX-512, in an unnamed namespace: see quant/dot/span.h.
#pragma once

#include <immintrin.h>

#include "quant/dot/span.h"

namespace riptide {
namespace {

RT_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
RT_INLINE __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
RT_INLINE __m128i load8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
RT_INLINE uint32_t load_u16(const uint8_t* p) {
    uint16_t value;
    __builtin_memcpy(&value, p, 2);
    return value;
}
RT_INLINE uint32_t load_u32(const uint8_t* p) {
    uint32_t value;
    __builtin_memcpy(&value, p, 4);
    return value;
}
RT_INLINE uint64_t load_u64(const uint8_t* p) {
    uint64_t value;
    __builtin_memcpy(&value, p, 8);
    return value;
}

}  // namespace
}  // namespace riptide
