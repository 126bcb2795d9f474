// Rows of scores W h from a product in bfloat16, of which those that can be above the threshold of entmax are computed
// again from the float32 factors.
//
// With h = h' + e and w = w' + f, where h' and w' are rounded to bfloat16,
//
//     |w.h - w'.h'| <= |f| |h'| + |w| |e|,
//
// and the product itself is off by at most `rounding` |w'| |h'| before it is rounded to bfloat16, by less than 2^-8 of it.

#pragma once

#include "coded_keys.hpp"

namespace {

constexpr float OF_BFLOAT16 = 0x1p-8f;  // what rounding takes from a number at most, and twice of it
constexpr float LEAST_LOST = 0x1p-50f;  // what underflows
constexpr float HIGHEST_NORM = 0x1p60f;

// A row rounded to bfloat16; the norms of it and of what that lost. False if they are huge, or not finite.
inline bool round_row(const float* row, int64_t width, BFloat16* rounded, float* norm, float* lost) {
    Floats square{}, square_lost{};
    float rest = 0, rest_lost = 0;
    for (int64_t i = 0; i < width; i++) store_one(rounded + i, row[i]);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        const Floats v = load(row + i), off = v - load(rounded + i);
        square += v * v, square_lost += off * off;
    }
    for (; i < width; i++) {
        const float off = row[i] - load_one(rounded + i);
        rest += row[i] * row[i], rest_lost += off * off;
    }
    const float least = std::sqrt(static_cast<float>(width)) * 0x1p-63f;  // of entries whose squares underflow
    *norm = 1.001f * (std::sqrt(sum(square) + rest) + least);
    *lost = 1.001f * (std::sqrt(sum(square_lost) + rest_lost) + least);
    return *norm < HIGHEST_NORM;
}

inline bool round_rows(const float* rows, int64_t num_rows, int64_t width, BFloat16* rounded, float* norm, float* lost,
                       int num_threads) {
    std::atomic<bool> fine{true};
    by_rows(num_rows, width, num_threads, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++)
            if (!round_row(rows + row * width, width, rounded + row * width, norm + row, lost + row)) fine = false;
    });
    return fine;
}

struct ScreenCall {
    const BFloat16* product;     // (num_rows, length)
    const float *h, *w, *bias;   // (num_rows, width), (length, width), (length) or null
    const float *h_norm, *h_lost, *w_norm, *w_lost;
    int64_t num_rows, length, width, most;
    double alpha, exponent;
    double tau;                  // of alpha-ReLU, in units of x; NaN for entmax, whose threshold is to be found
    int64_t* column;             // (num_rows, most)
    float* score;
};

// Calls body(first column, scores times alpha - 1, what they may be off by) for every vector of a row.
template <class Body>
inline void in_row(const ScreenCall& call, const BFloat16* product, float from_lost, float from_norm, Body body) {
    const float scale = static_cast<float>(call.alpha - 1);
    const auto one = [&](int64_t i, int64_t n) {
        Floats z{};
        if (n >= LANES) z = load(product + i);
        else
            for (int64_t k = 0; k < n; k++) z[k] = load_one(product + i + k);
        const Floats bias = call.bias ? load_some(call.bias + i, n) : Floats{};
        Floats slack = from_lost * load_some(call.w_lost + i, n) + from_norm * load_some(call.w_norm + i, n);
        slack = (slack + OF_BFLOAT16 * size_of(z) + LEAST_LOST + 4 * EPS * (size_of(z) + size_of(bias))) * scale * 1.0001f;
        Floats x = (z + bias) * scale;
        for (int64_t k = n; k < LANES; k++) x[k] = -INF, slack[k] = 0;
        body(i, x, slack);
    };
    int64_t i = 0;
    for (; i + LANES <= call.length; i += LANES) one(i, LANES);
    if (i < call.length) one(i, call.length - i);
}

// What x of a row must be above to have weight, or less.
inline float cut_of(const ScreenCall& call, const BFloat16* product, float from_lost, float from_norm, Candidates& low) {
    if (!std::isnan(call.tau)) return static_cast<float>(call.tau) - MARGIN - 8 * EPS * std::fabs(static_cast<float>(call.tau));
    Floats tops = all(-INF);
    in_row(call, product, from_lost, from_norm, [&](int64_t, Floats x, Floats slack) { tops = largest(x - slack, tops); });
    const float top = highest(tops);
    if (!(std::fabs(top) < INF)) return std::numeric_limits<float>::quiet_NaN();
    low.clear();
    const Floats least = all(top - 1.0f - 8 * EPS * (1.0f + std::fabs(top)));
    in_row(call, product, from_lost, from_norm, [&](int64_t, Floats x, Floats slack) {
        const Floats lower = x - slack;
        for (uint32_t bits = beyond(lower, least); bits; bits &= bits - 1) low.x.push_back(lower[__builtin_ctz(bits)]);
    });
    low.finish(top, -INF);
    const float tau = static_cast<float>(solve(low.x.data(), low.x.size(), -1, call.exponent));
    return top + tau - MARGIN - 8 * EPS * std::fabs(top);
}

// The candidates of a row, exactly; their number, or -1 if they are too many or something is not finite.
inline int64_t list_candidates(const ScreenCall& call, int64_t row, Candidates& low) {
    const BFloat16* product = call.product + row * call.length;
    const float scale = static_cast<float>(call.alpha - 1), norm = call.h_norm[row], lost = call.h_lost[row];
    const float from_lost = norm + lost, from_norm = lost + 2 * rounding_of(call.width) * (norm + lost);
    const float least = cut_of(call, product, from_lost, from_norm, low);
    if (std::isnan(least)) return -1;
    const Floats cut = all(least);
    const Matrix<float> matrix{call.w, call.bias, call.length, call.width};
    int64_t count = 0;
    bool fine = true;
    in_row(call, product, from_lost, from_norm, [&](int64_t i, Floats x, Floats slack) {
        for (uint32_t bits = beyond(x + slack, cut); bits && fine; bits &= bits - 1) {
            const int k = __builtin_ctz(bits);
            if (!(fine = count < call.most)) return;
            const float exact = exact_product(matrix, i + k, call.h + row * call.width);
            fine = std::fabs(exact * scale - x[k]) <= slack[k];  // else the product is not that of these factors
            call.column[row * call.most + count] = i + k, call.score[row * call.most + count++] = exact;
        }
    });
    return fine ? count : -1;
}

inline void list_all_candidates(const ScreenCall& call, int64_t* count, int num_threads) {
    by_rows(call.num_rows, call.length, num_threads, [&](int64_t first, int64_t last) {
        Candidates low;
        for (int64_t row = first; row < last; row++) count[row] = list_candidates(call, row, low);
    });
}

}  // namespace
