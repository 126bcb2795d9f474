// The threshold of a long row that is mostly support, in as few looks at all of it as can be.

#pragma once

#include "newton.hpp"

namespace {

constexpr double MOST_KEPT = 0.7;  // the share of a row up to which it is worth leaving the others out
constexpr double NOTHING = 1e-8;   // what all that are left out may weigh

// Whether one look at all entries is enough to know the sums a step further: worth it where powers are costly.
template <int K, class Times> constexpr bool foretold = K == ANY && std::is_same_v<Times, Once>;

// A threshold to a few digits, how the mass there falls with tau, and how far off the mass was where it began.
struct Estimate { double tau = -1, fall = 0, off = INF; };
inline double far_off(double exponent) { return exponent < 2 ? 0.02 : exponent < 4 ? 0.05 : 0.2; }

// Improves it, from either side, on one pair of vectors of x[0:n] in `stride`, which stand for all.
template <int K, class Times>
void improve(Estimate& found, const float* x, int64_t n, double exponent, int64_t stride, Times times) {
    for (int step = 0; step < 12; step++) {
        Sums f = sums_of<K, true>(x, n, found.tau, static_cast<float>(exponent), stride, times);
        f.mass *= stride, f.slope *= stride;
        const double error = std::fabs(f.mass - 1);
        if (step == 0) found.off = error;
        found.tau = stepped<K>(found.tau, f, exponent), found.fall = exponent * f.slope;
        if (error < near_of(exponent) || found.tau == -1) break;
    }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each set of lanes, as bits: where they are, the first in the lowest byte; and for each lane, how many come before it.
struct Places {
    uint64_t of[1 << LANES]{}, before[1 << LANES]{};
    constexpr Places() {
        for (int bits = 0; bits < 1 << LANES; bits++)
            for (int lane = LANES - 1; lane >= 0; lane--) {
                if (bits >> lane & 1) of[bits] = of[bits] << 8 | lane;
                for (int other = 0; other < lane; other++) before[bits] += uint64_t{bits >> other & 1u} << 8 * lane;
            }
    }
};
constexpr Places PLACES;
inline Floats permuted(Floats v, uint64_t lanes) {
    const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(lanes));
    return (Floats)_mm256_permutevar8x32_ps((__m256)v, _mm256_cvtepu8_epi32(bytes));
}
#endif

// The entries of x[0:n] above `cut`, padded: their number.
inline int64_t keep_above(const float* x, int64_t n, float cut, float* kept) {
    int64_t count = 0;
#if defined(__AVX512F__)
    for (int64_t i = 0; i < n; i += LANES) {  // the row is padded with -inf
        const uint32_t above = beyond(load(x + i), all(cut));
        store(kept + count, (Floats)_mm512_maskz_compress_ps(static_cast<__mmask16>(above), (__m512)load(x + i)));
        count += __builtin_popcount(above);
    }
#elif defined(__AVX2__)
    for (int64_t i = 0; i < n; i += LANES) {
        const uint32_t above = beyond(load(x + i), all(cut));
        store(kept + count, permuted(load(x + i), PLACES.of[above]));
        count += __builtin_popcount(above);
    }
#else
    for (int64_t i = 0; i < n; i++) kept[count] = x[i], count += x[i] > cut;
#endif
    std::fill_n(kept + count, 2 * LANES, -INF);
    return count;
}

// What keep_above put side by side, back in its lanes; the others may hold anything.
inline Floats spread(const float* kept, uint32_t above) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_expand_ps(static_cast<__mmask16>(above), (__m512)load(kept));
#elif defined(__AVX2__)
    return permuted(load(kept), PLACES.before[above]);
#endif
    Floats v;
    for (int lane = 0; lane < LANES; lane++) v[lane] = *kept, kept += above >> lane & 1;
    return v;
}

// The share of x[0:n] above `cut`, by one pair of vectors in STRIDE.
template <int STRIDE> double share_above(const float* x, int64_t n, float cut) {
    int64_t above = 0;
    for (int64_t i = 0; i < n; i += STRIDE * 2 * LANES)
        above += __builtin_popcount(beyond(load(x + i), all(cut))) + __builtin_popcount(beyond(load(x + i + LANES), all(cut)));
    return 1.0 * STRIDE * above / n;
}

// Sums over x of u^P, u^(P - 1) and u^P (u - 1), u = [x - tau]_+. And for a look ahead, to a few digits, of u^(P - 2) and
// u^(P - 3), and the number of x within reach of tau, whose u count as at least that.
struct Moments { double mass, slope, with_excess, bend, twist; int64_t close; };
template <int K, bool AHEAD = false, class Times = Once>
Moments moments_of(const float* x, int64_t n, double tau, double exponent, Times times = {}, float reach = 0) {
    Moments total{};
    const Offset offset(tau);
    for (int64_t start = 0; start < n; start += 2 * PART) {
        Floats mass[2] = {}, slope[2] = {}, with_excess[2] = {}, bend[2] = {}, twist[2] = {};
        by_fours<2>(start, std::min(n, start + 2 * PART), 2 * LANES, [&](auto number, int64_t i) {
            Excess e[number];
            Floats s[number];
            for (int k = 0; k < number; k++) e[k] = excess<K>(load(x + i + k * LANES), offset);
            if constexpr (AHEAD)
                for (int k = 0; k < number; k++) {
                    const Floats from_tau = load(x + i + k * LANES) - offset.tau - offset.rest;
                    total.close += __builtin_popcount(beyond(from_tau, all(-reach))) -
                                   __builtin_popcount(beyond(from_tau, all(reach)));
                }
            if (is_nothing<K>(e)) return;
            slope_powers<K>(e, static_cast<float>(exponent), s);
            for (int k = 0; k < number; k++) {
                s[k] = times(s[k], i + k * LANES);
                const Floats p = s[k] * e[k].u;
                mass[k % 2] += p, slope[k % 2] += s[k];
                // Where P is large, u - 1 has digits that u has not.
                with_excess[k % 2] += p * (K == ANY ? largest(e[k].less_one, all(-1.0f)) : e[k].u);
                if constexpr (AHEAD) {
                    const Floats inverse = rough_inverse(largest(e[k].u, all(reach))), bent = s[k] * inverse;
                    bend[k % 2] += bent, twist[k % 2] += bent * inverse;
                }
            }
        });
        total.mass += sum(mass[0] + mass[1]), total.slope += sum(slope[0] + slope[1]);
        total.with_excess += sum(with_excess[0] + with_excess[1]);
        if constexpr (AHEAD) total.bend += sum(bend[0] + bend[1]), total.twist += sum(twist[0] + twist[1]);
    }
    if (K != ANY) total.with_excess -= total.mass;
    return total;
}

// Moves tau on to the threshold, and the sums to what they are there, if they tell that to the tolerance: by the first terms
// of their series in the step. What is left is smaller than the last term by about the error of the mass, or, where P is small
// and entries close to tau count most, by the step over the least of them; but for the x within reach of tau, which may join
// the support or leave it. Else nothing changes.
inline bool look_ahead(Moments& sums, double& tau, double exponent, double tolerance, double reach) {
    const auto [mass, slope, with_excess, bend, twist, close] = sums;
    const double error = mass - 1, first = exponent * slope, second = exponent * (exponent - 1) / 2 * bend;
    const double third = exponent * (exponent - 1) * (exponent - 2) / 6 * twist;
    double step = step_of<ANY>({mass, slope}, exponent);
    for (int k = 0; k < 3; k++)
        step += (error - step * (first - step * (second - step * third))) / (first - step * (2 * second - step * 3 * third));
    const double next = exponent < 4 ? 2 * std::fabs(step) / reach : std::fabs(error);
    const double left = std::fabs(third * std::pow(step, 3)) * next;
    const double joining = close * std::pow(2 * std::fabs(step), exponent);
    if (!(2 * std::fabs(step) <= reach && left + joining <= tolerance)) return false;
    tau += step;
    // The same of the sum of u^(P + 1).
    sums.with_excess += error - (exponent + 1) * step * (mass - step * (exponent / 2 * slope - step * second / 3));
    sums.mass = 1;
    return true;
}

// Newton's method from the estimate: the first step, from either side, ends below the root, the others rise to it.
// An error of the mass moves the weight p = u^P / mass by that times the difference of p and its share u^(P - 1) / slope:
// by 1e-7 at most, and of thousands of small weights, all together by no more than LOOSE.
constexpr double LOOSE = 1e-5;
template <int K, class Times>
double solve_from(double tau, float reach, const float* x, int64_t n, double exponent, Moments& moments, Times times) {
    for (int step = 0; step < 100; step++) {
        moments = moments_of<K, foretold<K, Times>>(x, n, tau, exponent, times, reach);
        const double largest = std::pow(-tau, exponent), share = std::pow(-tau, exponent - 1) / moments.slope;
        const double tolerance = std::min(LOOSE, 1e-7 / std::max(largest, share)), error = std::fabs(moments.mass - 1);
        if (error <= std::max(8.0 * EPS, tolerance)) break;
        if (step > 0 && moments.mass <= 1) break;
        if (foretold<K, Times> && look_ahead(moments, tau, exponent, tolerance, reach)) break;
        tau = stepped<K>(tau, {moments.mass, moments.slope}, exponent);
    }
    return tau;
}

// The threshold of x[0:n], from samples: one pair of vectors in 64, then one in 8, and all of them unless one look is enough
// and the second sample found the first not far off. Entries that count several times do not stand for others. Where a look
// is costly and few entries are near the threshold or above, and can sum up to something, the others are left out; `kept`
// has room for a row.
template <int K, class Times = Once>
double threshold_of(const float* x, int64_t n, double exponent, Moments& moments, float* kept, Times times = {}) {
    Estimate found;
    if constexpr (std::is_same_v<Times, Once>)
        for (const int64_t stride : {64, 8}) improve<K>(found, x, n, exponent, stride, times);
    const auto solve = [&](Estimate from, const float* entries, int64_t count, double reach) {
        if (!foretold<K, Times> || from.off > far_off(exponent)) improve<K>(from, entries, count, exponent, 1, times);
        return solve_from<K>(from.tau, static_cast<float>(reach), entries, count, exponent, moments, times);
    };
    if constexpr (!foretold<K, Times>) return solve(found, x, n, 0);
    const double reach = std::max(0.1, far_off(exponent)) / found.fall;
    const double lowest = found.tau - std::max(reach, found.off / found.fall);
    const double negligible = std::pow(NOTHING / n, 1 / exponent);  // the u of which so many sum up to nothing
    const float cut = static_cast<float>(lowest + (negligible > reach ? negligible : -reach));
    if (share_above<64>(x, n, cut) < MOST_KEPT) {
        const double tau = solve(found, kept, keep_above(x, n, cut, kept), reach);
        if (tau > lowest) return tau;  // else some that were left out may count
    }
    return solve(found, x, n, reach);
}

}  // namespace
