// Rows as a whole: the weights of short ones, products with their Jacobians.

#pragma once

#include "threshold.hpp"

namespace {

// p of a few rows, whose Newton steps are taken in turn: each waits for its sums, and the others use the time.
// x is scratch: room(length) entries for each of them, for the row, padded, and for those of its entries that are kept.
constexpr int FEW = 8;
inline int64_t padded(int64_t length) { return (length + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }
inline int64_t room(int64_t length) { return 2 * padded(length) + 2 * LANES; }

// Numbers of a few rows, so that what is done for each of them, logarithms above all, is done for LANES at once.
struct Few {
    float row[std::max(FEW, LANES)];
    template <class F> void set(F of, const Few& a, const Few& b) {
        for (int k = 0; k < FEW; k += LANES) {
            const Floats v = of(load(a.row + k), load(b.row + k));
            std::memcpy(row + k, &v, sizeof v);
        }
    }
};

// The part of a row that can have weights: not its ends where all is below any threshold, as masks leave them.
struct Live { const float* x; int64_t length; };
Live live_part(const float* x, int64_t width) {
    const auto is_below = [=](int64_t i) { return beyond(largest(load(x + i), load(x + i + LANES)), all(-1)) == 0; };
    int64_t begin = 0, end = width;
    while (begin < end && is_below(begin)) begin += 2 * LANES;
    while (begin < end && is_below(end - 2 * LANES)) end -= 2 * LANES;
    return {x + begin, end - begin};
}

// Lower bounds of tau: less than the mean of any of the x by their number ^ (-1 / P), where the mass of all of them
// would be one if all were the mean, and is more (Jensen's inequality). Here of those above the bounds so far.
void raise_bounds(const Live* live, int64_t num_rows, float exponent, double* tau) {
    Few number{}, total{}, bound;
    for (int64_t row = 0; row < num_rows; row++) {
        Floats count = {}, part = {};
        const Floats least = all(static_cast<float>(tau[row]));
        for (int64_t i = 0; i < live[row].length; i += LANES) {
            const Floats v = load(live[row].x + i);
            count += v > least ? all(1.0f) : Floats{};
            part += v > least ? v : Floats{};
        }
        number.row[row] = sum(count), total.row[row] = sum(part);
    }
    bound.set([=](Floats n, Floats t) { return t / n - exp2_of(log2_of(n) / -exponent); }, number, total);
    for (int64_t row = 0; row < num_rows; row++)
        if (number.row[row] > 0) tau[row] = std::max(tau[row], static_cast<double>(bound.row[row] - MARGIN));
}

// How far Newton's method on the norm moves tau, as step_of, to the few digits that this takes.
inline Floats steps_of(Floats mass, Floats slope, float exponent) {
    const Floats log2 = log2_of(mass, mass - 1.0f) / -exponent;
    const Floats series = log2 * (0.6931472f + log2 * (0.2402265f + log2 * (0.0555041f + log2 * 0.0096181f)));
    const Floats small = log2 * log2 < 0.01f ? series : exp2_of(log2) - 1.0f;
    return -mass * small / slope;
}

// The thresholds of the busy rows, from lower bounds; after `most_steps`, as far as they lead, close to them.
template <int K>
void solve_few(const Live* live, int64_t num_rows, double exponent, double tolerance, int most_steps, bool* busy,
               double* tau) {
    if (K == 1 || K == 2) {  // a step costs nothing
        bool any = true;
        for (int steps = 0; any && steps < most_steps; steps++) {
            any = false;
            for (int64_t row = 0; row < num_rows; row++)
                if (busy[row])
                    any |= busy[row] = step_up<K>(live[row].x, live[row].length, tau[row], exponent, tolerance);
        }
        return;
    }
    // Where P is any number, on rough powers first.
    const float p = static_cast<float>(exponent);
    const double enough = K == ANY ? std::max(tolerance, safe_error(exponent)) : tolerance;
    Few mass{}, slope{}, step;
    bool rough[FEW], from_above[FEW];
    std::fill_n(rough, FEW, K == ANY), std::fill_n(from_above, FEW, true);
    bool any = true;
    for (int steps = 0; any && steps < most_steps; steps++) {
        any = false;
        for (int64_t row = 0; row < num_rows; row++) {
            if (!busy[row]) continue;
            const auto [x, length] = live[row];
            const Sums f = rough[row] ? sums_of<K, true>(x, length, tau[row], p) : sums_of<K>(x, length, tau[row], p);
            mass.row[row] = static_cast<float>(f.mass), slope.row[row] = static_cast<float>(f.slope);
        }
        step.set([=](Floats m, Floats s) { return steps_of(m, s, p); }, mass, slope);
        for (int64_t row = 0; row < num_rows; row++) {
            if (!busy[row]) continue;
            const double better = tau[row] + step.row[row];
            tau[row] = better > -1 ? better : -1;
            // The first exact step, from either side, ends below the root; the others rise to it.
            const float excess = mass.row[row] - 1, error = std::fabs(excess);
            any |= busy[row] = rough[row] || (from_above[row] ? error : excess) > enough;
            from_above[row] = rough[row];
            rough[row] &= error > near_of(exponent);
        }
    }
}

// The same for any P, whose powers are costly: entries that are not above a cut are left out, if they are many. `own` has room
// for those that are kept. None are left out where the number kept is 0. The cut is a little below the bound, past which the
// rough powers behind it may have led.
constexpr double BELOW_BOUND = 0.01, WORTH_IT = 0.85;
struct Above { float* own; float cut; int64_t count; };
void solve_kept(const Live* live, int64_t num_rows, double exponent, double tolerance, bool* busy, double* tau, Above* kept) {
    Live parts[FEW];
    for (int64_t row = 0; row < num_rows; row++) {
        parts[row] = live[row];
        kept[row].cut = static_cast<float>(tau[row] - BELOW_BOUND);
        if (!busy[row] || share_above<4>(live[row].x, live[row].length, kept[row].cut) > WORTH_IT) continue;
        const int64_t count = keep_above(live[row].x, live[row].length, kept[row].cut, kept[row].own);
        if (count < WORTH_IT * live[row].length) kept[row].count = count, parts[row] = {kept[row].own, padded(count)};
    }
    solve_few<ANY>(parts, num_rows, exponent, tolerance, 100, busy, tau);
    bool again = false;
    for (int64_t row = 0; row < num_rows; row++) {
        busy[row] = kept[row].count > 0 && !(tau[row] > kept[row].cut);  // some that were left out may count
        if (busy[row]) kept[row].count = 0, again = true;
    }
    if (again) solve_few<ANY>(live, num_rows, exponent, tolerance, 100, busy, tau);
}

// A few rows, solved side by side. `finite` are those whose maximum is a number.
struct Side { float top[FEW]; double tau[FEW]; bool finite[FEW]; Live live[FEW]; Above kept[FEW]; };

// x = (z - top) scale of the rows, padded with -inf to a common width, and their thresholds.
template <int K, class T>
Side solve_side(const T* z, int64_t num_rows, int64_t length, float scale, double exponent, float* x) {
    const int64_t width = padded(length);
    constexpr int PARTS = 2;
    Side side{};
    float highest[FEW][PARTS * LANES];
    Live parts[FEW] = {};
    bool busy[FEW] = {};
    for (int64_t row = 0; row < num_rows; row++, z += length) {
        const auto tops = tops_of<PARTS>(z, length);
        const float top = side.top[row] = tops.all;
        busy[row] = side.finite[row] = -INF < top && top < INF;
        if (!busy[row]) continue;
        float* own = x + row * room(length);
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) store_some(own + i, (load(z + i) - top) * scale, LANES);
        for (; i < length; i++) own[i] = (load_one(z + i) - top) * scale;
        for (; i < width; i++) own[i] = -INF;
        side.tau[row] = -1;
        side.live[row] = live_part(own, width);
        side.kept[row].own = own + width;
        for (int k = 0; k < PARTS; k++) store(highest[row] + k * LANES, (tops.parts[k] - top) * scale);
        parts[row] = {highest[row], PARTS * LANES};
    }
    constexpr bool COSTLY = K != 1 && K != 2;  // a step is, and worth a better bound
    const float p = static_cast<float>(exponent);
    if (length >= 256) {  // a start from the maxima of parts spares steps as long as the row
        if (COSTLY) raise_bounds(parts, num_rows, p, side.tau);
        solve_few<K>(parts, num_rows, exponent, 1e-3, 3, busy, side.tau);
    }
    if (COSTLY) raise_bounds(side.live, num_rows, p, side.tau);
    std::copy_n(side.finite, FEW, busy);
    const double tolerance = tolerance_of(length, exponent);
    if (K == ANY) solve_kept(side.live, num_rows, exponent, tolerance, busy, side.tau, side.kept);
    else solve_few<K>(side.live, num_rows, exponent, tolerance, 100, busy, side.tau);
    return side;
}

// A row of weights: `live` powers times share from `begin` on, and zeros.
template <class T>
void write_share(const float* powers, int64_t begin, int64_t live, float share, T* out, int64_t length) {
    const int64_t end = std::min(length, begin + live);
    std::memset(static_cast<void*>(out), 0, begin * sizeof(T));
    for (int64_t i = begin; i < end; i += LANES) store_some(out + i, load(powers + (i - begin)) * share, end - i);
    std::memset(static_cast<void*>(out + end), 0, (length - end) * sizeof(T));
}

// The same of powers that are kept side by side, those of the `live` x above the cut.
template <class T>
void write_kept(const float* x, int64_t begin, int64_t live, float cut, const float* powers, float share, T* out,
                int64_t length) {
    const int64_t end = std::min(length, begin + live);
    std::memset(static_cast<void*>(out), 0, begin * sizeof(T));
    for (int64_t i = begin; i < end; i += LANES) {
        const Floats v = load(x + (i - begin));
        const uint32_t above = beyond(v, all(cut));
        store_some(out + i, v > cut ? spread(powers, above) * share : Floats{}, end - i);
        powers += __builtin_popcount(above);
    }
    std::memset(static_cast<void*>(out + end), 0, (length - end) * sizeof(T));
}

template <int K, class T>
void write_weights(const T* z, T* p, int64_t num_rows, int64_t length, float scale, double exponent,
                   float* x) {
    const Side side = solve_side<K>(z, num_rows, length, scale, exponent, x);
    for (int64_t row = 0; row < num_rows; row++, p += length, x += room(length)) {
        if (!side.finite[row]) {
            const float filling = side.top[row] == -INF ? 0.0f : std::numeric_limits<float>::quiet_NaN();
            for (int64_t i = 0; i < length; i++) store_one(p + i, filling);
            continue;
        }
        const auto [own, live] = side.live[row];
        const auto [kept, cut, count] = side.kept[row];
        if (count > 0) {
            const double mass = write_powers<K>(kept, kept, count, side.tau[row], exponent);
            write_kept(own, own - x, live, cut, kept, static_cast<float>(1 / mass), p, length);
            continue;
        }
        const double mass = write_powers<K>(own, x, live, side.tau[row], exponent);
        write_share(x, own - x, live, static_cast<float>(1 / mass), p, length);
    }
}

template <int K> float weight_of(float x, double tau, double exponent) {
    const Excess e[1] = {excess<K>(all(x), Offset(tau))};
    Floats v[1];
    weight_powers<K>(e, static_cast<float>(exponent), v);
    return v[0][0];
}

// What the losses of rows need: p, less one at the target where there are targets; the maximum; Omega*(z) - max z.
template <int K, class T>
void write_residuals(const T* z, const int64_t* target, T* residual, float* top, float* conjugate, int64_t num_rows,
                  int64_t length, double alpha, double exponent, float* x, float* powers) {
    const Side side = solve_side<K>(z, num_rows, length, static_cast<float>(alpha - 1), exponent, x);
    for (int64_t row = 0; row < num_rows; row++, residual += length, x += room(length)) {
        top[row] = side.top[row];
        if (!side.finite[row]) {
            const bool masked = side.top[row] == -INF;
            conjugate[row] = masked ? 0 : std::numeric_limits<float>::quiet_NaN();
            for (int64_t i = 0; i < length; i++) store_one(residual + i, conjugate[row]);
            if (target && masked) store_one(residual + target[row], -1);
            continue;
        }
        const auto [own, live] = side.live[row];
        const auto [kept, cut, count] = side.kept[row];
        const float* entries = count > 0 ? kept : own;
        const int64_t number = count > 0 ? count : live;
        const double tau = side.tau[row], mass = write_powers<K>(entries, powers, number, tau, exponent);
        const double mean = dot(powers, entries, number, static_cast<float>(1 + tau)) / mass;  // of u - 1, weighted by p
        conjugate[row] = conjugate_of(alpha, tau, mass, mean);
        const float share = static_cast<float>(1 / mass);
        if (count > 0) write_kept(own, own - x, live, cut, powers, share, residual, length);
        else write_share(powers, own - x, live, share, residual, length);
        if (target) {
            const int64_t at = target[row] - (own - x);
            store_one(residual + target[row], (0 <= at && at < live ? weight_of<K>(own[at], tau, exponent) * share : 0) - 1);
        }
    }
}

// s = p^(2 - alpha) on the support; K = 1 for alpha 2, 2 for alpha 1.5, 0 for any. BFloat16 weights have fewer digits than a
// rough power of them.
template <int K, class T, int N> inline void support_weights(const Excess (&p)[N], float power_of_p, Floats (&s)[N]) {
    if constexpr (K == ANY) return powers<std::is_same_v<T, BFloat16>>(p, power_of_p, s);
    for (int i = 0; i < N; i++) {
        s[i] = p[i].u > 0.0f ? all(1.0f) : Floats{};
        if (K == 2)
            for (int k = 0; k < LANES; k++) s[i][k] = std::sqrt(p[i].u[k]);
    }
}

// s (g - mean_s g) of one row; s is scratch for length + LANES entries.
template <int K, class T>
void write_product(const T* p, const T* g, T* out, int64_t length, float power_of_p, float* s) {
    double total = 0, weighted = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        Floats part = {}, with_g = {};
        by_fours<1>(start, std::min(length, start + BLOCK), LANES, [&](auto number, int64_t first) {
            Excess weight[number];
            Floats v[number];
            for (int k = 0; k < number; k++) {
                const int64_t i = first + k * LANES;
                weight[k].u = load_some(p + i, length - i), weight[k].less_one = weight[k].u - 1.0f;
            }
            if (is_nothing<K>(weight)) return static_cast<void>(std::memset(s + first, 0, sizeof v));
            support_weights<K, T>(weight, power_of_p, v);
            for (int k = 0; k < number; k++) {
                const int64_t i = first + k * LANES;
                store(s + i, v[k]);
                part += v[k];
                // Off the support the upstream gradient may be anything, infinite too: it must not enter the mean.
                with_g += v[k] == 0.0f ? Floats{} : v[k] * load_some(g + i, length - i);
            }
        });
        total += sum(part), weighted += sum(with_g);
    }
    const float mean = total == 0 ? 0.0f : static_cast<float>(weighted / total);
    for (int64_t i = 0; i < length; i += LANES) {
        const Floats v = load(s + i);
        store_some(out + i, v == 0.0f ? Floats{} : v * (load_some(g + i, length - i) - mean), length - i);
    }
}

}  // namespace
