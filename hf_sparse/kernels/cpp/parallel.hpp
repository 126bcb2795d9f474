// Rows in parallel, on the threads that torch computes with.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// OpenMP's call that runs a function on a team of threads, from the library that torch computes with; null if it has
// none. Its threads exist already; new ones would wait for cores on which torch's idle threads spin.
typedef void (*Team)(void (*)(void*), void*, unsigned, unsigned);
__attribute__((visibility("hidden"))) extern Team team;  // of all sources, and of this library alone

namespace {

// While it lives, results below float32's normal range are zero. A processor takes over a hundred cycles to form one,
// and next to softmax many weights of a row are that small.
struct NoSubnormals {
#if defined(__SSE2__)
    const unsigned before = _mm_getcsr();
    NoSubnormals() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON); }
    ~NoSubnormals() { _mm_setcsr(before); }
#endif
};

// body(first, last) on runs of rows, by as many threads as the work keeps busy.
template <class Body> void by_rows(int64_t num_rows, int64_t length, int num_threads, Body body) {
    constexpr int64_t WORTH_A_THREAD = 1 << 17;  // entries; to start a thread takes about ten microseconds
    const int64_t busy = std::min<int64_t>({num_threads, num_rows, num_rows * length / WORTH_A_THREAD});
    if (busy <= 1) {
        [[maybe_unused]] const NoSubnormals mode;
        return body(0, num_rows);
    }
    const int64_t run = std::max<int64_t>(1, num_rows / (8 * busy));
    std::atomic<int64_t> next{0};
    auto work = [&] {
        [[maybe_unused]] const NoSubnormals mode;
        for (int64_t first; (first = next.fetch_add(run)) < num_rows;) body(first, std::min(num_rows, first + run));
    };
    if (team) return team([](void* given) { (*static_cast<decltype(work)*>(given))(); }, &work, num_threads, 0);
    std::vector<std::thread> others;
    for (int64_t i = 1; i < busy; i++) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
}

// body(run, first row, number of rows, threads) for each run of rows: by all threads one after the other, or by one each.
template <class Body>
void by_runs(int64_t num_runs, const int64_t* num_rows, int64_t length, int num_threads, Body body) {
    if (num_runs == 1) return body(0, 0, num_rows[0], num_threads);
    std::vector<int64_t> first(num_runs + 1);
    for (int64_t run = 0; run < num_runs; run++) first[run + 1] = first[run] + num_rows[run];
    by_rows(num_runs, first[num_runs] / num_runs * length, num_threads, [&](int64_t begin, int64_t end) {
        for (int64_t run = begin; run < end; run++) body(run, first[run], num_rows[run], 1);
    });
}

}  // namespace
