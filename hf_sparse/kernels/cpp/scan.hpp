// One streaming read of a long row: all that can be in its support, and the threshold.

#pragma once

#include <vector>

#include "newton.hpp"

namespace {

struct Found {
    std::vector<float> value, x;
    std::vector<int32_t> column;
    int64_t count = 0;
};

// The thread's own, with room for a row; kept, because to clear it for every call would cost as much as the call.
Found& room_for(int64_t length) {
    thread_local Found found;
    if (found.value.size() < static_cast<size_t>(length + BLOCK)) {
        found.value.resize(length + BLOCK);
        found.x.resize(length + BLOCK);
        found.column.resize(length + BLOCK);
    }
    return found;
}

// Lists the entries z[begin:end] above the threshold, and NaNs. First the groups that hold any, with no branch to
// mispredict, then their entries.
template <class T> void list_above(const T* z, int64_t begin, int64_t end, float threshold, Found& found) {
    constexpr int GROUP = 4 * LANES;
    const Floats t = all(threshold);
    float* value = found.value.data();
    int32_t* column = found.column.data();
    int64_t n = found.count;
    while (begin + GROUP <= end) {
        int64_t first[BLOCK / GROUP], groups = 0;
        uint64_t above[BLOCK / GROUP];
        for (const int64_t stop = std::min(end, begin + BLOCK); begin + GROUP <= stop; begin += GROUP) {
            uint64_t bits = 0;
            for (int k = 0; k < 4; k++)
                bits |= static_cast<uint64_t>(beyond(load(z + begin + k * LANES), t)) << (k * LANES);
            first[groups] = begin;
            above[groups] = bits;
            groups += bits != 0;
        }
        for (int64_t k = 0; k < groups; k++)
            for (uint64_t bits = above[k]; bits; bits &= bits - 1, n++) {
                column[n] = static_cast<int32_t>(first[k] + __builtin_ctzll(bits));
                value[n] = load_one(z + column[n]);
            }
    }
    for (; begin < end; begin++) {
        const float v = load_one(z + begin);
        value[n] = v;
        column[n] = static_cast<int32_t>(begin);
        n += !(v <= threshold);
    }
    found.count = n;
}

// A score below which x is at most tau: rounding of x is allowed for, and the result is rounded down.
float score_at(float top, double tau, double scale) {
    return std::nextafter(static_cast<float>(top + (tau - 4 * EPS) / scale), -INF);
}

void drop_below(Found& found, float threshold) {
    int64_t n = 0;
    for (int64_t i = 0; i < found.count; i++) {
        const float v = found.value[i];
        found.value[n] = v;
        found.column[n] = found.column[i];
        n += v > threshold;
    }
    found.count = n;
}

// Solves on what was found so far: a lower bound of the row's threshold, being the threshold of a part of it.
double solve_found(Found& found, float top, float scale, double bound, double exponent, int most_steps = 100) {
    float* x = found.x.data();
    for (int64_t i = 0; i < found.count; i++) x[i] = (found.value[i] - top) * scale;
    for (int64_t i = found.count; i < found.count + 2 * LANES; i++) x[i] = -INF;
    return solve(x, found.count, bound, exponent, most_steps);
}

struct Threshold { float top; double tau; bool crowded = false; };

// Reads the row once; leaves in `found` all entries that can be in the support, with their x.
// Rows without a finite maximum find nothing: top is -inf (masked), inf or NaN. Rows with more than `most` such entries
// are crowded: they are given up, and better solved whole. That may be told from a sign after as many entries as `sign`.
constexpr int64_t FIRST_SIGN = 4 * BLOCK, SIGN_AFTER_CROWDED = BLOCK;  // for rows of a batch are alike
template <class T>
Threshold scan(const T* z, int64_t length, float scale, double exponent, int64_t most, int64_t sign, Found& found) {
    found.count = 0;
    const auto tops = tops_of<8>(z, std::min(length, 4 * BLOCK));
    float top = tops.all;
    if (!(top < INF)) return {top, 0};
    double tau = top == -INF ? -1 : first_bound(tops, scale, exponent);
    float threshold = score_at(top, tau, scale);
    int64_t enough = 256;
    for (int64_t begin = 0; begin < length; begin += BLOCK) {
        const int64_t before = found.count;
        list_above(z, begin, std::min(length, begin + BLOCK), threshold, found);
        if (found.count == before) continue;
        const float highest = tops_of<1>(found.value.data() + before, found.count - before).all;
        if (!(highest < INF)) {
            found.count = 0;
            return {highest, 0};
        }
        if (highest > top) {
            tau = std::max(-1.0, tau - (highest - top) * scale - MARGIN);
            top = highest;
            threshold = std::max(threshold, score_at(top, tau, scale));
        }
        if (found.count > enough) {
            drop_below(found, threshold);
            if (2 * found.count > enough) {
                tau = std::max(tau, solve_found(found, top, scale, tau, exponent, 2) - MARGIN);
                threshold = std::max(threshold, score_at(top, tau, scale));
                drop_below(found, threshold);
            }
            // Of the first entries thrice the share is a sign: the bound is still low, and rises with what follows.
            const int64_t read = begin + BLOCK;
            if (found.count > most || (read >= sign && found.count * length > 3 * most * read)) return {top, tau, true};
            enough = std::max<int64_t>(256, found.count + found.count / 2);
        }
    }
    if (top == -INF) return {top, 0};
    drop_below(found, threshold);
    if (found.count > most) return {top, tau, true};
    return {top, solve_found(found, top, scale, tau, exponent)};
}

}  // namespace
