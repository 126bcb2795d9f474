// The gradient in alpha of weights p, from the p alone: see _entmax_learned.py, whose formulas these are.

#pragma once

#include <cmath>
#include <cstdint>

namespace {

// (e^y - 1 - y) / y^2, 1/2 at y = 0.
inline double second_order(double y) {
    if (std::fabs(y) > 0.05) return (std::expm1(y) - y) / (y * y);
    double series = 0;
    for (int n = 8; n >= 2; n--) series = (1 + y * series) / n;  // 1/2 (1 + y/3 (1 + y/4 (...)))
    return series;
}

// sum_i g_i dp_i / dalpha of a row. Entries off the support have no part, whatever their g.
inline double slope_in_alpha(const float* p, const float* g, int64_t length, double alpha) {
    const double a = alpha - 1;
    double entropy = 0, phi = 0, phi_2 = 0, of_one = 0, of_log = 0, of_psi = 0, of_psi_2 = 0;
    for (int64_t i = 0; i < length; i++) {
        if (p[i] == 0) continue;
        const double weight = p[i], log_p = std::log(weight), weighted = weight * g[i];
        const double psi_2 = log_p * log_p * second_order(-a * log_p), psi = a * psi_2 - log_p;
        entropy -= weight * log_p, phi += weight * psi, phi_2 += weight * psi_2;
        of_one += weighted, of_log += weighted * log_p, of_psi += weighted * psi, of_psi_2 += weighted * psi_2;
    }
    return (of_one * phi_2 - of_psi_2 - phi * of_log - entropy * of_psi) / (1 + a * phi);
}

}  // namespace
