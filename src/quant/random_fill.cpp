#include "quant/random_fill.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"

namespace riptide {

namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): a counter through a mixing function.
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    /// Uniform in [0, 1).
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
    /// Uniform with mean 0 and standard deviation sigma.
    float centred(float sigma) { return (2 * uniform() - 1) * sigma * 1.7320508f; }
    float sign() { return (next() & 1) != 0 ? 1.0f : -1.0f; }
};

void fill_bits(uint8_t* dst, int64_t bytes, Random& random) {
    int64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        const uint64_t word = random.next();
        std::memcpy(dst + i, &word, 8);
    }
    const uint64_t word = random.next();
    std::memcpy(dst + i, &word, static_cast<size_t>(bytes - i));
}

void put_f16(uint8_t* dst, float value) {
    const uint16_t half = f32_to_f16(value);
    std::memcpy(dst, &half, 2);
}

/// The 12 bytes of eight 6-bit (scale, min) pairs of Q4_K and Q5_K with min = scale, both in 33..63.
void put_k_scales(uint8_t* dst, Random& random) {
    uint64_t bits = random.next();
    for (int j = 0; j < 4; ++j) {
        const auto low = static_cast<uint8_t>(33 + (bits & 31) % 31);
        const auto high = static_cast<uint8_t>(33 + (bits >> 5 & 31) % 31);
        bits >>= 10;
        dst[j] = dst[j + 4] = static_cast<uint8_t>(low | (high >> 4) << 6);
        dst[j + 8] = static_cast<uint8_t>((high & 15) | (high & 15) << 4);
    }
}

constexpr float kMeanKScale = 48.0f;

/// Scale fields of one block whose code bits are already random. The constants are the standard deviations of the codes.
void put_scales(DType type, uint8_t* b, float sigma, Random& random) {
    const float vary = 0.75f + 0.5f * random.uniform();
    switch (type) {
        case DType::q8_0: return put_f16(b, sigma * vary / 73.9f);
        case DType::q4_0: return put_f16(b, random.sign() * sigma * vary / 4.61f);
        case DType::q5_0: return put_f16(b, random.sign() * sigma * vary / 9.23f);
        case DType::iq4_nl: return put_f16(b, random.sign() * sigma * vary / 70.0f);
        case DType::q4_1:
            put_f16(b, sigma * vary / 4.61f);
            return put_f16(b + 2, -7.5f * sigma * vary / 4.61f);
        case DType::q5_1:
            put_f16(b, sigma * vary / 9.23f);
            return put_f16(b + 2, -15.5f * sigma * vary / 9.23f);
        case DType::q2_k:
            for (int i = 0; i < 16; ++i) {
                const auto s = static_cast<uint8_t>(4 + (b[i] & 7));
                b[i] = static_cast<uint8_t>(s | s << 4);
            }
            put_f16(b + 80, sigma * vary / (7.5f * 1.12f));
            return put_f16(b + 82, 1.5f * sigma * vary / (7.5f * 1.12f));
        case DType::q3_k: return put_f16(b + 108, random.sign() * sigma * vary / (18.5f * 2.35f));
        case DType::q4_k:
            put_f16(b, sigma * vary / (kMeanKScale * 4.61f));
            put_f16(b + 2, 7.5f * sigma * vary / (kMeanKScale * 4.61f));
            return put_k_scales(b + 4, random);
        case DType::q5_k:
            put_f16(b, sigma * vary / (kMeanKScale * 9.23f));
            put_f16(b + 2, 15.5f * sigma * vary / (kMeanKScale * 9.23f));
            return put_k_scales(b + 4, random);
        case DType::q6_k: return put_f16(b + 208, sigma * vary / (73.9f * 18.5f));
        case DType::iq4_xs: return put_f16(b, sigma * vary / (18.5f * 70.0f));
        case DType::tq2_0:
            for (int i = 0; i < 64; ++i) b[i] = static_cast<uint8_t>(b[i] & ~(b[i] << 1 & 0xAA));  // no code 3
            return put_f16(b + 64, random.sign() * sigma * vary / 0.8f);
        case DType::tq1_0: return put_f16(b + 52, random.sign() * sigma * vary / 0.817f);
        case DType::iq1_s: return put_f16(b, random.sign() * sigma * vary / 7.2f);
        case DType::iq1_m: {
            const uint16_t d = f32_to_f16(random.sign() * sigma * vary / 7.2f);
            for (int i = 0; i < 4; ++i)
                b[49 + 2 * i] = static_cast<uint8_t>((b[49 + 2 * i] & 15) | (d >> (4 * i) & 15) << 4);
            return;
        }
        case DType::iq2_xxs: return put_f16(b, random.sign() * sigma * vary / 53.1f);
        case DType::iq2_xs:
        case DType::iq2_s: return put_f16(b, random.sign() * sigma * vary / 56.0f);
        case DType::iq3_xxs:
        case DType::iq3_s: return put_f16(b, random.sign() * sigma * vary / 141.5f);
        case DType::mxfp4: {
            const int exponent = static_cast<int>(std::lround(std::log2(sigma / 2.7f))) + 127;
            b[0] = static_cast<uint8_t>(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent);
            return;
        }
        case DType::nvfp4:
            for (int i = 0; i < 4; ++i) b[i] = f32_to_f8_e4m3(sigma * (0.75f + 0.5f * random.uniform()) / 2.7f * 1.0f);
            return;
        default: RT_CHECK(false, "random weights cannot be made in {}", dtype_name(type));
    }
}

}  // namespace

void random_fill(DType type, void* dst, int64_t n, float sigma, uint64_t seed) {
    Random random{seed};
    auto* bytes = static_cast<uint8_t*>(dst);
    const DTypeInfo& info = dtype_info(type);
    if (info.block_elements == 1) {
        for (int64_t i = 0; i < n; ++i, bytes += info.block_bytes) {
            float value = random.centred(sigma);
            if (type == DType::f32) value = bf16_to_f32(f32_to_bf16(value));
            const uint16_t half = type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
            if (type == DType::f32) std::memcpy(bytes, &value, 4);
            else if (type == DType::f16 || type == DType::bf16) std::memcpy(bytes, &half, 2);
            else if (type == DType::f8_e4m3) *bytes = f32_to_f8_e4m3(value);
            else fail("random weights cannot be made in {}", info.name);
        }
        return;
    }
    const int64_t total = row_bytes(type, n);
    fill_bits(bytes, total, random);
    for (int64_t at = 0; at < total; at += info.block_bytes) put_scales(type, bytes + at, sigma, random);
}

}  // namespace riptide
