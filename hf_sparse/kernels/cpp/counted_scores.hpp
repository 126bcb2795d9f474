// Scores in bfloat16 of long rows that are mostly support. A row holds few different ones: its sums are over those, times
// how often each occurs, and its weights are looked up in a table. It is faster where a weight takes a logarithm.

#pragma once

#include <vector>

#include "scan.hpp"

namespace {

template <int K, class T> constexpr bool counted() { return K == ANY && std::is_same_v<T, BFloat16>; }
constexpr int64_t COUNTED = 1 << 14;  // entries of a row from which it is

// A bfloat16 is its sign and the code of its size.
constexpr int64_t CODES = 1 << 16, NEGATIVE = 1 << 15;
inline int64_t code_of(float size) { return load_as<uint32_t>(&size) >> 16; }
inline Floats scores_from(int64_t code) {  // of LANES codes
    Ints codes;
    for (int k = 0; k < LANES; k++) codes[k] = static_cast<int32_t>(code) + k;
    return (Floats)(codes << 16);
}

// The codes of the sizes in a row, [first, end), and those up to that of `live`, in a row whose scores are live from -live
// to live.
struct Sizes {
    int64_t first, end, live_end;
    Sizes(const BFloat16* z, int64_t length, float live) {
        Floats least = all(INF), most = {};
        const auto look = [&](Floats v) {
            const Floats size = (Floats)((Ints)v & 0x7fffffff);
            least = smallest(size, least), most = largest(size, most);
        };
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) look(load(z + i));
        for (; i < length; i++) look(all(load_one(z + i)));
        first = code_of(-highest(-least)), end = code_of(highest(most)) + 1;
        live_end = std::max(first, std::min(end, code_of(live) + 1));
    }
};

// The different live scores, into found.x, and how often each occurs, into found.value, both padded: their number.
int64_t count_scores(const BFloat16* z, int64_t length, float live, Found& found) {
    // Two counts, so that equal neighbours do not wait for each other. Between calls they are zero.
    thread_local std::vector<int32_t> counts(2 * CODES + LANES);
    int32_t *even = counts.data(), *odd = even + CODES;
    const Sizes sizes(z, length, live);
    int64_t i = 0, n = 0;
    for (; i + 2 <= length; i += 2) even[z[i].bits]++, odd[z[i + 1].bits]++;
    if (i < length) even[z[i].bits]++;
    for (const int64_t sign : {int64_t{0}, NEGATIVE}) {
        for (int64_t code = sign + sizes.first; code < sign + sizes.live_end; code += LANES) {
            float score[LANES], number[LANES];
            const Floats times = __builtin_convertvector(load_as<Ints>(even + code) + load_as<Ints>(odd + code), Floats);
            store(score, scores_from(code)), store(number, times);
            for (uint32_t some = beyond(times, Floats{}); some; some &= some - 1, n++) {
                const int k = __builtin_ctz(some);
                found.x[n] = score[k], found.value[n] = number[k];
            }
        }
        std::fill(even + sign + sizes.first, even + sign + sizes.end, 0);
        std::fill(odd + sign + sizes.first, odd + sign + sizes.end, 0);
    }
    std::fill_n(found.value.begin() + n, 2 * LANES, 0.0f);
    return n;
}

// weight_of(score) at the code of each live score in the row, and 0 at those of others.
template <class Weight> class Table {
    std::vector<BFloat16>& weights;
    const Sizes sizes;
    static std::vector<BFloat16>& zeros() {
        thread_local std::vector<BFloat16> table(CODES + LANES);
        return table;
    }

public:
    Table(const BFloat16* z, int64_t length, float live, Weight weight_of) : weights(zeros()), sizes(z, length, live) {
        for (const int64_t sign : {int64_t{0}, NEGATIVE})
            for (int64_t code = sign + sizes.first; code < sign + sizes.live_end; code += LANES)
                store(&weights[code], weight_of(scores_from(code)));
    }
    ~Table() {
        for (const int64_t sign : {int64_t{0}, NEGATIVE})
            std::fill_n(&weights[sign + sizes.first], sizes.live_end - sizes.first + LANES, BFloat16{0});
    }
    const BFloat16* data() const { return weights.data(); }
};

}  // namespace
