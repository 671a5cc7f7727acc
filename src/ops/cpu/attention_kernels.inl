// Included by attention_kernels_*.cpp, which first define kWidth (how many floats a register holds: 4, 8, 16), Vec
// (such a register), fused(a, b, c) = a * b + c rounded once, and kQueries (how many queries share the loads of a key;
// if 4, fold_tile(), too).
// Nothing here may call an inline function of another header: the linker could then pick this file's copy for any CPU.

namespace riptide::ops {
namespace {

typedef int32_t IntVec __attribute__((vector_size(kWidth * 4), may_alias));
typedef float Vec4 __attribute__((vector_size(16), may_alias));

constexpr int kParts = 16 / kWidth;
constexpr int64_t kSplit = 256;  // kAttentionSplit

/// Sixteen lanes.
struct Lanes {
    Vec part[kParts];
};

inline __attribute__((always_inline)) Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline __attribute__((always_inline)) void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
inline __attribute__((always_inline)) Vec fill(float x) { return Vec{} + x; }

inline __attribute__((always_inline)) void add_products(Lanes& sum, const float* a, const float* b) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) sum.part[i] = fused(load(a + i * kWidth), load(b + i * kWidth), sum.part[i]);
}

/// Lane i + 8 onto lane i, then i + 4.
inline __attribute__((always_inline)) Vec4 fold_to_4(const Lanes& x) {
    const Vec4* quarter = reinterpret_cast<const Vec4*>(&x);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/// Four times: lane i + 2 onto lane i, then i + 1.
inline __attribute__((always_inline)) Vec4 fold_4_rows(Vec4 a, Vec4 b, Vec4 c, Vec4 d) {
    const Vec4 ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    const Vec4 cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

inline __attribute__((always_inline)) float fold(const Lanes& x) {
    const Vec4 y = fold_to_4(x);
    return (y[0] + y[2]) + (y[1] + y[3]);
}

/// exp(x) for x <= 0, within 2 ulp; 0 below -87; NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2, Taylor in r.
inline __attribute__((always_inline)) Vec exp_of_negative(Vec x) {
    const Vec magic = fill(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = x * 1.44269504f + magic;
    const Vec n = shifted - magic;
    const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const IntVec exponent = reinterpret_cast<IntVec>(shifted) - reinterpret_cast<IntVec>(magic) + 127;
    const Vec y = p * reinterpret_cast<Vec>(exponent << 23);
    return x < -87.0f ? Vec{} : y;
}

/// kN queries by four keys.
template <int kN>
inline __attribute__((always_inline)) void score_tile(const float* q, const float* k, int64_t dp, float scale,
                                                      float* s) {
    Lanes sum[kN][4] = {};
    for (int64_t e = 0; e < dp; e += 16)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
#pragma GCC unroll 4
            for (int i = 0; i < kN; ++i) add_products(sum[i][j], q + i * dp + e, k + j * dp + e);
    if constexpr (kN == 4) {
        const Vec dots = fold_tile(sum) * scale;
        for (int i = 0; i < kN; ++i) *reinterpret_cast<Vec4*>(s + i * kSplit) = reinterpret_cast<const Vec4*>(&dots)[i];
    } else {
#pragma GCC unroll 4
        for (int i = 0; i < kN; ++i) {
            const Vec4 dots =
                fold_4_rows(fold_to_4(sum[i][0]), fold_to_4(sum[i][1]), fold_to_4(sum[i][2]), fold_to_4(sum[i][3]));
            *reinterpret_cast<Vec4*>(s + i * kSplit) = dots * scale;
        }
    }
}

template <int kN>
void score_rows(const float* q, const float* k, int64_t nk, int64_t dp, float scale, float* s) {
    for (int64_t j = 0; j < nk; j += 4) score_tile<kN>(q, k + j * dp, dp, scale, s + j);
}

void scores(const float* q, int64_t n, const float* k, int64_t nk, int64_t dp, float scale, float* s) {
    int64_t i = 0;
    for (; i + kQueries <= n; i += kQueries) score_rows<kQueries>(q + i * dp, k, nk, dp, scale, s + i * kSplit);
    for (; i < n; ++i) score_rows<1>(q + i * dp, k, nk, dp, scale, s + i * kSplit);
}

void softmax(float* s, int64_t begin, int64_t end, int64_t dp, float* state) {
    const int64_t first = begin / 16 * 16, last = (end + 15) / 16 * 16;
    for (int64_t j = first; j < begin; ++j) s[j] = -__builtin_inff();
    for (int64_t j = end; j < last; ++j) s[j] = -__builtin_inff();
    Vec largest = fill(-__builtin_inff());
    for (int64_t j = first; j < last; j += kWidth) {
        const Vec x = load(s + j);
        largest = x > largest ? x : largest;
    }
    float m = largest[0];
    for (int i = 1; i < kWidth; ++i) m = largest[i] > m ? largest[i] : m;
    Lanes sum{};
    for (int64_t j = first; j < last; j += 16)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; ++i) {
            const Vec p = exp_of_negative(load(s + j + i * kWidth) - m);
            store(s + j + i * kWidth, p);
            sum.part[i] += p;
        }
    for (int64_t i = 0; i < dp; ++i) state[i] = 0;
    state[dp] = m;
    state[dp + 1] = fold(sum);
}

/// kN queries, kVecs registers of their sums, all keys.
template <int kN, int kVecs>
inline __attribute__((always_inline)) void accumulate_part(const float* p, const float* v, int64_t nv, int64_t dp,
                                                           float* acc) {
    Vec sum[kN][kVecs];
#pragma GCC unroll 4
    for (int i = 0; i < kN; ++i)
#pragma GCC unroll 8
        for (int e = 0; e < kVecs; ++e) sum[i][e] = load(acc + i * (dp + 16) + e * kWidth);
    for (int64_t j = 0; j < nv; ++j, v += dp)
#pragma GCC unroll 4
        for (int i = 0; i < kN; ++i)
#pragma GCC unroll 8
            for (int e = 0; e < kVecs; ++e) sum[i][e] = fused(fill(p[i * kSplit + j]), load(v + e * kWidth), sum[i][e]);
#pragma GCC unroll 4
    for (int i = 0; i < kN; ++i)
#pragma GCC unroll 8
        for (int e = 0; e < kVecs; ++e) store(acc + i * (dp + 16) + e * kWidth, sum[i][e]);
}

template <int kN>
void accumulate_rows(const float* p, const float* v, int64_t nv, int64_t dp, float* acc) {
    int64_t e = 0;
    for (; e + 8 * kWidth <= dp; e += 8 * kWidth) accumulate_part<kN, 8>(p, v + e, nv, dp, acc + e);
    for (; e + 4 * kWidth <= dp; e += 4 * kWidth) accumulate_part<kN, 4>(p, v + e, nv, dp, acc + e);
    for (; e < dp; e += kWidth) accumulate_part<kN, 1>(p, v + e, nv, dp, acc + e);
}

void accumulate(const float* p, int64_t n, const float* v, int64_t nv, int64_t dp, float* states) {
    constexpr int kPair = kQueries >= 2 ? 2 : 1;
    int64_t i = 0;
    for (; i + kPair <= n; i += kPair) accumulate_rows<kPair>(p + i * kSplit, v, nv, dp, states + i * (dp + 16));
    for (; i < n; ++i) accumulate_rows<1>(p + i * kSplit, v, nv, dp, states + i * (dp + 16));
}

void merge(float* into, const float* from, int64_t dp) {
    if (into[dp + 1] == 0) {
        for (int64_t i = 0; i < dp + 2; ++i) into[i] = from[i];
        return;
    }
    const float m = from[dp] > into[dp] ? from[dp] : into[dp];
    const float a = exp_of_negative(fill(into[dp] - m))[0];
    const float b = exp_of_negative(fill(from[dp] - m))[0];
    for (int64_t i = 0; i < dp; i += kWidth) store(into + i, load(into + i) * a + load(from + i) * b);
    into[dp] = m;
    into[dp + 1] = into[dp + 1] * a + from[dp + 1] * b;
}

}  // namespace
}  // namespace riptide::ops
