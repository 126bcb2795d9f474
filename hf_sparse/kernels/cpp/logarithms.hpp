// Logarithms of rows of weights, and of zero a floor that keeps the order of the scores.

#pragma once

#include "newton.hpp"

namespace {

// log p in the place of p; where p is zero, floor + max(z - max z, floor). NaN in a row without a finite maximum.
void write_logarithms(const float* z, float* p, int64_t length, float floor) {
    const float top = tops_of<8>(z, length).all;
    if (!(std::fabs(top) < INF)) return void(std::fill_n(p, length, std::numeric_limits<float>::quiet_NaN()));
    for (int64_t i = 0; i < length; i += LANES) {
        const Floats w = load_some(p + i, length - i);
        Floats out = floor + largest(load_some(z + i, length - i) - top, all(floor));
        if (beyond(w, Floats{})) {
            const Floats log = log2_of(largest(w, all(std::numeric_limits<float>::min()))) * 0.69314718f;
            out = w > 0.0f ? log : w == 0.0f ? out : w;
        }
        store_some(p + i, out, length - i);
    }
}

}  // namespace
