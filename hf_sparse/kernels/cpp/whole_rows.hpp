// Long rows that are mostly support: solved and written whole, in a few passes in cache.

#pragma once

#include "counted_scores.hpp"
#include "sparse_rows.hpp"
#include "threshold.hpp"

namespace {

// What a row's weights follow from: [(alpha - 1) (z - base) - tau]_+ ^ P / mass.
struct Solution { double base, tau, mass; };

// alpha-ReLU of threshold tau. Large P multiply the rounding of u: they need the digits of u - 1, which are those of
// z - base where that is zero at u = 1. Elsewhere it is zero at u = 0, whose digits a high threshold would take.
Solution relu_solution(double alpha, double exponent, double tau) {
    return exponent > 4 ? Solution{(1 + tau) / (alpha - 1), -1, 1} : Solution{tau / (alpha - 1), 0, 1};
}

// x = (z - base) scale, with the digits of base that float32 does not hold; the same where it is read from memory and
// where it is computed again.
struct Scaling {
    float base, rest, scale;
    Scaling(double from, double alpha)
        : base(static_cast<float>(from)), rest(static_cast<float>(from - base)), scale(static_cast<float>(alpha - 1)) {}
    template <class V> V operator()(V z) const { return rounded((z - base - rest) * scale); }
};

// A row of x, padded with -inf.
template <class T> void write_scaled(const T* z, int64_t length, const Scaling& scaled, float* x) {
    int64_t i = 0;
    for (; i + LANES <= length; i += LANES) store_some(x + i, scaled(load(z + i)), LANES);
    for (; i < length; i++) x[i] = scaled(load_one(z + i));
    for (i = length; i < length + 2 * LANES; i++) x[i] = -INF;
}

// ---- Writing --------------------------------------------------------------------------------------------------

template <class T> void copy_out(T* out, const T* from, int64_t n, bool streamed) {
    int64_t i = 0;
    if (streamed && reinterpret_cast<uintptr_t>(out) % 64 == 0)
        for (constexpr int64_t STEP = sizeof(Ints) / sizeof(T); i + STEP <= n; i += STEP)
            stream(out + i, load_as<Ints>(from + i));
    std::memcpy(static_cast<void*>(out + i), from + i, (n - i) * sizeof(T));
}

// A row of what fill(part, start, end) writes, part by part, and at_target at the target if it is in the row.
template <class T, class Fill>
void write_parts(T* out, int64_t length, int64_t target, float at_target, bool streamed, Fill fill) {
    T part[PART];
    int64_t start = 0, end = std::min<int64_t>(length, (-reinterpret_cast<uintptr_t>(out) & 63) / sizeof(T));
    for (; start < length; start = end, end = std::min(length, start + PART)) {
        fill(part, start, end);
        if (start <= target && target < end) store_one(part + (target - start), at_target);
        copy_out(out + start, part, end - start, streamed);
    }
}

// A size beyond which no score of the row has a weight, but for its largest.
float live_size(const Solution& s, double alpha, float top) {
    const double at_tau = s.base + s.tau / (alpha - 1);
    return static_cast<float>(std::max<double>(std::fabs(top), std::fabs(at_tau) + 8 * EPS * std::fabs(s.base)));
}

// The weights of a solved row times factor, and factor less at the target if it is in the row. Their sum, without either.
template <int K, class T>
double write_whole(const T* z, int64_t length, double alpha, double exponent, const Solution& s, float factor,
                   int64_t target, T* out, bool streamed) {
    const Offset offset(s.tau);
    const Scaling scaled(s.base, alpha);
    const float share = static_cast<float>(factor / s.mass);
    const auto excess_of = [&](Floats v) { return excess<K>(scaled(v), offset); };
    const auto weight = [&](Floats v) {
        Floats w[1];
        weight_powers<K>({excess_of(v)}, static_cast<float>(exponent), w);
        return share * w[0];
    };
    const auto weight_of_one = [&](const T* one) { return weight(all(load_one(one)))[0]; };
    const float at_target = target < 0 ? 0 : weight_of_one(z + target) - factor;
    if constexpr (counted<K, T>()) {
        if (length >= COUNTED) {
            const Table table(z, length, live_size(s, alpha, tops_of<8>(z, length).all),
                              weight);
            write_parts(out, length, target, at_target, streamed, [&](T* part, int64_t start, int64_t end) {
                for (int64_t i = start; i < end; i++) part[i - start] = table.data()[z[i].bits];
            });
            return 1;  // the mass was summed up at this threshold
        }
    }
    double total = 0;
    write_parts(out, length, target, at_target, streamed, [&](T* part, int64_t start, int64_t end) {
        int64_t i = start;
        Floats written = {};
        const auto keep = [&](int64_t at, Floats w) { store(part + (at - start), w), written += w; };
        for (; i + 4 * LANES <= end; i += 4 * LANES) {
            Excess e[4];
            Floats w[4];
            for (int k = 0; k < 4; k++) e[k] = excess_of(load(z + i + k * LANES));
            if (is_nothing<K>(e)) std::fill_n(w, 4, Floats{});
            else weight_powers<K>(e, static_cast<float>(exponent), w);
            for (int k = 0; k < 4; k++) keep(i + k * LANES, share * w[k]);
        }
        for (; i + LANES <= end; i += LANES) keep(i, weight(load(z + i)));
        for (; i < end; i++) {
            const float w = weight_of_one(z + i);
            store_one(part + (i - start), w);
            total += w;
        }
        total += sum(written);
    });
    return total / factor;
}

// use(x, number of entries, how often each counts) on the x of a row.
template <int K, class T, class Use>
auto with_scaled(const T* z, int64_t length, const Scaling& scaled, float live, Found& found, Use use) {
    float* x = found.x.data();
    if constexpr (counted<K, T>()) {
        if (length >= COUNTED) {
            const int64_t n = count_scores(z, length, live, found);
            write_scaled(x, n, scaled, x);
            return use(x, n, Often{found.value.data()});
        }
    }
    write_scaled(z, length, scaled, x);
    return use(x, length, Once{});
}

// A row of entmax, solved whole.
template <int K, class T>
Solution solve_whole(const T* z, int64_t length, double alpha, double exponent, Found& found, Moments& moments) {
    const float top = tops_of<8>(z, length).all;
    if (!(-INF < top && top < INF)) return {top, 0, 0};
    const float live = live_size({top, -1, 1}, alpha, top);
    return with_scaled<K>(z, length, Scaling(top, alpha), live, found, [&](const float* x, int64_t n, auto times) {
        const double tau = threshold_of<K>(x, n, exponent, moments, found.value.data(), times);
        return Solution{top, tau, moments.mass};
    });
}

// The sums of a row whose solution is given, as alpha-ReLU's is.
template <int K, class T>
Moments moments_at(const T* z, int64_t length, double alpha, double exponent, const Solution& s, Found& found) {
    const float live = live_size(s, alpha, tops_of<8>(z, length).all);
    return with_scaled<K>(z, length, Scaling(s.base, alpha), live, found, [&](const float* x, int64_t n, auto times) {
        return moments_of<K>(x, n, s.tau, exponent, times);
    });
}

}  // namespace
