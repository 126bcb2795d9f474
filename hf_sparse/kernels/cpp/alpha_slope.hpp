// The gradient in alpha of weights p, from the p alone: see _entmax_learned.py, whose formulas these are.

#pragma once

#include "powers.hpp"

namespace {

// (e^y - 1 - y) / y^2 for y >= 0, 1/2 at y = 0.
inline Floats second_order(Floats y) {
    Floats series = all(0.1f);
    for (int n = 9; n >= 2; n--) series = (1.0f + y * series) * (1.0f / n);  // 1/2 (1 + y/3 (1 + y/4 (...)))
    return y < 1.0f ? series : (exp2_of(y * 1.4426950408889634f) - 1.0f - y) / (y * y);
}

// sum_i g_i dp_i / dalpha of a row, a = alpha - 1. Entries off the support have no part, whatever their g.
inline double slope_in_alpha(const float* p, const float* g, int64_t length, float a) {
    const Floats least = all(std::numeric_limits<float>::min());
    double entropy = 0, phi = 0, phi_2 = 0, of_one = 0, of_log = 0, of_psi = 0, of_psi_2 = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        Floats part[7] = {};
        for (int64_t i = start; i < std::min(length, start + BLOCK); i += LANES) {
            const Floats v = load_some(p + i, length - i);
            if (beyond(v, least) == 0) continue;
            const auto outside = v < least;
            const Floats weight = outside ? Floats{} : v, weighted = outside ? Floats{} : v * load_some(g + i, length - i);
            const Floats log_p = log2_of(outside ? all(1.0f) : v) * 0.6931471805599453f;
            const Floats psi_2 = log_p * log_p * second_order(-a * log_p), psi = a * psi_2 - log_p;
            part[0] -= weight * log_p, part[1] += weight * psi, part[2] += weight * psi_2;
            part[3] += weighted, part[4] += weighted * log_p, part[5] += weighted * psi, part[6] += weighted * psi_2;
        }
        entropy += sum(part[0]), phi += sum(part[1]), phi_2 += sum(part[2]), of_one += sum(part[3]);
        of_log += sum(part[4]), of_psi += sum(part[5]), of_psi_2 += sum(part[6]);
    }
    return (of_one * phi_2 - of_psi_2 - phi * of_log - entropy * of_psi) / (1 + a * phi);
}

}  // namespace
