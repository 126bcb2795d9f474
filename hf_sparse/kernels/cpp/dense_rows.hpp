// Rows as a whole: the weights of short ones, products with their Jacobians.

#pragma once

#include "newton.hpp"

namespace {

// p of a few rows, whose Newton steps are taken in turn: each waits for its sums, and the others use the time.
// x is scratch, for as many rows of padded(length) entries.
constexpr int FEW = 8;
inline int64_t padded(int64_t length) { return (length + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

template <int K>
void write_weights(const float* z, float* p, int64_t num_rows, int64_t length, float scale, double exponent,
                   float* x) {
    const int64_t width = padded(length);
    const double tolerance = tolerance_of(length, exponent);
    float top[FEW];
    double tau[FEW];
    bool busy[FEW];
    for (int64_t row = 0; row < num_rows; row++, z += length) {
        const auto tops = tops_of<2>(z, length);
        top[row] = tops.all;
        busy[row] = -INF < top[row] && top[row] < INF;
        if (!busy[row]) continue;
        float* own = x + row * width;
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) store_some(own + i, (load(z + i) - top[row]) * scale, LANES);
        for (; i < length; i++) own[i] = (z[i] - top[row]) * scale;
        for (; i < width; i++) own[i] = -INF;
        // The bound spares two or three steps, each as long as the row.
        tau[row] = length < 256 ? -1 : first_bound(tops, scale, exponent);
    }
    for (bool any = true; any;) {
        any = false;
        for (int64_t row = 0; row < num_rows; row++)
            if (busy[row]) any |= busy[row] = step_up<K>(x + row * width, width, tau[row], exponent, tolerance);
    }
    for (int64_t row = 0; row < num_rows; row++, p += length, x += width) {
        if (!(-INF < top[row] && top[row] < INF)) {
            std::fill_n(p, length, top[row] == -INF ? 0.0f : std::numeric_limits<float>::quiet_NaN());
            continue;
        }
        const float mass = static_cast<float>(write_powers<K>(x, x, length, tau[row], exponent));
        for (int64_t i = 0; i < length; i += LANES) store_some(p + i, load(x + i) / mass, length - i);
    }
}

// s = p^(2 - alpha) on the support; K = 1 for alpha 2, 2 for alpha 1.5, 0 for any.
template <int K> inline Floats support_weight(Floats p, float power_of_p) {
    if (K == 1) return p > 0.0f ? all(1.0f) : Floats{};
    if (K == 2) {
        float s[LANES];
        std::memcpy(s, &p, sizeof p);
        for (int k = 0; k < LANES; k++) s[k] = std::sqrt(s[k]);
        return load(s);
    }
    return power(p, power_of_p);
}

// s (g - mean_s g) of one row; s is scratch for length + LANES entries.
template <int K>
void write_product(const float* p, const float* g, float* out, int64_t length, float power_of_p, float* s) {
    double total = 0, weighted = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        Floats part = {}, with_g = {};
        for (int64_t i = start; i < std::min(length, start + BLOCK); i += LANES) {
            const Floats weight = load_some(p + i, length - i);
            const bool nothing = K == 0 && beyond(weight, Floats{}) == 0;
            const Floats v = nothing ? Floats{} : support_weight<K>(weight, power_of_p);
            std::memcpy(s + i, &v, sizeof v);
            part += v;
            // Off the support the upstream gradient may be anything, infinite too: it must not enter the mean.
            with_g += v == 0.0f ? Floats{} : v * load_some(g + i, length - i);
        }
        total += sum(part), weighted += sum(with_g);
    }
    const float mean = total == 0 ? 0.0f : static_cast<float>(weighted / total);
    for (int64_t i = 0; i < length; i += LANES) {
        const Floats v = load(s + i);
        store_some(out + i, v == 0.0f ? Floats{} : v * (load_some(g + i, length - i) - mean), length - i);
    }
}

}  // namespace
