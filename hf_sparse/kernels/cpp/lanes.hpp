// Vectors of float32, and scores of three kinds read as such.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float EPS = std::numeric_limits<float>::epsilon();
constexpr int64_t BLOCK = 1024;  // entries between two looks at the bound; as many as are summed up in float32
constexpr int64_t PART = 16 * LANES;  // or so few, where they may be equal, and rounded alike
constexpr float MARGIN = 64 * EPS;  // what float32 may be off by in a bound on tau

// Asks for the line of memory two pages after this one, which is read soon: by itself a processor stops at each page.
inline void fetch_ahead(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + (1 << 13)); }

// A product as it is stored. One that is only added to something may keep digits, in an instruction that does both.
template <class V> V rounded(V product) {
#if defined(__AVX512F__)
    asm("" : "+v"(product));
#elif defined(__SSE__)
    asm("" : "+x"(product));
#elif defined(__aarch64__)
    asm("" : "+w"(product));
#endif
    return product;
}

// ---- Scores of three kinds, read as float32 -------------------------------------------------------------------

struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };

// A call on scores of the kind T that Python names: 0 float32, 1 bfloat16, 2 float16.
#define BY_DTYPE(call)                                       \
    if (dtype == 0) { using T = float; call; }               \
    else if (dtype == 1) { using T = BFloat16; call; }       \
    else { using T = Half; call; }

template <class V> inline V load_as(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
// Compilers take five instructions for what is one.
inline Ints bits_of(const uint16_t* p) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu16_epi32(load_as<__m256i>(p));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu16_epi32(load_as<__m128i>(p));
#endif
    return __builtin_convertvector(load_as<Halves>(p), Ints);
}
inline Halves low_halves(Ints bits) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtepi32_epi16((__m512i)bits);
#endif
    return __builtin_convertvector(bits & 0xffff, Halves);
}
inline Floats load(const float* p) { return load_as<Floats>(p); }
inline Floats load(const BFloat16* p) { return (Floats)(bits_of(&p->bits) << 16); }
inline Floats load(const Half* p) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(load_as<__m256i>(p));
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(load_as<__m128i>(p));
#endif
    const Ints bits = bits_of(&p->bits), size = bits & 0x7fff;
    // A float32 with the same exponent and fraction bits is 2^112 too small; infinities and NaN have exponent 31.
    const Floats finite = (Floats)(size << 13) * 0x1p112f;
    const Floats value = size >= 0x7c00 ? (Floats)((size << 13) | 0x7f800000) : finite;
    return (Floats)((Ints)value | ((bits & 0x8000) << 16));
}
template <class T> inline float load_one(const T* p) {
    T several[LANES] = {*p};
    return load(several)[0];
}
inline float load_one(const float* p) { return *p; }
inline float load_one(const BFloat16* p) {
    const uint32_t bits = uint32_t{p->bits} << 16;
    return load_as<float>(&bits);
}
template <class T> inline Floats load_some(const T* p, int64_t n) {  // the first n, and zeros
    if (__builtin_expect(n >= LANES, 1)) return load(p);
    T several[LANES] = {};
    std::memcpy(static_cast<void*>(several), p, sizeof(T) * n);
    return load(several);
}

inline void store_one(float* p, float v) { *p = v; }
inline void store_one(BFloat16* p, float v) {  // to the nearest, ties to even
    uint32_t bits = load_as<uint32_t>(&v);
    p->bits = v != v ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline void store_one(Half* p, float v) {  // scaled so that the fraction ends where fp16's does
    const float size = std::fabs(v);
    const uint32_t bits = load_as<uint32_t>(&size) - (112u << 23);
    const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    if (v != v) p->bits = 0x7e00;
    else if (size >= 65520.0f) p->bits = sign | 0x7c00;
    else if (size < 0x1p-14f) p->bits = sign | static_cast<uint16_t>(std::nearbyintf(size * 0x1p24f));  // subnormal
    else p->bits = sign | (bits + 0xfff + ((bits >> 13) & 1)) >> 13;
}
inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
inline void store(BFloat16* p, Floats v) {
    const Ints bits = (Ints)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Halves halves = low_halves(v == v ? rounded : Ints{} + 0x7fc0);
    std::memcpy(p, &halves, sizeof halves);
}
inline void store(Half* p, Floats v) {
#if defined(__AVX512F__)
    const __m256i halves = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return static_cast<void>(std::memcpy(p, &halves, sizeof halves));
#elif defined(__F16C__)
    const __m128i halves = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return static_cast<void>(std::memcpy(p, &halves, sizeof halves));
#endif
    for (int k = 0; k < LANES; k++) store_one(p + k, v[k]);
}
template <class T> inline void store_some(T* p, Floats v, int64_t n) {  // the first n
    if (__builtin_expect(n >= LANES, 1)) return store(p, v);
    T several[LANES];
    store(several, v);
    std::memcpy(static_cast<void*>(p), several, sizeof(T) * n);
}

// Calls body(number, i) with four vectors, a step apart from the next four, while there are so many between begin and end,
// and then with FEWER.
template <int FEWER, class Body> inline void by_fours(int64_t begin, int64_t end, int64_t step, Body body) {
    for (; begin + (4 - FEWER) / FEWER * step < end; begin += 4 / FEWER * step) body(std::integral_constant<int, 4>{}, begin);
    for (; begin < end; begin += step) body(std::integral_constant<int, FEWER>{}, begin);
}

// ---- Lanes ----------------------------------------------------------------------------------------------------

inline Floats all(float v) { return v - Floats{}; }
// a > b ? a : b, and a < b ? a : b: b where one is NaN.
inline Floats largest(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#endif
    return a > b ? a : b;
}
inline Floats smallest(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#endif
    return a < b ? a : b;
}
// A bit for every lane that is above the threshold, or NaN.
inline uint32_t beyond(Floats v, Floats threshold) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, (__m512)threshold, _CMP_NLE_UQ);
#elif defined(__AVX__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, (__m256)threshold, _CMP_NLE_UQ));
#endif
    uint32_t bits = 0;
    for (int k = 0; k < LANES; k++) bits |= static_cast<uint32_t>(!(v[k] <= threshold[k])) << k;
    return bits;
}
// Whether one of them is true, as comparisons leave it.
inline bool any(Ints v) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(__AVX__)
    return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#endif
    int32_t found = 0;
    for (int k = 0; k < LANES; k++) found |= v[k];
    return found != 0;
}
inline float sum(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#endif
    float part[LANES];
    std::memcpy(part, &v, sizeof v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

inline float highest(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#endif
    float top = v[0];
    for (int k = 1; k < LANES; k++) top = std::max(top, v[k]);
    return top;
}

}  // namespace
