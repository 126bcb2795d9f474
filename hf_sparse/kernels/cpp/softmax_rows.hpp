// The cross-entropy of rows: log sum exp of their scores, and exp(z - log sum exp) less the target.

#pragma once

#include "whole_rows.hpp"

namespace {

// exp(z - top - more), for exponents that float32 can hold; 0 below, where float32 has no normal numbers. Beside a large
// top the sum of both would lose what is more.
struct Exponential {
    float base, rest;
    explicit Exponential(float top, double more = 0)
        : base(static_cast<float>(top + more)), rest(static_cast<float>(more - (static_cast<double>(base) - top))) {}
    Floats operator()(Floats z) const {
        const Floats v = (z - base - rest) * 1.4426950408889634f;
        return v > -125.0f ? exp2_of(v) : Floats{};
    }
};

// log sum exp(z) less the maximum, which is a number.
template <class T> double log_sum(const T* z, int64_t length, float top) {
    const Exponential exponential(top);
    double total = 0;
    for (int64_t start = 0; start < length; start += 2 * PART) {
        const int64_t end = std::min(length, start + 2 * PART);
        Floats sums[2] = {};
        int64_t i = start;
        for (; i + 2 * LANES <= end; i += 2 * LANES)
            for (int k = 0; k < 2; k++) sums[k] += exponential(load(z + i + k * LANES));
        total += sum(sums[0] + sums[1]);
        for (; i < end; i++) total += exponential(all(load_one(z + i)))[0];
    }
    return std::log(total);
}

// factor exp(z - top - log_sum) of a row, and factor less at the target.
template <class T>
void write_softmax(const T* z, int64_t length, float top, double log_sum, float factor, int64_t target, T* out,
                   bool streamed) {
    const Exponential exponential(top, log_sum);
    const auto of_one = [&](const T* one) { return factor * exponential(all(load_one(one)))[0]; };
    write_parts(out, length, target, of_one(z + target) - factor, streamed, [&](T* part, int64_t start, int64_t end) {
        int64_t i = start;
        for (; i + LANES <= end; i += LANES) store(part + (i - start), factor * exponential(load(z + i)));
        for (; i < end; i++) store_one(part + (i - start), of_one(z + i));
    });
}

template <class T>
void log_sums(const T* z, int64_t num_rows, int64_t length, int num_threads, float* top, double* log_sum_of) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) {
            const float highest = top[row] = tops_of<8>(z + row * length, length).all;
            const bool finite = -INF < highest && highest < INF;
            log_sum_of[row] = finite ? log_sum(z + row * length, length, highest)
                                     : std::numeric_limits<double>::quiet_NaN();
        }
    });
}

template <class T>
void all_softmax(const T* z, const float* top, const double* log_sum_of, const int64_t* target, const float* factor,
                 T* out, int64_t num_rows, int64_t length, int num_threads) {
    const bool streamed = num_rows * length * static_cast<int64_t>(sizeof(T)) > STREAMED;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) {
            T* own = out + row * length;
            if (factor[row] == 0)
                std::memset(static_cast<void*>(own), 0, length * sizeof(T));
            else if (log_sum_of[row] != log_sum_of[row])
                for (int64_t i = 0; i < length; i++) store_one(own + i, std::numeric_limits<float>::quiet_NaN());
            else
                write_softmax(z + row * length, length, top[row], log_sum_of[row], factor[row], target[row], own,
                              streamed);
        }
        finish_streaming();
    });
}

}  // namespace
