// Rows of zeros with a few weights.

#pragma once

#include "lanes.hpp"

namespace {

// Results larger than this leave the caches anyway: written past them they cost half the traffic, for no line is read
// before it is written, and nothing that is still needed is thrown out.
constexpr int64_t STREAMED = int64_t{1} << 24;

inline void stream(void* to, Ints v) {
#if defined(__AVX512F__)
    _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)v);
#elif defined(__AVX__)
    _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v);
#elif defined(__SSE2__)
    _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)v);
#else
    std::memcpy(to, &v, sizeof v);
#endif
}
inline void finish_streaming() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Zeros, and value[k] at column[k]; columns ascend.
template <class T, class Column>
void write_row(T* out, int64_t length, const Column* column, const float* value, int64_t n, bool streamed) {
    constexpr int64_t LINE = 64 / sizeof(T);
    int64_t next = 0;
    const auto write_until = [&](int64_t end, T* from, int64_t begin) {
        for (; next < n && column[next] < end; next++) store_one(from + (column[next] - begin), value[next]);
    };
    int64_t i = streamed ? std::min<int64_t>(length, (-reinterpret_cast<uintptr_t>(out) & 63) / sizeof(T)) : length;
    std::memset(static_cast<void*>(out), 0, i * sizeof(T));
    write_until(i, out, 0);
    for (; i + LINE <= length; i += LINE) {
        T line[LINE] = {};
        if (__builtin_expect(next < n && column[next] < i + LINE, 0)) write_until(i + LINE, line, i);
        for (int64_t k = 0; k < LINE; k += sizeof(Ints) / sizeof(T)) stream(out + i + k, load_as<Ints>(line + k));
    }
    std::memset(static_cast<void*>(out + i), 0, (length - i) * sizeof(T));
    write_until(length, out, 0);
}

}  // namespace
