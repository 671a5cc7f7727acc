// Data for the quantisation tests: reference files, and seeded values of several characters.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/source_dir.h"
#include "tensor/dtype.h"

namespace riptide::test {

/// Input, quantised bytes and dequantised values of one type, from another implementation.
struct ReferenceFile {
    std::string name;
    DType type;
    std::vector<float> input;
    std::vector<uint8_t> bytes;
    std::vector<float> values;
};

inline const std::vector<DType>& reference_types() {
    static const std::vector<DType> types = {DType::q8_0,   DType::q4_0,   DType::q4_1,  DType::q5_0,  DType::q5_1,
                                             DType::q2_k,   DType::q3_k,   DType::q4_k,  DType::q5_k,  DType::q6_k,
                                             DType::iq4_nl, DType::iq4_xs, DType::mxfp4, DType::nvfp4, DType::tq2_0};
    return types;
}

/// Reads the file of a type: u32 n, u32 nbytes, f32 input[n], bytes, f32 values[n]. False with a reason if it is not
/// there.
inline bool read_reference(DType type, ReferenceFile& file, std::string& reason) {
    std::string name = dtype_name(type);
    if (name.ends_with("_k")) name.back() = 'K';
    file.name = name + ".bin";
    file.type = type;
    const std::string path = conformance_dir() + "/quants/" + file.name;
    std::ifstream in(path, std::ios::binary);
    if (!in) {
        reason = "no reference data: " + path;
        return false;
    }
    uint32_t counts[2] = {};
    in.read(reinterpret_cast<char*>(counts), sizeof counts);
    file.input.resize(counts[0]);
    file.bytes.resize(counts[1]);
    file.values.resize(counts[0]);
    in.read(reinterpret_cast<char*>(file.input.data()),
            static_cast<std::streamsize>(file.input.size() * sizeof(float)));
    in.read(reinterpret_cast<char*>(file.bytes.data()), static_cast<std::streamsize>(file.bytes.size()));
    in.read(reinterpret_cast<char*>(file.values.data()),
            static_cast<std::streamsize>(file.values.size() * sizeof(float)));
    EXPECT_TRUE(in.good() && in.peek() == std::ifstream::traits_type::eof())
        << file.name << " has another size than it says";
    return true;
}

/// Root mean squared difference, in double.
inline double rms_error(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    return std::sqrt(sum / static_cast<double>(a.size()));
}

inline std::vector<float> gaussian(int64_t n, uint32_t seed, float sigma = 1.0f) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> draw(0.0f, sigma);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = draw(engine);
    return values;
}

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace riptide::test
