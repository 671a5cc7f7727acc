// How far from the exact ones the outputs and the state of gated_delta may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/ops/delta_world.h"
#include "tests/ops/product_bound.h"

namespace riptide {

// With u = 2^-24. exp is good to 2 ulp (4 u), other functions likewise.
//   c = silu(conv)    W u sum |w x| for W products and their sum, times the slope 1.1 of silu; 6 u |c|.
//   q, k              each element is off by e_c / rho, rho = |c|, of random sign; all together by the error of rho:
//                     random signs again, and the sum's roundings. A product with a vector x is off by
//                     sqrt(sum (x_i e_i)^2) for the first (each e_i being several deviations) and in proportion for the
//                     second.
//   e^g               g is off by |A| (u |t| + 9 u softplus(t)).
//   p = S^T k         dk products added in any order: 3 sqrt(dk) roundings of random sign of sums below |S_j| |k|.
//   S                 by columns S_j, in the 2-norm: what S_j is off by passes through e^g (1 - beta k k^T), whose norm
//   is
//                     at most 1, and every step adds its own roundings and what k, v, e^g and beta are off by.
//   y                 what o is off by, element by element, and through the norm's root mean square; but k . q has one
//                     error for all of o, and |q| too: what of it stretches o alone, the norm takes away.
// Second-order terms: 1 % on top.
class DeltaBound {
  public:
    DeltaBound(const ops::GatedDeltaInput& in, const DeltaView& view)
        : in_(in),
          view_(view),
          state_(static_cast<size_t>(view.state_elements())),
          error_(static_cast<size_t>(view.value_heads * view.value_dim)) {}

    /// The next row of the chain: y[Hv * dv].
    std::vector<Near> next() {
        convolve();
        const int64_t dk = view_.key_dim, dv = view_.value_dim, keys = view_.key_heads * dk;
        std::vector<Near> y;
        for (int64_t h = 0; h < view_.value_heads; ++h) {
            const int64_t key = view_.key_head(h);
            const Unit q = unit(key * dk, 1 / std::sqrt(static_cast<double>(dk)));
            const Unit k = unit(keys + key * dk, 1);
            std::vector<Near> o;
            d_.clear();
            for (int64_t j = 0; j < dv; ++j)
                o.push_back(recur(h, j, q, k, c_[static_cast<size_t>(2 * keys + h * dv + j)]));
            gate(o, q.shared, h);
            y.insert(y.end(), o.begin(), o.end());
        }
        ++row_;
        return y;
    }
    /// S[h, i, j] and the 2-norm by which column S[h, :, j] may be off.
    double state(int64_t h, int64_t i, int64_t j) const {
        return state_[static_cast<size_t>((h * view_.key_dim + i) * view_.value_dim + j)];
    }
    double state_error(int64_t h, int64_t j) const {
        return kSecond * error_[static_cast<size_t>(h * view_.value_dim + j)] + kTiny;
    }

  private:
    static constexpr double u = kUnitF32, kSecond = 1.01, kTiny = 0x1p-126;

    static double silu(double t) { return t / (1 + std::exp(-t)); }
    static double norm(const std::vector<Near>& x, double Near::*part) {
        double squares = 0;
        for (const Near& e : x) squares += e.*part * (e.*part);
        return std::sqrt(squares);
    }
    double roundings(double terms) const { return (3 * std::sqrt(terms) + 2) * u; }

    void convolve() {
        c_.clear();
        for (int64_t e = 0; e < view_.channels(); ++e) {
            double sum = 0, magnitude = 0;
            for (int64_t i = std::max<int64_t>(0, row_ - view_.conv_width + 1); i <= row_; ++i) {
                const double term = double{in_.conv[static_cast<size_t>((e + 1) * view_.conv_width - 1 - (row_ - i))]} *
                                    in_.qkv.row(i)[e];
                sum += term;
                magnitude += std::abs(term);
            }
            const double value = silu(sum), slope = 1.1 * static_cast<double>(view_.conv_width) * u * magnitude;
            c_.push_back({value, slope + 6 * u * std::abs(value)});
        }
    }
    /// A normalised head: elements with errors of their own, and the relative error that they share.
    struct Unit {
        std::vector<Near> x;
        double shared = 0;
        double size = 0, off = 0;  // 2-norms of the values and of all errors
    };
    Unit unit(int64_t channel, double scale) const {
        Unit unit;
        unit.x.assign(c_.begin() + channel, c_.begin() + channel + view_.key_dim);
        const double size = norm(unit.x, &Near::value), rho = std::sqrt(size * size + 1e-6);
        double along = 0;
        for (Near& e : unit.x) {
            along += std::pow(e.value / rho * (e.error / rho), 2);
            e = {scale * e.value / rho, scale * (e.error / rho + u * std::abs(e.value / rho))};
        }
        unit.shared = std::sqrt(along) + roundings(static_cast<double>(view_.key_dim) / 16 + 5) / 2 + 4 * u;
        unit.size = norm(unit.x, &Near::value);
        unit.off = norm(unit.x, &Near::error) + unit.shared * unit.size;
        return unit;
    }
    Near recur(int64_t h, int64_t j, const Unit& q, const Unit& k, const Near& v) {
        const auto at = static_cast<size_t>(h);
        const double t = double{in_.a.row(row_)[h]} + in_.dt_bias[at];
        const double softplus = std::max(t, 0.0) + std::log1p(std::exp(-std::abs(t)));
        const double decay = std::exp(softplus * in_.decay[at]);
        const double e_decay = decay * (std::abs(in_.decay[at]) * (u * std::abs(t) + 9 * u * softplus) + 4 * u);
        const double beta = 1 / (1 + std::exp(-double{in_.b.row(row_)[h]})), e_beta = 7 * u * beta;
        const int64_t dk = view_.key_dim, dv = view_.value_dim;
        double* column = state_.data() + h * dk * dv + j;
        double p = 0, s = 0, kq = 0, squares = 0, p_own = 0, s_own = 0, kq_own = 0;
        for (int64_t i = 0; i < dk; ++i) {
            const Near &ki = k.x[static_cast<size_t>(i)], &qi = q.x[static_cast<size_t>(i)];
            const double x = column[i * dv];
            p += x * ki.value;
            s += x * qi.value;
            kq += ki.value * qi.value;
            squares += x * x;
            p_own += std::pow(x * ki.error, 2);
            s_own += std::pow(x * qi.error, 2);
            kq_own += std::pow(ki.value * qi.error, 2) + std::pow(ki.error * qi.value, 2);
        }
        const double size = std::sqrt(squares), sum = roundings(static_cast<double>(dk));
        double& off = error_[static_cast<size_t>(h * dv + j)];
        const double rest = v.value - decay * p, d = beta * rest;
        const double e_p = std::sqrt(p_own) + k.shared * std::abs(p) + sum * size * k.size;
        const double e_s = std::sqrt(s_own) + sum * size * q.size;
        e_kq_ = std::sqrt(kq_own) + k.shared * std::abs(kq) + sum * k.size * q.size;
        d_.push_back(d);
        const double e_rest =
            v.error + decay * e_p + e_decay * std::abs(p) + u * (decay * std::abs(p) + std::abs(rest));
        const double e_d = beta * e_rest + e_beta * std::abs(rest) + u * std::abs(d);
        const Near o{decay * s + kq * d, decay * (off * q.size + e_s) + e_decay * std::abs(s) +
                                             std::abs(kq) * (e_d + beta * decay * off) +
                                             2 * u * (decay * std::abs(s) + std::abs(kq * d))};
        for (int64_t i = 0; i < dk; ++i)
            column[i * dv] = decay * column[i * dv] + k.x[static_cast<size_t>(i)].value * d;
        off = decay * off + e_decay * size + k.size * e_d + k.off * std::abs(d) +
              2 * u * (decay * size + k.size * std::abs(d));
        return o;
    }
    void gate(std::vector<Near>& o, double shared, int64_t h) const {
        const auto dv = static_cast<double>(view_.value_dim);
        const double size = norm(o, &Near::value), off = norm(o, &Near::error) / std::sqrt(dv);
        const double rms = std::sqrt(size * size / dv + double{in_.norm.eps});
        double along = 0;
        for (size_t j = 0; j < o.size(); ++j) along += o[j].value * d_[j] / (dv * rms * rms);
        for (size_t j = 0; j < o.size(); ++j) {
            const double stretch = e_kq_ * std::abs(d_[j] - o[j].value * along) +
                                   shared * std::abs(o[j].value) * double{in_.norm.eps} / (rms * rms);
            const double factor =
                in_.norm.weight[j] * silu(in_.z.row(row_)[h * view_.value_dim + static_cast<int64_t>(j)]) / rms;
            const double value = o[j].value * factor;
            const double e_value = std::abs(factor) * (o[j].error + stretch + std::abs(o[j].value) * off / rms);
            o[j] = {value, kSecond * (e_value + (roundings(dv / 16 + 5) + 10 * u) * std::abs(value)) + kTiny};
        }
    }

    const ops::GatedDeltaInput& in_;
    const DeltaView& view_;
    std::vector<double> state_, error_;
    std::vector<Near> c_;
    std::vector<double> d_;  // of one head
    double e_kq_ = 0;
    int64_t row_ = 0;
};

}  // namespace riptide
