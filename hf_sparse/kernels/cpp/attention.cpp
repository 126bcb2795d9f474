// What Python calls for attention without a matrix of scores, and for its derivatives; see AttentionCall.

#include "attention.hpp"

extern "C" {

void hf_sparse_has_tiles(int* found) { *found = has_tiles(); }
void hf_sparse_attend(const AttentionCall* call, int num_threads) { attend(*call, num_threads); }
void hf_sparse_differentiate_attention(const AttentionCall* call, int num_threads) {
    differentiate(*call, num_threads);
}

}  // extern "C"
