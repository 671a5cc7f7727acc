#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/gated_delta.h"

namespace riptide::ops {

namespace {

template <class Acc>
Acc silu(Acc t) {
    return t / (Acc{1} + std::exp(-t));
}

/// x <- scale * x / sqrt(|x|^2 + 1e-6).
template <class Acc>
void normalise_ref(Acc* x, int64_t d, Acc scale) {
    Acc squares = 0;
    for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
    for (int64_t i = 0; i < d; ++i) x[i] *= scale / std::sqrt(squares + Acc{1e-6f});
}

/// One step of one value head. o [dv].
template <class Acc>
void recur(Acc* state, const Acc* q, const Acc* k, const Acc* v, Acc g, Acc beta, const DeltaView& view, Acc* o) {
    const int64_t dk = view.key_dim, dv = view.value_dim;
    for (int64_t i = 0; i < dk * dv; ++i) state[i] *= std::exp(g);
    for (int64_t j = 0; j < dv; ++j) {
        Acc recalled = 0;
        for (int64_t i = 0; i < dk; ++i) recalled += state[i * dv + j] * k[i];
        const Acc d = beta * (v[j] - recalled);
        o[j] = 0;
        for (int64_t i = 0; i < dk; ++i) o[j] += (state[i * dv + j] += k[i] * d) * q[i];
    }
}

}  // namespace

template <class Acc>
void gated_delta_ref(const GatedDeltaInput& in, const DeltaView& view, Acc* conv, Acc* state, Acc* y) {
    const int64_t channels = view.channels(), width = view.conv_width, keys = view.key_heads * view.key_dim;
    const int64_t dk = view.key_dim, dv = view.value_dim;
    std::vector<Acc> c(static_cast<size_t>(channels));
    for (int64_t r = 0; r < in.qkv.rows(); ++r, y += view.value_heads * dv) {
        const float* u = in.qkv.row(r);
        for (int64_t e = 0; e < channels; ++e) {
            const float* taps = in.conv.data() + e * width;
            Acc sum = Acc{taps[width - 1]} * Acc{u[e]};
            for (int64_t i = 0; i + 1 < width; ++i) sum += Acc{taps[i]} * conv[i * channels + e];
            c[static_cast<size_t>(e)] = silu(sum);
        }
        if (width > 1) {
            std::copy(conv + channels, conv + (width - 1) * channels, conv);
            std::copy_n(u, channels, conv + (width - 2) * channels);
        }
        for (int64_t h = 0; h < view.key_heads; ++h) {
            normalise_ref(c.data() + h * dk, dk, Acc{1} / std::sqrt(static_cast<Acc>(dk)));
            normalise_ref(c.data() + keys + h * dk, dk, Acc{1});
        }
        for (int64_t h = 0; h < view.value_heads; ++h) {
            const auto at = static_cast<size_t>(h);
            const Acc t = Acc{in.a.row(r)[h]} + Acc{in.dt_bias[at]};
            const Acc g = (std::max(t, Acc{0}) + std::log1p(std::exp(-std::abs(t)))) * Acc{in.decay[at]};
            const Acc beta = Acc{1} / (Acc{1} + std::exp(-Acc{in.b.row(r)[h]}));
            const Acc* q = c.data() + view.key_head(h) * dk;
            Acc* o = y + h * dv;
            recur(state + h * dk * dv, q, q + keys, c.data() + 2 * keys + h * dv, g, beta, view, o);
            Acc squares = 0;
            for (int64_t j = 0; j < dv; ++j) squares += o[j] * o[j];
            const Acc scale = Acc{1} / std::sqrt(squares / static_cast<Acc>(dv) + Acc{in.norm.eps});
            for (int64_t j = 0; j < dv; ++j)
                o[j] =
                    Acc{in.norm.weight[static_cast<size_t>(j)]} * (o[j] * scale) * silu(Acc{in.z.row(r)[h * dv + j]});
        }
    }
}

template void gated_delta_ref<float>(const GatedDeltaInput&, const DeltaView&, float*, float*, float*);
template void gated_delta_ref<double>(const GatedDeltaInput&, const DeltaView&, double*, double*, double*);

}  // namespace riptide::ops
