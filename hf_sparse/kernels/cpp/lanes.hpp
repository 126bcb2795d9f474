// Vectors of float32, and scores of three kinds read as such.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

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
constexpr float MARGIN = 64 * EPS;  // what float32 may be off by in a bound on tau

// ---- Scores of three kinds, read as float32 -------------------------------------------------------------------

struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };

template <class V> inline V load_as(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline Ints bits_of(const uint16_t* p) { return __builtin_convertvector(load_as<Halves>(p), Ints); }
inline Floats load(const float* p) { return load_as<Floats>(p); }
inline Floats load(const BFloat16* p) { return (Floats)(bits_of(&p->bits) << 16); }
inline Floats load(const Half* p) {
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
inline Floats load_some(const float* p, int64_t n) {  // the first n, and zeros
    Floats v = {};
    if (__builtin_expect(n >= LANES, 1)) return load(p);
    std::memcpy(&v, p, 4 * n);
    return v;
}
inline void store_some(float* p, Floats v, int64_t n) { std::memcpy(p, &v, n >= LANES ? sizeof v : 4 * n); }

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

// ---- Lanes ----------------------------------------------------------------------------------------------------

inline Floats all(float v) { return v - Floats{}; }
inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }
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

// log2 and exp2 by their Taylor series, to a few float32 roundings; arguments positive and normal, or above -126.
inline Floats log2_of(Floats v) {
    const Ints bits = (Ints)v;
    Ints exponent = (bits >> 23) - 127;
    Floats m = (Floats)((bits & 0x7fffff) | 0x3f800000);
    const Ints high = m > 1.41421356f;
    m = high ? m * 0.5f : m;
    exponent -= high;
    const Floats s = (m - 1.0f) / (m + 1.0f), q = s * s;
    const Floats series = 1.0f + q * (1.0f / 3 + q * (1.0f / 5 + q * (1.0f / 7 + q * (1.0f / 9))));
    return __builtin_convertvector(exponent, Floats) + s * series * 2.8853900817779268f;
}
inline Floats exp2_of(Floats v) {
    v = largest(v, all(-126.0f));
    v = v < 128.0f ? v : all(128.0f);  // which gives infinity
    const Ints whole = __builtin_convertvector(v + (v < 0 ? all(-0.5f) : all(0.5f)), Ints);
    const Floats f = (v - __builtin_convertvector(whole, Floats)) * 0.6931471805599453f;
    const Floats series =
        1.0f + f * (1.0f + f * (1.0f / 2 + f * (1.0f / 6 + f * (1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720))))));
    return series * (Floats)((whole + 127) << 23);
}
inline Floats power(Floats u, float exponent) {
    const Ints support = u > std::numeric_limits<float>::min();
    return support ? exp2_of(exponent * log2_of(support ? u : all(1.0f))) : Floats{};
}

// u ^ (P - 1) for u >= 0, where P is K, or any number if K is 0.
template <int K> inline Floats slope_power(Floats u, float exponent) {
    if (K == 1) return u > 0.0f ? all(1.0f) : Floats{};
    if (K == 2) return u;
    if (K == 3) return u * u;
    if (K == 4) return u * u * u;
    return power(u, exponent - 1);
}

}  // namespace
