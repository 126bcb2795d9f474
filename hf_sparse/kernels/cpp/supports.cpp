// Long rows: their supports, found in one read, what is written from these, and cross-entropy.
//
// Throughout, x = (alpha - 1) (z - max z), P = 1 / (alpha - 1), and tau is the threshold in units of x: the weights
// are [x - tau]_+ ^ P and sum to one. The specification is hf_sparse/functional, in torch.

#include <vector>

#include "counted_scores.hpp"
#include "parallel.hpp"
#include "scan.hpp"
#include "softmax_rows.hpp"
#include "whole_rows.hpp"

namespace {

// The support of a row, until the caller has made room for it.
struct Support {
    std::vector<int32_t> column;
    std::vector<float> weight;
    bool crowded = false;
};

// Keeps the positive ones of found.value, divided by `mass`, as the row's weights.
void keep_weights(const Found& found, double mass, Support& support) {
    const auto end = found.value.begin() + found.count;
    const int64_t used = std::count_if(found.value.begin(), end, [](float p) { return p > 0; });
    support.column.resize(used + 1), support.weight.resize(used + 1);  // what is not kept is overwritten
    const float share = static_cast<float>(mass);
    int64_t n = 0;
    for (int64_t i = 0; i < found.count; i++) {
        support.column[n] = found.column[i];
        support.weight[n] = found.value[i] / share;
        n += found.value[i] > 0;
    }
    support.column.resize(n), support.weight.resize(n);
}

// A row without a finite maximum has one NaN, so that it is not mistaken for a row without weights.
const Support NO_WEIGHTS_BUT_NAN{{0}, {std::numeric_limits<float>::quiet_NaN()}};

template <class T>
void entmax_rows(const T* z, int64_t num_rows, int64_t length, double alpha, double exponent, int64_t most,
                 int num_threads, Support* supports, float* top, float* conjugate, Solution* solution) {
    const float scale = static_cast<float>(alpha - 1);
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        int64_t sign = FIRST_SIGN;
        for (int64_t row = first; row < last; row++) {
            Threshold solved = scan(z + row * length, length, scale, exponent, most, sign, found);
            sign = solved.crowded ? SIGN_AFTER_CROWDED : FIRST_SIGN;
            Moments moments;
            if (solved.crowded) {
                solution[row] =
                    BY_EXPONENT(solve_whole, exponent, z + row * length, length, alpha, exponent, found, moments);
                solved.top = static_cast<float>(solution[row].base), found.count = 0;
                supports[row].crowded = solved.top < INF;
            }
            top[row] = solved.top;
            conjugate[row] = solved.top == -INF ? 0 : std::numeric_limits<float>::quiet_NaN();
            if (!(solved.top < INF)) supports[row] = NO_WEIGHTS_BUT_NAN;
            if (supports[row].crowded)
                conjugate[row] = conjugate_of(alpha, solution[row].tau, moments.mass, moments.with_excess / moments.mass);
            if (found.count == 0) continue;
            const double mass = write_powers(found.x.data(), found.value.data(), found.count, solved.tau, exponent);
            const double mean = dot(found.value.data(), found.x.data(), found.count) / mass;  // of x, weighted by p
            keep_weights(found, mass, supports[row]);
            // One entry has no x, and must come out as nothing at all.
            const bool one = supports[row].column.size() == 1;
            conjugate[row] = one ? 0 : conjugate_of(alpha, solved.tau, mass, mean - solved.tau - 1);
        }
    });
}

template <class T>
void relu_rows(const T* z, int64_t num_rows, int64_t length, double alpha, double exponent, double tau, int64_t most,
               int num_threads, Support* supports, double* mass, Solution* solutions) {
    const double cut = tau / (alpha - 1);
    const float threshold = static_cast<float>(cut - 4 * EPS * std::fabs(cut));
    const Solution solution = relu_solution(alpha, exponent, tau);
    const Scaling scaled(solution.base, alpha);
    std::fill_n(solutions, num_rows, solution);
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        for (int64_t row = first; row < last; row++) {
            const T* scores = z + row * length;
            found.count = 0;
            for (int64_t begin = 0; begin < length && found.count <= most; begin += 4 * BLOCK)
                list_above(scores, begin, std::min(length, begin + 4 * BLOCK), threshold, found);
            const bool crowded = found.count > most;
            const float top = crowded ? tops_of<8>(scores, length).all : tops_of<1>(found.value.data(), found.count).all;
            mass[row] = top < INF ? 0 : top;
            if (!(top < INF)) {
                supports[row] = NO_WEIGHTS_BUT_NAN;
                continue;
            }
            if (crowded) {
                supports[row].crowded = true;
                const Moments moments =
                    BY_EXPONENT(moments_at, exponent, scores, length, alpha, exponent, solution, found);
                mass[row] = moments.with_excess + moments.mass;
                continue;
            }
            for (int64_t i = 0; i < found.count; i++) found.x[i] = scaled(found.value[i]);
            std::fill_n(found.x.begin() + found.count, LANES, -INF);
            write_powers(found.x.data(), found.value.data(), found.count, solution.tau, exponent);
            mass[row] = dot(found.value.data(), found.x.data(), found.count, static_cast<float>(solution.tau));
            keep_weights(found, 1, supports[row]);
        }
    });
}

// Rows with a larger part of them in the support are solved and written whole.
constexpr int64_t LARGEST_PART = 16;
constexpr double LARGEST_ERROR_OF_SUM = 5e-7;  // of the weights of a map

template <class T>
void map_rows(const T* z, T* p, int64_t num_rows, int64_t length, double alpha, double exponent, int num_threads) {
    const float scale = static_cast<float>(alpha - 1);
    const bool streamed = num_rows * length * static_cast<int64_t>(sizeof(T)) > STREAMED;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        Found& found = room_for(length);
        int64_t sign = FIRST_SIGN;
        for (int64_t row = first; row < last; row++) {
            T* out = p + row * length;
            Threshold solved = scan(z + row * length, length, scale, exponent, length / LARGEST_PART, sign, found);
            sign = solved.crowded ? SIGN_AFTER_CROWDED : FIRST_SIGN;
            if (solved.crowded) {
                Moments moments;
                Solution whole =
                    BY_EXPONENT(solve_whole, exponent, z + row * length, length, alpha, exponent, found, moments);
                if (whole.base < INF) {
                    const auto write = [&] {
                        return BY_EXPONENT(write_whole, exponent, z + row * length, length, alpha, exponent, whole, 1,
                                           -1, out, streamed);
                    };
                    // A last step over many ties at the threshold ends where another mass was expected.
                    const double sum = write();
                    if (std::fabs(sum - 1) > LARGEST_ERROR_OF_SUM) whole.mass *= sum, write();
                    continue;
                }
                solved.top = static_cast<float>(whole.base);
            }
            if (!(solved.top < INF)) {
                for (int64_t i = 0; i < length; i++) store_one(out + i, std::numeric_limits<float>::quiet_NaN());
                continue;
            }
            const double mass = write_powers(found.x.data(), found.value.data(), found.count, solved.tau, exponent);
            for (int64_t i = 0; i < found.count; i++) found.value[i] /= static_cast<float>(mass);
            write_row(out, length, found.column.data(), found.value.data(), found.count, streamed);
        }
        finish_streaming();
    });
}

template <class T>
void write_rows(const int64_t* column, const float* value, int64_t width, const int64_t* target, const float* factor,
                const bool* skipped, T* out, int64_t num_rows, int64_t length, int num_threads) {
    const bool streamed = num_rows * length * static_cast<int64_t>(sizeof(T)) > STREAMED;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        std::vector<float> scaled(width);
        for (int64_t row = first; row < last; row++) {
            if (skipped && skipped[row]) continue;
            const int64_t* columns = column + row * width;
            const float *values = value + row * width, by = factor ? factor[row] : 1;
            int64_t n = by == 0 ? 0 : width, gold = -1;
            while (n > 0 && values[n - 1] == 0) n--;
            for (int64_t i = 0; i < n; i++) {
                const bool hit = target && columns[i] == target[row];
                if (hit) gold = i;
                scaled[i] = (hit ? values[i] - 1 : values[i]) * by;
            }
            write_row(out + row * length, length, columns, scaled.data(), n, streamed);
            if (target && gold < 0 && by != 0) store_one(out + row * length + target[row], -by);
        }
        finish_streaming();
    });
}

// factor (p - e_target) of crowded rows, from their scores.
template <class T>
void write_crowded(const T* z, const bool* crowded, const Solution* solution, const int64_t* target, const float* factor,
                   T* out, int64_t num_rows, int64_t length, double alpha, double exponent, int num_threads) {
    const bool streamed = num_rows * length * static_cast<int64_t>(sizeof(T)) > STREAMED;
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++)
            if (crowded[row] && factor[row] != 0)
                BY_EXPONENT(write_whole, exponent, z + row * length, length, alpha, exponent, solution[row],
                            factor[row], target ? target[row] : -1, out + row * length, streamed);
            else if (crowded[row])
                std::memset(static_cast<void*>(out + row * length), 0, length * sizeof(T));
        finish_streaming();
    });
}

}  // namespace

extern "C" {

// The supports of rows, to be fetched by hf_sparse_take: `count` weights per row, or -1 if they are more than `most`,
// the row's maximum, Omega*(z) - max z, and the solution of the rows with too many. A row with a NaN or an infinite
// score has one weight, NaN; a fully masked one has none.
void* hf_sparse_entmax_supports(const void* z, int dtype, int64_t num_rows, int64_t length, double alpha,
                                double exponent, int64_t most, int num_threads, int64_t* count, float* top,
                                float* conjugate, void* solution) {
    auto* supports = new std::vector<Support>(num_rows);
    BY_DTYPE(entmax_rows(static_cast<const T*>(z), num_rows, length, alpha, exponent, most, num_threads,
                         supports->data(), top, conjugate, static_cast<Solution*>(solution)))
    for (const Support& support : *supports) *count++ = support.crowded ? -1 : support.column.size();
    return supports;
}

// The same of alpha-ReLU, whose threshold is given; `mass` is sum [(alpha - 1) z - tau]_+ ^ (P + 1).
void* hf_sparse_relu_supports(const void* z, int dtype, int64_t num_rows, int64_t length, double alpha,
                              double exponent, double tau, int64_t most, int num_threads, int64_t* count,
                              double* mass, void* solution) {
    auto* supports = new std::vector<Support>(num_rows);
    BY_DTYPE(relu_rows(static_cast<const T*>(z), num_rows, length, alpha, exponent, tau, most, num_threads,
                       supports->data(), mass, static_cast<Solution*>(solution)))
    for (const Support& support : *supports) *count++ = support.crowded ? -1 : support.column.size();
    return supports;
}

// Columns, ascending, and weights, `width` per row: 0 in column 0 where a row has fewer. The supports end here.
void hf_sparse_take(void* supports, int64_t width, int64_t* column, float* weight) {
    auto* taken = static_cast<std::vector<Support>*>(supports);
    for (const Support& support : *taken) {
        std::fill(std::copy(support.column.begin(), support.column.end(), column), column + width, 0);
        std::fill(std::copy(support.weight.begin(), support.weight.end(), weight), weight + width, 0.0f);
        column += width, weight += width;
    }
    delete taken;
}

// Rows of zeros with value * factor at the columns, which ascend until only zeros are left, and factor less at the
// target. No factor is 1; no target, none. Rows with factor 0 stay zero whatever their values. Skipped rows are left alone.
void hf_sparse_write(const int64_t* column, const float* value, int64_t width, const int64_t* target,
                     const float* factor, const bool* skipped, void* out, int dtype, int64_t num_rows, int64_t length,
                     int num_threads) {
    BY_DTYPE(write_rows(column, value, width, target, factor, skipped, static_cast<T*>(out), num_rows, length,
                        num_threads))
}

// factor (p - e_target) of the rows that are crowded, from their scores and solutions; the others are left alone.
void hf_sparse_write_crowded(const void* z, const bool* crowded, const void* solution, const int64_t* target,
                             const float* factor, void* out, int dtype, int64_t num_rows, int64_t length, double alpha,
                             double exponent, int num_threads) {
    BY_DTYPE(write_crowded(static_cast<const T*>(z), crowded, static_cast<const Solution*>(solution), target, factor,
                           static_cast<T*>(out), num_rows, length, alpha, exponent, num_threads))
}

// The weights of long rows: zeros, and the support written over them.
void hf_sparse_map(const void* z, void* p, int dtype, int64_t num_rows, int64_t length, double alpha, double exponent,
                   int num_threads) {
    BY_DTYPE(map_rows(static_cast<const T*>(z), static_cast<T*>(p), num_rows, length, alpha, exponent, num_threads))
}

// For cross-entropy: the row's maximum and log sum exp less that, NaN for a row that has no finite maximum.
void hf_sparse_log_sums(const void* z, int dtype, int64_t num_rows, int64_t length, int num_threads, float* top,
                        double* log_sum) {
    BY_DTYPE(log_sums(static_cast<const T*>(z), num_rows, length, num_threads, top, log_sum))
}

// Its gradient, factor (softmax - e_target).
void hf_sparse_write_softmax(const void* z, const float* top, const double* log_sum, const int64_t* target,
                             const float* factor, void* out, int dtype, int64_t num_rows, int64_t length,
                             int num_threads) {
    BY_DTYPE(all_softmax(static_cast<const T*>(z), top, log_sum, target, factor, static_cast<T*>(out), num_rows, length,
                         num_threads))
}

}  // extern "C"
