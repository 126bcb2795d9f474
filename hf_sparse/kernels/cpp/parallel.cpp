// What Python calls to say where parallel work is done.

#include "parallel.hpp"

Team team = nullptr;

extern "C" {

// GOMP_parallel of the OpenMP library in this process.
void hf_sparse_use_team(void* gomp_parallel) { team = reinterpret_cast<Team>(gomp_parallel); }

}  // extern "C"
