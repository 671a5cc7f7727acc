// What op tests share: a context whose memory is poisoned, random rows, comparison against derived bounds. One test
// body runs on either device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "ops/batch.h"
#include "quant/placement.h"
#include "quant/weight_store.h"
#include "tensor/context.h"
#include "tests/test_device.h"

namespace riptide {

/// A context on the device that the tests run on. Arena memory reads as NaN until an op writes it.
class OpContext {
  public:
    /// `gpu` null: the CPU, whatever the tests run on.
    explicit OpContext(int threads = 2, int64_t bytes = int64_t{4} << 20, Gpu* gpu = test_gpu())
        : pool_(threads), arena_(bytes, gpu), inputs_(int64_t{1} << 16, gpu), bytes_(bytes) {
        ctx.gpu = gpu;
        ctx.threads = &pool_;
        ctx.arena = &arena_;
        poison();
    }
    explicit OpContext(Family family, int threads = 2) : OpContext(threads) { ctx.family = family; }
    /// Forgets all tensors and poisons their memory.
    void poison() {
        arena_.reset();
        void* memory = arena_.allocate(bytes_ - 4096);
        if (ctx.gpu != nullptr) ctx.gpu->fill(memory, 0xFF, bytes_ - 4096);
        else std::memset(memory, 0xFF, static_cast<size_t>(bytes_ - 4096));
        arena_.reset();
    }

    // What an op reads, on its device. Tensors lie in the arena, until poison(); all else lives as long as the context.
    Tensor tensor(const std::vector<float>& values, std::initializer_list<int64_t> shape) {
        Tensor t = ctx.alloc(DType::f32, shape);
        EXPECT_EQ(t.elements(), static_cast<int64_t>(values.size()));
        copy_in(t.data, values.data(), values.size());
        return t;
    }
    Tensor int_tensor(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape) {
        Tensor t = ctx.alloc(DType::i32, shape);
        EXPECT_EQ(t.elements(), static_cast<int64_t>(values.size()));
        copy_in(t.data, values.data(), values.size());
        return t;
    }
    std::span<const float> floats(const std::vector<float>& values) { return kept<float>(values); }
    std::span<const int32_t> ints(std::span<const int32_t> values) { return kept<int32_t>(values); }
    /// The batch with its arrays on the device, uploaded as one.
    Batch batch(const Batch& host) {
        if (ctx.gpu == nullptr) return host;
        Batch out = host;
        std::vector<int32_t> all;
        std::span<const int32_t>* const arrays[] = {&out.tokens,     &out.positions,  &out.row_sequence,
                                                    &out.parent,     &out.row_begin,  &out.committed,
                                                    &out.page_table, &out.state_slot, &out.logit_rows};
        for (const std::span<const int32_t>* array : arrays) all.insert(all.end(), array->begin(), array->end());
        const int32_t* next = ints(all).data();
        for (std::span<const int32_t>* array : arrays) {
            *array = {next, array->size()};
            next += array->size();
        }
        return out;
    }
    /// The weight as the device's kernels read it; on the CPU itself.
    Weight weight(const Weight& host) { return ctx.gpu == nullptr ? host : experts({host}).front(); }
    /// Weights of one shape and type, placed one after the other.
    std::vector<Weight> experts(const std::vector<Weight>& host) {
        if (ctx.gpu == nullptr) return host;
        if (brief_counts())
            if (std::vector<Weight> placed = brought(host); !placed.empty()) return placed;
        stores_.push_back(std::make_unique<WeightStore>(ctx.gpu));  // each its own: a store knows matrices by address
        std::vector<Weight> placed;
        if (host.size() == 1) placed.push_back(stores_.back()->matrix(host.front()));
        else placed = stores_.back()->experts(host);
        stores_.back()->finish();
        return placed;
    }
    Context ctx;

  private:
    /// The bytes that a store's kernels would make, made by the host and brought over in one copy: a store has streams,
    /// pinned memory and a launch for each matrix, which a tool that slows them down takes a second to see, and
    /// tests/quant has a test of. Equal matrices are made once. Empty: what a store would convert.
    std::vector<Weight> brought(const std::vector<Weight>& host) {
        std::vector<Placement> plans;
        for (const Weight& w : host) {
            plans.push_back(plan_placement(w));
            if (!same_layout(plans.back(), plans[0]) || w.scale != host[0].scale) return {};
        }
        const auto stride = static_cast<size_t>(plans[0].bytes());
        std::vector<std::byte> memory(stride * host.size() + 15);
        std::byte* const base =
            reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
        std::map<const void*, std::byte*> made;
        for (size_t e = 0; e < host.size(); ++e) {
            const auto [at, fresh] = made.try_emplace(host[e].data, base + e * stride);
            if (fresh) place_on_host(host[e], plans[e], at->second);
            else std::memcpy(base + e * stride, at->second, stride);
        }
        weights_.emplace_back(ctx.gpu, static_cast<int64_t>(stride * host.size()), "weights");
        ctx.gpu->to_device(weights_.back().data(), base, weights_.back().bytes());
        std::vector<Weight> placed;
        for (size_t e = 0; e < host.size(); ++e) placed.push_back(plans[e].at(weights_.back().data() + e * stride));
        return placed;
    }

    template <class T>
    void copy_in(void* to, const T* from, size_t count) {
        if (count == 0) return;
        if (ctx.gpu != nullptr) ctx.gpu->to_device(to, from, static_cast<int64_t>(count * sizeof(T)));
        else std::memcpy(to, from, count * sizeof(T));
    }
    template <class T>
    std::span<const T> kept(std::span<const T> values) {
        if (values.empty()) return {};
        void* memory = inputs_.allocate(static_cast<int64_t>(values.size_bytes()));
        copy_in(memory, values.data(), values.size());
        return {static_cast<const T*>(memory), values.size()};
    }

    ThreadPool pool_;
    Arena arena_, inputs_;
    int64_t bytes_;
    std::vector<std::unique_ptr<WeightStore>> stores_;
    std::vector<DeviceMemory> weights_;
};

/// Rows of one step that every kernel family takes: the decode family of a GPU takes 256.
inline int64_t most_rows(const Context& ctx) {
    return ctx.gpu != nullptr && ctx.family == Family::decode ? 256 : int64_t{1} << 20;
}

/// Tokens of the next step of a chain of `all` that is fed `chunk` at a time; with --brief small chunks come last only,
/// behind chunks of 64 or `most`.
inline size_t step_of(size_t all, size_t begin, size_t chunk, size_t most = 64) {
    const size_t last = 2 * chunk + 3;
    if (brief_counts() && chunk < 20 && all - begin > last) return std::min({size_t{64}, most, all - begin - last});
    return std::min(chunk, all - begin);
}

/// Of `all` rows: how many --brief leaves out in front of the last ones.
inline size_t brief_skip(size_t all, size_t last) { return brief_counts() && all > last ? all - last : 0; }

/// Thread counts that must agree.
inline std::vector<int> thread_counts() {
    return test_gpu() == nullptr ? std::vector<int>{1, 2, 3} : std::vector<int>{1};
}

inline std::vector<float> normals(size_t n, uint64_t seed, float scale = 1.0f) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    return x;
}

/// The elements of a contiguous tensor of either device.
template <class T = float>
std::vector<T> values_of(const Tensor& t) {
    EXPECT_TRUE(t.contiguous());
    EXPECT_EQ(t.dtype == DType::i32, (std::is_same_v<T, int32_t>));
    std::vector<T> values(static_cast<size_t>(t.elements()));
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    if (bytes == 0) return values;
    if (Gpu* gpu = test_gpu()) {
        gpu->copy(values.data(), t.data, bytes);
        gpu->synchronize();
    } else {
        std::memcpy(values.data(), t.data, static_cast<size_t>(bytes));
    }
    return values;
}

inline bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_TRUE(same_bits(&a[i], &b[i], 1)) << what << ": element " << i << ": " << a[i] << " != " << b[i];
}

/// `values` in the arena of a device, and `count` values from there.
template <class T>
T* upload(OpContext& op, const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    auto* p = static_cast<T*>(op.ctx.arena->allocate(bytes));
    if (bytes > 0) op.ctx.gpu->to_device(p, values.data(), bytes);
    return p;
}

template <class T>
std::vector<T> download(OpContext& op, const T* p, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) op.ctx.gpu->to_host(values.data(), p, count * static_cast<int64_t>(sizeof(T)));
    return values;
}

/// What an op chose for every row, on the host.
struct Routed {
    std::vector<int32_t> experts;
    std::vector<float> weights;
};

constexpr double kUnitF32 = 0x1p-24;

/// The largest error over its allowance; NaN counts as infinite.
class BoundCheck {
  public:
    void add(double value, double reference, double allowed) {
        const double error = std::abs(value - reference);
        const double share = error == 0 ? 0 : error / allowed;
        worst_ = std::isnan(share) ? std::numeric_limits<double>::infinity() : std::max(worst_, share);
    }
    double worst() const { return worst_; }

  private:
    double worst_ = 0;
};

}  // namespace riptide
