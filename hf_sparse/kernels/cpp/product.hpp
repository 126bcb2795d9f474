// Products of small matrices, c = a b or c += a b, whose parts stay in registers.

#pragma once

#include <type_traits>

#include "lanes.hpp"

namespace {

// a(i, k) is a[i * row + k * column]; rows of b and c lie side by side, `step` apart.
struct Left { const float* at; int64_t row, column; };
struct Right { const float* at; int64_t step; };
struct Result { float* at; int64_t step; };

template <int ROWS, int VECTORS>
inline void product_part(Left a, Right b, Result c, int64_t depth, bool add) {
    Floats sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VECTORS; j++) sums[i][j] = add ? load(c.at + i * c.step + j * LANES) : Floats{};
    for (int64_t k = 0; k < depth; k++) {
        Floats right[VECTORS];
        for (int j = 0; j < VECTORS; j++) right[j] = load(b.at + k * b.step + j * LANES);
        for (int i = 0; i < ROWS; i++) {
            const Floats left = all(a.at[i * a.row + k * a.column]);
            for (int j = 0; j < VECTORS; j++) sums[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VECTORS; j++) std::memcpy(c.at + i * c.step + j * LANES, &sums[i][j], sizeof(Floats));
}

// As many sums as there are registers for, and fewer for what is left.
constexpr int PART_ROWS = LANES == 16 ? 12 : 6, FEWER_ROWS = LANES == 16 ? 8 : 4;

template <int VECTORS> void product_columns(Left a, Right b, Result c, int64_t rows, int64_t depth, bool add) {
    const auto part = [&](auto size, int64_t i) {
        product_part<decltype(size)::value, VECTORS>({a.at + i * a.row, a.row, a.column}, b,
                                                     {c.at + i * c.step, c.step}, depth, add);
        return decltype(size)::value;
    };
    int64_t i = 0;
    while (rows - i >= PART_ROWS && rows - i != 2 * FEWER_ROWS) i += part(std::integral_constant<int, PART_ROWS>{}, i);
    while (rows - i >= FEWER_ROWS) i += part(std::integral_constant<int, FEWER_ROWS>{}, i);
    while (rows > i) i += part(std::integral_constant<int, 1>{}, i);
}

// c (rows, columns), a (rows, depth), b (depth, columns); columns are a multiple of LANES.
inline void product(Left a, Right b, Result c, int64_t rows, int64_t columns, int64_t depth, bool add) {
    int64_t j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
        product_columns<2>(a, {b.at + j, b.step}, {c.at + j, c.step}, rows, depth, add);
    if (j < columns) product_columns<1>(a, {b.at + j, b.step}, {c.at + j, c.step}, rows, depth, add);
}

}  // namespace
