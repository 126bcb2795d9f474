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

// v = 2^exponent (1 + f) with f from -1/4 to 1/2; v positive and normal. Where the exponent is 0, f is v - 1 as it was given:
// near v = 1 it has digits that v has lost, and a power 1 / (alpha - 1) needs them.
struct Parts { Floats exponent, f; };
inline Parts parts_of(Floats v, Floats less_one) {
#if defined(__AVX512F__)
    // A third more has the exponent that the fraction from 3/4 on leaves; rounding takes it over no power of two wrongly.
    const Floats exponent = (Floats)_mm512_getexp_ps((__m512)(v * 1.33333337f));
    const Floats fraction = (Floats)_mm512_getmant_ps((__m512)v, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
#else
    constexpr int32_t THREE_QUARTERS = 0x3f400000;  // its bits
    const Ints above = (Ints)v - THREE_QUARTERS;
    const Floats exponent = __builtin_convertvector(above >> 23, Floats);
    const Floats fraction = (Floats)((above & 0x7fffff) + THREE_QUARTERS);
#endif
    return {exponent, exponent == 0.0f ? less_one : fraction - 1.0f};
}

// v = whole + f with |f| at most a half, and 2^whole times a number close to one. What has no normal result gives 0 or
// infinity, or where there is no instruction for it the smallest normal number.
struct Split { Floats whole, f; };
inline Split split_of(Floats v) {
#if defined(__AVX512F__)
    const Floats f = (Floats)_mm512_reduce_ps((__m512)v, 0);
    return {v - f, f};
#else
    constexpr float WHOLE = 12582912;  // 1.5 * 2^23: adding it rounds to a whole number, in the lowest bits
    v = smallest(largest(v, all(-125.0f)), all(128.0f));  // half of 2^-125 is normal
    const Floats whole = v + WHOLE;
    return {whole, v - (whole - WHOLE)};
#endif
}
inline Floats scaled_by(Floats v, const Split& by) {
#if defined(__AVX512F__)
    return (Floats)_mm512_scalef_ps((__m512)v, (__m512)by.whole);
#else
    return (Floats)((Ints)v + ((Ints)by.whole << 23));
#endif
}

// log2 and exp2 by polynomials, to a few float32 roundings; arguments positive and normal, or above -126.
inline Floats log2_of(Floats v, Floats less_one) {
    const auto [exponent, f] = parts_of(v, less_one);
    // The terms by twos and fours, which do not wait for each other.
    const Floats square = f * f, fourth = square * square;
    const Floats low = (0.33333449f - 0.25000096f * f) + square * (0.19990861f - 0.16647312f * f);
    const Floats high = (0.14478395f - 0.13161194f * f) + square * (0.10463021f - 0.04507478f * f);
    const Floats log = (low + fourth * high) * (f * square) + (f - 0.5f * square);
    return exponent + log * 1.4426950408889634f;
}
inline Floats log2_of(Floats v) { return log2_of(v, v - 1.0f); }
inline Floats exp2_of(Floats v) {
    const Split split = split_of(v);
    const Floats f = split.f, square = f * f;
    const Floats low = (1.0f + 0.693147203f * f) + square * (0.240226479f + 0.0555033247f * f);
    return scaled_by(low + square * square * (0.00961843736f + 0.00133988744f * f + 0.000153533619f * square), split);
}
// The value, and 0 where u is 0. With AVX-512 it is that already: the logarithm was -inf.
inline Floats zero_at_zero(Floats value, [[maybe_unused]] Floats u) {
#if defined(__AVX512F__)
    return value;
#else
    return u > std::numeric_limits<float>::min() ? value : Floats{};
#endif
}
inline Floats power(Floats u, Floats less_one, float exponent) {
    return zero_at_zero(exp2_of(exponent * log2_of(u, less_one)), u);
}
inline Floats power(Floats u, float exponent) { return power(u, u - 1.0f, exponent); }
// An excess u = [x - tau]_+, and u - 1 from 1 + tau, whose own digits are finer where tau is close to -1. The rounding of
// tau to float32 is made up for: thousands of small u would all be off by it.
struct Excess { Floats u, less_one; };
struct Offset {
    Floats tau, rest, risen;
    explicit Offset(double tau)
        : tau(all(static_cast<float>(tau))), rest(all(static_cast<float>(tau - static_cast<float>(tau)))),
          risen(all(static_cast<float>(tau + 1))) {}
};
template <int K> inline Excess excess(Floats x, const Offset& offset) {
    return {largest(x - offset.tau - offset.rest, Floats{}), K == 0 ? x - offset.risen : Floats{}};
}

// u ^ exponent to three or four digits, in little more than half the time: enough for all steps to a threshold but the
// last. Where the exponent is so large that it multiplies errors of the logarithm, all u that count are close to 1, and
// there it is exact.
inline Floats rough_power(const Excess& e, float exponent) {
    const auto [power_of_two, f] = parts_of(e.u, e.less_one);
    const Floats square = f * f;
    const Floats log = (f - 0.5f * square) + f * square * (0.33742686f - 0.25692153f * f + 0.13990105f * square);
    const Split split = split_of(exponent * (power_of_two + log * 1.4426950408889634f));
    const Floats rest = split.f;
    const Floats series = (0.99992807f + 0.69326099f * rest) + rest * rest * (0.24261117f + 0.05517164f * rest);
    return zero_at_zero(scaled_by(series, split), e.u);
}

// Whether all of it is zero, and so are its powers: worth a look before a logarithm, for long stretches of rows are.
template <int K> inline bool is_nothing(const Excess& e) { return K == 0 && beyond(e.u, Floats{}) == 0; }

// u ^ (P - 1), where P is K, or any number if K is 0.
template <int K, bool ROUGH = false> inline Floats slope_power(Excess e, float exponent) {
    if (K == 1) return e.u > 0.0f ? all(1.0f) : Floats{};
    if (K == 2) return e.u;
    if (K == 3) return e.u * e.u;
    if (K == 4) return e.u * e.u * e.u;
    return ROUGH ? rough_power(e, exponent - 1) : power(e.u, e.less_one, exponent - 1);
}
template <int K> inline Floats slope_power(Floats u, float exponent) {
    return slope_power<K>(Excess{u, K == 0 ? u - 1.0f : u}, exponent);
}
// u ^ P.
template <int K> inline Floats weight_power(Excess e, float exponent) {
    return K == 0 ? power(e.u, e.less_one, exponent) : slope_power<K>(e, exponent) * e.u;
}

}  // namespace
