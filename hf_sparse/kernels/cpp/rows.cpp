// Rows that are solved whole, in cache, and runs of them, each with its alpha.
//
// x, P and tau are those of supports.cpp.

#include <vector>

#include "alpha_slope.hpp"
#include "dense_rows.hpp"
#include "logarithms.hpp"
#include "parallel.hpp"

namespace {

template <class T>
void all_weights(const T* z, T* p, int64_t num_rows, int64_t length, double alpha, double exponent, int num_threads) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        const int64_t few = length <= BLOCK ? FEW : 1;
        std::vector<float> x(few * room(length));
        for (int64_t row = first; row < last; row += few)
            BY_EXPONENT(write_weights, exponent, z + row * length, p + row * length, std::min(few, last - row), length,
                        static_cast<float>(alpha - 1), exponent, x.data());
    });
}

template <class T>
void all_residuals(const T* z, const int64_t* target, T* residual, float* top, float* conjugate, int64_t num_rows,
                   int64_t length, double alpha, double exponent, int num_threads) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        std::vector<float> x(FEW * room(length)), powers(padded(length));
        for (int64_t row = first; row < last; row += FEW)
            BY_EXPONENT(write_residuals, exponent, z + row * length, target ? target + row : nullptr,
                        residual + row * length, top + row, conjugate + row, std::min<int64_t>(FEW, last - row), length,
                        alpha, exponent, x.data(), powers.data());
    });
}

template <class T>
void all_products(const T* p, const T* g, T* out, int64_t num_rows, int64_t length, double alpha, int num_threads) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        std::vector<float> s(length + BLOCK);
        const auto write = alpha == 2     ? write_product<1, T>
                           : alpha == 1.5 ? write_product<2, T>
                                          : write_product<ANY, T>;
        for (int64_t i = first * length; i < last * length; i += length)
            write(p + i, g + i, out + i, length, static_cast<float>(2 - alpha), s.data());
    });
}

}  // namespace

extern "C" {

// The weights of rows that are solved whole, in cache.
void hf_sparse_weights(const void* z, void* p, int dtype, int64_t num_rows, int64_t length, double alpha,
                       double exponent, int num_threads) {
    BY_DTYPE(all_weights(static_cast<const T*>(z), static_cast<T*>(p), num_rows, length, alpha, exponent, num_threads))
}

// For the losses of rows that are solved whole, in cache: p - e_target, or p without targets; the row's maximum; and
// Omega*(z) - max z.
void hf_sparse_residuals(const void* z, const int64_t* target, void* residual, float* top, float* conjugate, int dtype,
                         int64_t num_rows, int64_t length, double alpha, double exponent, int num_threads) {
    BY_DTYPE(all_residuals(static_cast<const T*>(z), target, static_cast<T*>(residual), top, conjugate, num_rows,
                           length, alpha, exponent, num_threads))
}

// The Jacobian's product with g, Diag(s) g - s s^T g / sum s, s = p^(2 - alpha).
void hf_sparse_product(const void* p, const void* g, void* out, int dtype, int64_t num_rows, int64_t length,
                       double alpha, int num_threads) {
    BY_DTYPE(all_products(static_cast<const T*>(p), static_cast<const T*>(g), static_cast<T*>(out), num_rows, length,
                          alpha, num_threads))
}

// Logarithms of weights in their place, of scores in float32.
void hf_sparse_write_logarithms(const float* z, float* p, int64_t num_rows, int64_t length, float floor,
                                int num_threads) {
    by_rows(num_rows, length, num_threads, [=](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) write_logarithms(z + row * length, p + row * length, length, floor);
    });
}

// ---- Runs of rows, each with an alpha of its own above 1, in float32 ------------------------------------------------

void hf_sparse_weights_by_run(const float* z, float* p, int64_t num_runs, const int64_t* num_rows, int64_t length,
                              const double* alpha, const double* exponent, int num_threads) {
    by_runs(num_runs, num_rows, length, num_threads, [=](int64_t run, int64_t first, int64_t rows, int threads) {
        all_weights(z + first * length, p + first * length, rows, length, alpha[run], exponent[run], threads);
    });
}

void hf_sparse_product_by_run(const float* p, const float* g, float* out, int64_t num_runs, const int64_t* num_rows,
                              int64_t length, const double* alpha, int num_threads) {
    by_runs(num_runs, num_rows, length, num_threads, [=](int64_t run, int64_t first, int64_t rows, int threads) {
        const int64_t at = first * length;
        all_products(p + at, g + at, out + at, rows, length, alpha[run], threads);
    });
}

// The product of g with the derivative of each row's p in alpha.
void hf_sparse_slopes_by_run(const float* p, const float* g, float* out, int64_t num_runs, const int64_t* num_rows,
                             int64_t length, const double* alpha, int num_threads) {
    by_runs(num_runs, num_rows, length, num_threads, [=](int64_t run, int64_t first, int64_t rows, int threads) {
        by_rows(rows, length, threads, [=](int64_t begin, int64_t end) {
            for (int64_t row = first + begin; row < first + end; row++)
                out[row] = static_cast<float>(
                    slope_in_alpha(p + row * length, g + row * length, length, static_cast<float>(alpha[run] - 1)));
        });
    });
}

}  // extern "C"
