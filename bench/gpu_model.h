// Random weights in the sizes of Laguna XS.2 on a GPU, for benches: 20 GB in Q4_K_M, every layer its own.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "quant/planes.h"
#include "tensor/context.h"

namespace riptide::bench {

inline constexpr int64_t kHidden = 2048, kLayers = 40, kExperts = 256, kTopK = 8, kFf = 512, kDenseFf = 8192,
                         kVocab = 100352;

/// Device memory with random matrices of any type, the same bytes in different places.
class Weights {
  public:
    explicit Weights(Gpu& gpu) : gpu_(gpu), random_(7) {}

    bool float8_blocks = false;  // fp8 matrices have a bf16 scale for each block of 128 x 128, not one for all

    std::vector<Weight> stack(DType type, int64_t rows, int64_t cols, int64_t count) {
        Weight w;
        w.dtype = type;
        w.rows = rows;
        w.cols = cols;
        w.row_bytes = row_bytes_of(type, cols);
        w.scale = type == DType::f8_e4m3 && !float8_blocks ? 0.01f : 1.0f;
        const std::vector<uint8_t> scales = scale_plane(w), high(static_cast<size_t>(high_bytes(w)), 0x9C);
        const int64_t data = align(w.bytes()), high_at = align(high_bytes(w)),
                      each = data + high_at + align(bytes_of(scales));
        memory_.emplace_back(&gpu_, each * count, "weights");
        std::vector<uint8_t> first(static_cast<size_t>(each));
        fill(type, first.data(), w.bytes());
        std::copy(high.begin(), high.end(), first.begin() + data);
        std::copy(scales.begin(), scales.end(), first.begin() + data + high_at);
        std::byte* base = memory_.back().data();
        gpu_.to_device(base, first.data(), each);
        std::vector<Weight> all;
        for (int64_t i = 0; i < count; ++i) {
            std::byte* at = base + i * each;
            if (i > 0) gpu_.copy(at, base, each);
            w.data = at;
            w.high = high.empty() ? nullptr : at + data;
            w.scales = scales.empty() ? nullptr : at + data + high_at;
            all.push_back(w);
        }
        return all;
    }
    Weight matrix(DType type, int64_t rows, int64_t cols) { return stack(type, rows, cols, 1).front(); }
    std::span<const float> norm() {
        const std::vector<float> ones(static_cast<size_t>(kHidden), 1.0f);
        memory_.emplace_back(&gpu_, kHidden * 4, "norm");
        gpu_.to_device(memory_.back().data(), ones.data(), kHidden * 4);
        return {reinterpret_cast<const float*>(memory_.back().data()), ones.size()};
    }

  private:
    static int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }
    static int64_t bytes_of(const std::vector<uint8_t>& v) { return static_cast<int64_t>(v.size()); }
    static int64_t row_bytes_of(DType type, int64_t cols) {
        if (type == DType::planes_int8) return cols;
        return is_planes(type) ? cols / 2 : cols * dtype_info(type).block_bytes;
    }
    static int64_t high_bytes(const Weight& w) {
        return w.dtype == DType::planes_q6_k   ? w.rows * w.cols / 4
               : w.dtype == DType::planes_q5_k ? w.rows * w.cols / 8
                                               : 0;
    }
    void fill(DType type, uint8_t* p, int64_t bytes) {
        for (int64_t i = 0; i < bytes; i += 8) {
            uint64_t word = random_();
            if (type == DType::bf16) word = (word & 0x807F807F807F807Full) | 0x3C003C003C003C00ull;
            if (type == DType::f16) word = (word & 0x83FF83FF83FF83FFull) | 0x2000200020002000ull;
            if (type == DType::f8_e4m3) word &= 0xB7B7B7B7B7B7B7B7ull;
            if (type == DType::f32) word = (word & 0x807FFFFF807FFFFFull) | 0x3C0000003C000000ull;
            std::memcpy(p + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
        }
    }
    /// d = 2^-13, dmin = 2^-10; planes of bf16 2^-7, one for 32 columns or 128 x 128 values.
    std::vector<uint8_t> scale_plane(Weight& w) {
        std::vector<uint8_t> plane;
        const int64_t blocks = w.rows * w.cols / 256;
        if (w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q5_k) {
            plane.resize(static_cast<size_t>(blocks * 16));
            fill(w.dtype, plane.data(), blocks * 16);
            const uint16_t d[2] = {0x0800, 0x1400};
            for (int64_t b = 0; b < blocks; ++b) std::memcpy(plane.data() + 16 * b + 12, d, 4);
        } else if (w.dtype == DType::planes_q6_k) {
            plane.resize(static_cast<size_t>(blocks * 18));
            fill(w.dtype, plane.data(), blocks * 16);
            const uint16_t d = 0x0800;
            for (int64_t b = 0; b < blocks; ++b) std::memcpy(plane.data() + 16 * blocks + 2 * b, &d, 2);
        } else if (is_planes(w.dtype) || (w.dtype == DType::f8_e4m3 && float8_blocks)) {
            const int64_t rows = is_planes(w.dtype) ? 1 : 128, cols = is_planes(w.dtype) ? 32 : 128;
            w.scale_dtype = DType::bf16;
            w.scale_rows = rows;
            w.scale_cols = cols;
            plane.resize(static_cast<size_t>(2 * ((w.rows + rows - 1) / rows) * (w.cols / cols)));
            const uint16_t d = 0x3C00;
            for (size_t i = 0; i < plane.size(); i += 2) std::memcpy(plane.data() + i, &d, 2);
        }
        return plane;
    }

    Gpu& gpu_;
    std::mt19937_64 random_;
    std::vector<DeviceMemory> memory_;
};

struct Layer {
    std::span<const float> norm;
    Weight q, k, v, gate, o;
    Weight dense_gate, dense_up, dense_down;  // layer 0
    Weight router, shared_gate, shared_up, shared_down;
    ops::ExpertWeights experts;

    std::vector<const Weight*> attention() const { return {&q, &k, &v, &gate}; }
    ops::SharedExpert shared() const { return {&shared_gate, &shared_up, &shared_down}; }
};

struct Model {
    std::vector<Layer> layers;
    Weight head;

    Model(Weights& weights, const std::string& type) {
        const bool mixed = type == "q4_k_m", official = type == "fp8";
        RT_CHECK(mixed || official || type == "bf16" || type == "f16" || type == "f8" || type == "int4",
                 "--type {}: not q4_k_m, bf16, f16, f8, fp8 or int4", type);
        const DType most = mixed                      ? DType::planes_q4_k
                           : type == "bf16"           ? DType::bf16
                           : type == "f16"            ? DType::f16
                           : official || type == "f8" ? DType::f8_e4m3
                                                      : DType::planes_int4;
        weights.float8_blocks = official;
        const DType dense = official ? DType::bf16 : most;  // attention
        head = weights.matrix(mixed ? DType::planes_q6_k : dense, kVocab, kHidden);
        for (int64_t i = 0; i < kLayers; ++i) {
            // llama-quantize gives more bits to the first and last eighth of the layers and to every third between.
            const bool more = mixed && (i < kLayers / 8 || i >= 7 * kLayers / 8 || (i - kLayers / 8) % 3 == 2);
            const DType better = more ? DType::planes_q6_k : most;
            const int64_t heads = i % 4 == 0 ? 48 : 64;
            Layer l;
            l.norm = weights.norm();
            l.q = weights.matrix(dense, heads * 128, kHidden);
            l.k = weights.matrix(dense, 1024, kHidden);
            l.v = weights.matrix(official ? dense : better, 1024, kHidden);
            l.gate = weights.matrix(dense, heads, kHidden);
            l.o = weights.matrix(dense, kHidden, heads * 128);
            if (i == 0) {
                l.dense_gate = weights.matrix(most, kDenseFf, kHidden);
                l.dense_up = weights.matrix(most, kDenseFf, kHidden);
                l.dense_down = weights.matrix(better, kHidden, kDenseFf);
            } else {
                l.router = weights.matrix(DType::bf16, kExperts, kHidden);
                l.experts = {weights.stack(most, kFf, kHidden, kExperts), weights.stack(most, kFf, kHidden, kExperts),
                             weights.stack(better, kHidden, kFf, kExperts)};
                l.shared_gate = weights.matrix(most, kFf, kHidden);
                l.shared_up = weights.matrix(most, kFf, kHidden);
                l.shared_down = weights.matrix(better, kHidden, kFf);
            }
            layers.push_back(std::move(l));
        }
    }
};

inline double bytes_of(const Weight& w) { return static_cast<double>(placed_bytes(w)); }
inline double expert_bytes(const Layer& l, bool down) {
    const auto used = static_cast<double>(kTopK);
    if (down) return used * bytes_of(l.experts.down[0]) + bytes_of(l.shared_down);
    return used * (bytes_of(l.experts.gate[0]) + bytes_of(l.experts.up[0])) + bytes_of(l.shared_gate) +
           bytes_of(l.shared_up);
}

}  // namespace riptide::bench
