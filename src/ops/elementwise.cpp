#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/lanes.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/op_cost.h"

namespace riptide::ops {

namespace {

constexpr int64_t kExpCost = 16;  // scalar operations that an exponential is worth

bool same_shape(const Tensor& a, const Tensor& b) { return a.rank == b.rank && a.shape == b.shape; }

void require_f32(const Tensor& t) { RT_ASSERT(t.dtype == DType::f32 && t.contiguous()); }

template <class Acc>
Acc softplus(Acc t) {
    return std::max(t, Acc{0}) + std::log1p(std::exp(-std::abs(t)));
}

}  // namespace

template <class Acc>
void swiglu_ref(const float* gate, const float* up, int64_t n, Acc* z) {
    for (int64_t i = 0; i < n; ++i) {
        const Acc t = gate[i];
        z[i] = t / (Acc{1} + std::exp(-t)) * Acc{up[i]};
    }
}

template <class Acc>
void mul_softplus_ref(const float* o, const float* g, int64_t n, int64_t repeat, Acc* y) {
    for (int64_t i = 0; i < n; i += repeat) {
        const Acc s = softplus(Acc{g[i / repeat]});
        for (int64_t j = i; j < i + repeat; ++j) y[j] = Acc{o[j]} * s;
    }
}

template <class Acc>
void mul_sigmoid_ref(const float* o, const float* g, int64_t n, int64_t repeat, Acc* y) {
    for (int64_t i = 0; i < n; i += repeat) {
        const Acc s = Acc{1} / (Acc{1} + std::exp(-Acc{g[i / repeat]}));
        for (int64_t j = i; j < i + repeat; ++j) y[j] = Acc{o[j]} * s;
    }
}

template void swiglu_ref<float>(const float*, const float*, int64_t, float*);
template void swiglu_ref<double>(const float*, const float*, int64_t, double*);
template void mul_softplus_ref<float>(const float*, const float*, int64_t, int64_t, float*);
template void mul_softplus_ref<double>(const float*, const float*, int64_t, int64_t, double*);
template void mul_sigmoid_ref<float>(const float*, const float*, int64_t, int64_t, float*);
template void mul_sigmoid_ref<double>(const float*, const float*, int64_t, int64_t, double*);

void mul_softplus_row(float* y, const float* g, int64_t n, int64_t repeat) {  // the bits of mul_softplus_ref<float>
    for (int64_t i = 0; i < n; i += repeat, y += repeat, ++g) {
        const float s = softplus(*g);
        map4(
            repeat, y, [=](int64_t j) { return load4(y + j) * s; }, [=](int64_t j) { return y[j] * s; });
    }
}

void add_row(float* x, const float* y, int64_t n) {
    map4(
        n, x, [=](int64_t i) { return load4(x + i) + load4(y + i); }, [=](int64_t i) { return x[i] + y[i]; });
}

void add(Context& ctx, Tensor& x, const Tensor& y) {
    require_f32(x);
    require_f32(y);
    RT_ASSERT(same_shape(x, y) && !x.routed.words);
    x.routed = {};
    const OpScope told = announce(ctx, "add", x.rows());
    if (ctx.gpu != nullptr) return cuda::add(ctx, x, y);
    float* a = x.row(0);
    const float* b = y.row(0);
    parallel_rows(ctx, x.elements(), 1,
                  [=](int64_t begin, int64_t end, int) { add_row(a + begin, b + begin, end - begin); });
}

Tensor swiglu(Context& ctx, const Tensor& gate, const Tensor& up) {
    require_f32(gate);
    require_f32(up);
    RT_ASSERT(gate.rank == 2 && same_shape(gate, up));
    if (ctx.gpu != nullptr) return cuda::swiglu(ctx, gate, up);
    Tensor z = ctx.alloc(DType::f32, {gate.shape[0], gate.shape[1]});
    parallel_rows(ctx, z.elements(), kExpCost, [&](int64_t begin, int64_t end, int) {
        swiglu_ref<float>(gate.row(0) + begin, up.row(0) + begin, end - begin, z.row(0) + begin);
    });
    return z;
}

namespace {

void check_gates(const Tensor& o, const Tensor& g, int64_t heads) {
    require_f32(o);
    require_f32(g);
    RT_ASSERT(o.rows() == g.rows() && heads > 0 && o.row_elements() % heads == 0);
    RT_ASSERT(g.row_elements() == heads || g.row_elements() == o.row_elements());
}

}  // namespace

void mul_softplus(Context& ctx, Tensor& o, const Tensor& g, int64_t heads) {
    check_gates(o, g, heads);
    if (ctx.gpu != nullptr) return cuda::mul_softplus(ctx, o, g, heads);
    const int64_t repeat = g.elements() == 0 ? 1 : o.elements() / g.elements();
    parallel_rows(ctx, g.elements(), repeat + kExpCost, [&](int64_t begin, int64_t end, int) {
        mul_softplus_row(o.row(0) + begin * repeat, g.row(0) + begin, (end - begin) * repeat, repeat);
    });
}

void mul_sigmoid(Context& ctx, Tensor& o, const Tensor& g, int64_t heads) {
    check_gates(o, g, heads);
    const OpScope told = announce(ctx, "mul_sigmoid", o.rows());
    if (ctx.gpu != nullptr) return cuda::mul_sigmoid(ctx, o, g, heads);
    const int64_t repeat = g.elements() == 0 ? 1 : o.elements() / g.elements();
    parallel_rows(ctx, g.elements(), repeat + kExpCost, [&](int64_t begin, int64_t end, int) {
        float* y = o.row(0) + begin * repeat;
        mul_sigmoid_ref<float>(y, g.row(0) + begin, (end - begin) * repeat, repeat, y);
    });
}

HeadsAndGates split_gates(Context& ctx, const Tensor& x, int64_t heads) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous() && heads > 0 && x.shape[1] % (2 * heads) == 0);
    const OpScope told = announce(ctx, "split_gates", x.rows());
    if (ctx.gpu != nullptr) return cuda::split_gates(ctx, x, heads);
    const int64_t d = x.shape[1] / (2 * heads);
    HeadsAndGates out{ctx.alloc(DType::f32, {x.rows(), heads * d}), ctx.alloc(DType::f32, {x.rows(), heads * d})};
    parallel_rows(ctx, x.rows() * heads, 2 * d, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            std::copy_n(x.row(0) + 2 * i * d, d, out.heads.row(0) + i * d);
            std::copy_n(x.row(0) + (2 * i + 1) * d, d, out.gates.row(0) + i * d);
        }
    });
    return out;
}

}  // namespace riptide::ops
