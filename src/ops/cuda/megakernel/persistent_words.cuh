// How phases of the persistent kernel hand values to each other: words of a float and a number.
//
// A word is written once for each layer of each step, with a number that no earlier content of the same place had, and
// read by whoever needs it until the number is right. Loads and stores of 64 bits are single (PTX memory model), so the
// float is there when its number is: neither fence nor barrier. Nobody writes a place again before all who read its old
// content are done, because every phase needs all results of the phase before, and those their readers' own results.
// Measured before (an H200, 400 phases): 1.4 to 1.7 us an exchange; a counter and reading again 1.95.
#pragma once

#include <cstdint>

namespace riptide::ops {

using Word = uint64_t;

#ifdef __CUDACC__

/// Turns of waiting after which something must be wrong: seconds.
constexpr int kMostTurns = 1 << 22;

__device__ __forceinline__ void put_word(Word* to, float value, uint32_t number) {
    const Word word = static_cast<Word>(number) << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ Word load_word(const Word* from) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
__device__ __forceinline__ void load_words(const Word* from, Word& a, Word& b) {
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
}
__device__ __forceinline__ bool is_numbered(Word word, uint32_t number) {
    return static_cast<uint32_t>(word >> 32) == number;
}
__device__ __forceinline__ float value_of(Word word) { return __uint_as_float(static_cast<uint32_t>(word)); }

/// Calls load() until ready().
template <class Load, class Ready>
__device__ __forceinline__ void await(const Load& load, const Ready& ready) {
#pragma unroll 1
    for (int turns = 0; turns < kMostTurns; ++turns) {
        load();
        if (ready()) return;
    }
    __trap();
}

/// The word's float.
__device__ __forceinline__ float await_word(const Word* from, uint32_t number) {
    Word word = 0;
    await([&] { word = load_word(from); }, [&] { return is_numbered(word, number); });
    return value_of(word);
}

/// 2 N neighbouring words, at an even place.
template <int N>
__device__ __forceinline__ void await_words(const Word* from, uint32_t number, float (&v)[2 * N]) {
    Word words[2 * N];
    await(
        [&] {
#pragma unroll
            for (int i = 0; i < N; ++i) load_words(from + 2 * i, words[2 * i], words[2 * i + 1]);
        },
        [&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < 2 * N; ++i) all = all && is_numbered(words[i], number);
            return all;
        });
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) v[i] = value_of(words[i]);
}

/// Words from[i * stride] for i < count, N at most.
template <int N>
__device__ __forceinline__ void await_strided(const Word* from, int stride, int count, uint32_t number, float (&v)[N]) {
    Word words[N];
    await(
        [&] {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (i < count) words[i] = load_word(from + i * stride);
        },
        [&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < N; ++i) all = all && (i >= count || is_numbered(words[i], number));
            return all;
        });
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = i < count ? value_of(words[i]) : 0.0f;
}

#endif

}  // namespace riptide::ops
