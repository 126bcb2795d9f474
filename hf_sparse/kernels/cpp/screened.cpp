// Products that are bounded first, and made where the bound does not decide: of heads, of keys, of rows of scores.

#include <vector>

#include "coded_keys.hpp"
#include "screen.hpp"
#include "screened_rows.hpp"

extern "C" {

// ---- Products of a matrix (num_rows, width) with a few vectors, see screen.hpp -------------------------------------

// The matrix in 8 bits; *fine is 0 if it holds entries that are not finite, or too large.
void hf_sparse_code_rows(const void* matrix, int dtype, int64_t num_rows, int64_t width, int8_t* code, void* group,
                         int num_threads, int* fine) {
    BY_DTYPE(*fine = code_rows(Matrix<T>{static_cast<const T*>(matrix), nullptr, num_rows, width}, code,
                               static_cast<Group*>(group), num_threads))
}

void hf_sparse_fingerprint(const void* data, int64_t num_bytes, int num_threads, uint64_t* found) {
    *found = fingerprint(static_cast<const char*>(data), num_bytes, num_threads);
}

// For each of num_vectors vectors (width,): all products, each with what it may be off by, and the columns and exact
// values of the `most` that seem largest. bias may be null. *fine is 0 if some are not finite: then nothing is written.
void hf_sparse_screen(const void* matrix, int dtype, const float* bias, const int8_t* code, const void* group,
                      int64_t num_rows, int64_t width, const float* vectors, int64_t num_vectors, int64_t most,
                      float* product, float* slack, int64_t* column, float* exact, int num_threads, int* fine) {
    const int64_t num_groups = (width + GROUP - 1) / GROUP;
    *fine = std::all_of(vectors, vectors + num_vectors * width, [](float v) { return std::fabs(v) < 0x1p60f; });
    if (!*fine) return;
    std::vector<CodedVector> coded;
    for (int64_t b = 0; b < num_vectors; b++) coded.emplace_back(vectors + b * width, width, num_groups);
    *fine = screen({code, static_cast<const Group*>(group), bias, num_rows, num_groups}, coded, num_threads, product, slack);
    if (!*fine) return;
    for (int64_t b = 0; b < num_vectors; b++) {
        list_largest(product + b * num_rows, num_rows, most, column + b * most);
        for (int64_t i = b * most; i < (b + 1) * most; i++)
            BY_DTYPE(exact[i] = exact_product(Matrix<T>{static_cast<const T*>(matrix), bias, num_rows, width}, column[i],
                                              vectors + b * width))
    }
}

// Exact products in the place of those that may reach cut[b]. count[b] is their number, -1 if one was off by more than
// its slack: the bytes are then not those of this matrix.
void hf_sparse_refine(const void* matrix, int dtype, const float* bias, int64_t num_rows, int64_t width,
                      const float* vectors, int64_t num_vectors, const float* cut, const float* slack, float* product,
                      int num_threads, int64_t* count) {
    for (int64_t b = 0; b < num_vectors; b++)
        BY_DTYPE(count[b] = refine(Matrix<T>{static_cast<const T*>(matrix), bias, num_rows, width}, vectors + b * width,
                                   cut[b], slack + b * num_rows, product + b * num_rows, num_threads))
}

// ---- Attention of a few queries, see few_queries.hpp ---------------------------------------------------------------

void hf_sparse_attend_few(const FewCall* call, int num_threads) {
    const int dtype = call->dtype;
    BY_DTYPE(attend_few<T>(*call, num_threads))
}

// ---- The same over keys that are kept in 8 bits too, see coded_keys.hpp -------------------------------------------

// The keys [first, num_keys) in 8 bits; call->fine is 0 if they hold entries that are not finite, or too large.
void hf_sparse_code_keys(CodedCall* call, int64_t first, int num_threads) {
    const int dtype = call->dtype;
    BY_DTYPE(call->fine = code_keys<T>(*call, first, num_threads))
}

// Attention to them; call->fine is 0 if the output is to be computed otherwise.
void hf_sparse_attend_to_coded(CodedCall* call, int num_threads) {
    const int dtype = call->dtype;
    BY_DTYPE(attend_to_coded<T>(*call, num_threads))
}

// ---- Rows of scores from a product in bfloat16, see screened_rows.hpp ----------------------------------------------

// Rows in bfloat16, their norms and those of what rounding lost; *fine is 0 if they are not finite, or huge.
void hf_sparse_round_rows(const float* rows, int64_t num_rows, int64_t width, void* rounded, float* norm, float* lost,
                          int num_threads, int* fine) {
    *fine = round_rows(rows, num_rows, width, static_cast<BFloat16*>(rounded), norm, lost, num_threads);
}

// For each row columns and scores of at most `most` candidates; their number, -1 where it is too many. See ScreenCall.
void hf_sparse_list_candidates(const void* product, const float* h, const float* w, const float* bias,
                               const float* h_norm, const float* h_lost, const float* w_norm, const float* w_lost,
                               int64_t num_rows, int64_t length, int64_t width, int64_t most, double alpha,
                               double exponent, double tau, int64_t* column, float* score, int64_t* count,
                               int num_threads) {
    list_all_candidates({static_cast<const BFloat16*>(product), h, w, bias, h_norm, h_lost, w_norm, w_lost, num_rows,
                         length, width, most, alpha, exponent, tau, column, score}, count, num_threads);
}

}  // extern "C"
