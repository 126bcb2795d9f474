// Newton's method on the norm of [x - tau]_+, the weights that follow, and a lower bound of tau to start from.

#pragma once

#include "powers.hpp"

// The function for the kind of the exponent.
#define BY_EXPONENT(function, exponent, ...)                                             \
    (exponent == 1 ? function<1>(__VA_ARGS__) : exponent == 2 ? function<2>(__VA_ARGS__) \
     : exponent == 3 ? function<3>(__VA_ARGS__) : exponent == 4 ? function<4>(__VA_ARGS__) \
     : is_whole(exponent) ? function<WHOLE>(__VA_ARGS__) : function<ANY>(__VA_ARGS__))

namespace {

inline bool is_whole(double exponent) { return exponent <= LARGEST_WHOLE && exponent == std::nearbyint(exponent); }

struct Sums { double mass, slope; };

// How often an entry of x counts in a sum: once, or as a row of numbers says.
struct Once {
    Floats operator()(Floats v, int64_t) const { return v; }
};
struct Often {
    const float* number;
    Floats operator()(Floats v, int64_t i) const { return v * load(number + i); }
};

// sum u^P and sum u^(P - 1), u = [x - tau]_+, of one pair of vectors in `stride`. The row is padded with -inf to a
// multiple of 2 LANES.
template <int K, bool ROUGH = false, class Times = Once>
Sums sums_of(const float* x, int64_t n, double tau, float exponent, int64_t stride = 1, Times times = {}) {
    Sums total{0, 0};
    const Offset offset(tau);
    for (int64_t start = 0; start < n; start += stride * 2 * PART) {
        const int64_t end = std::min(n, start + stride * 2 * PART);
        Floats mass[2] = {}, slope[2] = {};
        by_fours<2>(start, end, stride * 2 * LANES, [&](auto number, int64_t i) {
            const auto at = [=](int k) { return i + k / 2 * stride * 2 * LANES + k % 2 * LANES; };
            Excess e[number];
            Floats s[number];
            for (int k = 0; k < number; k++) e[k] = excess<K>(load(x + at(k)), offset);
            if (is_nothing<K>(e)) return;
            slope_powers<K, ROUGH>(e, exponent, s);
            for (int k = 0; k < number; k++) {
                s[k] = times(s[k], at(k));
                mass[k % 2] += s[k] * e[k].u;
                slope[k % 2] += s[k];
            }
        });
        total.mass += sum(mass[0] + mass[1]);
        total.slope += sum(slope[0] + slope[1]);
    }
    return total;
}

// How far above one the mass may be for tau to be the threshold; see hf_sparse/functional/newton.py for the proof.
// Beyond an exponent of 50 the norm is nearly straight, and the rounding of powers no longer grows with the exponent.
double tolerance_of(int64_t n, double exponent) {
    const double most = std::min(exponent, 50.0), tolerance = 3 * EPS * std::max(2.0, most);
    return exponent < 2 ? tolerance : std::max(tolerance, std::sqrt(most * EPS / n));
}

// How far Newton's method on the norm moves tau: up from a lower bound, down below the root from an upper one.
template <int K> double step_of(const Sums& f, double exponent) {
    const double norm = K == 1   ? f.mass - 1
                        : K == 2 ? f.mass - std::sqrt(f.mass)
                                 : -f.mass * std::expm1(-std::log(f.mass) / exponent);
    return norm / f.slope;
}

// Newton's step from either side, but not below -1, where no threshold is.
template <int K> double stepped(double tau, const Sums& f, double exponent) {
    const double better = tau + step_of<K>(f, exponent);
    return f.mass > 0 && f.slope > 0 && better > -1 ? better : -1;
}

// Steps on rough powers end with one from a mass this close to one: what it leaves is about a hundredth of the square, and
// where P is close to one, and entries leave the support at a step, a tenth.
inline double near_of(double exponent) { return exponent < 2 ? 0.1 : 0.5; }
// After a step from a mass this close to one no other look is needed, unless P is below 2: the slope then jumps where
// entries leave the support, many at once if they are tied.
inline double safe_error(double exponent) { return exponent < 2 ? 0 : 2e-4; }

// One step up from a lower bound to a better one, or back if rounding led above the root; whether there is another.
template <int K> bool step_up(const float* x, int64_t n, double& tau, double exponent, double tolerance) {
    const Sums f = sums_of<K>(x, n, tau, static_cast<float>(exponent));
    if (!(f.mass > 0 && f.slope > 0)) return false;
    tau += step_of<K>(f, exponent);
    return f.mass > 1 + tolerance;
}

// The threshold, from any lower bound of it. After fewer steps than it takes, a lower bound itself, a better one.
template <int K> double solve(const float* x, int64_t n, double bound, double exponent, int most_steps) {
    double tau = bound;
    const double tolerance = tolerance_of(n, exponent);
    for (int step = 0; step < most_steps && step_up<K>(x, n, tau, exponent, tolerance); step++) {}
    return tau;
}

double solve(const float* x, int64_t n, double bound, double exponent, int most_steps = 100) {
    return BY_EXPONENT(solve, exponent, x, n, bound, exponent, most_steps);
}

// [x - tau]_+ ^ P, which may be written over x; their sum. Both are read and written up to a multiple of LANES.
template <int K> double write_powers(const float* x, float* p, int64_t n, double tau, double exponent) {
    double mass = 0;
    const Offset offset(tau);
    for (int64_t start = 0; start < n; start += PART) {
        Floats part = {};
        by_fours<1>(start, std::min(n, start + PART), LANES, [&](auto number, int64_t i) {
            Excess e[number];
            Floats v[number];
            for (int k = 0; k < number; k++) e[k] = excess<K>(load(x + i + k * LANES), offset);
            if (is_nothing<K>(e)) return static_cast<void>(std::memset(p + i, 0, sizeof v));
            weight_powers<K>(e, static_cast<float>(exponent), v);
            for (int k = 0; k < number; k++) store(p + i + k * LANES, v[k]), part += v[k];
        });
        mass += sum(part);
    }
    return mass;
}

double write_powers(const float* x, float* p, int64_t n, double tau, double exponent) {
    return BY_EXPONENT(write_powers, exponent, x, p, n, tau, exponent);
}

// sum p (x - tau); where p is 0, x may be anything. Both are read up to a multiple of LANES.
double dot(const float* p, const float* x, int64_t n, float tau = 0) {
    double total = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        Floats part = {};
        for (int64_t i = start; i < std::min(n, start + BLOCK); i += LANES)
            part += load(p + i) > 0.0f ? load(p + i) * (load(x + i) - tau) : Floats{};
        total += sum(part);
    }
    return total;
}

// Omega*(z) - max z = <p, x> / (alpha - 1) - Omega(p) from the sum of u^P and the mean of u - 1 weighted by it, where
// p^(alpha - 1) = (x - tau) mass^(1 - alpha). Written so that nothing large is left when alpha - 1 divides it.
inline float conjugate_of(double alpha, double tau, double mass, double less_one) {
    const double log_share = (1 - alpha) * std::log(mass), risen = 1 + tau;
    const double of_regularizer = -std::expm1(log_share) - std::exp(log_share) * less_one;
    return static_cast<float>((alpha * (less_one + risen) + of_regularizer) / (alpha * (alpha - 1)));
}

// The maxima of PARTS * LANES parts of a row, and of all of it (NaN if it has one). Masked parts give -inf.
template <int PARTS> struct Tops { Floats parts[PARTS]; float all; };

template <int PARTS, class T> Tops<PARTS> tops_of(const T* z, int64_t n) {
    Tops<PARTS> tops;
    for (auto& part : tops.parts) part = all(-INF);
    Ints nothing = {};
    int64_t i = 0;
    for (; i + PARTS * LANES <= n; i += PARTS * LANES)
        for (int k = 0; k < PARTS; k++) {
            const Floats v = load(z + i + k * LANES);
            tops.parts[k] = largest(v, tops.parts[k]);
            nothing |= v != v;
        }
    float rest = -INF;
    bool nan = any(nothing);
    for (; i < n; i++) {
        const float v = load_one(z + i);
        nan |= v != v;
        rest = v > rest ? v : rest;
    }
    tops.parts[0][0] = std::max(tops.parts[0][0], rest);
    Floats top = tops.parts[0];
    for (int k = 1; k < PARTS; k++) top = largest(top, tops.parts[k]);
    tops.all = nan ? std::numeric_limits<float>::quiet_NaN() : highest(top);
    return tops;
}

// A lower bound of tau: the threshold of those maxima alone.
template <int PARTS> double first_bound(const Tops<PARTS>& tops, float scale, double exponent) {
    float x[PARTS * LANES];
    for (int k = 0; k < PARTS; k++) {
        const Floats part = (tops.parts[k] - tops.all) * scale;
        std::memcpy(x + k * LANES, &part, sizeof part);
    }
    return std::max(-1.0, solve(x, PARTS * LANES, -1, exponent, 3) - MARGIN);
}

}  // namespace
