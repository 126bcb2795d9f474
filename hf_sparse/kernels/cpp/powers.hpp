// Logarithms, exponentials and powers of vectors.

#pragma once

#include "lanes.hpp"

namespace {

// v = 2^exponent (1 + f) with f from -1/4 to 1/2; v positive and normal. Where the exponent is 0, f is v - 1 as it was given:
// near v = 1 it has digits that v has lost, and a power 1 / (alpha - 1) needs them.
struct Fraction {
    Floats exponent, v;  // from 3/4 to 3/2
    Floats less_one(Floats given) const { return exponent == 0.0f ? given : v - 1.0f; }
};
inline Fraction fraction_of(Floats v) {
#if defined(__AVX512F__)
    // A third more has the exponent that the fraction from 3/4 on leaves; rounding takes it over no power of two wrongly.
    return {(Floats)_mm512_getexp_ps((__m512)(v * 1.33333337f)),
            (Floats)_mm512_getmant_ps((__m512)v, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src)};
#else
    constexpr int32_t THREE_QUARTERS = 0x3f400000;  // its bits
    const Ints above = (Ints)v - THREE_QUARTERS;
    return {__builtin_convertvector(above >> 23, Floats), (Floats)((above & 0x7fffff) + THREE_QUARTERS)};
#endif
}

// v as a whole number of 1 / PARTS and a rest of at most half of one, and 2^v from a number close to one. What has no normal
// result gives 0 or infinity, or where there is no instruction for it the smallest normal number.
struct Split { Floats v, moved, whole, rest; };
template <int PARTS = 1> inline Split split_of(Floats v) {
    constexpr float SHIFT = 12582912.0f / PARTS;  // 1.5 * 2^23: adding it leaves the number of parts in the lowest bits
#if !defined(__AVX512F__)
    v = smallest(all(128.0f), largest(all(-125.0f), v));  // half of 2^-125 is normal
#endif
    const Floats moved = v + SHIFT, whole = moved - SHIFT;
    return {v, moved, whole, v - whole};
}
inline Floats scaled_by(Floats one, const Split& by) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_scalef_ps(beyond(by.v, all(-126.0f)), (__m512)one, (__m512)by.whole);
#else
    return (Floats)((Ints)one + ((Ints)by.moved << 23));
#endif
}

// log2 and exp2 to a few float32 roundings; arguments positive and normal, or above -126.
#if defined(__AVX2__)
// With tables, made by the compiler, that one instruction looks up in.
template <int PARTS, int STEPS> struct Tables {
    float inverse[PARTS]{}, log2[PARTS]{};  // 1 / v for a v of each part of the fractions, by its highest bits; log2 v
    float exp2[STEPS]{};                    // 2^(k / STEPS)
    constexpr Tables() {
        for (int k = 0; k < PARTS; k++) {
            const bool above = k < PARTS / 2;  // from 1 to 3/2; the others are from 3/4 to 1
            const double first = (above ? 1 : 0.5) * (1 + 1.0 * k / PARTS), middle = first + (above ? 0.5 : 0.25) / PARTS;
            inverse[k] = k == 0 || k == PARTS - 1 ? 1 : static_cast<float>(1 / middle);  // exact where v may be close to one
            // 2 artanh y is the logarithm.
            const double y = (1.0 - inverse[k]) / (1.0 + inverse[k]);
            double power = y, total = 0;
            for (int n = 1; n < 40; n += 2, power *= y * y) total += power / n;
            log2[k] = static_cast<float>(2 * total / 0.69314718055994531);
        }
        double power = 1;
        for (int k = 0; k < STEPS; k++) {
            exp2[k] = static_cast<float>(power);
            for (int n = 0; n < 16 / STEPS; n++) power *= 1.0442737824274138;  // 2^(1 / 16)
        }
    }
};
#endif
#if defined(__AVX512F__)
alignas(64) constexpr Tables<32, 16> TABLES;

inline Floats log2_of(Floats v, Floats less_one) {
    const Fraction fraction = fraction_of(v);
    const __m512i part = _mm512_srli_epi32((__m512i)fraction.v, 18);
    const auto look_up = [=](const float* table) {
        return (Floats)_mm512_permutex2var_ps(_mm512_load_ps(table), part, _mm512_load_ps(table + 16));
    };
    const Floats inverse = look_up(TABLES.inverse), log = look_up(TABLES.log2);
    const Floats f = fraction.less_one(less_one) * inverse + (inverse - 1.0f);
    const Floats series = 1.442695f + f * (-0.7213494f + f * (0.480952f - 0.35195404f * f));
    return f * series + (fraction.exponent + log);
}
inline Floats exp2_of(Floats v) {
    const Split split = split_of<16>(v);
    const Floats f = split.rest, power = (Floats)_mm512_permutexvar_ps((__m512i)split.moved, _mm512_load_ps(TABLES.exp2));
    return scaled_by(power + power * f * (0.6931472f + f * (0.24023356f + 0.05550411f * f)), split);
}
#elif defined(__AVX2__)
alignas(32) constexpr Tables<8, 8> TABLES;

inline Floats look_up(const float* table, Ints at) {
    return (Floats)_mm256_permutevar8x32_ps(_mm256_load_ps(table), (__m256i)at);
}

inline Floats log2_of(Floats v, Floats less_one) {
    // The exponent that leaves a fraction from 3/4 on, where a float has it; an inverse of v is that of the part, times 2^-e.
    const Ints exponent = ((Ints)v - 0x3f400000) & -0x800000, part = (Ints)v >> 20;
    const Floats inverse = (Floats)((Ints)look_up(TABLES.inverse, part) - exponent);
    const Floats f = inverse == 1.0f ? less_one : v * inverse - 1.0f;
    const Floats log = __builtin_convertvector(exponent, Floats) * 0x1p-23f + look_up(TABLES.log2, part);
    const Floats series = 1.4426949f + f * (-0.7213478f + f * (0.48105064f + f * (-0.36116084f + 0.25645325f * f)));
    return f * series + log;
}
inline Floats exp2_of(Floats v) {
    const Split split = split_of<8>(v);
    const Floats f = split.rest, power = look_up(TABLES.exp2, (Ints)split.moved);
    const Floats one = power + power * f * (0.6931472f + f * (0.24025764f + 0.055511475f * f));
    return (Floats)((Ints)one + (((Ints)split.moved >> 3) << 23));
}
#else
inline Floats log2_of(Floats v, Floats less_one) {
    const Fraction fraction = fraction_of(v);
    const Floats f = fraction.less_one(less_one), square = f * f, fourth = square * square;
    // The terms by twos and fours, which do not wait for each other.
    const Floats low = (0.33333449f - 0.25000096f * f) + square * (0.19990861f - 0.16647312f * f);
    const Floats high = (0.14478395f - 0.13161194f * f) + square * (0.10463021f - 0.04507478f * f);
    const Floats log = (low + fourth * high) * (f * square) + (f - 0.5f * square);
    return fraction.exponent + log * 1.4426950408889634f;
}
inline Floats exp2_of(Floats v) {
    const Split split = split_of(v);
    const Floats f = split.rest, square = f * f;
    const Floats low = (1.0f + 0.693147203f * f) + square * (0.240226479f + 0.0555033247f * f);
    return scaled_by(low + square * square * (0.00961843736f + 0.00133988744f * f + 0.000153533619f * square), split);
}
#endif
inline Floats log2_of(Floats v) { return log2_of(v, v - 1.0f); }

// The same to three or four digits, in less time where that can be had: enough for all steps to a threshold but the last.
// Where an exponent is so large that it multiplies errors of the logarithm, all v that count are close to 1, and there it
// is exact.
#if !defined(__AVX512F__) && defined(__AVX2__)
inline Floats rough_log2_of(Floats v, Floats less_one) { return log2_of(v, less_one); }
inline Floats rough_exp2_of(Floats v) { return exp2_of(v); }
#else
inline Floats rough_log2_of(Floats v, Floats less_one) {
    const Fraction fraction = fraction_of(v);
    const Floats f = fraction.less_one(less_one), square = f * f;
    const Floats log = (f - 0.5f * square) + f * square * (0.33742686f - 0.25692153f * f + 0.13990105f * square);
    return fraction.exponent + log * 1.4426950408889634f;
}
inline Floats rough_exp2_of(Floats v) {
    const Split split = split_of(v);
    const Floats rest = split.rest;
    const Floats series = (0.99992807f + 0.69326099f * rest) + rest * rest * (0.24261117f + 0.05517164f * rest);
    return scaled_by(series, split);
}
#endif

// Functions of an exponent P have a template for each kind K of it: one of its own for 1 to 4, another for whole ones up to
// LARGEST_WHOLE, past which products lose digits that a logarithm of u - 1 keeps, and one for any number.
constexpr int ANY = 0, WHOLE = -1, LARGEST_WHOLE = 20;

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
    return {largest(x - offset.tau - offset.rest, Floats{}), K == ANY ? x - offset.risen : Floats{}};
}

// Powers of several u. One is a chain of operations, each of which waits for the one before; a processor does not look
// ahead as far as the next. So the logarithms of all come first.
template <bool ROUGH, int N> inline void powers(const Excess (&e)[N], float exponent, Floats (&out)[N]) {
    Floats log[N];
    for (int k = 0; k < N; k++)
        log[k] = exponent * (ROUGH ? rough_log2_of(e[k].u, e[k].less_one) : log2_of(e[k].u, e[k].less_one));
    for (int k = 0; k < N; k++) {
        const Floats v = ROUGH ? rough_exp2_of(log[k]) : exp2_of(log[k]);
#if defined(__AVX512F__)
        out[k] = v;  // 0 where u is: the logarithm was -inf
#else
        out[k] = e[k].u > std::numeric_limits<float>::min() ? v : Floats{};
#endif
    }
}
inline Floats power(Floats u, float exponent) {
    Floats v[1];
    powers<false>({{u, u - 1.0f}}, exponent, v);
    return v[0];
}

// 1 / v to three or four digits.
inline Floats rough_inverse(Floats v) {
#if defined(__AVX512F__)
    return (Floats)_mm512_rcp14_ps((__m512)v);
#elif defined(__AVX__)
    return (Floats)_mm256_rcp_ps((__m256)v);
#endif
    return 1.0f / v;
}

// Whether all of them are zero, and so are their powers: worth a look before a logarithm, for long stretches of rows are.
template <int K, int N> inline bool is_nothing(const Excess (&e)[N]) {
    if (K != ANY) return false;
    Floats most = e[0].u;
    for (int k = 1; k < N; k++) most = largest(most, e[k].u);
    return beyond(most, Floats{}) == 0;
}

// u ^ (P - 1) for a whole P, by squares; 0 where it is so small that its product with u might be no normal number.
template <int N> inline void products(const Excess (&e)[N], int exponent, Floats (&out)[N]) {
    const int32_t least = (127 - 126 / exponent) << 23;  // the bits of a power of two
    Floats square[N];
    for (int k = 0; k < N; k++) {
        square[k] = (Floats)((Ints)e[k].u & ((Ints)e[k].u >= least));
        out[k] = all(1.0f);
    }
    for (int count = exponent - 1;;) {
        if (count % 2)
            for (int k = 0; k < N; k++) out[k] *= square[k];
        if ((count /= 2) == 0) break;
        for (int k = 0; k < N; k++) square[k] *= square[k];
    }
}

// u ^ (P - 1).
template <int K, bool ROUGH = false, int N>
inline void slope_powers(const Excess (&e)[N], float exponent, Floats (&out)[N]) {
    if constexpr (K == ANY) return powers<ROUGH>(e, exponent - 1, out);
    if constexpr (K == WHOLE) return products(e, static_cast<int>(exponent), out);
    for (int k = 0; k < N; k++) {
        const Floats u = e[k].u;
        out[k] = K == 1 ? (u > 0.0f ? all(1.0f) : Floats{}) : K == 2 ? u : K == 3 ? u * u : u * u * u;
    }
}
template <int K, bool ROUGH = false> inline Floats slope_power(Floats u, float exponent) {
    Floats s[1];
    slope_powers<K, ROUGH>({{u, K == ANY ? u - 1.0f : u}}, exponent, s);
    return s[0];
}
// u ^ P.
template <int K, int N> inline void weight_powers(const Excess (&e)[N], float exponent, Floats (&out)[N]) {
    if constexpr (K == ANY) return powers<false>(e, exponent, out);
    slope_powers<K>(e, exponent, out);
    for (int k = 0; k < N; k++) out[k] *= e[k].u;
}

}  // namespace
