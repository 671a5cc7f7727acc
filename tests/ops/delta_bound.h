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
//
// In chunks (tests give their rows): D, P, A, M, U as in chunked_sm90.cu, R = beta (V - P K S). Factors are off by
// 2^-17 each (pairs of bf16), sums of products by the 24 additions of tensor cores, which cut off at 2^-23 of the
// largest, D and P by 64 u: w = 2^-15 of the sum of magnitudes bounds all together, and Cauchy's inequality that sum
// for products with k and q. What U is off by is what R would have to be off by:
//   d                 w beta_i (P_i |S_j| + sum_l D_il |U_lj|) + w sum_m (|I + A| |M|)_im |R_mj|
//   o                 w |q| (P_i |S_j| + sum_l D_il |U_lj|)
//   S                 w (P_last |S_j| + sum_l D_last,l |U_lj|), behind a chunk
class DeltaBound {
  public:
    /// chunk: rows of one, 0: by rows.
    DeltaBound(const ops::GatedDeltaInput& in, const DeltaView& view, int64_t chunk = 0)
        : in_(in),
          view_(view),
          chunk_(chunk),
          state_(static_cast<size_t>(view.state_elements())),
          error_(static_cast<size_t>(view.value_heads * view.value_dim)) {}

    /// The next row of the chain: y[Hv * dv].
    std::vector<Near> next() {
        if (chunk_ > 0 && row_ % chunk_ == 0) look_ahead();
        c_ = convolved(row_);
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
    static constexpr double u = kUnitF32, kSecond = 1.01, kTiny = 0x1p-126, kPairs = 0x1p-15;

    static double silu(double t) { return t / (1 + std::exp(-t)); }
    static double norm(const std::vector<Near>& x, double Near::*part) {
        double squares = 0;
        for (const Near& e : x) squares += e.*part * (e.*part);
        return std::sqrt(squares);
    }
    double roundings(double terms) const { return (3 * std::sqrt(terms) + 2) * u; }

    std::vector<Near> convolved(int64_t row) const {
        std::vector<Near> c;
        for (int64_t e = 0; e < view_.channels(); ++e) {
            double sum = 0, magnitude = 0;
            for (int64_t i = std::max<int64_t>(0, row - view_.conv_width + 1); i <= row; ++i) {
                const double term = double{in_.conv[static_cast<size_t>((e + 1) * view_.conv_width - 1 - (row - i))]} *
                                    in_.qkv.row(i)[e];
                sum += term;
                magnitude += std::abs(term);
            }
            const double value = silu(sum), slope = 1.1 * static_cast<double>(view_.conv_width) * u * magnitude;
            c.push_back({value, slope + 6 * u * std::abs(value)});
        }
        return c;
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
        const Extra extra =
            chunk_ > 0 ? extra_[static_cast<size_t>((row_ % chunk_ * view_.value_heads + h) * dv + j)] : Extra{};
        const double e_d = beta * e_rest + e_beta * std::abs(rest) + u * std::abs(d) + extra.d;
        const Near o{decay * s + kq * d, extra.o + decay * (off * q.size + e_s) + e_decay * std::abs(s) +
                                             std::abs(kq) * (e_d + beta * decay * off) +
                                             2 * u * (decay * std::abs(s) + std::abs(kq * d))};
        for (int64_t i = 0; i < dk; ++i)
            column[i * dv] = decay * column[i * dv] + k.x[static_cast<size_t>(i)].value * d;
        off = decay * off + e_decay * size + k.size * e_d + k.off * std::abs(d) +
              2 * u * (decay * size + k.size * std::abs(d)) + extra.state;
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

    /// What chunks add to the errors of d, o and (in a chunk's last row) S.
    struct Extra {
        double d = 0, o = 0, state = 0;
    };
    /// Of the rows of the chunk that begins here: extra_ [rows, Hv, dv].
    void look_ahead() {
        const int64_t n = std::min(chunk_, in_.qkv.rows() - row_), Hv = view_.value_heads, dk = view_.key_dim;
        const int64_t dv = view_.value_dim, keys = view_.key_heads * dk;
        std::vector<std::vector<Near>> c;
        for (int64_t i = 0; i < n; ++i) c.push_back(convolved(row_ + i));
        extra_.assign(static_cast<size_t>(n * Hv * dv), {});
        for (int64_t h = 0; h < Hv; ++h) {
            std::vector<std::vector<double>> k;
            std::vector<double> beta, decay;
            for (int64_t i = 0; i < n; ++i) {
                const auto at = c[static_cast<size_t>(i)].begin() + keys + view_.key_head(h) * dk;
                double squares = 1e-6;
                for (int64_t e = 0; e < dk; ++e) squares += at[e].value * at[e].value;
                k.emplace_back();
                for (int64_t e = 0; e < dk; ++e) k.back().push_back(at[e].value / std::sqrt(squares));
                const double t = double{in_.a.row(row_ + i)[h]} + in_.dt_bias[static_cast<size_t>(h)];
                decay.push_back(std::exp((std::max(t, 0.0) + std::log1p(std::exp(-std::abs(t)))) *
                                         in_.decay[static_cast<size_t>(h)]));
                beta.push_back(1 / (1 + std::exp(-double{in_.b.row(row_ + i)[h]})));
            }
            add_chunk(h, n, k, beta, decay, [&](int64_t i, int64_t j) {
                return c[static_cast<size_t>(i)][static_cast<size_t>(2 * keys + h * dv + j)].value;
            });
        }
    }
    template <class Values>
    void add_chunk(int64_t h, int64_t n, const std::vector<std::vector<double>>& k, const std::vector<double>& beta,
                   const std::vector<double>& decay, const Values& v) {
        const auto size = static_cast<size_t>(n), dk = static_cast<size_t>(view_.key_dim);
        using Square = std::vector<std::vector<double>>;
        Square D(size, std::vector<double>(size)), A = D, M = D, G = D;
        std::vector<double> P(size);
        for (size_t i = 0; i < size; ++i) {
            P[i] = (i > 0 ? P[i - 1] : 1) * decay[i];
            D[i][i] = 1;
            for (size_t j = 0; j < i; ++j) {
                D[i][j] = D[i - 1][j] * decay[i];
                double dot = 0;
                for (size_t e = 0; e < dk; ++e) dot += k[i][e] * k[j][e];
                A[i][j] = beta[i] * D[i][j] * dot;
            }
            for (size_t j = 0; j <= i; ++j) {
                double sum = i == j ? 1 : 0;
                for (size_t l = j; l < i; ++l) sum -= A[i][l] * M[l][j];
                M[i][j] = sum;
            }
            for (size_t j = 0; j <= i; ++j) {
                G[i][j] = std::abs(M[i][j]);
                for (size_t l = j; l < i; ++l) G[i][j] += std::abs(A[i][l]) * std::abs(M[l][j]);
            }
        }
        const int64_t dv = view_.value_dim;
        for (int64_t j = 0; j < dv; ++j) {
            double squares = 0;
            for (size_t e = 0; e < dk; ++e) squares += std::pow(state(h, static_cast<int64_t>(e), j), 2);
            const double length = std::sqrt(squares);
            std::vector<double> R(size), U(size);
            for (size_t i = 0; i < size; ++i) {
                double p = 0;
                for (size_t e = 0; e < dk; ++e) p += k[i][e] * state(h, static_cast<int64_t>(e), j);
                R[i] = beta[i] * (v(static_cast<int64_t>(i), j) - P[i] * p);
                double lies = P[i] * length, from = 0;
                for (size_t l = 0; l <= i; ++l) U[i] += M[i][l] * R[l];
                for (size_t l = 0; l <= i; ++l) lies += D[i][l] * std::abs(U[l]);
                for (size_t l = 0; l <= i; ++l) from += G[i][l] * std::abs(R[l]);
                extra_[static_cast<size_t>((static_cast<int64_t>(i) * view_.value_heads + h) * dv + j)] = {
                    kPairs * (beta[i] * lies + from), kPairs * lies / std::sqrt(static_cast<double>(dk)),
                    i + 1 == size ? kPairs * lies : 0};
            }
        }
    }

    const ops::GatedDeltaInput& in_;
    const DeltaView& view_;
    int64_t chunk_;
    std::vector<double> state_, error_;
    std::vector<Extra> extra_;
    std::vector<Near> c_;
    std::vector<double> d_;  // of one head
    double e_kq_ = 0;
    int64_t row_ = 0;
};

}  // namespace riptide
